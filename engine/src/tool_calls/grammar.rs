//! What a model may write for a tool choice, as a grammar.
//!
//! A call is written with the blanks that templates teach; its arguments are JSON that follows the tool's schema, each
//! schema a document of its own, so that its references hold. With [`ToolChoice::Auto`] text is free, but for what would
//! begin a call: under Hermes the opening tag, under plain JSON a reply whose first character is a brace.
//!
//! Cost: O(schemas). No state.

use serde_json::{Value, json};

use super::{MAX_CALLS, ParallelCalls, Tool, ToolCallFormat, ToolChoice, ToolError};
use crate::grammar::{GrammarSource, prepare_schema};

/// The grammar for a choice among `tools`; `None` where nothing is to be enforced.
pub fn constraint(
    tools: &[Tool],
    choice: &ToolChoice,
    format: ToolCallFormat,
    parallel: ParallelCalls,
) -> Result<Option<GrammarSource>, ToolError> {
    let chosen: Vec<&Tool> = match choice {
        ToolChoice::None => return Ok(None),
        ToolChoice::Auto if tools.is_empty() => return Ok(None),
        ToolChoice::Required if tools.is_empty() => return Err(ToolError::NoTools),
        ToolChoice::Auto | ToolChoice::Required => tools.iter().collect(),
        ToolChoice::Named(name) => tools.iter().filter(|tool| tool.name == *name).collect(),
    };
    if let (ToolChoice::Named(name), true) = (choice, chosen.is_empty()) {
        return Err(ToolError::UnknownTool { name: name.clone() });
    }
    let single = parallel == ParallelCalls::One || matches!(choice, ToolChoice::Named(_));
    let most = if single { 1 } else { MAX_CALLS };
    let free_text = *choice == ToolChoice::Auto;
    let mut lark = match format {
        ToolCallFormat::Hermes => hermes(most, free_text),
        ToolCallFormat::Json => plain_json(most, free_text),
    };
    let names: Vec<String> = (0..chosen.len()).map(|index| format!("tool_{index}")).collect();
    lark.push_str(&format!("body: {}\n", names.join(" | ")));
    for (index, tool) in chosen.iter().enumerate() {
        let open = format!("{{\"name\": {}, \"{}\": ", json!(tool.name), format.arguments_key());
        let schema = arguments_schema(&tool.parameters);
        lark.push_str(&format!("tool_{index}: {} arguments_{index} \"}}\"\n", json!(open)));
        lark.push_str(&format!("arguments_{index}: %json {schema}\n"));
    }
    Ok(Some(GrammarSource::Lark(lark)))
}

/// `more` repetitions of what follows a first one.
fn repeated(what: &str, more: usize) -> String {
    if more == 0 { String::new() } else { format!(" ({what}){{0,{more}}}") }
}

fn hermes(most: usize, free_text: bool) -> String {
    let close = r#"close: "\n</tool_call>""#;
    if free_text {
        // `opening` ends at the first tag; `tail` has none. Both begin alike, and the text decides.
        return format!(
            "start: (opening body close){{0,{most}}} tail\nopening[lazy]: /(?s:.*)<tool_call>\\n/\n\
             tail: TAIL\nTAIL: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/\n{close}\n"
        );
    }
    format!("start: call{}\ncall: \"<tool_call>\\n\" body close\n{close}\n", repeated("\"\\n\" call", most - 1))
}

fn plain_json(most: usize, free_text: bool) -> String {
    let calls = format!("calls: body{}\n", repeated("\"; \" body", most - 1));
    if free_text {
        return format!("start: calls | text\ntext: TEXT\nTEXT: /(\\s*[^\\s{{](?s:.*))?/\n{calls}");
    }
    format!("start: calls\n{calls}")
}

/// The schema of a call's arguments: an object even where the tool does not say so.
fn arguments_schema(parameters: &Value) -> Value {
    let mut schema = parameters.clone();
    if let Some(fields) = schema.as_object_mut() {
        let says = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
        if !says.iter().any(|key| fields.contains_key(*key)) {
            fields.insert("type".to_owned(), "object".into());
        }
    }
    prepare_schema(&mut schema);
    schema
}
