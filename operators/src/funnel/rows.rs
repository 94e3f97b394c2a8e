//! What the funnel is told: of each request its prompt, the decision and the end; of blocks, when they came and
//! went; of instances, which model they serve.
//!
//! Invariant: a row that passes `check` can be folded without overflow or panic. Cost: `check` is O(1). State: none.
use serde::{Deserialize, Serialize};

use crate::{
    refused::{Field, Refusal},
    rows::{LEVELS, MAX_TOKENS, within},
};

/// Most blocks of one request's prompts.
pub const MAX_BLOCKS: u64 = 1 << 22;
/// Longest predicted time to compute one prompt token, nanoseconds.
pub const MAX_NS_PER_TOKEN: u64 = 1_000_000_000;

/// A request's prompts; it is known by its whole 128-bit id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AskedRow {
    pub at_us: i64,
    pub request: u128,
    pub model: u32,
    pub region: u32,
    pub tier: u8,
    pub tenant: u32,
    /// Sum over the prompts.
    pub prompt_tokens: u32,
    /// Tokens of one block; at least 1.
    pub block_tokens: u32,
    /// Chained hashes of each prompt's full blocks.
    pub prompts: Vec<Vec<u64>>,
}

/// What was decided for a request and what the gateway's view said then. The first one of a request counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DecidedRow {
    pub at_us: i64,
    pub request: u128,
    /// The instance chosen; `None` if the request was refused.
    pub placed: Option<u32>,
    /// Cached tokens the view knew of and believed: on any instance, on those allowed, on the one chosen.
    pub visible: u32,
    pub eligible: u32,
    pub selected: u32,
    /// Predicted time to compute a prompt token there, nanoseconds; 0 if it is not known.
    pub ns_per_token: u64,
}

/// A request's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EndedRow {
    pub at_us: i64,
    pub request: u128,
    /// Prompt tokens that the engine reused; `None` if it did not say.
    pub delivered: Option<u32>,
}

/// One part of a request's story; parts may come in any order and more than once.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FunnelPart {
    Asked(AskedRow),
    Decided(DecidedRow),
    Ended(EndedRow),
}

/// Whether a block came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum BlockChange {
    Stored,
    Removed,
}

/// When an instance stored or dropped a block, by its own clock. Which blocks are held is said by the cache index; this
/// only dates its changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockRow {
    pub hash: u64,
    pub instance: u32,
    pub level: u8,
    pub change: BlockChange,
    pub at_us: i64,
}

/// Which model an instance serves from then on; until it is told, its blocks count for every model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ServesRow {
    pub instance: u32,
    /// [`ANY_MODEL`](super::ANY_MODEL) if it is not known.
    pub model: u32,
    pub at_us: i64,
}

/// A row of the funnel's input.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FunnelRow {
    Request(FunnelPart),
    Block(BlockRow),
    Serves(ServesRow),
}

fn at(at_us: i64) -> Result<(), Refusal> {
    within(Field::AtUs, u64::try_from(at_us).unwrap_or(u64::MAX), 0..=i64::MAX as u64 - 1)
}

impl FunnelPart {
    pub fn request(&self) -> u128 {
        match self {
            Self::Asked(row) => row.request,
            Self::Decided(row) => row.request,
            Self::Ended(row) => row.request,
        }
    }

    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Asked(row) => {
                at(row.at_us)?;
                within(Field::PromptTokens, row.prompt_tokens.into(), 0..=MAX_TOKENS)?;
                within(Field::BlockTokens, row.block_tokens.into(), 1..=MAX_TOKENS)?;
                let blocks = row.prompts.iter().map(|hashes| hashes.len() as u64).sum();
                within(Field::Blocks, blocks, 0..=MAX_BLOCKS)?;
                within(Field::Blocks, row.prompts.len() as u64, 0..=u16::MAX.into())
            }
            Self::Decided(row) => {
                at(row.at_us)?;
                for tokens in [row.visible, row.eligible, row.selected] {
                    within(Field::CachedTokens, tokens.into(), 0..=MAX_TOKENS)?;
                }
                within(Field::NsPerToken, row.ns_per_token, 0..=MAX_NS_PER_TOKEN)
            }
            Self::Ended(row) => {
                at(row.at_us)?;
                within(Field::CachedTokens, row.delivered.unwrap_or(0).into(), 0..=MAX_TOKENS)
            }
        }
    }
}

impl ServesRow {
    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        at(self.at_us)
    }
}

impl BlockRow {
    /// # Errors
    /// Names the field outside its range.
    pub fn check(&self) -> Result<(), Refusal> {
        at(self.at_us)?;
        within(Field::Level, self.level.into(), 0..=u64::from(LEVELS) - 1)
    }
}
