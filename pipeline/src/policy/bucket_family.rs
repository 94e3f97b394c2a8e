//! Whether a model's instances are bucketed, by the attention of its family (SPEC B5).
//!
//! With softmax attention the work of a token grows with its context, so requests of one length disturb each other least; with
//! linear attention or a state space it hardly does, and buckets would only divide the fleet. What a family is not known for is
//! unknown, and unknown is not cut (DESIGN §7 rule 3). No state.

use crate::policy::{BucketConfig, CutPolicy};

/// How a family's layers attend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    Softmax,
    /// Layers of both kinds.
    Hybrid,
    /// Linear attention or a state space.
    Linear,
    Unknown,
}

const SOFTMAX: [&str; 22] = [
    "llama",
    "llama4",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "gemma",
    "gemma2",
    "gemma3",
    "mistral",
    "phi2",
    "phi3",
    "deepseek2",
    "glm4",
    "glm4moe",
    "gpt2",
    "gptneox",
    "gpt-oss",
    "falcon",
    "starcoder2",
    "olmo2",
    "command-r",
];
const HYBRID: [&str; 10] = [
    "jamba",
    "falcon-h1",
    "granitehybrid",
    "qwen3next",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "plamo2",
    "minimax-m1",
    "kimi-linear",
];
const LINEAR: [&str; 6] = ["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"];

impl Attention {
    /// Of a family, by its name in model files (`general.architecture`).
    pub fn of_family(family: &str) -> Attention {
        match family {
            family if SOFTMAX.contains(&family) => Attention::Softmax,
            family if HYBRID.contains(&family) => Attention::Hybrid,
            family if LINEAR.contains(&family) => Attention::Linear,
            _ => Attention::Unknown,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Attention::Softmax => "softmax",
            Attention::Hybrid => "hybrid",
            Attention::Linear => "linear",
            Attention::Unknown => "unknown",
        }
    }
}

impl BucketConfig {
    /// How models of a family are cut: as the configuration says of the family, else of its attention.
    pub fn policy_of(&self, family: &str) -> CutPolicy {
        let by_attention = match Attention::of_family(family) {
            Attention::Softmax => self.softmax,
            Attention::Hybrid => self.hybrid,
            Attention::Linear => self.linear,
            Attention::Unknown => CutPolicy::Off,
        };
        self.families.get(family).copied().unwrap_or(by_attention)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::test_policy;

    /// Scenario: families of each kind, one nobody knows, one that the configuration names; all that the engine builds.
    /// Guarantees: by default softmax is cut, the others are not, unknown is not; the configuration goes first.
    #[test]
    fn families_choose() {
        let mut config = test_policy().buckets;
        config.families.insert("mamba2".into(), CutPolicy::Optimal);
        let told = ["llama", "qwen3next", "mamba", "nobody", "mamba2"].map(|family| config.policy_of(family));
        assert_eq!(told, [CutPolicy::ScanCut, CutPolicy::Off, CutPolicy::Off, CutPolicy::Off, CutPolicy::Optimal]);
        for family in engine::model::family::Family::ALL {
            let name = family.recipe().architecture;
            assert_eq!(Attention::of_family(name), Attention::Softmax, "{name} is served but not known");
        }
    }
}
