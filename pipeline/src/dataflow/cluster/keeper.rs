//! `evenkeel dataflow --process N --hosts FILE`: one process of a dataflow whose server runs elsewhere.
//!
//! The process itself ends whenever the cluster loses a member; this ends it when it falls silent, and keeps starting it, so that
//! the cluster comes back without a person.
//! Bounds: one child; pauses from [`PAUSE_MIN`] to [`PAUSE_MAX`], short again after a child that lived for a while.

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::Args;

use super::{
    children::{ChildCommand, Children},
    frames::Frames,
    hosts::Hosts,
};
use crate::config::HEARTBEAT_TIMEOUTS;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct KeeperOptions {
    /// Number of this process: its line in the host file, counted from 0; 0 is the server's own
    #[arg(long)]
    process: usize,
    /// File with one address a line, the same on all hosts
    #[arg(long)]
    hosts: PathBuf,
    /// How long the process may be silent before it is ended and started again
    #[arg(long, default_value = "800ms", value_parser = humantime::parse_duration)]
    heartbeat_timeout: Duration,
}

/// Runs until it is killed.
pub fn keep(options: &KeeperOptions) -> anyhow::Result<()> {
    let hosts = Hosts::read(&options.hosts)?;
    let last = hosts.addresses.len() - 1;
    anyhow::ensure!(
        (1..=last).contains(&options.process),
        "--process {}: expected 1 to {last}; process 0 is started by `evenkeel serve`",
        options.process
    );
    anyhow::ensure!(
        HEARTBEAT_TIMEOUTS.contains(&options.heartbeat_timeout),
        "--heartbeat-timeout {:?}: expected {:?} to {:?}",
        options.heartbeat_timeout,
        HEARTBEAT_TIMEOUTS.start(),
        HEARTBEAT_TIMEOUTS.end()
    );
    let command = ChildCommand::own()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut pause = PAUSE_MIN;
        loop {
            let started = Instant::now();
            let how = live(&command, &hosts, options).await.unwrap_or_else(|error| error.to_string());
            if started.elapsed() > 2 * PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            tracing::warn!("dataflow {how}; starting it again in {pause:?}");
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(PAUSE_MAX);
        }
    })
}

/// Runs the process once, and says how it ended.
async fn live(command: &ChildCommand, hosts: &Hosts, options: &KeeperOptions) -> io::Result<String> {
    let silence = options.heartbeat_timeout;
    let (mut child, output) = Children::single(command, hosts, (options.process, silence)).await?;
    let mut frames = Frames::new(options.process, output, silence);
    while frames.next().await?.is_some() {}
    Ok(child.ended().await)
}
