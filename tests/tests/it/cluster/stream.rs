//! Epochs of rows for every input of the dataflow, made from a seed, with what goes wrong in a fleet: duplicates, gaps, restarts,
//! unknown removals, parts of a request out of order or missing, steps that come twice, plans that are none, values out of range.

use operators::{
    ArrivedRow, AskedRow, BlockChange, BlockRow, BucketPlan, BucketRange, DecidedRow, DiagnosedRequest, DiagnosedStep,
    DiagnosisInput, End, EndedRow, FinishedRow, FlowRows, FunnelPart, FunnelRow, KvChange, KvRow, LoadEvent, LoadRow,
    PromptRow, ServesRow, StepRow, TrafficRow,
};

pub const EPOCHS: u64 = 60;
const EPOCH_US: u64 = 100_000;
const BLOCK_TOKENS: u32 = 16;

/// Numbers from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }

    fn once_in(&mut self, times: u64) -> bool {
        self.roll(times) == 0
    }
}

/// What is known of the fleet while the stream is made.
#[derive(Default)]
struct Fleet {
    incarnations: [u64; 5],
    seqs: [u64; 5],
    steps: [u64; 5],
    versions: u64,
}

/// The stream of a seed.
pub fn stream(seed: u64) -> Vec<FlowRows> {
    let mut dice = Dice(seed);
    let mut fleet = Fleet { incarnations: [1; 5], ..Fleet::default() };
    (0..EPOCHS)
        .map(|epoch| {
            let mut rows = FlowRows::default();
            for _ in 0..dice.roll(40) {
                let at_us = (epoch * EPOCH_US + dice.roll(EPOCH_US)) as i64;
                let instance = dice.roll(5) as u32;
                rows.load.push(load(instance, &mut dice));
                changes(&mut rows, (instance, at_us), &mut fleet, &mut dice);
                traffic(&mut rows, at_us, &mut dice);
                steps(&mut rows, (instance, at_us), &mut fleet, &mut dice);
                requests(&mut rows, at_us, &mut dice);
            }
            if dice.once_in(3) {
                rows.plans.push(plan(&mut fleet, &mut dice));
            }
            rows
        })
        .collect()
}

fn load(instance: u32, dice: &mut Dice) -> LoadRow {
    let event = [LoadEvent::Arrived, LoadEvent::Grew, LoadEvent::Finished][dice.roll(3) as usize];
    let (request, seq, tokens) = (dice.roll(200), dice.roll(6) as u32, dice.roll(9000) as u32);
    let (region, model, tier) = (dice.roll(2) as u16, dice.roll(3) as u32, dice.roll(3) as u8);
    LoadRow { request, seq, instance, tokens, cached: 0, event, region, model, tier }
}

/// A change of an instance's store, lost or doubled now and then, and when it was.
fn changes(rows: &mut FlowRows, (instance, at_us): (u32, i64), fleet: &mut Fleet, dice: &mut Dice) {
    let at = instance as usize;
    if dice.once_in(40) {
        (fleet.incarnations[at], fleet.seqs[at], fleet.steps[at]) = (fleet.incarnations[at] + 1, 0, 0);
    }
    fleet.seqs[at] += [1, 1, 1, 1, 0, 2][dice.roll(6) as usize];
    let (hash, level) = (dice.roll(100), dice.roll(4) as u8);
    let event = match dice.roll(12) {
        0 | 1 => KvChange::Removed { hash, level },
        2 => KvChange::Cleared,
        3 => KvChange::Hit { hash, level, tokens: 16 },
        4 => KvChange::Sum { bucket: dice.roll(300) as u8, blocks: dice.roll(9) as u32, sum: dice.roll(u64::MAX) },
        _ => KvChange::Stored { hash, parent: None, level, tokens: dice.roll(20) as u32 },
    };
    rows.kv.push(KvRow { instance, epoch: fleet.incarnations[at], seq: fleet.seqs[at], event });
    if dice.once_in(80) {
        // Whoever watches the instance says that it is gone; some of what it said comes later.
        let event = KvChange::Gone;
        rows.kv.push(KvRow { instance, epoch: fleet.incarnations[at], seq: 0, event });
    }
    if dice.once_in(20) {
        rows.funnel.push(FunnelRow::Serves(ServesRow { instance, model: dice.roll(2) as u32, at_us }));
    }
    let change = match event {
        KvChange::Stored { .. } => BlockChange::Stored,
        KvChange::Removed { .. } => BlockChange::Removed,
        _ => return,
    };
    // A level of 9 is out of range.
    let level = if dice.once_in(30) { 9 } else { level };
    rows.funnel.push(FunnelRow::Block(BlockRow { hash, instance, level, change, at_us }));
}

