//! Stop strings and the text that may be shown (SPEC E1).
//!
//! Text that could still turn out to begin a stop string is held back until it is decided, and released at the end if
//! it did not. The match that *completes* first ends the text; of those completing together the longest. This does not
//! depend on where tokens end.
//!
//! Invariants: shown text never contains a stop string, nor the beginning of one that is completed later; shown text is
//! whole characters.
//!
//! Cost: O(bytes × stop strings) amortised (one Knuth-Morris-Pratt automaton each). Bound: at most the longest stop
//! string's bytes are held, with at most [`MAX_STOP_STRINGS`] strings of at most [`MAX_STOP_BYTES`] bytes.

pub use crate::detokenizer::{Detokenizer, TokenBytes};

/// Most stop strings in a request; more are refused at submission.
pub const MAX_STOP_STRINGS: usize = 32;
/// Longest stop string, in bytes; longer ones are refused at submission.
pub const MAX_STOP_BYTES: usize = 1024;

/// Most stop tokens in a request; more are refused at submission.
pub const MAX_STOP_TOKENS: usize = 256;

/// Whether the text goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextState {
    Open,
    /// A stop string was found; all text before it is released, and nothing follows.
    Stopped,
}

/// One stop string and how much of it the text ends with.
#[derive(Debug, Clone)]
struct StopString {
    bytes: Box<[u8]>,
    /// `fallback[i]`: length of the longest proper border of the first `i + 1` bytes.
    fallback: Box<[usize]>,
    matched: usize,
}

impl StopString {
    fn new(text: &str) -> Self {
        let bytes: Box<[u8]> = text.as_bytes().into();
        let mut fallback = vec![0; bytes.len()];
        let mut border = 0;
        for index in 1..bytes.len() {
            while border > 0 && bytes[index] != bytes[border] {
                border = fallback[border - 1];
            }
            border += usize::from(bytes[index] == bytes[border]);
            fallback[index] = border;
        }
        Self { bytes, fallback: fallback.into(), matched: 0 }
    }

    /// Feeds one byte; true if the string is complete.
    fn feed(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

/// Finds stop strings in text that arrives in pieces.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    strings: Vec<StopString>,
    held: String,
}

impl StopMatcher {
    /// Empty strings never match.
    pub fn new(stop_strings: &[String]) -> Self {
        let strings = stop_strings.iter().filter(|text| !text.is_empty()).map(|text| StopString::new(text)).collect();
        Self { strings, held: String::new() }
    }

    /// Takes a piece and appends what may be shown to `shown`. Not to be called again after `Stopped`.
    pub fn push(&mut self, piece: &str, shown: &mut String) -> TextState {
        let before = self.held.len();
        self.held.push_str(piece);
        for (offset, byte) in piece.bytes().enumerate() {
            let complete = self.strings.iter_mut().filter_map(|stop| stop.feed(byte).then_some(stop.bytes.len())).max();
            if let Some(length) = complete {
                shown.push_str(&self.held[..before + offset + 1 - length]);
                self.held.clear();
                return TextState::Stopped;
            }
        }
        let undecided = self.strings.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let decided = self.held.len() - undecided;
        shown.push_str(&self.held[..decided]);
        self.held.drain(..decided);
        TextState::Open
    }

    /// The text is over: what was held back is shown.
    pub fn finish(&mut self, shown: &mut String) {
        shown.push_str(&self.held);
        self.held.clear();
    }
}

/// The text side of one sequence: detokenisation, then stop strings.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
}

impl TextStream {
    pub fn new(stop_strings: &[String]) -> Self {
        Self { detokenizer: Detokenizer::default(), matcher: StopMatcher::new(stop_strings) }
    }

    /// Takes a token's bytes and appends what may be shown to `shown`.
    pub fn push(&mut self, bytes: &[u8], shown: &mut String) -> TextState {
        let mut piece = String::new();
        self.detokenizer.push(bytes, &mut piece);
        self.matcher.push(&piece, shown)
    }

    /// The output is over. A last broken character may still complete a stop string; then what precedes it is shown.
    pub fn finish(&mut self, shown: &mut String) -> TextState {
        let mut piece = String::new();
        self.detokenizer.finish(&mut piece);
        if self.matcher.push(&piece, shown) == TextState::Stopped {
            return TextState::Stopped;
        }
        self.matcher.finish(shown);
        TextState::Open
    }
}
