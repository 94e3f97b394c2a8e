//! Constrained sequences in a real engine: the test model, its tokenizer, the CPU runner.

use std::sync::{Arc, LazyLock};

use engine::{
    config::{EngineConfig, GrowthQuota},
    engine::Engine,
    grammar::{Grammar, GrammarSource, GrammarVocabulary, factory::GrammarFactory},
    model::{Arithmetic, Gguf, Model, tiny::tiny_llama_gguf},
    request::{FinishReason, GenerateRequest, SamplingParams, StopConditions, SubmitRejection},
    runner::{
        RunnerShape,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    },
    stop::TokenBytes,
    tokenizer::Tokenizer,
};

use crate::support::{Ledger, Outcome, request, run_to_end};

pub struct Tiny {
    pub model: Arc<Model>,
    pub tokenizer: Tokenizer,
    pub factory: GrammarFactory,
}

pub struct Words(Vec<Vec<u8>>);

impl TokenBytes for Words {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.get(token as usize).map(Vec::as_slice).unwrap_or_default()
    }
}

pub static TINY: LazyLock<Tiny> = LazyLock::new(|| {
    let file = || Gguf::from_bytes(tiny_llama_gguf(3)).unwrap();
    let (model, tokenizer) =
        (Model::from_gguf(file(), Arithmetic::Int8).unwrap(), Tokenizer::from_gguf(&file()).unwrap());
    let factory = GrammarFactory::new(&GrammarVocabulary::of_tokenizer(&tokenizer, model.vocab())).unwrap();
    Tiny { model, tokenizer, factory }
});

fn words(tokenizer: &Tokenizer) -> Arc<Words> {
    Arc::new(Words((0..tokenizer.vocab_size() as u32).map(|id| tokenizer.token_bytes(id).to_vec()).collect()))
}

/// Of the test model: `blocks` pages of 8 tokens.
pub fn engine(config: EngineConfig, blocks: usize) -> Engine {
    let options = CpuRunnerOptions { threads: 1, block_size: 8, blocks, kv_dtype: KvDtype::F32 };
    let runner = CpuRunner::new(TINY.model.clone(), options).unwrap();
    Engine::new(config, Box::new(runner), words(&TINY.tokenizer)).unwrap()
}

/// The test model's vocabulary with random logits and a long context.
pub fn long_engine() -> Engine {
    simulated_engine(&TINY.tokenizer)
}

/// Any vocabulary with random logits and a long context.
pub fn simulated_engine(tokenizer: &Tokenizer) -> Engine {
    let vocab = tokenizer.vocab_size();
    let shape = RunnerShape { vocab, context: 8192, block_size: 16, blocks: 2048, block_bytes: 64 };
    let runner = SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Full);
    Engine::new(EngineConfig::default(), Box::new(runner), words(tokenizer)).unwrap()
}

pub fn grammar(source: &GrammarSource) -> Grammar {
    TINY.factory.compile(source).unwrap_or_else(|fault| panic!("{source:?}: {fault}"))
}

pub fn regex(text: &str) -> Grammar {
    grammar(&GrammarSource::Regex(text.to_owned()))
}

/// The tokens of single bytes.
pub fn byte_token(byte: u8) -> u32 {
    (0..TINY.tokenizer.vocab_size() as u32).find(|id| TINY.tokenizer.token_bytes(*id) == [byte]).unwrap()
}

/// At temperature 2, with the model's own ends as stop tokens.
pub fn constrained(id: u64, grammar: Grammar, (seed, max_tokens): (u64, u32)) -> GenerateRequest {
    let prompt = [1, 40 + id as u32 % 100, 77, 3 + seed as u32 % 250];
    let stop_tokens = TINY.tokenizer.eos_tokens().to_vec();
    GenerateRequest {
        grammar: Some(grammar),
        sampling: SamplingParams { temperature: 2.0, seed, ..SamplingParams::default() },
        stop: StopConditions { max_tokens, stop_tokens, ..StopConditions::default() },
        ..request(id, &prompt, max_tokens)
    }
}

