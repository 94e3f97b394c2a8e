//! Masks of the sequences that draw in this step, computed beside the runner (SPEC B7).
//!
//! Helper threads live for the step: none without a constrained sequence, one for each [`MASKS_A_THREAD`] of them, at
//! most [`MASK_THREADS`]. They run while the batch does, whether the runner works in `collect` or a device does. If no
//! thread can be had, each mask is computed when its sequence draws.
//!
//! Invariant: a mask depends on its sequence alone, so it is the same on any thread.
//!
//! Cost: about 20 µs a thread started, beside the masks. No state.

use std::thread;

use crate::{grammar::GrammarState, roster::Roster, scheduler::planned};

/// Most helper threads of a step.
pub(crate) const MASK_THREADS: usize = 4;
/// Sequences whose masks one thread computes before another is worth starting.
const MASKS_A_THREAD: usize = 8;

/// A mask to compute: the grammar's state, and the sequence's stop tokens.
type Due<'a> = (&'a mut GrammarState, &'a [u32]);

/// Runs `work`, and computes the masks of the step meanwhile.
pub(crate) fn compute_beside<T>(roster: &mut Roster, work: impl FnOnce() -> T) -> T {
    let drawing = planned(roster).filter(|sequence| sequence.draws_in_this_step());
    let mut due: Vec<Due<'_>> = drawing
        .filter_map(|sequence| Some((sequence.grammar.as_mut()?, sequence.request.stop.stop_tokens.as_slice())))
        .collect();
    if due.is_empty() {
        return work();
    }
    let threads = due.len().div_ceil(MASKS_A_THREAD).min(MASK_THREADS);
    let share = due.len().div_ceil(threads);
    thread::scope(|scope| {
        for part in due.chunks_mut(share) {
            let compute = || part.iter_mut().for_each(|(state, stop_tokens)| state.prepare(stop_tokens));
            let started = thread::Builder::new().name("masks".to_owned()).spawn_scoped(scope, compute);
            if started.is_err() {
                break;
            }
        }
        work()
    })
}
