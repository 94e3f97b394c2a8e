//! `evenkeel bench sql`: what SQL over live rows costs, and what it costs those who are served.
//!
//! Three comparisons, each in turns: GROUP BY over live rows by the process for SQL, beside DuckDB on a Parquet file of the same rows
//! (`groups`); a small query over HTTP, beside the same by DataFusion called directly over the same rows (`small`); chat requests while
//! heavy queries run all the time, beside the same without (`serving`). Without DuckDB the first is null.
//! Cost: with 10 M rows about three minutes and 6 GiB, with `--quick` under a minute. State: one number a query or request.

mod groups;
mod serving;
mod small;

use std::path::PathBuf;

use serde::Serialize;

use super::figures::{print_json, profile};

#[derive(clap::Args)]
pub struct SqlOptions {
    /// Fewer rows and rounds
    #[arg(long)]
    quick: bool,
    /// Rows to group; default 10 000 000, with --quick 1 000 000
    #[arg(long)]
    rows: Option<usize>,
    /// Virtual environment with the package duckdb; else the python3 of the path is asked
    #[arg(long)]
    venv: Option<PathBuf>,
}

#[derive(Serialize)]
struct Report {
    bench: &'static str,
    profile: &'static str,
    quick: bool,
    group_by: groups::Report,
    small_query: small::Report,
    serving: serving::Report,
}

pub(super) fn run(options: &SqlOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let report = runtime.block_on(async {
        let serving = serving::measure(options.quick).await?;
        let small_query = small::measure(options.quick).await?;
        let group_by = groups::measure(options).await?;
        anyhow::Ok(Report { bench: "sql", profile: profile(), quick: options.quick, group_by, small_query, serving })
    })?;
    print_json(&report)
}
