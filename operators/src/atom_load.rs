//! Live context tokens, those of them not cached, and open requests per 500-token atom and instance, and per atom, instance, region, model, model and
//! tier, model and atom, kept incrementally from arrivals, growth and completions (B2).
//!
//! Invariant: the totals are those of the set of rows seen so far, whatever their order and however often each came:
//! a request counts where its row with the highest `seq` puts it, and nowhere once any row has finished it.
//! Cost: per epoch O(n log n) in its rows to group them by request, one map access per request touched, then
//! differential's O(log keys) per key changed. A request that grows within its atom is one update of each of its keys; one
//! that grows past it is two updates of the keys that name the atom, and one of the others.
//! State: 48 bytes per open request (at most `max_open` per worker; at the bound the request open for longest is dropped
//! and reported) and 24 per remembered end (at most `max_closed`; at the bound the oldest end is forgotten, after which a
//! row that late would open its request again); one total per key.
use std::collections::VecDeque;

use differential_dataflow::{
    AsCollection, Hashable, VecCollection,
    consolidation::consolidate,
    difference::{Abelian, Semigroup},
    operators::CountTotal,
};
use timely::dataflow::StreamVec;

use crate::{
    IntMap, IntSet,
    epochs::{Closed, EpochFold, fold_epochs},
    load_total::{LoadKey, LoadTotal, atom_of},
    refused::{Input, Refusal, Refused},
    rows::{LoadEvent, LoadRow},
};

/// Bounds of [`AtomLoad`], per worker.
#[derive(Clone, Copy, Debug)]
pub struct AtomLoadConfig {
    /// Open requests held; at least 1. At the bound: the one open for longest is dropped and reported.
    pub max_open: usize,
    /// Ends remembered, so that later rows of an ended request change nothing. At the bound: the oldest is forgotten.
    pub max_closed: usize,
}

impl Default for AtomLoadConfig {
    fn default() -> Self {
        Self { max_open: 1 << 20, max_closed: 1 << 18 }
    }
}

/// What [`AtomLoad::atom_load`] gives.
pub struct AtomLoads<'scope> {
    /// The load itself as differences: a key's accumulated difference is its total.
    pub changes: VecCollection<'scope, u64, LoadKey, LoadTotal>,
    pub refused: StreamVec<'scope, u64, Refused>,
}

/// `(key, total)` for each key with a total; a change is a retraction and an addition.
pub fn totals<'scope>(
    changes: &VecCollection<'scope, u64, LoadKey, LoadTotal>,
) -> VecCollection<'scope, u64, (LoadKey, LoadTotal), isize> {
    changes.clone().count_total()
}

/// Keeps the load per atom, instance, region, model and tier.
///
/// ```
/// use operators::{AtomLoad, AtomLoadConfig, LoadEvent, LoadKey, LoadRow, LoadTotal, atom_load::totals};
/// use timely::dataflow::operators::{Capture, ToStream, capture::Extract};
///
/// let row = |seq, tokens, event| LoadRow { request: 7, instance: 3, seq, tokens, event, ..LoadRow::default() };
/// let rows = vec![row(1, 400, LoadEvent::Arrived), row(2, 510, LoadEvent::Grew)];
/// let totals = timely::example(|scope| {
///     let load = rows.to_stream(scope).container::<Vec<_>>().atom_load(AtomLoadConfig::default());
///     totals(&load.changes).inner.capture()
/// });
/// let mut totals: Vec<_> = totals.extract().into_iter().flat_map(|(_, changes)| changes).collect();
/// totals.sort();
/// let total = LoadTotal { tokens: 510, uncached: 510, requests: 1 };
/// assert_eq!(totals[0], ((LoadKey::Cell { instance: 3, atom: 1 }, total), 0, 1));
/// assert_eq!(totals[1], ((LoadKey::Atom(1), total), 0, 1));
/// assert_eq!(totals[2], ((LoadKey::Instance(3), total), 0, 1));
/// ```
pub trait AtomLoad<'scope> {
    /// Folds load rows, exchanged by request, into totals, held by key.
    fn atom_load(self, config: AtomLoadConfig) -> AtomLoads<'scope>;
}

impl<'scope> AtomLoad<'scope> for StreamVec<'scope, u64, LoadRow> {
    fn atom_load(self, config: AtomLoadConfig) -> AtomLoads<'scope> {
        let (changes, refused) = fold_epochs(self, LoadFold::new(config));
        AtomLoads { changes: changes.as_collection(), refused }
    }
}

/// All that a request counts under.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    instance: u32,
    atom: u32,
    model: u32,
    region: u16,
    tier: u8,
}

impl Place {
    fn of(row: &LoadRow) -> Self {
        let LoadRow { instance, model, region, tier, .. } = *row;
        Self { instance, atom: atom_of(row.tokens), model, region, tier }
    }

    fn keys(self) -> [LoadKey; 7] {
        let Self { instance, atom, model, region, tier } = self;
        [
            LoadKey::Cell { instance, atom },
            LoadKey::Atom(atom),
            LoadKey::Instance(instance),
            LoadKey::Region(region),
            LoadKey::Model(model),
            LoadKey::Group { model, tier },
            LoadKey::ModelAtom { model, atom },
        ]
    }
}

/// One open request.
#[derive(Clone, Copy)]
struct Open {
    place: Place,
    tokens: u32,
    cached: u32,
    seq: u32,
    /// Which opening of this worker it was: tells a live entry of `LoadFold::order` from one left behind.
    opening: u64,
}

