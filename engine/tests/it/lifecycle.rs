//! Ends of a sequence: cancellation, failures of the runner, unsound logits, stops, and the accounts that go with each.

use std::sync::Arc;

use engine::{
    config::EngineConfig,
    engine::Engine,
    request::{FinishReason, GenerateRequest, SamplingParams, SequenceId, StopConditions},
    runner::{Batch, BatchLogits, ModelRunner, RunnerError, RunnerShape, simulated::SimulatedRunner},
    stop::TokenBytes,
};
use proptest::prelude::*;

use crate::support::{
    Ledger, Pieces, VOCAB, bytes_of, engine_with, judge, prompt, reference_tokens, request, run_to_end, shape,
};

/// Scenario: two sequences run, one waits; one of each kind is cancelled, one of them twice, and an unknown one.
/// Guarantees: the next step reports both as cancelled and their blocks are back in that step's figures.
#[test]
fn cancellation_takes_effect_in_the_next_step() {
    let config = EngineConfig { max_running: 2, ..EngineConfig::default() };
    let mut engine = engine_with(config, 64);
    for id in 1..=3 {
        engine.submit(request(id, &prompt(id as u32, 20), 30), 5).unwrap();
    }
    let before = engine.step(10).stats;
    assert_eq!((before.running, before.waiting), (2, 1));
    assert!(engine.cancel(SequenceId(2)) && engine.cancel(SequenceId(2)) && engine.cancel(SequenceId(3)));
    assert!(!engine.cancel(SequenceId(77)));
    let report = engine.step(20);
    let cancelled: Vec<u64> =
        report.outputs.iter().filter(|output| output.finish.is_some()).map(|output| output.sequence.0).collect();
    assert_eq!(cancelled, [2, 3]);
    assert!(report.outputs[..2].iter().all(|o| o.finish.as_ref().unwrap().reason == FinishReason::Cancelled));
    assert_eq!((report.stats.running, report.stats.waiting), (1, 0));
    assert!(report.stats.blocks_used < before.blocks_used);
    assert_eq!(report.outputs[1].finish.as_ref().unwrap().first_scheduled, None);
    engine.submit(request(2, &prompt(9, 3), 2), 30).expect("the id is free again");
}

/// What the wrapped runner does wrong.
#[derive(Clone, Copy)]
enum Fault {
    Submit {
        batch: usize,
    },
    Collect {
        batch: usize,
    },
    TooFewLogits {
        batch: usize,
    },
    /// Logits of this row are NaN in every batch.
    Nan {
        batch: usize,
        row: usize,
    },
}

struct Faulty {
    inner: SimulatedRunner,
    fault: Fault,
    batches: usize,
}

impl ModelRunner for Faulty {
    fn shape(&self) -> RunnerShape {
        self.inner.shape()
    }

    fn submit(&mut self, batch: &Batch) -> Result<(), RunnerError> {
        self.batches += 1;
        match self.fault {
            Fault::Submit { batch } if batch == self.batches => Err(RunnerError("device lost at submit".into())),
            _ => self.inner.submit(batch),
        }
    }

    fn collect(&mut self) -> Result<BatchLogits, RunnerError> {
        let mut logits = self.inner.collect()?;
        match self.fault {
            Fault::Collect { batch } if batch == self.batches => return Err(RunnerError("device lost".into())),
            Fault::TooFewLogits { batch } if batch == self.batches => logits.values.truncate(3),
            Fault::Nan { batch, row } if batch == self.batches => logits.values[row * VOCAB + 3] = f32::NAN,
            _ => {}
        }
        Ok(logits)
    }

    fn copy_blocks(&mut self, pairs: &[(u32, u32)]) -> Result<(), RunnerError> {
        self.inner.copy_blocks(pairs)
    }
}

fn faulty_engine(fault: Fault, max_running: usize) -> Engine {
    let runner = Faulty { inner: judge(shape(64)), fault, batches: 0 };
    let config = EngineConfig { max_running, ..EngineConfig::default() };
    Engine::new(config, Box::new(runner), Arc::new(Pieces)).unwrap()
}

