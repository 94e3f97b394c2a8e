//! `evenkeel bench overload`: goodput while the load steps from half of what the fleet carries to twice of it (SPEC A4).
//!
//! A real server with real workers, a simulated model that takes its modelled time or a model file. First the time of a
//! request of each class alone, and the capacity: requests a second with more in flight than fit. Then steps of random
//! arrivals that do not wait for answers; each request states a budget, some times what its class takes alone. The same
//! steps again with deadlines off. A request counts as good if its whole answer came within its budget by the client's clock.
//!
//! Refusals that were wrong are told from a share of would-be refusals that are let through, drawn by request id. Engine time
//! is shared out by tokens: what one prompt token and one drawn token take is solved from the steps of the engines.
//! With `--stand-still` a step shows what a machine that stops for a moment does, and the steps after it how long it takes to get over it.
//! Invariant: steps do not overlap; the first part of each is left out. State: one record a request.

mod load;
mod server;
mod tally;

use std::time::Duration;

use anyhow::Context;
use serde::Serialize;

use self::{
    load::{Class, Drive, classes},
    server::{Mode, Serving},
    tally::{ModeReport, StepReport},
};
use super::figures::{median, print_json, profile};

#[derive(clap::Args)]
pub struct OverloadOptions {
    /// Fewer and shorter steps: under two minutes in all
    #[arg(long)]
    quick: bool,
    /// Path of a .gguf file, or `simulated`
    #[arg(long, default_value = "simulated")]
    model: String,
    #[arg(long, default_value_t = 2)]
    workers: u32,
    /// Seed of arrivals, lengths and prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the server's table `slo` of the steps with deadlines on into this file, a JSON object a line
    #[arg(long)]
    rows: Option<std::path::PathBuf>,
    /// Loads of the steps in place of the plan's, as shares of capacity, such as 2,2,2; ratios are of the last
    #[arg(long, value_delimiter = ',', value_parser = load_share)]
    loads: Vec<f64>,
    /// Stops server and workers for so many seconds in the middle of the first step at the highest load, as a machine that stands still
    #[arg(long, default_value_t = 0.0, value_parser = stop_seconds)]
    stand_still: f64,
}

fn stop_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=10.0).contains(seconds));
    seconds.ok_or_else(|| "expected seconds from 0 to 10".to_string())
}

fn load_share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|share| *share > 0.0 && *share <= 10.0);
    share.ok_or_else(|| "expected a number above 0 and at most 10".to_string())
}

/// How much is measured.
struct Plan {
    loads: &'static [f64],
    step: Duration,
    capacity: Duration,
    alone: usize,
}

const WHOLE: Plan = Plan {
    loads: &[0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0],
    step: Duration::from_secs(20),
    capacity: Duration::from_secs(15),
    alone: 7,
};
const QUICK: Plan =
    Plan { loads: &[0.5, 1.0, 1.5, 2.0], step: Duration::from_secs(8), capacity: Duration::from_secs(8), alone: 3 };
/// Budgets, as multiples of the time a request takes alone.
const BUDGETS: [f64; 3] = [4.0, 6.0, 10.0];

#[derive(Serialize)]
struct ClassReport {
    name: &'static str,
    share: f64,
    alone_seconds_p50: f64,
    budget_seconds: f64,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    model: String,
    workers: u32,
    seed: u64,
    /// In the middle of the first step at the highest load.
    stood_still_seconds: f64,
    classes: Vec<ClassReport>,
    capacity_requests_per_s: f64,
    /// With deadlines on: goodput at the highest load over the best of all loads.
    goodput_ratio_2x_over_peak: f64,
    goodput_tokens_ratio_2x_over_peak: f64,
    /// Share of the engine time of all steps that went to requests that missed their budget, trials left out.
    engine_time_share_missed: f64,
    /// The largest of a single step.
    engine_time_share_missed_max: f64,
    /// Share of would-be refusals that made it after all.
    wrong_refusal_share: Option<f64>,
    trials: u64,
    goodput_ratio_2x_over_peak_deadlines_off: f64,
    goodput_tokens_ratio_2x_over_peak_deadlines_off: f64,
    engine_time_share_missed_deadlines_off: f64,
    engine_time_share_missed_max_deadlines_off: f64,
    deadlines_on: Vec<StepReport>,
    deadlines_off: Vec<StepReport>,
}

pub(super) fn run(options: OverloadOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(measure(&options))?;
    print_json(&report)
}

