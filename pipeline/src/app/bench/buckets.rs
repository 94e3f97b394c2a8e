//! `evenkeel bench buckets`: what length buckets buy on a recorded trace: imbalance, time to first token, hit rate, with the axis
//! uncut, cut by the scan (SPEC B3) and cut optimally.
//!
//! The policies are those of the gateway with the settings in force; the fleet is modelled (`instance`), as a machine with many
//! accelerators is not at hand. Invariant: the three drives differ in the cut alone. Figures carry their unit in their name.
//! Memory: the trace, and a few numbers a request.

mod fleet;
mod instance;

use std::{path::PathBuf, time::Instant};

use serde::Serialize;

use self::fleet::{Drive, Driven};
use super::figures::{millis, percentile, print_json, profile};
use crate::{
    config::{self, Overrides},
    load::trace,
    policy::CutPolicy,
};

const CUTS: [CutPolicy; 3] = [CutPolicy::Off, CutPolicy::ScanCut, CutPolicy::Optimal];
/// Prompts up to the first are short, up to the second middling.
const CLASSES: [u32; 2] = [2000, 16_000];

#[derive(clap::Args)]
pub struct BucketsOptions {
    /// Recorded requests (Mooncake JSON lines or Azure CSV, plain or .zst)
    #[arg(long)]
    trace: PathBuf,
    #[arg(long, default_value_t = 8)]
    instances: u32,
    /// Times as fast as recorded; may be given several times
    #[arg(long = "speed", default_values_t = [2.0, 4.0])]
    speeds: Vec<f64>,
    /// First requests of the trace only
    #[arg(long)]
    limit: Option<usize>,
    /// TOML file with settings that differ from the defaults
    #[arg(long)]
    config: Option<PathBuf>,
}

/// One drive.
#[derive(Serialize)]
struct DriveReport {
    cut: &'static str,
    speed: f64,
    utilisation: f64,
    imbalance_mean: Option<f64>,
    imbalance_p99: Option<f64>,
    /// Of the plans that would be made, every ten seconds; of the uncut fleet alone.
    plan_imbalance_scan_mean: Option<f64>,
    plan_imbalance_optimal_mean: Option<f64>,
    ttft_ms_p50: Option<f64>,
    ttft_ms_p99: Option<f64>,
    ttft_ms_p50_short: Option<f64>,
    ttft_ms_p99_short: Option<f64>,
    ttft_ms_p50_middling: Option<f64>,
    ttft_ms_p99_middling: Option<f64>,
    ttft_ms_p50_long: Option<f64>,
    ttft_ms_p99_long: Option<f64>,
    itl_ms_p50: Option<f64>,
    itl_ms_p99: Option<f64>,
    hit_rate: f64,
    borrowed_share: f64,
    plans: usize,
    moved_instances: usize,
    took_ms: f64,
}

/// Ratios: of the cut over uncut, at the last speed.
#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    requests: usize,
    instances: u32,
    drives: Vec<DriveReport>,
    imbalance_scan_over_off: Option<f64>,
    imbalance_optimal_over_off: Option<f64>,
    ttft_p99_scan_over_off: Option<f64>,
    ttft_p99_optimal_over_off: Option<f64>,
}

pub(super) fn run(options: &BucketsOptions) -> anyhow::Result<()> {
    anyhow::ensure!(options.speeds.iter().all(|speed| *speed > 0.0 && speed.is_finite()), "--speed is above 0");
    let settings = config::load(options.config.as_deref(), Overrides::default())?;
    anyhow::ensure!(
        options.instances as usize >= settings.policy.buckets.instances_min,
        "--instances: at least policy.buckets.instances_min = {}, else nothing is cut",
        settings.policy.buckets.instances_min
    );
    let rows = trace::read(&options.trace, options.limit)?;
    let mut drives = Vec::new();
    println!(
        "{:>9} {:>6} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6}",
        "cut", "speed", "busy", "imbalance", "p50 ms", "p99 ms", "short p99", "long p99", "hit"
    );
    for speed in &options.speeds {
        for cut in CUTS {
            let drive =
                Drive { rows: &rows, instances: options.instances, cut, speed: *speed, policy: &settings.policy };
            let began = Instant::now();
            let driven = fleet::serve(drive);
            let report = drive_report((cut, *speed), &driven, millis(began.elapsed()));
            print_row(&report);
            drives.push(report);
        }
    }
    print_json(&report(rows.len(), options.instances, drives))
}

