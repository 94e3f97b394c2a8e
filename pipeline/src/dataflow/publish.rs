//! Views become rows of the bus, so that their history is in SQL and in snapshots.
//!
//! Cost: O(live atoms + instances + groups) per period. Nothing is published while nothing is live.

use arrow::array::RecordBatch;
use operators::{CacheReport, DistributionRow, LoadTotal, Quantiles, SessionRow};

use super::{
    feed::{Names, tier_name},
    funnel_rows::{case_batch, diagnosis_row, window_rows},
    read::cached_blocks,
    views::{CacheSays, FlowViews, FunnelNews, ViewState},
};
use crate::{
    ids::{InstanceId, Micros},
    rows::{
        AtomLoadRow, CacheViewRow, DiagnosisRow, FunnelWindowRow, InstanceLoadRow, LoadTotalsRow,
        RequestDistributionRow, SessionActivityRow,
    },
};

/// Requests whose funnels are one batch.
const CASES_OF_BATCH: usize = 1024;

/// One period's rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ViewRows {
    pub atoms: Vec<AtomLoadRow>,
    pub totals: Vec<LoadTotalsRow>,
    pub instances: Vec<InstanceLoadRow>,
    pub distribution: Vec<RequestDistributionRow>,
    pub sessions: Vec<SessionActivityRow>,
}

/// The funnel's news as rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FunnelRows {
    /// Rows of `funnel`, of at most [`CASES_OF_BATCH`] requests each.
    pub cases: Vec<RecordBatch>,
    pub windows: Vec<FunnelWindowRow>,
    pub diagnoses: Vec<DiagnosisRow>,
}

/// What the funnel and the diagnosis told, as rows.
pub fn funnel_rows(news: &FunnelNews, flow: &FlowViews) -> FunnelRows {
    let (names, epochs) = (flow.names(), flow.epochs());
    FunnelRows {
        cases: news.cases.chunks(CASES_OF_BATCH).map(|cases| case_batch(cases, names)).collect(),
        windows: news.windows.iter().flat_map(|row| window_rows(row, names, epochs)).collect(),
        diagnoses: news.diagnoses.iter().map(|row| diagnosis_row(row, names, epochs)).collect(),
    }
}

/// The state as rows. `leased`: tokens leased per instance, from the gateway. `epoch_us`: length of an epoch.
pub fn view_rows(state: &ViewState, names: &Names, leased: &[(u32, u64)], epoch_us: i64) -> ViewRows {
    let Some(as_of) = state.as_of else { return ViewRows::default() };
    ViewRows {
        atoms: state
            .atoms
            .iter()
            .map(|((instance, atom), total)| AtomLoadRow {
                as_of,
                instance: *instance,
                from_tokens: atom * operators::ATOM_TOKENS,
                to_tokens: (atom + 1) * operators::ATOM_TOKENS,
                tokens: total.tokens,
                requests: total.requests,
            })
            .collect(),
        totals: total_rows(state, names, as_of),
        instances: instance_rows(state, leased, as_of),
        distribution: state
            .distribution
            .values()
            .map(|row| {
                let live = state.group_load.get(&(row.model, row.tier)).copied().unwrap_or_default();
                RequestDistributionRow {
                    concurrent_tokens: Some(live.tokens),
                    concurrent_requests: Some(live.requests),
                    ..distribution_row(row, names, as_of, epoch_us)
                }
            })
            .collect(),
        sessions: state.sessions.values().map(|row| session_row(row, names, as_of, epoch_us)).collect(),
    }
}

fn total_rows(state: &ViewState, names: &Names, as_of: Micros) -> Vec<LoadTotalsRow> {
    let row = |grouped_by: &str, total: &LoadTotal| LoadTotalsRow {
        as_of,
        grouped_by: grouped_by.into(),
        tokens: total.tokens,
        requests: total.requests,
        uncached_tokens: Some(total.uncached),
        ..LoadTotalsRow::default()
    };
    let model = |number: u32| Some(names.name(number).into());
    let regions = state
        .region_load
        .iter()
        .map(|(id, total)| LoadTotalsRow { region: Some((*id).into()), ..row("region", total) });
    let models = state.model_load.iter().map(|(id, total)| LoadTotalsRow { model: model(*id), ..row("model", total) });
    let tiers = state.group_load.iter().map(|((id, tier), total)| LoadTotalsRow {
        model: model(*id),
        tier: Some(tier_name(*tier).into()),
        ..row("tier", total)
    });
    let buckets = state.bucket_load.iter().map(|((id, bucket), total)| LoadTotalsRow {
        model: model(*id),
        bucket: Some(*bucket),
        ..row("bucket", total)
    });
    regions.chain(models).chain(tiers).chain(buckets).collect()
}

