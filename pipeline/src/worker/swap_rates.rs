//! What computing and moving KV costs here, measured once as a worker with L2 starts, so that the engine's choice between
//! moving an interrupted sequence's KV and computing it again is right on this machine (SPEC B8).
//!
//! Cost: [`PROMPTS`] prompts of at most [`PROMPT_TOKENS`] tokens, and [`ROUNDS`] copies of their blocks there and back. No
//! state: the pages it leaves behind have no names, so nobody reads them before they are written.

use std::time::{Duration, Instant};

use engine::{
    config::SwapRates,
    request::SequenceId,
    runner::{Batch, BatchSlot, ModelRunner, RunnerError},
};

const PROMPT_TOKENS: usize = 256;
/// The first of each kind warms up; the fastest counts.
const PROMPTS: usize = 2;
const ROUNDS: usize = 4;

/// Takes the times. The runner's L2 is as large as the copies need, and is to be provided anew.
pub(super) fn measure(runner: &mut dyn ModelRunner) -> Result<SwapRates, RunnerError> {
    let shape = runner.shape();
    let tokens = PROMPT_TOKENS.min(shape.context).min(shape.blocks.saturating_mul(shape.block_size));
    let blocks = tokens.div_ceil(shape.block_size);
    runner.provide_l2(blocks)?;
    let prompt = BatchSlot {
        sequence: SequenceId(0),
        tokens: (0..tokens).map(|token| (token % shape.vocab) as u32).collect(),
        position: 0,
        blocks: (0..blocks as u32).collect(),
        wants_logits: true,
        proposed: 0,
    };
    let prefill = fastest(PROMPTS, || {
        runner.submit(&Batch { slots: vec![prompt.clone()] })?;
        runner.collect().map(|logits| runner.recycle(logits))
    })?;
    let pairs: Vec<(u32, u32)> = (0..blocks as u32).map(|block| (block, block)).collect();
    let copies = fastest(ROUNDS, || {
        runner.swap_out(&pairs)?;
        runner.swap_in(&pairs)
    })?;
    Ok(SwapRates {
        prefill_ns_per_token: nanos_each(prefill, tokens),
        copy_ns_per_block: nanos_each(copies, 2 * blocks),
    })
}

fn fastest(times: usize, mut work: impl FnMut() -> Result<(), RunnerError>) -> Result<Duration, RunnerError> {
    let mut best = Duration::MAX;
    for _ in 0..times {
        let started = Instant::now();
        work()?;
        best = best.min(started.elapsed());
    }
    Ok(best)
}

/// At least 1: nothing is free.
fn nanos_each(time: Duration, count: usize) -> u64 {
    u64::try_from(time.as_nanos() / count.max(1) as u128).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use engine::runner::{
        RunnerShape,
        simulated::{CostModel, PagingCheck, SimulatedRunner},
    };

    use super::*;
    use crate::worker::paced::Paced;

    /// Scenario: a runner that takes its modelled time, and one with fewer pages than a prompt needs.
    /// Guarantees: computing is not thought faster than it is; pages and context are kept to; nothing is free.
    #[test]
    fn computing_is_not_thought_faster_than_it_is() {
        for blocks in [64, 2] {
            let shape = RunnerShape { vocab: 16, context: 4096, block_size: 16, blocks, block_bytes: 64 };
            let model = || SimulatedRunner::new(shape, CostModel::default(), PagingCheck::Newest);
            let tokens = PROMPT_TOKENS.min(blocks * 16);
            let mut plain = model();
            let slot = BatchSlot {
                sequence: SequenceId(0),
                tokens: vec![1; tokens],
                position: 0,
                blocks: (0..tokens.div_ceil(16) as u32).collect(),
                wants_logits: true,
                proposed: 0,
            };
            plain.submit(&Batch { slots: vec![slot] }).unwrap();
            let modelled = plain.collect().unwrap().modelled_us.unwrap() as u64;
            let rates = measure(&mut Paced::new(model(), 1.0)).unwrap();
            assert!(rates.prefill_ns_per_token >= modelled * 1000 / tokens as u64, "{rates:?} at {modelled} us");
            assert!(rates.copy_ns_per_block >= 1);
        }
    }
}
