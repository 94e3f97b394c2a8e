//! What can be wrong with a Hugging Face folder: which file and field, its value, and what would be right.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error("{}: {problem}", path.display())]
    Json { path: PathBuf, problem: String },
    #[error("config.json: {field} is {value}, expected {expected}")]
    Config { field: &'static str, value: String, expected: String },
    #[error("config.json: {0} is missing")]
    Missing(&'static str),
    #[error("{} is not a safetensors file: {problem} (is the download complete?)", path.display())]
    Safetensors { path: PathBuf, problem: String },
    #[error("tensor {name} {problem}")]
    Tensor { name: String, problem: String },
}
