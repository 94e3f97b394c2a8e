//! Tool calls: read from text in any pieces; written by a constrained model and read back.

use engine::{
    chat_template::{AddGenerationPrompt, ChatMessage, ChatTemplate},
    grammar::GrammarSource,
    request::FinishReason,
    tool_calls::{
        MAX_CALL_BYTES, ParallelCalls, Tool, ToolCallEvent, ToolCallFormat, ToolCallParser, ToolChoice, ToolError,
        constraint, parse_tool_choice, parse_tools,
    },
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    constrained::{TINY, byte_token, constrained, long_engine},
    schema_checker::follows,
    support::run_to_end,
};

fn names() -> Vec<String> {
    ["weather", "add"].map(str::to_owned).into()
}

/// What a reply came to: its text, and of each call name, arguments and whether it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Reply {
    text: String,
    calls: Vec<(String, String, bool)>,
}

fn gather(events: &[ToolCallEvent]) -> Reply {
    let mut reply = Reply::default();
    for event in events {
        match event {
            ToolCallEvent::Text(text) => {
                assert!(!text.is_empty());
                reply.text.push_str(text);
            }
            ToolCallEvent::Begin { index, name } => {
                assert_eq!(*index, reply.calls.len(), "calls are counted in order");
                reply.calls.push((name.clone(), String::new(), false));
            }
            ToolCallEvent::Arguments { index, text } => {
                assert!(*index + 1 == reply.calls.len() && !text.is_empty() && !reply.calls[*index].2);
                reply.calls[*index].1.push_str(text);
            }
            ToolCallEvent::End { index } => reply.calls[*index].2 = true,
        }
    }
    reply
}

fn read(format: ToolCallFormat, pieces: &[&str]) -> Reply {
    let mut parser = ToolCallParser::new(format, names());
    let mut events = Vec::new();
    pieces.iter().for_each(|piece| parser.push(piece, &mut events));
    parser.finish(&mut events);
    let reply = gather(&events);
    assert_eq!(parser.calls(), reply.calls.len());
    reply
}

fn reply(text: &str, calls: &[(&str, &str, bool)]) -> Reply {
    let calls = calls.iter().map(|(name, arguments, ended)| ((*name).to_owned(), (*arguments).to_owned(), *ended));
    Reply { text: text.to_owned(), calls: calls.collect() }
}

/// Replies, and what they come to. Each is read whole, character by character, and in the pieces of the random test.
fn replies() -> Vec<(ToolCallFormat, &'static str, Reply)> {
    use ToolCallFormat::{Hermes, Json};
    let none: &[(&str, &str, bool)] = &[];
    vec![
        (Hermes, "plain text", reply("plain text", none)),
        (Hermes, " \n ", reply(" \n ", none)),
        (Hermes, "a < b <tool_ca", reply("a < b <tool_ca", none)),
        (
            Hermes,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>",
            reply("", &[("add", "{\"a\": 1, \"b\": [2]}", true)]),
        ),
        (
            Hermes,
            "Let me see.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n\
             {\"arguments\": {\"é\": \"}\\\"{\"}, \"name\": \"weather\"}\n</tool_call>\n",
            reply("Let me see.\n", &[("add", "{}", true), ("weather", "{\"é\": \"}\\\"{\"}", true)]),
        ),
        (Hermes, "<tool_call>{\"name\":\"other\"}</tool_call> so", reply(" so", &[("other", "{}", true)])),
        (
            Hermes,
            "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
            reply("", &[("add", "{\"a\": 1}", true)]),
        ),
        (Hermes, "<tool_call>not json</tool_call>", reply("<tool_call>not json</tool_call>", none)),
        (Hermes, "<tool_call>{\"a\": 1}", reply("<tool_call>{\"a\": 1}", none)),
        (Hermes, "<<tool_call>{\"name\": \"add", reply("<<tool_call>{\"name\": \"add", none)),
        (Hermes, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1", reply("", &[("add", "{\"a\": 1", false)])),
        (Hermes, "<tool_call>{\"name\": \"add\", \"arguments\": {}} oops", reply(" oops", &[("add", "{}", true)])),
        (Json, "{\"name\": \"add\", \"parameters\": {\"a\": 1}}", reply("", &[("add", "{\"a\": 1}", true)])),
        (
            Json,
            "\n{\"type\": \"function\", \"name\": \"add\", \"arguments\": {} }; {\"name\": \"weather\", \"parameters\": {\"x\": null}}",
            reply("", &[("add", "{}", true), ("weather", "{\"x\": null}", true)]),
        ),
        (Json, "{\"name\": \"Bob\", \"parameters\": {}}", reply("{\"name\": \"Bob\", \"parameters\": {}}", none)),
        (Json, "{\"name\": \"add\", \"age\": 3}", reply("{\"name\": \"add\", \"age\": 3}", none)),
        (Json, "{\"answer\": 42}", reply("{\"answer\": 42}", none)),
        (
            Json,
            "No: {\"name\": \"add\", \"parameters\": {}}",
            reply("No: {\"name\": \"add\", \"parameters\": {}}", none),
        ),
        (Json, "{\"name\": \"add\", \"parameters\": {\"a\": [1, 2", reply("", &[("add", "{\"a\": [1, 2", false)])),
        (Json, "{]", reply("{]", none)),
        (Json, "", reply("", none)),
    ]
}

