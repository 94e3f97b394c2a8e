//! One class of requests: how its proposals fare, and whether they are worth verifying.
//!
//! A proposal of `k` tokens gains if a sequence's share of the step grows less than its tokens:
//! `(1 + expected(k)) * share / (share + added(k)) > 1`. Each level of trust is switched on above [`ENTER`] and off below
//! [`LEAVE`]; the class is active while one of them is on. While all are off, a verification is due every
//! `verify_interval` draws; the interval doubles with each that changes nothing, up to [`MAX_BACKOFF`] times.
//!
//! Cost: O(max draft) a decision. Memory: fixed.

use super::{
    acceptance::Acceptance,
    config::{MAX_DRAFT_TOKENS, SpeculationLimits},
    proposer::{ProposalCost, TRUSTS, Trust},
    report::{ClassFigures, SpeculationClass, SpeculationState},
    step_cost::{StepCost, StepSize},
};

/// Predicted gain from which a level is switched on, and below which it is switched off.
pub(crate) const ENTER: f32 = 1.10;
pub(crate) const LEAVE: f32 = 1.03;
/// The interval between verifications of a cool class doubles this often at most.
const MAX_BACKOFF: u32 = 4;
/// Share of the time between two verifications of a cool class that one may cost.
const PROBE_SHARE: f64 = 0.01;
/// Most tokens in such a verification.
const PROBE_TOKENS: usize = 4;
/// Outcomes before a free proposer's level can be switched on.
const LEAST_OUTCOMES: f32 = 3.0;
/// Share of right tokens believed at first: a model proposes well, a repetition may be chance.
const PRIOR: [f32; 2] = [0.25, 0.7];

/// The step that proposals would join, as far as its cost is known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Surroundings {
    /// Time of a decoding sequence's share of a step without proposals.
    share: f64,
    /// Time that proposals of each length add.
    added: [f64; MAX_DRAFT_TOKENS + 1],
}

impl Surroundings {
    /// A step of `size.decodes` decoding sequences and `tokens` tokens of any kind, `size.proposals` of them on top;
    /// `None` before anything is known.
    pub fn new(cost: &StepCost, size: StepSize, tokens: usize) -> Option<Self> {
        let share = cost.plain(size.decodes)? / size.decodes as f64;
        let placed = cost.added(tokens, size.proposals)?;
        let mut added = [0.0; MAX_DRAFT_TOKENS + 1];
        for (length, added) in added.iter_mut().enumerate().skip(1) {
            *added = (cost.added(tokens, size.proposals + length)? - placed).max(0.0);
        }
        Some(Self { share, added })
    }
}

#[derive(Debug, Clone)]
struct Level {
    acceptance: Acceptance,
    state: SpeculationState,
    gain: f32,
}

/// See the file's header.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    /// By trust; a model's proposals have one level only.
    levels: Vec<Level>,
    cost: ProposalCost,
    limits: SpeculationLimits,
    figures: ClassFigures,
    since_verification: usize,
    backoff: u32,
}

impl Class {
    pub fn new(class: SpeculationClass, cost: ProposalCost, limits: SpeculationLimits) -> Self {
        // Running a model to see how it fares costs as much as using it: it starts on, and is switched off by evidence.
        let (prior, state, levels) = match cost {
            ProposalCost::Free => (PRIOR[0], SpeculationState::Cool, TRUSTS),
            ProposalCost::Model => (PRIOR[1], SpeculationState::Active, 1),
        };
        let level = Level { acceptance: Acceptance::new(prior), state, gain: 1.0 };
        let figures = ClassFigures {
            class,
            state,
            drawn: 0,
            verifications: 0,
            proposed: 0,
            accepted: 0,
            watched: 0,
            watched_tokens: 0,
            watched_right: 0,
            predicted_gain: 1.0,
            switches: 0,
        };
        let levels = vec![level; levels];
        Self { levels, cost, limits, figures, since_verification: 0, backoff: 0 }
    }

    pub fn figures(&self) -> ClassFigures {
        self.figures
    }

    /// Whether all levels are off.
    pub fn is_cool(&self) -> bool {
        self.levels.iter().all(|level| level.state == SpeculationState::Cool)
    }

    /// Whether proposals of this trust are on.
    pub fn is_on(&self, trust: Trust) -> bool {
        self.level(trust).state == SpeculationState::Active
    }

