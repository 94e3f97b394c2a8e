//! The CPU runner against recorded references: transformers on the same file, weights as f32, f32 arithmetic.
//!
//! In f32 ours must be the same; with activations in int8 it may differ as far as llama.cpp, which rounds them too, does.

use engine::{
    model::{Arithmetic, Model},
    runner::cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
};
use kernels::ops::logits::{argmax, log_softmax};
use serde::Deserialize;

use crate::data::{shared, slot, smollm2, step};

/// Allowed difference of a log-probability. llama.cpp with f32 weights is within 0.0002 of the same references.
const TOLERANCE: f32 = 1e-3;
/// The same with int8 activations.
const INT8_TOLERANCE: f32 = 0.5;
const BLOCK: usize = 16;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
    stop_tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    prompt_ids: Vec<u32>,
    first_top20: Vec<(u32, f32)>,
    gen_ids: Vec<u32>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    id: u32,
    logprob: f32,
    margin: f32,
}

fn golden(arithmetic: Arithmetic) -> Option<(Golden, std::sync::Arc<Model>)> {
    let (path, model) = (shared("golden/smollm2_hf_f32.json")?, smollm2()?);
    let golden = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    Some((golden, Model::load(&model, arithmetic).unwrap()))
}

/// With keys and values kept as exactly as products are computed.
fn runner(model: &std::sync::Arc<Model>, arithmetic: Arithmetic) -> CpuRunner {
    let kv_dtype = match arithmetic {
        Arithmetic::F32 => KvDtype::F32,
        Arithmetic::Int8 => KvDtype::F16,
    };
    CpuRunner::new(model.clone(), CpuRunnerOptions { threads: 2, block_size: BLOCK, blocks: 256, kv_dtype }).unwrap()
}

/// Scenario: ten prompts of 1 to 2000 tokens, decoded greedily.
/// Guarantees: the first position's twenty best log-probabilities and each step's own within 1e-3 of the reference;
/// the same tokens, unless the reference's two best were closer than that (none of the recorded steps is).
#[test]
fn greedy_tokens_and_logprobs_are_the_references() {
    compare(Arithmetic::F32, TOLERANCE);
}

/// Scenario: the same with activations rounded to int8 and pages of f16, as a worker computes by default.
/// Guarantees: log-probabilities within 0.5; the same tokens up to a step whose two best were closer than that.
#[test]
fn int8_stays_near_the_references() {
    compare(Arithmetic::Int8, INT8_TOLERANCE);
}

fn compare(arithmetic: Arithmetic, tolerance: f32) {
    let Some((golden, model)) = golden(arithmetic) else { return };
    let mut runner = runner(&model, arithmetic);
    let (mut worst, mut close_calls) = (0.0f32, 0);
    for prompt in &golden.prompts {
        let total = prompt.prompt_ids.len() + prompt.gen_ids.len();
        let blocks: Vec<u32> = (0..total.div_ceil(BLOCK) as u32).rev().collect();
        let mut logits = step(&mut runner, vec![slot(1, (&prompt.prompt_ids, 0), &blocks)]).remove(0);
        let mut first = logits.clone();
        log_softmax(&mut first);
        for (token, want) in &prompt.first_top20 {
            let off = (first[*token as usize] - want).abs();
            worst = worst.max(off);
            assert!(off <= tolerance, "{}: token {token} has {}, expected {want}", prompt.name, first[*token as usize]);
        }
        for (index, want) in prompt.steps.iter().enumerate() {
            let token = argmax(&logits) as u32;
            if token != want.id {
                assert!(want.margin < tolerance, "{} step {index}: {token}, expected {}", prompt.name, want.id);
                println!("{} step {index}: {token} instead of {}, margin {}", prompt.name, want.id, want.margin);
                close_calls += 1;
                break;
            }
            log_softmax(&mut logits);
            let off = (logits[token as usize] - want.logprob).abs();
            worst = worst.max(off);
            assert!(off <= tolerance, "{} step {index}: log-probability off by {off}", prompt.name);
            if index + 1 == prompt.steps.len() || golden.stop_tokens.contains(&token) {
                break;
            }
            let position = prompt.prompt_ids.len() + index;
            logits = step(&mut runner, vec![slot(1, (&[token], position), &blocks)]).remove(0);
        }
    }
    println!("{} prompts, worst difference {worst}, {close_calls} close calls", golden.prompts.len());
}
