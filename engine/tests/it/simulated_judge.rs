//! The judge of paging must itself be judged: it accepts right tables and refuses each kind of wrong one.

use engine::{
    request::SequenceId,
    runner::{
        Batch, BatchLogits, BatchSlot, ModelRunner, RunnerError,
        simulated::{CostModel, PagingCheck, SimulatedRunner, expected_logits},
    },
};

use crate::support::{VOCAB, judge, shape};

fn slot(sequence: u64, tokens: &[u32], position: usize, blocks: &[u32]) -> BatchSlot {
    BatchSlot {
        sequence: SequenceId(sequence),
        tokens: tokens.to_vec(),
        position,
        blocks: blocks.to_vec(),
        wants_logits: true,
        proposed: 0,
    }
}

fn run(runner: &mut SimulatedRunner, slots: Vec<BatchSlot>) -> Result<BatchLogits, RunnerError> {
    runner.submit(&Batch { slots })?;
    runner.collect()
}

/// A runner in which sequence 1 has six tokens in blocks 5 and 2.
fn with_one_sequence() -> SimulatedRunner {
    let mut runner = judge(shape(8));
    run(&mut runner, vec![slot(1, &[1, 2, 3, 4, 5, 6], 0, &[5, 2])]).unwrap();
    runner
}

/// Scenario: a prompt in two chunks over scattered blocks, then a second sequence that shares its first block.
/// Guarantees: logits equal those computed without pages.
#[test]
fn right_tables_give_the_logits_of_the_history() {
    let mut runner = with_one_sequence();
    let logits = run(&mut runner, vec![slot(1, &[7], 6, &[5, 2]), slot(2, &[9, 9], 4, &[5, 0])]).unwrap();
    assert_eq!(logits.row(0), expected_logits(&[1, 2, 3, 4, 5, 6, 7], VOCAB));
    assert_eq!(logits.row(1), expected_logits(&[1, 2, 3, 4, 9, 9], VOCAB));
}

/// Scenario: each way in which a table can be wrong.
/// Guarantees: an error that names the block or the sequence, and never logits.
#[test]
fn wrong_tables_are_refused() {
    let cases: [(&str, Vec<BatchSlot>, &str); 8] = [
        ("blocks in the wrong order", vec![slot(1, &[7], 6, &[2, 5])], "does not hold position 0"),
        ("a page never written", vec![slot(1, &[7], 6, &[5, 3])], "does not hold position 4"),
        ("a gap", vec![slot(1, &[7], 7, &[5, 2])], "does not hold position 6"),
        ("too few blocks", vec![slot(1, &[7, 8, 9], 6, &[5, 2])], "2 blocks for 9 positions"),
        ("a block outside the pool", vec![slot(1, &[7], 6, &[5, 8])], "names block 8 of 8"),
        ("a token outside the vocabulary", vec![slot(1, &[99], 6, &[5, 2])], "token 99"),
        ("two writers", vec![slot(1, &[7], 6, &[5, 2]), slot(2, &[7], 6, &[5, 2])], "written twice"),
        ("read while written", vec![slot(1, &[7], 6, &[5, 2]), slot(2, &[1, 1], 0, &[5])], "while another writes"),
    ];
    for (name, slots, expected) in cases {
        let error = run(&mut with_one_sequence(), slots).expect_err(name);
        assert!(error.0.contains(expected), "{name}: {error}");
    }
}

/// Scenario: a sequence is given the pages of another with the same length and a consistent history of its own.
/// Guarantees: the swap is noticed although the pages are well formed.
#[test]
fn a_foreign_history_is_refused() {
    let mut runner = with_one_sequence();
    run(&mut runner, vec![slot(2, &[6, 5, 4, 3, 2, 1], 0, &[0, 1])]).unwrap();
    let error = run(&mut runner, vec![slot(1, &[7], 6, &[0, 1])]).unwrap_err();
    assert!(error.0.contains("another sequence's history"), "{error}");
}

/// Scenario: a known batch under known prices; a second submit before collect; a block copy.
/// Guarantees: the model is linear as stated; the one-outstanding rule holds; a copied block continues the same
/// history.
#[test]
fn cost_protocol_and_copies() {
    let cost = CostModel {
        base_us: 100.0,
        prefill_token_us: 10.0,
        decode_sequence_us: 5.0,
        context_token_us: 0.5,
        copy_block_us: 7.0,
    };
    let mut runner = SimulatedRunner::new(shape(8), cost, PagingCheck::Newest);
    let prefill = run(&mut runner, vec![slot(1, &[1, 2, 3, 4, 5, 6], 0, &[5, 2])]).unwrap();
    assert_eq!(prefill.modelled_us, Some(160));
    assert_eq!(run(&mut runner, vec![slot(1, &[7], 6, &[5, 2])]).unwrap().modelled_us, Some(108));
    runner.copy_blocks(&[(2, 4)]).unwrap();
    let logits = run(&mut runner, vec![slot(1, &[8], 7, &[5, 4])]).unwrap();
    assert_eq!(logits.row(0), expected_logits(&[1, 2, 3, 4, 5, 6, 7, 8], VOCAB));
    assert_eq!(logits.modelled_us, Some(116), "108.5 and a copy of 7");
    runner.submit(&Batch::default()).unwrap();
    assert!(runner.submit(&Batch::default()).is_err());
    assert!(runner.copy_blocks(&[(0, 8)]).is_err());
}
