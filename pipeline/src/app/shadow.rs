//! Shadow policies on the live stream (SPEC X1): each decision, with what it was made from, is shown to policies that do not act, and
//! what each would have decided is a row of `shadow_decisions`.
//!
//! They stand behind the sink of the gateway's rows: a row goes on to the bus as ever, and a copy of it, with its inputs, waits for the
//! thread `shadow`, which asks the policies as `replay --policy` does. Invariants: the gateway waits for no shadow; a decision is shown whole
//! or not at all; a shadow that panics is asked no more, and says so in `faults`, while all others go on. Bounds: `shadow.queue_max`
//! decisions that wait, and [`HELD_MAX`] whose inputs came and that are not made yet; at either the decision is not shown, and counted.
//! Cost on the gateway's side: a copy of the rows, nothing where nobody shadows. State: those, and a throttle a shadow.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use tokio::sync::mpsc;

use crate::{
    config::{Config, Recorded},
    gateway::deps::{EventSink, Sent},
    ids::Name,
    replay::{Apart, Made, ask, look},
    rows::{
        DecisionRow, FaultRow, PolicyInputRow, RequestRow, SettingsRow, ShadowDecisionRow, SloReliabilityRow, SloRow,
    },
};

/// Decisions whose inputs came and that are not made yet. Requests that leave in between leave theirs behind.
const HELD_MAX: usize = 4096;

/// What a shadow is shown.
pub enum Shown {
    /// A look that moved the throttle.
    Tick(Box<PolicyInputRow>),
    Decision(Box<Made>),
}

/// A policy that decides and does not act.
pub trait Shadow: Send {
    fn name(&self) -> &str;
    /// `None`: no policy was asked about it.
    fn ask(&mut self, shown: &Shown) -> Option<ShadowDecisionRow>;
}

/// Where a shadow's rows go; must not wait. `false`: there was no room.
pub type Outlet = Box<dyn FnMut(Told) -> bool + Send>;

/// What the thread has to say.
pub enum Told {
    Decision(Box<ShadowDecisionRow>),
    Fault(FaultRow),
}

/// Counts since the start.
#[derive(Debug, Default)]
pub struct ShadowCounters {
    /// Decisions shown.
    pub shown: AtomicU64,
    /// Decisions that were not shown, or whose answer found no room on the bus.
    pub dropped: AtomicU64,
}

/// A policy with some other settings.
struct Settings {
    name: String,
    acting: Recorded,
    under: Recorded,
    apart: Apart,
}

impl Shadow for Settings {
    fn name(&self) -> &str {
        &self.name
    }

    fn ask(&mut self, shown: &Shown) -> Option<ShadowDecisionRow> {
        let made = match shown {
            Shown::Tick(row) => {
                look(row, (&self.acting, &self.under), &mut self.apart);
                return None;
            }
            Shown::Decision(made) => made,
        };
        let row = ask(made, &self.under, &mut self.apart)?;
        Some(ShadowDecisionRow {
            at: row.at,
            shadow: self.name.as_str().into(),
            decision_id: row.decision_id,
            request_id: row.request_id,
            tenant: made.decision.tenant.clone(),
            acting_tier: row.recorded_tier,
            shadow_tier: row.other_tier,
            acting_outcome: row.recorded_outcome,
            shadow_outcome: row.other_outcome,
            acting_reason: row.recorded_reason,
            shadow_reason: row.other_reason,
            acting_throttle_step: row.recorded_throttle_step,
            shadow_throttle_step: row.other_throttle_step,
            acting_instance: row.recorded_instance,
            shadow_instance: row.other_instance,
            acting_seconds: row.recorded_seconds,
            shadow_seconds: row.other_seconds,
            seconds_difference: row.seconds_difference,
            hit_tokens_difference: row.hit_tokens_difference,
            is_changed: row.is_changed,
        })
    }
}

/// The shadow policies of the configuration, beside the settings in force.
pub fn configured(config: &Config, acting: &Recorded) -> Result<Vec<Box<dyn Shadow>>, crate::config::ConfigError> {
    let shadow = |policy: &crate::config::ShadowPolicy| {
        let (name, under) = (policy.name.clone(), acting.with_changes(&policy.policy)?);
        Ok(Box::new(Settings { name, acting: acting.clone(), under, apart: Apart::new() }) as Box<dyn Shadow>)
    };
    config.shadow.policies.iter().map(shadow).collect()
}

/// The gateway's sink, with shadows behind it.
pub struct ShadowSink {
    inner: Arc<dyn EventSink>,
    waiting: mpsc::Sender<Shown>,
    /// Inputs of decisions on their way; `None`: some of them were not kept.
    held: Mutex<HashMap<Name, Option<Vec<PolicyInputRow>>>>,
    counters: Arc<ShadowCounters>,
}

