//! Each operator against its slow twin after every epoch, on one and on several workers; then all of them assembled.
//!
//! Invariant: no test looks at a clock; random streams come from proptest, which prints and keeps failing seeds.
// The lint exempts only functions marked as tests; all of this binary is one.
#![allow(clippy::unwrap_used)]

mod arrival_trend;
mod atom_load;
mod bucket_load;
mod cache_index;
mod diagnosis;
mod funnel;
mod funnel_window;
mod harness;
mod instance_state;
mod output_length;
mod prefix_index;
mod request_distribution;
mod reuse_distance;
mod service_time;
mod session_activity;
mod views;
