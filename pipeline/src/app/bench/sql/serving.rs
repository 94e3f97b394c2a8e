//! Chat requests while [`HEAVY`] heavy queries run all the time, beside the same without.
//!
//! One server with a simulated worker answers the same request in both; rounds with and without queries take turns, and before each the
//! queries of the round before have ended. Invariant: as many queries run as there are to be, or the round is an error.
//! State: one number a request.

use std::time::Duration;

use anyhow::{Context, bail};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::json;
use tokio::task::JoinSet;

use crate::app::{
    bench::{
        figures::{median, percentile},
        gateway::{
            calls::{AnswerForm, Question, through_gateway},
            processes::ServeProcess,
        },
    },
    text::ModelText,
};

/// Heavy queries at once.
const HEAVY: usize = 8;
/// Runs for longer than a round, within its share of the memory.
const QUERY: &str = "select count(distinct value % 5003) from generate_series(1, 100000000000)";
const IN_FLIGHT: usize = 4;
const BLOCK_SIZE: usize = 16;
/// Until the queries of a round run, and until they have ended after it.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(Serialize)]
pub(super) struct Report {
    heavy_queries: usize,
    requests_per_side: usize,
    alone_ms_p50: Option<f64>,
    alone_ms_p99: Option<f64>,
    beside_ms_p50: Option<f64>,
    beside_ms_p99: Option<f64>,
    p99_ratio_alone: Option<f64>,
}

pub(super) async fn measure(quick: bool) -> anyhow::Result<Report> {
    let (rounds, requests) = if quick { (2, 40) } else { (6, 200) };
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let settings = format!("[sql]\nconcurrent_max = {HEAVY}\ntimeout = \"120s\"\n");
    let serve = ServeProcess::start(&client, &settings).await?;
    let question = full_length_question(&client, &serve).await?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let _ = round((&client, &serve), &question, IN_FLIGHT).await?;
    for number in 0..rounds {
        for turn in [number % 2, 1 - number % 2] {
            if turn == 0 {
                alone.extend(round((&client, &serve), &question, requests).await?);
                continue;
            }
            let mut heavy = JoinSet::new();
            for _ in 0..HEAVY {
                let call = client.post(format!("{}/sql", serve.url)).json(&json!({ "query": QUERY })).send();
                let _ = heavy.spawn(call);
            }
            tokio::time::sleep(SETTLE).await;
            beside.extend(round((&client, &serve), &question, requests).await?);
            if let Some(ended) = heavy.try_join_next() {
                let answer = ended?.context("a heavy query")?;
                let (status, said) = (answer.status(), answer.text().await.unwrap_or_default());
                bail!("a heavy query ended before its round: {status} {said}");
            }
            heavy.shutdown().await;
            tokio::time::sleep(SETTLE).await;
        }
    }
    serve.stop().await;
    let p99_ratio_alone = percentile(&beside, 0.99).zip(percentile(&alone, 0.99)).map(|(beside, alone)| beside / alone);
    let report = Report {
        heavy_queries: HEAVY,
        requests_per_side: alone.len(),
        alone_ms_p50: median(&alone),
        alone_ms_p99: percentile(&alone, 0.99),
        beside_ms_p50: median(&beside),
        beside_ms_p99: percentile(&beside, 0.99),
        p99_ratio_alone,
    };
    println!(
        "chat: p99 {:.1} ms alone, {:.1} ms beside {HEAVY} heavy queries, ratio {:.2}",
        report.alone_ms_p99.unwrap_or(f64::NAN),
        report.beside_ms_p99.unwrap_or(f64::NAN),
        report.p99_ratio_alone.unwrap_or(f64::NAN),
    );
    Ok(report)
}

async fn round(
    (client, serve): (&reqwest::Client, &ServeProcess),
    question: &Question,
    requests: usize,
) -> anyhow::Result<Vec<f64>> {
    let call = || async {
        anyhow::Ok(through_gateway((client, serve.url.as_str()), question, AnswerForm::Whole).await?.total_ms)
    };
    stream::iter((0..requests).map(|_| call())).buffer_unordered(IN_FLIGHT).try_collect().await
}

/// The first one-letter question that the simulated model answers at full length, without drawing its stop token.
async fn full_length_question(client: &reqwest::Client, serve: &ServeProcess) -> anyhow::Result<Question> {
    let text = ModelText::load("simulated", "simulated", BLOCK_SIZE)?;
    let mut last = None;
    for letter in 'a'..='z' {
        let question = Question::new(&text, letter.to_string())?;
        match through_gateway((client, serve.url.as_str()), &question, AnswerForm::Whole).await {
            Ok(_) => return Ok(question),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no letter was asked")?)
}
