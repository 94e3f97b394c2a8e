//! The command line. Each command is one function elsewhere; nothing is decided here.

use std::{io::Write, net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use super::{
    bench, calibrate, doctor, examples, prompt, quality,
    query_worker::{self, QueryWorkerOptions},
    serve, snapshot_cli, top,
};
use crate::{
    config::{self, Overrides},
    dataflow::{self, cluster::KeeperOptions},
    load::{self, LoadOptions},
    models::{Catalogue, PullRequest, progress, pull},
    replay::{self, ReplayOptions},
    worker::{self, options::WorkerOptions},
};

/// Keeps large-language-model serving stable and controllable.
#[derive(Parser)]
#[command(name = "evenkeel", version, propagate_version = true, after_help = examples::ALL)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway with local workers
    #[command(after_help = examples::SERVE)]
    Serve(ServeArgs),
    /// Run one worker (started by `serve`)
    Worker(WorkerOptions),
    /// Keep one process of a dataflow over several hosts running; the first is the server's own
    #[command(after_help = examples::DATAFLOW)]
    Dataflow(KeeperOptions),
    /// The body of such a process (started by `serve` and `dataflow`)
    #[command(hide = true)]
    DataflowProcess,
    /// Answers SQL (started by `serve`)
    #[command(hide = true)]
    QueryWorker(QueryWorkerOptions),
    /// Fetch and list model files
    #[command(subcommand, after_help = examples::MODELS)]
    Models(Models),
    /// Ask a running server in SQL; without a query: a prompt
    #[command(after_help = examples::SQL)]
    Sql(prompt::SqlArgs),
    /// Write all tables of a running server at one moment as Arrow and Parquet files
    #[command(after_help = examples::SNAPSHOT)]
    Snapshot(snapshot_cli::SnapshotArgs),
    /// Show a running server's fleet on the terminal, live
    #[command(after_help = examples::TOP)]
    Top(top::TopOptions),
    /// Check whether this machine is ready to serve, and say what to do where it is not
    #[command(after_help = examples::DOCTOR)]
    Doctor(doctor::DoctorOptions),
    /// Play a recorded trace against an OpenAI-compatible endpoint
    #[command(after_help = examples::REPLAY_LOAD)]
    ReplayLoad(LoadOptions),
    /// Decide again what a recorded log says was decided, and name every difference
    #[command(after_help = examples::REPLAY)]
    Replay(ReplayOptions),
    /// Measure how much an instance of this machine and model carries, by length of request
    #[command(after_help = examples::CALIBRATE)]
    Calibrate(calibrate::CalibrateOptions),
    /// Measure, and print what it is compared with
    #[command(subcommand, after_help = examples::BENCH)]
    Bench(bench::Bench),
    /// Print a script that lets the shell complete commands and options
    #[command(after_help = examples::COMPLETIONS)]
    Completions { shell: Shell },
}

#[derive(clap::Args)]
struct ServeArgs {
    /// TOML file with settings that differ from the defaults
    #[arg(long)]
    config: Option<PathBuf>,
    /// Name in the catalogue, path of a .gguf file, or `simulated`; several times for several models behind one entry, each
    /// as NAME=KEY:VALUE,… where the keys file and workers say more, as in chat=file:smollm2-135m,workers:2
    #[arg(long = "model", value_parser = config::parse_model)]
    models: Vec<config::ModelGroup>,
    #[arg(long)]
    workers: Option<u32>,
    /// A precision of the model in workers of its own: NAME=KEY:VALUE,… with the keys of [[model.variants]], as in
    /// q8=weights:q8_0,workers:2; may be given several times
    #[arg(long = "variant", value_parser = config::parse_variant)]
    variants: Vec<config::Variant>,
    /// An engine that speaks OpenAI's HTTP (vLLM, SGLang), as in http://10.0.0.7:8000; may be given several times. Without
    /// --config, --workers or --model such engines serve alone
    #[arg(long = "worker-url")]
    worker_urls: Vec<String>,
    /// Address of the HTTP side
    #[arg(long)]
    listen: Option<SocketAddr>,
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Address of the PostgreSQL wire, or "off"
    #[arg(long)]
    pg_listen: Option<config::Listen>,
    /// Address of Arrow Flight: Flight SQL, and workers' telemetry
    #[arg(long)]
    flight_listen: Option<SocketAddr>,
    /// Run the dataflow over this many processes of this machine
    #[arg(long)]
    timely_processes: Option<usize>,
    /// File with the addresses of the dataflow's processes, one a line; this server starts the first
    #[arg(long)]
    timely_hosts: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Models {
    /// Fetch a model, verify its checksum, keep it in the models folder
    Pull {
        name: String,
        /// Take the file from here
        #[arg(long)]
        from: Option<PathBuf>,
    },
    /// Names that `pull` and `serve --model` know
    List,
    /// Perplexity of each variant of a model on a text, and how far it agrees with the exact model
    Quality(quality::QualityOptions),
}

/// Parses and runs; errors are printed as one line with their causes.
pub fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel: {}", explain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes in one line; a cause that the error has quoted already is not said again.
fn explain(error: &anyhow::Error) -> String {
    explain_causes(error.as_ref())
}

/// The same of any error.
pub(super) fn explain_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).fold(String::new(), |text, cause| match text.contains(&cause) {
        true => text,
        false if text.is_empty() => cause,
        false => format!("{text}: {cause}"),
    })
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Serve(args) => serve::run(args.load()?),
        Command::Worker(options) => Ok(worker::process::run(options)?),
        Command::Dataflow(options) => dataflow::cluster::keep(&options),
        Command::DataflowProcess => Ok(dataflow::cluster::run_process()?),
        Command::QueryWorker(options) => Ok(query_worker::process::run(&options)?),
        Command::Models(Models::Pull { name, from }) => {
            let config = config::load(None, Overrides::default())?;
            let entry = Catalogue::embedded().find(&name)?;
            let request = PullRequest { entry, models_dir: &config.model.models_dir, from };
            println!("{}", pull(&request, progress::for_stderr().as_ref())?.display());
            Ok(())
        }
        Command::Models(Models::List) => {
            for model in Catalogue::embedded().models() {
                println!("{}\t{}\t{} bytes", model.name, model.file, model.bytes);
            }
            Ok(())
        }
        Command::Models(Models::Quality(options)) => quality::run(options),
        Command::Sql(args) => prompt::run(args),
        Command::Top(options) => top::run(options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Snapshot(args) => snapshot_cli::run(args),
        Command::ReplayLoad(options) => Ok(load::execute(options)?),
        Command::Replay(options) => replay::execute(&options),
        Command::Calibrate(options) => calibrate::run(&options),
        Command::Bench(bench) => bench::run(bench),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "evenkeel", &mut script);
            // Whoever reads only the beginning has it.
            let _ = std::io::stdout().write_all(&script);
            Ok(())
        }
    }
}

