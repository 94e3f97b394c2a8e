//! First part of the funnel: a request's prompt, decision and end meet here, whatever their order.
//!
//! Invariant: of each part the first that came counts. When prompt and decision are known the request's blocks are asked
//! for, once, as of the decision; when the end is known, too, the request is closed, once. A request without a decision
//! when it ends waits `settle_epochs` for it; one without an end is closed `close_after_epochs` after its first row.
//! Cost: one map access per row, O(log open) per request opened or closed. State: at most `max_open` requests with their
//! hashes (at the bound the one open for longest is closed as if its end never came, and reported), at most `max_closed`
//! remembered ends (at the bound the oldest is forgotten, and a part that late would open the request again).
use std::collections::{BTreeSet, VecDeque};

use differential_dataflow::Hashable;
use serde::{Deserialize, Serialize};

use super::{
    FunnelConfig,
    rows::{AskedRow, DecidedRow, EndedRow, FunnelPart},
};
use crate::{
    IntMap, IntSet,
    epochs::{Closed, EpochFold},
    refused::{Input, Refusal, Refused},
};

/// A block of a prompt, asked for as of `at_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub hash: u64,
    pub request: u128,
    pub at_us: i64,
    pub model: u32,
    pub prompt: u16,
    pub index: u32,
    /// The instance chosen.
    pub chosen: Option<u32>,
}

/// A closed request, all that is known of it but its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Case {
    pub request: u128,
    pub at_us: i64,
    pub model: u32,
    pub region: u32,
    pub tier: u8,
    pub tenant: u32,
    pub prompt_tokens: u32,
    pub block_tokens: u32,
    /// Blocks asked for.
    pub blocks: u64,
    pub decided: Option<DecidedRow>,
    pub delivered: Option<u32>,
}

#[derive(Clone)]
pub(crate) enum Gathered {
    Ask(Ask),
    Case(Case),
}

struct Open {
    opened: u64,
    deadline: u64,
    is_asked_for: bool,
    asked: Option<AskedRow>,
    decided: Option<DecidedRow>,
    ended: Option<EndedRow>,
}

pub(crate) struct GatherFold {
    config: FunnelConfig,
    open: IntMap<u128, Open>,
    /// Open requests by the epoch of their first row.
    by_age: BTreeSet<(u64, u128)>,
    /// Open requests by the epoch in which they are closed at the latest.
    deadlines: BTreeSet<(u64, u128)>,
    closed: IntSet<u128>,
    closed_order: VecDeque<u128>,
}

impl GatherFold {
    pub(crate) fn new(config: FunnelConfig) -> Self {
        Self {
            config,
            open: IntMap::default(),
            by_age: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            closed: IntSet::default(),
            closed_order: VecDeque::new(),
        }
    }

    fn open(&mut self, request: u128, epoch: u64, closed: &mut Closed<Gathered>) -> &mut Open {
        if !self.open.contains_key(&request) {
            let max_open = self.config.max_open.max(1);
            while self.open.len() >= max_open {
                let Some((_, oldest)) = self.by_age.first().copied() else { break };
                self.close_request(oldest, epoch, closed);
                let reason = Refusal::OpenRequestsFull { max_open: max_open as u64 };
                closed.refused.push(refused(epoch, oldest, reason));
            }
            self.by_age.insert((epoch, request));
            self.deadlines.insert((epoch + self.config.close_after_epochs, request));
        }
        let deadline = epoch + self.config.close_after_epochs;
        self.open.entry(request).or_insert(Open {
            opened: epoch,
            deadline,
            is_asked_for: false,
            asked: None,
            decided: None,
            ended: None,
        })
    }

    /// Takes one part; of each kind the first counts.
    fn take(&mut self, part: FunnelPart, epoch: u64, closed: &mut Closed<Gathered>) {
        let request = part.request();
        if self.closed.contains(&request) {
            return;
        }
        let open = self.open(request, epoch, closed);
        match part {
            FunnelPart::Asked(row) => drop(open.asked.get_or_insert(row)),
            FunnelPart::Decided(row) => {
                open.decided.get_or_insert(row);
            }
            FunnelPart::Ended(row) => {
                open.ended.get_or_insert(row);
            }
        }
    }

