//! Fields that chat and completion requests share: their JSON types, their ranges and what an error says is right.
//!
//! [`EXPECTED`] is the one table of what each field takes; type errors and range errors both quote it. Ranges are OpenAI's,
//! with `top_k`, `min_p` and `repetition_penalty` as other servers have them. Bounds: [`CHOICES_MAX`], [`STOP_MAX`],
//! [`LOGPROBS_MAX`], [`LOGIT_BIAS_MAX`].

use std::collections::BTreeMap;

use engine::request::SamplingParams;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{error::ApiError, json_body::Object};

/// Most choices of one request (OpenAI: 128); each is a sequence with a lease of its own.
pub const CHOICES_MAX: u32 = 8;
/// Most samples of which the best are returned (OpenAI: 20).
pub const BEST_OF_MAX: u32 = 20;
/// Most stop strings (OpenAI: 4).
pub const STOP_MAX: usize = 16;
/// Most alternatives per token.
pub const LOGPROBS_MAX: i64 = 20;
/// Most entries of `logit_bias`.
pub const LOGIT_BIAS_MAX: usize = 1024;

const EXPECTED: &[(&str, &str)] = &[
    ("model", "a string that names a model"),
    ("messages", "a non-empty array of messages"),
    ("role", "one of system, developer, user, assistant, tool"),
    ("content", "a string or an array of parts of type text"),
    ("type", "a string"),
    ("text", "a string"),
    ("tool_calls", "an array of calls"),
    ("tool_call_id", "a string"),
    ("function", "an object with name and arguments"),
    ("name", "a string"),
    ("arguments", "a string of JSON"),
    ("prompt", "a string, an array of strings, an array of token ids or an array of such arrays"),
    ("max_tokens", "an integer of at least 1"),
    ("max_completion_tokens", "an integer of at least 1"),
    ("temperature", "a number from 0 to 2"),
    ("top_p", "a number above 0 and up to 1"),
    ("top_k", "an integer of at least 1, or 0 or -1 for all"),
    ("min_p", "a number from 0 to 1"),
    ("n", "an integer from 1 to 8"),
    ("best_of", "an integer from n to 20; n itself in chat"),
    ("seed", "an integer from -2^63 to 2^63-1"),
    ("stop", "a non-empty string or an array of up to 16 non-empty strings"),
    ("top_logprobs", "an integer from 0 to 20"),
    ("presence_penalty", "a number from -2 to 2"),
    ("frequency_penalty", "a number from -2 to 2"),
    ("repetition_penalty", "a number above 0 and up to 10"),
    ("logit_bias", "an object of up to 1024 token ids, each with a number from -100 to 100"),
    ("stream", "a boolean"),
    ("stream_options", "an object"),
    ("include_usage", "a boolean"),
    ("user", "a string"),
    ("echo", "a boolean"),
    ("suffix", "a string"),
    ("response_format", "an object"),
    ("tools", "an array"),
    ("functions", "an array"),
    ("parallel_tool_calls", "a boolean"),
    ("guided_regex", "a string"),
    ("guided_grammar", "a string"),
    ("structured_outputs", "an object"),
];

/// What the field at the end of `path` takes.
pub fn expected(path: &str) -> &'static str {
    let names = path.split(['.', '[']).filter(|part| !part.ends_with(']')).collect::<Vec<_>>();
    let find = |name: &&str| EXPECTED.iter().find(|(known, _)| known == name).map(|(_, words)| *words);
    match names.last() {
        Some(&"messages") if path.ends_with(']') => "an object with role and content",
        Some(&"content") if path.ends_with(']') => "an object with type and text",
        Some(&"logprobs") => "a boolean for chat, an integer from 0 to 20 for completions",
        _ => names.iter().rev().find_map(find).unwrap_or("another type"),
    }
}

/// A string or several.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct RawStreamOptions {
    pub include_usage: Option<bool>,
}