impl ServeArgs {
    fn load(self) -> anyhow::Result<config::Config> {
        let (foreign, has_file) = (!self.worker_urls.is_empty(), self.config.is_some());
        let workers: Vec<_> = self.worker_urls.into_iter().map(config::ForeignWorker::at).collect();
        // Beside foreign workers, own ones are started when asked for; a model alone counts the foreign ones' tokens.
        let none_own = foreign && !has_file && self.workers.is_none();
        let no_model = none_own && self.models.is_empty();
        let overrides = models(self.models)
            .set("model.name", no_model.then(String::new))
            .set("workers.count", self.workers.or(none_own.then_some(0)))
            .set("foreign.workers", Some(workers).filter(|workers| !workers.is_empty()))
            .set("model.variants", Some(self.variants).filter(|variants| !variants.is_empty()))
            .set("server.listen", self.listen)
            .set("server.data_dir", self.data_dir)
            .set("server.flight_listen", self.flight_listen)
            .set("server.pg_listen", self.pg_listen)
            .set("dataflow.processes", self.timely_processes)
            .set("dataflow.hosts_file", self.timely_hosts);
        Ok(config::load(self.config.as_deref(), overrides)?)
    }
}

/// One plain model stands alone, whatever list the file has; everything else is a list.
fn models(groups: Vec<config::ModelGroup>) -> Overrides {
    let none: [config::ModelGroup; 0] = [];
    match groups.as_slice() {
        [] => Overrides::default(),
        [one] if *one == config::ModelGroup::named(&one.name) => {
            Overrides::default().set("model.name", Some(&one.name)).set("models", Some(none))
        }
        several => Overrides::default().set("models", Some(several)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: the command line itself, and every command of it that is not hidden.
    /// Guarantees: its parts fit together; each says in a line what it is for, and ends its help with examples.
    #[test]
    fn every_command_has_examples() {
        Cli::command().debug_assert();
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let (name, help) = (command.get_name(), command.get_after_help().map(ToString::to_string));
            assert!(command.get_about().is_some(), "{name} does not say what it is for");
            assert!(
                name == "worker" || help.is_some_and(|help| help.starts_with("Example")),
                "{name}: add after_help = examples::…"
            );
        }
    }

    /// Scenario: every line of the examples that begins with the program's name. Guarantees: the parser takes it.
    #[test]
    fn examples_are_right() {
        let mut texts = vec![Cli::command()];
        texts.extend(Cli::command().get_subcommands().cloned());
        let mut seen = 0;
        for command in texts {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter_map(|line| line.strip_prefix("  evenkeel ")) {
                // What follows two blanks is said of the command, and what follows `>` is the shell's.
                let line = line.split("  ").next().unwrap_or(line).split(" > ").next().unwrap_or(line);
                let words = line.split('"').enumerate().flat_map(|(at, part)| match at % 2 {
                    0 => part.split_whitespace().map(String::from).collect(),
                    _ => vec![part.to_string()],
                });
                let parsed = Cli::try_parse_from(["evenkeel".to_string()].into_iter().chain(words));
                assert!(parsed.is_ok(), "evenkeel {line}: {}", parsed.err().expect("an error"));
                seen += 1;
            }
        }
        assert!(seen > 25, "{seen} examples were found");
    }

    /// Scenario: completions of each shell. Guarantees: they know the commands.
    #[test]
    fn completions_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "evenkeel", &mut script);
            let script = String::from_utf8(script).expect("text");
            assert!(script.contains("doctor") && script.contains("replay-load"), "{shell}");
        }
    }
}
