//! Tests of the outlook: the chance against a simulation by hand, monotonicity, what is not known.

use operators::LinearFit;
use proptest::prelude::*;

use super::*;
use crate::{
    config::Mode,
    ids::InstanceId,
    policy::{
        BucketFit, DeadlineConfig, Judgement, OFFSET_MAX, PromptDue, QueueStep, Refused, SLOPE_MIN, SloSeen, Term,
        ViewMode, judge, test_instance, test_policy,
    },
};

const SECOND: i64 = 1_000_000;
const CHANCES: Chances = Chances { start: 0.9, worth: 0.6, alone: 0.4, likely: 0.5, refuse: 0.05, displaced_max: 2.0 };

/// 10 ms a step and 0.1 ms a prompt token; decode steps of 20 ms.
fn service() -> ServiceTime {
    ServiceTime {
        prefill: Some(LinearFit {
            samples: 0,
            coefficients: [0.010, 0.0256, 0.0, 0.0],
            covariance: [[0.0; 4]; 4],
            noise: 1e-8,
        }),
        decode: Some(LinearFit { samples: 0, coefficients: [0.020, 0.0, 0.0], covariance: [[0.0; 3]; 3], noise: 1e-8 }),
        chunk_tokens: 512,
    }
}

fn view(count: u32) -> ClusterView {
    let instances = (0..count).map(test_instance).collect();
    ClusterView { mode: ViewMode::Exact, as_of: Some(0), instances, least_loaded: Vec::new() }
}

fn cost(id: u32, hit_tokens: u32, queue_seconds: f64) -> CandidateCost {
    let none = Term::default();
    CandidateCost {
        instance: InstanceId(id),
        hit_tokens,
        fetch_tokens: 0,
        queue: Term { seconds: queue_seconds, ..none },
        prefill: none,
        fetch: none,
        interference: none,
        total_seconds: queue_seconds,
        error_seconds: 0.0,
        compared_seconds: queue_seconds,
        bucket: BucketFit::FREE,
        has_room: true,
    }
}

fn forecast(lengths: Vec<u32>) -> Forecast {
    Forecast {
        lengths: [lengths.clone(), lengths.clone(), lengths],
        services: vec![("default".into(), service())],
        ..Forecast::default()
    }
}

fn due(first_seconds: i64, whole_seconds: i64) -> Deadline {
    Deadline {
        first_token: first_seconds * SECOND,
        whole: Some(whole_seconds * SECOND),
        per_token_us: None,
        is_stated: true,
    }
}

fn ask<'a>(deadline: &'a Deadline, candidates: &'a [CandidateCost], view: &'a ClusterView) -> OutlookRequest<'a> {
    OutlookRequest {
        now: 0,
        deadline,
        tier: Tier::High,
        prompt_tokens: 1000,
        max_tokens: 1000,
        sequences: 1,
        candidates,
        view,
        wait: Wait::None,
        best: 0.0,
    }
}

