//! Cursors of a session: answers that are fetched row by row, forwards and backwards.
//!
//! A cursor's query is answered when it is declared, within the limits of any query, and its answer is kept. Cursors end with their
//! transaction; those WITH HOLD stay until they are closed, but for one that is declared in a transaction that is rolled back.
//! Bounds: [`CURSORS_MAX`] cursors, [`CURSOR_BYTES_MAX`] of their answers together. Cost: O(rows fetched) a step.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use arrow::{array::RecordBatch, datatypes::SchemaRef};
use pgwire::{api::portal::Format, error::PgWireResult};
use queries::{
    QueryResult,
    postgres::command::{CursorForm, Declared, Direction, Hold, Scroll, Step},
};

use super::errors;

/// Most cursors of a session.
pub(super) const CURSORS_MAX: usize = 16;
/// Most bytes that the answers of a session's cursors have together.
pub(super) const CURSOR_BYTES_MAX: usize = 64 << 20;

/// All cursors of a session, by name.
#[derive(Default)]
pub(super) struct Cursors(Mutex<HashMap<String, Cursor>>);

struct Cursor {
    declared: Declared,
    answer: QueryResult,
    /// What rows are sent with.
    schema: SchemaRef,
    rows: usize,
    bytes: usize,
    place: usize,
    /// Declared in the transaction that is open.
    is_new: bool,
}

/// How a transaction ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Commit,
    Rollback,
}

/// Rows of a step, with what they are sent with.
pub(super) struct Fetched {
    pub(super) rows: QueryResult,
    pub(super) schema: SchemaRef,
    pub(super) form: Format,
}

fn unknown(name: &str) -> pgwire::error::PgWireError {
    errors::user("ERROR", "34000", &format!("cursor {name:?} does not exist"))
}

fn form(declared: &Declared) -> Format {
    match declared.form {
        CursorForm::Text => Format::UnifiedText,
        CursorForm::Binary => Format::UnifiedBinary,
    }
}

impl Cursors {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Cursor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is room for one more of that name.
    pub(super) fn admit(&self, name: &str) -> PgWireResult<()> {
        let cursors = self.lock();
        if cursors.contains_key(name) {
            return Err(errors::user("ERROR", "42P03", &format!("cursor {name:?} already exists")));
        }
        if cursors.len() >= CURSORS_MAX {
            return Err(errors::user("ERROR", "53400", &format!("more than {CURSORS_MAX} cursors in a session")));
        }
        Ok(())
    }

    /// Keeps the answer of a cursor that was admitted.
    pub(super) fn declare(&self, declared: &Declared, answer: QueryResult, schema: SchemaRef) -> PgWireResult<()> {
        let rows = answer.batches.iter().map(RecordBatch::num_rows).sum();
        let bytes: usize = answer.batches.iter().map(bytes_of).sum();
        let mut cursors = self.lock();
        let held: usize = cursors.values().map(|cursor| cursor.bytes).sum();
        if held + bytes > CURSOR_BYTES_MAX {
            let most = CURSOR_BYTES_MAX >> 20;
            let words = format!(
                "the answers of a session's cursors would have {} MiB, at most {most} MiB are kept; close one, or ask for less",
                (held + bytes) >> 20
            );
            return Err(errors::user("ERROR", "53200", &words));
        }
        let cursor = Cursor { declared: declared.clone(), answer, schema, rows, bytes, place: 0, is_new: true };
        cursors.insert(declared.name.clone(), cursor);
        Ok(())
    }

    /// Takes a step and gives the rows it passes.
    pub(super) fn fetch(&self, name: &str, direction: Direction) -> PgWireResult<Fetched> {
        let mut cursors = self.lock();
        let cursor = cursors.get_mut(name).ok_or_else(|| unknown(name))?;
        let step = cursor.step(direction)?;
        let batches = rows_of(&cursor.answer.batches, step);
        let rows = QueryResult { schema: cursor.answer.schema.clone(), batches };
        Ok(Fetched { rows, schema: cursor.schema.clone(), form: form(&cursor.declared) })
    }

    /// Takes a step and says how many rows it passes.
    pub(super) fn pass(&self, name: &str, direction: Direction) -> PgWireResult<usize> {
        let mut cursors = self.lock();
        let cursor = cursors.get_mut(name).ok_or_else(|| unknown(name))?;
        Ok(cursor.step(direction)?.rows)
    }

    /// What a cursor's rows are sent with.
    pub(super) fn shape(&self, name: &str) -> Option<(SchemaRef, Format)> {
        self.lock().get(name).map(|cursor| (cursor.schema.clone(), form(&cursor.declared)))
    }

    pub(super) fn close(&self, name: &str) -> PgWireResult<()> {
        self.lock().remove(name).map(drop).ok_or_else(|| unknown(name))
    }

    pub(super) fn close_all(&self) {
        self.lock().clear();
    }

    /// The transaction ends.
    pub(super) fn end(&self, end: End) {
        let mut cursors = self.lock();
        cursors.retain(|_, cursor| cursor.declared.hold == Hold::Yes && !(cursor.is_new && end == End::Rollback));
        cursors.values_mut().for_each(|cursor| cursor.is_new = false);
    }
}

impl Cursor {
    fn step(&mut self, direction: Direction) -> PgWireResult<Step> {
        let step = direction.step(self.place, self.rows);
        let is_back = step.is_backward || step.place < self.place;
        if is_back && self.declared.scroll == Scroll::No {
            let words = format!("cursor {:?} can only scan forward: it is declared with NO SCROLL", self.declared.name);
            return Err(errors::user("ERROR", "55000", &words));
        }
        self.place = step.place;
        Ok(step)
    }
}

