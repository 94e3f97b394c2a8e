//! Tier of a request (SPEC A1).

use serde::{Deserialize, Serialize};

use crate::config::ConfigError;

/// Traffic tier. Order: `Low < Medium < High`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    Low,
    Medium,
    High,
}

impl Tier {
    pub fn name(self) -> &'static str {
        match self {
            Tier::Low => "Low",
            Tier::Medium => "Medium",
            Tier::High => "High",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    pub high_tokens_max: u32,
    pub low_tokens_min: u32,
    pub session_turns_min: u32,
    pub session_hit_min: f64,
}

impl TierConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// What classification looks at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassifyRequest {
    pub prompt_tokens: u32,
    /// Longest prefix the views believe cached; `None` when there is no usable view.
    pub predicted_hit_tokens: Option<u32>,
    /// User messages in the conversation.
    pub turns: u32,
    /// Best tier the tenant may have.
    pub tenant_class: Tier,
}

/// A tier and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classified {
    pub tier: Tier,
    pub reason: String,
}
