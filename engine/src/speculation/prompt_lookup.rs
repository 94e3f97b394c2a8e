//! Proposals by repetition: the newest tokens are looked up in prompt and output, and what followed them there is
//! proposed. Nothing is computed, so a guess costs a few memory accesses.
//!
//! Each sequence has two tables from the hash of some neighbouring tokens to the last place they ended at: of `long`
//! tokens, which are asked first, and of `short`. A place is compared token by token before it is believed; a collision
//! only hides an older place. A repetition that reaches the newest token goes on periodically.
//!
//! Cost: O(1) a token to extend (amortised: tables double) and O([`LONGEST`]) to propose. Memory: at most 16 bytes a
//! token, and [`MAX_PLACES`] places a table, beyond which older places give way. Bound on tables: two a running
//! sequence.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::proposer::{Ask, ProposalCost, ProposalWork, Proposer, Trust};
use crate::{request::SequenceId, runner::RunnerError};

/// Most places that a table remembers.
pub const MAX_PLACES: usize = 1 << 16;
/// Longest agreement that is measured.
pub const LONGEST: usize = 24;
/// Agreement in tokens from which trust is 1, and from which it is 2.
const TRUSTED: [usize; 2] = [6, 12];
/// Tokens that must agree in the table that is asked first.
const LONG: usize = 8;
const NOWHERE: u32 = u32::MAX;

/// Where some `gram` neighbouring tokens last ended.
#[derive(Debug)]
struct Places {
    gram: usize,
    /// Position after the last token, by hash; a power of two long.
    ends: Vec<u32>,
}

impl Places {
    fn new(gram: usize) -> Self {
        Self { gram, ends: vec![NOWHERE; 64] }
    }

    fn slot(&self, ask: &Ask<'_>, end: usize) -> usize {
        let mut bytes = [0u8; 4 * LONG];
        for (index, place) in bytes.chunks_exact_mut(4).take(self.gram).enumerate() {
            place.copy_from_slice(&ask.token(end - self.gram + index).to_le_bytes());
        }
        xxh3_64(&bytes[..4 * self.gram]) as usize & (self.ends.len() - 1)
    }

    /// Remembers that `gram` tokens end before `end`.
    fn insert(&mut self, ask: &Ask<'_>, end: usize) {
        if end >= self.gram {
            let slot = self.slot(ask, end);
            self.ends[slot] = end as u32;
        }
    }

    /// An earlier place that ends like the known tokens.
    fn find(&self, ask: &Ask<'_>) -> Option<usize> {
        let len = ask.known();
        let end = (len > self.gram).then(|| self.ends[self.slot(ask, len)]).filter(|end| *end != NOWHERE)? as usize;
        (agreement(ask, end, self.gram) == self.gram).then_some(end)
    }
}

/// How many tokens before `end` are those before the newest position, up to `most`.
fn agreement(ask: &Ask<'_>, end: usize, most: usize) -> usize {
    let len = ask.known();
    (1..=most.min(end)).take_while(|back| ask.token(end - back) == ask.token(len - back)).count()
}

/// The tables of one sequence.
#[derive(Debug)]
struct Index {
    short: Places,
    long: Places,
    /// Places that end before or at this position are in the tables.
    indexed: usize,
}

impl Index {
    fn new(min_match: usize) -> Self {
        Self { short: Places::new(min_match), long: Places::new(LONG.max(min_match)), indexed: 0 }
    }

    /// Takes in all places but the newest, which is the one that is looked up.
    fn extend(&mut self, ask: &Ask<'_>) {
        let len = ask.known();
        let wanted = (2 * len).next_power_of_two().min(MAX_PLACES);
        if wanted > self.short.ends.len() {
            // Room for twice as many, so that the next doubling is as far away.
            let room = (2 * wanted).min(MAX_PLACES);
            self.short.ends = vec![NOWHERE; room];
            self.long.ends = vec![NOWHERE; room];
            self.indexed = 0;
        }
        for end in self.indexed + 1..len {
            self.short.insert(ask, end);
            self.long.insert(ask, end);
        }
        self.indexed = len - 1;
    }

    fn propose(&mut self, ask: &mut Ask<'_>) {
        self.extend(ask);
        let Some(end) = self.long.find(ask).or_else(|| self.short.find(ask)) else { return };
        let agreed = agreement(ask, end, LONGEST);
        ask.trust = Trust(TRUSTED.iter().filter(|least| agreed >= **least).count() as u8);
        let len = ask.known();
        for ahead in 0..ask.most {
            let position = end + ahead;
            let token = if position < len { ask.token(position) } else { ask.tokens[position - len] };
            ask.tokens.push(token);
        }
    }
}

