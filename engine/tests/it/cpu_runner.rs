//! The CPU runner on the test model: what it computes does not depend on company, and what it refuses.

use std::sync::{Arc, LazyLock};

use engine::{
    model::{Arithmetic, Family, Gguf, Model, tiny::tiny_gguf},
    runner::{
        Batch, BatchSlot, ModelRunner,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    },
};
use proptest::prelude::*;

use crate::data::{slot, step};

static MODELS: LazyLock<Vec<Arc<Model>>> = LazyLock::new(|| {
    let tiny = |family| Gguf::from_bytes(tiny_gguf(family, 1)).unwrap();
    Family::ALL.into_iter().map(|family| Model::from_gguf(tiny(family), Arithmetic::Int8).unwrap()).collect()
});
static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| MODELS[0].clone());

fn runner(threads: usize, block_size: usize, blocks: usize) -> CpuRunner {
    runner_of(&MODEL, CpuRunnerOptions { threads, block_size, blocks, kv_dtype: KvDtype::F16 })
}

fn runner_of(model: &Arc<Model>, options: CpuRunnerOptions) -> CpuRunner {
    CpuRunner::new(model.clone(), options).unwrap()
}

/// The tokens of a sequence, made from its number.
fn tokens(sequence: usize, len: usize) -> Vec<u32> {
    (0..len).map(|index| ((sequence * 7919 + index * 104_729) % MODEL.vocab()) as u32).collect()
}

