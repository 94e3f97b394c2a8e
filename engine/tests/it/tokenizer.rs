//! The tokenizer against recorded ids: 220 strings on which two other tokenizers agree.

use std::sync::LazyLock;

use engine::{
    chat_template::{AddGenerationPrompt, ChatMessage, ChatTemplate},
    model::{Gguf, tiny::tiny_llama_gguf},
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use proptest::prelude::*;
use serde::Deserialize;

use crate::data::{shared, smollm2};

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

fn tiny() -> Tokenizer {
    Tokenizer::from_gguf(&Gguf::from_bytes(tiny_llama_gguf(1)).unwrap()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Scenario: any text through the test model's tokenizer, which has every byte.
    /// Guarantees: the bytes of its tokens are the text.
    #[test]
    fn any_text_comes_back(text in "(\\PC|\\s){0,60}") {
        static TINY: LazyLock<Tokenizer> = LazyLock::new(tiny);
        let tokenizer = &*TINY;
        let ids = tokenizer.encode(&text, AddSpecial::Never, ParseSpecial::Plain).unwrap();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
        prop_assert_eq!(bytes, text.as_bytes());
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