    fn level(&self, trust: Trust) -> &Level {
        &self.levels[self.place(trust)]
    }

    fn place(&self, trust: Trust) -> usize {
        usize::from(trust.0).min(self.levels.len() - 1)
    }

    /// The best length up to `most` of a proposal of this trust, and the gain predicted for it; length 0 gains 1.
    pub fn best_length(&self, trust: Trust, most: usize, around: &Surroundings) -> (usize, f32) {
        let mut best = (0, 1.0);
        for length in 1..=most.min(MAX_DRAFT_TOKENS) {
            let tokens = 1.0 + f64::from(self.level(trust).acceptance.expected(length));
            let gain = (tokens * around.share / (around.share + around.added[length])) as f32;
            if gain > best.1 {
                best = (length, gain);
            }
        }
        best
    }

    /// Looks at all levels anew before they are used in a step. True if the class was switched.
    pub fn reconsider(&mut self, around: &Surroundings) -> bool {
        (0..self.levels.len() as u8).for_each(|trust| self.reconsider_level(Trust(trust), around));
        self.settle_state()
    }

    fn reconsider_level(&mut self, trust: Trust, around: &Surroundings) {
        let (_, gain) = self.best_length(trust, self.limits.max_draft, around);
        let known = self.cost == ProposalCost::Model || self.level(trust).acceptance.outcomes() >= LEAST_OUTCOMES;
        let place = self.place(trust);
        let level = &mut self.levels[place];
        level.gain = gain;
        match level.state {
            SpeculationState::Active if gain < LEAVE => level.state = SpeculationState::Cool,
            SpeculationState::Cool if gain >= ENTER && known => {
                level.state = SpeculationState::Active;
                self.backoff = 0;
            }
            _ => {}
        }
    }

    fn settle_state(&mut self) -> bool {
        let on = self.levels.iter().any(|level| level.state == SpeculationState::Active);
        let state = if on { SpeculationState::Active } else { SpeculationState::Cool };
        self.figures.predicted_gain = self.levels.iter().map(|level| level.gain).fold(1.0, f32::max);
        let switched = std::mem::replace(&mut self.figures.state, state) != state;
        self.figures.switches += u32::from(switched);
        switched
    }

    /// Length of the verification that a level which is off is due, `None` if it is not or could not gain even if it
    /// cost nothing. `most`: tokens that can be had.
    pub fn probe_length(&self, trust: Trust, most: usize, around: &Surroundings) -> Option<usize> {
        let interval = self.interval();
        if !self.probe_is_due() || most == 0 {
            return None;
        }
        let most = most.min(PROBE_TOKENS);
        if self.cost == ProposalCost::Free && 1.0 + self.level(trust).acceptance.expected(most) < ENTER {
            return None;
        }
        let allowed = around.share * interval as f64 * PROBE_SHARE;
        let fits = |length: &usize| around.added[*length] <= allowed;
        Some((1..=most).rev().find(fits).unwrap_or(1))
    }

    /// Whether one of a class that is off may be verified.
    pub fn probe_is_due(&self) -> bool {
        self.since_verification >= self.interval()
    }

    /// Draws between two verifications while the class is off.
    pub fn interval(&self) -> usize {
        self.limits.verify_interval.saturating_mul(1 << self.backoff)
    }

    /// Proposals of a level that is off are about to be verified.
    pub fn probed(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
        self.since_verification = 0;
    }

    /// `tokens` were drawn for a sequence in a step.
    pub fn drew(&mut self, tokens: usize) {
        self.figures.drawn += tokens as u64;
        self.since_verification = self.since_verification.saturating_add(tokens);
    }

    /// Of `proposed` tokens, the first `right` were right.
    pub fn verified(&mut self, trust: Trust, (proposed, right): (usize, usize)) {
        let place = self.place(trust);
        self.levels[place].acceptance.record(proposed, right);
        self.figures.verifications += 1;
        self.figures.proposed += proposed as u64;
        self.figures.accepted += right as u64;
        self.since_verification = 0;
    }

    /// As [`Class::verified`], of a proposal that did not run.
    pub fn watched(&mut self, trust: Trust, (proposed, right): (usize, usize)) {
        let place = self.place(trust);
        self.levels[place].acceptance.record(proposed, right);
        self.figures.watched += 1;
        self.figures.watched_tokens += proposed as u64;
        self.figures.watched_right += right as u64;
    }
}
