//! Slow twins: each says in the plainest way what its operator keeps. The judge in tests, never used in serving.
//!
//! Invariant: a twin shares no state code with its operator, only row and result types and row checks.
//! Cost: linear scans and recomputation throughout. State: unbounded except where the bound is what is judged.
pub mod arrival_trend;
pub mod atom_load;
pub mod bucket_load;
pub mod cache_index;
pub mod diagnosis;
pub mod funnel;
pub mod funnel_window;
pub mod instance_state;
pub mod least_squares;
pub mod output_length;
pub mod request_distribution;
pub mod reuse_distance;
pub mod service_time;
pub mod session_activity;
