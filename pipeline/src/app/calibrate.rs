//! `evenkeel calibrate`: how much an instance of this machine and model carries, by length of request (SPEC B1).
//!
//! At each length, steps with one and with a few sequences of that length give a line: `step = base + sequences × each`.
//! Capacity is the most sequences whose step stays within the inter-token latency asked for, bounded by the KV memory; a token
//! of a request of that length consumes one part in `tokens_max` of an instance. The table is a Parquet file, one row a length.
//!
//! Cost: `1 + SEQUENCES` prompts of each length are computed. Memory: one worker's engine with the KV memory it would have.

use std::{path::PathBuf, time::Duration};

use anyhow::ensure;
use arrow::datatypes::{DataType, Field, Schema};
use serde::Serialize;

use super::{bench::engine::model_path, driver::Driver, table_file};
use crate::{
    config::{self, Overrides},
    worker::{
        model,
        options::{CacheMode, WorkerOptions},
    },
};

/// Lengths that are measured, in tokens, as far as the model's context goes.
const LENGTHS: [usize; 7] = [32, 128, 512, 1024, 2048, 4096, 8192];
const QUICK_LENGTHS: usize = 4;
/// Sequences of the second point of the line.
const SEQUENCES: usize = 4;
const STEPS: usize = 9;
const NOTHING: &str = "nothing was measured: the KV memory (workers.kv_bytes_max) holds too few sequences";

#[derive(clap::Args)]
pub struct CalibrateOptions {
    /// Path of a .gguf file, or a name in the catalogue
    #[arg(long, default_value = "smollm2-135m")]
    model: String,
    /// Compute threads of the instance
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Longest time between two tokens of a sequence that is still good service
    #[arg(long, default_value = "100ms", value_parser = humantime::parse_duration)]
    itl_max: Duration,
    /// File for the table; without it <data folder>/capacity.parquet
    #[arg(long)]
    out: Option<PathBuf>,
    /// Lengths to 1024 tokens only
    #[arg(long)]
    quick: bool,
}

/// What one length comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct CapacityRow {
    model: String,
    threads: u32,
    itl_max_ms: f64,
    length_tokens: u32,
    prefill_tokens_per_second: f64,
    step_base_ms: f64,
    step_sequence_ms: f64,
    sequences_max: u32,
    tokens_max: u64,
    tokens_per_second_max: f64,
    instance_share_per_token: f64,
}

pub(super) fn run(options: &CalibrateOptions) -> anyhow::Result<()> {
    let path = model_path(&options.model)?;
    let settings = config::load(None, Overrides::default())?;
    let worker = WorkerOptions {
        threads: options.threads,
        prefix_cache: CacheMode::Off,
        kv_bytes_max: settings.workers.kv_bytes_max.as_u64(),
        running_max: settings.workers.running_max,
        token_budget: settings.workers.token_budget,
        block_size: settings.workers.block_size,
        ..WorkerOptions::for_model(path.display().to_string())
    };
    let mut driver = Driver::new(model::build(&worker)?);
    let lengths = &LENGTHS[..if options.quick { QUICK_LENGTHS } else { LENGTHS.len() }];
    let mut rows = Vec::new();
    for length in lengths {
        let room = 2 * STEPS + SEQUENCES + 2;
        let most = driver.engine().shape().context - room;
        if let Some(row) = measure(&mut driver, options, (*length).min(most))? {
            eprintln!(
                "{} tokens: prefill {:.0} tokens/s, step {:.1} ms + {:.2} ms a sequence, at most {} sequences",
                row.length_tokens,
                row.prefill_tokens_per_second,
                row.step_base_ms,
                row.step_sequence_ms,
                row.sequences_max
            );
            rows.push(row);
        }
        if *length >= most {
            break;
        }
    }
    let out = options.out.clone().unwrap_or_else(|| settings.server.data_dir.join("capacity.parquet"));
    ensure!(!rows.is_empty(), NOTHING);
    table_file::write(&out, schema(), &rows)?;
    println!("{}", out.display());
    Ok(())
}

