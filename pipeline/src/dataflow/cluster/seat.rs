//! The server's side of a dataflow over several processes: starts it, feeds it, notices that it is gone, and brings it back
//! from the log.
//!
//! A generation begins empty. When all its processes are connected the bus is flushed, and what the dataflow's life has brought so
//! far is read from the log, epoch by epoch as `epochs` says; what comes meanwhile is kept in order (the *tail*), is handed on after
//! it, and then rows go straight through. While there is no generation rows are dropped here: the log has them.
//!
//! Invariant: each row goes to a generation once, in its epoch. A wait for a child ends when it was silent for too long (`beat`,
//! `patience`), and at the latest after `pipes::STALL`, so a stuck child can slow the bus, but not stop it. Cost: a copy of each row
//! into a frame. State: the tail, bounded, and the list of epochs read again. At most [`REBUILD_ROWS_MAX`] rows are read again; at the
//! bound the oldest epochs are left out, and a fault says so.

use std::{collections::VecDeque, io, ops::Range, sync::Arc, time::Duration};

use operators::FlowRows;
use queries::Topic;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{
    children::{ChildCommand, Children, Started},
    hosts::Hosts,
    patience::Patience,
    pipes::{Pipes, Said},
    reread::{row_count, to_read},
    tail::{Kept, Tail},
    wire::{Order, Start},
};
use crate::{
    bus::{Bus, Clock, LogReader, Published, rows_of},
    config,
    dataflow::{
        feed::{Feed, Names},
        refused::RefusedRows,
        views::FlowViews,
    },
    rows::{EPOCH_TOPICS, EpochRow, FaultRow},
};

/// Rows read again from the log, at most.
pub const REBUILD_ROWS_MAX: u64 = 5_000_000;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What the feeder has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    Nothing,
    /// Say where the rows are: [`Seat::catch_up`].
    Behind,
}

enum Stage {
    /// No processes until then.
    Down {
        until: Instant,
    },
    /// Processes are being made; in a task, as the feeder drops its wait with each tick, and that may take longer.
    Starting {
        starting: JoinHandle<io::Result<Started>>,
    },
    /// Processes that look for each other.
    Connecting,
    /// Waits for [`Seat::catch_up`].
    Behind,
    Flushing {
        flush: JoinHandle<()>,
        last: Vec<EpochRow>,
        open: u64,
        tail: Tail,
    },
    Reading {
        plan: VecDeque<EpochRow>,
        tail: Tail,
    },
    Live,
}

/// Handles the seat works with.
pub struct Seat {
    config: config::Dataflow,
    command: ChildCommand,
    bus: Bus,
    log: Option<LogReader>,
    views: Arc<FlowViews>,
    names: Names,
    clock: Clock,
    flow_start: i64,
    stage: Stage,
    pipes: Option<Pipes>,
    feed: Feed,
    /// Per topic, the row after the last one handed on in this generation.
    fed: [u64; EPOCH_TOPICS],
    generation: u64,
    pause: Duration,
    patience: Patience,
    /// Since when the generation has been complete.
    live_since: Option<Instant>,
    /// Rows read again for this generation.
    reread: u64,
}

/// What a seat is made of, besides the configuration.
pub struct Parts {
    pub bus: Bus,
    pub log: Option<LogReader>,
    pub views: Arc<FlowViews>,
    pub names: Names,
    pub clock: Clock,
    pub flow_start: i64,
}

impl Seat {
    pub fn new(config: &config::Dataflow, command: ChildCommand, parts: Parts) -> Seat {
        Seat {
            config: config.clone(),
            command,
            feed: Feed::new(parts.names.clone(), config.open_requests_max),
            bus: parts.bus,
            log: parts.log,
            views: parts.views,
            names: parts.names,
            clock: parts.clock,
            flow_start: parts.flow_start,
            stage: Stage::Down { until: Instant::now() },
            pipes: None,
            fed: [0; EPOCH_TOPICS],
            generation: 0,
            pause: PAUSE_MIN,
            patience: Patience::new(config.heartbeat_timeout),
            live_since: None,
            reread: 0,
        }
    }

    /// A batch has come in the open epoch.
    pub async fn came(&mut self, published: Published) {
        match &mut self.stage {
            Stage::Live => {
                let views = self.views.clone();
                let sent = self.hand_on(&published, views.refused()).await;
                self.check(sent);
            }
            Stage::Flushing { tail, .. } | Stage::Reading { tail, .. } => tail.keep(Kept::Batch(published)),
            Stage::Down { .. } | Stage::Starting { .. } | Stage::Connecting | Stage::Behind => {}
        }
    }

