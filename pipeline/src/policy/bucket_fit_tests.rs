//! Tests of borrowing: its bound, its price, and that nobody waits for a plan.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::{
    ids::InstanceId,
    policy::{
        ClusterView, Placement, PrefixHits, RouteConfig, RouteRejection, RouteRequest, Tier, ViewMode, route,
        test_instance, test_policy,
    },
};

/// Instances with ranges cut at `cuts`, in turns, so that some buckets have several.
fn fleet(cuts: &[u32], count: u32) -> ClusterView {
    let mut edges = vec![0];
    edges.extend_from_slice(cuts);
    let seat = |id: u32| {
        let bucket = id as usize % edges.len();
        BucketSeat { plan: 1, from_tokens: edges[bucket], to_tokens: edges.get(bucket + 1).copied(), foreign_tokens: 0 }
    };
    let instance = |id: u32| InstanceView { bucket: Some(seat(id)), ..test_instance(id) };
    ClusterView {
        mode: ViewMode::Exact,
        as_of: Some(0),
        instances: (0..count).map(instance).collect(),
        least_loaded: Vec::new(),
    }
}

static CONFIG: LazyLock<RouteConfig> = LazyLock::new(|| RouteConfig {
    lease_tokens_max: 4000,
    borrow_cost: 1.0,
    error_weight: 0.0,
    ..test_policy().route
});

fn place(view: &ClusterView, prompt_tokens: u32, hits: &PrefixHits) -> Result<Placement, RouteRejection> {
    let request = RouteRequest {
        model: "m",
        variants: &[],
        tier: Tier::High,
        prompt_tokens,
        max_tokens: 100,
        hits,
        turn: 0,
        now: 0,
        excluded: &[],
        spared: &[],
    };
    route(view, &request, &CONFIG)
}

/// Scenario: two buckets cut at 1000; the home of short requests idle, busy, then full; the other's budget used up; the
/// home's instance gone; the views stale.
/// Guarantees: home while it is cheaper; then the other bucket with its price in the reason and out of the prediction; then
/// nothing; anything if nothing of the bucket is ready; the safe policy knows no buckets.
#[test]
fn borrowing_has_a_price_and_a_bound() {
    let (none, mut view) = (PrefixHits::default(), fleet(&[1000], 2));
    let fits = |placement: &Placement| placement.candidates.iter().map(|cost| cost.bucket.fit).collect::<Vec<_>>();
    let home = place(&view, 400, &none).unwrap();
    assert_eq!((home.instance, home.borrowed, fits(&home)), (InstanceId(0), None, vec![Fit::Home, Fit::Borrows]));
    view.instances[0].leased_tokens = 300;
    view.instances[0].leased_requests = 1;
    assert_eq!(
        place(&view, 400, &none).unwrap().instance,
        InstanceId(0),
        "as long as its queue is shorter than the price"
    );
    view.instances[0].leased_tokens = 3700;
    let away = place(&view, 400, &none).unwrap();
    assert_eq!((away.instance, away.borrowed), (InstanceId(1), Some(Borrowed { tokens: 500, tokens_max: 3600 })));
    assert!(away.reason.contains("borrows in another bucket at 1.000 s"), "{}", away.reason);
    assert_eq!(away.predicted_seconds, Some(1.0), "others pay the price");
    view.instances[1].leased_tokens = 3200;
    view.instances[1].bucket.as_mut().unwrap().foreign_tokens = 500;
    assert!(place(&view, 400, &none).is_ok(), "within the share that is always allowed");
    view.instances[1].bucket.as_mut().unwrap().foreign_tokens = 501;
    assert!(matches!(place(&view, 400, &none), Err(RouteRejection::NoRoom { .. })));
    view.instances[0].is_ready = false;
    let free = place(&view, 400, &none).unwrap();
    assert_eq!((free.instance, fits(&free)), (InstanceId(1), vec![Fit::Free]));
    view.instances[0].is_ready = true;
    view.mode = ViewMode::Stale;
    assert_eq!(fits(&place(&view, 400, &none).unwrap()), [Fit::Free; 2]);
}

