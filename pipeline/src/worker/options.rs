//! The options of `evenkeel worker`, and the same options as arguments for a child process.
//!
//! Invariant: `to_args` and the parser are inverse (a property test holds that), so that the supervisor and the worker
//! cannot disagree. No state.

use std::{ffi::OsString, net::SocketAddr, time::Duration};

use clap::ValueEnum;

use crate::{
    config::{Arithmetic, KvFormat, Mode, Speculation, Variant, Weights},
    policy::DEFAULT_VARIANT,
};

/// What ends a worker besides a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Lifetime {
    /// The end of its standard input: the supervisor holds the other end, so no worker outlives it.
    Stdin,
    /// Nothing: for a worker started by hand.
    Signal,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheMode {
    On,
    Off,
}

impl From<Mode> for CacheMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::On => CacheMode::On,
            Mode::Off => CacheMode::Off,
        }
    }
}

/// Options of one worker process. Numbers are checked when the engine is built, with errors that name the setting.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct WorkerOptions {
    /// Path of a .gguf file, or `simulated` for an engine with a cost model instead of arithmetic
    #[arg(long)]
    pub model: String,
    /// Name the model is served by
    #[arg(long, default_value = "")]
    pub model_name: String,
    /// Name of the variant of the model that this worker serves
    #[arg(long, default_value = DEFAULT_VARIANT)]
    pub variant: String,
    /// Number of the instance in the fleet
    #[arg(long, default_value_t = 0)]
    pub instance: u32,
    /// Incarnation of the instance; grows with every restart
    #[arg(long, default_value_t = 1)]
    pub epoch: u64,
    /// Address of the gRPC service; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Where telemetry goes by Arrow Flight; none: it is dropped
    #[arg(long)]
    pub flight: Option<SocketAddr>,
    /// Compute threads
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Tokens per KV block
    #[arg(long, default_value_t = 16)]
    pub block_size: usize,
    /// Memory for KV blocks, in bytes
    #[arg(long, default_value_t = 768 << 20)]
    pub kv_bytes_max: u64,
    /// Host memory for the KV of sequences that give way, in bytes; 0: they are computed again
    #[arg(long, default_value_t = 0)]
    pub l2_bytes: u64,
    /// Most tokens in one engine step
    #[arg(long, default_value_t = 512)]
    pub token_budget: usize,
    /// Prompts are computed in chunks that keep a step within this; 0s: no bound
    #[arg(long, default_value = "100ms", value_parser = humantime::parse_duration)]
    pub prefill_step_time: Duration,
    /// Most sequences running at once
    #[arg(long, default_value_t = 64)]
    pub running_max: usize,
    /// Most sequences waiting; further ones are refused
    #[arg(long, default_value_t = 1024)]
    pub waiting_max: usize,
    #[arg(long, value_enum, default_value = "on")]
    pub prefix_cache: CacheMode,
    /// What products with quantised weights are computed in
    #[arg(long, value_enum, default_value = "int8")]
    pub arithmetic: Arithmetic,
    /// What matrices are held in; made from the file at load
    #[arg(long, value_enum, default_value = "as_stored")]
    pub weights: Weights,
    /// What keys and values are kept in
    #[arg(long, value_enum, default_value = "auto")]
    pub kv: KvFormat,
    /// Who guesses tokens ahead; the output is the same
    #[arg(long, value_enum, default_value = "off")]
    pub speculation: Speculation,
    /// Path of the .gguf file that drafts
    #[arg(long)]
    pub draft_model: Option<String>,
    /// Most tokens guessed for a sequence in a step, 1 to 16
    #[arg(long, default_value_t = 8)]
    pub draft_tokens_max: usize,
    /// Tokens between two probes while guesses do not pay
    #[arg(long, default_value_t = 32)]
    pub verify_interval: usize,
    /// A step that takes longer is reported as a fault to health checks
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub step_time_max: Duration,
    /// Running sequences may finish for this long after SIGTERM
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    pub drain_timeout: Duration,
    /// A telemetry batch leaves at this many rows
    #[arg(long, default_value_t = 1024)]
    pub flush_rows: usize,
    /// … or after this time
    #[arg(long, default_value = "20ms", value_parser = humantime::parse_duration)]
    pub flush_interval: Duration,
    /// Telemetry rows of a topic that may wait; at the bound the oldest are dropped and counted
    #[arg(long, default_value_t = 65536)]
    pub queue_rows: usize,
    /// What ends the process besides a signal
    #[arg(long, value_enum, default_value = "stdin")]
    pub lifetime: Lifetime,
    /// Vocabulary of `simulated`
    #[arg(long, default_value_t = 49152)]
    pub simulated_vocab: usize,
    /// Context of `simulated`, in tokens
    #[arg(long, default_value_t = 8192)]
    pub simulated_context: usize,
    /// Pace of `simulated`: 1 takes the modelled time, 0 does not wait
    #[arg(long, default_value_t = 1.0)]
    pub simulated_pace: f64,
}

