//! GROUP BY over live rows, by the process for SQL, beside DuckDB on the exported Parquet of the same rows.
//!
//! Both use two threads, answer over a pipe to this process, and must give as many groups. DuckDB's time is taken in its own process,
//! ours here, with the way there and back. Invariant: in each round both are asked, who goes first changes.
//! Memory: the rows of [`DISTINCT`] batches here, all rows in the process.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use arrow::array::RecordBatch;
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};
use queries::{Caller, LiveTables, Question, SqlAnswers, Topic};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::SqlOptions;
use crate::{
    app::{
        bench::figures::{median, millis, paired_ratio},
        glue::WallClock,
        query_worker::{Keeper, KeeperSetup, QueryWorkerOptions},
    },
    bus::Bus,
    config::{self, Overrides},
    gateway::deps::Clock,
    rows::RequestRow,
};

const BATCH_ROWS: usize = 8192;
/// Batches that differ; all rows are these, again and again.
const DISTINCT: usize = 64;
const FILL_WAIT: Duration = Duration::from_secs(300);
const GRACE: Duration = Duration::from_secs(5);

const QUERIES: [(&str, &str); 4] = [
    ("by_number", "select instance, count(*), sum(output_tokens), avg(gap_us) from requests group by instance"),
    ("by_text", "select tenant, count(*), sum(output_tokens), max(gap_us) from requests group by tenant"),
    ("by_two", "select event, instance, count(*), sum(prompt_tokens) from requests group by event, instance"),
    ("filtered", "select tier, count(*), avg(gap_us) from requests where gap_us > 15000 group by tier"),
];