/// Scenario: answers of 101 tokens, four of which five more would be too many; budgets around the 2.12 s it takes.
/// Guarantees: the times are those of the fits; the latest start is what the budget leaves; half of the lengths too long is
/// half a chance.
#[test]
fn times_chance_and_latest_start() {
    let (view, candidates) = (view(1), [cost(0, 0, 0.0)]);
    let sharp = Skill { first: Ratio { mean: 0.0, variance: 1e-8 }, whole: Ratio { mean: 0.0, variance: 1e-8 } };
    let of = |deadline: &Deadline, lengths| {
        let forecast = Forecast { skill: sharp, ..forecast(lengths) };
        outlook(&ask(deadline, &candidates, &view), &forecast, CHANCES).unwrap()
    };
    // Two chunks: 2 × 10 ms + 1000 × 0.1 ms.
    let easy = of(&due(5, 10), vec![101; 8]);
    assert!((easy.first_token_seconds - 0.12).abs() < 1e-6 && (easy.whole_seconds - 2.12).abs() < 1e-6, "{easy:?}");
    assert!(easy.meet > 0.999);
    assert!((easy.start_by as f64 / 1e6 - (5.0 - 0.12)).abs() < 0.01, "the first token is the nearer: {easy:?}");
    let whole = of(&due(9, 10), vec![101; 8]);
    assert!((whole.start_by as f64 / 1e6 - (10.0 - 2.12)).abs() < 0.01, "{whole:?}");
    let half = of(&due(1, 3), vec![50, 50, 50, 50, 500, 500, 500, 500]);
    assert!((half.meet - 0.5).abs() < 0.01 && half.start_by < 0, "no start is worth it: {half:?}");
    let most = of(&due(1, 3), vec![50, 50, 50, 50, 50, 50, 500, 500]);
    assert!((most.meet - 0.75).abs() < 0.01 && most.start_by > 0, "nine tenths of its chance are left for a while");
    let after = |best: f64| {
        let deadline = due(1, 3);
        let request = OutlookRequest { best, ..ask(&deadline, &candidates, &view) };
        let forecast = Forecast { skill: sharp, ..forecast(vec![50, 50, 50, 50, 50, 50, 500, 500]) };
        outlook(&request, &forecast, CHANCES).unwrap()
    };
    assert!(after(0.8).start_by > 0 && after(1.0).start_by < 0, "it has lost a quarter of its chance already");
    assert!(of(&due(1, 2), vec![101; 8]).meet < 0.01);
}

/// Scenario: half of the lengths too long, a chance worth less than is asked for; a quarter; none, for a while.
/// Guarantees: the latest start that is worth it comes no earlier than the latest start, and is past where none is.
#[test]
fn the_latest_start_that_is_worth_it() {
    let (view, candidates) = (view(1), [cost(0, 0, 0.0)]);
    let of = |deadline: &Deadline, lengths| {
        let sharp = Skill { first: Ratio { mean: 0.0, variance: 1e-8 }, whole: Ratio { mean: 0.0, variance: 1e-8 } };
        outlook(&ask(deadline, &candidates, &view), &Forecast { skill: sharp, ..forecast(lengths) }, CHANCES).unwrap()
    };
    let half = of(&due(1, 3), vec![50, 50, 50, 50, 500, 500, 500, 500]);
    assert!(half.worth_by < Some(0) && half.alone_by > Some(0), "half is worth a start where nothing runs: {half:?}");
    let few = of(&due(1, 3), vec![50, 50, 500, 500, 500, 500, 500, 500]);
    assert!(few.alone_by < Some(0), "{few:?}");
    let most = of(&due(2, 3), vec![50, 50, 50, 50, 50, 50, 100, 100]);
    assert!(most.worth_by > Some(most.start_by) && most.start_by > 0, "three quarters are still worth it: {most:?}");
    let sure = of(&due(5, 10), vec![101; 8]);
    assert!((sure.worth_by.unwrap() - sure.start_by).abs() < 10_000, "{sure:?}");
}

/// Scenario: half of the lengths too long; of such chances nine in ten have come true lately, or one in ten.
/// Guarantees: the chance is what came true, and so is what makes a start worth it; the latest start with a good chance is that of the
/// predicted times all the same, unless even a start now is not worth it.
#[test]
fn a_chance_is_what_came_true() {
    let (view, candidates) = (view(1), [cost(0, 0, 0.0)]);
    let sharp = Skill { first: Ratio { mean: 0.0, variance: 1e-8 }, whole: Ratio { mean: 0.0, variance: 1e-8 } };
    let of = |calibration| {
        let lengths = vec![50, 50, 50, 50, 500, 500, 500, 500];
        let forecast = Forecast { skill: sharp, calibration, ..forecast(lengths) };
        outlook(&ask(&due(1, 3), &candidates, &view), &forecast, Chances { worth: 0.2, ..CHANCES }).unwrap()
    };
    let plain = of(Calibration::default());
    let (better, worse) = (of(Calibration { offset: 2.2, slope: 0.5 }), of(Calibration { offset: -2.2, slope: 0.5 }));
    assert!((better.meet - 0.9).abs() < 0.01 && (worse.meet - 0.1).abs() < 0.01, "{better:?} {worse:?}");
    assert!(plain.start_by > 0 && better.start_by == plain.start_by && better.best == plain.best, "{better:?}");
    assert!(better.worth_by >= plain.worth_by && worse.worth_by < Some(0) && worse.start_by < 0, "{worse:?}");
    assert_eq!((better.engine_by, worse.engine_by), (plain.start_by, plain.start_by));
}

