//! The rows that enter the dataflow: one plain struct per input, integer keys only (interned at ingest by the pipeline).
//!
//! Invariant: a row that passes `check` can be folded by its operator without overflow or panic.
//! Cost: `check` is O(1) and allocates nothing. State: none.
use serde::{Deserialize, Serialize};

use crate::{
    cache_index::AUDIT_BUCKETS,
    prefix_index::MAX_INSTANCE,
    refused::{Field, Refusal},
};

/// Most tokens one request or one step may state; anything above is a malformed row, not a long prompt.
pub const MAX_TOKENS: u64 = 1 << 31;
/// Longest duration a row may state, in microseconds (about 12 days).
pub const MAX_DURATION_US: u64 = 1 << 40;
/// KV storage levels are `0..LEVELS`, so that the levels holding one block fit one byte.
pub const LEVELS: u8 = 8;

/// What happened to a request's live context (B2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LoadEvent {
    /// The request was placed on an instance; `tokens` is its prompt.
    #[default]
    Arrived,
    /// Decode went on, or the request moved to another instance; `tokens` is the context now.
    Grew,
    /// The request is over, however it ended.
    Finished,
}

/// One lifecycle event of one request (B2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LoadRow {
    pub request: u64,
    /// Orders the events of one request; starts at 1.
    pub seq: u32,
    pub instance: u32,
    /// Live context, in tokens; at most [`MAX_TOKENS`].
    pub tokens: u32,
    /// Of these, how many were believed cached where the request was placed.
    pub cached: u32,
    pub event: LoadEvent,
    /// The cluster the instance stands in.
    pub region: u16,
    pub model: u32,
    pub tier: u8,
}

/// One change of one instance's block store (C4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KvChange {
    /// The block is now held at `level`; `tokens` is its length.
    Stored { hash: u64, parent: Option<u64>, level: u8, tokens: u32 },
    /// A sequence reuses the block and those before it: `tokens` tokens in all. Changes no content.
    Hit { hash: u64, level: u8, tokens: u32 },
    /// The block is no longer held at `level`.
    Removed { hash: u64, level: u8 },
    /// The instance holds nothing any more.
    Cleared,
    /// What the instance holds now in an audit bucket: (hash, level) pairs, and the sum of their weights. A whole account
    /// has all buckets, from 0 on, in one piece.
    Sum { bucket: u8, blocks: u32, sum: u64 },
    /// All the instance holds in an audit bucket follows, as `blocks` rows `Stored`.
    Listed { bucket: u8, blocks: u32 },
    /// Something that was refused: the instance's content is not known any more.
    Void,
    /// The incarnation has ended, as whoever watches the instance says: it holds nothing, and what still comes of it is
    /// refused. It has no place among the incarnation's events: `seq` means nothing.
    Gone,
}

/// One KV event of one instance (C4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KvRow {
    pub instance: u32,
    /// Incarnation of the worker process: a higher one fences off all rows of a lower one.
    pub epoch: u64,
    /// Counts the events of one incarnation without gaps; starts at 1.
    pub seq: u64,
    pub event: KvChange,
}

/// A request came in (D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ArrivedRow {
    pub model: u32,
    pub tier: u8,
    pub prompt_tokens: u32,
    /// Microseconds since the Unix epoch.
    pub at_us: i64,
    /// The conversation it belongs to; `None` if it is not known.
    pub session: Option<u64>,
    /// User messages of the conversation so far, this one included.
    pub turns: u32,
}

/// How an answer came to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum End {
    /// By itself: the model stopped.
    #[default]
    Stopped,
    /// At the most tokens it was allowed: how long it would have become is not known.
    Capped,
}

/// A request came to its end (D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FinishedRow {
    pub model: u32,
    pub tier: u8,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Prompt tokens whose KV was reused; at most `prompt_tokens`.
    pub cached_tokens: u32,
    /// Time to first token, microseconds; `None` if it is not known, and then it counts in no quantile.
    pub ttft_us: Option<u64>,
    /// Mean gap between two output tokens, microseconds; `None` if it is not known or there are fewer than two.
    pub itl_us_mean: Option<u64>,
    /// Microseconds since the Unix epoch.
    pub at_us: i64,
    pub end: End,
    /// Best tier the request's tenant may have.
    pub tenant_class: u8,
}

/// Input of the request distribution: arrivals and ends in one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TrafficRow {
    Arrived(ArrivedRow),
    Finished(FinishedRow),
}

/// The prompt of a request, in blocks (C5, X4). Ordered by time of arrival.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PromptRow {
    /// Microseconds since the Unix epoch.
    pub at_us: i64,
    pub request: u64,
    pub model: u32,
    pub tier: u8,
    pub tenant: u32,
    pub prompt_tokens: u32,
    /// Length of a block; at least 1.
    pub block_tokens: u32,
    /// Chained hashes of the prompt's blocks from its start; at most as many as it takes to cover the prompt. The last block
    /// of a prompt may be a part of one.
    pub hashes: Vec<u64>,
}

