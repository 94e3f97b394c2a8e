//! Configuration: one tree, all defaults in `default.toml`. Layers: defaults, then the file given, then the environment
//! (`EVENKEEL_SERVER__LISTEN`), then the command line. It is parsed, then validated once; after that nothing checks again.
//!
//! An unknown key is refused and the nearest known key is named.

mod foreign;
mod load;
mod models;
mod recorded;
mod shadow;
mod snapshots;
mod validate;
mod variants;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use bytesize::ByteSize;
use serde::{Deserialize, Serialize};

pub use foreign::{Foreign, ForeignWorker};
pub(crate) use load::did_you_mean;
pub use load::{ConfigError, Overrides, defaults, home_dir, load};
pub use models::{MODELS_MAX, ModelGroup, parse_model};
pub use recorded::{Recorded, Served};
pub use shadow::{Shadow, ShadowPolicy};
pub use snapshots::{Snapshots, Span};
pub(crate) use validate::require;
pub use validate::{HEARTBEAT_TIMEOUTS, QUEUE_ROWS_MAX};
pub use variants::{KvFormat, Variant, Weights, parse_variant};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub server: Server,
    pub model: Model,
    /// Instead of `model`, if there are several.
    pub models: Vec<ModelGroup>,
    pub workers: Workers,
    pub foreign: Foreign,
    pub bus: Bus,
    pub log: Log,
    pub dataflow: Dataflow,
    pub policy: Policy,
    pub shadow: Shadow,
    pub tracing: Tracing,
    pub sql: Sql,
    pub snapshots: Snapshots,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    pub listen: SocketAddr,
    pub flight_listen: SocketAddr,
    pub flight_connections_max: usize,
    /// Of the PostgreSQL wire.
    pub pg_listen: Listen,
    pub pg_connections_max: usize,
    #[serde(with = "humantime_serde")]
    pub pg_idle_timeout: Duration,
    /// Empty: no TLS.
    pub pg_tls_cert: PathBuf,
    pub pg_tls_key: PathBuf,
    pub data_dir: PathBuf,
    pub body_max: ByteSize,
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    pub connections_max: usize,
    #[serde(with = "humantime_serde")]
    pub drain_timeout: Duration,
    pub allow_origins: Vec<String>,
    pub keys: Vec<Key>,
}

/// An address to listen on, or "off".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    Off,
    On(SocketAddr),
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Listen::Off),
            address => match address.parse() {
                Ok(address) => Ok(Listen::On(address)),
                Err(_) => Err(format!("{address:?}: expected an address such as \"127.0.0.1:5454\", or \"off\"")),
            },
        }
    }
}

impl From<Listen> for String {
    fn from(listen: Listen) -> String {
        match listen {
            Listen::Off => "off".into(),
            Listen::On(address) => address.to_string(),
        }
    }
}

/// Tenant of everybody where no keys are configured.
pub const LOCAL_TENANT: &str = "local";

/// An API key, the tenant it stands for, and the best tier the tenant may have (SPEC A1).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub key: String,
    pub tenant: String,
    pub class: crate::policy::Tier,
    /// Shortest budgets its requests may state. `None`: those of `policy.deadline`.
    #[serde(default, with = "humantime_serde::option")]
    pub first_token_min: Option<Duration>,
    #[serde(default, with = "humantime_serde::option")]
    pub whole_min: Option<Duration>,
    #[serde(default)]
    pub tier_header: TierHeader,
    #[serde(default)]
    pub sql: KeySql,
}

/// Limits of a key's SQL, each narrower than that of `[sql]`, which holds where one is `None` (SPEC E2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeySql {
    #[serde(default, with = "humantime_serde::option")]
    pub timeout: Option<Duration>,
    /// Of one statement.
    #[serde(default)]
    pub memory_max: Option<ByteSize>,
    #[serde(default)]
    pub rows_max: Option<usize>,
    /// Statements at once, running and waiting together.
    #[serde(default)]
    pub concurrent_max: Option<usize>,
}

impl Key {
    /// A key that allows nothing but its class.
    pub fn new(key: &str, tenant: &str, class: crate::policy::Tier) -> Self {
        let (key, tenant) = (key.into(), tenant.into());
        Self {
            key,
            tenant,
            class,
            first_token_min: None,
            whole_min: None,
            tier_header: TierHeader::Lower,
            sql: KeySql::default(),
        }
    }
}

/// What a header that asks for a tier may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierHeader {
    #[default]
    Lower,
    /// Any tier up to the key's class.
    Choose,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub name: String,
    pub models_dir: PathBuf,
    pub variants: Vec<Variant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    On,
    Off,
}

/// What a worker computes products in; see `engine::model::Arithmetic`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Arithmetic {
    Int8,
    F32,
}

