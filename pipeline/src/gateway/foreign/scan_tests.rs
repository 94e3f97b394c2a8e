//! Tests of the scan: against what serde_json makes of the same bodies.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn text<'a>(body: &'a str, asked: &Asked) -> &'a str {
    &body[asked.prompt.clone()]
}

/// Scenario: a chat with tools, a conversation one turn later, completions of one prompt, of several, of token ids.
/// Guarantees: model, lengths, turns and prompt are found; the later conversation has the same session and begins with the
/// same bytes; the newer name of the limit wins wherever it stands.
#[test]
fn requests_are_understood() {
    let chat = r#" {"model":"m\u0031", "stream" : true, "max_completion_tokens":7,"max_tokens": 5, "n":2, "x":{"a":[1,"]"]},
        "messages":[{"role":"system","content":"be \"kind\""},{"content":[{"type":"text","text":"hi"}],"role":"user"}]}"#;
    let asked = scan(chat.as_bytes()).unwrap();
    assert_eq!((asked.model.as_deref(), asked.streams), (Some("m1"), true));
    assert_eq!((asked.max_tokens, asked.sequences, asked.turns), (Some(7), 2, 1));
    assert_eq!(&chat[asked.max_tokens_at.clone().unwrap()], "7");
    assert!(text(chat, &asked).ends_with(r#""role":"user"}"#), "{}", text(chat, &asked));
    let later = chat.replace(
        r#""role":"user"}]"#,
        r#""role":"user"},{"role":"assistant","content":"ho"},{"role":"user","content":"?"}]"#,
    );
    let next = scan(later.as_bytes()).unwrap();
    assert_eq!((next.turns, next.session), (2, asked.session));
    assert!(text(&later, &next).starts_with(text(chat, &asked)));
    assert_ne!(scan(chat.replace("hi", "ho").as_bytes()).unwrap().session, asked.session);

    let one = r#"{"prompt":"once","model":"m","max_tokens":3}"#;
    let asked = scan(one.as_bytes()).unwrap();
    assert_eq!((text(one, &asked), asked.sequences, asked.turns, asked.session), ("\"once", 1, 1, None));
    let many = r#"{"prompt":["a","b"],"model":"m","n":3,"user":"u"}"#;
    let asked = scan(many.as_bytes()).unwrap();
    assert_eq!((text(many, &asked), asked.sequences, asked.max_tokens), ("\"a\",\"b\"", 6, None));
    assert!(asked.session.is_some());
    let tokens = r#"{"prompt":[1,2,3],"model":"m"}"#;
    assert_eq!(scan(tokens.as_bytes()).unwrap().sequences, 1);
    assert_ne!(scan(br#"{"tools":[1]}"#).unwrap().salt, scan(br#"{"tools":null}"#).unwrap().salt);
}

/// Scenario: bodies that are no JSON object, or stop too early.
/// Guarantees: each is refused with the place.
#[test]
fn what_is_no_object_is_refused() {
    for body in [
        "",
        "  ",
        "[]",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":\"x",
        "{\"a\":\"\\",
        "{\"a\":[1}",
        "{} x",
        "{,}",
        "\u{1}",
    ] {
        let error = scan(body.as_bytes()).map_err(|error| error.to_string());
        let is_brackets = body == "{\"a\":[1}";
        assert!(error.is_err() || is_brackets, "{body}: {error:?}");
    }
    assert!(scan(b"[1]").unwrap_err().to_string().contains("expected a JSON object at byte 0"));
}

/// Scenario: prompts with a common front, of several lengths, with another salt.
/// Guarantees: full blocks alone count, and a hash stands for all that came before it.
#[test]
fn blocks_are_chained() {
    let hashes = |text: &str, salt| block_hashes(text.as_bytes(), salt, 4);
    assert_eq!(hashes("abcdefgh", 0), hashes("abcdefghxyz", 0));
    assert_eq!(hashes("abcdefgh", 0)[0], hashes("abcdxxxx", 0)[0]);
    assert_ne!(hashes("abcdefgh", 0)[1], hashes("xxxxefgh", 0)[1]);
    assert_ne!(hashes("abcd", 0), hashes("abcd", 1));
    assert_eq!(hashes("abc", 0), [0u64; 0]);
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        any::<f32>().prop_filter("finite", |x| x.is_finite()).prop_map(Value::from),
        "[ -~äöü\"\\\\\n]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"\\\\]{0,4}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// Scenario: any request around any values, pretty or not.
    /// Guarantees: what the scan finds is what serde_json finds, and bytes cut off at the end are refused.
    #[test]
    fn agrees_with_a_parser(extra in json(), content in json(), model in "[a-zäß\"\\\\]{1,8}", most: u32, pretty: bool, cut in 1usize..40) {
        let body = json!({"extra": extra, "model": model, "messages": [{"role": "user", "content": content}],
                          "max_tokens": most, "stream": true});
        let text = if pretty { serde_json::to_string_pretty(&body).unwrap() } else { body.to_string() };
        let asked = scan(text.as_bytes()).unwrap();
        prop_assert_eq!(asked.model.as_deref(), body["model"].as_str());
        prop_assert_eq!((asked.max_tokens, asked.streams, asked.turns), (Some(most), true, 1));
        let messages: Value = serde_json::from_str(&format!("[{}]", &text[asked.prompt.clone()])).unwrap();
        let parsed: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&messages, &parsed["messages"]);
        let short = text.trim_end().len().saturating_sub(cut);
        prop_assert!(scan(&text.as_bytes()[..short]).is_err());
    }
}