/// A request of either kind, as sent. `L` is the type of `logprobs`: a boolean in chat, a count in completions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RawRequest<L> {
    pub model: Option<String>,
    pub messages: Option<Vec<Object<RawMessage>>>,
    pub prompt: Option<RawPrompt>,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub n: Option<i64>,
    pub best_of: Option<i64>,
    pub seed: Option<i64>,
    pub stop: Option<OneOrMany>,
    pub logprobs: Option<L>,
    pub top_logprobs: Option<i64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub logit_bias: Option<BTreeMap<String, f64>>,
    pub stream: Option<bool>,
    pub stream_options: Option<Object<RawStreamOptions>>,
    pub user: Option<String>,
    pub echo: Option<bool>,
    pub suffix: Option<String>,
    pub response_format: Option<Map<String, Value>>,
    pub tools: Option<Vec<Value>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub functions: Option<Vec<Value>>,
    pub guided_json: Option<Value>,
    pub guided_regex: Option<String>,
    pub guided_choice: Option<Value>,
    pub guided_grammar: Option<String>,
    pub structured_outputs: Option<Map<String, Value>>,
}

/// One message as sent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RawMessage {
    pub role: Option<String>,
    pub content: Option<RawContent>,
    pub tool_calls: Option<Vec<RawCall>>,
    pub tool_call_id: Option<String>,
}

