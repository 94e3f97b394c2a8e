//! KV events of the bus become rows for the cache index (SPEC C4).
//!
//! Invariant: an event that is refused (unknown, or without a field it needs) still uses up its number, as a row that says
//! nothing, so that its instance is known to be uncertain. Columns are read in place. Cost: O(rows). No state.

use arrow::array::Array;
use operators::{FlowRows, KvChange, KvRow};

use super::{
    columns::{Columns, maybe, maybe_text},
    refused::Wrong,
};
use crate::bus::RowsError;

/// Appends the batch's events to `rows`.
///
/// # Errors
/// The batch does not have its topic's columns.
pub(super) fn take(columns: &Columns<'_>, rows: &mut FlowRows, wrong: &mut Wrong) -> Result<(), RowsError> {
    let (instance, epoch, seq) = (columns.u32("instance")?, columns.u64("epoch")?, columns.u64("seq")?);
    let (events, levels) = (columns.text("event")?, columns.text("level")?);
    let (hashes, parents, tokens) = (columns.u64("block_hash")?, columns.u64("parent_hash")?, columns.u32("tokens")?);
    let (buckets, blocks) = (columns.u32("bucket")?, columns.u32("blocks")?);
    rows.kv.extend((0..events.len()).map(|row| {
        let said = Said {
            event: events.value(row),
            level: maybe_text(levels, row),
            hash: maybe(hashes, row),
            parent: maybe(parents, row),
            tokens: maybe(tokens, row),
            bucket: maybe(buckets, row),
            blocks: maybe(blocks, row),
        };
        let instance = instance.value(row);
        let event = said.change().unwrap_or_else(|(reason, field, value)| {
            wrong.refuse(reason, (field, value), Some(instance));
            KvChange::Void
        });
        KvRow { instance, epoch: epoch.value(row), seq: seq.value(row), event }
    }));
    Ok(())
}

/// What a row says.
struct Said<'a> {
    event: &'a str,
    level: Option<&'a str>,
    hash: Option<u64>,
    parent: Option<u64>,
    tokens: Option<u32>,
    bucket: Option<u32>,
    blocks: Option<u32>,
}

/// Why an event is refused: reason, field and value.
type Refusal = (&'static str, &'static str, Option<String>);

impl Said<'_> {
    fn change(&self) -> Result<KvChange, Refusal> {
        let missing = |field| ("missing", field, None);
        let hash = || self.hash.ok_or(missing("block_hash"));
        let tokens = || self.tokens.ok_or(missing("tokens"));
        let blocks = || self.blocks.ok_or(missing("blocks"));
        // Out of range is for the operator to refuse.
        let bucket = || self.bucket.map(|bucket| u8::try_from(bucket).unwrap_or(u8::MAX)).ok_or(missing("bucket"));
        let level = || {
            let name = self.level.ok_or(missing("level"))?;
            level_number(name).ok_or_else(|| ("unknown_level", "level", Some(name.to_string())))
        };
        Ok(match self.event {
            "stored" => KvChange::Stored { hash: hash()?, parent: self.parent, level: level()?, tokens: tokens()? },
            "hit" => KvChange::Hit { hash: hash()?, level: level()?, tokens: tokens()? },
            "removed" => KvChange::Removed { hash: hash()?, level: level()? },
            "cleared" => KvChange::Cleared,
            "sum" => KvChange::Sum { bucket: bucket()?, blocks: blocks()?, sum: hash()? },
            "listed" => KvChange::Listed { bucket: bucket()?, blocks: blocks()? },
            other => return Err(("unknown_event", "event", Some(other.to_string()))),
        })
    }
}

/// Number of a KV level's name in the operators' rows.
pub fn level_number(name: &str) -> Option<u8> {
    ["L1", "L2", "L2.5", "L3"].iter().position(|level| *level == name).map(|number| number as u8)
}
