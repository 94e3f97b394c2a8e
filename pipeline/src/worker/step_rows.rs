//! Step reports as rows of the bus: one `engine_steps` row a step, one `kv_events` row a change or use of the prefix cache,
//! one `speculation` row a class that was switched on or off.
//!
//! Invariant: `kv_events.seq` counts from 1 without gaps in an incarnation, so a reader that sees a gap knows its view is
//! incomplete (SPEC C4). Cost: one small allocation a KV event. State: one counter.

use engine::{
    events::{KvEvent, Level},
    request::{Lane, RequestClass},
    speculation::report::{SpeculationChange, SpeculationClass, SpeculationState},
    step::StepStats,
};

use crate::{
    ids::{InstanceId, Micros, ProcessEpoch},
    policy::Tier,
    rows::{EngineStepRow, KvEventRow, SpeculationRow},
};

/// Takes what a step did. Called on the engine thread, so it must not wait.
pub trait StepSink: Send {
    /// `at` is the end of the step, `step_us` its duration.
    fn step(&mut self, at: Micros, step_us: i64, stats: StepStats, events: Vec<KvEvent>);
    /// Takes what the step at `at` switched.
    fn speculation(&mut self, at: Micros, changes: Vec<SpeculationChange>);
}

/// Where rows go. Must not wait: an implementation drops and counts at its bound.
pub trait RowOutlet: Send + Sync {
    fn engine_step(&self, row: EngineStepRow);
    fn kv_events(&self, rows: Vec<KvEventRow>);
    fn speculation(&self, row: SpeculationRow);
}

/// Turns step reports of one incarnation into rows.
pub struct StepRows<O> {
    instance: InstanceId,
    epoch: ProcessEpoch,
    kv_seq: u64,
    outlet: O,
}

impl<O: RowOutlet> StepRows<O> {
    pub fn new(instance: InstanceId, epoch: ProcessEpoch, outlet: O) -> Self {
        StepRows { instance, epoch, kv_seq: 0, outlet }
    }

    fn kv_row(&mut self, at: Micros, event: KvEvent) -> KvEventRow {
        self.kv_seq += 1;
        let mut row = KvEventRow {
            at,
            instance: self.instance.0,
            epoch: self.epoch.0,
            seq: self.kv_seq,
            event: String::new(),
            block_hash: None,
            parent_hash: None,
            level: None,
            tokens: None,
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
        let rows: Vec<KvEventRow> = events.into_iter().map(|event| self.kv_row(at, event)).collect();
        if !rows.is_empty() {
            self.outlet.kv_events(rows);
        }
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

fn level_name(level: Level) -> &'static str {
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
        fn speculation(&self, _: SpeculationRow) {}
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