/// See the file's header.
#[derive(Debug)]
pub struct PromptLookup {
    min_match: usize,
    sequences: HashMap<SequenceId, Index>,
}

impl PromptLookup {
    /// Proposes where at least `min_match` tokens agree; 2 to 8.
    pub fn new(min_match: usize) -> Self {
        Self { min_match: min_match.clamp(2, LONG), sequences: HashMap::new() }
    }
}

impl Proposer for PromptLookup {
    fn cost(&self) -> ProposalCost {
        ProposalCost::Free
    }

    fn backlog(&self, _: SequenceId, _: usize) -> usize {
        0
    }

    fn propose(&mut self, asks: &mut [Ask<'_>]) -> Result<ProposalWork, RunnerError> {
        for ask in asks {
            let min_match = self.min_match;
            self.sequences.entry(ask.id).or_insert_with(|| Index::new(min_match)).propose(ask);
        }
        Ok(ProposalWork { modelled_us: None, caught_up: 0 })
    }

    fn retain(&mut self, runs: &dyn Fn(SequenceId) -> bool) {
        self.sequences.retain(|id, _| runs(*id));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{request::SamplingParams, sampler::Draw, token_history::TokenHistory};

    /// Proposals for every beginning of `text` of at least `first` tokens, asked for in turn.
    fn proposals(lookup: &mut PromptLookup, text: &[u32], first: usize) -> Vec<(Vec<u32>, Trust)> {
        let (params, history) = (SamplingParams::default(), TokenHistory::default());
        let (prompt, output) = text.split_at(first);
        let ask = |end: usize| Ask {
            id: SequenceId(1),
            prompt,
            generated: &output[..end],
            draw: Draw { params: &params, history: &history, index: end },
            most: 5,
            tokens: Vec::new(),
            trust: Trust::default(),
        };
        let answers = (0..=output.len()).map(|end| {
            let mut asks = [ask(end)];
            lookup.propose(&mut asks).unwrap();
            let [ask] = asks;
            (ask.tokens, ask.trust)
        });
        answers.collect()
    }

    /// The continuations of all earlier places that agree with the end of `text` in `least` tokens.
    fn continuations(text: &[u32], least: usize) -> Vec<Vec<u32>> {
        let ends = (least..text.len()).filter(|end| text[..*end].ends_with(&text[text.len() - least..]));
        ends.map(|end| {
            let mut longer = text.to_vec();
            (0..5).for_each(|ahead| longer.push(longer[end + ahead]));
            longer.split_off(text.len())
        })
        .collect()
    }

    proptest! {
        /// Scenario: random text over few tokens, asked about token by token.
        /// Guarantees: what is proposed followed the same tokens somewhere before.
        #[test]
        fn only_repetitions_are_proposed(
            text in prop::collection::vec(0u32..4, 2..80), first in 1usize..40, least in 2usize..5,
        ) {
            let first = first.min(text.len());
            let mut lookup = PromptLookup::new(least);
            for (offset, (proposal, _)) in proposals(&mut lookup, &text, first).into_iter().enumerate() {
                let known = &text[..first + offset];
                let possible = if known.len() > least { continuations(known, least) } else { Vec::new() };
                prop_assert!(proposal.is_empty() || possible.contains(&proposal), "{proposal:?} after {known:?}");
            }
        }
    }

    /// Scenario: a long text with a period, longer than what a table remembers.
    /// Guarantees: the period is continued, past the newest token too, with full trust; tables stay in their bound.
    #[test]
    fn a_period_is_continued() {
        let text: Vec<u32> = (0..MAX_PLACES as u32 * 2).map(|at| at % 3).collect();
        let mut lookup = PromptLookup::new(3);
        let last = proposals(&mut lookup, &text, text.len() - 50).pop().unwrap();
        let next = text.len() as u32;
        assert_eq!(last, ((next..next + 5).map(|at| at % 3).collect(), Trust(2)));
        let index = &lookup.sequences[&SequenceId(1)];
        assert_eq!((index.short.ends.len(), index.long.ends.len()), (MAX_PLACES, MAX_PLACES));
        lookup.retain(&|_| false);
        assert!(lookup.sequences.is_empty());
    }
}
