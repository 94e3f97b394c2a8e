//! The load of each bucket of a model's plan, from the load per model and atom (B2, B3).
//!
//! Invariant: after an epoch the load of a bucket is the sum of the atoms that the plan in force gives it; a plan's
//! arrival moves whole atoms between buckets and changes no sum over buckets. Without a plan a model is one bucket, 0. The
//! plan in force is that of the highest version seen; an epoch's load counts before its plans, so that the order of rows
//! within an epoch says nothing.
//! Cost: per change of an atom one search in the plan; per change of plan one pass over the model's atoms that hold load.
//! State: a total per model and atom that holds load, at most one per open request; a plan of at most [`BUCKETS_MAX`]
//! ranges for at most `max_plans` models per worker: at the bound plans of further models are refused, and those models
//! stay one bucket.
use std::collections::BTreeMap;

use differential_dataflow::{
    AsCollection, Hashable, VecCollection,
    consolidation::consolidate,
    difference::{Abelian, IsZero, Semigroup},
};
use serde::{Deserialize, Serialize};
use timely::dataflow::{
    StreamVec,
    operators::{Concat, vec::Map},
};

use crate::{
    epochs::{Closed, EpochFold, fold_epochs},
    load_total::{LoadKey, LoadTotal},
    refused::{Input, Refusal, Refused},
};

/// Ranges in one plan.
pub const BUCKETS_MAX: usize = 1024;

/// From `from_atom` to the next range's, or to the end of the axis, requests belong to `bucket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BucketRange {
    pub from_atom: u32,
    pub bucket: u32,
}

/// How the length axis of one model is cut. Two ranges may name one bucket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BucketPlan {
    pub model: u32,
    /// The plan of the highest version is in force; at least 1.
    pub version: u64,
    /// Rising from atom 0; 1 to [`BUCKETS_MAX`] of them.
    pub ranges: Vec<BucketRange>,
}

impl BucketPlan {
    /// # Errors
    /// [`Refusal::MalformedPlan`].
    pub fn check(&self) -> Result<(), Refusal> {
        let is_whole = self.ranges.first().is_some_and(|range| range.from_atom == 0);
        let is_rising = self.ranges.is_sorted_by(|a, b| a.from_atom < b.from_atom);
        if is_whole && is_rising && self.version > 0 && self.ranges.len() <= BUCKETS_MAX {
            return Ok(());
        }
        Err(Refusal::MalformedPlan { version: self.version, ranges: self.ranges.len() as u64 })
    }

    /// The bucket in which a request of `atom` counts.
    pub fn bucket_of(&self, atom: u32) -> u32 {
        let after = self.ranges.partition_point(|range| range.from_atom <= atom);
        self.ranges.get(after.saturating_sub(1)).map_or(0, |range| range.bucket)
    }
}

/// Bounds of [`BucketLoad`], per worker.
#[derive(Clone, Copy, Debug)]
pub struct BucketLoadConfig {
    /// Models with a plan. At the bound: plans of further models are refused.
    pub max_plans: usize,
}

impl Default for BucketLoadConfig {
    fn default() -> Self {
        Self { max_plans: 1024 }
    }
}

/// What [`BucketLoad::bucket_load`] gives.
pub struct BucketLoads<'scope> {
    /// The load of [`LoadKey::Bucket`] keys, as differences.
    pub changes: VecCollection<'scope, u64, LoadKey, LoadTotal>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// Keeps the load per bucket.
///
/// ```
/// use operators::{
///     AtomLoad, AtomLoadConfig, BucketLoad, BucketLoadConfig, BucketPlan, BucketRange, LoadKey, LoadRow, LoadTotal,
/// };
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// let rows = [400, 600, 900].map(|tokens| LoadRow { request: tokens.into(), seq: 1, tokens, ..LoadRow::default() });
/// let cut = [(0, 7), (1, 8)].map(|(from_atom, bucket)| BucketRange { from_atom, bucket });
/// let plan = BucketPlan { model: 0, version: 1, ranges: cut.to_vec() };
/// let changes = timely::example(move |scope| {
///     let load = rows.to_stream(scope).container::<Vec<_>>().atom_load(AtomLoadConfig::default());
///     let plans = vec![plan].to_stream(scope).container::<Vec<_>>();
///     load.changes.bucket_load(plans, BucketLoadConfig::default()).changes.inner.capture()
/// });
/// let mut changes: Vec<_> = changes.extract().into_iter().flat_map(|(_, changes)| changes).collect();
/// changes.sort();
/// let bucket = |bucket| LoadKey::Bucket { model: 0, bucket };
/// assert_eq!(changes[0], (bucket(7), 0, LoadTotal { tokens: 400, uncached: 400, requests: 1 }));
/// assert_eq!(changes[1], (bucket(8), 0, LoadTotal { tokens: 1500, uncached: 1500, requests: 2 }));
/// ```
pub trait BucketLoad<'scope> {
    /// Sums the changes of [`LoadKey::ModelAtom`] keys by the buckets of `plans`; held by model.
    fn bucket_load(self, plans: StreamVec<'scope, u64, BucketPlan>, config: BucketLoadConfig) -> BucketLoads<'scope>;
}

