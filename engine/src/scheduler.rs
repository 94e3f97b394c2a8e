//! Who runs in this step (SPEC B7, B8): iteration-level continuous batching under a token budget.
//!
//! Order of a plan: one token for each decoding sequence of L1 and L2; then lane by lane the prefills under way and the
//! sequences that wait, whoever is due first, in chunks of what the budget leaves: a long prompt under way holds up no
//! short one with less time (A4 d). What prompts take of a step is bounded by tokens and, if asked for, by the step's
//! time (`step_pace`), and they wait a little for those that could not be whole in time beside them. Where the whole
//! batch would be too slow for somebody's deadline, those with the most time rest (`resting`). L3 comes last with its
//! decodes too, and a lane admits only while no higher lane waits: L3 fills idle capacity only. If pages run out in decode, the last in the order of service gives way, and nobody is admitted in
//! that step. A lane whose head doesn't fit waits; later ones don't slip past it.
//!
//! Invariants: a step plans at most `token_budget` tokens and runs at most `max_running` sequences; planned tokens have
//! blocks; a running prefill never lacks pages, because they were promised when it started.
//!
//! Cost of a step: O(n log n) for n sequences: each running one is visited a constant number of times, each admitted,
//! preempted or finished one costs O(log n), plus O(prefix) for the lookup of each admitted head and of one that
//! doesn't fit, plus the planned tokens. State: the sequences, bounded by `max_running + max_waiting`.

use std::ops::{Bound, RangeBounds};

use crate::{
    Micros,
    block_pool::BlockPool,
    block_table::{BlockTable, blocks_for},
    config::{EngineConfig, GrowthQuota},
    lanes::LANES,
    preemption::{GivingWay, HeldKv, cheaper_way, victim_for_lane, victim_for_pages},
    prefix_cache::{PrefixCache, PrefixMatch},
    request::Lane,
    resting::{Decoding, resting},
    roster::Roster,
    runner::{Batch, BatchSlot, RunnerShape, Transfer},
    running::RunKey,
    sequence::{FirstRun, Sequence},
    speculation::Speculator,
    step::StepStats,
    step_pace::StepPace,
    swap::{forget, swap_in, swap_out},
    token_budget::TokenBudget,
};

/// Prompts wait for the pace of others during so many of the longest steps after they came, at most.
const WAIT_STEPS: Micros = 10;

/// A step takes no more than this part of the time until a prompt must start.
const SLACK_PARTS: Micros = 4;

/// A prompt, or the rest of one, that is not computed yet.
struct Uncomputed {
    /// When it must start; `Micros::MIN`: it had started, and gave way.
    due: Micros,
    submitted: Micros,
    tokens: usize,
}

impl Uncomputed {
    /// It loses no more than half of its slack by a wait until `end`, and has not waited for so long yet.
    fn can_wait(&self, (now, end): (Micros, Micros), wait_max: Micros) -> bool {
        2 * (end - now) <= self.due.saturating_sub(now) && now - self.submitted < wait_max
    }
}

/// What one step runs: the batch, and the sequence behind each slot.
pub(crate) struct Plan {
    pub batch: Batch,
    pub keys: Vec<RunKey>,
    /// Rows of logits wanted.
    pub rows: usize,
    /// Copies to be done before the batch, in this order.
    pub transfers: Vec<Transfer>,
}

/// Whether a head could be let in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    Admitted,
    /// Somebody gave way; look again.
    Retry,
    Blocked,
}

/// See the file's header.
pub(crate) struct Scheduler {
    pub roster: Roster,
    pub pool: BlockPool,
    pub cache: PrefixCache,
    /// Figures of the step under way.
    pub stats: StepStats,
    /// Guesses tokens with what a step leaves; `None`: off.
    pub speculator: Option<Speculator>,
    config: EngineConfig,
    /// Copies decided in this step.
    transfers: Vec<Transfer>,
    pub pace: StepPace,
    /// Prefills under way, in order of service; found anew in each step.
    prefills: Vec<RunKey>,
    /// Decoding sequences that rest in this step, by key.
    resting: Vec<RunKey>,
    /// Slots of earlier batches, for their memory; at most `max_running`.
    spare: Vec<BatchSlot>,
}

