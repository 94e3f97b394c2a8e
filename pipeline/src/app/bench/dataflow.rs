//! `evenkeel bench dataflow`: events a second from the bus into the views, and the time from one event to the view.
//!
//! Absorbing is measured at two sizes ten apart, in turns with a plain program over the same batches (`plain`), until
//! the views hold the counts that the plain program came to. It includes waiting for an epoch to close, which weighs
//! on the small size. The time to the view is measured at epochs of 10 and of 100 ms, while 100 000 other events a second
//! are absorbed. Invariant: settings are those of `default.toml`, and of the configuration in force above it; the log is
//! off. Memory: the larger size's events, or those of the time that is measured.

mod plain;
mod plant;
mod workload;

use std::time::Duration;

use serde::Serialize;

use self::plant::Plant;
use super::figures::{median, millis, paired_ratio, percentile, print_json, profile};
use crate::{
    app::glue::WallClock,
    config::{self, Config, Overrides},
    gateway::deps::Clock,
};

#[derive(clap::Args)]
pub struct DataflowOptions {
    /// Fewer events: under 50 s in all
    #[arg(long)]
    quick: bool,
}

/// How much is measured.
struct Plan {
    rounds: usize,
    /// Chunks of the smaller size.
    chunks: u64,
    /// How long events are timed, at each length of epoch.
    timed: Duration,
}

/// Events a second while others are timed.
const LOAD_PER_SECOND: usize = 100_000;
/// What the way from an event to the view may take beside two epochs.
const SLACK: Duration = Duration::from_millis(25);

/// Medians over rounds; ratios are medians of the rounds' own.
#[derive(Serialize)]
struct AbsorbReport {
    events: usize,
    rounds: usize,
    absorb_ms: Option<f64>,
    events_per_second: Option<f64>,
    plain_program_events_per_second: Option<f64>,
    /// Without its decoding of batches.
    plain_program_counting_only_events_per_second: Option<f64>,
    dataflow_over_plain_program_ratio: Option<f64>,
    dataflow_over_plain_counting_only_ratio: Option<f64>,
}

/// One length of epoch.
#[derive(Serialize)]
struct ToViewReport {
    epoch_ms: f64,
    load_events_per_second: f64,
    events: usize,
    event_to_view_ms_p50: Option<f64>,
    event_to_view_ms_p99: Option<f64>,
    bar_ms_p99: f64,
    met: bool,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    dataflow_workers: usize,
    bus_flush_interval_ms: f64,
    absorb: Vec<AbsorbReport>,
    event_to_view: Vec<ToViewReport>,
}

pub(super) fn run(options: DataflowOptions) -> anyhow::Result<()> {
    let plan = if options.quick {
        Plan { rounds: 3, chunks: 8, timed: Duration::from_secs(5) }
    } else {
        Plan { rounds: 5, chunks: 40, timed: Duration::from_secs(15) }
    };
    let config = config::load(None, Overrides::default())?;
    let absorb = [plan.chunks, plan.chunks * 10].map(|chunks| absorb(&config, chunks, plan.rounds));
    let absorb = absorb.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let event_to_view = [10, 100].map(|ms| to_view(&config, Duration::from_millis(ms), plan.timed));
    let report = Report {
        bench: "dataflow",
        profile: profile(),
        quick: options.quick,
        dataflow_workers: config.dataflow.workers,
        bus_flush_interval_ms: millis(config.bus.flush_interval),
        absorb,
        event_to_view: event_to_view.into_iter().collect::<anyhow::Result<Vec<_>>>()?,
    };
    print_json(&report)
}

fn to_view(config: &Config, epoch: Duration, timed: Duration) -> anyhow::Result<ToViewReport> {
    let mut config = config.clone();
    config.dataflow.epoch = epoch;
    let per_chunk = workload::chunks(1, WallClock.now())?.iter().map(workload::Chunk::events).sum::<usize>();
    let count = (timed.as_secs_f64() * LOAD_PER_SECOND as f64 / per_chunk as f64).ceil() as u64;
    let chunks = workload::chunks(count, WallClock.now())?;
    let plant = Plant::start(&config)?;
    let samples = plant.event_to_view_ms(&chunks, timed, random());
    plant.stop();
    let samples = samples?;
    let bar = millis(2 * epoch + SLACK);
    let (p50, p99) = (percentile(&samples, 0.5), percentile(&samples, 0.99));
    let report = ToViewReport {
        epoch_ms: millis(epoch),
        load_events_per_second: (count as usize * per_chunk) as f64 / timed.as_secs_f64(),
        events: samples.len(),
        event_to_view_ms_p50: p50,
        event_to_view_ms_p99: p99,
        bar_ms_p99: bar,
        met: p99.is_some_and(|p99| p99 <= bar),
    };
    println!(
        "event to view at epochs of {:.0} ms under {:.0} events/s: p50 {:.1} ms, p99 {:.1} ms of {bar:.0} ms allowed",
        report.epoch_ms,
        report.load_events_per_second,
        p50.unwrap_or(f64::NAN),
        p99.unwrap_or(f64::NAN),
    );
    Ok(report)
}

/// Events a second of each round, side by side.
#[derive(Default)]
struct Speeds {
    absorb_ms: Vec<f64>,
    dataflow: Vec<f64>,
    plain: Vec<f64>,
    counting: Vec<f64>,
}

fn absorb(config: &Config, chunks: u64, rounds: usize) -> anyhow::Result<AbsorbReport> {
    let chunks = workload::chunks(chunks, WallClock.now())?;
    let events: usize = chunks.iter().map(workload::Chunk::events).sum();
    let per_second = |time: Duration| events as f64 / time.as_secs_f64();
    let mut speeds = Speeds::default();
    for _ in 0..rounds {
        let plain = plain::run(&chunks)?;
        let plant = Plant::start(config)?;
        let absorbed = plant.absorb(&chunks, &plain.counts);
        plant.stop();
        let absorbed = absorbed?;
        speeds.absorb_ms.push(millis(absorbed));
        speeds.dataflow.push(per_second(absorbed));
        speeds.plain.push(per_second(plain.decoding + plain.counting));
        speeds.counting.push(per_second(plain.counting));
    }
    let report = AbsorbReport {
        events,
        rounds,
        absorb_ms: median(&speeds.absorb_ms),
        events_per_second: median(&speeds.dataflow),
        plain_program_events_per_second: median(&speeds.plain),
        plain_program_counting_only_events_per_second: median(&speeds.counting),
        dataflow_over_plain_program_ratio: paired_ratio(&speeds.dataflow, &speeds.plain),
        dataflow_over_plain_counting_only_ratio: paired_ratio(&speeds.dataflow, &speeds.counting),
    };
    println!(
        "{events} events: dataflow {:.0} events/s, plain program {:.0} events/s, ratio {:.3}",
        report.events_per_second.unwrap_or(f64::NAN),
        report.plain_program_events_per_second.unwrap_or(f64::NAN),
        report.dataflow_over_plain_program_ratio.unwrap_or(f64::NAN),
    );
    Ok(report)
}

/// xorshift64 with a fixed seed: numbers below the argument, which is at least 1.
fn random() -> impl FnMut(u64) -> u64 {
    let mut state = 88_172_645_463_325_252_u64;
    move |bound| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % bound
    }
}
