//! Funnel and diagnosis become rows of the bus (SPEC C5, D4).
//!
//! Per request or window and group: one row per layer (for `present` one per KV level that holds some), one per reason that
//! took tokens. Cost: O(layers + reasons) per request.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float64Builder, Int64Builder, RecordBatch, StringBuilder, TimestampMicrosecondBuilder, UInt32Builder,
};
use operators::{
    DiagnosisConfig, FunnelCase, FunnelGroup, FunnelSums, LOSSES, Layer, Loss, Span, funnel::ANY_MODEL, funnel_window,
};
use queries::Topic;
use smol_str::format_smolstr;

use super::{
    curve_rows::EpochClock,
    feed::{Names, tier_name},
    funnel_feed::request_id,
};
use crate::{
    ids::{Micros, Name},
    rows::{DiagnosisRow, FunnelWindowRow},
};

/// Name of what is counted together beyond the bound of groups.
const OTHER: &str = "(other)";

/// Tokens at a layer or lost on the way to it.
#[derive(Debug, Default, PartialEq)]
struct Part {
    layer: Name,
    level: Option<Name>,
    reason: Option<Name>,
    tokens: i64,
    predicted_seconds: Option<f64>,
}

fn parts(layers: &[u64], by_level: &[u64], losses: [(i64, i128); LOSSES]) -> Vec<Part> {
    let mut parts = Vec::new();
    for layer in Layer::ALL {
        let reached = |level, tokens: u64| Part {
            layer: Name::new_static(layer.name()),
            level,
            tokens: tokens as i64,
            ..Part::default()
        };
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
            layer: Name::new_static(layer.name()),
            level: None,
            reason: Some(Name::new_static(loss.name())),
            tokens,
            predicted_seconds: (ns != 0).then_some(ns as f64 / 1e9),
        }));
    }
    parts
}

fn level_name(level: usize) -> Name {
    format_smolstr!("L{}", level + 1)
}

/// Requests as a batch of `funnel`, column by column: they are many rows, whose texts are mostly the same.
pub(super) fn case_batch(cases: &[FunnelCase], names: &Names) -> RecordBatch {
    let schema = Topic::Funnel.schema();
    let mut at = TimestampMicrosecondBuilder::new().with_data_type(schema.field(0).data_type().clone());
    let mut request_texts: [StringBuilder; 5] = Default::default();
    let mut instance = UInt32Builder::new();
    let mut part_texts: [StringBuilder; 3] = Default::default();
    let (mut tokens, mut seconds) = (Int64Builder::new(), Float64Builder::new());
    for case in cases {
        let [model, region, tenant] = [case.model, case.region, case.tenant].map(|number| names.name(number));
        let texts = [&request_id(case.request), &*model, &*region, tier_name(case.tier), &*tenant];
        for part in parts(&case.layers, &case.present_by_level, losses(case)) {
            at.append_value(case.at_us);
            request_texts.iter_mut().zip(texts).for_each(|(column, text)| column.append_value(text));
            instance.append_option(case.instance);
            let words = [Some(part.layer), part.level, part.reason];
            part_texts.iter_mut().zip(words).for_each(|(column, word)| column.append_option(word));
            tokens.append_value(part.tokens);
            seconds.append_option(part.predicted_seconds);
        }
    }
    let mut columns: Vec<ArrayRef> = vec![Arc::new(at.finish())];
    columns.extend(request_texts.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
    columns.push(Arc::new(instance.finish()));
    columns.extend(part_texts.iter_mut().map(|column| Arc::new(column.finish()) as ArrayRef));
    columns.extend([Arc::new(tokens.finish()) as ArrayRef, Arc::new(seconds.finish())]);
    RecordBatch::try_new(schema, columns)
        .expect("invariant: the columns of the topic; a test compares them with its rows")
}

fn losses(case: &FunnelCase) -> [(i64, i128); LOSSES] {
    case.losses.map(|tokens| (tokens, i128::from(tokens) * i128::from(case.ns_per_token)))
}

/// One request as rows.
#[cfg(test)]
fn case_rows(case: &FunnelCase, names: &Names) -> Vec<crate::rows::FunnelRow> {
    let request_id: Name = request_id(case.request).into();
    let [model, region, tenant] = [case.model, case.region, case.tenant].map(|number| names.name(number));
    let row = |part: Part| crate::rows::FunnelRow {
        at: case.at_us,
        request_id: request_id.clone(),
        model: model.clone(),
        region: region.clone(),
        tier: tier_name(case.tier).into(),
        tenant: tenant.clone(),
        instance: case.instance,
        layer: part.layer,
        level: part.level,
        reason: part.reason,
        tokens: part.tokens,
        predicted_seconds: part.predicted_seconds,
    };
    parts(&case.layers, &case.present_by_level, losses(case)).into_iter().map(row).collect()
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
    let name = |number| if is_other { Name::new_static(OTHER) } else { names.name(number) };
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
        model: if row.model == ANY_MODEL { "(unknown)".into() } else { names.name(row.model).into() },
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::worker::telemetry::batch_of;

    proptest! {
        /// Scenario: any requests, with and without an instance, prefill rate, losses and gains.
        /// Guarantees: the batch made column by column is that of the rows, one by one.
        #[test]
        fn a_batch_is_its_rows(
            cases in prop::collection::vec((any::<u128>(), prop::option::of(0u32..9), 0u8..3, 0u64..2, 0u64..500, -9i64..9), 0..9),
        ) {
            let names = Names::default();
            let made: Vec<FunnelCase> = cases.into_iter().map(|(request, instance, tier, ns_per_token, tokens, lost)| {
                let (model, region) = (names.number("m"), names.number("local"));
                let tenant = names.number(&format!("tenant {tier}"));
                let layers = std::array::from_fn(|place| tokens / (place as u64 + 1));
                let present_by_level = std::array::from_fn(|level| tokens * u64::from(level % 2 == 0));
                let losses = std::array::from_fn(|place| lost * i64::from(place % 3 == 0));
                let (epoch, at_us, is_reported) = (1, 7, true);
                FunnelCase {
                    epoch, request, at_us, model, region, tier, tenant, instance, is_reported, ns_per_token, layers,
                    present_by_level, losses,
                }
            }).collect();
            let rows: Vec<_> = made.iter().flat_map(|case| case_rows(case, &names)).collect();
            prop_assert_eq!(case_batch(&made, &names), batch_of(&rows).unwrap());
        }
    }
}
