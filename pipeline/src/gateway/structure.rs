//! What a request says of the shape of its answer: `response_format`, `structured_outputs` and the `guided_*` fields of
//! other servers, and the tools; and the one grammar that follows from it (SPEC E1).
//!
//! Invariant: a grammar that leaves here was compiled for the model's vocabulary, so that no engine refuses it; faults are
//! errors that name the field. Cost: milliseconds a new grammar, on the text runtime. No state.

use engine::{
    grammar::{GrammarError, GrammarSource, MAX_JSON_WHITESPACE},
    tool_calls::{
        ParallelCalls, Tool, ToolCallFormat, ToolChoice, ToolError, constraint, parse_tool_choice, parse_tools,
    },
};
use serde_json::{Map, Value, json};

use super::{deps::TextModel, error::ApiError, json_body, params::RawRequest};

/// Longest name of a schema (OpenAI's bound).
const NAME_MAX: usize = 64;

/// A shape of the answer, and the field that asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub source: GrammarSource,
    pub param: String,
}

/// The tools that the model may use.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolUse {
    pub tools: Vec<Tool>,
    /// Never [`ToolChoice::None`].
    pub choice: ToolChoice,
    pub parallel: ParallelCalls,
}

/// What the answer's reader must know of the tools.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolReply {
    pub format: ToolCallFormat,
    pub names: Vec<String>,
    /// The answer is calls and no text.
    pub only_calls: bool,
}

/// The shape that a request asks for.
pub fn shape<L>(raw: &RawRequest<L>) -> Result<Option<Shape>, ApiError> {
    let mut shapes = Vec::new();
    if let Some(format) = &raw.response_format {
        shapes.extend(response_format(format)?);
    }
    let guided = [
        ("guided_json", raw.guided_json.clone()),
        ("guided_regex", raw.guided_regex.clone().map(Value::String)),
        ("guided_choice", raw.guided_choice.clone()),
        ("guided_grammar", raw.guided_grammar.clone().map(Value::String)),
    ];
    for (param, value) in guided {
        if let Some(value) = value {
            shapes.push(guide(param.into(), param.trim_start_matches("guided_"), &value)?);
        }
    }
    for (kind, value) in raw.structured_outputs.iter().flatten().filter(|(_, value)| !value.is_null()) {
        match kind.as_str() {
            "json" | "regex" | "choice" | "grammar" | "json_object" if *value != Value::Bool(false) => {
                shapes.push(guide(format!("structured_outputs.{kind}"), kind, value)?);
            }
            _ => {}
        }
    }
    match shapes.len() {
        0 | 1 => Ok(shapes.pop()),
        _ => {
            let names: Vec<String> = shapes.iter().map(|shape| format!("'{}'", shape.param)).collect();
            let message = format!("{} exclude each other; expected one of them.", names.join(" and "));
            Err(ApiError::parameter(shapes[1].param.clone(), message))
        }
    }
}

fn wrong(param: &str, expected: &str, got: &Value) -> ApiError {
    let shown = if got.is_null() { "nothing".to_string() } else { json_body::show(got) };
    ApiError::parameter(param, format!("Invalid value for '{param}': expected {expected}, but got {shown}."))
}

fn response_format(format: &Map<String, Value>) -> Result<Option<Shape>, ApiError> {
    let asked = format.get("type").unwrap_or(&Value::Null);
    let source = match asked.as_str() {
        Some("text") => return Ok(None),
        Some("json_object") => GrammarSource::JsonObject,
        Some("json_schema") => return json_schema(format.get("json_schema").unwrap_or(&Value::Null)).map(Some),
        _ => return Err(wrong("response_format.type", "one of text, json_object, json_schema", asked)),
    };
    Ok(Some(Shape { source, param: "response_format".into() }))
}

