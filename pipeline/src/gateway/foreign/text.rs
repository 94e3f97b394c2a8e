//! The name of a model whose tokens are its own engines' affair.
//!
//! A gateway over foreign workers sends text on as it came; it never makes tokens for them or reads theirs. What asks it
//! to is told so. Where a model file is there to count tokens, another [`TextModel`] does that. No state.

use engine::{
    grammar::{GrammarError, GrammarSource},
    tool_calls::ToolCallFormat,
};

use crate::gateway::{
    conversation::Conversation,
    deps::{TextFault, TextModel},
};

/// See the file's header. The name is empty where there is no model at all.
pub struct ForeignText {
    pub name: String,
    /// Tokens that a block of the prefix record stands for.
    pub block_tokens: usize,
}

impl ForeignText {
    fn fault(&self) -> String {
        format!("the tokens of `{}` are known to its engines alone", self.name)
    }
}

impl TextModel for ForeignText {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> usize {
        0
    }

    fn vocab(&self) -> usize {
        0
    }

    fn block_size(&self) -> usize {
        self.block_tokens
    }

    fn stop_tokens(&self) -> &[u32] {
        &[]
    }

    fn encode_prompt(&self, _text: &str) -> Result<Vec<u32>, TextFault> {
        Err(TextFault::Tokenizer(self.fault()))
    }

    fn render_conversation(&self, _conversation: &Conversation) -> Result<String, TextFault> {
        Err(TextFault::Template(self.fault()))
    }

    fn tool_format(&self) -> ToolCallFormat {
        ToolCallFormat::Hermes
    }

    fn check_grammar(&self, source: &GrammarSource) -> Result<(), GrammarError> {
        Err(GrammarError::Refused { name: source.name(), fault: self.fault() })
    }

    fn encode_chat(&self, _rendered: &str) -> Result<Vec<u32>, TextFault> {
        Err(TextFault::Tokenizer(self.fault()))
    }

    fn token_bytes(&self, _token: u32) -> Vec<u8> {
        Vec::new()
    }

    fn block_hashes(&self, _prompt: &[u32], _cache_salt: u64) -> Vec<u64> {
        Vec::new()
    }
}
