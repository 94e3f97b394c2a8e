//! Policies: pure functions from views to decisions. No IO, no clock, no log; the gateway, the simulator, the shadow runner
//! and the replay call the same function. One idea a file.
//!
//! | file | idea |
//! |---|---|
//! | `view`, `hits` | what policies may look at: the fleet, and who holds what of a prompt |
//! | `classify` | tier of a request (SPEC A1) |
//! | `throttle` | stepped throttling (SPEC A2) |
//! | `admit` | admit, queue or reject |
//! | `decide` | all that is asked of policies when a request arrives, in one call |
//! | `queue` | order of what waits: weighted between tiers, even between tenants, least slack inside (SPEC A3) |
//! | `deadline`, `outlook` | by when a request must be answered, and the chance that it is (SPEC A4) |
//! | `harm` | who of those that run on an instance would miss its deadline by a newcomer |
//! | `turned_away` | who of those refused could be served in the time that it takes |
//! | `upcoming` | who of those likely to come would miss its deadline by it |
//! | `calibration` | what a predicted chance is worth: how often such ones came true |
//! | `waste` | engine time lost on answers that come too late, and the chance that a start needs then |
//! | `doubt` | less is believed while requests are refused beside an engine that has nothing to do |
//! | `learnt` | how fast the queue drains, and how predictions fare |
//! | `capacity` | the fraction of an instance that a token takes, by length of request (SPEC B1) |
//! | `bucket_plan` | the scan cut of the length axis (SPEC B3) |
//! | `bucket_partition` | the cut with the smallest largest load |
//! | `bucket_binding` | which instance serves which bucket, moving the fewest |
//! | `bucket_replan` | when a plan gives way, and when it stays |
//! | `bucket_family` | whether a family's models are cut (SPEC B5) |
//! | `bucket_fit` | how a request fits an instance's bucket: at home, borrowing, one too many (SPEC B3) |
//! | `variant` | which precision of the model serves (SPEC D1) |
//! | `route` | the instance with the least predicted seconds (SPEC C4), the baselines, and the safe policy |

mod admit;
mod bucket_binding;
mod bucket_family;
mod bucket_fit;
mod bucket_partition;
mod bucket_plan;
mod bucket_replan;
mod calibration;
mod capacity;
mod classify;
mod deadline;
mod decide;
mod doubt;
mod harm;
mod hits;
mod learnt;
mod outlook;
mod queue;
mod route;
mod throttle;
mod turned_away;
mod upcoming;
mod variant;
mod view;
mod waste;

pub use admit::*;
pub use bucket_binding::*;
pub use bucket_family::*;
pub use bucket_fit::*;
pub use bucket_partition::*;
pub use bucket_plan::*;
pub use bucket_replan::*;
pub use calibration::*;
pub use capacity::*;
pub use classify::*;
pub use deadline::*;
pub use decide::*;
pub use doubt::*;
pub use harm::*;
pub use hits::*;
pub use learnt::*;
pub use outlook::*;
pub use queue::*;
pub use route::*;
pub use throttle::*;
pub use turned_away::{Refused, Rejects, Takes, TurnedAway};
pub use upcoming::{Came, Stay, Upcoming};
pub use variant::*;
pub use view::*;
pub use waste::*;

use crate::config::{self, ConfigError};

/// Checks of the policy section that types cannot make.
pub(crate) fn validate(policy: &config::Policy) -> Result<(), ConfigError> {
    policy.tiers.validate()?;
    policy.throttle.validate()?;
    policy.queue.validate()?;
    policy.deadline.validate()?;
    policy.route.validate()?;
    policy.buckets.validate()
}

/// The policy section of `default.toml`, for tests.
#[cfg(test)]
pub(crate) fn test_policy() -> config::Policy {
    config::load(None, config::Overrides::default()).expect("the defaults are valid").policy
}

