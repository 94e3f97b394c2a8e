//! `evenkeel models quality`: what a variant of a model costs in quality (SPEC D1), measured and not believed.
//!
//! All variants read the same text side by side with the exact model (the file's weights, arithmetic and KV in f32). A row a
//! variant: perplexity with its standard error, the divergence of its distribution from the exact one, the share of tokens for
//! which both think the same one likeliest, and the bytes of its weights. The text is the one this repository carries, or any.
//!
//! Cost: each model computes each token about `window / stride` times. Memory: all variants at once, and one window of KV each.

use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context, ensure};
use arrow::datatypes::{DataType, Field, Schema};
use clap::ValueEnum;
use engine::{
    likelihood::{Agreement, Windows, compare},
    runner::{ModelRunner, cpu::CpuRunner},
};
use serde::Serialize;

use super::{bench::engine::model_path, table_file, text::ModelText};
use crate::{
    config::{self, Arithmetic, KvFormat, Overrides, Variant},
    gateway::deps::TextModel,
    worker::{model, options::WorkerOptions, variant_files},
};

/// Plain English and code, written for this repository: no model has been trained on it.
const TEXT: &str = include_str!("../../data/quality.txt");
/// What the others are compared with.
const EXACT: &str = "exact=arithmetic:f32,kv:f32";
/// Variants of any model, where none are given or declared.
const USUAL: [&str; 3] = ["int8=arithmetic:int8", "q8=weights:q8_0,arithmetic:int8", "q4=weights:q4_0,arithmetic:int8"];
/// Scored tokens between two lines of progress.
const PROGRESS_TOKENS: usize = 500;

#[derive(clap::Args)]
pub struct QualityOptions {
    /// Path of a .gguf file, or a name in the catalogue; without it the settings'
    #[arg(long)]
    model: Option<String>,
    /// Settings whose [[model.variants]] are measured
    #[arg(long)]
    config: Option<PathBuf>,
    /// A variant, as for `serve`: NAME=KEY:VALUE,…; may be given several times
    #[arg(long = "variant", value_parser = config::parse_variant)]
    variants: Vec<Variant>,
    /// File with the text; without it the one built in
    #[arg(long)]
    text: Option<PathBuf>,
    /// Most tokens of context
    #[arg(long, default_value_t = 512)]
    window: usize,
    /// Tokens from one window to the next; all but the first tokens have at least window - stride of context
    #[arg(long, default_value_t = 256)]
    stride: usize,
    /// Compute threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// File for the table; without it <data folder>/quality.parquet
    #[arg(long)]
    out: Option<PathBuf>,
}

/// What one variant comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct QualityRow {
    model: String,
    variant: String,
    weights: String,
    arithmetic: String,
    kv: String,
    weight_bytes: u64,
    tokens: u64,
    window: u32,
    stride: u32,
    perplexity: f64,
    perplexity_error: f64,
    nll: f64,
    nll_error: f64,
    divergence: f64,
    divergence_error: f64,
    same_best_share: f64,
}

pub(super) fn run(options: QualityOptions) -> anyhow::Result<()> {
    let settings = config::load(options.config.as_deref(), Overrides::default().set("model.name", options.model))?;
    let path = model_path(&settings.model.name)?.display().to_string();
    let text = match &options.text {
        None => TEXT.to_string(),
        Some(path) => fs::read_to_string(path).with_context(|| format!("--text: cannot read {}", path.display()))?,
    };
    let variants = variants(options.variants, settings.model.variants);
    variant_files::check(&variants, &path)?;
    let tokens = ModelText::load(&settings.model.name, &path, settings.workers.block_size)?.encode_prompt(&text)?;
    let worker = WorkerOptions {
        threads: options.threads,
        block_size: settings.workers.block_size,
        arithmetic: settings.workers.arithmetic,
        kv: settings.workers.kv,
        ..WorkerOptions::for_model(path)
    };
    let windows = Windows { window: options.window, stride: options.stride };
    let rows = measure(&settings.model.name, &variants, (&worker, &tokens, windows))?;
    print(&rows);
    let out = options.out.unwrap_or_else(|| settings.server.data_dir.join("quality.parquet"));
    table_file::write(&out, schema(), &rows)?;
    eprintln!("written to {}", out.display());
    println!("{}", serde_json::to_string(&rows)?);
    Ok(())
}