/// Bytes of a batch's rows, whatever buffers they are slices of.
fn bytes_of(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter();
    columns.map(|column| column.to_data().get_slice_memory_size().unwrap_or(usize::MAX >> 16)).sum()
}

/// The rows of a step, in its order.
fn rows_of(batches: &[RecordBatch], step: Step) -> Vec<RecordBatch> {
    let (mut skip, mut left, mut parts) = (step.first, step.rows, Vec::new());
    for batch in batches {
        let from = skip.min(batch.num_rows());
        skip -= from;
        let rows = left.min(batch.num_rows() - from);
        left -= rows;
        match step.is_backward {
            _ if rows == 0 => {}
            false => parts.push(batch.slice(from, rows)),
            true => parts.extend((from..from + rows).map(|row| batch.slice(row, 1))),
        }
    }
    if step.is_backward {
        parts.reverse();
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::{
        array::{ArrayRef, AsArray, Int64Array},
        datatypes::Int64Type,
    };

    use super::*;

    fn answer(batches: &[&[i64]]) -> QueryResult {
        let batch = |values: &&[i64]| {
            RecordBatch::try_from_iter([("n", Arc::new(Int64Array::from(values.to_vec())) as ArrayRef)]).unwrap()
        };
        let batches: Vec<RecordBatch> = batches.iter().map(batch).collect();
        QueryResult { schema: batches[0].schema(), batches }
    }

    fn declared(name: &str, hold: Hold) -> Declared {
        Declared { name: name.into(), scroll: Scroll::Yes, hold, form: CursorForm::Text }
    }

    fn code(result: PgWireResult<impl Sized>) -> String {
        match result {
            Err(pgwire::error::PgWireError::UserError(info)) => info.code.clone(),
            _ => "none".to_string(),
        }
    }

    /// Scenario: rows over three batches, one of them empty, fetched across their borders in both directions. Guarantees: each row once,
    /// in order; NO SCROLL never goes back.
    #[test]
    fn rows_are_fetched_across_batches() {
        let cursors = Cursors::default();
        let all = answer(&[&[1, 2], &[], &[3, 4, 5]]);
        let schema = all.schema.clone();
        cursors.declare(&declared("c", Hold::No), all.clone(), schema.clone()).unwrap();
        let values = |direction| -> Vec<i64> {
            let fetched = cursors.fetch("c", direction).unwrap();
            let column = |batch: &RecordBatch| batch.column(0).as_primitive::<Int64Type>().values().to_vec();
            fetched.rows.batches.iter().flat_map(column).collect()
        };
        use queries::postgres::command::Count::{All, Rows};
        assert_eq!(values(Direction::Forward(Rows(3))), [1, 2, 3]);
        assert_eq!(values(Direction::Backward(Rows(2))), [2, 1]);
        assert_eq!(values(Direction::Forward(All)), [2, 3, 4, 5]);
        assert_eq!(values(Direction::Backward(All)), [5, 4, 3, 2, 1]);
        assert_eq!(cursors.pass("c", Direction::Absolute(4)).unwrap(), 1);
        assert_eq!(values(Direction::Relative(0)), [4]);

        let forwards = Declared { scroll: Scroll::No, ..declared("f", Hold::No) };
        cursors.declare(&forwards, all, schema).unwrap();
        cursors.pass("f", Direction::Forward(Rows(2))).unwrap();
        assert_eq!(code(cursors.pass("f", Direction::Backward(Rows(1)))), "55000");
        assert_eq!(code(cursors.pass("f", Direction::Absolute(1))), "55000");
        assert_eq!(cursors.pass("f", Direction::Forward(Rows(9))).unwrap(), 3);
    }

    /// Scenario: cursors with and without HOLD at the end of a transaction. Guarantees: those without go; those with it stay, but for new
    /// ones of a transaction that is rolled back.
    #[test]
    fn transactions_end_cursors() {
        let cursors = Cursors::default();
        let declare = |name, hold| {
            let answer = answer(&[&[1]]);
            let schema = answer.schema.clone();
            cursors.declare(&declared(name, hold), answer, schema).unwrap();
        };
        let there = |name| cursors.shape(name).is_some();
        declare("short", Hold::No);
        declare("long", Hold::Yes);
        cursors.end(End::Commit);
        assert_eq!((there("short"), there("long")), (false, true));
        declare("new", Hold::Yes);
        cursors.end(End::Rollback);
        assert_eq!((there("new"), there("long")), (false, true));
        cursors.close("long").unwrap();
        assert_eq!(
            (code(cursors.close("long")), code(cursors.fetch("long", Direction::Relative(0)))),
            ("34000".into(), "34000".into())
        );
    }

    /// Scenario: one name twice, one cursor too many, and answers that are too large together. Guarantees: each is refused, and a closed
    /// cursor makes room.
    #[test]
    fn cursors_are_bounded() {
        let cursors = Cursors::default();
        let large = answer(&[&vec![7; (CURSOR_BYTES_MAX / 8) * 2 / 3]]);
        let schema = large.schema.clone();
        cursors.admit("a").unwrap();
        cursors.declare(&declared("a", Hold::No), large.clone(), schema.clone()).unwrap();
        assert_eq!(code(cursors.admit("a")), "42P03");
        assert_eq!(code(cursors.declare(&declared("b", Hold::No), large.clone(), schema.clone())), "53200");
        cursors.close("a").unwrap();
        cursors.declare(&declared("b", Hold::No), large, schema).unwrap();
        for number in 1..CURSORS_MAX {
            let small = answer(&[&[1]]);
            let schema = small.schema.clone();
            cursors.declare(&declared(&number.to_string(), Hold::No), small, schema).unwrap();
        }
        assert_eq!(code(cursors.admit("more")), "53400");
    }
}