impl WorkerOptions {
    /// The options as command-line arguments.
    pub fn to_args(&self) -> Vec<OsString> {
        let text = |duration: Duration| humantime::format_duration(duration).to_string();
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|v| v.get_name().to_string());
        let pairs: [(&str, Option<String>); 32] = [
            ("model", Some(self.model.clone())),
            ("model-name", Some(self.model_name.clone())),
            ("variant", Some(self.variant.clone())),
            ("instance", Some(self.instance.to_string())),
            ("epoch", Some(self.epoch.to_string())),
            ("listen", Some(self.listen.to_string())),
            ("flight", self.flight.map(|address| address.to_string())),
            ("threads", Some(self.threads.to_string())),
            ("block-size", Some(self.block_size.to_string())),
            ("kv-bytes-max", Some(self.kv_bytes_max.to_string())),
            ("l2-bytes", Some(self.l2_bytes.to_string())),
            ("token-budget", Some(self.token_budget.to_string())),
            ("prefill-step-time", Some(text(self.prefill_step_time))),
            ("running-max", Some(self.running_max.to_string())),
            ("waiting-max", Some(self.waiting_max.to_string())),
            ("prefix-cache", name(self.prefix_cache.to_possible_value())),
            ("arithmetic", name(self.arithmetic.to_possible_value())),
            ("weights", name(self.weights.to_possible_value())),
            ("kv", name(self.kv.to_possible_value())),
            ("speculation", name(self.speculation.to_possible_value())),
            ("draft-model", self.draft_model.clone()),
            ("draft-tokens-max", Some(self.draft_tokens_max.to_string())),
            ("verify-interval", Some(self.verify_interval.to_string())),
            ("step-time-max", Some(text(self.step_time_max))),
            ("drain-timeout", Some(text(self.drain_timeout))),
            ("flush-rows", Some(self.flush_rows.to_string())),
            ("flush-interval", Some(text(self.flush_interval))),
            ("queue-rows", Some(self.queue_rows.to_string())),
            ("lifetime", name(self.lifetime.to_possible_value())),
            ("simulated-vocab", Some(self.simulated_vocab.to_string())),
            ("simulated-context", Some(self.simulated_context.to_string())),
            ("simulated-pace", Some(self.simulated_pace.to_string())),
        ];
        let given = pairs.into_iter().filter_map(|(key, value)| value.map(|value| format!("--{key}={value}").into()));
        given.collect()
    }
}

impl WorkerOptions {
    /// The same worker for a variant of the model.
    pub fn of_variant(self, variant: &Variant) -> Self {
        WorkerOptions {
            variant: variant.name.clone(),
            model: variant.file.clone().unwrap_or(self.model),
            weights: variant.weights,
            arithmetic: variant.arithmetic.unwrap_or(self.arithmetic),
            kv: variant.kv.unwrap_or(self.kv),
            ..self
        }
    }
}

/// The options as a program would parse them, for callers without a command line: every default, and this model.
impl WorkerOptions {
    pub fn for_model(model: impl Into<String>) -> Self {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: WorkerOptions,
        }
        let line = ["worker".to_string(), format!("--model={}", model.into())];
        let parsed = <Line as clap::Parser>::try_parse_from(line);
        parsed.expect("invariant: all options but the model have defaults, held by a test").options
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: WorkerOptions,
    }

    fn parse(options: &WorkerOptions) -> WorkerOptions {
        let line = std::iter::once(OsString::from("worker")).chain(options.to_args());
        Line::try_parse_from(line).unwrap().options
    }

    proptest! {
        /// Scenario: options with any numbers, durations and a model name full of odd characters. Guarantees: the child
        /// parses exactly what the supervisor meant.
        #[test]
        fn options_survive_the_command_line(
            model in "[ -~]{1,20}",
            (instance, epoch, port) in any::<(u32, u64, u16)>(),
            (threads, kv) in any::<(u16, u64)>(),
            (step_ms, flush_us) in (1u64..1_000_000, 1u64..10_000_000),
            with_flight in proptest::option::of(any::<u16>()),
            pace in 0.0f64..10.0,
        ) {
            let options = WorkerOptions {
                instance,
                epoch,
                listen: ([127, 0, 0, 1], port).into(),
                flight: with_flight.map(|port| ([127, 0, 0, 1], port).into()),
                threads: threads.into(),
                kv_bytes_max: kv,
                l2_bytes: kv / 3,
                step_time_max: Duration::from_millis(step_ms),
                flush_interval: Duration::from_micros(flush_us),
                prefix_cache: CacheMode::Off,
                arithmetic: Arithmetic::F32,
                variant: "q8".into(),
                weights: Weights::Q8,
                kv: KvFormat::F32,
                speculation: Speculation::Draft,
                draft_model: Some("a draft.gguf".into()),
                draft_tokens_max: 3,
                verify_interval: 7,
                lifetime: Lifetime::Signal,
                simulated_pace: pace,
                ..WorkerOptions::for_model(model)
            };
            prop_assert_eq!(parse(&options), options);
        }
    }
}