/// A ready instance of the model `m` with nothing on it, for tests.
#[cfg(test)]
pub(crate) fn test_instance(id: u32) -> InstanceView {
    InstanceView {
        instance: crate::ids::InstanceId(id),
        epoch: crate::ids::ProcessEpoch(1),
        model: "m".into(),
        variant: DEFAULT_VARIANT.into(),
        is_ready: true,
        leased_tokens: 0,
        leased_requests: 0,
        fetch: FetchTimes::default(),
        bucket: None,
        prompts: Vec::new(),
        cached_blocks: None,
        engine: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: one wrong value in each policy section.
    /// Guarantees: the configuration is refused with the key, the value and what would be right.
    #[test]
    fn wrong_values_are_named() {
        let refusal = |change: fn(&mut config::Policy)| {
            let mut policy = test_policy();
            change(&mut policy);
            validate(&policy).expect_err("a wrong value").to_string()
        };
        assert!(validate(&test_policy()).is_ok());
        let lines = [
            refusal(|policy| policy.tiers.low_tokens_min = 1000),
            refusal(|policy| policy.tiers.session_hit_min = f64::NAN),
            refusal(|policy| policy.throttle.queue_seconds_full = 0.0),
            refusal(|policy| policy.queue.weights.low = 0),
            refusal(|policy| policy.queue.weights.low = 9),
            refusal(|policy| policy.queue.aging = std::time::Duration::from_secs(121)),
            refusal(|policy| policy.deadline.meet_min.low = 0.99),
            refusal(|policy| policy.deadline.worth_min = 0.96),
            refusal(|policy| policy.deadline.worth_max = 1.0),
            refusal(|policy| policy.deadline.missed_max = 0.0),
            refusal(|policy| policy.deadline.displaced_max = 0.5),
            refusal(|policy| policy.deadline.targets.high.first_token = std::time::Duration::ZERO),
            refusal(|policy| policy.route.lease_tokens_max = 0),
            refusal(|policy| policy.route.default_prefill_tokens_per_second = -1.0),
            refusal(|policy| policy.route.borrow_share = 1.5),
            refusal(|policy| policy.buckets.instances_min = 1),
            refusal(|policy| policy.buckets.dwell = std::time::Duration::from_secs(31)),
            refusal(|policy| policy.buckets.improvement_min = -0.1),
        ];
        expect_test::expect![[r#"
            policy.tiers.low_tokens_min = 1000: expected more than policy.tiers.high_tokens_max
            policy.tiers.session_hit_min = NaN: expected a share from 0 to 1
            policy.throttle.queue_seconds_full = 0: expected more than 0
            policy.queue.weights = { high = 8, medium = 3, low = 0 }: expected weights from 1 to 1000: no tier may starve
            policy.queue.weights = { high = 8, medium = 3, low = 9 }: expected high >= medium >= low
            policy.queue.aging = 121s: expected at most policy.queue.wait_max
            policy.deadline.meet_min = 0.99: expected a share from 0 to policy.deadline.worth_min
            policy.deadline.worth_min = 0.96: expected at most policy.deadline.worth_max
            policy.deadline.worth_max = 1: expected a share below 1
            policy.deadline.missed_max = 0: expected a share above 0 and at most 1
            policy.deadline.displaced_max = 0.5: expected at least 1; inf for no bound
            policy.deadline.targets = { first_token = 0ns, per_token = 250ms }: expected first_token above 0 and at most 1day
            policy.route.lease_tokens_max = 0: expected at least 1
            policy.route.default_prefill_tokens_per_second = -1: expected a rate above 0
            policy.route.borrow_share = 1.5: expected a share from 0 to 1
            policy.buckets.instances_min = 1: expected 2 to 512
            policy.buckets.dwell = 31s: expected at most policy.buckets.period
            policy.buckets.improvement_min = -0.1: expected a share from 0 to 1"#]]
        .assert_eq(&lines.join("\n"));
    }
}