    /// All epochs before `epoch` are over.
    pub async fn closed(&mut self, epoch: u64) {
        match &mut self.stage {
            Stage::Live => {
                let sent = self.send(&Order::Advance(epoch)).await;
                self.check(sent);
                self.pipes.iter_mut().for_each(Pipes::await_answer);
            }
            Stage::Flushing { tail, .. } | Stage::Reading { tail, .. } => tail.keep(Kept::Close(epoch)),
            Stage::Down { .. } | Stage::Starting { .. } | Stage::Connecting | Stage::Behind => {}
        }
    }

    /// The log is being read: [`step`](Self::step) must then run to its end, and is quick.
    pub fn is_reading(&self) -> bool {
        matches!(self.stage, Stage::Reading { .. })
    }

    /// Goes on: waits for what comes next, or reads an epoch from the log. Safe to drop, but while the log is read.
    pub async fn step(&mut self) -> Notice {
        match &mut self.stage {
            Stage::Down { until } => {
                sleep_until(*until).await;
                let begun = self.start();
                self.check(begun);
                Notice::Nothing
            }
            Stage::Starting { starting } => {
                let started = starting.await.unwrap_or_else(|error| Err(io::Error::other(error)));
                let started = started.map(|started| self.connect(started));
                self.check(started);
                Notice::Nothing
            }
            Stage::Reading { .. } => {
                let read = self.read_on().await;
                let notice = if matches!(read, Ok(Notice::Behind)) { Notice::Behind } else { Notice::Nothing };
                self.check(read.map(drop));
                notice
            }
            Stage::Flushing { flush, .. } => {
                let _ = flush.await;
                let planned = self.plan();
                self.check(planned);
                Notice::Nothing
            }
            Stage::Behind => Notice::Behind,
            Stage::Connecting | Stage::Live => self.listen().await,
        }
    }

    async fn listen(&mut self) -> Notice {
        let Some(pipes) = &mut self.pipes else {
            self.check(Err(io::Error::other("no processes")));
            return Notice::Nothing;
        };
        match pipes.listen().await {
            Ok(Said::Connected) => {
                self.stage = Stage::Behind;
                return Notice::Behind;
            }
            Ok(Said::Answered) => {}
            Err(error) => self.check(Err(error)),
        }
        Notice::Nothing
    }

    /// Begins to start a generation.
    fn start(&mut self) -> io::Result<()> {
        self.generation += 1;
        let (hosts, local) = match self.config.hosts_file.as_os_str().is_empty() {
            true => (Hosts::local(self.config.processes), self.config.processes - 1),
            false => (Hosts::read(&self.config.hosts_file), 0),
        };
        let hosts = hosts.map_err(io::Error::other)?;
        let (command, silence) = (self.command.clone(), self.patience.silence());
        let start = Start { generation: self.generation, silence, dataflow: self.config.clone() };
        let starting = tokio::spawn(async move { Children::start(&command, &hosts, start, local).await });
        self.stage = Stage::Starting { starting };
        Ok(())
    }

    fn connect(&mut self, started: Started) {
        // Nothing of an earlier generation may come any more: its reader was ended with its pipes.
        self.views.reset();
        self.pipes = Some(Pipes::new(started, self.patience.silence(), &self.views));
        self.feed = Feed::new(self.names.clone(), self.config.open_requests_max);
        self.fed = [0; EPOCH_TOPICS];
        self.reread = 0;
        self.stage = Stage::Connecting;
    }

    /// The feeder stands in the epoch `open`: `last` are the epochs that may not be in the log yet, with the open one's rows so
    /// far. What it hands on after this call is kept.
    pub fn catch_up(&mut self, open: u64, last: Vec<EpochRow>) {
        let bus = self.bus.clone();
        // In a task: the feeder must go on emptying its subscription, or the bus could not flush.
        let flush = tokio::spawn(async move { drop(bus.flush().await) });
        self.stage = Stage::Flushing { flush, last, open, tail: Tail::default() };
    }

    /// Lists the epochs to read.
    fn plan(&mut self) -> io::Result<()> {
        let mut logged = Vec::new();
        if let Some(log) = &self.log {
            for read in log.read(Topic::Epochs, 0..u64::MAX) {
                let (_, batch) = read.map_err(io::Error::other)?;
                let rows = rows_of::<EpochRow>(&batch).map_err(io::Error::other)?;
                logged.extend(rows.into_iter().filter(|row| row.flow_start == self.flow_start));
            }
        }
        let Stage::Flushing { last, open, tail, .. } = &mut self.stage else { return Ok(()) };
        let open = *open;
        let mut plan = to_read(logged, std::mem::take(last), open, &self.fed);
        let tail = std::mem::take(tail);
        let mut rows: u64 = plan.iter().map(row_count).sum();
        let mut left_out = 0;
        while rows > REBUILD_ROWS_MAX
            && plan.len() > 1
            && let Some(oldest) = plan.pop_front()
        {
            rows -= row_count(&oldest);
            left_out += row_count(&oldest);
        }
        if left_out > 0 {
            let detail = format!("the oldest {left_out} rows are not read again: more than {REBUILD_ROWS_MAX}");
            self.fault("dataflow_left_out", detail, left_out);
        }
        if self.log.is_none() && rows > 0 {
            let detail = "log.mode is off: the views start empty".to_string();
            self.fault("dataflow_left_out", detail, rows);
            plan = to_read(Vec::new(), Vec::new(), open, &self.fed);
        }
        self.stage = Stage::Reading { plan, tail };
        Ok(())
    }

