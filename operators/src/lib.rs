//! The operators of the dataflow: keyed state kept from streams of rows, on timely and differential.
//!
//! Entry points: [`views::build`] wires all operators on a worker and hands the changes of each complete epoch to a
//! callback; the extension traits [`AtomLoad`], [`BucketLoad`], [`CacheIndex`], [`RequestDistribution`],
//! [`SessionActivity`], [`InstanceStates`], [`Funnel`], [`FunnelWindow`], [`Diagnosis`] and [`ReuseDistance`] are the
//! operators one by one, [`ServiceTimes`], [`OutputLength`] and [`ArrivalTrend`] the predictors, whose rows hold snapshots
//! to predict from; [`PrefixIndex`] is the concurrent reader side of the cache view.
//!
//! Files: `rows` (inputs), `refused` (the error stream), `epochs` (the timely plumbing all operators share), `shards` (a
//! map that grows in small steps), one file per operator, `inputs` and `views` (assembly), `reference/` (a slow, plain twin of each operator, for tests).
//!
//! Invariants: time is a `u64` epoch counter; an operator's state after an epoch is a function of the rows of the epochs
//! up to it and not of their order within an epoch, so any number of workers gives the same result (until a bound is met:
//! bounds are per worker); bad data is data (`Refused`), never a panic; every state has a named bound.
//!
//! This crate must not know: clocks, environment, threads and channels, Arrow, JSON, the engine, queries or policies.
pub mod arrival_trend;
pub mod atom_load;
pub mod bucket_load;
pub mod cache_index;
pub mod diagnosis;
mod distinct_count;
mod epochs;
pub mod funnel;
pub mod funnel_window;
pub mod holt_winters;
pub mod inputs;
pub mod instance_state;
pub mod least_squares;
pub mod length_histogram;
pub mod load_total;
mod lru_stack;
mod miss_ratio;
mod miss_ratio_rows;
mod on_the_wire;
pub mod output_length;
pub mod prediction;
pub mod prediction_error;
pub mod prefix_index;
pub mod reference;
pub mod refused;
pub mod request_distribution;
mod reuse_cell;
pub mod reuse_distance;
mod reuse_stack;
mod reuse_sum;
pub mod rows;
pub mod service_time;
pub mod session_activity;
mod session_sketch;
mod shards;
pub mod step_regression;
pub mod traffic_window;
pub mod views;

pub use arrival_trend::{ArrivalTrend, ArrivalTrendConfig, ArrivalTrendRow, ArrivalTrends};
pub use atom_load::{AtomLoad, AtomLoadConfig, AtomLoads};
pub use bucket_load::{BucketLoad, BucketLoadConfig, BucketLoads, BucketPlan, BucketRange};
pub use cache_index::{
    AUDIT_BUCKETS, CacheAudit, CacheCause, CacheHealth, CacheIndex, CacheIndexConfig, CacheIndexes, CacheKey,
    CacheReport, CacheTrust, ReplayRequest, ReplayWant, audit_bucket, audit_weight,
};
pub use diagnosis::{
    DiagnosedRequest, DiagnosedStep, Diagnoses, Diagnosis, DiagnosisConfig, DiagnosisInput, DiagnosisRow, Verdict,
    WorstStep,
};
pub use funnel::{
    AskedRow, BlockChange, BlockRow, BlocksHeld, DecidedRow, EndedRow, Funnel, FunnelCase, FunnelConfig, FunnelPart,
    FunnelRow, Funnels, LAYERS, LOSSES, Layer, Loss, ServesRow,
};
pub use funnel_window::{FunnelGroup, FunnelSums, FunnelWindow, FunnelWindowConfig, FunnelWindowRow};
pub use holt_winters::{Trend, TrendGains};
pub use inputs::{FeedConfig, FeedError, FlowInputs, FlowRows};
pub use instance_state::{InstanceState, InstanceStateConfig, InstanceStates, InstanceStreams};
pub use least_squares::LinearFit;
pub use length_histogram::{LengthModel, LengthPrediction};
pub use load_total::{ATOM_TOKENS, LoadKey, LoadTotal, atom_of};
pub use miss_ratio::CurvePoint;
pub use miss_ratio_rows::{CurveGroup, CurveRow};
pub use output_length::{LengthGroup, LengthKey, OutputLength, OutputLengthConfig, OutputLengthRow, OutputLengths};
pub use prediction::Prediction;
pub use prediction_error::PredictionError;
pub use prefix_index::{PrefixIndex, PrefixIndexConfig, PrefixMatch};
pub use refused::{Field, Input, Refusal, Refused};
pub use request_distribution::{DistributionConfig, DistributionRow, Distributions, RequestDistribution, Span};
pub use reuse_distance::{Forgetting, ReuseCurves, ReuseDistance, ReuseDistanceConfig, ReuseDistances};
pub use rows::{ArrivedRow, End, FinishedRow, KvChange, KvRow, LoadEvent, LoadRow, PromptRow, StepRow, TrafficRow};
pub use service_time::{
    DecodeWork, PrefillWork, ServiceTime, ServiceTimeConfig, ServiceTimeRow, ServiceTimeStreams, ServiceTimes,
};
pub use session_activity::{SessionActivity, SessionConfig, SessionRow, Sessions};
pub use step_regression::StepFit;
pub use traffic_window::{Quantiles, RELATIVE_ERROR};
pub use views::{FlowConfig, FlowHandles, Gather, ViewChanges};

/// Maps keyed by integers. The hashing is fixed, so that a run can be repeated.
pub(crate) type IntMap<K, V> = std::collections::HashMap<K, V, foldhash::fast::FixedState>;
pub(crate) type IntSet<K> = std::collections::HashSet<K, foldhash::fast::FixedState>;
