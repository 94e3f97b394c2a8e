//! A Hugging Face folder (config.json, *.safetensors, tokenizer.json) read in GGUF's terms: the same keys, the same tensor
//! names, so that everything after loading knows one kind of model.
//!
//! Invariant: what [`open`] gives satisfies what [`Gguf`] promises: every tensor lies inside its part. Rows keep the
//! order they were trained in ([`RowOrder::AsTrained`]). Cost: matrices stay in the mapped files; norm weights that a
//! family stores less an offset are copied (a few KB a layer). Bounds: [`limits`].

mod config;
mod error;
mod names;
mod shards;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use config::HubConfig;
pub use error::HubError;
use serde::Deserialize;
use shards::Shards;

use super::gguf::{Gguf, RowOrder, Value};
use crate::tokenizer::HUGGING_FACE_KEY;

/// Upper bounds on what a folder may hold.
pub mod limits {
    /// Files of weights.
    pub const SHARDS: usize = 1024;
    /// Bytes of a JSON file.
    pub const JSON_BYTES: u64 = 256 * 1024 * 1024;
}

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Maps and checks the folder's files. They must not change while the model lives.
pub fn open(folder: &Path) -> Result<Gguf, HubError> {
    let config: HubConfig = json(&folder.join("config.json"))?;
    let (family, mut metadata) = config.metadata()?;
    text_keys(folder, &mut metadata)?;
    let mut shards = Shards::default();
    for file in weight_files(folder)? {
        shards.add(&file, family)?;
    }
    if let Some(factors) = config.rope_factors()? {
        shards.add_vector("rope_freqs.weight", &factors);
    }
    if config.tie_word_embeddings == Some(false) && !shards.has("output.weight") {
        return Err(HubError::Tensor {
            name: "lm_head.weight".to_owned(),
            problem: "is missing, and config.json says that the embedding does not stand for it".to_owned(),
        });
    }
    let (tensors, parts) = shards.finish();
    Ok(Gguf::from_parts(metadata, tensors, (parts, RowOrder::AsTrained)))
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The folder's files of weights: those the index names, or the single one.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>, HubError> {
    let index = folder.join(INDEX);
    if !index.exists() {
        return Ok(vec![folder.join(SINGLE)]);
    }
    let mut names: Vec<String> = json::<Index>(&index)?.weight_map.into_values().collect();
    names.sort();
    names.dedup();
    let bad = |problem: String| HubError::Json { path: index.clone(), problem };
    if names.len() > limits::SHARDS {
        return Err(bad(format!("weight_map names {} files, expected at most {}", names.len(), limits::SHARDS)));
    }
    match names.iter().find(|name| Path::new(name).file_name().is_none_or(|file| file != name.as_str())) {
        Some(name) => Err(bad(format!("weight_map names {name:?}, expected the name of a file in this folder"))),
        None => Ok(names.into_iter().map(|name| folder.join(name)).collect()),
    }
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<serde_json::Value>,
}

/// The tokenizer and the chat template, where the folder has them.
fn text_keys(folder: &Path, metadata: &mut BTreeMap<String, Value>) -> Result<(), HubError> {
    let tokenizer = folder.join("tokenizer.json");
    if tokenizer.exists() {
        metadata.insert(HUGGING_FACE_KEY.to_owned(), Value::Text(read(&tokenizer)?));
    }
    let (file, settings) = (folder.join("chat_template.jinja"), folder.join("tokenizer_config.json"));
    let template = if file.exists() {
        Some(read(&file)?)
    } else if settings.exists() {
        // A list of named templates has none that is meant for all requests.
        json::<TokenizerConfig>(&settings)?.chat_template.and_then(|value| value.as_str().map(str::to_owned))
    } else {
        None
    };
    if let Some(template) = template {
        metadata.insert("tokenizer.chat_template".to_owned(), Value::Text(template));
    }
    if let Some(name) = folder.file_name() {
        metadata.insert("general.name".to_owned(), Value::Text(name.to_string_lossy().into_owned()));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, HubError> {
    let io = |source| HubError::Io { path: path.to_owned(), source };
    let len = std::fs::metadata(path).map_err(io)?.len();
    if len > limits::JSON_BYTES {
        let problem = format!("has {len} bytes, expected at most {}", limits::JSON_BYTES);
        return Err(HubError::Json { path: path.to_owned(), problem });
    }
    std::fs::read_to_string(path).map_err(io)
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, HubError> {
    let text = read(path)?;
    serde_json::from_str(&text).map_err(|error| HubError::Json { path: path.to_owned(), problem: error.to_string() })
}
