//! The gateway over `oneshot`: status, body, headers, order of events, leases given back (SPEC E1).

mod cassettes;
mod deadlines;
mod errors;
mod flow;
mod loss;
mod loss_shapes;
mod models;
mod refusals;
mod shapes;
mod structure;
mod tools;
mod variants;
