//! The load view early and late in its history, and at a fixed rate.
use std::{
    cell::Cell,
    rc::Rc,
    time::{Duration, Instant},
};

use operators::{FlowConfig, FlowRows, LoadRow, views};

use crate::{median, workload::load_batches};

const OPEN: usize = 50_000;
const EPOCH: Duration = Duration::from_millis(10);

/// Cost of an update after `rows` rows of history, and after ten times as many, with the same number of requests open.
pub fn history(rows: usize) -> String {
    let per_epoch = OPEN / 10;
    let early = (rows / 10).div_ceil(per_epoch).max(40);
    let batches = load_batches(OPEN, early * 10);
    let times = timely::execute_directly(move |worker| {
        let mut flow = views::build(worker, &FlowConfig::default(), |_, _| {});
        let mut times = Vec::new();
        for (epoch, load) in batches.into_iter().enumerate() {
            let start = Instant::now();
            flow.inputs.send(&mut FlowRows { load, ..FlowRows::default() }).expect("invariant: a batch fits the feed");
            flow.inputs.advance(epoch as u64 + 1).expect("invariant: epochs rise");
            while flow.closed() != Some(epoch as u64) {
                worker.step();
            }
            times.push(start.elapsed().as_secs_f64());
        }
        times
    });
    // A fifth of the epochs before each mark.
    let around = |mark: usize| median(times[mark - early / 5..mark].to_vec()) / per_epoch as f64 * 1e9;
    let (first, last) = (around(early), around(early * 10));
    let ratio = last / first;
    println!(
        "load view after {} rows: {first:.0} ns an update; after ten times as many: {last:.0} ns, ratio {ratio:.2}",
        early * per_epoch
    );
    format!(
        r#"{{"rows":{},"ns_per_update":{first:.0},"ns_per_update_at_10x":{last:.0},"ratio":{ratio:.3},"bar":1.3,"met":{}}}"#,
        early * per_epoch,
        ratio <= 1.3
    )
}

/// `rate` load rows a second in epochs of 10 ms for `seconds`: how long after its end each epoch is told.
pub fn paced(rate: usize, seconds: usize) -> String {
    let per_epoch = rate / 100;
    let mut batches = load_batches(per_epoch * 10, seconds * 100).into_iter();
    let load: Vec<LoadRow> = batches.next().unwrap_or_default();
    let mut late = timely::execute_directly(move |worker| {
        let told = Rc::new(Cell::new(0u64));
        let to = told.clone();
        let mut flow = views::build(worker, &FlowConfig::default(), move |_, changes| {
            to.set(to.get() + changes.atom.len() as u64)
        });
        let mut step = |epoch: u64, load: Vec<LoadRow>| {
            flow.inputs.send(&mut FlowRows { load, ..FlowRows::default() }).expect("invariant: a batch fits the feed");
            flow.inputs.advance(epoch + 1).expect("invariant: epochs rise");
            while flow.closed() != Some(epoch) {
                worker.step();
            }
        };
        step(0, load);
        let started = Instant::now();
        let mut late = Vec::new();
        for (batch, load) in batches.enumerate() {
            let due = started + EPOCH * (batch as u32 + 1);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            step(batch as u64 + 1, load);
            late.push(due.elapsed().as_secs_f64() * 1e3);
        }
        assert!(told.get() > 0, "cells changed");
        late
    });
    late.sort_by(f64::total_cmp);
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
    let (p50, p99) = (at(0.5), at(0.99));
    println!(
        "load view at {rate} updates/s in epochs of 10 ms: told p50 {p50:.2} ms, p99 {p99:.2} ms after the epoch's end"
    );
    format!(
        r#"{{"updates_per_s":{rate},"epoch_ms":10,"ms_p50":{p50:.2},"ms_p99":{p99:.2},"bar_ms_p99":20,"met":{}}}"#,
        p99 < 20.0
    )
}
