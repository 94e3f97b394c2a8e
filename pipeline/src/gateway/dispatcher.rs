//! From an admitted request to a lease on an instance: throttle state, the queue, and the routing that reserves.
//!
//! Nobody runs in the background: whoever waits also *pumps*, that is, grants the head of the queue for as long as there is
//! room. A lease that comes back or an instance that changes wakes one waiter ([`InstanceDirectory::changed`]), and each
//! waiter looks again after [`LOOK_AGAIN`] in case nothing rang.
//!
//! Invariants: a lease is reserved before a grant is sent, and a grant nobody takes drops it; a waiter that leaves takes its
//! entry out of the queue. Bounds: the queue's, and `policy.queue.wait_max`. The lock is held for a look at the views and one
//! reservation per grant, never across an await.
//!
//! [`InstanceDirectory::changed`]: super::instances::InstanceDirectory::changed

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    deps::Deps,
    instances::{InstanceClient, InstanceState, Lease},
};
use crate::{
    ids::{InstanceId, Micros, ProcessEpoch},
    policy::{
        CandidateCost, ClusterView, FairQueue, Placement, PrefixHits, QueueLoad, RouteRejection, RouteRequest,
        ThrottleState, ThrottleStep, Ticket, Tier, Waiting, next_step, route, saturation, token_cost,
    },
    rows::FaultRow,
};

/// A waiter looks again after this even if nothing rang.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Times a reservation may lose the race for the last room before the request queues.
const RACES_MAX: usize = 3;

/// What is to be placed.
#[derive(Debug, Clone)]
pub struct Demand {
    pub tier: Tier,
    /// Variants of the model that may serve it, best first.
    pub variants: Arc<[String]>,
    /// Sum over the prompts.
    pub prompt_tokens: u32,
    /// Most tokens to generate, over all sequences.
    pub max_tokens: u32,
    /// Block hashes, a list a prompt.
    pub hashes: Arc<Vec<Vec<u64>>>,
}

/// An incarnation that failed this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failed {
    pub instance: InstanceId,
    pub epoch: ProcessEpoch,
}

/// A place on an instance. Dropping it gives the tokens back.
pub struct Grant {
    pub instance: InstanceId,
    pub epoch: ProcessEpoch,
    pub client: Arc<dyn InstanceClient>,
    pub lease: Arc<Lease>,
    pub placement: Placement,
}

/// What policy saw and said of throttling when a request arrived.
pub struct Pressure {
    pub view: ClusterView,
    pub step: ThrottleStep,
    pub saturation: Option<f64>,
}

struct Pending {
    demand: Demand,
    grant: oneshot::Sender<Grant>,
}

pub struct Dispatcher {
    deps: Deps,
    queue: Mutex<FairQueue<Pending>>,
    throttle: Mutex<ThrottleState>,
    turn: AtomicU64,
}

impl Dispatcher {
    pub fn new(deps: Deps) -> Self {
        let queue = Mutex::new(FairQueue::new(&deps.config.policy.queue));
        let throttle = Mutex::new(ThrottleState { step: ThrottleStep::Open, since: i64::MIN / 2 });
        Self { deps, queue, throttle, turn: AtomicU64::new(0) }
    }

    pub fn queue_load(&self) -> QueueLoad {
        lock(&self.queue).load()
    }

    /// Reads the views and moves the throttle by at most one step; a change is an event.
    pub async fn pressure(&self, now: Micros) -> Pressure {
        let policy = &self.deps.config.policy;
        let view = self.deps.views.cluster(now);
        let level = saturation(&view, policy);
        let (before, after) = {
            let mut state = lock(&self.throttle);
            let before = state.step;
            *state = next_step(*state, level, now, &policy.throttle);
            (before, state.step)
        };
        self.deps.metrics.throttle_step.set(after as i64);
        self.deps.metrics.saturation.set(level.unwrap_or(f64::NAN));
        if before != after {
            let shown = level.map_or("unknown".to_string(), |level| format!("{level:.3}"));
            let detail = format!("{} to {} at saturation {shown}", before.name(), after.name());
            tracing::warn!(%detail, "throttle step");
            let row = FaultRow { at: now, component: "policy".into(), kind: "throttle_step".into(), detail, count: 1 };
            self.deps.events.fault(row).await;
        }
        Pressure { view, step: after, saturation: level }
    }

    /// Cached tokens per instance, added up over the prompts.
    pub fn hits(&self, demand: &Demand) -> PrefixHits {
        let mut sum: Vec<(InstanceId, u32)> = Vec::new();
        for hashes in demand.hashes.iter() {
            for (instance, tokens) in self.deps.views.prefix_hits(hashes, self.deps.text.block_size()).0 {
                match sum.iter_mut().find(|(id, _)| *id == instance) {
                    Some((_, held)) => *held = held.saturating_add(tokens),
                    None => sum.push((instance, tokens)),
                }
            }
        }
        PrefixHits(sum)
    }

    /// What routing would say now; reserves nothing.
    pub fn preview(&self, view: &ClusterView, demand: &Demand, now: Micros) -> Result<Placement, RouteRejection> {
        self.route(view, demand, &[], now)
    }

