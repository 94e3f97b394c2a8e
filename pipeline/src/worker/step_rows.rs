//! Step reports as rows of the bus: one `engine_steps` row a step, one `kv_events` row a change or use of the prefix cache,
//! one `speculation` row a class that was switched on or off. What is told again or anew when asked (`kv_account`) goes the
//! same way, in its place among the events.
//!
//! Invariant: `kv_events.seq` counts from 1 without gaps in an incarnation, so a reader that sees a gap knows its view is
//! incomplete (SPEC C4). Cost: two small allocations a KV event. State: one counter, and the newest rows (`kv_account`).

use engine::{
    events::{HeldBlock, KvEvent, Level},
    request::{Lane, RequestClass},
    speculation::report::{SpeculationChange, SpeculationClass, SpeculationState},
    step::StepStats,
};

use operators::ReplayWant;

use super::kv_account::{self, KeptRows};
use crate::{
    gateway::instances::KvAsk,
    ids::{InstanceId, Micros, ProcessEpoch},
    policy::Tier,
    rows::{EngineStepRow, KvEventRow, SpeculationRow},
};

/// Takes what a step did. Called on the engine thread, so it must not wait.
pub trait StepSink: Send {
    /// `at` is the end of the step, `step_us` its duration.
    fn step(&mut self, at: Micros, step_us: i64, stats: StepStats, events: Vec<KvEvent>);
    /// Answers a question about KV blocks, after the events since the last step; `held` lists those the engine has, of so many
    /// tokens each. Gives the rows told.
    fn tell(&mut self, at: Micros, question: (KvAsk, Vec<KvEvent>), held: &dyn Fn() -> (Vec<HeldBlock>, u32)) -> usize;
    /// Takes what the step at `at` switched.
    fn speculation(&mut self, at: Micros, changes: Vec<SpeculationChange>);
}

/// Where rows go. Must not wait: an implementation drops and counts at its bound.
pub trait RowOutlet: Send + Sync {
    fn engine_step(&self, row: EngineStepRow);
    fn kv_events(&self, rows: Vec<KvEventRow>);
    /// An answer may be given: fewer KV rows wait than the bound.
    fn kv_has_room(&self) -> bool;
    /// Takes an answer, which may pass the bound: it is told as a whole or not at all.
    fn kv_account(&self, rows: Vec<KvEventRow>);
    fn speculation(&self, row: SpeculationRow);
}

/// Turns step reports of one incarnation into rows.
pub struct StepRows<O> {
    instance: InstanceId,
    epoch: ProcessEpoch,
    kv_seq: u64,
    kept: KeptRows,
    /// The number of the last event when sums were last told.
    summed: Option<u64>,
    outlet: O,
}

impl<O: RowOutlet> StepRows<O> {
    pub fn new(instance: InstanceId, epoch: ProcessEpoch, outlet: O) -> Self {
        StepRows { instance, epoch, kv_seq: 0, kept: KeptRows::default(), summed: None, outlet }
    }

    fn events(&mut self, at: Micros, events: Vec<KvEvent>) {
        let rows: Vec<KvEventRow> = events.into_iter().map(|event| self.kv_row(at, event)).collect();
        if !rows.is_empty() {
            self.kept.keep(&rows);
            self.outlet.kv_events(rows);
        }
    }

    /// Numbers rows of the instance.
    fn number(&mut self, at: Micros, rows: Vec<KvEventRow>) -> Vec<KvEventRow> {
        let (instance, epoch) = (self.instance.0, self.epoch.0);
        let numbered = rows.into_iter().map(|row| {
            self.kv_seq += 1;
            KvEventRow { at, instance, epoch, seq: self.kv_seq, ..row }
        });
        numbered.collect()
    }

    fn kv_row(&mut self, at: Micros, event: KvEvent) -> KvEventRow {
        self.kv_seq += 1;
        let mut row = KvEventRow {
            at,
            instance: self.instance.0,
            epoch: self.epoch.0,
            seq: self.kv_seq,
            ..KvEventRow::default()
        };
        match event {
            KvEvent::Stored { hash, parent, level, tokens } => {
                row.event = "stored".into();
                row.block_hash = Some(hash.0);
                row.parent_hash = parent.map(|hash| hash.0);
                row.level = Some(level_name(level).into());
                row.tokens = Some(tokens);
            }
            KvEvent::Hit { hash, level, tokens } => {
                row.event = "hit".into();
                row.block_hash = Some(hash.0);
                row.level = Some(level_name(level).into());
                row.tokens = Some(tokens);
            }
            KvEvent::Removed { hash, level } => {
                row.event = "removed".into();
                row.block_hash = Some(hash.0);
                row.level = Some(level_name(level).into());
            }
            KvEvent::Cleared => row.event = "cleared".into(),
        }
        row
    }
}

