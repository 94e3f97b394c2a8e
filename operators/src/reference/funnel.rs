//! The twin of `funnel`: all rows kept, each request's story told anew after every epoch, tokens counted one by one.
//!
//! Invariant: the same rules as the operator for unbounded state. Cost: O(all rows × all blocks) per epoch.
//! State: all rows, unbounded.
use std::collections::BTreeSet;

use crate::{
    AskedRow, BlockChange, BlockRow, CacheKey, DecidedRow, EndedRow, FunnelCase, FunnelConfig, FunnelPart, FunnelRow,
    LOSSES, Layer, Loss, ServesRow, funnel::ANY_MODEL,
};

/// See the module.
pub struct SlowFunnel {
    config: FunnelConfig,
    parts: Vec<(u64, FunnelPart)>,
    dates: Vec<(u64, BlockRow)>,
    serves: Vec<(u64, ServesRow)>,
    /// What was held after each epoch.
    held: Vec<BTreeSet<CacheKey>>,
}

/// A request as far as its rows tell.
struct Story {
    asked: AskedRow,
    decided: Option<DecidedRow>,
    ended: Option<EndedRow>,
    /// Epoch in which its blocks are asked for, and in which it is closed.
    asks: u64,
    closes: u64,
}

impl Story {
    fn at_us(&self) -> i64 {
        self.decided.map_or(self.asked.at_us, |row| row.at_us)
    }

    fn placed(&self) -> Option<u32> {
        self.decided.and_then(|row| row.placed)
    }
}

/// What is known of one block of a prompt.
struct Known {
    is_seen: bool,
    is_stored: bool,
    holders: Vec<(u32, u8)>,
}

fn first<T: Clone + Ord>(parts: &[(u64, T)]) -> Option<(u64, T)> {
    parts.iter().min().cloned()
}

impl SlowFunnel {
    pub fn new(config: FunnelConfig) -> Self {
        Self { config, parts: Vec::new(), dates: Vec::new(), serves: Vec::new(), held: Vec::new() }
    }

    /// Folds one epoch, must be called for every epoch from 0 on; `held`: the cache index after it. Gives its cases, sorted.
    pub fn epoch(&mut self, epoch: u64, rows: &[FunnelRow], held: &BTreeSet<CacheKey>) -> Vec<FunnelCase> {
        for row in rows {
            match row {
                FunnelRow::Request(part) if part.check().is_ok() => self.parts.push((epoch, part.clone())),
                FunnelRow::Block(row) if row.check().is_ok() => self.dates.push((epoch, *row)),
                FunnelRow::Serves(row) if row.check().is_ok() => self.serves.push((epoch, *row)),
                _ => {}
            }
        }
        self.held.push(held.clone());
        let requests: BTreeSet<u128> = self.parts.iter().map(|(_, part)| part.request()).collect();
        let stories: Vec<Story> = requests.into_iter().filter_map(|request| self.story(request, epoch)).collect();
        let mut cases = Vec::new();
        for story in &stories {
            let has_blocks = story.asked.prompts.iter().any(|hashes| !hashes.is_empty());
            let answered = story.asks + self.config.settle_epochs;
            let due = if has_blocks { answered.max(story.closes) } else { story.closes };
            if due == epoch {
                cases.push(self.case(epoch, story, (answered, &stories)));
            }
        }
        cases.sort();
        cases
    }

    /// `None` while its blocks have not been asked for, or if they never are.
    fn story(&self, request: u128, now: u64) -> Option<Story> {
        let rows: Vec<_> = self.parts.iter().filter(|(_, part)| part.request() == request).cloned().collect();
        let opened = rows.iter().map(|(epoch, _)| *epoch).min()?;
        let pick = |is: fn(&FunnelPart) -> bool, until: u64| {
            first(&rows.iter().filter(|(epoch, part)| is(part) && *epoch <= until).cloned().collect::<Vec<_>>())
        };
        let asked = |until| pick(|part| matches!(part, FunnelPart::Asked(_)), until);
        let decided = |until| pick(|part| matches!(part, FunnelPart::Decided(_)), until);
        let ended = |until| pick(|part| matches!(part, FunnelPart::Ended(_)), until);
        let mut latest = opened + self.config.close_after_epochs;
        if let Some((epoch, _)) = ended(latest) {
            let known = asked(epoch).is_some() && decided(epoch).is_some();
            let patience = if known { 0 } else { self.config.settle_epochs.max(1) };
            latest = latest.min(epoch + patience);
        }
        let complete = [asked(latest), decided(latest), ended(latest)].map(|part| part.map(|(epoch, _)| epoch));
        let closes = match complete {
            [Some(a), Some(d), Some(e)] => a.max(d).max(e),
            _ => latest,
        };
        let asks = match (asked(closes), decided(closes)) {
            (Some((a, _)), Some((d, _))) => a.max(d),
            _ => closes,
        };
        if asks > now {
            return None;
        }
        let Some((_, FunnelPart::Asked(asked))) = asked(closes) else { return None };
        let decided =
            decided(closes).and_then(|(_, part)| if let FunnelPart::Decided(r) = part { Some(r) } else { None });
        let ended =
            ended(closes).and_then(|(_, part)| if let FunnelPart::Ended(row) = part { Some(row) } else { None });
        Some(Story { asked, decided, ended, asks, closes })
    }