/// Scenario: the third batch fails at submit, at collect, or with logits of the wrong shape, while two run and one
/// waits.
/// Guarantees: the two fail with the error's text and free their blocks; the third goes on and ends with the right
/// tokens.
#[test]
fn a_failed_batch_ends_its_sequences_only() {
    let cases = [
        (Fault::Submit { batch: 3 }, "device lost at submit"),
        (Fault::Collect { batch: 3 }, "device lost"),
        (Fault::TooFewLogits { batch: 3 }, "wants 2 rows of 16"),
    ];
    for (fault, text) in cases {
        let mut engine = faulty_engine(fault, 2);
        for id in 1..=3 {
            engine.submit(request(id, &prompt(id as u32, 20), 10), 0).unwrap();
        }
        let ledger = run_to_end(&mut engine);
        for id in 1..=2 {
            let finish = ledger.outcomes[&id].finish();
            assert_eq!(finish.reason, FinishReason::Failed);
            assert!(finish.error.as_ref().unwrap().contains(text), "{finish:?}");
        }
        assert_eq!(ledger.outcomes[&3].tokens, reference_tokens(&request(3, &prompt(3, 20), 10)));
        assert_eq!(engine.queue_figures().pool.used, 0);
    }
}

/// Scenario: one of two sequences gets NaN logits in the third batch; later the same prompt comes again.
/// Guarantees: only that sequence fails, without a panic; KV that it alone had is not reused.
#[test]
fn unsound_logits_fail_one_sequence_and_poison_nothing() {
    let mut engine = faulty_engine(Fault::Nan { batch: 3, row: 0 }, 2);
    let healthy = request(2, &prompt(2, 20), 10);
    engine.submit(request(1, &prompt(1, 20), 10), 0).unwrap();
    engine.submit(healthy.clone(), 0).unwrap();
    let ledger = run_to_end(&mut engine);
    let failed = ledger.outcomes[&1].finish();
    assert_eq!((failed.reason, failed.completion_tokens), (FinishReason::Failed, 2));
    assert!(failed.error.as_ref().unwrap().contains("logit of token 3 is NaN"), "{failed:?}");
    assert_eq!(ledger.outcomes[&2].tokens, reference_tokens(&healthy));
    engine.submit(request(3, &prompt(1, 20), 10), 0).unwrap();
    engine.submit(request(4, &prompt(2, 20), 10), 0).unwrap();
    let again = run_to_end(&mut engine);
    assert_eq!(again.outcomes[&3].finish().cached_tokens, 0);
    assert_eq!(again.outcomes[&4].finish().cached_tokens, 19, "all but the last token of the prompt");
}

/// Scenario: a stop token in the middle of the reference output.
/// Guarantees: the token is reported and counted, its text is not shown, the reason is `Stop`.
#[test]
fn a_stop_token_ends_without_its_text() {
    let base = request(1, &prompt(3, 9), 30);
    let stop_token = reference_tokens(&base)[12];
    let stopping =
        GenerateRequest { stop: StopConditions { stop_tokens: vec![stop_token], ..base.stop.clone() }, ..base };
    let expected = reference_tokens(&stopping);
    let mut engine = engine_with(EngineConfig::default(), 64);
    engine.submit(stopping, 0).unwrap();
    let ledger = run_to_end(&mut engine);
    let outcome = &ledger.outcomes[&1];
    assert_eq!(outcome.tokens, expected);
    assert_eq!(outcome.finish().reason, FinishReason::Stop);
    assert_eq!(outcome.finish().completion_tokens as usize, expected.len());
    assert_eq!(outcome.text, String::from_utf8_lossy(&bytes_of(&expected[..expected.len() - 1])));
}

