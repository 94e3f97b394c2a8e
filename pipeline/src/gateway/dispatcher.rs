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
    reading::{LeaseFate, PlaceReading, tick_row},
};
use crate::{
    config::Recorded,
    ids::{InstanceId, Micros, ProcessEpoch},
    policy::{
        CandidateCost, ClusterView, FairQueue, Placement, PrefixReading, QueueLoad, RouteConfig, RouteRejection,
        RouteRequest, ThrottleState, ThrottleStep, Ticket, Tier, Waiting, press, route, token_cost,
    },
    rows::{FaultRow, PolicyInputRow},
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
    pub reading: Box<PlaceReading>,
}

/// No place, and what that was decided from.
pub struct NoPlace {
    pub rejection: RouteRejection,
    pub reading: Box<PlaceReading>,
    pub fate: LeaseFate,
}

/// What policy saw and said of throttling when a request arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    pub view: ClusterView,
    pub before: ThrottleState,
    pub throttle: ThrottleState,
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
    /// Id of the settings in force, for the rows of what was read.
    settings: String,
}

impl Dispatcher {
    pub fn new(deps: Deps) -> Self {
        let queue = Mutex::new(FairQueue::new(&deps.config.policy.queue));
        let throttle = Mutex::new(ThrottleState { step: ThrottleStep::Open, since: i64::MIN / 2 });
        let settings = Recorded::of(&deps.config, deps.text.name(), deps.text.block_size()).id();
        Self { deps, queue, throttle, turn: AtomicU64::new(0), settings }
    }

    pub fn queue_load(&self) -> QueueLoad {
        lock(&self.queue).load()
    }

    /// Reads the views and moves the throttle by at most one step; a change is an event.
    pub async fn pressure(&self, now: Micros) -> Pressure {
        let policy = &self.deps.config.policy;
        let view = self.deps.views.cluster(now);
        let (before, level, after) = {
            let mut state = lock(&self.throttle);
            let before = *state;
            let (level, after) = press(&view, before, now, policy);
            *state = after;
            (before, level, after)
        };
        self.deps.metrics.throttle_step.set(after.step as i64);
        self.deps.metrics.saturation.set(level.unwrap_or(f64::NAN));
        if before != after {
            let shown = level.map_or("unknown".to_string(), |level| format!("{level:.3}"));
            let detail = format!("{} to {} at saturation {shown}", before.step.name(), after.step.name());
            tracing::warn!(%detail, "throttle step");
            let row = FaultRow { at: now, component: "policy".into(), kind: "throttle_step".into(), detail, count: 1 };
            self.deps.events.fault(row).await;
        }
        Pressure { view, before, throttle: after, saturation: level }
    }

    /// Moves the throttle while no requests come; a look that moved it is a row.
    pub async fn tick(&self, now: Micros) {
        let pressure = self.pressure(now).await;
        if pressure.before != pressure.throttle {
            let row = tick_row(now, &pressure.view, pressure.before);
            self.deps.events.policy_input(PolicyInputRow { settings: self.settings.clone(), ..row }).await;
        }
    }

    /// Id of the settings in force.
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// Whose turn it is among equal instances.
    pub fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// Cached prefixes of the demand's prompts, if the view may be read.
    pub fn prefixes(&self, view: &ClusterView, demand: &Demand) -> PrefixReading {
        match view.mode.is_usable() {
            true => self.deps.views.prefix_hits(&demand.hashes, self.deps.text.block_size()),
            false => PrefixReading::default(),
        }
    }

    fn read(&self, demand: &Demand, excluded: &[InstanceId]) -> Box<PlaceReading> {
        let now = self.deps.clock.now();
        let view = self.deps.views.cluster(now);
        Box::new(PlaceReading {
            now,
            prefixes: self.prefixes(&view, demand),
            view,
            hashes: demand.hashes.clone(),
            variants: demand.variants.clone(),
            tier: demand.tier,
            prompt_tokens: demand.prompt_tokens,
            max_tokens: demand.max_tokens,
            turn: self.turn(),
            excluded: excluded.to_vec(),
        })
    }

