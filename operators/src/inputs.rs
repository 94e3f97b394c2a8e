//! The way in: rows and the epoch of one worker's inputs, kept within bounds.
//!
//! Invariant: all inputs of a worker stand at one epoch; it never goes back; a row of a closed epoch is counted in the
//! open one and reported (`Refusal::Late`); rows of later epochs wait here until theirs opens.
//! Cost: a move per batch, no copy. State: at most `max_open_rows` rows from the open epoch on (at the bound `send`
//! takes nothing and says so: advance, or hold the rows back), at most `max_ahead` epochs ahead.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use timely::dataflow::{InputHandleVec, Scope};

use crate::{
    bucket_load::BucketPlan,
    diagnosis::DiagnosisInput,
    funnel::FunnelRow,
    refused::{Input, Refusal, Refused},
    rows::{KvRow, LoadRow, PromptRow, StepRow, TrafficRow},
    views::InputStreams,
};

/// Bounds of [`FlowInputs`], per worker.
#[derive(Clone, Copy, Debug)]
pub struct FeedConfig {
    /// Rows of epochs not yet closed.
    pub max_open_rows: usize,
    /// How far before its epoch a row may be sent, epochs.
    pub max_ahead: u64,
}

impl Default for FeedConfig {
    fn default() -> Self {
        Self { max_open_rows: 1 << 20, max_ahead: 100 }
    }
}

/// Rows of one epoch, by input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowRows {
    pub load: Vec<LoadRow>,
    pub kv: Vec<KvRow>,
    pub traffic: Vec<TrafficRow>,
    pub steps: Vec<StepRow>,
    pub prompts: Vec<PromptRow>,
    pub funnel: Vec<FunnelRow>,
    pub diagnosis: Vec<DiagnosisInput>,
    pub plans: Vec<BucketPlan>,
}

/// Blocks of a prompt that count as one row, as they take as much memory.
const BLOCKS_PER_ROW: usize = 16;

impl FlowRows {
    /// Rows in all; a prompt counts as one row and one more for each 16 blocks.
    pub fn len(&self) -> usize {
        let prompts = self.prompts.iter().map(|row| 1 + row.hashes.len() / BLOCKS_PER_ROW).sum::<usize>();
        self.load.len()
            + self.kv.len()
            + self.traffic.len()
            + self.steps.len()
            + prompts
            + self.funnel.len()
            + self.diagnosis.len()
            + self.plans.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn append(&mut self, other: &mut Self) {
        self.load.append(&mut other.load);
        self.kv.append(&mut other.kv);
        self.traffic.append(&mut other.traffic);
        self.steps.append(&mut other.steps);
        self.prompts.append(&mut other.prompts);
        self.funnel.append(&mut other.funnel);
        self.diagnosis.append(&mut other.diagnosis);
        self.plans.append(&mut other.plans);
    }
}

/// Why rows or an epoch were not taken; nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeedError {
    #[error(
        "{rows} rows do not fit: {open_rows} of max_open_rows = {max_open_rows} wait for their epoch to close; \
         advance the epoch, or send fewer at a time"
    )]
    Full { rows: usize, open_rows: usize, max_open_rows: usize },
    #[error("epoch {epoch} is too far ahead: the open one is {open}, and max_ahead = {max_ahead}")]
    TooFarAhead { epoch: u64, open: u64, max_ahead: u64 },
    #[error("cannot advance to epoch {epoch}: epoch {open} is open, and epochs never go back")]
    Backward { epoch: u64, open: u64 },
}

/// One worker's inputs. It lives on the worker's thread; dropping it ends the dataflow.
pub struct FlowInputs {
    config: FeedConfig,
    load: InputHandleVec<u64, LoadRow>,
    kv: InputHandleVec<u64, KvRow>,
    traffic: InputHandleVec<u64, TrafficRow>,
    steps: InputHandleVec<u64, StepRow>,
    prompts: InputHandleVec<u64, PromptRow>,
    funnel: InputHandleVec<u64, FunnelRow>,
    diagnosis: InputHandleVec<u64, DiagnosisInput>,
    plans: InputHandleVec<u64, BucketPlan>,
    late: InputHandleVec<u64, Refused>,
    /// Rows sent at the open epoch.
    open_rows: usize,
    ahead: BTreeMap<u64, FlowRows>,
    ahead_rows: usize,
}