impl<O: RowOutlet> StepSink for StepRows<O> {
    fn step(&mut self, at: Micros, step_us: i64, stats: StepStats, events: Vec<KvEvent>) {
        self.events(at, events);
        self.outlet.engine_step(EngineStepRow {
            at,
            instance: self.instance.0,
            epoch: self.epoch.0,
            step: stats.step,
            step_us,
            prefill_tokens: stats.prefill_tokens,
            decode_tokens: stats.decode_tokens,
            running: stats.running,
            waiting: stats.waiting,
            preempted: stats.preempted,
            cached_tokens: stats.cached_tokens,
            scheduled_prompt_tokens: stats.scheduled_prompt_tokens,
            queued_prefill_tokens: stats.queued_prefill_tokens,
            context_tokens: stats.context_tokens,
            blocks_used: stats.blocks_used,
            blocks_cached: stats.blocks_cached,
            blocks_total: stats.blocks_total,
            proposed_tokens: stats.proposed_tokens,
            accepted_tokens: stats.accepted_tokens,
            swapped: stats.swapped,
            swapped_out_blocks: stats.swapped_out_blocks,
            swapped_in_blocks: stats.swapped_in_blocks,
            copied_blocks: stats.copied_blocks,
            l2_blocks_used: stats.l2_blocks_used,
        });
    }

    fn tell(
        &mut self,
        at: Micros,
        (ask, events): (KvAsk, Vec<KvEvent>),
        held: &dyn Fn() -> (Vec<HeldBlock>, u32),
    ) -> usize {
        self.events(at, events);
        // Nothing has happened since: the same sums would be told.
        if ask == KvAsk::Sums && self.summed == Some(self.kv_seq) {
            return 0;
        }
        let again = match ask {
            KvAsk::Again(ReplayWant::Events { from_seq, to_seq }) => self.kept.between(from_seq, to_seq),
            KvAsk::Sums | KvAsk::Again(_) => None,
        };
        // An answer that is not given is asked for again.
        if !self.outlet.kv_has_room() {
            return 0;
        }
        let rows = again.unwrap_or_else(|| {
            let (held, tokens) = held();
            let rows = match ask {
                KvAsk::Sums => kv_account::sums(&held),
                KvAsk::Again(ReplayWant::Buckets { mask }) => kv_account::listed(&held, tokens, mask),
                KvAsk::Again(ReplayWant::Everything | ReplayWant::Events { .. }) => {
                    kv_account::everything(&held, tokens)
                }
            };
            self.number(at, rows)
        });
        if ask == KvAsk::Sums {
            self.kept.keep(&rows);
            self.summed = Some(self.kv_seq);
        }
        let told = rows.len();
        self.outlet.kv_account(rows);
        told
    }

    fn speculation(&mut self, at: Micros, changes: Vec<SpeculationChange>) {
        for SpeculationChange { figures } in changes {
            self.outlet.speculation(SpeculationRow {
                at,
                instance: self.instance.0,
                epoch: self.epoch.0,
                class: class_name(figures.class),
                state: match figures.state {
                    SpeculationState::Active => "active".into(),
                    SpeculationState::Cool => "cool".into(),
                },
                predicted_gain: figures.predicted_gain,
                drawn: figures.drawn,
                proposed: figures.proposed,
                accepted: figures.accepted,
            });
        }
    }
}

fn class_name(class: SpeculationClass) -> String {
    match class {
        SpeculationClass::Lane(Lane::L1) => "L1".into(),
        SpeculationClass::Lane(Lane::L2) => "L2".into(),
        SpeculationClass::Lane(Lane::L3) => "L3".into(),
        // The gateway names the tier.
        SpeculationClass::Named(RequestClass(number)) => {
            Tier::of_number(number).map_or(number.to_string(), |tier| tier.name().into())
        }
    }
}

