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
    let home = std::env::var_os("EVENKEEL_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache/evenkeel"));
    found(home.join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"), "set EVENKEEL_MODEL")
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
