//! Instances that are busy, refuse, fail, fall silent or die: the request goes on elsewhere or ends with a named error.

use std::sync::{Arc, atomic::Ordering};

use axum::http::StatusCode;
use pipeline::gateway::instances::InstanceError;
use serde_json::{Value, json};
use tests::gateway_kit::{Fault, Kit, Speaker, defaults};

const CHAT: &str = "/v1/chat/completions";

fn ask(extra: Value) -> Value {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream": true, "seed": 3});
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

fn faulty(fault: Fault) -> Arc<Speaker> {
    let speaker = Speaker::new("Grüße, Wörld");
    *speaker.fault.lock().expect("not poisoned") = fault;
    Arc::new(speaker)
}

fn lost() -> InstanceError {
    InstanceError::Lost("connection reset".into())
}

/// Scenario: the first instance is lost after k tokens, for each k, inside characters too; or its stream just ends.
/// Guarantees: the client's text is whole, with nothing twice and nothing missing; the second instance gets the safe prefix
/// and how many of its tokens were generated; usage counts every token once; a decision says why it moved.
#[tokio::test]
async fn a_lost_sequence_goes_on_elsewhere() {
    for count in 0..16 {
        for fault in [Fault::After(count, lost()), Fault::Silence(count)] {
            let (first, second) = (faulty(fault.clone()), faulty(Fault::None));
            let kit = Kit::new(defaults(), vec![first.clone(), second.clone()]);
            let answer =
                kit.post(CHAT, ask(json!({"stream_options": {"include_usage": true}, "logprobs": true}))).await;
            assert_eq!(answer.streamed_text(0), "Grüße, Wörld", "{fault:?}");
            let chunks = answer.chunks();
            assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 16, "{fault:?}: 15 bytes and the end");
            let entries: usize = chunks
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["logprobs"]["content"].as_array().map(Vec::len))
                .sum();
            assert_eq!(entries, 15, "{fault:?}");
            let call = second.calls.lock().unwrap()[0].clone();
            assert!(call.sampling_offset as usize <= count);
            assert_eq!(call.prompt.len(), 19 + call.sampling_offset as usize);
            assert_eq!(call.stop.max_tokens, 2048 - 19 - call.sampling_offset);
            assert_eq!(call.sampling.seed, 3);
            let decisions = kit.rows.decisions.lock().unwrap();
            assert!(decisions[1].reason.starts_with("moved, since instance lost"), "{}", decisions[1].reason);
            assert_eq!(decisions[1].instance, Some(1));
            let events = kit.rows.events();
            assert_eq!(events.iter().filter(|event| *event == "dispatched").count(), 2);
            assert_eq!(events.iter().filter(|event| *event == "first_token" || *event == "grew").count(), 16);
            assert_eq!(events.last().unwrap(), "finished");
            assert_eq!((kit.leased(), first.live.load(Ordering::SeqCst)), ((0, 0), 0));
        }
    }
}

/// Scenario: the instance is lost after the last token that `max_tokens` allows, before it says so.
/// Guarantees: the sequence ends with `length`; nothing is asked of another instance.
#[tokio::test]
async fn a_loss_after_the_last_token_is_the_end() {
    let first = faulty(Fault::After(2, lost()));
    let second = faulty(Fault::None);
    let kit = Kit::new(defaults(), vec![first, second.clone()]);
    let answer = kit.post(CHAT, ask(json!({"max_tokens": 2}))).await;
    assert_eq!(answer.streamed_text(0), "Gr");
    assert_eq!(answer.chunks().last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(second.calls.lock().unwrap().is_empty());
}

/// Scenario: one instance busy at the start, or lost at the start.
/// Guarantees: the other takes the request and the client sees nothing of it.
#[tokio::test]
async fn a_bad_start_is_tried_elsewhere() {
    for error in [InstanceError::Busy("queue full".into()), lost()] {
        let kit = Kit::new(defaults(), vec![faulty(Fault::AtStart(error)), faulty(Fault::None)]);
        let answer = kit.post(CHAT, ask(json!({}))).await;
        assert_eq!((answer.status, answer.streamed_text(0).as_str()), (StatusCode::OK, "Grüße, Wörld"));
        assert_eq!(kit.leased(), (0, 0));
    }
}

/// Scenario: both instances busy, always.
/// Guarantees: after a bounded number of moves 429 with `Retry-After`, never a hang; leases are back.
#[tokio::test]
async fn busy_everywhere_is_refused() {
    let busy = || faulty(Fault::AtStart(InstanceError::Busy("1024 sequences wait already".into())));
    let kit = Kit::new(defaults(), vec![busy(), busy()]);
    let answer = kit.post(CHAT, ask(json!({}))).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS, "{}", answer.text);
    assert!(!answer.header("retry-after").is_empty());
    assert_eq!((kit.rows.events().last().unwrap().as_str(), kit.leased()), ("failed", (0, 0)));
}

