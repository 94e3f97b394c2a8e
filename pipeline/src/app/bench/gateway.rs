//! `evenkeel bench gateway`: latency and CPU that a request costs more through the gateway than on a worker alone.
//!
//! A server with one simulated worker and a worker alone with the same options take the same request in turns, round
//! by round; the worker's modelled time is in both latencies and goes out in the difference. CPU is that of the
//! serving process (gateway, bus, log, dataflow, not its worker) and of the lone worker. It is read in ticks of 10
//! ms, so it is summed over a case's rounds. Invariant: see `calls`. State: one sample a request.

pub(super) mod calls;
pub(super) mod processes;

use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use std::time::Duration;

use self::{
    calls::{AnswerForm, OUTPUT_TOKENS, Question, Sample, direct, through_gateway},
    processes::{LoneWorker, ServeProcess},
};
use super::figures::{cpu_us, median, paired_ratio, percentile, print_json, profile};
use crate::app::text::ModelText;

const BLOCK_SIZE: usize = 16;
const CASES: [(usize, AnswerForm); 4] =
    [(1, AnswerForm::Whole), (1, AnswerForm::Stream), (16, AnswerForm::Whole), (16, AnswerForm::Stream)];
const IDLE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub struct GatewayOptions {
    /// Fewer requests: under 50 s in all
    #[arg(long)]
    quick: bool,
}

/// How much is measured.
struct Plan {
    rounds: usize,
    /// Requests of a round, per request in flight.
    requests_each: usize,
}

struct Bench {
    client: reqwest::Client,
    serve: ServeProcess,
    worker: LoneWorker,
    question: Question,
}

/// Samples of one side of a case.
#[derive(Default)]
struct Side {
    /// Median latency and median time to the first token of each round, in milliseconds.
    latency_ms: Vec<f64>,
    first_ms: Vec<f64>,
    /// Latency of every request.
    all_ms: Vec<f64>,
    cpu_us: u64,
}

impl Side {
    fn add(&mut self, samples: &[Sample], cpu_us: u64) {
        let totals: Vec<f64> = samples.iter().map(|sample| sample.total_ms).collect();
        let firsts: Vec<f64> = samples.iter().filter_map(|sample| sample.first_ms).collect();
        self.latency_ms.extend(median(&totals));
        self.first_ms.extend(median(&firsts));
        self.all_ms.extend(totals);
        self.cpu_us += cpu_us;
    }

    fn cpu_us_per_request(&self) -> f64 {
        self.cpu_us as f64 / self.all_ms.len().max(1) as f64
    }
}

/// Figures of one case; a latency `p50` is the median over rounds of a round's median, a `p99` is over all requests.
#[derive(Serialize)]
struct CaseReport {
    concurrency: usize,
    answer: AnswerForm,
    rounds: usize,
    requests_per_side: usize,
    direct_latency_ms_p50: Option<f64>,
    direct_latency_ms_p99: Option<f64>,
    gateway_latency_ms_p50: Option<f64>,
    gateway_latency_ms_p99: Option<f64>,
    added_latency_ms_p50: Option<f64>,
    gateway_over_direct_latency_ratio: Option<f64>,
    direct_first_token_ms_p50: Option<f64>,
    gateway_first_token_ms_p50: Option<f64>,
    added_first_token_ms_p50: Option<f64>,
    gateway_process_cpu_us_per_request: f64,
    direct_worker_cpu_us_per_request: f64,
    gateway_over_worker_cpu_ratio: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    prompt_tokens: usize,
    output_tokens: u32,
    gateway_process_idle_cpu_us_per_second: f64,
    cases: Vec<CaseReport>,
}

pub(super) fn run(options: GatewayOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(measure(options.quick))?;
    print_json(&report)
}

async fn measure(quick: bool) -> anyhow::Result<Report> {
    let plan = if quick { Plan { rounds: 3, requests_each: 5 } } else { Plan { rounds: 7, requests_each: 20 } };
    let text = ModelText::load("simulated", "simulated", BLOCK_SIZE)?;
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let serve = ServeProcess::start(&client, "").await?;
    let worker = LoneWorker::start(&text).await?;
    let question = full_length_question(&text, &worker).await?;
    let bench = Bench { client, serve, worker, question };
    let idle = bench.idle_cpu().await?;
    let mut cases = Vec::new();
    for case in CASES {
        let report = bench.case(case, &plan).await?;
        show(&report);
        cases.push(report);
    }
    let prompt_tokens = bench.question.prompt_tokens();
    bench.serve.stop().await;
    bench.worker.stop().await;
    Ok(Report {
        bench: "gateway",
        profile: profile(),
        quick,
        prompt_tokens,
        output_tokens: OUTPUT_TOKENS,
        gateway_process_idle_cpu_us_per_second: idle,
        cases,
    })
}