fn run_one(request: GenerateRequest) -> Outcome {
    let mut engine = engine(EngineConfig::default(), 128);
    let id = request.id.0;
    engine.submit(request, 0).unwrap();
    run_to_end(&mut engine).outcomes.remove(&id).unwrap()
}

/// Scenario: a grammar with one text, one whose text may go on, and one of two texts, each at 40 seeds.
/// Guarantees: the text is of the grammar; the sequence ends with `Stop` where nothing may follow, without a further
/// token, and with a stop token where more could.
#[test]
fn a_whole_text_ends_the_sequence() {
    for seed in 0..40 {
        let fixed = run_one(constrained(1, regex("the end"), (seed, 50)));
        assert_eq!((fixed.text.as_str(), fixed.finish().reason), ("the end", FinishReason::Stop), "seed {seed}");
        assert!(!fixed.tokens.iter().any(|token| TINY.tokenizer.is_special(*token)));
        let open = run_one(constrained(2, regex("[0-9]{2,8}"), (seed, 50)));
        assert!((2..=8).contains(&open.text.len()) && open.text.bytes().all(|byte| byte.is_ascii_digit()));
        assert_eq!(open.finish().reason, FinishReason::Stop, "seed {seed}");
        assert_eq!(open.text.len() < 8, TINY.tokenizer.is_special(*open.tokens.last().unwrap()), "seed {seed}");
        let either = run_one(constrained(3, regex("yes|no"), (seed, 50)));
        assert!(["yes", "no"].contains(&either.text.as_str()), "seed {seed}: {:?}", either.text);
    }
}

/// Scenario: no stop tokens at all, where the text may end or go on; and a stop token of the request's own.
/// Guarantees: the model's end token still ends the sequence; the request's own one is allowed where the text may end,
/// and only there.
#[test]
fn requests_choose_their_stop_tokens() {
    let bang = byte_token(b'!');
    let mut ended_by_own = 0;
    for seed in 0..60 {
        let mut request = constrained(1, regex("ab[a-z]{0,20}"), (seed, 60));
        request.stop.stop_tokens.clear();
        let outcome = run_one(request.clone());
        assert_eq!(outcome.finish().reason, FinishReason::Stop);
        assert!(outcome.text.starts_with("ab") && !outcome.text.contains('<'), "{:?}", outcome.text);
        request.stop.stop_tokens = vec![bang];
        request.sampling.logit_bias = vec![(bang, 3.0)];
        let outcome = run_one(request);
        assert!(outcome.text.starts_with("ab") && !outcome.text.contains('!'), "seed {seed}: {:?}", outcome.text);
        ended_by_own += usize::from(outcome.tokens.last() == Some(&bang));
    }
    assert!(ended_by_own > 0);
}

/// Scenario: the greatest biases against what the grammar allows and for what it forbids; top-k of 1; penalties.
/// Guarantees: the mask wins; among allowed tokens the bias decides.
#[test]
fn a_bias_cannot_break_the_grammar() {
    let (x, a, b) = (byte_token(b'x'), byte_token(b'a'), byte_token(b'b'));
    let mut request = constrained(1, regex("[ab]{6}"), (5, 20));
    request.sampling.logit_bias = vec![(x, 100.0), (a, -100.0), (b, -50.0)];
    request.sampling.top_k = Some(1);
    request.sampling.repetition_penalty = 1.5;
    assert_eq!(run_one(request.clone()).text, "bbbbbb");
    request.sampling.logit_bias = vec![(x, 100.0), (a, 90.0), (b, -90.0)];
    assert_eq!(run_one(request).text, "aaaaaa");
}

