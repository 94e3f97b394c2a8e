//! Routing in a large fleet, beside routing that costs all of it.

use proptest::prelude::*;

use super::{
    tests::{ask, instance, view},
    *,
};
use crate::policy::{LEAST_LOADED, ViewMode, test_policy};

/// A fleet of `count` whose loads and hits are drawn from a seed: most instances busy, some idle, some holding the prefix.
fn fleet(count: u32, seed: u64) -> (ClusterView, PrefixHits) {
    let dice = |id: u32, what: u64| draw(seed.wrapping_mul(31).wrapping_add(what), InstanceId(id));
    let of = |id: u32| {
        let running = (dice(id, 0) % 24) as u32;
        let queued = if dice(id, 1).is_multiple_of(3) { 0 } else { dice(id, 2) % 4000 };
        instance(id, (u64::from(running) * 700 + queued, running), Some((running, queued)))
    };
    let mut fleet = view(ViewMode::Exact, (0..count).map(of).collect());
    if count as usize > LEAST_LOADED {
        let mut order: Vec<_> = fleet.instances.iter().map(|i| (i.leased_tokens, i.instance)).collect();
        order.sort_unstable();
        fleet.least_loaded = order.into_iter().take(LEAST_LOADED).map(|(_, id)| id).collect();
    }
    let holders = (0..count).filter(|id| dice(*id, 3).is_multiple_of(8));
    let hits = holders.map(|id| (InstanceId(id), (dice(id, 4) % 25) as u32 * 16));
    (fleet, PrefixHits::near(hits))
}

fn whole() -> RouteConfig {
    RouteConfig { score_all_max: usize::MAX, ..test_policy().route }
}

/// Scenario: 200 fleets of 1,000 instances, each with a prefix that an eighth of them hold in part.
/// Guarantees: at most 33 of them are costed, and the choice costs on the mean at most a twentieth more than the cheapest of all.
#[test]
fn a_sample_is_nearly_as_good_as_all() {
    let mut ratios = Vec::new();
    for seed in 0..200 {
        let (fleet, hits) = fleet(1000, seed);
        let request = ask(&hits, seed, &[]);
        let sampled = route(&fleet, &request, &test_policy().route).unwrap();
        let all = route(&fleet, &request, &whole()).unwrap();
        assert!(sampled.candidates.len() <= 33, "{}", sampled.candidates.len());
        assert!(sampled.reason.ends_with("of 1000 instances looked at"), "{}", sampled.reason);
        assert_eq!(all.candidates.len(), 1000);
        ratios.push(sampled.candidates[0].compared_seconds / all.candidates[0].compared_seconds);
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    println!("mean cost over the cheapest {mean:.4}, most {:.4}", ratios.iter().copied().fold(0.0, f64::max));
    assert!((1.0..=1.05).contains(&mean), "{mean}");
}

proptest! {
    /// Scenario: ids in rising order, in a fleet and not.
    /// Guarantees: seeking finds what a search finds.
    #[test]
    fn seeking_is_searching(fleet in prop::collection::btree_set(0u32..300, 0..80), ids in prop::collection::btree_set(0u32..300, 0..80)) {
        let fleet = view(ViewMode::Exact, fleet.into_iter().map(|id| instance(id, (0, 0), None)).collect());
        let mut seek = fleet.seek();
        for id in ids {
            prop_assert_eq!(seek.find(InstanceId(id)), fleet.instance(InstanceId(id)));
        }
    }

    /// Scenario: a fleet of any size around the bound, some instances not ready or excluded, leases near their bound.
    /// Guarantees: there is a place among the sample exactly if there is one at all, and it costs the same there; a small fleet is
    /// costed as a whole.
    #[test]
    fn there_is_room_in_the_sample_if_there_is_room(
        count in 60u32..140, seed in 0u64..1000, down in prop::collection::vec(0u32..140, 0..80), most in 1u64..20_000,
        excluded in 0u32..140,
    ) {
        let (mut fleet, hits) = fleet(count, seed);
        for id in down {
            if let Some(instance) = fleet.instances.get_mut(id as usize) { instance.is_ready = false; }
        }
        // As the directory has it: those that are not ready are not in the order.
        let ready = |id: &InstanceId| fleet.instances[id.0 as usize].is_ready;
        fleet.least_loaded = fleet.least_loaded.iter().copied().filter(ready).collect();
        let excluded = [InstanceId(excluded)];
        let request = ask(&hits, seed, &excluded);
        let config = |config: RouteConfig| RouteConfig { lease_tokens_max: most, ..config };
        let sampled = route(&fleet, &request, &config(test_policy().route));
        let all = route(&fleet, &request, &config(whole()));
        match (sampled, all) {
            (Ok(sampled), Ok(all)) => {
                if count <= 64 { prop_assert_eq!(&sampled, &all); }
                let best = all.candidates.iter().find(|c| c.has_room && c.instance == sampled.instance);
                prop_assert!(best.is_some(), "a candidate that the whole fleet has, with the same cost");
                prop_assert_eq!(best.copied(), sampled.candidates.iter().copied().find(|c| c.instance == sampled.instance));
            }
            (Err(RouteRejection::NoInstance), Err(RouteRejection::NoInstance)) => {}
            (Err(RouteRejection::NoRoom { .. }), Err(RouteRejection::NoRoom { .. })) => {}
            (sampled, all) => prop_assert!(false, "{sampled:?} but {all:?}"),
        }
    }
}
