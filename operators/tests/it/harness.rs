//! Runs one operator over a schedule of epochs on any number of workers and collects its output.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use proptest::prelude::*;
use timely::{
    Config, ExchangeData,
    dataflow::{InputHandleVec, ProbeHandle, StreamVec, operators::Inspect},
};

/// Rows by epoch; epochs rise but need not be neighbours.
pub type Schedule<R> = BTreeMap<u64, Vec<R>>;

/// A schedule of up to `epochs` epochs, each of fewer than `rows` rows, with some epochs left out.
pub fn schedules<R: std::fmt::Debug>(
    row: impl Strategy<Value = R> + 'static,
    epochs: usize,
    rows: usize,
) -> impl Strategy<Value = Schedule<R>> {
    let step = prop_oneof![8 => Just(1u64), 1 => Just(2), 1 => Just(7)];
    prop::collection::vec((step, prop::collection::vec(row, 0..rows)), 1..epochs).prop_map(|steps| {
        let mut epoch = 0;
        steps
            .into_iter()
            .map(|(step, rows)| {
                epoch += step;
                (epoch, rows)
            })
            .collect()
    })
}

/// The `number`-th of numbers that look drawn by chance (splitmix64).
pub fn mixed(number: u64) -> u64 {
    let mut mix = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mix = (mix ^ (mix >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mix = (mix ^ (mix >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mix ^ (mix >> 31)
}

/// Where an operator's output goes.
pub type Out<O> = Arc<Mutex<Vec<O>>>;
/// Where output marked with its epoch goes.
pub type Timed<O> = Out<(u64, O)>;
/// Output by epoch.
pub type Epochs<O> = BTreeMap<u64, Vec<O>>;

/// Sends a stream's rows to `out`.
pub fn collect<O: Clone + 'static, R: 'static>(
    stream: StreamVec<'_, u64, O>,
    out: &Out<R>,
    change: impl Fn(&O) -> R + 'static,
) {
    let out = out.clone();
    stream.inspect(move |row| out.lock().unwrap().push(change(row)));
}

/// Feeds `schedule` to the dataflow that `build` makes, rows spread over `workers` workers, and waits for its end. The
/// input ends only when what `build` probes has reached the last epoch.
pub fn run<R, B>(workers: usize, schedule: &Schedule<R>, build: B)
where
    R: ExchangeData + Clone + Sync,
    B: Fn(StreamVec<'_, u64, R>, &ProbeHandle<u64>) + Send + Sync + 'static,
{
    let schedule = schedule.clone();
    let config = if workers == 1 { Config::thread() } else { Config::process(workers) };
    let guards = timely::execute(config, move |worker| {
        let mut input = InputHandleVec::<u64, R>::new();
        let probe = ProbeHandle::new();
        worker.dataflow::<u64, _, _>(|scope| build(input.to_stream(scope), &probe));
        for (epoch, rows) in &schedule {
            input.advance_to(*epoch);
            for row in rows.iter().skip(worker.index()).step_by(worker.peers()) {
                input.send(row.clone());
            }
            worker.step();
        }
        let last = schedule.keys().last().copied().unwrap_or(0);
        worker.step_while(|| probe.less_than(&last));
    })
    .unwrap();
    for result in guards.join() {
        result.unwrap();
    }
}

/// Splits what a run gave by epoch, each epoch sorted.
pub fn by_epoch<O: Ord + Clone>(rows: &Timed<O>) -> Epochs<O> {
    let mut epochs = Epochs::<O>::new();
    for (epoch, row) in rows.lock().unwrap().iter() {
        epochs.entry(*epoch).or_default().push(row.clone());
    }
    epochs.values_mut().for_each(|rows| rows.sort());
    epochs
}

/// Applies ±1 changes to a multiset kept as counts; absent means 0.
pub fn apply<D: Ord + Clone>(state: &mut BTreeMap<D, i64>, changes: &[(D, i64)]) {
    for (data, diff) in changes {
        let count = state.entry(data.clone()).or_insert(0);
        *count += diff;
        if *count == 0 {
            state.remove(data);
        }
    }
}
