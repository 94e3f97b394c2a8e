//! When the bucket plan of a model is cut anew, and when the old one stays (SPEC B3: about every 30 s, with hysteresis).
//!
//! The load is the moving average of the live load by length. A plan is looked at again after `period`, and after `dwell` already
//! if at least `drift_min` of the load has gone to other lengths since it was cut. It gives way only to one whose imbalance is
//! smaller by at least `improvement_min`, or that has more buckets (one bucket over everything would be the most even, and
//! would tell no lengths apart). A fleet that changed is planned anew after `dwell`, at once if a bucket lost its last instance.
//! Fleets of fewer than `instances_min`, or of several variants, are not cut; nor is a family for which cutting is off
//! (`bucket_family`): each is a state with its reason.
//!
//! Invariants: a plan is in force for `dwell` at least, unless a bucket is empty; it names ready instances of its moment alone.
//! Cost: that of a cut and a binding when one is due, else O(atoms). State: [`ATOMS_MAX`] numbers a model in the average; longer requests
//! count in the last.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    config::{ConfigError, require},
    ids::{InstanceId, Micros, micros},
    policy::{
        AtomWork, BoundBucket, Bucket, CutPolicy, FLEET_MAX, bind, imbalance, moves, optimal_cut, scan_cut, target,
    },
};

/// Atoms that are told apart: to 512,000 tokens.
pub const ATOMS_MAX: u32 = 1024;
/// Loads below this share of the whole are forgotten.
const FORGOTTEN: f64 = 1e-6;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketConfig {
    pub softmax: CutPolicy,
    pub hybrid: CutPolicy,
    pub linear: CutPolicy,
    pub families: BTreeMap<String, CutPolicy>,
    pub instances_min: usize,
    #[serde(with = "humantime_serde")]
    pub period: Duration,
    #[serde(with = "humantime_serde")]
    pub dwell: Duration,
    #[serde(with = "humantime_serde")]
    pub average: Duration,
    pub drift_min: f64,
    pub improvement_min: f64,
}

impl BucketConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let share = |value: f64| (0.0..=1.0).contains(&value);
        require(
            (2..=FLEET_MAX).contains(&self.instances_min),
            "policy.buckets.instances_min",
            self.instances_min,
            format!("2 to {FLEET_MAX}"),
        )?;
        let spans = [("policy.buckets.period", self.period), ("policy.buckets.average", self.average)];
        for (key, span) in spans {
            require(span.as_secs() >= 1, key, format!("{span:?}"), "at least 1s")?;
        }
        require(
            self.dwell <= self.period,
            "policy.buckets.dwell",
            format!("{:?}", self.dwell),
            "at most policy.buckets.period",
        )?;
        require(share(self.drift_min), "policy.buckets.drift_min", self.drift_min, "a share from 0 to 1")?;
        let key = "policy.buckets.improvement_min";
        require(share(self.improvement_min), key, self.improvement_min, "a share from 0 to 1")
    }
}

/// The moving average of a model's live load by atom, in tokens of uncached work.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoadAverage {
    atoms: BTreeMap<u32, f64>,
    at: Option<Micros>,
}

impl LoadAverage {
    /// Takes the load of this moment; what was before weighs `e^(-elapsed / span)`, nothing where there was none.
    pub fn take(&mut self, now: Micros, load: impl IntoIterator<Item = (u32, f64)>, span: Duration) {
        let elapsed = self.at.filter(|_| !self.atoms.is_empty()).map(|at| (now - at).max(0) as f64 / 1e6);
        let keep = elapsed.map_or(0.0, |elapsed| (-elapsed / span.as_secs_f64()).exp());
        self.at = Some(now);
        self.atoms.values_mut().for_each(|tokens| *tokens *= keep);
        for (atom, tokens) in load {
            *self.atoms.entry(atom.min(ATOMS_MAX - 1)).or_default() += tokens.max(0.0) * (1.0 - keep);
        }
        let least = self.atoms.values().sum::<f64>() * FORGOTTEN;
        self.atoms.retain(|_, tokens| *tokens > least);
    }

    /// `(atom, tokens)` in order.
    pub fn tokens(&self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.atoms.iter().map(|(atom, tokens)| (*atom, *tokens))
    }
}

/// A plan in force.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanInForce {
    pub policy: CutPolicy,
    pub buckets: Vec<BoundBucket>,
    /// The load it was cut from.
    pub basis: Vec<AtomWork>,
    pub since: Micros,
    /// When it was last compared with another.
    pub looked: Micros,
}

/// What a plan would be cut from.
#[derive(Debug, Clone, Copy)]
pub struct PlanLook<'a> {
    pub now: Micros,
    /// For the model's family.
    pub policy: CutPolicy,
    /// Average load, in instances.
    pub atoms: &'a [AtomWork],
    /// Ready instances of the model, in order of id.
    pub fleet: &'a [InstanceId],
    /// Variants that they serve.
    pub variants: usize,
}

/// What made a plan new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    Start,
    Period,
    Drift,
    Fleet,
}

impl Trigger {
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Start => "start",
            Trigger::Period => "period",
            Trigger::Drift => "drift",
            Trigger::Fleet => "fleet",
        }
    }
}

/// Why a model is not cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCut {
    Family,
    SmallFleet,
    LargeFleet,
    Variants,
    NoLoad,
}

