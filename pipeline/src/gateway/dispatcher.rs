//! From an admitted request to a lease on an instance: throttle state, the queue, and the routing that reserves.
//!
//! Each model's requests have a queue, a throttle and a turn of their own ([`Group`]): a burst on one holds up no other (SPEC D3).
//! Nobody runs in the background: whoever waits also *pumps*, that is, grants heads of the queues for as long as there
//! is room; one at a time, and who comes meanwhile has the one that pumps look again. A lease that comes back or an instance that changes wakes one waiter ([`InstanceDirectory::changed`]), and each
//! waiter looks again after [`LOOK_AGAIN`] in case nothing rang.
//!
//! Invariants: a lease is reserved before a grant is sent, and a grant nobody takes drops it; a waiter that leaves takes its
//! entry out of the queue. Bounds: the queue's, and `policy.queue.wait_max`. The queue's lock is held to look at its
//! heads and to take one out; views are read and places reserved without it. No lock is held across an await.
//!
//! [`InstanceDirectory::changed`]: super::instances::InstanceDirectory::changed

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    claims::Due,
    deps::Deps,
    group::Group,
    instances::{InstanceClient, InstanceEntry, InstanceState},
    leases::Lease,
    queue_place::QueuePlace,
    reading::{ForecastReading, LeaseFate, PlaceReading, WaitReading, tick_row},
    registry::Model,
    slo::reliability_rows,
};
use crate::{
    config::Recorded,
    dataflow::ForecastRequest,
    ids::{InstanceId, Micros, Name, ProcessEpoch},
    policy::{
        Backlog, CandidateCost, ClusterView, Engines, EntrySize, Forecast, Learnt, Placement, PrefixReading, QueueLoad,
        RouteConfig, RouteRejection, RouteRequest, Starts, ThrottleState, Ticket, Tier, Waiting, press, route,
        token_cost,
    },
    rows::{FaultRow, PolicyInputRow, SloReliabilityRow},
};

/// A waiter looks again after this even if nothing rang.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Times a reservation may lose the race for the last room before the request queues.
const RACES_MAX: usize = 3;
/// Instances where requests would miss their deadlines by a newcomer that are passed over before it queues.
const SPARED_MAX: usize = 8;

/// What is to be placed.
#[derive(Debug, Clone)]
pub struct Demand {
    pub model: Arc<Model>,
    pub tier: Tier,
    pub tenant: Name,
    /// Best tier of the tenant.
    pub tenant_class: Tier,
    pub sequences: u32,
    /// By when it must start, as far as its deadline counts.
    pub starts: Starts,
    /// When it came.
    pub since: Micros,
    /// What its deadline asks of an instance's time, if it has one that counts.
    pub due: Option<Due>,
    /// What predictors said of it when it came.
    pub known: Arc<Forecast>,
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

    /// May it start where nothing runs?
    fn may_run_alone(&self, now: Micros) -> bool {
        self.may_run_beside(now) || self.starts.alone_by.is_none_or(|by| by >= now)
    }

    /// May it start where something runs?
    fn may_run_beside(&self, now: Micros) -> bool {
        self.starts.worth_by.is_none_or(|by| by >= now)
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

/// Why routing's choice was not reserved.
enum Missed {
    /// There is no client to it now.
    Gone,
    WouldHarm,
    /// Others took the room.
    Full,
}

/// Routing's choice, and what it was made from.
struct Untaken {
    missed: Missed,
    placement: Placement,
    reading: Box<PlaceReading>,
}

/// What policy saw and said of throttling when a request arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Pressure {
    pub view: Arc<ClusterView>,
    pub before: ThrottleState,
    pub throttle: ThrottleState,
    pub saturation: Option<f64>,
    pub backlog: Backlog,
}

pub(super) struct Pending {
    demand: Demand,
    grant: oneshot::Sender<Grant>,
}

pub struct Dispatcher {
    pub(super) deps: Deps,
    /// In the registry's order.
    groups: Vec<Group<Pending>>,
    /// Calls of [`pump`](Self::pump) that the one that pumps has not seen to; 0: nobody pumps.
    pumps: AtomicU32,
    /// Id of the settings in force, for the rows of what was read.
    settings: Name,
}

impl Dispatcher {
    pub fn new(deps: Deps) -> Self {
        let groups = deps.models.iter().map(|model| Group::new(model.clone(), &deps.metrics)).collect();
        let settings = Recorded::of(&deps.config, &deps.models.names(), deps.models.block_size()).id().into();
        Self { deps, groups, pumps: AtomicU32::new(0), settings }
    }