impl FlowInputs {
    /// Makes the inputs of a dataflow under construction; the first open epoch is 0.
    pub fn new<'scope>(scope: Scope<'scope, u64>, config: FeedConfig) -> (Self, InputStreams<'scope>) {
        let mut inputs = Self {
            config,
            load: InputHandleVec::new(),
            kv: InputHandleVec::new(),
            traffic: InputHandleVec::new(),
            steps: InputHandleVec::new(),
            prompts: InputHandleVec::new(),
            funnel: InputHandleVec::new(),
            diagnosis: InputHandleVec::new(),
            plans: InputHandleVec::new(),
            late: InputHandleVec::new(),
            open_rows: 0,
            ahead: BTreeMap::new(),
            ahead_rows: 0,
        };
        let streams = InputStreams {
            load: inputs.load.to_stream(scope),
            kv: inputs.kv.to_stream(scope),
            traffic: inputs.traffic.to_stream(scope),
            steps: inputs.steps.to_stream(scope),
            prompts: inputs.prompts.to_stream(scope),
            funnel: inputs.funnel.to_stream(scope),
            diagnosis: inputs.diagnosis.to_stream(scope),
            plans: inputs.plans.to_stream(scope),
            late: inputs.late.to_stream(scope),
        };
        (inputs, streams)
    }

    /// The open epoch.
    pub fn open(&self) -> u64 {
        *self.load.time()
    }

    /// Rows sent and not yet in a closed epoch; compare with `max_open_rows`.
    pub fn open_rows(&self) -> usize {
        self.open_rows + self.ahead_rows
    }

    /// Takes rows of the open epoch; empties `rows`.
    ///
    /// # Errors
    /// [`FeedError::Full`]; `rows` is left as it was.
    pub fn send(&mut self, rows: &mut FlowRows) -> Result<(), FeedError> {
        self.fits(rows)?;
        self.open_rows += rows.len();
        send_all(&mut self.load, &mut rows.load);
        send_all(&mut self.kv, &mut rows.kv);
        send_all(&mut self.traffic, &mut rows.traffic);
        send_all(&mut self.steps, &mut rows.steps);
        send_all(&mut self.prompts, &mut rows.prompts);
        send_all(&mut self.funnel, &mut rows.funnel);
        send_all(&mut self.diagnosis, &mut rows.diagnosis);
        send_all(&mut self.plans, &mut rows.plans);
        Ok(())
    }

    /// Takes rows of `epoch`; empties `rows`. If that epoch has closed they count in the open one and are reported as
    /// late.
    ///
    /// # Errors
    /// [`FeedError::Full`] or [`FeedError::TooFarAhead`]; `rows` is left as it was.
    pub fn send_at(&mut self, epoch: u64, rows: &mut FlowRows) -> Result<(), FeedError> {
        let open = self.open();
        if epoch > open {
            if epoch - open > self.config.max_ahead {
                return Err(FeedError::TooFarAhead { epoch, open, max_ahead: self.config.max_ahead });
            }
            self.fits(rows)?;
            self.ahead_rows += rows.len();
            self.ahead.entry(epoch).or_default().append(rows);
            return Ok(());
        }
        let counts = [
            (Input::Load, rows.load.len()),
            (Input::Kv, rows.kv.len()),
            (Input::Traffic, rows.traffic.len()),
            (Input::Steps, rows.steps.len()),
            (Input::Prompts, rows.prompts.len()),
            (Input::Funnel, rows.funnel.len()),
            (Input::Diagnosis, rows.diagnosis.len()),
            (Input::Plans, rows.plans.len()),
        ];
        self.send(rows)?;
        if epoch < open {
            for (input, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
                let (rows, reason) = (count as u64, Refusal::Late { open });
                self.late.send(Refused { epoch: open, input, instance: None, subject: epoch, rows, reason });
            }
        }
        Ok(())
    }

    /// Closes all epochs before `epoch` as far as this worker goes; every worker has to. The same epoch again does
    /// nothing.
    ///
    /// # Errors
    /// [`FeedError::Backward`].
    pub fn advance(&mut self, epoch: u64) -> Result<(), FeedError> {
        let open = self.open();
        if epoch < open {
            return Err(FeedError::Backward { epoch, open });
        }
        while let Some(entry) = self.ahead.first_entry().filter(|entry| *entry.key() <= epoch) {
            let (at, mut rows) = entry.remove_entry();
            self.advance_all(at);
            self.ahead_rows -= rows.len();
            self.send(&mut rows)?;
        }
        self.advance_all(epoch);
        Ok(())
    }

    fn fits(&self, rows: &FlowRows) -> Result<(), FeedError> {
        let (rows, open_rows, max_open_rows) = (rows.len(), self.open_rows(), self.config.max_open_rows);
        if rows > max_open_rows.saturating_sub(open_rows) {
            return Err(FeedError::Full { rows, open_rows, max_open_rows });
        }
        Ok(())
    }

    fn advance_all(&mut self, epoch: u64) {
        if epoch == self.open() {
            return;
        }
        self.open_rows = 0;
        self.load.advance_to(epoch);
        self.kv.advance_to(epoch);
        self.traffic.advance_to(epoch);
        self.steps.advance_to(epoch);
        self.prompts.advance_to(epoch);
        self.funnel.advance_to(epoch);
        self.diagnosis.advance_to(epoch);
        self.plans.advance_to(epoch);
        self.late.advance_to(epoch);
    }
}

fn send_all<R: Clone + 'static>(input: &mut InputHandleVec<u64, R>, rows: &mut Vec<R>) {
    if !rows.is_empty() {
        input.send_batch(rows);
        rows.clear();
    }
}
