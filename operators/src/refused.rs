//! What the dataflow would not take, as data: malformed rows, late rows, gaps, fenced rows and full state.
//!
//! Invariant: no row makes an operator panic; each row not folded as it stands is reported here or is a plain
//! duplicate. Cost: at most one `Refused` per input row and one per evicted key. State: none.
use std::fmt;

use serde::{Deserialize, Serialize};

/// The input a refused row came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Input {
    Load,
    Kv,
    Traffic,
    Steps,
    Funnel,
    Diagnosis,
    Prompts,
    Plans,
}

/// The field of an input row that was out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Field {
    Seq,
    Tokens,
    Level,
    Instance,
    Bucket,
    PromptTokens,
    OutputTokens,
    CachedTokens,
    TtftUs,
    ItlUs,
    Step,
    AtUs,
    PrefillTokens,
    DecodeTokens,
    BlocksUsed,
    BlocksCached,
    StepUs,
    BlockTokens,
    Blocks,
    NsPerToken,
    TotalUs,
    QueueUs,
}

impl Field {
    /// The name as it stands in the row.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seq => "seq",
            Self::Tokens => "tokens",
            Self::Level => "level",
            Self::Instance => "instance",
            Self::Bucket => "bucket",
            Self::PromptTokens => "prompt_tokens",
            Self::OutputTokens => "output_tokens",
            Self::CachedTokens => "cached_tokens",
            Self::TtftUs => "ttft_us",
            Self::ItlUs => "itl_us_mean",
            Self::Step => "step",
            Self::AtUs => "at_us",
            Self::PrefillTokens => "prefill_tokens",
            Self::DecodeTokens => "decode_tokens",
            Self::BlocksUsed => "blocks_used",
            Self::BlocksCached => "blocks_cached",
            Self::StepUs => "step_us",
            Self::BlockTokens => "block_tokens",
            Self::Blocks => "blocks",
            Self::NsPerToken => "ns_per_token",
            Self::TotalUs => "total_us",
            Self::QueueUs => "queue_us",
        }
    }
}

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Refusal {
    /// A field outside `least..=most`; the row was dropped.
    OutOfRange { field: Field, value: u64, least: u64, most: u64 },
    /// The row came after its epoch had closed; it was counted in epoch `open` instead.
    Late { open: u64 },
    /// The row is of a worker process that has been replaced; it was dropped.
    StaleIncarnation { current: u64, got: u64 },
    /// KV events are missing: `expected` should have come, `got` came and waits. They are asked for again.
    SequenceGap { incarnation: u64, expected: u64, got: u64 },
    /// KV events never came; those after them were folded without, the instance is degraded until its content is told.
    EventsLost { incarnation: u64, from_seq: u64, to_seq: u64 },
    /// A KV event more than `max_jump` after the one that should have come; the row was dropped, and everything is asked for.
    SequenceJump { incarnation: u64, expected: u64, got: u64, max_jump: u64 },
    /// A block that is its own parent; the row was dropped, the instance is degraded until its content is told.
    OwnParent { hash: u64 },
    /// `max_open` requests are open: the one open for longest was dropped and its later rows are ignored.
    OpenRequestsFull { max_open: u64 },
    /// `max_entries` blocks are indexed: the block was not added, the instance is approximate.
    EntriesFull { max_entries: u64 },
    /// `max_orphans` blocks wait for their parent: the block was left out, the instance is approximate.
    OrphansFull { max_orphans: u64 },
    /// The block was stored `max_references` times: once more was not counted, the instance is approximate.
    ReferencesFull { max_references: u64 },
    /// `max_instances` instances are known: the one silent for longest was dropped with all it held.
    InstancesFull { max_instances: u64 },
    /// `max_keys` groups are known: the rows of this new group were dropped.
    KeysFull { max_keys: u64 },
    /// A request ended whose prompt never came: nothing can be told of it.
    PromptMissing,
    /// `max_groups` tiers and tenants of a model have a curve: the rows of this one count only in the model's.
    GroupsFull { max_groups: u64 },
    /// A bucket plan whose ranges do not start at atom 0 and rise, are too many, or have no version; it was dropped.
    MalformedPlan { version: u64, ranges: u64 },
}

/// Rows of one cause in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Refused {
    /// The dataflow epoch in which the cause was met.
    pub epoch: u64,
    pub input: Input,
    /// The instance concerned; `None` where the input has none.
    pub instance: Option<u32>,
    /// The request (load), the block hash (KV, full index), `model << 8 | tier` (traffic), the step (steps), the model
    /// (plans), the low half of the request's id or the block hash (funnel), the request or the group without room
    /// (prompts: 1, 2 or 3 for tier, model or tenant `<< 32 |` its number), or 0.
    pub subject: u64,
    /// Rows or entries concerned; at least 1.
    pub rows: u64,
    pub reason: Refusal,
}

