//! `promtool` of Prometheus, where it is installed (Debian package `prometheus`).

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Runs it in this folder with this input; what it said, as an error if it was not content. `None` after printing why: it is not
/// installed.
pub fn run(folder: &Path, arguments: &[&str], input: &str) -> Option<Result<String, String>> {
    let spawned = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        println!("SKIPPED (no promtool: install Debian's package prometheus)");
        return None;
    };
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("promtool reads");
    let output = child.wait_with_output().expect("promtool ends");
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    Some(if output.status.success() { Ok(said) } else { Err(said) })
}