/// A call in an assistant's message as sent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RawCall {
    pub id: Option<String>,
    pub function: Option<RawFunction>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RawFunction {
    pub name: Option<String>,
    pub arguments: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum RawContent {
    Text(String),
    Parts(Vec<RawPart>),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RawPart {
    #[serde(rename = "type")]
    pub kind: String,
    pub text: Option<String>,
}

/// Prompts of a completion request as sent.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum RawPrompt {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// The name of the model asked for.
pub fn model<L>(raw: &RawRequest<L>) -> Result<&str, ApiError> {
    raw.model.as_deref().filter(|model| !model.is_empty()).ok_or_else(|| missing("model"))
}

/// The shared fields after checking.
#[derive(Debug, Clone, PartialEq)]
pub struct Common {
    pub sampling: SamplingParams,
    pub seed: Option<u64>,
    /// `None`: up to the context.
    pub max_tokens: Option<u32>,
    pub stop_strings: Vec<String>,
    /// Choices returned a prompt.
    pub choices: u32,
    /// Sequences run a prompt; the best of them are returned. At least `choices`.
    pub samples: u32,
    /// The client asked to see log-probabilities.
    pub shows_logprobs: bool,
    pub streams: bool,
    pub includes_usage: bool,
}

fn out_of_range(param: &str, value: impl std::fmt::Display) -> ApiError {
    ApiError::parameter(param, format!("Invalid value for '{param}': expected {}, but got {value}.", expected(param)))
}

/// `value` if `ok` holds for it, the default if it is missing.
fn number(param: &str, value: Option<f64>, default: f32, ok: impl Fn(f64) -> bool) -> Result<f32, ApiError> {
    match value {
        None => Ok(default),
        Some(value) if value.is_finite() && ok(value) => Ok(value as f32),
        Some(value) => Err(out_of_range(param, value)),
    }
}

pub(super) fn integer(param: &str, value: Option<i64>, low: i64, high: i64) -> Result<Option<u32>, ApiError> {
    match value {
        None => Ok(None),
        Some(value) if (low..=high).contains(&value) => Ok(u32::try_from(value).ok()),
        Some(value) => Err(out_of_range(param, value)),
    }
}

/// Checks everything but messages, prompt and `logprobs`, which the kinds check themselves.
pub fn common<L>(raw: &RawRequest<L>, vocab: usize) -> Result<Common, ApiError> {
    let (name, most) = match raw.max_completion_tokens {
        Some(value) => ("max_completion_tokens", Some(value)),
        None => ("max_tokens", raw.max_tokens),
    };
    let max_tokens = integer(name, most, 1, i64::from(u32::MAX))?;
    let choices = integer("n", raw.n, 1, i64::from(CHOICES_MAX))?.unwrap_or(1);
    let samples = integer("best_of", raw.best_of, i64::from(choices), i64::from(BEST_OF_MAX))?.unwrap_or(choices);
    let top_k = integer("top_k", raw.top_k.filter(|k| *k != -1), 0, i64::from(u32::MAX))?.filter(|k| *k > 0);
    let sampling = SamplingParams {
        temperature: number("temperature", raw.temperature, 1.0, |v| (0.0..=2.0).contains(&v))?,
        top_k,
        top_p: number("top_p", raw.top_p, 1.0, |v| v > 0.0 && v <= 1.0)?,
        min_p: number("min_p", raw.min_p, 0.0, |v| (0.0..=1.0).contains(&v))?,
        frequency_penalty: number("frequency_penalty", raw.frequency_penalty, 0.0, |v| (-2.0..=2.0).contains(&v))?,
        presence_penalty: number("presence_penalty", raw.presence_penalty, 0.0, |v| (-2.0..=2.0).contains(&v))?,
        repetition_penalty: number("repetition_penalty", raw.repetition_penalty, 1.0, |v| v > 0.0 && v <= 10.0)?,
        logit_bias: logit_bias(raw.logit_bias.as_ref(), vocab)?,
        seed: 0,
        logprobs: None,
    };
    let streams = raw.stream.unwrap_or(false);
    if raw.stream_options.is_some() && !streams {
        return Err(ApiError::parameter(
            "stream_options",
            "The 'stream_options' parameter is only allowed when 'stream' is true.",
        ));
    }
    if samples > choices && streams {
        return Err(ApiError::parameter(
            "best_of",
            "'best_of' above 'n' cannot be streamed: which choices are the best is known at the end.",
        ));
    }
    let includes_usage = raw.stream_options.as_ref().and_then(|options| options.0.include_usage).unwrap_or(false);
    Ok(Common {
        sampling,
        seed: raw.seed.map(|seed| seed as u64),
        max_tokens,
        stop_strings: stop_strings(raw.stop.as_ref())?,
        choices,
        samples,
        shows_logprobs: false,
        streams,
        includes_usage,
    })
}

pub(super) fn missing(param: &str) -> ApiError {
    ApiError::Parameter {
        param: param.into(),
        message: format!("Missing required parameter: '{param}'; expected {}.", expected(param)),
        code: "missing_required_parameter",
    }
}

fn stop_strings(stop: Option<&OneOrMany>) -> Result<Vec<String>, ApiError> {
    let list = match stop {
        None => Vec::new(),
        Some(OneOrMany::One(one)) => vec![one.clone()],
        Some(OneOrMany::Many(many)) => many.clone(),
    };
    if list.len() > STOP_MAX {
        return Err(out_of_range("stop", format!("{} strings", list.len())));
    }
    match list.iter().any(String::is_empty) {
        true => Err(out_of_range("stop", "an empty string")),
        false => Ok(list),
    }
}

fn logit_bias(bias: Option<&BTreeMap<String, f64>>, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(bias) = bias else { return Ok(Vec::new()) };
    if bias.len() > LOGIT_BIAS_MAX {
        return Err(out_of_range("logit_bias", format!("{} entries", bias.len())));
    }
    bias.iter()
        .map(|(token, value)| match token.parse::<u32>() {
            Ok(id) if (id as usize) < vocab && (-100.0..=100.0).contains(value) => Ok((id, *value as f32)),
            Ok(id) if (id as usize) >= vocab => Err(ApiError::parameter(
                "logit_bias",
                format!("Invalid token in 'logit_bias': {id} is outside the vocabulary of {vocab} tokens."),
            )),
            _ => {
                let shown = super::json_body::shorten(token);
                Err(out_of_range("logit_bias", format!("`{shown}: {value}`")))
            }
        })
        .collect()
}
