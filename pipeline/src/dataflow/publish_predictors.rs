//! What the predictors know and how well they predict, as rows of the bus.
//!
//! Invariant: only what has learnt since the last period is published. Cost: O(shapes + groups + models that learnt), and
//! a few predictions for each. No state.

use operators::{
    ArrivalTrendRow as Trend, DecodeWork, LengthKey, OutputLengthRow as Lengths, PredictionError, PrefillWork,
    ServiceTimeRow as Service, output_length::PROMPT_CLASSES,
};

use super::{
    feed::{Names, class_name, shape_name, tier_name},
    views::ViewState,
};
use crate::{
    ids::Micros,
    rows::{ArrivalTrendRow, OutputLengthRow, PredictionErrorRow, ServiceTimeRow},
};

/// One period's rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PredictorRows {
    pub service_times: Vec<ServiceTimeRow>,
    pub output_lengths: Vec<OutputLengthRow>,
    pub arrival_trends: Vec<ArrivalTrendRow>,
    pub errors: Vec<PredictionErrorRow>,
    /// The latest epoch told of.
    pub epoch: Option<u64>,
}

/// Lengths that turn epochs into seconds, and what was told before.
#[derive(Debug, Clone, Copy)]
pub struct PredictorSpan {
    pub period_seconds: f64,
    pub horizon_seconds: f64,
    /// Only what learnt after this epoch is told.
    pub told: Option<u64>,
}

/// The service times of all shapes, as rows.
pub fn service_rows(state: &ViewState, names: &Names) -> Vec<ServiceTimeRow> {
    let Some(as_of) = state.as_of else { return Vec::new() };
    state.service_times.values().map(|row| service_row(row, names, as_of)).collect()
}

/// What learnt since `span.told`, as rows.
pub fn predictor_rows(state: &ViewState, names: &Names, span: PredictorSpan) -> PredictorRows {
    let Some(as_of) = state.as_of else { return PredictorRows::default() };
    let is_new = |epoch: u64| span.told.is_none_or(|told| epoch > told);
    let mut rows = PredictorRows { epoch: span.told, ..PredictorRows::default() };
    for row in state.service_times.values().filter(|row| is_new(row.epoch)) {
        rows.epoch = rows.epoch.max(Some(row.epoch));
        rows.service_times.push(service_row(row, names, as_of));
        let error = |predictor: &str, error: &PredictionError| PredictionErrorRow {
            model: shape_name(names, row.shape),
            ..error_row((predictor, "s"), error, as_of)
        };
        rows.errors.extend([error("prefill_step", &row.prefill_error), error("decode_step", &row.decode_error)]);
    }
    for row in state.output_lengths.values().filter(|row| is_new(row.epoch)) {
        rows.epoch = rows.epoch.max(Some(row.epoch));
        let told = length_row(row, names, as_of);
        rows.errors.push(PredictionErrorRow {
            model: told.model.clone(),
            tier: told.tier.clone(),
            tenant_class: told.tenant_class.clone(),
            prompt_from_tokens: told.prompt_from_tokens,
            prompt_to_tokens: told.prompt_to_tokens,
            ..error_row(("output_length", "tokens"), &row.error, as_of)
        });
        rows.output_lengths.push(told);
    }
    for row in state.arrival_trends.values().filter(|row| is_new(row.epoch)) {
        rows.epoch = rows.epoch.max(Some(row.epoch));
        rows.arrival_trends.push(trend_row(row, names, (as_of, span)));
        let error = |predictor: &str, error: &PredictionError| PredictionErrorRow {
            model: names.name(row.model).into(),
            ..error_row((predictor, "requests"), error, as_of)
        };
        rows.errors.extend([error("arrivals_next", &row.next_error), error("arrivals_ahead", &row.ahead_error)]);
    }
    // A predictor that has predicted nothing yet has no error.
    rows.errors.retain(|row| row.predictions > 0);
    rows
}

fn error_row((predictor, unit): (&str, &str), error: &PredictionError, as_of: Micros) -> PredictionErrorRow {
    PredictionErrorRow {
        as_of,
        predictor: predictor.into(),
        error_unit: unit.into(),
        predictions: error.samples,
        bias: error.bias,
        mape: error.mape,
        coverage_90: error.coverage_90,
        ..PredictionErrorRow::default()
    }
}

