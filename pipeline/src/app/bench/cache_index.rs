//! `evenkeel bench cache-index`: memory of the cache index, and the time of a longest-prefix match while it absorbs events.
//!
//! Measured at two sizes ten apart, each beside a plain program that keeps the same in a `HashMap` of sets behind a
//! read-write lock. Each side of each size is a process of its own, one after the other, so that memory is its own.
//! "10 M blocks × 64 workers" is read as: 10 M distinct blocks, spread over 64 instances, the beginnings of prompts held
//! by all 64. Memory is that of the whole process: the operator's state per instance, the readers' index, and what
//! timely holds; and a second time with all other operators beside them, as `serve` has it. Invariant: both sides take the same events at the same pace and answer the same questions; answers are
//! checked.

mod ours;
mod plain;
mod side;
mod whole;
mod workload;

use std::process::Command;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::figures::{print_json, profile};
pub(super) use side::{SideOptions, run as run_side};
use workload::{EVENTS_PER_SECOND, INSTANCES, PROMPT_BLOCKS};

#[derive(clap::Args)]
pub struct CacheIndexOptions {
    /// A tenth of the blocks: under 70 s in all
    #[arg(long)]
    quick: bool,
}

/// One side at one size.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SideReport {
    /// Distinct blocks.
    blocks: u64,
    /// (block, instance) pairs.
    entries: u64,
    load_events_per_second: f64,
    /// Resident after loading.
    resident_bytes: u64,
    /// Most that was ever resident, to the end.
    peak_bytes: u64,
    lookups: usize,
    lookup_us_p50: f64,
    lookup_us_p99: f64,
    lookup_us_max: f64,
    absorbed_events_per_second: f64,
}

#[derive(Serialize)]
struct SizeReport {
    ours: SideReport,
    /// The index within the whole dataflow.
    whole_dataflow: SideReport,
    plain: SideReport,
    plain_over_ours_lookup_p99: f64,
    plain_over_ours_memory: f64,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    instances: u32,
    prompt_blocks: u32,
    offered_events_per_second: u64,
    sizes: Vec<SizeReport>,
}

pub(super) fn run(options: CacheIndexOptions) -> anyhow::Result<()> {
    let (blocks, seconds) = if options.quick { (100_000, 2) } else { (1_000_000, 10) };
    let mut sizes = Vec::new();
    for blocks in [blocks, blocks * 10] {
        let ours = measure("ours", blocks, seconds)?;
        let whole_dataflow = measure("whole", blocks, seconds)?;
        let plain = measure("plain", blocks, seconds)?;
        let size = SizeReport {
            plain_over_ours_lookup_p99: plain.lookup_us_p99 / ours.lookup_us_p99,
            plain_over_ours_memory: plain.resident_bytes as f64 / ours.resident_bytes as f64,
            ours,
            whole_dataflow,
            plain,
        };
        print(&size);
        sizes.push(size);
    }
    print_json(&Report {
        bench: "cache-index",
        profile: profile(),
        quick: options.quick,
        instances: INSTANCES,
        prompt_blocks: PROMPT_BLOCKS,
        offered_events_per_second: EVENTS_PER_SECOND,
        sizes,
    })
}

/// Runs one side in a process of its own.
fn measure(side: &str, blocks: u64, seconds: u64) -> anyhow::Result<SideReport> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["bench", "cache-index-side", "--side", side]);
    command.args(["--blocks", &blocks.to_string(), "--seconds", &seconds.to_string()]);
    let output = command.stderr(std::process::Stdio::inherit()).output().context("cannot start a side of the bench")?;
    anyhow::ensure!(output.status.success(), "side {side} with {blocks} blocks ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).with_context(|| format!("side {side} wrote {last:?}; expected one JSON object"))
}

fn print(size: &SizeReport) {
    for (name, side) in
        [("index", &size.ours), ("whole dataflow", &size.whole_dataflow), ("HashMap + RwLock", &size.plain)]
    {
        println!(
            "{name:>17}, {} blocks: {:.0} MiB resident ({:.0} peak), longest prefix of {PROMPT_BLOCKS} blocks p50 {:.1} \
             p99 {:.1} max {:.0} us at {:.0} events/s, loaded at {:.0} events/s",
            side.blocks,
            side.resident_bytes as f64 / (1 << 20) as f64,
            side.peak_bytes as f64 / (1 << 20) as f64,
            side.lookup_us_p50,
            side.lookup_us_p99,
            side.lookup_us_max,
            side.absorbed_events_per_second,
            side.load_events_per_second,
        );
    }
}
