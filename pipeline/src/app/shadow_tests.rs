//! Shadows that are slow or panic, behind a real sink and thread.

use std::sync::mpsc as plain;

use super::*;

/// Counts the rows that came through.
#[derive(Default)]
struct Inner(Mutex<Vec<String>>);

impl EventSink for Inner {
    fn request(&self, _: RequestRow) -> Sent<'_> {
        Sent::Taken
    }
    fn decision(&self, row: DecisionRow) -> Sent<'_> {
        self.0.lock().unwrap().push(row.decision_id.into());
        Sent::Taken
    }
    fn policy_input(&self, _: Box<PolicyInputRow>) -> Sent<'_> {
        Sent::Taken
    }
    fn fault(&self, _: FaultRow) -> Sent<'_> {
        Sent::Taken
    }
    fn settings(&self, _: SettingsRow) -> Sent<'_> {
        Sent::Taken
    }
    fn slo(&self, _: SloRow) -> Sent<'_> {
        Sent::Taken
    }
    fn slo_reliability(&self, _: SloReliabilityRow) -> Sent<'_> {
        Sent::Taken
    }
}

/// Answers when it is let to; panics at the decision named.
struct Scripted {
    name: &'static str,
    gate: Option<plain::Receiver<()>>,
    panics_at: Option<&'static str>,
}

impl Shadow for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn ask(&mut self, shown: &Shown) -> Option<ShadowDecisionRow> {
        let Shown::Decision(made) = shown else { return None };
        assert!(!made.inputs.is_empty(), "a decision is shown with its inputs");
        if let Some(gate) = &self.gate {
            gate.recv().ok()?;
        }
        assert!(self.panics_at != Some(made.decision.decision_id.as_str()), "scripted");
        Some(ShadowDecisionRow {
            shadow: self.name.into(),
            ..crate::bus::tests::rows::shadow(&made.decision.decision_id)
        })
    }
}

fn outlet() -> (Outlet, plain::Receiver<String>) {
    let (told, heard) = plain::channel();
    let outlet: Outlet = Box::new(move |what| {
        let text = match what {
            Told::Decision(row) => format!("{} {}", row.shadow, row.decision_id),
            Told::Fault(row) => format!("{} {}", row.kind, row.detail.split(" and ").next().unwrap_or_default()),
        };
        told.send(text).is_ok()
    });
    (outlet, heard)
}

async fn decide(sink: &ShadowSink, id: &str) {
    let input = PolicyInputRow { decision_id: id.into(), reading: "arrival".into(), ..PolicyInputRow::default() };
    sink.policy_input(Box::new(input)).await;
    sink.decision(DecisionRow { decision_id: id.into(), ..crate::bus::tests::rows::decision(vec![]) }).await;
}

/// Scenario: a shadow that does not answer, and twenty decisions with room for two that wait; then it answers.
/// Guarantees: every decision goes on at once; what the shadow had no room for is counted, whole decisions each; the rest is answered
/// in order.
#[tokio::test]
async fn a_slow_shadow_holds_up_nobody() {
    let inner = Arc::<Inner>::default();
    let (open, gate) = plain::channel();
    let shadow = Scripted { name: "slow", gate: Some(gate), panics_at: None };
    let (outlet, heard) = outlet();
    let sink = ShadowSink::start(inner.clone(), vec![Box::new(shadow)], (2, outlet)).unwrap();
    for number in 0..20 {
        decide(&sink, &format!("d{number}")).await;
    }
    assert_eq!(inner.0.lock().unwrap().len(), 20, "the acting policy's rows, with the shadow still at its first");
    let (shown, dropped) = (sink.counters.shown.load(Ordering::Relaxed), sink.counters.dropped.load(Ordering::Relaxed));
    // Two wait, and the thread may have taken one before.
    assert!((2..=3).contains(&shown) && shown + dropped == 20, "{shown} shown, {dropped} dropped");
    assert!(sink.held.lock().unwrap().is_empty());
    (0..20).for_each(|_| open.send(()).unwrap());
    drop(sink);
    let answers: Vec<String> = heard.iter().collect();
    assert_eq!(answers.len() as u64, shown);
    assert_eq!(answers[0], "slow d0");
}

/// Scenario: of two shadows one panics at the second of four decisions; a refusal without inputs comes in between.
/// Guarantees: the acting policy's rows all go on, the other shadow answers all; the one that panicked is asked no more and says so.
#[tokio::test]
async fn a_panicking_shadow_is_asked_no_more() {
    let inner = Arc::<Inner>::default();
    let shadow = |name, panics_at| Box::new(Scripted { name, gate: None, panics_at }) as Box<dyn Shadow>;
    let (outlet, heard) = outlet();
    let shadows = vec![shadow("frail", Some("d1")), shadow("sound", None)];
    let sink = ShadowSink::start(inner.clone(), shadows, (64, outlet)).unwrap();
    for number in 0..4 {
        decide(&sink, &format!("d{number}")).await;
    }
    sink.decision(DecisionRow { decision_id: "refused".into(), ..crate::bus::tests::rows::decision(vec![]) }).await;
    drop(sink);
    let answers: Vec<String> = heard.iter().collect();
    assert_eq!(inner.0.lock().unwrap().len(), 5);
    let expected =
        ["frail d0", "sound d0", "panicked shadow policy frail panicked on d1", "sound d1", "sound d2", "sound d3"];
    assert_eq!(answers, expected);
}