/// The first one-letter question that the simulated model answers at full length, without drawing its stop token.
async fn full_length_question(text: &ModelText, worker: &LoneWorker) -> anyhow::Result<Question> {
    for letter in 'a'..='z' {
        let question = Question::new(text, letter.to_string())?;
        if direct(&worker.client, &question).await.is_ok() {
            return Ok(question);
        }
    }
    anyhow::bail!("the worker answers no one-letter question with {OUTPUT_TOKENS} tokens")
}

impl Bench {
    async fn idle_cpu(&self) -> anyhow::Result<f64> {
        let before = cpu_us(self.serve.pid)?;
        tokio::time::sleep(IDLE).await;
        Ok((cpu_us(self.serve.pid)? - before) as f64 / IDLE.as_secs_f64())
    }

    async fn case(&self, (concurrency, form): (usize, AnswerForm), plan: &Plan) -> anyhow::Result<CaseReport> {
        let requests = concurrency * plan.requests_each;
        let (mut alone, mut gateway) = (Side::default(), Side::default());
        // Connections and caches of both sides are warm from here on.
        self.direct_round(concurrency, concurrency).await?;
        self.gateway_round((concurrency, form), concurrency).await?;
        for round in 0..plan.rounds {
            // The side that goes first changes, so that neither always follows the other.
            for turn in [round % 2, 1 - round % 2] {
                if turn == 0 {
                    let before = cpu_us(self.worker.pid)?;
                    let samples = self.direct_round(concurrency, requests).await?;
                    alone.add(&samples, cpu_us(self.worker.pid)? - before);
                } else {
                    let before = cpu_us(self.serve.pid)?;
                    let samples = self.gateway_round((concurrency, form), requests).await?;
                    gateway.add(&samples, cpu_us(self.serve.pid)? - before);
                }
            }
        }
        Ok(case_report((concurrency, form), &alone, &gateway))
    }

    async fn direct_round(&self, concurrency: usize, requests: usize) -> anyhow::Result<Vec<Sample>> {
        let calls = (0..requests).map(|_| direct(&self.worker.client, &self.question));
        stream::iter(calls).buffer_unordered(concurrency).try_collect().await
    }

    async fn gateway_round(
        &self,
        (concurrency, form): (usize, AnswerForm),
        requests: usize,
    ) -> anyhow::Result<Vec<Sample>> {
        let door = (&self.client, self.serve.url.as_str());
        let calls = (0..requests).map(|_| through_gateway(door, &self.question, form));
        stream::iter(calls).buffer_unordered(concurrency).try_collect().await
    }
}

fn case_report((concurrency, answer): (usize, AnswerForm), alone: &Side, gateway: &Side) -> CaseReport {
    let added = |theirs: &[f64], ours: &[f64]| {
        let added: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
        median(&added)
    };
    CaseReport {
        concurrency,
        answer,
        rounds: gateway.latency_ms.len(),
        requests_per_side: gateway.all_ms.len(),
        direct_latency_ms_p50: median(&alone.latency_ms),
        direct_latency_ms_p99: percentile(&alone.all_ms, 0.99),
        gateway_latency_ms_p50: median(&gateway.latency_ms),
        gateway_latency_ms_p99: percentile(&gateway.all_ms, 0.99),
        added_latency_ms_p50: added(&alone.latency_ms, &gateway.latency_ms),
        gateway_over_direct_latency_ratio: paired_ratio(&gateway.latency_ms, &alone.latency_ms),
        direct_first_token_ms_p50: median(&alone.first_ms),
        gateway_first_token_ms_p50: median(&gateway.first_ms),
        added_first_token_ms_p50: added(&alone.first_ms, &gateway.first_ms),
        gateway_process_cpu_us_per_request: gateway.cpu_us_per_request(),
        direct_worker_cpu_us_per_request: alone.cpu_us_per_request(),
        gateway_over_worker_cpu_ratio: paired_ratio(&[gateway.cpu_us_per_request()], &[alone.cpu_us_per_request()]),
    }
}

fn show(case: &CaseReport) {
    println!(
        "{} in flight, {:?}: direct {:.2} ms, gateway {:.2} ms, added {:.2} ms; CPU a request: \
         gateway {:.0} us, worker {:.0} us",
        case.concurrency,
        case.answer,
        case.direct_latency_ms_p50.unwrap_or(f64::NAN),
        case.gateway_latency_ms_p50.unwrap_or(f64::NAN),
        case.added_latency_ms_p50.unwrap_or(f64::NAN),
        case.gateway_process_cpu_us_per_request,
        case.direct_worker_cpu_us_per_request,
    );
}
