//! `evenkeel top`: the fleet on a terminal, live.
//!
//! | file | idea |
//! |---|---|
//! | `fleet` | what the server tells, as numbers; missing is unknown |
//! | `events` | server-sent events out of pieces of a stream |
//! | `feed` | asks the server, comes back when it was away |
//! | `screen` | sort, filter, scroll, help: what a key does |
//! | `draw` | the screen as cells |
//!
//! Two threads: one asks, one draws and reads keys; between them a queue of [`NEWS_MAX`]; news that find no room in it
//! are lost.
//! The terminal is given back on every way out that this program takes, SIGTERM and panics included. Needs nothing that other clients of the HTTP API have not.

mod draw;
mod events;
mod feed;
mod fleet;
mod screen;

use std::{
    io::IsTerminal,
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::bail;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::remote::Server;
use screen::{Next, Screen};

/// News on their way to the screen.
const NEWS_MAX: usize = 64;
/// How long the screen waits for a key before it looks for news.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, clap::Args)]
pub struct TopOptions {
    /// Show only instances whose name, model or state contains this
    #[arg(long, default_value = "")]
    filter: String,
    /// Column to sort by at first
    #[arg(long, value_enum, default_value = "name")]
    sort: screen::Column,
    #[command(flatten)]
    server: Server,
}

/// Shows until `q` or a signal to end.
pub fn run(options: TopOptions) -> anyhow::Result<()> {
    if !(std::io::stdout().is_terminal() && std::io::stdin().is_terminal()) {
        bail!("top draws on a terminal; into a pipe or a file use `evenkeel sql --watch 2s`");
    }
    let (news, inbox) = mpsc::sync_channel(NEWS_MAX);
    let feed = feed::start(options.server.clone(), news)?;
    let mut screen = Screen::new(&options.server.url, options.filter, options.sort);
    let begun = ratatui::try_init().map_err(anyhow::Error::from);
    let ended = begun.and_then(|mut terminal| show(&mut terminal, &mut screen, &inbox));
    ratatui::try_restore()?;
    if ended? == Ended::FeedGone && feed.join().is_err() {
        bail!("the thread that asks the server has failed");
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    ByKey,
    /// A signal asks for the end, or it failed.
    FeedGone,
}

fn show(
    terminal: &mut ratatui::DefaultTerminal,
    screen: &mut Screen,
    inbox: &mpsc::Receiver<feed::News>,
) -> anyhow::Result<Ended> {
    loop {
        loop {
            match inbox.try_recv() {
                Ok(news) => screen.take(news, Instant::now()),
                Err(mpsc::TryRecvError::Empty) => break,
                Err(mpsc::TryRecvError::Disconnected) => return Ok(Ended::FeedGone),
            }
        }
        terminal.draw(|frame| draw::draw(frame, screen, Instant::now()))?;
        // A resize is an event, and the next turn draws.
        if !event::poll(LOOK)? {
            continue;
        }
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && screen.key(key) == Next::Quit
        {
            return Ok(Ended::ByKey);
        }
    }
}
