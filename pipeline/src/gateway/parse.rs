//! A request body of either kind to one checked [`ParsedRequest`].

use super::{
    conversation::{self, Conversation},
    deps::Role,
    error::ApiError,
    json_body::{self, Object},
    params::{self, Common, LOGPROBS_MAX, RawPrompt, RawRequest},
    session,
    structure::{self, Shape, ToolUse},
};

/// Most sequences of one completion request (prompts × n, or × best_of).
pub const SEQUENCES_MAX: usize = 32;

/// Which endpoint; it decides the shape of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Face {
    Chat,
    Completion,
}

impl Face {
    pub fn route(self) -> &'static str {
        match self {
            Face::Chat => "/v1/chat/completions",
            Face::Completion => "/v1/completions",
        }
    }
}

/// Text or tokens to go on from.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    Chat(Conversation),
    Text(String),
    Tokens(Vec<u32>),
}

/// A request whose every field is in range.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedRequest {
    pub face: Face,
    pub common: Common,
    /// One for chat; one a prompt for completions. Not empty.
    pub inputs: Vec<Input>,
    /// User messages in the conversation.
    pub turns: u32,
    /// The conversation it belongs to, the same in each of its requests; `None` if it cannot be told.
    pub session: Option<u64>,
    /// What the text of the answer must look like.
    pub shape: Option<Shape>,
    /// Chat only.
    pub tools: Option<ToolUse>,
    pub body_bytes: u64,
}

/// The body of a request to `face`. `vocab_of`: below what the token ids are of the model that the request names.
pub fn parse(
    face: Face,
    body: &[u8],
    vocab_of: impl FnOnce(&str) -> Result<usize, ApiError>,
) -> Result<ParsedRequest, ApiError> {
    let parsed = match face {
        Face::Chat => {
            let raw: RawRequest<bool> = json_body::parse(body)?;
            chat(&raw, vocab_of(params::model(&raw)?)?)?
        }
        Face::Completion => {
            let raw: RawRequest<i64> = json_body::parse(body)?;
            completion(&raw, vocab_of(params::model(&raw)?)?)?
        }
    };
    Ok(ParsedRequest { body_bytes: body.len() as u64, ..parsed })
}

fn chat(raw: &RawRequest<bool>, vocab: usize) -> Result<ParsedRequest, ApiError> {
    let mut common = params::common(raw, vocab)?;
    let top = params::integer("top_logprobs", raw.top_logprobs, 0, LOGPROBS_MAX)?;
    common.sampling.logprobs = match (raw.logprobs.unwrap_or(false), top) {
        (true, top) => Some(top.unwrap_or(0) as u8),
        (false, Some(_)) => {
            return Err(ApiError::parameter("top_logprobs", "'top_logprobs' needs 'logprobs' to be true."));
        }
        (false, None) => None,
    };
    common.shows_logprobs = common.sampling.logprobs.is_some();
    if common.samples > common.choices {
        return Err(ApiError::unsupported(
            "best_of",
            "'best_of' above 'n' is not supported here; use /v1/completions.",
        ));
    }
    let sent = raw.messages.as_ref().ok_or_else(|| params::missing("messages"))?;
    if sent.is_empty() {
        return Err(ApiError::parameter(
            "messages",
            format!("Invalid value for 'messages': expected {}, but got an empty one.", params::expected("messages")),
        ));
    }
    let said = sent.iter().enumerate().map(|(index, Object(raw))| conversation::turn(index, raw));
    let tools = structure::tool_use(raw)?;
    let conversation = Conversation {
        turns: said.collect::<Result<_, _>>()?,
        tools: raw.tools.clone().filter(|_| tools.is_some()).unwrap_or_default(),
    };
    let turns = conversation.turns.iter().filter(|turn| turn.message.role == Role::User).count() as u32;
    let session = session::of_chat(raw.user.as_deref(), &conversation);
    let (shape, inputs) = (structure::shape(raw)?, vec![Input::Chat(conversation)]);
    Ok(ParsedRequest { face: Face::Chat, common, inputs, turns, session, shape, tools, body_bytes: 0 })
}

fn completion(raw: &RawRequest<i64>, vocab: usize) -> Result<ParsedRequest, ApiError> {
    let mut common = params::common(raw, vocab)?;
    common.sampling.logprobs = params::integer("logprobs", raw.logprobs, 0, LOGPROBS_MAX)?.map(|count| count as u8);
    common.shows_logprobs = common.sampling.logprobs.is_some();
    if common.samples > common.choices {
        // By these the best are told from the others.
        common.sampling.logprobs.get_or_insert(0);
    }
    if raw.echo == Some(true) {
        return Err(ApiError::unsupported("echo", "'echo' is not supported; only false is."));
    }
    if raw.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "'suffix' is not supported; leave it out."));
    }
    for (param, list) in [("tools", &raw.tools), ("functions", &raw.functions)] {
        if list.as_ref().is_some_and(|list| !list.is_empty()) {
            let message = format!("'{param}' is not supported here; use /v1/chat/completions.");
            return Err(ApiError::unsupported(param, message));
        }
    }
    let inputs = match raw.prompt.clone().ok_or_else(|| params::missing("prompt"))? {
        RawPrompt::Text(text) => vec![Input::Text(text)],
        RawPrompt::Texts(texts) => texts.into_iter().map(Input::Text).collect(),
        RawPrompt::Tokens(tokens) => vec![Input::Tokens(tokens)],
        RawPrompt::TokenLists(lists) => lists.into_iter().map(Input::Tokens).collect(),
    };
    check_prompts(&inputs, common.samples, vocab)?;
    let shape = structure::shape(raw)?;
    let session = session::of_completion(raw.user.as_deref());
    Ok(ParsedRequest { face: Face::Completion, common, inputs, turns: 1, session, shape, tools: None, body_bytes: 0 })
}

fn check_prompts(inputs: &[Input], samples: u32, vocab: usize) -> Result<(), ApiError> {
    let refuse = |what: String| {
        let words = params::expected("prompt");
        Err(ApiError::parameter("prompt", format!("Invalid value for 'prompt': expected {words}, but got {what}.")))
    };
    if inputs.is_empty() {
        return refuse("an empty array".into());
    }
    if inputs.len() * samples as usize > SEQUENCES_MAX {
        return refuse(format!(
            "{} prompts with n = {samples} (or best_of), above {SEQUENCES_MAX} sequences",
            inputs.len()
        ));
    }
    for input in inputs {
        match input {
            Input::Tokens(tokens) if tokens.is_empty() => return refuse("an empty list of tokens".into()),
            Input::Tokens(tokens) => {
                if let Some(token) = tokens.iter().find(|token| **token as usize >= vocab) {
                    return refuse(format!("token id {token}, outside the vocabulary of {vocab}"));
                }
            }
            Input::Text(_) | Input::Chat(_) => {}
        }
    }
    Ok(())
}
