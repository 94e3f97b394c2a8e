//! The bucket cut: the length axis cut where the load fills an instance, from the start to the end (SPEC B2, B3).
//!
//! `L_target = L_total / N_instances`. Atoms are scanned from the start of the axis; where the accumulated load reaches
//! L_target the axis is cut; what is left at the end is a bucket of its own. A bucket gets the instances its load calls for: one each,
//! and each further one to the bucket with the most load per instance, which makes the largest load per instance as small as
//! these cuts allow. So an atom heavier than L_target gets several.
//!
//! Invariants: buckets follow each other without gaps from atom 0 to the end of the axis; each has an instance at least, all
//! together those of the fleet; the load of each is that of its atoms. No load or no fleet: no cut.
//! Cost: O(atoms + instances × buckets). No state.

use serde::{Deserialize, Serialize};

/// How much lighter than L_target counts as reaching it: sums of floats are not exact.
const REACHED: f64 = 1.0 - 1e-9;

/// Live load of one atom of the axis, in instances.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtomWork {
    pub atom: u32,
    pub load: f64,
}

/// Atoms of the axis, `to_atom` not among them; `None`: to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtomRange {
    pub from_atom: u32,
    pub to_atom: Option<u32>,
}

impl AtomRange {
    pub const ALL: AtomRange = AtomRange { from_atom: 0, to_atom: None };

    pub fn holds(self, atom: u32) -> bool {
        self.from_atom <= atom && self.to_atom.is_none_or(|end| atom < end)
    }

    /// The part of `atoms` in the range, which are in order.
    pub fn load(self, atoms: &[AtomWork]) -> f64 {
        // A sum of nothing would be -0.
        atoms.iter().filter(|work| self.holds(work.atom)).fold(0.0, |sum, work| sum + work.load)
    }
}

/// One bucket of a cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket {
    pub range: AtomRange,
    pub load: f64,
    pub instances: usize,
}

impl Bucket {
    pub fn load_per_instance(&self) -> f64 {
        self.load / self.instances.max(1) as f64
    }
}

/// Where the axis is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CutPolicy {
    /// Where the accumulated load reaches L_target.
    ScanCut,
    /// Where the largest load per instance becomes the smallest, with as many buckets as the scan finds.
    Optimal,
    /// Nowhere.
    Off,
}

impl CutPolicy {
    pub fn name(self) -> &'static str {
        match self {
            CutPolicy::ScanCut => "scan_cut",
            CutPolicy::Optimal => "optimal",
            CutPolicy::Off => "off",
        }
    }
}

/// Load per instance if it were even.
pub fn target(atoms: &[AtomWork], instances: usize) -> f64 {
    AtomRange::ALL.load(atoms) / instances.max(1) as f64
}

/// The scan cut. `atoms`: rising, loads above 0.
pub fn scan_cut(atoms: &[AtomWork], instances: usize) -> Vec<Bucket> {
    let target = target(atoms, instances);
    if instances == 0 || target <= 0.0 {
        return Vec::new();
    }
    let (mut ends, mut held) = (Vec::new(), 0.0);
    for work in atoms {
        held += work.load;
        if held >= target * REACHED {
            ends.push(work.atom + 1);
            held = 0.0;
        }
    }
    // All but rounding errors went into the last bucket: it goes to the end of the axis itself.
    let is_rest = held <= target * (1.0 - REACHED) || ends.len() == instances;
    if is_rest {
        ends.pop();
    }
    buckets(&ends, atoms, instances)
}

/// Buckets cut before each of `ends`, with their instances.
pub(super) fn buckets(ends: &[u32], atoms: &[AtomWork], instances: usize) -> Vec<Bucket> {
    let froms = std::iter::once(0).chain(ends.iter().copied());
    let tos = ends.iter().copied().map(Some).chain(std::iter::once(None));
    let ranges = froms.zip(tos).map(|(from_atom, to_atom)| AtomRange { from_atom, to_atom });
    let mut made: Vec<Bucket> = ranges.map(|range| Bucket { range, load: range.load(atoms), instances: 1 }).collect();
    assert!(made.len() <= instances, "invariant: a cut has at most as many buckets as instances");
    for _ in made.len()..instances {
        let heaviest = made.iter_mut().max_by(|a, b| a.load_per_instance().total_cmp(&b.load_per_instance()));
        heaviest.expect("invariant: a cut has a bucket").instances += 1;
    }
    made
}

/// Largest load per instance over the mean; 1 is even. `None` without load.
pub fn imbalance(buckets: &[Bucket]) -> Option<f64> {
    let (load, instances) = buckets.iter().fold((0.0, 0), |(load, count), b| (load + b.load, count + b.instances));
    let most = buckets.iter().map(Bucket::load_per_instance).fold(0.0, f64::max);
    (load > 0.0).then(|| most / (load / instances.max(1) as f64))
}

/// The load by atoms, in instances, from `(atom, tokens)` in order. Lengths count by the middle of their atom.
pub fn atom_work(
    tokens: impl IntoIterator<Item = (u32, f64)>,
    curve: &super::CapacityCurve,
    atom_tokens: u32,
) -> Vec<AtomWork> {
    let load = |atom: u32| curve.share_per_token(atom.saturating_mul(atom_tokens).saturating_add(atom_tokens / 2));
    let work = tokens.into_iter().map(|(atom, tokens)| AtomWork { atom, load: tokens * load(atom) });
    work.filter(|work| work.load > 0.0).collect()
}

#[cfg(test)]
#[path = "bucket_plan_tests.rs"]
mod tests;
