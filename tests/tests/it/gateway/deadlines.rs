//! Deadlines as the client sees them (SPEC A4): refused at once, given up while waiting, told to the engine, and how each fared.

use std::sync::{Arc, atomic::Ordering};

use axum::{
    body::Body,
    http::{Request, StatusCode},
};
use operators::{LinearFit, ServiceTime};
use pipeline::{
    config::{Config, Key, Mode, TierHeader},
    dataflow::Predicted,
    gateway::{dispatcher::place_by, reading::PlaceReading},
    policy::{EngineView, RouteRejection, Threshold, Tier},
    rows::SloRow,
};
use serde_json::{Value, json};
use tests::gateway_kit::{Answer, Kit, Speaker, defaults, post};
use tokio::sync::Semaphore;

const CHAT: &str = "/v1/chat/completions";

fn ask() -> Value {
    json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 10})
}

/// Prefill takes no time to speak of, each further token a second; answers are ten tokens long.
fn slow() -> Predicted {
    let prefill =
        LinearFit { samples: 0, coefficients: [0.001, 0.0, 0.0, 0.0], covariance: [[0.0; 4]; 4], noise: 1e-8 };
    let decode = LinearFit { samples: 0, coefficients: [1.0, 0.0, 0.0], covariance: [[0.0; 3]; 3], noise: 1e-8 };
    let time = ServiceTime { prefill: Some(prefill), decode: Some(decode), chunk_tokens: 512 };
    Predicted { lengths: [vec![10; 8], vec![10; 8], vec![10; 8]], services: vec![("default".into(), time)] }
}

