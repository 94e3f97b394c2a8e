//! The hash chain (SPEC C2) against values computed with another implementation of XXH3.

use engine::{block_hash::prompt_block_hashes, events::BlockHash};

fn hashes(tokens: std::ops::Range<u32>, block_size: usize, salt: u64) -> Vec<u64> {
    let tokens: Vec<u32> = tokens.collect();
    prompt_block_hashes(&tokens, block_size, salt).into_iter().map(|BlockHash(hash)| hash).collect()
}

/// Scenario: fixed prompts, without and with a salt; expected values from the C library's Python binding.
/// Guarantees: the chain is the published one and stays it; a block that is not full has no hash.
#[test]
fn chain_has_the_published_values() {
    assert_eq!(hashes(1..14, 4, 0), [0xcb38_e4d7_fb2d_ca5c, 0x44a2_b237_9d6d_3c3d, 0xaea1_e67a_6c80_cf84]);
    assert_eq!(hashes(1..14, 4, 7), [0x30e3_7f9c_8112_0802, 0x3bc5_a6f9_6d3d_7edf, 0x3fab_4c65_9cee_21ac]);
    assert_eq!(hashes(100..140, 16, 0), [0x9633_b31c_7a25_62c7, 0x38ed_de46_0245_fc8e]);
    assert!(hashes(0..3, 4, 0).is_empty());
}

/// Scenario: one token changes, in each place of a long block (longer than the hash's input buffer).
/// Guarantees: hashes before the change stay, its own and all after it change.
#[test]
fn a_change_reaches_all_later_blocks() {
    let tokens: Vec<u32> = (0..400).collect();
    let original = prompt_block_hashes(&tokens, 100, 0);
    for (position, index) in [(0, 0), (99, 0), (164, 1), (399, 3)] {
        let mut changed = tokens.clone();
        changed[position] += 1;
        let changed = prompt_block_hashes(&changed, 100, 0);
        assert_eq!(changed[..index], original[..index]);
        assert!((index..4).all(|block| changed[block] != original[block]), "position {position}");
    }
}
