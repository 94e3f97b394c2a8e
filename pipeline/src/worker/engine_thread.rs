//! One std thread owns the engine (DESIGN §5): commands come in by a bounded channel, each sequence's outputs leave by a
//! channel of their own, and step figures go to a [`StepSink`].
//!
//! Invariants: the thread never waits for a reader, since a sequence's channel holds everything the sequence can produce
//! (`max_tokens + 2` entries, and the engine refuses more tokens than the context); a dropped receiver cancels its sequence
//! before the next step; every accepted sequence ends with an output that has `finish`, unless the thread dies, which
//! closes all channels. It sleeps on the command channel when the engine has no work.
//!
//! Cost: per step, one `is_closed` look and at most one `try_send` a live sequence. Memory: `COMMANDS_MAX` commands;
//! live sequences are bounded by the engine (`running_max + waiting_max`). At the command bound, submitters wait.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use engine::{
    engine::Engine,
    grammar::{Grammar, GrammarError, GrammarSource},
    request::{GenerateRequest, RequestClass, SamplingParams, SequenceId, StopConditions, SubmitRejection},
    step::{SequenceOutput, StepReport},
};
use tokio::sync::{mpsc, oneshot, watch};

use super::{grammars::Grammars, step_rows::StepSink, wall_micros};
use crate::{
    gateway::instances::{GenerateCall, KvAsk},
    ids::micros,
};

/// Commands on their way to the engine thread; submitters wait at the bound.
const COMMANDS_MAX: usize = 256;
/// Entries a sequence's channel has beyond one a token: the held-back text and the end.
const OUTPUT_SLACK: usize = 2;

/// Why a sequence was not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Rejected(#[from] SubmitRejection),
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    #[error("the engine has stopped")]
    Stopped,
}

/// What the engine thread shows of itself without being asked, so that a long step does not delay a health check.
#[derive(Debug, Default)]
pub struct EngineStatus {
    running: AtomicU32,
    waiting: AtomicU32,
    /// Start of the step in progress in microseconds, 0 between steps.
    step_since: AtomicI64,
    overflowed: AtomicU64,
    dead: AtomicBool,
}

impl EngineStatus {
    pub fn running(&self) -> u32 {
        self.running.load(Ordering::Relaxed)
    }

    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Microseconds since the step in progress began, if one is in progress.
    pub fn step_age_us(&self) -> Option<i64> {
        let since = self.step_since.load(Ordering::Relaxed);
        (since != 0).then(|| wall_micros().saturating_sub(since).max(0))
    }

    /// Sequences cancelled because their channel was full, which its size rules out.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
}

/// What the thread is told.
enum Command {
    Submit(Box<Submit>),
    Tell(KvAsk, oneshot::Sender<usize>),
    Cancel(String, oneshot::Sender<()>),
}

struct Submit {
    request: GenerateRequest,
    name: String,
    outputs: mpsc::Sender<SequenceOutput>,
    reply: oneshot::Sender<Result<(), SubmitRejection>>,
}

/// A way to the engine thread. The thread ends when all handles are gone and no sequence is left.
#[derive(Clone)]
pub struct EngineHandle {
    commands: mpsc::Sender<Command>,
    status: Arc<EngineStatus>,
    next_id: Arc<AtomicU64>,
    ended: watch::Receiver<bool>,
    context: usize,
    grammars: Option<Arc<Grammars>>,
}

/// What a caller wants of the engine; the handle gives it an id.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Names the sequence for [`EngineHandle::cancel`].
    pub name: String,
    pub prompt: Arc<[u32]>,
    pub sampling: SamplingParams,
    pub stop: StopConditions,
    pub lane: engine::request::Lane,
    pub deadline: Option<engine::Micros>,
    pub drop_at: Option<engine::Micros>,
    pub cache_salt: u64,
    pub sampling_offset: u32,
    pub class: Option<RequestClass>,
    pub grammar: Option<GrammarSource>,
}

impl Start {
    pub fn new(call: GenerateCall, grammar: Option<GrammarSource>) -> Self {
        Start {
            name: call.request_id,
            prompt: call.prompt,
            sampling: call.sampling,
            stop: call.stop,
            lane: call.lane,
            deadline: call.deadline,
            drop_at: call.drop_at,
            cache_salt: call.cache_salt,
            sampling_offset: call.sampling_offset,
            class: call.class,
            grammar,
        }
    }
}

