//! What a caller asks of the engine, and why it may be refused.

use std::sync::Arc;

use crate::{
    Micros,
    grammar::{Grammar, GrammarFault},
};

/// One sequence in one engine. Chosen by the caller, unique while the sequence lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// Engine queue (SPEC B8). L1: short, first-token sensitive. L2: normal. L3: background, on idle capacity only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    L1,
    L2,
    L3,
}

/// A group of requests whose text is alike, named by the caller: how well their tokens can be guessed is measured for
/// each apart (see `speculation`). Below [`MAX_REQUEST_CLASSES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestClass(pub u8);

/// Number of classes that callers can name.
pub const MAX_REQUEST_CLASSES: u8 = 13;

/// How the next token is drawn from the logits. Temperature 0 is greedy; ties go to the lower id.
///
/// Order of application: penalties, logit bias, the grammar's mask, temperature, top-k, top-p, min-p, draw.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    pub temperature: f32,
    /// Keep the k best; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keep the smallest set of best tokens whose probability reaches this; 1.0 keeps all.
    pub top_p: f32,
    /// Keep tokens with at least this share of the best token's probability; 0.0 keeps all.
    pub min_p: f32,
    /// Subtracted once per earlier occurrence among the generated tokens (OpenAI semantics).
    pub frequency_penalty: f32,
    /// Subtracted once if the token was generated before (OpenAI semantics).
    pub presence_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output (CTRL paper); 1.0 is off.
    pub repetition_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same request and same seed give the same tokens, whatever else is in the batch.
    pub seed: u64,
    /// Report the log-probability of each token and of this many best alternatives (0: only the token's).
    pub logprobs: Option<u8>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// When generation ends.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StopConditions {
    /// Most tokens to generate; at least 1.
    pub max_tokens: u32,
    /// Ends the sequence; the token's text is not part of the output.
    pub stop_tokens: Vec<u32>,
    /// Ends the sequence before the first of these; the string itself is not part of the output.
    pub stop_strings: Vec<String>,
}

/// A whole request for one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    pub id: SequenceId,
    /// Token ids, not empty.
    pub prompt: Arc<[u32]>,
    pub sampling: SamplingParams,
    pub stop: StopConditions,
    /// What the output must look like; compiled for the engine's model.
    pub grammar: Option<Grammar>,
    pub lane: Lane,
    /// By when it should start: the least slack goes first.
    pub deadline: Option<Micros>,
    /// From this time on its output is of no use: it ends at the start of the next step. `None`: it always is of use.
    pub drop_at: Option<Micros>,
    /// Mixed into the first block hash, so that tenants do not share blocks unless they have the same salt (0: shared).
    pub cache_salt: u64,
    /// How many tokens at the end of the prompt an interrupted run of this request drew (0: none). Draws and penalties go
    /// on from there, so that a request moved to another engine gives the tokens it would have given.
    pub sampling_offset: u32,
    /// `None`: by lane.
    pub class: Option<RequestClass>,
}

impl GenerateRequest {
    /// A greedy request in the normal lane without deadline, grammar or salt: what most callers change a field or two of.
    pub fn greedy(id: SequenceId, prompt: impl Into<Arc<[u32]>>, max_tokens: u32) -> Self {
        Self {
            id,
            prompt: prompt.into(),
            sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
            stop: StopConditions { max_tokens, ..StopConditions::default() },
            grammar: None,
            lane: Lane::L2,
            deadline: None,
            drop_at: None,
            cache_salt: 0,
            sampling_offset: 0,
            class: None,
        }
    }
}

/// Why the engine would not take a request. Nothing was kept of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitRejection {
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    #[error(
        "this model's maximum context length is {context} tokens; \
         the request asks for {asked} ({prompt} in the prompt, {max_tokens} to generate)"
    )]
    ContextExceeded { context: usize, asked: usize, prompt: usize, max_tokens: usize },
    #[error("the request needs {blocks} KV blocks and the pool has {pool}")]
    LargerThanPool { blocks: usize, pool: usize },
    #[error("token id {token} is outside the vocabulary of {vocab}")]
    UnknownToken { token: u32, vocab: usize },
    #[error("{waiting} sequences wait already; the bound is {bound}")]
    QueueFull { waiting: usize, bound: usize },
    #[error("the grammar is for a vocabulary of {grammar} tokens; the model has {vocab}")]
    GrammarVocabulary { grammar: usize, vocab: usize },
    #[error("the last {drawn} tokens of the prompt, drawn before, are no beginning of the grammar: {fault}")]
    GrammarReplay { drawn: usize, fault: GrammarFault },
    #[error("sequence {0} is in use")]
    DuplicateId(u64),
    #[error("{field} is {value}; it must be {expected}")]
    InvalidParameter { field: &'static str, value: String, expected: &'static str },
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token or stop string, or the grammar's text is whole.
    Stop,
    /// `max_tokens` or the context length.
    Length,
    /// The caller cancelled it.
    Cancelled,
    /// Its time to be dropped came.
    Late,
    /// The runner failed on the batch that held it, or its logits or grammar gave no token.
    Failed,
}