/// Scenario: the engine refuses the request; the runner fails on the first token; and after two.
/// Guarantees: 400 without a second try; 500; and in a stream one error event, then `[DONE]`.
#[tokio::test]
async fn refusals_and_failures_have_names() {
    let refused =
        faulty(Fault::AtStart(InstanceError::Refused("the request needs 9 KV blocks and the pool has 4".into())));
    let other = faulty(Fault::None);
    let kit = Kit::new(defaults(), vec![refused, other.clone()]);
    let answer = kit.post(CHAT, ask(json!({}))).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("engine_refused")));
    assert!(other.calls.lock().unwrap().is_empty());

    let kit = Kit::new(defaults(), vec![faulty(Fault::Runner(0))]);
    let answer = kit.post(CHAT, ask(json!({}))).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);

    let kit = Kit::new(defaults(), vec![faulty(Fault::Runner(2))]);
    let answer = kit.post(CHAT, ask(json!({}))).await;
    assert_eq!(answer.status, StatusCode::OK);
    let chunks = answer.chunks();
    let error = &chunks.last().unwrap()["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("server_error"), &json!("engine_failed")));
    assert!(error["message"].as_str().unwrap().contains("out of memory"));
    assert_eq!(kit.rows.events().last().unwrap(), "failed");
}

/// Scenario: no instance at all; then the only one dies in mid-answer and comes back.
/// Guarantees: 503 at once in the first case; in the second the stream waits for the restart and goes on.
#[tokio::test]
async fn nobody_there_and_a_restart() {
    let none = Kit::new(defaults(), vec![]);
    let answer = none.post(CHAT, ask(json!({}))).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("no_instance"))
    );
    assert!(!answer.header("retry-after").is_empty());

    let (old, new) = (faulty(Fault::After(5, lost())), faulty(Fault::None));
    let kit = Kit::new(defaults(), vec![old.clone()]);
    let (answer, ()) = tokio::join!(kit.post(CHAT, ask(json!({}))), async {
        kit.until("the first has begun", || old.calls.lock().unwrap().len() == 1).await;
        kit.until("the first is lost", || old.live.load(Ordering::SeqCst) == 0).await;
        kit.put(0, 1, None);
        kit.put(0, 2, Some(new.clone()));
    });
    assert_eq!(answer.streamed_text(0), "Grüße, Wörld");
    assert_eq!(new.calls.lock().unwrap().len(), 1);
}

/// Scenario: the only instance is gone for longer than `wait_max` after five tokens.
/// Guarantees: the stream ends with the error `instance_lost` and `[DONE]`; it does not hang.
#[tokio::test]
async fn a_loss_for_good_ends_the_stream() {
    let mut config = defaults();
    config.policy.queue.wait_max = std::time::Duration::from_millis(20);
    let kit = Kit::new(config, vec![faulty(Fault::After(5, lost()))]);
    let answer = kit.post(CHAT, ask(json!({}))).await;
    assert_eq!(answer.chunks().last().unwrap()["error"]["code"], "instance_lost");
    assert_eq!((kit.rows.events().last().unwrap().as_str(), kit.leased()), ("failed", (0, 0)));
}
