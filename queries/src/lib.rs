//! Arrow and DataFusion: the tables of the metrics bus, SQL over them, and snapshots (SPEC E2, E3).
//!
//! | file | idea |
//! |---|---|
//! | `schema` | topics and their schemas, declared once |
//!
//! Must not know: HTTP, the engine, timely, the wall clock. Nothing outside `queries` and `pipeline` reaches DataFusion.

pub mod schema;
