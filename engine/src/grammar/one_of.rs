//! `oneOf` whose alternatives exclude each other is `anyOf`, which can be enforced.
//!
//! The library proves that only without following references, and generated schemas of tagged unions are full of them.
//! Here: two alternatives exclude each other if their types do, if no value of `const` or `enum` is common to both, or
//! if both are objects that require a property whose schemas exclude each other. Where that can't be shown, `oneOf`
//! stays, and the library has the last word.
//!
//! Invariant: a rewritten schema allows the same values. Cost: at most [`STEPS`] comparisons a schema. No state.

use serde_json::{Map, Value};

/// Most comparisons of two schemas in one document; past them `oneOf` stays.
const STEPS: usize = 20_000;
/// Most references followed in a row.
const HOPS: usize = 8;
/// Deepest nesting of compared properties.
const DEPTH: usize = 6;

/// Keywords whose value maps names to schemas.
const BY_NAME: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
/// Keywords whose value is data, not schema.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "required"];

/// Replaces `oneOf` by `anyOf` where that is the same.
pub(super) fn relax(schema: &mut Value) {
    if !schema.to_string().contains("\"oneOf\"") {
        return;
    }
    let root = schema.clone();
    let mut judge = Judge { root: &root, steps: STEPS };
    judge.visit(schema);
}

struct Judge<'a> {
    root: &'a Value,
    steps: usize,
}

impl<'a> Judge<'a> {
    fn visit(&mut self, schema: &mut Value) {
        match schema {
            Value::Array(parts) => parts.iter_mut().for_each(|part| self.visit(part)),
            Value::Object(fields) => {
                for (key, value) in fields.iter_mut() {
                    match value {
                        _ if DATA.contains(&key.as_str()) => {}
                        Value::Object(named) if BY_NAME.contains(&key.as_str()) => {
                            named.values_mut().for_each(|part| self.visit(part));
                        }
                        other => self.visit(other),
                    }
                }
                self.relax_here(fields);
            }
            _ => {}
        }
    }

    fn relax_here(&mut self, fields: &mut Map<String, Value>) {
        let Some(Value::Array(options)) = fields.get("oneOf") else { return };
        let mut pairs = (0..options.len()).flat_map(|second| (0..second).map(move |first| (first, second)));
        let exclusive = pairs.all(|(first, second)| self.exclude(&options[first], &options[second], DEPTH));
        if exclusive && !fields.contains_key("anyOf") {
            let options = fields.shift_remove("oneOf").unwrap_or_default();
            fields.insert("anyOf".to_owned(), options);
        }
    }

    /// Whether no value follows both schemas, as far as can be shown.
    fn exclude(&mut self, a: &Value, b: &Value, depth: usize) -> bool {
        if self.steps == 0 || depth == 0 {
            return false;
        }
        self.steps -= 1;
        let (Some(a), Some(b)) = (self.resolve(a), self.resolve(b)) else { return false };
        if let (Some(a), Some(b)) = (types(a), types(b))
            && !a.iter().any(|one| b.iter().any(|other| overlap(one, other)))
        {
            return true;
        }
        if let (Some(a), Some(b)) = (values(a), values(b))
            && !a.iter().any(|one| b.iter().any(|other| equal(one, other)))
        {
            return true;
        }
        let objects = [a, b].iter().all(|schema| types(schema).is_some_and(|types| types == ["object"]));
        objects && self.required_excludes(a, b, depth)
    }

    fn required_excludes(&mut self, a: &Value, b: &Value, depth: usize) -> bool {
        let required = |schema: &'_ Value| schema["required"].as_array().cloned().unwrap_or_default();
        let common = required(a);
        let theirs = required(b);
        let names = common.iter().filter(|name| theirs.contains(name)).filter_map(Value::as_str);
        names.into_iter().any(|name| {
            let (Some(one), Some(other)) = (a["properties"].get(name), b["properties"].get(name)) else { return false };
            self.exclude(one, other, depth - 1)
        })
    }

    /// The schema behind references; `None` if one leads nowhere or in a circle.
    fn resolve<'b>(&self, mut schema: &'b Value) -> Option<&'b Value>
    where
        'a: 'b,
    {
        for _ in 0..HOPS {
            let Some(reference) = schema.get("$ref") else { return Some(schema) };
            schema = self.root.pointer(reference.as_str()?.strip_prefix('#')?)?;
        }
        None
    }
}

/// The types that a schema allows, if it says.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type") {
        Some(Value::String(name)) => Some(vec![name]),
        Some(Value::Array(names)) => names.iter().map(Value::as_str).collect(),
        _ => values(schema).map(|values| values.iter().map(|value| type_of(value)).collect()),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn overlap(one: &str, other: &str) -> bool {
    one == other || matches!((one, other), ("integer", "number") | ("number", "integer"))
}

/// The values that a schema allows, if it lists them.
fn values(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// JSON equality as schemas have it for scalars: 1 is 1.0. Of lists and objects equality is assumed.
fn equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => one == other,
    }
}
