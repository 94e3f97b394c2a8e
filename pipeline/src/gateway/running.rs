//! The sequences of one request as one stream of steps, and the request's account.
//!
//! Each choice is read here for tool calls, so that the account ends for the reason that the client sees.
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
    best_of::Sampling,
    error::ApiError,
    reader::{News, Reader},
    recorder::Growth,
    sequence::{Piece, Sequence, SequenceEvent},
    serve::Case,
    slo::SloEnd,
    structure::ToolReply,
};
use crate::ids::Name;

/// After this long without a step the client gets a comment line, so that proxies keep the connection.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A stream's head waits this long for the first step, so that an early failure still gets a status of its own.
const FIRST_STEP_WAIT: Duration = Duration::from_secs(2);

type Events = Pin<Box<dyn Stream<Item = (usize, Result<SequenceEvent, ApiError>)> + Send>>;

/// What the client should see next.
#[derive(Debug, Clone)]
pub enum Step {
    News {
        choice: usize,
        news: News,
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
    case: Box<Case>,
    events: SelectAll<Events>,
    deadline: Instant,
    first: Option<Step>,
    open: usize,
    samples: usize,
    readers: Vec<Reader>,
    usage: Usage,
}

impl Running {
    /// `tools`: how to read tool calls, if the request gave tools.
    pub fn new(
        gateway: Arc<Gateway>,
        case: Box<Case>,
        sequences: Vec<Sequence>,
        (sampling, tools): (Sampling, Option<&ToolReply>),
    ) -> Self {
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
            samples: sampling.samples.max(1),
            readers: (0..open).map(|_| Reader::new(tools)).collect(),
            usage: Usage { prompt_tokens: case.prompt_tokens(), ..Usage::default() },
            case,
        }
    }

    pub fn decision_id(&self) -> &Name {
        &self.case.decision_id
    }

    /// Variant of the model that serves it now.
    pub fn variant(&self) -> Option<&Name> {
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
                    return Some(Ok(Step::News { choice, news: self.book(choice, piece).await }));
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

    async fn book(&mut self, choice: usize, piece: Piece) -> News {
        if piece.tokens > 0 {
            self.case.recorder.grew(Growth { choice, tokens: piece.tokens }).await;
        }
        let ended = piece.end;
        let news = self.readers[choice].read(piece);
        let Some(end) = ended else { return news };
        self.usage.completion_tokens += end.completion_tokens;
        if choice.is_multiple_of(self.samples) {
            // The other choices of a prompt reuse what the first computes; that is no hit of the cache.
            self.usage.cached_tokens += end.cached_tokens;
            self.case.recorder.reused(end.cached_tokens);
        }
        self.open -= 1;
        if self.open == 0 {
            // Gives the leases back before the client has read the end.
            self.events.clear();
            self.case.recorder.finished(news.finish_reason.unwrap_or(end.reason.name())).await;
            self.case.settled(&self.gateway, SloEnd::Finished).await;
        }
        news
    }

    async fn fail(&mut self, error: ApiError) -> ApiError {
        self.open = 0;
        self.events.clear();
        self.case.recorder.failed(&error).await;
        let end = if error == ApiError::DeadlinePassed { SloEnd::Late } else { SloEnd::Failed };
        self.case.settled(&self.gateway, end).await;
        error
    }
}
