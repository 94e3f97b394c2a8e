//! Text to tokens to block hashes, and the answer's grammar, on blocking threads of the text runtime (DESIGN §2 step 1, §7 rule 9).
//!
//! Bound: [`TEXT_JOBS_MAX`] requests are worked on at once; further ones wait their turn, each holding no more than its
//! body. Time: linear in the text.

use std::sync::Arc;

use engine::grammar::GrammarSource;
use tokio::sync::Semaphore;

use super::{
    deps::Deps,
    error::ApiError,
    parse::{Face, Input, ParsedRequest},
    registry::Model,
    structure::{self, ToolReply},
};

/// Requests rendered and tokenised at once.
pub const TEXT_JOBS_MAX: usize = 8;

/// One prompt, ready for an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct Prompt {
    pub tokens: Arc<[u32]>,
    /// Chained hashes of its full blocks.
    pub hashes: Vec<u64>,
    /// Most tokens a sequence from it may generate.
    pub max_tokens: u32,
}

/// The prompts of a request; every one leaves room for at least one token.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The model that is to go on from the prompts.
    pub model: Arc<Model>,
    pub prompts: Vec<Prompt>,
    /// Sum over the prompts.
    pub prompt_tokens: u32,
    /// What the text of each sequence must look like; the model's engines can enforce it.
    pub grammar: Option<GrammarSource>,
    /// How to read tool calls, if there are tools.
    pub tools: Option<ToolReply>,
}

/// Limits concurrent text work.
pub struct TextJobs {
    slots: Semaphore,
}

impl Default for TextJobs {
    fn default() -> Self {
        Self { slots: Semaphore::new(TEXT_JOBS_MAX) }
    }
}

impl TextJobs {
    /// Renders, tokenises, hashes and compiles for the model, on a blocking thread.
    pub async fn prepare(
        &self,
        deps: &Deps,
        model: Arc<Model>,
        request: Arc<ParsedRequest>,
    ) -> Result<Prepared, ApiError> {
        let _slot = self.slots.acquire().await.map_err(|_| ApiError::Internal("text work is shut down".into()))?;
        let job = deps.text_runtime.spawn_blocking(move || prepare(model, &request));
        job.await.map_err(|error| ApiError::Internal(format!("text work failed: {error}")))?
    }
}

fn prepare(model: Arc<Model>, request: &ParsedRequest) -> Result<Prepared, ApiError> {
    let text = model.text.as_ref();
    let param = match request.face {
        Face::Chat => "messages",
        Face::Completion => "prompt",
    };
    let (grammar, tools) = structure::settle(text, request.shape.as_ref(), request.tools.as_ref())?;
    let prompts: Vec<Prompt> = request
        .inputs
        .iter()
        .map(|input| {
            let tokens = match input {
                Input::Chat(conversation) => text.encode_chat(&text.render_conversation(conversation)?)?,
                Input::Text(prompt) => text.encode_prompt(prompt)?,
                Input::Tokens(tokens) => tokens.clone(),
            };
            prompt(&model, tokens, request.common.max_tokens, param)
        })
        .collect::<Result<_, _>>()?;
    let total: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let prompt_tokens = u32::try_from(total).unwrap_or(u32::MAX);
    Ok(Prepared { model, prompts, prompt_tokens, grammar, tools })
}

fn prompt(model: &Model, tokens: Vec<u32>, max_tokens: Option<u32>, param: &'static str) -> Result<Prompt, ApiError> {
    if tokens.is_empty() {
        return Err(ApiError::parameter(param, format!("'{param}' gives no tokens; at least one is needed.")));
    }
    let context = model.text.context();
    let completion = max_tokens.unwrap_or(1) as usize;
    if tokens.len() + completion > context {
        return Err(ApiError::ContextExceeded { context, prompt: tokens.len(), completion, param });
    }
    let room = u32::try_from(context - tokens.len()).unwrap_or(u32::MAX);
    let hashes = model.text.block_hashes(&tokens, model.cache_salt);
    Ok(Prompt { tokens: tokens.into(), hashes, max_tokens: max_tokens.unwrap_or(room) })
}
