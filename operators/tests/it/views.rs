//! All operators assembled: delivery by epoch, on the worker's thread and driven from another.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use operators::{
    ArrivedRow, AskedRow, DecidedRow, EndedRow, FeedConfig, FeedError, FlowConfig, FlowRows, FunnelPart, FunnelRow,
    Gather, Input, KvChange, KvRow, LoadEvent, LoadRow, LoadTotal, PrefixIndex, PrefixIndexConfig, PromptRow, Refusal,
    StepRow, TrafficRow, ViewChanges,
    reference::{
        atom_load::SlowAtomLoad, cache_index::SlowCacheIndex, instance_state::SlowInstanceState,
        request_distribution::SlowRequestDistribution, reuse_distance::SlowReuseDistance,
    },
    views,
};
use timely::{Config, worker::Worker};

type Delivered = Arc<Mutex<Vec<(usize, ViewChanges)>>>;

fn load(request: u64, seq: u32, tokens: u32) -> LoadRow {
    let event = if seq == 1 { LoadEvent::Arrived } else { LoadEvent::Grew };
    LoadRow { request, seq, instance: (request % 3) as u32, tokens, event, ..LoadRow::default() }
}

/// The rows of an epoch, made from its number alone.
fn rows_of(epoch: u64) -> FlowRows {
    let mut rows = FlowRows::default();
    for n in 0..6 {
        let request = epoch * 6 + n;
        rows.load.push(load(request, 1, 100 * n as u32 + 300));
        rows.load.push(load(request.saturating_sub(12), 2, 800));
        if n % 2 == 0 {
            rows.load.push(LoadRow { event: LoadEvent::Finished, ..load(request.saturating_sub(18), 3, 0) });
        }
        let instance = (n % 3) as u32;
        let event = match n {
            5 if epoch % 4 == 3 => KvChange::Cleared,
            4 => KvChange::Removed { hash: epoch.saturating_sub(1) * 6 + 1, level: 1 },
            _ => KvChange::Stored { hash: epoch * 6 + n, parent: None, level: 1, tokens: 16 },
        };
        rows.kv.push(KvRow { instance, epoch: 1, seq: epoch * 2 + 1 + n / 3, event });
        let prompt_tokens = (epoch * 31 + n * 17) as u32 % 900;
        rows.funnel.extend(story(epoch * 6 + n, epoch).map(FunnelRow::Request));
        rows.traffic.push(TrafficRow::Arrived(ArrivedRow {
            model: n as u32 % 2,
            tier: 1,
            prompt_tokens,
            at_us: 1,
            session: Some(request / 4),
            turns: epoch as u32,
        }));
        rows.prompts.push(PromptRow {
            at_us: n as i64 / 2,
            request,
            model: n as u32 % 2,
            tier: 1,
            tenant: n as u32 % 3,
            prompt_tokens: 16 * 4 + 7,
            block_tokens: 16,
            hashes: vec![n % 2, 10 + n % 3, 100 + epoch / 3 * 6 + n, 1000 + epoch * 6 + n],
        });
        let (step, decode_tokens) = (epoch * 2 + 1 + n / 3, 1 + n as u32);
        rows.steps.push(StepRow {
            instance,
            epoch: 1,
            step,
            at_us: step as i64 * 50_000,
            running: decode_tokens,
            waiting: 0,
            queued_prefill_tokens: 0,
            context_tokens: 100,
            blocks_used: 1,
            blocks_cached: 1,
            blocks_total: 9,
            prefill_tokens: 0,
            decode_tokens,
            step_us: 5000 + 10 * u64::from(decode_tokens),
            shape: instance % 2,
        });
    }
    rows
}

