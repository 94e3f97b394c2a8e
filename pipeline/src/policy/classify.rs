//! Tier of a request (SPEC A1): uncached prompt length sets it, a long cached conversation raises it by one, its sender may
//! ask for a worse one (or for any, where its key says so), the tenant's class bounds it.
//!
//! Invariants: the tier is never above the tenant's class; more cached tokens never lower it; unknown hits are not taken
//! for cached ones, and the reason says that they are unknown. Constant time, no state.

use serde::{Deserialize, Serialize};

use crate::config::{ConfigError, require};

/// Traffic tier. Order: `Low < Medium < High`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Tier {
    Low,
    Medium,
    High,
}

impl Tier {
    /// Best first, in the order of their [numbers](Self::number).
    pub const ALL: [Tier; 3] = [Tier::High, Tier::Medium, Tier::Low];

    pub fn name(self) -> &'static str {
        match self {
            Tier::Low => "Low",
            Tier::Medium => "Medium",
            Tier::High => "High",
        }
    }

    /// The tier of a name that [`name`](Self::name) gave.
    pub fn from_name(name: &str) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| tier.name() == name)
    }

    /// The tier as a number, for those who do not know tiers: 0 is High.
    pub fn number(self) -> u8 {
        match self {
            Tier::High => 0,
            Tier::Medium => 1,
            Tier::Low => 2,
        }
    }

    /// The tier of a number.
    pub fn of_number(number: u8) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| tier.number() == number)
    }

    /// The next better tier; High stays.
    pub fn raised(self) -> Tier {
        match self {
            Tier::Low => Tier::Medium,
            Tier::Medium | Tier::High => Tier::High,
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
        require(self.high_tokens_max >= 1, "policy.tiers.high_tokens_max", self.high_tokens_max, "at least 1")?;
        require(
            self.low_tokens_min > self.high_tokens_max,
            "policy.tiers.low_tokens_min",
            self.low_tokens_min,
            "more than policy.tiers.high_tokens_max",
        )?;
        require(self.session_turns_min >= 1, "policy.tiers.session_turns_min", self.session_turns_min, "at least 1")?;
        require(
            (0.0..=1.0).contains(&self.session_hit_min),
            "policy.tiers.session_hit_min",
            self.session_hit_min,
            "a share from 0 to 1",
        )
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
    /// The tier its sender chose, whose key allows that.
    pub asked: Option<Tier>,
    /// Its sender wants no better one.
    pub asked_max: Option<Tier>,
}

/// A tier and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classified {
    pub tier: Tier,
    pub reason: String,
}

/// The tier and why, in words that name the inputs.
pub fn classify(request: &ClassifyRequest, config: &TierConfig) -> Classified {
    let hit = request.predicted_hit_tokens.map(|hit| hit.min(request.prompt_tokens));
    let uncached = request.prompt_tokens - hit.unwrap_or(0);
    let by_length = match uncached {
        n if n <= config.high_tokens_max => Tier::High,
        n if n >= config.low_tokens_min => Tier::Low,
        _ => Tier::Medium,
    };
    let mut reason = match hit {
        Some(hit) => format!("{uncached} uncached tokens ({hit} of {} predicted cached)", request.prompt_tokens),
        None => format!("{uncached} tokens (hits unknown)"),
    };
    let share = match (hit, request.prompt_tokens) {
        (Some(hit), tokens) if tokens > 0 => f64::from(hit) / f64::from(tokens),
        _ => 0.0,
    };
    let is_session = hit.is_some() && request.turns >= config.session_turns_min && share >= config.session_hit_min;
    let raised = if is_session && by_length < Tier::High {
        reason.push_str(&format!("; raised: {} turns with {:.0} % cached", request.turns, share * 100.0));
        by_length.raised()
    } else {
        by_length
    };
    let asked = request.asked.or(request.asked_max.filter(|most| *most < raised)).unwrap_or(raised);
    if asked != raised {
        reason.push_str(&format!("; {} asked for", asked.name()));
    }
    let tier = asked.min(request.tenant_class);
    if tier < asked {
        reason.push_str(&format!("; bounded by the tenant's class {}", request.tenant_class.name()));
    }
    Classified { tier, reason }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    const CONFIG: TierConfig =
        TierConfig { high_tokens_max: 1000, low_tokens_min: 6000, session_turns_min: 3, session_hit_min: 0.5 };

    fn check(request: (u32, Option<u32>, u32, Tier), expected: Expect) {
        let (prompt_tokens, predicted_hit_tokens, turns, tenant_class) = request;
        let request =
            ClassifyRequest { prompt_tokens, predicted_hit_tokens, turns, tenant_class, asked: None, asked_max: None };
        let got = classify(&request, &CONFIG);
        expected.assert_eq(&format!("{}: {}", got.tier.name(), got.reason));
    }

    /// Scenario: one request for each clause of the definition.
    /// Guarantees: the reason names the clause and its inputs (SPEC A1, X3).
    #[test]
    fn reasons_name_their_inputs() {
        check((1000, Some(0), 1, Tier::High), expect!["High: 1000 uncached tokens (0 of 1000 predicted cached)"]);
        check((1001, Some(0), 1, Tier::High), expect!["Medium: 1001 uncached tokens (0 of 1001 predicted cached)"]);
        check((6000, None, 9, Tier::High), expect!["Low: 6000 tokens (hits unknown)"]);
        check(
            (20_000, Some(12_000), 3, Tier::High),
            expect!["Medium: 8000 uncached tokens (12000 of 20000 predicted cached); raised: 3 turns with 60 % cached"],
        );
        check(
            (10, Some(0), 1, Tier::Low),
            expect!["Low: 10 uncached tokens (0 of 10 predicted cached); bounded by the tenant's class Low"],
        );
    }

    fn tiers() -> impl Strategy<Value = Tier> {
        prop_oneof![Just(Tier::Low), Just(Tier::Medium), Just(Tier::High)]
    }

    proptest! {
        /// Scenario: any request.
        /// Guarantees: never above the tenant's class; a better hit never lowers the tier; the same as counting levels.
        #[test]
        fn tier_is_bounded_and_monotone(
            prompt in 0u32..20_000, hit in 0u32..25_000, turns in 0u32..6, class in tiers(),
            asked in prop::option::of(tiers()), asked_max in prop::option::of(tiers()),
        ) {
            let ask = |hit| ClassifyRequest {
                prompt_tokens: prompt, predicted_hit_tokens: hit, turns, tenant_class: class, asked, asked_max,
            };
            let got = classify(&ask(Some(hit)), &CONFIG).tier;
            prop_assert!(got <= class);
            prop_assert!(classify(&ask(Some(hit.saturating_add(100))), &CONFIG).tier >= got);
            prop_assert!(classify(&ask(None), &CONFIG).tier <= got);
            let known = hit.min(prompt);
            let mut level = 1 + i32::from(prompt - known <= 1000) - i32::from(prompt - known >= 6000);
            if prompt > 0 && turns >= 3 && known * 2 >= prompt { level += 1; }
            let twin = [Tier::Low, Tier::Medium, Tier::High][level.clamp(0, 2) as usize];
            let wanted = match (asked, asked_max) {
                (Some(asked), _) => asked,
                (None, Some(most)) => twin.min(most),
                (None, None) => twin,
            };
            prop_assert_eq!(got, wanted.min(class));
        }
    }
}
