//! One request's place in its model's queue, held by who waits.
//!
//! Invariant: leaving it (drop) takes the entry out, whatever became of it. Bound: the wait that is asked for.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    dispatcher::{Dispatcher, Grant},
    registry::Model,
};
use crate::policy::{Starts, Ticket};

/// A place in the queue; leaving it (drop) takes the entry out.
pub struct QueuePlace {
    dispatcher: Arc<Dispatcher>,
    model: Arc<Model>,
    ticket: Ticket,
    granted: oneshot::Receiver<Grant>,
}

impl QueuePlace {
    pub(super) fn new(
        dispatcher: Arc<Dispatcher>,
        (model, ticket): (Arc<Model>, Ticket),
        granted: oneshot::Receiver<Grant>,
    ) -> Self {
        Self { dispatcher, model, ticket, granted }
    }

    /// Changes the latest starts of what waits.
    pub fn retime(&self, starts: Starts) {
        self.dispatcher.group(&self.model).queue().retime(self.ticket, starts);
    }

    /// Waits for the grant at most `wait_max`; `None` when that has passed.
    pub async fn wait(&mut self, wait_max: Duration) -> Option<Grant> {
        let deadline = tokio::time::sleep(wait_max);
        tokio::pin!(deadline);
        loop {
            self.dispatcher.pump();
            tokio::select! {
                biased;
                grant = &mut self.granted => return grant.ok(),
                () = &mut deadline => return None,
                () = self.dispatcher.wait_for_change() => {}
            }
        }
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        let group = self.dispatcher.group(&self.model);
        let mut queue = group.queue();
        let left = queue.remove(self.ticket);
        if queue.load().requests == 0 {
            group.learnt().drain.emptied();
        }
        group.show_load(queue.load());
        drop(queue);
        if left.is_some() {
            // The head may have changed to one that fits.
            self.dispatcher.deps.directory.ring();
        }
    }
}
