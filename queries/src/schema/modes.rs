//! What Evenkeel says of itself (SPEC X5): `modes`, in which mode each part works and what is done in it; `faults`, what it noticed.

use arrow::datatypes::{DataType, Field};

use super::{at, number, text};

pub(super) fn modes() -> Vec<Field> {
    vec![
        at("when it was noticed"),
        text("component", "views, worker, telemetry or log"),
        text("subject", "the instance's name; empty where there is one of the component"),
        text("mode", "as docs/operations.md lists them"),
        number("is_degraded", DataType::Boolean, "", "it is not the normal mode"),
        text("branch", "what is done in it; empty for the normal one"),
    ]
}

pub(super) fn faults() -> Vec<Field> {
    vec![
        at("when it was noticed"),
        text("component", "bus, log, dataflow, policy, foreign or shadow"),
        text("kind", "what went wrong, one word"),
        text("detail", "in words"),
        number("count", DataType::UInt64, "", "how many the row stands for"),
    ]
}
