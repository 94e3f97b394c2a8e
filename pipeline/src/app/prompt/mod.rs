//! `evenkeel sql`: one query, statements from a file or a pipe, or a prompt with history and completion.
//!
//! | file | idea |
//! |---|---|
//! | `script` | text into statements and commands |
//! | `words` | what could come next |
//! | `answer` | an answer as a table |
//! | `editor` | the terminal: lines, history, Tab |
//!
//! Ctrl-C ends the query under way (its connection closes, so the server ends it, too) and leaves the prompt standing. Where
//! answers come from is an [`Ask`]. Bounds: one answer in memory, at most `sql.rows_max` rows; [`HISTORY_MAX`] lines of history.

mod answer;
mod editor;
mod script;
mod words;

use std::{
    io::{IsTerminal, Read, Write},
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use async_trait::async_trait;

use super::{
    offline::Offline,
    remote::{Format, Server},
    saved_cli::{Asked, Source},
};
use script::{Command, Item};

/// Lines kept in `<EVENKEEL_HOME>/sql_history`.
pub const HISTORY_MAX: usize = 5_000;
/// Shortest pause between two askings of `--watch` and `\watch`.
const WATCH_MIN: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub struct SqlArgs {
    /// The query; without one a prompt on a terminal, else statements from standard input, each ended by `;`
    pub query: Option<String>,
    /// Run the statements of this file, each ended by `;`
    #[arg(long, short = 'f', value_name = "PATH", conflicts_with = "query")]
    pub file: Option<PathBuf>,
    /// Ask again after this pause, as in 2s, until Ctrl-C
    #[arg(long, value_name = "PAUSE", value_parser = humantime::parse_duration)]
    pub watch: Option<Duration>,
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub server: Server,
}

/// Something that answers SQL.
#[async_trait]
pub trait Ask: Send + Sync {
    /// The answer in this form; `Table` is an Arrow stream.
    async fn body(&self, query: &str, format: Format) -> anyhow::Result<Vec<u8>>;
    /// What it is, for the greeting.
    fn name(&self) -> String;
}

/// Runs the command.
pub fn run(mut args: SqlArgs) -> anyhow::Result<()> {
    match args.source.asked(args.query.as_deref())? {
        Asked::List(list) => {
            println!("{list}");
            return Ok(());
        }
        Asked::Statement(query) => args.query = Some(query),
        Asked::Open => {}
    }
    let Some(location) = &args.source.snapshot else { return run_on(&args, &args.server) };
    let offline = Offline::open(location)?;
    eprintln!("{}", offline.describe());
    run_on(&args, &offline)
}

/// The same with any source of answers.
pub fn run_on(args: &SqlArgs, source: &dyn Ask) -> anyhow::Result<()> {
    let session = Session::new(source, args.format)?;
    let text = match (&args.query, &args.file) {
        // One argument is one query, with or without its end.
        (Some(query), _) => return session.statement(query, args.watch),
        (None, Some(path)) => {
            std::fs::read_to_string(path).with_context(|| format!("--file {}: cannot read it", path.display()))?
        }
        (None, None) if std::io::stdin().is_terminal() => return editor::converse(session),
        (None, None) => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("cannot read statements from standard input")?;
            text
        }
    };
    session.script(&text, args.watch)
}

/// A source of answers and how they are printed.
struct Session<'a> {
    source: &'a dyn Ask,
    format: Format,
    runtime: tokio::runtime::Runtime,
}

/// How a question ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Answered,
    /// By Ctrl-C.
    Stopped,
}

impl<'a> Session<'a> {
    fn new(source: &'a dyn Ask, format: Format) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { source, format, runtime })
    }

    /// Every statement in turn; the first error ends it.
    fn script(&self, text: &str, watch: Option<Duration>) -> anyhow::Result<()> {
        let (mut items, rest) = script::split(text);
        if !script::is_blank(rest) {
            // The last statement of a file may do without its end.
            items.push(Item::Statement(rest.trim().to_string()));
        }
        if items.is_empty() {
            bail!("no statement in the input; write one, as in: select count(*) from requests;");
        }
        for item in items {
            match item {
                Item::Statement(query) => self.statement(&query, watch)?,
                Item::Command(line) => match script::command(&line)? {
                    Command::Ask(query) => self.statement(&query, watch)?,
                    Command::Help => println!("{}", script::HELP),
                    Command::Quit => return Ok(()),
                    Command::Watch(_) => bail!("\\watch is for the prompt; use --watch here"),
                },
            }
        }
        Ok(())
    }

