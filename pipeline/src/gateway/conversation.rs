//! A conversation as the model's template is to see it: messages with the tool calls made in them, and the tools.
//!
//! Invariant: a call's arguments are JSON where they were sent as JSON text, since templates print them as such; what is
//! no JSON stays the string it was. Cost: one copy of the messages. No state.

use serde_json::{Map, Value, json};

use super::{
    deps::{ChatMessage, Role},
    error::ApiError,
    json_body,
    params::{self, RawCall, RawContent, RawMessage, RawPart},
};

/// A call that the assistant made earlier.
#[derive(Debug, Clone, PartialEq)]
pub struct PastCall {
    pub id: String,
    pub name: String,
    pub arguments: Value,
}

/// One message, with what it has beside its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub message: ChatMessage,
    /// Of an assistant's message.
    pub calls: Vec<PastCall>,
    /// Of a tool's message: the call that it answers.
    pub answers: Option<String>,
}

impl From<ChatMessage> for Turn {
    fn from(message: ChatMessage) -> Self {
        Self { message, calls: Vec::new(), answers: None }
    }
}

impl Turn {
    /// What a template that knows tools finds in the message beside role and content.
    pub fn extra(&self) -> Map<String, Value> {
        let mut extra = Map::new();
        if !self.calls.is_empty() {
            let call = |call: &PastCall| {
                json!({"id": call.id, "type": "function",
                       "function": {"name": call.name, "arguments": call.arguments}})
            };
            extra.insert("tool_calls".into(), self.calls.iter().map(call).collect());
        }
        if let Some(id) = &self.answers {
            extra.insert("tool_call_id".into(), id.as_str().into());
        }
        extra
    }
}

/// Messages, and the tools that the model may call, as they were sent.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    pub turns: Vec<Turn>,
    pub tools: Vec<Value>,
}

impl From<&[ChatMessage]> for Conversation {
    fn from(messages: &[ChatMessage]) -> Self {
        Self { turns: messages.iter().cloned().map(Turn::from).collect(), tools: Vec::new() }
    }
}

/// The message at `index` of a request.
pub(super) fn turn(index: usize, raw: &RawMessage) -> Result<Turn, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let role = match raw.role.as_deref() {
        Some("system" | "developer") => Role::System,
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        Some(other) => {
            let shown = json_body::shorten(other);
            let words = params::expected("role");
            let message = format!("Invalid value for '{}': expected {words}, but got `{shown}`.", at("role"));
            return Err(ApiError::parameter(at("role"), message));
        }
        None => return Err(params::missing(&at("role"))),
    };
    let content = match &raw.content {
        Some(RawContent::Text(text)) => text.clone(),
        Some(RawContent::Parts(parts)) => joined(&at("content"), parts)?,
        None if role == Role::Assistant => String::new(),
        None => {
            let path = at("content");
            let words = params::expected("content");
            let message = format!("Invalid value for '{path}': expected {words}, but got null.");
            return Err(ApiError::parameter(path, message));
        }
    };
    let calls = match &raw.tool_calls {
        Some(calls) if role == Role::Assistant => {
            let called = |(place, call)| past_call(&format!("{}[{place}]", at("tool_calls")), call);
            calls.iter().enumerate().map(called).collect::<Result<_, _>>()?
        }
        _ => Vec::new(),
    };
    let answers = raw.tool_call_id.clone().filter(|_| role == Role::Tool);
    Ok(Turn { message: ChatMessage { role, content }, calls, answers })
}

fn joined(path: &str, parts: &[RawPart]) -> Result<String, ApiError> {
    let mut joined = String::new();
    for (place, part) in parts.iter().enumerate() {
        let path = format!("{path}[{place}]");
        match (part.kind.as_str(), &part.text) {
            ("text", Some(text)) => joined.push_str(text),
            ("text", None) => return Err(params::missing(&format!("{path}.text"))),
            (kind, _) => {
                let kind = json_body::shorten(kind);
                let message = format!("Content parts of type `{kind}` are not supported; expected `text`.");
                return Err(ApiError::unsupported(format!("{path}.type"), message));
            }
        }
    }
    Ok(joined)
}

fn past_call(path: &str, raw: &RawCall) -> Result<PastCall, ApiError> {
    let function = raw.function.as_ref().ok_or_else(|| params::missing(&format!("{path}.function")))?;
    let name = function.name.clone().ok_or_else(|| params::missing(&format!("{path}.function.name")))?;
    let arguments = match function.arguments.as_deref().unwrap_or("{}") {
        "" => json!({}),
        text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    };
    Ok(PastCall { id: raw.id.clone().unwrap_or_default(), name, arguments })
}
