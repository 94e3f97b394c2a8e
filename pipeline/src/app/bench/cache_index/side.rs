//! One side in a process of its own: load, measure memory, then questions and events at the same time.
//!
//! The thread that applies events keeps a pace of [`EVENTS_PER_SECOND`] in batches of 10 ms; if it falls behind it does not
//! skip, and the figure of what it absorbed says so. Questions come one after the other on the main thread.

use std::{
    fs,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::ValueEnum;
use operators::KvRow;

use super::{
    super::figures::{peak_bytes, percentile, print_json},
    SideReport, ours,
    plain::Plain,
    whole,
    workload::{EVENTS_PER_SECOND, PROMPT_BLOCKS, Workload, instance_of, question},
};

const BATCH: Duration = Duration::from_millis(10);
/// Prompts loaded per batch: as many events as come in 90 ms at [`EVENTS_PER_SECOND`].
const LOAD_PROMPTS: u64 = 10;

#[derive(Clone, Copy, ValueEnum)]
enum Side {
    Ours,
    Whole,
    Plain,
}

#[derive(clap::Args)]
pub struct SideOptions {
    #[arg(long)]
    side: Side,
    #[arg(long)]
    blocks: u64,
    #[arg(long)]
    seconds: u64,
}

/// What the two threads share.
struct Control {
    loaded: Barrier,
    measured: Barrier,
    stop: AtomicBool,
    absorbed: AtomicU64,
    load_us: AtomicU64,
    absorb_us: AtomicU64,
}

pub fn run(options: &SideOptions) -> anyhow::Result<()> {
    let workload = Workload::new(options.blocks);
    let entries = workload.entries();
    match options.side {
        Side::Ours => {
            let index = ours::index(entries);
            let reader = index.clone();
            let write = move |drive: Drive| ours::with_writer(index, entries, drive);
            measure((options, workload), write, |hashes| ours::longest(&reader, hashes))
        }
        Side::Whole => {
            let (index, config) = (ours::index(entries), whole::config(entries)?);
            let reader = index.clone();
            let write = move |drive: Drive| whole::with_writer(index, config, drive);
            measure((options, workload), write, |hashes| ours::longest(&reader, hashes))
        }
        Side::Plain => {
            let plain = Arc::new(Plain::default());
            let writer = plain.clone();
            let write = move |drive: Drive| drive(&mut |rows: Vec<KvRow>| writer.apply(&rows));
            measure((options, workload), write, |hashes| plain.longest(hashes))
        }
    }
}

/// Applies batches until told to stop; runs on the writer's thread.
pub(super) type Drive = Box<dyn FnOnce(&mut dyn FnMut(Vec<KvRow>)) + Send>;

fn measure(
    (options, workload): (&SideOptions, Workload),
    write: impl FnOnce(Drive) + Send + 'static,
    longest: impl Fn(&[u64]) -> (u32, u32),
) -> anyhow::Result<()> {
    let control = Arc::new(Control {
        loaded: Barrier::new(2),
        measured: Barrier::new(2),
        stop: AtomicBool::new(false),
        absorbed: AtomicU64::new(0),
        load_us: AtomicU64::new(0),
        absorb_us: AtomicU64::new(0),
    });
    let (blocks, entries, asked) = (workload.blocks(), workload.entries(), workload.asked());
    let writers = control.clone();
    let writer = thread::spawn(move || write(Box::new(move |apply| drive(workload, &writers, apply))));
    control.loaded.wait();
    let resident_bytes = resident_bytes()?;
    control.measured.wait();
    let (mut hashes, mut lookups_us) = (Vec::new(), Vec::new());
    let (started, mut prompt) = (Instant::now(), 0u64);
    while started.elapsed() < Duration::from_secs(options.seconds) {
        prompt = prompt.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let asked = (prompt >> 33) % asked.end;
        question(asked, &mut hashes);
        let at = Instant::now();
        let found = longest(&hashes);
        lookups_us.push(at.elapsed().as_secs_f64() * 1e6);
        anyhow::ensure!(found == (instance_of(asked), PROMPT_BLOCKS), "prompt {asked}: found {found:?}");
    }
    control.stop.store(true, Ordering::Relaxed);
    anyhow::ensure!(writer.join().is_ok(), "the thread that applies events panicked");
    let seconds = |us: &AtomicU64| us.load(Ordering::Relaxed).max(1) as f64 / 1e6;
    print_json(&SideReport {
        blocks,
        entries,
        load_events_per_second: entries as f64 / seconds(&control.load_us),
        resident_bytes,
        peak_bytes: peak_bytes(std::process::id())?,
        lookups: lookups_us.len(),
        lookup_us_p50: percentile(&lookups_us, 0.5).unwrap_or(f64::NAN),
        lookup_us_p99: percentile(&lookups_us, 0.99).unwrap_or(f64::NAN),
        lookup_us_max: percentile(&lookups_us, 1.0).unwrap_or(f64::NAN),
        absorbed_events_per_second: control.absorbed.load(Ordering::Relaxed) as f64 / seconds(&control.absorb_us),
    })
}

fn drive(mut workload: Workload, control: &Control, apply: &mut dyn FnMut(Vec<KvRow>)) {
    let started = Instant::now();
    apply(workload.beginnings());
    let all = workload.all_prompts();
    for first in all.clone().step_by(LOAD_PROMPTS as usize) {
        apply(workload.prompts(first..all.end.min(first + LOAD_PROMPTS)));
    }
    control.load_us.store(started.elapsed().as_micros() as u64, Ordering::Relaxed);
    control.loaded.wait();
    control.measured.wait();
    let (started, mut batches) = (Instant::now(), 0u32);
    let events = EVENTS_PER_SECOND * BATCH.as_micros() as u64 / 1_000_000;
    while !control.stop.load(Ordering::Relaxed) {
        apply(workload.replace(events));
        batches += 1;
        control.absorbed.fetch_add(events, Ordering::Relaxed);
        thread::sleep((BATCH * batches).saturating_sub(started.elapsed()));
    }
    control.absorb_us.store(started.elapsed().as_micros() as u64, Ordering::Relaxed);
}

/// Memory of this process that is resident now.
fn resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("expected a line VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().context("expected VmRSS in kB")?;
    Ok(kib * 1024)
}
