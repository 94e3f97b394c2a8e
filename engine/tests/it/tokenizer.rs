//! The tokenizer against recorded ids: 220 strings on which two other tokenizers agree.

use std::sync::LazyLock;

use engine::{
    chat_template::{AddGenerationPrompt, ChatMessage, ChatTemplate},
    model::{
        Family, Gguf,
        tiny::{tiny_gguf, tiny_llama_gguf},
    },
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use proptest::prelude::*;
use serde::Deserialize;

use crate::data::{gemma3, shared, smollm2};

#[derive(Deserialize)]
struct Recorded {
    strings: Vec<Text>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
    ids_llamacpp_no_special: Vec<u32>,
    decoded: String,
}

/// Scenario: unicode, code, white space, emoji and special tokens, parsed and not.
/// Guarantees: the recorded ids both ways, the recorded decoding, and bytes that join to the text.
#[test]
fn ids_are_the_recorded_ones() {
    let (Some(path), Some(model)) = (shared("golden/smollm2_tokenizer.json"), smollm2()) else { return };
    let recorded: Recorded = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&model).unwrap()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 49152);
    assert_eq!(tokenizer.eos_tokens(), [2, 0]);
    assert_eq!(recorded.strings.len(), 220);
    for Text { text, ids, ids_llamacpp_no_special, decoded } in &recorded.strings {
        let parsed = tokenizer.encode(text, AddSpecial::AsModel, ParseSpecial::Control).unwrap();
        assert_eq!(&parsed, ids, "{text:?}");
        assert_eq!(&tokenizer.decode(ids), decoded);
        let plain = tokenizer.encode(text, AddSpecial::Never, ParseSpecial::Plain).unwrap();
        assert_eq!(&plain, ids_llamacpp_no_special, "{text:?}");
        let bytes: Vec<u8> = plain.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
        assert_eq!(bytes, text.as_bytes());
    }
}

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    text: String,
    prompt_ids: Vec<u32>,
}

/// Scenario: the model file's own template, with and without a system message.
/// Guarantees: the recorded chat prompt, and its recorded ids.
#[test]
fn the_models_template_gives_the_recorded_prompts() {
    let (Some(path), Some(model)) = (shared("golden/smollm2_hf_f32.json"), smollm2()) else { return };
    let golden: Golden = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let gguf = Gguf::open(&model).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let template = ChatTemplate::new(gguf.text("tokenizer.chat_template").unwrap(), "", "<|im_end|>").unwrap();
    let mut chats = 0;
    for prompt in &golden.prompts {
        let ids = tokenizer.encode(&prompt.text, AddSpecial::Never, ParseSpecial::Control).unwrap();
        assert_eq!(ids, prompt.prompt_ids, "{}", prompt.name);
        if !prompt.text.starts_with("<|im_start|>") {
            continue;
        }
        // The rendered text, taken apart again: the messages that the template must have been given.
        let turns = prompt.text.split("<|im_start|>").skip(1).filter_map(|turn| turn.split_once('\n'));
        let messages: Vec<ChatMessage> = turns
            .filter_map(|(role, rest)| Some(ChatMessage::text(role, rest.strip_suffix("<|im_end|>\n")?)))
            .collect();
        assert_eq!(template.render(&messages, None, AddGenerationPrompt::Yes).unwrap(), prompt.text, "{}", prompt.name);
        if messages[0].content == "You are a helpful AI assistant named SmolLM, trained by Hugging Face" {
            let without = template.render(&messages[1..], None, AddGenerationPrompt::Yes).unwrap();
            assert_eq!(without, prompt.text, "the default system message of {}", prompt.name);
        }
        chats += 1;
    }
    assert_eq!(chats, 3);
}

#[derive(Deserialize)]
struct Gemma {
    prompts: Vec<Prompt>,
    texts: Vec<GemmaText>,
}

#[derive(Deserialize)]
struct GemmaText {
    text: String,
    parsed: Vec<u32>,
    plain: Vec<u32>,
}

