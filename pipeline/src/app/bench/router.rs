//! `evenkeel bench router`: what our gateway costs in front of foreign workers, beside `sglang-router` and `vllm-router`.
//!
//! All routers stand in front of the same workers and are loaded by the same client, in turns, round by round; who goes
//! first changes. They share the machine's cores with client and workers, so requests a second are of the whole chain. Ours
//! runs as `serve --worker-url` does: every decision and row on the bus, log and dataflow on. Peers run round robin, their
//! cheapest, where speed is measured, and their cache-aware policy over the common fronts. Relays of unread bytes and of HTTP that is
//! not looked at (`relay`) show what moving it alone costs.
//!
//! Invariant: a ratio compares figures of the same round; a headline is the least favourable of its cases, against the
//! better peer of each. Without peers ratios are null. Cost: under two minutes; `--quick` has two
//! rounds of five. State: one number a request.

mod load;
mod prompts;
mod relay;
mod routers;
mod worker;

use std::path::{Path, PathBuf};

use serde::Serialize;

use self::{
    load::Load,
    routers::{PeerPolicy, Router, WORKERS, Who, Workers},
};
pub use self::{
    relay::{RelayOptions, run as run_relay},
    worker::{WorkerOptions, run as run_worker},
};
use super::figures::{median, percentile, print_json, profile};

/// Blocks of 256 bytes that a worker's cache holds over the common fronts.
const CACHE_BLOCKS: usize = 3000;

#[derive(clap::Args)]
pub struct RouterOptions {
    /// Folder with the peers' virtual environments: venv/sglrouter and venv/vllmrouter
    #[arg(long)]
    peers: Option<PathBuf>,
    /// Fewer rounds and requests: under 50 s in all
    #[arg(long)]
    quick: bool,
    /// Chooses the prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One kind of load.
struct Case {
    name: &'static str,
    load: Load,
    in_flight: usize,
    requests: usize,
}

/// What one router showed in one case, a number a round.
#[derive(Default)]
struct Shown {
    per_second: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    cpu_us: u64,
    requests: usize,
}

#[derive(Serialize)]
struct Row {
    router: Who,
    requests_per_s: Option<f64>,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    added_p50_us: Option<f64>,
    added_p99_us: Option<f64>,
    cpu_us_per_request: Option<f64>,
}

#[derive(Serialize)]
struct CaseReport {
    case: &'static str,
    in_flight: usize,
    requests_per_router: usize,
    requests_per_s_ratio_best_peer: Option<f64>,
    /// What a router would have that only moved bytes.
    relay_requests_per_s_ratio_best_peer: Option<f64>,
    requests_per_s_ratio_relay: Option<f64>,
    /// The same for one that reads and writes HTTP and does nothing else.
    http_relay_requests_per_s_ratio_best_peer: Option<f64>,
    requests_per_s_ratio_http_relay: Option<f64>,
    added_p50_ratio_best_peer: Option<f64>,
    added_p99_ratio_best_peer: Option<f64>,
    routers: Vec<Row>,
}

#[derive(Serialize)]
struct FrontReport {
    router: Who,
    block_hit_ratio: f64,
    load_max_over_mean: f64,
    requests_per_worker: Vec<u64>,
    requests_per_s: f64,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    cpu_us_per_request: f64,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    peers: Vec<Who>,
    requests_per_s_ratio_best_peer: Option<f64>,
    added_p50_ratio_best_peer: Option<f64>,
    added_p99_ratio_best_peer: Option<f64>,
    core_s_per_request_4k_tokens: Option<f64>,
    core_s_per_request_100k_tokens: Option<f64>,
    prefix_block_hit_ratio: Option<f64>,
    prefix_load_max_over_mean: Option<f64>,
    cases: Vec<CaseReport>,
    prefix: Vec<FrontReport>,
}

pub(super) fn run(options: &RouterOptions) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let workers = Workers::start(folder.path())?;
    let mut who = vec![Who::Direct, Who::Relay, Who::HttpRelay, Who::Evenkeel];
    if options.peers.is_some() {
        who.extend([Who::SglangRouter, Who::VllmRouter]);
    } else {
        println!("without --peers nothing is compared: ratios are null");
    }
    let rounds = if options.quick { 2 } else { 5 };
    let bench = Bench { options, workers: &workers, folder: folder.path() };
    let cases = bench.speed(&who, rounds)?;
    let prefix = bench.fronts(&who)?;
    let ours = prefix.iter().find(|report| report.router == Who::Evenkeel);
    let cpu = |name: &str| {
        let case = cases.iter().find(|case| case.case == name)?;
        case.routers.iter().find(|row| row.router == Who::Evenkeel)?.cpu_us_per_request.map(|us| us / 1e6)
    };
    let compared = || cases.iter().filter(|case| !case.case.contains("tokens"));
    let worst = |values: Vec<f64>| values.into_iter().max_by(f64::total_cmp);
    print_json(&Report {
        bench: "router",
        profile: profile(),
        quick: options.quick,
        peers: who.iter().copied().filter(|who| who.is_peer()).collect(),
        requests_per_s_ratio_best_peer: compared()
            .filter_map(|case| case.requests_per_s_ratio_best_peer)
            .min_by(f64::total_cmp),
        added_p50_ratio_best_peer: worst(compared().filter_map(|case| case.added_p50_ratio_best_peer).collect()),
        added_p99_ratio_best_peer: worst(compared().filter_map(|case| case.added_p99_ratio_best_peer).collect()),
        core_s_per_request_4k_tokens: cpu("whole_4k_tokens"),
        core_s_per_request_100k_tokens: cpu("whole_100k_tokens"),
        prefix_block_hit_ratio: ours.map(|report| report.block_hit_ratio),
        prefix_load_max_over_mean: ours.map(|report| report.load_max_over_mean),
        cases,
        prefix,
    })
}

