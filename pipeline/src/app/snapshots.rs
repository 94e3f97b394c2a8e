//! Writes snapshots: when asked and when due, to the targets that the settings allow, and deletes those that have had their time
//! (SPEC E3).
//!
//! Invariants: one snapshot is written at a time, further ones wait; a request names no target that the settings do not; each
//! attempt is a row of `snapshots`, a failed one a row of `faults` too, and both are counted. A chain stays within this run
//! of the server, since a machine that failed may number rows anew. Encoding and reading the log run where they may block.
//! Retention deletes in `snapshots.target` alone.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Instant,
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};
use queries::{
    LiveTables, Topic,
    snapshot::{
        Format, Manifest, Place, Producer, Retention, SnapshotError, SnapshotOrder, StoreSettings, continues,
        delete_surplus, write_snapshot,
    },
};
use serde::Deserialize;
use tokio::{runtime::Handle, sync::Mutex};

use crate::{
    bus::Bus,
    config::{self, Mode, did_you_mean},
    gateway::{deps::Clock, metrics::Metrics},
    ids::Micros,
    rows::{FaultRow, SnapshotRow},
};

/// What a request may choose; the settings say the rest.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    pub target: Option<String>,
    pub formats: Option<Vec<Format>>,
    pub tables: Option<Vec<String>>,
    pub incremental: Option<bool>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFault {
    #[error("{field}: {detail}")]
    Refused { field: &'static str, detail: String },
    #[error("the metrics bus has stopped")]
    Bus,
    #[error(transparent)]
    Failed(#[from] SnapshotError),
    #[error("the task that wrote the snapshot ended early: {0}")]
    Ended(#[from] tokio::task::JoinError),
}

/// A snapshot that is there.
#[derive(Debug)]
pub struct Written {
    pub place: Place,
    pub manifest: Manifest,
    pub took_us: i64,
}

/// Who wanted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Asked,
    Scheduled,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Cause::Asked => "asked",
            Cause::Scheduled => "scheduled",
        }
    }
}

/// Counted since the start.
#[derive(Debug, Default)]
struct Counted {
    written: AtomicU64,
    failed: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    took_us: AtomicI64,
    as_of: AtomicI64,
}

/// What snapshots are written from.
pub struct Sources {
    pub tables: Arc<LiveTables>,
    pub bus: Bus,
    pub clock: Arc<dyn Clock>,
}

/// The writer of a server's snapshots.
pub struct Snapshots {
    config: config::Snapshots,
    sources: Sources,
    stores: StoreSettings,
    producer: Producer,
    writing: Arc<Mutex<()>>,
    counted: Arc<Counted>,
}

impl Snapshots {
    /// A writer. `metrics`: where its counters go.
    pub fn new(config: &config::Snapshots, sources: Sources, metrics: &Metrics) -> Arc<Snapshots> {
        let counted = Arc::new(Counted::default());
        let collector = SnapshotMetrics(counted.clone());
        metrics.register(|registry| registry.register_collector(Box::new(collector)));
        let producer = Producer {
            program: format!("evenkeel {}", env!("CARGO_PKG_VERSION")),
            run: uuid::Uuid::now_v7().simple().to_string(),
        };
        let (config, stores) = (config.clone(), store_settings(config));
        Arc::new(Snapshots { config, sources, stores, producer, writing: Arc::default(), counted })
    }

    /// The place of a target that the settings allow; `None`: the usual one.
    pub fn place(&self, target: Option<&str>) -> Result<Place, SnapshotFault> {
        let target = target.unwrap_or(&self.config.target);
        let is_allowed = target == self.config.target || self.config.allow_targets.iter().any(|known| known == target);
        if !is_allowed {
            let detail = format!("{target:?} is neither snapshots.target nor one of snapshots.allow_targets");
            return Err(SnapshotFault::Refused { field: "target", detail });
        }
        Ok(Place::open(target, &self.stores)?)
    }

    /// Writes one, or says why not. What was published before is in it. Who asked may go away: what has begun is finished and told
    /// all the same, and nobody writes beside it.
    pub async fn write(self: &Arc<Self>, wish: Wish, cause: Cause) -> Result<Written, SnapshotFault> {
        let place = self.place(wish.target.as_deref())?;
        let (formats, tables) = (self.formats(&wish)?, self.topics(&wish)?);
        let writing = self.writing.clone().lock_owned().await;
        let own = self.clone();
        let attempt = async move {
            let _writing = writing;
            own.attempt(&wish, (place, formats, tables), cause).await
        };
        tokio::spawn(attempt).await?
    }

