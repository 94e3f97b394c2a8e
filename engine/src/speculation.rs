//! Speculative decoding (issue E): tokens are guessed, and a step verifies several of a sequence at once.
//!
//! A guess runs behind the sequence's last token, in the same slot, and the step gives logits at each of these
//! positions. The ordinary sampler then draws at each in turn with the true history; as long as a draw is what was
//! guessed, the next position's logits are the ones it would have had, and the next draw is made. A draw depends on
//! logits, seed and index alone, so outputs are token for token those without speculation.
//!
//! Invariants: proposals take only tokens of the budget and pages that decodes and prefills left; they never make
//! anybody give way; KV behind the last right token is overwritten before it is read, and no block is named before its
//! tokens are drawn.
//!
//! Whether guesses are worth their steps is learnt (`class`, `acceptance`, `step_cost`) from times that the runner
//! models or, if it models none, from those between calls of `step`, as long as there was work in between.
//!
//! Cost: O(decoding sequences × max draft) a step plus the proposer's. State: fixed a class, [`MAX_DRAFT_TOKENS`] a
//! sequence, the proposer's. Nothing at all while it is off.
//!
//! [`MAX_DRAFT_TOKENS`]: config::MAX_DRAFT_TOKENS
//!
//! | file | idea |
//! |---|---|
//! | `proposer` | the seam; `prompt_lookup`, `draft_model` implement it |
//! | `class`, `acceptance`, `step_cost` | what a guess gains, and who may guess |
//! | `draft_state` | what a sequence carries |
//! | `vocabulary` | whether one model can draft for another |
//! | `config`, `report` | settings; figures and changes of state |

mod acceptance;
mod class;
pub mod config;
pub mod draft_model;
pub(crate) mod draft_state;
pub mod prompt_lookup;
pub mod proposer;
pub mod report;
mod step_cost;
pub mod vocabulary;

use crate::{
    Micros,
    block_pool::BlockPool,
    lanes::{LANES, lane_index},
    request::{GenerateRequest, MAX_REQUEST_CLASSES, RequestClass, SequenceId},
    roster::Roster,
    runner::RunnerError,
    running::RunKey,
    sequence::Sequence,
    step::StepStats,
    token_budget::TokenBudget,
};
use class::{Class, Surroundings};
use config::SpeculationLimits;
use proposer::{Ask, ProposalCost, ProposalWork, Proposer, Trust};
use report::{ClassFigures, SpeculationChange, SpeculationClass};
use step_cost::{StepCost, StepSize};

/// A step whose time is not known yet.
#[derive(Debug, Clone, Copy)]
struct UnderWay {
    size: StepSize,
    started: Micros,
    proposer_us: Micros,
}

/// A proposal that came back, and whose it is.
struct Proposal {
    key: RunKey,
    class: usize,
    tokens: Vec<u32>,
    trust: Trust,
    /// It is run though its class is cool, to see what that costs.
    probe: Option<usize>,
}

/// See the file's header.
pub(crate) struct Speculator {
    proposer: Box<dyn Proposer>,
    limits: SpeculationLimits,
    classes: Vec<Class>,
    cost: StepCost,
    under_way: Option<UnderWay>,
    changes: Vec<SpeculationChange>,
    error: Option<RunnerError>,
}

const CLASSES: usize = LANES.len() + MAX_REQUEST_CLASSES as usize;

/// Whether a class has a sequence that decodes in the step, or that its draft was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Absent,
    Decodes,
}

fn class_index(request: &GenerateRequest) -> usize {
    match request.class {
        None => lane_index(request.lane),
        Some(RequestClass(class)) => LANES.len() + usize::from(class),
    }
}

impl Speculator {
    pub fn new(proposer: Box<dyn Proposer>, limits: SpeculationLimits) -> Self {
        let cost = proposer.cost();
        let lanes = LANES.into_iter().map(SpeculationClass::Lane);
        let named = (0..MAX_REQUEST_CLASSES).map(|class| SpeculationClass::Named(RequestClass(class)));
        let classes = lanes.chain(named).map(|class| Class::new(class, cost, limits)).collect();
        Self { proposer, limits, classes, cost: StepCost::default(), under_way: None, changes: Vec::new(), error: None }
    }

    /// A step begins: the one before it took until now, if there was always work.
    pub fn begin(&mut self, now: Micros) {
        if let Some(step) = self.under_way.take() {
            self.cost.record(step.size, now.saturating_sub(step.started) as f64);
        }
    }

