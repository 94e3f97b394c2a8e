//! Tests of stepped throttling: reasons for each change, bounds on the number of changes, equality with a twin.

use proptest::prelude::*;

use super::*;
use crate::policy::{
    Admission, AdmitRequest, AdmitState, EngineView, InstanceView, ViewMode, admit, test_instance, test_policy,
};

const SECOND: Micros = 1_000_000;

fn run(signal: impl IntoIterator<Item = (Micros, Option<f64>)>) -> Vec<(Micros, ThrottleStep)> {
    let config = test_policy().throttle;
    let mut state = ThrottleState { step: ThrottleStep::Open, since: -3600 * SECOND };
    let mut changes = Vec::new();
    for (now, level) in signal {
        let next = next_step(state, level, now, &config);
        if next != state {
            changes.push((now, next.step));
        }
        state = next;
    }
    changes
}

/// Scenario: saturation goes straight to 2.0 and stays, then straight to 0.
/// Guarantees: steps tighten one by one, a dwell time apart, and loosen likewise: never one cut for everybody.
#[test]
fn steps_go_one_by_one() {
    let up = (0..20).map(|s| (s * SECOND, Some(2.0)));
    let down = (20..40).map(|s| (s * SECOND, Some(0.0)));
    let names: Vec<String> = run(up.chain(down)).iter().map(|(t, s)| format!("{}s {}", t / SECOND, s.name())).collect();
    expect_test::expect![
        "0s shape_batch, 2s throttle_low, 4s throttle_medium, 6s shrink, 8s throttle_high, 20s shrink, 22s throttle_medium, 24s throttle_low, 26s shape_batch, 28s open"
    ]
    .assert_eq(&names.join(", "));
}

/// Scenario: a square wave between a step's exit and the next one's entry, slower and faster than the dwell time.
/// Guarantees: one change and no more: hysteresis swallows the wave (SPEC A2).
#[test]
fn a_square_wave_inside_the_band_does_not_oscillate() {
    for half_period_ms in [100, 1000, 5000] {
        let wave = (0..6000).map(|tick: i64| {
            let now = tick * 100_000;
            let is_high = (now / 1000 / half_period_ms) % 2 == 0;
            (now, Some(if is_high { 0.87 } else { 0.71 }))
        });
        assert_eq!(run(wave), vec![(0, ThrottleStep::ShapeBatch)], "half period {half_period_ms} ms");
    }
}

/// Scenario: the signal is lost while a step is in force.
/// Guarantees: the step stays: loss of signal never adds capacity (DESIGN §7 rule 4).
#[test]
fn a_lost_signal_changes_nothing() {
    let signal = (0..100).map(|s| (s * SECOND, (s < 2).then_some(0.9)));
    assert_eq!(run(signal), vec![(0, ThrottleStep::ShapeBatch)]);
}

fn view(mode: ViewMode, engine: Option<EngineView>) -> ClusterView {
    let instance = InstanceView { leased_tokens: 50_000, leased_requests: 3, engine, ..test_instance(0) };
    ClusterView { mode, as_of: Some(0), instances: vec![instance], least_loaded: Vec::new() }
}

/// Scenario: leases at a quarter, blocks at a half, queues at their full seconds and more; views usable, stale, and no engine
/// figures.
/// Guarantees: the largest known share counts; what the views cannot say is left out, and leases always count.
#[test]
fn saturation_is_the_largest_known_share() {
    let policy = test_policy();
    let mut engine = EngineView {
        reported_at: 0,
        running: 3,
        waiting: 0,
        queued_prefill_tokens: 0,
        context_tokens: 0,
        blocks_used: 50,
        blocks_total: 100,
        ..EngineView::default()
    };
    let of = |view: &ClusterView| saturation(view, &Backlog::default(), &policy);
    let leased = Some(0.25 * policy.throttle.leased_full);
    assert_eq!(of(&view(ViewMode::Exact, Some(engine))), Some(0.5));
    assert_eq!(of(&view(ViewMode::Exact, None)), leased);
    assert_eq!(of(&view(ViewMode::Stale, Some(engine))), leased);
    engine.queued_prefill_tokens = 12_000;
    assert_eq!(of(&view(ViewMode::Degraded, Some(engine))), Some(1.0));
    let mut down = view(ViewMode::Exact, Some(engine));
    down.instances[0].is_ready = false;
    assert_eq!(of(&down), None);
    let queue = QueueLoad { requests: 4, tokens: 60_000, bytes: 1 };
    let backlog = |drain_tokens_per_second| Backlog { queue, drain_tokens_per_second };
    let stale = view(ViewMode::Stale, None);
    assert_eq!(saturation(&stale, &backlog(Some(1000.0)), &policy), Some(2.0), "a minute, with 30 s as full");
    assert_eq!(saturation(&stale, &backlog(None), &policy), leased, "an unknown drain says nothing");
}

