//! Recorded traces as rows in order of time.
//!
//! * Mooncake JSONL: `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512-token blocks, prefix-chained. Real
//!   ones sit on ticks of about 3 s: rows of one tick are spread evenly up to the next tick (at most 3 s).
//! * Azure CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`; no prefixes, so every row gets block ids of its own.
//!
//! Both plain or as `.zst`. Invariants: times start at 0 and never fall; a row's blocks cover its input. A wrong row is an
//! error with its line number. Memory: the whole trace, at most `ROWS_MAX` rows.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::Deserialize;

/// Tokens of one block of a trace.
pub const BLOCK_TOKENS: u64 = 512;
const ROWS_MAX: usize = 5_000_000;
const LINE_BYTES_MAX: u64 = 4 << 20;
const TICK_MAX_US: u64 = 3_000_000;
/// Longest input or output of a row that is believed, in tokens.
const LENGTH_MAX: u64 = 10_000_000;
/// zstd's own bound; traces are packed with long windows.
const WINDOW_LOG_MAX: u32 = 31;
/// Ids that this file makes up have this bit; recorded ones are far below it.
const OWN_ID: u64 = 1 << 63;

/// One recorded request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRow {
    /// Since the first row, in microseconds.
    pub at_us: u64,
    /// Tokens.
    pub input: u64,
    /// Tokens.
    pub output: u64,
    /// Ids of the input's blocks of [`BLOCK_TOKENS`], the last one partial. Equal ids mean equal text up to there.
    pub blocks: Vec<u64>,
}

/// A trace that cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("trace {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("trace {}, line {line}: {problem}", path.display())]
    Row { path: PathBuf, line: usize, problem: String },
    #[error("trace {}: {problem}", path.display())]
    Format { path: PathBuf, problem: &'static str },
}

/// Reads the first `limit` rows.
pub fn read(path: &Path, limit: Option<usize>) -> Result<Vec<TraceRow>, TraceError> {
    let read_error = |source| TraceError::Read { path: path.into(), source };
    let file = File::open(path).map_err(read_error)?;
    let packed = path.extension().is_some_and(|ext| ext == "zst");
    let bytes: Box<dyn Read> = if packed {
        let mut decoder = zstd::stream::read::Decoder::new(file).map_err(read_error)?;
        decoder.window_log_max(WINDOW_LOG_MAX).map_err(read_error)?;
        Box::new(decoder)
    } else {
        Box::new(file)
    };
    let limit = limit.unwrap_or(ROWS_MAX).min(ROWS_MAX);
    parse(BufReader::new(bytes), path, limit)
}

#[derive(Clone, Copy)]
enum Format {
    Mooncake,
    Azure,
}

/// Parses text in either format, told apart by the first line. `path` is for messages.
pub fn parse(mut text: impl BufRead, path: &Path, limit: usize) -> Result<Vec<TraceRow>, TraceError> {
    let mut rows: Vec<TraceRow> = Vec::new();
    let mut format = None;
    let mut number = 0;
    let mut line = String::new();
    while rows.len() < limit {
        line.clear();
        number += 1;
        let count = text.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        if count.map_err(|source| TraceError::Read { path: path.into(), source })? == 0 {
            break;
        }
        let content = line.trim();
        if content.is_empty() {
            continue;
        }
        let format = match format {
            Some(format) => format,
            None => {
                let found =
                    format_of(content).ok_or(TraceError::Format { path: path.into(), problem: UNKNOWN_FORMAT })?;
                format = Some(found);
                if matches!(found, Format::Azure) {
                    continue;
                }
                found
            }
        };
        let row = match format {
            Format::Mooncake => mooncake(content),
            Format::Azure => azure(content, rows.len()),
        };
        rows.push(row.map_err(|problem| TraceError::Row { path: path.into(), line: number, problem })?);
    }
    let first = rows.iter().map(|row| row.at_us).min();
    let Some(first) = first else { return Err(TraceError::Format { path: path.into(), problem: "no rows" }) };
    rows.iter_mut().for_each(|row| row.at_us -= first);
    rows.sort_by_key(|row| row.at_us);
    if matches!(format, Some(Format::Mooncake)) {
        spread(&mut rows);
    }
    Ok(rows)
}

const UNKNOWN_FORMAT: &str = "unknown format; expected Mooncake JSON lines \
     ({\"timestamp\", \"input_length\", \"output_length\", \"hash_ids\"}) or the header TIMESTAMP,ContextTokens,GeneratedTokens";

