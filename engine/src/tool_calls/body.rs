//! The JSON object of one call, read character by character: its name as soon as it is known, its arguments as they come.
//!
//! Invariant: arguments are handed out only after the name; joined, they are the text of the value of `arguments` or
//! `parameters` (decoded, where a model wrote them as a string). What is not such an object is [`Reading::Broken`].
//!
//! Cost: O(characters). Memory: the call's text, at most [`MAX_CALL_BYTES`] and a character.

use super::MAX_CALL_BYTES;

/// How far the object has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    More,
    /// The closing brace was read, and there is a name.
    Done,
    /// No call, or none any more.
    Broken,
}

/// What the next character at the object's own level belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Open,
    KeyOrEnd,
    InKey,
    Colon,
    Value,
    InValue,
}

/// See the file's header.
#[derive(Debug, Clone)]
pub(super) struct CallBody {
    raw: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
    expect: Expect,
    /// Where the key or value under way begins.
    start: usize,
    key: String,
    pub name: Option<String>,
    /// Byte range of the arguments in `raw`; the end is `None` while they come.
    arguments: Option<(usize, Option<usize>)>,
    /// Bytes of the arguments handed out.
    given: usize,
}

impl Default for CallBody {
    fn default() -> Self {
        Self {
            raw: String::new(),
            depth: 0,
            in_string: false,
            escaped: false,
            expect: Expect::Open,
            start: 0,
            key: String::new(),
            name: None,
            arguments: None,
            given: 0,
        }
    }
}

impl CallBody {
    /// All text read.
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// Whether the arguments have begun.
    pub fn has_arguments(&self) -> bool {
        self.arguments.is_some()
    }

    /// The arguments that came since the last call.
    pub fn take_arguments(&mut self) -> String {
        let Some((start, end)) = self.arguments else { return String::new() };
        // Blanks at the end may follow the value; they wait.
        let text = self.raw[start..end.unwrap_or(self.raw.len())].trim_end();
        if text.starts_with('"') {
            // Written as a string: only the whole can be decoded.
            let whole = end.filter(|_| self.given == 0).and_then(|_| serde_json::from_str::<String>(text).ok());
            self.given += whole.as_ref().map_or(0, |_| text.len());
            return whole.unwrap_or_default();
        }
        let fresh = text[self.given..].to_owned();
        self.given = text.len();
        fresh
    }

    /// Takes a character. Not to be called again after `Done` or `Broken`.
    pub fn push(&mut self, character: char) -> Reading {
        let at = self.raw.len();
        self.raw.push(character);
        if self.raw.len() > MAX_CALL_BYTES {
            return Reading::Broken;
        }
        if self.in_string {
            return self.push_in_string(character);
        }
        match character {
            ' ' | '\t' | '\r' | '\n' => Reading::More,
            '"' => self.open_string(at),
            '{' | '[' => self.open(character, at),
            '}' | ']' => self.close(character, at),
            _ if self.depth != 1 => self.inside(),
            ',' if self.expect == Expect::InValue => match self.end_value(at) {
                Reading::More => self.then(Expect::KeyOrEnd),
                other => other,
            },
            ':' if self.expect == Expect::Colon => self.then(Expect::Value),
            _ if self.expect == Expect::InValue => Reading::More,
            _ if self.expect == Expect::Value => self.begin_value(at),
            _ => Reading::Broken,
        }
    }

    fn then(&mut self, expect: Expect) -> Reading {
        self.expect = expect;
        Reading::More
    }

    /// A character of a nested value; before the object there is none.
    fn inside(&self) -> Reading {
        if self.depth == 0 { Reading::Broken } else { Reading::More }
    }

    fn push_in_string(&mut self, character: char) -> Reading {
        if std::mem::take(&mut self.escaped) {
            return Reading::More;
        }
        match character {
            '\\' => self.escaped = true,
            '"' => {
                self.in_string = false;
                if self.expect == Expect::InKey {
                    match serde_json::from_str(&self.raw[self.start..]) {
                        Ok(key) => self.key = key,
                        Err(_) => return Reading::Broken,
                    }
                    self.expect = Expect::Colon;
                }
            }
            _ => {}
        }
        Reading::More
    }

    fn open_string(&mut self, at: usize) -> Reading {
        self.in_string = true;
        match (self.depth, self.expect) {
            (0, _) => Reading::Broken,
            (1, Expect::KeyOrEnd) => {
                self.start = at;
                self.then(Expect::InKey)
            }
            (1, Expect::Value) => self.begin_value(at),
            (1, _) => Reading::Broken,
            _ => Reading::More,
        }
    }

    fn open(&mut self, character: char, at: usize) -> Reading {
        let reading = match (self.depth, self.expect) {
            (0, Expect::Open) if character == '{' => self.then(Expect::KeyOrEnd),
            (1, Expect::Value) => self.begin_value(at),
            (0 | 1, _) => Reading::Broken,
            _ => Reading::More,
        };
        self.depth += 1;
        reading
    }

    fn close(&mut self, character: char, at: usize) -> Reading {
        match self.depth {
            0 => Reading::Broken,
            1 if character == '}' => {
                self.depth = 0;
                let ended = match self.expect {
                    Expect::InValue => self.end_value(at),
                    Expect::KeyOrEnd => Reading::More,
                    _ => Reading::Broken,
                };
                if ended == Reading::More && self.name.is_some() { Reading::Done } else { Reading::Broken }
            }
            1 => Reading::Broken,
            _ => {
                self.depth -= 1;
                Reading::More
            }
        }
    }

    fn begin_value(&mut self, at: usize) -> Reading {
        self.start = at;
        if matches!(self.key.as_str(), "arguments" | "parameters") && self.arguments.is_none() {
            self.arguments = Some((at, None));
        }
        self.then(Expect::InValue)
    }

    fn end_value(&mut self, at: usize) -> Reading {
        let end = self.start + self.raw[self.start..at].trim_end().len();
        match self.key.as_str() {
            "name" => match serde_json::from_str(&self.raw[self.start..end]) {
                Ok(name) => self.name = Some(name),
                Err(_) => return Reading::Broken,
            },
            "arguments" | "parameters" => {
                if let Some((start, end_of_arguments @ None)) = &mut self.arguments
                    && *start == self.start
                {
                    *end_of_arguments = Some(end);
                }
            }
            _ => {}
        }
        Reading::More
    }
}
