//! What the views say of themselves, as rows: rows they refused, and how far the cache index can be trusted (SPEC C4); and
//! what they ask of the workers.
//!
//! Invariant: a row each for what was kept (see `dataflow::refused` and `dataflow::views` for the bounds), and one
//! `faults` row a period in which rows were refused, since these are for the eye. A worker is asked for sums of its blocks
//! once per audit interval; a question that fails is asked again by the index. Cost: O(rows). State: one task a question.

use std::{sync::Arc, time::Duration};

use super::glue::Views;
use crate::{
    bus::Bus,
    dataflow::{FlowViews, cache_row},
    gateway::instances::{InstanceEntry, InstanceState, KvAsk},
    ids::{InstanceId, Micros},
    policy::ViewMode,
    rows::FaultRow,
};

/// How soon after an epoch closed its requests are passed on.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// Changes of the views' mode. A view that has not begun is none: until the first epoch has closed nothing has gone stale.
#[derive(Debug, Default)]
pub struct ViewModes(Option<ViewMode>);

impl ViewModes {
    /// The fault to tell if the mode is another than at the last call. `seen`: the mode, and the views' time if they have one.
    pub fn change(&mut self, now: Micros, seen: (ViewMode, Option<Micros>)) -> Option<FaultRow> {
        let (mode, as_of) = seen;
        if self.0.is_none() && as_of.is_none() {
            return None;
        }
        let before = self.0.replace(mode).filter(|before| *before != mode)?;
        let detail = format!("views are {} (were {})", mode.name(), before.name());
        Some(FaultRow { at: now, component: "dataflow".into(), kind: "view_mode".into(), detail, count: 1 })
    }
}

/// Publishes what came since the last call. Rows are dropped only when the bus has stopped.
pub async fn publish(flow: &FlowViews, bus: &Bus, now: Micros) {
    for row in flow.take_cache_reports().iter().filter_map(cache_row) {
        let _ = bus.publish(row).await;
    }
    let rows = flow.refused().take(now);
    let Some(first) = rows.first() else { return };
    let row = FaultRow {
        at: now,
        component: "dataflow".into(),
        kind: "refused_row".into(),
        detail: format!("{}: {} … all of them are in refused_rows", first.topic, first.detail),
        count: rows.iter().map(|row| row.count).sum(),
    };
    tracing::warn!(rows = row.count, first = row.detail, "the dataflow refused rows");
    let _ = bus.publish(row).await;
    for row in rows {
        let _ = bus.publish(row).await;
    }
}

/// Passes on what the cache index asks of workers, and has each tell the sums of its blocks once per `audit_interval`.
pub async fn ask_workers(views: Arc<Views>, audit_interval: Duration) {
    let Some(flow) = views.flow.clone() else { return };
    let mut requests = tokio::time::interval(ASK_INTERVAL);
    let mut audits = tokio::time::interval(audit_interval);
    requests.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    audits.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = requests.tick() => for request in flow.take_replays() {
                let entry = views.directory.get(InstanceId(request.instance));
                // Of an older incarnation nothing can be had, and nothing is needed.
                if let Some(entry) = entry.filter(|entry| entry.epoch.0 == request.incarnation) {
                    ask(&entry, KvAsk::Again(request.want));
                }
            },
            _ = audits.tick() => {
                views.directory.load().iter().for_each(|entry| ask(entry, KvAsk::Sums));
            }
        }
    }
}

fn ask(entry: &Arc<InstanceEntry>, ask: KvAsk) {
    let Some(client) = entry.client.clone().filter(|_| entry.state == InstanceState::Ready) else { return };
    let (id, epoch) = (entry.id, entry.epoch);
    tokio::spawn(async move {
        match client.tell_kv(epoch, ask).await {
            Ok(rows) => tracing::debug!(instance = %id, ?ask, rows, "KV events are told"),
            Err(error) => tracing::warn!(instance = %id, ?ask, %error, "KV events are not told again"),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a server starts, its first epoch closes, then the views go stale, lose their time, and come back.
    /// Guarantees: the start is no fault; each change after it is one, also where the views have no time any more.
    #[test]
    fn a_view_that_has_not_begun_is_no_fault() {
        let mut modes = ViewModes::default();
        let seen = [
            (ViewMode::Stale, None),
            (ViewMode::Stale, None),
            (ViewMode::Exact, Some(1)),
            (ViewMode::Exact, Some(2)),
            (ViewMode::Stale, Some(2)),
            (ViewMode::Stale, None),
            (ViewMode::Degraded, Some(9)),
        ];
        let told: Vec<String> =
            seen.into_iter().filter_map(|seen| modes.change(1, seen)).map(|row| row.detail).collect();
        assert_eq!(told, ["views are stale (were exact)", "views are degraded (were stale)"]);
    }
}
