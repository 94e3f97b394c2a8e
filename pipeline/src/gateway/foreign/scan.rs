//! What a gateway must know of a request's body, found without parsing the rest of it.
//!
//! One pass over the bytes: strings are skipped by `memchr`, nothing is copied but the model's name. The body goes on to the
//! engine unchanged, so what this does not look at (unknown fields, a bad value deep inside) is the engine's to judge; what
//! is no JSON object on the outside is refused here. A field given twice counts as given last.
//! Invariant: ranges lie within the body. Cost: linear, some GB/s. State: none.

use std::ops::Range;

use memchr::memchr2;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// Sequences of one request that are reckoned with.
const SEQUENCES_MAX: u32 = 1024;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    pub model: Option<String>,
    pub streams: bool,
    /// Of one sequence; and where the number stands in the body.
    pub max_tokens: Option<u32>,
    pub max_tokens_at: Option<Range<usize>>,
    /// Prompts × samples.
    pub sequences: u32,
    /// Messages of the user.
    pub turns: u32,
    /// Messages or prompt, without what closes them: a conversation that goes on has the same bytes in front.
    pub prompt: Range<usize>,
    /// The conversation within its tenant, as far as it can be told.
    pub session: Option<u64>,
    /// Of what stands before the messages in a rendered prompt.
    pub salt: u64,
}

/// Why it was no request, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("We could not parse the JSON body of your request: expected {expected} at byte {at}.")]
pub struct NoRequest {
    expected: &'static str,
    at: usize,
}

/// Reads a body.
pub fn scan(body: &[u8]) -> Result<Asked, NoRequest> {
    let mut cursor = Cursor { body, at: 0 };
    let mut found = Found { sequences: 1, ..Found::default() };
    cursor.object(|cursor, key| found.field(cursor, key))?;
    cursor.space();
    if cursor.at < body.len() {
        return Err(cursor.expected("the end"));
    }
    Ok(found.finish(body))
}

/// Chained hashes of the prompt's full blocks of `block_bytes`.
pub fn block_hashes(prompt: &[u8], salt: u64, block_bytes: usize) -> Vec<u64> {
    let mut chained = salt;
    let mut next = |block: &[u8]| {
        chained = xxh3_64_with_seed(block, chained);
        chained
    };
    prompt.chunks_exact(block_bytes.max(1)).map(&mut next).collect()
}

#[derive(Default)]
struct Found {
    asked: Asked,
    user: Range<usize>,
    /// End of the first message of the user.
    opening: Option<usize>,
    /// `max_completion_tokens` was there, which wins.
    is_newer: bool,
    prompts: u32,
    sequences: u32,
    best_of: u32,
}

impl Found {
    fn field(&mut self, cursor: &mut Cursor<'_>, key: &[u8]) -> Result<(), NoRequest> {
        match key {
            b"messages" if cursor.peek() == Some(b'[') => return self.messages(cursor),
            b"prompt" if cursor.peek() == Some(b'[') => return self.prompts(cursor),
            _ => {}
        }
        let range = cursor.value()?;
        let value = &cursor.body[range.clone()];
        match key {
            b"model" => self.asked.model = read(value),
            b"stream" => self.asked.streams = value == b"true",
            b"prompt" => self.asked.prompt = range.start..range.end.saturating_sub(1).max(range.start),
            b"user" if value != b"null" => self.user = range,
            b"tools" if value != b"null" => self.asked.salt = xxh3_64(value),
            b"n" => self.sequences = read(value).unwrap_or(1),
            b"best_of" => self.best_of = read(value).unwrap_or(1),
            b"max_completion_tokens" if value != b"null" => {
                (self.asked.max_tokens, self.asked.max_tokens_at) = (read(value), Some(range));
                self.is_newer = true;
            }
            b"max_tokens" if value != b"null" && !self.is_newer => {
                (self.asked.max_tokens, self.asked.max_tokens_at) = (read(value), Some(range));
            }
            _ => {}
        }
        Ok(())
    }

