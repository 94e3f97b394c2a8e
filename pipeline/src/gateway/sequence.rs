//! One sequence of a request, over as many instances as it takes.
//!
//! When an instance is lost or busy, the sequence goes on elsewhere from prompt + emitted tokens: the client sees one
//! uninterrupted text (DESIGN §6). It restarts from the last *safe point*, the newest token up to which all text has been
//! shown, since an engine holds back half characters and possible stop strings. What is computed again after that point is
//! compared with what was shown and not shown twice; the seed makes it the same, and if it differs the sequence ends with an
//! error rather than a wrong text.
//!
//! A sequence that is dropped before its end is cancelled, and its lease comes back when the instance has confirmed that nothing
//! of it is left, at the latest after [`CONFIRM_MAX`].
//!
//! Bounds: [`MOVES_MAX`] moves; each waits `policy.queue.wait_max` for room at most. Memory: the emitted tokens.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use engine::{grammar::GrammarSource, request::FinishReason};
use futures::StreamExt;

use super::{
    deps::Deps,
    dispatcher::{Demand, Dispatcher, Failed, Grant, NoPlace},
    error::ApiError,
    instances::{Chunk, ChunkStream, GenerateCall, InstanceClient, InstanceError},
    leases::Lease,
    output::Output,
    reading::PlaceReading,
};
use crate::{
    ids::InstanceId,
    policy::{Placement, RejectReason, RouteRejection},
};
use engine::step::TokenLogprob;

/// Times a sequence may be sent to another instance.
pub const MOVES_MAX: u32 = 4;

/// A lease is held for a confirmation at most this long; an instance that hangs for longer is restarted by its supervisor, and
/// leases of the old incarnation count no more.
pub const CONFIRM_MAX: Duration = Duration::from_secs(30);

/// A lost instance whose supervisor has not given it up by then is tried again, if there is no other.
const FORGIVE_AFTER: Duration = Duration::from_secs(3);

/// New output of the sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Piece {
    /// Tokens not seen before.
    pub tokens: u32,
    pub text: String,
    pub logprobs: Vec<TokenLogprob>,
    pub end: Option<End>,
}

/// The end of the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    pub completion_tokens: u32,
    /// Prompt tokens reused at its first instance.
    pub cached_tokens: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    Stop,
    Length,
}

impl EndReason {
    pub fn name(self) -> &'static str {
        match self {
            EndReason::Stop => "stop",
            EndReason::Length => "length",
        }
    }
}

/// What happened to the sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum SequenceEvent {
    Grew(Piece),
    /// It runs on another instance now, for this reason.
    Moved {
        instance: InstanceId,
        placement: Placement,
        reading: Box<PlaceReading>,
        because: String,
    },
}

pub struct Sequence {
    pub index: usize,
    deps: Deps,
    dispatcher: Arc<Dispatcher>,
    call: GenerateCall,
    grammar: Option<GrammarSource>,
    demand: Demand,
    /// Where it runs; the lease comes back when all sequences that share it are gone.
    seat: Seat,
    stream: Option<ChunkStream>,
    output: Output,
    failed: Vec<Failed>,
    moves: u32,
    waiting_events: VecDeque<SequenceEvent>,
    has_ended: bool,
}

struct Seat {
    at: Failed,
    client: Arc<dyn InstanceClient>,
    lease: Arc<Lease>,
}

impl Seat {
    fn of(grant: &Grant) -> Self {
        let at = Failed { instance: grant.instance, epoch: grant.epoch };
        Self { at, client: grant.client.clone(), lease: grant.lease.clone() }
    }
}

/// What a new sequence is made of.
pub struct SequencePlan {
    pub index: usize,
    pub call: GenerateCall,
    /// What its text must look like.
    pub grammar: Option<GrammarSource>,
    pub demand: Demand,
}

impl Sequence {
    /// Starts on the granted instance. An instance that is lost or busy is replaced; a refusal is final.
    pub async fn start(
        deps: &Deps,
        dispatcher: &Arc<Dispatcher>,
        plan: SequencePlan,
        grant: &Grant,
    ) -> Result<Self, ApiError> {
        let mut sequence = Self {
            index: plan.index,
            deps: deps.clone(),
            dispatcher: dispatcher.clone(),
            call: plan.call,
            grammar: plan.grammar,
            demand: plan.demand,
            seat: Seat::of(grant),
            stream: None,
            output: Output::default(),
            failed: Vec::new(),
            moves: 0,
            waiting_events: VecDeque::new(),
            has_ended: false,
        };
        match sequence.open().await {
            Ok(()) => Ok(sequence),
            Err(error) => sequence.go_on_elsewhere(error).await.map(|()| sequence),
        }
    }

    /// The next event; `None` after the end or an error.
    pub async fn next(&mut self) -> Option<Result<SequenceEvent, ApiError>> {
        loop {
            if let Some(event) = self.waiting_events.pop_front() {
                return Some(Ok(event));
            }
            if self.has_ended {
                return None;
            }
            let item = match self.stream.as_mut() {
                Some(stream) => stream.next().await,
                None => None,
            };
            let fault = match item {
                Some(Ok(chunk)) => match self.take(chunk) {
                    Ok(piece) => {
                        self.seat.lease.drew(piece.tokens);
                        self.has_ended = piece.end.is_some();
                        return Some(Ok(SequenceEvent::Grew(piece)));
                    }
                    Err(fault) => fault,
                },
                Some(Err(error)) => Fault::Instance(error),
                None => Fault::Instance(InstanceError::Lost("the stream ended before the sequence did".into())),
            };
            self.stream = None;
            let moved = match fault {
                Fault::Instance(error) => self.go_on_elsewhere(error).await,
                Fault::Final(error) => Err(error),
            };
            if let Err(error) = moved {
                self.has_ended = true;
                return Some(Err(error));
            }
        }
    }