impl Refusal {
    /// The reason in one word, for queries.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfRange { .. } => "out_of_range",
            Self::Late { .. } => "late",
            Self::StaleIncarnation { .. } => "stale_incarnation",
            Self::SequenceGap { .. } => "sequence_gap",
            Self::EventsLost { .. } => "events_lost",
            Self::SequenceJump { .. } => "sequence_jump",
            Self::OwnParent { .. } => "own_parent",
            Self::OpenRequestsFull { .. } => "open_requests_full",
            Self::EntriesFull { .. } => "entries_full",
            Self::OrphansFull { .. } => "orphans_full",
            Self::ReferencesFull { .. } => "references_full",
            Self::InstancesFull { .. } => "instances_full",
            Self::KeysFull { .. } => "keys_full",
            Self::PromptMissing => "prompt_missing",
            Self::MalformedPlan { .. } => "malformed_plan",
            Self::GroupsFull { .. } => "groups_full",
        }
    }

    /// The field that was wrong and its value, where one was.
    pub fn field(self) -> Option<(&'static str, u64)> {
        match self {
            Self::OutOfRange { field, value, .. } => Some((field.name(), value)),
            Self::StaleIncarnation { got, .. } => Some(("epoch", got)),
            Self::SequenceGap { got, .. } => Some(("seq", got)),
            Self::EventsLost { from_seq, .. } => Some(("seq", from_seq)),
            Self::SequenceJump { got, .. } => Some(("seq", got)),
            Self::OwnParent { hash } => Some(("parent_hash", hash)),
            _ => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfRange { field, value, least, most } => {
                write!(f, "{} is {value}; it must be within {least}..={most}", field.name())
            }
            Self::Late { open } => write!(f, "its epoch had closed; counted in epoch {open}"),
            Self::StaleIncarnation { current, got } => {
                write!(f, "epoch is {got}, of a replaced worker; rows of epoch {current} or later are taken")
            }
            Self::SequenceGap { incarnation, expected, got } => {
                write!(
                    f,
                    "seq is {got} in worker epoch {incarnation}; {expected} should have come: it was asked for again"
                )
            }
            Self::EventsLost { incarnation, from_seq, to_seq } => {
                write!(f, "events {from_seq} to {to_seq} of worker epoch {incarnation} never came")
            }
            Self::SequenceJump { incarnation, expected, got, max_jump } => {
                write!(
                    f,
                    "seq is {got} in worker epoch {incarnation}, more than max_jump = {max_jump} after {expected}: it was \
                     not taken, and everything the worker holds is asked for"
                )
            }
            Self::OwnParent { hash } => write!(f, "block {hash:016x} is its own parent"),
            Self::OrphansFull { max_orphans } => {
                write!(f, "max_orphans = {max_orphans} blocks wait for their parent; this one was left out")
            }
            Self::ReferencesFull { max_references } => {
                write!(f, "the block was stored max_references = {max_references} times; once more was not counted")
            }
            Self::OpenRequestsFull { max_open } => {
                write!(f, "max_open = {max_open} requests are open; the oldest was dropped")
            }
            Self::EntriesFull { max_entries } => {
                write!(f, "max_entries = {max_entries} blocks are indexed; this one was not added")
            }
            Self::InstancesFull { max_instances } => {
                write!(f, "max_instances = {max_instances} instances are known; the one silent for longest was dropped")
            }
            Self::KeysFull { max_keys } => {
                write!(f, "max_keys = {max_keys} groups are known; rows of this new one were dropped")
            }
            Self::MalformedPlan { version, ranges } => {
                let most = crate::bucket_load::BUCKETS_MAX;
                write!(
                    f,
                    "plan {version} has {ranges} ranges; expected 1 to {most} that rise from atom 0, and a version"
                )
            }
            Self::PromptMissing => write!(f, "its prompt never came, so nothing can be told of its cache hits"),
            Self::GroupsFull { max_groups } => {
                write!(
                    f,
                    "max_groups = {max_groups} tiers and tenants have a curve under this model; this one counts only in the model's"
                )
            }
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let input = match self.input {
            Input::Load => "load",
            Input::Kv => "kv",
            Input::Traffic => "traffic",
            Input::Steps => "steps",
            Input::Funnel => "funnel",
            Input::Diagnosis => "diagnosis",
            Input::Prompts => "prompts",
            Input::Plans => "plans",
        };
        write!(f, "{input} row refused in epoch {} ({} in all, ", self.epoch, self.rows)?;
        if let Some(instance) = self.instance {
            write!(f, "instance {instance}, ")?;
        }
        write!(f, "subject {}): {}", self.subject, self.reason)
    }
}
