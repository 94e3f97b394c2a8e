//! Reuse distances of a stream of block chains in bounded memory: the newest blocks exactly, the older ones by a sample
//! chosen by hash (SHARDS: Waldspurger et al., "Efficient MRC Construction with SHARDS", FAST 2015) (X4).
//!
//! On arrival the leading blocks of a request are looked up; then all its blocks are used, last to first, so that a parent
//! is never older than its child. A cache of `c` blocks reuses block `i` exactly if all of blocks `0..=i` lie within depth
//! `c`, so block `i` counts at the greatest depth so far: the leading-blocks rule, for any stream, at every capacity.
//!
//! Invariant: distances up to `exact_blocks` are counted exactly, always; while no more blocks than that have come, so is
//! everything. Beyond, a block is in the sample if its hash lies below a threshold, and stands for `1 / rate` blocks. That
//! supposes chained hashes: a block that is known has known parents.
//! A sampled block is that far away: the exact part, and the blocks that left it after this one did, which are counted, less
//! those of them that came back, which the sample tells: so only these blur the distance.
//! At `sample_max` blocks the threshold is halved and the blocks above it dropped; counts made before keep the weight
//! they were made with. Once the rate is at its least, the least recently used block is dropped instead, and the curve ends
//! at about `sample_max / rate` blocks.
//! Cost: O(log exact_blocks) for a block within the exact part, one register and one comparison for others, O(log
//! sample_max) for a sampled one. State: about 50 bytes for each of `exact_blocks`, 100 for each of `sample_max`, 64 KiB.
use crate::{
    IntMap,
    distinct_count::DistinctCount,
    lru_stack::LruStack,
    miss_ratio::{Reach, Tally},
    rows::PromptRow,
};

/// Bounds of a [`ReuseStack`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackBounds {
    /// One of the curve's capacities.
    pub exact_blocks: usize,
    pub sample_max: usize,
    /// Of 2^32.
    pub threshold_most: u64,
    pub threshold_least: u64,
    pub seed: u64,
}

/// See the module.
pub(crate) struct ReuseStack {
    bounds: StackBounds,
    near: LruStack,
    /// From the moment the exact part is full.
    sample: Option<Sample>,
    /// The blocks of the request at hand.
    keys: Vec<u64>,
}

/// Blocks that left the exact part, by a sample.
struct Sample {
    bounds: StackBounds,
    threshold: u64,
    /// Used last when they left the exact part: the order is the same.
    stack: LruStack,
    left: IntMap<u64, Left>,
    /// Tokens each block was reused with in this window, scaled up.
    mass: IntMap<u64, f64>,
    /// Blocks that left the exact part, all of them and those sampled.
    all_left: u64,
    sampled_left: u64,
    seen: DistinctCount,
    has_forgotten: bool,
}

/// A sampled block that left the exact part.
struct Left {
    /// `all_left` and `sampled_left` after it had left; the second as it would be at the present rate.
    all: u64,
    sampled: f64,
}

/// The finaliser of splitmix64: every bit of the result depends on every bit of `x`, and no two `x` collide.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl StackBounds {
    /// Where a block lies: in its upper half, below the threshold if it is sampled.
    fn place(&self, key: u64) -> u64 {
        mix(key ^ self.seed)
    }
}

/// The index of the least capacity that holds a block at this distance; one past the last if none does.
fn capacity(capacities: &[u64], distance: u64) -> usize {
    capacities.partition_point(|capacity| *capacity < distance)
}

impl ReuseStack {
    pub fn new(bounds: StackBounds) -> Self {
        Self { bounds, near: LruStack::new(), sample: None, keys: Vec::new() }
    }

    pub fn reach(&self) -> Reach {
        let (near, exact_blocks) = (self.near.len() as u64, self.bounds.exact_blocks as u64);
        match &self.sample {
            None => Reach { exact_blocks: u64::MAX, rate: 1.0, has_forgotten: false, blocks: near },
            Some(sample) => {
                let blocks = near + (sample.stack.len() as f64 / sample.rate()).round() as u64;
                Reach { exact_blocks, rate: sample.rate(), has_forgotten: sample.has_forgotten, blocks }
            }
        }
    }

    /// Takes one request, whose row has passed its check; adds what it reuses to `tally`.
    pub fn take(&mut self, row: &PromptRow, capacities: &[u64], tally: &mut Tally) {
        tally.requests += 1;
        tally.tokens += u64::from(row.prompt_tokens);
        tally.hashed += (0..row.hashes.len()).map(|index| row.tokens_of(index)).sum::<u64>();
        let mut keys = std::mem::take(&mut self.keys);
        keys.clear();
        // The same tokens are other blocks under another model.
        let model = mix(row.model.into());
        keys.extend(row.hashes.iter().map(|hash| mix(hash ^ model)));
        let mut deepest = 0;
        let mut missing = keys.len();
        for (index, key) in keys.iter().enumerate() {
            let Some(depth) = self.near.depth(*key) else {
                missing = index;
                break;
            };
            deepest = deepest.max(depth as u64);
            tally.near[capacity(capacities, deepest)] += row.tokens_of(index);
        }
        let rest = (missing..keys.len()).map(|index| (keys[index], row.tokens_of(index)));
        match &mut self.sample {
            None => tally.first += rest.map(|(_, tokens)| tokens as f64).sum::<f64>(),
            Some(sample) => sample.look(rest, capacities, tally),
        }
        self.touch(&keys);
        self.keys = keys;
    }

