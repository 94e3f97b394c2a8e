//! The options of `evenkeel replay-load`, and their check. No state.

use std::{path::PathBuf, time::Duration};

use super::replay::LoadError;

/// Replays a recorded trace against an OpenAI-compatible endpoint.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct LoadOptions {
    /// Mooncake JSONL or Azure CSV, also as .zst
    #[arg(long)]
    pub trace: PathBuf,
    /// Address of the endpoint without /v1, as in http://127.0.0.1:8080
    #[arg(long)]
    pub url: String,
    /// Multiplies prompt and output lengths, so that a trace of long prompts fits a small model
    #[arg(long, default_value_t = 1.0)]
    pub scale_lengths: f64,
    /// How much faster than recorded requests are sent
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Only the first n rows
    #[arg(long)]
    pub limit: Option<usize>,
    /// Model name; without it the endpoint's first one
    #[arg(long)]
    pub model: Option<String>,
    /// API key, sent as a bearer token
    #[arg(long)]
    pub key: Option<String>,
    /// Most requests in flight; a request that has to wait for a place is counted as started late
    #[arg(long, default_value_t = 256)]
    pub concurrency_max: usize,
    /// Cuts prompt and output to this many tokens together; rows that were cut are counted
    #[arg(long)]
    pub tokens_max: Option<u32>,
    /// A request that takes longer is given up
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub request_timeout: Duration,
    /// Ends with the report as one line of JSON
    #[arg(long)]
    pub json: bool,
}

impl LoadOptions {
    pub(super) fn check(&self) -> Result<(), LoadError> {
        let positive = [("--scale-lengths", self.scale_lengths), ("--speed", self.speed)];
        for (option, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(LoadError::Option { option, value: value.to_string(), expected: "a number above 0" });
            }
        }
        if !(1..=65_536).contains(&self.concurrency_max) {
            let value = self.concurrency_max.to_string();
            return Err(LoadError::Option { option: "--concurrency-max", value, expected: "1 to 65536" });
        }
        if self.tokens_max.is_some_and(|most| most < 2) {
            let value = self.tokens_max.unwrap_or_default().to_string();
            return Err(LoadError::Option { option: "--tokens-max", value, expected: "at least 2" });
        }
        if !(self.url.starts_with("http://") || self.url.starts_with("https://")) {
            let value = self.url.clone();
            return Err(LoadError::Option { option: "--url", value, expected: "an address as http://127.0.0.1:8080" });
        }
        Ok(())
    }
}
