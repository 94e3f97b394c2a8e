//! A small judge of JSON schemas, written from the specification and not from the grammar library: what the tests'
//! schemas use of draft 2020-12, and a panic at any other keyword.

use serde::de::IgnoredAny;
use serde_json::Value;

/// The value of a JSON text. `None` if the text is JSON but holds a number beyond an f64, such as `1E999`: the standard
/// allows it, and a schema without bounds does too.
pub fn value_of(text: &str) -> Result<Option<Value>, serde_json::Error> {
    match serde_json::from_str(text) {
        Err(fault) if fault.to_string().starts_with("number out of range") => {
            serde_json::from_str::<IgnoredAny>(text).map(|_| None)
        }
        read => read.map(Some),
    }
}

/// Whether `value` follows `schema`; `root` holds the definitions that references name.
pub fn follows(schema: &Value, root: &Value, value: &Value) -> Result<(), String> {
    let fields = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Bool(false) => return Err("false allows nothing".to_owned()),
        other => other.as_object().expect("a schema"),
    };
    fields
        .iter()
        .try_for_each(|(key, rule)| check(key, rule, (schema, root), value).map_err(|fault| format!("{key}: {fault}")))
}

fn ensure(holds: bool, value: &Value) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{value} does not fit")) }
}

fn check(key: &str, rule: &Value, (schema, root): (&Value, &Value), value: &Value) -> Result<(), String> {
    let number = || value.as_f64();
    let length = || value.as_str().map(|text| text.chars().count() as u64);
    let items = || value.as_array().map(|items| items.len() as u64);
    let bound = || rule.as_f64().unwrap();
    let count = || rule.as_u64().unwrap();
    match key {
        "$defs" | "definitions" | "title" | "description" | "$schema" | "default" => Ok(()),
        "type" => match rule {
            Value::Array(names) => ensure(names.iter().any(|name| is_type(name, value)), value),
            name => ensure(is_type(name, value), value),
        },
        "const" => ensure(rule == value, value),
        "enum" => ensure(rule.as_array().unwrap().contains(value), value),
        "minimum" => ensure(number().is_none_or(|number| number >= bound()), value),
        "maximum" => ensure(number().is_none_or(|number| number <= bound()), value),
        "exclusiveMinimum" => ensure(number().is_none_or(|number| number > bound()), value),
        "exclusiveMaximum" => ensure(number().is_none_or(|number| number < bound()), value),
        "multipleOf" => ensure(number().is_none_or(|number| (number / bound()).fract().abs() < 1e-9), value),
        "minLength" => ensure(length().is_none_or(|length| length >= count()), value),
        "maxLength" => ensure(length().is_none_or(|length| length <= count()), value),
        "minItems" => ensure(items().is_none_or(|items| items >= count()), value),
        "maxItems" => ensure(items().is_none_or(|items| items <= count()), value),
        "pattern" => ensure(value.as_str().is_none_or(|text| matches(rule.as_str().unwrap(), text)), value),
        "format" => ensure(value.as_str().is_none_or(|text| is_format(rule.as_str().unwrap(), text)), value),
        "$ref" => follows(target(rule.as_str().unwrap(), root), root, value),
        "anyOf" => ensure(fitting(rule, root, value) > 0, value),
        "oneOf" => ensure(fitting(rule, root, value) == 1, value),
        "allOf" => rule.as_array().unwrap().iter().try_for_each(|part| follows(part, root, value)),
        "items" | "prefixItems" => value.as_array().map_or(Ok(()), |items| check_items(schema, root, items)),
        "required" => value.as_object().map_or(Ok(()), |fields| {
            let missing = rule.as_array().unwrap().iter().find(|name| !fields.contains_key(name.as_str().unwrap()));
            missing.map_or(Ok(()), |name| Err(format!("{name} is missing")))
        }),
        "minProperties" => ensure(value.as_object().is_none_or(|fields| fields.len() as u64 >= count()), value),
        "maxProperties" => ensure(value.as_object().is_none_or(|fields| fields.len() as u64 <= count()), value),
        "properties" | "patternProperties" | "additionalProperties" => check_properties(schema, root, value),
        other => panic!("the checker does not know {other}"),
    }
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the checker does not know the type {other}"),
    }
}

