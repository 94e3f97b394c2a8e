//! C4: the reader structure of the cache view.
use std::collections::BTreeSet;

use operators::{CacheKey, PrefixIndex, PrefixIndexConfig, reference::cache_index::longest_prefix};
use proptest::prelude::*;

fn index(max_entries: usize) -> PrefixIndex {
    PrefixIndex::new(PrefixIndexConfig { max_entries, segment_buckets: 1, seed: 7 })
}

/// Epochs of toggles: a key changes at most once an epoch, and only to what it is not.
fn toggles() -> impl Strategy<Value = Vec<BTreeSet<CacheKey>>> {
    prop::collection::vec(prop::collection::btree_set((0..8u64, 0..5u32, 0..3u8), 0..30), 1..12)
}

proptest! {
    /// Scenario: random consolidated changes, then prompts of random blocks.
    /// Guarantees: after every epoch the entries and the longest prefix per instance equal those of a plain set, and the
    /// blocks by level add up to the length.
    #[test]
    fn equals_a_plain_set(epochs in toggles(), prompts in prop::collection::vec(prop::collection::vec(0..8u64, 0..6), 1..8)) {
        let (index, mut plain) = (index(1000), BTreeSet::new());
        for toggled in epochs {
            let changes: Vec<(CacheKey, i64)> =
                toggled.into_iter().map(|key| (key, if plain.insert(key) { 1 } else { plain.remove(&key); -1 })).collect();
            index.apply(&changes);
            prop_assert_eq!(index.entries(), plain.len());
            for prompt in &prompts {
                prop_assert_eq!(index.longest_prefix(prompt), longest_prefix(&plain, prompt));
                for found in index.prefix_matches(prompt) {
                    prop_assert_eq!(found.by_level.iter().sum::<u32>(), found.blocks);
                }
            }
        }
        prop_assert_eq!(index.dropped(), 0);
    }

    /// Scenario: random changes to an index with little room.
    /// Guarantees: entries never pass the bound, each addition that did not fit is counted, and no prefix is overstated.
    #[test]
    fn the_bound_understates_and_counts(epochs in toggles(), prompt in prop::collection::vec(0..8u64, 1..6)) {
        let (index, mut plain) = (index(6), BTreeSet::new());
        for toggled in epochs {
            let changes: Vec<(CacheKey, i64)> =
                toggled.into_iter().map(|key| (key, if plain.insert(key) { 1 } else { plain.remove(&key); -1 })).collect();
            let (before, room) = (index.dropped(), 6);
            index.apply(&changes);
            prop_assert!(index.entries() <= room);
            let missing = plain.len() - index.entries();
            prop_assert!(missing == 0 || index.dropped() > 0);
            prop_assert!(index.dropped() - before <= changes.iter().filter(|(_, diff)| *diff > 0).count() as u64);
            let exact = longest_prefix(&plain, &prompt);
            for (instance, blocks) in index.longest_prefix(&prompt) {
                prop_assert!(exact.iter().any(|(held, most)| *held == instance && *most >= blocks));
            }
        }
    }
}

/// Scenario: a block held at two levels of one instance, the lower level first removed, then added again.
/// Guarantees: it counts once, at the lowest level that holds it.
#[test]
fn the_lowest_level_serves() {
    let index = index(10);
    index.apply(&[((1, 0, 3), 1), ((1, 0, 1), 1)]);
    assert_eq!(index.prefix_matches(&[1])[0].by_level[1], 1);
    index.apply(&[((1, 0, 1), -1)]);
    assert_eq!(index.prefix_matches(&[1])[0].by_level[3], 1);
    assert_eq!(index.longest_prefix(&[1, 2]), vec![(0, 1)]);
}

/// Scenario: 20 000 blocks of 40 instances in segments of 40 slots, then most of them removed, then others in their place,
/// with shared prefixes.
/// Guarantees: through all splits, copies and reused sets every block has exactly its holders, and no place is lost.
#[test]
fn a_large_index_is_exact() {
    let index = PrefixIndex::new(PrefixIndexConfig { max_entries: 1 << 20, segment_buckets: 8, seed: 3 });
    let mut plain = BTreeSet::new();
    for round in 0..6u64 {
        let mut changes = Vec::new();
        for number in 0..20_000u64 {
            // Each block has between none and five holders, others in each round.
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for holder in 0..(number + round) % 6 {
                let key = (hash, ((number / 500 + holder * 7 + round) % 40) as u32, (holder % 3) as u8);
                let diff = if plain.insert(key) {
                    1
                } else {
                    plain.remove(&key);
                    -1
                };
                changes.push((key, diff));
            }
        }
        changes.sort_unstable();
        index.apply(&changes);
        assert_eq!((index.entries(), index.dropped()), (plain.len(), 0), "round {round}");
        for number in 0..20_000u64 {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let held: BTreeSet<u32> = plain.range((hash, 0, 0)..=(hash, u32::MAX, 7)).map(|(_, id, _)| *id).collect();
            let found: BTreeSet<u32> = index.longest_prefix(&[hash]).into_iter().map(|(id, _)| id).collect();
            assert_eq!(found, held, "block {number} in round {round}");
        }
    }
}

/// Scenario: instances, levels and blocks that the table has no place for.
/// Guarantees: they are dropped and counted, and nothing else changes.
#[test]
fn what_has_no_place_is_counted() {
    let index = index(10);
    index.apply(&[((1, u32::MAX, 1), 1), ((1, 3, 200), 1), ((2, 3, 1), 1)]);
    assert_eq!((index.entries(), index.dropped()), (1, 2));
    index.apply(&[((1, u32::MAX, 1), -1), ((9, 3, 1), -1)]);
    assert_eq!((index.entries(), index.longest_prefix(&[2])), (1, vec![(3, 1)]));
}

/// Scenario: four threads look up a prefix whose first block stays while a writer adds and removes the rest.
/// Guarantees: the block that stays is always found, nobody waits for ever, and the end state is exact.
#[test]
fn readers_go_on_while_a_writer_changes_the_index() {
    let index = index(10_000);
    let chain: Vec<u64> = (0..64).collect();
    index.apply(&[((0, 9, 1), 1), ((0, 8, 1), 1)]);
    // Other holders each time, so that sets end and their places are used again while readers look at them.
    let others = |round: u32| -> Vec<_> { chain.iter().map(|hash| ((*hash, 10 + round % 7, 1), 1)).collect() };
    let rest = |diff: i64| -> Vec<_> {
        chain[1..].iter().flat_map(|hash| [((*hash, 9, 1), diff), ((*hash, 8, 1), diff)]).collect()
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let found = index.longest_prefix(&chain);
                    assert_eq!(found.len(), 2);
                    assert!(
                        found.iter().all(|(id, blocks)| (8..=9).contains(id) && (1..=64).contains(blocks)),
                        "{found:?}"
                    );
                }
            });
        }
        for round in 0..100 {
            index.apply(&rest(1));
            let others = others(round);
            index.apply(&others[1..]);
            index.apply(&rest(-1));
            index.apply(&others[1..].iter().map(|(key, _)| (*key, -1)).collect::<Vec<_>>());
        }
    });
    index.apply(&rest(1));
    assert_eq!(index.longest_prefix(&chain), vec![(8, 64), (9, 64)]);
}
