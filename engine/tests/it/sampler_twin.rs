//! The sampler against a slow twin that sorts everything in f64, and its edge cases.

use engine::{
    request::SamplingParams,
    sampler::{Draw, SampleError, Sampled, Sampler, uniform},
    token_history::TokenHistory,
};
use proptest::prelude::*;

/// How near to a border the twin's numbers may come before a different rounding could decide otherwise.
const BORDER: f64 = 1e-9;

/// Penalties and bias, one token at a time.
fn naive_adjust(logits: &[f32], params: &SamplingParams, prompt: &[u32], output: &[u32]) -> Vec<f32> {
    let mut adjusted = logits.to_vec();
    for (token, logit) in adjusted.iter_mut().enumerate() {
        let token = token as u32;
        let count = output.iter().filter(|other| **other == token).count();
        if count > 0 || prompt.contains(&token) {
            *logit = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
        }
        if count > 0 {
            *logit -= params.frequency_penalty * count as f32 + params.presence_penalty;
        }
        for (_, bias) in params.logit_bias.iter().filter(|(biased, _)| *biased == token) {
            *logit += bias;
        }
    }
    adjusted
}

/// Ids from best to worst.
fn ranked(logits: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    ids
}

/// The drawn token; `None` if the outcome hangs on rounding.
fn naive_draw(logits: &[f32], params: &SamplingParams, index: usize) -> Option<u32> {
    let mut kept = ranked(logits);
    if params.temperature == 0.0 {
        return Some(kept[0] as u32);
    }
    let peak = f64::from(logits[kept[0]]);
    let weight = |id: usize| ((f64::from(logits[id]) - peak) / f64::from(params.temperature)).exp();
    kept.truncate(params.top_k.map_or(kept.len(), |k| k as usize));
    let total: f64 = kept.iter().map(|id| weight(*id)).sum();
    if params.top_p < 1.0 {
        let mut share = 0.0;
        let mut count = 0;
        while count < kept.len() && share < f64::from(params.top_p) {
            share += weight(kept[count]) / total;
            count += 1;
            if (share - f64::from(params.top_p)).abs() < BORDER {
                return None;
            }
        }
        kept.truncate(count);
    }
    if kept.iter().any(|id| (weight(*id) - f64::from(params.min_p)).abs() < BORDER && params.min_p > 0.0) {
        return None;
    }
    kept.retain(|id| weight(*id) >= f64::from(params.min_p));
    kept.sort_unstable();
    let total: f64 = kept.iter().map(|id| weight(*id)).sum();
    let target = uniform(params.seed, index);
    let mut share = 0.0;
    for id in &kept {
        share += weight(*id) / total;
        if (share - target).abs() < BORDER {
            return None;
        }
        if share > target {
            return Some(*id as u32);
        }
    }
    None
}

fn params(vocab: u32) -> impl Strategy<Value = SamplingParams> {
    let temperature = prop_oneof![Just(0.0f32), Just(1.0), 0.05f32..3.0];
    let filters = (
        proptest::option::of(1u32..vocab + 5),
        prop_oneof![Just(1.0f32), 0.01f32..1.0],
        prop_oneof![Just(0.0f32), 0.0f32..0.9],
    );
    let penalties = (
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(0.0f32), -2.0f32..2.0],
        prop_oneof![Just(1.0f32), 0.3f32..3.0],
    );
    let bias = proptest::collection::vec((0..vocab, -5.0f32..5.0), 0..4);
    (temperature, filters, penalties, bias, any::<u64>(), 0u8..6).prop_map(
        |(temperature, (top_k, top_p, min_p), penalties, logit_bias, seed, logprobs)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            frequency_penalty: penalties.0,
            presence_penalty: penalties.1,
            repetition_penalty: penalties.2,
            logit_bias,
            seed,
            logprobs: Some(logprobs),
        },
    )
}

/// Continuous logits, logits with many ties, and a few that can't be drawn.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let one =
        prop_oneof![6 => -8.0f32..8.0, 3 => (-3i32..4).prop_map(|step| step as f32), 1 => Just(f32::NEG_INFINITY)];
    proptest::collection::vec(one, 2..400)
        .prop_filter("one can be drawn", |values| values.iter().any(|v| v.is_finite()))
}