    /// Routes and reserves, at once or not at all. `failed` incarnations are left out; their restarts are not.
    pub fn place(&self, demand: &Demand, failed: &[Failed]) -> Result<Grant, NoPlace> {
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
        let mut reading = self.read(demand, &excluded);
        let mut candidates: Vec<CandidateCost> = Vec::new();
        for race in 0..RACES_MAX {
            if race > 0 {
                reading = self.read(demand, &excluded);
            }
            let route = &self.deps.config.policy.route;
            let placement = match place_by(&reading, self.deps.text.name(), route) {
                Ok(placement) => placement,
                Err(rejection) => return Err(NoPlace { rejection, reading, fate: LeaseFate::None }),
            };
            let entry = directory.iter().find(|entry| entry.id == placement.instance);
            let Some((entry, client)) = entry.and_then(|entry| Some((entry, entry.client.clone()?))) else {
                excluded.push(placement.instance);
                continue;
            };
            if let Some(lease) = entry.leases.reserve(cost, most) {
                self.turn.fetch_add(1, Ordering::Relaxed);
                let (instance, epoch) = (entry.id, entry.epoch);
                return Ok(Grant { instance, epoch, client, lease: Arc::new(lease), placement, reading });
            }
            candidates = placement.candidates;
        }
        Err(NoPlace { rejection: RouteRejection::NoRoom { candidates }, reading, fate: LeaseFate::Lost })
    }

    /// Puts a request into the queue and says what it held before; no place if it is full.
    pub fn enqueue(self: &Arc<Self>, demand: Demand) -> (QueueLoad, Option<QueuePlace>) {
        let (grant, granted) = oneshot::channel();
        let tokens = token_cost(demand.prompt_tokens, demand.max_tokens);
        let waiting =
            Waiting { tier: demand.tier, tokens, since: self.deps.clock.now(), item: Pending { demand, grant } };
        let mut queue = lock(&self.queue);
        let before = queue.load();
        let Ok(ticket) = queue.push(waiting) else { return (before, None) };
        self.show_load(queue.load());
        drop(queue);
        (before, Some(QueuePlace { dispatcher: self.clone(), ticket, granted }))
    }

    /// Grants the head of the queue for as long as there is room. Grants go to waiters that are gone, too: dropping the
    /// grant gives the lease back.
    pub fn pump(&self) {
        while let Some((waiting, grant)) = self.next_grant() {
            if let Err(unwanted) = waiting.item.grant.send(grant) {
                drop(unwanted);
            }
        }
    }

    /// The entry that goes next, out of the queue, and its place. Where the first head waits for instances that are full, the
    /// head of another tier may go to others (another variant's), but never to one of these.
    fn next_grant(&self) -> Option<(Waiting<Pending>, Grant)> {
        let now = self.deps.clock.now();
        let step = lock(&self.throttle).step;
        let mut queue = lock(&self.queue);
        let mut full: Vec<InstanceId> = Vec::new();
        let mut found = None;
        for (ticket, head) in queue.heads(now, step) {
            let demand = &head.item.demand;
            if !full.is_empty() && self.would_go_to(demand).is_none_or(|instance| full.contains(&instance)) {
                continue;
            }
            match self.place(demand, &[]) {
                Ok(grant) => {
                    found = Some((ticket, grant));
                    break;
                }
                Err(no) => match no.rejection {
                    RouteRejection::NoRoom { candidates } => full.extend(candidates.iter().map(|cost| cost.instance)),
                    RouteRejection::NoInstance => {}
                },
            }
        }
        let (ticket, grant) = found?;
        let waiting = queue.pop_head(ticket)?;
        self.show_load(queue.load());
        Some((waiting, grant))
    }

    fn would_go_to(&self, demand: &Demand) -> Option<InstanceId> {
        let reading = self.read(demand, &[]);
        let placement = place_by(&reading, self.deps.text.name(), &self.deps.config.policy.route);
        placement.ok().map(|placement| placement.instance)
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

/// What routing says to a reading.
pub fn place_by(reading: &PlaceReading, model: &str, config: &RouteConfig) -> Result<Placement, RouteRejection> {
    let request = RouteRequest {
        model,
        variants: &reading.variants,
        tier: reading.tier,
        prompt_tokens: reading.prompt_tokens,
        max_tokens: reading.max_tokens,
        hits: &reading.prefixes.hits,
        turn: reading.turn,
        now: reading.now,
        excluded: &reading.excluded,
    };
    route(&reading.view, &request, config)
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
