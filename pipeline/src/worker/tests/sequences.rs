//! Sequences through the gRPC service.

use engine::{grammar::GrammarSource, request::FinishReason};
use futures::StreamExt;

use super::*;
use crate::{gateway::instances::InstanceClient, worker::client::LocalInstance};

/// Scenario: one request over gRPC and the same one to the engine thread directly. Guarantees: equal tokens and text, all
/// `max_tokens` of them, one last chunk with the right accounts, then the end.
#[tokio::test]
async fn the_wire_changes_nothing() {
    let worker = served(&options(0.0)).await;
    let remote = collect(worker.client.generate(call(vec![1, 2, 3], 20)).await.unwrap()).await;
    let local = collect(LocalInstance(worker.handle.clone()).generate(call(vec![1, 2, 3], 20)).await.unwrap()).await;
    assert_eq!(tokens(&remote).len(), 20);
    assert_eq!(tokens(&remote), tokens(&local));
    let finish = remote.last().unwrap().as_ref().unwrap().finish.clone().unwrap();
    assert_eq!((finish.reason, finish.prompt_tokens, finish.completion_tokens), (FinishReason::Length, 3, 20));
    assert!(remote[..remote.len() - 1].iter().all(|item| item.as_ref().unwrap().finish.is_none()));
}

/// Scenario: the second request repeats a prompt of four blocks. Guarantees: the reuse is in its accounts.
#[tokio::test]
async fn reuse_is_reported() {
    let worker = served(&options(0.0)).await;
    let prompt: Vec<u32> = (0..64).collect();
    let mut cached = Vec::new();
    for _ in 0..2 {
        let items = collect(worker.client.generate(call(prompt.clone(), 2)).await.unwrap()).await;
        cached.push(items.last().unwrap().as_ref().unwrap().finish.clone().unwrap().cached_tokens);
    }
    assert_eq!(cached[0], 0);
    assert!(cached[1] >= 48, "{cached:?}");
}

/// Scenario: an empty prompt, too long a context, a token outside the vocabulary. Guarantees: `Refused`, with a text that
/// says what is wrong; the worker still serves afterwards.
#[tokio::test]
async fn bad_requests_are_refused() {
    let worker = served(&options(0.0)).await;
    for (bad, word) in [
        (call(vec![], 1), "empty"),
        (call(vec![1], 100_000), "context"),
        (call(vec![9_999], 1), "vocabulary"),
        (call(vec![1], 0), "max_tokens"),
    ] {
        match worker.client.generate(bad).await {
            Err(InstanceError::Refused(text)) => assert!(text.contains(word), "{text}"),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("`{word}` was accepted"),
        }
    }
    assert_eq!(tokens(&collect(worker.client.generate(call(vec![1], 3)).await.unwrap()).await).len(), 3);
}

/// Scenario: more requests than the engine runs and lets wait. Guarantees: the excess is `Busy`, the rest completes.
#[tokio::test]
async fn a_full_queue_is_busy() {
    let worker = served(&options(1.0)).await;
    let (mut streams, mut busy) = (Vec::new(), 0);
    for number in 0..40 {
        match worker.client.generate(call(vec![number], 100)).await {
            Ok(stream) => streams.push(stream),
            Err(InstanceError::Busy(_)) => busy += 1,
            Err(other) => panic!("{other:?}"),
        }
    }
    assert!(busy > 0 && streams.len() >= 8, "{busy} busy, {} accepted", streams.len());
    for stream in streams {
        assert_eq!(tokens(&collect(stream).await).len(), 100);
    }
}

/// Scenario: a client drops its stream after the first chunk. Guarantees: the engine has no sequence and no block in use
/// once the next request has ended.
#[tokio::test]
async fn a_dropped_stream_cancels() {
    let worker = served(&options(1.0)).await;
    let mut stream = worker.client.generate(call((0..100).collect(), 400)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    drop(stream);
    let last = worker.last.0.clone();
    eventually("the sequence is gone", || {
        let stats = *last.lock().unwrap();
        stats.running == 0 && stats.blocks_used == 0
    })
    .await;
    let before = worker.last.0.lock().unwrap().step;
    assert!(before < 200, "the sequence ran on for {before} steps");
}

/// Scenario: a client cancels a sequence and waits for the confirmation; then for that of a sequence that never was.
/// Guarantees: it comes once the step that ended the sequence is over, with no block in use; what never was is confirmed, too.
#[tokio::test]
async fn a_cancellation_is_confirmed_when_its_blocks_are_free() {
    let worker = served(&options(1.0)).await;
    let mut stream = worker.client.generate(call((0..100).collect(), 400)).await.unwrap();
    stream.next().await.unwrap().unwrap();
    worker.client.cancel("r", stream).await.unwrap();
    let stats = *worker.last.0.lock().unwrap();
    assert_eq!((stats.running, stats.waiting, stats.blocks_used), (0, 0, 0));
    assert!(stats.step < 200, "the sequence ran on for {} steps", stats.step);
    worker.client.cancel("nobody", futures::stream::empty().boxed()).await.unwrap();
}

/// Scenario: hundreds of callers hang up before a busy worker looks at their calls; a sequence runs on the same connection.
/// Guarantees: the connection stays, the sequence runs to its end, and the next call is taken.
#[tokio::test]
async fn callers_that_hang_up_end_no_connection() {
    let (listener, worker) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), served(&options(1.0)).await);
    let client = GrpcInstance::new(listener.local_addr().unwrap(), ClientLimits::default()).unwrap();
    // The system takes the connection; nobody reads it yet.
    let patient = tokio::spawn({
        let client = client.clone();
        async move { client.generate(call(vec![5], 30)).await }
    });
    for number in 0..300 {
        let hasty = GenerateCall { request_id: format!("hasty-{number}"), ..call(vec![6], 400) };
        let hung_up = tokio::time::timeout(Duration::from_millis(2), client.generate(hasty)).await;
        assert!(hung_up.is_err(), "nobody has answered");
    }
    serve_on(listener, worker.service.clone());
    assert_eq!(tokens(&collect(patient.await.unwrap().unwrap()).await).len(), 30);
    assert_eq!(tokens(&collect(client.generate(call(vec![7], 3)).await.unwrap()).await).len(), 3);
}

