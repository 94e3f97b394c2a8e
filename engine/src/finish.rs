//! The end of a step: logits become tokens, full blocks get their names, finished sequences give their blocks back.
//!
//! Invariant: a block is named only after its KV was computed and its sequence's logits were sound; a failure ends the
//! sequences it concerns and no others.
//!
//! Cost: one sample for each drawn token, O(1) bookkeeping besides. No state.

use crate::{
    grammar::GrammarFault,
    request::FinishReason,
    runner::{BatchLogits, RunnerError},
    running::RunKey,
    sampler::{SampleError, Sampled, Sampler},
    scheduler::Scheduler,
    sequence::Sequence,
    step::SequenceOutput,
    stop::TokenBytes,
};

/// The parts of an engine that finish a step.
pub(crate) struct Finishing<'a> {
    pub scheduler: &'a mut Scheduler,
    pub sampler: &'a mut Sampler,
    pub vocabulary: &'a dyn TokenBytes,
    pub outputs: &'a mut Vec<SequenceOutput>,
}

impl Finishing<'_> {
    /// Applies the logits of a batch to the sequences behind its slots.
    pub fn accept(&mut self, keys: &[RunKey], logits: &BatchLogits) {
        let mut row = 0;
        for key in keys {
            let Scheduler { roster, pool, cache, .. } = &mut *self.scheduler;
            let sequence = roster.running.get_mut(key).expect("invariant: planned sequences run");
            if sequence.draws_in_this_step() {
                let rows = 1 + sequence.draft.proposals.len();
                self.draw(key, logits, row);
                row += rows;
            } else {
                sequence.mark_computed(pool, cache);
            }
        }
    }

    /// The batch failed: its sequences end, their blocks come back.
    pub fn fail(&mut self, keys: &[RunKey], error: &RunnerError) {
        for key in keys {
            let output = self.sequence(key).empty_output();
            self.end(key, output, (FinishReason::Failed, Some(error.to_string())));
        }
    }

    /// Draws from `first` on: one token, and one more behind each guess that turns out right.
    fn draw(&mut self, key: &RunKey, logits: &BatchLogits, first: usize) {
        let Scheduler { roster, pool, cache, speculator, stats, .. } = &mut *self.scheduler;
        let sequence = roster.running.get_mut(key).expect("invariant: planned sequences run");
        let mut output = sequence.empty_output();
        let proposals = std::mem::take(&mut sequence.draft.proposals);
        let mut right = 0;
        let end = loop {
            match draw_token(self.sampler, sequence, logits.row(first + right)) {
                Err(fault) => {
                    sequence.table.forget_own(pool);
                    break Some((FinishReason::Failed, Some(fault.to_string())));
                }
                Ok(sampled) => {
                    let token = sampled.token;
                    sequence.mark_computed(pool, cache);
                    if let Some(reason) = sequence.accept(sampled, self.vocabulary, &mut output) {
                        break Some((reason, None));
                    }
                    if proposals.get(right) != Some(&token) {
                        break None;
                    }
                    // The guess is the sequence's next token, and its KV is in place.
                    sequence.planned = 1;
                    right += 1;
                }
            }
        };
        if let Some(speculator) = speculator {
            speculator.settle(sequence, (&proposals, &output.tokens), stats);
        }
        match end {
            Some(end) => self.end(key, output, end),
            None => self.outputs.push(output),
        }
    }

    fn end(&mut self, key: &RunKey, output: SequenceOutput, (reason, error): (FinishReason, Option<String>)) {
        let id = self.sequence(key).request.id;
        let Scheduler { roster, pool, .. } = &mut *self.scheduler;
        let sequence = roster.remove(id, pool).expect("invariant: planned sequences run");
        self.outputs.push(close_output(*sequence, output, (reason, error)));
    }

    fn sequence(&self, key: &RunKey) -> &Sequence {
        self.scheduler.roster.running.get(key).expect("invariant: planned sequences run")
    }
}

/// Draws a token that the grammar allows, and moves the grammar on.
fn draw_token(sampler: &mut Sampler, sequence: &mut Sequence, row: &[f32]) -> Result<Sampled, DrawFault> {
    let mask = sequence.take_mask()?;
    let sampled = sampler.sample_masked(row, &sequence.draw(), mask.as_ref())?;
    sequence.follow_grammar(sampled.token)?;
    Ok(sampled)
}

/// Why a sequence gets no token.
#[derive(Debug, thiserror::Error)]
enum DrawFault {
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Grammar(#[from] GrammarFault),
}

/// Checks that the runner gave as many logits as were asked for.
pub(crate) fn check_logits(logits: BatchLogits, rows: usize, vocab: usize) -> Result<BatchLogits, RunnerError> {
    if logits.vocab == vocab && logits.values.len() == rows * vocab {
        return Ok(logits);
    }
    let (got, width) = (logits.values.len(), logits.vocab);
    Err(RunnerError(format!("gave {got} logits in rows of {width}; the batch wants {rows} rows of {vocab}")))
}

/// Completes the last output of a sequence that was removed.
pub(crate) fn close_output(
    mut sequence: Sequence,
    mut output: SequenceOutput,
    (reason, error): (FinishReason, Option<String>),
) -> SequenceOutput {
    if matches!(reason, FinishReason::Cancelled | FinishReason::Late | FinishReason::Failed) {
        sequence.flush_text(&mut output.text);
    }
    output.finish = Some(sequence.finish(reason, error));
    output
}
