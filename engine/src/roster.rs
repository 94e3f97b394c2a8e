//! Who is in the engine and in which state: waiting in a lane, or running with KV.
//!
//! Invariant: a sequence is in exactly one place, and `places` says which; only running sequences hold blocks. Running
//! ones are ordered by lane, then arrival: the order of service, and from its end the order in which they give way
//! (SPEC B8).
//!
//! Cost: O(log n) a move. Memory: a map entry a sequence. Bounds: `max_running` and `max_waiting`, held by the
//! scheduler and `submit`.

use std::collections::{BTreeSet, HashMap};

use crate::{
    Micros,
    block_pool::{BlockId, BlockPool},
    lanes::{WaitKey, WaitingLanes},
    request::{Lane, SequenceId},
    running::{RunKey, Running},
    sequence::{Arrival, Sequence},
    swap,
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Waiting(Lane, WaitKey),
    Running(RunKey),
}

/// See the file's header.
pub(crate) struct Roster {
    waiting: WaitingLanes,
    pub running: Running,
    places: HashMap<SequenceId, Place>,
    /// Marked by `cancel`, removed at the next step; at most one entry a sequence.
    cancelled: Vec<SequenceId>,
    /// Those that are to be dropped at some time.
    drops: BTreeSet<(Micros, SequenceId)>,
    arrivals: u64,
}

impl Roster {
    pub fn new(max_overtake: Micros) -> Self {
        Self {
            waiting: WaitingLanes::new(max_overtake),
            running: Running::default(),
            places: HashMap::new(),
            cancelled: Vec::new(),
            drops: BTreeSet::new(),
            arrivals: 0,
        }
    }

    pub fn contains(&self, id: SequenceId) -> bool {
        self.places.contains_key(&id)
    }

