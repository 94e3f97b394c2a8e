//! Last part of the funnel: a request's blocks and its story become its layers, and a reason for each token lost.
//!
//! Invariant: `layers[k] = layers[k + 1] + sum of the losses of layer k + 1`, exactly. Cost: O(blocks × holders) per
//! request. State: the sums of requests that are not closed yet, one byte per block of the longest prefix on the instance
//! chosen; their number is bounded where requests are gathered, since each request asked for is closed in the end.
use std::{collections::BTreeMap, ops::Range};

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};

use super::{
    FunnelCase,
    gather::Case,
    layers::{LAYERS, Layer, Loss},
    lookup::Found,
};
use crate::{
    IntMap,
    epochs::{Closed, EpochFold},
    rows::LEVELS,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum AssembleRow {
    Found(Found),
    Case(Case),
}

impl AssembleRow {
    fn request(&self) -> u128 {
        match self {
            Self::Found(found) => found.request,
            Self::Case(case) => case.request,
        }
    }
}

type ByLevel = [u64; LEVELS as usize];

/// Leading blocks of a request's prompts, added up over the prompts.
#[derive(Default)]
struct Prefixes {
    /// Seen before.
    seen: u64,
    /// Held by anybody, block by block.
    spread: u64,
    /// Seen, beyond what anybody can use, and stored once.
    evicted: u64,
    /// Held by the one instance that held most, by level.
    present: ByLevel,
    /// Level of each block held by the instance chosen.
    chosen: Vec<u8>,
}

/// All blocks of one prompt, in order.
fn add_prompt(blocks: &[&Found], sums: &mut Prefixes, by_instance: &mut BTreeMap<u32, ByLevel>) {
    let leading =
        |count: usize, is_in: fn(&Found) -> bool| blocks.iter().take(count).take_while(|block| is_in(block)).count();
    let seen = leading(blocks.len(), |block| block.is_seen);
    let spread = leading(seen, |block| !block.holders.is_empty());
    sums.seen += seen as u64;
    sums.spread += spread as u64;
    sums.evicted += blocks[spread..seen].iter().filter(|block| block.is_stored).count() as u64;
    let mut live: Vec<u32> = blocks.first().map_or(Vec::new(), |first| first.holders.iter().map(|h| h.0).collect());
    for block in &blocks[..spread] {
        live.retain(|instance| match block.holders.binary_search_by_key(instance, |holder| holder.0) {
            Ok(place) => {
                let level = block.holders[place].1;
                by_instance.entry(*instance).or_default()[usize::from(level)] += 1;
                if block.chosen == Some(*instance) {
                    sums.chosen.push(level);
                }
                true
            }
            Err(_) => false,
        });
    }
}

fn prefixes(found: &mut [&Found]) -> Prefixes {
    found.sort_unstable_by_key(|block| (block.prompt, block.index));
    let (mut sums, mut by_instance) = (Prefixes::default(), BTreeMap::new());
    for prompt in found.chunk_by(|a, b| a.prompt == b.prompt) {
        add_prompt(prompt, &mut sums, &mut by_instance);
    }
    // Most blocks; of these, most at the fast levels; of these, the first instance.
    let best = by_instance.into_iter().rev().max_by_key(|(_, levels)| (levels.iter().sum::<u64>(), *levels));
    sums.present = best.map_or(ByLevel::default(), |(_, levels)| levels);
    sums
}

fn assemble(epoch: u64, case: &Case, sums: &Prefixes) -> FunnelCase {
    let prompt = u64::from(case.prompt_tokens);
    let block = u64::from(case.block_tokens);
    // The last prompt token is always computed: its logits are the first answer.
    let cap = |tokens: u64| tokens.min(prompt.saturating_sub(1));
    let tokens = |blocks: u64| cap(blocks * block);
    let present_by_level = cut(sums.present.map(|blocks| blocks * block), cap(u64::MAX));
    let present = present_by_level.iter().sum();
    let claim = |pick: fn(&super::DecidedRow) -> u32| case.decided.as_ref().map(|row| cap(pick(row).into()));
    let placed = case.decided.and_then(|row| row.placed);
    // Without a decision nobody looked.
    let visible = claim(|row| row.visible).unwrap_or(present);
    let eligible = claim(|row| row.eligible).unwrap_or(present);
    let selected = claim(|row| row.selected).filter(|_| placed.is_some()).unwrap_or(0);
    let delivered = case.delivered.filter(|_| placed.is_some()).map_or(0, |tokens| u64::from(tokens).min(prompt));
    let layers = [prompt, tokens(sums.seen), present, visible, eligible, selected, delivered];
    let mut made = FunnelCase {
        epoch,
        request: case.request,
        at_us: case.at_us,
        model: case.model,
        region: case.region,
        tier: case.tier,
        tenant: case.tenant,
        instance: placed,
        is_reported: case.delivered.is_some(),
        ns_per_token: case.decided.map_or(0, |row| row.ns_per_token),
        layers,
        present_by_level,
        losses: [0; super::LOSSES],
    };
    for layer in &Layer::ALL[1..LAYERS] {
        attribute(&mut made, *layer, (block, sums));
    }
    made
}

/// Cuts a sum to at most `most`, the slow levels first.
fn cut(mut levels: ByLevel, most: u64) -> ByLevel {
    let mut excess = levels.iter().sum::<u64>().saturating_sub(most);
    for tokens in levels.iter_mut().rev() {
        let cut = excess.min(*tokens);
        *tokens -= cut;
        excess -= cut;
    }
    levels
}

/// Gives each token between a layer and the one before its reason.
fn attribute(case: &mut FunnelCase, layer: Layer, (block, sums): (u64, &Prefixes)) {
    let (before, reached) = (case.layers[layer as usize - 1], case.layers[layer as usize]);
    let Some(lost) = before.checked_sub(reached) else {
        let gain = match layer {
            Layer::Visible => Loss::Phantom,
            Layer::Eligible => Loss::EligibleGain,
            Layer::Selected => Loss::SelectedGain,
            _ => Loss::UnseenHit,
        };
        case.losses[gain as usize] -= (reached - before) as i64;
        return;
    };
    let mut left = lost;
    let mut give = |loss: Loss, most: u64| {
        let tokens = left.min(most);
        case.losses[loss as usize] += tokens as i64;
        left -= tokens;
    };
    match layer {
        Layer::Prompt => {}
        Layer::Potential => give(Loss::NeverSeen, u64::MAX),
        Layer::Present => {
            give(Loss::Split, (sums.spread * block).min(before).saturating_sub(reached));
            give(Loss::Evicted, sums.evicted * block);
            give(Loss::NotStored, u64::MAX);
        }
        Layer::Visible => give(Loss::StaleView, u64::MAX),
        Layer::Eligible => give(Loss::Ineligible, u64::MAX),
        Layer::Selected if case.instance.is_none() => give(Loss::NotServed, u64::MAX),
        Layer::Selected => give(Loss::TradedForLoad, u64::MAX),
        Layer::Delivered if !case.is_reported => give(Loss::Unreported, u64::MAX),
        Layer::Delivered => {
            let held = sums.chosen.len() as u64 * block;
            give(Loss::StaleClaim, before.saturating_sub(held));
            let slow = below_l1(reached..before.min(held), block, &sums.chosen);
            give(Loss::TransferTooSlow, slow);
            give(Loss::EngineEviction, u64::MAX);
        }
    }
}

/// Tokens of a range whose block is held below L1.
fn below_l1(tokens: Range<u64>, block: u64, levels: &[u8]) -> u64 {
    let within = |index: u64| {
        let (from, to) = ((index * block).max(tokens.start), ((index + 1) * block).min(tokens.end));
        to.saturating_sub(from)
    };
    (0u64..).zip(levels).filter(|(_, level)| **level > 0).map(|(index, _)| within(index)).sum()
}

#[derive(Default)]
struct Waiting {
    case: Option<Case>,
    sums: Option<Prefixes>,
}

#[derive(Default)]
pub(crate) struct AssembleFold {
    waiting: IntMap<u128, Waiting>,
}

impl EpochFold for AssembleFold {
    type Row = AssembleRow;
    type Out = FunnelCase;
    const NAME: &'static str = "FunnelAssemble";

    fn route(row: &AssembleRow) -> u64 {
        row.request().hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<AssembleRow>, closed: &mut Closed<FunnelCase>) {
        rows.sort_by_key(AssembleRow::request);
        for group in rows.chunk_by(|a, b| a.request() == b.request()) {
            let request = group[0].request();
            let mut waiting = self.waiting.remove(&request).unwrap_or_default();
            let mut found = Vec::new();
            for row in group {
                match row {
                    AssembleRow::Found(row) => found.push(row),
                    AssembleRow::Case(case) => waiting.case = Some(*case),
                }
            }
            if !found.is_empty() {
                waiting.sums = Some(prefixes(&mut found));
            }
            match waiting {
                Waiting { case: Some(case), sums: Some(sums) } => closed.out.push(assemble(epoch, &case, &sums)),
                Waiting { case: Some(case), .. } if case.blocks == 0 => {
                    closed.out.push(assemble(epoch, &case, &Prefixes::default()));
                }
                waiting => drop(self.waiting.insert(request, waiting)),
            }
        }
    }
}