    /// Goes as far with a request as what is known of it allows.
    fn advance(&mut self, request: u128, epoch: u64, closed: &mut Closed<Gathered>) {
        let Some(open) = self.open.get_mut(&request) else { return };
        if open.decided.is_some() {
            ask(open, &mut closed.out);
        }
        if open.ended.is_none() {
            return;
        }
        if open.is_asked_for {
            return self.close_request(request, epoch, closed);
        }
        let deadline = epoch + self.config.settle_epochs.max(1);
        if deadline < open.deadline {
            self.deadlines.remove(&(open.deadline, request));
            self.deadlines.insert((deadline, request));
            open.deadline = deadline;
        }
    }

    fn close_request(&mut self, request: u128, epoch: u64, closed: &mut Closed<Gathered>) {
        let Some(mut open) = self.open.remove(&request) else { return };
        self.by_age.remove(&(open.opened, request));
        self.deadlines.remove(&(open.deadline, request));
        self.remember(request);
        ask(&mut open, &mut closed.out);
        let Some(asked) = open.asked else {
            return closed.refused.push(refused(epoch, request, Refusal::PromptMissing));
        };
        closed.out.push(Gathered::Case(Case {
            request,
            at_us: open.decided.map_or(asked.at_us, |row| row.at_us),
            model: asked.model,
            region: asked.region,
            tier: asked.tier,
            tenant: asked.tenant,
            prompt_tokens: asked.prompt_tokens,
            block_tokens: asked.block_tokens,
            blocks: asked.prompts.iter().map(|hashes| hashes.len() as u64).sum(),
            decided: open.decided,
            delivered: open.ended.and_then(|row| row.delivered),
        }));
    }

    fn remember(&mut self, request: u128) {
        if self.closed.insert(request) {
            self.closed_order.push_back(request);
        }
        while self.closed_order.len() > self.config.max_closed {
            if let Some(oldest) = self.closed_order.pop_front() {
                self.closed.remove(&oldest);
            }
        }
    }
}

/// Asks for the request's blocks, unless that was done or its prompt is not known.
fn ask(open: &mut Open, out: &mut Vec<Gathered>) {
    let Some(asked) = open.asked.as_ref().filter(|_| !open.is_asked_for) else { return };
    let at_us = open.decided.map_or(asked.at_us, |row| row.at_us);
    let chosen = open.decided.and_then(|row| row.placed);
    let (request, model) = (asked.request, asked.model);
    for (prompt, hashes) in (0u16..).zip(&asked.prompts) {
        let asks = (0u32..).zip(hashes);
        out.extend(
            asks.map(|(index, hash)| Gathered::Ask(Ask { hash: *hash, request, at_us, model, prompt, index, chosen })),
        );
    }
    open.is_asked_for = true;
}

/// The low half of a request's id stands for it in reports.
pub(super) fn refused(epoch: u64, request: u128, reason: Refusal) -> Refused {
    Refused { epoch, input: Input::Funnel, instance: None, subject: request as u64, rows: 1, reason }
}

impl EpochFold for GatherFold {
    type Row = FunnelPart;
    type Out = Gathered;
    const NAME: &'static str = "FunnelGather";

    fn route(row: &FunnelPart) -> u64 {
        row.request().hashed()
    }

    fn close(&mut self, epoch: u64, rows: &mut Vec<FunnelPart>, closed: &mut Closed<Gathered>) {
        rows.retain(|row| {
            let checked = row.check();
            closed.refused.extend(checked.err().map(|reason| refused(epoch, row.request(), reason)));
            checked.is_ok()
        });
        rows.sort_unstable_by(|a, b| a.request().cmp(&b.request()).then_with(|| a.cmp(b)));
        let mut touched: Vec<u128> = rows.iter().map(FunnelPart::request).collect();
        touched.dedup();
        rows.drain(..).for_each(|part| self.take(part, epoch, closed));
        touched.into_iter().for_each(|request| self.advance(request, epoch, closed));
        while let Some((_, request)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= epoch) {
            self.close_request(request, epoch, closed);
        }
    }

    fn wake_at(&self) -> Option<u64> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }
}