/// Scenario: a long session whose prefix lies in the short bucket. Guarantees: only its uncached work counts as foreign, and
/// it stays where its prefix is.
#[test]
fn a_cached_prefix_is_no_foreign_work() {
    let view = fleet(&[1000], 2);
    let hits = PrefixHits::near([(InstanceId(0), 2980)]);
    let stays = place(&view, 3000, &hits).unwrap();
    assert_eq!((stays.instance, stays.borrowed.unwrap().tokens), (InstanceId(0), 120));
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrives {
        prompt_tokens: u32,
        hit: (u32, u32),
    },
    /// One of those that run.
    Ends(usize),
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1u32..3800, (0u32..6, 0u32..3800)).prop_map(|(prompt_tokens, hit)| Event::Arrives { prompt_tokens, hit }),
        2 => any::<prop::sample::Index>().prop_map(|index| Event::Ends(index.index(1 << 20))),
    ]
}

/// What runs: instance, lease tokens, foreign tokens.
type Running = Vec<(usize, u64, u64)>;

/// Places from the head of the queue as long as there is room.
fn pump(
    view: &mut ClusterView,
    queue: &mut Vec<(u32, PrefixHits)>,
    running: &mut Running,
) -> Result<(), TestCaseError> {
    while let Some((prompt_tokens, hits)) = queue.first() {
        let prompt_tokens = *prompt_tokens;
        let Ok(placement) = place(view, prompt_tokens, hits) else {
            let is_home = |i: &&InstanceView| i.bucket.unwrap().holds(prompt_tokens);
            for home in view.instances.iter().filter(is_home) {
                let is_full = home.leased_tokens > 0 && home.leased_tokens + u64::from(prompt_tokens) + 100 > 4000;
                prop_assert!(is_full, "waits though {} of its bucket has room", home.instance);
            }
            return Ok(());
        };
        let at = placement.instance.0 as usize;
        let instance = &mut view.instances[at];
        let (tokens, foreign) = (u64::from(prompt_tokens) + 100, placement.borrowed.map_or(0, |b| b.tokens));
        prop_assert_eq!(foreign > 0, !instance.bucket.unwrap().holds(prompt_tokens));
        instance.leased_tokens += tokens;
        instance.leased_requests += 1;
        instance.bucket.as_mut().unwrap().foreign_tokens += foreign;
        running.push((at, tokens, foreign));
        queue.remove(0);
        let placed = &view.instances[at];
        let held = placed.bucket.unwrap().foreign_tokens;
        let is_within = foreign == 0 || held <= 1000 || placed.leased_tokens <= 3600;
        prop_assert!(is_within && held <= 3600, "beyond the budget: {placed:?}");
    }
    Ok(())
}

fn end(view: &mut ClusterView, (at, tokens, foreign): (usize, u64, u64)) {
    let instance = &mut view.instances[at];
    instance.leased_tokens -= tokens;
    instance.leased_requests -= 1;
    instance.bucket.as_mut().unwrap().foreign_tokens -= foreign;
}

proptest! {
    /// Scenario: any cut, any fleet, requests of any length with any cached prefix, ends in any order; a queue in order of
    /// arrival.
    /// Guarantees: foreign work is within its share, or leaves the own bucket its reserve; whoever waits finds no room in its own bucket; and when
    /// nothing arrives any more, everybody is placed (no starvation).
    #[test]
    fn borrowing_is_bounded_and_starves_nobody(
        cuts in prop::sample::subsequence(vec![500u32, 1000, 1500, 2500], 1..=3), count in 4u32..7,
        events in prop::collection::vec(any_event(), 1..80),
    ) {
        let (mut view, mut queue, mut running) = (fleet(&cuts, count), Vec::new(), Running::new());
        for event in events {
            match event {
                Event::Arrives { prompt_tokens, hit: (instance, tokens) } => {
                    queue.push((prompt_tokens, PrefixHits::near([(InstanceId(instance % count), tokens)])));
                }
                Event::Ends(index) if !running.is_empty() => {
                    let over = running.swap_remove(index % running.len());
                    end(&mut view, over);
                }
                Event::Ends(_) => {}
            }
            pump(&mut view, &mut queue, &mut running)?;
        }
        while let Some(over) = running.pop() {
            end(&mut view, over);
            pump(&mut view, &mut queue, &mut running)?;
        }
        prop_assert!(queue.is_empty(), "{} starved", queue.len());
    }
}