/// Scenario: a forced text with log-probabilities asked for.
/// Guarantees: they are the model's before the mask: below 0, and the best alternatives are tokens that the mask
/// forbids.
#[test]
fn log_probabilities_are_those_before_the_mask() {
    let mut request = constrained(1, regex("qqqqqqqq"), (1, 20));
    request.sampling.logprobs = Some(3);
    let outcome = run_one(request);
    assert_eq!(outcome.logprobs.len(), 8);
    assert!(outcome.logprobs.iter().all(|entry| entry.logprob < -0.1 && entry.top.len() == 3));
    let forbidden = |entry: &engine::step::TokenLogprob| entry.top.iter().any(|(token, _)| *token != byte_token(b'q'));
    assert!(outcome.logprobs.iter().any(forbidden));
}

/// Scenario: `max_tokens` falls inside the text, and inside a character of three bytes.
/// Guarantees: `Length`; the text is a beginning of the grammar's, whole characters and U+FFFD for a cut one.
#[test]
fn max_tokens_cuts_inside() {
    let cut = run_one(constrained(1, regex("[0-9]{30}"), (1, 7)));
    assert_eq!((cut.text.len(), cut.finish().reason), (7, FinishReason::Length));
    let cut = run_one(constrained(1, regex("日本語"), (1, 4)));
    assert_eq!((cut.text.as_str(), cut.finish().reason), ("日\u{FFFD}", FinishReason::Length));
    let whole = run_one(constrained(1, regex("日本語"), (1, 9)));
    assert_eq!((whole.text.as_str(), whole.finish().reason), ("日本語", FinishReason::Stop));
}

/// Scenario: texts of two- to four-byte characters, which the vocabulary holds as single bytes, at 60 seeds.
/// Guarantees: the output is of the grammar, so no character was ever split wrongly.
#[test]
fn characters_of_many_bytes_stay_whole() {
    for seed in 0..60 {
        let outcome = run_one(constrained(1, regex("[éß日本😀-🙏]{4,9}"), (seed, 60)));
        let fits = |c: char| "éß日本".contains(c) || ('😀'..='🙏').contains(&c);
        assert!((4..=9).contains(&outcome.text.chars().count()), "seed {seed}: {:?}", outcome.text);
        assert!(outcome.text.chars().all(fits), "seed {seed}: {:?}", outcome.text);
    }
}

/// What the requests give, run together.
fn run_all(engine: &mut Engine, requests: &[GenerateRequest]) -> Ledger {
    requests.iter().for_each(|request| engine.submit(request.clone(), 0).unwrap());
    run_to_end(engine)
}

/// Twelve requests, of which every third is free.
fn mixed() -> Vec<GenerateRequest> {
    let sources = [
        GrammarSource::Regex("[a-f]{3}(-[0-9]{4}){3}".to_owned()),
        GrammarSource::JsonSchema(
            r#"{"type":"array","items":{"enum":["é","no",3,null]},"minItems":3,"maxItems":6}"#.into(),
        ),
    ];
    let with = |id: u64| {
        let mut request = constrained(id, grammar(&sources[id as usize % 2]), (id * 31, 60));
        if id.is_multiple_of(3) {
            request.grammar = None;
        }
        request
    };
    (1..=12).map(with).collect()
}

/// Scenario: constrained and free sequences together, each alone, and together in a pool so small that they are
/// preempted and recomputed.
/// Guarantees: the same tokens, texts and ends each time.
#[test]
fn neighbours_and_preemption_change_nothing() {
    let requests = mixed();
    let together = run_all(&mut engine(EngineConfig::default(), 256), &requests);
    let small = EngineConfig { growth_quota: GrowthQuota::Tokens(1), ..EngineConfig::default() };
    let squeezed = run_all(&mut engine(small, 16), &requests);
    let preempted: u32 = squeezed.outcomes.values().map(|outcome| outcome.finish().preemptions).sum();
    assert!(preempted > 0, "the pool was to be too small");
    for request in &requests {
        let alone = run_one(request.clone());
        for outcome in [&together.outcomes[&request.id.0], &squeezed.outcomes[&request.id.0]] {
            assert_eq!((&outcome.tokens, &outcome.text), (&alone.tokens, &alone.text), "{:?}", request.id);
            assert_eq!(outcome.finish().reason, alone.finish().reason);
        }
    }
}

