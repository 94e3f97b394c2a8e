//! `evenkeel bench …`: each compares with a peer or the machine's limit in one run and ends with one line of JSON.

use clap::Subcommand;

#[derive(Subcommand)]
pub enum Bench {}

pub fn run(bench: Bench) -> anyhow::Result<()> {
    match bench {}
}