/// Scenario: a step entered below its exit, thresholds out of order, no dwell.
/// Guarantees: validation names the key, the value and what would be right.
#[test]
fn validation_names_key_and_value() {
    let mut config = test_policy().throttle;
    config.shrink = Threshold { enter: 0.5, exit: 0.6 };
    expect_test::expect!["policy.throttle.shrink = { enter = 0.5, exit = 0.6 }: expected 0 < exit < enter"]
        .assert_eq(&config.validate().unwrap_err().to_string());
    config.shrink = Threshold { enter: 0.5, exit: 0.4 };
    expect_test::expect![
        "policy.throttle.shrink = { enter = 0.5, exit = 0.4 }: expected thresholds not below those of the step before"
    ]
    .assert_eq(&config.validate().unwrap_err().to_string());
}

proptest! {
    /// Scenario: a square wave of any period, duty, levels and phase drives the throttle for five minutes, and a request of each
    /// tier arrives at every tick.
    /// Guarantees: no two changes are nearer than the dwell time, so that there are at most T / dwell + 1 of them; at no tick is
    /// a better tier refused while a worse one is admitted, so that a better tier is never served less often (SPEC A2).
    #[test]
    fn a_square_wave_neither_chatters_nor_inverts_priority(
        (period_ms, duty) in (20i64..60_000, 0.05f64..0.95), (low, high) in (0.0f64..1.4, 0.0f64..1.4), phase in 0i64..60_000,
    ) {
        let policy = test_policy();
        let dwell = policy.throttle.dwell.as_micros() as Micros;
        let mut state = ThrottleState { step: ThrottleStep::Open, since: -3600 * SECOND };
        let (mut changes, mut served) = (Vec::new(), [0u32; 3]);
        for tick in 0..6000 {
            let now = tick * 50_000;
            let at = (now / 1000 + phase) % period_ms;
            let level = if (at as f64) < duty * period_ms as f64 { high } else { low };
            let next = next_step(state, Some(level), now, &policy.throttle);
            if next.step != state.step {
                changes.push(now);
            }
            state = next;
            let is_served = Tier::ALL.map(|tier| {
                let request = AdmitRequest { tier, prompt_tokens: 100, max_tokens: 100, bytes: 0 };
                let entry = AdmitState {
                    step: state.step,
                    serving: 1,
                    has_room: true,
                    queue: QueueLoad::default(),
                    saturation: Some(level),
                    drain_tokens_per_second: None,
                };
                !matches!(admit(&request, &entry, &policy), Admission::Reject { .. })
            });
            prop_assert!(is_served[0] >= is_served[1] && is_served[1] >= is_served[2], "{is_served:?} in {:?}", state.step);
            served.iter_mut().zip(is_served).for_each(|(count, is_served)| *count += u32::from(is_served));
        }
        prop_assert!(changes.windows(2).all(|pair| pair[1] - pair[0] >= dwell), "{changes:?}");
        prop_assert!(changes.len() as i64 <= 300 * SECOND / dwell + 1);
        prop_assert!(served[0] >= served[1] && served[1] >= served[2], "{served:?}");
    }

    /// Scenario: any signal, gaps included.
    /// Guarantees: at most one change per dwell time, each to a neighbouring step; equal to a twin that reads the rules
    /// off a table of numbers.
    #[test]
    fn changes_are_bounded_and_equal_the_twin(
        signal in prop::collection::vec((1i64..3_000_000, prop::option::of(0.0f64..1.5)), 1..200)
    ) {
        let config = test_policy().throttle;
        let bands = [(0.80, 0.70), (0.88, 0.78), (0.94, 0.84), (0.98, 0.88), (1.20, 1.00)];
        let mut state = ThrottleState { step: ThrottleStep::Open, since: 0 };
        let (mut now, mut twin, mut changed_at) = (0, 0usize, 0);
        for (gap, level) in signal {
            now += gap;
            let next = next_step(state, level, now, &config);
            if next.step != state.step {
                prop_assert_eq!((next.step as i32 - state.step as i32).abs(), 1);
                prop_assert!(now - state.since >= 2 * SECOND);
            }
            state = next;
            if let Some(level) = level && now - changed_at >= 2 * SECOND {
                if twin < 5 && level >= bands[twin].0 {
                    (twin, changed_at) = (twin + 1, now);
                } else if twin > 0 && level < bands[twin - 1].1 {
                    (twin, changed_at) = (twin - 1, now);
                }
            }
            prop_assert_eq!(state.step as usize, twin);
        }
    }
}
