//! Tests of the fair queue: shares by weight, no starvation, bounds, equality with a twin that searches a plain list.

use proptest::prelude::*;

use super::*;
use crate::policy::test_policy;

const STEP: ThrottleStep = ThrottleStep::Open;
const TIERS: [Tier; 3] = [Tier::High, Tier::Medium, Tier::Low];

fn entry(tier: Tier, tokens: u64, since: Micros) -> Waiting<usize> {
    Waiting { tier, tokens, since, item: 0 }
}

/// Scenario: every tier always has something waiting; 1200 entries of 100 tokens are popped before anything ages.
/// Guarantees: tokens are shared 8 : 3 : 1, to within one entry.
#[test]
fn tokens_are_shared_by_weight() {
    let mut queue = FairQueue::new(&QueueConfig { requests_max: 10_000, ..test_policy().queue });
    let mut taken = [0u64; 3];
    for _ in 0..1200 {
        for tier in TIERS {
            queue.push(entry(tier, 100, 0)).unwrap();
        }
    }
    for _ in 0..1200 {
        taken[lane_of(queue.pop(0, STEP).unwrap().tier)] += 1;
    }
    for (count, weight) in taken.iter().zip([8u64, 3, 1]) {
        assert!(count.abs_diff(weight * 100) <= 1, "{taken:?}");
    }
}

/// Scenario: High floods the queue while one Low entry waits; step `ShapeBatch` holds Low back.
/// Guarantees: the Low entry goes at the aging bound and not before (no starvation, SPEC A3).
#[test]
fn low_goes_at_the_aging_bound() {
    let config = test_policy().queue;
    let mut queue = FairQueue::new(&config);
    queue.push(entry(Tier::Low, 1, 0)).unwrap();
    for tick in 0..20 {
        let now = tick * 1_000_000;
        queue.push(entry(Tier::High, 100_000, now)).unwrap();
        let first = queue.pop(now, ThrottleStep::ShapeBatch).unwrap().tier;
        let is_due = now == 10_000_000;
        assert_eq!(first == Tier::Low, is_due, "at {now}");
    }
}

/// Scenario: a tier idles while another is served, then comes back.
/// Guarantees: it gets its share from then on, and no credit for the time it asked for nothing.
#[test]
fn an_idle_tier_saves_nothing_up() {
    let mut queue = FairQueue::new(&test_policy().queue);
    for _ in 0..100 {
        queue.push(entry(Tier::High, 100, 0)).unwrap();
        queue.pop(0, STEP).unwrap();
    }
    for _ in 0..40 {
        queue.push(entry(Tier::High, 100, 0)).unwrap();
        queue.push(entry(Tier::Low, 100, 0)).unwrap();
    }
    let low = (0..36).filter(|_| queue.pop(0, STEP).unwrap().tier == Tier::Low).count();
    assert!((3..=5).contains(&low), "{low} of 36 at a weight of 1 to 8");
}

/// Scenario: requests up to the bound, tokens up to the bound, one request larger than the token bound.
/// Guarantees: the queue gives back what does not fit, keeps exact accounts, and an empty queue takes anything.
#[test]
fn bounds_hold_and_accounts_are_exact() {
    let config = QueueConfig { requests_max: 2, tokens_max: 100, ..test_policy().queue };
    let mut queue = FairQueue::new(&config);
    let huge = queue.push(entry(Tier::Low, 1000, 0)).unwrap();
    assert!(queue.push(entry(Tier::High, 1, 0)).is_err());
    assert_eq!(queue.remove(huge).unwrap().tokens, 1000);
    assert!(queue.remove(huge).is_none());
    queue.push(entry(Tier::High, 60, 0)).unwrap();
    assert!(queue.push(entry(Tier::High, 41, 0)).is_err());
    queue.push(entry(Tier::Low, 40, 0)).unwrap();
    assert!(queue.push(entry(Tier::Low, 0, 0)).is_err());
    assert_eq!(queue.load(), QueueLoad { requests: 2, tokens: 100 });
}

/// The rules, read off a plain list.
struct Twin {
    waiting: Vec<(u64, Waiting<usize>)>,
    tags: [u64; 3],
    served: u64,
}

impl Twin {
    fn push(&mut self, id: u64, waiting: Waiting<usize>) {
        let lane = lane_of(waiting.tier);
        if !self.waiting.iter().any(|(_, other)| other.tier == waiting.tier) {
            self.tags[lane] = self.tags[lane].max(self.served);
        }
        self.waiting.push((id, waiting));
    }

    /// Nothing of its tier waits longer.
    fn is_head(&self, id: u64) -> bool {
        let tier = |id: u64| self.waiting.iter().find(|(held, _)| *held == id).map(|(_, w)| w.tier);
        self.waiting.iter().find(|(_, w)| Some(w.tier) == tier(id)).is_some_and(|(held, _)| *held == id)
    }

