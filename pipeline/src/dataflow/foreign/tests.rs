//! Foreign KV events: golden bytes, both shapes, hashes, order, and hostile input.

use engine::block_hash::prompt_block_hashes;
use operators::KvChange;
use proptest::prelude::*;
use rmpv::Value;

use super::*;

/// Bytes of SGLang's own publisher, with what they mean (SGLang is Apache-2.0; its router's wire tests).
const GOLDEN: [&str; 5] = [
    "93cb405edd2f1a9fbe779197ab426c6f636b53746f72656492cf0000011f71fb04cbd2c521974f2a940a141e280407a347505502",
    "93cb00000000000000009197ab426c6f636b53746f72656493010203c092050610c0c0c0",
    "93cb3ff00000000000009193ac426c6f636b52656d6f7665649264ccc8a44449534b00",
    "93cb40000000000000009191b0416c6c426c6f636b73436c6561726564c0",
    "93cb4058c000000000009397ab426c6f636b53746f726564910a0192010202c0a347505593ac426c6f636b52656d6f7665649114c091b0416c6c426c6f636b73436c656172656403",
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn sound(engine: ForeignEngine, payload: &[u8]) -> Vec<ForeignEvent> {
    decode(engine, payload).unwrap().into_iter().map(Result::unwrap).collect()
}

fn stored(hashes: Vec<u64>, parent: Option<u64>, tokens: Vec<u32>, block_size: usize) -> ForeignStored {
    ForeignStored { hashes, parent, tokens, block_size, level: 0, group: 0, scope: Vec::new(), extra: Vec::new() }
}

/// Scenario: the five recorded batches of SGLang. Guarantees: each event means what its publisher says.
#[test]
fn golden_batches_of_sglang() {
    let events: Vec<_> = GOLDEN.iter().map(|hex| sound(ForeignEngine::Sglang, &bytes(hex))).collect();
    let ForeignEvent::Stored(full) = &events[0][0] else { panic!("{:?}", events[0]) };
    let scope = [b"lora_id".as_slice(), &[7]].concat();
    let hashes = vec![1_234_567_890_123, -987_654_321_i64 as u64];
    assert_eq!(*full, ForeignStored { scope, ..stored(hashes, Some(42), vec![10, 20, 30, 40], 4) });
    assert_eq!(events[1], [ForeignEvent::Stored(stored(vec![1, 2, 3], None, vec![5, 6], 16))]);
    assert_eq!(events[2], [ForeignEvent::Removed { hashes: vec![100, 200], level: 2, group: 0 }]);
    assert_eq!(events[3], [ForeignEvent::Cleared]);
    assert_eq!(
        events[4],
        [
            ForeignEvent::Stored(stored(vec![10], Some(1), vec![1, 2], 2)),
            ForeignEvent::Removed { hashes: vec![20], level: 0, group: 0 },
            ForeignEvent::Cleared,
        ]
    );
}

fn list(values: &[u64]) -> Value {
    Value::Array(values.iter().map(|value| Value::from(*value)).collect())
}

fn batch(events: Vec<Value>) -> Vec<u8> {
    let mut payload = Vec::new();
    let batch = Value::Array(vec![Value::from(1.5), Value::Array(events), Value::Nil]);
    rmpv::encode::write_value(&mut payload, &batch).unwrap();
    payload
}

/// A store of plain blocks as an array.
fn store(hashes: &[u64], parent: Option<u64>, tokens: &[u64], block_size: u64) -> Value {
    let parent = parent.map_or(Value::Nil, Value::from);
    Value::Array(vec!["BlockStored".into(), list(hashes), parent, list(tokens), block_size.into()])
}

fn remove(hashes: &[u64]) -> Value {
    Value::Array(vec!["BlockRemoved".into(), list(hashes)])
}

/// Scenario: the same event of vLLM as a map and as an array with everything at its end; hashes as bytes; place 7 read as
/// either engine has it; a medium nobody knows.
/// Guarantees: both shapes give the same; bytes count by their last 8; the adapter's name of one is not the salt of the
/// other; the unknown medium is refused and named, and the rest of the batch is taken.
#[test]
fn both_shapes_of_vllm() {
    let digest: Vec<u8> = (0..32).collect();
    let hashes = Value::Array(vec![Value::Binary(digest)]);
    let tail = [Value::from(3), "GPU".into(), "Alice".into(), Value::Array(vec![Value::Nil]), "x".into(), 1.into()];
    let head = ["BlockStored".into(), hashes.clone(), Value::from(9), list(&[1, 2]), Value::from(2)];
    let array = Value::Array(head.into_iter().chain(tail).collect());
    let map = Value::Map(vec![
        ("type".into(), "BlockStored".into()),
        ("block_hashes".into(), hashes),
        ("parent_block_hash".into(), 9.into()),
        ("token_ids".into(), list(&[1, 2])),
        ("block_size".into(), 2.into()),
        ("lora_id".into(), 3.into()),
        ("medium".into(), "GPU".into()),
        ("lora_name".into(), "Alice".into()),
        ("extra_keys".into(), Value::Array(vec![Value::Nil])),
        ("group_idx".into(), 1.into()),
    ]);
    let both = sound(ForeignEngine::Vllm, &batch(vec![array.clone(), map]));
    assert_eq!(both[0], both[1]);
    let ForeignEvent::Stored(event) = &both[0] else { panic!("{both:?}") };
    assert_eq!((event.hashes[0], event.group, event.extra.as_slice()), (0x1819_1a1b_1c1d_1e1f, 1, &[Vec::new()][..]));
    let ForeignEvent::Stored(other) = sound(ForeignEngine::Sglang, &batch(vec![array])).remove(0) else { panic!() };
    assert_ne!(other.scope, event.scope);
    let odd = Value::Array(vec!["BlockRemoved".into(), list(&[1]), "REMOTE".into()]);
    let events = decode(ForeignEngine::Vllm, &batch(vec![odd, remove(&[2])])).unwrap();
    let error = events[0].as_ref().unwrap_err();
    assert_eq!((error.field, error.value.as_str(), events[1].is_ok()), ("medium", "\"REMOTE\"", true));
}

fn names(rows: &[KvChange]) -> Vec<u64> {
    rows.iter()
        .filter_map(|change| if let KvChange::Stored { hash, .. } = change { Some(*hash) } else { None })
        .collect()
}

/// Scenario: a foreign chain with blocks of twice our size, told child first; one block again at another level without
/// tokens; the same text under an adapter; another size.
/// Guarantees: the hashes are those that the gateway computes for the same tokens; the child waits for its parent; the
/// adapter's are others; the size that is no multiple is refused.
#[test]
fn hashes_become_ours() {
    let tokens: Vec<u32> = (100..164).collect();
    let own: Vec<u64> = prompt_block_hashes(&tokens, 16, 0).into_iter().map(|hash| hash.0).collect();
    let mut chain = ForeignChain::new(16);
    let mut take = |event: ForeignStored| {
        let mut changes = Vec::new();
        let result = chain.take(ForeignEvent::Stored(event), &mut changes);
        (names(&changes), result.err().map(|error| error.field), chain.orphans())
    };
    assert_eq!(take(stored(vec![2], Some(1), tokens[32..].to_vec(), 32)), (vec![], None, 1));
    assert_eq!(take(stored(vec![1], None, tokens[..32].to_vec(), 32)), (own.clone(), None, 0));
    let lower = ForeignStored { level: 1, ..stored(vec![2, 7], None, Vec::new(), 32) };
    assert_eq!(take(lower), (own[2..].to_vec(), Some("token_ids"), 0));
    let adapter = ForeignStored { scope: vec![1], ..stored(vec![3], None, tokens[..32].to_vec(), 32) };
    let (other, ..) = take(adapter);
    assert!(other.len() == 2 && other.iter().all(|hash| !own.contains(hash)));
    assert_eq!(take(stored(vec![4], None, tokens[..24].to_vec(), 24)), (vec![], Some("block_size"), 0));
    assert_eq!(take(stored(vec![1], None, tokens[32..].to_vec(), 32)), (vec![], Some("block_hashes"), 0));
    let mut changes = Vec::new();
    for _ in 0..3 {
        chain.take(ForeignEvent::Removed { hashes: vec![2], level: 0, group: 0 }, &mut changes).unwrap();
    }
    assert_eq!((changes.len(), chain.known()), (4, 2), "stored twice, removed twice; the third is of nobody");
}

/// Scenario: batches in order, one twice, one early, the missing one replayed; then the numbers fall back; then a gap that
/// nobody can fill.
/// Guarantees: each batch counts once, in order; the gap is asked for; the restart begins a new incarnation, empty; the
/// view after the lost batch begins another, whose content is not known.
#[test]
fn order_restarts_and_gaps_of_a_wire() {
    let tokens: Vec<u64> = (0..16).collect();
    let block = |hash: u64| batch(vec![store(&[hash], None, &tokens, 16)]);
    let mut wire = ForeignWire::new(ForeignEngine::Vllm, 5, 100, 16);
    let kinds = |out: &ForeignRows| -> Vec<(u64, u64, bool)> {
        out.rows.iter().map(|row| (row.epoch, row.seq, matches!(row.event, KvChange::Stored { .. }))).collect()
    };
    assert_eq!(kinds(&wire.live(0, &block(1))), [(100, 1, true)]);
    assert_eq!(wire.live(0, &block(1)), ForeignRows::default());
    let early = wire.live(2, &block(3));
    assert_eq!((early.rows.len(), early.replay), (0, Some((1, 1))));
    assert_eq!(kinds(&wire.replayed(1, &block(2))), [(100, 2, true), (100, 3, true)]);
    let restarted = wire.live(0, &block(9));
    assert_eq!(
        (kinds(&restarted), restarted.rows[0].event),
        (vec![(101, 1, false), (101, 2, true)], KvChange::Cleared)
    );
    assert_eq!(wire.live(4, &block(4)).replay, Some((1, 3)));
    let lost = wire.replay_ended();
    assert_eq!((kinds(&lost), lost.rows[0].event), (vec![(102, 1, false), (102, 2, true)], KvChange::Void));
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0..40u64).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "BlockStored",
            "BlockRemoved",
            "AllBlocksCleared",
            "GPU",
            "type",
            "block_hashes",
            "token_ids",
            "block_size",
            "medium",
        ])
        .prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
    ];
    leaf.prop_recursive(4, 64, 12, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..12).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..12).prop_map(Value::Map),
        ]
    })
}