impl<'scope> BucketLoad<'scope> for VecCollection<'scope, u64, LoadKey, LoadTotal> {
    fn bucket_load(self, plans: StreamVec<'scope, u64, BucketPlan>, config: BucketLoadConfig) -> BucketLoads<'scope> {
        let loads = self.inner.flat_map(|(key, _, load)| match key {
            LoadKey::ModelAtom { model, atom } => Some(BucketInput::Load { model, atom, load }),
            _ => None,
        });
        let rows = loads.concat(plans.map(BucketInput::Plan));
        let (changes, refused) = fold_epochs(rows, BucketFold { config, ..BucketFold::default() });
        BucketLoads { changes: changes.as_collection(), refused }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum BucketInput {
    Load { model: u32, atom: u32, load: LoadTotal },
    Plan(BucketPlan),
}

#[derive(Default)]
struct BucketFold {
    config: BucketLoadConfig,
    /// Totals by model and atom; no zero entries.
    atoms: BTreeMap<(u32, u32), LoadTotal>,
    plans: BTreeMap<u32, BucketPlan>,
    sums: Vec<(LoadKey, LoadTotal)>,
}

impl BucketFold {
    fn bucket(&self, model: u32, atom: u32) -> LoadKey {
        LoadKey::Bucket { model, bucket: self.plans.get(&model).map_or(0, |plan| plan.bucket_of(atom)) }
    }

    fn load(&mut self, (model, atom): (u32, u32), load: LoadTotal) {
        self.sums.push((self.bucket(model, atom), load));
        let total = self.atoms.entry((model, atom)).or_default();
        total.plus_equals(&load);
        if total.is_zero() {
            self.atoms.remove(&(model, atom));
        }
    }

    fn plan(&mut self, plan: BucketPlan) -> Result<(), Refusal> {
        plan.check()?;
        let model = plan.model;
        match self.plans.get(&model) {
            Some(known) if known.version >= plan.version => return Ok(()),
            None if self.plans.len() >= self.config.max_plans => {
                return Err(Refusal::KeysFull { max_keys: self.config.max_plans as u64 });
            }
            _ => {}
        }
        let held: Vec<_> = self.atoms.range((model, 0)..=(model, u32::MAX)).map(|(key, load)| (*key, *load)).collect();
        for ((model, atom), load) in held {
            let (from, to) = (self.bucket(model, atom), LoadKey::Bucket { model, bucket: plan.bucket_of(atom) });
            if from != to {
                let mut less = load;
                less.negate();
                self.sums.extend([(from, less), (to, load)]);
            }
        }
        self.plans.insert(model, plan);
        Ok(())
    }
}

impl EpochFold for BucketFold {
    type Row = BucketInput;
    type Out = (LoadKey, u64, LoadTotal);
    const NAME: &'static str = "BucketLoad";

    fn route(row: &BucketInput) -> u64 {
        match row {
            BucketInput::Load { model, .. } => model.hashed(),
            BucketInput::Plan(plan) => plan.model.hashed(),
        }
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<BucketInput>, closed: &mut Closed<Self::Out>) {
        rows.sort_unstable();
        for row in rows.drain(..) {
            match row {
                BucketInput::Load { model, atom, load } => self.load((model, atom), load),
                BucketInput::Plan(plan) => {
                    let subject = plan.model.into();
                    if let Err(reason) = self.plan(plan) {
                        closed.refused.push(Refused {
                            epoch,
                            input: Input::Plans,
                            instance: None,
                            subject,
                            rows: 1,
                            reason,
                        });
                    }
                }
            }
        }
        consolidate(&mut self.sums);
        closed.out.extend(self.sums.drain(..).map(|(key, load)| (key, epoch, load)));
    }
}
