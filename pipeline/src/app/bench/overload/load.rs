//! Requests of several classes, one at a time, as many as go, or at random times that do not wait for answers.
//!
//! Prompts are random tokens, so nothing is cached. Invariant: the same seed gives the same arrivals and lengths.
//! State: a record a request.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::ensure;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::Instant};

use super::server::{RUNNING_MAX, Serving};

/// Answers that come later than this after a step are not waited for.
const DRAIN_MAX: Duration = Duration::from_secs(20);
/// Token ids of prompts: above special tokens, below any vocabulary.
const TOKENS: std::ops::Range<u32> = 100..250;

/// Requests that are alike.
#[derive(Debug, Clone)]
pub(super) struct Class {
    pub name: &'static str,
    /// Of all requests.
    pub share: f64,
    prompt: std::ops::Range<u32>,
    output: std::ops::Range<u32>,
}

/// Short and urgent, middling, long and patient. A model file is computed on the CPU: its requests are smaller.
pub(super) fn classes(model: &str) -> Vec<Class> {
    let class = |name, share, prompt, output| Class { name, share, prompt, output };
    match model {
        "simulated" => vec![
            class("short", 0.6, 100..300, 16..48),
            class("middle", 0.3, 500..1500, 64..128),
            class("long", 0.1, 2000..4000, 96..160),
        ],
        _ => vec![
            class("short", 0.6, 16..48, 8..24),
            class("middle", 0.3, 64..160, 24..48),
            class("long", 0.1, 256..512, 32..64),
        ],
    }
}

/// Prompt and output of a request, on average.
pub(super) fn mean_tokens(kinds: &[Class]) -> f64 {
    let middle = |range: &std::ops::Range<u32>| f64::from(range.start + range.end) / 2.0;
    kinds.iter().map(|class| class.share * (middle(&class.prompt) + middle(&class.output))).sum()
}

/// What became of one request.
#[derive(Debug, Clone)]
pub(super) struct Record {
    /// From the step's start.
    pub sent: Duration,
    pub class: usize,
    pub status: u16,
    pub code: String,
    pub request_id: String,
    pub seconds: f64,
    pub budget_seconds: f64,
    pub tokens: u64,
}

impl Record {
    /// Its whole answer came within its budget.
    pub fn is_good(&self) -> bool {
        self.status == 200 && self.seconds <= self.budget_seconds
    }
}

pub(super) struct Drive {
    client: reqwest::Client,
    url: String,
    model: String,
    random: StdRng,
}

impl Drive {
    pub(super) fn new(client: reqwest::Client, serving: &Serving, seed: u64) -> Self {
        let url = format!("{}/v1/completions", serving.url);
        Drive { client, url, model: serving.model.clone(), random: StdRng::seed_from_u64(seed) }
    }

    fn draw(&mut self, class: &Class) -> (Value, u64) {
        let (prompt, output) =
            (self.random.random_range(class.prompt.clone()), self.random.random_range(class.output.clone()));
        let tokens: Vec<u32> = (0..prompt).map(|_| self.random.random_range(TOKENS)).collect();
        let body = json!({"model": self.model, "prompt": tokens, "max_tokens": output, "temperature": 0});
        (body, u64::from(prompt + output))
    }

    fn pick(&mut self, kinds: &[Class]) -> usize {
        let mut at = self.random.random_range(0.0..1.0);
        for (place, class) in kinds.iter().enumerate() {
            at -= class.share;
            if at < 0.0 {
                return place;
            }
        }
        kinds.len() - 1
    }

    /// Seconds of one request with nothing beside it.
    pub(super) async fn alone(&mut self, class: &Class) -> anyhow::Result<f64> {
        let (body, tokens) = self.draw(class);
        let record = send((&self.client, &self.url), body, (Duration::ZERO, 0, tokens), 3600.0).await;
        ensure!(record.status == 200, "a request alone got {} {}", record.status, record.code);
        Ok(record.seconds)
    }