/// What one engine step reported (B1, D4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StepRow {
    pub instance: u32,
    /// Incarnation of the worker process.
    pub epoch: u64,
    /// Counts the steps of one incarnation; starts at 1.
    pub step: u64,
    /// End of the step, microseconds since the Unix epoch.
    pub at_us: i64,
    /// Sequences in the running batch.
    pub running: u32,
    /// Sequences that wait.
    pub waiting: u32,
    /// Prompt tokens of admitted and waiting sequences that are not computed yet.
    pub queued_prefill_tokens: u64,
    /// Live context over all running sequences, in tokens.
    pub context_tokens: u64,
    pub blocks_used: u32,
    pub blocks_cached: u32,
    pub blocks_total: u32,
    /// Prompt tokens computed in this step.
    pub prefill_tokens: u32,
    /// Sequences that decoded in this step, one token each.
    pub decode_tokens: u32,
    /// Length of the step, microseconds.
    pub step_us: u64,
    /// Instances of one shape (model, machine type, settings) take the same time for the same work.
    pub shape: u32,
}

pub(crate) fn within(field: Field, value: u64, range: std::ops::RangeInclusive<u64>) -> Result<(), Refusal> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(Refusal::OutOfRange { field, value, least: *range.start(), most: *range.end() })
}

impl LoadRow {
    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        within(Field::Seq, self.seq.into(), 1..=u32::MAX.into())?;
        within(Field::Tokens, self.tokens.into(), 0..=MAX_TOKENS)
    }
}

impl KvRow {
    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        // u64::MAX is kept free: the next sequence number must exist.
        within(Field::Seq, self.seq, 1..=u64::MAX - 1)?;
        within(Field::Instance, self.instance.into(), 0..=MAX_INSTANCE.into())?;
        match self.event {
            KvChange::Stored { hash, parent: Some(parent), .. } if hash == parent => Err(Refusal::OwnParent { hash }),
            KvChange::Stored { level, tokens, .. } => {
                within(Field::Level, level.into(), 0..=u64::from(LEVELS) - 1)?;
                within(Field::Tokens, tokens.into(), 1..=MAX_TOKENS)
            }
            KvChange::Hit { level, tokens, .. } => {
                within(Field::Level, level.into(), 0..=u64::from(LEVELS) - 1)?;
                within(Field::Tokens, tokens.into(), 1..=MAX_TOKENS)
            }
            KvChange::Removed { level, .. } => within(Field::Level, level.into(), 0..=u64::from(LEVELS) - 1),
            KvChange::Sum { bucket, .. } | KvChange::Listed { bucket, .. } => {
                within(Field::Bucket, bucket.into(), 0..=u64::from(AUDIT_BUCKETS) - 1)
            }
            KvChange::Cleared | KvChange::Gone | KvChange::Void => Ok(()),
        }
    }
}

impl PromptRow {
    /// Prompt tokens in one of its blocks.
    pub fn tokens_of(&self, index: usize) -> u64 {
        let before = u64::from(self.block_tokens).saturating_mul(index as u64);
        u64::from(self.prompt_tokens).saturating_sub(before).min(self.block_tokens.into())
    }

    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        within(Field::PromptTokens, self.prompt_tokens.into(), 0..=MAX_TOKENS)?;
        within(Field::BlockTokens, self.block_tokens.into(), 1..=MAX_TOKENS)?;
        within(Field::Blocks, self.hashes.len() as u64, 0..=u64::from(self.prompt_tokens.div_ceil(self.block_tokens)))
    }
}

impl TrafficRow {
    /// The group the row counts in: `(model, tier)`.
    pub fn key(&self) -> (u32, u8) {
        match self {
            Self::Arrived(row) => (row.model, row.tier),
            Self::Finished(row) => (row.model, row.tier),
        }
    }

    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Arrived(row) => within(Field::PromptTokens, row.prompt_tokens.into(), 0..=MAX_TOKENS),
            Self::Finished(row) => {
                within(Field::PromptTokens, row.prompt_tokens.into(), 0..=MAX_TOKENS)?;
                within(Field::OutputTokens, row.output_tokens.into(), 0..=MAX_TOKENS)?;
                within(Field::CachedTokens, row.cached_tokens.into(), 0..=row.prompt_tokens.into())?;
                within(Field::TtftUs, row.ttft_us.unwrap_or(0), 0..=MAX_DURATION_US)?;
                within(Field::ItlUs, row.itl_us_mean.unwrap_or(0), 0..=MAX_DURATION_US)
            }
        }
    }
}

impl StepRow {
    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        within(Field::Step, self.step, 1..=u64::MAX)?;
        within(Field::AtUs, u64::try_from(self.at_us).unwrap_or(u64::MAX), 0..=i64::MAX as u64)?;
        within(Field::PrefillTokens, self.prefill_tokens.into(), 0..=MAX_TOKENS)?;
        within(Field::DecodeTokens, self.decode_tokens.into(), 0..=MAX_TOKENS)?;
        within(Field::BlocksUsed, self.blocks_used.into(), 0..=self.blocks_total.into())?;
        within(Field::BlocksCached, self.blocks_cached.into(), 0..=self.blocks_total.into())?;
        within(Field::StepUs, self.step_us, 0..=MAX_DURATION_US)
    }
}