struct Bench<'a> {
    options: &'a RouterOptions,
    workers: &'a Workers,
    folder: &'a Path,
}

impl Bench<'_> {
    fn cases(&self) -> Vec<Case> {
        let (short, long) = (prompts::short, |tokens| prompts::long(tokens, self.options.seed));
        let case = |name, load, in_flight, requests| Case { name, load, in_flight, requests };
        vec![
            case("whole_1", short(false), 1, 1000),
            case("stream_1", short(true), 1, 40),
            case("whole_64", short(false), 64, 12_000),
            case("stream_64", short(true), 64, 4000),
            case("whole_4k_tokens", long(4_000), 8, 1600),
            case("whole_100k_tokens", long(100_000), 2, 80),
        ]
    }

    fn speed(&self, who: &[Who], rounds: usize) -> anyhow::Result<Vec<CaseReport>> {
        self.workers.reset(0)?;
        let routers = self.routers(who, PeerPolicy::RoundRobin)?;
        let mut reports = Vec::new();
        for case in self.cases() {
            let mut shown: Vec<Shown> = routers.iter().map(|_| Shown::default()).collect();
            for round in 0..rounds {
                for turn in 0..routers.len() {
                    let place = (round + turn) % routers.len();
                    shown[place].add(&routers[place], &case)?;
                }
            }
            let report = compare(&case, &routers, &shown);
            show(&report);
            reports.push(report);
        }
        Ok(reports)
    }

    fn fronts(&self, who: &[Who]) -> anyhow::Result<Vec<FrontReport>> {
        let load = prompts::fronts(self.options.seed);
        // Twice were too few: of them a cache that forgets nothing hits 0.874 of the blocks.
        let requests = load.bodies.len() * 3;
        let mut reports = Vec::new();
        for who in who.iter().filter(|who| !matches!(who, Who::Direct | Who::Relay | Who::HttpRelay)) {
            let Some(router) = self.routers(&[*who], PeerPolicy::CacheAware)?.pop() else { continue };
            self.workers.reset(CACHE_BLOCKS)?;
            let before = router.cpu_us()?;
            let run = load::run(&router.url, &load, 16, requests)?;
            let cpu_us = router.cpu_us()? - before;
            let stats = self.workers.stats()?;
            let sum = |of: fn(&worker::Stats) -> u64| stats.iter().map(of).sum::<u64>();
            let each: Vec<u64> = stats.iter().map(|stats| stats.requests).collect();
            let most = each.iter().max().copied().unwrap_or(0) as f64;
            let report = FrontReport {
                router: *who,
                block_hit_ratio: sum(|stats| stats.hit_blocks) as f64 / sum(|stats| stats.blocks).max(1) as f64,
                load_max_over_mean: most * WORKERS as f64 / sum(|stats| stats.requests).max(1) as f64,
                requests_per_worker: each,
                requests_per_s: run.per_second(),
                p50_us: percentile(&run.latency_us, 0.5),
                p99_us: percentile(&run.latency_us, 0.99),
                cpu_us_per_request: cpu_us as f64 / requests as f64,
            };
            println!(
                "common fronts, {who:?}: {:.3} of blocks hit, {:?} requests a worker, {:.0} requests/s, {:.0} us CPU each",
                report.block_hit_ratio, report.requests_per_worker, report.requests_per_s, report.cpu_us_per_request
            );
            reports.push(report);
        }
        Ok(reports)
    }

    fn routers(&self, who: &[Who], policy: PeerPolicy) -> anyhow::Result<Vec<Router>> {
        let start = |who: &Who| {
            let router = Router::start(*who, (self.options.peers.as_deref(), policy), self.workers, self.folder)?;
            router.warm(&prompts::short(true), self.folder)?;
            Ok(router)
        };
        who.iter().map(start).collect()
    }
}

