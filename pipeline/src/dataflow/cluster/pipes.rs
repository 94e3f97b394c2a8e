//! The pipes between the server and one generation of its dataflow.
//!
//! Invariant: dropping [`Pipes`] kills the generation, and nothing of it reaches the views any more. Bounds: a process is heard
//! within the generation's silence (`beat`), a frame is taken within [`STALL`] and an epoch answered within twice that, or the
//! generation counts as lost; answers are not queued: a task puts them into the views as they come.

use std::{
    io::{self, ErrorKind},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::AsyncWriteExt,
    process::{ChildStdin, ChildStdout},
    sync::watch,
    task::JoinSet,
    time::{Interval, timeout},
};

use super::{
    beat::between,
    children::{Children, Started},
    frames::{Frames, looks, silent},
    wire::{Done, Order, encode},
};
use crate::dataflow::views::FlowViews;

/// Longest wait for a child to take a frame; an epoch is answered within twice that.
pub const STALL: Duration = Duration::from_secs(5);
/// How long the last words of a process that ended are waited for.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Pipes {
    children: Children,
    input: ChildStdin,
    _readers: JoinSet<()>,
    life: watch::Receiver<Life>,
    is_connected: bool,
    /// Counts answers.
    answers: watch::Receiver<u64>,
    silence: Duration,
    looks: Interval,
    /// Looks since an epoch is unanswered; counted for the same reason as those of `beat`.
    unanswered: Option<u32>,
}

/// How far a generation is.
#[derive(Debug, Clone)]
enum Life {
    Starting,
    Connected,
    Lost(ErrorKind, String),
}

impl Life {
    fn is_lost(&self) -> bool {
        matches!(self, Life::Lost(..))
    }
}

/// What a generation has to say.
pub(super) enum Said {
    Connected,
    /// An epoch was answered.
    Answered,
}

impl Pipes {
    /// `outputs`: of process 0, then of the others. Must be called on a tokio runtime.
    pub(super) fn new((children, input, outputs): Started, silence: Duration, views: &Arc<FlowViews>) -> Pipes {
        let ((teller, life), (counter, answers)) = (watch::channel(Life::Starting), watch::channel(0));
        let mut readers = JoinSet::new();
        for (process, output) in outputs.into_iter().enumerate() {
            let reader = Reader { views: views.clone(), teller: teller.clone(), counter: counter.clone() };
            readers.spawn(reader.run(Frames::new(process, output, silence), silence));
        }
        let looks = looks(silence);
        Pipes {
            children,
            input,
            _readers: readers,
            life,
            is_connected: false,
            answers,
            silence,
            looks,
            unanswered: None,
        }
    }

    pub(super) async fn send(&mut self, order: &Order) -> io::Result<()> {
        let frame = encode(order)?;
        let write = async {
            self.input.write_all(&frame).await?;
            self.input.flush().await
        };
        tokio::select! {
            biased;
            Err(loss) = word(&mut self.life, true) => Err(loss),
            written = timeout(STALL, write) => {
                written.unwrap_or_else(|_| Err(io::Error::new(ErrorKind::TimedOut, "it takes no rows")))
            }
        }
    }

    /// An answer is due.
    pub(super) fn await_answer(&mut self) {
        self.unanswered.get_or_insert(0);
    }

    /// Waits for what the generation says next; an error is its end. Safe to drop.
    pub(super) async fn listen(&mut self) -> io::Result<Said> {
        loop {
            tokio::select! {
                biased;
                word = word(&mut self.life, self.is_connected) => {
                    self.is_connected = true;
                    return word.map(|()| Said::Connected);
                }
                Ok(()) = self.answers.changed() => {
                    self.unanswered = None;
                    return Ok(Said::Answered);
                }
                how = self.children.ended() => {
                    let last = timeout(LAST_WORDS, word(&mut self.life, true)).await;
                    return Err(last.ok().and_then(Result::err).unwrap_or_else(|| io::Error::other(how)));
                }
                _ = self.looks.tick(), if self.unanswered.is_some() => {
                    let looks = self.unanswered.map_or(0, |looks| looks + 1);
                    self.unanswered = Some(looks);
                    if between(self.silence) * looks > 2 * STALL {
                        return Err(io::Error::new(ErrorKind::TimedOut, "no epoch was answered"));
                    }
                }
            }
        }
    }
}

/// Waits for the notice that all are connected, unless it has come, or of a loss.
async fn word(life: &mut watch::Receiver<Life>, is_connected: bool) -> io::Result<()> {
    match life.wait_for(|life| life.is_lost() || !is_connected && matches!(life, Life::Connected)).await {
        Ok(life) => match &*life {
            Life::Lost(kind, detail) => Err(io::Error::new(*kind, detail.clone())),
            Life::Starting | Life::Connected => Ok(()),
        },
        // All readers have ended; how the processes did is told by the system.
        Err(_) => std::future::pending().await,
    }
}

/// Reads what one process says, and puts changes into the views, until the pipe ends.
struct Reader {
    views: Arc<FlowViews>,
    teller: watch::Sender<Life>,
    counter: watch::Sender<u64>,
}

impl Reader {
    async fn run(self, mut frames: Frames<ChildStdout>, silence: Duration) {
        loop {
            let error = match frames.next().await {
                Ok(Some(Done::Beat)) => continue,
                Ok(Some(Done::Connected)) => {
                    drop(self.teller.send(Life::Connected));
                    continue;
                }
                Ok(Some(Done::Changes(changes))) => {
                    self.views.take(0, *changes);
                    self.counter.send_modify(|answers| *answers += 1);
                    continue;
                }
                Ok(Some(Done::Silent { process })) => silent(process, silence),
                // How it ended is told by the system.
                Ok(None) => return,
                Err(error) => error,
            };
            return self.teller.send_modify(|life| {
                if !life.is_lost() {
                    *life = Life::Lost(error.kind(), error.to_string());
                }
            });
        }
    }
}