impl NotCut {
    pub fn name(self) -> &'static str {
        match self {
            NotCut::Family => "family",
            NotCut::SmallFleet => "small_fleet",
            NotCut::LargeFleet => "large_fleet",
            NotCut::Variants => "several_variants",
            NotCut::NoLoad => "no_load",
        }
    }
}

/// A plan that takes the place of another.
#[derive(Debug, Clone, PartialEq)]
pub struct NewPlan {
    pub plan: PlanInForce,
    pub trigger: Trigger,
    /// Largest over mean load per instance, by the load of this moment.
    pub imbalance: f64,
    /// Of the plan before, by the same load.
    pub imbalance_before: Option<f64>,
    /// Instances that had another bucket.
    pub moved: usize,
    /// Load per instance if it were even, in instances.
    pub target: f64,
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Replan {
    /// Nothing is due.
    Keep,
    /// The plan was compared, and stays.
    KeepCompared,
    Replace(Box<NewPlan>),
    Off(NotCut),
}

/// Looks at a model's plan.
pub fn replan(current: Option<&PlanInForce>, look: &PlanLook<'_>, config: &BucketConfig) -> Replan {
    let off = match look {
        PlanLook { policy: CutPolicy::Off, .. } => Some(NotCut::Family),
        PlanLook { fleet, .. } if fleet.len() < config.instances_min => Some(NotCut::SmallFleet),
        PlanLook { fleet, .. } if fleet.len() > FLEET_MAX => Some(NotCut::LargeFleet),
        PlanLook { variants: 2.., .. } => Some(NotCut::Variants),
        _ => None,
    };
    if let Some(reason) = off {
        return Replan::Off(reason);
    }
    // Without load there is nothing to learn: what it was last is cut for whoever is there.
    let atoms = match (look.atoms, current) {
        ([], Some(current)) => &current.basis,
        ([], None) => return Replan::Off(NotCut::NoLoad),
        (atoms, _) => atoms,
    };
    let Some(trigger) = due(current, look, (atoms, config)) else { return Replan::Keep };
    let cut = match look.policy {
        CutPolicy::Optimal => optimal_cut(atoms, look.fleet.len()),
        _ => scan_cut(atoms, look.fleet.len()),
    };
    let Some(new) = imbalance(&cut) else { return Replan::Keep };
    let old: &[BoundBucket] = current.map_or(&[], |current| &current.buckets);
    let before = imbalance(&under(old, atoms));
    let must_win = matches!(trigger, Trigger::Period | Trigger::Drift);
    let is_better = before.is_none_or(|before| new <= before * (1.0 - config.improvement_min));
    if must_win && !is_better && cut.len() <= old.len() {
        return Replan::KeepCompared;
    }
    let buckets = bind(&cut, (old, atoms), look.fleet);
    let moved = moves(&buckets, (old, atoms));
    let plan = PlanInForce { policy: look.policy, buckets, basis: atoms.to_vec(), since: look.now, looked: look.now };
    let target = target(atoms, look.fleet.len());
    Replan::Replace(Box::new(NewPlan { plan, trigger, imbalance: new, imbalance_before: before, moved, target }))
}

/// Why the plan is to be compared now, if it is.
fn due(
    current: Option<&PlanInForce>,
    look: &PlanLook<'_>,
    (atoms, config): (&[AtomWork], &BucketConfig),
) -> Option<Trigger> {
    let Some(current) = current else { return Some(Trigger::Start) };
    let passed = |since: Micros, span: Duration| look.now - since >= micros(span);
    let mut bound: Vec<InstanceId> = current.buckets.iter().flat_map(|b| b.instances.iter().copied()).collect();
    bound.sort_unstable();
    let is_orphaned = current.buckets.iter().any(|b| !b.instances.iter().any(|id| look.fleet.contains(id)));
    if is_orphaned || (bound != look.fleet || current.policy != look.policy) && passed(current.since, config.dwell) {
        return Some(Trigger::Fleet);
    }
    // What was not looked at for that long has been in force for as long.
    match () {
        () if !passed(current.looked, config.dwell) => None,
        () if passed(current.looked, config.period) => Some(Trigger::Period),
        () => (drift(&current.basis, atoms) >= config.drift_min).then_some(Trigger::Drift),
    }
}

/// The buckets of a plan with the load of another moment.
pub fn under(plan: &[BoundBucket], atoms: &[AtomWork]) -> Vec<Bucket> {
    plan.iter().map(|bound| Bucket { load: bound.bucket.range.load(atoms), ..bound.bucket }).collect()
}

/// Share of the load that is at other lengths now: half the sum of differences of shares.
pub fn drift(before: &[AtomWork], after: &[AtomWork]) -> f64 {
    let shares = |atoms: &[AtomWork]| -> BTreeMap<u32, f64> {
        let sum: f64 = atoms.iter().map(|work| work.load).sum();
        atoms.iter().map(|work| (work.atom, work.load / sum.max(f64::MIN_POSITIVE))).collect()
    };
    let (mut before, after) = (shares(before), shares(after));
    let moved: f64 = after.iter().map(|(atom, share)| (share - before.remove(atom).unwrap_or(0.0)).abs()).sum();
    (moved + before.values().sum::<f64>()) / 2.0
}

#[cfg(test)]
#[path = "bucket_replan_tests.rs"]
mod tests;
