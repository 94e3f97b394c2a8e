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

/// Scenario: prompts in arithmetic progressions, of several block sizes; expected values from `dynamo-kv-router` 1.6.1
/// (`compute_block_hash_for_seq` with default options, then `compute_seq_hash_for_block`), run in a crate of its own.
/// Guarantees: Dynamo's router and ours name the same blocks alike.
#[test]
fn chain_is_that_of_dynamo() {
    /// First token, step, number of tokens and block size; the chain.
    type Case = ((u32, u32, u32, usize), &'static [u64]);
    let cases: [Case; 5] = [
        (
            (0, 1, 64, 16),
            &[
                15_310_707_395_893_867_146,
                13_769_157_705_258_532_664,
                11_879_827_756_109_914_528,
                3_888_788_807_566_526_800,
            ],
        ),
        ((7, 13, 100, 32), &[3_068_510_285_679_887_669, 17_665_469_609_936_785_616, 1_659_422_356_319_746_325]),
        (
            (u32::MAX - 50, 1, 51, 16),
            &[15_664_801_676_203_803_229, 10_113_260_669_827_415_325, 18_276_676_201_567_627_213],
        ),
        ((5, 0, 200, 64), &[4_765_599_128_038_515_431, 5_845_874_769_164_609_486, 13_050_138_817_283_402_083]),
        ((1, 3, 12, 4), &[18_339_515_413_165_507_344, 7_548_139_612_030_447_412, 2_388_492_808_795_017_701]),
    ];
    for ((first, step, count, block_size), expected) in cases {
        let tokens: Vec<u32> = (0..count).map(|n| first.wrapping_add(n.wrapping_mul(step))).collect();
        let chain: Vec<u64> = prompt_block_hashes(&tokens, block_size, 0).into_iter().map(|hash| hash.0).collect();
        assert_eq!(chain, expected, "{count} tokens from {first} in blocks of {block_size}");
    }
}
