//! The load: so many requests in flight, each on a connection of its own, all from one thread.
//!
//! Invariant: an answer without every token asked for is an error and no sample. Times are from before a request is sent to
//! its last byte. Cost: that of the client our own gateway uses, so the same in front of every router.
//! State: one number a request.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, Method, header},
};
use futures::future::poll_fn;
use memchr::memmem;
use tokio::task::LocalSet;

use crate::{
    config::ForeignWorker,
    gateway::foreign::{Ask, Upstream},
};

const CONNECT: Duration = Duration::from_secs(5);
/// A run that takes longer is given up.
const RUN_MAX: Duration = Duration::from_secs(60);

/// What is asked, in turns.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) path: &'static str,
    pub(super) bodies: Arc<Vec<Bytes>>,
    pub(super) streams: bool,
    pub(super) tokens: usize,
}

/// Times of a run.
pub(super) struct Run {
    /// Of each request, in microseconds.
    pub(super) latency_us: Vec<f64>,
    pub(super) seconds: f64,
}

impl Run {
    pub(super) fn per_second(&self) -> f64 {
        self.latency_us.len() as f64 / self.seconds.max(1e-9)
    }
}

/// Sends `requests` requests to `url`, `in_flight` at a time.
pub(super) fn run(url: &str, load: &Load, in_flight: usize, requests: usize) -> anyhow::Result<Run> {
    let Some(upstream) = Upstream::new(&ForeignWorker::at(url.into()), CONNECT) else { bail!("{url} is no URL") };
    let upstream = Arc::new(upstream);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let next = Rc::new(Cell::new(0));
    let began = Instant::now();
    let all = async {
        let lanes: Vec<_> = (0..in_flight)
            .map(|_| tokio::task::spawn_local(lane(upstream.clone(), load.clone(), next.clone(), requests)))
            .collect();
        let mut latency_us = Vec::with_capacity(requests);
        for lane in lanes {
            latency_us.extend(lane.await??);
        }
        anyhow::Ok(latency_us)
    };
    let latency_us = LocalSet::new().block_on(&runtime, async { tokio::time::timeout(RUN_MAX, all).await })??;
    Ok(Run { latency_us, seconds: began.elapsed().as_secs_f64() })
}

async fn lane(upstream: Arc<Upstream>, load: Load, next: Rc<Cell<usize>>, requests: usize) -> anyhow::Result<Vec<f64>> {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let mut ask = Ask { method: Method::POST, path: load.path, headers, body: Bytes::new() };
    let mut latency_us = Vec::new();
    loop {
        let number = next.replace(next.get() + 1);
        if number >= requests {
            return Ok(latency_us);
        }
        ask.body = load.bodies[number % load.bodies.len()].clone();
        let sent = Instant::now();
        let mut reply = upstream.call(&ask).await?;
        let (mut events, mut tail) = (Events::default(), Bytes::new());
        while let Some(piece) = poll_fn(|cx| reply.poll_piece(cx)).await {
            let piece = piece?;
            if load.streams {
                events.take(&piece);
            }
            tail = piece;
        }
        let events = events.count;
        latency_us.push(sent.elapsed().as_secs_f64() * 1e6);
        let said = || String::from_utf8_lossy(&tail[..tail.len().min(300)]).into_owned();
        ensure!(reply.status().is_success(), "{}: {}", reply.status(), said());
        ensure!(!load.streams || events == load.tokens + 1, "{events} events of {}: {}", load.tokens + 1, said());
    }
}

/// Counts the events of a stream, whose pieces may end anywhere.
#[derive(Default)]
struct Events {
    count: usize,
    /// A line has ended, of which the piece so far had nothing more.
    line_ended: bool,
}

impl Events {
    fn take(&mut self, piece: &[u8]) {
        let across = usize::from(self.line_ended && piece.first() == Some(&b'\n'));
        let rest = &piece[across..];
        self.count += across + memmem::find_iter(rest, b"\n\n").count();
        let ends = rest.iter().rev().take_while(|byte| **byte == b'\n').count();
        self.line_ended = if piece.is_empty() { self.line_ended } else { ends % 2 == 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a stream cut in two at every place, and byte by byte. Guarantees: its events are counted all the same.
    #[test]
    fn events_are_counted_wherever_pieces_end() {
        let stream = b"data: a\n\ndata: b\ndata: c\n\n: d\n\n\n\ndata: [DONE]\n\n";
        let count = |pieces: &[&[u8]]| {
            let mut events = Events::default();
            pieces.iter().for_each(|piece| events.take(piece));
            events.count
        };
        for cut in 0..=stream.len() {
            assert_eq!(count(&[&stream[..cut], &stream[cut..]]), 5, "cut at {cut}");
        }
        assert_eq!(count(&stream.chunks(1).collect::<Vec<_>>()), 5);
    }
}
