//! Where shared data and the model file lie, and small tools over a runner. Only tests read the environment.

use std::path::PathBuf;

use engine::{
    request::SequenceId,
    runner::{Batch, BatchSlot, ModelRunner},
};

/// `$EVENKEEL_DATA`, else `shared` beside the workspace; `None` (and a line saying so) if `name` is not there.
pub fn shared(name: &str) -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let root = std::env::var_os("EVENKEEL_DATA").map_or(beside, PathBuf::from);
    found(root.join(name), "set EVENKEEL_DATA")
}

/// The SmolLM2 file: `$EVENKEEL_MODEL`, else under `$EVENKEEL_HOME` or `~/.cache/evenkeel`.
pub fn smollm2() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("EVENKEEL_MODEL") {
        return found(PathBuf::from(path), "EVENKEEL_MODEL names it");
    }
    found(home().join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"), "set EVENKEEL_MODEL")
}

/// The Gemma 3 270M file (Q4_K_M): `$EVENKEEL_GEMMA3`, else under `$EVENKEEL_HOME` or `~/.cache/evenkeel`.
pub fn gemma3() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("EVENKEEL_GEMMA3") {
        return found(PathBuf::from(path), "EVENKEEL_GEMMA3 names it");
    }
    found(home().join("models/gemma3-270m/gemma-3-270m-q4_k_m.gguf"), "set EVENKEEL_GEMMA3")
}

fn home() -> PathBuf {
    let cache = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/evenkeel");
    std::env::var_os("EVENKEEL_HOME").map_or_else(cache, PathBuf::from)
}

fn found(path: PathBuf, hint: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    println!("SKIPPED ({} is not there; {hint})", path.display());
    None
}

/// A sequence that owns the blocks `first..`, enough for `tokens` tokens.
pub fn slot(id: u64, (tokens, position): (&[u32], usize), blocks: &[u32]) -> BatchSlot {
    BatchSlot {
        sequence: SequenceId(id),
        tokens: tokens.to_vec(),
        position,
        blocks: blocks.to_vec(),
        wants_logits: true,
        proposed: 0,
    }
}

/// One step of `slots`; the logits of each.
pub fn step(runner: &mut dyn ModelRunner, slots: Vec<BatchSlot>) -> Vec<Vec<f32>> {
    let wanted = slots.iter().filter(|slot| slot.wants_logits).count();
    runner.submit(&Batch { slots }).unwrap();
    let logits = runner.collect().unwrap();
    (0..wanted).map(|row| logits.row(row).to_vec()).collect()
}