/// Answers one statement a line with its time and its rows, until its input ends.
const DUCKDB: &str = "
import sys, time
import duckdb
connection = duckdb.connect(config={'threads': 2})
connection.execute(f\"create view requests as select * from '{sys.argv[1]}'\")
print('ready', flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    rows = connection.execute(line).fetchall()
    print((time.perf_counter() - started) * 1e3, len(rows), flush=True)
";

#[derive(Serialize)]
struct Case {
    query: &'static str,
    groups: usize,
    ours_ms_p50: Option<f64>,
    duckdb_ms_p50: Option<f64>,
    ratio_duckdb: Option<f64>,
}

#[derive(Serialize)]
pub(super) struct Report {
    rows: usize,
    fill_s: f64,
    cases: Vec<Case>,
    /// The worst case's; null without DuckDB.
    ratio_duckdb_max: Option<f64>,
}

pub(super) async fn measure(options: &SqlOptions) -> anyhow::Result<Report> {
    let rows = options.rows.unwrap_or(if options.quick { 1_000_000 } else { 10_000_000 });
    let rounds = if options.quick { 5 } else { 11 };
    let folder = tempfile::tempdir().context("cannot make a folder for the rows")?;
    let batches = batches()?;
    let duckdb =
        DuckDb::start(options.venv.as_deref(), &folder.path().join("requests.parquet"), (&batches, rows)).await?;
    let ours = Ours::start(&batches, rows).await?;
    let (mut ours, mut duckdb) = (ours, duckdb);
    let mut cases = Vec::new();
    for (name, sql) in QUERIES {
        let case = compare((name, sql), rounds, (&mut ours, duckdb.as_mut())).await?;
        println!(
            "{rows} rows, {name}: {:.1} ms, DuckDB {:.1} ms, ratio {:.2}",
            case.ours_ms_p50.unwrap_or(f64::NAN),
            case.duckdb_ms_p50.unwrap_or(f64::NAN),
            case.ratio_duckdb.unwrap_or(f64::NAN)
        );
        cases.push(case);
    }
    let ratio_duckdb_max = cases.iter().filter_map(|case| case.ratio_duckdb).max_by(f64::total_cmp);
    let fill_s = ours.fill_s;
    ours.keeper.stop().await;
    Ok(Report { rows, fill_s, cases, ratio_duckdb_max })
}

async fn compare(
    (query, sql): (&'static str, &str),
    rounds: usize,
    (ours, mut duckdb): (&mut Ours, Option<&mut DuckDb>),
) -> anyhow::Result<Case> {
    let (mut own_ms, mut their_ms, mut groups) = (Vec::new(), Vec::new(), 0);
    for round in 0..=rounds {
        for turn in [round % 2, 1 - round % 2] {
            let (times, answer) = match (turn, duckdb.as_deref_mut()) {
                (0, _) => (&mut own_ms, ours.ask(sql).await?),
                (_, Some(duckdb)) => (&mut their_ms, duckdb.ask(sql).await?),
                (_, None) => continue,
            };
            ensure!(groups == 0 || answer.1 == groups, "{sql}: {groups} groups, then {}", answer.1);
            groups = answer.1;
            // The first round only warms both.
            if round > 0 {
                times.push(answer.0);
            }
        }
    }
    let ratio_duckdb = paired_ratio(&own_ms, &their_ms);
    Ok(Case { query, groups, ours_ms_p50: median(&own_ms), duckdb_ms_p50: median(&their_ms), ratio_duckdb })
}

/// Rows as requests leave them: a hundred tenants, sixteen instances, the tiers, a gap of some milliseconds.
fn batches() -> anyhow::Result<Vec<RecordBatch>> {
    let schema = Topic::Requests.schema();
    let row = |number: usize| {
        // A number without a pattern that a column would be short for.
        let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        RequestRow {
            at: 1_767_614_400_000_000 + number as i64 * 100,
            request_id: format!("req-{:032x}", (u128::from(mixed) << 16) | (number as u128 / 40)).into(),
            seq: (number % 40) as u32,
            event: if number.is_multiple_of(40) { "finished".into() } else { "grew".into() },
            model: "simulated".into(),
            tier: ["High", "Medium", "Low"][(mixed % 3) as usize].into(),
            tenant: format!("tenant-{}", mixed % 100).into(),
            instance: Some((mixed % 16) as u32),
            prompt_tokens: (mixed % 4096) as u32,
            output_tokens: (number % 40) as u32,
            gap_us: Some((mixed % 40_000) as i64),
            ..RequestRow::default()
        }
    };
    let batch = |at: usize| -> anyhow::Result<RecordBatch> {
        let rows: Vec<RequestRow> = (at * BATCH_ROWS..(at + 1) * BATCH_ROWS).map(row).collect();
        let batch = serde_arrow::to_record_batch(schema.fields(), &rows)?;
        Ok(queries::live_table::conform(Topic::Requests, batch)?)
    };
    (0..DISTINCT).map(batch).collect()
}

/// The rows, batch by batch, `rows` in all.
fn repeated(batches: &[RecordBatch], rows: usize) -> impl Iterator<Item = RecordBatch> {
    let starts = (0..rows).step_by(BATCH_ROWS).zip(batches.iter().cycle());
    starts.map(move |(start, batch)| batch.slice(0, BATCH_ROWS.min(rows - start)))
}

/// The process for SQL over the rows.
struct Ours {
    keeper: Keeper,
    _bus: crate::bus::BusGuard,
    /// From the start of the process to an answer that knew all rows.
    fill_s: f64,
}

impl Ours {
    async fn start(batches: &[RecordBatch], rows: usize) -> anyhow::Result<Ours> {
        let room = format!("{}GiB", 4 + rows / 1_000_000);
        let overrides = Overrides::default()
            .set("bus.live_rows", Some(rows))
            .set("sql.timeout", Some("300s"))
            .set("sql.memory_max", Some("2GiB"))
            .set("sql.worker_memory", Some(room))
            .set("log.mode", Some("off"));
        let config = config::load(None, overrides)?;
        let tables = Arc::new(LiveTables::new(rows));
        for batch in repeated(batches, rows) {
            let _ = tables.append(Topic::Requests, batch)?;
        }
        let (bus, guard) = Bus::start(&config.bus, None, tables.clone(), Arc::new(|| WallClock.now()))?;
        let started = Instant::now();
        let source = (bus, tables, Arc::new(|| WallClock.now()) as crate::bus::Clock);
        let keeper = Keeper::start(KeeperSetup::own(&QueryWorkerOptions::new(&config), GRACE, source)?);
        let mut ours = Ours { keeper, _bus: guard, fill_s: 0.0 };
        while ours.ask("select 1 from requests limit 1").await.is_err() {
            ensure!(started.elapsed() < FILL_WAIT, "the process for SQL did not get the rows in {FILL_WAIT:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ours.fill_s = started.elapsed().as_secs_f64();
        Ok(ours)
    }

    /// Milliseconds and rows of an answer.
    async fn ask(&mut self, sql: &str) -> anyhow::Result<(f64, usize)> {
        let started = Instant::now();
        let answer = self.keeper.answers().answer(Question::new(sql, Caller::new("bench"))).await?;
        Ok((millis(started.elapsed()), answer.rows()))
    }
}

/// A Python process with DuckDB in it.
struct DuckDb {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

#[derive(Deserialize)]
struct Line(f64, usize);

impl DuckDb {
    /// Exports the rows and starts it; `None`, after saying so, where there is no DuckDB.
    async fn start(
        venv: Option<&Path>,
        file: &Path,
        (batches, rows): (&[RecordBatch], usize),
    ) -> anyhow::Result<Option<DuckDb>> {
        let python = venv.map_or(PathBuf::from("python3"), |venv| venv.join("bin/python"));
        let probe = Command::new(&python).args(["-c", "import duckdb"]).stderr(Stdio::null()).status().await;
        if !probe.is_ok_and(|status| status.success()) {
            println!("SKIPPED ({} has no package duckdb: give --venv)", python.display());
            return Ok(None);
        }
        let zstd = Compression::ZSTD(ZstdLevel::default());
        let properties = WriterProperties::builder().set_compression(zstd).build();
        let mut writer = ArrowWriter::try_new(File::create(file)?, Topic::Requests.schema(), Some(properties))?;
        for batch in repeated(batches, rows) {
            writer.write(&batch)?;
        }
        let _ = writer.close()?;
        let mut process = Command::new(&python)
            .args(["-c", DUCKDB])
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = process.stdin.take().context("DuckDB's process has no stdin")?;
        let output = BufReader::new(process.stdout.take().context("DuckDB's process has no stdout")?).lines();
        let mut duckdb = DuckDb { _process: process, input, output };
        let first = duckdb.output.next_line().await?;
        ensure!(first.as_deref() == Some("ready"), "DuckDB's process said {first:?}");
        Ok(Some(duckdb))
    }

    /// Milliseconds and rows of an answer.
    async fn ask(&mut self, sql: &str) -> anyhow::Result<(f64, usize)> {
        self.input.write_all(format!("{sql}\n").as_bytes()).await?;
        self.input.flush().await?;
        let line = self.output.next_line().await?.context("DuckDB's process ended; its message is above")?;
        let Line(ms, rows) = serde_json::from_str(&format!("[{}]", line.replace(' ', ",")))?;
        Ok((ms, rows))
    }
}
