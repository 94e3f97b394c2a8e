//! The gateway over `oneshot`: status, body, headers, order of events, leases given back (SPEC E1).

#[path = "gateway/cassettes.rs"]
mod cassettes;
#[path = "gateway/errors.rs"]
mod errors;
#[path = "gateway/flow.rs"]
mod flow;
#[path = "gateway/loss.rs"]
mod loss;
#[path = "gateway/shapes.rs"]
mod shapes;
