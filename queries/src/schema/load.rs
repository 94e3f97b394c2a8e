//! Columns of the views of load (SPEC B2).
//!
//! Invariant: a row is the state of a view at one moment.

use arrow::datatypes::{DataType, Field};

use super::{number, optional, stamp, text};

pub(super) fn atom_load() -> Vec<Field> {
    vec![
        stamp("as_of", "state of the view"),
        number("instance", DataType::UInt32, "", "instance"),
        number("from_tokens", DataType::UInt32, "tokens", "start of the 500-token atom, inclusive"),
        number("to_tokens", DataType::UInt32, "tokens", "end of the atom, exclusive"),
        number("tokens", DataType::Int64, "tokens", "context tokens of live requests in the atom"),
        number("requests", DataType::Int64, "requests", "live requests in the atom"),
    ]
}

pub(super) fn load_totals() -> Vec<Field> {
    vec![
        stamp("as_of", "state of the view"),
        text("grouped_by", "region, model, tier (of a model) or bucket (of a model): what the row is a sum over"),
        optional(number("region", DataType::UInt32, "", "region")),
        optional(text("model", "model name")),
        optional(text("tier", "High, Medium or Low")),
        optional(number("bucket", DataType::UInt32, "", "bucket of the model's plan in force; 0 where there is none")),
        number("tokens", DataType::Int64, "tokens", "context tokens of live requests"),
        number("requests", DataType::Int64, "requests", "live requests"),
        optional(number(
            "uncached_tokens",
            DataType::Int64,
            "tokens",
            "of the tokens, those not believed cached where their request was placed: the work",
        )),
    ]
}
