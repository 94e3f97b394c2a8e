//! Tests of routing: reasons, the safe branch, and equality with a twin that tries every instance.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;
use crate::policy::{EngineView, LevelTokens, PrefixHit, ViewMode, test_instance, test_policy};

pub(super) fn instance(id: u32, leased: (u64, u32), engine: Option<(u32, u64)>) -> InstanceView {
    InstanceView {
        leased_tokens: leased.0,
        leased_requests: leased.1,
        engine: engine.map(|(running, queued_prefill_tokens)| EngineView {
            running,
            queued_prefill_tokens,
            blocks_total: 100,
            ..EngineView::default()
        }),
        ..test_instance(id)
    }
}

pub(super) fn ask<'a>(hits: &'a PrefixHits, turn: u64, excluded: &'a [InstanceId]) -> RouteRequest<'a> {
    RouteRequest {
        model: "m",
        variants: &[],
        tier: Tier::High,
        prompt_tokens: 400,
        max_tokens: 100,
        hits,
        turn,
        now: 5_000_000,
        excluded,
        spared: &[],
    }
}

pub(super) fn view(mode: ViewMode, instances: Vec<InstanceView>) -> ClusterView {
    ClusterView { mode, as_of: Some(1_000_000), instances, least_loaded: Vec::new() }
}

fn check(view: &ClusterView, request: &RouteRequest<'_>, expected: Expect) {
    let text = match route(view, request, &test_policy().route) {
        Ok(placement) => format!("{} | {}", placement.instance, placement.reason),
        Err(RouteRejection::NoInstance) => "no instance".to_string(),
        Err(RouteRejection::NoRoom { candidates }) => format!("no room on {} candidates", candidates.len()),
    };
    expected.assert_eq(&text);
}

/// Scenario: a prefix cached on w1; then w1 busier than the hit is worth; then w1 without room.
/// Guarantees: affinity holds, gives way by load, and gives way by room, each with its reason (SPEC C4).
#[test]
fn affinity_gives_way_to_load() {
    let hits = PrefixHits::near([(InstanceId(1), 384)]);
    let idle = vec![instance(0, (0, 0), Some((0, 0))), instance(1, (500, 1), Some((1, 0)))];
    check(
        &view(ViewMode::Exact, idle),
        &ask(&hits, 0, &[]),
        expect![
            "w1 | least_seconds: w1 in 0.070 ± 0.025 s (queue 0.000 + prefill 0.040 + interference 0.030; 384 of 400 tokens cached)"
        ],
    );
    let busy = vec![instance(0, (0, 0), Some((0, 0))), instance(1, (9000, 4), Some((4, 2000)))];
    check(
        &view(ViewMode::Degraded, busy),
        &ask(&hits, 0, &[]),
        expect![
            "w0 | least_seconds: w0 in 1.000 ± 0.500 s (queue 0.000 + prefill 1.000 + interference 0.000; 0 of 400 tokens cached)"
        ],
    );
    let full = vec![instance(0, (0, 0), Some((0, 0))), instance(1, (199_900, 1), Some((1, 0)))];
    check(
        &view(ViewMode::Exact, full),
        &ask(&hits, 0, &[]),
        expect![
            "w0 | least_seconds: w0 in 1.000 ± 0.500 s (queue 0.000 + prefill 1.000 + interference 0.000; 0 of 400 tokens cached); 1 better without room"
        ],
    );
}

/// Scenario: views stale, off, and absent since start.
/// Guarantees: the safe policy decides by leases alone, in turn among equals, and the reason says so (SPEC X5).
#[test]
fn without_views_the_safe_policy_decides() {
    let hits = PrefixHits::near([(InstanceId(1), 384)]);
    let even = vec![instance(0, (500, 1), None), instance(1, (500, 1), None), instance(2, (900, 1), None)];
    let stale = view(ViewMode::Stale, even.clone());
    check(
        &stale,
        &ask(&hits, 0, &[]),
        expect!["w0 | views stale (4000 ms old), safe policy least_outstanding_tokens: 500 tokens in flight on w0"],
    );
    check(
        &stale,
        &ask(&hits, 1, &[]),
        expect!["w1 | views stale (4000 ms old), safe policy least_outstanding_tokens: 500 tokens in flight on w1"],
    );
    let off = ClusterView { as_of: None, ..view(ViewMode::Off, even) };
    check(
        &off,
        &ask(&hits, 0, &[InstanceId(0), InstanceId(1)]),
        expect!["w2 | views off (none yet), safe policy least_outstanding_tokens: 900 tokens in flight on w2"],
    );
    assert_eq!(route(&off, &ask(&hits, 0, &[]), &test_policy().route).unwrap().predicted_seconds, None);
}

