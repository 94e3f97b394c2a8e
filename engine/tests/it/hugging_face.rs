//! Hugging Face folders: every family against logits of an independent computation in float64
//! (`fixtures/make_families.py`), tokenizers against those of the same vocabulary in GGUF, broken files.

use std::{collections::HashMap, path::Path, sync::LazyLock};

use engine::{
    model::{
        Arithmetic, Family, Gguf, Model,
        tiny::{tiny_gguf, tiny_llama_gguf},
    },
    runner::cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer, TokenizerError},
};
use half::{bf16, f16};
use proptest::prelude::*;
use safetensors::{Dtype, tensor::TensorView};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::data::{slot, step};

#[derive(Deserialize)]
struct Fixture {
    tokens: Vec<u32>,
    families: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    family: String,
    config: Value,
    /// Name, sizes, data type.
    tensors: Vec<(String, Vec<usize>, String)>,
    /// Position, and the logits there.
    logits: Vec<(usize, Vec<f32>)>,
}

static FIXTURE: LazyLock<Fixture> =
    LazyLock::new(|| serde_json::from_str(include_str!("../fixtures/families.json")).unwrap());

/// The generator of `make_families.py`.
fn generated(name: &str, len: usize) -> Vec<f32> {
    let mut state = name.bytes().fold(0u64, |state, byte| state.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % 129) as f32 / 256.0 - 0.25
    };
    (0..len).map(|_| next()).collect()
}

fn stored(case: &Case, (name, sizes, dtype): &(String, Vec<usize>, String)) -> (Dtype, Vec<u8>) {
    let mut values = generated(name, sizes.iter().product());
    if name.ends_with("norm.weight") && case.family != "gemma3" {
        values.iter_mut().for_each(|value| *value += 1.0);
    }
    match dtype.as_str() {
        "F32" => (Dtype::F32, values.iter().flat_map(|value| value.to_le_bytes()).collect()),
        "F16" => (Dtype::F16, values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect()),
        "BF16" => (Dtype::BF16, values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect()),
        other => panic!("data type {other}"),
    }
}

/// Writes a case as a folder, its tensors dealt over `shards` files.
fn write(case: &Case, folder: &Path, shards: usize) {
    let mut weight_map = HashMap::new();
    for shard in 0..shards {
        let file = if shards == 1 { "model.safetensors".to_owned() } else { format!("model-{shard}.safetensors") };
        let mine = case.tensors.iter().skip(shard).step_by(shards);
        let data: Vec<_> = mine.map(|tensor| (tensor, stored(case, tensor))).collect();
        let views = data.iter().map(|((name, sizes, _), (dtype, bytes))| {
            (name.clone(), TensorView::new(*dtype, sizes.clone(), bytes).unwrap())
        });
        std::fs::write(folder.join(&file), safetensors::serialize(views, None).unwrap()).unwrap();
        weight_map.extend(data.iter().map(|((name, ..), _)| (name.clone(), file.clone())));
    }
    if shards > 1 {
        let index = json!({"weight_map": weight_map}).to_string();
        std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    }
    std::fs::write(folder.join("config.json"), case.config.to_string()).unwrap();
}

fn case(family: &str) -> &'static Case {
    FIXTURE.families.iter().find(|case| case.family == family).unwrap()
}

/// Scenario: a small random model of each family in F32, F16 and BF16 mixed, in one file and in three, with Llama 3.x
/// scaling, biases, head norms, local layers and linear scaling among them; 44 tokens.
/// Guarantees: the logits of the independent computation, within 1e-4 of a spread of a few units.
#[test]
fn every_family_is_the_independent_computation() {
    assert_eq!(FIXTURE.families.len(), Family::ALL.len());
    for case in &FIXTURE.families {
        let mut worst = 0.0f32;
        for shards in [1, 3] {
            let folder = tempfile::tempdir().unwrap();
            write(case, folder.path(), shards);
            let model = Model::load(folder.path(), Arithmetic::F32).unwrap();
            let options = CpuRunnerOptions { threads: 2, block_size: 4, blocks: 16, kv_dtype: KvDtype::F32 };
            let mut runner = CpuRunner::new(model, options).unwrap();
            let blocks: Vec<u32> = (0..16).collect();
            for (position, want) in &case.logits {
                let tokens = &FIXTURE.tokens[..position + 1];
                let got = step(&mut runner, vec![slot(1, (tokens, 0), &blocks)]).remove(0);
                assert_eq!(got.len(), want.len());
                for (got, want) in got.iter().zip(want) {
                    worst = worst.max((got - want).abs());
                    assert!((got - want).abs() < 1e-4, "{} at {position}: {got} instead of {want}", case.family);
                }
            }
        }
        println!("{}: worst difference {worst}", case.family);
    }
}

