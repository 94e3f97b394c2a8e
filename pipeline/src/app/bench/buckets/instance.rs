//! One modelled instance: continuous batching with chunked prefill, a block cache, and the time a step takes.
//!
//! A step decodes every sequence that has its prompt and fills the rest of the token budget with prompts, first come first
//! served. Its time is that of the engine's own cost model (a 7 B model on one accelerator), and each new prompt token pays for
//! the context before it, as softmax attention does. Invariant: sequences that run fit into the KV memory with their whole
//! output, so none gives way. Cost: O(sequences) a step. State: the sequences in flight and the cached blocks.

use std::collections::{BTreeMap, HashMap, VecDeque};

use engine::runner::simulated::CostModel;

use crate::load::trace::BLOCK_TOKENS;

/// Tokens of a step.
const TOKEN_BUDGET: u32 = 2048;
pub(super) const RUNNING_MAX: usize = 256;
/// KV memory for sequences, and as much for cached prefixes.
pub(super) const KV_TOKENS: u64 = 400_000;
/// Per new prompt token and token of context before it: 4 × 4096 × 32 FLOP at the rate that makes a token without context
/// cost what the cost model says.
const PREFILL_CONTEXT_US: f64 = 0.00225;

/// One request on an instance.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    pub request: usize,
    pub prompt: u32,
    /// Of the prompt, found in the cache.
    pub cached: u32,
    pub output: u32,
    pub generated: u32,
    /// Of its lease, counted as foreign work.
    pub foreign: u64,
    /// Of the prompt, with KV.
    computed: u32,
}

impl Sequence {
    pub(super) fn new(request: usize, (prompt, cached): (u32, u32), output: u32, foreign: u64) -> Self {
        Self { request, prompt, cached, output, generated: 0, foreign, computed: cached }
    }

    /// What is reserved for it.
    pub(super) fn tokens(&self) -> u64 {
        u64::from(self.prompt) + u64::from(self.output)
    }

    pub(super) fn context(&self) -> u32 {
        self.prompt + self.generated
    }

    fn is_decoding(&self) -> bool {
        self.computed == self.prompt
    }
}

/// What came out of a step.
#[derive(Debug, Default)]
pub(super) struct StepResult {
    /// Requests whose first token it was.
    pub first: Vec<usize>,
    pub finished: Vec<Sequence>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Instance {
    pub waiting: VecDeque<Sequence>,
    pub running: Vec<Sequence>,
    pub step_end_us: Option<u64>,
    /// Prompt tokens of each running sequence in the step under way.
    chunks: Vec<u32>,
    pub cache: BlockCache,
    pub leased_tokens: u64,
    pub foreign_tokens: u64,
}

impl Instance {
    pub(super) fn sequences(&self) -> impl Iterator<Item = &Sequence> {
        self.running.iter().chain(&self.waiting)
    }

    pub(super) fn queued_prefill(&self) -> u64 {
        self.sequences().map(|sequence| u64::from(sequence.prompt - sequence.computed)).sum()
    }

    pub(super) fn take(&mut self, sequence: Sequence) {
        self.leased_tokens += sequence.tokens();
        self.foreign_tokens += sequence.foreign;
        self.waiting.push_back(sequence);
    }

    /// Begins a step if there is work and none is under way.
    pub(super) fn begin(&mut self, now_us: u64, cost: &CostModel) {
        if self.step_end_us.is_some() {
            return;
        }
        let mut held: u64 = self.running.iter().map(Sequence::tokens).sum();
        while let Some(next) = self.waiting.front() {
            held += next.tokens();
            if self.running.len() >= RUNNING_MAX || (held > KV_TOKENS && !self.running.is_empty()) {
                break;
            }
            self.running.extend(self.waiting.pop_front());
        }
        if self.running.is_empty() {
            return;
        }
        let decoding = self.running.iter().filter(|sequence| sequence.is_decoding()).count() as u32;
        let mut budget = TOKEN_BUDGET.saturating_sub(decoding);
        let mut us = cost.base_us;
        self.chunks.clear();
        for sequence in &self.running {
            let chunk = (sequence.prompt - sequence.computed).min(budget);
            budget -= chunk;
            self.chunks.push(chunk);
            let before = if sequence.is_decoding() { sequence.context() } else { sequence.computed };
            us += match (chunk, sequence.is_decoding()) {
                (0, false) => 0.0,
                (_, true) => cost.decode_sequence_us + cost.context_token_us * f64::from(before),
                (chunk, false) => {
                    let context = f64::from(before) + f64::from(chunk) / 2.0;
                    f64::from(chunk) * (cost.prefill_token_us + PREFILL_CONTEXT_US * context)
                }
            };
        }
        self.step_end_us = Some(now_us + us.round() as u64);
    }