/// Scenario: a request whose deadline has passed, or nearly so, of times that cannot be told well; outcomes have had nothing to do with
/// chances lately, so that their fit is flat and high.
/// Guarantees: it has no chance and no start that is worth it, here or where nothing runs, so that it is refused and does not wait on.
#[test]
fn what_is_past_has_no_chance() {
    let (view, candidates) = (view(1), [cost(0, 0, 0.0)]);
    let vague = Skill { first: Ratio { mean: 0.0, variance: 0.5 }, whole: Ratio { mean: 0.0, variance: 0.5 } };
    let flat = Calibration::new(OFFSET_MAX, SLOPE_MIN).unwrap();
    let forecast = Forecast { skill: vague, calibration: flat, ..forecast(vec![50]) };
    let deadline = due(1, 3);
    let at =
        |now: i64| outlook(&OutlookRequest { now, ..ask(&deadline, &candidates, &view) }, &forecast, CHANCES).unwrap();
    assert!(at(0).meet > 0.9);
    for now in [3 * SECOND, 3 * SECOND + 1, 20 * SECOND] {
        let past = at(now);
        assert_eq!((past.meet, past.is_met_alone), (0.0, false), "{past:?}");
        let starts = [Some(past.start_by), past.worth_by, past.alone_by];
        assert!(starts.iter().all(|by| by.is_some_and(|by| by < now)), "{past:?}");
        let seen = SloSeen { deadline, outlook: Some(past), is_trial: false };
        assert!(matches!(judge(&seen, now, (Tier::High, 0.5), &test_policy().deadline), Judgement::Refuse { .. }));
    }
}

/// Scenario: nothing can be predicted of a request, before and after the time that it stated; of one that goes by its tier's target; of
/// one that is let through to see; with deadlines off.
/// Guarantees: only the first is refused, and only once its time is over, whatever its lot.
#[test]
fn what_is_past_is_missed_without_prediction() {
    let config = test_policy().deadline;
    let seen = SloSeen { deadline: due(1, 3), outlook: None, is_trial: false };
    let is_refused = |seen: SloSeen, now: i64, config: &DeadlineConfig| {
        matches!(judge(&seen, now, (Tier::High, 0.0), config), Judgement::Refuse { .. })
    };
    assert!(!is_refused(seen, seen.deadline.first_token, &config));
    let late = seen.deadline.first_token + 1;
    assert!(is_refused(seen, late, &config));
    let target = SloSeen { deadline: Deadline { is_stated: false, ..seen.deadline }, ..seen };
    assert!(!is_refused(target, late, &config));
    assert!(!is_refused(SloSeen { is_trial: true, ..seen }, late, &config));
    assert!(!is_refused(seen, late, &DeadlineConfig { mode: Mode::Off, ..config.clone() }));
}

