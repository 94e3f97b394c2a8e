//! Tools for models whose chat template knows none: they are explained in the system message, and calls and their results
//! become text of messages that any template can print.
//!
//! The words are ours; the tags are those of Hermes, which `engine::tool_calls` reads back. A small model that was never
//! taught them calls a tool reliably only if `tool_choice` makes it. Invariant: a conversation without tools, calls and
//! results is left as it is. Cost: linear in the text. No state.

use serde_json::{Value, json};

use super::{
    conversation::{Conversation, Turn},
    deps::{ChatMessage, Role},
};

/// The messages with nothing but roles and text.
pub fn plain_messages(conversation: &Conversation) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = Vec::with_capacity(conversation.turns.len() + 1);
    let mut after_result = false;
    for turn in &conversation.turns {
        let is_result = turn.message.role == Role::Tool;
        match messages.last_mut() {
            // Results of several calls are one message.
            Some(last) if is_result && after_result => last.content = format!("{}\n{}", last.content, result(turn)),
            _ => messages.push(plain(turn)),
        }
        after_result = is_result;
    }
    if !conversation.tools.is_empty() {
        let words = explanation(&conversation.tools);
        match messages.first_mut() {
            Some(first) if first.role == Role::System => first.content = format!("{}\n\n{words}", first.content),
            _ => messages.insert(0, ChatMessage { role: Role::System, content: words }),
        }
    }
    messages
}

fn plain(turn: &Turn) -> ChatMessage {
    let ChatMessage { role, content } = turn.message.clone();
    if role == Role::Tool {
        return ChatMessage { role: Role::User, content: result(turn) };
    }
    let calls = turn.calls.iter().map(|call| {
        let body = one_line(&json!({"name": call.name, "arguments": call.arguments}));
        format!("<tool_call>\n{body}\n</tool_call>")
    });
    let parts: Vec<String> = Some(content).filter(|text| !text.is_empty()).into_iter().chain(calls).collect();
    ChatMessage { role, content: parts.join("\n") }
}

fn result(turn: &Turn) -> String {
    format!("<tool_response>\n{}\n</tool_response>", turn.message.content)
}

fn explanation(tools: &[Value]) -> String {
    let list: Vec<String> = tools.iter().map(|tool| one_line(&tool["function"])).collect();
    format!(
        "You can use the functions below, each described by a line of JSON:\n<tools>\n{}\n</tools>\nTo use one, write its \
         name and its arguments like this, and wait for the result:\n<tool_call>\n{{\"name\": \"the function's name\", \
         \"arguments\": {{\"an argument's name\": \"its value\"}}}}\n</tool_call>",
        list.join("\n")
    )
}

/// JSON with a blank after each comma and colon, as templates print it and as the grammar of a call has it.
fn one_line(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let pairs: Vec<String> =
                fields.iter().map(|(key, value)| format!("{}: {}", json!(key), one_line(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(one_line).collect::<Vec<_>>().join(", ")),
        plain => plain.to_string(),
    }
}
