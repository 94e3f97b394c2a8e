//! The JSON of answers, exactly as OpenAI's: whole bodies and stream chunks of both kinds of request.
//!
//! Pure: from pieces to values. A stream is: one chunk a choice with the role (chat), content chunks, one chunk a choice
//! with its finish reason and an empty delta, then the usage chunk with no choices if it was asked for.

use engine::{step::TokenLogprob, tool_calls::ToolCallEvent};
use serde_json::{Map, Value, json};

use super::{deps::TextModel, parse::Face, reader::News, running::Usage, structure::ToolReply};

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
    /// How to read tool calls, if the request gave tools.
    pub tools: Option<ToolReply>,
}

/// One choice, gathered for a whole body.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    pub text: String,
    /// Name and arguments of each tool call.
    pub calls: Vec<(String, String)>,
    pub logprobs: Vec<TokenLogprob>,
    pub finish_reason: Option<&'static str>,
}

impl Gathered {
    /// Adds what is new of the choice.
    pub fn add(&mut self, news: News) {
        for event in news.events {
            match event {
                ToolCallEvent::Text(text) => self.text.push_str(&text),
                ToolCallEvent::Begin { name, .. } => self.calls.push((name, String::new())),
                ToolCallEvent::Arguments { index, text } => {
                    if let Some((_, arguments)) = self.calls.get_mut(index) {
                        arguments.push_str(&text);
                    }
                }
                ToolCallEvent::End { .. } => {}
            }
        }
        self.logprobs.extend(news.logprobs);
        self.finish_reason = news.finish_reason.or(self.finish_reason);
    }
}

impl Envelope {
    /// First chunk of a chat choice; completions have none.
    pub fn opening(&self, choice: usize) -> Option<Value> {
        let content = if self.has_only_calls() { Value::Null } else { "".into() };
        let delta = json!({"role": "assistant", "content": content, "refusal": null});
        (self.face == Face::Chat).then(|| self.chunk(json!([{"index": choice, "delta": delta, "finish_reason": null}])))
    }

    fn has_only_calls(&self) -> bool {
        self.tools.as_ref().is_some_and(|tools| tools.only_calls)
    }

    /// Chunks for what is new of a choice: one an event, and the end. `offset`: characters of its text before it.
    pub fn news(&self, choice: usize, news: &News, text: &dyn TextModel, offset: usize) -> Vec<Value> {
        let mut chunks = Vec::new();
        // All that the piece has, in its first chunk.
        let mut logprobs = Some(self.logprobs(&news.logprobs, text, offset));
        for event in &news.events {
            let content = match (self.face, event) {
                (_, ToolCallEvent::End { .. }) => continue,
                (Face::Completion, ToolCallEvent::Text(text)) => json!({
                    "index": choice, "text": text, "logprobs": logprobs.take(), "finish_reason": null,
                }),
                (_, event) => {
                    let mut content = json!({
                        "index": choice, "delta": self.delta(choice, event), "finish_reason": null,
                    });
                    if self.wants_logprobs {
                        content["logprobs"] = logprobs.take().unwrap_or(Value::Null);
                    }
                    content
                }
            };
            chunks.push(self.chunk(json!([content])));
        }
        if let Some(reason) = news.finish_reason {
            let last = match self.face {
                Face::Chat => json!({"index": choice, "delta": {}, "finish_reason": reason}),
                Face::Completion => json!({"index": choice, "text": "", "logprobs": null, "finish_reason": reason}),
            };
            chunks.push(self.chunk(json!([last])));
        }
        chunks
    }

    fn delta(&self, choice: usize, event: &ToolCallEvent) -> Value {
        match event {
            ToolCallEvent::Text(text) => json!({"content": text}),
            ToolCallEvent::Begin { index, name } => json!({"tool_calls": [{
                "index": index, "id": self.call_id(choice, *index), "type": "function",
                "function": {"name": name, "arguments": ""},
            }]}),
            ToolCallEvent::Arguments { index, text } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            }
            ToolCallEvent::End { .. } => json!({}),
        }
    }

    /// The same for a call whether it is streamed or not.
    fn call_id(&self, choice: usize, index: usize) -> String {
        let own = self.id.split_once('-').map_or(self.id.as_str(), |(_, own)| own).replace('-', "");
        format!("call_{own}{choice:02x}{index:02x}")
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
                        let message = self.message(index, choice);
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

    fn message(&self, index: usize, choice: &Gathered) -> Value {
        let is_silent = choice.text.is_empty() && (!choice.calls.is_empty() || self.has_only_calls());
        let content = if is_silent { Value::Null } else { choice.text.as_str().into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null, "annotations": []});
        if !choice.calls.is_empty() {
            let call = |(place, (name, arguments)): (usize, &(String, String))| {
                json!({"id": self.call_id(index, place), "type": "function",
                       "function": {"name": name, "arguments": arguments}})
            };
            message["tool_calls"] = choice.calls.iter().enumerate().map(call).collect();
        }
        message
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