    pub(super) fn group(&self, model: &Model) -> &Group<Pending> {
        &self.groups[model.place]
    }

    /// What waits for the model's instances.
    pub fn load_of(&self, model: &Model) -> QueueLoad {
        self.group(model).queue().load()
    }

    /// What waits for any model's.
    pub fn queue_load(&self) -> QueueLoad {
        let loads = self.groups.iter().map(|group| group.queue().load());
        loads.fold(QueueLoad::default(), |sum, load| QueueLoad {
            requests: sum.requests + load.requests,
            tokens: sum.tokens.saturating_add(load.tokens),
            bytes: sum.bytes.saturating_add(load.bytes),
        })
    }

    /// Reads the model's part of the views and moves its throttle by at most one step; a change is an event.
    pub async fn pressure(&self, model: &Model, now: Micros) -> Pressure {
        let group = self.group(model);
        let view = Arc::new(self.deps.views.cluster(now).of_model(model.name()));
        let queue = group.queue().load();
        let backlog = Backlog { queue, drain_tokens_per_second: group.learnt().drain.tokens_per_second(now) };
        let (before, level, after) = {
            let mut state = group.throttle();
            let before = *state;
            let (level, after) = press((view.as_ref(), now), &backlog, before, &model.policy);
            *state = after;
            (before, level, after)
        };
        group.gauges.throttle_step.set(after.step as i64);
        group.gauges.saturation.set(level.unwrap_or(f64::NAN));
        if before != after {
            let shown = level.map_or("unknown".to_string(), |level| format!("{level:.3}"));
            let (from, to) = (before.step.name(), after.step.name());
            let detail = format!("{from} to {to} at saturation {shown}, model {}", model.name());
            tracing::warn!(%detail, "throttle step");
            let row = FaultRow { at: now, component: "policy".into(), kind: "throttle_step".into(), detail, count: 1 };
            self.deps.events.fault(row).await;
        }
        Pressure { view, before, throttle: after, saturation: level, backlog }
    }

    /// Moves the throttles while no requests come; a look that moved one is a row.
    pub async fn tick(&self, now: Micros) {
        for group in &self.groups {
            let pressure = self.pressure(&group.model, now).await;
            self.reconcile(&pressure.view);
            if pressure.before != pressure.throttle {
                let (model, settings) = (Some(group.model.name().into()), self.settings.clone());
                let row = PolicyInputRow { model, settings, ..tick_row(now, &pressure) };
                self.deps.events.policy_input(Box::new(row)).await;
            }
        }
    }

    /// Takes what engines report into the leases' accounts (DESIGN §7 rules 2 and 4). A view that is not usable says nothing.
    fn reconcile(&self, view: &ClusterView) {
        for instance in view.instances.iter().filter(|_| view.mode.is_usable()) {
            let entry = self.deps.directory.get(instance.instance).filter(|entry| entry.epoch == instance.epoch);
            if let (Some(entry), Some(engine)) = (entry, &instance.engine) {
                entry.leases.reported(engine.context_tokens.saturating_add(engine.queued_prefill_tokens));
            }
        }
    }

    /// Id of the settings in force.
    pub fn settings(&self) -> &Name {
        &self.settings
    }

    /// Whose turn it is among equal instances.
    pub fn turn(&self, model: &Model) -> u64 {
        self.group(model).turn()
    }

