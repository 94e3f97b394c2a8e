//! Request bodies: from bytes to a typed value, and what to say when that fails.
//!
//! The size is bounded by `server.body_max`, the nesting by serde_json's 128 levels. Unknown fields are ignored, since
//! clients send extras; a known field of a wrong type is refused with its path, its value and what would be right.

use std::{borrow::Cow, fmt, marker::PhantomData};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{HeaderMap, header},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{error::ApiError, params};

/// Longest piece of a client's value that an error repeats, in characters.
const SHOWN_MAX: usize = 120;

/// A value that must be written as a JSON object; serde alone would take an array for a struct, too.
#[derive(Debug, Clone, PartialEq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Refuses anything but `application/json`.
pub fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let got =
        headers.get(header::CONTENT_TYPE).map_or("missing".into(), |value| String::from_utf8_lossy(value.as_bytes()));
    let essence = got.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" => Ok(()),
        _ => Err(ApiError::ContentType { got: shorten(&got) }),
    }
}

/// The whole body, if it is not larger than `limit` bytes. A length announced above it is refused before reading.
pub async fn read(body: Body, limit: u64) -> Result<Bytes, ApiError> {
    if body.size_hint().lower() > limit {
        return Err(ApiError::TooLarge { limit });
    }
    let most = usize::try_from(limit).unwrap_or(usize::MAX);
    match Limited::new(body, most).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::TooLarge { limit }),
        Err(error) => Err(ApiError::Malformed(format!("The request body could not be read: {error}."))),
    }
}

/// The body as a `T`.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        ApiError::Malformed(format!("The request body is not valid UTF-8: bad byte at offset {}.", error.valid_up_to()))
    })?;
    match text.trim_start().chars().next() {
        None => return Err(ApiError::Malformed("The request body is empty; expected a JSON object.".into())),
        Some('{') => {}
        Some(_) => {
            let what = serde_json::from_str::<Value>(text).map(|value| kind(&value)).unwrap_or("not JSON");
            return Err(ApiError::Malformed(format!("The request body is {what}; expected a JSON object.")));
        }
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let parsed = serde_path_to_error::deserialize::<_, T>(&mut reader);
    let value = parsed.map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match inner.classify() {
            serde_json::error::Category::Data if !inner.to_string().starts_with("duplicate field") => {
                wrong_type(&path, text)
            }
            _ => malformed(&inner),
        }
    })?;
    reader.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> ApiError {
    ApiError::Malformed(format!("We could not parse the JSON body of your request: {error}."))
}

fn wrong_type(path: &str, text: &str) -> ApiError {
    let found = serde_json::from_str::<Value>(text).ok().and_then(|value| at_path(&value, path));
    let shown = found.as_ref().map_or("something else".to_string(), |value| format!("{} {}", kind(value), show(value)));
    ApiError::Parameter {
        param: path.to_string(),
        message: format!("Invalid type for '{path}': expected {}, but got {shown}.", params::expected(path)),
        code: "invalid_type",
    }
}

/// The value at a path as serde_path_to_error writes it: `messages[0].content`.
fn at_path(value: &Value, path: &str) -> Option<Value> {
    let mut here = value;
    for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
        let key = part.trim_end_matches(']');
        here = match here {
            Value::Array(items) => items.get(key.parse::<usize>().ok()?)?,
            Value::Object(fields) => fields.get(key)?,
            _ => return Some(here.clone()),
        };
    }
    Some(here.clone())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A client's value in an error, shortened.
pub fn show(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        other => format!("`{}`", shorten(&other.to_string())),
    }
}

/// At most [`SHOWN_MAX`] characters of `text`.
pub fn shorten(text: &str) -> String {
    let cut: Cow<'_, str> = match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    };
    cut.into_owned()
}