/// Who guesses tokens ahead, if anybody (SPEC D2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Speculation {
    Off,
    PromptLookup,
    Draft,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workers {
    pub count: u32,
    pub threads: usize,
    pub block_size: usize,
    pub kv_bytes_max: ByteSize,
    pub l2_bytes: ByteSize,
    pub token_budget: usize,
    #[serde(with = "humantime_serde")]
    pub prefill_step_time: Duration,
    pub running_max: usize,
    pub waiting_max: usize,
    pub prefix_cache: Mode,
    pub arithmetic: Arithmetic,
    pub kv: KvFormat,
    pub speculation: Speculation,
    pub draft_model: String,
    pub draft_tokens_max: usize,
    pub verify_interval: usize,
    pub capacity_file: PathBuf,
    #[serde(with = "humantime_serde")]
    pub start_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub restart_backoff: Duration,
    #[serde(with = "humantime_serde")]
    pub restart_backoff_max: Duration,
    #[serde(with = "humantime_serde")]
    pub health_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub health_timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bus {
    pub flush_rows: usize,
    #[serde(with = "humantime_serde")]
    pub flush_interval: Duration,
    /// A row of several KiB counts as so many.
    pub queue_rows: usize,
    pub subscriber_batches: usize,
    pub live_rows: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    pub mode: Mode,
    pub segment_bytes: ByteSize,
    pub retain_bytes: ByteSize,
    #[serde(with = "humantime_serde")]
    pub retain_age: Duration,
    #[serde(with = "humantime_serde")]
    pub sync_interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataflow {
    pub mode: Mode,
    pub workers: usize,
    pub processes: usize,
    pub hosts_file: PathBuf,
    #[serde(with = "humantime_serde")]
    pub heartbeat_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub epoch: Duration,
    #[serde(with = "humantime_serde")]
    pub publish_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub stale_after: Duration,
    #[serde(with = "humantime_serde")]
    pub silent_after: Duration,
    #[serde(with = "humantime_serde")]
    pub window: Duration,
    #[serde(with = "humantime_serde")]
    pub trend_period: Duration,
    #[serde(with = "humantime_serde")]
    pub trend_season: Duration,
    #[serde(with = "humantime_serde")]
    pub trend_horizon: Duration,
    pub open_requests_max: usize,
    pub cache_entries_max: usize,
    #[serde(with = "humantime_serde")]
    pub mrc_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub mrc_window: Duration,
    pub mrc_exact_blocks: u64,
    pub mrc_sample_max: usize,
    #[serde(with = "humantime_serde")]
    pub funnel_window: Duration,
    pub funnel_hashes_max: usize,
    #[serde(with = "humantime_serde")]
    pub audit_interval: Duration,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    pub tiers: crate::policy::TierConfig,
    pub throttle: crate::policy::ThrottleConfig,
    pub queue: crate::policy::QueueConfig,
    pub deadline: crate::policy::DeadlineConfig,
    pub route: crate::policy::RouteConfig,
    pub buckets: crate::policy::BucketConfig,
    pub variants: crate::policy::VariantConfig,
}

/// OpenTelemetry traces of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    /// Empty: no traces.
    pub otlp_endpoint: String,
    pub sample_ratio: f64,
    pub queue_max: usize,
    #[serde(with = "humantime_serde")]
    pub export_timeout: Duration,
    pub service_name: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sql {
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    pub memory_max: ByteSize,
    pub rows_max: usize,
    pub statement_bytes_max: ByteSize,
    pub concurrent_max: usize,
    pub worker_memory: ByteSize,
    #[serde(with = "humantime_serde")]
    pub stop_grace: Duration,
    pub niceness: u8,
}

impl Sql {
    /// Most operator state of one statement.
    pub fn share(&self) -> ByteSize {
        ByteSize(self.memory_max.as_u64() / self.concurrent_max.max(1) as u64)
    }

    /// Threads for heavy queries in the process for SQL: two for each that may run, since a join that does not pause keeps its own.
    pub fn worker_threads(&self) -> usize {
        (2 * self.concurrent_max).clamp(2, 32)
    }

    /// Threads there for light queries, and to plan all.
    pub fn light_threads(&self) -> usize {
        self.concurrent_max.clamp(1, 16)
    }

    /// The engine's bounds.
    pub fn limits(&self) -> queries::SqlLimits {
        queries::SqlLimits {
            timeout: self.timeout,
            memory_bytes: self.memory_max.as_u64() as usize,
            rows_max: self.rows_max,
            statement_bytes_max: self.statement_bytes_max.as_u64() as usize,
            concurrent_max: self.concurrent_max,
        }
    }
}