/// A request for the blocks stored two epochs before, told at once.
fn story(request: u64, epoch: u64) -> [FunnelPart; 3] {
    let (at_us, hashes, request) = (epoch as i64, vec![request.saturating_sub(12), request], u128::from(request));
    let (prompt_tokens, block_tokens, prompts) = (40, 16, vec![hashes]);
    let asked =
        AskedRow { at_us, request, model: 0, region: 0, tier: 1, tenant: 2, prompt_tokens, block_tokens, prompts };
    let placed = Some((request % 3) as u32);
    let decided = DecidedRow { at_us, request, placed, visible: 16, eligible: 16, selected: 0, ns_per_token: 9 };
    let ended = EndedRow { at_us, request, delivered: Some(8) };
    [FunnelPart::Asked(asked), FunnelPart::Decided(decided), FunnelPart::Ended(ended)]
}

/// Every `of`-th row from the `part`-th on.
fn share(rows: FlowRows, part: usize, of: usize) -> FlowRows {
    fn take<R>(rows: Vec<R>, part: usize, of: usize) -> Vec<R> {
        rows.into_iter().skip(part).step_by(of).collect()
    }
    FlowRows {
        load: take(rows.load, part, of),
        kv: take(rows.kv, part, of),
        traffic: take(rows.traffic, part, of),
        steps: take(rows.steps, part, of),
        prompts: take(rows.prompts, part, of),
        funnel: take(rows.funnel, part, of),
        diagnosis: take(rows.diagnosis, part, of),
        plans: take(rows.plans, part, of),
    }
}

fn run(workers: usize, body: impl Fn(&mut Worker, &Delivered) + Send + Sync + 'static) -> Vec<(usize, ViewChanges)> {
    let delivered = Delivered::default();
    let to = delivered.clone();
    let config = if workers == 1 { Config::thread() } else { Config::process(workers) };
    for result in timely::execute(config, move |worker| body(worker, &to)).unwrap().join() {
        result.unwrap();
    }
    let delivered = delivered.lock().unwrap();
    delivered.clone()
}

fn build(worker: &mut Worker, config: &FlowConfig, delivered: &Delivered) -> views::FlowHandles {
    let to = delivered.clone();
    views::build(worker, config, move |index, changes| to.lock().unwrap().push((index, changes)))
}

/// Joins what the workers gave for each epoch.
fn joined(delivered: &[(usize, ViewChanges)]) -> BTreeMap<u64, ViewChanges> {
    let mut epochs = BTreeMap::<u64, ViewChanges>::new();
    for (_, changes) in delivered.iter().cloned() {
        let all = epochs.entry(changes.epoch).or_insert(ViewChanges { epoch: changes.epoch, ..Default::default() });
        all.atom.extend(changes.atom);
        all.atom_total.extend(changes.atom_total);
        all.instance_total.extend(changes.instance_total);
        all.cache.extend(changes.cache);
        all.distribution.extend(changes.distribution);
        all.instances.extend(changes.instances);
        all.curves.extend(changes.curves);
        all.funnel.extend(changes.funnel);
        all.funnel_windows.extend(changes.funnel_windows);
        all.diagnosis.extend(changes.diagnosis);
        all.refused.extend(changes.refused);
    }
    epochs
}

fn lay<K: Ord>(state: &mut BTreeMap<K, LoadTotal>, changes: Vec<(K, LoadTotal)>) {
    state.extend(changes);
    state.retain(|_, total| *total != LoadTotal::default());
}