impl Open {
    fn load(self) -> LoadTotal {
        LoadTotal::one(self.tokens).less_cached(self.cached)
    }
}

pub(crate) struct LoadFold {
    config: AtomLoadConfig,
    open: IntMap<u64, Open>,
    /// Requests by opening, oldest first; entries of requests that are gone are skipped and swept.
    order: VecDeque<(u64, u64)>,
    openings: u64,
    closed: IntSet<u64>,
    closed_order: VecDeque<u64>,
    /// What the epoch changed, by place.
    places: Vec<(Place, LoadTotal)>,
}

impl LoadFold {
    pub(crate) fn new(config: AtomLoadConfig) -> Self {
        Self {
            config,
            open: IntMap::default(),
            order: VecDeque::new(),
            openings: 0,
            closed: IntSet::default(),
            closed_order: VecDeque::new(),
            places: Vec::new(),
        }
    }

    /// The request counts by `open` no more, and by `now` from here on: one difference if the place stays.
    fn shift(&mut self, before: Option<Open>, now: Option<Open>) {
        let (gone, come) = (before.map(|open| open.place), now.map(|open| open.place));
        let mut less = before.map_or(LoadTotal::default(), Open::load);
        less.negate();
        let more = now.map_or(LoadTotal::default(), Open::load);
        if gone == come {
            less.plus_equals(&more);
            self.places.extend(gone.map(|place| (place, less)));
        } else {
            self.places.extend(gone.map(|place| (place, less)));
            self.places.extend(come.map(|place| (place, more)));
        }
    }

    fn remember_end(&mut self, request: u64) {
        if self.closed.insert(request) {
            self.closed_order.push_back(request);
        }
        while self.closed_order.len() > self.config.max_closed {
            if let Some(oldest) = self.closed_order.pop_front() {
                self.closed.remove(&oldest);
            }
        }
    }

    fn finish(&mut self, request: u64) {
        let open = self.open.remove(&request);
        self.shift(open, None);
        self.remember_end(request);
    }

    /// Drops the request that has been open for longest.
    fn drop_oldest(&mut self, epoch: u64, refused: &mut Vec<Refused>) {
        while let Some((request, opening)) = self.order.pop_front() {
            let Some(open) = self.open.get(&request).copied().filter(|open| open.opening == opening) else { continue };
            self.finish(request);
            refused.push(Refused {
                epoch,
                input: Input::Load,
                instance: Some(open.place.instance),
                subject: request,
                rows: 1,
                reason: Refusal::OpenRequestsFull { max_open: self.config.max_open as u64 },
            });
            return;
        }
    }

    /// `latest` is the first row with the highest `seq` of its request in this epoch.
    fn place(&mut self, epoch: u64, latest: &LoadRow, refused: &mut Vec<Refused>) {
        let before = self.open.get(&latest.request).copied();
        if before.is_some_and(|open| open.seq >= latest.seq) {
            return;
        }
        let opening = match before {
            Some(open) => open.opening,
            None => {
                while self.open.len() >= self.config.max_open.max(1) {
                    self.drop_oldest(epoch, refused);
                }
                self.openings += 1;
                self.order.push_back((latest.request, self.openings));
                self.openings
            }
        };
        let open =
            Open { place: Place::of(latest), tokens: latest.tokens, cached: latest.cached, seq: latest.seq, opening };
        self.shift(before, Some(open));
        self.open.insert(latest.request, open);
    }

    /// All rows of one request in one epoch, sorted by `seq`; each has passed its check.
    fn fold_request(&mut self, epoch: u64, rows: &[LoadRow], refused: &mut Vec<Refused>) {
        let Some(last) = rows.last() else { return };
        if self.closed.contains(&last.request) {
            return;
        }
        if rows.iter().any(|row| row.event == LoadEvent::Finished) {
            return self.finish(last.request);
        }
        let first_of_last = rows.partition_point(|row| row.seq < last.seq);
        self.place(epoch, &rows[first_of_last], refused);
    }

    /// Sweeps entries of requests that are gone once they outnumber the live ones.
    fn sweep(&mut self) {
        if self.order.len() > 2 * self.open.len() + 1024 {
            let open = &self.open;
            self.order.retain(|(request, opening)| open.get(request).is_some_and(|open| open.opening == *opening));
        }
    }

    fn emit(&mut self, epoch: u64, out: &mut Vec<(LoadKey, u64, LoadTotal)>) {
        consolidate(&mut self.places);
        let keys = self.places.drain(..).flat_map(|(place, load)| place.keys().map(|key| (key, load)));
        let mut sums: Vec<(LoadKey, LoadTotal)> = keys.collect();
        consolidate(&mut sums);
        out.extend(sums.into_iter().map(|(key, load)| (key, epoch, load)));
    }
}

impl EpochFold for LoadFold {
    type Row = LoadRow;
    type Out = (LoadKey, u64, LoadTotal);
    const NAME: &'static str = "AtomLoad";

    fn route(row: &LoadRow) -> u64 {
        row.request.hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<LoadRow>, closed: &mut Closed<Self::Out>) {
        rows.retain(|row| {
            let checked = row.check();
            if let Err(reason) = checked {
                closed.refused.push(Refused {
                    epoch,
                    input: Input::Load,
                    instance: Some(row.instance),
                    subject: row.request,
                    rows: 1,
                    reason,
                });
            }
            checked.is_ok()
        });
        rows.sort_unstable();
        for group in rows.chunk_by(|a, b| a.request == b.request) {
            self.fold_request(epoch, group, &mut closed.refused);
        }
        self.sweep();
        self.emit(epoch, &mut closed.out);
    }
}