/// The exact model, then those given, else those declared, else the usual ones.
fn variants(given: Vec<Variant>, declared: Vec<Variant>) -> Vec<Variant> {
    let built_in = |text: &str| config::parse_variant(text).expect("invariant: built in, held by a test");
    let some = [given, declared].into_iter().find(|list| !list.is_empty());
    let others = some.unwrap_or_else(|| USUAL.iter().map(|text| built_in(text)).collect());
    let exact = built_in(EXACT);
    // One that is called so and is the same is not measured twice.
    let is_exact = |other: &Variant| Variant { workers: 1, ..other.clone() } == exact;
    let others = others.into_iter().filter(|other| !is_exact(other));
    std::iter::once(exact.clone()).chain(others).collect()
}

fn measure(
    name: &str,
    variants: &[Variant],
    (worker, tokens, windows): (&WorkerOptions, &[u32], Windows),
) -> anyhow::Result<Vec<QualityRow>> {
    ensure!(tokens.len() > 1, "--text: {} tokens; expected at least 2", tokens.len());
    let window = windows.window.min(tokens.len());
    let windows = Windows { window, stride: windows.stride.min(window - 1) };
    let mut runners: Vec<CpuRunner> = Vec::new();
    let (mut all, mut bytes) = (Vec::new(), Vec::new());
    for variant in variants {
        let options = worker.clone().of_variant(variant);
        let (runner, held) = model::runner(&options)?;
        runners.push(runner);
        bytes.push(held as u64);
        all.push(options);
    }
    let mut models: Vec<&mut dyn ModelRunner> = runners.iter_mut().map(|r| r as &mut dyn ModelRunner).collect();
    let started = Instant::now();
    let agreements = compare(&mut models, tokens, windows, &mut |scored| {
        if scored.is_multiple_of(PROGRESS_TOKENS) {
            eprintln!("{scored} of {} tokens, {:.0} s", tokens.len() - 1, started.elapsed().as_secs_f64());
        }
    })?;
    let figures = all.iter().zip(bytes).zip(&agreements);
    Ok(figures.map(|((options, bytes), agreement)| row(name, (options, bytes), (agreement, windows))).collect())
}

fn row(
    name: &str,
    (options, weight_bytes): (&WorkerOptions, u64),
    (agreement, windows): (&Agreement, Windows),
) -> QualityRow {
    let word = |value: Option<clap::builder::PossibleValue>| value.map_or(String::new(), |v| v.get_name().to_string());
    let kv = match (options.kv, options.arithmetic) {
        (KvFormat::Auto, Arithmetic::Int8) => KvFormat::F16,
        (KvFormat::Auto, Arithmetic::F32) => KvFormat::F32,
        (kv, _) => kv,
    };
    QualityRow {
        model: name.into(),
        variant: options.variant.clone(),
        weights: word(options.weights.to_possible_value()),
        arithmetic: word(options.arithmetic.to_possible_value()),
        kv: word(kv.to_possible_value()),
        weight_bytes,
        tokens: agreement.nll.count,
        window: windows.window as u32,
        stride: windows.stride as u32,
        perplexity: agreement.perplexity(),
        perplexity_error: agreement.perplexity_error(),
        nll: agreement.nll.mean(),
        nll_error: agreement.nll.standard_error(),
        divergence: agreement.divergence.mean(),
        divergence_error: agreement.divergence.standard_error(),
        same_best_share: agreement.same_best_share(),
    }
}

