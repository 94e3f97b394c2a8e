//! llama.cpp's `llama-bench` on the same file, with the same lengths and threads.
//!
//! Cost: one process a call; it warms itself up before it measures. No state.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{DECODE_TOKENS, PREFILL_TOKENS};

/// Tokens a second, and which build gave them.
pub(super) struct PeerSpeeds {
    pub(super) prefill: f64,
    pub(super) decode: f64,
    pub(super) build: String,
}

/// One test of llama-bench's JSON.
#[derive(Deserialize)]
struct Test {
    #[serde(default)]
    build_commit: String,
    n_prompt: usize,
    n_gen: usize,
    avg_ts: f64,
}

/// Errors: the program does not run, fails, or its answer lacks one of the two tests.
pub(super) fn measure(program: &Path, model: &Path, threads: usize) -> anyhow::Result<PeerSpeeds> {
    let shown = program.display();
    let output = Command::new(program)
        .arg("-m")
        .arg(model)
        .args(["-p", &PREFILL_TOKENS.to_string(), "-n", &DECODE_TOKENS.to_string(), "-t", &threads.to_string()])
        .args(["-r", "1", "-o", "json"])
        .output()
        .with_context(|| format!("--llama-bench = {shown}: cannot be started"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "--llama-bench = {shown}: {}; it said: {}", output.status, errors.trim());
    parse(&String::from_utf8_lossy(&output.stdout)).with_context(|| {
        format!("--llama-bench = {shown}: expected a JSON array of a prompt test and a generation test")
    })
}

fn parse(text: &str) -> anyhow::Result<PeerSpeeds> {
    let array = text.find('[').map(|start| &text[start..]).context("there is no array")?;
    let tests: Vec<Test> = serde_json::from_str(array.trim())?;
    let prefill = tests.iter().find(|test| (test.n_prompt, test.n_gen) == (PREFILL_TOKENS, 0));
    let decode = tests.iter().find(|test| (test.n_prompt, test.n_gen) == (0, DECODE_TOKENS));
    let (prefill, decode) = prefill.zip(decode).context("a test is missing")?;
    Ok(PeerSpeeds {
        prefill: prefill.avg_ts,
        decode: decode.avg_ts,
        build: format!("llama.cpp {}", prefill.build_commit),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: an answer with a line before it, and one without the generation test. Guarantees: speeds are taken by
    /// the tests' lengths, and a missing test is an error.
    #[test]
    fn speeds_are_found_by_length() {
        let decode = r#"{"build_commit":"abc","n_prompt":0,"n_gen":64,"avg_ts":30.5}"#;
        let prefill = r#"{"build_commit":"abc","n_prompt":512,"n_gen":0,"avg_ts":400.0,"stddev_ts":0.0}"#;
        let speeds = parse(&format!("load: ok\n[{decode},\n{prefill}]\n")).unwrap();
        assert_eq!((speeds.prefill, speeds.decode, speeds.build.as_str()), (400.0, 30.5, "llama.cpp abc"));
        assert!(parse(&format!("[{prefill}]")).is_err());
        assert!(parse("nothing").is_err());
    }
}
