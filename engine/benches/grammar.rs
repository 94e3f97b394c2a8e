//! What structured output costs: compiling, the start of a sequence, masks and commits, on the vocabulary of the file in
//! `EVENKEEL_MODEL` (else the small test vocabulary). Prints microseconds: mean, p50, p99, worst.
//!
//! `cargo bench -p engine --bench grammar`

use std::{sync::Arc, time::Instant};

use engine::{
    config::EngineConfig,
    engine::Engine,
    grammar::{Grammar, GrammarSource, GrammarVocabulary, Walk, factory::GrammarFactory},
    model::{Gguf, tiny::tiny_llama_gguf},
    request::{GenerateRequest, SamplingParams, SequenceId},
    runner::{
        RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
    stop::TokenBytes,
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use rand::{Rng, SeedableRng, rngs::StdRng};

const PERSON: &str = r#"{"type":"object","properties":{"name":{"type":"string","maxLength":40},"age":{"type":"integer",
    "minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string"},"maxItems":5},"address":{"type":"object",
    "properties":{"street":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},"required":["street","zip"],
    "additionalProperties":false}},"required":["name","age","tags","address"],"additionalProperties":false}"#;
const TEXT: &str = r#"{"name": "Ada Lovelace", "age": 36, "tags": ["mathematics", "poetical science"], "address": {"street":
 "St James's Square 12", "zip": "12345"}}"#;

struct Words(Tokenizer);

impl TokenBytes for Words {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.token_bytes(token)
    }
}

fn figures(name: &str, mut taken: Vec<f64>) {
    taken.sort_by(f64::total_cmp);
    let at = |share: f64| taken[((taken.len() - 1) as f64 * share) as usize];
    let mean = taken.iter().sum::<f64>() / taken.len() as f64;
    println!("{name:<34} mean {mean:>9.1} µs  p50 {:>9.1}  p99 {:>9.1}  worst {:>9.1}", at(0.5), at(0.99), at(1.0));
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed().as_secs_f64() * 1e6)
}

fn request(id: u64, grammar: Option<Grammar>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        sampling: SamplingParams { seed: id, ..SamplingParams::default() },
        grammar,
        ..GenerateRequest::greedy(SequenceId(id), [1, 2, 3], max_tokens)
    }
}

/// Mean time of a step with `sequences` sequences, of which all or none have a grammar.
fn step_us(words: &Arc<Words>, vocab: usize, (sequences, grammar): (u64, Option<&Grammar>)) -> f64 {
    let shape = RunnerShape { vocab, context: 4096, block_size: 16, blocks: 4096, block_bytes: 64 };
    let runner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
    let mut engine =
        Engine::new(EngineConfig::default(), Box::new(runner), words.clone()).expect("valid configuration");
    for id in 0..sequences {
        engine.submit(request(id, grammar.cloned(), 30), 0).expect("a sound request");
    }
    let mut steps = Vec::new();
    while engine.has_work() {
        steps.push(timed(|| engine.step(0)).1);
    }
    steps.iter().sum::<f64>() / steps.len() as f64
}

/// Masks along texts of random allowed tokens, which learn new lexer states at nearly each token.
fn random_masks(grammar: &Grammar, vocab: usize) -> Vec<f64> {
    let mut random = StdRng::seed_from_u64(1);
    let mut taken = Vec::new();
    for _ in 0..8 {
        let mut walk = Walk::new(grammar).expect("a grammar at its start");
        for _ in 0..60 {
            let (mask, took) = timed(|| walk.mask());
            let Ok(mask) = mask else { break };
            taken.push(took);
            let start = random.random_range(0..vocab as u32);
            let token = (start..vocab as u32).chain(0..start).find(|token| mask.allows(*token)).expect("a token");
            if walk.take(token).is_err() || walk.is_complete() {
                break;
            }
        }
    }
    taken
}

fn main() {
    let file = match std::env::var_os("EVENKEEL_MODEL") {
        Some(path) => Gguf::open(path.as_ref()).expect("a GGUF file"),
        None => Gguf::from_bytes(tiny_llama_gguf(1)).expect("the test model"),
    };
    let tokenizer = Tokenizer::from_gguf(&file).expect("a tokenizer");
    let vocab = tokenizer.vocab_size();
    let (factory, took) = timed(|| GrammarFactory::new(&GrammarVocabulary::of_tokenizer(&tokenizer, vocab)));
    let factory = factory.expect("a usable vocabulary");
    println!("vocabulary of {vocab} tokens; factory made in {:.1} ms", took / 1e3);

    // Distinct sources, so that none is found in the cache.
    let person = |index: usize| {
        GrammarSource::JsonSchema(PERSON.replace("\"maxLength\":40", &format!("\"maxLength\":{}", 40 + index)))
    };
    let compile = |index| timed(|| factory.compile(&person(index)).expect("a sound schema")).1;
    figures("compile (object of 4 fields)", (0..30).map(compile).collect());
    figures("compile again (kept)", (0..30).map(|_| timed(|| factory.compile(&person(29))).1).collect());

    let grammar = factory.compile(&person(29)).expect("a sound schema");
    let tokens = tokenizer.encode(TEXT, AddSpecial::Never, ParseSpecial::Plain).expect("tokens");
    let mut starts = Vec::new();
    let (mut masks, mut commits) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        let (state, took) = timed(|| Walk::new(&grammar));
        starts.push(took);
        let mut walk = state.expect("a grammar at its start");
        for token in &tokens {
            masks.push(timed(|| walk.mask().expect("a mask")).1);
            commits.push(timed(|| walk.take(*token).expect("a token of the grammar")).1);
        }
    }
    figures("start of a sequence", starts);
    figures("mask (a likely text)", masks);
    figures("mask (random text)", random_masks(&grammar, vocab));
    figures("commit", commits);

    let words = Arc::new(Words(tokenizer));
    for sequences in [1, 8, 32] {
        let free = step_us(&words, vocab, (sequences, None));
        let bound = step_us(&words, vocab, (sequences, Some(&grammar)));
        println!("step of {sequences:>2} sequences                free {free:>9.1} µs  constrained {bound:>9.1} µs");
    }
}
