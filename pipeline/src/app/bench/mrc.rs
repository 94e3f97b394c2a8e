//! `evenkeel bench mrc`: the miss-ratio curve of a trace, beside LRU caches simulated one capacity at a time (SPEC X4).
//!
//! Both sides take the same rows in turns: ours gives all capacities at once, the peer the four that are printed. Between
//! them ours takes the first tenth of the trace ten times, which tells how its cost grows. Hit rates are shares of the prompt tokens; capacities are in the trace's blocks.
//! Invariant: nothing is forgotten on either side. Memory: the trace.

mod seeds;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use operators::{
    CurveGroup, CurveRow, Forgetting, PromptRow, ReuseDistanceConfig, ReuseDistances,
    reference::reuse_distance::DirectLru,
};
use serde::Serialize;

use super::figures::{median, millis, paired_ratio, print_json, profile};
use crate::load::trace::{self, BLOCK_TOKENS};

const CAPACITIES: [u64; 3] = [1000, 10_000, 100_000];
const ROUNDS: usize = 9;
/// Turns of the first tenth in a round, so that it takes about as long as the whole.
const TENTHS: usize = 10;

#[derive(clap::Args)]
pub struct MrcOptions {
    /// Recorded requests (Mooncake JSON lines, plain or .zst)
    #[arg(long)]
    trace: PathBuf,
    /// Newest blocks that the sampled curve follows one by one
    #[arg(long, default_value_t = 8000)]
    exact_blocks: u64,
    /// Share of the older blocks that it follows
    #[arg(long, default_value_t = 0.01)]
    sampling: f64,
    /// Chooses the sample
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Samples that are compared with the exact curve, besides
    #[arg(long, default_value_t = 0)]
    seeds: u64,
}

/// Hit rates: shares of the prompt tokens.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    requests: usize,
    blocks: u64,
    blocks_unique: u64,
    hit_infinite: Option<f64>,
    hit_lru_1000: Option<f64>,
    hit_lru_10000: Option<f64>,
    hit_lru_100000: Option<f64>,
    simulated_hit_infinite: f64,
    simulated_hit_lru_1000: f64,
    simulated_hit_lru_10000: f64,
    simulated_hit_lru_100000: f64,
    sampled_exact_blocks: u64,
    sampled_rate: f64,
    sampled_hit_infinite: Option<f64>,
    sampled_hit_lru_1000: Option<f64>,
    sampled_hit_lru_10000: Option<f64>,
    sampled_hit_lru_100000: Option<f64>,
    sampled_error_infinite: f64,
    sampled_error_lru_1000: f64,
    sampled_error_lru_10000: f64,
    sampled_error_lru_100000: f64,
    /// Over `--seeds` samples.
    spread: Vec<seeds::Spread>,
    curve_capacities: usize,
    curve_ms: Option<f64>,
    sampled_ms: Option<f64>,
    /// Four capacities.
    simulated_ms: Option<f64>,
    curve_over_simulated_ratio: Option<f64>,
    sampled_over_simulated_ratio: Option<f64>,
    curve_ns_per_block_tenth: Option<f64>,
    curve_ns_per_block: Option<f64>,
    /// Cost of a block in all of the trace over that in its first tenth.
    curve_cost_growth_ratio: Option<f64>,
    sampled_cost_growth_ratio: Option<f64>,
}

