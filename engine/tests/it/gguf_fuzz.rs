//! Broken model files: each byte of a header flipped, files cut anywhere. The answer is an error or a model that works;
//! never a panic, a read out of range or a huge allocation.

use std::{io::Write as _, os::unix::fs::FileExt as _};

use engine::{
    chat_template::{AddGenerationPrompt, ChatMessage, ChatTemplate},
    model::{
        Arithmetic, Family, Gguf, Model,
        tiny::{tiny_gguf, tiny_llama_gguf},
    },
    runner::{
        ModelRunner,
        cpu::{CpuRunner, CpuRunnerOptions, KvDtype},
    },
    tokenizer::{AddSpecial, ParseSpecial, Tokenizer},
};
use proptest::prelude::*;

use crate::data::{slot, smollm2, step};

/// Everything that a server does with a file. `true` if the model could be used.
fn exercise(bytes: Vec<u8>) -> bool {
    let Ok(gguf) = Gguf::from_bytes(bytes) else { return false };
    let tokenizer = Tokenizer::from_gguf(&gguf);
    if let Ok(tokenizer) = &tokenizer {
        let ids = tokenizer.encode("the end <|im_end|> é", AddSpecial::AsModel, ParseSpecial::Control).unwrap();
        tokenizer.decode(&ids);
    }
    let Ok(model) = Model::from_gguf(gguf, Arithmetic::Int8) else { return false };
    if let Some(template) = model.chat_template().and_then(|source| ChatTemplate::new(source, "", "").ok()) {
        // An error is as good as a text here.
        let _ = template.render(&[ChatMessage::text("user", "x")], None, AddGenerationPrompt::Yes);
    }
    let options = CpuRunnerOptions { threads: 1, block_size: 4, blocks: 2, kv_dtype: KvDtype::F32 };
    let Ok(mut runner) = CpuRunner::new(model.clone(), options) else { return false };
    if model.config().context < 6 {
        return false;
    }
    let logits = step(&mut runner, vec![slot(1, (&[0, 5, 7], 0), &[1, 0])]);
    assert_eq!(logits[0].len(), runner.shape().vocab);
    true
}

/// Bytes before the first tensor's data.
fn header_len(file: &[u8]) -> usize {
    let gguf = Gguf::from_bytes(file.to_vec()).unwrap();
    gguf.tensors().values().map(|tensor| tensor.offset).min().unwrap()
}

/// Scenario: the untouched test file.
/// Guarantees: it works, so the other tests start from something that does.
#[test]
fn the_untouched_file_works() {
    assert!(exercise(tiny_llama_gguf(1)));
    assert_eq!(tiny_llama_gguf(3), tiny_llama_gguf(3));
    assert_ne!(tiny_llama_gguf(3), tiny_llama_gguf(4));
}

/// Scenario: every byte of the header in turn: one bit flipped, all bits set, all cleared.
/// Guarantees: an error or a usable model.
#[test]
fn every_header_byte_may_be_wrong() {
    let file = tiny_llama_gguf(1);
    let (mut usable, len) = (0, header_len(&file));
    for at in 0..len {
        for change in [file[at] ^ (1 << (at % 8)), 0xFF, 0] {
            let mut broken = file.clone();
            broken[at] = change;
            usable += usize::from(exercise(broken));
        }
    }
    println!("{len} header bytes, {usable} of {} files still usable", 3 * len);
    assert!(usable > 0);
}

/// Scenario: every byte of the header of Gemma's test file, which has SentencePiece pieces and local layers.
/// Guarantees: an error or a usable model.
#[test]
fn every_header_byte_of_gemma_may_be_wrong() {
    let file = tiny_gguf(Family::Gemma3, 1);
    assert!(exercise(file.clone()));
    for at in 0..header_len(&file) {
        let mut broken = file.clone();
        broken[at] = if at % 3 == 0 { 0xFF } else { file[at] ^ (1 << (at % 8)) };
        exercise(broken);
    }
}