/// Scenario: log-probabilities of three alternatives, under a temperature and a bias that excludes the favourite.
/// Guarantees: one entry a token, from the raw distribution: alternatives are its three best and the sum of all shares
/// is 1.
#[test]
fn logprobs_come_with_every_token() {
    let base = request(1, &prompt(3, 9), 8);
    let sampling = SamplingParams { logprobs: Some(3), temperature: 0.7, seed: 3, ..SamplingParams::default() };
    let mut engine = engine_with(EngineConfig::default(), 64);
    engine.submit(GenerateRequest { sampling, ..base }, 0).unwrap();
    let ledger = run_to_end(&mut engine);
    let outcome = &ledger.outcomes[&1];
    assert_eq!(outcome.logprobs.len(), 8);
    for (token, entry) in outcome.tokens.iter().zip(&outcome.logprobs) {
        assert_eq!((entry.token, entry.top.len()), (*token, 3));
        assert!(entry.top.is_sorted_by(|a, b| a.1 >= b.1) && entry.logprob <= entry.top[0].1);
    }
}

/// The text that must be shown for `bytes` and `stops`: cut before the match that completes first, the longest of
/// those.
fn naive_text(bytes: &[u8], stops: &[String]) -> (String, bool) {
    let text = String::from_utf8_lossy(bytes).into_owned();
    for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
        let matched = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(String::len).max();
        if let Some(length) = matched {
            return (text[..end - length].to_owned(), true);
        }
    }
    (text, false)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Scenario: stop strings cut out of the text the request would give (so that they match, across token borders and
    /// within split characters), and others that nearly match; three requests share the engine.
    /// Guarantees: the pieces joined are the naive cut of the whole text; the reason says which end it was; no token
    /// after the end.
    #[test]
    fn stop_strings_cut_where_a_naive_search_would(
        seed in 0u32..1000, start in 0usize..40, length in 1usize..6, near in "[abcé日 ]{1,4}", seeds in any::<u64>(),
    ) {
        let sampling = SamplingParams { seed: seeds, ..SamplingParams::default() };
        let plain = GenerateRequest { sampling, ..request(1, &prompt(seed, 7), 40) };
        let whole = String::from_utf8_lossy(&bytes_of(&reference_tokens(&plain))).into_owned();
        let cut: String = whole.chars().skip(start).take(length).collect();
        let stops: Vec<String> = [cut, near].into_iter().filter(|stop| !stop.is_empty()).collect();
        let stop = StopConditions { stop_strings: stops.clone(), ..plain.stop.clone() };
        let stopping = GenerateRequest { stop, ..plain.clone() };
        let mut engine = engine_with(EngineConfig::default(), 128);
        engine.submit(stopping.clone(), 0).unwrap();
        for id in 2..4 {
            engine.submit(GenerateRequest { id: SequenceId(id), ..plain.clone() }, 0).unwrap();
        }
        let ledger: Ledger = run_to_end(&mut engine);
        let outcome = &ledger.outcomes[&1];
        let (expected, stopped) = naive_text(&bytes_of(&reference_tokens(&plain)), &stops);
        prop_assert_eq!(&outcome.text, &expected);
        let reason = if stopped { FinishReason::Stop } else { FinishReason::Length };
        prop_assert_eq!(outcome.finish().reason, reason);
        prop_assert!(reference_tokens(&plain).starts_with(&outcome.tokens));
        prop_assert_eq!(&ledger.outcomes[&2].text, &whole);
    }
}

/// Scenario: pieces of one character arrive as single tokens.
/// Guarantees: no output ever ends inside a character, and the test vocabulary really cuts some.
#[test]
fn characters_are_never_split() {
    assert_eq!(Pieces.token_bytes(6), b"\xC3");
    let mut engine = engine_with(EngineConfig::default(), 128);
    let bias = vec![(6, 100.0), (7, 99.0)];
    let sampling = SamplingParams { logit_bias: bias, temperature: 3.0, seed: 1, ..SamplingParams::default() };
    engine.submit(GenerateRequest { sampling: sampling.clone(), ..request(1, &[1, 2], 50) }, 0).unwrap();
    let expected = reference_tokens(&GenerateRequest { sampling, ..request(1, &[1, 2], 50) });
    let whole = String::from_utf8_lossy(&bytes_of(&expected)).into_owned();
    assert!(whole.contains('é'), "{whole}");
    let ledger = run_to_end(&mut engine);
    assert_eq!(ledger.outcomes[&1].text, whole);
}