    /// Books a chunk.
    fn take(&mut self, chunk: Chunk) -> Result<Piece, Fault> {
        let mut piece = self.output.take(&chunk, self.demand.model.text.as_ref(), &self.call.stop.stop_tokens)?;
        if let Some(finish) = chunk.finish {
            let reason = match finish.reason {
                FinishReason::Stop => EndReason::Stop,
                FinishReason::Length => EndReason::Length,
                FinishReason::Cancelled => {
                    return Err(Fault::Instance(InstanceError::Lost("the instance cancelled the sequence".into())));
                }
                FinishReason::Late => return Err(Fault::Final(ApiError::DeadlinePassed)),
                FinishReason::Failed => {
                    let detail = finish.error.unwrap_or_else(|| "no detail".into());
                    return Err(Fault::Final(ApiError::EngineFailed(detail)));
                }
            };
            let prompt = self.call.prompt.len() as u32;
            let cached_tokens = self.output.cached.unwrap_or(finish.cached_tokens).min(prompt);
            let completion_tokens = self.output.resumed_at as u32 + finish.completion_tokens;
            piece.end = Some(End { reason, completion_tokens, cached_tokens });
        }
        Ok(piece)
    }

    /// Opens the stream at the present seat, from the safe point on.
    async fn open(&mut self) -> Result<(), InstanceError> {
        let mut call = self.call.clone();
        let kept = &self.output.tokens[..self.output.safe.tokens];
        if !kept.is_empty() {
            call.prompt = self.call.prompt.iter().chain(kept).copied().collect();
            call.sampling_offset = kept.len() as u32;
            call.stop.max_tokens = self.call.stop.max_tokens.saturating_sub(kept.len() as u32);
        }
        self.output.restart();
        self.stream = Some(self.seat.client.generate_within(call, self.grammar.clone()).await?);
        Ok(())
    }

    /// Finds another instance and starts there, until one takes it or nothing is left to try.
    async fn go_on_elsewhere(&mut self, error: InstanceError) -> Result<(), ApiError> {
        let mut error = error;
        loop {
            if let InstanceError::Refused(detail) = error {
                return Err(ApiError::EngineRefused(detail));
            }
            if self.output.tokens.len() >= self.call.stop.max_tokens as usize && self.output.is_all_shown() {
                self.end_at_length();
                return Ok(());
            }
            if self.moves == MOVES_MAX {
                return Err(gave_up(error));
            }
            self.moves += 1;
            self.deps.metrics.reroutes.inc();
            self.failed.push(self.seat.at);
            let grant = self.find_seat(&error).await?;
            self.seat = Seat::of(&grant);
            let (instance, placement, reading) = (grant.instance, grant.placement, grant.reading);
            let because = error.to_string();
            self.waiting_events.push_back(SequenceEvent::Moved { instance, placement, reading, because });
            match self.open().await {
                Ok(()) => return Ok(()),
                Err(next) => error = next,
            }
        }
    }

    /// Waits for room on an instance that has not failed this sequence. It was admitted already, so it does not queue.
    async fn find_seat(&mut self, error: &InstanceError) -> Result<Grant, ApiError> {
        let began = tokio::time::Instant::now();
        let deadline = began + self.deps.config.policy.queue.wait_max;
        loop {
            match self.dispatcher.place(&self.demand, &self.failed) {
                Ok(grant) => return Ok(grant),
                // All others are gone: one that was busy, or that is still there after a while, may be tried again.
                Err(NoPlace { rejection: RouteRejection::NoInstance, .. })
                    if matches!(error, InstanceError::Busy(_)) || began.elapsed() >= FORGIVE_AFTER =>
                {
                    self.failed.clear();
                }
                Err(_) => {}
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(gave_up(error.clone()));
            }
            // The wake may have been meant for the queue.
            self.dispatcher.pump();
            self.dispatcher.wait_for_change().await;
        }
    }

    /// The instance was lost between the last token and its report of the end.
    fn end_at_length(&mut self) {
        let end = End {
            reason: EndReason::Length,
            completion_tokens: self.output.tokens.len() as u32,
            cached_tokens: self.output.cached.unwrap_or(0),
        };
        self.waiting_events.push_back(SequenceEvent::Grew(Piece { end: Some(end), ..Piece::default() }));
        self.has_ended = true;
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take().filter(|_| !self.has_ended) else { return };
        let (client, lease) = (self.seat.client.clone(), self.seat.lease.clone());
        let request_id = std::mem::take(&mut self.call.request_id);
        // Without a runtime the process is ending, and nobody reserves any more.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // An instance that is lost has nothing to confirm: its leases are replaced with it.
                let _ = tokio::time::timeout(CONFIRM_MAX, client.cancel(&request_id, stream)).await;
                drop(lease);
            });
        }
    }
}

fn gave_up(error: InstanceError) -> ApiError {
    match error {
        InstanceError::Busy(detail) => ApiError::Overloaded {
            reason: RejectReason::QueueFull,
            retry_after: Duration::from_secs(2),
            message: format!("Every instance is busy ({detail}). Please try again later."),
            outlook: None,
        },
        InstanceError::Refused(detail) => ApiError::EngineRefused(detail),
        InstanceError::Lost(detail) => ApiError::InstanceLost(detail),
    }
}

pub(super) enum Fault {
    Instance(InstanceError),
    Final(ApiError),
}
