//! `evenkeel doctor`: is this machine ready to serve, and if not, what to do about it.
//!
//! | file | idea |
//! |---|---|
//! | `judge` | a reading of the machine becomes a finding; pure |
//! | `machine` | reads the machine: /proc, disks, limits, ports |
//! | `server` | a running server's own health |
//!
//! Each check is one line: `ok`, `warn` (it will run, worse than it could) or `fail` (it will not start, or lose data), and what to
//! do. It changes no setting: a test of the disk writes [`machine::PROBE_BYTES`] to a file without a name, and a model of the
//! catalogue that was not verified yet is read whole and gets its note beside it, as a start would do. With a `fail` the exit code
//! is 1. Bounds: waits for a server and for ports have one; reading a model and writing to a disk take what they take.

mod judge;
mod machine;
mod server;

use std::{fmt, path::PathBuf};

use anyhow::bail;
use serde::Serialize;
use serde_json::json;

use super::remote::Server;
use crate::config::{self, Config, Listen, Mode, Overrides};
use judge::{Needs, Port};

#[derive(Debug, clap::Args)]
pub struct DoctorOptions {
    /// Settings to check; without it the defaults and the environment
    #[arg(long)]
    config: Option<PathBuf>,
    /// Print an array of {check, status, found, advice} instead of lines
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Ok,
    Warn,
    Fail,
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub check: &'static str,
    pub status: Status,
    pub found: String,
    /// What to do; empty when nothing is to be done.
    pub advice: String,
}

impl Finding {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, status: Status::Ok, found: found.into(), advice: String::new() }
    }

    fn warn(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, status: Status::Warn, found: found.into(), advice: advice.into() }
    }

    fn fail(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, status: Status::Fail, found: found.into(), advice: advice.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<5} {:<14} {}", self.status.name(), self.check, self.found)?;
        if !self.advice.is_empty() {
            write!(f, "\n      {:<14} -> {}", "", self.advice)?;
        }
        Ok(())
    }
}

/// Looks, prints, and fails if anything does.
pub fn run(options: &DoctorOptions) -> anyhow::Result<()> {
    let findings = examine(options)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&json!(findings))?);
    } else {
        findings.iter().for_each(|finding| println!("{finding}"));
    }
    match findings.iter().filter(|finding| finding.status == Status::Fail).count() {
        0 => Ok(()),
        1 => bail!("one check failed"),
        several => bail!("{several} checks failed"),
    }
}

fn examine(options: &DoctorOptions) -> anyhow::Result<Vec<Finding>> {
    let loaded = config::load(options.config.as_deref(), Overrides::default());
    let mut findings = vec![judge::settings(options.config.as_deref(), loaded.as_ref().err())];
    // The rest is judged by the defaults where the settings do not hold.
    let config = match loaded {
        Ok(config) => config,
        Err(_) => config::defaults()?,
    };
    let models = machine::models(&config);
    findings.extend(models.iter().map(judge::model));
    let needs = needs(&config, models.iter().map(|model| model.worker_bytes).sum());
    findings.extend(addresses(&config).map(|(key, address)| {
        judge::port(&Port { key, address, state: machine::port(address), own_pid: std::process::id() })
    }));
    findings.push(judge::memory(&machine::memory(), &needs));
    findings.push(judge::cpu(&machine::cpu(), &needs));
    findings.extend(judge::disk(&machine::disk(&config.server.data_dir), &needs));
    findings.push(judge::open_files(machine::open_files(), config.server.connections_max as u64));
    findings.push(judge::clock(&machine::clock(&config.server.data_dir)));
    findings.push(judge::shared_memory(machine::shared_memory(), &needs));
    findings.push(judge::gpu(&machine::gpu()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    findings.extend(runtime.block_on(server::ask(&options.server)));
    Ok(findings)
}

/// Addresses that a server with these settings listens on, by their settings.
fn addresses(config: &Config) -> impl Iterator<Item = (&'static str, std::net::SocketAddr)> {
    let pg = match config.server.pg_listen {
        Listen::On(address) => Some(("server.pg_listen", address)),
        Listen::Off => None,
    };
    [("server.listen", config.server.listen), ("server.flight_listen", config.server.flight_listen)]
        .into_iter()
        .chain(pg)
}

fn needs(config: &Config, model_bytes: u64) -> Needs {
    let workers = u64::from(config.worker_count());
    Needs {
        workers,
        threads: workers * config.workers.threads as u64,
        // Weights are shared pages of one file, and most forms of them are packed anew: counted once a worker.
        memory_bytes: model_bytes + workers * (config.workers.kv_bytes_max.as_u64() + config.workers.l2_bytes.as_u64()),
        l2_bytes: workers * config.workers.l2_bytes.as_u64(),
        log_bytes: match config.log.mode {
            Mode::On => config.log.retain_bytes.as_u64(),
            Mode::Off => 0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: findings of each kind. Guarantees: what is to be done stands below what was found, and JSON has the same words.
    #[test]
    fn a_finding_says_what_to_do() {
        let bad = Finding::fail("disk", "12 MiB free", "make room");
        assert_eq!(bad.to_string(), "fail  disk           12 MiB free\n                     -> make room");
        assert_eq!(Finding::ok("gpu", "none").to_string(), "ok    gpu            none");
        let told = json!({"check": "disk", "status": "fail", "found": "12 MiB free", "advice": "make room"});
        assert_eq!(json!(bad), told);
    }
}
