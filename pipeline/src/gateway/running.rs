//! The sequences of one request as one stream of steps, and the request's account.
//!
//! Dropping a `Running` drops its sequences, which cancels them and gives their leases back, and records `cancelled`.
//! Bounds: `server.request_timeout` over the whole life. A step is made when the client's side asks for one: nothing is
//! buffered for a slow client.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures::{
    Stream, StreamExt,
    stream::{SelectAll, unfold},
};
use tokio::time::Instant;

use super::{
    Gateway,
    error::ApiError,
    recorder::Growth,
    sequence::{EndReason, Piece, Sequence, SequenceEvent},
    serve::Case,
};

/// After this long without a step the client gets a comment line, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A stream's head waits this long for the first step, so that an early failure still gets a status of its own.
const FIRST_STEP_WAIT: Duration = Duration::from_secs(2);

type Events = Pin<Box<dyn Stream<Item = (usize, Result<SequenceEvent, ApiError>)> + Send>>;

/// What the client should see next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Piece {
        choice: usize,
        piece: Piece,
    },
    /// Nothing yet.
    Idle,
}

/// Token accounts of the whole request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
}

pub struct Running {
    gateway: Arc<Gateway>,
    case: Case,
    events: SelectAll<Events>,
    deadline: Instant,
    first: Option<Step>,
    open: usize,
    choices_per_prompt: usize,
    usage: Usage,
    last_reason: EndReason,
}

impl Running {
    pub fn new(gateway: Arc<Gateway>, case: Case, sequences: Vec<Sequence>, choices_per_prompt: u32) -> Self {
        let deadline = Instant::now() + gateway.deps.config.server.request_timeout;
        let open = sequences.len();
        let mut events = SelectAll::new();
        for sequence in sequences {
            let index = sequence.index;
            let stream: Events = Box::pin(
                unfold(sequence, |mut sequence| async move { sequence.next().await.map(|event| (event, sequence)) })
                    .map(move |event| (index, event)),
            );
            events.push(stream);
        }
        Self {
            gateway,
            events,
            deadline,
            first: None,
            open,
            choices_per_prompt: choices_per_prompt.max(1) as usize,
            usage: Usage { prompt_tokens: case.prompt_tokens(), ..Usage::default() },
            case,
            last_reason: EndReason::Stop,
        }
    }

    pub fn decision_id(&self) -> &str {
        &self.case.decision_id
    }

    /// Variant of the model that serves it now.
    pub fn variant(&self) -> Option<&str> {
        self.case.recorder.variant()
    }

    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Waits a moment for the first step; an error that comes by then is the answer to the request.
    pub async fn begin(&mut self) -> Result<(), ApiError> {
        match self.step_within(FIRST_STEP_WAIT).await {
            None | Some(Ok(Step::Idle)) => Ok(()),
            Some(Ok(step)) => {
                self.first = Some(step);
                Ok(())
            }
            Some(Err(error)) => Err(error),
        }
    }

    /// The next step; `None` after the end of the last sequence. After an error nothing follows, and the account is closed.
    pub async fn next(&mut self) -> Option<Result<Step, ApiError>> {
        match self.first.take() {
            Some(step) => Some(Ok(step)),
            None => self.step_within(KEEP_ALIVE).await,
        }
    }

    async fn step_within(&mut self, patience: Duration) -> Option<Result<Step, ApiError>> {
        if self.open == 0 {
            return None;
        }
        loop {
            let wake = self.deadline.min(Instant::now() + patience);
            let event = match tokio::time::timeout_at(wake, self.events.next()).await {
                Ok(event) => event,
                Err(_) if Instant::now() >= self.deadline => {
                    let limit = self.gateway.deps.config.server.request_timeout;
                    return Some(Err(self.fail(ApiError::TimedOut { limit }).await));
                }
                Err(_) => return Some(Ok(Step::Idle)),
            };
            match event {
                Some((choice, Ok(SequenceEvent::Grew(piece)))) => {
                    self.book(choice, &piece).await;
                    return Some(Ok(Step::Piece { choice, piece }));
                }
                Some((_, Ok(SequenceEvent::Moved { placement, reading, because, .. }))) => {
                    self.case.moved(&self.gateway, (&placement, &reading), &because).await;
                }
                Some((_, Err(error))) => return Some(Err(self.fail(error).await)),
                None => {
                    let error = ApiError::Internal("the sequences ended without saying so".into());
                    return Some(Err(self.fail(error).await));
                }
            }
        }
    }

    async fn book(&mut self, choice: usize, piece: &Piece) {
        if piece.tokens > 0 {
            self.case.recorder.grew(Growth { choice, tokens: piece.tokens }).await;
        }
        let Some(end) = piece.end else { return };
        self.usage.completion_tokens += end.completion_tokens;
        if choice.is_multiple_of(self.choices_per_prompt) {
            // The other choices of a prompt reuse what the first computes; that is no hit of the cache.
            self.usage.cached_tokens += end.cached_tokens;
            self.case.recorder.reused(end.cached_tokens);
        }
        self.last_reason = end.reason;
        self.open -= 1;
        if self.open == 0 {
            // Gives the leases back before the client has read the end.
            self.events.clear();
            self.case.recorder.finished(self.last_reason.name()).await;
        }
    }

    async fn fail(&mut self, error: ApiError) -> ApiError {
        self.open = 0;
        self.events.clear();
        self.case.recorder.failed(&error).await;
        error
    }
}
