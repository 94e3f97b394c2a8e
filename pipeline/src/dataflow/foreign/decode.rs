//! KV event batches of vLLM and SGLang: msgpack in both shapes, arrays with the tag first and maps with `type`.
//!
//! A batch is `[time, [event …], rank]`. Which engine sends is told and never guessed: the same place of an array means
//! another thing. Block hashes are integers, or bytes of which the last 8 count (big-endian), as llm-d reduces them.
//! Unknown media are refused rather than taken for device memory. Invariant: any bytes give events or errors, never a
//! panic; an event that is refused leaves the others of its batch as they are.
//! Cost: O(bytes), one tree of values. State: none; a payload has at most [`PAYLOAD_BYTES_MAX`] bytes and values nest at
//! most [`DEPTH_MAX`] deep.

use rmpv::Value;

/// Larger payloads are refused.
pub const PAYLOAD_BYTES_MAX: usize = 16 << 20;
/// Values nested deeper are refused.
pub const DEPTH_MAX: usize = 16;

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignEngine {
    Vllm,
    Sglang,
}

/// One change, in the engine's own hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForeignEvent {
    Stored(ForeignStored),
    Removed { hashes: Vec<u64>, level: u8, group: u32 },
    Cleared,
}

/// Blocks that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignStored {
    pub hashes: Vec<u64>,
    pub parent: Option<u64>,
    /// May be missing where the blocks were told before, at another level.
    pub tokens: Vec<u32>,
    pub block_size: usize,
    pub level: u8,
    /// Of hybrid models: 0 is the main group.
    pub group: u32,
    /// What else the content depends on, as bytes: adapter and salt; empty for plain text.
    pub scope: Vec<u8>,
    /// What else each block depends on, as bytes; empty if nothing.
    pub extra: Vec<Vec<u8>>,
}

/// Why an event, or the whole batch, was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}; expected {expected}")]
pub struct ForeignError {
    pub field: &'static str,
    pub value: String,
    pub expected: &'static str,
}

fn wrong(field: &'static str, value: &Value, expected: &'static str) -> ForeignError {
    let mut value = value.to_string();
    if let Some((end, _)) = value.char_indices().nth(60) {
        value.truncate(end);
        value.push('…');
    }
    ForeignError { field, value, expected }
}

/// A batch's events, each taken or refused.
///
/// # Errors
/// The payload is not a batch.
pub fn decode(engine: ForeignEngine, payload: &[u8]) -> Result<Vec<Result<ForeignEvent, ForeignError>>, ForeignError> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        let value = format!("{} bytes", payload.len());
        return Err(ForeignError { field: "payload", value, expected: "at most 16 MiB" });
    }
    let value = rmpv::decode::read_value_with_max_depth(&mut &payload[..], DEPTH_MAX)
        .map_err(|error| ForeignError { field: "payload", value: error.to_string(), expected: "msgpack" })?;
    let events = match &value {
        Value::Array(parts) => parts.get(1),
        Value::Map(_) => member(&value, "events"),
        _ => None,
    };
    let events = events.and_then(Value::as_array);
    let events = events.ok_or_else(|| wrong("batch", &value, "[time, [events], rank]"))?;
    Ok(events.iter().map(|event| self::event(engine, event)).collect())
}

fn member<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    map.as_map()?.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value)
}

/// An event in either shape, asked by name or by place.
struct Fields<'a> {
    event: &'a Value,
}

impl<'a> Fields<'a> {
    /// The member of that name, or the element at that place; nil is absent.
    fn get(&self, name: &str, place: Option<usize>) -> Option<&'a Value> {
        let value = match self.event {
            Value::Array(parts) => parts.get(place?),
            map => member(map, name),
        };
        value.filter(|value| !value.is_nil())
    }

    /// vLLM's arrays grow at their end with fields that are told apart by type: the first integer there is the group.
    fn tail_integer(&self, from: usize) -> Option<&'a Value> {
        let parts = self.event.as_array()?;
        parts.get(from..)?.iter().find(|value| value.is_u64() || value.is_i64())
    }
}

fn event(engine: ForeignEngine, event: &Value) -> Result<ForeignEvent, ForeignError> {
    let fields = Fields { event };
    let tag = fields.get("type", Some(0));
    match tag.and_then(Value::as_str) {
        Some("BlockStored") => stored(engine, &fields).map(ForeignEvent::Stored),
        Some("BlockRemoved") => Ok(ForeignEvent::Removed {
            hashes: hashes(&fields)?,
            level: level(fields.get("medium", Some(2)))?,
            group: group(fields.get("group_idx", None).or_else(|| fields.tail_integer(3)))?,
        }),
        Some("AllBlocksCleared") => Ok(ForeignEvent::Cleared),
        _ => Err(wrong("type", tag.unwrap_or(event), "BlockStored, BlockRemoved or AllBlocksCleared")),
    }
}