impl EngineHandle {
    /// The same engine, with what compiles grammars for its model; without it requests with a grammar are refused.
    pub fn with_grammars(mut self, grammars: Arc<Grammars>) -> Self {
        self.grammars = Some(grammars);
        self
    }

    /// Compiles the grammar, off the engine's thread, gives the sequence to the engine and waits until it is accepted, at
    /// most to the end of the step in progress. Dropping the receiver cancels the sequence.
    pub async fn start(&self, start: Start) -> Result<mpsc::Receiver<SequenceOutput>, StartError> {
        let most = (start.stop.max_tokens as usize).min(self.context);
        let grammar = match start.grammar {
            Some(source) => Some(self.compile(source).await?),
            None => None,
        };
        let (outputs, receiver) = mpsc::channel(most + OUTPUT_SLACK);
        let (reply, accepted) = oneshot::channel();
        let request = GenerateRequest {
            id: SequenceId(self.next_id.fetch_add(1, Ordering::Relaxed)),
            prompt: start.prompt,
            sampling: start.sampling,
            stop: start.stop,
            lane: start.lane,
            deadline: start.deadline,
            drop_at: start.drop_at,
            cache_salt: start.cache_salt,
            sampling_offset: start.sampling_offset,
            class: start.class,
            grammar,
        };
        let command = Command::Submit(Box::new(Submit { request, name: start.name, outputs, reply }));
        self.commands.send(command).await.map_err(|_| StartError::Stopped)?;
        accepted.await.map_err(|_| StartError::Stopped)??;
        Ok(receiver)
    }

    async fn compile(&self, source: GrammarSource) -> Result<Grammar, StartError> {
        let grammars = self.grammars.clone();
        let grammars = grammars.ok_or_else(|| GrammarError::Vocabulary("the worker was not given it".into()))?;
        let compiled = tokio::task::spawn_blocking(move || grammars.compile(&source)).await;
        Ok(compiled.map_err(|error| GrammarError::Vocabulary(format!("the compiler failed: {error}")))??)
    }

    /// Ends the sequences of this name and completes when nothing of them is left, at most at the end of the next step.
    pub async fn cancel(&self, name: &str) -> Result<(), StartError> {
        let (reply, gone) = oneshot::channel();
        self.commands.send(Command::Cancel(name.into(), reply)).await.map_err(|_| StartError::Stopped)?;
        gone.await.map_err(|_| StartError::Stopped)
    }

    /// Asks what KV blocks the engine holds; the answer goes to the step sink, at most at the end of the step in progress.
    /// Gives the rows told.
    pub async fn tell(&self, ask: KvAsk) -> Result<usize, StartError> {
        let (reply, told) = oneshot::channel();
        self.commands.send(Command::Tell(ask, reply)).await.map_err(|_| StartError::Stopped)?;
        told.await.map_err(|_| StartError::Stopped)
    }

    pub fn status(&self) -> &EngineStatus {
        &self.status
    }

    /// Completes when the thread has ended; `status().is_dead()` says whether by a panic.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means the sender is gone, so the thread is too.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Starts the thread. `context` is the model's, in tokens.
///
/// Errors: the operating system gives no thread.
pub fn spawn(engine: Engine, context: usize, sink: Box<dyn StepSink>) -> std::io::Result<EngineHandle> {
    let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
    let (ended_sender, ended) = watch::channel(false);
    let status = Arc::new(EngineStatus::default());
    let guard = EndGuard { status: status.clone(), ended: ended_sender };
    let body = EngineThread { engine, inbox, live: HashMap::new(), gone: Vec::new(), sink, status: status.clone() };
    thread::Builder::new().name("engine".into()).spawn(move || {
        let _guard = guard;
        body.run();
    })?;
    Ok(EngineHandle { commands, status, next_id: Arc::new(AtomicU64::new(1)), ended, context, grammars: None })
}

/// Tells of the thread's end, however it comes.
struct EndGuard {
    status: Arc<EngineStatus>,
    ended: watch::Sender<bool>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.status.dead.store(thread::panicking(), Ordering::Release);
        self.ended.send_replace(true);
    }
}

/// A sequence that runs or waits.
struct Live {
    name: String,
    outputs: mpsc::Sender<SequenceOutput>,
}