    /// Hands on one epoch from the log, or the tail when there is no more.
    async fn read_on(&mut self) -> io::Result<Notice> {
        let Stage::Reading { plan, tail } = &mut self.stage else { return Ok(Notice::Nothing) };
        if let Some(row) = plan.pop_front() {
            self.send(&Order::Advance(row.epoch)).await?;
            for (at, (topic, rows)) in row.ranges().into_iter().enumerate() {
                let rows = rows.start.max(self.fed[at])..rows.end;
                if !rows.is_empty() {
                    self.read_rows(topic, rows).await?;
                }
            }
            return Ok(Notice::Nothing);
        }
        if tail.is_overrun {
            self.stage = Stage::Behind;
            return Ok(Notice::Behind);
        }
        let kept = std::mem::take(&mut tail.kept);
        for kept in kept {
            match kept {
                Kept::Batch(published) => {
                    let views = self.views.clone();
                    self.hand_on(&published, views.refused()).await?;
                }
                Kept::Close(epoch) => self.send(&Order::Advance(epoch)).await?,
            }
        }
        self.stage = Stage::Live;
        self.pipes.iter_mut().for_each(Pipes::await_answer);
        self.pause = PAUSE_MIN;
        self.live_since = Some(Instant::now());
        if self.generation > 1 {
            let detail =
                format!("generation {} runs; {} rows were read again from the log", self.generation, self.reread);
            self.fault("dataflow_recovered", detail, self.reread.max(1));
        }
        Ok(Notice::Nothing)
    }

    async fn read_rows(&mut self, topic: Topic, rows: Range<u64>) -> io::Result<()> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut missing = rows.end - rows.start;
        for read in log.read(topic, rows.clone()) {
            let (first_row, batch) = read.map_err(io::Error::other)?;
            missing -= batch.num_rows() as u64;
            self.reread += batch.num_rows() as u64;
            // What was refused when it came is not told again.
            self.hand_on(&Published { topic, first_row, batch }, &RefusedRows::default()).await?;
        }
        self.stands(topic, rows.end);
        if missing > 0 {
            let detail = format!("{missing} rows of {} are not in the log any more", topic.name());
            self.fault("dataflow_left_out", detail, missing);
        }
        Ok(())
    }

    async fn hand_on(&mut self, published: &Published, refused: &RefusedRows) -> io::Result<()> {
        let mut rows = FlowRows::default();
        self.stands(published.topic, published.first_row + published.batch.num_rows() as u64);
        self.feed.take(published, (self.clock)(), (&mut rows, refused));
        if rows.is_empty() {
            return Ok(());
        }
        self.send(&Order::Rows(rows)).await
    }

    fn stands(&mut self, topic: Topic, next: u64) {
        if let Some(place) = EpochRow::place(topic) {
            self.fed[place] = next;
        }
    }

    async fn send(&mut self, order: &Order) -> io::Result<()> {
        match &mut self.pipes {
            Some(pipes) => pipes.send(order).await,
            None => Err(io::Error::other("no processes")),
        }
    }

    /// After an error there is no generation any more; the next one is started after a pause.
    fn check(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        self.pipes = None;
        let lived = self.live_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        self.patience.ended(&error, lived);
        let pause = self.pause;
        self.pause = (2 * pause).min(PAUSE_MAX);
        self.stage = Stage::Down { until: Instant::now() + pause };
        let detail = format!(
            "generation {} is gone ({error}); views are as they were until it is back, next attempt in {pause:?}",
            self.generation
        );
        self.fault("dataflow_process_lost", detail, 1);
    }

    /// Never waits: the feeder empties a subscription of the same bus.
    fn fault(&self, kind: &str, detail: String, count: u64) {
        tracing::warn!(kind, detail, "dataflow fault");
        let at = (self.clock)();
        let _ = self.bus.try_publish(FaultRow { at, component: "dataflow".into(), kind: kind.into(), detail, count });
    }
}
