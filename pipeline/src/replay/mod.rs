//! `evenkeel replay`: a recorded log decides again, and every difference is named (SPEC X2).
//!
//! | file | idea |
//! |---|---|
//! | `recording` | decisions and what was read for them, joined, in order |
//! | `rebuild` | recorded inputs → the decision row, by the functions the gateway calls |
//! | `flow` | recorded rows and epochs → the views, by the dataflow the server runs |
//! | `what_if` | what another policy would have decided, row by row |
//! | `table` | rows as a file, however many |
//! | `report` | what was found |
//! | `command` | the command line |
//!
//! Two levels. *Policies*: each decision is made again from the inputs its row names, and compared field by field. *Views*: the
//! recorded rows go through the dataflow with the recorded epochs, and what policies read of the views is compared with what
//! comes out. Invariants: a log is only read; nothing that cannot be checked counts as equal, it is counted by reason.
//! Not covered: the order in which the queue lets requests go, and what the instance directory said (its state is an input).
//! Cost: one pass over the decisions, one over the dataflow's input. State: see `recording` and `flow` for the bounds.

mod command;
mod flow;
mod rebuild;
mod recording;
mod report;
mod table;
mod what_if;

pub use command::{Level, ReplayOptions, execute, replay};
pub use recording::Made;
pub use report::{Difference, Report};
pub(crate) use what_if::{Apart, ask, look};
pub use what_if::{Problems, WhatIfRow, what_if};