/// Scenario: a constrained request is interrupted after each number of tokens and goes on in another engine.
/// Guarantees: it gives the tokens that it would have given.
#[test]
fn a_moved_sequence_goes_on_where_it_was() {
    let request = constrained(1, regex("[a-f]{3}(-[0-9é]{4}){3}"), (9, 60));
    let whole = run_one(request.clone());
    assert_eq!(whole.finish().reason, FinishReason::Stop);
    for done in 1..whole.tokens.len() {
        let prompt: Vec<u32> = request.prompt.iter().chain(&whole.tokens[..done]).copied().collect();
        let mut moved = GenerateRequest { prompt: prompt.into(), sampling_offset: done as u32, ..request.clone() };
        moved.stop.max_tokens -= done as u32;
        assert_eq!(run_one(moved).tokens, whole.tokens[done..], "moved after {done} tokens");
    }
}

/// Scenario: tokens said to be drawn before that the grammar can't begin with; a grammar of another vocabulary.
/// Guarantees: refused at submission, in words that say why.
#[test]
fn unusable_grammars_are_refused_at_submission() {
    let mut engine = engine(EngineConfig::default(), 32);
    let wrong = GenerateRequest { sampling_offset: 2, ..constrained(1, regex("abc"), (1, 9)) };
    let refusal = engine.submit(wrong, 0).unwrap_err();
    assert!(matches!(&refusal, SubmitRejection::GrammarReplay { drawn: 2, .. }), "{refusal}");
    let other = GrammarFactory::new(&GrammarVocabulary::of_bytes(&Words(vec![b"a".to_vec(); 9]), 9, &[])).unwrap();
    let other = other.compile(&GrammarSource::Regex("a+".to_owned())).unwrap();
    let refusal = engine.submit(constrained(1, other, (1, 9)), 0).unwrap_err();
    let said = format!("the grammar is for a vocabulary of 9 tokens; the model has {}", TINY.model.vocab());
    assert_eq!(refusal.to_string(), said);
    assert!(!engine.has_work());
}

/// Scenario: a grammar that the vocabulary can't write to its end (no token has a `b`), beside a sound one.
/// Guarantees: the sequence fails in words that name the grammar; its neighbour and the engine go on.
#[test]
fn a_dead_end_fails_one_sequence() {
    let mut words: Vec<Vec<u8>> =
        (0..TINY.model.vocab() as u32).map(|id| TINY.tokenizer.token_bytes(id).to_vec()).collect();
    words.iter_mut().filter(|word| word.contains(&b'b')).for_each(Vec::clear);
    let vocabulary = GrammarVocabulary::of_bytes(&Words(words.clone()), words.len(), TINY.tokenizer.eos_tokens());
    let stuck = GrammarFactory::new(&vocabulary).unwrap().compile(&GrammarSource::Regex("aaab".to_owned())).unwrap();
    let requests = [constrained(1, stuck, (1, 20)), constrained(2, regex("[xyz]{10}"), (2, 20))];
    let mut engine = engine(EngineConfig::default(), 64);
    let ledger = run_all(&mut engine, &requests);
    let finish = ledger.outcomes[&1].finish();
    assert_eq!(finish.reason, FinishReason::Failed);
    assert!(finish.error.as_ref().unwrap().starts_with("grammar: "), "{:?}", finish.error);
    assert_eq!(ledger.outcomes[&1].text, "aaa");
    assert_eq!(ledger.outcomes[&2].finish().reason, FinishReason::Stop);
    assert!(!engine.has_work());
}