    fn pop(&mut self, now: Micros, step: ThrottleStep) -> Option<u64> {
        let aged = self.waiting.iter().position(|(_, w)| now - w.since >= 10_000_000);
        let others = self.waiting.iter().any(|(_, w)| w.tier != Tier::Low);
        let chosen = aged.or_else(|| {
            let mut best: Option<usize> = None;
            for (index, (_, w)) in self.waiting.iter().enumerate() {
                let is_held = w.tier == Tier::Low && others && step >= ThrottleStep::ShapeBatch;
                let key = |w: &Waiting<usize>| (self.tags[lane_of(w.tier)], lane_of(w.tier));
                if !is_held && best.is_none_or(|b| key(w) < key(&self.waiting[b].1)) {
                    best = Some(index);
                }
            }
            best
        })?;
        let (id, waiting) = self.waiting.remove(chosen);
        let lane = lane_of(waiting.tier);
        self.served = self.served.max(self.tags[lane]);
        // Weights 8, 3, 1: tokens / weight, times 24.
        self.tags[lane] += waiting.tokens * [3, 8, 24][lane];
        Some(id)
    }
}

proptest! {
    /// Scenario: pushes, pops and removals in any order while time passes.
    /// Guarantees: the same entries in the same order as the twin; accounts equal the sum of what waits.
    #[test]
    fn order_equals_the_twin(
        steps in prop::collection::vec((0u8..4, 0usize..3, 1u64..5000, 0i64..4_000_000, 0usize..6), 1..200)
    ) {
        let mut queue = FairQueue::new(&test_policy().queue);
        let mut twin = Twin { waiting: Vec::new(), tags: [0; 3], served: 0 };
        let mut now = 0;
        let mut tickets = Vec::new();
        for (id, (action, tier, tokens, gap, step)) in steps.into_iter().enumerate() {
            now += gap;
            let step = ThrottleStep::ALL[step];
            match action {
                0 | 1 => {
                    let waiting = Waiting { tier: TIERS[tier], tokens, since: now, item: id };
                    tickets.push((id, queue.push(waiting.clone()).unwrap()));
                    twin.push(id as u64, waiting);
                }
                2 => {
                    let shown = queue.peek(now, step).map(|(_, w)| w.item);
                    let heads: Vec<usize> = queue.heads(now, step).iter().map(|(_, w)| w.item).collect();
                    prop_assert_eq!(heads.first().copied(), shown);
                    prop_assert!(heads.iter().all(|head| twin.is_head(*head as u64)), "{heads:?}");
                    let popped = queue.pop(now, step).map(|w| w.item);
                    prop_assert_eq!(shown, popped);
                    prop_assert_eq!(popped.map(|id| id as u64), twin.pop(now, step));
                }
                _ => {
                    if let Some((id, ticket)) = tickets.get(tokens as usize % tickets.len().max(1)) {
                        let there = twin.waiting.iter().any(|(held, _)| *held == *id as u64);
                        twin.waiting.retain(|(held, _)| *held != *id as u64);
                        prop_assert_eq!(queue.remove(*ticket).is_some(), there);
                    }
                }
            }
            let tokens = twin.waiting.iter().map(|(_, w)| w.tokens).sum::<u64>();
            prop_assert_eq!(queue.load(), QueueLoad { requests: twin.waiting.len(), tokens });
        }
    }
}

/// Scenario: a head of each tier; the second one is taken, then one that is no head, then under a step that holds Low back.
/// Guarantees: heads come in the order of service; taking one leaves the others' order; what is no head stays; Low that is
/// held back is no head.
#[test]
fn a_head_may_go_before_the_first() {
    let mut queue = FairQueue::new(&test_policy().queue);
    let tickets = TIERS.map(|tier| queue.push(entry(tier, 100, 0)).unwrap());
    let behind = queue.push(entry(Tier::Medium, 100, 0)).unwrap();
    let order = |queue: &FairQueue<usize>, step| -> Vec<Ticket> {
        queue.heads(0, step).iter().map(|(ticket, _)| *ticket).collect()
    };
    assert_eq!(order(&queue, STEP), tickets);
    assert_eq!(order(&queue, ThrottleStep::ShapeBatch), tickets[..2]);
    assert!(queue.pop_head(behind).is_none());
    assert_eq!(queue.pop_head(tickets[1]).unwrap().tier, Tier::Medium);
    assert_eq!(order(&queue, STEP), [tickets[0], tickets[2], behind], "Medium has had its turn");
    assert_eq!(queue.load(), QueueLoad { requests: 3, tokens: 300 });
}