/// Scenario: SentencePiece: prompts of up to 900 tokens, unicode, runs of blanks and signs, special tokens, bytes that no
/// piece covers.
/// Guarantees: llama.cpp's ids, and bytes that join to the text.
#[test]
fn gemmas_ids_are_those_of_llama_cpp() {
    let Some(model) = gemma3() else { return };
    let golden: Gemma = serde_json::from_str(include_str!("../fixtures/gemma3_270m.json")).unwrap();
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&model).unwrap()).unwrap();
    assert_eq!(tokenizer.vocab_size(), 262_144);
    assert_eq!(tokenizer.eos_tokens(), [1, 106]);
    for Prompt { name, text, prompt_ids } in &golden.prompts {
        let ids = tokenizer.encode(text, AddSpecial::AsModel, ParseSpecial::Plain).unwrap();
        assert_eq!(&ids, prompt_ids, "{name}");
    }
    let mut wrong = Vec::new();
    for GemmaText { text, parsed, plain } in &golden.texts {
        let with = tokenizer.encode(text, AddSpecial::AsModel, ParseSpecial::Control).unwrap();
        let without = tokenizer.encode(text, AddSpecial::Never, ParseSpecial::Plain).unwrap();
        if (&with, &without) != (parsed, plain) {
            wrong.push(format!("{text:?}: {with:?} {without:?}, expected {parsed:?} {plain:?}"));
        }
        let bytes: Vec<u8> = without.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
        // A `▁` in a text is a space to SentencePiece.
        assert_eq!(String::from_utf8_lossy(&bytes), text.replace('▁', " "));
    }
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), golden.texts.len());
}

fn tiny() -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::from_bytes(tiny_llama_gguf(1)).unwrap()).unwrap()
}

fn tiny_pieces() -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::from_bytes(tiny_gguf(Family::Gemma3, 1)).unwrap()).unwrap()
}

/// Scenario: the SentencePiece test model, with and without a prefix space.
/// Guarantees: best score first, bytes where no piece fits, control tokens only where parsed, `<bos>` by default.
#[test]
fn pieces_are_merged_best_first() {
    let tokenizer = tiny_pieces();
    let plain = |text: &str| tokenizer.encode(text, AddSpecial::Never, ParseSpecial::Plain).unwrap();
    let show = |ids: &[u32]| ids.iter().map(|id| tokenizer.decode(&[*id])).collect::<Vec<_>>();
    assert_eq!(show(&plain("the other and")), ["the", " ", "o", "the", "r", " and"]);
    assert_eq!(show(&plain("日\n\n\n")), ["日", "\n\n", "\n"]);
    assert_eq!(plain("z\u{e8}"), [7 + 0x7a, 7 + 0xc3, 7 + 0xa8]);
    let parsed = tokenizer.encode("t<end_of_turn>", AddSpecial::AsModel, ParseSpecial::Control).unwrap();
    assert_eq!((parsed[0], parsed[2], parsed.len()), (2, 5, 3));
    assert_eq!(tokenizer.eos_tokens(), [1, 5]);
    assert!(plain("<end_of_turn>").iter().all(|id| !tokenizer.is_special(*id)));

    // The same file without the key: a space goes before each run of text.
    let (file, key) = (tiny_gguf(Family::Gemma3, 1), b"tokenizer.ggml.add_space_prefix");
    let at = file.windows(key.len()).position(|window| window == key).unwrap();
    let mut other = file.clone();
    other[at] = b'T';
    let tokenizer = Tokenizer::from_gguf(&Gguf::from_bytes(other).unwrap()).unwrap();
    let ids = tokenizer.encode("the<bos>and", AddSpecial::Never, ParseSpecial::Control).unwrap();
    assert_eq!(ids.iter().map(|id| tokenizer.decode(&[*id])).collect::<Vec<_>>(), [" the", "<bos>", " and"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Scenario: any text through the test models' tokenizers, which have every byte.
    /// Guarantees: the bytes of its tokens are the text.
    #[test]
    fn any_text_comes_back(text in "(\\PC|\\s){0,60}") {
        static TINY: LazyLock<[Tokenizer; 2]> = LazyLock::new(|| [tiny(), tiny_pieces()]);
        let text = text.replace('▁', " ");
        for tokenizer in &*TINY {
            let ids = tokenizer.encode(&text, AddSpecial::Never, ParseSpecial::Plain).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
            prop_assert_eq!(bytes, text.as_bytes());
        }
    }
}

/// Scenario: a control token written in a user's text and in a rendered template; ids past the vocabulary.
/// Guarantees: it is that token only where parsed; nothing panics; control tokens show nothing.
#[test]
fn control_tokens_are_parsed_only_on_request() {
    let tokenizer = tiny();
    let parsed = tokenizer.encode("a<|im_end|>", AddSpecial::Never, ParseSpecial::Control).unwrap();
    let plain = tokenizer.encode("a<|im_end|>", AddSpecial::Never, ParseSpecial::Plain).unwrap();
    assert_eq!(parsed.len(), 2);
    assert!(tokenizer.eos_tokens().contains(&parsed[1]) && tokenizer.is_special(parsed[1]));
    assert!(tokenizer.token_bytes(parsed[1]).is_empty());
    assert!(plain.len() > 2 && plain.iter().all(|id| !tokenizer.is_special(*id)));
    assert!(tokenizer.token_bytes(u32::MAX).is_empty() && tokenizer.decode(&[u32::MAX]).is_empty());
}
