//! What can be wrong with a GGUF file: which field or tensor, its value, and what would be right.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("cannot read the weights: {source}")]
    Read { source: std::io::Error },
    #[error("not a GGUF file: it starts with the bytes {magic:02x?}, expected \"GGUF\"")]
    NotGguf { magic: [u8; 4] },
    #[error("GGUF version is {version}, expected 2 or 3 (little-endian)")]
    Version { version: u32 },
    #[error("{what} at byte {offset} needs {needed} bytes and the file has {left} left (is the download complete?)")]
    Truncated { what: String, offset: usize, needed: u64, left: usize },
    #[error("{what} is {value}, expected at most {limit}")]
    TooLarge { what: String, value: u64, limit: u64 },
    #[error("{what} at byte {offset} is not UTF-8")]
    NotUtf8 { what: String, offset: usize },
    #[error("metadata key {key}: value type is {type_id}, expected {expected}")]
    ValueType { key: String, type_id: u32, expected: &'static str },
    #[error("{what} {name:?} occurs twice, expected once")]
    Duplicate { what: &'static str, name: String },
    #[error("metadata key {key} is missing")]
    Missing { key: String },
    #[error("metadata key {key} is {value}, expected {expected}")]
    BadValue { key: String, value: String, expected: String },
    #[error(transparent)]
    HuggingFace(#[from] crate::model::hugging_face::HubError),
    #[error("tensor {name}: {what} is {value}, expected {expected}")]
    Tensor { name: String, what: String, value: String, expected: String },
}

impl GgufError {
    pub(crate) fn missing(key: &str) -> Self {
        Self::Missing { key: key.to_owned() }
    }
}
