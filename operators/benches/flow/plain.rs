//! Plain programs that keep the same as the operators, in hash maps, in the order in which rows come: no exchange by key,
//! no epochs, no bounds, no refusals.
use std::collections::VecDeque;

use operators::{KvChange, KvRow, LoadEvent, LoadKey, LoadRow, LoadTotal, RELATIVE_ERROR, TrafficRow};
use sketches_ddsketch::{Config, DDSketch};

/// The plain programs get the same fast hashing as the operators.
pub type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::FixedState>;

/// The plain program for the load: the same map of open requests and of totals, in the order in which rows come.
#[derive(Default)]
pub struct PlainLoad {
    open: HashMap<u64, LoadRow>,
    pub totals: HashMap<LoadKey, LoadTotal>,
}

/// All that a request counts under; its model's plan has one bucket.
fn keys(row: &LoadRow) -> [LoadKey; 8] {
    let LoadRow { instance, model, region, tier, .. } = *row;
    let atom = row.tokens / 500;
    [
        LoadKey::Cell { instance, atom },
        LoadKey::Atom(atom),
        LoadKey::Instance(instance),
        LoadKey::Region(region),
        LoadKey::Model(model),
        LoadKey::Group { model, tier },
        LoadKey::ModelAtom { model, atom },
        LoadKey::Bucket { model, bucket: 0 },
    ]
}

impl PlainLoad {
    fn count(&mut self, row: &LoadRow, sign: i64, changed: &mut HashMap<LoadKey, ()>) {
        for key in keys(row) {
            let total = self.totals.entry(key).or_default();
            total.tokens += sign * i64::from(row.tokens);
            total.uncached += sign * i64::from(row.tokens.saturating_sub(row.cached));
            total.requests += sign;
            changed.insert(key, ());
        }
    }

    pub fn absorb(&mut self, rows: &[LoadRow]) -> usize {
        let mut changed = HashMap::default();
        for row in rows {
            let before = self.open.get(&row.request).copied();
            if before.is_some_and(|before| before.seq >= row.seq) {
                continue;
            }
            if let Some(before) = before {
                self.count(&before, -1, &mut changed);
            }
            if row.event == LoadEvent::Finished {
                self.open.remove(&row.request);
            } else {
                self.count(row, 1, &mut changed);
                self.open.insert(row.request, *row);
            }
        }
        let changes: Vec<_> = changed.into_keys().map(|key| (key, self.totals[&key])).collect();
        self.totals.retain(|_, total| *total != LoadTotal::default());
        changes.len()
    }
}

/// The plain program for the cache: a set per instance and a list of changes.
#[derive(Default)]
pub struct PlainCache {
    pub instances: HashMap<u32, (u64, HashMap<u64, u8>)>,
}

impl PlainCache {
    pub fn absorb(&mut self, rows: &[KvRow]) -> usize {
        let mut changes = Vec::new();
        for row in rows {
            let (seq, blocks) = self.instances.entry(row.instance).or_default();
            if row.seq <= *seq {
                continue;
            }
            *seq = row.seq;
            match row.event {
                KvChange::Stored { hash, level, .. } => {
                    let levels = blocks.entry(hash).or_insert(0);
                    if *levels & (1 << level) == 0 {
                        *levels |= 1 << level;
                        changes.push(((hash, row.instance, level), 1));
                    }
                }
                KvChange::Hit { .. }
                | KvChange::Sum { .. }
                | KvChange::Listed { .. }
                | KvChange::Gone
                | KvChange::Void => {}
                KvChange::Removed { hash, level } => {
                    if let Some(levels) = blocks.get_mut(&hash).filter(|levels| **levels & (1 << level) != 0) {
                        *levels &= !(1 << level);
                        if *levels == 0 {
                            blocks.remove(&hash);
                        }
                        changes.push(((hash, row.instance, level), -1));
                    }
                }
                KvChange::Cleared => {
                    changes.extend(blocks.drain().map(|(hash, level)| ((hash, row.instance, level), -1)));
                }
            }
        }
        changes.len()
    }
}

/// One window of the plain program: counts, sums and four sketches.
#[derive(Clone)]
struct PlainWindow {
    counts: [u64; 5],
    sketches: [DDSketch; 4],
}

impl PlainWindow {
    fn new() -> Self {
        let sketch = || DDSketch::new(Config::new(RELATIVE_ERROR, 2048, 0.5));
        Self { counts: [0; 5], sketches: [sketch(), sketch(), sketch(), sketch()] }
    }

    fn add(&mut self, row: &TrafficRow) {
        match row {
            TrafficRow::Arrived(row) => {
                self.counts[0] += 1;
                self.sketches[0].add(row.prompt_tokens.into());
            }
            TrafficRow::Finished(row) => {
                let more = [1, row.prompt_tokens.into(), row.output_tokens.into(), row.cached_tokens.into()];
                self.counts[1..].iter_mut().zip(more).for_each(|(count, more)| *count += more);
                self.sketches[1].add(row.output_tokens.into());
                row.ttft_us.iter().for_each(|us| self.sketches[2].add(*us as f64));
                row.itl_us_mean.iter().for_each(|us| self.sketches[3].add(*us as f64));
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        for (mine, theirs) in self.sketches.iter_mut().zip(&other.sketches) {
            mine.merge(theirs).expect("invariant: all sketches have one configuration");
        }
    }
}

/// The plain program for the request distribution: the same windows per model and tier.
pub struct PlainWindows {
    window_batches: u64,
    windows: usize,
    batch: u64,
    groups: HashMap<(u32, u8), (PlainWindow, VecDeque<PlainWindow>, PlainWindow)>,
}

impl PlainWindows {
    pub fn new(window_batches: u64, windows: usize) -> Self {
        Self { window_batches, windows, batch: 0, groups: HashMap::default() }
    }

    /// Arrivals and ends that the running windows hold.
    pub fn counted(&self) -> u64 {
        self.groups
            .values()
            .map(|(now, _, ended)| now.counts[0] + now.counts[1] + ended.counts[0] + ended.counts[1])
            .sum()
    }

    /// Numbers told.
    pub fn absorb(&mut self, rows: &[TrafficRow]) -> usize {
        let mut changed = HashMap::default();
        for row in rows {
            let fresh = || (PlainWindow::new(), VecDeque::new(), PlainWindow::new());
            self.groups.entry(row.key()).or_insert_with(fresh).0.add(row);
            changed.insert(row.key(), ());
        }
        let mut told = 0;
        for key in changed.into_keys() {
            let (now, _, ended) = &self.groups[&key];
            let mut running = ended.clone();
            running.merge(now);
            let quantiles =
                running.sketches.iter().flat_map(|sketch| [0.5, 0.95, 0.99].map(|share| sketch.quantile(share)));
            told += quantiles.filter(|quantile| matches!(quantile, Ok(Some(_)))).count();
        }
        self.batch += 1;
        if self.batch.is_multiple_of(self.window_batches) {
            for (now, windows, ended) in self.groups.values_mut() {
                windows.push_back(std::mem::replace(now, PlainWindow::new()));
                while windows.len() >= self.windows {
                    windows.pop_front();
                }
                *ended = PlainWindow::new();
                windows.iter().for_each(|window| ended.merge(window));
            }
        }
        told
    }
}