pub(super) fn run(options: &MrcOptions) -> anyhow::Result<()> {
    anyhow::ensure!(options.sampling > 0.0 && options.sampling <= 1.0, "--sampling is above 0 and at most 1");
    let rows = trace::read(&options.trace, None)?;
    let rows: Vec<PromptRow> = rows.into_iter().enumerate().map(prompt).collect::<anyhow::Result<_>>()?;
    let exact = ReuseDistanceConfig {
        exact_blocks: 100_000_000,
        forgetting: Forgetting::Never,
        ..ReuseDistanceConfig::default()
    };
    let sampled = ReuseDistanceConfig {
        exact_blocks: options.exact_blocks,
        rate_most: options.sampling,
        rate_least: options.sampling,
        sample_max: 1 << 20,
        seed: options.seed,
        ..exact
    };
    let all = compare(&rows, exact, sampled)?;
    print_curves(&all);
    let known = rates(&all.exact).map(|(rate, _)| rate.unwrap_or(f64::NAN));
    let spread = seeds::over_seeds(&rows, sampled, (options.seeds, known))?;
    let report = Report { spread, ..report(&rows, &all) };
    println!(
        "{} blocks: curve {:.1} ms, sampled {:.1} ms, {} simulated caches {:.1} ms; curve over simulated {:.3}",
        report.blocks,
        report.curve_ms.unwrap_or(f64::NAN),
        report.sampled_ms.unwrap_or(f64::NAN),
        CAPACITIES.len() + 1,
        report.simulated_ms.unwrap_or(f64::NAN),
        report.curve_over_simulated_ratio.unwrap_or(f64::NAN),
    );
    println!(
        "cost of a block, all of the trace over its first tenth: {:.2} exact, {:.2} sampled",
        report.curve_cost_growth_ratio.unwrap_or(f64::NAN),
        report.sampled_cost_growth_ratio.unwrap_or(f64::NAN),
    );
    print_json(&report)
}

fn prompt((index, row): (usize, trace::TraceRow)) -> anyhow::Result<PromptRow> {
    Ok(PromptRow {
        at_us: row.at_us as i64,
        request: index as u64,
        model: 0,
        tier: 0,
        tenant: 0,
        prompt_tokens: u32::try_from(row.input).context("a prompt beyond 2^32 tokens")?,
        block_tokens: BLOCK_TOKENS as u32,
        hashes: row.blocks,
    })
}

/// What both sides came to over the whole trace.
struct Compared {
    exact: CurveRow,
    sampled: CurveRow,
    /// Hit tokens without a bound, then at [`CAPACITIES`].
    simulated: Vec<u64>,
    times: Times,
}

/// Milliseconds of each round; a tenth is the first tenth of the trace, gone through [`TENTHS`] times.
#[derive(Default)]
struct Times {
    exact: Vec<f64>,
    sampled: Vec<f64>,
    simulated: Vec<f64>,
    exact_tenths: Vec<f64>,
    sampled_tenths: Vec<f64>,
}

fn compare(rows: &[PromptRow], exact: ReuseDistanceConfig, sampled: ReuseDistanceConfig) -> anyhow::Result<Compared> {
    let (mut compared, mut times) = (None, Times::default());
    let tenth = first_tenth(rows);
    let tenths = |config| -> anyhow::Result<f64> {
        let took = (0..TENTHS).map(|_| Ok(curve(tenth, config)?.1)).sum::<anyhow::Result<Duration>>();
        Ok(millis(took?))
    };
    for _ in 0..ROUNDS {
        times.exact_tenths.push(tenths(exact)?);
        let (exact, took) = curve(rows, exact)?;
        times.exact.push(millis(took));
        times.sampled_tenths.push(tenths(sampled)?);
        let (sampled, took) = curve(rows, sampled)?;
        times.sampled.push(millis(took));
        let began = Instant::now();
        let bounds = [None].into_iter().chain(CAPACITIES.map(|capacity| Some(capacity as usize)));
        let simulated: Vec<u64> = bounds.map(|capacity| simulate(rows, capacity)).collect();
        times.simulated.push(millis(began.elapsed()));
        compared = Some((exact, sampled, simulated));
    }
    let (exact, sampled, simulated) = compared.expect("invariant: at least one round");
    Ok(Compared { exact, sampled, simulated, times })
}

fn first_tenth(rows: &[PromptRow]) -> &[PromptRow] {
    &rows[..rows.len().div_ceil(10)]
}

fn blocks(rows: &[PromptRow]) -> u64 {
    rows.iter().map(|row| row.hashes.len() as u64).sum()
}

fn curve(rows: &[PromptRow], config: ReuseDistanceConfig) -> anyhow::Result<(CurveRow, Duration)> {
    let began = Instant::now();
    let mut curves = ReuseDistances::new(config);
    for row in rows {
        curves.take(row).map_err(|refusal| anyhow::anyhow!("request {}: {refusal}", row.request))?;
    }
    let curve = curves.curve(CurveGroup::All).context("the trace has no rows")?;
    Ok((curve, began.elapsed()))
}

/// Hit tokens of one simulated cache.
fn simulate(rows: &[PromptRow], capacity: Option<usize>) -> u64 {
    let mut cache = DirectLru::new(capacity);
    rows.iter().map(|row| cache.take(row)).sum()
}