pub(super) fn level_name(level: Level) -> &'static str {
    match level {
        Level::L1 => "L1",
        Level::L2 => "L2",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use engine::events::BlockHash;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<(Vec<EngineStepRow>, Vec<KvEventRow>)>);

    impl RowOutlet for &Kept {
        fn engine_step(&self, row: EngineStepRow) {
            self.0.lock().unwrap().0.push(row);
        }
        fn kv_events(&self, rows: Vec<KvEventRow>) {
            self.0.lock().unwrap().1.extend(rows);
        }
        fn kv_has_room(&self) -> bool {
            true
        }
        fn kv_account(&self, rows: Vec<KvEventRow>) {
            self.kv_events(rows);
        }
        fn speculation(&self, _: SpeculationRow) {}
    }

    fn held(hash: u64, parent: Option<u64>, level: Level) -> HeldBlock {
        HeldBlock { hash: BlockHash(hash), parent: parent.map(BlockHash), level }
    }

    /// Scenario: two events; then they are asked for again, sums twice, a bucket, events that never were.
    /// Guarantees: the same rows again; sums once, as nothing happened since; the bucket's blocks behind their number;
    /// everything for what is not kept. All but what is told again has numbers of its own, without gaps.
    #[test]
    fn asked_workers_tell_again_or_anew() {
        let kept = Kept::default();
        let mut rows = StepRows::new(InstanceId(3), ProcessEpoch(9), &kept);
        let stored = |hash| KvEvent::Stored { hash: BlockHash(hash), parent: None, level: Level::L1, tokens: 16 };
        rows.step(10, 5, StepStats::default(), vec![stored(1), stored(2)]);
        let (low, high) = (1, u64::MAX);
        let blocks = || (vec![held(low, None, Level::L1), held(high, Some(low), Level::L2)], 16);
        let mut tell = |ask| rows.tell(20, (ask, Vec::new()), &blocks);
        let again = |from_seq, to_seq| KvAsk::Again(ReplayWant::Events { from_seq, to_seq });
        assert_eq!((tell(again(1, 2)), tell(KvAsk::Sums), tell(KvAsk::Sums)), (2, 16, 0));
        assert_eq!((tell(KvAsk::Again(ReplayWant::Buckets { mask: 1 << 15 })), tell(again(500, 600))), (2, 3));
        let (_, told) = &*kept.0.lock().unwrap();
        assert_eq!(told.iter().map(|row| row.seq).collect::<Vec<_>>(), [vec![1, 2, 1, 2], (3..=23).collect()].concat());
        assert_eq!(told[..2], told[2..4]);
        let sums = &told[4..20];
        assert_eq!(sums.iter().map(|row| row.blocks.unwrap()).sum::<u32>(), 2);
        assert_eq!((sums[0].block_hash, sums[15].block_hash), (Some(low), Some(high.wrapping_mul(3))));
        assert_eq!((told[20].event.as_str(), told[20].bucket, told[20].blocks), ("listed", Some(15), Some(1)));
        assert_eq!((told[21].block_hash, told[21].level.as_deref()), (Some(high), Some("L2")));
        let names: Vec<_> = told[22..].iter().map(|row| (row.event.as_str(), row.parent_hash)).collect();
        assert_eq!(names, [("cleared", None), ("stored", None), ("stored", Some(low))]);
    }

    /// Scenario: three steps with two, none and three KV events. Guarantees: `seq` runs 1 to 5 without a gap over steps,
    /// and every event keeps its hash, parent and level.
    #[test]
    fn kv_events_are_numbered_without_gaps() {
        let kept = Kept::default();
        let mut rows = StepRows::new(InstanceId(3), ProcessEpoch(9), &kept);
        let stored = |hash, parent: Option<u64>| KvEvent::Stored {
            hash: BlockHash(hash),
            parent: parent.map(BlockHash),
            level: Level::L1,
            tokens: 16,
        };
        rows.step(10, 5, StepStats::default(), vec![stored(1, None), stored(2, Some(1))]);
        rows.step(20, 5, StepStats::default(), Vec::new());
        let removed = KvEvent::Removed { hash: BlockHash(2), level: Level::L2 };
        rows.step(
            30,
            7,
            StepStats { step: 3, ..StepStats::default() },
            vec![removed, KvEvent::Cleared, stored(u64::MAX, None)],
        );

        let (steps, events) = &*kept.0.lock().unwrap();
        assert_eq!(events.iter().map(|e| e.seq).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert_eq!(
            events.iter().map(|e| e.event.as_str()).collect::<Vec<_>>(),
            ["stored", "stored", "removed", "cleared", "stored"]
        );
        assert_eq!((events[1].block_hash, events[1].parent_hash, events[1].tokens), (Some(2), Some(1), Some(16)));
        assert_eq!((events[2].level.as_deref(), events[3].block_hash), (Some("L2"), None));
        assert_eq!(events[4].block_hash, Some(u64::MAX));
        assert_eq!(steps.iter().map(|s| (s.at, s.step_us)).collect::<Vec<_>>(), [(10, 5), (20, 5), (30, 7)]);
        assert!(events.iter().all(|e| e.instance == 3 && e.epoch == 9));
    }
}