/// Scenario: twelve epochs of all inputs, spread over one and over two workers, each epoch awaited before the next.
/// Guarantees: every worker is called exactly once per epoch, in order; load, cache and the concurrent index fed from the
/// changes equal the twins after every epoch, distribution and instances change exactly where the twins' do, curves equal the
/// twin's; one worker
/// and two give the same.
#[test]
fn all_views_follow_their_twins() {
    const EPOCHS: u64 = 12;
    let mut config = FlowConfig::default();
    (config.reuse.capacity_max, config.reuse.exact_blocks, config.reuse.emit_epochs) = (200, 200, 3);
    let mut runs = Vec::new();
    for workers in [1, 2] {
        let delivered = run(workers, move |worker, delivered| {
            let mut flow = build(worker, &config, delivered);
            for epoch in 0..EPOCHS {
                flow.inputs.send(&mut share(rows_of(epoch), worker.index(), worker.peers())).unwrap();
                flow.inputs.advance(epoch + 1).unwrap();
                while flow.closed() != Some(epoch) {
                    worker.step_or_park(Some(Duration::from_millis(10)));
                }
            }
        });
        for worker in 0..workers {
            let epochs = delivered.iter().filter(|(index, _)| *index == worker).map(|(_, changes)| changes.epoch);
            assert_eq!(epochs.collect::<Vec<_>>(), (0..EPOCHS).collect::<Vec<_>>(), "worker {worker} of {workers}");
        }
        runs.push(joined(&delivered));
    }
    let (mut loads, mut cache) = (SlowAtomLoad::new(config.load), SlowCacheIndex::default());
    let mut distribution = SlowRequestDistribution::new(config.distribution);
    let mut instances = SlowInstanceState::new(config.instances);
    let mut curves = SlowReuseDistance::new(config.reuse);
    let (mut cells, mut by_instance) = (BTreeMap::new(), BTreeMap::new());
    let index = PrefixIndex::new(PrefixIndexConfig::default());
    for epoch in 0..EPOCHS {
        let rows = rows_of(epoch);
        loads.epoch(&rows.load);
        cache.epoch(epoch, &rows.kv);
        let changes = runs[0].remove(&epoch).unwrap();
        let mut other = runs[1].remove(&epoch).unwrap();
        other.atom.sort();
        other.cache.sort();
        other.funnel.sort();
        other.curves.sort();
        assert_eq!((&changes.funnel, &changes.funnel_windows), (&other.funnel, &other.funnel_windows));
        let told = if epoch < config.funnel.settle_epochs { 0 } else { 6 };
        assert_eq!(changes.funnel.len(), told, "each request is told of once it has settled");
        assert_eq!((&changes.atom, &changes.cache), (&other.atom, &other.cache));
        index.apply(&changes.cache);
        assert_eq!(index.entries(), cache.blocks().len());
        let expected: Vec<_> = distribution.epoch(epoch, &rows.traffic);
        let groups = |rows: &[operators::DistributionRow]| -> Vec<_> {
            rows.iter().map(|row| (row.model, row.tier, row.arrivals)).collect()
        };
        assert_eq!(groups(&changes.distribution), groups(&expected));
        let steps: Vec<_> = changes.instances.iter().map(|state| state.step).collect();
        assert_eq!(steps, instances.epoch(epoch, &rows.steps).iter().map(|state| state.step).collect::<Vec<_>>());
        assert_eq!(changes.curves, curves.epoch(epoch, &rows.prompts));
        assert_eq!(changes.curves, other.curves);
        lay(&mut cells, changes.atom);
        lay(&mut by_instance, changes.instance_total);
        for (key, total) in loads.totals() {
            match key {
                operators::LoadKey::Cell { instance, atom } => assert_eq!(cells[&(instance, atom)], total),
                operators::LoadKey::Instance(instance) => assert_eq!(by_instance[&instance], total),
                _ => {}
            }
        }
        let cells_expected = loads.totals().keys().filter(|key| matches!(key, operators::LoadKey::Cell { .. })).count();
        assert_eq!(cells.len(), cells_expected);
    }
}

/// Scenario: a lone request arrives, ends, and its instance goes on without load.
/// Guarantees: what it counted in is told as zero, once, in the epoch of its end.
#[test]
fn a_total_that_goes_is_told_as_zero() {
    let delivered = run(2, |worker, delivered| {
        let mut flow = build(worker, &FlowConfig::default(), delivered);
        let events = [load(4, 1, 700), LoadRow { event: LoadEvent::Finished, ..load(4, 2, 700) }];
        for (epoch, row) in events.into_iter().enumerate() {
            if worker.index() == epoch {
                flow.inputs.send(&mut FlowRows { load: vec![row], ..FlowRows::default() }).unwrap();
            }
            flow.inputs.advance(epoch as u64 + 1).unwrap();
        }
    });
    let epochs = joined(&delivered);
    let (one, none) = (LoadTotal { tokens: 700, uncached: 700, requests: 1 }, LoadTotal::default());
    for (epoch, total) in [(0, one), (1, none)] {
        let changes = &epochs[&epoch];
        assert_eq!(changes.atom, vec![((1, 1), total)]);
        assert_eq!((&changes.atom_total, &changes.instance_total), (&vec![(1, total)], &vec![(1, total)]));
    }
}

