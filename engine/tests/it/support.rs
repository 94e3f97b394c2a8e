//! What the engine's tests share: a small model, a way to run it to the end, and the tokens a request must give.

use std::{collections::BTreeMap, sync::Arc};

use engine::{
    config::EngineConfig,
    engine::Engine,
    events::{KvEvent, Level},
    request::{GenerateRequest, SequenceId},
    runner::{
        RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner, expected_logits},
    },
    sampler::{Draw, Sampler},
    step::{Finish, StepReport, TokenLogprob},
    stop::TokenBytes,
    token_history::TokenHistory,
};

/// Token pieces that cut characters: `é` is two tokens, `日` three, and some bytes are never valid.
const PIECES: [&[u8]; 16] = [
    b"a",
    b"b",
    b"ab",
    b"c",
    b" ",
    b"\n",
    b"\xC3",
    b"\xA9",
    b"\xE6",
    b"\x97",
    b"\xA5",
    b"\xFF",
    b"ba",
    b"\xC3\xA9",
    b"",
    b"x",
];

/// Size of the test vocabulary.
pub const VOCAB: usize = PIECES.len();

pub struct Pieces;

impl TokenBytes for Pieces {
    fn token_bytes(&self, token: u32) -> &[u8] {
        PIECES.get(token as usize).copied().unwrap_or_default()
    }
}

/// A model with blocks of four tokens.
pub fn shape(blocks: usize) -> RunnerShape {
    RunnerShape { vocab: VOCAB, context: 4096, block_size: 4, blocks, block_bytes: 1024 }
}

/// A simulated runner that checks all paging.
pub fn judge(shape: RunnerShape) -> SimulatedRunner {
    SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Full)
}

pub fn engine_with(config: EngineConfig, blocks: usize) -> Engine {
    Engine::new(config, Box::new(judge(shape(blocks))), Arc::new(Pieces)).expect("valid test configuration")
}

/// Greedy, lane L2, no deadline, no stops.
pub fn request(id: u64, prompt: &[u32], max_tokens: u32) -> GenerateRequest {
    GenerateRequest::greedy(SequenceId(id), prompt, max_tokens)
}

/// A prompt of `length` tokens that depends on `seed`.
pub fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| (index * 7 + seed * 13 + index * index * seed) % VOCAB as u32).collect()
}

/// The tokens a request must give, whatever runs beside it: sampled one by one from logits computed without pages.
/// Knows stop tokens and `max_tokens`, not stop strings.
pub fn reference_tokens(request: &GenerateRequest) -> Vec<u32> {
    let mut history = TokenHistory::new(&request.sampling, &request.prompt, 0);
    let mut known = request.prompt.to_vec();
    let mut sampler = Sampler::default();
    for index in 0..request.stop.max_tokens as usize {
        let logits = expected_logits(&known, VOCAB);
        let draw = Draw { params: &request.sampling, history: &history, index };
        let token = sampler.sample(&logits, &draw).expect("finite logits").token;
        history.record(token);
        known.push(token);
        if request.stop.stop_tokens.contains(&token) {
            break;
        }
    }
    known.split_off(request.prompt.len())
}

/// The bytes of `tokens`.
pub fn bytes_of(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| Pieces.token_bytes(*token).to_vec()).collect()
}

/// All that came out for one sequence.
#[derive(Debug, Default)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<TokenLogprob>,
    pub finish: Option<Finish>,
}

impl Outcome {
    pub fn finish(&self) -> &Finish {
        self.finish.as_ref().expect("the sequence finished")
    }
}

/// Outputs so far, the order of ends, and what the KV events add up to.
#[derive(Debug, Default)]
pub struct Ledger {
    pub outcomes: BTreeMap<u64, Outcome>,
    pub finished: Vec<u64>,
    /// Named blocks in L1 by hash.
    pub named: BTreeMap<u64, Option<u64>>,
    /// Named blocks in L2 by hash.
    pub swapped: BTreeMap<u64, Option<u64>>,
    /// Prefix hits in L1, and returns from L2.
    pub hits: (usize, usize),
}

impl Ledger {
    /// Adds a step's outputs.
    pub fn add(&mut self, report: &StepReport) {
        for output in &report.outputs {
            let outcome = self.outcomes.entry(output.sequence.0).or_default();
            assert!(outcome.finish.is_none(), "sequence {:?} spoke after its end", output.sequence);
            outcome.tokens.extend(&output.tokens);
            outcome.text.push_str(&output.text);
            outcome.logprobs.extend(output.logprobs.iter().cloned());
            if output.finish.is_some() {
                outcome.finish.clone_from(&output.finish);
                self.finished.push(output.sequence.0);
            }
        }
    }

    fn level(&mut self, level: Level) -> &mut BTreeMap<u64, Option<u64>> {
        match level {
            Level::L1 => &mut self.named,
            Level::L2 => &mut self.swapped,
        }
    }

    /// Adds a step's KV events, of an engine watched from its start: each must make sense after those before it.
    pub fn audit(&mut self, report: &StepReport) {
        for event in &report.kv_events {
            match event {
                KvEvent::Stored { hash, parent, level, tokens } => {
                    let parent = parent.map(|parent| parent.0);
                    let named = self.level(*level);
                    assert!(
                        *tokens > 0 && parent.is_none_or(|parent| named.contains_key(&parent)),
                        "{event:?}: no parent"
                    );
                    assert!(named.insert(hash.0, parent).is_none(), "{hash:?} was stored twice");
                }
                KvEvent::Hit { hash, level, tokens } => {
                    assert!(*tokens > 0 && self.level(*level).contains_key(&hash.0), "{event:?}: hit on nothing");
                    match level {
                        Level::L1 => self.hits.0 += 1,
                        Level::L2 => self.hits.1 += 1,
                    }
                }
                KvEvent::Removed { hash, level } => {
                    let named = self.level(*level);
                    assert!(named.remove(&hash.0).is_some(), "{hash:?} was removed and never stored");
                    assert!(!named.values().any(|parent| *parent == Some(hash.0)), "{hash:?} left before its child");
                }
                KvEvent::Cleared => self.named.clear(),
            }
        }
    }
}

/// Steps until nothing is left to do; time goes on by 1 ms a step.
pub fn run_to_end(engine: &mut Engine) -> Ledger {
    let mut ledger = Ledger::default();
    let mut now = 0;
    while engine.has_work() {
        now += 1_000;
        assert!(now < 20_000_000, "no end in 20000 steps: {:?}", engine.queue_figures());
        ledger.add(&engine.step(now));
        engine.check_invariants().expect("no leak");
    }
    ledger
}
