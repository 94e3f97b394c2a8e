//! Rows of all inputs, made before anything is timed; the same for the same arguments.
use operators::{ArrivedRow, End, FinishedRow, KvChange, KvRow, LoadEvent, LoadRow, TrafficRow};

pub const INSTANCES: u64 = 16;

/// The seed of all rows.
pub const SEED: u64 = 88_172_645_463_325_252;

/// xorshift64; the seed is fixed, so that each run takes the same rows.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Epochs of load rows around `open` open requests: the first opens them all, the others are a tenth of that each:
/// eight in ten rows grow a request, one ends one and one opens one.
pub fn load_batches(open: usize, epochs: usize) -> Vec<Vec<LoadRow>> {
    let mut random = Random(SEED);
    let mut live: Vec<LoadRow> = Vec::new();
    let mut next = 0;
    let mut arrive = |random: &mut Random| {
        next += 1;
        let tokens = 100 + random.below(4000) as u32;
        let instance = random.below(INSTANCES) as u32;
        let (model, tier) = ((instance % 4), (next % 3) as u8);
        LoadRow { request: next, seq: 1, instance, tokens, model, tier, ..LoadRow::default() }
    };
    let mut batches = vec![(0..open).map(|_| arrive(&mut random)).collect::<Vec<_>>()];
    live.extend(&batches[0]);
    for _ in 0..epochs {
        let mut batch = Vec::with_capacity(open / 10);
        for n in 0..open / 10 {
            let place = random.below(live.len() as u64) as usize;
            match n % 10 {
                8 => batch.push(LoadRow { event: LoadEvent::Finished, seq: u32::MAX, ..live.swap_remove(place) }),
                9 => {
                    live.push(arrive(&mut random));
                    batch.extend(live.last());
                }
                _ => {
                    let row = &mut live[place];
                    (row.seq, row.tokens, row.event) = (row.seq + 1, row.tokens + 50, LoadEvent::Grew);
                    batch.push(*row);
                }
            }
        }
        batches.push(batch);
    }
    batches
}

/// Epochs of KV rows around `blocks` held blocks: the first stores them all, the others are a tenth of that each, half
/// stores of new blocks, half removals of the oldest.
pub fn kv_batches(blocks: usize, epochs: usize) -> Vec<Vec<KvRow>> {
    let (mut stored, mut removed) = (0u64, 0u64);
    let mut seqs = [0u64; INSTANCES as usize];
    let mut row = |number: u64, event: fn(u64) -> KvChange| {
        let instance = number % INSTANCES;
        seqs[instance as usize] += 1;
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        KvRow { instance: instance as u32, epoch: 1, seq: seqs[instance as usize], event: event(hash) }
    };
    let mut store = |batch: &mut Vec<KvRow>, remove: bool| {
        let number = if remove { &mut removed } else { &mut stored };
        *number += 1;
        let event: fn(u64) -> KvChange = match remove {
            true => |hash| KvChange::Removed { hash, level: 1 },
            false => |hash| KvChange::Stored { hash, parent: None, level: 1, tokens: 16 },
        };
        batch.push(row(*number, event));
    };
    let mut batches = Vec::new();
    for epoch in 0..=epochs {
        let mut batch = Vec::new();
        for n in 0..if epoch == 0 { blocks } else { blocks / 10 } {
            store(&mut batch, epoch > 0 && n % 2 == 1);
        }
        batches.push(batch);
    }
    batches
}

/// Epochs of `rows` arrivals and ends of four models and three tiers, as many of the one as of the other.
pub fn traffic_batches(rows: usize, epochs: usize) -> Vec<Vec<TrafficRow>> {
    let mut random = Random(SEED);
    let mut row = |n: usize| {
        let (model, tier) = (random.below(4) as u32, random.below(3) as u8);
        let prompt_tokens = 100 + random.below(4000) as u32;
        if n.is_multiple_of(2) {
            let session = Some(random.below(2000));
            let turns = 1 + random.below(9) as u32;
            return TrafficRow::Arrived(ArrivedRow { model, tier, prompt_tokens, at_us: 0, session, turns });
        }
        TrafficRow::Finished(FinishedRow {
            model,
            tier,
            prompt_tokens,
            output_tokens: 1 + random.below(500) as u32,
            cached_tokens: random.below(100) as u32,
            ttft_us: Some(10_000 + random.below(1_000_000)),
            itl_us_mean: Some(5_000 + random.below(50_000)),
            at_us: 0,
            end: if random.below(4) == 0 { End::Capped } else { End::Stopped },
            tenant_class: 2,
        })
    };
    (0..=epochs).map(|_| (0..rows).map(&mut row).collect()).collect()
}