fn sample(logits: &[f32], params: &SamplingParams, (prompt, output): (&[u32], &[u32])) -> Result<Sampled, SampleError> {
    let mut history = TokenHistory::new(params, prompt, 0);
    output.iter().for_each(|token| history.record(*token));
    Sampler::default().sample(logits, &Draw { params, history: &history, index: output.len() })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, ..ProptestConfig::default() })]

    /// Scenario: random logits with ties and exclusions, all parameters at random, a random past.
    /// Guarantees: the token is the twin's; log-probabilities are the raw log-softmax, with the twin's best
    /// alternatives.
    #[test]
    fn the_sampler_equals_its_twin(
        logits in logits(),
        params in params(400),
        prompt in proptest::collection::vec(0u32..400, 0..12),
        output in proptest::collection::vec(0u32..400, 0..12),
    ) {
        let sampled = sample(&logits, &params, (&prompt, &output)).unwrap();
        let adjusted = naive_adjust(&logits, &params, &prompt, &output);
        if let Some(expected) = naive_draw(&adjusted, &params, output.len()) {
            prop_assert_eq!(sampled.token, expected);
        }
        let entry = sampled.logprob.unwrap();
        let log_sum = logits.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
        let raw = |token: u32| f64::from(logits[token as usize]) - log_sum;
        let near = |token: u32, value: f32| (f64::from(value) - raw(token)).abs() < 1e-4;
        prop_assert!(near(entry.token, entry.logprob));
        let finite: Vec<u32> =
            ranked(&logits).into_iter().filter(|id| logits[*id].is_finite()).map(|id| id as u32).collect();
        let expected: Vec<u32> = finite.into_iter().take(usize::from(params.logprobs.unwrap())).collect();
        prop_assert_eq!(entry.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), expected);
        prop_assert!(entry.top.iter().all(|(token, value)| near(*token, *value)));
    }

    /// Scenario: a NaN or +inf anywhere, or nothing but -inf.
    /// Guarantees: an error that names the token, never a token and never a panic.
    #[test]
    fn unsound_logits_are_errors(
        mut logits in logits(), at in any::<prop::sample::Index>(), nan in any::<bool>(), params in params(400),
    ) {
        let at = at.index(logits.len());
        logits[at] = if nan { f32::NAN } else { f32::INFINITY };
        match sample(&logits, &params, (&[], &[])) {
            Err(SampleError::NotFinite { token, .. }) => prop_assert_eq!(token, at),
            other => prop_assert!(false, "{:?}", other),
        }
        logits.fill(f32::NEG_INFINITY);
        prop_assert_eq!(sample(&logits, &params, (&[], &[])), Err(SampleError::NothingToDraw));
    }
}

/// Scenario: 20000 draws from a skewed distribution, index by index under one seed (fixed, so the outcome is too).
/// Guarantees: frequencies follow the probabilities within five standard deviations; the numbers don't repeat.
#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = [0.5f32, 0.3, 0.15, 0.05].iter().map(|share| share.ln()).collect();
    let params = SamplingParams { seed: 42, ..SamplingParams::default() };
    let (history, mut sampler, mut counts) = (TokenHistory::default(), Sampler::default(), [0u32; 4]);
    let draws = 20_000;
    for index in 0..draws {
        let draw = Draw { params: &params, history: &history, index };
        counts[sampler.sample(&logits, &draw).unwrap().token as usize] += 1;
    }
    for (count, share) in counts.iter().zip([0.5, 0.3, 0.15, 0.05]) {
        let (expected, n) = (share * f64::from(draws as u32), f64::from(draws as u32));
        let deviation = (n * share * (1.0 - share)).sqrt();
        assert!((f64::from(*count) - expected).abs() < 5.0 * deviation, "{counts:?}");
    }
    assert_ne!(uniform(42, 0), uniform(42, 1));
    assert_ne!(uniform(42, 0), uniform(43, 0));
}

/// Scenario: a top-p that keeps every token, over logits that are not in order of id.
/// Guarantees: the same draws as without it (the order of the draw stays that of the ids).
#[test]
fn a_filter_that_keeps_all_changes_nothing() {
    let logits = [-1.2, -1.0];
    for seed in 0..50 {
        let plain = SamplingParams { seed, ..SamplingParams::default() };
        let filtered = SamplingParams { top_p: 0.7, top_k: Some(2), ..plain.clone() };
        let draw = |params: &SamplingParams| sample(&logits, params, (&[], &[])).unwrap().token;
        assert_eq!(draw(&plain), draw(&filtered), "seed {seed}");
    }
}

/// Scenario: ties under greedy; a bias that lifts the worst; a ban.
/// Guarantees: the lower id wins; a bias of 100 decides; a bias of -100 excludes.
#[test]
fn ties_and_bias() {
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let with_bias = |bias: &[(u32, f32)]| SamplingParams { logit_bias: bias.to_vec(), ..greedy.clone() };
    let logits = [1.0, 3.0, 3.0, -7.0];
    assert_eq!(sample(&logits, &greedy, (&[], &[])).unwrap().token, 1);
    assert_eq!(sample(&logits, &with_bias(&[(3, 100.0)]), (&[], &[])).unwrap().token, 3);
    assert_eq!(sample(&logits, &with_bias(&[(1, -100.0)]), (&[], &[])).unwrap().token, 2);
}