    /// Cached prefixes of the demand's prompts, if the view may be read.
    pub fn prefixes(&self, view: &ClusterView, demand: &Demand) -> PrefixReading {
        match view.mode.is_usable() {
            true => self.deps.views.prefix_hits(&demand.hashes, demand.model.text.block_size()),
            false => PrefixReading::default(),
        }
    }

    /// What predictors say of a request of a tenant, if the view may be read; and what the entry knows of its model's queue.
    pub fn forecast(
        &self,
        model: &Model,
        (view, now): (&ClusterView, Micros),
        (tenant, tenant_class): (&str, Tier),
        prompt_tokens: u32,
    ) -> ForecastReading {
        let variants = model.policy.variants.possible_for(tenant);
        let request = ForecastRequest { model: model.name(), variants: &variants, tenant_class, prompt_tokens };
        let (predicted, as_of) = match view.mode.is_usable() {
            true => self.deps.views.forecast(&request),
            false => Default::default(),
        };
        let group = self.group(model);
        let queue = group.profile(now);
        let learnt = group.learnt();
        let forecast = Forecast {
            lengths: predicted.lengths,
            services: predicted.services,
            drain_tokens_per_second: learnt.drain.tokens_per_second(now),
            skill: learnt.skill(now, prompt_tokens),
            calibration: learnt.calibration(now),
            queue,
            missed_share: learnt.missed_share(now),
            mean_seconds: learnt.waste.mean_seconds(),
            turned_away: learnt.turned_away.lately(now),
        };
        ForecastReading { forecast, as_of }
    }

    /// Everything that is known of a request that waits.
    pub fn read_waiting(&self, demand: &Demand) -> WaitReading {
        let place = *self.read(demand, &[]);
        let of = (demand.tenant.as_ref(), demand.tenant_class);
        let forecast = self.forecast(&demand.model, (&place.view, place.now), of, demand.prompt_tokens);
        let (tenant, tenant_class) = (demand.tenant.clone(), demand.tenant_class);
        WaitReading { place, tenant, tenant_class, since: Some(demand.since), sequences: demand.sequences, forecast }
    }

    /// Has an instance that could serve it nothing to do?
    pub fn engines_for(&self, model: &Model, variants: &[String]) -> Engines {
        let serves = |entry: &&Arc<InstanceEntry>| {
            entry.is_open()
                && *entry.model == *model.name()
                && variants.iter().any(|variant| **variant == *entry.variant)
        };
        let is_idle = self.deps.directory.load().iter().filter(serves).any(|entry| entry.is_idle());
        if is_idle { Engines::Idle } else { Engines::Busy }
    }

    /// Lets what a request came to teach.
    pub fn learn(&self, model: &Model, teach: impl FnOnce(&mut Learnt)) {
        teach(&mut self.group(model).learnt());
    }

    /// The reliability curves, if one has grown since the last call.
    pub fn reliability(&self, now: Micros) -> Vec<SloReliabilityRow> {
        // All are told when one has grown, so that the newest state is one of all.
        let grown = self.groups.iter().filter(|group| group.has_learnt()).count();
        let told = self.groups.iter().filter(|_| grown > 0);
        told.flat_map(|group| reliability_rows(&group.learnt(), (group.model.name(), now))).collect()
    }

    fn read(&self, demand: &Demand, excluded: &[InstanceId]) -> Box<PlaceReading> {
        let now = self.deps.clock.now();
        let view = self.deps.views.cluster(now).of_model(demand.model.name());
        Box::new(PlaceReading {
            now,
            prefixes: self.prefixes(&view, demand),
            view: Arc::new(view),
            hashes: demand.hashes.clone(),
            variants: demand.variants.clone(),
            tier: demand.tier,
            prompt_tokens: demand.prompt_tokens,
            max_tokens: demand.max_tokens,
            turn: self.turn(&demand.model),
            excluded: excluded.to_vec(),
            spared: Vec::new(),
        })
    }

