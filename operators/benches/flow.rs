//! Rows per second that the load and cache views absorb, against a plain program that keeps the same in hash maps.
//!
//! Both take the same pre-made batches, one per epoch, in turns, on one thread; the dataflow's time runs from `send` to
//! the callback with the epoch's changes, the plain one's from the batch to its list of changes. Printed: medians over
//! epochs and their ratio, at two sizes ten apart. The two results are compared at the end. `--quick` takes fewer
//! epochs. The last line is one JSON object.
use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Instant};

use operators::{FlowConfig, FlowRows, KvChange, KvRow, LoadEvent, LoadRow, LoadTotal, ViewChanges, views};
use timely::worker::Worker;

/// The plain program gets the same fast hashing as the operators.
type HashMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::FixedState>;

const INSTANCES: u64 = 16;

/// xorshift64; the seed is fixed, so that each run takes the same rows.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Epochs of load rows around `open` open requests: the first opens them all, the others are a tenth of that each:
/// eight in ten rows grow a request, one ends one and one opens one.
fn load_batches(open: usize, epochs: usize) -> Vec<Vec<LoadRow>> {
    let mut random = Random(88_172_645_463_325_252);
    let mut live: Vec<LoadRow> = Vec::new();
    let mut next = 0;
    let mut arrive = |random: &mut Random| {
        next += 1;
        let tokens = 100 + random.below(4000) as u32;
        LoadRow { request: next, seq: 1, instance: random.below(INSTANCES) as u32, tokens, event: LoadEvent::Arrived }
    };
    let mut batches = vec![(0..open).map(|_| arrive(&mut random)).collect::<Vec<_>>()];
    live.extend(&batches[0]);
    for _ in 0..epochs {
        let mut batch = Vec::with_capacity(open / 10);
        for n in 0..open / 10 {
            let place = random.below(live.len() as u64) as usize;
            match n % 10 {
                8 => batch.push(LoadRow { event: LoadEvent::Finished, seq: u32::MAX, ..live.swap_remove(place) }),
                9 => {
                    live.push(arrive(&mut random));
                    batch.extend(live.last());
                }
                _ => {
                    let row = &mut live[place];
                    (row.seq, row.tokens, row.event) = (row.seq + 1, row.tokens + 50, LoadEvent::Grew);
                    batch.push(*row);
                }
            }
        }
        batches.push(batch);
    }
    batches
}

/// Epochs of KV rows around `blocks` held blocks: the first stores them all, the others are a tenth of that each, half
/// stores of new blocks, half removals of the oldest.
fn kv_batches(blocks: usize, epochs: usize) -> Vec<Vec<KvRow>> {
    let (mut stored, mut removed) = (0u64, 0u64);
    let mut seqs = [0u64; INSTANCES as usize];
    let mut row = |number: u64, event: fn(u64) -> KvChange| {
        let instance = number % INSTANCES;
        seqs[instance as usize] += 1;
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        KvRow { instance: instance as u32, epoch: 1, seq: seqs[instance as usize], event: event(hash) }
    };
    let mut store = |batch: &mut Vec<KvRow>, remove: bool| {
        let number = if remove { &mut removed } else { &mut stored };
        *number += 1;
        let event: fn(u64) -> KvChange = match remove {
            true => |hash| KvChange::Removed { hash, level: 1 },
            false => |hash| KvChange::Stored { hash, parent: None, level: 1, tokens: 16 },
        };
        batch.push(row(*number, event));
    };
    let mut batches = Vec::new();
    for epoch in 0..=epochs {
        let mut batch = Vec::new();
        for n in 0..if epoch == 0 { blocks } else { blocks / 10 } {
            store(&mut batch, epoch > 0 && n % 2 == 1);
        }
        batches.push(batch);
    }
    batches
}

/// The plain program for the load: the same map of open requests and of totals, in the order in which rows come.
#[derive(Default)]
struct PlainLoad {
    open: HashMap<u64, LoadRow>,
    cells: HashMap<(u32, u32), LoadTotal>,
}

impl PlainLoad {
    fn count(&mut self, row: &LoadRow, sign: i64) -> (u32, u32) {
        let key = (row.instance, row.tokens / 500);
        let total = self.cells.entry(key).or_default();
        total.tokens += sign * i64::from(row.tokens);
        total.requests += sign;
        key
    }

    fn absorb(&mut self, rows: &[LoadRow]) -> usize {
        let mut changed = HashMap::default();
        for row in rows {
            let before = self.open.get(&row.request).copied();
            if before.is_some_and(|before| before.seq >= row.seq) {
                continue;
            }
            if let Some(before) = before {
                changed.insert(self.count(&before, -1), ());
            }
            if row.event == LoadEvent::Finished {
                self.open.remove(&row.request);
            } else {
                changed.insert(self.count(row, 1), ());
                self.open.insert(row.request, *row);
            }
        }
        let changes: Vec<_> = changed.into_keys().map(|key| (key, self.cells[&key])).collect();
        self.cells.retain(|_, total| *total != LoadTotal::default());
        changes.len()
    }
}