/// Hit rates and errors without a bound, then at [`CAPACITIES`].
fn rates(curve: &CurveRow) -> [(Option<f64>, f64); 4] {
    let [a, b, c] = CAPACITIES.map(|capacity| curve.at(capacity));
    [curve.infinite, a, b, c]
        .map(|point| (curve.hit_rate(point), point.error_tokens as f64 / curve.prompt_tokens.max(1) as f64))
}

/// Every third capacity of the curve.
fn print_curves(all: &Compared) {
    println!("{:>14} {:>9} {:>9} {:>9}", "blocks", "exact", "sampled", "± error");
    let percent = |rate: Option<f64>| rate.map_or("-".into(), |rate| format!("{:.2} %", rate * 100.0));
    let line = |name: String, exact, sampled, error: f64| {
        println!("{name:>14} {:>9} {:>9} {:>9}", percent(exact), percent(sampled), percent(Some(error)));
    };
    for point in all.exact.points.iter().step_by(3) {
        let sampled = all.sampled.at(point.capacity_blocks);
        let error = sampled.error_tokens as f64 / all.sampled.prompt_tokens.max(1) as f64;
        line(point.capacity_blocks.to_string(), all.exact.hit_rate(*point), all.sampled.hit_rate(sampled), error);
    }
    let names = ["no bound", "1000", "10000", "100000"];
    for ((name, exact), sampled) in names.into_iter().zip(rates(&all.exact)).zip(rates(&all.sampled)) {
        line(name.into(), exact.0, sampled.0, sampled.1);
    }
}

fn report(rows: &[PromptRow], all: &Compared) -> Report {
    let ([infinite, a, b, c], sampled, times) = (rates(&all.exact), rates(&all.sampled), &all.times);
    let simulated = |index: usize| all.simulated[index] as f64 / all.exact.prompt_tokens.max(1) as f64;
    let (tenths, whole) = (TENTHS as u64 * blocks(first_tenth(rows)), blocks(rows));
    let ns_per_block = |ms: &[f64], blocks: u64| median(ms).map(|ms| ms * 1e6 / blocks.max(1) as f64);
    let growth = |tenths_ms: &[f64], whole_ms: &[f64]| {
        paired_ratio(whole_ms, tenths_ms).map(|ratio| ratio * tenths as f64 / whole.max(1) as f64)
    };
    Report {
        bench: "mrc",
        profile: profile(),
        requests: rows.len(),
        blocks: whole,
        blocks_unique: all.exact.blocks,
        hit_infinite: infinite.0,
        hit_lru_1000: a.0,
        hit_lru_10000: b.0,
        hit_lru_100000: c.0,
        simulated_hit_infinite: simulated(0),
        simulated_hit_lru_1000: simulated(1),
        simulated_hit_lru_10000: simulated(2),
        simulated_hit_lru_100000: simulated(3),
        sampled_exact_blocks: all.sampled.exact_blocks,
        sampled_rate: f64::from(all.sampled.sampling_ppm) / 1e6,
        sampled_hit_infinite: sampled[0].0,
        sampled_hit_lru_1000: sampled[1].0,
        sampled_hit_lru_10000: sampled[2].0,
        sampled_hit_lru_100000: sampled[3].0,
        sampled_error_infinite: sampled[0].1,
        sampled_error_lru_1000: sampled[1].1,
        sampled_error_lru_10000: sampled[2].1,
        sampled_error_lru_100000: sampled[3].1,
        spread: Vec::new(),
        curve_capacities: all.exact.points.len(),
        curve_ms: median(&times.exact),
        sampled_ms: median(&times.sampled),
        simulated_ms: median(&times.simulated),
        curve_over_simulated_ratio: paired_ratio(&times.exact, &times.simulated),
        sampled_over_simulated_ratio: paired_ratio(&times.sampled, &times.simulated),
        curve_ns_per_block_tenth: ns_per_block(&times.exact_tenths, tenths),
        curve_ns_per_block: ns_per_block(&times.exact, whole),
        curve_cost_growth_ratio: growth(&times.exact_tenths, &times.exact),
        sampled_cost_growth_ratio: growth(&times.sampled_tenths, &times.sampled),
    }
}