    /// Routes and reserves, at once or not at all. `failed` incarnations are left out; their restarts are not.
    pub fn place(&self, demand: &Demand, failed: &[Failed]) -> Result<Grant, NoPlace> {
        let directory = self.deps.directory.load();
        let is_failed = |entry: &&Arc<super::instances::InstanceEntry>| {
            failed.iter().any(|f| f.instance == entry.id && f.epoch == entry.epoch)
        };
        let now = self.deps.clock.now();
        let (may_run_beside, may_run_alone) = (demand.may_run_beside(now), demand.may_run_alone(now));
        // The views may lag behind the directory: what has no client now is left out, too.
        let mut excluded: Vec<InstanceId> = directory
            .iter()
            .filter(|entry| {
                is_failed(entry) || !entry.is_open() || !(may_run_beside || may_run_alone && entry.is_idle())
            })
            .map(|entry| entry.id)
            .collect();
        let route = &demand.model.policy.route;
        let mut reading = self.read(demand, &excluded);
        let mut candidates: Vec<CandidateCost> = Vec::new();
        let mut races = 0;
        while races < RACES_MAX {
            let placement = match place_by(&reading, demand.model.name(), route) {
                Ok(placement) => placement,
                Err(rejection) => return Err(NoPlace { rejection, reading, fate: LeaseFate::None }),
            };
            if reading.spared.len() == SPARED_MAX {
                candidates = placement.candidates;
                break;
            }
            let untaken = match self.reserve(demand, &directory, (placement, reading)) {
                Ok(grant) => return Ok(grant),
                Err(untaken) => untaken,
            };
            candidates = untaken.placement.candidates;
            match untaken.missed {
                Missed::WouldHarm => {
                    reading = untaken.reading;
                    reading.spared.push(untaken.placement.instance);
                    continue;
                }
                Missed::Gone => excluded.push(untaken.placement.instance),
                Missed::Full => {}
            }
            (races, reading) = (races + 1, self.read(demand, &excluded));
        }
        Err(NoPlace { rejection: RouteRejection::NoRoom { candidates }, reading, fate: LeaseFate::Lost })
    }

    /// Reserves where the routing of a request's arrival would place it, a moment ago; `None`: it must be placed anew.
    pub fn take(&self, demand: &Demand, placement: &Placement, reading: Box<PlaceReading>) -> Option<Grant> {
        self.reserve(demand, &self.deps.directory.load(), (placement.clone(), reading)).ok()
    }

    fn reserve(
        &self,
        demand: &Demand,
        directory: &[Arc<InstanceEntry>],
        (placement, reading): (Placement, Box<PlaceReading>),
    ) -> Result<Grant, Box<Untaken>> {
        let untaken = |missed, placement, reading| Err(Box::new(Untaken { missed, placement, reading }));
        let entry = directory.iter().find(|entry| entry.id == placement.instance);
        let ready = entry.filter(|entry| entry.state == InstanceState::Ready);
        let Some((entry, client)) = ready.and_then(|entry| Some((entry, entry.client.clone()?))) else {
            return untaken(Missed::Gone, placement, reading);
        };
        if self.would_harm(demand, entry, (&placement, &reading)) {
            return untaken(Missed::WouldHarm, placement, reading);
        }
        let cost = token_cost(demand.prompt_tokens, demand.max_tokens);
        let lease = entry.leases.reserve(cost, demand.model.policy.route.lease_tokens_max);
        let Some(lease) = lease.and_then(|lease| lease.borrowing(placement.borrowed)) else {
            return untaken(Missed::Full, placement, reading);
        };
        self.group(&demand.model).take_turn();
        let cost = placement.candidates.iter().find(|cost| cost.instance == entry.id);
        let uncached_tokens = demand.prompt_tokens.saturating_sub(cost.map_or(0, |cost| cost.hit_tokens));
        let (instance, epoch, lease) = (entry.id, entry.epoch, Arc::new(lease.claiming(demand.due, uncached_tokens)));
        Ok(Grant { instance, epoch, client, lease, placement, reading })
    }