    /// The runner modelled the time of the step under way.
    pub fn modelled(&mut self, us: Micros) {
        if let Some(step) = self.under_way.take() {
            self.cost.record(step.size, us.saturating_add(step.proposer_us) as f64);
        }
    }

    /// The time until the next step will not tell how long this one took.
    pub fn idle(&mut self) {
        self.under_way = None;
    }

    /// Adds proposals to a step that is planned in all else.
    pub fn plan(&mut self, roster: &mut Roster, pool: &mut BlockPool, budget: &mut TokenBudget, now: Micros) {
        let (mut decodes, mut tokens) = (0, 0);
        for sequence in roster.running.values() {
            tokens += sequence.planned;
            decodes += usize::from(drafts(sequence));
        }
        let mut work = ProposalWork::default();
        let mut added = 0;
        if decodes > 0 && budget.left() > 0 {
            let size = StepSize { decodes, proposals: 0 };
            // Before the first plain step nothing is known of costs, and nothing is guessed.
            if let Some(around) = Surroundings::new(&self.cost, size, tokens) {
                self.reconsider(roster, &around);
                let proposals;
                (proposals, work) = self.propose(roster, budget.left(), &around);
                added = self.place(proposals, (roster, pool, budget), (size, tokens));
            }
        }
        // Prefills and catching up would blur what a decode costs.
        let pure = tokens == decodes && work.caught_up <= decodes * (self.limits.max_draft + 1);
        self.under_way = (decodes > 0 && pure).then(|| UnderWay {
            size: StepSize { decodes, proposals: added },
            started: now,
            proposer_us: work.modelled_us.unwrap_or(0),
        });
    }

    /// Looks at the classes of the sequences that decode anew.
    fn reconsider(&mut self, roster: &Roster, around: &Surroundings) {
        let mut present = [Presence::Absent; CLASSES];
        for sequence in roster.running.values().filter(|sequence| drafts(sequence)) {
            present[class_index(&sequence.request)] = Presence::Decodes;
        }
        for (class, _) in self.classes.iter_mut().zip(present).filter(|(_, present)| *present == Presence::Decodes) {
            if class.reconsider(around) {
                self.changes.push(SpeculationChange { figures: class.figures() });
            }
        }
    }

    /// Asks the proposer for all sequences for which an answer would be of use.
    fn propose(&mut self, roster: &Roster, room: usize, around: &Surroundings) -> (Vec<Proposal>, ProposalWork) {
        let (mut asks, mut owners) = (Vec::new(), Vec::new());
        let (mut left, mut probing) = (room, [Presence::Absent; CLASSES]);
        for (key, sequence) in roster.running.iter().filter(|(_, sequence)| drafts(sequence)) {
            let index = class_index(&sequence.request);
            let class = &self.classes[index];
            let most = self.limits.max_draft.min(sequence.most_proposals());
            let most = match self.proposer.cost() {
                ProposalCost::Free => {
                    let of_use = !class.is_cool() || !sequence.draft.is_watching() || class.probe_is_due();
                    if of_use { most } else { 0 }
                }
                ProposalCost::Model if class.is_on(Trust(0)) => class.best_length(Trust(0), most.min(left), around).0,
                ProposalCost::Model => {
                    let backlog = self.proposer.backlog(sequence.request.id, sequence.len());
                    let first = std::mem::replace(&mut probing[index], Presence::Decodes) == Presence::Absent;
                    let probe = class.probe_length(Trust(0), most.min(left), around);
                    probe.filter(|_| first && backlog <= class.interval()).unwrap_or(0)
                }
            };
            if most > 0 {
                left = match self.proposer.cost() {
                    ProposalCost::Free => left,
                    ProposalCost::Model => left - most,
                };
                asks.push(ask(sequence, most));
                owners.push((*key, index));
            }
        }
        if asks.is_empty() {
            return (Vec::new(), ProposalWork::default());
        }
        let work = match self.proposer.propose(&mut asks) {
            Ok(work) => work,
            Err(error) => {
                // The step goes on without guesses, and guesses that cannot be had count as wrong.
                self.error = Some(error);
                asks.iter()
                    .zip(&owners)
                    .for_each(|(ask, owner)| self.classes[owner.1].watched(ask.trust, (ask.most, 0)));
                return (Vec::new(), ProposalWork::default());
            }
        };
        let answers = asks.into_iter().zip(owners).filter(|(ask, _)| !ask.tokens.is_empty());
        let proposals = answers.map(|(ask, (key, class))| {
            let probe = self.classes[class].probe_length(ask.trust, ask.tokens.len(), around);
            Proposal { key, class, tokens: ask.tokens, trust: ask.trust, probe }
        });
        (proposals.collect(), work)
    }

