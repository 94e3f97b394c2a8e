//! What speculation gains and loses at batch 1 (issue E): decode tokens a second with prompt lookup over those without, on
//! text that repeats itself (bar 1.3) and on other text (bar 0.97).
//!
//! SmolLM2 from `$EVENKEEL_MODEL` or the model cache; where it is absent, the generated test model, and the JSON line
//! says so. Two engines stay up, one with and one without; they take turns, in alternating order, and the median of the
//! ratios of neighbouring runs counts. Prefill is not measured. The outputs of both are compared.
//! `--quick` runs fewer pairs, `--threads N` sets the threads. The last line is one JSON object.
//!
//! Cost: minutes (`--quick`: under a minute). Memory: the model, and KV pages for 2048 tokens twice.

use std::{error::Error, path::PathBuf, sync::Arc, time::Instant};

use engine::{
    config::EngineConfig,
    engine::Engine,
    model::{Arithmetic, Gguf, Model, tiny::tiny_llama_gguf},
    request::{GenerateRequest, RequestClass, SamplingParams, SequenceId},
    runner::cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    speculation::config::Speculation,
    stop::TokenBytes,
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};

const OUTPUT_TOKENS: u32 = 120;

/// Text whose greedy continuation copies it.
const REPEATING: [&str; 2] = [
    "Repeat this list of words exactly, again and again: apple, river, stone, cloud, lamp, table, green, paper, \
     apple, river, stone, cloud, lamp, table, green, paper, apple, river, stone, cloud, lamp, table,",
    "Write this again, word for word:\nfor index in range(10):\n    total = total + values[index]\n    \
     print(index, total)\nfor index in range(10):\n    total = total + values[index]\n    print(index, total)\n",
];
const OTHER: [(&str, f32); 4] = [
    ("Tell me a story about a fox who learns to sail.", 0.0),
    ("Explain in simple words why the sky is blue.", 0.0),
    ("Describe a market in the morning.", 0.8),
    ("What should a good breakfast contain?", 0.8),
];

struct Words(Tokenizer);

impl TokenBytes for Words {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.token_bytes(token)
    }
}

struct Bench {
    model: Arc<Model>,
    words: Arc<Words>,
    threads: usize,
    runs: u64,
}

impl Bench {
    fn engine(&self, speculation: Speculation) -> Result<Engine, Box<dyn Error>> {
        let options = CpuRunnerOptions { threads: self.threads, block_size: 16, blocks: 128, kv_dtype: KvDtype::F16 };
        let runner = Box::new(CpuRunner::new(self.model.clone(), options)?);
        let config = EngineConfig { speculation, ..EngineConfig::default() };
        Ok(Engine::new(config, runner, self.words.clone())?)
    }

    fn request(&mut self, text: &str, temperature: f32, class: u8) -> Result<GenerateRequest, Box<dyn Error>> {
        self.runs += 1;
        let text = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        let prompt = self.words.0.encode(&text, AddSpecial::Never, ParseSpecial::Control)?;
        Ok(GenerateRequest {
            sampling: SamplingParams { temperature, seed: 7, ..SamplingParams::default() },
            class: Some(RequestClass(class)),
            ..GenerateRequest::greedy(SequenceId(self.runs), prompt, OUTPUT_TOKENS)
        })
    }
}

/// Tokens, and decode tokens a second after the first.
fn run(engine: &mut Engine, request: GenerateRequest, epoch: Instant) -> Result<(Vec<u32>, f64), Box<dyn Error>> {
    let now = || epoch.elapsed().as_micros() as i64;
    engine.submit(request, now())?;
    let (mut tokens, mut first) = (Vec::new(), None);
    while engine.has_work() {
        let report = engine.step(now());
        tokens.extend(report.outputs.into_iter().flat_map(|output| output.tokens));
        if first.is_none() && !tokens.is_empty() {
            first = Some((Instant::now(), tokens.len()));
        }
    }
    let (since, before) = first.ok_or("no token came")?;
    Ok((tokens.clone(), (tokens.len() - before) as f64 / since.elapsed().as_secs_f64()))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    (values[middle] + values[(values.len() - 1) / 2]) / 2.0
}

/// Medians of one kind of text: ratio, tokens a second with and without.
struct Row {
    ratio: f64,
    with: f64,
    without: f64,
}

fn measure(bench: &mut Bench, texts: &[(&str, f32)], pairs: usize) -> Result<Row, Box<dyn Error>> {
    let epoch = Instant::now();
    let (mut on, mut off) = (bench.engine(Speculation::prompt_lookup())?, bench.engine(Speculation::Off)?);
    let (mut ratios, mut with, mut without) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..=pairs {
        for (class, (text, temperature)) in texts.iter().enumerate() {
            let request = bench.request(text, *temperature, class as u8)?;
            let (guessed, plain);
            if pair % 2 == 0 {
                guessed = run(&mut on, request.clone(), epoch)?;
                plain = run(&mut off, request, epoch)?;
            } else {
                plain = run(&mut off, request.clone(), epoch)?;
                guessed = run(&mut on, request, epoch)?;
            }
            assert_eq!(guessed.0, plain.0, "outputs differ");
            println!("{pair:>3} {:>8.1} {:>8.1} {:>6.3}  {text:.40}", guessed.1, plain.1, guessed.1 / plain.1);
            // The first round warms pages and caches, and lets the engine learn what steps cost.
            if pair > 0 {
                ratios.push(guessed.1 / plain.1);
                with.push(guessed.1);
                without.push(plain.1);
            }
        }
    }
    for figures in on.speculation_figures() {
        println!("{figures:?}");
    }
    Ok(Row { ratio: median(&mut ratios), with: median(&mut with), without: median(&mut without) })
}

fn model() -> Result<(Arc<Model>, &'static str), Box<dyn Error>> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cached = home.join(".cache/evenkeel/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf");
    let path = std::env::var_os("EVENKEEL_MODEL").map_or(cached, PathBuf::from);
    if path.exists() {
        return Ok((Model::load(&path, Arithmetic::Int8)?, "file"));
    }
    println!("SKIPPED real model ({} is not there; set EVENKEEL_MODEL): the test model runs instead", path.display());
    Ok((Model::from_gguf(Gguf::from_bytes(tiny_llama_gguf(1))?, Arithmetic::Int8)?, "tiny"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let pairs = if arguments.iter().any(|argument| argument == "--quick") { 3 } else { 9 };
    let given = arguments.iter().position(|argument| argument == "--threads").and_then(|at| arguments.get(at + 1));
    let threads = match given {
        Some(threads) => threads.parse()?,
        None => std::thread::available_parallelism()?.get(),
    };
    let (model, name) = model()?;
    let words = Arc::new(Words(Tokenizer::from_gguf(model.gguf())?));
    let mut bench = Bench { model, words, threads, runs: 0 };
    println!("{:>3} {:>8} {:>8} {:>6}", "run", "with", "without", "ratio");
    let repeating = measure(&mut bench, &REPEATING.map(|text| (text, 0.0)), pairs)?;
    let other = measure(&mut bench, &OTHER, pairs)?;
    println!(
        r#"{{"bench":"speculation","model":"{name}","threads":{threads},"speculation_repeat_ratio":{:.3},"repeat_with_tps":{:.1},"repeat_without_tps":{:.1},"speculation_other_ratio":{:.3},"other_with_tps":{:.1},"other_without_tps":{:.1}}}"#,
        repeating.ratio, repeating.with, repeating.without, other.ratio, other.with, other.without
    );
    Ok(())
}
