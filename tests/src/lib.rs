//! The cross-crate test kit: it may import everything, and nobody imports it.
//!
//! | file | idea |
//! |---|---|
//! | `foreign_worker` | an engine of somebody else, as far as HTTP shows it, that does as a test says |
//! | `gateway_kit` | a gateway over scripted instances, driven with `oneshot` |
//! | `grafana` | the dashboards, made from a list of panels and the saved queries |
//! | `promtool` | Prometheus's own tool, where it is installed |
//! | `repository` | the source tree, for the tests that hold house rules |
//! | `shared_data` | recorded workloads and golden references, where they are present |
//! | `server` | a real server process with the small test model |
//! | `speaker` | the scripted instances and their model |

// All of this crate is tests: a poisoned lock is a failed test.
#![allow(clippy::unwrap_used)]

pub mod foreign_worker;
pub mod gateway_kit;
pub mod grafana;
pub mod promtool;
pub mod repository;
pub mod server;
pub mod shared_data;
pub mod speaker;
