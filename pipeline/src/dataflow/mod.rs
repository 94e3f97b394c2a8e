//! The dataflow: bus batches in, views out (DESIGN §4; SPEC B2, C4, D4).
//!
//! | file | idea |
//! |---|---|
//! | `columns`, `recent` | columns of a batch, read in place; a map that forgets its oldest keys |
//! | `feed` | batches become rows with integer keys |
//! | `epoch_log` | which rows came in which epoch, as rows (SPEC X2) |
//! | `foreign/` | KV events of vLLM and SGLang as rows of ours |
//! | `flow` | the feeder: rows from the bus, epochs by the clock |
//! | `threads` | timely workers on threads of their own |
//! | `cluster` | the same workers in processes of their own, over several hosts |
//! | `views` | the reader structures: one consistent state per epoch, and the prefix index |
//! | `read`, `forecast` | what policies see of the views, and of the predictors |
//! | `kv_feed` | the same for KV events |
//! | `plan_feed` | the same for bucket plans |
//! | `prompt_feed`, `curve_rows` | the same for the miss-ratio curve, in and out |
//! | `funnel_feed`, `funnel_rows` | rows in and out of the hit-rate funnel and the diagnosis |
//! | `refused` | rows that were not taken, with their reason |
//! | `publish`, `publish_predictors` | views become rows of the bus, once per period |
//!
//! Invariants: tokio never runs a timely worker; a view is replaced as a whole, so a reader sees one epoch; a dead or slow
//! dataflow shows as an old `as_of` and stops nobody. Bounds: see `threads` (queues) and the operators (state).

pub mod cluster;
mod columns;
mod curve_rows;
mod epoch_log;
mod feed;
#[cfg(test)]
mod feed_tests;
mod flow;
mod forecast;
pub mod foreign;
mod funnel_feed;
mod funnel_rows;
mod kv_feed;
mod plan_feed;
mod prompt_feed;
mod publish;
mod publish_predictors;
mod read;
mod recent;
mod refused;
mod threads;
mod views;

pub use epoch_log::EpochLog;
pub use feed::{Feed, Names, TOPICS};
pub use flow::{Dataflow, FlowError, flow_config, horizon_periods, trend_epochs};
pub use forecast::{ForecastRequest, Predicted, read_forecast};
pub use kv_feed::level_number;
pub use publish::{FunnelRows, ViewRows, cache_row, funnel_rows, view_rows};
pub use publish_predictors::{PredictorRows, PredictorSpan, predictor_rows, service_rows};
pub use read::{cached_blocks, current_view, read_prefixes, view_mode};
pub use refused::{OFF_TIME_US, RefusedRows};
pub use threads::take_rows;
pub use views::{CacheSays, FlowViews, FunnelNews, ViewState};