    /// Uses of one block in two windows count as uses of two blocks in the error.
    pub fn end_window(&mut self) {
        if let Some(sample) = &mut self.sample {
            sample.mass.clear();
        }
    }

    fn touch(&mut self, keys: &[u64]) {
        for key in keys.iter().rev() {
            self.near.touch(*key);
            if let Some(sample) = &mut self.sample {
                sample.remove(*key);
            }
            if self.near.len() > self.bounds.exact_blocks {
                let sample = self.sample.get_or_insert_with(|| Sample::new(self.bounds, &self.near, keys));
                sample.insert(self.near.pop_oldest().expect("invariant: more than exact_blocks, which is at least 1"));
            }
        }
    }
}

impl Sample {
    /// Begins with nothing left, in the middle of a request with blocks `keys`.
    fn new(bounds: StackBounds, near: &LruStack, keys: &[u64]) -> Self {
        let mut seen = DistinctCount::new();
        for key in near.oldest_first().chain(keys.iter().copied()) {
            seen.insert(mix(bounds.place(key)));
        }
        Self {
            bounds,
            threshold: bounds.threshold_most,
            stack: LruStack::new(),
            left: IntMap::default(),
            mass: IntMap::default(),
            all_left: 0,
            sampled_left: 0,
            seen,
            has_forgotten: false,
        }
    }

    fn rate(&self) -> f64 {
        self.threshold as f64 / (1_u64 << 32) as f64
    }

    /// Looks up blocks behind the exact part, with their tokens.
    fn look(&mut self, blocks: impl Iterator<Item = (u64, u64)>, capacities: &[u64], tally: &mut Tally) {
        let rate = self.rate();
        let mut deepest = Some(0);
        for (key, tokens) in blocks {
            let (place, tokens) = (self.bounds.place(key), tokens as f64);
            if let Some(weight) = self.seen.insert(mix(place)) {
                tally.first += weight * tokens;
                tally.first_variance += tokens * tokens * weight * (weight - 1.0);
            }
            if place >> 32 >= self.threshold {
                continue;
            }
            let scaled = tokens / rate;
            deepest = deepest.zip(self.distance(key)).map(|(deepest, distance)| deepest.max(distance));
            let Some(deepest) = deepest else {
                tally.absent += scaled;
                continue;
            };
            tally.far[capacity(capacities, deepest)] += scaled;
            let mass = self.mass.entry(key).or_insert(0.0);
            tally.far_squares += scaled * (2.0 * *mass + scaled);
            *mass += scaled;
        }
    }

    /// Blocks used since this one, itself included: those of the exact part, and those that left it since, less those that
    /// came back. Only the last number is estimated.
    fn distance(&self, key: u64) -> Option<u64> {
        let above = self.stack.depth(key)? - 1;
        let since = self.all_left - self.left.get(&key)?.all;
        let others = (since as f64 - self.came_back(key, above)).round().max(above as f64);
        Some(self.bounds.exact_blocks as u64 + others as u64 + 1)
    }

    /// Blocks that left the exact part after this one and came back, estimated. `above`: sampled ones that did not.
    fn came_back(&self, key: u64, above: usize) -> f64 {
        let sampled = self.left.get(&key).map_or(0.0, |left| self.sampled_left as f64 - left.sampled);
        (sampled - above as f64) / self.rate()
    }

    fn remove(&mut self, key: u64) {
        if self.bounds.place(key) >> 32 < self.threshold && self.stack.remove(key) {
            self.left.remove(&key);
        }
    }

    fn insert(&mut self, key: u64) {
        self.all_left += 1;
        if self.bounds.place(key) >> 32 >= self.threshold {
            return;
        }
        self.sampled_left += 1;
        self.stack.touch(key);
        self.left.insert(key, Left { all: self.all_left, sampled: self.sampled_left as f64 });
        while self.stack.len() > self.bounds.sample_max {
            if self.threshold / 2 >= self.bounds.threshold_least {
                self.halve();
            } else {
                let oldest = self.stack.pop_oldest();
                self.left.remove(&oldest.expect("invariant: more than sample_max, which is at least 1"));
                self.has_forgotten = true;
            }
        }
    }

    /// Halves the rate. What was estimated of the blocks that stay is taken over.
    fn halve(&mut self) {
        let (threshold, bounds) = (self.threshold / 2, self.bounds);
        let wanted = |key: u64| bounds.place(key) >> 32 < threshold;
        let held = self.stack.len();
        let place = |(place, key): (usize, u64)| (key, held - place - 1);
        let stay: Vec<_> = self.stack.oldest_first().enumerate().map(place).filter(|(key, _)| wanted(*key)).collect();
        let stay: Vec<_> = stay.into_iter().map(|(key, above)| (key, self.came_back(key, above))).collect();
        self.threshold = threshold;
        self.stack.retain(wanted);
        self.left.retain(|key, _| wanted(*key));
        self.mass.retain(|key, _| wanted(*key));
        let (held, rate) = (stay.len(), self.rate());
        for (place, (key, came_back)) in stay.into_iter().enumerate() {
            let above = held - place - 1;
            if let Some(left) = self.left.get_mut(&key) {
                left.sampled = self.sampled_left as f64 - above as f64 - came_back * rate;
            }
        }
    }
}
