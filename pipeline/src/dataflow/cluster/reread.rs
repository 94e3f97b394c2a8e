//! Which rows a new generation reads from the log.
//!
//! Invariant: with the tail after them, each row once and in its epoch. Cost: O(n) in the epochs.

use std::collections::VecDeque;

use crate::rows::{EPOCH_TOPICS, EpochRow};

/// What is read again before the tail: the logged epochs before `open`, those of `last` that are not in the log yet, and `open` itself
/// at the end, even without rows, as what the tail begins with belongs to it. Epochs whose rows were all handed on, to `fed`, are left
/// out.
pub(super) fn to_read(
    logged: Vec<EpochRow>,
    last: Vec<EpochRow>,
    open: u64,
    fed: &[u64; EPOCH_TOPICS],
) -> VecDeque<EpochRow> {
    let mut plan: VecDeque<EpochRow> = logged.into_iter().filter(|row| row.epoch < open).collect();
    let newest = plan.back().map(|row| row.epoch);
    plan.extend(last.into_iter().filter(|row| newest.is_none_or(|newest| row.epoch > newest)));
    plan.retain(|row| row.ranges().iter().zip(fed).any(|((_, rows), fed)| rows.end > *fed && !rows.is_empty()));
    if plan.back().is_none_or(|row| row.epoch < open) {
        plan.push_back(EpochRow { epoch: open, ..EpochRow::default() });
    }
    plan
}

pub(super) fn row_count(row: &EpochRow) -> u64 {
    row.ranges().iter().map(|(_, rows)| rows.end - rows.start).sum()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use queries::Topic;

    use super::*;

    fn epoch(epoch: u64, steps: Range<u64>) -> EpochRow {
        EpochRow { epoch, engine_steps_from: steps.start, engine_steps_to: steps.end, ..EpochRow::default() }
    }

    fn read(logged: &[EpochRow], last: &[EpochRow], open: u64, fed: u64) -> Vec<(u64, Range<u64>)> {
        let mut all = [0; EPOCH_TOPICS];
        all[EpochRow::place(Topic::EngineSteps).unwrap()] = fed;
        let plan = to_read(logged.to_vec(), last.to_vec(), open, &all);
        plan.iter().map(|row| (row.epoch, row.engine_steps_from..row.engine_steps_to)).collect()
    }

    /// Scenario: the open epoch has no rows yet when the tail begins, and rows in it come with the tail.
    /// Guarantees: it is opened, so that those rows do not count in the epoch before it.
    #[test]
    fn an_open_epoch_without_rows_is_opened_before_the_tail() {
        assert_eq!(read(&[epoch(3, 0..4)], &[], 7, 0), [(3, 0..4), (7, 0..0)]);
        assert_eq!(read(&[], &[], 7, 0), [(7, 0..0)]);
    }

    /// Scenario: the open epoch, and one after it, were closed and logged before the log was read.
    /// Guarantees: rows that the tail has are not read from the log as well.
    #[test]
    fn epochs_that_ended_since_the_tail_began_are_the_tails() {
        let logged = [epoch(3, 0..4), epoch(7, 4..9), epoch(8, 9..12)];
        assert_eq!(read(&logged, &[epoch(7, 4..6)], 7, 0), [(3, 0..4), (7, 4..6)]);
        assert_eq!(read(&logged, &[], 7, 0), [(3, 0..4), (7, 0..0)]);
    }

    #[test]
    fn epochs_not_in_the_log_yet_follow_it_and_handed_on_ones_are_left_out() {
        let last = [epoch(3, 0..4), epoch(5, 4..5), epoch(7, 5..6)];
        assert_eq!(read(&[epoch(3, 0..4)], &last, 7, 0), [(3, 0..4), (5, 4..5), (7, 5..6)]);
        assert_eq!(read(&[epoch(3, 0..4)], &last, 7, 5), [(7, 5..6)]);
    }
}
