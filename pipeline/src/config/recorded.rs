//! The settings that decide, as they go into the log and come back (SPEC X2).
//!
//! Invariant: the text holds all that policies and dataflow are configured with, every number exactly, and no key or path;
//! the id is a function of the text. A text of an earlier version gets this version's defaults for settings it did not know.
//! Cost: one TOML document a start. No state.

use std::{collections::BTreeMap, path::Path};

use figment::{
    Figment,
    providers::{Format, Serialized, Toml},
};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Config, ConfigError, Dataflow, ModelGroup, Policy,
    load::{DEFAULTS, explain, refuse_unknown_keys},
};
use crate::{ids::Micros, rows::SettingsRow};

/// What a recorded decision was made under.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    pub served: Served,
    pub dataflow: Dataflow,
    pub policy: Policy,
}

/// What is served, as far as decisions depend on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// The first model; a row that names none is of it.
    pub model: String,
    pub block_size: usize,
    /// Variants of each model. Empty in a text of a version that served one model: the policy's orders are its own.
    #[serde(default)]
    pub variants: BTreeMap<String, Vec<String>>,
}

impl Recorded {
    /// Of a server whose models, in the order of [`Config::groups`], are called `names`.
    pub fn of(config: &Config, names: &[&str], block_size: usize) -> Recorded {
        let declared = config.groups().iter().map(ModelGroup::variant_names).collect::<Vec<_>>();
        let variants = names.iter().map(ToString::to_string).zip(declared).collect();
        let model = names.first().map(ToString::to_string).unwrap_or_default();
        let served = Served { model, block_size, variants };
        Recorded { served, dataflow: config.dataflow.clone(), policy: config.policy.clone() }
    }

    /// The policies as they hold for a model.
    pub fn policy_of(&self, model: &str) -> Policy {
        let mut policy = self.policy.clone();
        if let Some(declared) = self.served.variants.get(model) {
            policy.variants = policy.variants.of_model(declared);
        }
        policy
    }

    /// The text for the log.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("invariant: validated settings are TOML")
    }

    /// Names the text.
    pub fn id(&self) -> String {
        format!("{:016x}", xxh3_64(self.text().as_bytes()))
    }

    /// The row of a server that decides by them from `at` on.
    pub fn row(&self, at: Micros) -> SettingsRow {
        SettingsRow { at, id: self.id(), program: env!("CARGO_PKG_VERSION").into(), text: self.text() }
    }

    /// Reads a recorded text.
    ///
    /// # Errors
    /// It has a setting this version does not know, or a value it refuses.
    pub fn parse(text: &str) -> Result<Recorded, ConfigError> {
        Recorded::extract(recorded_over_defaults(text))
    }

    /// The same with other settings of the policy, from a file that has the configuration's keys.
    ///
    /// # Errors
    /// As for [`parse`](Self::parse); a key of the file is not one of the configuration's, or not one of a policy.
    pub fn with_policy_file(text: &str, file: &Path) -> Result<Recorded, ConfigError> {
        let changes =
            std::fs::read_to_string(file).map_err(|source| ConfigError::Read { path: file.to_path_buf(), source })?;
        refuse_unknown_keys(&changes, file)?;
        let table: toml::Table =
            toml::from_str(&changes).map_err(|error| ConfigError::Value(error.message().to_string()))?;
        if let Some(section) = table.keys().find(|section| *section != "policy") {
            let origin = file.display();
            return Err(ConfigError::Value(format!("{origin}: [{section}]: expected [policy.…] sections alone")));
        }
        let other = Recorded::extract(recorded_over_defaults(text).merge(Toml::string(&changes)))?;
        crate::policy::validate(&other.policy)?;
        Ok(other)
    }

    /// The same with some settings of the policy changed, by section.
    ///
    /// # Errors
    /// A key is not one of a policy, or a value will not do.
    pub fn with_changes(&self, changes: &serde_json::Map<String, serde_json::Value>) -> Result<Recorded, ConfigError> {
        let changes = Serialized::defaults(serde_json::json!({ "policy": changes }));
        let other = Recorded::extract(Figment::from(Toml::string(&self.text())).merge(changes))?;
        crate::policy::validate(&other.policy)?;
        Ok(other)
    }

    fn extract(figment: Figment) -> Result<Recorded, ConfigError> {
        let wrong = |error: figment::Error| ConfigError::Value(explain(&error));
        Ok(Recorded {
            served: figment.extract_inner("served").map_err(wrong)?,
            dataflow: figment.extract_inner("dataflow").map_err(wrong)?,
            policy: figment.extract_inner("policy").map_err(wrong)?,
        })
    }
}

fn recorded_over_defaults(text: &str) -> Figment {
    Figment::from(Toml::string(DEFAULTS)).merge(Toml::string(text))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Overrides, load};

    fn recorded() -> Recorded {
        let mut config = load(None, Overrides::default()).unwrap();
        config.policy.route.default_decode_step_seconds = 0.1 + 0.2;
        config.policy.throttle.dwell = Duration::from_nanos(2_000_000_001);
        config.policy.queue.tokens_max = i64::MAX as u64;
        Recorded::of(&config, &["tiny"], 16)
    }

    /// Scenario: settings with numbers that are hard to write go into a text and back.
    /// Guarantees: nothing changes, to the last bit; the id follows the text; no secret or path is in it.
    #[test]
    fn there_and_back() {
        let recorded = recorded();
        let text = recorded.text();
        assert_eq!(Recorded::parse(&text).unwrap(), recorded);
        assert_ne!(Recorded::of(&load(None, Overrides::default()).unwrap(), &["tiny"], 16).id(), recorded.id());
        assert!(!text.contains("data_dir") && !text.contains("keys"), "{text}");
    }

    /// Scenario: a file with one other threshold; one with an unknown key; one with a section that is no policy.
    /// Guarantees: the first changes that setting alone, the others are refused by name.
    #[test]
    fn another_policy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("other.toml");
        let with = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Recorded::with_policy_file(&recorded().text(), &file)
        };
        let mut expected = recorded();
        expected.policy.route.lease_tokens_max = 7;
        assert_eq!(with("[policy.route]\nlease_tokens_max = 7\n").unwrap(), expected);
        assert!(with("[policy.route]\nlease_token_max = 7\n").unwrap_err().to_string().contains("lease_tokens_max"));
        assert!(with("[dataflow]\nworkers = 2\n").unwrap_err().to_string().contains("[dataflow]"));
        assert!(with("[policy.route]\nlease_tokens_max = 0\n").is_err());
    }
}
