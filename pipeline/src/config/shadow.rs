//! `[shadow]`: other policies on the live stream, which decide and do not act (SPEC X1).
//!
//! A policy is a name and the settings of `[policy.…]` that differ, as in a file of `evenkeel replay --policy`. Invariant: after loading each
//! gives a whole, valid policy, and names differ. Cost: one TOML document a policy, at the start. No state.

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, Recorded, require};

/// Policies that may run beside the acting one.
const POLICIES_MAX: usize = 16;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shadow {
    pub policies: Vec<ShadowPolicy>,
    pub queue_max: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowPolicy {
    pub name: String,
    /// What differs, by section.
    #[serde(default)]
    pub policy: serde_json::Map<String, serde_json::Value>,
}

pub(super) fn validate(config: &Config) -> Result<(), ConfigError> {
    let shadow = &config.shadow;
    require((1..=1 << 20).contains(&shadow.queue_max), "shadow.queue_max", shadow.queue_max, "1 to 1048576")?;
    let count = shadow.policies.len();
    require(count <= POLICIES_MAX, "shadow.policies", count, format!("at most {POLICIES_MAX}"))?;
    let groups = config.groups();
    let names: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    let acting = Recorded::of(config, &names, config.workers.block_size);
    for (place, policy) in shadow.policies.iter().enumerate() {
        let is_new = shadow.policies[..place].iter().all(|other| other.name != policy.name);
        require(is_new && !policy.name.is_empty(), "shadow.policies", &policy.name, "a name, each once")?;
        acting
            .with_changes(&policy.policy)
            .map_err(|error| ConfigError::Value(format!("shadow.policies {}: {error}", policy.name)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::{
        config::{Overrides, Recorded, load},
        policy::RoutePolicy,
    };

    fn with(text: &str) -> Result<crate::config::Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).unwrap();
        load(Some(&file), Overrides::default()).map_err(|error| error.to_string())
    }

    /// Scenario: two shadow policies; then a wrong key, a wrong value, and a name twice.
    /// Guarantees: each changes what it names and nothing else; what is wrong is refused by the shadow's name and the key.
    #[test]
    fn shadows_are_checked_as_the_policy_is() {
        let config = with(
            "[[shadow.policies]]\nname = \"even\"\npolicy = { route = { policy = \"round_robin\" } }\n\
             [[shadow.policies]]\nname = \"same\"\n",
        )
        .unwrap();
        let acting = Recorded::of(&config, &["tiny"], 16);
        let even = acting.with_changes(&config.shadow.policies[0].policy).unwrap();
        assert_eq!(even.policy.route.policy, RoutePolicy::RoundRobin);
        assert_eq!(acting.with_changes(&config.shadow.policies[1].policy).unwrap(), acting);
        let mut expected = acting.clone();
        expected.policy.route.policy = RoutePolicy::RoundRobin;
        assert_eq!(even, expected);
        let refused = |text: &str| with(&format!("[[shadow.policies]]\nname = \"a\"\n{text}")).unwrap_err();
        let error = refused("policy = { route = { lease_token_max = 7 } }\n");
        assert!(error.starts_with("shadow.policies a: ") && error.contains("lease_tokens_max"), "{error}");
        let error = refused("policy = { route = { lease_tokens_max = 0 } }\n");
        assert!(error.contains("policy.route.lease_tokens_max = 0: expected at least 1"), "{error}");
        let error = refused("[[shadow.policies]]\nname = \"a\"\n");
        assert_eq!(error, "shadow.policies = a: expected a name, each once");
    }
}