    async fn attempt(
        &self,
        wish: &Wish,
        (place, formats, tables): (Place, Vec<Format>, Vec<Topic>),
        cause: Cause,
    ) -> Result<Written, SnapshotFault> {
        self.sources.bus.flush().await.map_err(|_| SnapshotFault::Bus)?;
        let (started, as_of) = (Instant::now(), self.sources.clock.now());
        let producer = self.producer.clone();
        let mut order = SnapshotOrder { place: place.clone(), as_of, producer, formats, tables, base: None };
        let written = match self.base(wish, &order).await {
            Ok(base) => {
                order.base = base;
                let (order, tables) = (order.clone(), self.sources.tables.snapshot());
                let task = move || Handle::current().block_on(write_snapshot(&order, &tables));
                tokio::task::spawn_blocking(task).await.map_err(SnapshotFault::from).and_then(|done| Ok(done?))
            }
            Err(error) => Err(error.into()),
        };
        let took_us = i64::try_from(started.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.tell(&order, cause, (&written, took_us)).await;
        let manifest = written?;
        if wish.target.as_ref().is_none_or(|target| *target == self.config.target) {
            self.retain(&place).await;
        }
        Ok(Written { place, manifest, took_us })
    }

    fn formats(&self, wish: &Wish) -> Result<Vec<Format>, SnapshotFault> {
        let Some(formats) = &wish.formats else { return Ok(self.config.formats.clone()) };
        let named_once = formats.iter().enumerate().all(|(at, format)| !formats[..at].contains(format));
        if formats.is_empty() || !named_once {
            let detail = "expected \"arrow\", \"parquet\" or both, each once".to_string();
            return Err(SnapshotFault::Refused { field: "formats", detail });
        }
        Ok(formats.clone())
    }

    fn topics(&self, wish: &Wish) -> Result<Vec<Topic>, SnapshotFault> {
        let Some(names) = &wish.tables else { return Ok(self.config.topics()) };
        let refused = |detail: String| SnapshotFault::Refused { field: "tables", detail };
        let mut topics = Vec::with_capacity(names.len());
        for name in names {
            let topic = Topic::from_name(name).ok_or_else(|| {
                let known: Vec<String> = Topic::ALL.iter().map(|topic| topic.name().to_string()).collect();
                refused(format!("there is no table {name:?}{}", did_you_mean(name, &known)))
            })?;
            if topics.contains(&topic) {
                return Err(refused(format!("{name:?} is named twice")));
            }
            topics.push(topic);
        }
        match topics.is_empty() {
            true => Err(refused("expected at least one table; leave the field out for all".to_string())),
            false => Ok(topics),
        }
    }

    /// The snapshot to go on from, if one is wanted and fits.
    async fn base(&self, wish: &Wish, order: &SnapshotOrder) -> Result<Option<Manifest>, SnapshotError> {
        if !wish.incremental.unwrap_or(self.config.incremental == Mode::On) {
            return Ok(None);
        }
        let newest = order.place.snapshots().await?.pop();
        Ok(newest.filter(|base| continues(order, base) && base.chain < self.config.chain_max))
    }

    /// The attempt as rows and numbers.
    async fn tell(&self, order: &SnapshotOrder, cause: Cause, (written, took_us): Attempt<'_>) {
        let (rows, files, bytes) = written.as_ref().map_or((0, 0, 0), Manifest::written);
        let detail = written.as_ref().err().map(|error| super::cli::explain_causes(error));
        let row = SnapshotRow {
            at: self.sources.clock.now(),
            name: order.as_of.to_string(),
            target: order.place.shown().to_string(),
            cause: cause.name().into(),
            outcome: if detail.is_none() { "written" } else { "failed" }.into(),
            base: order.base.as_ref().map(|base| base.name.clone()),
            tables: order.tables.len() as u64,
            rows,
            files,
            bytes,
            took_us,
            detail: detail.clone(),
        };
        match detail {
            None => {
                self.counted.written.fetch_add(1, Ordering::Relaxed);
                self.counted.rows.fetch_add(rows, Ordering::Relaxed);
                self.counted.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.counted.took_us.store(took_us, Ordering::Relaxed);
                self.counted.as_of.store(order.as_of, Ordering::Relaxed);
            }
            Some(detail) => {
                self.counted.failed.fetch_add(1, Ordering::Relaxed);
                self.fault("write_failed", detail).await;
            }
        }
        let _ = self.sources.bus.publish(row).await;
    }

    async fn retain(&self, place: &Place) {
        let retention = Retention { count: self.config.retain_count, age: self.config.retain_age.duration() };
        if let Err(error) = delete_surplus(place, retention, self.sources.clock.now()).await {
            self.fault("retention_failed", super::cli::explain_causes(&error)).await;
        }
    }

    async fn fault(&self, kind: &str, detail: String) {
        tracing::warn!(kind, detail, "snapshots");
        let at: Micros = self.sources.clock.now();
        let row = FaultRow { at, component: "snapshots".into(), kind: kind.into(), detail, count: 1 };
        let _ = self.sources.bus.publish(row).await;
    }

    /// Writes one each `snapshots.interval`, the first after it; never ends.
    pub async fn run(self: Arc<Self>) {
        let Some(period) = self.config.interval.duration() else { return };
        let mut due = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            // A fault is a row already; the next one is tried in its turn.
            let _ = self.write(Wish::default(), Cause::Scheduled).await;
        }
    }
}

