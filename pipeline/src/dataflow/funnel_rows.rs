//! Funnel and diagnosis become rows of the bus (SPEC C5, D4).
//!
//! Per request or window and group: one row per layer (for `present` one per KV level that holds some), one per reason that
//! took tokens. Cost: O(layers + reasons) per request.

use operators::{
    DiagnosisConfig, FunnelCase, FunnelGroup, FunnelSums, LOSSES, Layer, Loss, Span, funnel::ANY_MODEL, funnel_window,
};

use super::{
    curve_rows::EpochClock,
    feed::{Names, tier_name},
    funnel_feed::request_id,
};
use crate::{
    ids::Micros,
    rows::{DiagnosisRow, FunnelRow, FunnelWindowRow},
};

/// Name of what is counted together beyond the bound of groups.
const OTHER: &str = "(other)";

/// Tokens at a layer or lost on the way to it.
#[derive(Debug, Default, PartialEq)]
struct Part {
    layer: String,
    level: Option<String>,
    reason: Option<String>,
    tokens: i64,
    predicted_seconds: Option<f64>,
}

fn parts(layers: &[u64], by_level: &[u64], losses: [(i64, i128); LOSSES]) -> Vec<Part> {
    let mut parts = Vec::new();
    for layer in Layer::ALL {
        let reached =
            |level, tokens: u64| Part { layer: layer.name().into(), level, tokens: tokens as i64, ..Part::default() };
        let tokens = layers[layer as usize];
        if layer == Layer::Present && tokens > 0 {
            let held = by_level.iter().enumerate().filter(|(_, tokens)| **tokens > 0);
            parts.extend(held.map(|(level, tokens)| reached(Some(level_name(level)), *tokens)));
        } else {
            parts.push(reached(None, tokens));
        }
        let lost =
            Loss::ALL.into_iter().zip(losses).filter(|(loss, (tokens, _))| loss.layer() == layer && *tokens != 0);
        parts.extend(lost.map(|(loss, (tokens, ns))| Part {
            layer: layer.name().into(),
            level: None,
            reason: Some(loss.name().into()),
            tokens,
            predicted_seconds: (ns != 0).then_some(ns as f64 / 1e9),
        }));
    }
    parts
}

fn level_name(level: usize) -> String {
    format!("L{}", level + 1)
}

/// One request as rows.
pub(super) fn case_rows(case: &FunnelCase, names: &Names) -> Vec<FunnelRow> {
    let losses = case.losses.map(|tokens| (tokens, i128::from(tokens) * i128::from(case.ns_per_token)));
    let row = |part: Part| FunnelRow {
        at: case.at_us,
        request_id: request_id(case.request),
        model: names.name(case.model),
        region: names.name(case.region),
        tier: tier_name(case.tier).into(),
        tenant: names.name(case.tenant),
        instance: case.instance,
        layer: part.layer,
        level: part.level,
        reason: part.reason,
        tokens: part.tokens,
        predicted_seconds: part.predicted_seconds,
    };
    parts(&case.layers, &case.present_by_level, losses).into_iter().map(row).collect()
}

fn end(clock: EpochClock, epoch: u64) -> Micros {
    clock.origin + (epoch as i64 + 1) * clock.epoch_us
}

fn span_seconds(clock: EpochClock, from_epoch: u64, epoch: u64) -> f64 {
    (epoch - from_epoch + 1) as f64 * clock.epoch_us as f64 / 1e6
}

/// One group over one span as rows.
pub(super) fn window_rows(
    row: &funnel_window::FunnelWindowRow,
    names: &Names,
    clock: EpochClock,
) -> Vec<FunnelWindowRow> {
    let FunnelSums { layers, present_by_level, losses, loss_ns, requests } = row.sums;
    let is_other = row.group == FunnelGroup::OTHER;
    let name = |number| if is_other { OTHER.to_string() } else { names.name(number) };
    let losses = std::array::from_fn(|place| (losses[place], loss_ns[place]));
    let made = |part: Part| FunnelWindowRow {
        as_of: end(clock, row.epoch),
        span: match row.span {
            Span::Tumbling => "tumbling".into(),
            Span::Running => "running".into(),
        },
        window_seconds: span_seconds(clock, row.from_epoch, row.epoch),
        model: name(row.group.model),
        region: name(row.group.region),
        tier: if is_other { OTHER.into() } else { tier_name(row.group.tier).into() },
        tenant: name(row.group.tenant),
        requests,
        layer: part.layer,
        level: part.level,
        reason: part.reason,
        tokens: part.tokens,
        predicted_seconds: part.predicted_seconds,
    };
    parts(&layers, &present_by_level, losses).into_iter().map(made).collect()
}

/// One model over one window.
pub(super) fn diagnosis_row(row: &operators::DiagnosisRow, names: &Names, clock: EpochClock) -> DiagnosisRow {
    let seconds = |us: u64| us as f64 / 1e6;
    let share = |thousandths: u64| thousandths as f64 / 1000.0;
    let most = DiagnosisConfig::default();
    DiagnosisRow {
        as_of: end(clock, row.epoch),
        model: if row.model == ANY_MODEL { "(unknown)".into() } else { names.name(row.model) },
        window_seconds: span_seconds(clock, row.from_epoch, row.epoch),
        verdict: row.verdict.name().into(),
        requests: row.requests,
        slow_requests: row.slow_requests,
        slow_from_seconds: seconds(row.slow_from_us),
        slow_seconds: seconds(row.slow_total_us),
        slow_queue_seconds: seconds(row.slow_queue_us),
        slow_wait_seconds: seconds(row.slow_wait_us),
        queue_share: row.queue_share.map(share),
        queue_share_most: share(most.queue_share_most),
        steps: row.steps,
        step_seconds: seconds(row.steps_us),
        spikes: row.spikes,
        spike_seconds: seconds(row.spikes_us),
        spikes_paged: row.spikes_paged,
        spike_share: row.spike_share.map(share),
        spike_share_most: share(most.spike_share_most),
        decode_steps: row.decodes,
        decode_seconds: seconds(row.decodes_us),
        decode_predicted_seconds: seconds(row.decodes_predicted_us),
        context_seconds: seconds(row.context_us),
        decode_ratio: row.decode_ratio.map(share),
        decode_ratio_most: share(most.decode_ratio_most),
        worst_requests: row.worst.iter().flatten().map(|request| request_id(*request)).collect(),
        worst_step_instance: row.worst_step.map(|worst| worst.instance),
        worst_step_epoch: row.worst_step.map(|worst| worst.epoch),
        worst_step: row.worst_step.map(|worst| worst.step),
        worst_step_us: row.worst_step.map(|worst| i64::try_from(worst.step_us).unwrap_or(i64::MAX)),
    }
}