    /// The model of an instance's blocks, as known in an epoch.
    fn model(&self, instance: u32, known: u64) -> u32 {
        let told = self.serves.iter().filter(|(epoch, row)| *epoch <= known && row.instance == instance);
        told.map(|(_, row)| (row.at_us, row.model)).max().map_or(ANY_MODEL, |(_, model)| model)
    }

    /// Spans of time in which `key` was held, as known in epoch `known`.
    fn spans(&self, key: CacheKey, known: u64) -> Vec<(i64, Option<i64>)> {
        let is_held = |epoch: u64| self.held[epoch as usize].contains(&key);
        let dated = |change: BlockChange, epoch: u64| -> Vec<i64> {
            let of = |row: &BlockRow| (row.hash, row.instance, row.level) == key && row.change == change;
            let rows = self.dates.iter().filter(|(at, row)| *at == epoch && of(row));
            rows.map(|(_, row)| row.at_us).collect()
        };
        let mut spans = Vec::new();
        let mut since = None;
        for epoch in 0..=known {
            let was = epoch > 0 && is_held(epoch - 1);
            if !was && is_held(epoch) {
                // Dated by the latest epoch that spoke of storing it since it was last held.
                let began = (0..epoch).rev().take_while(|before| !is_held(*before)).last().unwrap_or(epoch);
                let not_held_before = |at: &u64| *at == 0 || !is_held(*at - 1);
                let told = (began..=epoch)
                    .rev()
                    .filter(not_held_before)
                    .find(|at| !dated(BlockChange::Stored, *at).is_empty());
                let told = told.filter(|at| at + self.config.settle_epochs >= epoch);
                let date = told.and_then(|at| dated(BlockChange::Stored, at).into_iter().min());
                // What came long ago was always there.
                let date = date.filter(|_| epoch + 2 * self.config.settle_epochs >= known);
                since = Some(date.unwrap_or(i64::MIN));
            }
            if was && !is_held(epoch) {
                let from = since.take().expect("invariant: it was held");
                let until = dated(BlockChange::Removed, epoch).into_iter().max();
                if epoch + self.config.settle_epochs >= known {
                    spans.push((from, Some(until.unwrap_or(i64::MIN))));
                }
            }
        }
        spans.extend(since.map(|from| (from, None)));
        spans
    }

    fn block(&self, hash: u64, story: &Story, (answered, stories): (u64, &[Story])) -> Known {
        let (at_us, model) = (story.at_us(), story.asked.model);
        let keys: BTreeSet<CacheKey> = self.held.iter().flatten().filter(|key| key.0 == hash).copied().collect();
        let mut holders: Vec<(u32, u8)> = Vec::new();
        for key in keys {
            let is_model = [model, ANY_MODEL].contains(&self.model(key.1, answered));
            let spans = self.spans(key, answered);
            let is_then = spans.iter().any(|(from, until)| *from <= at_us && until.is_none_or(|until| at_us < until));
            if is_then && is_model && !holders.iter().any(|(instance, _)| *instance == key.1) {
                holders.push((key.1, key.2));
            }
        }
        let stored = self.dates.iter().any(|(epoch, row)| {
            let is_model = [model, ANY_MODEL].contains(&self.model(row.instance, *epoch));
            let is_of = row.hash == hash && is_model && row.change == BlockChange::Stored;
            is_of && *epoch <= answered && row.at_us <= at_us
        });
        let is_stored = stored || !holders.is_empty();
        let mine = (at_us, story.asked.request as u64);
        let asked = stories.iter().any(|other| {
            let asks = other.asked.prompts.iter().flatten().any(|asked| *asked == hash);
            let before = (other.at_us(), other.asked.request as u64) < mine;
            asks && other.asks <= answered && other.asked.model == model && before
        });
        Known { is_seen: is_stored || asked, is_stored, holders }
    }