/// The plain program for the cache: a set per instance and a list of changes.
#[derive(Default)]
struct PlainCache {
    instances: HashMap<u32, (u64, HashMap<u64, u8>)>,
}

impl PlainCache {
    fn absorb(&mut self, rows: &[KvRow]) -> usize {
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
                KvChange::Hit { .. } => {}
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

/// Seconds per epoch of both sides, the first epoch (the load) left out; medians.
struct Timed {
    rows: usize,
    dataflow: f64,
    plain: f64,
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// Takes turns: the dataflow, then the plain program, each with every batch.
fn alternate<R: Clone + 'static>(
    worker: &mut Worker,
    batches: Vec<Vec<R>>,
    wrap: fn(Vec<R>) -> FlowRows,
    (mut plain, on_changes): (impl FnMut(&[R]) -> usize, impl FnMut(usize, ViewChanges) + 'static),
) -> Timed {
    let mut flow = views::build(worker, &FlowConfig::default(), on_changes);
    let (mut dataflow_s, mut plain_s) = (Vec::new(), Vec::new());
    let rows = batches.last().map_or(0, Vec::len);
    for (epoch, batch) in batches.into_iter().enumerate() {
        let mut rows = wrap(batch.clone());
        let start = Instant::now();
        flow.inputs.send(&mut rows).expect("invariant: a batch fits the feed");
        flow.inputs.advance(epoch as u64 + 1).expect("invariant: epochs rise");
        while flow.closed() != Some(epoch as u64) {
            worker.step();
        }
        dataflow_s.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        std::hint::black_box(plain(&batch));
        plain_s.push(start.elapsed().as_secs_f64());
    }
    drop(flow);
    while worker.has_dataflows() {
        worker.step();
    }
    Timed { rows, dataflow: median(dataflow_s.split_off(1)), plain: median(plain_s.split_off(1)) }
}

fn load(worker: &mut Worker, size: usize, epochs: usize) -> Timed {
    let seen = Rc::new(RefCell::new(BTreeMap::new()));
    let (to, mut plain) = (seen.clone(), PlainLoad::default());
    let wrap = |load| FlowRows { load, ..FlowRows::default() };
    let on_changes = move |_, changes: ViewChanges| to.borrow_mut().extend(changes.atom);
    let timed =
        alternate(worker, load_batches(size, epochs), wrap, (|rows: &[LoadRow]| plain.absorb(rows), on_changes));
    let mut seen = seen.borrow_mut();
    seen.retain(|_, total| *total != LoadTotal::default());
    assert_eq!(*seen, plain.cells.into_iter().collect::<BTreeMap<_, _>>(), "both must give the same totals");
    timed
}

fn cache(worker: &mut Worker, size: usize, epochs: usize) -> Timed {
    let held = Rc::new(RefCell::new(0i64));
    let (to, mut plain) = (held.clone(), PlainCache::default());
    let wrap = |kv| FlowRows { kv, ..FlowRows::default() };
    let on_changes = move |_, changes: ViewChanges| *to.borrow_mut() += changes.cache.iter().map(|c| c.1).sum::<i64>();
    let timed = alternate(worker, kv_batches(size, epochs), wrap, (|rows: &[KvRow]| plain.absorb(rows), on_changes));
    let blocks: usize = plain.instances.values().map(|(_, blocks)| blocks.len()).sum();
    assert_eq!(*held.borrow(), blocks as i64, "both must hold the same number of blocks");
    timed
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let epochs = if quick { 21 } else { 101 };
    timely::execute_directly(move |worker| {
        let mut results = Vec::new();
        for size in [20_000, 200_000] {
            for (name, timed) in
                [("atom_load", load(worker, size, epochs)), ("cache_index", cache(worker, size, epochs))]
            {
                let rate = |seconds: f64| timed.rows as f64 / seconds;
                let (flow, plain) = (rate(timed.dataflow), rate(timed.plain));
                let ratio = plain / flow;
                println!(
                    "{name}: {size} keys, {} rows an epoch: {flow:.0} rows/s, plain {plain:.0} rows/s, \
                     the plain one is {ratio:.1} times as fast; epoch median {:.2} ms",
                    timed.rows,
                    timed.dataflow * 1e3
                );
                results.push(format!(
                    r#"{{"name":"{name}","keys":{size},"rows_per_epoch":{},"rows_per_s":{flow:.0},"plain_rows_per_s":{plain:.0},"ratio":{ratio:.2}}}"#,
                    timed.rows
                ));
            }
        }
        println!(
            r#"{{"bench":"flow","quick":{quick},"optimised":{},"results":[{}]}}"#,
            !cfg!(debug_assertions),
            results.join(",")
        );
    });
}
