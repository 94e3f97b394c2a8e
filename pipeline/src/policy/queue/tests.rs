//! Tests of the fair queue: shares by weight and between tenants, least slack, no starvation, bounds, equality with a twin
//! that searches a plain list.

use proptest::prelude::*;

use super::*;
use crate::policy::test_policy;

const STEP: ThrottleStep = ThrottleStep::Open;
const TENANTS: [&str; 3] = ["ann", "bob", "eve"];

fn entry(tier: Tier, tokens: u64, since: Micros) -> Waiting<usize> {
    let size = EntrySize { tokens, bytes: 1 };
    Waiting { tier, tenant: "ann".into(), size, since, starts: Starts::default(), item: 0 }
}

fn of(tenant: &str, item: usize, start_by: Option<Micros>) -> Waiting<usize> {
    let starts = Starts { start_by, ..Starts::default() };
    Waiting { tenant: tenant.into(), starts, item, ..entry(Tier::Medium, 100, 0) }
}

/// Scenario: every tier always has something waiting; 1200 entries of 100 tokens are popped before anything ages.
/// Guarantees: tokens are shared 8 : 3 : 1, to within one entry.
#[test]
fn tokens_are_shared_by_weight() {
    let mut queue = FairQueue::new(&QueueConfig { requests_max: 10_000, ..test_policy().queue });
    let mut taken = [0u64; 3];
    for _ in 0..1200 {
        for tier in Tier::ALL {
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

/// Scenario: one tenant floods a tier with long requests, another asks for short ones now and then.
/// Guarantees: both get the same tokens while both wait, whatever the order of arrival; the flood's tag is not shed by
/// running dry for a moment.
#[test]
fn tenants_of_a_tier_share_it_evenly() {
    let config = QueueConfig { requests_max: 10_000, ..test_policy().queue };
    let mut queue = FairQueue::new(&config);
    for item in 0..100 {
        queue.push(Waiting { size: EntrySize { tokens: 400, bytes: 1 }, ..of("flood", item, None) }).unwrap();
    }
    for item in 0..100 {
        queue.push(of("calm", item, None)).unwrap();
    }
    let mut taken = std::collections::BTreeMap::<String, u64>::new();
    for _ in 0..50 {
        let waiting = queue.pop(0, STEP).unwrap();
        *taken.entry(waiting.tenant.to_string()).or_default() += waiting.size.tokens;
    }
    assert!(taken["flood"].abs_diff(taken["calm"]) <= 400, "{taken:?}");
    let mut queue = FairQueue::new(&config);
    for item in 0..3 {
        queue.push(of("calm", item, None)).unwrap();
    }
    for item in 0..2 {
        let one = Waiting { size: EntrySize { tokens: 1000, bytes: 1 }, ..of("flood", item, None) };
        queue.push(one).unwrap();
        if item == 0 {
            let tenants: Vec<_> = (0..2).map(|_| queue.pop(0, STEP).unwrap().tenant.to_string()).collect();
            assert_eq!(tenants, ["calm", "flood"]);
        }
    }
    let tenants: Vec<_> = (0..3).map(|_| queue.pop(0, STEP).unwrap().tenant.to_string()).collect();
    assert_eq!(tenants, ["calm", "calm", "flood"], "it went dry, and its 1000 tokens count all the same");
}

/// Scenario: entries of one tenant with latest starts in another order than they came, and one without; time passes.
/// Guarantees: the least slack goes first, none last; one whose start has passed goes after all that can still make it, and
/// back into the order when it is given more time (SPEC A4 d).
#[test]
fn least_slack_goes_first_and_the_late_last() {
    let mut queue = FairQueue::new(&test_policy().queue);
    let tickets = [None, Some(900), Some(300), Some(600)].map(|start| queue.push(of("ann", 0, start)).unwrap());
    queue.retime(tickets[3], Starts { start_by: Some(100), ..Starts::default() });
    assert_eq!(queue.peek(50, STEP).unwrap().0, tickets[3], "its slack is the least now");
    assert_eq!(queue.peek(400, STEP).unwrap().0, tickets[1], "two are late");
    queue.retime(tickets[2], Starts { start_by: Some(700), ..Starts::default() });
    assert_eq!(
        queue.peek(400, STEP).unwrap().0,
        tickets[2],
        "one has time again: more of it is cached than was thought"
    );
    let mut order = Vec::new();
    while let Some((ticket, _)) = queue.peek(400, STEP) {
        queue.remove(ticket);
        order.push(ticket);
    }
    assert_eq!(order, [tickets[2], tickets[1], tickets[0], tickets[3]]);
}

/// Scenario: two entries are late; the older is not worth a start any more, and later the other is not either.
/// Guarantees: the older holds up nobody while the other is worth one, and both are shown; then the newer goes first.
#[test]
fn what_is_not_worth_a_start_holds_up_nobody() {
    let mut queue = FairQueue::new(&test_policy().queue);
    let worth = |worth_by| {
        let starts = Starts { start_by: Some(100), worth_by: Some(worth_by), ..Starts::default() };
        Waiting { starts, ..of("ann", 0, None) }
    };
    let (older, other) = (queue.push(worth(200)).unwrap(), queue.push(worth(400)).unwrap());
    let mut order = |now| queue.heads(now, STEP).iter().map(|(ticket, _)| *ticket).collect::<Vec<_>>();
    assert_eq!(order(150), [older], "both are late and worth it: the older");
    assert_eq!(order(300), [other, older]);
    assert_eq!(order(500), [other]);
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

/// Scenario: everything in a long queue has waited past the aging bound; Low came first.
/// Guarantees: one grant in four goes by age, the others by weight: High is not served as if there were no tiers.
#[test]
fn a_queue_of_aged_entries_is_still_shared_by_weight() {
    let mut queue = FairQueue::new(&test_policy().queue);
    for tier in [Tier::Low, Tier::High] {
        for _ in 0..100 {
            queue.push(entry(tier, 100, 0)).unwrap();
        }
    }
    let low = (0..80).filter(|_| queue.pop(60_000_000, STEP).unwrap().tier == Tier::Low).count();
    assert_eq!(low, 20);
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

/// Scenario: requests, tokens and bytes up to their bounds, one request larger than two of them.
/// Guarantees: the queue gives back what does not fit, keeps exact accounts, and an empty queue takes anything.
#[test]
fn bounds_hold_and_accounts_are_exact() {
    let bytes_max = ByteSize(50);
    let config = QueueConfig { requests_max: 3, tokens_max: 100, bytes_max, ..test_policy().queue };
    let mut queue = FairQueue::new(&config);
    let sized = |tokens, bytes| Waiting { size: EntrySize { tokens, bytes }, ..entry(Tier::High, 0, 0) };
    let huge = queue.push(sized(1000, 1000)).unwrap();
    assert!(queue.push(sized(1, 1)).is_err());
    assert_eq!(queue.remove(huge).unwrap().size.tokens, 1000);
    assert!(queue.remove(huge).is_none());
    queue.push(sized(60, 10)).unwrap();
    assert!(queue.push(sized(41, 1)).is_err(), "tokens");
    assert!(queue.push(sized(1, 41)).is_err(), "bytes");
    queue.push(sized(40, 40)).unwrap();
    queue.push(sized(0, 0)).unwrap();
    assert!(queue.push(sized(0, 0)).is_err(), "requests");
    assert_eq!(queue.load(), QueueLoad { requests: 3, tokens: 100, bytes: 50 });
}

/// Scenario: ten thousand tenants ask for one thing each, and a few for more than their share.
/// Guarantees: what is remembered of tenants that wait for nothing is bounded.
#[test]
fn tenants_that_left_are_forgotten() {
    let mut queue = FairQueue::new(&test_policy().queue);
    for number in 0..10_000 {
        queue.push(of(&format!("tenant {number}"), number, None)).unwrap();
        queue.pop(0, STEP).unwrap();
    }
    assert!(queue.lanes[1].remembered() <= IDLE_MAX + 1, "{}", queue.lanes[1].remembered());
}

/// The rules, read off a plain list.
#[derive(Default)]
struct Twin {
    waiting: Vec<(usize, Waiting<usize>)>,
    tags: [u64; 3],
    floor: u64,
    tenant_tags: [[u64; 3]; 3],
    tenant_floors: [u64; 3],
    since_aged: u32,
}

fn tenant_of(waiting: &Waiting<usize>) -> usize {
    TENANTS.iter().position(|name| **name == *waiting.tenant).unwrap()
}

impl Twin {
    fn is_late(waiting: &Waiting<usize>, late: &[usize]) -> bool {
        late.contains(&waiting.item)
    }

    /// Lifts the tags of a tier and a tenant that come to wait.
    fn enter(&mut self, waiting: &Waiting<usize>, late: &[usize]) {
        let (lane, tenant) = (lane_of(waiting.tier), tenant_of(waiting));
        let others = || self.waiting.iter().filter(|(_, w)| w.item != waiting.item && !Self::is_late(w, late));
        if !others().any(|(_, w)| w.tier == waiting.tier) {
            self.tags[lane] = self.tags[lane].max(self.floor);
        }
        if !others().any(|(_, w)| w.tier == waiting.tier && tenant_of(w) == tenant) {
            self.tenant_tags[lane][tenant] = self.tenant_tags[lane][tenant].max(self.tenant_floors[lane]);
        }
    }

    fn next(&self, now: Micros, step: ThrottleStep, late: &[usize]) -> Option<usize> {
        let live = || self.waiting.iter().filter(|(_, w)| !Self::is_late(w, late));
        let oldest = live().min_by_key(|(id, _)| *id);
        if let Some((_, waiting)) = oldest
            && self.since_aged >= 3
            && now - waiting.since >= 10_000_000
        {
            return Some(waiting.item);
        }
        let others = live().any(|(_, w)| w.tier != Tier::Low);
        let held = |w: &Waiting<usize>| w.tier == Tier::Low && others && step >= ThrottleStep::ShapeBatch;
        let key = |(id, w): &(usize, Waiting<usize>)| {
            let (lane, tenant) = (lane_of(w.tier), tenant_of(w));
            let by_tenant = (self.tenant_tags[lane][tenant], tenant);
            (self.tags[lane], lane, by_tenant, w.starts.start_by.unwrap_or(Micros::MAX), *id)
        };
        let best = live().filter(|(_, w)| !held(w)).min_by_key(|entry| key(entry));
        let hopeless = |w: &Waiting<usize>| w.starts.worth_by.is_some_and(|by| by < now);
        let late = || {
            self.waiting.iter().filter(|(_, w)| Self::is_late(w, late)).min_by_key(|(id, w)| {
                let id = *id as i64;
                (hopeless(w), if hopeless(w) { -id } else { id })
            })
        };
        best.or_else(late).map(|(_, w)| w.item)
    }

    fn take(&mut self, item: usize, now: Micros, late: &[usize]) {
        let live: Vec<_> = self.waiting.iter().filter(|(_, w)| !Self::is_late(w, late)).cloned().collect();
        let oldest = live.iter().min_by_key(|(id, _)| *id);
        let is_by_age = oldest.is_some_and(|(_, w)| w.item == item && now - w.since >= 10_000_000);
        self.since_aged = if is_by_age { 0 } else { self.since_aged + 1 };
        let place = self.waiting.iter().position(|(_, w)| w.item == item).unwrap();
        let (_, waiting) = self.waiting.remove(place);
        let (lane, tenant) = (lane_of(waiting.tier), tenant_of(&waiting));
        let least = live.iter().map(|(_, w)| self.tags[lane_of(w.tier)]).min().unwrap_or(0);
        self.floor = self.floor.max(least);
        // Weights 8, 3, 1: tokens / weight, times 24.
        self.tags[lane] = self.tags[lane].max(self.floor) + waiting.size.tokens * [3, 8, 24][lane];
        let mine = live.iter().filter(|(_, w)| w.tier == waiting.tier);
        let least = mine.map(|(_, w)| self.tenant_tags[lane][tenant_of(w)]).min().unwrap_or(0);
        self.tenant_floors[lane] = self.tenant_floors[lane].max(least);
        let tag = &mut self.tenant_tags[lane][tenant];
        *tag = (*tag).max(self.tenant_floors[lane]) + waiting.size.tokens;
    }
}

/// Until the latest start, and from it until the latest that is worth it.
type Slack = (i64, Option<i64>);

/// When an entry must start that came with such a slack, and when it is not worth it any more.
fn starts(now: Micros, slack: Option<Slack>) -> Starts {
    let start_by = slack.map(|(start, _)| now + start);
    let worth_by = slack.and_then(|(start, more)| Some(now + start + more?));
    Starts { start_by, worth_by, ..Starts::default() }
}

#[derive(Debug, Clone)]
enum Act {
    Push { tier: usize, tenant: usize, tokens: u64, slack: Option<Slack> },
    Pop { step: usize },
    Remove { which: usize },
    Retime { which: usize, slack: Option<Slack> },
}

fn acts() -> impl Strategy<Value = Vec<(i64, Act)>> {
    let slack = || prop::option::of((0i64..15_000_000, prop::option::of(0i64..5_000_000)));
    let act = prop_oneof![
        4 => (0usize..3, 0usize..3, 1u64..5000, slack())
            .prop_map(|(tier, tenant, tokens, slack)| Act::Push { tier, tenant, tokens, slack }),
        3 => (0usize..6).prop_map(|step| Act::Pop { step }),
        1 => any::<usize>().prop_map(|which| Act::Remove { which }),
        1 => (any::<usize>(), slack()).prop_map(|(which, slack)| Act::Retime { which, slack }),
    ];
    prop::collection::vec((0i64..3_000_000, act), 1..200)
}

proptest! {
    /// Scenario: pushes, pops, removals and changes of slack in any order while time passes, three tenants in three tiers.
    /// Guarantees: the same entries in the same order as the twin; accounts equal the sum of what waits; heads begin with
    /// the next entry and hold one of a tier and tenant.
    #[test]
    fn order_equals_the_twin(acts in acts()) {
        let mut queue = FairQueue::new(&test_policy().queue);
        let mut twin = Twin { since_aged: 4, ..Twin::default() };
        let mut late: Vec<usize> = Vec::new();
        let (mut now, mut tickets) = (0, Vec::<Ticket>::new());
        for (gap, act) in acts {
            now += gap;
            match act {
                Act::Push { tier, tenant, tokens, slack } => {
                    let waiting = Waiting {
                        tier: Tier::ALL[tier],
                        tenant: TENANTS[tenant].into(),
                        size: EntrySize { tokens, bytes: tokens * 2 },
                        since: now,
                        starts: starts(now, slack),
                        item: tickets.len(),
                    };
                    twin.enter(&waiting, &late);
                    twin.waiting.push((tickets.len(), waiting.clone()));
                    tickets.push(queue.push(waiting).unwrap());
                }
                Act::Pop { step } => {
                    let step = ThrottleStep::ALL[step];
                    let passed = |w: &&(usize, Waiting<usize>)| w.1.starts.start_by.is_some_and(|start| start < now);
                    late.extend(twin.waiting.iter().filter(passed).map(|(_, w)| w.item));
                    let heads: Vec<_> =
                        queue.heads(now, step).iter().map(|(_, w)| (w.item, w.tier, w.tenant.clone())).collect();
                    let expected = twin.next(now, step, &late);
                    prop_assert_eq!(heads.first().map(|(item, ..)| *item), expected);
                    prop_assert_eq!(queue.pop(now, step).map(|w| w.item), expected);
                    if let Some(item) = expected {
                        twin.take(item, now, &late);
                    }
                }
                Act::Remove { which } if !tickets.is_empty() => {
                    let item = which % tickets.len();
                    let there = twin.waiting.iter().any(|(_, w)| w.item == item);
                    twin.waiting.retain(|(_, w)| w.item != item);
                    prop_assert_eq!(queue.remove(tickets[item]).is_some(), there);
                }
                Act::Retime { which, slack } if !tickets.is_empty() => {
                    let (item, new) = (which % tickets.len(), starts(now, slack));
                    queue.retime(tickets[item], new);
                    let place = twin.waiting.iter().position(|(_, w)| w.item == item);
                    if let Some(place) = place
                        && let waiting = &mut twin.waiting[place].1
                        && waiting.starts != new
                    {
                        waiting.starts = new;
                        late.retain(|other| *other != item);
                        let waiting = twin.waiting[place].1.clone();
                        twin.enter(&waiting, &late);
                    }
                }
                _ => {}
            }
            let mut load = QueueLoad::default();
            for (_, waiting) in &twin.waiting {
                load = load.with(waiting.size);
            }
            prop_assert_eq!(queue.load(), load);
        }
    }
}

/// Scenario: a head of each tier; the second one is taken, then one that is gone, then under a step that holds Low back.
/// Guarantees: heads come in the order of service, one a tenant; taking one leaves the others' order; Low that is held back
/// is no head.
#[test]
fn a_head_may_go_before_the_first() {
    let mut queue = FairQueue::new(&test_policy().queue);
    let tickets = Tier::ALL.map(|tier| queue.push(entry(tier, 100, 0)).unwrap());
    let behind = queue.push(entry(Tier::Medium, 100, 0)).unwrap();
    let other = queue.push(of("bob", 0, None)).unwrap();
    let order = |queue: &mut FairQueue<usize>, step| -> Vec<Ticket> {
        queue.heads(0, step).iter().map(|(ticket, _)| *ticket).collect()
    };
    let [high, medium, low] = tickets;
    assert_eq!(order(&mut queue, STEP), [high, medium, other, low]);
    assert_eq!(order(&mut queue, ThrottleStep::ShapeBatch), [high, medium, other]);
    assert_eq!(queue.pop_head(medium, 0).unwrap().tier, Tier::Medium);
    assert!(queue.pop_head(medium, 0).is_none());
    assert_eq!(order(&mut queue, STEP), [high, low, other, behind], "Medium has had its turn, and so has its tenant");
    assert_eq!(queue.load(), QueueLoad { requests: 4, tokens: 400, bytes: 4 });
}