/// Scenario: the file cut at every length of its header, and at some of its data.
/// Guarantees: an error that says what is missing.
#[test]
fn a_cut_file_is_refused() {
    let file = tiny_llama_gguf(1);
    let header = header_len(&file);
    for len in (0..header).chain((header..file.len()).step_by(997)) {
        let error = Gguf::from_bytes(file[..len].to_vec()).unwrap_err().to_string();
        assert!(error.contains("left") || error.contains("inside the file"), "{len}: {error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Scenario: some bytes anywhere in the header replaced at the same time, eight-byte numbers made huge.
    /// Guarantees: an error or a usable model.
    #[test]
    fn several_bytes_may_be_wrong(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        number: Option<(prop::sample::Index, u64)>,
    ) {
        let mut file = tiny_llama_gguf(1);
        let len = header_len(&file);
        for (index, value) in changes {
            file[index.index(len)] = value;
        }
        if let Some((index, value)) = number {
            let at = index.index(len - 8);
            file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        exercise(file);
    }
}

/// Scenario: the header of the real file, 300 bytes of it flipped one at a time (its metadata ahead of the token list,
/// and its tensor table).
/// Guarantees: an error or a parsed file; no panic.
#[test]
fn the_real_header_may_be_wrong() {
    let Some(path) = smollm2() else { return };
    let whole = Gguf::open(&path).unwrap();
    let header = whole.tensors().values().map(|tensor| tensor.offset).min().unwrap();
    // A copy of the header in a file of the full length: its data is a hole, read as zeroes.
    let mut copy = tempfile::NamedTempFile::new().unwrap();
    copy.write_all(&whole.bytes()[..header]).unwrap();
    copy.as_file().set_len(whole.bytes().len() as u64).unwrap();
    assert!(Model::load(copy.path(), Arithmetic::Int8).is_ok());
    // Half of the places in the first 1500 bytes, half in the last 14 000: the rest is the token list.
    let places = (0..150).map(|i| i * 10).chain((0..150).map(|i| header - 14_000 + i * 93));
    let (mut parsed, mut usable) = (0, 0);
    for at in places {
        let right = whole.bytes()[at];
        copy.as_file().write_all_at(&[right ^ (1 << (at % 8))], at as u64).unwrap();
        if let Ok(gguf) = Gguf::open(copy.path()) {
            parsed += 1;
            usable += usize::from(Model::from_gguf(gguf, Arithmetic::Int8).is_ok());
        }
        copy.as_file().write_all_at(&[right], at as u64).unwrap();
    }
    println!("300 flips in a header of {header} bytes: {parsed} parsed, {usable} models");
}

/// Scenario: messages of typical faults.
/// Guarantees: they name the field or tensor, its value, and what would be right.
#[test]
fn errors_say_what_and_what_would_be_right() {
    let file = tiny_llama_gguf(1);
    let replaced = |from: &[u8], to: &[u8]| {
        assert_eq!(from.len(), to.len());
        let at = file.windows(from.len()).position(|window| window == from).unwrap();
        let mut file = file.clone();
        file[at..at + to.len()].copy_from_slice(to);
        Gguf::from_bytes(file)
            .map_err(|error| error.to_string())
            .and_then(|gguf| Model::from_gguf(gguf, Arithmetic::Int8).map(|_| ()).map_err(|error| error.to_string()))
    };
    for (from, to, want) in [
        ("GGUF", "GGML", "not a GGUF file: it starts with the bytes [47, 47, 4d, 4c], expected \"GGUF\""),
        (
            "llama\x19",
            "lxama\x19",
            "metadata key general.architecture is \"lxama\", expected one of llama, qwen2, qwen3, gemma3",
        ),
        ("llama.block_count", "llama.block_xount", "metadata key llama.block_count is missing"),
        ("blk.1.ffn_up.weight", "blk.1.ffn_ux.weight", "tensor blk.1.ffn_up.weight is missing; a Llama model needs it"),
    ] {
        let (from, to) = (from.replace('\x19', ""), to.replace('\x19', ""));
        assert_eq!(replaced(from.as_bytes(), to.as_bytes()).unwrap_err(), want);
    }
}
