//! Rows that the dataflow would not take as they stand, on their way to the topic `refused_rows`.
//!
//! Invariant: each refusal becomes a row with topic, reason, field, value and instance, or is counted in a row per topic
//! and reason that says how many more there were. Cost: one lock per batch with refusals and per epoch with some.
//! State: [`ROWS_MAX`] rows until they are taken, and a count per topic and reason (names in the source).

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use operators::{Input, Refused};
use queries::Topic;

use crate::{bus::RowsError, ids::Micros, rows::RefusedRow};

/// Rows between two publications; further ones are only counted.
pub const ROWS_MAX: usize = 256;

/// Rows further from now than this are told as late or early.
pub const OFF_TIME_US: Micros = 60_000_000;

/// See the module.
#[derive(Debug, Default)]
pub struct RefusedRows(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    rows: Vec<RefusedRow>,
    more: BTreeMap<(String, String), u64>,
    total: u64,
}

impl RefusedRows {
    pub fn push(&self, rows: Vec<RefusedRow>) {
        if rows.is_empty() {
            return;
        }
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            waiting.total += row.count;
            if waiting.rows.len() < ROWS_MAX {
                waiting.rows.push(row);
            } else {
                *waiting.more.entry((row.topic, row.reason)).or_default() += row.count;
            }
        }
    }

    /// The rows since the last call, and one for each kind of which there were more.
    pub fn take(&self, at: Micros) -> Vec<RefusedRow> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rows = std::mem::take(&mut waiting.rows);
        let more = std::mem::take(&mut waiting.more).into_iter().map(|((topic, reason), count)| RefusedRow {
            at,
            topic,
            reason,
            count,
            detail: format!("more than {ROWS_MAX} refusals at a time; these are only counted"),
            ..RefusedRow::default()
        });
        rows.extend(more);
        rows
    }

    /// Rows refused since the start.
    pub fn total(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).total
    }
}

/// What an operator refused, as a row.
pub(super) fn row(refused: &Refused, at: Micros) -> RefusedRow {
    let topic = match refused.input {
        Input::Load | Input::Traffic | Input::Funnel | Input::Diagnosis | Input::Prompts => Topic::Requests,
        Input::Kv => Topic::KvEvents,
        Input::Plans => Topic::Buckets,
        Input::Steps => Topic::EngineSteps,
    };
    let field = refused.reason.field();
    RefusedRow {
        at,
        topic: topic.name().into(),
        reason: refused.reason.name().into(),
        field: field.map(|(name, _)| name.into()),
        value: field.map(|(_, value)| value.to_string()),
        instance: refused.instance,
        count: refused.rows,
        detail: refused.to_string(),
    }
}

/// What is wrong with a batch.
pub(super) struct Wrong {
    topic: Topic,
    now: Micros,
    rows: Vec<RefusedRow>,
    /// Rows off their time: how many, and the first of them.
    late: Option<(u64, Micros)>,
    early: Option<(u64, Micros)>,
}

impl Wrong {
    pub fn new(topic: Topic, now: Micros) -> Self {
        Self { topic, now, rows: Vec::new(), late: None, early: None }
    }

    fn row(&self, reason: &str, count: u64) -> RefusedRow {
        let topic = self.topic.name().into();
        RefusedRow { at: self.now, topic, reason: reason.into(), count, ..RefusedRow::default() }
    }

    /// The batch does not have its topic's columns.
    pub fn refuse_batch(&mut self, rows: usize, error: &RowsError) {
        let row = self.row("malformed_batch", (rows as u64).max(1));
        (self.late, self.early) = (None, None);
        self.rows = vec![RefusedRow { detail: error.to_string(), ..row }];
    }

    pub fn refuse(&mut self, reason: &str, (field, value): (&str, Option<String>), instance: Option<u32>) {
        let detail = match &value {
            Some(value) => format!("{field} is {value:?}, which this version does not know"),
            None => format!("{field} is not given; the event needs it"),
        };
        let row = self.row(reason, 1);
        self.rows.push(RefusedRow { field: Some(field.into()), value, instance, detail, ..row });
    }

    /// Looks whether a row is off its time.
    pub fn time(&mut self, at: Micros) {
        let off = match at {
            _ if at < self.now.saturating_sub(OFF_TIME_US) => &mut self.late,
            _ if at > self.now.saturating_add(OFF_TIME_US) => &mut self.early,
            _ => return,
        };
        off.get_or_insert((0, at)).0 += 1;
    }

    pub fn finish(mut self) -> Vec<RefusedRow> {
        for (reason, off) in [("late", self.late), ("early", self.early)] {
            let Some((count, at)) = off else { continue };
            let detail = "more than a minute off; counted in the open epoch".into();
            let row = self.row(reason, count);
            self.rows.push(RefusedRow { field: Some("at".into()), value: Some(at.to_string()), detail, ..row });
        }
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: more refusals than rows are kept, of two reasons. Guarantees: the first are kept whole, the others
    /// counted by topic and reason, and nothing is told twice.
    #[test]
    fn what_does_not_fit_is_counted() {
        let refused = RefusedRows::default();
        let row = |reason: &str| RefusedRow { reason: reason.into(), count: 2, ..RefusedRow::default() };
        refused.push((0..ROWS_MAX).map(|_| row("late")).collect());
        refused.push(vec![row("late"), row("malformed"), row("late")]);
        let rows = refused.take(9);
        let more: Vec<_> = rows[ROWS_MAX..].iter().map(|row| (row.at, row.reason.as_str(), row.count)).collect();
        assert_eq!(more, vec![(9, "late", 4), (9, "malformed", 2)]);
        assert_eq!((refused.take(10), refused.total()), (Vec::new(), 2 * (ROWS_MAX as u64 + 3)));
    }
}