fn traffic(rows: &mut FlowRows, at_us: i64, dice: &mut Dice) {
    let (model, tier, prompt_tokens) = (dice.roll(3) as u32, dice.roll(3) as u8, dice.roll(4000) as u32);
    let (session, turns) = (Some(dice.roll(50)), dice.roll(5) as u32);
    rows.traffic.push(TrafficRow::Arrived(ArrivedRow { model, tier, prompt_tokens, at_us, session, turns }));
    rows.traffic.push(TrafficRow::Finished(FinishedRow {
        model,
        tier,
        prompt_tokens,
        output_tokens: dice.roll(900) as u32,
        cached_tokens: dice.roll(5000) as u32,
        ttft_us: Some(dice.roll(1_000_000)),
        itl_us_mean: Some(dice.roll(50_000)),
        at_us,
        end: if dice.once_in(4) { End::Capped } else { End::Stopped },
        tenant_class: dice.roll(3) as u8,
    }));
}

/// A step as both of its readers are told of it; one in three is told again.
fn steps(rows: &mut FlowRows, (instance, at_us): (u32, i64), fleet: &mut Fleet, dice: &mut Dice) {
    let at = instance as usize;
    fleet.steps[at] += dice.roll(3);
    let (epoch, step) = (fleet.incarnations[at], fleet.steps[at]);
    let (prefill_tokens, decode_tokens, step_us) =
        (dice.roll(2) as u32 * dice.roll(500) as u32, dice.roll(9) as u32, dice.roll(50_000));
    let (context, paged_blocks) = (dice.roll(9000), dice.roll(2) as u32);
    rows.steps.push(StepRow {
        instance,
        epoch,
        step,
        at_us,
        running: dice.roll(9) as u32,
        waiting: dice.roll(4) as u32,
        queued_prefill_tokens: dice.roll(5000),
        context_tokens: context,
        blocks_used: dice.roll(120) as u32,
        blocks_cached: dice.roll(50) as u32,
        blocks_total: 100,
        prefill_tokens,
        decode_tokens,
        step_us,
        shape: instance % 2,
    });
    let (model, context_tokens) = (instance % 2, context as u32);
    rows.diagnosis.push(DiagnosisInput::Step(DiagnosedStep {
        model,
        instance,
        epoch,
        step,
        step_us,
        prefill_tokens,
        decode_tokens,
        context_tokens,
        paged_blocks,
    }));
}

/// Part of a request's story, in any order, with repeats and holes; its prompt in blocks; its end.
fn requests(rows: &mut FlowRows, at_us: i64, dice: &mut Dice) {
    let request = 1 + dice.roll(300);
    let (model, tier, tenant) = (dice.roll(2) as u32, dice.roll(3) as u8, dice.roll(4) as u32);
    let (start, length) = (dice.roll(12), dice.roll(20));
    // A chain: what a block is follows from the ones before it.
    let hashes: Vec<u64> = (0..length).map(|block| if block < 4 { block } else { 8 * block + start }).collect();
    // A prompt of fewer tokens than its blocks have is malformed.
    let short = u32::from(dice.once_in(20));
    let prompt_tokens = (BLOCK_TOKENS * length as u32 + dice.roll(16) as u32) / (1 + short);
    let block_tokens = BLOCK_TOKENS;
    let asked = AskedRow {
        at_us,
        request: request.into(),
        model,
        region: dice.roll(2) as u32,
        tier,
        tenant,
        prompt_tokens,
        block_tokens,
        prompts: vec![hashes.clone()],
    };
    let visible = dice.roll(300) as u32;
    let decided = DecidedRow {
        at_us,
        request: request.into(),
        placed: (!dice.once_in(10)).then(|| dice.roll(5) as u32),
        visible,
        eligible: visible.min(dice.roll(300) as u32),
        selected: dice.roll(300) as u32,
        ns_per_token: dice.roll(1000),
    };
    let delivered = (!dice.once_in(5)).then(|| dice.roll(300) as u32);
    let ended = EndedRow { at_us, request: request.into(), delivered };
    for part in [FunnelPart::Asked(asked), FunnelPart::Decided(decided), FunnelPart::Ended(ended)] {
        if !dice.once_in(8) {
            rows.funnel.push(FunnelRow::Request(part));
        }
    }
    rows.prompts.push(PromptRow { at_us, request, model, tier, tenant, prompt_tokens, block_tokens, hashes });
    let total_us = dice.roll(900_000);
    rows.diagnosis.push(DiagnosisInput::Request(DiagnosedRequest {
        model,
        total_us,
        request: request.into(),
        // More than the whole is malformed.
        queue_us: dice.roll(1_000_000),
        ttft_us: Some(dice.roll(900_000)),
        instance: Some(dice.roll(5) as u32),
        computed_tokens: dice.roll(4000) as u32,
    }));
}

/// How a model's lengths are cut; some plans come in the wrong order of versions, and some do not begin at 0.
fn plan(fleet: &mut Fleet, dice: &mut Dice) -> BucketPlan {
    fleet.versions += dice.roll(3);
    let first = u32::from(dice.once_in(5));
    let cuts = (0..1 + dice.roll(5) as u32).map(|cut| BucketRange { from_atom: first + 3 * cut, bucket: cut % 3 });
    let version = fleet.versions.saturating_sub(dice.roll(2));
    BucketPlan { model: dice.roll(3) as u32, version, ranges: cuts.collect() }
}
