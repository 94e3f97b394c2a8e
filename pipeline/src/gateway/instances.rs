//! The instances a gateway can send to, and the leases it holds on them (DESIGN §7 rules 2 to 5).
//!
//! A lease reserves tokens at dispatch, atomically, and is given back when its guard drops; only the gateway writes it.
//! Cost: one lock per reservation over the instance list, which is small; readers clone an `Arc`.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use engine::{
    request::{FinishReason, Lane, SamplingParams, StopConditions},
    step::TokenLogprob,
};
use futures::Stream;

use crate::ids::{InstanceId, Micros, ProcessEpoch};

/// One sequence for one instance.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateCall {
    pub request_id: String,
    pub prompt: Arc<[u32]>,
    pub sampling: SamplingParams,
    pub stop: StopConditions,
    pub lane: Lane,
    pub deadline: Option<Micros>,
    pub cache_salt: u64,
}

/// What came out of one engine step for the sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Chunk {
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<TokenLogprob>,
    /// Set on the last chunk.
    pub finish: Option<ChunkFinish>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ChunkFinish {
    pub reason: FinishReason,
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
    pub error: Option<String>,
}

/// Why an instance did not produce (more) tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstanceError {
    /// The engine refused the request; another instance would too.
    #[error("{0}")]
    Refused(String),
    /// The engine's queue is full; another instance may take it.
    #[error("{0}")]
    Busy(String),
    /// The connection or the process is gone; nothing is known of the sequence.
    #[error("instance lost: {0}")]
    Lost(String),
}

pub type ChunkStream = Pin<Box<dyn Stream<Item = Result<Chunk, InstanceError>> + Send>>;

/// A way to run sequences on an instance: gRPC to a worker process, or an engine in this process (tests).
///
/// Dropping the stream cancels the sequence; the engine frees its blocks within one step.
#[async_trait]
pub trait InstanceClient: Send + Sync {
    async fn generate(&self, call: GenerateCall) -> Result<ChunkStream, InstanceError>;
}

/// State of an instance as its supervisor knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceState {
    Starting,
    Ready,
    Draining,
    Dead,
    Stopped,
}

impl InstanceState {
    pub fn name(self) -> &'static str {
        match self {
            InstanceState::Starting => "starting",
            InstanceState::Ready => "ready",
            InstanceState::Draining => "draining",
            InstanceState::Dead => "dead",
            InstanceState::Stopped => "stopped",
        }
    }
}

/// One incarnation of an instance. A restart replaces the whole entry, so leases of the dead one are never counted again.
pub struct InstanceEntry {
    pub id: InstanceId,
    pub name: String,
    pub epoch: ProcessEpoch,
    pub model: String,
    pub state: InstanceState,
    /// `None` while there is nothing to talk to.
    pub client: Option<Arc<dyn InstanceClient>>,
    pub leases: Arc<Leases>,
}

/// Tokens and requests in flight on one incarnation.
#[derive(Debug, Default)]
pub struct Leases {
    tokens: AtomicU64,
    requests: AtomicU32,
}

impl Leases {
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Acquire)
    }

    pub fn requests(&self) -> u32 {
        self.requests.load(Ordering::Acquire)
    }

    /// Reserves `tokens` if the sum stays within `max`, or if nothing is in flight (so that one large request can always
    /// run). The guard gives them back.
    pub fn reserve(self: &Arc<Self>, tokens: u64, max: u64) -> Option<Lease> {
        let taken = self.tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, |held| {
            (held == 0 || held.saturating_add(tokens) <= max).then_some(held.saturating_add(tokens))
        });
        taken.ok()?;
        self.requests.fetch_add(1, Ordering::AcqRel);
        Some(Lease { leases: self.clone(), tokens })
    }
}

/// A reservation; dropping it gives the tokens back, once.
#[derive(Debug)]
pub struct Lease {
    leases: Arc<Leases>,
    tokens: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.tokens.fetch_sub(self.tokens, Ordering::AcqRel);
        self.leases.requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The fleet's instances, replaced as a whole on every change; one writer (the supervisor) per instance.
#[derive(Default)]
pub struct InstanceDirectory {
    entries: ArcSwap<Vec<Arc<InstanceEntry>>>,
}

impl InstanceDirectory {
    pub fn load(&self) -> Arc<Vec<Arc<InstanceEntry>>> {
        self.entries.load_full()
    }

    pub fn get(&self, id: InstanceId) -> Option<Arc<InstanceEntry>> {
        self.entries.load().iter().find(|entry| entry.id == id).cloned()
    }

    /// Puts the entry in the place of the one with the same id. An entry of an older epoch is ignored.
    pub fn put(&self, entry: InstanceEntry) {
        let entry = Arc::new(entry);
        self.entries.rcu(|current| {
            let mut next: Vec<Arc<InstanceEntry>> = current.as_ref().clone();
            match next.iter_mut().find(|old| old.id == entry.id) {
                Some(old) if old.epoch > entry.epoch => {}
                Some(old) => *old = entry.clone(),
                None => next.push(entry.clone()),
            }
            next.sort_by_key(|e| e.id);
            next
        });
    }
}