fn format_of(first: &str) -> Option<Format> {
    if first.starts_with('{') {
        return Some(Format::Mooncake);
    }
    first.trim_start_matches('\u{feff}').starts_with("TIMESTAMP,ContextTokens,GeneratedTokens").then_some(Format::Azure)
}

#[derive(Deserialize)]
struct MooncakeRow {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    hash_ids: Vec<u64>,
}

fn mooncake(line: &str) -> Result<TraceRow, String> {
    let row: MooncakeRow = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if !(row.timestamp.is_finite() && row.timestamp >= 0.0) {
        return Err(format!("timestamp = {}; expected milliseconds of at least 0", row.timestamp));
    }
    lengths(row.input_length, row.output_length)?;
    let needed = row.input_length.div_ceil(BLOCK_TOKENS);
    if row.hash_ids.len() as u64 != needed {
        let (ids, input) = (row.hash_ids.len(), row.input_length);
        return Err(format!("{ids} hash_ids for {input} tokens; expected {needed} (blocks of {BLOCK_TOKENS})"));
    }
    let at_us = (row.timestamp * 1000.0) as u64;
    Ok(TraceRow { at_us, input: row.input_length, output: row.output_length, blocks: row.hash_ids })
}

fn azure(line: &str, index: usize) -> Result<TraceRow, String> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [stamp, input, output] = fields[..] else {
        return Err(format!("{} fields; expected TIMESTAMP,ContextTokens,GeneratedTokens", fields.len()));
    };
    let number = |name: &str, text: &str| -> Result<u64, String> {
        text.parse().map_err(|_| format!("{name} = {text}; expected a whole number"))
    };
    let (input, output) = (number("ContextTokens", input)?, number("GeneratedTokens", output)?);
    lengths(input, output)?;
    let at_us = stamp_us(stamp)
        .ok_or_else(|| format!("TIMESTAMP = {stamp}; expected YYYY-MM-DD HH:MM:SS with up to 7 digits of a second"))?;
    let blocks = (0..input.div_ceil(BLOCK_TOKENS)).map(|block| OWN_ID | (index as u64) << 24 | block).collect();
    Ok(TraceRow { at_us, input, output, blocks })
}

fn lengths(input: u64, output: u64) -> Result<(), String> {
    match [("input", input), ("output", output)].into_iter().find(|(_, tokens)| *tokens > LENGTH_MAX) {
        Some((name, tokens)) => Err(format!("{name} of {tokens} tokens; expected at most {LENGTH_MAX}")),
        None => Ok(()),
    }
}

/// `2023-11-16 18:17:03.9799600` as microseconds since the epoch.
fn stamp_us(text: &str) -> Option<u64> {
    let (date, time) = text.split_once([' ', 'T'])?;
    let date: Vec<u64> = date.split('-').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let clock: Vec<u64> = clock.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [year, month, day]: [u64; 3] = date.try_into().ok()?;
    let [hour, minute, second]: [u64; 3] = clock.try_into().ok()?;
    let valid = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 60 || fraction.len() > 9 {
        return None;
    }
    let digits: String = fraction.chars().chain(std::iter::repeat('0')).take(6).collect();
    let micros: u64 = digits.parse().ok()?;
    // Days by the civil calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1;
    let since_epoch = days.checked_sub(719_468)?;
    Some(((since_epoch * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros)
}

/// Spreads rows of one instant evenly up to the next instant, at most over [`TICK_MAX_US`].
fn spread(rows: &mut [TraceRow]) {
    let mut begin = 0;
    while begin < rows.len() {
        let at = rows[begin].at_us;
        let end = begin + rows[begin..].iter().take_while(|row| row.at_us == at).count();
        let gap = rows.get(end).map_or(TICK_MAX_US, |next| (next.at_us - at).min(TICK_MAX_US));
        let count = (end - begin) as u64;
        for (index, row) in rows[begin..end].iter_mut().enumerate() {
            row.at_us = at + gap * index as u64 / count;
        }
        begin = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: stamps with 7, 0 and too many digits, leap days and nonsense. Guarantees: known moments come out exactly.
    #[test]
    fn stamps_are_exact() {
        assert_eq!(stamp_us("1970-01-01 00:00:00"), Some(0));
        assert_eq!(stamp_us("2023-11-16 18:17:03.9799600"), Some(1_700_158_623_979_960));
        assert_eq!(stamp_us("2024-02-29 23:59:59.5"), Some(1_709_251_199_500_000));
        for wrong in ["", "2023-11-16", "2023-13-16 00:00:00", "2023-11-16 24:00:00", "x-y-z a:b:c", "2023-11-16 1:2"] {
            assert_eq!(stamp_us(wrong), None, "{wrong}");
        }
    }
}
