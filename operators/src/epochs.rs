//! The timely side of every operator here: hold rows until their epoch is complete, then fold the epoch as a whole.
//!
//! Invariant: `close` sees each epoch once, in order, with all rows of that epoch and of this worker's keys; so an
//! operator that does not look at the order of rows within an epoch gives the same result on any number of workers.
//! Cost: one exchange by key and one move per row; one `close` per epoch with rows or with a wake-up due.
//! State: the rows of open epochs, and room for [`SPARE_ROWS`] more and as many outputs. The number of rows is bounded where rows enter: `FlowInputs` takes at most
//! `max_rows_per_epoch` rows per worker and epoch, and at most `max_ahead` epochs ahead.
use std::collections::BTreeMap;

use timely::{
    ExchangeData,
    container::CapacityContainerBuilder,
    dataflow::{
        StreamVec,
        channels::pact::Exchange,
        operators::{
            Capability,
            generic::{OutputBuilder, builder_rc::OperatorBuilder},
        },
    },
    progress::frontier::MutableAntichain,
};

use crate::refused::Refused;

/// What folding one epoch gave.
pub(crate) struct Closed<O> {
    pub out: Vec<O>,
    pub refused: Vec<Refused>,
}

/// A keyed state that is folded one epoch at a time. It knows nothing of timely.
pub(crate) trait EpochFold: 'static {
    type Row: ExchangeData;
    type Out: Clone + 'static;
    const NAME: &'static str;

    /// The key's hash: rows of one key meet on one worker.
    fn route(row: &Self::Row) -> u64;

    /// Folds all rows of `epoch`, in any order, and says what changed. `rows` may be sorted or drained at will.
    fn close(&mut self, epoch: u64, rows: &mut Vec<Self::Row>, closed: &mut Closed<Self::Out>);

    /// The next epoch that must be closed even if no row comes, if any; later than the last closed one.
    fn wake_at(&self) -> Option<u64> {
        None
    }
}

/// The right to send at one epoch, on both outputs.
struct Rights {
    out: Capability<u64>,
    refused: Capability<u64>,
}

impl Rights {
    fn delayed(&self, epoch: u64) -> Self {
        Self { out: self.out.delayed(&epoch), refused: self.refused.delayed(&epoch) }
    }
}

/// Rows of open epochs and the wake-up that is due.
struct Held<R> {
    epochs: BTreeMap<u64, (Rights, Vec<R>)>,
    wake: Option<(u64, Rights)>,
}

impl<R> Held<R> {
    /// The least epoch that is complete and has rows or a wake-up. Once the input has ended, wake-ups after the last
    /// rows are let go: the end of input is not the passing of time.
    fn take_complete(&mut self, frontier: &MutableAntichain<u64>) -> Option<(u64, Rights, Vec<R>)> {
        if frontier.is_empty() && self.epochs.is_empty() {
            self.wake = None;
        }
        let waiting = self.epochs.keys().next().copied();
        let due = self.wake.as_ref().map(|(epoch, _)| *epoch);
        let epoch = match (waiting, due) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        if frontier.less_equal(&epoch) {
            return None;
        }
        let wake = self.wake.take_if(|(due, _)| *due == epoch).map(|(_, rights)| rights);
        match self.epochs.remove(&epoch) {
            Some((rights, rows)) => Some((epoch, rights, rows)),
            None => wake.map(|rights| (epoch, rights, Vec::new())),
        }
    }
}

/// Room for rows that is kept from one epoch to the next, lest each asks the system for fresh memory; more is given back.
const SPARE_ROWS: usize = 1 << 16;

/// Empties a list; its room stays, if it is not too large.
fn emptied<T>(mut rows: Vec<T>) -> Vec<T> {
    rows.clear();
    if rows.capacity() > SPARE_ROWS { Vec::new() } else { rows }
}

/// Runs `fold` over a stream; gives its output and what it refused.
pub(crate) fn fold_epochs<'scope, F: EpochFold>(
    rows: StreamVec<'scope, u64, F::Row>,
    mut fold: F,
) -> (StreamVec<'scope, u64, F::Out>, StreamVec<'scope, u64, Refused>) {
    let mut builder = OperatorBuilder::new(F::NAME.to_owned(), rows.scope());
    let mut input = builder.new_input(rows, Exchange::new(F::route));
    let (out, outs) = builder.new_output::<Vec<F::Out>>();
    let (refused, refuseds) = builder.new_output::<Vec<Refused>>();
    let mut out = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(out);
    let mut refused = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(refused);
    builder.build(move |capabilities| {
        drop(capabilities);
        let mut held = Held { epochs: BTreeMap::new(), wake: None };
        let mut spare = Vec::new();
        let mut closed = Closed { out: Vec::new(), refused: Vec::new() };
        move |frontiers| {
            input.for_each(|capability, batch| {
                let Some(epoch) = capability.least().copied() else { return };
                let entry = held.epochs.entry(epoch).or_insert_with(|| {
                    let rights = Rights { out: capability.delayed(&epoch, 0), refused: capability.delayed(&epoch, 1) };
                    (rights, std::mem::take(&mut spare))
                });
                entry.1.append(batch);
            });
            let (mut out, mut refused) = (out.activate(), refused.activate());
            while let Some((epoch, rights, mut rows)) = held.take_complete(&frontiers[0]) {
                fold.close(epoch, &mut rows, &mut closed);
                out.session(&rights.out).give_iterator(closed.out.drain(..));
                refused.session(&rights.refused).give_iterator(closed.refused.drain(..));
                (spare, closed.out) = (emptied(rows), emptied(std::mem::take(&mut closed.out)));
                let due = fold.wake_at();
                if held.wake.as_ref().map(|(epoch, _)| *epoch) != due {
                    held.wake = due.map(|due| (due, rights.delayed(due)));
                }
            }
        }
    });
    (outs, refuseds)
}