/// Scenario: twenty short requests were refused lately. A long one comes, with time enough; a short one; a long one that stated no
/// deadline; the first where that many refusals are allowed; a middling one, sure to make it, then with a third of a chance.
/// Guarantees: the first has no latest start, here or where nothing runs, while its chance is told as it is; the others have theirs, but
/// for the last: it serves less than those that are refused for it.
#[test]
fn what_is_too_dear_has_no_start() {
    let (view, candidates) = (view(1), [cost(0, 0, 0.0)]);
    let refused = Refused { at: -SECOND, tier: Tier::High, engine_seconds: 0.2 };
    let of = |tokens, is_stated, chances| {
        let turned_away = Rejects { since: None, lately: vec![refused; 20] };
        let deadline = Deadline { is_stated, ..due(5, 10) };
        let forecast = Forecast { turned_away, ..forecast(vec![tokens; 8]) };
        outlook(&ask(&deadline, &candidates, &view), &forecast, chances).unwrap()
    };
    let dear = of(101, true, CHANCES);
    assert!((dear.engine_seconds - 2.12).abs() < 1e-6 && dear.meet > 0.99, "{dear:?}");
    assert!(dear.start_by < 0 && dear.engine_by < 0 && dear.worth_by < Some(0) && dear.alone_by < Some(0), "{dear:?}");
    let short = of(5, true, CHANCES);
    assert!(short.start_by > 0 && short.worth_by > Some(0), "{short:?}");
    assert!(of(101, false, CHANCES).start_by > 0);
    let middling = |due_by: Deadline| {
        let turned_away = Rejects { since: None, lately: vec![refused; 20] };
        let forecast = Forecast { turned_away, ..forecast(vec![9; 8]) };
        outlook(&ask(&due_by, &candidates, &view), &forecast, Chances { worth: 0.1, ..CHANCES }).unwrap()
    };
    assert!(middling(due(5, 10)).start_by > 0);
    let unlikely = middling(Deadline { whole: Some(250_000), ..due(1, 1) });
    assert!((0.2..0.5).contains(&unlikely.meet) && unlikely.alone_by < Some(0), "{unlikely:?}");
    assert!(of(101, true, Chances { displaced_max: f64::INFINITY, ..CHANCES }).start_by > 0);
}

/// Scenario: a prompt of 3,000 tokens is to be computed; requests due before it, and after it.
/// Guarantees: the first is held up by a chunk, 10 ms and 512 tokens; the second by all that routing says is queued.
#[test]
fn what_is_due_later_holds_up_by_a_chunk() {
    let (mut view, candidates) = (view(1), [cost(0, 0, 0.3)]);
    let first = |view: &ClusterView, deadline: &Deadline| {
        outlook(&ask(deadline, &candidates, view), &forecast(vec![10; 8]), CHANCES).unwrap().first_token_seconds
    };
    assert!((first(&view, &due(4, 9)) - 0.42).abs() < 1e-6, "all that is queued, where nothing is known of it");
    view.instances[0].prompts = vec![PromptDue { due: 8 * SECOND, tokens: 3000 }];
    assert!((first(&view, &due(4, 7)) - (0.12 + 0.0612)).abs() < 1e-6, "{}", first(&view, &due(4, 7)));
    assert!((first(&view, &due(4, 9)) - 0.42).abs() < 1e-6);
}

/// Scenario: an instance with 20 s before it and budgets that 12 s of that, or all of it, would break.
/// Guarantees: what is said to be too much is what must go before the request would have its chance; all there is, where the
/// request is too long by itself.
#[test]
fn excess_is_what_must_go_first() {
    let (view, candidates) = (view(1), [cost(0, 0, 20.0)]);
    let ratio = Ratio { mean: 0.0, variance: 1e-4 };
    let forecast = Forecast { skill: Skill { first: ratio, whole: ratio }, ..forecast(vec![101; 8]) };
    let excess =
        |deadline: &Deadline| outlook(&ask(deadline, &candidates, &view), &forecast, CHANCES).unwrap().excess_seconds;
    let some = excess(&due(8, 60));
    assert!(some > 11.0 && some < 13.0, "{some}");
    // With less before it the spread is less, too: half a second more is enough for any chance.
    let without = [cost(0, 0, 19.5 - some)];
    let meet = outlook(&ask(&due(8, 60), &without, &view), &forecast, CHANCES).unwrap().meet;
    assert!(meet >= 0.05, "{meet}");
    assert_eq!(excess(&due(1, 1)), 20.0);
    assert_eq!(excess(&due(60, 90)), 0.0);
}

