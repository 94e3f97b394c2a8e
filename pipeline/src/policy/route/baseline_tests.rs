//! Each baseline beside a twin written down anew, and its own property.

use proptest::prelude::*;

use super::{
    tests::{ask, instance, view},
    *,
};
use crate::policy::{ViewMode, test_policy};

fn config(policy: RoutePolicy) -> RouteConfig {
    RouteConfig { policy, ..test_policy().route }
}

fn choice(fleet: &ClusterView, request: &RouteRequest<'_>, policy: RoutePolicy) -> Placement {
    route(fleet, request, &config(policy)).expect("there is room")
}

/// Leased tokens and requests, running sequences, queued tokens, and tokens cached of a prompt of 400.
type Shape = (u64, u32, u32, u64, u32);

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    prop::collection::vec((0u64..5000, 0u32..200, 0u32..20, 0u64..3000, 0u32..400), 1..7)
}

fn fleet(shapes: &[Shape]) -> (ClusterView, PrefixHits) {
    let of = |(id, shape): (u32, &Shape)| instance(id, (shape.0, shape.1), Some((shape.2, shape.3)));
    let instances = (0..).zip(shapes).map(of).collect();
    let hits = (0..).zip(shapes).map(|(id, shape)| (InstanceId(id), shape.4));
    (view(ViewMode::Exact, instances), PrefixHits::near(hits.filter(|(_, tokens)| *tokens > 0)))
}

proptest! {
    /// Scenario: any fleet, as many turns as it has instances.
    /// Guarantees: round robin chooses each once, whatever it holds and does.
    #[test]
    fn round_robin_takes_each_in_turn(shapes in shapes(), turn in 0u64..1000) {
        let (fleet, hits) = fleet(&shapes);
        let count = shapes.len() as u64;
        let mut chosen: Vec<u32> =
            (turn..turn + count).map(|turn| choice(&fleet, &ask(&hits, turn, &[]), RoutePolicy::RoundRobin).instance.0).collect();
        chosen.sort_unstable();
        prop_assert_eq!(chosen, (0..count as u32).collect::<Vec<_>>());
    }

    /// Scenario: any fleet.
    /// Guarantees: nobody has fewer leased tokens than the choice; among equals the turn decides.
    #[test]
    fn least_outstanding_has_the_fewest_tokens(shapes in shapes(), turn in 0u64..100) {
        let (fleet, hits) = fleet(&shapes);
        let chosen = choice(&fleet, &ask(&hits, turn, &[]), RoutePolicy::LeastOutstandingTokens).instance;
        let count = shapes.len();
        let place = |id: usize| (id + count - turn as usize % count) % count;
        let twin = (0..count).min_by_key(|id| (shapes[*id].0, place(*id)));
        prop_assert_eq!(Some(chosen.0 as usize), twin);
    }

    /// Scenario: any fleet, any turn.
    /// Guarantees: power of two chooses the lighter of the two that the turn draws.
    #[test]
    fn power_of_two_takes_the_lighter_of_two(shapes in shapes(), turn: u64) {
        let (fleet, hits) = fleet(&shapes);
        let chosen = choice(&fleet, &ask(&hits, turn, &[]), RoutePolicy::PowerOfTwo).instance;
        let mut drawn: Vec<u32> = (0..shapes.len() as u32).collect();
        drawn.sort_by_key(|id| draw(turn, InstanceId(*id)));
        let twin = drawn.iter().take(2).copied().reduce(|first, second| {
            if shapes[second as usize].0 < shapes[first as usize].0 { second } else { first }
        });
        prop_assert_eq!(Some(chosen.0), twin);
    }

    /// Scenario: any fleet, a prompt of 400 tokens cached in part, thresholds as configured.
    /// Guarantees: as a twin that goes through the rules one by one: out of balance or hardly cached, to the fewest requests; else to
    /// the longest prefix.
    #[test]
    fn prefix_affinity_follows_its_thresholds(shapes in shapes(), turn in 0u64..100) {
        let (fleet, hits) = fleet(&shapes);
        let chosen = choice(&fleet, &ask(&hits, turn, &[]), RoutePolicy::PrefixAffinity).instance.0 as usize;
        let loads: Vec<u32> = shapes.iter().map(|shape| shape.1).collect();
        let (least, most) = (*loads.iter().min().unwrap(), *loads.iter().max().unwrap());
        let longest = shapes.iter().map(|shape| shape.4.min(399)).max().unwrap();
        let is_uneven = most - least > 64 && f64::from(most) > 1.5 * f64::from(least);
        if is_uneven || longest < 200 {
            prop_assert_eq!(loads[chosen], least);
        } else {
            prop_assert_eq!(shapes[chosen].4.min(399), longest);
            let ties = shapes.iter().filter(|shape| shape.4.min(399) == longest);
            prop_assert_eq!(Some(loads[chosen]), ties.map(|shape| shape.1).min());
        }
    }

    /// Scenario: any fleet.
    /// Guarantees: no instance has a smaller product of new prefill tokens and batch than the choice, by a product written down anew.
    #[test]
    fn the_smallest_product_wins(shapes in shapes(), turn in 0u64..100) {
        let (fleet, hits) = fleet(&shapes);
        let chosen = choice(&fleet, &ask(&hits, turn, &[]), RoutePolicy::PrefillTimesBatch).instance.0 as usize;
        let product = |(leased, requests, running, queued, cached): Shape| {
            let unseen = u64::from(requests.saturating_sub(running));
            let tokens = queued + (unseen * 400).min(leased) + 400 - u64::from(cached.min(399));
            tokens * (u64::from(running) + unseen + 1)
        };
        let least = shapes.iter().map(|shape| product(*shape)).min().unwrap();
        prop_assert_eq!(product(shapes[chosen]), least);
    }
}

/// Scenario: each policy without usable views, and each name.
/// Guarantees: those that read views give way to the safe policy, the others decide as ever; names are those of the configuration.
#[test]
fn without_views_only_leases_count() {
    let (mut fleet, hits) = fleet(&[(900, 3, 1, 0, 399), (100, 1, 1, 0, 0)]);
    fleet.mode = ViewMode::Stale;
    let decided = |policy| choice(&fleet, &ask(&hits, 0, &[]), policy).policy;
    for policy in RoutePolicy::ALL {
        let expected = if policy.needs_views() { RoutePolicy::LeastOutstandingTokens } else { policy };
        assert_eq!(decided(policy), expected);
        assert_eq!(serde_json::to_value(policy).unwrap(), policy.name());
    }
}
