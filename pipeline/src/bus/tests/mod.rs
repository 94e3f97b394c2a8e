//! Tests of the bus with its real thread, tables and log (DESIGN §3). What they share is here.

mod log;
mod publish;
pub(crate) mod rows;
mod torn;

use std::{path::Path, sync::Arc, time::Duration};

use bytesize::ByteSize;
use queries::{LiveTables, Topic};

use super::{Bus, BusGuard, LogWriter, rows_of};
use crate::{
    config,
    rows::{FaultRow, InstanceRow, Row},
};

pub(super) fn bus_config() -> config::Bus {
    config::Bus {
        flush_rows: 64,
        flush_interval: Duration::from_millis(5),
        queue_rows: 256,
        subscriber_batches: 64,
        live_rows: 100_000,
    }
}

pub(super) fn log_config() -> config::Log {
    config::Log {
        mode: config::Mode::On,
        segment_bytes: ByteSize::mib(1),
        retain_bytes: ByteSize::mib(64),
        retain_age: Duration::from_secs(3600),
        sync_interval: Duration::from_millis(5),
    }
}

/// A bus and its tables. The clock stands still at `NOW`.
pub(super) struct Fixture {
    pub(super) bus: Bus,
    pub(super) guard: BusGuard,
    pub(super) tables: Arc<LiveTables>,
}

pub(super) const NOW: i64 = 1_767_614_400_000_000;

impl Fixture {
    pub(super) fn start(config: config::Bus, log: Option<LogWriter>) -> Fixture {
        let tables = Arc::new(LiveTables::new(config.live_rows));
        let (bus, guard) = Bus::start(&config, log, tables.clone(), Arc::new(|| NOW)).unwrap();
        Fixture { bus, guard, tables }
    }

    pub(super) fn with_log(folder: &Path) -> Fixture {
        Fixture::start(bus_config(), Some(LogWriter::open(folder, &log_config()).unwrap()))
    }

    /// All rows of a topic, older ones included, oldest first.
    pub(super) fn rows<R: Row>(&self) -> Vec<R> {
        let table = self.tables.snapshot().table(R::TOPIC).clone();
        table.batches().flat_map(|batch| rows_of::<R>(&batch.unwrap()).unwrap()).collect()
    }

    /// `pid`s of all `instances` rows.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.rows::<InstanceRow>().into_iter().map(|row| row.pid.unwrap()).collect()
    }

    pub(super) fn faults(&self, kind: &str) -> Vec<FaultRow> {
        self.rows::<FaultRow>().into_iter().filter(|row| row.kind == kind).collect()
    }
}

/// A row of `instances` that carries a number.
pub(super) fn row(number: u32) -> InstanceRow {
    InstanceRow {
        at: NOW + i64::from(number),
        instance: number % 3,
        name: format!("w{}", number % 3),
        epoch: 1,
        state: "ready".to_string(),
        model: "smol".to_string(),
        address: None,
        pid: Some(number),
        detail: Some(format!("row {number}")),
        phase_us: None,
        variant: Some("int8".to_string()),
    }
}

/// Folder of a topic's segments.
pub(super) fn topic_folder(data_folder: &Path, topic: Topic) -> std::path::PathBuf {
    data_folder.join("log").join(topic.name())
}