    /// Puts a request into its model's queue and says what it held before; no place if it is full.
    pub fn enqueue(self: &Arc<Self>, demand: Demand) -> (QueueLoad, Option<QueuePlace>) {
        let (grant, granted) = oneshot::channel();
        let model = demand.model.clone();
        let group = self.group(&model);
        let mut queue = group.queue();
        let waiting = Waiting {
            tier: demand.tier,
            tenant: demand.tenant.clone(),
            size: demand.size(),
            since: self.deps.clock.now(),
            starts: demand.starts,
            item: Pending { demand, grant },
        };
        let before = queue.load();
        let Ok(ticket) = queue.push(waiting) else { return (before, None) };
        group.learnt().drain.began(self.deps.clock.now());
        group.show_load(queue.load());
        drop(queue);
        (before, Some(QueuePlace::new(self.clone(), (model, ticket), granted)))
    }

    /// Grants heads of the queues for as long as there is room, or has the one that pumps now look again: who was woken serves
    /// all models. Grants go to waiters that are gone, too: dropping the grant gives the lease back.
    pub fn pump(&self) {
        if self.pumps.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let _open = Pumping(&self.pumps);
        let mut seen = 1;
        loop {
            for group in &self.groups {
                while let Some((waiting, grant)) = self.next_grant(group) {
                    if let Err(unwanted) = waiting.item.grant.send(grant) {
                        drop(unwanted);
                    }
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
    fn next_grant(&self, group: &Group<Pending>) -> Option<(Waiting<Pending>, Grant)> {
        loop {
            let now = self.deps.clock.now();
            let step = group.throttle().step;
            let heads: Vec<(Ticket, Demand)> = {
                let mut queue = group.queue();
                let heads = queue.heads(now, step).into_iter();
                let demand_of = |head: &Waiting<Pending>| Demand { starts: head.starts, ..head.item.demand.clone() };
                heads.map(|(ticket, head)| (ticket, demand_of(head))).collect()
            };
            let (ticket, grant) = self.first_with_a_place(&heads)?;
            let mut queue = group.queue();
            // Its client may have left meanwhile; then the grant drops and the next head is looked at.
            if let Some(waiting) = queue.pop_head(ticket, now) {
                let mut learnt = group.learnt();
                learnt.drain.granted(now, waiting.size.tokens);
                if queue.load().requests == 0 {
                    learnt.drain.emptied();
                }
                group.show_load(queue.load());
                return Some((waiting, grant));
            }
        }
    }

    fn first_with_a_place(&self, heads: &[(Ticket, Demand)]) -> Option<(Ticket, Grant)> {
        let mut full: Vec<InstanceId> = Vec::new();
        for (ticket, demand) in heads {
            if self.waits_for_idle(demand) {
                continue;
            }
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

    /// It is not worth a start beside others, and something runs everywhere; or it is not worth one where nothing runs either.
    fn waits_for_idle(&self, demand: &Demand) -> bool {
        let serves = |entry: &&Arc<InstanceEntry>| entry.is_open() && *entry.model == *demand.model.name();
        let now = self.deps.clock.now();
        let has_an_idle_one = || {
            let directory = self.deps.directory.load();
            demand.may_run_alone(now) && directory.iter().filter(serves).any(|entry| entry.is_idle())
        };
        !demand.may_run_beside(now) && !has_an_idle_one()
    }

    fn would_go_to(&self, demand: &Demand) -> Option<InstanceId> {
        let reading = self.read(demand, &[]);
        let placement = place_by(&reading, demand.model.name(), &demand.model.policy.route);
        placement.ok().map(|placement| placement.instance)
    }

    /// Waits for something to have changed: a lease, an instance, or time.
    pub async fn wait_for_change(&self) {
        let _ = tokio::time::timeout(LOOK_AGAIN, self.deps.directory.changed()).await;
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
        spared: &reading.spared,
    };
    route(&reading.view, &request, config)
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
