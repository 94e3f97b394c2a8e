//! The seam between speculation and whoever guesses the next tokens.
//!
//! Invariant: a guess is only a guess. The sampler decides about every token, so a proposer can make a step slower and
//! never an output different. Cost and state: the proposer's own.

use crate::{Micros, request::SequenceId, runner::RunnerError, sampler::Draw};

/// How far a proposer trusts its guess, from 0 to [`TRUSTS`]` - 1`; acceptance is measured for each apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trust(pub u8);

/// Number of levels of trust.
pub const TRUSTS: usize = 3;

/// One sequence that could use proposals.
pub struct Ask<'a> {
    pub id: SequenceId,
    /// All known tokens are `prompt`, then `generated`.
    pub prompt: &'a [u32],
    pub generated: &'a [u32],
    /// How the sequence's next token will be drawn.
    pub draw: Draw<'a>,
    /// Most tokens wanted; at least 1.
    pub most: usize,
    /// The answer, empty at first.
    pub tokens: Vec<u32>,
    pub trust: Trust,
}

impl Ask<'_> {
    /// Known tokens.
    pub fn known(&self) -> usize {
        self.prompt.len() + self.generated.len()
    }

    /// A known token.
    pub fn token(&self, position: usize) -> u32 {
        match position.checked_sub(self.prompt.len()) {
            None => self.prompt[position],
            Some(behind) => self.generated[behind],
        }
    }
}

/// What proposing costs, next to a step of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposalCost {
    /// Nothing worth counting: guesses may be made only to see how they fare.
    Free,
    /// A model runs.
    Model,
}

/// Work done for a round of proposals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProposalWork {
    /// Time that the proposer's runner modelled, in microseconds; `None` if it models none.
    pub modelled_us: Option<Micros>,
    /// Tokens that had to be computed before the first could be proposed, over all asks.
    pub caught_up: usize,
}

/// Guesses tokens. One engine thread owns it.
pub trait Proposer: Send {
    fn cost(&self) -> ProposalCost;

    /// Known tokens of a sequence of `len` that have to be computed before anything can be proposed.
    fn backlog(&self, id: SequenceId, len: usize) -> usize;

    /// Answers what it can. An error leaves the asks unanswered.
    fn propose(&mut self, asks: &mut [Ask<'_>]) -> Result<ProposalWork, RunnerError>;

    /// Drops what is kept of sequences that do not run.
    fn retain(&mut self, runs: &dyn Fn(SequenceId) -> bool);
}