    pub fn is_running(&self, id: SequenceId) -> bool {
        matches!(self.places.get(&id), Some(Place::Running(_)))
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub fn waiting(&self) -> &WaitingLanes {
        &self.waiting
    }

    pub fn next_arrival(&mut self) -> Arrival {
        self.arrivals += 1;
        Arrival(self.arrivals)
    }

    /// Adds a sequence, or one back that gave way. It holds no blocks.
    pub fn wait(&mut self, sequence: Box<Sequence>) {
        debug_assert_eq!(sequence.computed, 0);
        let (id, lane) = (sequence.request.id, sequence.lane());
        self.drops.extend(sequence.request.drop_at.map(|at| (at, id)));
        let key = self.waiting.push(sequence);
        self.places.insert(id, Place::Waiting(lane, key));
    }

    /// The next of `lane`.
    pub fn head(&mut self, lane: Lane, now: Micros) -> Option<(WaitKey, &Sequence)> {
        let Self { waiting, places, .. } = self;
        waiting.head(lane, now, |sequence, key| {
            places.insert(sequence.request.id, Place::Waiting(lane, key));
        })
    }

    /// Takes a sequence out of its lane to run it; [`Roster::run`] must follow.
    pub fn leave_lane(&mut self, lane: Lane, key: &WaitKey) -> Box<Sequence> {
        self.waiting.remove(lane, key).expect("invariant: the head of a lane is in it")
    }

    pub fn run(&mut self, sequence: Box<Sequence>) {
        let key = RunKey { lane: sequence.lane(), arrival: sequence.arrival };
        self.places.insert(sequence.request.id, Place::Running(key));
        self.running.insert(key, sequence);
    }

    /// Takes a running sequence out to let it give way; [`Roster::interrupt`] must follow.
    pub fn stop(&mut self, key: RunKey) -> Box<Sequence> {
        self.running.remove(&key).expect("invariant: the victim runs")
    }

    /// A sequence gives way: its blocks go back and it waits, before all fresh ones of its lane.
    pub fn interrupt(&mut self, mut sequence: Box<Sequence>, pool: &mut BlockPool) {
        sequence.table.release(pool);
        sequence.computed = 0;
        sequence.planned = 0;
        sequence.preemptions += 1;
        self.wait(sequence);
    }

    /// Marks a sequence for removal at the next step.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let sequence = match self.places.get(&id) {
            None => return false,
            Some(Place::Waiting(lane, key)) => self.waiting.get_mut(*lane, key),
            Some(Place::Running(key)) => self.running.get_mut(key),
        };
        let sequence = sequence.expect("invariant: a sequence is where its place says");
        if !std::mem::replace(&mut sequence.cancelled, true) {
            self.cancelled.push(id);
        }
        true
    }

    /// Removes all sequences marked by `cancel`, with their KV.
    pub fn take_cancelled(&mut self, pool: &mut BlockPool) -> Vec<Sequence> {
        let ids = std::mem::take(&mut self.cancelled);
        ids.into_iter().filter_map(|id| self.remove(id, pool)).map(|sequence| *sequence).collect()
    }

    /// Removes all sequences whose time to be dropped has come, with their KV.
    pub fn take_late(&mut self, now: Micros, pool: &mut BlockPool) -> Vec<Sequence> {
        let mut late = Vec::new();
        while let Some((_, id)) = self.drops.first().copied().filter(|(at, _)| *at <= now) {
            late.extend(self.remove(id, pool).map(|sequence| *sequence));
        }
        late
    }

    /// Removes a sequence and gives its blocks back.
    pub fn remove(&mut self, id: SequenceId, pool: &mut BlockPool) -> Option<Box<Sequence>> {
        let mut sequence = match self.places.remove(&id)? {
            Place::Waiting(lane, key) => self.waiting.remove(lane, &key),
            Place::Running(key) => self.running.remove(&key),
        }?;
        if let Some(at) = sequence.request.drop_at {
            self.drops.remove(&(at, id));
        }
        sequence.table.release(pool);
        swap::forget(&mut sequence, pool);
        Some(sequence)
    }

    /// Waiting sequences give back what they have in L2; they will be recomputed.
    pub fn forget_swapped(&mut self, pool: &mut BlockPool) {
        self.waiting.for_each_mut(|sequence| swap::forget(sequence, pool));
    }

    /// What a leak can't hide from, in O(running): as many references and promises as the tables hold. For debug builds.
    pub fn check_sums(&self, pool: &BlockPool) -> Result<(), String> {
        let tables = || self.running.values().map(|sequence| &sequence.table);
        let held = tables().map(|table| table.len()).sum();
        pool.check_sums(held, tables().map(|table| table.reserved()).sum())
    }

    /// Checks places, and the pool against the tables of running sequences. For debug builds and tests.
    pub fn check_invariants(&self, pool: &BlockPool) -> Result<(), String> {
        for (lane, key, sequence) in self.waiting.iter() {
            let id = sequence.request.id;
            if self.places.get(&id) != Some(&Place::Waiting(lane, *key)) {
                return Err(format!("{id:?} waits in {lane:?} and its place says otherwise"));
            }
            if sequence.table.blocks().next().is_some() || sequence.table.reserved() > 0 {
                return Err(format!("{id:?} waits and holds blocks"));
            }
        }
        for (key, sequence) in self.running.iter() {
            let id = sequence.request.id;
            if self.places.get(&id) != Some(&Place::Running(*key)) {
                return Err(format!("{id:?} runs and its place says otherwise"));
            }
            let (blocks, computed) = (sequence.table.blocks().count(), sequence.computed);
            if blocks * pool.block_size() < computed {
                return Err(format!("{id:?} has KV of {computed} tokens in {blocks} blocks"));
            }
        }
        let known = self.waiting.len() + self.running.len();
        if known != self.places.len() {
            return Err(format!("{known} sequences exist and {} have places", self.places.len()));
        }
        let swapped = self.waiting.iter().filter_map(|(_, _, sequence)| sequence.swapped.as_ref());
        pool.check_l2(swapped.flat_map(|swapped| swapped.slots().iter().copied()))?;
        if self.running.values().any(|sequence| sequence.swapped.is_some()) {
            return Err("a running sequence holds L2".to_owned());
        }
        let tables = || self.running.values().map(|sequence| &sequence.table);
        let held = tables().flat_map(|table| table.blocks().collect::<Vec<BlockId>>());
        pool.check_invariants(held, tables().map(|table| table.reserved()).sum())
    }
}
