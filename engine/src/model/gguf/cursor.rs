//! A reader over bytes that checks each step. Invariant: `at <= data.len()`; nothing is allocated before the bytes for
//! it are known to be there.

use super::GgufError;

pub(super) struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let left = &self.data[self.at..];
        match usize::try_from(len) {
            Ok(len) if len <= left.len() => {
                self.at += len;
                Ok(&left[..len])
            }
            _ => Err(GgufError::Truncated { what: what.to_owned(), offset: self.at, needed: len, left: left.len() }),
        }
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("invariant: take gives the length asked for"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A number of things of at least `least_bytes` each: not above `limit`, and the rest of the file can hold them.
    pub(super) fn count(&mut self, what: &str, limit: u64, least_bytes: u64) -> Result<usize, GgufError> {
        let offset = self.at;
        let count = self.u64(what)?;
        if count > limit {
            return Err(GgufError::TooLarge { what: what.to_owned(), value: count, limit });
        }
        let (needed, left) = (count * least_bytes, self.data.len() - self.at);
        if needed > left as u64 {
            return Err(GgufError::Truncated { what: what.to_owned(), offset, needed, left });
        }
        Ok(count as usize)
    }

    /// A string of at most `limit` bytes.
    pub(super) fn text(&mut self, what: &str, limit: u64) -> Result<String, GgufError> {
        let len = self.count(what, limit, 1)?;
        let offset = self.at;
        let bytes = self.take(len as u64, what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::NotUtf8 { what: what.to_owned(), offset }),
        }
    }
}