/// Scenario: nobody serves the model; everybody is full; one request larger than the bound on an idle instance.
/// Guarantees: the two refusals differ, and a large request can always run alone.
#[test]
fn refusals_are_named() {
    let hits = PrefixHits::default();
    check(&view(ViewMode::Exact, vec![]), &ask(&hits, 0, &[]), expect!["no instance"]);
    let full = view(ViewMode::Exact, vec![instance(0, (200_000, 9), None)]);
    check(&full, &ask(&hits, 0, &[]), expect!["no room on 1 candidates"]);
    let large = RouteRequest { prompt_tokens: 300_000, ..ask(&hits, 0, &[]) };
    assert!(route(&view(ViewMode::Exact, vec![instance(0, (0, 0), None)]), &large, &test_policy().route).is_ok());
}

/// Scenario: ten equal requests one after the other before any engine reports again, a prefix cached on w0.
/// Guarantees: leases not yet reported count, so the burst spreads (DESIGN §7 rules 2 and 7).
#[test]
fn a_burst_does_not_herd() {
    let hits = PrefixHits::near([(InstanceId(0), 384)]);
    let mut fleet = view(ViewMode::Exact, (0..3).map(|id| instance(id, (0, 0), Some((0, 0)))).collect());
    let mut sent = [0; 3];
    for turn in 0..10 {
        let chosen = route(&fleet, &ask(&hits, turn, &[]), &test_policy().route).unwrap().instance;
        let entry = &mut fleet.instances[chosen.0 as usize];
        (entry.leased_tokens, entry.leased_requests) = (entry.leased_tokens + 500, entry.leased_requests + 1);
        sent[chosen.0 as usize] += 1;
    }
    assert!(sent.iter().all(|count| *count >= 3), "{sent:?}");
}

/// Scenario: half of a prompt in L2, at a rate that was measured, then at none, then at one slower than computing; and a rate of
/// prefill whose predictions are known to be right, beside one that nobody has measured.
/// Guarantees: what is held below L1 costs its fetch and no more than computing it; a known rate is preferred to a guess of the same.
#[test]
fn levels_and_uncertainty_are_terms() {
    let half = LevelTokens([100, 200, 0, 0]);
    let hits = PrefixHits::new(vec![PrefixHit { instance: InstanceId(0), tokens: half }]);
    let mut fleet = view(ViewMode::Exact, vec![instance(0, (0, 0), Some((0, 0)))]);
    let cost = |fleet: &ClusterView| route(fleet, &ask(&hits, 0, &[]), &test_policy().route).unwrap().candidates[0];
    fleet.instances[0].fetch.0[1] = Some(0.001);
    let told = cost(&fleet);
    assert_eq!((told.hit_tokens, told.fetch_tokens), (300, 200));
    assert!((told.fetch.seconds - 0.2).abs() < 1e-9 && (told.prefill.seconds - 0.25).abs() < 1e-9, "{told:?}");
    assert!((told.fetch.error - 0.1).abs() < 1e-9 && (told.error_seconds - 0.125f64.hypot(0.1)).abs() < 1e-9);
    assert!((told.compared_seconds - told.total_seconds - 0.5 * told.error_seconds).abs() < 1e-9);
    fleet.instances[0].fetch.0[1] = None;
    assert!((cost(&fleet).fetch.seconds - 0.002).abs() < 1e-9, "the configured rate");
    fleet.instances[0].fetch.0[1] = Some(1.0);
    assert_eq!((cost(&fleet).hit_tokens, cost(&fleet).fetch), (100, Term::default()));

    let engine =
        EngineView { prefill_tokens_per_second: Some(400.0), prefill_error: Some(0.1), ..EngineView::default() };
    let known = InstanceView { engine: Some(engine), ..instance(1, (0, 0), None) };
    let fleet = view(ViewMode::Exact, vec![instance(0, (0, 0), Some((0, 0))), known]);
    let placement = route(&fleet, &ask(&PrefixHits::default(), 0, &[]), &test_policy().route).unwrap();
    assert_eq!(placement.instance, InstanceId(1));
    assert_eq!(placement.candidates[0].total_seconds, placement.candidates[1].total_seconds);
}