struct EngineThread {
    engine: Engine,
    inbox: mpsc::Receiver<Command>,
    live: HashMap<SequenceId, Live>,
    /// Who waits for the next step to have ended cancelled sequences; at most as many as commands were taken before it.
    gone: Vec<oneshot::Sender<()>>,
    sink: Box<dyn StepSink>,
    status: Arc<EngineStatus>,
}

impl EngineThread {
    fn run(mut self) {
        loop {
            while let Ok(command) = self.inbox.try_recv() {
                self.accept(command);
            }
            self.cancel_abandoned();
            if self.engine.has_work() {
                self.step();
            } else {
                match self.inbox.blocking_recv() {
                    Some(command) => self.accept(command),
                    None => return,
                }
            }
        }
    }

    fn accept(&mut self, command: Command) {
        match command {
            Command::Submit(submit) => self.submit(*submit),
            Command::Tell(ask, reply) => {
                // What is told of now follows what has happened until now.
                let events = self.engine.take_kv_events();
                let engine = &self.engine;
                let held = || (engine.held_blocks(), engine.shape().block_size as u32);
                let told = self.sink.tell(wall_micros(), (ask, events), &held);
                // Whoever asked may have gone; the answer is on its way all the same.
                let _ = reply.send(told);
            }
            Command::Cancel(name, reply) => self.cancel(&name, reply),
        }
    }

    /// The next step ends what is cancelled. A name of which nothing lives is answered at once, unless a step has yet to end it.
    fn cancel(&mut self, name: &str, reply: oneshot::Sender<()>) {
        let ids: Vec<SequenceId> = self.live.iter().filter(|(_, live)| live.name == name).map(|(id, _)| *id).collect();
        for id in &ids {
            self.engine.cancel(*id);
            self.live.remove(id);
        }
        match self.engine.has_work() {
            true => self.gone.push(reply),
            // Whoever asked may have gone.
            false => {
                let _ = reply.send(());
            }
        }
    }

    fn submit(&mut self, Submit { request, name, outputs, reply }: Submit) {
        let id = request.id;
        let result = self.engine.submit(request, wall_micros());
        if result.is_ok() {
            self.live.insert(id, Live { name, outputs });
            self.status.waiting.fetch_add(1, Ordering::Relaxed);
        }
        // A caller that went away meanwhile has dropped its receiver too: `cancel_abandoned` sees that.
        let _ = reply.send(result);
    }

    /// Cancels sequences nobody listens to. The engine reports their end in its next step; it has no reader.
    fn cancel_abandoned(&mut self) {
        let engine = &mut self.engine;
        self.live.retain(|id, live| {
            let wanted = !live.outputs.is_closed();
            if !wanted {
                engine.cancel(*id);
            }
            wanted
        });
    }

    fn step(&mut self) {
        let now = wall_micros();
        let started = Instant::now();
        self.status.step_since.store(now, Ordering::Relaxed);
        let report = self.engine.step(now);
        self.status.step_since.store(0, Ordering::Relaxed);
        self.status.running.store(report.stats.running, Ordering::Relaxed);
        self.status.waiting.store(report.stats.waiting, Ordering::Relaxed);
        let step_us = micros(started.elapsed());
        self.engine.took(step_us);
        let StepReport { outputs, kv_events, stats, speculation, draft_error } = report;
        if let Some(error) = draft_error {
            tracing::warn!(%error, "the draft model failed; this step ran without guesses");
        }
        for output in outputs {
            self.deliver(output);
        }
        let at = now.saturating_add(step_us);
        self.sink.step(at, step_us, stats, kv_events);
        self.sink.speculation(at, speculation);
        // Whoever asked may have gone.
        for reply in self.gone.drain(..) {
            let _ = reply.send(());
        }
    }

    fn deliver(&mut self, output: SequenceOutput) {
        let id = output.sequence;
        let last = output.finish.is_some();
        let Some(live) = self.live.get(&id) else { return };
        let full = matches!(live.outputs.try_send(output), Err(mpsc::error::TrySendError::Full(_)));
        if full {
            self.status.overflowed.fetch_add(1, Ordering::Relaxed);
            self.engine.cancel(id);
        }
        if last || full {
            self.live.remove(&id);
        }
    }
}