fn drive_report((cut, speed): (CutPolicy, f64), driven: &Driven, took_ms: f64) -> DriveReport {
    let ttft = |holds: &dyn Fn(u32) -> bool, share: f64| {
        let of_class = driven.outcomes.iter().filter(|outcome| holds(outcome.prompt));
        let times: Vec<f64> = of_class.map(|o| (o.first_us - o.arrived_us) as f64 / 1e3).collect();
        percentile(&times, share)
    };
    let [short, middling] = CLASSES;
    let is_short = |prompt: u32| prompt <= short;
    let is_middling = |prompt: u32| prompt > short && prompt <= middling;
    let is_long = |prompt: u32| prompt > middling;
    let gaps: Vec<f64> = driven.outcomes.iter().filter_map(fleet::inter_token).map(millis).collect();
    let mean = |samples: &[f64]| (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64);
    DriveReport {
        cut: cut.name(),
        speed,
        utilisation: driven.utilisation,
        imbalance_mean: mean(&driven.imbalance),
        imbalance_p99: percentile(&driven.imbalance, 0.99),
        plan_imbalance_scan_mean: mean(&driven.plan_imbalance[0]),
        plan_imbalance_optimal_mean: mean(&driven.plan_imbalance[1]),
        ttft_ms_p50: ttft(&|_| true, 0.5),
        ttft_ms_p99: ttft(&|_| true, 0.99),
        ttft_ms_p50_short: ttft(&is_short, 0.5),
        ttft_ms_p99_short: ttft(&is_short, 0.99),
        ttft_ms_p50_middling: ttft(&is_middling, 0.5),
        ttft_ms_p99_middling: ttft(&is_middling, 0.99),
        ttft_ms_p50_long: ttft(&is_long, 0.5),
        ttft_ms_p99_long: ttft(&is_long, 0.99),
        itl_ms_p50: percentile(&gaps, 0.5),
        itl_ms_p99: percentile(&gaps, 0.99),
        hit_rate: driven.cached_tokens as f64 / driven.prompt_tokens.max(1) as f64,
        borrowed_share: driven.borrowed as f64 / driven.outcomes.len().max(1) as f64,
        plans: driven.plans,
        moved_instances: driven.moved,
        took_ms,
    }
}

fn print_row(report: &DriveReport) {
    let shown = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.0}"));
    println!(
        "{:>9} {:>6} {:>6.2} {:>9} {:>9} {:>9} {:>9} {:>9} {:>6.3}",
        report.cut,
        report.speed,
        report.utilisation,
        report.imbalance_mean.map_or("-".to_string(), |value| format!("{value:.2}")),
        shown(report.ttft_ms_p50),
        shown(report.ttft_ms_p99),
        shown(report.ttft_ms_p99_short),
        shown(report.ttft_ms_p99_long),
        report.hit_rate,
    );
}

fn report(requests: usize, instances: u32, drives: Vec<DriveReport>) -> Report {
    let of = |cut: CutPolicy, figure: fn(&DriveReport) -> Option<f64>| {
        drives.iter().rfind(|drive| drive.cut == cut.name()).and_then(figure)
    };
    let over = |cut, figure: fn(&DriveReport) -> Option<f64>| {
        Some(of(cut, figure)? / of(CutPolicy::Off, figure).filter(|off| *off > 0.0)?)
    };
    let cuts = [CutPolicy::ScanCut, CutPolicy::Optimal];
    let [imbalance_scan_over_off, imbalance_optimal_over_off] = cuts.map(|cut| over(cut, |d| d.imbalance_mean));
    let [ttft_p99_scan_over_off, ttft_p99_optimal_over_off] = cuts.map(|cut| over(cut, |d| d.ttft_ms_p99));
    Report {
        bench: "buckets",
        profile: profile(),
        requests,
        instances,
        drives,
        imbalance_scan_over_off,
        imbalance_optimal_over_off,
        ttft_p99_scan_over_off,
        ttft_p99_optimal_over_off,
    }
}

#[cfg(test)]
mod tests {
    use super::{fleet::Outcome, *};
    use crate::load::trace::TraceRow;

    /// Scenario: a made-up trace of many short and few long requests, uncut and cut.
    /// Guarantees: every request is served in order of its events; a cut makes plans and moves requests, uncut makes none; the same
    /// drive again gives the same figures.
    #[test]
    fn drives_serve_everything() {
        let row = |n: u64| {
            let (input, output) = if n.is_multiple_of(10) { (20_000, 200) } else { (300 + 7 * n % 900, 50) };
            let blocks = (0..input.div_ceil(trace::BLOCK_TOKENS)).map(|block| (n % 40) << 20 | block).collect();
            TraceRow { at_us: n * 60_000, input, output, blocks }
        };
        let rows: Vec<TraceRow> = (0..800).map(row).collect();
        let policy = crate::policy::test_policy();
        let serve = |cut| fleet::serve(Drive { rows: &rows, instances: 4, cut, speed: 1.0, policy: &policy });
        let (off, scan, again) = (serve(CutPolicy::Off), serve(CutPolicy::ScanCut), serve(CutPolicy::ScanCut));
        for driven in [&off, &scan] {
            let in_order = |o: &Outcome| o.arrived_us <= o.first_us && o.first_us <= o.finished_us && o.finished_us > 0;
            assert!(driven.outcomes.iter().all(in_order) && driven.cached_tokens > 0 && driven.utilisation > 0.05);
        }
        assert!(off.plans == 0 && off.borrowed == 0 && scan.plans >= 1, "{} plans", scan.plans);
        let firsts = |driven: &Driven| driven.outcomes.iter().map(|o| o.first_us).collect::<Vec<_>>();
        assert!(firsts(&scan) == firsts(&again) && firsts(&scan) != firsts(&off));
        let told = drive_report((CutPolicy::ScanCut, 1.0), &scan, 0.0);
        assert!(told.imbalance_mean.unwrap() >= 1.0 && told.ttft_ms_p99 >= told.ttft_ms_p50);
    }
}
