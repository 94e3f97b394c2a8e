//! Tokens to text, one at a time, byte-exact.
//!
//! A token is a run of bytes that may end inside a character. Bytes of an unfinished character wait; bytes that can't
//! become one turn into U+FFFD, exactly as `String::from_utf8_lossy` would do on the whole output.
//!
//! Invariant: the pieces joined, with [`Detokenizer::finish`], equal the lossy decoding of all bytes joined.
//!
//! Cost: O(bytes). Bound: 3 waiting bytes.

/// The bytes behind each token id; the tokenizer offers them.
pub trait TokenBytes: Send + Sync {
    /// Bytes of `token`; empty for special tokens and for ids that are not in the vocabulary.
    fn token_bytes(&self, token: u32) -> &[u8];
}

/// See the file's header.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    unfinished: Vec<u8>,
}

impl Detokenizer {
    /// Appends the text that `bytes` completes to `text`.
    pub fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.unfinished.extend_from_slice(bytes);
        let mut rest = self.unfinished.as_slice();
        let waiting = loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break 0;
                }
                Err(fault) => {
                    let (valid, broken) = rest.split_at(fault.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("invariant: valid up to here"));
                    let Some(length) = fault.error_len() else { break broken.len() };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &broken[length..];
                }
            }
        };
        self.unfinished.drain(..self.unfinished.len() - waiting);
    }

    /// The output is over: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, text: &mut String) {
        if !self.unfinished.is_empty() {
            self.unfinished.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}