/// Scenario: a prompt nobody has cached, on instances whose times differ by less than is known of them, then by more; one of
/// them with part of it cached; pools of different sizes; a cache nobody knows.
/// Guarantees: among equals the least filled cache decides, and says so; neither load nor a hit is given up for it.
#[test]
fn of_equals_the_emptiest_cache_is_chosen() {
    let with = |id, running, cached_blocks| InstanceView {
        cached_blocks,
        ..instance(id, (500 * u64::from(running), running), Some((running, 0)))
    };
    let chosen = |fleet: Vec<InstanceView>, hits: &PrefixHits| {
        route(&view(ViewMode::Exact, fleet), &ask(hits, 0, &[]), &test_policy().route).unwrap().instance.0
    };
    let (none, some) = (PrefixHits::default(), PrefixHits::near([(InstanceId(0), 48)]));
    let even = || vec![with(0, 1, Some(70)), with(1, 3, Some(60)), with(2, 2, Some(90))];
    check(
        &view(ViewMode::Exact, even()),
        &ask(&none, 0, &[]),
        expect![
            "w1 | least_seconds: w1 in 1.090 ± 0.502 s (queue 0.000 + prefill 1.000 + interference 0.090; 0 of 400 tokens cached); 2 cheaper within the error, but with more cached than its 60 blocks"
        ],
    );
    assert_eq!(chosen(even(), &some), 0, "a hit is not given up");
    assert_eq!(chosen(vec![with(0, 1, Some(70)), with(1, 20, Some(60))], &none), 0, "nor is load");
    assert_eq!(
        chosen(vec![with(0, 1, Some(70)), with(1, 3, None), with(2, 2, Some(60))], &none),
        0,
        "one is not known"
    );
    let mut sizes = vec![with(0, 1, Some(70)), with(1, 1, Some(80))];
    sizes[1].engine.as_mut().unwrap().blocks_total = 1000;
    assert_eq!(chosen(sizes, &none), 1, "a share, not a count");
}

prop_compose! {
    fn any_instance()(
        id in 0u32..6, is_ready in prop::bool::weighted(0.8), model in prop::bool::weighted(0.9), leased in 0u64..250_000,
        requests in 0u32..20, engine in prop::option::of((0u32..20, 0u64..5000)), rate in prop::option::of(0.0f64..2000.0),
        error in prop::option::of(0.0f64..2.0), fetch in prop::option::of(0.0f64..0.01),
        cached in prop::option::weighted(0.8, 0u64..300),
    ) -> InstanceView {
        let mut made = instance(id, (leased, requests), engine);
        made.is_ready = is_ready;
        if !model { made.model = "other".into(); }
        if let Some(engine) = made.engine.as_mut() {
            (engine.prefill_tokens_per_second, engine.prefill_error) = (rate, error);
        }
        (made.fetch.0[1], made.cached_blocks) = (fetch, cached);
        made
    }
}

