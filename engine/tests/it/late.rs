//! Sequences with a time to be dropped (SPEC A4).

use engine::{
    config::EngineConfig,
    request::{FinishReason, GenerateRequest},
};
use proptest::prelude::*;

use crate::support::{Ledger, engine_with, prompt, reference_tokens, request};

/// Scenario: one sequence runs, one waits; both are to be dropped while a third, without such a time, goes on.
/// Guarantees: each ends as late at the start of the first step from its time on, running or not, its blocks back in that
/// step; the third gives the tokens it must.
#[test]
fn the_late_end_at_their_time() {
    let config = EngineConfig { max_running: 2, ..EngineConfig::default() };
    let mut engine = engine_with(config, 64);
    let stays = request(1, &prompt(1, 20), 30);
    engine.submit(stays.clone(), 0).unwrap();
    for (id, drop_at) in [(2, 5_000), (3, 3_000)] {
        engine
            .submit(GenerateRequest { drop_at: Some(drop_at), ..request(id, &prompt(id as u32, 20), 30) }, 0)
            .unwrap();
    }
    let (mut ledger, mut now, mut ends) = (Ledger::default(), 0, Vec::new());
    while engine.has_work() {
        now += 1_000;
        let before = ledger.finished.len();
        ledger.add(&engine.step(now));
        engine.check_invariants().unwrap();
        ends.extend(ledger.finished[before..].iter().map(|id| (*id, now)));
    }
    assert_eq!(ends[..2], [(3, 3_000), (2, 5_000)]);
    let reason = |id: u64| ledger.outcomes[&id].finish().reason;
    assert_eq!((reason(2), reason(3)), (FinishReason::Late, FinishReason::Late));
    assert!(ledger.outcomes[&2].tokens.len() == 4 && ledger.outcomes[&3].tokens.is_empty(), "{:?}", ledger.outcomes);
    assert_eq!(ledger.outcomes[&1].tokens, reference_tokens(&stays));
}

proptest! {
    /// Scenario: sequences of any length arrive in a small pool, so that some give way; each may have a time to be dropped.
    /// Guarantees: after its time a sequence gives nothing, before it never ends as late; what it gave is a beginning of the
    /// tokens it must give; no block is lost.
    #[test]
    fn nothing_comes_after_the_time(
        visits in prop::collection::vec((1usize..40, 1u32..40, prop::option::of(1i64..60), 0i64..30), 1..12)
    ) {
        let config = EngineConfig { max_running: 4, ..EngineConfig::default() };
        let mut engine = engine_with(config, 40);
        let requests: Vec<_> = visits.iter().enumerate().map(|(id, (length, max_tokens, drop_at, _))| GenerateRequest {
            drop_at: drop_at.map(|at| at * 1_000),
            ..request(id as u64, &prompt(id as u32, *length), *max_tokens)
        }).collect();
        let (mut ledger, mut now) = (Ledger::default(), 0);
        while now <= 60_000 || engine.has_work() {
            for (request, (.., arrives)) in requests.iter().zip(&visits) {
                if arrives * 1_000 == now {
                    engine.submit(request.clone(), now).unwrap();
                }
            }
            now += 1_000;
            prop_assert!(now < 5_000_000);
            let report = engine.step(now);
            for output in &report.outputs {
                let drop_at = requests[output.sequence.0 as usize].drop_at;
                let is_late = output.finish.as_ref().is_some_and(|finish| finish.reason == FinishReason::Late);
                prop_assert_eq!(is_late, drop_at.is_some_and(|at| at <= now), "{:?} at {}", output, now);
                prop_assert!(!is_late || output.tokens.is_empty());
            }
            ledger.add(&report);
            prop_assert!(engine.check_invariants().is_ok());
        }
        for (id, outcome) in &ledger.outcomes {
            let all = reference_tokens(&requests[*id as usize]);
            prop_assert_eq!(&outcome.tokens[..], &all[..outcome.tokens.len()]);
            prop_assert!(outcome.finish().reason == FinishReason::Late || outcome.tokens.len() == all.len());
        }
    }
}
