//! How the process for SQL is called. `serve` builds these from its configuration; people have no reason to.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use queries::SqlLimits;

use crate::config::{Config, Mode};

/// See the file's header.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct QueryWorkerOptions {
    /// Address space of the process
    #[arg(long)]
    pub memory_bytes: u64,
    /// Newest rows of a topic kept in memory
    #[arg(long)]
    pub live_rows: usize,
    /// Data folder whose log has older rows
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
    /// Longest run of one statement
    #[arg(long)]
    pub timeout_ms: u64,
    /// Memory of all statements together
    #[arg(long)]
    pub operator_bytes: usize,
    /// Rows of one answer
    #[arg(long)]
    pub rows_max: usize,
    /// Bytes of one statement
    #[arg(long)]
    pub statement_bytes_max: usize,
    /// Statements at once
    #[arg(long)]
    pub concurrent_max: usize,
    /// Threads for statements that have much to look at
    #[arg(long)]
    pub threads: usize,
    /// Threads for all others
    #[arg(long)]
    pub light_threads: usize,
    /// How far the process gives way to others, 0 to 19
    #[arg(long)]
    pub niceness: u8,
}

impl QueryWorkerOptions {
    pub fn new(config: &Config) -> Self {
        let limits = config.sql.limits();
        QueryWorkerOptions {
            memory_bytes: config.sql.worker_memory.as_u64(),
            live_rows: config.bus.live_rows,
            data_dir: (config.log.mode == Mode::On).then(|| config.server.data_dir.clone()),
            timeout_ms: u64::try_from(limits.timeout.as_millis()).unwrap_or(u64::MAX),
            operator_bytes: limits.memory_bytes,
            rows_max: limits.rows_max,
            statement_bytes_max: limits.statement_bytes_max,
            concurrent_max: limits.concurrent_max,
            threads: config.sql.worker_threads(),
            light_threads: config.sql.light_threads(),
            niceness: config.sql.niceness,
        }
    }

    pub fn limits(&self) -> SqlLimits {
        SqlLimits {
            timeout: Duration::from_millis(self.timeout_ms),
            memory_bytes: self.operator_bytes,
            rows_max: self.rows_max,
            statement_bytes_max: self.statement_bytes_max,
            concurrent_max: self.concurrent_max,
        }
    }

    pub fn to_args(&self) -> Vec<OsString> {
        let numbers = [
            ("--memory-bytes", self.memory_bytes.to_string()),
            ("--live-rows", self.live_rows.to_string()),
            ("--timeout-ms", self.timeout_ms.to_string()),
            ("--operator-bytes", self.operator_bytes.to_string()),
            ("--rows-max", self.rows_max.to_string()),
            ("--statement-bytes-max", self.statement_bytes_max.to_string()),
            ("--concurrent-max", self.concurrent_max.to_string()),
            ("--threads", self.threads.to_string()),
            ("--light-threads", self.light_threads.to_string()),
            ("--niceness", self.niceness.to_string()),
        ];
        let mut args: Vec<OsString> =
            numbers.into_iter().flat_map(|(name, value)| [name.into(), value.into()]).collect();
        if let Some(folder) = &self.data_dir {
            args.extend(["--data-dir".into(), folder.into()]);
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: QueryWorkerOptions,
    }

    /// Scenario: options with and without a log, written as arguments and read again.
    /// Guarantees: nothing is lost or changed on the way.
    #[test]
    fn arguments_round_trip() {
        let config = crate::config::load(None, crate::config::Overrides::default()).unwrap();
        for data_dir in [None, Some(PathBuf::from("/some where/data"))] {
            let options = QueryWorkerOptions { data_dir, ..QueryWorkerOptions::new(&config) };
            let line = std::iter::once(OsString::from("query-worker")).chain(options.to_args());
            assert_eq!(Line::parse_from(line).options, options);
        }
    }
}