async fn measure(options: &OverloadOptions) -> anyhow::Result<Report> {
    let plan = if options.quick { &QUICK } else { &WHOLE };
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let kinds = classes(&options.model);
    let serving = Serving::start(&client, options, Mode::On).await?;
    let mut drive = Drive::new(client.clone(), &serving, options.seed);
    let mut alone = Vec::new();
    for class in &kinds {
        alone.push(time_alone(&mut drive, class, plan.alone).await?);
    }
    let budgets: Vec<f64> = alone.iter().zip(BUDGETS).map(|(seconds, times)| seconds * times).collect();
    let capacity = drive.capacity(&kinds, options.workers, plan.capacity).await?;
    eprintln!("alone: {alone:.3?} s; budgets {budgets:.2?} s; capacity {capacity:.2} requests/s");
    let still = Duration::from_secs_f64(options.stand_still);
    let loads = if options.loads.is_empty() { plan.loads } else { &options.loads };
    let on = steps((plan, loads, still), &mut drive, &serving, (&kinds, &budgets, capacity)).await?;
    if let Some(path) = &options.rows {
        let rows = serving.sql("select * from slo order by at").await?;
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(path, lines).with_context(|| format!("--rows {}: cannot be written", path.display()))?;
    }
    serving.stop().await;
    let serving = Serving::start(&client, options, Mode::Off).await?;
    let mut drive = Drive::new(client, &serving, options.seed);
    // As much is learnt before the first step as on the other side.
    drive.capacity(&kinds, options.workers, plan.capacity / 2).await?;
    let off = steps((plan, loads, still), &mut drive, &serving, (&kinds, &budgets, capacity)).await?;
    serving.stop().await;
    let class = |((class, alone), budget): ((&Class, &f64), &f64)| ClassReport {
        name: class.name,
        share: class.share,
        alone_seconds_p50: *alone,
        budget_seconds: *budget,
    };
    Ok(Report {
        bench: "overload",
        profile: profile(),
        quick: options.quick,
        model: options.model.rsplit('/').next().unwrap_or_default().into(),
        workers: options.workers,
        seed: options.seed,
        stood_still_seconds: options.stand_still,
        classes: kinds.iter().zip(&alone).zip(&budgets).map(class).collect(),
        capacity_requests_per_s: capacity,
        goodput_ratio_2x_over_peak: on.ratio(|step| step.goodput_requests_per_s),
        goodput_tokens_ratio_2x_over_peak: on.ratio(|step| step.goodput_tokens_per_s),
        engine_time_share_missed: on.engine_share(),
        engine_time_share_missed_max: on.worst_engine_share(),
        wrong_refusal_share: on.wrong_refusal_share(),
        trials: on.trials(),
        goodput_ratio_2x_over_peak_deadlines_off: off.ratio(|step| step.goodput_requests_per_s),
        goodput_tokens_ratio_2x_over_peak_deadlines_off: off.ratio(|step| step.goodput_tokens_per_s),
        engine_time_share_missed_deadlines_off: off.engine_share(),
        engine_time_share_missed_max_deadlines_off: off.worst_engine_share(),
        deadlines_on: on.0,
        deadlines_off: off.0,
    })
}

async fn time_alone(drive: &mut Drive, class: &Class, times: usize) -> anyhow::Result<f64> {
    let mut seconds = Vec::new();
    for _ in 0..times {
        seconds.push(drive.alone(class).await?);
    }
    median(&seconds).ok_or_else(|| anyhow::anyhow!("no request of class {} was timed", class.name))
}

async fn steps(
    (plan, loads, still): (&Plan, &[f64], Duration),
    drive: &mut Drive,
    serving: &Serving,
    (kinds, budgets, capacity): (&[Class], &[f64], f64),
) -> anyhow::Result<ModeReport> {
    let mut records = Vec::new();
    let highest = loads.iter().copied().fold(0.0, f64::max);
    let disturbed = loads.iter().position(|load| *load == highest).filter(|_| !still.is_zero());
    for (place, load) in loads.iter().enumerate() {
        let disturb = async {
            if disturbed == Some(place) {
                tokio::time::sleep(plan.step / 2).await;
                serving.stand_still(still).await?;
            }
            anyhow::Ok(())
        };
        let (step, stopped) = tokio::join!(drive.step((kinds, budgets), capacity * load, plan.step), disturb);
        stopped?;
        eprintln!(
            "load {load:.2}: {} of {} within their budget",
            step.iter().filter(|record| record.is_good()).count(),
            step.len()
        );
        records.push((*load, step));
    }
    tally::mode(serving, records, plan.step).await
}
