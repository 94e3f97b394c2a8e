//! Chat templates: the Jinja source of a model file, compiled once, rendered as `transformers` would.
//!
//! Invariant: a template runs at most [`FUEL`] instructions and gives at most [`OUTPUT_MAX`] bytes, whatever its
//! source; it reaches no file, no clock and no environment. Cost: some µs a message. Thread-safe: share it in an `Arc`.
//!
//! As in `transformers`: blocks trim the newline after them and the blanks before, undefined values print as nothing,
//! Python's string, list and dict methods exist, `raise_exception` refuses a conversation. Unlike it: `strftime_now` is
//! refused (the engine has no clock), and keys of JSON objects come in the order in which the caller's map has them.

use std::io::Write;

use minijinja::{
    Environment, ErrorKind, Value, context,
    syntax::SyntaxConfig,
    value::{Kwargs, Serde, ValueKind},
};
use serde::Serialize;

/// Most template instructions in one rendering.
pub const FUEL: u64 = 5_000_000;
/// Most bytes of a rendered prompt.
pub const OUTPUT_MAX: usize = 64 * 1024 * 1024;

const NAME: &str = "chat_template";

/// Why a template does not compile or a conversation does not render.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    #[error("chat template does not compile: {0}")]
    Compile(String),
    /// The template called `raise_exception`: the conversation is at fault.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    #[error("chat template needs more than {FUEL} instructions or {OUTPUT_MAX} bytes for this conversation")]
    TooLarge,
    #[error("chat template: {0}")]
    Render(String),
}

/// One message of a conversation. Fields beside role and content (`tool_calls`, `name` …) are passed on as they came.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatMessage {
    pub role: String,
    /// A string, an array of parts, or null (as beside tool calls).
    pub content: serde_json::Value,
    #[serde(flatten)]
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl ChatMessage {
    /// A message of text alone.
    pub fn text(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.into(), extra: serde_json::Map::new() }
    }
}

/// Whether the prompt ends with the opening of the assistant's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddGenerationPrompt {
    Yes,
    No,
}

/// A compiled template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles `source`; `bos` and `eos` are the texts of `bos_token` and `eos_token`.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, ChatTemplateError> {
        let mut environment = Environment::new();
        environment.set_syntax(
            SyntaxConfig::builder()
                .trim_blocks(true)
                .lstrip_blocks(true)
                .build()
                .map_err(|error| ChatTemplateError::Compile(error.to_string()))?,
        );
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| ChatTemplateError::Compile(error.to_string()))?;
        Ok(Self { environment, bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The prompt of a conversation.
    pub fn render(
        &self,
        messages: &[ChatMessage],
        tools: Option<&serde_json::Value>,
        generation: AddGenerationPrompt,
    ) -> Result<String, ChatTemplateError> {
        let template = self.environment.get_template(NAME).map_err(|error| failure(&error))?;
        let values = context! {
            messages => Value::from(Serde(messages)),
            tools => Value::from(Serde(tools)),
            add_generation_prompt => generation == AddGenerationPrompt::Yes,
            bos_token => self.bos.as_str(),
            eos_token => self.eos.as_str(),
        };
        let mut out = Bounded { bytes: Vec::new(), full: false };
        match template.render_captured_to(values, &mut out) {
            _ if out.full => Err(ChatTemplateError::TooLarge),
            Err(error) => Err(failure(&error)),
            Ok(_) => String::from_utf8(out.bytes).map_err(|error| ChatTemplateError::Render(error.to_string())),
        }
    }
}

/// Collects output up to [`OUTPUT_MAX`] and fails past it.
struct Bounded {
    bytes: Vec<u8>,
    full: bool,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > OUTPUT_MAX - self.bytes.len() {
            self.full = true;
            return Err(std::io::Error::other("output bound"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Marks the detail of an error that `raise_exception` made.
const RAISED: &str = "raise_exception: ";

fn raise_exception(message: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, format!("{RAISED}{message}")))
}

fn strftime_now(_format: String) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, "strftime_now is not available: prompts depend on no clock"))
}

