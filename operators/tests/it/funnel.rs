//! C5: the hit-rate funnel.
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use operators::{
    AskedRow, BlockChange, BlockRow, BlocksHeld, CacheKey, DecidedRow, EndedRow, FlowConfig, FlowRows, FunnelCase,
    FunnelConfig, FunnelPart, FunnelRow, Input, KvChange, KvRow, Layer, Loss, PrefixIndex, PrefixIndexConfig, Refusal,
    Refused, ServesRow, ViewChanges,
    funnel::ANY_MODEL,
    reference::{cache_index::SlowCacheIndex, funnel::SlowFunnel},
    views,
};
use proptest::prelude::*;
use timely::Config;

use crate::harness::{Epochs, Schedule, schedules};

/// What a worker is fed: the cache index's rows, and the funnel's own.
#[derive(Clone, Debug)]
enum Fed {
    Kv(KvRow),
    Funnel(FunnelRow),
}

/// What happens in a random story; numbered and dated by `feed`.
#[derive(Clone, Debug)]
enum Event {
    Part(FunnelPart),
    Date(BlockRow),
    Serves(ServesRow),
    /// A change of an instance's store; a restart before it; the time that is told of it, if any.
    Kv(u32, KvChange, bool, Option<i64>),
}

const CHAINS: [&[u64]; 4] = [&[1, 2, 3, 4], &[1, 2, 5, 6], &[7, 8, 9], &[1]];

fn parts() -> impl Strategy<Value = FunnelPart> {
    let prompt = (0..CHAINS.len(), 0..5usize)
        .prop_map(|(chain, blocks)| CHAINS[chain].iter().copied().take(blocks).collect::<Vec<u64>>());
    let prompts = prop_oneof![6 => prop::collection::vec(prompt.clone(), 1), 1 => prop::collection::vec(prompt, 0..3)];
    let asked = ((0..40i64, 1..7u128), 0..2u32, 0..2u8, 0..24u32, 1..5u32, prompts).prop_map(
        |((at_us, request), model, tier, prompt_tokens, block_tokens, prompts)| {
            // Block tokens of 4 stand for a malformed row.
            let block_tokens = block_tokens % 4;
            let (region, tenant) = (0, model);
            FunnelPart::Asked(AskedRow {
                at_us,
                request,
                model,
                region,
                tier,
                tenant,
                prompt_tokens,
                block_tokens,
                prompts,
            })
        },
    );
    let claims = (0..20u32, 0..20u32, 0..20u32).prop_map(|(a, b, c)| {
        // Mostly as the layers say, at times in contradiction.
        if a % 3 == 0 { (a, b, c) } else { (a, a.min(b), a.min(b).min(c)) }
    });
    let decided = ((0..40i64, 1..7u128), prop::option::weighted(0.8, 0..3u32), claims, 0..1000u64).prop_map(
        |((at_us, request), placed, (visible, eligible, selected), ns_per_token)| {
            FunnelPart::Decided(DecidedRow { at_us, request, placed, visible, eligible, selected, ns_per_token })
        },
    );
    let ended = ((0..60i64, 1..7u128), prop::option::weighted(0.8, 0..20u32))
        .prop_map(|((at_us, request), delivered)| FunnelPart::Ended(EndedRow { at_us, request, delivered }));
    prop_oneof![asked, decided, ended]
}

fn events() -> impl Strategy<Value = Event> {
    let date =
        (1..10u64, 0..3u32, 0..3u8, any::<bool>(), 0..40i64).prop_map(|(hash, instance, level, is_stored, at_us)| {
            let change = if is_stored { BlockChange::Stored } else { BlockChange::Removed };
            // A level of 2 stands for a malformed row.
            let level = if level == 2 { 9 } else { level };
            Event::Date(BlockRow { hash, instance, level, change, at_us })
        });
    // What the third instance serves is never known; a time before the first is a malformed row.
    let serves = (0..3u32, 0..2u32, -4..40i64).prop_map(|(instance, model, at_us)| {
        let model = if instance == 2 { ANY_MODEL } else { model };
        Event::Serves(ServesRow { instance, model, at_us })
    });
    let change = prop_oneof![
        8 => (1..10u64, 0..2u8).prop_map(|(hash, level)| KvChange::Stored { hash, parent: None, level, tokens: 16 }),
        4 => (1..10u64, 0..2u8).prop_map(|(hash, level)| KvChange::Removed { hash, level }),
        1 => Just(KvChange::Cleared),
    ];
    let restart = prop_oneof![20 => Just(false), 1 => Just(true)];
    let kv = (0..3u32, change, restart, prop::option::weighted(0.8, 0..40i64))
        .prop_map(|(instance, change, restart, at_us)| Event::Kv(instance, change, restart, at_us));
    prop_oneof![8 => parts().prop_map(Event::Part), 2 => date, 1 => serves, 12 => kv]
}