fn target<'a>(reference: &str, root: &'a Value) -> &'a Value {
    let pointer = reference.strip_prefix('#').expect("a local reference");
    root.pointer(pointer).unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

fn fitting(options: &Value, root: &Value, value: &Value) -> usize {
    options.as_array().unwrap().iter().filter(|option| follows(option, root, value).is_ok()).count()
}

fn check_items(schema: &Value, root: &Value, items: &[Value]) -> Result<(), String> {
    let first = schema["prefixItems"].as_array().map_or(&[][..], Vec::as_slice);
    let rest = schema.get("items").unwrap_or(&Value::Bool(true));
    items.iter().enumerate().try_for_each(|(index, item)| follows(first.get(index).unwrap_or(rest), root, item))
}

fn check_properties(schema: &Value, root: &Value, value: &Value) -> Result<(), String> {
    let Some(fields) = value.as_object() else { return Ok(()) };
    let patterns = schema["patternProperties"].as_object();
    for (name, field) in fields {
        let own = schema["properties"].get(name);
        let by_pattern = patterns.into_iter().flatten().filter(|(pattern, _)| matches(pattern, name));
        let rules: Vec<&Value> = own.into_iter().chain(by_pattern.map(|(_, rule)| rule)).collect();
        let rules = if rules.is_empty() { schema.get("additionalProperties").into_iter().collect() } else { rules };
        rules
            .into_iter()
            .try_for_each(|rule| follows(rule, root, field))
            .map_err(|fault| format!("{name}: {fault}"))?;
    }
    Ok(())
}

/// The patterns of the tests, each by hand: an own reading, not another regular-expression engine.
fn matches(pattern: &str, text: &str) -> bool {
    let all = |text: &str, fits: fn(char) -> bool| !text.is_empty() && text.chars().all(fits);
    match pattern {
        "^[A-Z]{2}[0-9]{3}$" => {
            let bytes = text.as_bytes();
            bytes.len() == 5 && all(&text[..2], |c| c.is_ascii_uppercase()) && all(&text[2..], |c| c.is_ascii_digit())
        }
        "^(red|green|blue)-[0-9]+$" => text.split_once('-').is_some_and(|(colour, number)| {
            ["red", "green", "blue"].contains(&colour) && all(number, |c| c.is_ascii_digit())
        }),
        "^x_" => text.starts_with("x_"),
        "^[é日-本]{1,4}$" => {
            (1..=4).contains(&text.chars().count()) && all(text, |c| c == 'é' || ('日'..='本').contains(&c))
        }
        "b+c" => text.contains("bc"),
        other => panic!("the checker does not know the pattern {other}"),
    }
}

fn is_format(format: &str, text: &str) -> bool {
    let number = |text: &str, range: std::ops::RangeInclusive<u32>| {
        text.len() == 2 && text.parse().is_ok_and(|number| range.contains(&number))
    };
    let is_date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.len() == 3 && parts[0].len() == 4 && number(parts[1], 1..=12) && number(parts[2], 1..=31)
    };
    let is_time = |text: &str| {
        let bytes = text.as_bytes();
        bytes.len() >= 9 && number(&text[..2], 0..=23) && number(&text[3..5], 0..=59) && number(&text[6..8], 0..=60)
    };
    match format {
        "date" => is_date(text),
        "time" => is_time(text),
        "date-time" => text.split_once(['T', 't']).is_some_and(|(date, time)| is_date(date) && is_time(time)),
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        "uuid" => {
            let lengths: Vec<usize> = text.split('-').map(str::len).collect();
            lengths == [8, 4, 4, 4, 12] && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit())
        }
        "email" => text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && !host.is_empty()),
        other => panic!("the checker does not know the format {other}"),
    }
}
