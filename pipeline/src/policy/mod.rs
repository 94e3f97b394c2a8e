//! Policies: pure functions from views to decisions. No IO, no clock, no log; the gateway, the simulator, the shadow runner
//! and the replay call the same function. One idea a file.
//!
//! | file | idea |
//! |---|---|
//! | `view` | what policies may look at |
//! | `classify` | tier of a request (SPEC A1) |
//! | `throttle` | stepped throttling (SPEC A2) |
//! | `admit` | admit, queue or reject |
//! | `queue` | weighted order of what waits (SPEC A3) |
//! | `route` | the instance with the least predicted seconds (SPEC C4), and the safe policy |

mod admit;
mod classify;
mod queue;
mod route;
mod throttle;
mod view;

pub use admit::*;
pub use classify::*;
pub use queue::*;
pub use route::*;
pub use throttle::*;
pub use view::*;

use crate::config::{self, ConfigError};

/// Checks of the policy section that types cannot make.
pub(crate) fn validate(policy: &config::Policy) -> Result<(), ConfigError> {
    policy.tiers.validate()?;
    policy.throttle.validate()?;
    policy.queue.validate()?;
    policy.route.validate()
}

/// The policy section of `default.toml`, for tests.
#[cfg(test)]
pub(crate) fn test_policy() -> config::Policy {
    config::load(None, config::Overrides::default()).expect("the defaults are valid").policy
}