/// Scenario: replies with none, one and several calls, in both formats, whole, broken and cut off.
/// Guarantees: text and calls as written, whole or character by character; what is no call stays text.
#[test]
fn replies_are_read() {
    for (format, text, expected) in replies() {
        assert_eq!(read(format, &[text]), expected, "{text}");
        let characters: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(read(format, &pieces), expected, "{text}");
    }
}

/// Scenario: a call whose arguments come in five pieces.
/// Guarantees: the call is announced when its arguments begin, and each piece is handed on when it comes.
#[test]
fn arguments_are_streamed() {
    let mut parser = ToolCallParser::new(ToolCallFormat::Hermes, names());
    let mut take = |piece: &str| {
        let mut events = Vec::new();
        parser.push(piece, &mut events);
        events
    };
    let arguments = |text: &str| ToolCallEvent::Arguments { index: 0, text: text.to_owned() };
    assert_eq!(take("<tool_call>{\"name\": \"ad"), []);
    assert_eq!(take("d\", \"arguments\": "), []);
    assert_eq!(take("{\"a"), [ToolCallEvent::Begin { index: 0, name: "add".to_owned() }, arguments("{\"a")]);
    assert_eq!(take("\": 1"), [arguments("\": 1")]);
    assert_eq!(take("}"), [arguments("}")]);
    assert_eq!(take("}\n</tool_call>"), [ToolCallEvent::End { index: 0 }]);
}

proptest! {
    /// Scenario: any of the replies, or any text of their parts, cut anywhere.
    /// Guarantees: what is read does not depend on the cuts; nothing panics; text without a tag comes out as it went in.
    #[test]
    fn cuts_do_not_matter(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "{\"name\": \"add\"", ", \"arguments\": ", "{\"a\": \"é\"}", "}", "\n", " ",
            "<", "text", "\\\"", "\"", "[", "]", ";", ",", ":", "1", "日本", "{",
        ]), 0..14),
        cuts in prop::collection::vec(0..400usize, 0..12),
        bare in any::<bool>(),
    ) {
        let text = parts.concat();
        let format = if bare { ToolCallFormat::Json } else { ToolCallFormat::Hermes };
        let mut ends: Vec<usize> = cuts.into_iter().filter(|at| text.is_char_boundary(*at)).collect();
        ends.extend([0, text.len()]);
        ends.sort_unstable();
        let pieces: Vec<&str> = ends.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        let whole = read(format, &[&text]);
        prop_assert_eq!(&read(format, &pieces), &whole);
        if format == ToolCallFormat::Hermes && !text.contains("<tool_call>") {
            prop_assert_eq!(whole.text, text);
        }
    }
}

/// Scenario: a call longer than the bound, before and after it was announced.
/// Guarantees: unannounced it is text; announced it is cut off and has no end. Memory is bounded either way.
#[test]
fn long_calls_are_bounded() {
    let long = "x".repeat(MAX_CALL_BYTES);
    let unannounced = format!("<tool_call>{{\"name\": \"{long}\"}}");
    assert!(read(ToolCallFormat::Hermes, &[&unannounced]) == reply(&unannounced, &[]));
    let announced = format!("<tool_call>{{\"name\": \"add\", \"arguments\": {{\"a\": \"{long}\"}}}}");
    let read = read(ToolCallFormat::Hermes, &[&announced]);
    assert_eq!(read.calls.len(), 1);
    assert!(!read.calls[0].2 && read.calls[0].1.len() <= MAX_CALL_BYTES + 1);
}

