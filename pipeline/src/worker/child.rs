//! One worker process, seen from its supervisor: start it, wait for its ready line, forward what it writes, know why it died.
//!
//! Invariants: dropping a [`Child`] kills the process; closing its stdin ends it; its stderr goes line by line into our
//! log. Cost: two reading tasks. Bounds: a line is cut at `LINE_BYTES_MAX`, the newest `TAIL_LINES` lines are kept.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader},
    process::{self, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
    time::timeout,
};

use super::{options::WorkerOptions, process::ReadyLine};
use crate::ids::InstanceId;

const LINE_BYTES_MAX: usize = 4096;
const TAIL_LINES: usize = 3;
const TAIL_WAIT: Duration = Duration::from_millis(200);

/// How a worker process is called: `program leading… <worker options>`.
#[derive(Debug, Clone)]
pub struct WorkerCommand {
    pub program: PathBuf,
    pub leading: Vec<OsString>,
}

impl WorkerCommand {
    /// This program's own `worker` subcommand.
    ///
    /// Errors: the operating system does not tell the program's path.
    pub fn own() -> io::Result<Self> {
        Ok(WorkerCommand { program: std::env::current_exe()?, leading: vec!["worker".into()] })
    }
}

/// Why a worker did not get ready.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    #[error("cannot start {}: {source}", program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("{0} before it was ready")]
    Exited(String),
    #[error("ready line `{line}`: {problem}")]
    ReadyLine { line: String, problem: String },
    #[error("cannot read its output: {0}")]
    Read(io::Error),
}

/// See the file's header.
pub struct Child {
    process: process::Child,
    stdin: Option<ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    instance: InstanceId,
    tail: Tail,
    stderr: Option<JoinHandle<()>>,
}

type Tail = Arc<Mutex<VecDeque<String>>>;

impl Child {
    pub fn spawn(command: &WorkerCommand, options: &WorkerOptions) -> Result<Child, ChildError> {
        let spawn_error = |source| ChildError::Spawn { program: command.program.clone(), source };
        let mut process = Command::new(&command.program)
            .args(&command.leading)
            .args(options.to_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(spawn_error)?;
        let instance = InstanceId(options.instance);
        let tail = Tail::default();
        let stderr = process.stderr.take().map(|stream| tokio::spawn(forward(stream, instance, tail.clone())));
        let stdout = process.stdout.take().map(BufReader::new);
        Ok(Child { stdin: process.stdin.take(), stdout, process, instance, tail, stderr })
    }

    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Reads stdout up to the ready line; lines that are no JSON object are logged. The rest of stdout goes to the log.
    /// Has no time limit of its own.
    pub async fn ready(&mut self) -> Result<ReadyLine, ChildError> {
        let mut stdout = self.stdout.take().ok_or_else(|| ChildError::Read(io::ErrorKind::NotConnected.into()))?;
        loop {
            match next_line(&mut stdout).await.map_err(ChildError::Read)? {
                None => return Err(ChildError::Exited(self.wait().await)),
                Some(line) if line.starts_with('{') => {
                    let ready = serde_json::from_str(&line)
                        .map_err(|error| ChildError::ReadyLine { line, problem: error.to_string() });
                    tokio::spawn(forward(stdout, self.instance, Tail::default()));
                    return ready;
                }
                Some(line) => tracing::info!(target: "worker", instance = %self.instance, "{line}"),
            }
        }
    }

    /// Waits for the process to end and says how, with the last lines it wrote to stderr.
    pub async fn wait(&mut self) -> String {
        let how = match self.process.wait().await {
            Ok(status) => describe(status),
            Err(error) => format!("lost: {error}"),
        };
        if let Some(stderr) = self.stderr.take() {
            let _ = timeout(TAIL_WAIT, stderr).await;
        }
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.is_empty() { how } else { format!("{how}: {}", Vec::from(tail.clone()).join(" | ")) }
    }

    /// Closes stdin, which tells a worker to end.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Kills the process and waits for its end.
    pub async fn kill(&mut self) {
        if let Err(error) = self.process.kill().await {
            tracing::warn!(instance = %self.instance, %error, "cannot kill the worker process");
        }
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

async fn forward(stream: impl AsyncRead + Unpin, instance: InstanceId, tail: Tail) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(line)) = next_line(&mut stream).await {
        tracing::info!(target: "worker", %instance, "{line}");
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
}

/// The next line without its end; `None` at the end of the stream. Bytes beyond `LINE_BYTES_MAX` are skipped.
async fn next_line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let mut seen = 0usize;
    loop {
        let available = stream.fill_buf().await?;
        if available.is_empty() {
            return Ok((seen > 0).then(|| String::from_utf8_lossy(&line).into_owned()));
        }
        let end = available.iter().position(|byte| *byte == b'\n');
        let text = &available[..end.unwrap_or(available.len())];
        line.extend_from_slice(&text[..text.len().min(LINE_BYTES_MAX - line.len())]);
        let consumed = end.map_or(available.len(), |end| end + 1);
        seen += consumed;
        stream.consume(consumed);
        if end.is_some() {
            return Ok(Some(String::from_utf8_lossy(&line).trim_end_matches('\r').to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a stream with an empty line, a line over the bound and no end of line at its end. Guarantees: every line
    /// comes once, the long one cut, and the stream ends.
    #[tokio::test]
    async fn lines_are_bounded() {
        let text = format!("a\n\n{}\r\nlast", "x".repeat(10_000));
        let mut stream = BufReader::with_capacity(16, text.as_bytes());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut stream).await.unwrap() {
            lines.push(line.len());
        }
        assert_eq!(lines, [1, 0, LINE_BYTES_MAX, 4]);
    }
}
