//! Recorded KV events of vLLM against the gateway's own hashes (SPEC C4).

use std::fs;

use operators::KvChange;
use pipeline::dataflow::foreign::{ForeignEngine, ForeignWire};
use rmpv::Value;
use serde_json::Value as Json;

/// The recorded event as its engine would have sent it.
fn payload(event: &Json, wire: &str) -> Vec<u8> {
    let numbers = |name: &str| -> Value {
        event[name]
            .as_array()
            .unwrap()
            .iter()
            .map(|number| Value::from(number.as_u64().unwrap()))
            .collect::<Vec<_>>()
            .into()
    };
    let text = |name: &str| event[name].as_str().map_or(Value::Nil, Value::from);
    let size = Value::from(event["block_size"].as_u64().unwrap());
    let fields = [
        ("block_hashes", numbers("block_hashes")),
        ("parent_block_hash", Value::Nil),
        ("token_ids", numbers("token_ids")),
        ("block_size", size),
        ("lora_id", Value::Nil),
        ("medium", text("medium")),
        ("lora_name", text("lora_name")),
    ];
    let event = match wire {
        "array" => std::iter::once(Value::from("BlockStored"))
            .chain(fields.into_iter().map(|(_, value)| value))
            .collect::<Vec<_>>()
            .into(),
        _ => {
            let tag = std::iter::once((Value::from("type"), Value::from("BlockStored")));
            Value::Map(tag.chain(fields.into_iter().map(|(name, value)| (Value::from(name), value))).collect())
        }
    };
    let mut bytes = Vec::new();
    let batch = Value::Array(vec![Value::from(0.5), Value::Array(vec![event]), Value::Nil]);
    rmpv::encode::write_value(&mut bytes, &batch).unwrap();
    bytes
}

/// Scenario: recorded `BlockStored` events of vLLM, without and with an adapter, in both wire shapes.
/// Guarantees: the 25 blocks of the plain one are those whose hashes the gateway computes for the same tokens; those of the
/// adapter are none of them; the shapes agree.
#[test]
fn recorded_events_of_vllm() {
    let mut plain = Vec::new();
    for name in ["base", "lora"] {
        let file = format!("data/kv-events/vllm_blockstored_qwen3-0.6b_seed42_{name}.json");
        let Some(path) = tests::shared_data::find(&file) else { return };
        let event: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let tokens: Vec<u32> =
            event["token_ids"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap() as u32).collect();
        let gateway: Vec<u64> =
            engine::block_hash::prompt_block_hashes(&tokens, 16, 0).into_iter().map(|hash| hash.0).collect();
        let shapes: Vec<Vec<u64>> = ["array", "map"]
            .into_iter()
            .map(|wire| {
                let out = ForeignWire::new(ForeignEngine::Vllm, 1, 1, 16).live(0, &payload(&event, wire));
                assert_eq!(out.refused, []);
                let hash = |change: &KvChange| match change {
                    KvChange::Stored { hash, level: 0, tokens: 16, .. } => *hash,
                    other => panic!("{other:?}"),
                };
                out.rows.iter().map(|row| hash(&row.event)).collect()
            })
            .collect();
        assert_eq!((shapes[0].len(), &shapes[0]), (25, &shapes[1]));
        if name == "base" {
            assert_eq!(shapes[0], gateway);
            plain.clone_from(&shapes[0]);
        } else {
            assert!(shapes[0].iter().all(|hash| !plain.contains(hash)));
        }
    }
}
