//! What Evenkeel says of itself (SPEC X5): `modes`, in which mode each part works and what is done in it; `faults`, what it noticed; `snapshots`,
//! what it wrote for offline work (SPEC E3).

use arrow::datatypes::{DataType, Field};

use super::{at, number, optional, text};

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
        text("component", "bus, log, dataflow, policy, foreign, shadow, snapshots or sql"),
        text("kind", "what went wrong, one word"),
        text("detail", "in words"),
        number("count", DataType::UInt64, "", "how many the row stands for"),
    ]
}

pub(super) fn snapshots() -> Vec<Field> {
    let count = |name: &str, unit: &str, comment: &str| number(name, DataType::UInt64, unit, comment);
    vec![
        at("when it was written, or had failed"),
        text("name", "of the snapshot: its moment in microseconds since the epoch"),
        text("target", "folder or URL"),
        text("cause", "scheduled or asked"),
        text("outcome", "written, or failed: nothing of it is visible"),
        optional(text("base", "snapshot it goes on from; NULL: it is whole")),
        count("tables", "tables", "in it"),
        count("rows", "rows", "that it wrote itself, not those of its base"),
        count("files", "files", "that it wrote itself"),
        count("bytes", "bytes", "that it wrote itself"),
        number("took_us", DataType::Int64, "us", "from the request to the manifest, or to the fault"),
        optional(text("detail", "why it failed, in words")),
    ]
}
