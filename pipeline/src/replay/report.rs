//! What a replay found.
//!
//! Invariant: everything looked at is counted once: equal, different, or not replayable for a reason that is named.
//! State: [`SHOWN_MAX`] differences in words; further ones are counted. Reasons are few: they come from the code.

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use crate::rows::Row;

/// Differences kept in words.
pub const SHOWN_MAX: usize = 100;

/// One field that came out differently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What differs, such as `decision dec-…` or `view of dec-…`.
    pub of: String,
    pub field: String,
    pub recorded: String,
    pub replayed: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} was {}, is {}", self.of, self.field, self.recorded, self.replayed)
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Decision rows in the log.
    pub decisions: u64,
    /// … of these, made again by the policies.
    pub replayed: u64,
    /// … of these, refusals of requests no policy was asked about.
    pub without_policy: u64,
    /// Moves of the throttle without a request, made again.
    pub ticks: u64,
    /// Views compared with what the dataflow gives.
    pub views: u64,
    /// Looks at the cache index compared with what the dataflow gives.
    pub prefixes: u64,
    /// Published rows of service times compared with what the dataflow gives.
    pub published: u64,
    /// Forecasts compared with what the dataflow gives.
    pub forecasts: u64,
    /// Fields that differ.
    pub different: u64,
    pub differences: Vec<Difference>,
    /// What could not be checked, and how often.
    pub unreplayable: BTreeMap<String, u64>,
    /// Files and batches that could not be read.
    pub damage: Vec<String>,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.different == 0 && self.damage.is_empty()
    }

    pub fn differs(&mut self, difference: Difference) {
        self.different += 1;
        if self.differences.len() < SHOWN_MAX {
            self.differences.push(difference);
        }
    }

    pub fn cannot(&mut self, reason: impl Into<String>) {
        *self.unreplayable.entry(reason.into()).or_default() += 1;
    }

    pub fn damaged(&mut self, detail: String) {
        if self.damage.len() < SHOWN_MAX && !self.damage.contains(&detail) {
            self.damage.push(detail);
        }
    }

    /// Compares two rows field by field, every bit of every number.
    pub fn compare<R: Row>(&mut self, of: &str, recorded: &R, replayed: &R) {
        let fields = |row| match serde_json::to_value(row) {
            Ok(Value::Object(fields)) => fields,
            other => unreachable!("invariant: a row is a struct of values: {other:?}"),
        };
        let (recorded, replayed) = (fields(recorded), fields(replayed));
        for (field, was) in &recorded {
            let is = replayed.get(field).unwrap_or(&Value::Null);
            let (was, is) = (was.to_string(), is.to_string());
            if was != is {
                let (of, field) = (of.to_string(), field.clone());
                self.differs(Difference { of, field, recorded: was, replayed: is });
            }
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            decisions, replayed, without_policy, ticks, views, prefixes, published, forecasts, different, ..
        } = self;
        writeln!(f, "decisions {decisions}: {replayed} made again, {without_policy} refused before any policy")?;
        writeln!(f, "throttle moves without a request made again: {ticks}")?;
        writeln!(
            f,
            "views compared with the dataflow: {views}; looks at the cache index: {prefixes}; rows of service times: {published}"
        )?;
        writeln!(f, "forecasts compared with the dataflow: {forecasts}")?;
        for (reason, count) in &self.unreplayable {
            writeln!(f, "not replayable: {count} × {reason}")?;
        }
        for detail in &self.damage {
            writeln!(f, "damaged: {detail}")?;
        }
        for difference in &self.differences {
            writeln!(f, "different: {difference}")?;
        }
        writeln!(f, "differences: {different}")
    }
}
