//! Tool calls: the text in which a model asks for one, read and written (SPEC E1: `tools`, `tool_choice`).
//!
//! Two ways of writing are known. Hermes and Qwen put each call in a tag: `<tool_call>{"name": …, "arguments": …}` and
//! `</tool_call>`. Llama 3 writes nothing but the JSON, `{"name": …, "parameters": …}`. Which one a model was taught is
//! read from its chat template.
//!
//! Pure functions of text: no model, no tokens. `grammar` says what a model may write for a choice; `parser` reads what
//! it wrote, piece by piece; `body` is the JSON of one call.
//!
//! Invariant: what `grammar` allows, `parser` reads as calls. Bounds: [`MAX_TOOLS`], [`MAX_CALLS`], [`MAX_CALL_BYTES`].

mod body;
mod grammar;
mod parser;

use std::collections::HashSet;

use serde_json::Value;

pub use self::{
    grammar::constraint,
    parser::{ToolCallEvent, ToolCallParser},
};

/// Most tools in a request; more are refused.
pub const MAX_TOOLS: usize = 128;
/// Longest name of a tool, in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Most calls in one reply. A grammar allows no more; unbidden further ones are text.
pub const MAX_CALLS: usize = 64;
/// Longest call, in bytes; a longer one is text as far as it was not announced, and cut off if it was.
pub const MAX_CALL_BYTES: usize = 1024 * 1024;

/// How a model writes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolCallFormat {
    /// `<tool_call>`, JSON with `arguments`, `</tool_call>`; text may stand around it.
    Hermes,
    /// JSON with `parameters`, alone in the reply; several are separated by `;`.
    Json,
}

impl ToolCallFormat {
    /// What a chat template teaches; `None` if it knows no tools.
    pub fn of_template(source: &str) -> Option<Self> {
        match source {
            tagged if tagged.contains("<tool_call>") => Some(Self::Hermes),
            plain if plain.contains("tools") && plain.contains("\"parameters\"") => Some(Self::Json),
            _ => None,
        }
    }

    /// The key of a call's arguments.
    pub fn arguments_key(self) -> &'static str {
        match self {
            Self::Hermes => "arguments",
            Self::Json => "parameters",
        }
    }
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    /// JSON schema of its arguments, an object.
    pub parameters: Value,
}

/// What the caller wants of its tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// No call.
    None,
    /// Text, calls or both, as the model likes.
    Auto,
    /// At least one call, and nothing else.
    Required,
    /// One call of this tool, and nothing else.
    Named(String),
}

/// Whether one reply may hold several calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParallelCalls {
    Allowed,
    One,
}

/// What is wrong with a request's tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    #[error("{field} is {value}; it must be {expected}")]
    Field { field: String, value: String, expected: &'static str },
    #[error("tool_choice names {name:?}, which is not among the tools")]
    UnknownTool { name: String },
    #[error("tool_choice asks for a call and there are no tools")]
    NoTools,
}

/// The tools of a request's `tools` array: `{"type": "function", "function": {"name": …, "parameters": …}}` each.
pub fn parse_tools(tools: &Value) -> Result<Vec<Tool>, ToolError> {
    let wrong = |field: String, value: &Value, expected| {
        Err(ToolError::Field { field, value: value.to_string().chars().take(100).collect(), expected })
    };
    let Some(list) = tools.as_array() else { return wrong("tools".to_owned(), tools, "an array") };
    if list.len() > MAX_TOOLS {
        return wrong("tools".to_owned(), &format!("{} tools", list.len()).into(), "at most 128 tools");
    }
    let mut names = HashSet::new();
    let mut parsed = Vec::with_capacity(list.len());
    for (index, entry) in list.iter().enumerate() {
        let function = &entry["function"];
        let field = |name: &str| format!("tools[{index}].{name}");
        if entry["type"] != "function" {
            return wrong(field("type"), &entry["type"], "\"function\"");
        }
        let name = function["name"].as_str().filter(|name| is_name(name));
        let Some(name) = name else {
            return wrong(
                field("function.name"),
                &function["name"],
                "1 to 64 letters, digits, dashes, dots or underscores",
            );
        };
        if !names.insert(name) {
            return wrong(field("function.name"), &function["name"], "unlike the other tools' names");
        }
        let parameters = match &function["parameters"] {
            Value::Null => serde_json::json!({ "type": "object", "properties": {} }),
            schema @ Value::Object(_) => schema.clone(),
            other => return wrong(field("function.parameters"), other, "a JSON schema, an object"),
        };
        parsed.push(Tool { name: name.to_owned(), parameters });
    }
    Ok(parsed)
}

/// A request's `tool_choice`; `None` means `auto` where there are tools.
pub fn parse_tool_choice(choice: Option<&Value>, tools: &[Tool]) -> Result<ToolChoice, ToolError> {
    let choice = match choice {
        None | Some(Value::Null) if tools.is_empty() => ToolChoice::None,
        None | Some(Value::Null) => ToolChoice::Auto,
        Some(Value::String(word)) if word == "none" => ToolChoice::None,
        Some(Value::String(word)) if word == "auto" => ToolChoice::Auto,
        Some(Value::String(word)) if word == "required" => ToolChoice::Required,
        Some(other) => match other["function"]["name"].as_str() {
            Some(name) if other["type"] == "function" => ToolChoice::Named(name.to_owned()),
            _ => {
                let expected = "\"none\", \"auto\", \"required\" or a function by name";
                return Err(ToolError::Field { field: "tool_choice".to_owned(), value: other.to_string(), expected });
            }
        },
    };
    match &choice {
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            Err(ToolError::UnknownTool { name: name.clone() })
        }
        ToolChoice::Required if tools.is_empty() => Err(ToolError::NoTools),
        _ => Ok(choice),
    }
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.bytes().all(fits)
}