fn tools() -> Vec<Tool> {
    let listed = json!([
        { "type": "function", "function": { "name": "weather", "description": "of a town", "parameters": {
            "type": "object",
            "properties": { "town": { "$ref": "#/$defs/town" }, "unit": { "enum": ["c", "f"] } },
            "required": ["town"], "additionalProperties": false,
            "$defs": { "town": { "type": "string", "minLength": 1, "maxLength": 6 } } } } },
        { "type": "function", "function": { "name": "add", "parameters": {
            "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 } },
            "required": ["a"], "additionalProperties": false } } },
    ]);
    parse_tools(&listed).unwrap()
}

/// Replies of the constrained test model at eight seeds, those that ended; calls are made likelier where text is free.
fn constrained_replies(format: ToolCallFormat, choice: &ToolChoice, parallel: ParallelCalls) -> Vec<(String, Reply)> {
    let source = constraint(&tools(), choice, format, parallel).unwrap().unwrap();
    let grammar = TINY.factory.compile(&source).unwrap_or_else(|fault| panic!("{source:?}: {fault}"));
    let mut engine = long_engine();
    for seed in 0..8 {
        let mut request = constrained(seed, grammar.clone(), (seed, 3000));
        request.sampling.logit_bias = b"\"}<{".iter().map(|byte| (byte_token(*byte), 8.0)).collect();
        engine.submit(request, 0).unwrap();
    }
    let outcomes = run_to_end(&mut engine).outcomes;
    let whole = outcomes.into_values().filter(|outcome| outcome.finish().reason == FinishReason::Stop);
    whole.map(|outcome| (outcome.text.clone(), read(format, &[&outcome.text]))).collect()
}

fn check_calls(text: &str, reply: &Reply) {
    for (name, arguments, ended) in &reply.calls {
        assert!(ended, "{text:?}");
        let tool = tools().into_iter().find(|tool| tool.name == *name).unwrap_or_else(|| panic!("{text:?}"));
        let value: Value = serde_json::from_str(arguments).unwrap_or_else(|fault| panic!("{text:?}: {fault}"));
        assert!(value.is_object(), "{text:?}");
        follows(&tool.parameters, &tool.parameters, &value).unwrap_or_else(|fault| panic!("{text:?}: {fault}"));
    }
}

/// Scenario: both formats; a call is required, of any tool or of one by name, of one call or several.
/// Guarantees: what the grammar lets through is read back as calls and nothing else, with arguments of the schema.
#[test]
fn required_calls_are_made() {
    for format in [ToolCallFormat::Hermes, ToolCallFormat::Json] {
        for choice in [ToolChoice::Required, ToolChoice::Named("add".to_owned())] {
            for parallel in [ParallelCalls::One, ParallelCalls::Allowed] {
                let replies = constrained_replies(format, &choice, parallel);
                assert!(replies.len() > 4, "{format:?} {choice:?} {parallel:?}: {} ended", replies.len());
                for (text, reply) in &replies {
                    assert!(reply.text.is_empty() && !reply.calls.is_empty(), "{text:?}: {reply:?}");
                    let single = parallel == ParallelCalls::One || choice != ToolChoice::Required;
                    assert!(!single || reply.calls.len() == 1, "{text:?}");
                    let allowed = |name: &str| choice == ToolChoice::Required || name == "add";
                    assert!(reply.calls.iter().all(|(name, _, _)| allowed(name)), "{text:?}");
                    check_calls(text, reply);
                }
            }
        }
    }
}

/// Scenario: `auto` in both formats, by texts: free ones, ones with a call in them, ones with a wrong call.
/// Guarantees: the grammar takes the first two to their end and not the last.
#[test]
fn auto_leaves_text_free_and_calls_bound() {
    let good = [
        (ToolCallFormat::Hermes, "It is < 3 degrees, {\"name\": 1} <tool_cal"),
        (ToolCallFormat::Hermes, "Sure.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 5}}\n</tool_call>"),
        (ToolCallFormat::Hermes, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":5}}\n</tool_call>\nDone."),
        (ToolCallFormat::Json, "It is {cold}."),
        (ToolCallFormat::Json, "{\"name\": \"weather\", \"parameters\": {\"town\": \"Bonn\", \"unit\": \"c\"}}"),
    ];
    let bad = [
        (ToolCallFormat::Hermes, "<tool_call>\n{\"name\": \"sub\""),
        (ToolCallFormat::Hermes, "Sure.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 500"),
        (ToolCallFormat::Json, "{\"answer\""),
        (ToolCallFormat::Json, "{\"name\": \"weather\", \"parameters\": {\"town\": \"\""),
    ];
    let run = |format: ToolCallFormat, text: &str| {
        let source = constraint(&tools(), &ToolChoice::Auto, format, ParallelCalls::Allowed).unwrap().unwrap();
        let grammar = TINY.factory.compile(&source).unwrap();
        // The text as the run of an interrupted engine: it is replayed at submission, or refused there.
        let drawn: Vec<u32> = text.bytes().map(byte_token).collect();
        let mut request = constrained(1, grammar, (1, 5));
        request.prompt = request.prompt.iter().copied().chain(drawn.iter().copied()).collect();
        request.sampling_offset = drawn.len() as u32;
        request.sampling.logit_bias = vec![(TINY.tokenizer.eos_tokens()[0], 100.0)];
        let mut engine = long_engine();
        engine.submit(request, 0).map(|()| run_to_end(&mut engine).outcomes.remove(&1).unwrap())
    };
    for (format, text) in good {
        let outcome = run(format, text).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
        assert_eq!((outcome.tokens.len(), outcome.finish().reason), (1, FinishReason::Stop), "{text}: {outcome:?}");
    }
    for (format, text) in bad {
        assert!(run(format, text).is_err(), "{text}");
    }
}

