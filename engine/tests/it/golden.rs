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
const INT8_TOLERANCE: f32 = 0.75;
const BLOCK: usize = 16;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
    #[serde(default)]
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
    let Some((golden, model)) = golden(Arithmetic::F32) else { return };
    let mut runner = runner(&model, Arithmetic::F32);
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
            assert!(off <= TOLERANCE, "{}: token {token} has {}, expected {want}", prompt.name, first[*token as usize]);
        }
        for (index, want) in prompt.steps.iter().enumerate() {
            let token = argmax(&logits) as u32;
            if token != want.id {
                assert!(want.margin < TOLERANCE, "{} step {index}: {token}, expected {}", prompt.name, want.id);
                println!("{} step {index}: {token} instead of {}, margin {}", prompt.name, want.id, want.margin);
                close_calls += 1;
                break;
            }
            log_softmax(&mut logits);
            let off = (logits[token as usize] - want.logprob).abs();
            worst = worst.max(off);
            assert!(off <= TOLERANCE, "{} step {index}: log-probability off by {off}", prompt.name);
            if index + 1 == prompt.steps.len() || golden.stop_tokens.contains(&token) {
                break;
            }
            let position = prompt.prompt_ids.len() + index;
            logits = step(&mut runner, vec![slot(1, (&[token], position), &blocks)]).remove(0);
        }
    }
    println!("{} prompts, worst difference {worst}, {close_calls} close calls", golden.prompts.len());
}

/// Scenario: the same prompts with activations rounded to int8 and pages of f16, as a worker computes by default, fed with the reference's
/// tokens; beside it llama.cpp, which rounds them too, on the same file.
/// Guarantees: the root mean square over the twenty best log-probabilities of the first positions is no larger than 1.5 times
/// llama.cpp's (ten prompts leave that much to chance); a step's own log-probability is within 0.75.
#[test]
fn int8_is_as_near_as_llama_cpp() {
    let Some((golden, model)) = golden(Arithmetic::Int8) else { return };
    let peer: Golden =
        serde_json::from_slice(&std::fs::read(shared("golden/smollm2_llamacpp.json").unwrap()).unwrap()).unwrap();
    let mut runner = runner(&model, Arithmetic::Int8);
    let (mut ours, mut theirs, mut worst) = (Vec::new(), Vec::new(), 0.0f32);
    for (prompt, peer) in golden.prompts.iter().zip(&peer.prompts) {
        assert_eq!(prompt.name, peer.name);
        let total = prompt.prompt_ids.len() + prompt.gen_ids.len();
        let blocks: Vec<u32> = (0..total.div_ceil(BLOCK) as u32).rev().collect();
        let mut logits = step(&mut runner, vec![slot(1, (&prompt.prompt_ids, 0), &blocks)]).remove(0);
        for (index, want) in prompt.steps.iter().enumerate() {
            log_softmax(&mut logits);
            if index == 0 {
                for (token, want) in &prompt.first_top20 {
                    ours.push(logits[*token as usize] - want);
                    theirs.extend(peer.first_top20.iter().find(|(id, _)| id == token).map(|(_, got)| got - want));
                }
            }
            let off = (logits[want.id as usize] - want.logprob).abs();
            worst = worst.max(off);
            assert!(off <= INT8_TOLERANCE, "{} step {index}: log-probability off by {off}", prompt.name);
            if index + 1 < prompt.steps.len() {
                let position = prompt.prompt_ids.len() + index;
                logits = step(&mut runner, vec![slot(1, (&[want.id], position), &blocks)]).remove(0);
            }
        }
    }
    let [ours, theirs] =
        [ours, theirs].map(|all| (all.iter().map(|off| off * off).sum::<f32>() / all.len() as f32).sqrt());
    println!("root mean square {ours}, llama.cpp's {theirs}; worst step {worst}");
    assert!(ours <= 1.5 * theirs, "{ours} against {theirs}");
}