fn print(rows: &[QualityRow]) {
    println!(
        "{:<12} {:<10} {:<5} {:<5} {:>8} {:>18} {:>20} {:>10}",
        "variant", "weights", "arith", "kv", "MiB", "perplexity", "divergence (nats)", "same best"
    );
    for row in rows {
        println!(
            "{:<12} {:<10} {:<5} {:<5} {:>8.1} {:>9.3} ± {:>6.3} {:>10.5} ± {:>7.5} {:>8.2} %",
            row.variant,
            row.weights,
            row.arithmetic,
            row.kv,
            row.weight_bytes as f64 / f64::from(1 << 20),
            row.perplexity,
            row.perplexity_error,
            row.divergence,
            row.divergence_error,
            100.0 * row.same_best_share
        );
    }
}

fn schema() -> Schema {
    let field = |name: &str, data_type, unit: &str| {
        Field::new(name, data_type, false).with_metadata([("unit".to_string(), unit.to_string())].into())
    };
    let texts = ["model", "variant", "weights", "arithmetic", "kv"].map(|name| field(name, DataType::Utf8, ""));
    let counts = [field("weight_bytes", DataType::UInt64, "bytes"), field("tokens", DataType::UInt64, "tokens")];
    let sizes = ["window", "stride"].map(|name| field(name, DataType::UInt32, "tokens"));
    let figures = [("perplexity", ""), ("perplexity_error", ""), ("nll", "nats/token"), ("nll_error", "nats/token")];
    let others = [("divergence", "nats/token"), ("divergence_error", "nats/token"), ("same_best_share", "")];
    let figures = figures.into_iter().chain(others).map(|(name, unit)| field(name, DataType::Float64, unit));
    Schema::new(texts.into_iter().chain(counts).chain(sizes).chain(figures).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use engine::model::tiny::tiny_llama_gguf;

    use super::*;

    /// Scenario: no variants at all, some given, some declared, one that is the exact model under its own name.
    /// Guarantees: the exact model comes first and once; what is given goes before what is declared.
    #[test]
    fn the_exact_model_comes_first() {
        let names = |given: &[&str], declared: &[&str]| -> Vec<String> {
            let parse = |list: &[&str]| list.iter().map(|text| config::parse_variant(text).unwrap()).collect();
            variants(parse(given), parse(declared)).into_iter().map(|variant| variant.name).collect()
        };
        assert_eq!(names(&[], &[]), ["exact", "int8", "q8", "q4"]);
        assert_eq!(names(&["a", EXACT], &["b"]), ["exact", "a"]);
        assert_eq!(names(&[], &["b", "exact=arithmetic:f32,kv:f32,workers:3"]), ["exact", "b"]);
    }

    /// Scenario: the test model in the usual variants on the built-in text's beginning, written as a table.
    /// Guarantees: the exact model agrees with itself; four bits disagree more than eight; each token is counted once; the
    /// table has the rows.
    #[test]
    fn coarser_variants_agree_less() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        fs::write(&path, tiny_llama_gguf(7)).unwrap();
        let path = path.display().to_string();
        let tokens = ModelText::load("tiny", &path, 16).unwrap().encode_prompt(&TEXT[..600]).unwrap();
        let worker = WorkerOptions { kv_bytes_max: 8 << 20, ..WorkerOptions::for_model(path) };
        let windows = Windows { window: 128, stride: 64 };
        let rows = measure("tiny", &variants(vec![], vec![]), (&worker, &tokens, windows)).unwrap();
        assert!(rows.iter().all(|row| row.tokens == tokens.len() as u64 - 1 && row.perplexity > 1.0), "{rows:?}");
        assert_eq!((rows[0].divergence, rows[0].same_best_share), (0.0, 1.0));
        assert!(rows[3].divergence > 2.0 * rows[2].divergence, "{rows:?}");
        let formats: Vec<&str> = rows.iter().map(|row| row.kv.as_str()).collect();
        assert_eq!(formats, ["f32", "f16", "f16", "f16"]);
        let out = folder.path().join("quality.parquet");
        table_file::write(&out, schema(), &rows).unwrap();
        let file = fs::File::open(&out).unwrap();
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        assert_eq!(reader.schema().field(9).name(), "perplexity");
        assert_eq!(reader.build().unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>(), 4);
    }
}
