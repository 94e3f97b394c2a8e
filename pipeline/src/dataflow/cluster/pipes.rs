//! The pipes between the server and one generation of its dataflow.
//!
//! Invariant: dropping [`Pipes`] kills the generation, and nothing of it reaches the views any more. Bounds: a frame is taken within
//! [`STALL`] or the generation counts as lost; answers are not queued: a task puts them into the views as they come.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    process::{ChildStdin, ChildStdout},
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    children::Children,
    wire::{Done, Order, decode, encode, length},
};
use crate::dataflow::views::FlowViews;

/// Longest wait for a child to take a frame; an epoch is answered within twice that.
pub const STALL: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Pipes {
    children: Children,
    input: ChildStdin,
    reader: JoinHandle<()>,
    words: mpsc::Receiver<io::Result<()>>,
    /// Counts answers.
    answers: watch::Receiver<u64>,
    /// Since when an epoch is unanswered.
    unanswered: Option<Instant>,
}

/// What a generation has to say.
pub(super) enum Said {
    Connected,
    /// An epoch was answered.
    Answered,
}

impl Pipes {
    /// Must be called on a tokio runtime.
    pub(super) fn new(children: Children, input: ChildStdin, output: ChildStdout, views: Arc<FlowViews>) -> Pipes {
        let ((teller, words), (counter, answers)) = (mpsc::channel(2), watch::channel(0));
        let reader = tokio::spawn(read_results(output, views, (teller, counter)));
        Pipes { children, input, reader, words, answers, unanswered: None }
    }

    pub(super) async fn send(&mut self, order: &Order) -> io::Result<()> {
        let frame = encode(order)?;
        let write = async {
            self.input.write_all(&frame).await?;
            self.input.flush().await
        };
        timeout(STALL, write).await.unwrap_or_else(|_| Err(timed_out("it takes no rows")))
    }

    /// An answer is due.
    pub(super) fn await_answer(&mut self) {
        self.unanswered.get_or_insert_with(Instant::now);
    }

    /// Waits for what the generation says next; an error is its end.
    pub(super) async fn listen(&mut self) -> io::Result<Said> {
        let stalled = self.unanswered.map(|since| since + 2 * STALL);
        tokio::select! {
            biased;
            word = self.words.recv() => match word {
                Some(word) => word.map(|()| Said::Connected),
                None => Err(io::Error::other("process 0 ended")),
            },
            Ok(()) = self.answers.changed() => {
                self.unanswered = None;
                Ok(Said::Answered)
            }
            how = self.children.ended() => Err(io::Error::other(how)),
            () = at(stalled) => Err(timed_out("no epoch was answered")),
        }
    }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn timed_out(detail: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, detail)
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Puts changes into the views until the pipe ends.
async fn read_results(
    output: ChildStdout,
    views: Arc<FlowViews>,
    (teller, counter): (mpsc::Sender<io::Result<()>>, watch::Sender<u64>),
) {
    let mut output = BufReader::new(output);
    loop {
        let word = match read_result(&mut output).await {
            Ok(Done::Connected) => Ok(()),
            Ok(Done::Changes(changes)) => {
                views.take(0, *changes);
                counter.send_modify(|answers| *answers += 1);
                continue;
            }
            Err(error) => Err(io::Error::other(format!("process 0: {error}"))),
        };
        let is_over = word.is_err();
        // At most two words are ever said, and there is room for both.
        if teller.send(word).await.is_err() || is_over {
            return;
        }
    }
}

async fn read_result(output: &mut BufReader<ChildStdout>) -> io::Result<Done> {
    let mut head = [0; 4];
    output.read_exact(&mut head).await?;
    let mut body = vec![0; length(head)?];
    output.read_exact(&mut body).await?;
    decode(&body)
}