/// Scenario: advances without rows, by one and by many epochs.
/// Guarantees: each advance gives one call, empty, for the last epoch closed.
#[test]
fn empty_epochs_still_move_the_view() {
    let delivered = run(1, |worker, delivered| {
        let mut flow = build(worker, &FlowConfig::default(), delivered);
        for epoch in [1, 2, 10] {
            flow.inputs.advance(epoch).unwrap();
            while flow.closed() != Some(epoch - 1) {
                worker.step_or_park(Some(Duration::from_millis(10)));
            }
        }
    });
    assert!(delivered.iter().all(|(_, changes)| changes.is_empty()));
    assert_eq!(delivered.iter().map(|(_, changes)| changes.epoch).collect::<Vec<_>>(), vec![0, 1, 9]);
}

/// Scenario: rows for a closed epoch, for a later one, for one too far ahead, more rows than fit, an epoch that goes back.
/// Guarantees: late rows count in the open epoch and are reported; early rows wait for theirs; the rest is an error that
/// names what it met, and takes nothing.
#[test]
fn the_feeder_keeps_time_and_bounds() {
    let delivered = run(1, |worker, delivered| {
        let feed = FeedConfig { max_open_rows: 3, max_ahead: 4 };
        let mut flow = build(worker, &FlowConfig { feed, ..FlowConfig::default() }, delivered);
        let rows = |request| FlowRows { load: vec![load(request, 1, 700)], ..FlowRows::default() };
        flow.inputs.advance(5).unwrap();
        flow.inputs.send_at(3, &mut rows(1)).unwrap();
        flow.inputs.send_at(8, &mut rows(2)).unwrap();
        let mut far = rows(3);
        let error = flow.inputs.send_at(10, &mut far).unwrap_err();
        assert_eq!(error, FeedError::TooFarAhead { epoch: 10, open: 5, max_ahead: 4 });
        assert_eq!(error.to_string(), "epoch 10 is too far ahead: the open one is 5, and max_ahead = 4");
        assert_eq!(far.len(), 1);
        far.load.push(load(4, 1, 700));
        let full = FeedError::Full { rows: 2, open_rows: 2, max_open_rows: 3 };
        assert_eq!((flow.inputs.send(&mut far), far.len()), (Err(full), 2));
        assert_eq!(flow.inputs.advance(4), Err(FeedError::Backward { epoch: 4, open: 5 }));
        flow.inputs.advance(6).unwrap();
        assert_eq!(flow.inputs.open_rows(), 1);
        flow.inputs.send_at(6, &mut far).unwrap();
        flow.inputs.advance(9).unwrap();
    });
    let changed: Vec<_> = delivered.iter().filter(|(_, changes)| !changes.is_empty()).map(|(_, c)| c).collect();
    let totals: Vec<_> = changed.iter().map(|changes| (changes.epoch, changes.atom_total[0].1.requests)).collect();
    assert_eq!(totals, vec![(5, 1), (6, 3), (8, 4)]);
    let late = &changed[0].refused[0];
    assert_eq!((late.input, late.subject, late.rows, late.reason), (Input::Load, 3, 1, Refusal::Late { open: 5 }));
    assert!(changed[1..].iter().all(|changes| changes.refused.is_empty()), "only the late row is reported");
    let told = "load row refused in epoch 5 (1 in all, subject 3): its epoch had closed; counted in epoch 5";
    assert_eq!(late.to_string(), told);
}

/// What the feeding thread asks of a worker.
enum Ask {
    Rows(FlowRows),
    Advance(u64),
}

