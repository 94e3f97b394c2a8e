//! `evenkeel bench decide`: how long a decision takes (admission and routing), at 64 and at 1,000 instances, with prompts of 2,000 blocks.
//!
//! Each decision is made twice, in turns: by the settings as they are, and by a linear scan that costs every instance
//! (`policy.route.score_all_max` without a bound). `decide` is what the policies compute from a view that has been read: throttle, class, routing,
//! admission. `whole` is all that a request waits for: reading view and cache index, `decide`, then reading again, routing and
//! reserving the lease, as the gateway does it. Beginnings of prompts are held by all instances, documents by a few, each as far as it
//! happens to have them; leases come and go, so the load moves all the time. `row` is what it takes to write down what one look read
//! (SPEC X2), and `put` to put that row into the bus's columns: the decision does not wait for them, but the request does, twice. Beside it
//! `visited`: the same row into the same columns by `serde_arrow`, the columns' twin.
//! Invariant: both sides see the same view; what the sampled choice costs beside the cheapest of all is told, too.
//! State: a number a decision.

mod plant;

use std::{
    collections::VecDeque,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use queries::Topic;
use serde::Serialize;
use serde_arrow::ArrayBuilder;

use self::plant::Plant;
use super::figures::{percentile, print_json, profile};
use crate::{
    config::{self, Overrides, Policy},
    gateway::{
        deps::ViewSource,
        reading::{LeaseFate, PlaceReading},
    },
    policy::{
        Arrival, Asked, Backlog, Forecast, Placement, QueueLoad, ThrottleState, ThrottleStep, Tier, Verdict, decide,
        press, token_cost,
    },
    rows::{
        PolicyInputRow,
        columns::{Cell, Column, Record},
    },
};

/// Blocks of a prompt.
const PROMPT_BLOCKS: usize = 2000;
/// Most that a decision may take at the 99th percentile, by instances.
const BARS: [(u32, f64); 2] = [(64, 200.0), (1000, 1000.0)];
/// Decisions that are not counted: caches and the branch predictor warm up.
const WARM_UP: usize = 200;
/// Requests in flight on an instance, on the mean.
const IN_FLIGHT: usize = 4;

#[derive(clap::Args)]
pub struct DecideOptions {
    /// Decisions measured at each size
    #[arg(long, default_value_t = 5000)]
    decisions: usize,
}

#[derive(Serialize)]
struct Times {
    decide_us_p50: f64,
    decide_us_p99: f64,
    decide_us_max: f64,
    whole_us_p50: f64,
    whole_us_p99: f64,
    row_us_p50: f64,
    row_us_p99: f64,
    put_us_p50: f64,
    put_us_p99: f64,
    visited_us_p50: f64,
    visited_us_p99: f64,
    /// Instances that were costed, on the mean.
    candidates: f64,
}

#[derive(Serialize)]
struct SizeReport {
    instances: u32,
    decisions: usize,
    holders_mean: f64,
    hit_tokens_mean: f64,
    ours: Times,
    linear: Times,
    linear_over_ours_decide_p99: f64,
    /// What the choice costs beside the cheapest of all.
    cost_over_cheapest_mean: f64,
    cost_over_cheapest_p99: f64,
    bar_us: f64,
    decide_is_within_bar: bool,
    whole_is_within_bar: bool,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    prompt_blocks: usize,
    sizes: Vec<SizeReport>,
}

pub(super) fn run(options: &DecideOptions) -> anyhow::Result<()> {
    let policy = config::load(None, Overrides::default())?.policy;
    let mut sizes = Vec::new();
    for (instances, bar_us) in BARS {
        let size = measure(&policy, (instances, bar_us), options.decisions.max(1))?;
        print(&size);
        sizes.push(size);
    }
    print_json(&Report { bench: "decide", profile: profile(), prompt_blocks: PROMPT_BLOCKS, sizes })
}

/// One side of the comparison.
struct Side {
    policy: Policy,
    decide_us: Vec<f64>,
    whole_us: Vec<f64>,
    row_us: Vec<f64>,
    put_us: Vec<f64>,
    visited_us: Vec<f64>,
    candidates: u64,
    columns: Columns,
    visitor: ArrayBuilder,
}

type Columns = <PolicyInputRow as Cell>::Column;
/// Rows that columns have before they are emptied.
const ROWS: usize = 64;

/// What one side decided.
struct Decided {
    placement: Placement,
    spent: Spent,
}

struct Spent {
    decide: Duration,
    whole: Duration,
    row: Duration,
    put: Duration,
    visited: Duration,
}

impl Side {
    fn new(policy: Policy) -> anyhow::Result<Self> {
        Ok(Self {
            policy,
            decide_us: Vec::new(),
            whole_us: Vec::new(),
            row_us: Vec::new(),
            put_us: Vec::new(),
            visited_us: Vec::new(),
            candidates: 0,
            columns: Columns::with_room(0),
            visitor: ArrayBuilder::from_arrow(Topic::PolicyInputs.schema().fields())?,
        })
    }

    /// Puts a row into both kinds of columns; says how long each took.
    fn put(&mut self, row: &PolicyInputRow) -> anyhow::Result<(Duration, Duration)> {
        let began = Instant::now();
        row.put(&mut self.columns);
        let put = began.elapsed();
        self.visitor.push(row)?;
        let visited = began.elapsed() - put;
        if self.put_us.len().is_multiple_of(ROWS) {
            black_box(self.columns.take_batch(Topic::PolicyInputs.schema())?);
            black_box(self.visitor.to_record_batch()?);
        }
        Ok((put, visited))
    }

    /// All that the gateway does for a request, but for the lease.
    fn ask(&mut self, plant: &Plant, hashes: &Arc<Vec<Vec<u64>>>, turn: u64) -> Option<Decided> {
        let began = Instant::now();
        let (view, reading) = (plant.views.cluster(plant.now), plant.views.prefix_hits(hashes, plant::BLOCK_TOKENS));
        let read = began.elapsed();
        let throttle = ThrottleState { step: ThrottleStep::Open, since: 0 };
        let (saturation, throttle) = press((&view, plant.now), &Backlog::default(), throttle, &self.policy);
        let forecast = Forecast::default();
        let arrival = Arrival {
            now: plant.now,
            view: &view,
            saturation,
            throttle,
            model: plant::MODEL,
            prompt_tokens: (PROMPT_BLOCKS * plant::BLOCK_TOKENS) as u32,
            max_tokens: 256,
            turns: 2,
            tenant: "local",
            tenant_class: Tier::High,
            hits: &reading.hits,
            turn,
            queue: QueueLoad::default(),
            bytes: 0,
            arrived: Some(plant.now),
            asked: Asked::default(),
            sequences: 1,
            forecast: &forecast,
            lot: 1.0,
        };
        let verdict: Verdict = decide(&arrival, &self.policy);
        let decided = began.elapsed() - read;
        // The gateway looks again when it places, since others were placed meanwhile.
        let (view, reading) = (plant.views.cluster(plant.now), plant.views.prefix_hits(hashes, plant::BLOCK_TOKENS));
        let request = crate::policy::RouteRequest {
            model: plant::MODEL,
            variants: &verdict.variants,
            tier: verdict.classified.tier,
            prompt_tokens: arrival.prompt_tokens,
            max_tokens: arrival.max_tokens,
            hits: &reading.hits,
            turn,
            now: plant.now,
            excluded: &[],
            spared: &[],
        };
        let placement = crate::policy::route(&view, &request, &self.policy.route).ok()?;
        let whole = began.elapsed();
        let (tier, prompt_tokens, max_tokens) = (request.tier, request.prompt_tokens, request.max_tokens);
        let place = PlaceReading {
            now: plant.now,
            view: view.into(),
            prefixes: reading,
            hashes: hashes.clone(),
            variants: verdict.variants.into(),
            tier,
            prompt_tokens,
            max_tokens,
            turn,
            excluded: Vec::new(),
            spared: Vec::new(),
        };
        let written = Instant::now();
        let row = place.row(LeaseFate::Reserved, "");
        let written = written.elapsed();
        let (put, visited) = self.put(&row).expect("invariant: a row fits its topic");
        Some(Decided { placement, spent: Spent { decide: decided, whole, row: written, put, visited } })
    }

    fn keep(&mut self, decided: &Decided) {
        self.decide_us.push(decided.spent.decide.as_secs_f64() * 1e6);
        self.whole_us.push(decided.spent.whole.as_secs_f64() * 1e6);
        self.row_us.push(decided.spent.row.as_secs_f64() * 1e6);
        self.put_us.push(decided.spent.put.as_secs_f64() * 1e6);
        self.visited_us.push(decided.spent.visited.as_secs_f64() * 1e6);
        self.candidates += decided.placement.candidates.len() as u64;
    }

    fn times(&self) -> Times {
        let of = |samples: &[f64], share| percentile(samples, share).unwrap_or(f64::NAN);
        Times {
            decide_us_p50: of(&self.decide_us, 0.5),
            decide_us_p99: of(&self.decide_us, 0.99),
            decide_us_max: of(&self.decide_us, 1.0),
            whole_us_p50: of(&self.whole_us, 0.5),
            whole_us_p99: of(&self.whole_us, 0.99),
            row_us_p50: of(&self.row_us, 0.5),
            row_us_p99: of(&self.row_us, 0.99),
            put_us_p50: of(&self.put_us, 0.5),
            put_us_p99: of(&self.put_us, 0.99),
            visited_us_p50: of(&self.visited_us, 0.5),
            visited_us_p99: of(&self.visited_us, 0.99),
            candidates: self.candidates as f64 / self.decide_us.len() as f64,
        }
    }
}

fn measure(policy: &Policy, (instances, bar_us): (u32, f64), decisions: usize) -> anyhow::Result<SizeReport> {
    let plant = Plant::new(instances, PROMPT_BLOCKS);
    let mut linear = policy.clone();
    linear.route.score_all_max = usize::MAX;
    let mut sides = [Side::new(policy.clone())?, Side::new(linear)?];
    let (mut held, mut ratios, mut holders, mut hit_tokens) = (VecDeque::new(), Vec::new(), 0, 0u64);
    let need = token_cost((PROMPT_BLOCKS * plant::BLOCK_TOKENS) as u32, 256);
    for turn in 0..(WARM_UP + decisions) as u64 {
        let hashes = Arc::new(plant.prompt(turn));
        // Who goes first finds caches cold.
        let order = if turn.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        let mut made = [None, None];
        for side in order {
            made[side] = sides[side].ask(&plant, &hashes, turn);
        }
        let [Some(ours), Some(scan)] = made else {
            held.pop_front();
            continue;
        };
        // The lease is part of what the request waits for, on our side; the other one only looks.
        let began = Instant::now();
        held.extend(plant.reserve(ours.placement.instance, need, policy.route.lease_tokens_max));
        let reserved = began.elapsed();
        if held.len() > instances as usize * IN_FLIGHT {
            held.pop_front();
        }
        if turn as usize >= WARM_UP {
            let found = plant.views.prefix_hits(&hashes, plant::BLOCK_TOKENS).hits;
            (holders, hit_tokens) = (holders + found.iter().len(), hit_tokens + u64::from(found.longest()));
            let seconds = |decided: &Decided| decided.placement.candidates[0].compared_seconds;
            ratios.push(seconds(&ours) / seconds(&scan));
            for (side, mut decided) in sides.iter_mut().zip([ours, scan]) {
                decided.spent.whole += reserved;
                side.keep(&decided);
            }
        }
    }
    let (ours, linear) = (sides[0].times(), sides[1].times());
    let count = ratios.len() as f64;
    Ok(SizeReport {
        instances,
        decisions: ratios.len(),
        holders_mean: holders as f64 / count,
        hit_tokens_mean: hit_tokens as f64 / count,
        linear_over_ours_decide_p99: linear.decide_us_p99 / ours.decide_us_p99,
        cost_over_cheapest_mean: ratios.iter().sum::<f64>() / count,
        cost_over_cheapest_p99: percentile(&ratios, 0.99).unwrap_or(f64::NAN),
        bar_us,
        decide_is_within_bar: ours.decide_us_p99 <= bar_us,
        whole_is_within_bar: ours.whole_us_p99 <= bar_us,
        ours,
        linear,
    })
}

fn print(size: &SizeReport) {
    for (name, times) in [("evenkeel", &size.ours), ("linear scan", &size.linear)] {
        println!(
            "{name:>11}, {} instances: decide p50 {:.1} p99 {:.1} max {:.0} us; with reading and lease p50 {:.1} p99 {:.1} us; \
             a row p50 {:.1} p99 {:.1} us, put into columns p50 {:.1} p99 {:.1} us ({:.1} and {:.1} by serde_arrow); \
             {:.1} candidates",
            size.instances,
            times.decide_us_p50,
            times.decide_us_p99,
            times.decide_us_max,
            times.whole_us_p50,
            times.whole_us_p99,
            times.row_us_p50,
            times.row_us_p99,
            times.put_us_p50,
            times.put_us_p99,
            times.visited_us_p50,
            times.visited_us_p99,
            times.candidates,
        );
    }
    println!(
        "{:>11}, {} instances: bar {:.0} us; the choice costs {:.4} times the cheapest on the mean, {:.3} at p99",
        "", size.instances, size.bar_us, size.cost_over_cheapest_mean, size.cost_over_cheapest_p99
    );
}
