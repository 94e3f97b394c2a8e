//! Columns of the predictors' views: what they know, and how well they predict (SPEC A4, A5). See the rules in `schema`.

use arrow::datatypes::{DataType, Field};

use super::{number, optional, stamp, text};

fn seconds(name: &str, comment: &str) -> Field {
    optional(number(name, DataType::Float64, "s", comment))
}

pub(super) fn service_time() -> Vec<Field> {
    vec![
        stamp("as_of", "state of the view"),
        text("shape", "instances that take the same time for the same work: those of one model and variant"),
        number("prefill_steps", DataType::UInt64, "steps", "that prefilled and were learnt"),
        number("decode_steps", DataType::UInt64, "steps", "that only decoded and were learnt"),
        number("chunk_tokens", DataType::UInt32, "tokens", "most prompt tokens that one step prefilled"),
        seconds("prefill_base_seconds", "of a step that prefills, whatever is in it; NULL while too little was seen"),
        seconds("prefill_seconds_per_token", "per prompt token computed"),
        seconds("prefill_seconds_per_token_and_context_token", "more per prompt token, for each token of its context"),
        seconds("prefill_seconds_per_sequence", "per sequence that decodes beside it"),
        seconds("prefill_noise_seconds", "standard deviation of such a step around the fit"),
        seconds(
            "decode_base_seconds",
            "of a step that only decodes, whatever is in it; NULL while too little was seen",
        ),
        seconds("decode_seconds_per_sequence", "per sequence in the batch"),
        seconds("decode_seconds_per_context_token", "per token of context over the whole batch"),
        seconds("decode_noise_seconds", "standard deviation of such a step around the fit"),
        seconds("prefill_1000_seconds_p50", "example: 1000 prompt tokens, nothing cached, alone on the instance"),
        seconds("prefill_1000_seconds_p95", "the same, with certainty 0.95"),
        seconds("decode_100_seconds_p50", "example: 100 tokens in a batch of four with 1000 tokens of context each"),
        seconds("decode_100_seconds_p95", "the same, with certainty 0.95"),
    ]
}

fn group() -> [Field; 4] {
    [
        optional(text("tier", "High, Medium or Low; NULL in the row of a whole model")),
        optional(text("tenant_class", "best tier the tenant may have; NULL in the row of a whole model")),
        optional(number(
            "prompt_from_tokens",
            DataType::UInt32,
            "tokens",
            "start of the class of prompt lengths, inclusive",
        )),
        optional(number(
            "prompt_to_tokens",
            DataType::UInt32,
            "tokens",
            "end of the class, exclusive; NULL in the last",
        )),
    ]
}

pub(super) fn output_length() -> Vec<Field> {
    let tokens = |name: &str, comment: &str| optional(number(name, DataType::Float64, "tokens", comment));
    let mut fields = vec![stamp("as_of", "state of the view"), text("model", "model name")];
    fields.extend(group());
    fields.extend([
        number("answers", DataType::UInt64, "answers", "learnt"),
        tokens("output_mean", "mean length"),
        tokens("output_p05", "length"),
        tokens("output_p50", "length"),
        tokens("output_p95", "length"),
        tokens("left_after_100_mean", "still to come of an answer that has 100 tokens; NULL if none was that long"),
        tokens("left_after_100_p95", "still to come of an answer that has 100 tokens; NULL if none was that long"),
    ]);
    fields
}

pub(super) fn arrival_trend() -> Vec<Field> {
    let rate = |name: &str, comment: &str| number(name, DataType::Float64, "requests/s", comment);
    vec![
        stamp("as_of", "state of the view"),
        text("model", "model name"),
        number("period_seconds", DataType::Float64, "s", "length of a period"),
        number("periods", DataType::UInt64, "periods", "learnt"),
        number("arrivals", DataType::UInt64, "requests", "in the last period"),
        rate("level", "arrivals a second without season, as of the last period"),
        number("growth_per_minute", DataType::Float64, "requests/s", "by which the level grows in a minute, now"),
        rate("season", "deviation of the next period from the level"),
        number("horizon_seconds", DataType::Float64, "s", "how far ahead the forecast looks"),
        rate("forecast", "arrivals a second at the horizon"),
        rate("forecast_low", "start of the forecast's 90 % interval"),
        rate("forecast_high", "end of the forecast's 90 % interval"),
    ]
}

pub(super) fn prediction_error() -> Vec<Field> {
    let mut fields = vec![
        stamp("as_of", "state of the view"),
        text("predictor", "prefill_step, decode_step, output_length, arrivals_next or arrivals_ahead"),
        text("model", "model name, or shape"),
    ];
    fields.extend(group());
    fields.extend([
        text("error_unit", "unit of `bias`"),
        number("predictions", DataType::UInt64, "", "made before their outcome was known, and scored"),
        number("bias", DataType::Float64, "", "mean of predicted less actual, lately"),
        number("mape", DataType::Float64, "", "mean absolute error as a share of the actual value, lately"),
        number("coverage_90", DataType::Float64, "", "share of outcomes inside the 90 % interval, lately"),
    ]);
    fields
}