    /// Ends the step under way. `blocks`: of a request's prompt.
    pub(super) fn end<'a>(&mut self, blocks: impl Fn(usize) -> &'a [u64]) -> StepResult {
        self.step_end_us = None;
        let mut result = StepResult::default();
        for (sequence, chunk) in self.running.iter_mut().zip(&self.chunks) {
            let was_decoding = sequence.is_decoding();
            sequence.computed += chunk;
            if !sequence.is_decoding() {
                continue;
            }
            sequence.generated += 1;
            if !was_decoding {
                result.first.push(sequence.request);
                self.cache.put(blocks(sequence.request));
            }
        }
        let (finished, running) = self.running.drain(..).partition(|s: &Sequence| s.generated >= s.output.max(1));
        self.running = running;
        for sequence in &finished {
            self.leased_tokens -= sequence.tokens();
            self.foreign_tokens -= sequence.foreign;
        }
        result.finished = finished;
        result
    }
}

/// The blocks of prompts computed last, least recently used out first.
#[derive(Default)]
pub(super) struct BlockCache {
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl BlockCache {
    /// Tokens of a prompt's prefix that are held.
    pub(super) fn hit_tokens(&self, blocks: &[u64]) -> u32 {
        let held = blocks.iter().take_while(|block| self.stamps.contains_key(block)).count();
        (held as u64 * BLOCK_TOKENS) as u32
    }

    fn put(&mut self, blocks: &[u64]) {
        // The end of a prompt goes first.
        for block in blocks.iter().rev() {
            self.clock += 1;
            if let Some(stamp) = self.stamps.insert(*block, self.clock) {
                self.order.remove(&stamp);
            }
            self.order.insert(self.clock, *block);
        }
        while self.stamps.len() as u64 > KV_TOKENS / BLOCK_TOKENS {
            let Some((_, block)) = self.order.pop_first() else { return };
            self.stamps.remove(&block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a long prompt, then a short one, then the long one again. Guarantees: the short one waits for the long one's
    /// prompt, chunk by chunk; every token comes out; the second long one finds its prefix; leases are given back.
    #[test]
    fn steps_follow_the_model() {
        let cost = CostModel::default();
        let mut instance = Instance::default();
        let blocks: [Vec<u64>; 2] = [(0..20).collect(), vec![100]];
        instance.take(Sequence::new(0, (10_000, 0), 3, 0));
        instance.take(Sequence::new(1, (100, 0), 3, 50));
        let (mut now, mut firsts, mut finished) = (0, Vec::new(), 0);
        for _ in 0..100 {
            instance.begin(now, &cost);
            let Some(end) = instance.step_end_us else { break };
            now = end;
            let result = instance.end(|request| &blocks[request]);
            firsts.extend(result.first.iter().map(|request| (*request, now)));
            finished += result.finished.len();
        }
        assert_eq!((firsts[0].0, firsts[1].0, finished), (0, 1, 2));
        // 10 100 prompt tokens, and for each those before it.
        let least = 10_100.0 * cost.prefill_token_us + 10_000.0 * 10_000.0 / 2.0 * PREFILL_CONTEXT_US;
        assert!(firsts[1].1 as f64 > least && (firsts[1].1 as f64) < least * 1.1, "{firsts:?} {least}");
        assert_eq!((instance.leased_tokens, instance.foreign_tokens), (0, 0));
        assert_eq!(instance.cache.hit_tokens(&blocks[0]), 20 * BLOCK_TOKENS as u32);
    }
}
