//! From records of the client and tables of the server to the figures of each step.
//!
//! Invariant: a request is of the step it was sent in; those of the first quarter of a step are left out. No state.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use serde::Serialize;
use serde_json::Value;

use super::{load::Record, server::Serving};

/// Part of a step that is left out, so that it does not show what was before.
const LEFT_OUT: f64 = 0.25;

#[derive(Serialize)]
pub(super) struct StepReport {
    pub load: f64,
    pub offered_requests_per_s: f64,
    pub goodput_requests_per_s: f64,
    /// Prompt and output of the good ones.
    pub goodput_tokens_per_s: f64,
    pub good_share_by_class: Vec<f64>,
    pub sent: u64,
    pub good: u64,
    /// Answered whole, and too late.
    pub late: u64,
    pub refused: BTreeMap<String, u64>,
    /// Engine time of the requests sent in the step.
    pub engine_seconds: f64,
    /// Part of it for requests that missed their budget, trials left out.
    pub engine_time_share_missed: f64,
    pub engine_time_share_trials: f64,
    pub trials: u64,
    pub trials_met: u64,
    pub wait_seconds_mean: f64,
}

pub(super) struct ModeReport(pub Vec<StepReport>);

impl ModeReport {
    /// The last step's figure over the best of all.
    pub(super) fn ratio(&self, figure: impl Fn(&StepReport) -> f64) -> f64 {
        let best = self.0.iter().map(&figure).fold(0.0, f64::max);
        self.0.last().map_or(0.0, |last| figure(last) / best)
    }

    /// Of all steps' engine time together.
    pub(super) fn engine_share(&self) -> f64 {
        let missed: f64 = self.0.iter().map(|step| step.engine_time_share_missed * step.engine_seconds).sum();
        let whole: f64 = self.0.iter().map(|step| step.engine_seconds).sum();
        if whole > 0.0 { missed / whole } else { 0.0 }
    }

    pub(super) fn worst_engine_share(&self) -> f64 {
        self.0.iter().map(|step| step.engine_time_share_missed).fold(0.0, f64::max)
    }

    pub(super) fn trials(&self) -> u64 {
        self.0.iter().map(|step| step.trials).sum()
    }

    pub(super) fn wrong_refusal_share(&self) -> Option<f64> {
        let met: u64 = self.0.iter().map(|step| step.trials_met).sum();
        (self.trials() > 0).then(|| met as f64 / self.trials() as f64)
    }
}

/// What the server says of a request.
struct Served {
    is_met: bool,
    is_trial: bool,
    wait_seconds: f64,
    prefilled: f64,
    drawn: f64,
}

/// Engine seconds of one token.
struct Costs {
    prefilled: f64,
    drawn: f64,
}

impl Costs {
    fn of(&self, served: &Served) -> f64 {
        served.prefilled * self.prefilled + served.drawn * self.drawn
    }
}

pub(super) async fn mode(
    serving: &Serving,
    steps: Vec<(f64, Vec<Record>)>,
    span: Duration,
) -> anyhow::Result<ModeReport> {
    // Rows reach the tables within the bus's flush interval.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (costs, served) = (costs(serving).await?, served(serving).await?);
    let report = |(load, records): (f64, Vec<Record>)| step(load, &records, (span, &costs), &served);
    Ok(ModeReport(steps.into_iter().map(report).collect()))
}

async fn costs(serving: &Serving) -> anyhow::Result<Costs> {
    let query = "select sum(case when prefill_tokens = 0 then step_us end) as d_us, \
                 sum(case when prefill_tokens = 0 then decode_tokens end) as d_tokens, \
                 sum(case when prefill_tokens > 0 then step_us end) as p_us, \
                 sum(case when prefill_tokens > 0 then decode_tokens end) as p_drawn, \
                 sum(prefill_tokens) as p_tokens from engine_steps";
    let rows = serving.sql(query).await?;
    let number = |name: &str| rows.first().and_then(|row| row[name].as_f64()).unwrap_or(0.0);
    let drawn = number("d_us") / number("d_tokens").max(1.0) / 1e6;
    let prefill = number("p_us") / 1e6 - drawn * number("p_drawn");
    Ok(Costs { drawn, prefilled: (prefill / number("p_tokens").max(1.0)).max(0.0) })
}

async fn served(serving: &Serving) -> anyhow::Result<HashMap<String, Served>> {
    let query =
        "select request_id, is_met, is_trial, wait_seconds, prompt_tokens, cached_tokens, output_tokens from slo";
    let of = |row: &Value| {
        let number = |name: &str| row[name].as_f64().unwrap_or(0.0);
        let ran = number("output_tokens") > 0.0;
        let served = Served {
            is_met: row["is_met"].as_bool().unwrap_or(false),
            is_trial: row["is_trial"].as_bool().unwrap_or(false),
            wait_seconds: number("wait_seconds"),
            prefilled: if ran { number("prompt_tokens") - number("cached_tokens") } else { 0.0 },
            drawn: number("output_tokens"),
        };
        (row["request_id"].as_str().unwrap_or_default().to_string(), served)
    };
    Ok(serving.sql(query).await?.iter().map(of).collect())
}

fn step(
    load: f64,
    records: &[Record],
    (span, costs): (Duration, &Costs),
    served: &HashMap<String, Served>,
) -> StepReport {
    let seconds = span.as_secs_f64() * (1.0 - LEFT_OUT);
    let counted: Vec<&Record> = records.iter().filter(|record| record.sent >= span.mul_f64(LEFT_OUT)).collect();
    let good = || counted.iter().filter(|record| record.is_good());
    let classes = counted.iter().map(|record| record.class).max().map_or(0, |most| most + 1);
    let share = |class: usize| {
        let all = counted.iter().filter(|record| record.class == class).count();
        good().filter(|record| record.class == class).count() as f64 / all.max(1) as f64
    };
    let mut refused = BTreeMap::new();
    for record in counted.iter().filter(|record| record.status != 200) {
        *refused.entry(record.code.clone()).or_insert(0) += 1;
    }
    let (mut whole, mut missed, mut tried) = (0.0, 0.0, 0.0);
    let (mut trials, mut trials_met, mut waits) = (0, 0, Vec::new());
    for record in &counted {
        let Some(server) = served.get(&record.request_id) else { continue };
        let cost = costs.of(server);
        whole += cost;
        if server.is_trial {
            tried += cost;
            trials += 1;
            trials_met += u64::from(server.is_met && record.is_good());
        } else if !record.is_good() {
            missed += cost;
        }
        waits.push(server.wait_seconds);
    }
    let part = |cost: f64| if whole > 0.0 { cost / whole } else { 0.0 };
    StepReport {
        load,
        offered_requests_per_s: counted.len() as f64 / seconds,
        goodput_requests_per_s: good().count() as f64 / seconds,
        goodput_tokens_per_s: good().map(|record| record.tokens).sum::<u64>() as f64 / seconds,
        good_share_by_class: (0..classes).map(share).collect(),
        sent: counted.len() as u64,
        good: good().count() as u64,
        late: counted.iter().filter(|record| record.status == 200 && !record.is_good()).count() as u64,
        refused,
        engine_seconds: whole,
        engine_time_share_missed: part(missed),
        engine_time_share_trials: part(tried),
        trials,
        trials_met,
        wait_seconds_mean: waits.iter().sum::<f64>() / waits.len().max(1) as f64,
    }
}