/// `strict` or not: what can be enforced is enforced, and what cannot is refused.
fn json_schema(asked: &Value) -> Result<Shape, ApiError> {
    const PARAM: &str = "response_format.json_schema";
    if !asked.is_object() {
        return Err(wrong(PARAM, "an object with name and schema", asked));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let name = asked["name"].as_str().filter(|name| (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(fits));
    if name.is_none() {
        return Err(wrong(&format!("{PARAM}.name"), "1 to 64 letters, digits, dashes or underscores", &asked["name"]));
    }
    if !asked["strict"].is_null() && !asked["strict"].is_boolean() {
        return Err(wrong(&format!("{PARAM}.strict"), "a boolean", &asked["strict"]));
    }
    match &asked["schema"] {
        schema @ Value::Object(_) => {
            let source = GrammarSource::JsonSchema(schema.to_string());
            Ok(Shape { source, param: format!("{PARAM}.schema") })
        }
        other => Err(wrong(&format!("{PARAM}.schema"), "a JSON schema, an object", other)),
    }
}

/// A field of `structured_outputs`, or the `guided_*` field of the same kind.
fn guide(param: String, kind: &str, value: &Value) -> Result<Shape, ApiError> {
    let text = |expected| value.as_str().map(str::to_string).ok_or_else(|| wrong(&param, expected, value));
    let source = match kind {
        "json" => match value {
            Value::Object(_) | Value::Bool(true) => GrammarSource::JsonSchema(value.to_string()),
            Value::String(text) => GrammarSource::JsonSchema(text.clone()),
            other => return Err(wrong(&param, "a JSON schema, an object or its text", other)),
        },
        "json_object" if *value == Value::Bool(true) => GrammarSource::JsonObject,
        "regex" => GrammarSource::Regex(text("a regular expression, a string")?),
        "grammar" => GrammarSource::Lark(text("a Lark grammar, a string")?),
        "choice" => {
            let list = value.as_array().filter(|list| !list.is_empty() && list.iter().all(Value::is_string));
            let list = list.ok_or_else(|| wrong(&param, "a non-empty array of strings", value))?;
            let words: Vec<String> = list.iter().map(Value::to_string).collect();
            GrammarSource::Lark(format!("start: {}\n", words.join(" | ")))
        }
        _ => return Err(wrong(&param, "a boolean", value)),
    };
    Ok(Shape { source, param })
}

/// The tools of a chat request; `None` if it has none, or if none may be called.
pub fn tool_use<L>(raw: &RawRequest<L>) -> Result<Option<ToolUse>, ApiError> {
    if raw.functions.as_ref().is_some_and(|list| !list.is_empty()) {
        return Err(ApiError::unsupported("functions", "'functions' is not supported; use 'tools' instead."));
    }
    let tools = parse_tools(&Value::Array(raw.tools.clone().unwrap_or_default())).map_err(of_tools)?;
    let choice = parse_tool_choice(raw.tool_choice.as_ref(), &tools).map_err(of_tools)?;
    let parallel = match raw.parallel_tool_calls {
        Some(false) => ParallelCalls::One,
        _ => ParallelCalls::Allowed,
    };
    Ok((choice != ToolChoice::None && !tools.is_empty()).then_some(ToolUse { tools, choice, parallel }))
}

fn of_tools(error: ToolError) -> ApiError {
    match &error {
        ToolError::Field { field, value, expected } => {
            let got = if value == "null" { "nothing".to_string() } else { format!("`{}`", json_body::shorten(value)) };
            ApiError::parameter(field, format!("Invalid value for '{field}': expected {expected}, but got {got}."))
        }
        ToolError::UnknownTool { .. } | ToolError::NoTools => {
            ApiError::parameter("tool_choice", format!("Invalid value for 'tool_choice': {error}."))
        }
    }
}

/// The grammar of the answer and how to read tool calls in it. Compiles, so call it where blocking is allowed.
pub fn settle(
    text: &dyn TextModel,
    shape: Option<&Shape>,
    tools: Option<&ToolUse>,
) -> Result<(Option<GrammarSource>, Option<ToolReply>), ApiError> {
    if let Some(shape) = shape {
        text.check_grammar(&shape.source).map_err(|error| of_grammar(&shape.param, &error))?;
    }
    let Some(used) = tools else { return Ok((shape.map(|shape| shape.source.clone()), None)) };
    let only_calls = used.choice != ToolChoice::Auto;
    let format = text.tool_format();
    let grammar = match shape.filter(|_| !only_calls) {
        None => constraint(&used.tools, &used.choice, format, used.parallel).map_err(of_tools)?,
        Some(shape) => Some(calls_or_answer(used, format, shape)?),
    };
    if let Some(grammar) = &grammar {
        text.check_grammar(grammar).map_err(|error| blame(text, &used.tools, &error))?;
    }
    let names = used.tools.iter().map(|tool| tool.name.clone()).collect();
    Ok((grammar, Some(ToolReply { format, names, only_calls })))
}

/// The model calls tools, or it answers in the shape.
fn calls_or_answer(used: &ToolUse, format: ToolCallFormat, shape: &Shape) -> Result<GrammarSource, ApiError> {
    let mut schema: Value = match &shape.source {
        GrammarSource::JsonObject => json!({"type": "object"}),
        GrammarSource::JsonSchema(text) => serde_json::from_str(text).unwrap_or_default(),
        GrammarSource::Regex(_) | GrammarSource::Lark(_) => Value::Null,
    };
    let calls = constraint(&used.tools, &ToolChoice::Required, format, used.parallel).map_err(of_tools)?;
    let calls = calls.as_ref().map(GrammarSource::text).and_then(|text| text.strip_prefix("start: "));
    let (Some(fields), Some((start, rules))) = (schema.as_object_mut(), calls.and_then(|text| text.split_once('\n')))
    else {
        let message = format!(
            "'{}' cannot be combined with tools that the model is free to call, unless it asks for JSON; set \
             'tool_choice' to \"none\", \"required\" or a function.",
            shape.param
        );
        return Err(ApiError::unsupported(shape.param.clone(), message));
    };
    // The bound that a schema alone has, too.
    let blanks = format!(r"[\x20\x0A\x0D\x09]{{1,{MAX_JSON_WHITESPACE}}}");
    fields.insert("x-guidance".into(), json!({"whitespace_pattern": blanks}));
    let lark = format!("start: called | answer\ncalled: {start}\nanswer: %json {schema}\n{rules}");
    Ok(GrammarSource::Lark(lark))
}

fn of_grammar(param: &str, error: &GrammarError) -> ApiError {
    match error {
        GrammarError::Vocabulary(_) => ApiError::Internal(error.to_string()),
        _ => ApiError::parameter(param, format!("Invalid value for '{param}': {error}.")),
    }
}

/// Finds the tool whose schema cannot be enforced.
fn blame(text: &dyn TextModel, tools: &[Tool], error: &GrammarError) -> ApiError {
    for (index, tool) in tools.iter().enumerate() {
        let schema = GrammarSource::JsonSchema(tool.parameters.to_string());
        if let Err(error) = text.check_grammar(&schema) {
            return of_grammar(&format!("tools[{index}].function.parameters"), &error);
        }
    }
    of_grammar("tools", error)
}
