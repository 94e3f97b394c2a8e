//! Timely workers on threads of this process: a bounded queue for each, and the loop that empties it.
//!
//! Invariant: a worker owns its thread and is woken by each message; the end of its queue ends it. Cost: one message per batch,
//! and one per worker and epoch. State: [`QUEUE_MESSAGES`] messages per worker.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
    time::Duration,
};

use operators::{BlocksHeld, FlowConfig, FlowRows, views::build_beside};
use timely::{CommunicationConfig, WorkerConfig, worker::Worker};
use tokio::sync::mpsc;

use super::{
    flow::{FlowError, flow_config},
    views::FlowViews,
};
use crate::config;

/// Messages on their way to one timely worker; the feeder, and behind it the bus, waits at the bound.
const QUEUE_MESSAGES: usize = 256;
/// Longest sleep of an idle worker; messages wake it.
const PARK: Duration = Duration::from_millis(100);

/// What a worker is told.
pub(super) enum Message {
    Rows(FlowRows),
    Advance(u64),
}

/// The sending end of one worker's queue, and the means to wake the worker.
pub(super) struct Port {
    messages: mpsc::Sender<Message>,
    thread: Arc<OnceLock<thread::Thread>>,
}

impl Port {
    pub(super) fn new() -> (Self, mpsc::Receiver<Message>) {
        let (messages, receiver) = mpsc::channel(QUEUE_MESSAGES);
        (Self { messages, thread: Arc::default() }, receiver)
    }

    /// False if the worker is gone.
    pub(super) async fn send(&self, message: Message) -> bool {
        let sent = self.messages.send(message).await.is_ok();
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
        sent
    }

    /// The worker's thread, once it runs.
    pub(super) fn thread(&self) -> Option<thread::Thread> {
        self.thread.get().cloned()
    }
}

pub(super) type Guards = timely::communication::WorkerGuards<()>;

/// Starts the workers.
pub(super) fn spawn_workers(
    config: &config::Dataflow,
    receivers: Vec<mpsc::Receiver<Message>>,
    ports: &[Port],
    views: Arc<FlowViews>,
) -> Result<Guards, FlowError> {
    let flow = flow_config(config);
    let communication =
        if config.workers == 1 { CommunicationConfig::Thread } else { CommunicationConfig::Process(config.workers) };
    let receivers = Mutex::new(receivers.into_iter().map(Some).collect::<Vec<_>>());
    let threads: Vec<_> = ports.iter().map(|port| port.thread.clone()).collect();
    timely::execute(timely::Config { communication, worker: WorkerConfig::default() }, move |worker| {
        let index = worker.index();
        let taken = receivers.lock().unwrap_or_else(PoisonError::into_inner)[index].take();
        let receiver = taken.expect("invariant: each worker starts once");
        let _ = threads[index].set(thread::current());
        let views = views.clone();
        let held = BlocksHeld::Shared(views.prefixes());
        work(worker, (&flow, held), receiver, move |worker, changes| views.take(worker, changes));
    })
    .map_err(FlowError::Timely)
}

fn work(
    worker: &mut Worker,
    flow: (&FlowConfig, BlocksHeld),
    mut receiver: mpsc::Receiver<Message>,
    on_changes: impl FnMut(usize, operators::ViewChanges) + 'static,
) {
    let mut flow = build_beside(worker, flow, on_changes);
    loop {
        let mut budget = QUEUE_MESSAGES;
        let is_open = loop {
            match receiver.try_recv() {
                Ok(message) => take(worker, &mut flow.inputs, message),
                Err(mpsc::error::TryRecvError::Empty) => break true,
                Err(mpsc::error::TryRecvError::Disconnected) => break false,
            }
            budget -= 1;
            if budget == 0 {
                break true;
            }
        };
        if !is_open {
            break;
        }
        worker.step_or_park(Some(if budget == 0 { Duration::ZERO } else { PARK }));
    }
}

/// Takes rows of the open epoch in. Full: it holds as many rows as it may; closing it makes room at the cost of a finer epoch.
pub fn take_rows(worker: &mut Worker, inputs: &mut operators::FlowInputs, mut rows: FlowRows) {
    while inputs.send(&mut rows).is_err() {
        let next = inputs.open() + 1;
        if inputs.advance(next).is_err() {
            break;
        }
        worker.step();
    }
}

fn take(worker: &mut Worker, inputs: &mut operators::FlowInputs, message: Message) {
    match message {
        Message::Rows(rows) => take_rows(worker, inputs, rows),
        // Backward only if epochs were closed early above; the clock catches up.
        Message::Advance(epoch) => drop(inputs.advance(epoch.max(inputs.open()))),
    }
}
