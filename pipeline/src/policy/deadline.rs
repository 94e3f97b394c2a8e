//! By when a request must be answered (SPEC A4 a): from what its sender says of the budget it has left, as far as its key
//! allows, else from its tier's target.
//!
//! A budget for the first token and one for the whole answer are each counted from arrival. A budget per token, and the
//! tier's target, let the whole answer take the first token's budget and so much for each further token: long answers may
//! take longer. Invariant: the first token is never due after the whole answer. Constant time, no state.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, Mode, require},
    ids::Micros,
    policy::{Chances, Tier, alone, worth},
};

/// What becomes of a sequence that runs past the deadline of its whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnLate {
    /// It goes on.
    Finish,
    /// The engine drops it, if its sender stated the budget of the whole answer.
    DropStated,
}

/// A value for each tier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByTier<T> {
    pub high: T,
    pub medium: T,
    pub low: T,
}

impl<T: Copy> ByTier<T> {
    pub fn of(&self, tier: Tier) -> T {
        match tier {
            Tier::High => self.high,
            Tier::Medium => self.medium,
            Tier::Low => self.low,
        }
    }

    fn all(&self) -> [T; 3] {
        [self.high, self.medium, self.low]
    }
}

/// What a request gets that states no budget.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    #[serde(with = "humantime_serde")]
    pub first_token: Duration,
    #[serde(with = "humantime_serde")]
    pub per_token: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadlineConfig {
    pub mode: Mode,
    pub targets: ByTier<Target>,
    pub meet_min: ByTier<f64>,
    pub start_min: f64,
    pub worth_min: f64,
    pub worth_max: f64,
    pub missed_max: f64,
    pub displaced_max: f64,
    pub late: OnLate,
    pub trial_share: f64,
    #[serde(with = "humantime_serde")]
    pub first_token_min: Duration,
    #[serde(with = "humantime_serde")]
    pub whole_min: Duration,
}

impl DeadlineConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        for target in self.targets.all() {
            let value = format!("{{ first_token = {:?}, per_token = {:?} }}", target.first_token, target.per_token);
            let is_time = !target.first_token.is_zero() && target.first_token <= Duration::from_secs(86_400);
            require(is_time, "policy.deadline.targets", &value, "first_token above 0 and at most 1day")?;
            let is_pace = !target.per_token.is_zero() && target.per_token <= Duration::from_secs(60);
            require(is_pace, "policy.deadline.targets", &value, "per_token above 0 and at most 1min")?;
        }
        for share in self.meet_min.all() {
            let is_share = (0.0..1.0).contains(&share) && share <= self.worth_min;
            require(is_share, "policy.deadline.meet_min", share, "a share from 0 to policy.deadline.worth_min")?;
        }
        let is_share = self.worth_min <= self.worth_max;
        require(is_share, "policy.deadline.worth_min", self.worth_min, "at most policy.deadline.worth_max")?;
        require(self.worth_max < 1.0, "policy.deadline.worth_max", self.worth_max, "a share below 1")?;
        let is_share = self.missed_max > 0.0 && self.missed_max <= 1.0;
        require(is_share, "policy.deadline.missed_max", self.missed_max, "a share above 0 and at most 1")?;
        let is_number = self.displaced_max >= 1.0;
        require(is_number, "policy.deadline.displaced_max", self.displaced_max, "at least 1; inf for no bound")?;
        let is_share = self.start_min > 0.0 && self.start_min < 1.0;
        require(is_share, "policy.deadline.start_min", self.start_min, "a share above 0 and below 1")?;
        let is_share = (0.0..=1.0).contains(&self.trial_share);
        require(is_share, "policy.deadline.trial_share", self.trial_share, "a share from 0 to 1")
    }

    /// The chances that decide about a tier, while such a share of the engines' time goes to answers that come too late.
    pub fn chances(&self, tier: Tier, missed_share: f64) -> Chances {
        Chances {
            start: self.start_min,
            worth: worth(missed_share, self),
            alone: alone(missed_share, self.meet_min.of(tier), self),
            likely: self.worth_min,
            refuse: self.meet_min.of(tier),
            displaced_max: self.displaced_max,
        }
    }

    /// Sequences with this deadline are dropped by the engine from this time on.
    pub fn drop_at(&self, deadline: &Deadline) -> Option<Micros> {
        match (self.mode, self.late) {
            (Mode::On, OnLate::DropStated) => deadline.whole,
            (Mode::On, OnLate::Finish) | (Mode::Off, _) => None,
        }
    }
}

/// Budgets that the sender says are left, as far as its key allows; microseconds from arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SloAsk {
    pub first_token_us: Option<i64>,
    pub whole_us: Option<i64>,
    /// For each token after the first.
    pub per_token_us: Option<i64>,
}

impl SloAsk {
    pub fn is_empty(&self) -> bool {
        *self == SloAsk::default()
    }
}

/// By when a request must be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    pub first_token: Micros,
    /// For the whole answer, where its sender stated one.
    pub whole: Option<Micros>,
    /// The whole answer may take so much for each token after the first.
    pub per_token_us: Option<i64>,
    /// From the sender, not from the tier's target.
    pub is_stated: bool,
}