fn stored(engine: ForeignEngine, fields: &Fields<'_>) -> Result<ForeignStored, ForeignError> {
    let parent = fields.get("parent_block_hash", Some(2)).map(|value| hash("parent_block_hash", value)).transpose()?;
    let tokens = match fields.get("token_ids", Some(3)) {
        None => Vec::new(),
        Some(value) => tokens(value)?,
    };
    let block_size = fields.get("block_size", Some(4)).unwrap_or(&Value::Nil);
    let size = block_size.as_u64().and_then(|size| usize::try_from(size).ok());
    let block_size = size.filter(|size| (1..=1 << 16).contains(size));
    let block_size = block_size
        .ok_or_else(|| wrong("block_size", fields.get("block_size", Some(4)).unwrap_or(&Value::Nil), "1 to 65536"))?;
    // Place 7 is the adapter's name at vLLM and the salt at SGLang, whose adapter's name is at 9.
    let places = match engine {
        ForeignEngine::Vllm => [("lora_id", Some(5)), ("lora_name", Some(7)), ("cache_salt", None)],
        ForeignEngine::Sglang => [("lora_id", Some(5)), ("lora_name", Some(9)), ("cache_salt", Some(7))],
    };
    let mut scope = Vec::new();
    for (name, place) in places {
        if let Some(value) = fields.get(name, place) {
            scope.extend(name.as_bytes());
            encode(value, &mut scope);
        }
    }
    let (extra, tail) = match engine {
        ForeignEngine::Vllm => (fields.get("extra_keys", Some(8)), fields.tail_integer(9)),
        ForeignEngine::Sglang => (fields.get("extra_keys", None), None),
    };
    Ok(ForeignStored {
        hashes: hashes(fields)?,
        parent,
        tokens,
        block_size,
        level: level(fields.get("medium", Some(6)))?,
        group: group(fields.get("group_idx", None).or(tail))?,
        scope,
        extra: extra.map(extra_keys).unwrap_or_default(),
    })
}

/// One entry a block; an entry that says nothing is empty.
fn extra_keys(value: &Value) -> Vec<Vec<u8>> {
    let Some(entries) = value.as_array() else { return Vec::new() };
    let bytes = |entry: &Value| {
        let mut bytes = Vec::new();
        if !entry.is_nil() {
            encode(entry, &mut bytes);
        }
        bytes
    };
    entries.iter().map(bytes).collect()
}

/// A value as bytes, which differ where values do.
fn encode(value: &Value, into: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = rmpv::encode::write_value(into, value);
}

fn hashes(fields: &Fields<'_>) -> Result<Vec<u64>, ForeignError> {
    let value = fields.get("block_hashes", Some(1)).unwrap_or(&Value::Nil);
    let values = value.as_array().ok_or_else(|| wrong("block_hashes", value, "a list"))?;
    values.iter().map(|value| hash("block_hashes", value)).collect()
}

fn hash(field: &'static str, value: &Value) -> Result<u64, ForeignError> {
    let last = |bytes: &[u8]| bytes.last_chunk().map(|last: &[u8; 8]| u64::from_be_bytes(*last));
    let hash = match value {
        // Signed or not, the same 64 bits.
        Value::Integer(number) => number.as_u64().or_else(|| number.as_i64().map(|number| number as u64)),
        Value::Binary(bytes) => last(bytes),
        _ => None,
    };
    hash.ok_or_else(|| wrong(field, value, "integers, or at least 8 bytes"))
}

fn tokens(value: &Value) -> Result<Vec<u32>, ForeignError> {
    let expected = "a list of token ids";
    let values = value.as_array().ok_or_else(|| wrong("token_ids", value, expected))?;
    let token = |value: &Value| {
        let token = value.as_u64().and_then(|token| u32::try_from(token).ok());
        token.ok_or_else(|| wrong("token_ids", value, expected))
    };
    values.iter().map(token).collect()
}

fn group(value: Option<&Value>) -> Result<u32, ForeignError> {
    let Some(value) = value else { return Ok(0) };
    let group = value.as_u64().and_then(|group| u32::try_from(group).ok());
    group.ok_or_else(|| wrong("group_idx", value, "a small integer"))
}

/// The level of a medium; without one it is the device's.
fn level(medium: Option<&Value>) -> Result<u8, ForeignError> {
    let Some(medium) = medium else { return Ok(0) };
    match medium.as_str() {
        Some("GPU") => Ok(0),
        Some("CPU" | "CPU_PINNED" | "CPU_TIER1" | "CPU_TIER2") => Ok(1),
        Some("DISK" | "FS" | "SSD") => Ok(2),
        Some("OBJ" | "STORAGE" | "EXTERNAL") => Ok(3),
        _ => Err(wrong("medium", medium, "GPU, CPU, CPU_PINNED, DISK, FS, SSD, OBJ, STORAGE or EXTERNAL")),
    }
}