/// Logits after each of the last `last` tokens, computed alone, in one chunk and then token by token.
fn alone(model: &Arc<Model>, text: &[u32], last: usize) -> Vec<Vec<f32>> {
    let mut runner =
        runner_of(model, CpuRunnerOptions { threads: 1, block_size: 8, blocks: 64, kv_dtype: KvDtype::F16 });
    let blocks: Vec<u32> = (0..64).collect();
    let first = text.len() - last + 1;
    let mut all = step(&mut runner, vec![slot(1, (&text[..first], 0), &blocks)]);
    for position in first..text.len() {
        all.extend(step(&mut runner, vec![slot(1, (&text[position..position + 1], position), &blocks)]));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// Scenario: a model of any family; one to five sequences prefilled in chunks of any size side by side, then decoded side by side, in
    /// pages of another size, scattered, on one to three threads.
    /// Guarantees: every sequence's logits are bit-equal to those it gets alone.
    #[test]
    fn company_changes_nothing(
        lens in prop::collection::vec(4..90usize, 1..6), chunk in 1..40usize, threads in 1..4usize,
        block_size in prop::sample::select(vec![1usize, 4, 16]), model in prop::sample::select(MODELS.clone()),
    ) {
        let texts: Vec<Vec<u32>> = lens.iter().enumerate().map(|(index, len)| tokens(index, *len)).collect();
        let pages = 100usize.div_ceil(block_size);
        let options = CpuRunnerOptions { threads, block_size, blocks: pages * texts.len(), kv_dtype: KvDtype::F16 };
        let mut runner = runner_of(&model, options);
        // Pages dealt in turn, so that no sequence's lie side by side.
        let blocks = |index: usize| -> Vec<u32> {
            (0..pages).map(|page| (page * texts.len() + index) as u32).rev().collect()
        };
        let mut done = vec![0; texts.len()];
        let mut got = vec![Vec::new(); texts.len()];
        while texts.iter().zip(&done).any(|(text, done)| done < &text.len()) {
            let mut slots: Vec<BatchSlot> = Vec::new();
            for (index, text) in texts.iter().enumerate() {
                // The last three tokens come one by one: decode beside the others' prefill.
                let left = text.len() - done[index];
                let take = if left > 3 { chunk.min(left - 3) } else { left.min(1) };
                if take > 0 {
                    let part = &text[done[index]..done[index] + take];
                    let wants_logits = left <= 3 || take == left - 3;
                    slots.push(BatchSlot { wants_logits, ..slot(index as u64, (part, done[index]), &blocks(index)) });
                    done[index] += take;
                }
            }
            let wanted: Vec<usize> =
                slots.iter().filter(|slot| slot.wants_logits).map(|slot| slot.sequence.0 as usize).collect();
            for (index, logits) in wanted.into_iter().zip(step(&mut runner, slots)) {
                got[index].push(logits);
            }
        }
        for (text, got) in texts.iter().zip(&got) {
            prop_assert_eq!(&alone(&model, text, 4.min(text.len())), got);
        }
    }
}

/// Scenario: a batch larger than one pass of the forward computation.
/// Guarantees: the same logits, bit for bit, as in small chunks.
#[test]
fn large_batches_are_cut_without_a_trace() {
    let texts = [tokens(1, 500), tokens(2, 300), tokens(3, 512)];
    let mut runner = runner(2, 16, 96);
    let blocks = |index: u32| -> Vec<u32> { (index * 32..index * 32 + 32).collect() };
    let slots = texts.iter().zip(0..).map(|(text, index)| slot(u64::from(index), (text, 0), &blocks(index))).collect();
    let together = step(&mut runner, slots);
    for (text, got) in texts.iter().zip(&together) {
        assert_eq!(&alone(&MODEL, text, 1)[0], got);
    }
}

/// Scenario: blocks are copied, and the sequence goes on in the copies.
/// Guarantees: the logits are those of going on in place.
#[test]
fn copied_blocks_hold_the_same_keys_and_values() {
    let text = tokens(5, 20);
    let mut runner = runner(1, 4, 12);
    step(&mut runner, vec![slot(1, (&text[..19], 0), &[0, 1, 2, 3, 4])]);
    runner.copy_blocks(&[(0, 11), (1, 10), (2, 9), (3, 8), (4, 7)]).unwrap();
    let copied = step(&mut runner, vec![slot(2, (&text[19..], 19), &[11, 10, 9, 8, 7])]);
    assert_eq!(copied, step(&mut runner, vec![slot(1, (&text[19..], 19), &[0, 1, 2, 3, 4])]));
    assert!(runner.copy_blocks(&[(0, 12)]).unwrap_err().to_string().contains("below 12"));
}

/// Scenario: blocks go to L2, their pages are overwritten, and they come back to other pages.
/// Guarantees: the logits are those of going on in place; numbers beyond a level are refused by name.
#[test]
fn swapped_blocks_come_back_with_the_same_keys_and_values() {
    let text = tokens(5, 20);
    let mut runner = runner(1, 4, 12);
    assert!(runner.swap_out(&[(0, 0)]).unwrap_err().to_string().contains("no L2"));
    runner.provide_l2(5).unwrap();
    step(&mut runner, vec![slot(1, (&text[..19], 0), &[0, 1, 2, 3, 4])]);
    let in_place = step(&mut runner, vec![slot(1, (&text[19..], 19), &[0, 1, 2, 3, 4])]);
    runner.swap_out(&[(0, 4), (1, 3), (2, 2), (3, 1), (4, 0)]).unwrap();
    step(&mut runner, vec![slot(2, (&tokens(6, 20), 0), &[0, 1, 2, 3, 4])]);
    runner.swap_in(&[(4, 11), (3, 10), (2, 9), (1, 8), (0, 7)]).unwrap();
    assert_eq!(step(&mut runner, vec![slot(1, (&text[19..], 19), &[11, 10, 9, 8, 7])]), in_place);
    assert!(runner.swap_out(&[(0, 5)]).unwrap_err().to_string().contains("below 12 and 5"));
    assert!(runner.swap_in(&[(0, 12)]).unwrap_err().to_string().contains("below 5 and 12"));
}

/// Scenario: every way in which a batch can be wrong.
/// Guarantees: a refusal that names the sequence, the value and what is right; the runner works on.
#[test]
fn wrong_batches_are_refused() {
    let mut runner = runner(1, 4, 4);
    let good = slot(9, (&[1, 2, 3], 0), &[0]);
    for (slots, why) in [
        (vec![slot(9, (&[], 0), &[0])], "sequence 9: no new tokens"),
        (vec![slot(9, (&[9999], 0), &[0])], "sequence 9: token is 9999, expected below 267"),
        (vec![slot(9, (&[1], 4), &[0])], "block table has 1 blocks, expected 2"),
        (vec![slot(9, (&[1], usize::MAX), &[0])], "expected below 4096"),
        (vec![slot(9, (&[1], 0), &[4])], "block is 4, expected below 4"),
        (vec![good.clone(), slot(8, (&[1], 1), &[0])], "sequence 8: block 0 is written by sequence 9 too"),
    ] {
        let error = runner.submit(&Batch { slots }).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    assert!(runner.collect().is_err());
    runner.submit(&Batch { slots: vec![good.clone()] }).unwrap();
    assert!(runner.submit(&Batch { slots: vec![good] }).is_err());
    assert_eq!(runner.collect().unwrap().values.len(), 267);
    // An empty batch is a batch without logits.
    assert!(step(&mut runner, Vec::new()).is_empty());
    let shape = runner.shape();
    assert_eq!((shape.vocab, shape.context, shape.block_size, shape.blocks), (267, 4096, 4, 4));
    // Two layers, keys and values, two heads of 16, four positions, f16.
    assert_eq!(shape.block_bytes, 2 * 2 * 2 * 16 * 4 * 2);
    assert_eq!(CpuRunner::token_bytes(MODEL.config(), KvDtype::F16), shape.block_bytes / 4);
}

/// Scenario: sizes that make no sense.
/// Guarantees: refused by name, before memory is taken.
#[test]
fn wrong_options_are_refused() {
    for (options, why) in [
        (CpuRunnerOptions { threads: 1, block_size: 0, blocks: 4, kv_dtype: KvDtype::F16 }, "block_size is 0"),
        (CpuRunnerOptions { threads: 1, block_size: 16, blocks: 0, kv_dtype: KvDtype::F16 }, "blocks is 0"),
        (
            CpuRunnerOptions { threads: 1, block_size: 4096, blocks: u32::MAX as usize, kv_dtype: KvDtype::F16 },
            "no memory for 4294967295",
        ),
    ] {
        assert!(CpuRunner::new(MODEL.clone(), options).unwrap_err().to_string().contains(why));
    }
}