fn service_row(row: &Service, names: &Names, as_of: Micros) -> ServiceTimeRow {
    let (prefill, decode) = (row.time.prefill.as_ref(), row.time.decode.as_ref());
    // The fits' columns are scaled: 256 prompt tokens, 4096 tokens of context, 16 sequences.
    let of_prefill = |place: usize, scale: f64| prefill.map(|fit| fit.coefficients[place] / scale);
    let of_decode = |place: usize, scale: f64| decode.map(|fit| fit.coefficients[place] / scale);
    let thousand = row.time.prefill(&PrefillWork { uncached_tokens: 1000, ..PrefillWork::default() });
    let hundred = row.time.decode(&DecodeWork { tokens: 100, sequences: 4, context_tokens: 4000 });
    ServiceTimeRow {
        as_of,
        shape: shape_name(names, row.shape),
        prefill_steps: prefill.map_or(0, |fit| fit.samples),
        decode_steps: decode.map_or(0, |fit| fit.samples),
        chunk_tokens: row.time.chunk_tokens,
        prefill_base_seconds: of_prefill(0, 1.0),
        prefill_seconds_per_token: of_prefill(1, 256.0),
        prefill_seconds_per_token_and_context_token: of_prefill(2, 256.0 * 4096.0),
        prefill_seconds_per_sequence: of_prefill(3, 16.0),
        prefill_noise_seconds: prefill.map(|fit| fit.noise.sqrt()),
        decode_base_seconds: of_decode(0, 1.0),
        decode_seconds_per_sequence: of_decode(1, 16.0),
        decode_seconds_per_context_token: of_decode(2, 16.0 * 4096.0),
        decode_noise_seconds: decode.map(|fit| fit.noise.sqrt()),
        prefill_1000_seconds_p50: thousand.map(|time| time.mean),
        prefill_1000_seconds_p95: thousand.map(|time| time.quantile(0.95)),
        decode_100_seconds_p50: hundred.map(|time| time.mean),
        decode_100_seconds_p95: hundred.map(|time| time.quantile(0.95)),
    }
}

fn length_row(row: &Lengths, names: &Names, as_of: Micros) -> OutputLengthRow {
    let LengthKey { model, group } = row.key;
    let (whole, later) = (row.lengths.predict(0), row.lengths.predict(100));
    let class = group.map(|group| usize::from(group.prompt_class));
    OutputLengthRow {
        as_of,
        model: names.name(model).into(),
        tier: group.map(|group| tier_name(group.tier).into()),
        tenant_class: group.map(|group| class_name(group.tenant_class).into()),
        prompt_from_tokens: class.and_then(|class| PROMPT_CLASSES.get(class).copied()),
        prompt_to_tokens: class.and_then(|class| PROMPT_CLASSES.get(class + 1).copied()),
        answers: row.lengths.samples,
        output_mean: whole.map(|length| length.mean),
        output_p05: whole.map(|length| length.p05 as f64),
        output_p50: whole.map(|length| length.p50 as f64),
        output_p95: whole.map(|length| length.p95 as f64),
        left_after_100_mean: later.map(|length| length.mean - 100.0),
        left_after_100_p95: later.map(|length| length.p95 as f64 - 100.0),
    }
}

fn trend_row(row: &Trend, names: &Names, (as_of, span): (Micros, PredictorSpan)) -> ArrivalTrendRow {
    let period = span.period_seconds;
    let season = row.trend.season.get(row.trend.place).copied().unwrap_or(0.0);
    let (low, high) = row.ahead.interval_90();
    ArrivalTrendRow {
        as_of,
        model: names.name(row.model).into(),
        period_seconds: period,
        periods: row.trend.samples,
        arrivals: row.arrivals,
        level: row.trend.level / period,
        growth_per_minute: row.trend.slope / period / period * 60.0,
        season: season / period,
        horizon_seconds: span.horizon_seconds,
        forecast: row.ahead.mean / period,
        forecast_low: low / period,
        forecast_high: high / period,
    }
}
