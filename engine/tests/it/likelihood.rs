//! Log-likelihoods against a twin that reads every prefix anew.

use std::sync::{Arc, LazyLock};

use engine::{
    likelihood::{LikelihoodError, Windows, compare, log_likelihood},
    model::{Arithmetic, Family, Gguf, Model, WeightFormat, tiny::tiny_gguf},
    runner::{
        ModelRunner,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    },
};
use proptest::prelude::*;

use crate::data::{slot, step};

fn model(family: Family, arithmetic: Arithmetic, format: WeightFormat) -> Arc<Model> {
    let file = Gguf::from_bytes(tiny_gguf(family, 5)).unwrap().requantised(format).unwrap();
    Model::from_gguf(file, arithmetic).unwrap()
}

/// Exact, int8, and two formats of the first family; exact of the others.
static MODELS: LazyLock<Vec<Arc<Model>>> = LazyLock::new(|| {
    let llama = |arithmetic, format| model(Family::Llama, arithmetic, format);
    let mut models = vec![
        llama(Arithmetic::F32, WeightFormat::AsStored),
        llama(Arithmetic::Int8, WeightFormat::AsStored),
        llama(Arithmetic::Int8, WeightFormat::Q8_0),
        llama(Arithmetic::Int8, WeightFormat::Q4_0),
    ];
    let others = Family::ALL.into_iter().filter(|family| *family != Family::Llama);
    models.extend(others.map(|family| model(family, Arithmetic::F32, WeightFormat::AsStored)));
    models
});

fn runner(model: &Arc<Model>) -> CpuRunner {
    let options = CpuRunnerOptions { threads: 1, block_size: 16, blocks: 32, kv_dtype: KvDtype::F32 };
    CpuRunner::new(model.clone(), options).unwrap()
}

fn text(seed: usize, len: usize, vocab: usize) -> Vec<u32> {
    (0..len).map(|index| ((seed * 7919 + index * index * 104_729) % vocab) as u32).collect()
}

/// The logits that predict each token but the first, from a fresh runner that computes the token's whole prefix at once.
fn twin(model: &Arc<Model>, text: &[u32], windows: Windows) -> Vec<Vec<f32>> {
    let blocks: Vec<u32> = (0..32).collect();
    (1..text.len())
        .map(|position| {
            // The first window that reaches the token.
            let late = (position + 1).saturating_sub(windows.window).div_ceil(windows.stride);
            let prefix = &text[late * windows.stride..position];
            step(&mut runner(model), vec![slot(1, (prefix, 0), &blocks)]).pop().unwrap()
        })
        .collect()
}

/// Log of the softmax, by its definition.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - most - sum.ln()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Scenario: texts shorter and longer than windows of any size, with any overlap, under models of every family and of
    /// several formats.
    /// Guarantees: each token but the first has one score, and it is what the twin says.
    #[test]
    fn scores_are_those_of_prefixes_read_anew(
        seed in 0usize..1000, len in 2usize..120, window in 2usize..80, stride in 1usize..79,
        model in prop::sample::select(MODELS.clone()),
    ) {
        let windows = Windows { window, stride: stride.min(window - 1) };
        let text = text(seed, len, model.vocab());
        let scores = log_likelihood(&mut runner(&model), &text, windows).unwrap();
        let expected = twin(&model, &text, windows);
        prop_assert_eq!(scores.len(), len - 1);
        for (index, (score, logits)) in scores.iter().zip(&expected).enumerate() {
            let expected = log_softmax(logits)[text[index + 1] as usize];
            prop_assert!((score - expected).abs() < 1e-4, "token {}: {score}, expected {expected}", index + 1);
        }
    }

    /// Scenario: several formats of one model side by side.
    /// Guarantees: likelihood, divergence and agreement are those of the twin's distributions; the first model agrees with
    /// itself.
    #[test]
    fn agreement_is_that_of_the_distributions(seed in 0usize..1000, len in 20usize..60) {
        let windows = Windows { window: 32, stride: 16 };
        let text = text(seed, len, MODELS[0].vocab());
        let mut runners: Vec<CpuRunner> = MODELS[..4].iter().map(runner).collect();
        let mut models: Vec<&mut dyn ModelRunner> = runners.iter_mut().map(|r| r as &mut dyn ModelRunner).collect();
        let mut last = 0;
        let found = compare(&mut models, &text, windows, &mut |scored| last = scored).unwrap();
        prop_assert_eq!(last, len - 1);
        let logs: Vec<Vec<Vec<f64>>> = MODELS[..4].iter()
            .map(|model| twin(model, &text, windows).iter().map(|row| log_softmax(row)).collect()).collect();
        let count = (len - 1) as f64;
        for (found, own) in found.iter().zip(&logs) {
            let nll: f64 = own.iter().enumerate().map(|(at, row)| -row[text[at + 1] as usize]).sum();
            let divergence: f64 = logs[0].iter().zip(own)
                .map(|(p, q)| p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>()).sum();
            prop_assert!((found.nll.mean() - nll / count).abs() < 1e-4);
            prop_assert!((found.divergence.mean() - divergence / count).abs() < 1e-4);
            prop_assert!((found.perplexity().ln() - nll / count).abs() < 1e-4);
        }
        prop_assert_eq!((found[0].same_best_share(), found[0].divergence.mean()), (1.0, 0.0));
        prop_assert!(found[1..].iter().all(|other| other.divergence.mean() > 0.0));
    }
}

/// Scenario: many equal numbers, and the numbers 1 to 4.
/// Guarantees: mean and standard error are those of the formulas.
#[test]
fn moments_are_those_of_the_formulas() {
    let mut equal = engine::likelihood::Moments::default();
    (0..10).for_each(|_| equal.add(3.0));
    assert_eq!((equal.mean(), equal.standard_error()), (3.0, 0.0));
    let mut ramp = engine::likelihood::Moments::default();
    (1..=4).for_each(|value| ramp.add(f64::from(value)));
    let expected = (5.0f64 / 3.0 / 4.0).sqrt();
    assert!((ramp.mean() - 2.5).abs() < 1e-12 && (ramp.standard_error() - expected).abs() < 1e-12);
}

/// Scenario: a window larger than the pages, a stride as long as the window, one token, a token nobody knows.
/// Guarantees: each is refused by name before anything is computed.
#[test]
fn wrong_windows_and_texts_are_named() {
    let model = &MODELS[0];
    let refusal = |text: &[u32], window, stride| {
        let windows = Windows { window, stride };
        match log_likelihood(&mut runner(model), text, windows) {
            Err(LikelihoodError::Bound { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refusal(&[1, 2], 513, 1), "window");
    assert_eq!(refusal(&[1, 2], 8, 8), "stride");
    assert_eq!(refusal(&[1], 8, 4), "text");
    assert_eq!(refusal(&[1, 1 << 30], 8, 4), "token");
}