/// Numbers the changes of each instance and dates them.
fn feed(events: Schedule<Event>) -> Schedule<Fed> {
    let mut heads = BTreeMap::<u32, (u64, u64)>::new();
    let mut fed = Schedule::new();
    for (epoch, events) in events {
        let rows: &mut Vec<Fed> = fed.entry(epoch).or_default();
        for event in events {
            match event {
                Event::Part(part) => rows.push(Fed::Funnel(FunnelRow::Request(part))),
                Event::Date(row) => rows.push(Fed::Funnel(FunnelRow::Block(row))),
                Event::Serves(row) => rows.push(Fed::Funnel(FunnelRow::Serves(row))),
                Event::Kv(instance, change, restart, at_us) => {
                    let head = heads.entry(instance).or_insert((1, 0));
                    *head = if restart { (head.0 + 1, 1) } else { (head.0, head.1 + 1) };
                    rows.push(Fed::Kv(KvRow { instance, epoch: head.0, seq: head.1, event: change }));
                    let dated = match change {
                        KvChange::Stored { hash, level, .. } => Some((hash, level, BlockChange::Stored)),
                        KvChange::Removed { hash, level } => Some((hash, level, BlockChange::Removed)),
                        _ => None,
                    };
                    rows.extend(dated.zip(at_us).map(|((hash, level, change), at_us)| {
                        Fed::Funnel(FunnelRow::Block(BlockRow { hash, instance, level, change, at_us }))
                    }));
                }
            }
        }
    }
    fed
}

/// Where the funnel reads what is held.
#[derive(Clone, Copy, Debug)]
enum Reads {
    Own,
    /// From an index that has the changes of an epoch that many epochs after all workers closed it.
    Shared {
        lag: u64,
    },
}

/// Changes of the blocks held in an epoch.
type Changed = (u64, Vec<(CacheKey, i64)>);

/// Keeps an index as a reader of all workers' changes does.
struct Keeper {
    index: Arc<PrefixIndex>,
    lag: u64,
    /// Per worker, its changes and the last epoch it closed.
    workers: Vec<(VecDeque<Changed>, Option<u64>)>,
}

impl Keeper {
    fn take(&mut self, worker: usize, changes: &ViewChanges) {
        self.workers[worker].0.push_back((changes.epoch, changes.cache.clone()));
        self.workers[worker].1 = Some(changes.epoch);
        let closed = self.workers.iter().map(|(_, closed)| *closed).min().flatten();
        let Some(complete) = closed.and_then(|closed| closed.checked_sub(self.lag)) else { return };
        for (queue, _) in &mut self.workers {
            while let Some((_, changes)) = queue.pop_front_if(|(epoch, _)| *epoch <= complete) {
                self.index.apply(&changes);
            }
        }
        self.index.complete(complete);
    }
}

type Told = Arc<Mutex<(Epochs<FunnelCase>, Epochs<Refused>)>>;

fn operate(
    (workers, reads): (usize, Reads),
    schedule: &Schedule<Fed>,
    funnel: FunnelConfig,
) -> (Epochs<FunnelCase>, Epochs<Refused>) {
    let index = Arc::new(PrefixIndex::new(PrefixIndexConfig { segment_buckets: 1, ..PrefixIndexConfig::default() }));
    let (held, lag) = match reads {
        Reads::Own => (BlocksHeld::Own, 0),
        Reads::Shared { lag } => (BlocksHeld::Shared(index.clone()), lag),
    };
    let keeper = Arc::new(Mutex::new(Keeper { index, lag, workers: vec![(VecDeque::new(), None); workers] }));
    let (told, schedule) = (Told::default(), schedule.clone());
    let to = told.clone();
    let timely = if workers == 1 { Config::thread() } else { Config::process(workers) };
    let guards = timely::execute(timely, move |worker| {
        let (keeper, to) = (keeper.clone(), to.clone());
        let config = FlowConfig { funnel, ..FlowConfig::default() };
        let mut flow = views::build_beside(worker, (&config, held.clone()), move |worker, changes| {
            keeper.lock().unwrap().take(worker, &changes);
            let (cases, refused) = &mut *to.lock().unwrap();
            changes.funnel.iter().for_each(|case| cases.entry(case.epoch).or_default().push(*case));
            let own = changes.refused.iter().filter(|row| row.input == Input::Funnel);
            own.for_each(|row| refused.entry(row.epoch).or_default().push(*row));
        });
        for (epoch, fed) in &schedule {
            flow.inputs.advance(*epoch).unwrap();
            let mut rows = FlowRows::default();
            for fed in fed.iter().skip(worker.index()).step_by(worker.peers()) {
                match fed.clone() {
                    Fed::Kv(row) => rows.kv.push(row),
                    Fed::Funnel(row) => rows.funnel.push(row),
                }
            }
            flow.inputs.send(&mut rows).unwrap();
            worker.step();
        }
        let last = schedule.keys().last().copied().unwrap_or(0);
        while last > 0 && flow.closed().is_none_or(|closed| closed < last - 1) {
            worker.step_or_park(Some(Duration::from_millis(1)));
        }
    });
    guards.unwrap().join().into_iter().for_each(|result| result.unwrap());
    let (mut cases, refused) = std::mem::take(&mut *told.lock().unwrap());
    cases.values_mut().for_each(|cases| cases.sort());
    (cases, refused)
}