    /// Requests a second that end while more are in flight than fit.
    pub(super) async fn capacity(&mut self, kinds: &[Class], workers: u32, span: Duration) -> anyhow::Result<f64> {
        let (ended, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for number in 0..2 * workers * RUNNING_MAX {
            let mut own = Drive {
                client: self.client.clone(),
                url: self.url.clone(),
                model: self.model.clone(),
                random: StdRng::seed_from_u64(self.random.random::<u64>() ^ u64::from(number)),
            };
            let (kinds, ended, stop) = (kinds.to_vec(), ended.clone(), stop.clone());
            tasks.spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let class = own.pick(&kinds);
                    let (body, tokens) = own.draw(&kinds[class]);
                    let record = send((&own.client, &own.url), body, (Duration::ZERO, class, tokens), 3600.0).await;
                    ended.fetch_add(u64::from(record.status == 200), Ordering::Relaxed);
                }
            });
        }
        tokio::time::sleep(span / 4).await;
        let (before, began) = (ended.load(Ordering::Relaxed), Instant::now());
        tokio::time::sleep(span - span / 4).await;
        let (after, seconds) = (ended.load(Ordering::Relaxed), began.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        while tasks.join_next().await.is_some() {}
        let rate = (after - before) as f64 / seconds;
        ensure!(rate > 0.0, "no request ended in {seconds:.1} s");
        Ok(rate)
    }

    /// Random arrivals at a mean rate; ends when all have answers, or will not get them in time.
    pub(super) async fn step(
        &mut self,
        (kinds, budgets): (&[Class], &[f64]),
        per_second: f64,
        span: Duration,
    ) -> Vec<Record> {
        let began = Instant::now();
        let (mut tasks, mut at) = (JoinSet::new(), Duration::ZERO);
        loop {
            let gap = -self.random.random_range(f64::MIN_POSITIVE..1.0).ln() / per_second;
            at += Duration::from_secs_f64(gap);
            if at >= span {
                break;
            }
            let class = self.pick(kinds);
            let (body, tokens) = self.draw(&kinds[class]);
            let (client, url, budget) = (self.client.clone(), self.url.clone(), budgets[class]);
            tokio::time::sleep_until(began + at).await;
            tasks.spawn(async move { send((&client, &url), body, (at, class, tokens), budget).await });
        }
        let mut records = Vec::new();
        let drained = async {
            while let Some(record) = tasks.join_next().await {
                records.extend(record);
            }
        };
        if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
            eprintln!("{} requests had no answer {DRAIN_MAX:?} after the step; they count as missed", tasks.len());
            for _ in 0..tasks.len() {
                records.push(unanswered(span));
            }
            tasks.shutdown().await;
        }
        records
    }
}

fn unanswered(sent: Duration) -> Record {
    Record {
        sent: sent / 2,
        class: 0,
        status: 0,
        code: "no_answer".into(),
        request_id: String::new(),
        seconds: f64::INFINITY,
        budget_seconds: 0.0,
        tokens: 0,
    }
}

async fn send(
    (client, url): (&reqwest::Client, &str),
    body: Value,
    (sent, class, tokens): (Duration, usize, u64),
    budget_seconds: f64,
) -> Record {
    let began = Instant::now();
    let request = client.post(url).header("x-evenkeel-deadline-ms", format!("{:.3}", budget_seconds * 1e3)).json(&body);
    let mut record = Record { sent, class, tokens, budget_seconds, ..unanswered(sent) };
    let Ok(answer) = request.send().await else { return record };
    record.status = answer.status().as_u16();
    record.request_id =
        answer.headers().get("x-evenkeel-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default().into();
    let Ok(value) = answer.json::<Value>().await else { return record };
    record.code = value["error"]["code"].as_str().unwrap_or_default().into();
    record.seconds = began.elapsed().as_secs_f64();
    record
}
