//! The children of one generation on this machine: started together, gone together.
//!
//! Invariant: dropping [`Children`] kills every one of them; so does the death of this process, since their stdin ends.
//! Bounds: one process each. Their stderr is ours.

use std::{ffi::OsString, io, path::PathBuf, process::Stdio, time::Duration};

use futures::future::select_all;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{
    hosts::Hosts,
    wire::{Setup, Start, encode},
};

/// How a child is called.
#[derive(Debug, Clone)]
pub struct ChildCommand {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
}

impl ChildCommand {
    /// This program's own hidden subcommand.
    ///
    /// # Errors
    /// The operating system does not tell the program's path.
    pub fn own() -> io::Result<Self> {
        Ok(ChildCommand { program: std::env::current_exe()?, arguments: vec!["dataflow-process".into()] })
    }

    async fn spawn(&self, setup: &Setup) -> io::Result<(Child, ChildStdin, ChildStdout)> {
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let mut input = child.stdin.take().ok_or_else(|| io::Error::other("the child has no stdin"))?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("the child has no stdout"))?;
        input.write_all(&encode(setup)?).await?;
        input.flush().await?;
        tracing::info!(process = setup.process, pid = child.id(), "dataflow process started");
        Ok((child, input, output))
    }
}

/// The children of a generation, the input of process 0, and the output of each.
pub(super) type Started = (Children, ChildStdin, Vec<ChildStdout>);

/// See the module.
pub(super) struct Children {
    processes: Vec<(usize, Child)>,
    /// What the lives of the others hang on.
    _lifelines: Vec<ChildStdin>,
}

impl Children {
    /// Process 0 with its input, `local` further ones, and the output of each.
    pub(super) async fn start(
        command: &ChildCommand,
        hosts: &Hosts,
        start: Start,
        local: usize,
    ) -> io::Result<Started> {
        let setup = |process, start: Option<Start>, silence| Setup {
            process,
            addresses: hosts.addresses.iter().map(ToString::to_string).collect(),
            key: hosts.key.clone(),
            silence,
            start,
        };
        let silence = start.silence;
        let (first, input, output) = command.spawn(&setup(0, Some(start), silence)).await?;
        let mut children = Children { processes: vec![(0, first)], _lifelines: Vec::new() };
        let mut outputs = vec![output];
        for process in 1..=local {
            let (child, lifeline, output) = command.spawn(&setup(process, None, silence)).await?;
            children.processes.push((process, child));
            children._lifelines.push(lifeline);
            outputs.push(output);
        }
        Ok((children, input, outputs))
    }

    /// One process that belongs to another machine's server, and its output.
    pub(super) async fn single(
        command: &ChildCommand,
        hosts: &Hosts,
        (process, silence): (usize, Duration),
    ) -> io::Result<(Children, ChildStdout)> {
        let addresses = hosts.addresses.iter().map(ToString::to_string).collect();
        let setup = Setup { process, addresses, key: hosts.key.clone(), silence, start: None };
        let (child, lifeline, output) = command.spawn(&setup).await?;
        Ok((Children { processes: vec![(process, child)], _lifelines: vec![lifeline] }, output))
    }

    /// Waits until one has ended, and says which and how.
    pub(super) async fn ended(&mut self) -> String {
        let waits = self.processes.iter_mut().map(|(process, child)| {
            Box::pin(async move {
                match child.wait().await {
                    Ok(status) => format!("process {process}: {status}"),
                    Err(error) => format!("process {process}: {error}"),
                }
            })
        });
        select_all(waits).await.0
    }
}