/// Scenario: `auto` under random sampling, where opening tags are made likely.
/// Guarantees: each call that was begun is one of a tool, with arguments of its schema.
#[test]
fn auto_calls_follow_their_schemas() {
    for format in [ToolCallFormat::Hermes, ToolCallFormat::Json] {
        let replies = constrained_replies(format, &ToolChoice::Auto, ParallelCalls::Allowed);
        assert!(!replies.is_empty(), "{format:?}");
        replies.iter().for_each(|(text, reply)| check_calls(text, reply));
    }
}

/// Scenario: requests with wrong tools or choices.
/// Guarantees: each error names the field, the value and what would be right.
#[test]
fn wrong_tools_are_refused_in_words() {
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    for (listed, said) in [
        (json!({}), "tools is {}; it must be an array"),
        (json!([{ "type": "plugin" }]), "tools[0].type is \"plugin\"; it must be \"function\""),
        (json!([tool("a b")]), "tools[0].function.name is \"a b\"; it must be 1 to 64 letters"),
        (json!([tool("a"), tool("a")]), "tools[1].function.name is \"a\"; it must be unlike"),
        (json!([{ "type": "function", "function": { "name": "f", "parameters": 3 } }]), "parameters is 3; it must be"),
        (json!(vec![tool("a"); 129]), "at most 128 tools"),
    ] {
        let fault = parse_tools(&listed).unwrap_err().to_string();
        assert!(fault.contains(said), "{listed}: {fault}");
    }
    let tools = tools();
    let choice = |value: Value| parse_tool_choice(Some(&value), &tools);
    assert_eq!(parse_tool_choice(None, &tools), Ok(ToolChoice::Auto));
    assert_eq!(parse_tool_choice(None, &[]), Ok(ToolChoice::None));
    assert_eq!(choice(json!("required")), Ok(ToolChoice::Required));
    let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
    assert_eq!(choice(named("add")), Ok(ToolChoice::Named("add".to_owned())));
    assert_eq!(choice(named("sub")), Err(ToolError::UnknownTool { name: "sub".to_owned() }));
    assert!(choice(json!("maybe")).unwrap_err().to_string().contains("tool_choice is \"maybe\"; it must be"));
    assert_eq!(parse_tool_choice(Some(&json!("required")), &[]), Err(ToolError::NoTools));
    let none = constraint(&tools, &ToolChoice::None, ToolCallFormat::Hermes, ParallelCalls::Allowed);
    assert_eq!(none, Ok(None::<GrammarSource>));
}

/// Scenario: templates of the two families, and one that knows no tools; a conversation with tools.
/// Guarantees: the format that each teaches; tools reach the template, their fields in the caller's order.
#[test]
fn templates_tell_the_format_and_get_the_tools() {
    let hermes = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>";
    let llama = "{% if tools %}{\"name\": f, \"parameters\": {}}{% endif %}";
    assert_eq!(ToolCallFormat::of_template(hermes), Some(ToolCallFormat::Hermes));
    assert_eq!(ToolCallFormat::of_template(llama), Some(ToolCallFormat::Json));
    assert_eq!(ToolCallFormat::of_template("{{ messages }}"), None);
    let template = ChatTemplate::new(hermes, "", "").unwrap();
    let tools: Value = serde_json::from_str(r#"[{"type": "function", "function": {"name": "z", "a": [1]}}]"#).unwrap();
    let prompt = template.render(&[ChatMessage::text("user", "hi")], Some(&tools), AddGenerationPrompt::Yes).unwrap();
    assert_eq!(prompt, r#"{"type": "function", "function": {"name": "z", "a": [1]}}<tool_call>"#);
}