/// Scenario: folders with a field, a tensor or a file that is wrong or not built.
/// Guarantees: each is refused with its name, its value and what would be right.
#[test]
fn wrong_folders_are_refused() {
    let refusal = |family: &str, change: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        write(case(family), folder.path(), 3);
        change(folder.path());
        Model::load(folder.path(), Arithmetic::F32).unwrap_err().to_string()
    };
    let set = |family: &'static str, field: &'static str, value: Value| {
        refusal(family, &move |folder: &Path| {
            let mut config = case(family).config.clone();
            config[field] = value.clone();
            std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        })
    };
    for (message, wanted) in [
        (set("qwen3", "model_type", json!("mamba")), "config.json: model_type is \"mamba\", expected one of llama"),
        (set("qwen3", "hidden_size", json!(null)), "config.json: hidden_size is missing"),
        (set("qwen3", "hidden_act", json!("relu")), "hidden_act is \"relu\", expected \"silu\""),
        (set("qwen3", "quantization_config", json!({"bits": 4})), "quantization_config is set, expected none"),
        (set("qwen3", "rope_parameters", json!({"rope_type": "yarn"})), "rope_type is \"yarn\""),
        (set("qwen3", "num_hidden_layers", json!(2)), "model of 2 layers"),
        (set("qwen3", "head_dim", json!(16)), "expected"),
        (set("qwen2", "use_sliding_window", json!(true)), "a Qwen2 model has no local layers"),
        (set("gemma3", "final_logit_softcapping", json!(30.0)), "no capping of logits is built"),
        (set("gemma3", "layer_types", json!(["full_attention", "sliding_attention"])), "layer_types"),
        (set("qwen2", "tie_word_embeddings", json!(false)), "tensor lm_head.weight is missing"),
        (refusal("llama", &|folder| std::fs::remove_file(folder.join("model-1.safetensors")).unwrap()), "model-1"),
        (
            refusal("llama", &|folder| {
                let index = json!({"weight_map": {"x": "../model.safetensors"}}).to_string();
                std::fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
            }),
            "expected the name of a file in this folder",
        ),
    ] {
        assert!(message.contains(wanted), "{message:?} does not say {wanted:?}");
    }
}

/// The parts of a test model's vocabulary, as tokenizer.json writes them.
fn vocabulary(gguf: &Gguf) -> (Value, Vec<Value>) {
    let names = gguf.find_texts("tokenizer.ggml.tokens").unwrap().unwrap();
    let kinds = gguf.find_ints("tokenizer.ggml.token_type").unwrap().unwrap();
    let added = names.iter().zip(kinds).enumerate().filter(|(_, (_, kind))| matches!(kind, 3 | 4));
    let added = added.map(|(id, (name, kind))| {
        json!({"id": id, "content": name, "special": *kind == 3, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false})
    });
    let added = added.collect();
    (
        names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id))).collect::<serde_json::Map<_, _>>().into(),
        added,
    )
}