/// Events that are nearly right.
fn likely_event() -> impl Strategy<Value = Value> {
    let hashes = prop::collection::vec(0..20u64, 0..4);
    let stored = (hashes.clone(), prop::option::of(0..20u64), prop::collection::vec(0..9u64, 0..12), 0..6u64)
        .prop_map(|(hashes, parent, tokens, size)| store(&hashes, parent, &tokens, size));
    let cleared = Just(Value::Array(vec!["AllBlocksCleared".into()]));
    prop_oneof![6 => stored, 3 => hashes.prop_map(|hashes| remove(&hashes)), 1 => cleared, 2 => value()]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Scenario: any bytes, any values, and likely batches with a byte changed or their end cut off, in any order, live and
    /// replayed. Guarantees: never a panic; rows of an incarnation count from 1 without gaps; what waits is bounded.
    #[test]
    fn hostile_wires_are_refused(
        batches in prop::collection::vec((
            prop_oneof![6 => 0..12u64, 1 => any::<u64>()],
            prop_oneof![
                1 => prop::collection::vec(any::<u8>(), 0..64),
                1 => value().prop_map(|value| { let mut b = Vec::new(); rmpv::encode::write_value(&mut b, &value).unwrap(); b }),
                6 => prop::collection::vec(likely_event(), 0..5).prop_map(batch),
            ],
            any::<prop::sample::Index>(), prop_oneof![4 => Just(None), 1 => any::<u8>().prop_map(Some)], 0..8u8,
        ), 0..24),
        sglang in any::<bool>(),
    ) {
        let engine = if sglang { ForeignEngine::Sglang } else { ForeignEngine::Vllm };
        let mut wire = ForeignWire::new(engine, 1, 1, 2);
        let (mut incarnation, mut seq) = (1, 0);
        for (number, mut payload, place, damage, way) in batches {
            match damage {
                Some(0) if !payload.is_empty() => payload.truncate(place.index(payload.len())),
                Some(flip) if !payload.is_empty() => { let at = place.index(payload.len()); payload[at] ^= flip; }
                _ => {}
            }
            let out = match way {
                0 => wire.replay_ended(),
                1 => wire.replayed(number, &payload),
                _ => wire.live(number, &payload),
            };
            for row in &out.rows {
                seq = if row.epoch == incarnation { seq + 1 } else { 1 };
                incarnation = row.epoch;
                prop_assert_eq!(row.seq, seq);
            }
            prop_assert!(out.replay.is_none_or(|(from, to)| from <= to));
        }
    }
}