impl Deadline {
    /// By when an answer of `tokens` must be whole; `None`: whenever.
    pub fn whole_by(&self, tokens: u32) -> Option<Micros> {
        let further = i64::from(tokens.saturating_sub(1));
        let by_pace = self.per_token_us.map(|us| self.first_token.saturating_add(us.saturating_mul(further)));
        match (self.whole, by_pace) {
            (Some(whole), Some(by_pace)) => Some(whole.min(by_pace)),
            (whole, by_pace) => whole.or(by_pace),
        }
    }

    /// Time left, of the deadline that is nearer to its event: below zero, it was missed by so much. `first`: when the first
    /// token came; the answer was whole at `end`.
    pub fn margin(&self, first: Micros, (end, tokens): (Micros, u32)) -> Micros {
        let first = self.first_token - first;
        self.whole_by(tokens).map_or(first, |by| first.min(by - end))
    }
}

/// The deadline of a request that arrived then.
pub fn deadline_of(arrived: Micros, ask: &SloAsk, tier: Tier, config: &DeadlineConfig) -> Deadline {
    let target = config.targets.of(tier);
    let us = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    let whole = ask.whole_us.map(|us| arrived.saturating_add(us));
    // Who states a budget of the whole answer alone leaves open when its first token comes.
    let first = ask.first_token_us.or(ask.whole_us).unwrap_or(us(target.first_token));
    let first = arrived.saturating_add(first);
    let per_token_us = match whole {
        Some(_) => ask.per_token_us,
        None => Some(ask.per_token_us.unwrap_or(us(target.per_token))),
    };
    Deadline {
        first_token: whole.map_or(first, |whole| first.min(whole)),
        whole,
        per_token_us,
        is_stated: !ask.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::test_policy;

    const SECOND: i64 = 1_000_000;

    fn config() -> DeadlineConfig {
        let target = Target { first_token: Duration::from_secs(2), per_token: Duration::from_millis(100) };
        DeadlineConfig { targets: ByTier { high: target, medium: target, low: target }, ..test_policy().deadline }
    }

    /// Scenario: no budget, one for each part, all of them.
    /// Guarantees: what is not stated comes from the tier's target; a stated whole budget leaves no pace but a stated one; the
    /// first token is due no later than the whole answer.
    #[test]
    fn budgets_and_targets() {
        let due = |first_token_us, whole_us, per_token_us| {
            let ask = SloAsk { first_token_us, whole_us, per_token_us };
            let deadline = deadline_of(10 * SECOND, &ask, Tier::High, &config());
            (deadline.first_token / SECOND, deadline.whole_by(11).map(|by| by / SECOND), deadline.is_stated)
        };
        assert_eq!(due(None, None, None), (12, Some(13), false));
        assert_eq!(due(Some(SECOND), None, None), (11, Some(12), true));
        assert_eq!(due(None, Some(5 * SECOND), None), (15, Some(15), true));
        assert_eq!(due(Some(9 * SECOND), Some(5 * SECOND), None), (15, Some(15), true));
        assert_eq!(due(Some(SECOND), Some(5 * SECOND), Some(SECOND)), (11, Some(15), true));
        assert_eq!(due(None, None, Some(SECOND)), (12, Some(22), true));
    }

    /// Scenario: a stated and an unstated whole budget under each setting of what becomes of late sequences.
    /// Guarantees: only a stated one is dropped, and only where that is asked for.
    #[test]
    fn what_is_dropped() {
        let stated = deadline_of(0, &SloAsk { whole_us: Some(7), ..SloAsk::default() }, Tier::Low, &config());
        let target = deadline_of(0, &SloAsk::default(), Tier::Low, &config());
        let with = |mode, late| DeadlineConfig { mode, late, ..config() };
        assert_eq!(with(Mode::On, OnLate::DropStated).drop_at(&stated), Some(7));
        assert_eq!(with(Mode::On, OnLate::DropStated).drop_at(&target), None);
        assert_eq!(with(Mode::On, OnLate::Finish).drop_at(&stated), None);
        assert_eq!(with(Mode::Off, OnLate::DropStated).drop_at(&stated), None);
    }

    proptest! {
        /// Scenario: any budgets.
        /// Guarantees: a smaller budget never gives a later deadline, and the margin is negative exactly if an event came
        /// after its deadline.
        #[test]
        fn deadlines_are_monotone(
            budgets in prop::array::uniform3(prop::option::of(0i64..100 * SECOND)), less in 0i64..SECOND,
            first in 0i64..200 * SECOND, rest in 0i64..100 * SECOND, tokens in 1u32..500,
        ) {
            let [first_token_us, whole_us, per_token_us] = budgets;
            let ask = SloAsk { first_token_us, whole_us, per_token_us };
            let tighter = |budget: Option<i64>| budget.map(|us| (us - less).max(0));
            let tight = SloAsk {
                first_token_us: tighter(first_token_us), whole_us: tighter(whole_us), per_token_us: tighter(per_token_us),
            };
            let (loose, tight) = (deadline_of(0, &ask, Tier::Low, &config()), deadline_of(0, &tight, Tier::Low, &config()));
            prop_assert!(tight.first_token <= loose.first_token);
            prop_assert!(tight.whole_by(tokens) <= loose.whole_by(tokens));
            let end = first + rest;
            let is_missed = first > loose.first_token || loose.whole_by(tokens).is_some_and(|by| end > by);
            prop_assert_eq!(loose.margin(first, (end, tokens)) < 0, is_missed);
        }
    }
}
