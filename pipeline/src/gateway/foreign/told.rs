//! What an answer says of itself, read from its end: token counts and why it ended.
//!
//! Invariant: nothing but the last [`TAIL_MAX`] bytes of a stream is kept, and they are read once. Events are counted by
//! the empty line that ends each, which no JSON text can hold. Cost: linear in the bytes, some GB/s. State: the tail.

use memchr::memmem;
use serde::Deserialize;

use crate::gateway::recorder::Told;

/// Bytes of a stream's end that are kept.
pub const TAIL_MAX: usize = 2048;

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// The sums in an answer or its end; the last ones count.
pub fn sums(answer: &[u8]) -> Told {
    let usage = values(answer, b"\"usage\"").find_map(read::<Usage>);
    let Some(usage) = usage else { return Told::default() };
    Told {
        prompt_tokens: usage.prompt_tokens,
        output_tokens: usage.completion_tokens,
        cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
    }
}

/// Why it ended, as OpenAI names it; one of the names we know, for a row.
pub fn finish_reason(answer: &[u8]) -> Option<&'static str> {
    const KNOWN: [&str; 5] = ["stop", "length", "tool_calls", "content_filter", "function_call"];
    let said = values(answer, b"\"finish_reason\"").find_map(read::<String>)?;
    Some(KNOWN.into_iter().find(|known| *known == said).unwrap_or("other"))
}

/// What follows each `name:`, the last first.
fn values<'a>(answer: &'a [u8], name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut end = answer.len();
    std::iter::from_fn(move || {
        let at = memmem::rfind(&answer[..end], name)?;
        end = at;
        Some(answer[at + name.len()..].trim_ascii_start().strip_prefix(b":").unwrap_or_default())
    })
}

/// The JSON value that the bytes begin with, if it is a `T`.
fn read<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Option<T> {
    serde_json::Deserializer::from_slice(bytes).into_iter::<T>().next()?.ok()
}

/// Is it one JSON object?
pub fn is_object(answer: &[u8]) -> bool {
    answer.trim_ascii_start().starts_with(b"{") && serde_json::from_slice::<serde::de::IgnoredAny>(answer).is_ok()
}

/// The end of a stream, and how many events came.
#[derive(Debug, Default)]
pub struct Tail {
    bytes: Vec<u8>,
    events: u32,
}

impl Tail {
    /// Takes the next bytes; gives the events that ended in them.
    pub fn push(&mut self, piece: &[u8]) -> u32 {
        let is_split = self.bytes.last() == Some(&b'\n') && piece.first() == Some(&b'\n');
        let plain = memmem::find_iter(piece, b"\n\n").count();
        let ended = if plain == 0 { memmem::find_iter(piece, b"\r\n\r\n").count() } else { plain };
        let ended = ended as u32 + u32::from(is_split);
        self.events += ended;
        let kept = &piece[piece.len().saturating_sub(TAIL_MAX)..];
        let over = (self.bytes.len() + kept.len()).saturating_sub(TAIL_MAX).min(self.bytes.len());
        self.bytes.drain(..over);
        self.bytes.extend_from_slice(kept);
        ended
    }

    /// Events but for the closing `[DONE]`: about as many as tokens.
    pub fn events(&self) -> u32 {
        self.events.saturating_sub(u32::from(memmem::find(&self.bytes, b"data: [DONE]").is_some()))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Stands it at the end of an event?
    pub fn is_between_events(&self) -> bool {
        self.bytes.is_empty() || self.bytes.ends_with(b"\n\n") || self.bytes.ends_with(b"\r\n\r\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: whole answers with and without sums, with null where a value could be, and a text that speaks of usage.
    /// Guarantees: the last values that are some count; what is not told is not known.
    #[test]
    fn sums_are_found() {
        let told = sums(br#"{"choices":[{"text":"\"usage\": {}","finish_reason":"length"}],"usage": {"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#);
        assert_eq!(told, Told { prompt_tokens: Some(5), output_tokens: Some(7), cached_tokens: Some(4) });
        let early = br#"data: {"usage":{"completion_tokens":3,"prompt_tokens_details":null},"choices":[{"finish_reason":"stop"}]}

data: {"usage":null,"choices":[{"finish_reason":null}]}"#;
        assert_eq!(sums(early), Told { output_tokens: Some(3), ..Told::default() });
        assert_eq!(finish_reason(early), Some("stop"));
        assert_eq!((sums(b"{}"), finish_reason(b"{\"finish_reason\":\"odd\"}")), (Told::default(), Some("other")));
        assert!(is_object(b" {\"a\":[1]}\n") && !is_object(b"[1]") && !is_object(b"{\"a\"") && !is_object(b"<html>"));
    }

    /// Scenario: a long stream in pieces of every size.
    /// Guarantees: events and the tail do not depend on the pieces.
    #[test]
    fn pieces_make_no_difference() {
        let stream = "data: {\"x\":\"\\n\\n\"}\n\n".repeat(300) + "data: [DONE]\n\n";
        for size in [1, 2, 3, 7, 64, 1000, 10_000] {
            let mut tail = Tail::default();
            let ended: u32 = stream.as_bytes().chunks(size).map(|piece| tail.push(piece)).sum();
            assert_eq!((ended, tail.events(), tail.is_between_events()), (301, 300, true), "{size}");
            assert!(stream.as_bytes().ends_with(tail.bytes()) && tail.bytes().len() == TAIL_MAX);
        }
    }
}