/// Scenario: no service times; no lengths; a queue without a known drain.
/// Guarantees: no outlook without service times; what else is missing counts as no time, so that the chance is too good.
#[test]
fn unknown_is_not_a_time() {
    let (view, candidates, deadline) = (view(1), [cost(0, 0, 0.0)], due(1, 2));
    let request = ask(&deadline, &candidates, &view);
    assert_eq!(outlook(&request, &Forecast::default(), CHANCES), None);
    let unknown_length = outlook(&request, &forecast(Vec::new()), CHANCES).unwrap();
    assert!(unknown_length.meet > 0.99 && unknown_length.whole_seconds < 0.2, "{unknown_length:?}");
    let tiers = [vec![QueueStep { start_by: -5, tokens: 1_000_000, requests: 10 }], vec![], vec![]];
    let forecast = Forecast { queue: QueueProfile { tiers }, ..forecast(vec![10; 8]) };
    let weights = test_policy().queue.weights;
    let queued = OutlookRequest { wait: Wait::Queue { weights: &weights, own_tokens: 0 }, ..request };
    assert!(outlook(&queued, &forecast, CHANCES).unwrap().meet > 0.99);
    let known = Forecast { drain_tokens_per_second: Some(1000.0), ..forecast };
    let outlook = outlook(&queued, &known, CHANCES).unwrap();
    assert!(outlook.meet < 0.01 && (outlook.wait_seconds - 1000.0).abs() < 1e-6, "{outlook:?}");
}

/// Scenario: the cheapest candidate is busy for too long, the second has the prompt cached.
/// Guarantees: the chance is that of the candidate where it is best: a request is hopeless only if it is on every one.
#[test]
fn the_best_candidate_counts() {
    let (view, deadline) = (view(2), due(1, 60));
    let both = [cost(0, 0, 20.0), cost(1, 900, 0.5)];
    let forecast = forecast(vec![10; 8]);
    assert!(outlook(&ask(&deadline, &both[..1], &view), &forecast, CHANCES).unwrap().meet < 0.01);
    assert!(outlook(&ask(&deadline, &both, &view), &forecast, CHANCES).unwrap().meet > 0.9);
}

proptest! {
    /// Scenario: random budgets, loads, hits, lengths and skills.
    /// Guarantees: the chance equals the mean over lengths that a plain sum of normal times gives; more budget or more hits
    /// never lowers it, more work before it never raises it; a start at the latest start has the chance asked for.
    #[test]
    fn chances_are_monotone_and_equal_the_twin(
        (first, rest) in (1i64..20, 0i64..20), (queue, more) in (0.0f64..20.0, 0.0f64..5.0), hit in 0u32..999,
        lengths in prop::collection::vec(1u32..800, LENGTHS), (bias, spread) in (-0.5f64..0.5, 1e-4f64..0.2),
    ) {
        let view = view(1);
        let ratio = Ratio { mean: bias, variance: spread };
        let mut lengths = lengths;
        lengths.sort_unstable();
        let forecast = Forecast { skill: Skill { first: ratio, whole: ratio }, ..forecast(lengths.clone()) };
        let of = |first: i64, queue: f64, hit: u32| {
            let (deadline, candidates) = (due(first, first + rest), [cost(0, hit, queue)]);
            outlook(&ask(&deadline, &candidates, &view), &forecast, CHANCES).unwrap()
        };
        let got = of(first, queue, hit);
        prop_assert!(of(first + 1, queue, hit).meet >= got.meet - 1e-12);
        prop_assert!(of(first, queue + more, hit).meet <= got.meet + 1e-12);
        prop_assert!(of(first, queue, 999).meet >= got.meet - 1e-12);
        let normal = |mean: f64, due: f64| {
            let mean = mean * bias.exp();
            0.5 * libm::erfc((mean - due) / (mean * spread.sqrt()) / std::f64::consts::SQRT_2)
        };
        let uncached = f64::from(1000 - hit);
        let steps = (uncached / 512.0).ceil();
        let plain = queue + 0.010 * steps + uncached * 1e-4;
        let whole = |tokens: &u32| normal(plain + 0.020 * f64::from(*tokens - 1), (first + rest) as f64);
        let twin = (lengths.iter().map(whole).sum::<f64>() / LENGTHS as f64).min(normal(plain, first as f64));
        prop_assert!((got.meet - twin).abs() < 1e-3, "{} and {twin}", got.meet);
        if got.start_by > 1000 {
            let (deadline, candidates) = (due(first, first + rest), [cost(0, hit, queue)]);
            let then = OutlookRequest { now: got.start_by, ..ask(&deadline, &candidates, &view) };
            prop_assert!((outlook(&then, &forecast, CHANCES).unwrap().meet - (0.9 * got.best).max(0.6)).abs() < 0.01);
        }
    }
}