/// Scenario: drain while a sequence runs. Guarantees: the running one completes, new ones are `Busy`, health says so, and
/// drain answers only after the end.
#[tokio::test]
async fn drain_lets_sequences_finish() {
    let worker = served(&options(1.0)).await;
    let stream = worker.client.generate(call(vec![5], 30)).await.unwrap();
    let client = worker.client.clone();
    let drain = tokio::spawn(async move { client.drain(PATIENCE).await });
    let mut draining = false;
    for _ in 0..1000 {
        draining = worker.client.health(PATIENCE).await.unwrap().draining;
        if draining {
            break;
        }
    }
    assert!(draining && !drain.is_finished());
    assert!(matches!(worker.client.generate(call(vec![6], 3)).await, Err(InstanceError::Busy(_))));
    assert_eq!(tokens(&collect(stream).await).len(), 30);
    tokio::time::timeout(PATIENCE, drain).await.unwrap().unwrap().unwrap();
    tokio::time::timeout(PATIENCE, worker.service.drain()).await.unwrap();
}

/// Scenario: a health check. Guarantees: it shows the incarnation and the engine's shape.
#[tokio::test]
async fn health_shows_the_incarnation() {
    let worker = served(&options(0.0)).await;
    let reply = worker.client.health(PATIENCE).await.unwrap();
    assert_eq!((reply.epoch, reply.context, reply.vocab, reply.blocks, reply.block_size), (7, 512, 512, 64, 16));
    assert_eq!(reply.model, "toy");
}

/// Scenario: nobody listens at the address. Guarantees: `Lost`, not a hang.
#[tokio::test]
async fn an_absent_worker_is_lost() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = GrpcInstance::new(address, ClientLimits::default()).unwrap();
    assert!(matches!(client.generate(call(vec![1], 1)).await, Err(InstanceError::Lost(_))));
    assert!(matches!(client.health(PATIENCE).await, Err(InstanceError::Lost(_))));
}

/// Scenario: a call with a grammar, over gRPC and in this process; the same from the middle on, as after a loss; a grammar
/// that is none.
/// Guarantees: the text follows the grammar and ends with it, the same on both ways; what a second instance adds to the
/// tokens of the first is what the first would have added; a wrong grammar is refused and not tried elsewhere.
#[tokio::test]
async fn a_grammar_crosses_the_wire() {
    let worker = served(&options(0.0)).await;
    let local = LocalInstance(worker.handle.clone());
    let grammar = Some(GrammarSource::Regex("( t[2-9]){6}".into()));
    let whole = collect(worker.client.generate_within(call(vec![1, 2], 20), grammar.clone()).await.unwrap()).await;
    let drawn = tokens(&whole);
    assert!(drawn.len() == 6 && drawn.iter().all(|token| (2..10).contains(token)), "{drawn:?}");
    let end = whole.last().unwrap().as_ref().unwrap().finish.clone().unwrap();
    assert_eq!(end.reason, FinishReason::Stop);
    let here = collect(local.generate_within(call(vec![1, 2], 20), grammar.clone()).await.unwrap()).await;
    assert_eq!(tokens(&here), drawn);

    let mut rest = call([&[1, 2], &drawn[..4]].concat(), 16);
    rest.sampling_offset = 4;
    let rest = collect(worker.client.generate_within(rest, grammar).await.unwrap()).await;
    assert_eq!(tokens(&rest), drawn[4..]);

    let wrong = || Some(GrammarSource::JsonSchema("{".into()));
    for refused in [
        worker.client.generate_within(call(vec![1], 5), wrong()).await,
        local.generate_within(call(vec![1], 5), wrong()).await,
    ] {
        let Err(InstanceError::Refused(words)) = refused else { panic!("it was taken") };
        assert!(words.contains("json_schema is not JSON"), "{words}");
    }
}
