//! `evenkeel sql --snapshot`: the tables of a snapshot, asked without a server (SPEC E3).
//!
//! The same engine with the same tables, functions and guards as in `serve`; `now()` is the snapshot's moment, so that
//! "the last five minutes" are those before it. Limits are those of `[sql]`'s defaults. Files are checked before they are read.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use async_trait::async_trait;
use queries::{
    SqlEngine, encode,
    snapshot::{Manifest, Place, StoredSnapshot},
    sql::STACK_BYTES,
};

use super::{prompt::Ask, remote::Format, snapshots::store_settings};
use crate::config::{self, Overrides};

/// A snapshot that answers.
pub struct Offline {
    engine: SqlEngine,
    stored: Arc<StoredSnapshot>,
    /// Where the queries run; outlives the engine.
    _runtime: tokio::runtime::Runtime,
}

impl Offline {
    /// Opens the snapshot at a folder or URL, or the newest one in it.
    pub fn open(location: &str) -> anyhow::Result<Offline> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("sql")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()?;
        let config = config::load(None, Overrides::default())?;
        let place = Place::open(location, &store_settings(&config.snapshots))?;
        let stored = runtime.block_on(StoredSnapshot::open(&place)).context("--snapshot")?;
        stored.check_readable()?;
        let stored = Arc::new(stored);
        let engine = SqlEngine::new(config.sql.limits(), stored.clone(), runtime.handle().clone());
        Ok(Offline { engine, stored, _runtime: runtime })
    }

    /// What is asked, in a line.
    pub fn describe(&self) -> String {
        describe(self.stored.manifest())
    }
}

#[async_trait]
impl Ask for Offline {
    async fn body(&self, query: &str, format: Format) -> anyhow::Result<Vec<u8>> {
        let answer = self.engine.query(query).await?;
        Ok(match format {
            Format::Table | Format::Arrow => encode::arrow_stream(&answer.schema, &answer.batches)?,
            Format::Json => encode::json(&answer.schema, &answer.batches)?,
            Format::Csv => encode::csv(&answer.schema, &answer.batches)?,
        })
    }

    fn name(&self) -> String {
        self.describe()
    }
}

/// A snapshot's name, moment and chain in a line.
pub(super) fn describe(manifest: &Manifest) -> String {
    let chain = match manifest.chain {
        1 => "whole".to_string(),
        snapshots => format!("the last of a chain of {snapshots}"),
    };
    format!("snapshot {}, as of {}, {chain}, {} rows", manifest.name, moment(manifest.as_of), manifest.rows())
}

/// RFC 3339 in UTC with microseconds.
pub(super) fn moment(micros: i64) -> String {
    let at = std::time::UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs());
    humantime::format_rfc3339_micros(at).to_string()
}