impl Shown {
    fn add(&mut self, router: &Router, case: &Case) -> anyhow::Result<()> {
        load::run(&router.url, &case.load, case.in_flight, case.in_flight * 2)?;
        let before = router.cpu_us()?;
        let run = load::run(&router.url, &case.load, case.in_flight, case.requests)?;
        self.cpu_us += router.cpu_us()? - before;
        self.requests += case.requests;
        self.per_second.push(run.per_second());
        self.p50_us.extend(percentile(&run.latency_us, 0.5));
        self.p99_us.extend(percentile(&run.latency_us, 0.99));
        Ok(())
    }

    fn added(samples: &[f64], direct: &[f64]) -> Vec<f64> {
        samples.iter().zip(direct).map(|(router, direct)| router - direct).collect()
    }
}

fn compare(case: &Case, routers: &[Router], shown: &[Shown]) -> CaseReport {
    let direct = &shown[0];
    let row = |(router, shown): (&Router, &Shown)| {
        let is_direct = router.who == Who::Direct;
        let added = |samples: &[f64], direct: &[f64]| match is_direct {
            true => None,
            false => median(&Shown::added(samples, direct)),
        };
        Row {
            router: router.who,
            requests_per_s: median(&shown.per_second),
            p50_us: median(&shown.p50_us),
            p99_us: median(&shown.p99_us),
            added_p50_us: added(&shown.p50_us, &direct.p50_us),
            added_p99_us: added(&shown.p99_us, &direct.p99_us),
            cpu_us_per_request: (!is_direct).then(|| shown.cpu_us as f64 / shown.requests.max(1) as f64),
        }
    };
    let rows: Vec<Row> = routers.iter().zip(shown).map(row).collect();
    let ours = |of: fn(&Row) -> Option<f64>| rows.iter().find(|row| row.router == Who::Evenkeel).and_then(of);
    let peers = |of: fn(&Row) -> Option<f64>| -> Vec<f64> {
        rows.iter().filter(|row| row.router.is_peer()).filter_map(of).collect()
    };
    let least = |of: fn(&Row) -> Option<f64>| {
        let best = peers(of).into_iter().min_by(f64::total_cmp)?;
        Some(ours(of)? / best)
    };
    let speed = |who: Who| rows.iter().find(|row| row.router == who).and_then(|row| row.requests_per_s);
    let (relay, http_relay) = (speed(Who::Relay), speed(Who::HttpRelay));
    let fastest = peers(|row| row.requests_per_s).into_iter().max_by(f64::total_cmp);
    CaseReport {
        case: case.name,
        in_flight: case.in_flight,
        requests_per_router: shown[0].requests,
        requests_per_s_ratio_best_peer: ours(|row| row.requests_per_s).zip(fastest).map(|(ours, best)| ours / best),
        relay_requests_per_s_ratio_best_peer: relay.zip(fastest).map(|(relay, best)| relay / best),
        requests_per_s_ratio_relay: ours(|row| row.requests_per_s).zip(relay).map(|(ours, relay)| ours / relay),
        http_relay_requests_per_s_ratio_best_peer: http_relay.zip(fastest).map(|(relay, best)| relay / best),
        requests_per_s_ratio_http_relay: ours(|row| row.requests_per_s)
            .zip(http_relay)
            .map(|(ours, relay)| ours / relay),
        added_p50_ratio_best_peer: least(|row| row.added_p50_us),
        added_p99_ratio_best_peer: least(|row| row.added_p99_us),
        routers: rows,
    }
}

fn show(report: &CaseReport) {
    for row in &report.routers {
        let figure = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{value:.0}"));
        println!(
            "{}, {:?}: {} requests/s, p50 {} us, p99 {} us, added {} and {} us, {} us CPU each",
            report.case,
            row.router,
            figure(row.requests_per_s),
            figure(row.p50_us),
            figure(row.p99_us),
            figure(row.added_p50_us),
            figure(row.added_p99_us),
            figure(row.cpu_us_per_request),
        );
    }
}