    fn route(
        &self,
        view: &ClusterView,
        demand: &Demand,
        excluded: &[InstanceId],
        now: Micros,
    ) -> Result<Placement, RouteRejection> {
        let hits = self.hits(demand);
        let request = RouteRequest {
            model: self.deps.text.name(),
            variants: &demand.variants,
            tier: demand.tier,
            prompt_tokens: demand.prompt_tokens,
            max_tokens: demand.max_tokens,
            hits: &hits,
            turn: self.turn.load(Ordering::Relaxed),
            now,
            excluded,
        };
        route(view, &request, &self.deps.config.policy.route)
    }

    /// Routes and reserves, at once or not at all. `failed` incarnations are left out; their restarts are not.
    pub fn place(&self, demand: &Demand, failed: &[Failed]) -> Result<Grant, RouteRejection> {
        let directory = self.deps.directory.load();
        let is_failed = |entry: &&Arc<super::instances::InstanceEntry>| {
            failed.iter().any(|f| f.instance == entry.id && f.epoch == entry.epoch)
        };
        // The views may lag behind the directory: what has no client now is left out, too.
        let mut excluded: Vec<InstanceId> = directory
            .iter()
            .filter(|entry| is_failed(entry) || entry.state != InstanceState::Ready || entry.client.is_none())
            .map(|entry| entry.id)
            .collect();
        let cost = token_cost(demand.prompt_tokens, demand.max_tokens);
        let most = self.deps.config.policy.route.lease_tokens_max;
        let mut candidates: Vec<CandidateCost> = Vec::new();
        for _ in 0..RACES_MAX {
            let now = self.deps.clock.now();
            let placement = self.route(&self.deps.views.cluster(now), demand, &excluded, now)?;
            let entry = directory.iter().find(|entry| entry.id == placement.instance);
            let Some((entry, client)) = entry.and_then(|entry| Some((entry, entry.client.clone()?))) else {
                excluded.push(placement.instance);
                continue;
            };
            if let Some(lease) = entry.leases.reserve(cost, most) {
                self.turn.fetch_add(1, Ordering::Relaxed);
                let (instance, epoch) = (entry.id, entry.epoch);
                return Ok(Grant { instance, epoch, client, lease: Arc::new(lease), placement });
            }
            candidates = placement.candidates;
        }
        Err(RouteRejection::NoRoom { candidates })
    }

    /// Puts a request into the queue, or says that it is full.
    pub fn enqueue(self: &Arc<Self>, demand: Demand) -> Option<QueuePlace> {
        let (grant, granted) = oneshot::channel();
        let tokens = token_cost(demand.prompt_tokens, demand.max_tokens);
        let waiting =
            Waiting { tier: demand.tier, tokens, since: self.deps.clock.now(), item: Pending { demand, grant } };
        let mut queue = lock(&self.queue);
        let ticket = queue.push(waiting).ok()?;
        self.show_load(queue.load());
        drop(queue);
        Some(QueuePlace { dispatcher: self.clone(), ticket, granted })
    }

    /// Grants the head of the queue for as long as there is room. Grants go to waiters that are gone, too: dropping the
    /// grant gives the lease back.
    pub fn pump(&self) {
        loop {
            let now = self.deps.clock.now();
            let step = lock(&self.throttle).step;
            let mut queue = lock(&self.queue);
            let Some((_, head)) = queue.peek(now, step) else { return };
            let Ok(grant) = self.place(&head.item.demand, &[]) else { return };
            let taken = queue.pop(now, step);
            self.show_load(queue.load());
            drop(queue);
            if let Some(waiting) = taken
                && let Err(unwanted) = waiting.item.grant.send(grant)
            {
                drop(unwanted);
            }
        }
    }

    /// Waits for something to have changed: a lease, an instance, or time.
    pub async fn wait_for_change(&self) {
        let _ = tokio::time::timeout(LOOK_AGAIN, self.deps.directory.changed()).await;
    }

    fn show_load(&self, load: QueueLoad) {
        self.deps.metrics.queue_requests.set(load.requests as i64);
        self.deps.metrics.queue_tokens.set(i64::try_from(load.tokens).unwrap_or(i64::MAX));
    }
}

/// A place in the queue; leaving it (drop) takes the entry out.
pub struct QueuePlace {
    dispatcher: Arc<Dispatcher>,
    ticket: Ticket,
    granted: oneshot::Receiver<Grant>,
}

impl QueuePlace {
    /// Waits for the grant at most `wait_max`; `None` when that has passed.
    pub async fn wait(&mut self, wait_max: Duration) -> Option<Grant> {
        let deadline = tokio::time::sleep(wait_max);
        tokio::pin!(deadline);
        loop {
            self.dispatcher.pump();
            tokio::select! {
                biased;
                grant = &mut self.granted => return grant.ok(),
                () = &mut deadline => return None,
                () = self.dispatcher.wait_for_change() => {}
            }
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let mut queue = lock(&self.dispatcher.queue);
        let left = queue.remove(self.ticket);
        self.dispatcher.show_load(queue.load());
        drop(queue);
        if left.is_some() {
            // The head may have changed to one that fits.
            self.dispatcher.deps.directory.ring();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