/// The test models' vocabularies, byte-level and pieces, as GGUF and as tokenizer.json.
fn twins() -> [(Gguf, Value); 2] {
    let bytes = Gguf::from_bytes(tiny_llama_gguf(1)).unwrap();
    let (vocab, added) = vocabulary(&bytes);
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let byte_json = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null, "decoder": byte_level,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "model": {"type": "BPE", "vocab": vocab,
            "merges": bytes.find_texts("tokenizer.ggml.merges").unwrap().unwrap()},
    });
    let pieces = Gguf::from_bytes(tiny_gguf(Family::Gemma3, 1)).unwrap();
    let (vocab, added) = vocabulary(&pieces);
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let back = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let first = json!([{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let piece_json = json!({
        "version": "1.0", "added_tokens": added, "normalizer": spaces, "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing", "single": first, "pair": first,
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true, "vocab": vocab,
            "merges": ["t h", "th e", "▁ the", "i n", "a n", "an d", "▁ and", "e r"]},
    });
    [(bytes, byte_json), (pieces, piece_json)]
}

/// A tokenizer of the folder that has this tokenizer.json.
fn from_json(tokenizer: &str) -> Result<Tokenizer, TokenizerError> {
    let folder = tempfile::tempdir().unwrap();
    write(case("qwen3"), folder.path(), 1);
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    Tokenizer::from_gguf(&Gguf::open(folder.path()).unwrap())
}

/// Scenario: the vocabularies of the test models, byte-level and pieces, once from GGUF and once as tokenizer.json.
/// Guarantees: the same ids and bytes for any text, and the same control tokens.
#[test]
fn a_tokenizer_json_is_its_gguf_twin() {
    for (gguf, json) in twins() {
        let (ours, theirs) = (Tokenizer::from_gguf(&gguf).unwrap(), from_json(&json.to_string()).unwrap());
        assert_eq!(ours.vocab_size(), theirs.vocab_size());
        for id in 0..ours.vocab_size() as u32 {
            assert_eq!(ours.token_bytes(id), theirs.token_bytes(id), "token {id}");
            assert_eq!(ours.is_special(id), theirs.is_special(id), "token {id}");
        }
        for text in ["", "the other and 12", "  in\n\n\nand", "é日z𝔢\t", "<|im_end|> <end_of_turn>the<bos>", "<0x41>"]
        {
            for (add, parse) in [
                (AddSpecial::AsModel, ParseSpecial::Control),
                (AddSpecial::Never, ParseSpecial::Plain),
                (AddSpecial::AsModel, ParseSpecial::Plain),
            ] {
                let want = ours.encode(text, add, parse).unwrap();
                assert_eq!(want, theirs.encode(text, add, parse).unwrap(), "{text:?} {add:?} {parse:?}");
            }
        }
    }
}

/// Scenario: a tokenizer.json with a character replaced by a digit, a quote or a bracket, or cut.
/// Guarantees: an error or a tokenizer that encodes or says why not; never a panic.
#[test]
fn a_tokenizer_json_may_be_wrong() {
    for (_, json) in twins() {
        let text = json.to_string();
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(11).collect();
        let mut usable = 0;
        for (number, at) in places.iter().enumerate() {
            let end = at + text[*at..].chars().next().map_or(0, char::len_utf8);
            let broken = [&text[..*at], ["7", "\"", "]"][number % 3], &text[end..]].concat();
            if let Ok(tokenizer) = from_json(&broken) {
                usable += 1;
                // An error is as good as ids here.
                let _ = tokenizer.encode("the <bos> é\n\n", AddSpecial::AsModel, ParseSpecial::Control);
            }
        }
        println!("{} files, {usable} still usable", places.len());
        assert!(usable > 0 && from_json(&text[..text.len() / 2]).is_err());
    }
}

/// Loads a folder and, if that works, computes with it.
fn exercise(folder: &Path) -> bool {
    let Ok(model) = Model::load(folder, Arithmetic::F32) else { return false };
    let options = CpuRunnerOptions { threads: 1, block_size: 4, blocks: 2, kv_dtype: KvDtype::F32 };
    let Ok(mut runner) = CpuRunner::new(model.clone(), options) else { return false };
    if model.config().context < 3 || model.vocab() < 8 {
        return false;
    }
    step(&mut runner, vec![slot(1, (&[0, 5, 7], 0), &[1, 0])]);
    true
}

/// Scenario: every byte of a safetensors header, and of config.json, in turn with a bit flipped or made a digit; files
/// cut.
/// Guarantees: an error or a usable model, never a panic.
#[test]
fn every_header_byte_may_be_wrong() {
    for name in ["model.safetensors", "config.json"] {
        let folder = tempfile::tempdir().unwrap();
        write(case("gemma3"), folder.path(), 1);
        assert!(exercise(folder.path()));
        let path = folder.path().join(name);
        let file = std::fs::read(&path).unwrap();
        let header = match name {
            "config.json" => file.len(),
            _ => 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize,
        };
        let mut usable = 0;
        for at in 0..header {
            let mut broken = file.clone();
            broken[at] = if at % 3 == 0 { b'9' } else { file[at] ^ (1 << (at % 8)) };
            std::fs::write(&path, &broken).unwrap();
            usable += usize::from(exercise(folder.path()));
        }
        println!("{name}: {header} bytes, {usable} of the files still usable");
        for len in (0..header).step_by(31).chain([header, file.len() - 1]).filter(|len| *len < file.len()) {
            std::fs::write(&path, &file[..len]).unwrap();
            assert!(Model::load(folder.path(), Arithmetic::F32).is_err(), "{name} cut to {len} bytes");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Scenario: a header whose tensors claim any offsets, sizes near 2^61 among them.
    /// Guarantees: an error or a usable model, never a panic or an overflow.
    #[test]
    fn wild_offsets_are_refused(ends in prop::collection::vec(prop_oneof![any::<u64>(), 0..100u64, Just(1 << 61)], 1..10)) {
        let folder = tempfile::tempdir().unwrap();
        write(case("qwen3"), folder.path(), 1);
        let (mut header, mut from) = (serde_json::Map::new(), 0u64);
        for (index, len) in ends.iter().enumerate() {
            let end = from.saturating_add(*len);
            header.insert(format!("t{index}"), json!({"dtype": "U8", "shape": [end - from], "data_offsets": [from, end]}));
            from = end;
        }
        let header = Value::from(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
        prop_assert!(Model::load(folder.path(), Arithmetic::F32).is_err());
    }
}