    fn case(&self, epoch: u64, story: &Story, known: (u64, &[Story])) -> FunnelCase {
        let prompts: Vec<Vec<Known>> = story
            .asked
            .prompts
            .iter()
            .map(|hashes| hashes.iter().map(|hash| self.block(*hash, story, known)).collect())
            .collect();
        let lead = |blocks: &[Known], is: &dyn Fn(&Known) -> bool| blocks.iter().take_while(|block| is(block)).count();
        let sum = |is: &dyn Fn(&Known) -> bool| prompts.iter().map(|blocks| lead(blocks, is) as u64).sum::<u64>();
        let (size, prompt) = (u64::from(story.asked.block_tokens), u64::from(story.asked.prompt_tokens));
        let cap = |tokens: u64| tokens.min(prompt.saturating_sub(1));
        let potential = cap(sum(&|block| block.is_seen) * size);
        let spread = cap(sum(&|block| !block.holders.is_empty()) * size);
        // The levels of one instance's leading blocks, over all prompts.
        let levels = |instance: u32| -> Vec<u8> {
            let level = |block: &Known| block.holders.iter().find(|(id, _)| *id == instance).map(|(_, level)| *level);
            prompts.iter().flat_map(|blocks| blocks.iter().map_while(level)).collect()
        };
        let instances: BTreeSet<u32> = prompts.iter().flatten().flat_map(|b| b.holders.iter().map(|h| h.0)).collect();
        let count = |levels: &[u8]| -> [u64; 8] {
            std::array::from_fn(|at| levels.iter().filter(|level| usize::from(**level) == at).count() as u64)
        };
        let mut best: Vec<u8> = Vec::new();
        for instance in instances {
            let mine = levels(instance);
            if (mine.len(), count(&mine)) > (best.len(), count(&best)) {
                best = mine;
            }
        }
        best.sort();
        // One entry a token, fast levels first; what does not fit the prompt is slow.
        let mut present_levels: Vec<u8> =
            best.iter().flat_map(|level| std::iter::repeat_n(*level, size as usize)).collect();
        present_levels.truncate(cap(u64::MAX) as usize);
        let (present, decided) = (present_levels.len() as u64, story.decided);
        let placed = story.placed();
        let reported = story.ended.and_then(|row| row.delivered);
        let layers = [
            prompt,
            potential,
            present,
            decided.map_or(present, |row| cap(row.visible.into())),
            decided.map_or(present, |row| cap(row.eligible.into())),
            decided.filter(|_| placed.is_some()).map_or(0, |row| cap(row.selected.into())),
            reported.filter(|_| placed.is_some()).map_or(0, |tokens| u64::from(tokens).min(prompt)),
        ];
        let stored_beyond: u64 = prompts
            .iter()
            .map(|blocks| {
                let (from, to) = (lead(blocks, &|b| !b.holders.is_empty()), lead(blocks, &|b| b.is_seen));
                blocks[from..to].iter().filter(|block| block.is_stored).count() as u64 * size
            })
            .sum();
        let chosen = placed.map_or(Vec::new(), levels);
        let reason = |layer: Layer, token: u64| -> Loss {
            match layer {
                Layer::Present if token < spread => Loss::Split,
                Layer::Present if token - spread.max(present) < stored_beyond => Loss::Evicted,
                Layer::Present => Loss::NotStored,
                Layer::Visible => Loss::StaleView,
                Layer::Eligible => Loss::Ineligible,
                Layer::Selected if placed.is_none() => Loss::NotServed,
                Layer::Selected => Loss::TradedForLoad,
                Layer::Delivered if reported.is_none() => Loss::Unreported,
                Layer::Delivered => match chosen.get((token / size) as usize) {
                    None => Loss::StaleClaim,
                    Some(0) => Loss::EngineEviction,
                    Some(_) => Loss::TransferTooSlow,
                },
                _ => Loss::NeverSeen,
            }
        };
        FunnelCase {
            epoch,
            request: story.asked.request,
            at_us: story.at_us(),
            model: story.asked.model,
            region: story.asked.region,
            tier: story.asked.tier,
            tenant: story.asked.tenant,
            instance: placed,
            is_reported: reported.is_some(),
            ns_per_token: decided.map_or(0, |row| row.ns_per_token),
            layers,
            present_by_level: std::array::from_fn(|at| {
                present_levels.iter().filter(|level| usize::from(**level) == at).count() as u64
            }),
            losses: losses(&layers, reason),
        }
    }
}

/// Counts each token between two layers under its reason; a layer above the one before is one gain.
fn losses(layers: &[u64], reason: impl Fn(Layer, u64) -> Loss) -> [i64; LOSSES] {
    let mut losses = [0; LOSSES];
    for (pair, layer) in layers.windows(2).zip(&Layer::ALL[1..]) {
        for token in pair[1]..pair[0] {
            losses[reason(*layer, token) as usize] += 1;
        }
        let gain = match layer {
            Layer::Visible => Loss::Phantom,
            Layer::Eligible => Loss::EligibleGain,
            Layer::Selected => Loss::SelectedGain,
            _ => Loss::UnseenHit,
        };
        losses[gain as usize] -= pair[1].saturating_sub(pair[0]) as i64;
    }
    losses
}