    fn messages(&mut self, cursor: &mut Cursor<'_>) -> Result<(), NoRequest> {
        (self.asked.turns, self.opening) = (0, None);
        let start = cursor.at + 1;
        let mut end = start;
        cursor.array(|cursor| {
            let mut is_user = false;
            match cursor.peek() {
                Some(b'{') => cursor.object(|cursor, key| {
                    let value = cursor.value()?;
                    is_user |= key == b"role" && &cursor.body[value] == b"\"user\"";
                    Ok(())
                })?,
                _ => {
                    cursor.value()?;
                }
            }
            end = cursor.at;
            self.asked.turns += u32::from(is_user);
            if is_user {
                self.opening.get_or_insert(end);
            }
            Ok(())
        })?;
        self.asked.prompt = start..end;
        Ok(())
    }

    fn prompts(&mut self, cursor: &mut Cursor<'_>) -> Result<(), NoRequest> {
        let start = cursor.at + 1;
        let (mut end, mut lists) = (start, 0);
        cursor.array(|cursor| {
            lists += u32::from(matches!(cursor.peek(), Some(b'"' | b'[')));
            end = cursor.value()?.end;
            Ok(())
        })?;
        (self.asked.prompt, self.prompts) = (start..end, lists);
        Ok(())
    }

    fn finish(mut self, body: &[u8]) -> Asked {
        let samples = self.sequences.max(self.best_of).max(1);
        self.asked.sequences = samples.saturating_mul(self.prompts.max(1)).min(SEQUENCES_MAX);
        self.asked.turns = self.asked.turns.max(1);
        let opening = self.opening.map(|end| self.asked.prompt.start..end);
        if opening.is_some() || !self.user.is_empty() {
            let mut hash = Xxh3::new();
            hash.update(&body[self.user]);
            hash.update(&body[opening.unwrap_or_default()]);
            self.asked.session = Some(hash.digest());
        }
        self.asked
    }
}

/// `None` for what is of another type: the engine says so.
fn read<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}

struct Cursor<'a> {
    body: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn expected(&self, expected: &'static str) -> NoRequest {
        NoRequest { expected, at: self.at }
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.body.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.body.get(self.at).copied()
    }

    fn take(&mut self, byte: u8, expected: &'static str) -> Result<(), NoRequest> {
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.expected(expected)),
        }
    }

    /// Each field of an object; `each` takes its value.
    fn object(&mut self, mut each: impl FnMut(&mut Self, &[u8]) -> Result<(), NoRequest>) -> Result<(), NoRequest> {
        let body = self.body;
        self.take(b'{', "a JSON object")?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            let key = self.string()?;
            self.take(b':', "`:`")?;
            self.space();
            each(self, &body[key.start + 1..key.end - 1])?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => break,
                _ => return Err(self.expected("`,` or `}`")),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// Each element of an array; `each` takes it.
    fn array(&mut self, mut each: impl FnMut(&mut Self) -> Result<(), NoRequest>) -> Result<(), NoRequest> {
        self.take(b'[', "`[`")?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.space();
            each(self)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => break,
                _ => return Err(self.expected("`,` or `]`")),
            }
        }
        self.at += 1;
        Ok(())
    }

    /// A string with its quotes.
    fn string(&mut self) -> Result<Range<usize>, NoRequest> {
        let start = self.at;
        self.take(b'"', "a string")?;
        loop {
            let Some(step) = memchr2(b'"', b'\\', &self.body[self.at..]) else {
                self.at = self.body.len();
                return Err(self.expected("the end of a string"));
            };
            self.at += step + 1;
            if self.body[self.at - 1] == b'"' {
                return Ok(start..self.at);
            }
            // What is escaped ends no string.
            self.at = (self.at + 1).min(self.body.len());
        }
    }

    /// Any value, skipped. Nesting is counted, so it costs no stack.
    fn value(&mut self) -> Result<Range<usize>, NoRequest> {
        self.space();
        let (start, mut depth) = (self.at, 0usize);
        loop {
            match self.body.get(self.at) {
                None => return Err(self.expected("a value")),
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'{' | b'[') => {
                    (depth, self.at) = (depth + 1, self.at + 1);
                    continue;
                }
                Some(b'}' | b']') if depth > 0 => (depth, self.at) = (depth - 1, self.at + 1),
                Some(b',' | b':' | b' ' | b'\n' | b'\r' | b'\t') if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                Some(byte) if byte.is_ascii_alphanumeric() || b"+-.".contains(byte) => {
                    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                    self.at += self.body[self.at..].iter().take_while(|byte| is_plain(byte)).count();
                }
                Some(_) => return Err(self.expected("a value")),
            }
            if depth == 0 {
                return Ok(start..self.at);
            }
        }
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