async fn send(kit: &Kit, headers: &[(&str, &str)]) -> Answer {
    let mut request: Request<Body> = post(CHAT, &ask().to_string());
    for (name, value) in headers {
        request
            .headers_mut()
            .insert(axum::http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    kit.send(request).await
}

fn kit_with(change: impl FnOnce(&mut Config)) -> Kit {
    let mut config = defaults();
    change(&mut config);
    let kit = Kit::new(config, vec![Arc::new(Speaker::new("ab")), Arc::new(Speaker::new("ab"))]);
    *kit.views.predicted.lock().unwrap() = slow();
    kit
}

/// Scenario: nine seconds are predicted; a request with two seconds left, one with a minute, one that says nothing.
/// Guarantees: the first gets 503 `predicted_miss` at once, with `Retry-After` and the figures in the body; nothing was
/// dispatched for it, and decision and `slo` row say why. The others are served, and their rows say by how much they made it.
#[tokio::test]
async fn a_predicted_miss_is_refused_at_once() {
    let kit = kit_with(|_| {});
    let refused = send(&kit, &[("x-evenkeel-deadline-ms", "2000")]).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    let error = refused.json()["error"].clone();
    assert_eq!((&error["code"], &error["type"]), (&json!("predicted_miss"), &json!("overloaded")));
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    let slo = &error["slo"];
    assert!(slo["meet_probability"].as_f64().unwrap() < 0.05, "{error}");
    assert!((slo["predicted_whole_seconds"].as_f64().unwrap() - 9.0).abs() < 0.1, "{error}");
    assert!(slo["whole_budget_seconds"].as_f64().unwrap() < 2.0, "{error}");
    assert_eq!(kit.rows.events(), ["arrived", "rejected"]);
    assert_eq!(send(&kit, &[("x-evenkeel-deadline-ms", "60000")]).await.status, StatusCode::OK);
    assert_eq!(send(&kit, &[]).await.status, StatusCode::OK);
    let decisions = kit.rows.decisions.lock().unwrap();
    assert_eq!(decisions[0].outcome, "reject");
    assert!(decisions[0].meet_probability.unwrap() < 0.05 && decisions[0].whole_due.is_some());
    assert!(decisions[0].reason.starts_with("predicted_miss: The request would miss"), "{}", decisions[0].reason);
    assert!(decisions[1].meet_probability.unwrap() > 0.95 && decisions[2].whole_due.is_none());
    let rows = kit.rows.slo.lock().unwrap();
    let seen: Vec<_> = rows.iter().map(|row| (row.outcome.as_str(), row.is_stated, row.is_met)).collect();
    assert_eq!(seen, [("refused", true, None), ("finished", true, Some(true)), ("finished", false, Some(true))]);
    assert!(rows[1].margin_seconds.unwrap() > 50.0 && rows[1].start_meet_probability.unwrap() > 0.95);
    assert_eq!((rows[1].output_tokens, rows[1].predicted_whole_seconds.map(f64::round)), (3, Some(9.0)));
}

/// Scenario: the same request where nothing has been learnt, with deadlines off, and with every would-be refusal let through.
/// Guarantees: nobody is refused without evidence or where deadlines do not count; what is let through to see is marked.
#[tokio::test]
async fn no_refusal_without_evidence_or_against_the_settings() {
    let tight = [("x-evenkeel-deadline-ms", "2000")];
    let unknown = kit_with(|_| {});
    *unknown.views.predicted.lock().unwrap() = Predicted::default();
    assert_eq!(send(&unknown, &tight).await.status, StatusCode::OK);
    assert_eq!(unknown.rows.decisions.lock().unwrap()[0].meet_probability, None);
    let off = kit_with(|config| config.policy.deadline.mode = Mode::Off);
    assert_eq!(send(&off, &tight).await.status, StatusCode::OK);
    assert!(off.rows.decisions.lock().unwrap()[0].meet_probability.unwrap() < 0.05, "told all the same");
    let trial = kit_with(|config| config.policy.deadline.trial_share = 1.0);
    assert_eq!(send(&trial, &tight).await.status, StatusCode::OK);
    assert_eq!(trial.rows.decisions.lock().unwrap()[0].is_trial, Some(true));
    let row = trial.rows.slo.lock().unwrap()[0].clone();
    assert!(row.is_trial && row.is_met == Some(true), "it made it: the prediction was wrong, and that can be told");
    trial.gateway.tick().await;
    let curve = trial.rows.reliability.lock().unwrap();
    assert_eq!((curve[0].requests, curve[0].met, curve[0].predicted_from), (1, 1, 0.0));
}

/// Scenario: room for one request; a second waits, and its time passes; first with nine seconds predicted, then with nothing known.
/// Guarantees: it goes with `predicted_miss` as soon as it can no longer make it, at the latest when its deadline is over, long before
/// `wait_max`, and leaves nothing in the queue.
#[tokio::test]
async fn a_request_that_waits_is_given_up_when_its_chance_is_gone() {
    let row = wait_until_it_is_late(slow(), 27_000_000).await;
    assert!(row.wait_seconds > 26.0 && row.meet_probability.unwrap() < 0.05, "{row:?}");
    let row = wait_until_it_is_late(Predicted::default(), 30_000_001).await;
    assert!(row.wait_seconds > 29.0 && row.meet_probability.is_none(), "{row:?}");
}

async fn wait_until_it_is_late(predicted: Predicted, passes_us: i64) -> SloRow {
    let pace = Arc::new(Semaphore::new(0));
    let speaker = Arc::new(Speaker { pace: Some(pace.clone()), ..Speaker::new("abcdef") });
    let mut config = defaults();
    config.policy.route.lease_tokens_max = 1;
    let calm = Threshold { enter: 1e9, exit: 1e8 };
    let throttle = &mut config.policy.throttle;
    (throttle.shape_batch, throttle.throttle_low, throttle.throttle_medium) = (calm, calm, calm);
    (throttle.shrink, throttle.throttle_high) = (calm, calm);
    let kit = Kit::new(config, vec![speaker.clone()]);
    *kit.views.predicted.lock().unwrap() = predicted;
    let (first, late) = tokio::join!(kit.post(CHAT, ask()), async {
        kit.until("the first is dispatched", || speaker.live.load(Ordering::SeqCst) == 1).await;
        let late = send(&kit, &[("x-evenkeel-deadline-ms", "30000")]);
        let passes = async {
            kit.until("the second is queued", || kit.gateway.dispatcher.queue_load().requests == 1).await;
            kit.clock.advance(passes_us);
        };
        let (late, ()) = tokio::join!(late, passes);
        pace.add_permits(100);
        late
    });
    assert_eq!(first.status, StatusCode::OK);
    assert_eq!(
        (late.status, &late.json()["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("predicted_miss"))
    );
    assert_eq!(kit.gateway.dispatcher.queue_load().requests, 0);
    assert_eq!(kit.leased(), (0, 0));
    let rows = kit.rows.slo.lock().unwrap();
    let readings = kit.rows.inputs.lock().unwrap();
    assert_eq!(readings.iter().filter(|row| row.reading == "wait").count(), 1, "what was read for it is a row");
    rows.iter().find(|row| row.outcome == "refused").expect("its row").clone()
}

/// Scenario: a step takes half a second and half a second a sequence more. One request runs: ten steps, 14 s left. A second comes
/// whose company would make it 15 s.
/// Guarantees: the second waits, though there is room; what it was decided from names the instance that was spared, and routing
/// says the same to the recorded row; once the first has ended the second is served.
#[tokio::test]
async fn no_lease_makes_another_late() {
    let pace = Arc::new(Semaphore::new(0));
    let speaker = Arc::new(Speaker { pace: Some(pace.clone()), ..Speaker::new("abcdef") });
    let kit = Kit::new(defaults(), vec![speaker.clone()]);
    let mut predicted = slow();
    predicted.services[0].1.decode.as_mut().unwrap().coefficients = [0.5, 8.0, 0.0];
    *kit.views.predicted.lock().unwrap() = predicted;
    *kit.views.engine.lock().unwrap() = Some(EngineView::default());
    let (first, second) = tokio::join!(send(&kit, &[("x-evenkeel-deadline-ms", "14000")]), async {
        kit.until("the first is dispatched", || speaker.live.load(Ordering::SeqCst) == 1).await;
        let frees = async {
            kit.until("the second is queued", || kit.gateway.dispatcher.queue_load().requests == 1).await;
            assert_eq!(speaker.calls.lock().unwrap().len(), 1, "there is room, and it is not taken");
            pace.add_permits(100);
        };
        let (second, ()) = tokio::join!(send(&kit, &[]), frees);
        second
    });
    assert_eq!((first.status, second.status), (StatusCode::OK, StatusCode::OK));
    assert_eq!(kit.leased(), (0, 0));
    let readings = kit.rows.inputs.lock().unwrap();
    let spared = readings.iter().find(|row| row.spared.is_some()).expect("what it waited for");
    assert_eq!((spared.reading.as_str(), spared.lease.as_deref()), ("placement", Some("none")));
    let again = place_by(&PlaceReading::from_row(spared).unwrap(), "tiny", &defaults().policy.route);
    assert!(matches!(again, Err(RouteRejection::NoRoom { .. })), "{again:?}");
}

/// Scenario: a step takes half a second and half a second a sequence more. Three requests run; four short ones, which an idle instance
/// could serve in time, are refused. A long one comes that has all the time there is, and ten seconds pass.
/// Guarantees: the long one waits, though there is room, while as many as it would displace are refused; once nobody is, it starts.
#[tokio::test]
async fn a_long_request_waits_while_short_ones_are_refused() {
    let pace = Arc::new(Semaphore::new(0));
    let speaker = Arc::new(Speaker { pace: Some(pace.clone()), ..Speaker::new("abcdef") });
    let mut config = defaults();
    config.policy.queue.aging = config.policy.queue.wait_max;
    let kit = Kit::new(config, vec![speaker.clone()]);
    let mut predicted = slow();
    predicted.services[0].1.decode.as_mut().unwrap().coefficients = [0.5, 8.0, 0.0];
    *kit.views.predicted.lock().unwrap() = predicted;
    *kit.views.engine.lock().unwrap() = Some(EngineView::default());
    let long = || send(&kit, &[("x-evenkeel-deadline-ms", "600000")]);
    let short = || async {
        let mut request =
            post(CHAT, &json!({"max_tokens": 2, "messages": ask()["messages"], "model": "tiny"}).to_string());
        request.headers_mut().insert("x-evenkeel-deadline-ms", "1200".parse().unwrap());
        kit.send(request).await
    };
    let runs = |count: usize| speaker.live.load(Ordering::SeqCst) == count;
    let (first, second, third, last) = tokio::join!(long(), long(), long(), async {
        kit.until("three run", || runs(3)).await;
        for _ in 0..4 {
            let refused = short().await;
            assert_eq!(refused.json()["error"]["code"], json!("predicted_miss"));
        }
        let passes = async {
            kit.until("the long one is queued", || kit.gateway.dispatcher.queue_load().requests == 1).await;
            assert_eq!(speaker.calls.lock().unwrap().len(), 3, "there is room, and it is not taken");
            kit.clock.advance(11_000_000);
            kit.until("the long one runs", || runs(4)).await;
            pace.add_permits(100);
        };
        let (last, ()) = tokio::join!(long(), passes);
        last
    });
    assert!([first, second, third, last].iter().all(|answer| answer.status == StatusCode::OK));
    assert_eq!(kit.leased(), (0, 0));
    let inputs = kit.rows.inputs.lock().unwrap();
    let refused = inputs.iter().filter_map(|row| Some(row.refused_lately.as_ref()?.len()));
    assert_eq!(refused.max(), Some(4), "what it waited for");
}

/// Scenario: nine seconds are predicted, and two requests have eight: one comes to an idle fleet, the other while one runs.
/// Guarantees: the first starts at once; the second waits, though there is room, and starts when nothing runs.
#[tokio::test]
async fn what_can_hardly_make_it_starts_where_nothing_runs() {
    let pace = Arc::new(Semaphore::new(0));
    let speaker = Arc::new(Speaker { pace: Some(pace.clone()), ..Speaker::new("abcdef") });
    let kit = Kit::new(defaults(), vec![speaker.clone()]);
    *kit.views.predicted.lock().unwrap() = slow();
    let tight = [("x-evenkeel-deadline-ms", "8000")];
    let (first, second) = tokio::join!(send(&kit, &tight), async {
        kit.until("the first is dispatched", || speaker.live.load(Ordering::SeqCst) == 1).await;
        let frees = async {
            kit.until("the second is queued", || kit.gateway.dispatcher.queue_load().requests == 1).await;
            assert_eq!(speaker.calls.lock().unwrap().len(), 1, "there is room, and it is not taken");
            pace.add_permits(100);
        };
        let (second, ()) = tokio::join!(send(&kit, &tight), frees);
        second
    });
    assert_eq!((first.status, second.status), (StatusCode::OK, StatusCode::OK));
    let decisions = kit.rows.decisions.lock().unwrap();
    let seen: Vec<_> = decisions.iter().map(|row| row.outcome.as_str()).collect();
    assert_eq!(seen, ["admit", "queue", "admit"]);
    assert!(decisions.iter().all(|row| (0.1..0.5).contains(&row.meet_probability.unwrap())), "{decisions:?}");
}

/// Scenario: a stated budget and a tier's target.
/// Guarantees: the engine is told the latest start of both, and the time to drop the first, from its arrival on.
#[tokio::test]
async fn the_engine_is_told() {
    let speaker = Arc::new(Speaker::new("ab"));
    let kit = Kit::new(defaults(), vec![speaker.clone()]);
    *kit.views.predicted.lock().unwrap() = slow();
    send(&kit, &[("x-evenkeel-deadline-ms", "60000")]).await;
    send(&kit, &[]).await;
    let calls = speaker.calls.lock().unwrap();
    let (drop_at, start_by) = (calls[0].drop_at.unwrap(), calls[0].deadline.unwrap());
    assert!(drop_at - start_by > 8_000_000 && drop_at - start_by < 30_000_000, "nine seconds, surely: {calls:?}");
    assert_eq!(calls[1].drop_at, None);
    assert!(calls[1].deadline.is_some());
}

/// Scenario: a key of class Medium that may not choose its tier asks for High and for a budget shorter than it may.
/// Guarantees: neither counts beyond what the key allows; a lower tier does; a wrong header of ours is an error by name.
#[tokio::test]
async fn headers_count_as_far_as_the_key_allows() {
    let key = Key {
        key: "secret".into(),
        tenant: "acme".into(),
        class: Tier::Medium,
        first_token_min: None,
        whole_min: Some(std::time::Duration::from_secs(30)),
        tier_header: TierHeader::Lower,
        sql: Default::default(),
    };
    let kit = kit_with(|config| config.server.keys = vec![key]);
    let with = |more: (&'static str, &'static str)| vec![("authorization", "Bearer secret"), more];
    assert_eq!(send(&kit, &with(("x-evenkeel-tier", "High"))).await.status, StatusCode::OK);
    assert_eq!(send(&kit, &with(("x-smg-priority", "low"))).await.status, StatusCode::OK);
    assert_eq!(send(&kit, &with(("x-evenkeel-deadline-ms", "1"))).await.status, StatusCode::OK, "it gets 30 s");
    let wrong = send(&kit, &with(("x-evenkeel-tier", "urgent"))).await;
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("x-evenkeel-tier")));
    let decisions = kit.rows.decisions.lock().unwrap();
    let tiers: Vec<_> = decisions.iter().map(|row| row.tier.as_str()).collect();
    assert_eq!(tiers[..3], ["Medium", "Low", "Medium"]);
    assert!(decisions[1].tier_reason.contains("Low asked for"), "{}", decisions[1].tier_reason);
    let row = &kit.rows.slo.lock().unwrap()[2];
    assert_eq!(row.whole_budget_seconds.map(f64::round), Some(30.0));
}