/// How writing went, and how long it took.
type Attempt<'a> = (&'a Result<Manifest, SnapshotFault>, i64);

/// How stores are reached: what the environment says of them, and how long they may take.
pub fn store_settings(config: &config::Snapshots) -> StoreSettings {
    let named =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    StoreSettings { options: store_options(named), timeout: config.store_timeout }
}

/// Names of Azure's own command line for what stores know by another.
const ALIASES: [(&str, &str); 2] =
    [("azure_storage_account", "azure_storage_account_name"), ("azure_storage_key", "azure_storage_account_key")];

/// What `variables` say of stores, under the names that the stores' own tools use.
fn store_options(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, String)> {
    let ours = |name: &str| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|prefix| name.starts_with(prefix));
    let known = |name: String| {
        let name = name.to_ascii_lowercase();
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        alias.map_or(name, |(_, known)| known.to_string())
    };
    variables.filter(|(name, _)| ours(name)).map(|(name, value)| (known(name), value)).collect()
}

#[derive(Debug)]
struct SnapshotMetrics(Arc<Counted>);

impl Collector for SnapshotMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let count = |counter: &AtomicU64| ConstCounter::new(counter.load(Ordering::Relaxed));
        for (name, help, counter) in [
            ("snapshots_written", "Snapshots written", count(&self.0.written)),
            ("snapshots_failed", "Snapshots that could not be written", count(&self.0.failed)),
            ("snapshot_rows", "Rows written to snapshots", count(&self.0.rows)),
        ] {
            counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)?;
        }
        let bytes = count(&self.0.bytes);
        let help = "Bytes written to snapshots";
        bytes.encode(encoder.encode_descriptor("snapshot", help, Some(&Unit::Bytes), bytes.metric_type())?)?;
        let as_of = self.0.as_of.load(Ordering::Relaxed);
        if as_of == 0 {
            return Ok(());
        }
        let gauges = [
            ("snapshot_last", "Moment of the newest snapshot, since the epoch", as_of as f64 / 1e6),
            (
                "snapshot_last_duration",
                "How long the newest snapshot took",
                self.0.took_us.load(Ordering::Relaxed) as f64 / 1e6,
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Seconds), gauge.metric_type())?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::store_options;

    /// Scenario: variables of stores under the names of their tools, Azure's command line among them, and others.
    /// Guarantees: stores see theirs in lower case, under the names that they know; nothing else is handed on.
    #[test]
    fn variables_of_stores_are_handed_on() {
        let given = [
            ("AWS_REGION", "eu-west-1"),
            ("PATH", "/bin"),
            ("AZURE_STORAGE_ACCOUNT", "fleet"),
            ("AZURE_STORAGE_KEY", "aGVsbG8="),
            ("GOOGLE_APPLICATION_CREDENTIALS", "/srv/key.json"),
            ("MY_AWS_REGION", "none"),
        ];
        let seen = store_options(given.into_iter().map(|(name, value)| (name.to_string(), value.to_string())));
        let wanted = [
            ("aws_region", "eu-west-1"),
            ("azure_storage_account_name", "fleet"),
            ("azure_storage_account_key", "aGVsbG8="),
            ("google_application_credentials", "/srv/key.json"),
        ];
        assert_eq!(seen, wanted.map(|(name, value)| (name.to_string(), value.to_string())));
    }
}
