//! The dataflow: bus batches in, views out (DESIGN §4; SPEC B2, C4, D4).
//!
//! | file | idea |
//! |---|---|
//! | `feed` | batches become rows with integer keys |
//! | `flow` | timely workers on threads of their own, fed and advanced by the clock |
//! | `views` | the reader structures: one consistent state per epoch, and the prefix index |
//! | `publish` | views become rows of the bus, once per period |
//!
//! Invariants: tokio never runs a timely worker; a view is replaced as a whole, so a reader sees one epoch; a dead or slow
//! dataflow shows as an old `as_of` and stops nobody. Bounds: see `flow` (queues) and the operators (state).

mod feed;
mod flow;
mod publish;
mod views;

pub use feed::{Feed, Names};
pub use flow::{Dataflow, FlowError};
pub use publish::{ViewRows, view_rows};
pub use views::{FlowViews, ViewState};
