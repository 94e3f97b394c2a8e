//! Tokenizer and chat template of the model served, as the gateway wants them.
//!
//! The gateway reads the same file as the workers, but only its header: weights stay on disk. It compiles grammars only to
//! refuse those that no engine could enforce. Cost: one tokenizer in memory, and with the first grammar its search tree.

use std::{path::Path, sync::OnceLock};

use engine::{
    block_hash::prompt_block_hashes,
    chat_template::{AddGenerationPrompt, ChatMessage as TemplateMessage, ChatTemplate},
    grammar::{GrammarError, GrammarSource, GrammarVocabulary, factory::GrammarFactory},
    model::{
        config::Config as ModelConfig,
        gguf::{Gguf, GgufError},
        tiny::tiny_llama_gguf,
    },
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer, TokenizerError},
    tool_calls::ToolCallFormat,
};

use serde_json::Value;

use crate::gateway::{
    conversation::{Conversation, Turn},
    deps::{ChatMessage, TextFault, TextModel},
    tool_prompt::plain_messages,
};

/// The model file cannot serve text.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    #[error("model file: {0}")]
    Gguf(#[from] GgufError),
    #[error("model file: {0}")]
    Tokenizer(#[from] TokenizerError),
    #[error("model file: chat template: {0}")]
    Template(String),
}

/// See the module.
pub struct ModelText {
    name: String,
    family: String,
    context: usize,
    block_size: usize,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// How the template writes tool calls; `None` if it knows no tools.
    taught: Option<ToolCallFormat>,
    /// The workers of a simulated model write numbers, which no grammar can shape.
    is_simulated: bool,
    /// Made when the first request needs it.
    grammars: OnceLock<Result<GrammarFactory, GrammarError>>,
}

impl ModelText {
    /// `path`: a .gguf file, or `simulated` for the test model's byte-level tokenizer.
    pub fn load(name: &str, path: &str, block_size: usize) -> Result<Self, TextError> {
        let gguf =
            if path == "simulated" { Gguf::from_bytes(tiny_llama_gguf(0))? } else { Gguf::open(Path::new(path))? };
        let tokenizer = Tokenizer::from_gguf(&gguf)?;
        let special = |key: &str| -> Result<String, GgufError> {
            let id = gguf.find_count(key)?.and_then(|id| u32::try_from(id).ok());
            Ok(id.and_then(|id| tokenizer.special_text(id)).unwrap_or_default().to_string())
        };
        let (bos, eos) = (special("tokenizer.ggml.bos_token_id")?, special("tokenizer.ggml.eos_token_id")?);
        let source = gguf.find_text("tokenizer.chat_template")?;
        let taught = source.and_then(ToolCallFormat::of_template);
        let template = source
            .map(|source| ChatTemplate::new(source, &bos, &eos))
            .transpose()
            .map_err(|error| TextError::Template(error.to_string()))?;
        let context = if path == "simulated" { SIMULATED_CONTEXT } else { ModelConfig::read(&gguf)?.context };
        let family = gguf.find_text("general.architecture")?.unwrap_or_default().to_string();
        let (name, is_simulated) = (name.into(), path == "simulated");
        let grammars = OnceLock::new();
        Ok(Self { name, family, context, block_size, tokenizer, template, taught, is_simulated, grammars })
    }

    /// Family of the model, as in its file; empty: not said.
    pub fn family(&self) -> &str {
        &self.family
    }

    pub fn vocab_size(&self) -> usize {
        self.tokenizer.vocab_size()
    }
}

/// Context of the simulated engine, in tokens; its workers are started with the same figure.
pub const SIMULATED_CONTEXT: usize = 8192;

impl TextModel for ModelText {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> usize {
        self.context
    }

    fn vocab(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    fn block_size(&self) -> usize {
        self.block_size
    }

    fn stop_tokens(&self) -> &[u32] {
        self.tokenizer.eos_tokens()
    }

    fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextFault> {
        self.tokenizer
            .encode(text, AddSpecial::AsModel, ParseSpecial::Control)
            .map_err(|error| TextFault::Tokenizer(error.to_string()))
    }

    fn render_conversation(&self, conversation: &Conversation) -> Result<String, TextFault> {
        let template = self.template.as_ref().ok_or_else(|| {
            TextFault::Template("the model file has no chat template; use /v1/completions".to_string())
        })?;
        let (messages, tools) = match self.taught {
            Some(_) => {
                let message = |turn: &Turn| TemplateMessage {
                    extra: turn.extra(),
                    ..TemplateMessage::text(turn.message.role.name(), &turn.message.content)
                };
                let tools = Some(&conversation.tools).filter(|tools| !tools.is_empty());
                (conversation.turns.iter().map(message).collect(), tools.cloned().map(Value::Array))
            }
            None => {
                let plain = plain_messages(conversation);
                let message = |plain: &ChatMessage| TemplateMessage::text(plain.role.name(), &plain.content);
                (plain.iter().map(message).collect::<Vec<_>>(), None)
            }
        };
        template
            .render(&messages, tools.as_ref(), AddGenerationPrompt::Yes)
            .map_err(|error| TextFault::Template(error.to_string()))
    }

    fn tool_format(&self) -> ToolCallFormat {
        self.taught.unwrap_or(ToolCallFormat::Hermes)
    }

    fn check_grammar(&self, source: &GrammarSource) -> Result<(), GrammarError> {
        if self.is_simulated {
            let fault = "the simulated model writes numbers and no text".to_string();
            return Err(GrammarError::Refused { name: source.name(), fault });
        }
        let vocabulary = || GrammarVocabulary::of_tokenizer(&self.tokenizer, self.tokenizer.vocab_size());
        let factory = self.grammars.get_or_init(|| GrammarFactory::new(&vocabulary()));
        factory.as_ref().map_err(Clone::clone)?.compile(source).map(|_| ())
    }

    fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TextFault> {
        self.tokenizer
            .encode(rendered, AddSpecial::Never, ParseSpecial::Control)
            .map_err(|error| TextFault::Tokenizer(error.to_string()))
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(token).to_vec()
    }

    fn block_hashes(&self, prompt: &[u32], cache_salt: u64) -> Vec<u64> {
        prompt_block_hashes(prompt, self.block_size, cache_salt).into_iter().map(|hash| hash.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gateway::{conversation::PastCall, deps::Role};

    fn conversation() -> Conversation {
        let said = |role, content: &str| Turn::from(ChatMessage { role, content: content.into() });
        let call = PastCall { id: "c1".into(), name: "add".into(), arguments: json!({"a": 1}) };
        let asked = Turn { calls: vec![call], ..said(Role::Assistant, "") };
        let answered = Turn { answers: Some("c1".into()), ..said(Role::Tool, "2") };
        let tools = vec![json!({"type": "function", "function": {"name": "add"}})];
        Conversation { turns: vec![said(Role::User, "?"), asked, answered], tools }
    }

    /// Scenario: the same conversation with tools, for a template that knows them and for one that does not.
    /// Guarantees: the first gets tools, calls and the id that a result answers; the second gets plain messages of roles it
    /// knows.
    #[test]
    fn tools_reach_every_template() {
        let mut text = ModelText::load("tiny", "simulated", 16).unwrap();
        let plain = text.render_conversation(&conversation()).unwrap();
        assert!(plain.starts_with("<|im_start|>system\nYou can use the functions below"), "{plain}");
        assert!(plain.contains("{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>"), "{plain}");
        assert!(plain.contains("<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>"), "{plain}");

        let source = "{% for t in tools %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}{{ m.role }}=\
                      {{ m.content }}{% for c in m.tool_calls %}<tool_call>{{ c.function.name }}\
                      {{ c.function.arguments | tojson }}{% endfor %}{{ m.tool_call_id }};{% endfor %}";
        text.template = Some(ChatTemplate::new(source, "", "").unwrap());
        text.taught = ToolCallFormat::of_template(source);
        let taught = text.render_conversation(&conversation()).unwrap();
        assert_eq!(taught, "[add]user=?;assistant=<tool_call>add{\"a\": 1};tool=2c1;");
    }

    /// Scenario: a shape is asked of the simulated model. Guarantees: it is refused with the reason.
    #[test]
    fn the_simulated_model_takes_no_shape() {
        let text = ModelText::load("simulated", "simulated", 16).unwrap();
        let refused = text.check_grammar(&GrammarSource::JsonObject).unwrap_err();
        assert!(refused.to_string().contains("writes numbers"), "{refused}");
    }
}