/// `None` if the KV memory does not hold the sequences of the measurement.
fn measure(driver: &mut Driver, options: &CalibrateOptions, length: usize) -> anyhow::Result<Option<CapacityRow>> {
    let shape = driver.engine().shape();
    let config = driver.engine().config();
    let blocks_each = (length + 2 * STEPS).div_ceil(shape.block_size);
    let fitting = (shape.blocks / blocks_each).min(config.max_running);
    if fitting < SEQUENCES {
        eprintln!("{length} tokens: the KV memory holds {fitting} such sequences; measuring needs {SEQUENCES}");
        return Ok(None);
    }
    let prefill = length as f64 / driver.prefill_seconds(length)?;
    let one = driver.step_seconds(&[length], STEPS)?;
    let few = driver.step_seconds(&[length; SEQUENCES], STEPS)?;
    let each = ((few - one) / (SEQUENCES - 1) as f64).max(0.0);
    let base = (one - each).max(0.0);
    let sequences = capacity((base, each), options.itl_max.as_secs_f64(), fitting);
    let tokens_max = (sequences.max(1) * length) as u64;
    Ok(Some(CapacityRow {
        model: options.model.clone(),
        threads: options.threads as u32,
        itl_max_ms: options.itl_max.as_secs_f64() * 1e3,
        length_tokens: length as u32,
        prefill_tokens_per_second: prefill,
        step_base_ms: base * 1e3,
        step_sequence_ms: each * 1e3,
        sequences_max: sequences as u32,
        tokens_max,
        tokens_per_second_max: sequences as f64 / (base + each * sequences as f64).max(f64::MIN_POSITIVE),
        instance_share_per_token: 1.0 / tokens_max as f64,
    }))
}

/// Most sequences whose step takes at most `itl` seconds; at most `fitting`. Zero if not even one does.
fn capacity((base, each): (f64, f64), itl: f64, fitting: usize) -> usize {
    if base + each > itl {
        return 0;
    }
    if each <= 0.0 {
        return fitting;
    }
    (((itl - base) / each) as usize).min(fitting)
}

fn schema() -> Schema {
    let field = |name: &str, data_type, unit: &str| {
        Field::new(name, data_type, false).with_metadata([("unit".to_string(), unit.to_string())].into())
    };
    Schema::new(vec![
        field("model", DataType::Utf8, ""),
        field("threads", DataType::UInt32, "threads"),
        field("itl_max_ms", DataType::Float64, "ms"),
        field("length_tokens", DataType::UInt32, "tokens"),
        field("prefill_tokens_per_second", DataType::Float64, "tokens/s"),
        field("step_base_ms", DataType::Float64, "ms"),
        field("step_sequence_ms", DataType::Float64, "ms"),
        field("sequences_max", DataType::UInt32, "sequences"),
        field("tokens_max", DataType::UInt64, "tokens"),
        field("tokens_per_second_max", DataType::Float64, "tokens/s"),
        field("instance_share_per_token", DataType::Float64, "instances/token"),
    ])
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    /// Scenario: lines that allow none, some and more sequences than memory holds; one that does not grow.
    /// Guarantees: the largest number within the latency, within memory; none where one is too slow.
    #[test]
    fn capacity_is_the_largest_that_keeps_the_latency() {
        assert_eq!(capacity((0.050, 0.010), 0.100, 64), 5);
        assert_eq!(capacity((0.050, 0.010), 0.100, 3), 3);
        assert_eq!(capacity((0.095, 0.010), 0.100, 64), 0);
        assert_eq!(capacity((0.050, 0.0), 0.100, 64), 64);
    }

    /// Scenario: the simulated engine at two lengths, written over an older file. Guarantees: a row a length with its columns;
    /// longer requests leave room for fewer; no half file is left.
    #[test]
    fn the_table_is_written() {
        let worker = WorkerOptions { simulated_pace: 1.0, ..WorkerOptions::for_model(model::SIMULATED) };
        let mut driver = Driver::new(model::build(&worker).unwrap());
        let options = CalibrateOptions {
            model: "toy".into(),
            threads: 1,
            itl_max: Duration::from_millis(200),
            out: None,
            quick: true,
        };
        let rows: Vec<_> =
            [32, 256].iter().map(|length| measure(&mut driver, &options, *length).unwrap().unwrap()).collect();
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new/capacity.parquet");
        table_file::write(&out, schema(), &rows).unwrap();
        table_file::write(&out, schema(), &rows).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&out).unwrap()).unwrap();
        assert_eq!(reader.schema().field(3).metadata()["unit"], "tokens");
        assert_eq!(reader.build().unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 2);
        assert_eq!(std::fs::read_dir(out.parent().unwrap()).unwrap().count(), 1);
        assert!(rows.iter().all(|row| row.sequences_max >= 1 && row.instance_share_per_token > 0.0), "{rows:?}");
    }
}
