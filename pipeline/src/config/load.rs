//! Reading the layers and explaining what is wrong with them.

use std::{
    env,
    path::{Path, PathBuf},
};

use figment::{
    Figment,
    providers::{Env, Format, Serialized, Toml},
};

use super::{Config, models, shadow, snapshots, validate, variants};

pub(super) const DEFAULTS: &str = include_str!("../default.toml");

/// Why a configuration was refused. The text names the key, the value and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read config file {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{origin}: unknown key `{key}`{}", nearest.as_ref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownKey { origin: String, key: String, nearest: Option<String> },
    #[error("{0}")]
    Value(String),
    #[error("{key} = {value}: {expected}")]
    Invalid { key: &'static str, value: String, expected: String },
}

/// Values from the command line; `None` leaves the layer below in force.
#[derive(Debug, Clone, Default)]
pub struct Overrides(Vec<(&'static str, serde_json::Value)>);

impl Overrides {
    /// Sets `key` (dotted, as in `server.listen`) if there is a value.
    pub fn set(mut self, key: &'static str, value: Option<impl serde::Serialize>) -> Self {
        if let Some(value) = value.and_then(|v| serde_json::to_value(v).ok()) {
            self.0.push((key, value));
        }
        self
    }
}

/// Folder for models and data: `EVENKEEL_HOME`, else `.cache/evenkeel` in the home directory.
pub fn home_dir() -> PathBuf {
    if let Some(home) = env::var_os("EVENKEEL_HOME").filter(|v| !v.is_empty()) {
        return PathBuf::from(home);
    }
    let base = env::var_os("HOME").map(PathBuf::from).unwrap_or_else(env::temp_dir);
    base.join(".cache").join("evenkeel")
}

/// The defaults alone, whatever the environment says.
pub fn defaults() -> Result<Config, ConfigError> {
    finish(Figment::from(Toml::string(DEFAULTS)))
}

/// Reads, validates and resolves the configuration.
pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Config, ConfigError> {
    let mut figment = Figment::from(Toml::string(DEFAULTS));
    if let Some(path) = file {
        let text =
            std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        refuse_unknown_keys(&text, path)?;
        figment = figment.merge(Toml::string(&text));
    }
    figment = figment.merge(environment());
    for (key, value) in overrides.0 {
        figment = figment.merge(Serialized::default(key, value));
    }
    finish(figment)
}

fn finish(figment: Figment) -> Result<Config, ConfigError> {
    let mut config: Config = figment.extract().map_err(|error| ConfigError::Value(explain(&error)))?;
    if config.server.data_dir.as_os_str().is_empty() {
        config.server.data_dir = home_dir().join("data");
    }
    if config.snapshots.target.is_empty() {
        config.snapshots.target = config.server.data_dir.join("snapshots").to_string_lossy().into_owned();
    }
    if config.model.models_dir.as_os_str().is_empty() {
        config.model.models_dir = home_dir().join("models");
    }
    validate::validate(&config)?;
    let declared = models::variant_names(&config);
    config.policy.variants.resolve(declared);
    shadow::validate(&config)?;
    snapshots::validate(&config)?;
    Ok(config)
}

/// `EVENKEEL_SERVER__LISTEN` sets `server.listen`. Only names of the tree's sections are read, so that
/// `EVENKEEL_HOME` and the like are not taken for keys.
fn environment() -> Env {
    Env::prefixed("EVENKEEL_").split("__").filter(|key| {
        let key = key.as_str().to_ascii_lowercase();
        let section = key.split('.').next().unwrap_or_default();
        key.contains('.') && known_keys().iter().any(|known| known.split('.').next() == Some(section))
    })
}

pub(super) fn explain(error: &figment::Error) -> String {
    let lines: Vec<String> = error
        .clone()
        .into_iter()
        .map(|e| {
            let key = e.path.join(".");
            match &e.kind {
                figment::error::Kind::UnknownField(name, _) => {
                    let full = if key.is_empty() { name.clone() } else { format!("{key}.{name}") };
                    let hint = nearest(&full).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
                    format!("unknown key `{full}`{hint}")
                }
                kind => format!("{key}: {kind}"),
            }
        })
        .collect();
    lines.join("; ")
}

pub(super) fn refuse_unknown_keys(text: &str, path: &Path) -> Result<(), ConfigError> {
    let origin = path.display().to_string();
    let table: toml::Table =
        toml::from_str(text).map_err(|error| ConfigError::Value(format!("{origin}: {}", error.message())))?;
    let known = known_keys();
    let mut found = Vec::new();
    collect_keys("", &toml::Value::Table(table), &mut found);
    match found.into_iter().find(|key| !known.contains(key) && !is_free_form(key)) {
        Some(key) => Err(ConfigError::UnknownKey { origin, nearest: nearest(&key), key }),
        None => Ok(()),
    }
}

/// Lists of tables hold their own fields, which serde checks; tenants have any name.
fn is_free_form(key: &str) -> bool {
    let lists = [
        "server.keys",
        "foreign.workers",
        "model.variants",
        "models",
        "shadow.policies",
        "policy.variants.by_tenant.",
        "policy.buckets.families.",
    ];
    lists.iter().any(|list| key.starts_with(list))
}

/// Every dotted key of the tree, sections included.
fn known_keys() -> Vec<String> {
    let table: toml::Table = toml::from_str(DEFAULTS).expect("invariant: default.toml parses, held by a test");
    let mut keys = Vec::new();
    collect_keys("", &toml::Value::Table(table), &mut keys);
    keys
}

fn collect_keys(prefix: &str, value: &toml::Value, keys: &mut Vec<String>) {
    if let toml::Value::Table(table) = value {
        for (name, inner) in table {
            let full = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            keys.push(full.clone());
            collect_keys(&full, inner, keys);
        }
    }
}

/// The known key that takes the fewest edits. A bare last part also counts, so that a key in the wrong section is found.
fn nearest(key: &str) -> Option<String> {
    let last = key.rsplit('.').next().unwrap_or(key);
    let of_variants = variants::KEYS.iter().map(|name| format!("model.variants.{name}"));
    let of_models = models::KEYS.iter().map(|name| format!("models.{name}"));
    known_keys()
        .into_iter()
        .chain(of_variants.filter(|_| key.starts_with("model.variants.")))
        .chain(of_models.filter(|_| key.starts_with("models.")))
        .map(|known| {
            let known_last = known.rsplit('.').next().unwrap_or(&known);
            let whole = strsim::damerau_levenshtein(key, &known);
            let part = strsim::damerau_levenshtein(last, known_last) + 1;
            (whole.min(part), known)
        })
        .filter(|(distance, _)| *distance <= 1 + key.len() / 3)
        .min()
        .map(|(_, known)| known)
}

/// `; did you mean …?` for the nearest of `known`, if one is near.
pub(crate) fn did_you_mean(name: &str, known: &[String]) -> String {
    let near = known.iter().map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    near.filter(|(distance, _)| *distance <= 1 + name.len() / 3)
        .map(|(_, known)| format!("; did you mean `{known}`?"))
        .unwrap_or_default()
}