fn session_row(row: &SessionRow, names: &Names, as_of: Micros, epoch_us: i64) -> SessionActivityRow {
    SessionActivityRow {
        as_of,
        model: names.name(row.model).into(),
        window_seconds: (row.epoch - row.from_epoch + 1) as f64 * epoch_us as f64 / 1e6,
        sessions: row.sessions,
        requests: row.requests,
        turns_p50: row.turns.map(|turns| turns.p50 as f64),
        turns_p95: row.turns.map(|turns| turns.p95 as f64),
        turns_p99: row.turns.map(|turns| turns.p99 as f64),
        sampled_one_in: row.sampled_one_in,
    }
}

/// What the cache index said of itself, as a row; requests are no rows.
pub fn cache_row(said: &CacheSays) -> Option<CacheViewRow> {
    let row = |instance, epoch, event: &str| CacheViewRow {
        at: said.at,
        instance,
        epoch,
        event: event.into(),
        mode: said.trust.0.name().into(),
        cause: said.trust.1.name().into(),
        ..CacheViewRow::default()
    };
    match said.report {
        CacheReport::Health(health) => Some(row(health.instance, health.incarnation, "mode")),
        CacheReport::Audit(audit) => Some(CacheViewRow {
            held_blocks: Some(audit.held),
            indexed_blocks: Some(audit.indexed),
            differing_blocks: Some(audit.differing),
            drift_ratio: Some(audit.drift_ratio()),
            ..row(audit.instance, audit.incarnation, if audit.is_listed { "listing" } else { "audit" })
        }),
        CacheReport::Replay(_) => None,
    }
}

fn instance_rows(state: &ViewState, leased: &[(u32, u64)], as_of: Micros) -> Vec<InstanceLoadRow> {
    let mut instances: Vec<_> = state.instances.values().collect();
    instances.sort_by_key(|row| row.step.instance);
    instances
        .into_iter()
        .map(|row| {
            let instance = row.step.instance;
            let live = state.instance_load.get(&instance).map_or(0, |total| total.tokens.max(0) as u64);
            InstanceLoadRow {
                as_of,
                instance,
                epoch: row.step.epoch,
                running: row.step.running,
                waiting: row.step.waiting,
                leased_tokens: leased.iter().find(|(id, _)| *id == instance).map_or(0, |(_, tokens)| *tokens),
                context_tokens: live,
                queued_prefill_tokens: row.step.queued_prefill_tokens,
                cached_blocks: cached_blocks(state, InstanceId(instance)),
                blocks_used: row.step.blocks_used,
                blocks_total: row.step.blocks_total,
                prefill_tokens_per_second: row.prefill_tokens_per_s.map(|rate| rate as f64),
                decode_step_seconds: row.fit.map(|fit| fit.predict_ns(row.step.running.max(1).into(), 0) as f64 / 1e9),
                // A step older than a second says nothing of the last second.
                tokens_per_second: Some(if as_of - row.step.at_us > 1_000_000 { 0.0 } else { row.tokens_per_s as f64 }),
            }
        })
        .collect()
}

fn distribution_row(row: &DistributionRow, names: &Names, as_of: Micros, epoch_us: i64) -> RequestDistributionRow {
    let parts = |quantiles: Option<Quantiles>, divisor: f64| {
        let value = |pick: fn(&Quantiles) -> u64| quantiles.as_ref().map(|q| pick(q) as f64 / divisor);
        [value(|q| q.p50), value(|q| q.p95), value(|q| q.p99)]
    };
    let (prompt, output) = (parts(row.prompt, 1.0), parts(row.output, 1.0));
    let (ttft, itl) = (parts(row.ttft_us, 1e3), parts(row.itl_us, 1e3));
    let window_seconds = (row.epoch - row.from_epoch + 1) as f64 * epoch_us as f64 / 1e6;
    RequestDistributionRow {
        as_of,
        model: names.name(row.model).into(),
        tier: tier_name(row.tier).into(),
        window_seconds,
        arrived: row.arrivals,
        finished: row.finished,
        prompt_tokens: row.prompt_tokens,
        cached_tokens: row.cached_tokens,
        output_tokens: row.output_tokens,
        prompt_p50: prompt[0],
        prompt_p95: prompt[1],
        prompt_p99: prompt[2],
        output_p50: output[0],
        output_p95: output[1],
        output_p99: output[2],
        ttft_ms_p50: ttft[0],
        ttft_ms_p95: ttft[1],
        ttft_ms_p99: ttft[2],
        itl_ms_p50: itl[0],
        itl_ms_p95: itl[1],
        itl_ms_p99: itl[2],
        arrivals_per_second: Some(row.arrivals as f64 / window_seconds),
        ..RequestDistributionRow::default()
    }
}
