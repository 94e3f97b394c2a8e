//! The JSON of answers, exactly as OpenAI's: whole bodies and stream chunks of both kinds of request.
//!
//! Pure: from pieces to values. A stream is: one chunk a choice with the role (chat), content chunks, one chunk a choice
//! with its finish reason and an empty delta, then the usage chunk with no choices if it was asked for.

use engine::step::TokenLogprob;
use serde_json::{Map, Value, json};

use super::{deps::TextModel, parse::Face, running::Usage, sequence::Piece};

/// What all chunks and bodies of one answer have in common.
#[derive(Debug, Clone)]
pub struct Envelope {
    pub face: Face,
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Seconds since the Unix epoch.
    pub created: i64,
    pub model: String,
    pub fingerprint: String,
    pub wants_logprobs: bool,
    /// Streams only: chunks have a `usage` field, null until the last.
    pub includes_usage: bool,
}

/// One choice, gathered for a whole body.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    pub text: String,
    pub logprobs: Vec<TokenLogprob>,
    pub finish_reason: Option<&'static str>,
}

impl Envelope {
    /// First chunk of a chat choice; completions have none.
    pub fn opening(&self, choice: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        (self.face == Face::Chat).then(|| self.chunk(json!([{"index": choice, "delta": delta, "finish_reason": null}])))
    }

    /// Chunks for a piece: content if there is any, and the end. `offset`: characters of the choice's text before it.
    pub fn piece(&self, choice: usize, piece: &Piece, text: &dyn TextModel, offset: usize) -> Vec<Value> {
        let mut chunks = Vec::new();
        let logprobs = self.logprobs(&piece.logprobs, text, offset);
        if !piece.text.is_empty() || !piece.logprobs.is_empty() {
            let mut content = match self.face {
                Face::Chat => json!({
                    "index": choice, "delta": {"content": piece.text}, "finish_reason": null,
                }),
                Face::Completion => json!({
                    "index": choice, "text": piece.text, "logprobs": logprobs, "finish_reason": null,
                }),
            };
            if self.face == Face::Chat && self.wants_logprobs {
                content["logprobs"] = logprobs;
            }
            chunks.push(self.chunk(json!([content])));
        }
        if let Some(end) = &piece.end {
            let last = match self.face {
                Face::Chat => json!({"index": choice, "delta": {}, "finish_reason": end.reason.name()}),
                Face::Completion => {
                    json!({"index": choice, "text": "", "logprobs": null, "finish_reason": end.reason.name()})
                }
            };
            chunks.push(self.chunk(json!([last])));
        }
        chunks
    }

    /// Last chunk of a stream that asked for its usage.
    pub fn usage_chunk(&self, usage: Usage) -> Option<Value> {
        self.includes_usage.then(|| {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage_json(usage);
            chunk
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let object = match self.face {
            Face::Chat => "chat.completion.chunk",
            Face::Completion => "text_completion",
        };
        let mut chunk = self.frame(object, choices);
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn frame(&self, object: &str, choices: Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "service_tier": "default",
            "system_fingerprint": self.fingerprint, "choices": choices,
        })
    }

    /// The body of an answer that is not streamed.
    pub fn whole(&self, choices: &[Gathered], usage: Usage, text: &dyn TextModel) -> Value {
        let choices: Vec<Value> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| {
                let logprobs = self.logprobs(&choice.logprobs, text, 0);
                match self.face {
                    Face::Chat => {
                        let message = json!({
                            "role": "assistant", "content": choice.text, "refusal": null, "annotations": [],
                        });
                        let mut value =
                            json!({"index": index, "message": message, "finish_reason": choice.finish_reason});
                        if self.wants_logprobs {
                            value["logprobs"] = logprobs;
                        }
                        value
                    }
                    Face::Completion => json!({
                        "index": index, "text": choice.text, "logprobs": logprobs,
                        "finish_reason": choice.finish_reason,
                    }),
                }
            })
            .collect();
        let object = match self.face {
            Face::Chat => "chat.completion",
            Face::Completion => "text_completion",
        };
        let mut body = self.frame(object, Value::Array(choices));
        body["usage"] = usage_json(usage);
        body
    }

    fn logprobs(&self, entries: &[TokenLogprob], text: &dyn TextModel, offset: usize) -> Value {
        match (self.wants_logprobs, self.face) {
            (false, _) => Value::Null,
            (true, Face::Chat) => {
                let content: Vec<Value> = entries.iter().map(|entry| chat_logprob(entry, text)).collect();
                json!({"content": content, "refusal": null})
            }
            (true, Face::Completion) => completion_logprobs(entries, text, offset),
        }
    }
}

fn chat_logprob(entry: &TokenLogprob, text: &dyn TextModel) -> Value {
    let one = |token: u32, logprob: f32| json!({"token": text.token_text(token), "logprob": finite(logprob), "bytes": text.token_bytes(token)});
    let mut value = one(entry.token, entry.logprob);
    value["top_logprobs"] = entry.top.iter().map(|(token, logprob)| one(*token, *logprob)).collect();
    value
}

fn completion_logprobs(entries: &[TokenLogprob], text: &dyn TextModel, offset: usize) -> Value {
    let mut at = offset;
    let (mut tokens, mut values, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for entry in entries {
        let token = text.token_text(entry.token);
        offsets.push(at);
        at += token.chars().count();
        tokens.push(token);
        values.push(finite(entry.logprob));
        let top: Map<String, Value> =
            entry.top.iter().map(|(id, logprob)| (text.token_text(*id), finite(*logprob))).collect();
        tops.push(top);
    }
    json!({"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets})
}

/// JSON has no infinity; OpenAI writes −9999 for a token that cannot come.
fn finite(logprob: f32) -> Value {
    json!(if logprob.is_finite() { f64::from(logprob) } else { -9999.0 })
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens.saturating_add(usage.completion_tokens),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0,
        },
    })
}
