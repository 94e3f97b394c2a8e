//! A small query over HTTP, beside the same by DataFusion called directly over the same rows.
//!
//! The rows are those that requests to the server leave; they are fetched once over the same door. Both sides are asked one statement
//! at a time, in turns. Ours has in it: HTTP, the key, the way to the process for SQL and back, its limits, and JSON.
//! State: one number a query.

use std::time::Instant;

use anyhow::{Context, ensure};
use arrow::ipc::reader::StreamReader;
use queries::{LiveTables, Topic, plain::PlainTables};
use serde::Serialize;
use serde_json::json;

use crate::app::bench::{
    figures::{median, millis, percentile},
    gateway::processes::ServeProcess,
};

const QUERY: &str =
    "select event, count(*) as n, max(output_tokens) as tokens from requests group by event order by event";
const WARM_UP: usize = 20;

#[derive(Serialize)]
pub(super) struct Report {
    rows: usize,
    queries: usize,
    http_ms_p50: Option<f64>,
    http_ms_p99: Option<f64>,
    datafusion_ms_p50: Option<f64>,
    datafusion_ms_p99: Option<f64>,
    p50_ratio_datafusion: Option<f64>,
    p99_ratio_datafusion: Option<f64>,
}

pub(super) async fn measure(quick: bool) -> anyhow::Result<Report> {
    let (requests, queries) = if quick { (20, 300) } else { (60, 3000) };
    let client = reqwest::Client::builder().no_proxy().tcp_nodelay(true).build()?;
    let serve = ServeProcess::start(&client, "").await?;
    for number in 0..requests {
        let body = json!({"model": "simulated", "prompt": format!("number {number}"), "max_tokens": 32});
        let response = client.post(format!("{}/v1/completions", serve.url)).json(&body).send().await?;
        ensure!(response.status().is_success(), "a request was refused: {}", response.text().await?);
        let _ = response.bytes().await?;
    }
    let tables = LiveTables::new(1_000_000);
    let rows = fetch(&client, &serve, &tables).await?;
    let plain = PlainTables::new(&tables)?;
    let (mut http_ms, mut plain_ms) = (Vec::new(), Vec::new());
    for round in 0..queries + WARM_UP {
        for turn in [round % 2, 1 - round % 2] {
            let started = Instant::now();
            let times = if turn == 0 {
                let body = json!({ "query": QUERY });
                let response =
                    client.post(format!("{}/sql", serve.url)).json(&body).send().await?.error_for_status()?;
                let _ = response.bytes().await?;
                &mut http_ms
            } else {
                let _ = plain.answer(QUERY).await?;
                &mut plain_ms
            };
            if round >= WARM_UP {
                times.push(millis(started.elapsed()));
            }
        }
    }
    serve.stop().await;
    let ratio = |share| Some(percentile(&http_ms, share)? / percentile(&plain_ms, share)?);
    let report = Report {
        rows,
        queries,
        http_ms_p50: median(&http_ms),
        http_ms_p99: percentile(&http_ms, 0.99),
        datafusion_ms_p50: median(&plain_ms),
        datafusion_ms_p99: percentile(&plain_ms, 0.99),
        p50_ratio_datafusion: ratio(0.5),
        p99_ratio_datafusion: ratio(0.99),
    };
    println!(
        "a small query: p50 {:.2} ms over HTTP, {:.2} ms by DataFusion; p99 {:.2} and {:.2} ms, ratio {:.2}",
        report.http_ms_p50.unwrap_or(f64::NAN),
        report.datafusion_ms_p50.unwrap_or(f64::NAN),
        report.http_ms_p99.unwrap_or(f64::NAN),
        report.datafusion_ms_p99.unwrap_or(f64::NAN),
        report.p99_ratio_datafusion.unwrap_or(f64::NAN),
    );
    Ok(report)
}

/// The server's requests, into tables of our own.
async fn fetch(client: &reqwest::Client, serve: &ServeProcess, tables: &LiveTables) -> anyhow::Result<usize> {
    let request = client.post(format!("{}/sql", serve.url)).header("accept", "application/vnd.apache.arrow.stream");
    let request = request.json(&json!({"query": "select * from requests"}));
    let bytes = request.send().await?.error_for_status()?.bytes().await?;
    let mut rows = 0;
    for batch in StreamReader::try_new(bytes.as_ref(), None)? {
        let batch = batch?;
        rows += batch.num_rows();
        let _ = tables.append(Topic::Requests, batch).context("the server's rows are of another version")?;
    }
    Ok(rows)
}