impl ShadowSink {
    /// Starts the thread, which ends when the sink is dropped.
    pub fn start(
        inner: Arc<dyn EventSink>,
        shadows: Vec<Box<dyn Shadow>>,
        (queue_max, outlet): (usize, Outlet),
    ) -> std::io::Result<ShadowSink> {
        let (waiting, shown) = mpsc::channel(queue_max.max(1));
        let counters = Arc::<ShadowCounters>::default();
        let runner = Runner { shadows, outlet, counters: counters.clone() };
        thread::Builder::new().name("shadow".into()).spawn(move || runner.run(shown))?;
        Ok(ShadowSink { inner, waiting, held: Mutex::default(), counters })
    }

    pub fn counters(&self) -> Arc<ShadowCounters> {
        self.counters.clone()
    }

    fn drop_one(&self) {
        self.counters.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn hold(&self, row: &PolicyInputRow) {
        if row.decision_id.is_empty() {
            match self.waiting.try_reserve() {
                Ok(place) => place.send(Shown::Tick(Box::new(row.clone()))),
                Err(_) => self.drop_one(),
            }
            return;
        }
        let is_kept = self.waiting.capacity() > 0;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= HELD_MAX && !held.contains_key(&row.decision_id) {
            self.counters.dropped.fetch_add(held.len() as u64, Ordering::Relaxed);
            held.clear();
        }
        let rows = held.entry(row.decision_id.clone()).or_insert_with(|| Some(Vec::new()));
        match rows {
            Some(kept) if is_kept => kept.push(row.clone()),
            rows => *rows = None,
        }
    }

    fn show(&self, decision: &DecisionRow) {
        let inputs = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(&decision.decision_id);
        // Without inputs no policy was asked.
        let Some(inputs) = inputs else { return };
        match (inputs, self.waiting.try_reserve()) {
            (Some(inputs), Ok(place)) => {
                self.counters.shown.fetch_add(1, Ordering::Relaxed);
                place.send(Shown::Decision(Box::new(Made { decision: decision.clone(), inputs })));
            }
            _ => self.drop_one(),
        }
    }
}

impl EventSink for ShadowSink {
    fn request(&self, row: RequestRow) -> Sent<'_> {
        self.inner.request(row)
    }
    fn decision(&self, row: DecisionRow) -> Sent<'_> {
        self.show(&row);
        self.inner.decision(row)
    }
    fn policy_input(&self, row: Box<PolicyInputRow>) -> Sent<'_> {
        self.hold(&row);
        self.inner.policy_input(row)
    }
    fn fault(&self, row: FaultRow) -> Sent<'_> {
        self.inner.fault(row)
    }
    fn settings(&self, row: SettingsRow) -> Sent<'_> {
        self.inner.settings(row)
    }
    fn slo(&self, row: SloRow) -> Sent<'_> {
        self.inner.slo(row)
    }
    fn slo_reliability(&self, row: SloReliabilityRow) -> Sent<'_> {
        self.inner.slo_reliability(row)
    }
}

/// The thread's side.
struct Runner {
    shadows: Vec<Box<dyn Shadow>>,
    outlet: Outlet,
    counters: Arc<ShadowCounters>,
}

impl Runner {
    fn run(mut self, mut shown: mpsc::Receiver<Shown>) {
        while let Some(shown) = shown.blocking_recv() {
            self.shadows.retain_mut(|shadow| {
                let answer = catch_unwind(AssertUnwindSafe(|| shadow.ask(&shown)));
                let (told, is_whole) = match answer {
                    Ok(None) => return true,
                    Ok(Some(row)) => (Told::Decision(Box::new(row)), true),
                    Err(_) => (Told::Fault(panicked(shadow.name(), &shown)), false),
                };
                if !(self.outlet)(told) {
                    self.counters.dropped.fetch_add(1, Ordering::Relaxed);
                }
                is_whole
            });
        }
    }
}

fn panicked(name: &str, shown: &Shown) -> FaultRow {
    let (at, id) = match shown {
        Shown::Tick(row) => (row.at, "a tick"),
        Shown::Decision(made) => (made.decision.at, made.decision.decision_id.as_str()),
    };
    let detail =
        format!("shadow policy {name} panicked on {id} and is asked no more; the panic's message is on stderr");
    tracing::error!(%detail, "shadow policy");
    FaultRow { at, component: "shadow".into(), kind: "panicked".into(), detail, count: 1 }
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
