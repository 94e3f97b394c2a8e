//! KV events: what the prefix cache gained and lost in a step. They are facts for the cluster-wide view (SPEC C4); the
//! engine itself never reads them back.

/// Chained XXH3-64 (seed 1337) of a full block and all before it; the chain Dynamo, SMG and Mooncake share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockHash(pub u64);

/// Where a block lives (SPEC C3): L1 is the runner's KV memory, L2 host memory for sequences that gave way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    L1,
    L2,
}

/// A block that can be found by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlock {
    pub hash: BlockHash,
    /// The block before it, as far as it is known.
    pub parent: Option<BlockHash>,
    pub level: Level,
}

/// One change of the prefix cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KvEvent {
    /// A full block became reusable. `parent` is `None` for the first block of a sequence.
    Stored { hash: BlockHash, parent: Option<BlockHash>, level: Level, tokens: u32 },
    /// A sequence started on KV of `tokens` tokens that was there: found in L1 by prefix, or its own, back from L2. `hash`
    /// names the last block of it that has a name; a few of the tokens may come from a part of that block.
    Hit { hash: BlockHash, level: Level, tokens: u32 },
    /// A block was evicted.
    Removed { hash: BlockHash, level: Level },
    /// Everything was dropped.
    Cleared,
}