/// Scenario: two workers that park when idle, each fed through a bounded channel by another thread that wakes it, as the
/// pipeline does; the channels then close.
/// Guarantees: all epochs arrive at both callbacks, the totals are right, and the workers end by themselves.
#[test]
fn driven_from_another_thread() {
    let delivered = Delivered::default();
    let (mut ports, mut takers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (port, taker) = mpsc::sync_channel::<Ask>(4);
        ports.push(port);
        takers.push(Some(taker));
    }
    let (takers, to) = (Mutex::new(takers), delivered.clone());
    let guards = timely::execute(Config::process(2), move |worker| {
        let asks = takers.lock().unwrap()[worker.index()].take().unwrap();
        let mut flow = build(worker, &FlowConfig::default(), &to);
        loop {
            match asks.try_recv() {
                Ok(Ask::Rows(mut rows)) => flow.inputs.send(&mut rows).unwrap(),
                Ok(Ask::Advance(epoch)) => flow.inputs.advance(epoch).unwrap(),
                Err(mpsc::TryRecvError::Empty) => {
                    worker.step_or_park(Some(Duration::from_millis(100)));
                }
                Err(mpsc::TryRecvError::Disconnected) => break,
            }
        }
        // Dropping the inputs ends the dataflow; timely steps until it has.
    })
    .unwrap();
    let threads: Vec<_> = guards.guards().iter().map(|guard| guard.thread().clone()).collect();
    for epoch in 0..20 {
        for (worker, port) in ports.iter().enumerate() {
            port.send(Ask::Rows(share(rows_of(epoch), worker, 2))).unwrap();
            port.send(Ask::Advance(epoch + 1)).unwrap();
            threads[worker].unpark();
        }
    }
    drop(ports);
    threads.iter().for_each(|thread| thread.unpark());
    guards.join().into_iter().for_each(|result| result.unwrap());
    let delivered = delivered.lock().unwrap();
    let mut twin = SlowAtomLoad::new(FlowConfig::default().load);
    let mut cells = BTreeMap::new();
    for (epoch, changes) in joined(&delivered) {
        twin.epoch(&rows_of(epoch).load);
        lay(&mut cells, changes.atom);
        let requests: i64 = twin
            .totals()
            .iter()
            .filter(|(key, _)| matches!(key, operators::LoadKey::Cell { .. }))
            .map(|(_, total)| total.requests)
            .sum();
        assert_eq!(cells.values().map(|total| total.requests).sum::<i64>(), requests, "epoch {epoch}");
    }
    for worker in 0..2 {
        let mine: Vec<u64> = delivered.iter().filter(|(at, _)| *at == worker).map(|(_, c)| c.epoch).collect();
        assert!(mine.is_sorted_by(|a, b| a < b) && mine.last() == Some(&19), "worker {worker}: {mine:?}");
    }
}

/// Scenario: rows enter at worker 0 alone, the others drop their inputs at once, and all changes are gathered; 1, 2 and 4
/// workers.
/// Guarantees: worker 0 hands out what one worker alone would, epoch by epoch; the others hand out nothing but time.
#[test]
fn gathered_changes_are_those_of_one_worker() {
    let run_gathered = |workers| {
        let mut delivered = run(workers, |worker, delivered| {
            let config = FlowConfig { gather: Gather::ToFirst, ..FlowConfig::default() };
            let mut flow = build(worker, &config, delivered);
            if worker.index() > 0 {
                return;
            }
            for epoch in 0..30 {
                flow.inputs.send(&mut rows_of(epoch)).unwrap();
                flow.inputs.advance(epoch + 1).unwrap();
                worker.step();
            }
        });
        assert!(delivered.iter().all(|(worker, changes)| *worker == 0 || changes.is_empty()));
        delivered.retain(|(_, changes)| !changes.is_empty());
        delivered
    };
    let alone = run_gathered(1);
    assert_eq!(alone.len(), 30);
    for workers in [2, 4] {
        assert_eq!(run_gathered(workers), alone, "{workers} workers");
    }
}
