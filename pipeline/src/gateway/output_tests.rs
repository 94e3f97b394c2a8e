//! Tests of a sequence's output over several instances: nothing is lost and nothing comes twice.

use engine::{
    grammar::{GrammarError, GrammarSource},
    request::FinishReason,
    step::TokenLogprob,
    tool_calls::ToolCallFormat,
};

use super::*;
use crate::gateway::{conversation::Conversation, deps::TextFault, instances::ChunkFinish};

const TEXT: &str = "Grüße, Wörld ✓ done";
const END: u32 = 256;

/// Bytes as tokens; nothing else of a model is asked for here.
struct Bytes;

impl TextModel for Bytes {
    fn name(&self) -> &str {
        "bytes"
    }
    fn context(&self) -> usize {
        1024
    }
    fn vocab(&self) -> usize {
        257
    }
    fn block_size(&self) -> usize {
        16
    }
    fn stop_tokens(&self) -> &[u32] {
        &[END]
    }
    fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextFault> {
        Ok(text.bytes().map(u32::from).collect())
    }
    fn render_conversation(&self, conversation: &Conversation) -> Result<String, TextFault> {
        Ok(conversation.turns.iter().map(|turn| turn.message.content.as_str()).collect())
    }
    fn tool_format(&self) -> ToolCallFormat {
        ToolCallFormat::Hermes
    }
    fn check_grammar(&self, _source: &GrammarSource) -> Result<(), GrammarError> {
        Err(GrammarError::Vocabulary("no grammar is asked for here".into()))
    }
    fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TextFault> {
        self.encode_prompt(rendered)
    }
    fn token_bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).map(|byte| vec![byte]).unwrap_or_default()
    }
    fn block_hashes(&self, _prompt: &[u32], _cache_salt: u64) -> Vec<u64> {
        Vec::new()
    }
}

/// What an engine sends from token `from` on: `width` tokens a chunk, the newest `held` bytes kept back until the end, as
/// for a possible stop string, and never half a character.
fn chunks(from: usize, width: usize, held: usize) -> Vec<Chunk> {
    let all: Vec<u32> = TEXT.bytes().map(u32::from).chain([END]).collect();
    let (mut at, mut shown, mut made) = (from, from, Vec::new());
    while at < all.len() {
        let end = (at + width).min(all.len());
        let tokens = all[at..end].to_vec();
        at = end;
        let is_last = at == all.len();
        let mut upto = if is_last { TEXT.len() } else { at.saturating_sub(held).max(shown) };
        while !TEXT.is_char_boundary(upto) {
            upto -= 1;
        }
        let upto = upto.max(shown);
        made.push(Chunk {
            logprobs: tokens.iter().map(|token| TokenLogprob { token: *token, logprob: -1.0, top: vec![] }).collect(),
            text: TEXT[shown..upto].to_string(),
            tokens,
            finish: is_last.then_some(ChunkFinish {
                reason: FinishReason::Stop,
                prompt_tokens: 1,
                completion_tokens: 1,
                cached_tokens: 3,
                error: None,
            }),
        });
        shown = upto;
    }
    made
}

/// Scenario: two losses after any number of chunks, instances that send one to three tokens at a time and hold back up to
/// four bytes.
/// Guarantees: the text, the tokens counted and the log-probabilities are those of one uninterrupted run.
#[test]
fn two_losses_anywhere_change_nothing() {
    for held in 0..5 {
        for (first, second) in [(1, 1), (1, 2), (2, 1), (3, 2), (2, 3)] {
            for cut in 0..24 {
                for second_cut in 0..24 {
                    let mut output = Output::default();
                    let (mut text, mut tokens, mut logprobs) = (String::new(), 0, 0);
                    for (width, count) in [(first, cut), (second, second_cut), (1, usize::MAX)] {
                        output.restart();
                        let mut is_over = false;
                        for chunk in chunks(output.resumed_at, width, held).into_iter().take(count) {
                            let Ok(piece) = output.take(&chunk, &Bytes, &[END]) else { panic!("it was the same") };
                            text.push_str(&piece.text);
                            tokens += piece.tokens as usize;
                            logprobs += piece.logprobs.len();
                            is_over = chunk.finish.is_some();
                        }
                        if is_over {
                            break;
                        }
                    }
                    assert_eq!((text.as_str(), tokens, logprobs), (TEXT, TEXT.len() + 1, TEXT.len()));
                }
            }
        }
    }
}

/// Scenario: after a loss inside a character the next instance produces another token; and another text.
/// Guarantees: an error, never a wrong text.
#[test]
fn what_differs_is_an_error() {
    for wrong in [Chunk { tokens: vec![7], ..Chunk::default() }, Chunk { text: "x".into(), ..Chunk::default() }] {
        let mut output = Output::default();
        // The text of two of three tokens is shown: the third is half a character, and one byte is held back.
        for chunk in chunks(0, 3, 1).into_iter().take(1) {
            assert!(output.take(&chunk, &Bytes, &[END]).is_ok());
        }
        output.restart();
        assert_eq!(output.resumed_at, 0);
        assert!(output.take(&wrong, &Bytes, &[END]).is_err());
    }
}