    /// Gives proposals their tokens and pages, or has them watched. Returns the tokens that run.
    fn place(
        &mut self,
        proposals: Vec<Proposal>,
        (roster, pool, budget): (&mut Roster, &mut BlockPool, &mut TokenBudget),
        (mut size, tokens): (StepSize, usize),
    ) -> usize {
        let running = roster.running.len();
        let free = self.proposer.cost() == ProposalCost::Free;
        for Proposal { key, class, tokens: mut proposed, trust, probe } in proposals {
            let Some(sequence) = roster.running.get_mut(&key) else { continue };
            let class = &mut self.classes[class];
            let on = class.is_on(trust);
            let length = match (on, free) {
                (true, true) => Surroundings::new(&self.cost, size, tokens)
                    .map_or(0, |around| class.best_length(trust, proposed.len(), &around).0),
                (true, false) => proposed.len(),
                (false, _) => probe.filter(|_| class.probe_is_due()).unwrap_or(0),
            };
            let length = pages_for(sequence, (pool, running), length.min(proposed.len()).min(budget.left()));
            if length == 0 {
                if free && !sequence.draft.is_watching() {
                    sequence.draft.watch(proposed, trust);
                }
                continue;
            }
            if !on {
                class.probed();
            }
            proposed.truncate(length);
            size.proposals += budget.take(length);
            sequence.draft.run(proposed, trust);
        }
        size.proposals
    }

    /// `drawn` came out for a sequence whose `proposals` ran; they may be none.
    pub fn settle(&mut self, sequence: &mut Sequence, (proposals, drawn): (&[u32], &[u32]), stats: &mut StepStats) {
        let class = &mut self.classes[class_index(&sequence.request)];
        class.drew(drawn.len());
        for token in drawn {
            if let Some((trust, outcome)) = sequence.draft.drew(*token) {
                class.watched(trust, outcome);
            }
        }
        if proposals.is_empty() {
            return;
        }
        let right = proposals.iter().zip(drawn).take_while(|(proposed, drawn)| proposed == drawn).count();
        // Where the output ended on a right token, the rest was not decided.
        let decided = if right == drawn.len() { right } else { proposals.len() };
        stats.proposed_tokens += proposals.len() as u32;
        stats.accepted_tokens += right as u32;
        class.verified(sequence.draft.trust, (decided, right));
    }

    /// Drops what the proposer keeps of sequences that do not run.
    pub fn retain(&mut self, runs: &dyn Fn(SequenceId) -> bool) {
        self.proposer.retain(runs);
    }

    /// Classes that drew anything, with their figures.
    pub fn figures(&self) -> Vec<ClassFigures> {
        self.classes.iter().map(Class::figures).filter(|figures| figures.drawn > 0).collect()
    }

    /// Why the proposer failed in this step, if it did.
    pub fn take_error(&mut self) -> Option<RunnerError> {
        self.error.take()
    }

    pub fn take_changes(&mut self) -> Vec<SpeculationChange> {
        std::mem::take(&mut self.changes)
    }
}

/// Whether the sequence decodes in this step.
fn drafts(sequence: &Sequence) -> bool {
    sequence.planned == 1 && sequence.is_decoding()
}

fn ask(sequence: &Sequence, most: usize) -> Ask<'_> {
    Ask {
        id: sequence.request.id,
        prompt: &sequence.request.prompt,
        generated: &sequence.generated,
        draw: sequence.draw(),
        most,
        tokens: Vec::new(),
        trust: Trust::default(),
    }
}

/// Of `wanted` proposals, those whose positions have pages: held ones, promised ones, and free ones as long as every
/// running sequence could still take one.
fn pages_for(sequence: &mut Sequence, (pool, running): (&mut BlockPool, usize), wanted: usize) -> usize {
    let (len, block_size) = (sequence.len(), pool.block_size());
    let held = sequence.table.capacity(block_size);
    let promised = held + sequence.table.reserved() * block_size;
    let positions = if pool.available() > running { len + wanted } else { promised.min(len + wanted) };
    if sequence.table.grow_to(pool, positions).is_ok() {
        return positions - len;
    }
    sequence.table.capacity(block_size).min(positions) - len
}