fn failure(error: &minijinja::Error) -> ChatTemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return ChatTemplateError::TooLarge;
    }
    match error.detail().and_then(|detail| detail.strip_prefix(RAISED)) {
        Some(message) => ChatTemplateError::Refused(message.to_owned()),
        None => ChatTemplateError::Render(error.to_string()),
    }
}

/// Python's `json.dumps(value, ensure_ascii=False, indent=indent)`: a space after each comma and colon, or lines.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    // transformers accepts and passes these on; they do not change what is printed here.
    for known in ["ensure_ascii", "separators", "sort_keys"] {
        let _: Option<Value> = options.get(known)?;
    }
    options.assert_all_used()?;
    if value.kind() == ValueKind::Undefined {
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "tojson of an undefined value"));
    }
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = " ".repeat(width.min(16));
            let style = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
    };
    written.map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    String::from_utf8(out)
        .map(Value::from_safe_string)
        .map_err(|error| minijinja::Error::new(ErrorKind::BadSerialization, error.to_string()))
}

/// One line with Python's separators.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        writer.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, messages: &[ChatMessage]) -> Result<String, ChatTemplateError> {
        ChatTemplate::new(source, "<s>", "</s>")?.render(messages, None, AddGenerationPrompt::Yes)
    }

    /// Scenario: what templates in the wild lean on: Python methods, undefined values, trimmed blocks, namespaces.
    /// Guarantees: they print what `transformers` prints.
    #[test]
    fn python_habits_work() {
        let hello = [ChatMessage::text("user", "  hello ")];
        for (source, want) in [
            ("{{ messages[0].content.strip().upper() }}", "HELLO"),
            ("{{ messages[0]['content'].startswith(' ') }}", "True"),
            ("{{ bos_token }}{{ nothing }}{{ eos_token }}", "<s></s>"),
            ("{% if tools is not none and tools %}T{% endif %}x", "x"),
            (
                "{% set ns = namespace(n=0) %}\n  {% for m in messages %}\n{% set ns.n = ns.n + 1 %}\n{% endfor %}\n\
                 {{ ns.n }}",
                "1",
            ),
            ("{{ messages[0].tool_calls is defined }}", "False"),
            (
                "{% for m in messages %}{{ loop.index0 }}{% if loop.last and add_generation_prompt %}!{% endif %}\
                 {% endfor %}",
                "0!",
            ),
            ("{{ {'a': [1, 'é<'], 'b': none} | tojson }}", r#"{"a": [1, "é<"], "b": null}"#),
        ] {
            assert_eq!(render(source, &hello).unwrap(), want, "{source}");
        }
    }

    /// Scenario: a message with tool calls beside a null content.
    /// Guarantees: the extra fields reach the template.
    #[test]
    fn extra_fields_are_passed_on() {
        let extra = json!({ "tool_calls": [{ "function": { "name": "f" } }] }).as_object().unwrap().clone();
        let message = ChatMessage { role: "assistant".into(), content: serde_json::Value::Null, extra };
        let source = "{% if messages[0].content is none %}{{ messages[0].tool_calls[0].function.name }}{% endif %}";
        assert_eq!(render(source, &[message]).unwrap(), "f");
    }

    /// Scenario: a template that refuses, one that does not compile, ones that would not end or would fill the memory.
    /// Guarantees: each is its own error; none hangs.
    #[test]
    fn hostile_templates_are_bounded() {
        let refused = render("{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
        assert_eq!(refused.to_string(), "the chat template refuses this conversation: roles must alternate");
        assert!(matches!(render("{% for %}", &[]), Err(ChatTemplateError::Compile(_))));
        let endless = "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, &[]), Err(ChatTemplateError::TooLarge)));
        let huge = "{% set a = 'x' * 1000000 %}{% for i in range(9999) %}{{ a }}{% endfor %}";
        assert!(render(huge, &[]).is_err());
        assert!(matches!(render("{{ strftime_now('%Y') }}", &[]), Err(ChatTemplateError::Render(_))));
    }
}