impl Scheduler {
    /// `config` was validated against `shape`.
    pub fn new(config: EngineConfig, shape: &RunnerShape) -> Self {
        Self {
            roster: Roster::new(config.max_overtake_us),
            pool: BlockPool::new(shape.blocks, shape.block_size).with_l2(config.l2_blocks),
            cache: PrefixCache {
                mode: config.prefix_cache,
                max_prefix_tokens: config.max_prefix_tokens,
                min_match_tokens: config.min_match_tokens,
            },
            stats: StepStats::default(),
            speculator: None,
            config,
            transfers: Vec::new(),
            pace: StepPace::default(),
            prefills: Vec::new(),
            resting: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Plans a step and lends the block tables to its batch; [`Scheduler::take_back`] must follow.
    pub fn schedule(&mut self, now: Micros) -> Plan {
        let mut budget = TokenBudget::new(self.config.token_budget);
        self.roster.running.close_gaps();
        self.prefills.clear();
        self.resting = self.who_rests(now);
        let mut pages_ran_out = self.plan_decodes(Lane::L1..Lane::L3, now, &mut budget);
        let decoding = self.config.token_budget - budget.left();
        self.limit_prompts((now, decoding), &mut budget);
        for lane in LANES {
            if lane == Lane::L3 {
                pages_ran_out |= self.plan_decodes(Lane::L3..=Lane::L3, now, &mut budget);
            }
            let door = if pages_ran_out { Entry::Blocked } else { Entry::Retry };
            self.plan_prompts(lane, (now, door), &mut budget);
        }
        if let Some(speculator) = &mut self.speculator {
            speculator.plan(&mut self.roster, &mut self.pool, &mut budget, now);
        }
        self.assemble()
    }

    /// Decoding sequences that let others run in a shorter step.
    fn who_rests(&self, now: Micros) -> Vec<RunKey> {
        let Some(gap_us) = self.config.prefill_step_us else { return Vec::new() };
        if self.roster.running.values().all(|sequence| sequence.request.drop_at.is_none()) {
            return Vec::new();
        }
        let running = self.roster.running.iter().filter(|(_, sequence)| sequence.is_decoding());
        let decoding = |(key, sequence): (&RunKey, &Sequence)| {
            let needs_us = sequence.needed_pace(now);
            Decoding { key: *key, drew_at: sequence.drew_at, needs_us }
        };
        resting(&running.map(decoding).collect::<Vec<_>>(), gap_us, &self.pace)
    }

    /// Bounds what prompts take of a step in which so many decode: by `prefill_step_us`, by a part of the slack of the prompt that
    /// must start first, and by the pace that those who decode need to be whole before they are dropped. Where that leaves no room
    /// for a chunk, prompts wait if they can until the most urgent of those has ended. Else half of a step is for prompts: who would
    /// be late with that is not waited for, or one that is nearly late would hold up all prompts.
    fn limit_prompts(&mut self, (now, decoding): (Micros, usize), budget: &mut TokenBudget) {
        let Some(most) = self.config.prefill_step_us else { return };
        let Some(alone) = self.pace.decode_us(decoding) else { return };
        let prompts = self.uncomputed(now);
        if prompts.is_empty() {
            return;
        }
        let decoders = self.roster.running.values().filter(|sequence| sequence.is_decoding());
        let paced = |sequence: &Sequence| Some((sequence.needed_pace(now)?, sequence.request.drop_at?));
        let mut needed: Vec<(Micros, Micros)> = decoders.filter_map(paced).collect();
        needed.retain(|(us, _)| *us >= alone);
        needed.sort_unstable();
        let can_wait = |end: Micros| prompts.iter().all(|prompt| prompt.can_wait((now, end), WAIT_STEPS * most));
        let within = match needed.first() {
            Some((tightest, _)) if self.pace.has_room_for_prompts(decoding, *tightest) => *tightest,
            Some((_, end)) if can_wait(*end) => return budget.limit_prompts(0),
            _ => needed.iter().find(|(us, _)| *us >= 2 * alone).map_or(most, |(us, _)| *us),
        };
        let first = prompts.iter().filter(|prompt| prompt.due != Micros::MIN).min_by_key(|prompt| prompt.due);
        let slack = first.map_or(most, |first| (first.due - now).max(0) / SLACK_PARTS);
        let Some(tokens) = self.pace.prompt_tokens(decoding, within.min(slack).min(most)) else { return };
        // What must start first is not held up by its own haste.
        let own = first.map_or(0, |first| first.tokens);
        let own = self.pace.prompt_tokens(decoding, within.min(most)).map_or(0, |fits| own.min(fits));
        budget.limit_prompts(tokens.max(own));
    }

    /// Prompts that are not computed yet: those under way, and the next of each lane.
    fn uncomputed(&mut self, now: Micros) -> Vec<Uncomputed> {
        let head = |lane: &Lane| {
            let (key, head) = self.roster.head(*lane, now)?;
            Some(Uncomputed { due: key.due(), submitted: head.submitted, tokens: head.remaining() })
        };
        let mut prompts: Vec<Uncomputed> = LANES.iter().filter_map(head).collect();
        let waiting = self.roster.waiting();
        prompts.extend(self.roster.running.values().filter(|sequence| !sequence.is_decoding()).map(|sequence| {
            let due = waiting.due(sequence, now);
            Uncomputed { due, submitted: sequence.submitted, tokens: sequence.remaining() }
        }));
        prompts
    }

    /// One token for each decoding sequence of `lanes` that does not rest, in order of service; the others are noted as prefills. Where
    /// pages run out, the last in that order gives way; true if that happened.
    fn plan_decodes(&mut self, lanes: impl RangeBounds<Lane>, now: Micros, budget: &mut TokenBudget) -> bool {
        let before = self.stats.preempted;
        let mut place = match lanes.start_bound() {
            Bound::Included(first) => self.roster.running.first_of(*first),
            _ => 0,
        };
        while place < self.roster.running.places() {
            let Some((key, sequence)) = self.roster.running.at(place) else {
                place += 1;
                continue;
            };
            if !lanes.contains(&key.lane) {
                break;
            }
            if !sequence.is_decoding() {
                self.prefills.push(key);
            } else if self.resting.binary_search(&key).is_ok() {
                // It keeps its pages.
            } else if sequence.table.grow_to(&mut self.pool, sequence.len()).is_ok() {
                sequence.planned = budget.take(1);
                sequence.drew_at = now;
            } else {
                let victim = victim_for_pages(&self.roster).expect("invariant: somebody runs");
                self.interrupt(victim, budget);
                continue;
            }
            place += 1;
        }
        self.stats.preempted > before
    }

    /// Chunks of the prefills of `lane` under way and of sequences that wait in it, whoever is due first, while the budget
    /// lasts. Nobody is let in through a blocked `door`, or while a higher lane waits.
    fn plan_prompts(&mut self, lane: Lane, (now, door): (Micros, Entry), budget: &mut TokenBudget) {
        let higher_waits = LANES.iter().any(|other| *other < lane && self.roster.waiting().lane_len(*other) > 0);
        let mut door = if higher_waits { Entry::Blocked } else { door };
        let mut under_way = self.prefills_by_due(lane, now).into_iter().peekable();
        while budget.left_for_prompts() > 0 {
            let head = (door != Entry::Blocked).then(|| self.roster.head(lane, now)).flatten();
            let head_due = head.map(|(key, _)| key.due());
            match (under_way.peek(), head_due) {
                (Some((due, _)), head_due) if head_due.is_none_or(|head_due| *due <= head_due) => {
                    let (_, key) = under_way.next().expect("invariant: it was looked at");
                    // It may have given way since.
                    if let Some(sequence) = self.roster.running.get_mut(&key) {
                        plan_chunk(sequence, &mut self.pool, budget);
                    }
                }
                (_, Some(_)) => door = self.admit_head(lane, now, budget),
                (_, None) => return,
            }
        }
    }

    /// The prefills of `lane` under way with when they are due, first things first; equals in the order of service.
    fn prefills_by_due(&self, lane: Lane, now: Micros) -> Vec<(Micros, RunKey)> {
        let of_lane = self.prefills.iter().filter(|key| key.lane == lane);
        let waiting = self.roster.waiting();
        let due = |key: &RunKey| Some((waiting.due(self.roster.running.get(key)?, now), *key));
        let mut prefills: Vec<_> = of_lane.filter_map(due).collect();
        prefills.sort_unstable();
        prefills
    }

    fn admit_head(&mut self, lane: Lane, now: Micros, budget: &mut TokenBudget) -> Entry {
        if self.roster.running.len() >= self.config.max_running {
            return if self.roster.waiting().lane_len(lane) > 0 { self.displace(lane, budget) } else { Entry::Blocked };
        }
        let Some((key, head)) = self.roster.head(lane, now) else { return Entry::Blocked };
        let found = self.cache.find(&self.pool, &head.prefix_query(), self.config.swap_rates.least_part());
        let fresh = pages_to_promise(head, self.config.growth_quota, self.pool.block_size()) - found.blocks.len();
        let admitted = BlockTable::admit(&mut self.pool, &found.blocks, fresh);
        let Ok(table) = admitted else { return self.displace(lane, budget) };
        let mut sequence = self.roster.leave_lane(lane, &key);
        sequence.table = table;
        self.start_on(&mut sequence, &found);
        self.note_first_run(&mut sequence, now);
        plan_chunk(&mut sequence, &mut self.pool, budget);
        self.roster.run(sequence);
        Entry::Admitted
    }

    /// Starts a sequence on the KV that is there: whole blocks, and behind them its own from L2 or a part of a block.
    fn start_on(&mut self, sequence: &mut Sequence, found: &PrefixMatch) {
        let block_size = self.pool.block_size();
        sequence.computed = found.blocks.len() * block_size;
        if let Some(swapped) = sequence.swapped.as_ref().filter(|swapped| swapped.tokens > sequence.computed) {
            let full = (swapped.tokens / block_size).min(sequence.hashes.len());
            let (last, tokens) = (full.checked_sub(1).map(|last| sequence.hashes[last]), swapped.tokens);
            if let Some(hash) = last {
                self.pool.note_l2_hit(hash, tokens);
            }
            let copied = swap_in(sequence, found.blocks.len(), &mut self.pool, &mut self.transfers);
            self.stats.swapped_in_blocks += copied as u32;
            return;
        }
        forget(sequence, &mut self.pool);
        let last = found.part.map(|(block, _)| block).or(found.blocks.last().copied());
        if let Some(block) = last {
            self.pool.note_hit(block, found.tokens(block_size));
        }
        if let Some((from, shared)) = found.part {
            let positions = sequence.computed + shared;
            sequence.table.grow_to(&mut self.pool, positions).expect("invariant: pages for known tokens were promised");
            let to = sequence.table.blocks().last().expect("invariant: the table has grown");
            // The page taken may be the very one, evicted: then its content is there already.
            if to != from {
                self.transfers.push(Transfer::Copy { from: from.0, to: to.0 });
                self.stats.copied_blocks += 1;
            }
            sequence.computed = positions;
        }
    }

    fn note_first_run(&mut self, sequence: &mut Sequence, at: Micros) {
        if sequence.first_run.is_none() {
            let cached_tokens = sequence.computed;
            sequence.first_run = Some(FirstRun { at, cached_tokens });
            self.stats.cached_tokens += cached_tokens as u32;
            self.stats.scheduled_prompt_tokens += sequence.request.prompt.len() as u32;
        }
    }

    fn displace(&mut self, lane: Lane, budget: &mut TokenBudget) -> Entry {
        match victim_for_lane(&self.roster, lane, self.config.lane_preemption) {
            Some(victim) => {
                self.interrupt(victim, budget);
                Entry::Retry
            }
            None => Entry::Blocked,
        }
    }

    fn interrupt(&mut self, victim: RunKey, budget: &mut TokenBudget) {
        let mut sequence = self.roster.stop(victim);
        budget.give_back(sequence.planned);
        let tokens = sequence.computed;
        let blocks = blocks_for(tokens, self.pool.block_size());
        let held = HeldKv { tokens, blocks, l2_free: self.pool.l2_free() };
        if cheaper_way(self.config.swap_rates, held) == GivingWay::Swap {
            swap_out(&mut sequence, &mut self.pool, &mut self.transfers);
            self.stats.swapped += 1;
            self.stats.swapped_out_blocks += blocks as u32;
        }
        self.roster.interrupt(sequence, &mut self.pool);
        self.stats.preempted += 1;
    }

    fn assemble(&mut self) -> Plan {
        let most = self.roster.running.len();
        let batch = Batch { slots: Vec::with_capacity(most) };
        let transfers = std::mem::take(&mut self.transfers);
        let mut plan = Plan { batch, keys: Vec::with_capacity(most), rows: 0, transfers };
        for (key, sequence) in self.roster.running.iter_mut().filter(|(_, sequence)| sequence.planned > 0) {
            let mut slot = self.spare.pop().unwrap_or_else(empty_slot);
            slot.sequence = sequence.request.id;
            slot.tokens.clear();
            sequence.planned_tokens(&mut slot.tokens);
            slot.position = sequence.computed;
            slot.blocks = sequence.table.lend();
            slot.wants_logits = sequence.draws_in_this_step();
            slot.tokens.extend_from_slice(&sequence.draft.proposals);
            slot.proposed = sequence.draft.proposals.len();
            plan.rows += slot.logit_rows();
            if sequence.is_decoding() {
                self.stats.decode_tokens += 1;
            } else {
                self.stats.prefill_tokens += sequence.planned as u32;
            }
            plan.batch.slots.push(slot);
            plan.keys.push(*key);
        }
        plan
    }

    /// Puts the block tables back that `schedule` lent, now that the runner has what it needs of the batch, and does
    /// what of the next step needs no results of this one: pages for the decodes to come. Takes only what is free; if
    /// pages lack, the next `schedule` decides who gives way.
    pub fn take_back(&mut self, batch: Batch) {
        let mut pages_left = true;
        for (mut slot, sequence) in batch.slots.into_iter().zip(planned(&mut self.roster)) {
            sequence.table.put_back(std::mem::take(&mut slot.blocks));
            self.spare.push(slot);
            let positions = sequence.len() + 1;
            if pages_left && sequence.draws_in_this_step() && positions <= sequence.most_positions() {
                pages_left = sequence.table.grow_to(&mut self.pool, positions).is_ok();
            }
        }
    }

    /// Copies to or from L2 failed: nothing there is to be trusted.
    pub fn forget_swapped(&mut self) {
        self.roster.forget_swapped(&mut self.pool);
    }

    /// The figures of the step that ends, and a clean sheet for the next.
    pub fn close_stats(&mut self) -> StepStats {
        let figures = self.pool.figures();
        let running = self.roster.running.values();
        let (mut queued, mut context) = (self.roster.waiting().tokens(), 0);
        for sequence in running {
            context += sequence.computed;
            queued += if sequence.is_decoding() { 0 } else { sequence.remaining() };
        }
        StepStats {
            running: self.roster.running.len() as u32,
            waiting: self.roster.waiting().len() as u32,
            queued_prefill_tokens: queued as u32,
            context_tokens: context as u32,
            l2_blocks_used: self.pool.l2_used() as u32,
            blocks_used: figures.used as u32,
            blocks_cached: figures.cached as u32,
            blocks_total: figures.total as u32,
            ..std::mem::take(&mut self.stats)
        }
    }
}

/// The sequences of the step under way, in the order of its batch.
pub(crate) fn planned(roster: &mut Roster) -> impl Iterator<Item = &mut Sequence> {
    roster.running.values_mut().filter(|sequence| sequence.planned > 0)
}

/// Plans as much of what remains as the budget has, and sees to its blocks.
fn plan_chunk(sequence: &mut Sequence, pool: &mut BlockPool, budget: &mut TokenBudget) {
    sequence.planned = budget.take_for_prompt(sequence.remaining());
    let positions = sequence.computed + sequence.planned;
    sequence.table.grow_to(pool, positions).expect("invariant: a prefill's pages were promised when it started");
}

/// Pages for what is known and for the growth that the quota covers, matched ones included.
fn pages_to_promise(sequence: &Sequence, quota: GrowthQuota, block_size: usize) -> usize {
    let positions = match quota {
        GrowthQuota::Full => sequence.most_positions(),
        GrowthQuota::Tokens(growth) => sequence.len().saturating_add(growth).min(sequence.most_positions()),
    };
    blocks_for(positions.max(sequence.len()), block_size)
}

fn empty_slot() -> BatchSlot {
    BatchSlot {
        sequence: crate::request::SequenceId(0),
        tokens: Vec::new(),
        position: 0,
        blocks: Vec::new(),
        wants_logits: false,
        proposed: 0,
    }
}
