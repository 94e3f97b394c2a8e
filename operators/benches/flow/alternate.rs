//! In turns: the dataflow, then the plain program, each with every batch.
use std::{cell::RefCell, collections::BTreeMap, hint::black_box, rc::Rc, time::Instant};

use operators::{
    DistributionConfig, DistributionRow, FlowConfig, FlowRows, LoadKey, LoadTotal, RequestDistribution, Span,
    ViewChanges, views,
};
use timely::{
    dataflow::{
        InputHandleVec,
        operators::{Inspect, Probe},
    },
    worker::Worker,
};

use crate::{
    median,
    plain::{PlainCache, PlainLoad, PlainWindows},
    workload::{kv_batches, load_batches, traffic_batches},
};

/// Medians over epochs; the ratio is the median of the epochs' own.
pub struct Compared {
    name: &'static str,
    keys: usize,
    rows: usize,
    rows_per_s: f64,
    plain_rows_per_s: f64,
    ratio: f64,
}

impl Compared {
    pub fn json(&self) -> String {
        let Self { name, keys, rows, rows_per_s, plain_rows_per_s, ratio } = self;
        println!(
            "{name}, {keys} keys, {rows} rows an epoch: {rows_per_s:.0} rows/s, plain {plain_rows_per_s:.0} rows/s, ratio {ratio:.2}"
        );
        format!(
            r#"{{"name":"{name}","keys":{keys},"rows_per_epoch":{rows},"rows_per_s":{rows_per_s:.0},"plain_rows_per_s":{plain_rows_per_s:.0},"dataflow_over_plain_ratio":{ratio:.3}}}"#
        )
    }
}

pub fn all(size: usize, epochs: usize) -> Vec<Compared> {
    timely::execute_directly(move |worker| {
        vec![load(worker, size, epochs), cache(worker, size, epochs), windows(worker, size, epochs)]
    })
}

/// A workload and what is done with it.
struct Case<R, P, C> {
    name: &'static str,
    keys: usize,
    batches: Vec<Vec<R>>,
    wrap: fn(Vec<R>) -> FlowRows,
    plain: P,
    on_changes: C,
}

fn alternate<R: Clone + 'static>(
    worker: &mut Worker,
    config: &FlowConfig,
    case: Case<R, impl FnMut(&[R]) -> usize, impl FnMut(usize, ViewChanges) + 'static>,
) -> Compared {
    let Case { name, keys, batches, wrap, mut plain, on_changes } = case;
    let mut flow = views::build(worker, config, on_changes);
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
        black_box(plain(&batch));
        plain_s.push(start.elapsed().as_secs_f64());
    }
    drop(flow);
    while worker.has_dataflows() {
        worker.step();
    }
    compared(name, (keys, rows), (dataflow_s, plain_s))
}

fn load(worker: &mut Worker, size: usize, epochs: usize) -> Compared {
    let seen = Rc::new(RefCell::new(BTreeMap::new()));
    let (to, mut plain) = (seen.clone(), PlainLoad::default());
    let on_changes = move |_, changes: ViewChanges| to.borrow_mut().extend(changes.atom);
    let case = Case {
        name: "atom_load",
        keys: size,
        batches: load_batches(size, epochs),
        wrap: |load| FlowRows { load, ..FlowRows::default() },
        plain: |rows: &[_]| plain.absorb(rows),
        on_changes,
    };
    let compared = alternate(worker, &FlowConfig::default(), case);
    let mut seen = seen.borrow_mut();
    seen.retain(|_, total| *total != LoadTotal::default());
    let cells = plain.totals.into_iter().filter_map(|(key, total)| match key {
        LoadKey::Cell { instance, atom } => Some(((instance, atom), total)),
        _ => None,
    });
    assert_eq!(*seen, cells.collect::<BTreeMap<_, _>>(), "both must give the same totals");
    compared
}

fn cache(worker: &mut Worker, size: usize, epochs: usize) -> Compared {
    let held = Rc::new(RefCell::new(0i64));
    let (to, mut plain) = (held.clone(), PlainCache::default());
    let on_changes = move |_, changes: ViewChanges| *to.borrow_mut() += changes.cache.iter().map(|c| c.1).sum::<i64>();
    let case = Case {
        name: "cache_index",
        keys: size,
        batches: kv_batches(size, epochs),
        wrap: |kv| FlowRows { kv, ..FlowRows::default() },
        plain: |rows: &[_]| plain.absorb(rows),
        on_changes,
    };
    let compared = alternate(worker, &FlowConfig::default(), case);
    let blocks: usize = plain.instances.values().map(|(_, blocks)| blocks.len()).sum();
    assert_eq!(*held.borrow(), blocks as i64, "both must hold the same number of blocks");
    compared
}

/// Windows of ten batches, six of them running; the operator alone, as other operators read the same input.
fn windows(worker: &mut Worker, size: usize, epochs: usize) -> Compared {
    let (counted, mut plain) = (Rc::new(RefCell::new(BTreeMap::new())), PlainWindows::new(10, 6));
    let config = DistributionConfig { window_epochs: 10, windows: 6, ..DistributionConfig::default() };
    let (mut input, to) = (InputHandleVec::new(), counted.clone());
    let probe = worker.dataflow::<u64, _, _>(|scope| {
        let rows = input.to_stream(scope).request_distribution(config).rows;
        let running = rows.inspect(move |row: &DistributionRow| {
            if row.span == Span::Running {
                to.borrow_mut().insert((row.model, row.tier), row.arrivals + row.finished);
            }
        });
        running.probe().0
    });
    let (mut dataflow_s, mut plain_s) = (Vec::new(), Vec::new());
    for (epoch, batch) in traffic_batches(size / 10, epochs).into_iter().enumerate() {
        let mut rows = batch.clone();
        let start = Instant::now();
        input.send_batch(&mut rows);
        input.advance_to(epoch as u64 + 1);
        worker.step_while(|| probe.less_than(&(epoch as u64 + 1)));
        dataflow_s.push(start.elapsed().as_secs_f64());
        let start = Instant::now();
        black_box(plain.absorb(&batch));
        plain_s.push(start.elapsed().as_secs_f64());
    }
    input.close();
    while worker.has_dataflows() {
        worker.step();
    }
    assert_eq!(counted.borrow().values().sum::<u64>(), plain.counted(), "both must have counted the same rows");
    compared("request_distribution", (12, size / 10), (dataflow_s, plain_s))
}

/// The first batch, which loads, is left out.
fn compared(
    name: &'static str,
    (keys, rows): (usize, usize),
    (mut dataflow_s, mut plain_s): (Vec<f64>, Vec<f64>),
) -> Compared {
    let (dataflow_s, plain_s) = (dataflow_s.split_off(1), plain_s.split_off(1));
    let ratio = median(plain_s.iter().zip(&dataflow_s).map(|(plain, dataflow)| plain / dataflow).collect());
    let per_s = |seconds: Vec<f64>| rows as f64 / median(seconds);
    Compared { name, keys, rows, rows_per_s: per_s(dataflow_s), plain_rows_per_s: per_s(plain_s), ratio }
}
