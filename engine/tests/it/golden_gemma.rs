//! The CPU runner on the real Gemma 3 file against tokens recorded from llama.cpp (weights and KV as f32), see
//! `fixtures/make_gemma3_golden.py`.

use engine::{
    model::{Arithmetic, Model},
    runner::cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
};
use kernels::ops::logits::{argmax, log_softmax};
use serde::Deserialize;

use crate::data::{gemma3, slot, step};

/// Allowed difference of a log-probability: llama.cpp looks its GELU up in a table of f16. Measured: 0.0045.
const TOLERANCE: f32 = 1e-2;
const BLOCK: usize = 16;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize)]
struct Prompt {
    name: String,
    prompt_ids: Vec<u32>,
    /// Token, its log-probability, and how far the second-best is below.
    steps: Vec<(u32, f32, f32)>,
}

/// Scenario: prompts of 6 to about 1100 tokens (past the window of the local layers), decoded greedily for 48 tokens.
/// Guarantees: the recorded tokens, up to a step whose two best are closer than the tolerance; log-probabilities within
/// 1e-2.
#[test]
fn greedy_tokens_are_those_of_llama_cpp() {
    let Some(path) = gemma3() else { return };
    let golden: Golden = serde_json::from_str(include_str!("../fixtures/gemma3_270m.json")).unwrap();
    let model = Model::load(&path, Arithmetic::F32).unwrap();
    let mut runner =
        CpuRunner::new(model, CpuRunnerOptions { threads: 2, block_size: BLOCK, blocks: 128, kv_dtype: KvDtype::F32 })
            .unwrap();
    let (mut worst, mut equal, mut total) = (0.0f32, 0, 0);
    for prompt in &golden.prompts {
        let blocks: Vec<u32> = (0..128).rev().collect();
        let mut logits = step(&mut runner, vec![slot(1, (&prompt.prompt_ids, 0), &blocks)]).remove(0);
        for (index, (want, logprob, margin)) in prompt.steps.iter().enumerate() {
            let token = argmax(&logits) as u32;
            log_softmax(&mut logits);
            let off = (logits[*want as usize] - logprob).abs();
            worst = worst.max(off);
            assert!(off <= TOLERANCE, "{} step {index}: log-probability off by {off}", prompt.name);
            assert!(
                token == *want || *margin < TOLERANCE,
                "{} step {index}: {token} instead of {want}, margin {margin}",
                prompt.name
            );
            equal += usize::from(token == *want);
            total += 1;
            // The recorded token goes on, so that a near tie costs one step and not the rest.
            let position = prompt.prompt_ids.len() + index;
            logits = step(&mut runner, vec![slot(1, (&[*want], position), &blocks)]).remove(0);
        }
    }
    println!("{equal} of {total} tokens equal, worst log-probability difference {worst}");
    assert!(equal * 100 >= total * 99, "{equal} of {total} tokens equal");
}