proptest! {
    /// Scenario: any small fleet, any hits, any turn, something excluded.
    /// Guarantees: the choice is ready, of the model, not excluded, has room, and is the emptiest of those with room that cost
    /// what the cheapest does, as far as is known, by a cost written down anew.
    #[test]
    fn choice_equals_brute_force(
        mut instances in prop::collection::vec(any_instance(), 0..6), hits in prop::collection::vec((0u32..6, 0u32..500, 0u32..100), 0..6),
        turn in 0u64..100, excluded in 0u32..8, is_usable: bool,
    ) {
        instances.sort_by_key(|i| i.instance);
        instances.dedup_by_key(|i| i.instance);
        let hits = hits.into_iter().map(|(id, near, l2)| PrefixHit {
            instance: InstanceId(id), tokens: LevelTokens([near, l2, 0, 0]),
        });
        let hits = PrefixHits::new(hits.collect());
        let excluded = [InstanceId(excluded)];
        let request = ask(&hits, turn, &excluded);
        let fleet = view(if is_usable { ViewMode::Exact } else { ViewMode::Stale }, instances);
        // Seconds compared, of them one standard deviation, tokens cached.
        let costs = |i: &InstanceView| {
            let e = i.engine.filter(|_| is_usable);
            let rate = e.and_then(|e| e.prefill_tokens_per_second).filter(|r| *r > 0.0).unwrap_or(400.0);
            let seen = e.map_or(0, |e| e.running + e.waiting);
            let unseen = i.leased_requests.saturating_sub(seen);
            let ahead = e.map_or(0, |e| e.queued_prefill_tokens) + (u64::from(unseen) * 400).min(i.leased_tokens);
            let error = e.filter(|_| rate != 400.0).and_then(|e| e.prefill_error).unwrap_or(0.5);
            let [near, l2, ..] = hits.on(i.instance).0;
            let (near, l2) = if is_usable { (near, l2) } else { (0, 0) };
            let excess = (near + l2).saturating_sub(399);
            let (near, l2) = (near - excess.min(near), l2 - (excess - excess.min(near)));
            let fetch = i.fetch.0[1].unwrap_or(1e-5);
            let (cached, fetch) = if fetch < 1.0 / rate { (near + l2, fetch * f64::from(l2)) } else { (near, 0.0) };
            let prefill = (ahead as f64 + 400.0 - f64::from(cached)) / rate;
            let interference = 0.03 * f64::from(e.map_or(0, |e| e.running) + unseen);
            let variance = (prefill * error).powi(2) + (fetch * 0.5).powi(2) + (interference * 0.5).powi(2);
            (prefill + fetch + interference + 0.5 * variance.sqrt(), variance.sqrt(), cached)
        };
        let fill = |i: &InstanceView| Some(i.cached_blocks? as f64 / if i.engine.is_some() { 100.0 } else { 1.0 });
        let able: Vec<&InstanceView> = fleet.instances.iter()
            .filter(|i| i.is_ready && i.model == "m" && i.instance != excluded[0]).collect();
        let open: Vec<&&InstanceView> = able.iter()
            .filter(|i| i.leased_tokens == 0 || i.leased_tokens + 500 <= 200_000).collect();
        match route(&fleet, &request, &test_policy().route) {
            Ok(placement) => {
                let chosen = open.iter().find(|i| i.instance == placement.instance).expect("chosen among the able");
                prop_assert_eq!(placement.candidates.len(), able.len());
                let least = open.iter().map(|other| costs(other).0).fold(f64::INFINITY, f64::min);
                let is_chosen_by = |cheapest: &InstanceView| {
                    let (seconds, error, cached) = costs(cheapest);
                    let near = open.iter().filter(|other| costs(other).0 <= seconds + 0.5 * error + 1e-9);
                    let alike: Vec<&&&InstanceView> = near.filter(|other| costs(other).2 >= cached).collect();
                    match alike.iter().map(|other| fill(other)).collect::<Option<Vec<f64>>>() {
                        Some(fills) => {
                            let is_alike = alike.iter().any(|other| other.instance == chosen.instance);
                            is_alike && fills.iter().all(|other| fill(chosen).unwrap() <= *other)
                        }
                        None => costs(chosen).0 <= seconds + 1e-9,
                    }
                };
                if is_usable {
                    let mut cheapest = open.iter().filter(|other| costs(other).0 <= least + 1e-9);
                    prop_assert!(cheapest.any(|other| is_chosen_by(other)));
                } else {
                    prop_assert!(open.iter().all(|other| chosen.leased_tokens <= other.leased_tokens));
                }
            }
            Err(RouteRejection::NoInstance) => prop_assert!(able.is_empty()),
            Err(RouteRejection::NoRoom { candidates }) => {
                prop_assert!(open.is_empty());
                prop_assert_eq!(candidates.len(), able.len());
            }
        }
    }
}
