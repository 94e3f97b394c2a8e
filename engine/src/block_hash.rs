//! Chained block hashes (SPEC C2, DESIGN §2.1): the name under which a full KV block is shared.
//!
//! `local[i]` is XXH3-64, seed 1337, over the block's token ids as little-endian `u32`. `chain[0] = local[0]`, or, with
//! a salt, the hash of `salt ‖ local[0]`; `chain[i]` is the hash of `chain[i-1] ‖ local[i]`. So a hash names a block
//! *and* all before it.
//!
//! Invariant: the gateway and the engine call this one file, so a predicted hit and a real one can be compared.
//!
//! Cost: O(tokens) time, one 8-byte hash a block. No state.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::events::BlockHash;

/// Seed of every hash in the chain; shared with other projects that publish KV events.
pub const HASH_SEED: u64 = 1337;

/// Hashes of the full blocks of `tokens`, in order; a last block that is not full has none.
///
/// # Panics
/// If `block_size` is 0.
pub fn prompt_block_hashes(tokens: &[u32], block_size: usize, salt: u64) -> Vec<BlockHash> {
    assert!(block_size > 0, "a block holds at least one token");
    let mut chain: Vec<BlockHash> = Vec::with_capacity(tokens.len() / block_size);
    for block in tokens.chunks_exact(block_size) {
        chain.push(next_block_hash(chain.last().copied(), block, salt));
    }
    chain
}

/// Hash of one full block behind `parent` (`None`: the first block of a sequence; only there the salt is mixed in).
pub fn next_block_hash(parent: Option<BlockHash>, block: &[u32], salt: u64) -> BlockHash {
    let local = local_hash(block);
    match parent {
        Some(parent) => BlockHash(pair_hash([parent.0, local])),
        None if salt == 0 => BlockHash(local),
        None => BlockHash(pair_hash([salt, local])),
    }
}

fn local_hash(block: &[u32]) -> u64 {
    let mut hasher = Xxh3::with_seed(HASH_SEED);
    let mut bytes = [0u8; 256];
    for part in block.chunks(64) {
        for (slot, token) in bytes.chunks_exact_mut(4).zip(part) {
            slot.copy_from_slice(&token.to_le_bytes());
        }
        hasher.update(&bytes[..part.len() * 4]);
    }
    hasher.digest()
}

fn pair_hash(pair: [u64; 2]) -> u64 {
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&pair[0].to_le_bytes());
    bytes[8..].copy_from_slice(&pair[1].to_le_bytes());
    xxh3_64_with_seed(&bytes, HASH_SEED)
}
