//! What the engine refuses, with which words, and that it keeps nothing of it.

use std::sync::Arc;

use engine::{
    config::{ConfigError, EngineConfig, check_block_size},
    engine::Engine,
    request::{FinishReason, GenerateRequest, SamplingParams, StopConditions, SubmitRejection},
    runner::RunnerShape,
};

use crate::support::{Pieces, engine_with, judge, prompt, request, run_to_end, shape};

fn with_sampling(sampling: SamplingParams) -> GenerateRequest {
    GenerateRequest { sampling, ..request(1, &[1], 1) }
}

fn with_stop(stop: StopConditions) -> GenerateRequest {
    GenerateRequest { stop, ..request(1, &[1], 1) }
}

/// Scenario: each kind of bad request.
/// Guarantees: a typed rejection whose text names the field, the value and what is right; the engine stays empty.
#[test]
fn bad_requests_are_refused_by_name() {
    let default = SamplingParams::default;
    let one = || StopConditions { max_tokens: 1, ..StopConditions::default() };
    let cases: [(GenerateRequest, &str); 19] = [
        (request(1, &[], 1), "the prompt is empty"),
        (request(1, &[1], 0), "max_tokens is 0; it must be at least 1"),
        (request(1, &prompt(1, 4000), 97), "maximum context length is 4096 tokens; the request asks for 4097"),
        (request(1, &prompt(1, 30), 12), "needs 11 KV blocks and the pool has 10"),
        (request(1, &[1, 16], 1), "token id 16 is outside the vocabulary of 16"),
        (with_sampling(SamplingParams { temperature: f32::NAN, ..default() }), "temperature is NaN"),
        (with_sampling(SamplingParams { temperature: -0.5, ..default() }), "temperature is -0.5"),
        (with_sampling(SamplingParams { top_p: 0.0, ..default() }), "top_p is 0; it must be above 0"),
        (with_sampling(SamplingParams { top_p: 1.5, ..default() }), "top_p is 1.5"),
        (with_sampling(SamplingParams { min_p: 2.0, ..default() }), "min_p is 2"),
        (with_sampling(SamplingParams { top_k: Some(0), ..default() }), "top_k is 0"),
        (with_sampling(SamplingParams { frequency_penalty: 3.0, ..default() }), "frequency_penalty is 3"),
        (with_sampling(SamplingParams { presence_penalty: -3.0, ..default() }), "presence_penalty is -3"),
        (with_sampling(SamplingParams { repetition_penalty: 0.0, ..default() }), "repetition_penalty is 0"),
        (with_sampling(SamplingParams { logit_bias: vec![(1, 200.0)], ..default() }), "logit_bias is 200"),
        (with_sampling(SamplingParams { logit_bias: vec![(99, 1.0)], ..default() }), "token id 99"),
        (with_stop(StopConditions { stop_strings: vec![String::new()], ..one() }), "stop is a string of 0 bytes"),
        (with_stop(StopConditions { stop_strings: vec!["x".into(); 33], ..one() }), "stop is 33 strings"),
        (with_stop(StopConditions { stop_tokens: vec![1; 257], ..one() }), "stop_token_ids is 257 tokens"),
    ];
    let mut engine = engine_with(EngineConfig::default(), 10);
    for (request, expected) in cases {
        let rejection = engine.submit(request, 0).expect_err(expected);
        assert!(rejection.to_string().contains(expected), "{rejection} should say: {expected}");
        assert!(!engine.has_work());
    }
}

/// Scenario: requests at the exact bounds of context and pool.
/// Guarantees: they are taken and run to `max_tokens` (the last token needs no KV).
#[test]
fn requests_at_the_bound_run() {
    let context = RunnerShape { context: 42, ..shape(10) };
    let mut engine = Engine::new(EngineConfig::default(), Box::new(judge(context)), Arc::new(Pieces)).unwrap();
    engine.submit(request(1, &prompt(1, 30), 11), 0).unwrap();
    let too_long = engine.submit(request(2, &prompt(1, 30), 13), 0);
    assert!(matches!(too_long, Err(SubmitRejection::ContextExceeded { context: 42, asked: 43, .. })));
    let ledger = run_to_end(&mut engine);
    let finish = ledger.outcomes[&1].finish();
    assert_eq!((finish.reason, finish.completion_tokens), (FinishReason::Length, 11));
}

/// Scenario: more requests than the waiting room holds, and an id that lives.
/// Guarantees: `QueueFull` with both numbers, `DuplicateId`, and room again after a step.
#[test]
fn the_waiting_room_is_bounded() {
    let config = EngineConfig { max_waiting: 2, ..EngineConfig::default() };
    let mut engine = engine_with(config, 64);
    engine.submit(request(1, &prompt(1, 5), 5), 0).unwrap();
    assert_eq!(engine.submit(request(1, &prompt(1, 5), 5), 0), Err(SubmitRejection::DuplicateId(1)));
    engine.submit(request(2, &prompt(1, 5), 5), 0).unwrap();
    let full = engine.submit(request(3, &prompt(1, 5), 5), 0);
    assert_eq!(full, Err(SubmitRejection::QueueFull { waiting: 2, bound: 2 }));
    engine.step(0);
    engine.submit(request(3, &prompt(1, 5), 5), 0).unwrap();
    assert_eq!(run_to_end(&mut engine).finished.len(), 3);
}

/// Scenario: settings and shapes that can't work.
/// Guarantees: refused at construction, with the name of the setting.
#[test]
fn bad_settings_are_refused_by_name() {
    let base = EngineConfig::default;
    let cases = [
        (EngineConfig { token_budget: 64, ..base() }, shape(8), "token_budget is 64"),
        (EngineConfig { max_running: 0, ..base() }, shape(8), "max_running is 0"),
        (EngineConfig { max_waiting: 0, ..base() }, shape(8), "max_waiting is 0"),
        (EngineConfig { max_prefix_tokens: Some(0), ..base() }, shape(8), "max_prefix_tokens is 0"),
        (EngineConfig { max_overtake_us: -1, ..base() }, shape(8), "max_overtake_us is -1"),
        (EngineConfig { l2_blocks: 1 << 33, ..base() }, shape(8), "l2_blocks is 8589934592"),
        (base(), shape(0), "0 KV blocks"),
        (base(), RunnerShape { context: 0, ..shape(8) }, "0 tokens of context"),
    ];
    for (config, shape, expected) in cases {
        let error: ConfigError = config.validate(&shape).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error} should say: {expected}");
    }
    assert_eq!(base().validate(&shape(8)), Ok(()));
    assert!([16, 32, 64].into_iter().all(|size| check_block_size(size).is_ok()));
    let refused = [0, 15, 65].map(|size| check_block_size(size).unwrap_err().to_string());
    assert_eq!(refused[1], "the block size is 15 tokens; it must be between 16 and 64");
}