/// `layer k = layer k + 1 + its losses`, and all of it from end to end.
fn reconciles(case: &FunnelCase) -> Result<(), TestCaseError> {
    for layer in &Layer::ALL[1..] {
        let lost: i64 =
            Loss::ALL.iter().filter(|loss| loss.layer() == *layer).map(|loss| case.losses[*loss as usize]).sum();
        let (before, reached) = (case.layers[*layer as usize - 1] as i64, case.layers[*layer as usize] as i64);
        prop_assert_eq!(before, reached + lost, "{:?} of {:?}", layer, case);
    }
    let all: i64 = case.losses.iter().sum();
    prop_assert_eq!(case.layers[0] as i64, case.layers[6] as i64 + all);
    prop_assert!(case.layers[0] >= case.layers[1] && case.layers[1] >= case.layers[2], "{:?}", case);
    prop_assert_eq!(case.present_by_level.iter().sum::<u64>(), case.layers[2]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Scenario: random parts of six requests, missing, doubled and out of order, over prompts that share prefixes;
    /// instances that store, drop, clear, restart and change their model, dated or not; malformed rows; on one, two and four
    /// workers, with an index of the funnel's own and with one that lags behind.
    /// Guarantees: after every epoch the cases are the twin's, token by token; each reconciles exactly; a bad row is
    /// refused.
    #[test]
    fn equals_the_twin_after_every_epoch(
        events in schedules(events(), 12, 24), close_after_epochs in 1..12u64, settle_epochs in 0..4u64, lag in 0..8u64,
    ) {
        let config = FunnelConfig { close_after_epochs, settle_epochs, ..FunnelConfig::default() };
        let mut schedule = feed(events);
        let end = schedule.keys().last().unwrap() + close_after_epochs + settle_epochs + 1;
        schedule.insert(end + 1, Vec::new());
        let mut runs = Vec::new();
        for workers in [1, 2, 4] {
            for reads in [Reads::Own, Reads::Shared { lag: 0 }, Reads::Shared { lag }] {
                runs.push(operate((workers, reads), &schedule, config));
            }
        }
        let (mut twin, mut index) = (SlowFunnel::new(config), SlowCacheIndex::default());
        for epoch in 0..=end {
            let rows = schedule.get(&epoch).map_or(&[][..], Vec::as_slice);
            let kv: Vec<_> = rows.iter().filter_map(|fed| if let Fed::Kv(row) = fed { Some(*row) } else { None }).collect();
            let own: Vec<_> =
                rows.iter().filter_map(|fed| if let Fed::Funnel(row) = fed { Some(row.clone()) } else { None }).collect();
            index.epoch(epoch, &kv);
            let expected = twin.epoch(epoch, &own, &index.blocks());
            expected.iter().try_for_each(reconciles)?;
            let malformed = own.iter().filter(|row| match row {
                FunnelRow::Request(part) => part.check().is_err(),
                FunnelRow::Block(row) => row.check().is_err(),
                FunnelRow::Serves(row) => row.check().is_err(),
            });
            let malformed = malformed.count();
            for (cases, refused) in &mut runs {
                prop_assert_eq!(cases.remove(&epoch).unwrap_or_default(), expected.clone(), "epoch {}", epoch);
                let refused = refused.get(&epoch).map_or(&[][..], Vec::as_slice);
                let out_of_range = refused.iter().filter(|row| matches!(row.reason, Refusal::OutOfRange { .. }));
                prop_assert_eq!(out_of_range.count(), malformed);
            }
        }
        for (cases, _) in runs {
            prop_assert!(cases.is_empty(), "cases after the last: {:?}", cases);
        }
    }
}

fn asked(request: u128, at_us: i64) -> Fed {
    let (prompt_tokens, block_tokens, prompts) = (64, 16, vec![vec![1, 2, 3, 4]]);
    let row =
        AskedRow { at_us, request, model: 0, region: 0, tier: 0, tenant: 0, prompt_tokens, block_tokens, prompts };
    Fed::Funnel(FunnelRow::Request(FunnelPart::Asked(row)))
}

fn decided(request: u128, at_us: i64, hit: [u32; 3]) -> Fed {
    let [visible, eligible, selected] = hit;
    let row = DecidedRow { at_us, request, placed: Some(0), visible, eligible, selected, ns_per_token: 1 };
    Fed::Funnel(FunnelRow::Request(FunnelPart::Decided(row)))
}

fn ended(request: u128, delivered: Option<u32>) -> Fed {
    Fed::Funnel(FunnelRow::Request(FunnelPart::Ended(EndedRow { at_us: 99, request, delivered })))
}

fn kv(instance: u32, seq: u64, event: KvChange) -> Fed {
    Fed::Kv(KvRow { instance, epoch: 1, seq, event })
}

fn stored(instance: u32, seq: u64, (hash, level, at_us): (u64, u8, i64)) -> [Fed; 2] {
    let date = BlockRow { hash, instance, level, change: BlockChange::Stored, at_us };
    let event = KvChange::Stored { hash, parent: None, level, tokens: 16 };
    [kv(instance, seq, event), Fed::Funnel(FunnelRow::Block(date))]
}

/// The case of request 9 with its losses by name.
fn ninth(rows: Schedule<Fed>, config: FunnelConfig) -> ([u64; 7], Vec<(&'static str, i64)>) {
    let mut rows = rows;
    rows.insert(200, Vec::new());
    let (cases, _) = operate((2, Reads::Shared { lag: 1 }), &rows, config);
    let case = *cases.values().flatten().find(|case| case.request == 9).unwrap();
    let lost = Loss::ALL.into_iter().filter(|loss| case.losses[*loss as usize] != 0);
    (case.layers, lost.map(|loss| (loss.name(), case.losses[loss as usize])).collect())
}

fn config() -> FunnelConfig {
    FunnelConfig { settle_epochs: 2, close_after_epochs: 50, ..FunnelConfig::default() }
}

/// Scenario: an instance stored a prompt's blocks, then dropped the second one; the prompt is asked for again.
/// Guarantees: what follows the dropped block is lost as evicted, from potential to present; the rest is delivered.
#[test]
fn an_evicted_block_takes_those_behind_it_along() {
    let blocks = [(1, 0, 10), (2, 0, 10), (3, 0, 10), (4, 0, 10)];
    let mut first: Vec<Fed> = vec![asked(1, 5), decided(1, 6, [0; 3]), ended(1, Some(0))];
    first.extend((1..).zip(blocks).flat_map(|(seq, block)| stored(0, seq, block)));
    let gone = vec![kv(0, 5, KvChange::Removed { hash: 2, level: 0 })];
    let again = vec![asked(9, 50), decided(9, 51, [16; 3]), ended(9, Some(16))];
    let (layers, lost) = ninth(Schedule::from([(1, first), (2, gone), (4, again)]), config());
    assert_eq!(layers, [64, 63, 16, 16, 16, 16, 16]);
    assert_eq!(lost, vec![("never_seen", 1), ("evicted", 47)]);
}

/// Scenario: a prompt's blocks are stored just before it is decided, and the rows that say so come an epoch after it.
/// Guarantees: they were present; that the view did not know them is a stale view, and what the engine reused all the same
/// an unseen hit of negative loss.
#[test]
fn what_the_view_did_not_know_yet_is_stale_and_then_an_unseen_hit() {
    let first = vec![asked(1, 5), decided(1, 6, [0; 3]), ended(1, Some(0))];
    let again = vec![asked(9, 50), decided(9, 51, [0; 3]), ended(9, Some(48))];
    let told = [(1, 0, 50), (2, 0, 51), (3, 0, 51), (4, 0, 52)];
    let told = (1..).zip(told).flat_map(|(seq, block)| stored(0, seq, block)).collect();
    let (layers, lost) = ninth(Schedule::from([(1, first), (2, again), (3, told)]), config());
    assert_eq!(layers, [64, 63, 48, 0, 0, 0, 48]);
    assert_eq!(lost, vec![("never_seen", 1), ("not_stored", 15), ("stale_view", 48), ("unseen_hit", -48)]);
}

/// Scenario: the best instance is not allowed, the next best is too busy; the chosen one holds its last block in L2 and
/// drops one of L1 before the request runs.
/// Guarantees: each of these is its own reason.
#[test]
fn each_step_of_the_choice_has_its_reason() {
    let mut rows: Vec<Fed> = Vec::new();
    rows.extend((1..).zip([1, 2, 3, 4]).flat_map(|(seq, hash)| stored(2, seq, (hash, 0, 1))));
    rows.extend(stored(0, 1, (1, 0, 1)).into_iter().chain(stored(0, 2, (2, 0, 1))).chain(stored(0, 3, (3, 1, 1))));
    let again = vec![asked(9, 50), decided(9, 51, [63, 56, 48]), ended(9, Some(16))];
    let (layers, lost) = ninth(Schedule::from([(1, rows), (2, again)]), config());
    assert_eq!(layers, [64, 63, 63, 63, 56, 48, 16]);
    let expected = vec![
        ("never_seen", 1),
        ("ineligible", 7),
        ("traded_for_load", 8),
        ("transfer_too_slow", 16),
        ("engine_eviction", 16),
    ];
    assert_eq!(lost, expected);
}

/// Scenario: the view claims blocks that are gone everywhere, on the instance chosen too.
/// Guarantees: the claim is a gain named phantom; what it does not deliver is lost to the stale view.
#[test]
fn a_claim_of_nothing_is_a_phantom() {
    let rows = vec![asked(9, 50), decided(9, 51, [32; 3]), ended(9, Some(0))];
    let (layers, lost) = ninth(Schedule::from([(1, rows)]), config());
    assert_eq!(layers, [64, 0, 0, 32, 32, 32, 0]);
    assert_eq!(lost, vec![("never_seen", 64), ("phantom", -32), ("stale_view", 32)]);
}

/// Scenario: a request whose end never comes; one whose prompt never comes; one that is never placed.
/// Guarantees: the first is closed at the bound as unreported; the second is refused by name; the third is not served.
#[test]
fn missing_parts_are_told_by_name() {
    let rows =
        vec![asked(9, 5), decided(9, 6, [0; 3]), decided(2, 6, [0; 3]), ended(2, Some(4)), asked(3, 5), ended(3, None)];
    let (cases, refused) = operate((2, Reads::Own), &Schedule::from([(1, rows), (200, Vec::new())]), config());
    let told: Vec<_> =
        cases.values().flatten().map(|case| (case.request, case.epoch, case.instance, case.is_reported)).collect();
    assert_eq!(told, vec![(3, 5, None, false), (9, 51, Some(0), false)]);
    let missing: Vec<_> = refused.values().flatten().map(|row| (row.subject, row.epoch, row.reason)).collect();
    assert_eq!(missing, vec![(2, 3, Refusal::PromptMissing)]);
}

/// Scenario: more open requests, more blocks seen and more holders than fit.
/// Guarantees: the oldest request is closed as unreported, the oldest block is forgotten, the last holder is left out; each
/// is reported with its bound, and the layers still reconcile.
#[test]
fn bounds_are_kept_and_told() {
    let config = FunnelConfig { max_open: 1, max_hashes: 2, max_holders: 2, ..config() };
    let mut rows = vec![asked(1, 5)];
    rows.extend((1..).zip([1, 2, 3]).flat_map(|(seq, hash)| stored(0, seq, (hash, 0, 1))));
    let again = vec![asked(9, 50), decided(9, 51, [0; 3]), ended(9, Some(0))];
    let (cases, refused) =
        operate((1, Reads::Own), &Schedule::from([(1, rows), (4, again), (200, Vec::new())]), config);
    let told: Vec<_> = cases.values().flatten().map(|case| (case.request, case.is_reported)).collect();
    assert_eq!(told, vec![(1, false), (9, true)]);
    cases.values().flatten().try_for_each(reconciles).unwrap();
    let holders =
        refused.values().flatten().filter(|row| row.reason == Refusal::EntriesFull { max_entries: 2 }).count();
    let open = refused.values().flatten().filter(|row| row.reason == Refusal::OpenRequestsFull { max_open: 1 }).count();
    // In epoch 1 both the third block seen and the third holder; in epoch 4 the blocks of both prompts.
    assert_eq!((open, holders), (1, 3));
}