    /// Where there is no prompt to go back to: Ctrl-C is how a watch ends, and ends everything else, too.
    fn statement(&self, query: &str, watch: Option<Duration>) -> anyhow::Result<()> {
        match self.repeat(query, watch)? {
            Ended::Stopped if watch.is_none() => bail!("stopped by Ctrl-C"),
            Ended::Stopped | Ended::Answered => Ok(()),
        }
    }

    /// Once, or again and again.
    fn repeat(&self, query: &str, watch: Option<Duration>) -> anyhow::Result<Ended> {
        loop {
            let ended = self.once(query)?;
            let Some(pause) = watch.filter(|_| ended == Ended::Answered) else { return Ok(ended) };
            if self.pause(pause) == Ended::Stopped {
                return Ok(Ended::Stopped);
            }
        }
    }

    fn pause(&self, pause: Duration) -> Ended {
        self.runtime.block_on(async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => Ended::Stopped,
                () = tokio::time::sleep(pause.max(WATCH_MIN)) => Ended::Answered,
            }
        })
    }

    fn once(&self, query: &str) -> anyhow::Result<Ended> {
        let started = Instant::now();
        let Some(body) = self.fetch(query, self.format)? else { return Ok(Ended::Stopped) };
        let mut out = std::io::stdout().lock();
        match self.format {
            Format::Table => {
                let answer = answer::Answer::read(&body)?;
                writeln!(out, "{}", answer.table()?)?;
                if out.is_terminal() {
                    writeln!(out, "{}", answer.footer(started.elapsed()))?;
                }
            }
            Format::Json => {
                out.write_all(&body)?;
                writeln!(out)?;
            }
            Format::Csv | Format::Arrow => out.write_all(&body)?,
        }
        Ok(Ended::Answered)
    }

    /// `None`: Ctrl-C came first, and the question is given up.
    fn fetch(&self, query: &str, format: Format) -> anyhow::Result<Option<Vec<u8>>> {
        self.runtime.block_on(async {
            tokio::select! {
                body = self.source.body(query, format) => body.map(Some),
                _ = tokio::signal::ctrl_c() => Ok(None),
            }
        })
    }

    /// Tables and their columns, for completion; nothing where they cannot be had.
    fn vocabulary(&self) -> words::Vocabulary {
        let query = "select table_name, column_name from column_comments";
        let body = self.fetch(query, Format::Table).ok().flatten();
        let pairs = body.and_then(|body| answer::Answer::read(&body).ok()).map(|answer| answer.pairs());
        words::Vocabulary::new(pairs.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Remembers what it was asked; refuses what contains `bad`.
    #[derive(Default)]
    struct Asked(Mutex<Vec<String>>);

    #[async_trait]
    impl Ask for Asked {
        async fn body(&self, query: &str, _: Format) -> anyhow::Result<Vec<u8>> {
            self.0.lock().expect("no panic").push(query.into());
            if query.contains("bad") { bail!("no table `bad`; did you mean `requests`?") } else { Ok(Vec::new()) }
        }

        fn name(&self) -> String {
            "a test".into()
        }
    }

    fn script(text: &str) -> (Vec<String>, Result<(), String>) {
        let asked = Asked::default();
        let session = Session::new(&asked, Format::Csv).expect("a runtime");
        let ended = session.script(text, None).map_err(|error| error.to_string());
        (asked.0.into_inner().expect("no panic"), ended)
    }

    /// Scenario: a script whose last statement has no end; one with an error in the middle; an empty one; one that quits.
    /// Guarantees: statements run in order; the first error ends the script and keeps its hint; nothing to do is an error.
    #[test]
    fn a_script_runs_until_its_first_error() {
        assert_eq!(
            script("select 1;\n-- note\nselect 2"),
            (vec!["select 1".into(), "-- note\nselect 2".into()], Ok(()))
        );
        let (asked, ended) = script("select 1; select bad; select 3;");
        assert_eq!(asked, ["select 1", "select bad"]);
        assert_eq!(ended.unwrap_err(), "no table `bad`; did you mean `requests`?");
        assert!(script(" -- nothing\n").1.unwrap_err().starts_with("no statement in the input"));
        assert_eq!(script("select 1;\n\\q\nselect 2;"), (vec!["select 1".into()], Ok(())));
        assert!(script("\\watch 2\n").1.unwrap_err().contains("--watch"));
    }
}
