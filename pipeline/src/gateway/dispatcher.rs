//! From an admitted request to a lease on an instance: throttle state, the queue, and the routing that reserves.
//!
//! Nobody runs in the background: whoever waits also *pumps*, that is, grants heads of the queue for as long as there is
//! room; one at a time, and who comes meanwhile has the one that pumps look again. A lease that comes back or an instance that changes wakes one waiter ([`InstanceDirectory::changed`]), and each
//! waiter looks again after [`LOOK_AGAIN`] in case nothing rang.
//!
//! Invariants: a lease is reserved before a grant is sent, and a grant nobody takes drops it; a waiter that leaves takes its
//! entry out of the queue. Bounds: the queue's, and `policy.queue.wait_max`. The queue's lock is held to look at its
//! heads and to take one out; views are read and places reserved without it. No lock is held across an await.
//!
//! [`InstanceDirectory::changed`]: super::instances::InstanceDirectory::changed

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
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
        CandidateCost, ClusterView, EntrySize, FairQueue, Placement, PrefixReading, QueueLoad, RouteConfig,
        RouteRejection, RouteRequest, ThrottleState, ThrottleStep, Ticket, Tier, Waiting, press, route, token_cost,
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
    pub tenant: Arc<str>,
    /// Memory it holds while it waits.
    pub bytes: u64,
    /// Variants of the model that may serve it, best first.
    pub variants: Arc<[String]>,
    /// Sum over the prompts.
    pub prompt_tokens: u32,
    /// Most tokens to generate, over all sequences.
    pub max_tokens: u32,
    /// Block hashes, a list a prompt.
    pub hashes: Arc<Vec<Vec<u64>>>,
}

impl Demand {
    /// What it takes of the queue's room.
    pub fn size(&self) -> EntrySize {
        EntrySize { tokens: token_cost(self.prompt_tokens, self.max_tokens), bytes: self.bytes }
    }
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
    /// Calls of [`pump`](Self::pump) that the one that pumps has not seen to; 0: nobody pumps.
    pumps: AtomicU32,
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
        Self { deps, queue, pumps: AtomicU32::new(0), throttle, turn: AtomicU64::new(0), settings }
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
        let mut queue = lock(&self.queue);
        let waiting = Waiting {
            tier: demand.tier,
            tenant: demand.tenant.clone(),
            size: demand.size(),
            since: self.deps.clock.now(),
            start_by: None,
            item: Pending { demand, grant },
        };
        let before = queue.load();
        let Ok(ticket) = queue.push(waiting) else { return (before, None) };
        self.show_load(queue.load());
        drop(queue);
        (before, Some(QueuePlace { dispatcher: self.clone(), ticket, granted }))
    }

    /// Grants heads of the queue for as long as there is room, or has the one that pumps now look again. Grants go to waiters
    /// that are gone, too: dropping the grant gives the lease back.
    pub fn pump(&self) {
        if self.pumps.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let _open = Pumping(&self.pumps);
        let mut seen = 1;
        loop {
            while let Some((waiting, grant)) = self.next_grant() {
                if let Err(unwanted) = waiting.item.grant.send(grant) {
                    drop(unwanted);
                }
            }
            match self.pumps.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(more) => seen = more,
            }
        }
    }

    /// An entry that goes next, out of the queue, and its place. Where the first head waits for instances that are full, the
    /// next may go to others (another variant's), but never to one of these.
    fn next_grant(&self) -> Option<(Waiting<Pending>, Grant)> {
        loop {
            let now = self.deps.clock.now();
            let step = lock(&self.throttle).step;
            let heads: Vec<(Ticket, Demand)> = {
                let mut queue = lock(&self.queue);
                let heads = queue.heads(now, step).into_iter();
                heads.map(|(ticket, head)| (ticket, head.item.demand.clone())).collect()
            };
            let (ticket, grant) = self.first_with_a_place(&heads)?;
            let mut queue = lock(&self.queue);
            // Its client may have left meanwhile; then the grant drops and the next head is looked at.
            if let Some(waiting) = queue.pop_head(ticket, now) {
                self.show_load(queue.load());
                return Some((waiting, grant));
            }
        }
    }

    fn first_with_a_place(&self, heads: &[(Ticket, Demand)]) -> Option<(Ticket, Grant)> {
        let mut full: Vec<InstanceId> = Vec::new();
        for (ticket, demand) in heads {
            if !full.is_empty() && self.would_go_to(demand).is_none_or(|instance| full.contains(&instance)) {
                continue;
            }
            match self.place(demand, &[]) {
                Ok(grant) => return Some((*ticket, grant)),
                Err(no) => match no.rejection {
                    RouteRejection::NoRoom { candidates } => full.extend(candidates.iter().map(|cost| cost.instance)),
                    RouteRejection::NoInstance => {}
                },
            }
        }
        None
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

/// Who pumps; one that panics lets others in.
struct Pumping<'a>(&'a AtomicU32);

impl Drop for Pumping<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(0, Ordering::Release);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
