//! Which rows came in which epoch, as rows of `epochs` (SPEC X2).
//!
//! Invariant: the ranges of one dataflow are contiguous per topic: a row of a topic belongs to the epoch whose range holds it.
//! The first row of a dataflow has empty ranges and says where it began. Epochs without rows have none.
//! Cost: O(1) a batch; one row an epoch with rows. State: [`PENDING_MAX`] rows that the bus had no room for; at the bound the
//! oldest is given up, and a replay names the hole.

use std::collections::VecDeque;

use queries::Topic;

use crate::{
    bus::{Bus, Published},
    ids::Micros,
    rows::{EPOCH_TOPICS, EpochRow},
};

/// Rows kept while the bus is full; at the default epoch a minute and a half.
const PENDING_MAX: usize = 1024;

/// A further topic needs its range in the row (`EpochRow::ranges`) and here.
const _: () = assert!(super::feed::TOPICS.len() == EPOCH_TOPICS, "a range for each topic the dataflow reads");

/// See the module.
#[derive(Debug)]
pub struct EpochLog {
    bus: Bus,
    /// The open epoch's ranges; `epoch` and `at` are set when it closes.
    open: EpochRow,
    has_rows: bool,
    is_placed: [bool; EPOCH_TOPICS],
    pending: VecDeque<EpochRow>,
}

impl EpochLog {
    /// Of a dataflow whose epoch 0 starts at `flow_start`.
    pub fn start(bus: Bus, flow_start: Micros, epoch_us: i64) -> EpochLog {
        let open = EpochRow { at: flow_start, flow_start, epoch_us, ..EpochRow::default() };
        let mut log =
            EpochLog { bus, open, has_rows: false, is_placed: [false; EPOCH_TOPICS], pending: VecDeque::from([open]) };
        log.publish();
        log
    }

    /// A batch was handed on in the open epoch.
    pub fn came(&mut self, published: &Published) {
        let open = &mut self.open;
        let (place, from, to) = match published.topic {
            Topic::Requests => (0, &mut open.requests_from, &mut open.requests_to),
            Topic::EngineSteps => (1, &mut open.engine_steps_from, &mut open.engine_steps_to),
            Topic::KvEvents => (2, &mut open.kv_events_from, &mut open.kv_events_to),
            Topic::Decisions => (3, &mut open.decisions_from, &mut open.decisions_to),
            Topic::Instances => (4, &mut open.instances_from, &mut open.instances_to),
            Topic::Buckets => (5, &mut open.buckets_from, &mut open.buckets_to),
            _ => return,
        };
        if !std::mem::replace(&mut self.is_placed[place], true) {
            *from = published.first_row;
        }
        *to = published.first_row + published.batch.num_rows() as u64;
        self.has_rows = true;
    }

    /// The open epoch is `epoch`, and it ends.
    pub fn close(&mut self, epoch: u64, at: Micros) {
        if std::mem::replace(&mut self.has_rows, false) {
            if self.pending.len() == PENDING_MAX {
                self.pending.pop_front();
            }
            self.pending.push_back(EpochRow { at, epoch, ..self.open });
            self.open.requests_from = self.open.requests_to;
            self.open.engine_steps_from = self.open.engine_steps_to;
            self.open.kv_events_from = self.open.kv_events_to;
            self.open.decisions_from = self.open.decisions_to;
            self.open.instances_from = self.open.instances_to;
            self.open.buckets_from = self.open.buckets_to;
        }
        self.publish();
    }

    /// Epochs that may not be in the log yet, the open one, `epoch`, with its rows so far.
    pub fn unlogged(&self, epoch: u64) -> Vec<EpochRow> {
        let open = EpochRow { epoch, ..self.open };
        self.pending.iter().copied().chain(self.has_rows.then_some(open)).collect()
    }

    /// Never waits: the feeder empties a subscription of the same bus.
    fn publish(&mut self) {
        while let Some(row) = self.pending.front() {
            if self.bus.try_publish(*row).is_err() {
                return;
            }
            self.pending.pop_front();
        }
    }
}
