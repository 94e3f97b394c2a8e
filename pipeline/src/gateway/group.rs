//! What the requests of one model share, and no other model's (SPEC D3): queue, throttle, turn, what was learnt of
//! drain and predictions, and their gauges. So a burst
//! on one model fills its own queue and moves its own throttle.
//!
//! Bounds: `policy.queue` holds for each model by itself. Locks are never held across an await, and never two at once but in
//! the order profile, queue, throttle or learnt.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use super::{
    metrics::{GroupGauges, Metrics},
    registry::Model,
};
use crate::{
    ids::Micros,
    policy::{FairQueue, Learnt, QueueLoad, QueueProfile, ThrottleState, ThrottleStep},
};

/// A profile of what waits is used for this long.
const PROFILE_AGE_US: Micros = 20_000;

/// See the module. `T`: what waits.
pub struct Group<T> {
    pub model: Arc<Model>,
    queue: Mutex<FairQueue<T>>,
    throttle: Mutex<ThrottleState>,
    turn: AtomicU64,
    learnt: Mutex<Learnt>,
    /// What waits as of a time, made anew after [`PROFILE_AGE_US`].
    profile: Mutex<(Micros, QueueProfile)>,
    /// Outcomes in the reliability curve when it was last told.
    told: AtomicU64,
    pub gauges: GroupGauges,
}

impl<T> Group<T> {
    pub fn new(model: Arc<Model>, metrics: &Metrics) -> Self {
        Self {
            queue: Mutex::new(FairQueue::new(&model.policy.queue)),
            throttle: Mutex::new(ThrottleState { step: ThrottleStep::Open, since: i64::MIN / 2 }),
            turn: AtomicU64::new(0),
            learnt: Mutex::default(),
            profile: Mutex::new((Micros::MIN, QueueProfile::default())),
            told: AtomicU64::new(0),
            gauges: metrics.of_group(model.name()),
            model,
        }
    }

    pub fn queue(&self) -> MutexGuard<'_, FairQueue<T>> {
        lock(&self.queue)
    }

    pub fn throttle(&self) -> MutexGuard<'_, ThrottleState> {
        lock(&self.throttle)
    }

    /// What its requests have taught.
    pub fn learnt(&self) -> MutexGuard<'_, Learnt> {
        lock(&self.learnt)
    }

    /// Has the reliability curve grown since the last call?
    pub fn has_learnt(&self) -> bool {
        let outcomes = self.learnt().reliability.bins().map(|(.., bin)| bin.requests).sum();
        self.told.swap(outcomes, Ordering::Relaxed) != outcomes
    }

    /// What waits, as of a moment ago.
    pub fn profile(&self, now: Micros) -> QueueProfile {
        let mut kept = lock(&self.profile);
        if now.saturating_sub(kept.0) >= PROFILE_AGE_US {
            *kept = (now, self.queue().profile());
        }
        kept.1.clone()
    }

    /// Whose turn it is among equal instances.
    pub fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    pub fn take_turn(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
    }

    pub fn show_load(&self, load: QueueLoad) {
        self.gauges.queue_requests.set(load.requests as i64);
        self.gauges.queue_tokens.set(i64::try_from(load.tokens).unwrap_or(i64::MAX));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
