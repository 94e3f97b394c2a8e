//! GGUF files, versions 2 and 3: metadata and a table of tensors over mapped bytes. Hugging Face folders are read in the
//! same terms (`hugging_face.rs`).
//!
//! Invariant: once a [`Gguf`] exists, every tensor lies inside the data, has a known type and a whole number of blocks
//! a row. All arithmetic on numbers from the file is checked. Cost: metadata is copied (a few MB for a large
//! vocabulary); tensor data stays in the map and is paged in on use, shared between processes. Bounds: [`limits`]; a
//! count that the rest of the file cannot hold is refused before anything is allocated for it.
//!
//! The file must not change while it is mapped: a shortened file kills the process on access (SIGBUS), which is why
//! downloads are written beside and renamed.

mod cursor;
mod error;
mod requantise;
mod tensor;
mod value;

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::Path,
};

use cursor::Cursor;
pub use error::GgufError;
pub use requantise::WeightFormat;
pub use tensor::TensorInfo;
pub(super) use tensor::type_id;
use tensor::{place, read_tensor};
pub use value::Value;

/// Upper bounds on what a file may declare.
pub mod limits {
    /// Metadata keys.
    pub const KEYS: u64 = 16 * 1024;
    /// Tensors.
    pub const TENSORS: u64 = 64 * 1024;
    /// Bytes of a key or tensor name.
    pub const NAME_BYTES: u64 = 1024;
    /// Bytes of one string value.
    pub const TEXT_BYTES: u64 = 8 * 1024 * 1024;
    /// Elements of one array.
    pub const ARRAY: u64 = 4 * 1024 * 1024;
    /// Bytes between two tensors' boundaries.
    pub const ALIGNMENT: u64 = 64 * 1024;
}

/// How the rows of query and key matrices are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As GGUF files of the family have them.
    AsGguf,
    /// As the model was trained: Hugging Face files.
    AsTrained,
}

#[derive(Debug)]
pub(in crate::model) enum Bytes {
    Mapped { map: memmap2::Mmap, file: File },
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a file, which must not change while it is mapped.
    pub(in crate::model) fn map(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        // SAFETY: the map is read-only; that nobody changes the file is the condition stated in the module's header.
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        Ok(Self::Mapped { map, file })
    }

    pub(in crate::model) fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Mapped { map, .. } => map,
            Bytes::Owned(bytes) => bytes,
        }
    }

    /// Bytes `offset..offset + len` over the previous contents of `out`, read and not mapped: pages of a map that nobody
    /// touches take no memory.
    pub(in crate::model) fn read(&self, offset: usize, len: usize, out: &mut Vec<u8>) -> Result<(), GgufError> {
        out.resize(len, 0);
        match self {
            Bytes::Mapped { file, .. } => {
                read_at(file, offset as u64, out).map_err(|source| GgufError::Read { source })
            }
            Bytes::Owned(bytes) => {
                out.copy_from_slice(&bytes[offset..offset + len]);
                Ok(())
            }
        }
    }
}

/// A parsed file.
#[derive(Debug)]
pub struct Gguf {
    /// The bytes that tensors lie in: one for a GGUF file, then one a matrix that was made in memory.
    parts: Vec<Bytes>,
    /// Parts that are files.
    of_files: usize,
    row_order: RowOrder,
    version: u32,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Gguf {
    /// Maps and parses a file, or reads a Hugging Face folder in GGUF's terms.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        if path.is_dir() {
            return Ok(super::hugging_face::open(path)?);
        }
        Self::parse(Bytes::map(path).map_err(|source| GgufError::Io { path: path.to_owned(), source })?)
    }

    /// Parses a file that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::parse(Bytes::Owned(bytes))
    }

    /// What a reader of another format found, in GGUF's terms; every tensor lies inside its part.
    pub(in crate::model) fn from_parts(
        metadata: BTreeMap<String, Value>,
        tensors: BTreeMap<String, TensorInfo>,
        (parts, row_order): (Vec<Bytes>, RowOrder),
    ) -> Self {
        Self { version: 3, metadata, tensors, of_files: parts.len(), parts, row_order }
    }

    fn parse(bytes: Bytes) -> Result<Self, GgufError> {
        let data = bytes.as_slice();
        let mut cursor = Cursor::new(data);
        let magic = cursor.array::<4>("magic")?;
        if &magic != b"GGUF" {
            return Err(GgufError::NotGguf { magic });
        }
        let version = cursor.u32("version")?;
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version { version });
        }
        let tensor_count = cursor.count("tensor count", limits::TENSORS, 24)?;
        let key_count = cursor.count("key count", limits::KEYS, 13)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..key_count {
            let key = cursor.text("metadata key", limits::NAME_BYTES)?;
            let value = Value::read(&mut cursor, &key)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(GgufError::Duplicate { what: "key", name: key });
            }
        }
        let alignment = alignment(&metadata)?;
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let tensor = read_tensor(&mut cursor)?;
            if tensors.contains_key(&tensor.name) {
                return Err(GgufError::Duplicate { what: "tensor", name: tensor.name });
            }
            tensors.insert(tensor.name.clone(), tensor);
        }
        let start = cursor.offset().next_multiple_of(alignment);
        for tensor in tensors.values_mut() {
            place(tensor, [start, alignment, data.len()])?;
        }
        let (parts, of_files) = (vec![bytes], 1);
        Ok(Self { version, metadata, tensors, parts, of_files, row_order: RowOrder::AsGguf })
    }

    pub fn version(&self) -> u32 {
        self.version
    }

    /// Tensors by name, in name order.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// The whole (first) file.
    pub fn bytes(&self) -> &[u8] {
        self.parts.first().map_or(&[], Bytes::as_slice)
    }

    /// The stored bytes of a tensor of this file.
    pub fn tensor_bytes(&self, tensor: &TensorInfo) -> &[u8] {
        &self.part(tensor.part).as_slice()[tensor.offset..tensor.offset + tensor.len]
    }

    /// The bytes of one of the model's files.
    pub(in crate::model) fn part(&self, part: usize) -> &Bytes {
        &self.parts[part]
    }

    pub fn row_order(&self) -> RowOrder {
        self.row_order
    }

    pub fn find(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// A string that must be there.
    pub fn text(&self, key: &str) -> Result<&str, GgufError> {
        self.find_text(key)?.ok_or_else(|| GgufError::missing(key))
    }

    /// A string, if the key is there.
    pub fn find_text(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A whole number of at least 0, if the key is there.
    pub fn find_count(&self, key: &str) -> Result<Option<usize>, GgufError> {
        self.typed(key, "a whole number of at least 0", |value| match value {
            Value::Int(number) => usize::try_from(*number).ok(),
            _ => None,
        })
    }

    /// A whole number in `range` that must be there.
    pub fn count(&self, key: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, GgufError> {
        let value = self.find_count(key)?.ok_or_else(|| GgufError::missing(key))?;
        if range.contains(&value) {
            return Ok(value);
        }
        let expected = format!("{} to {}", range.start(), range.end());
        Err(GgufError::BadValue { key: key.to_owned(), value: value.to_string(), expected })
    }

    /// A number, if the key is there.
    pub fn find_number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a number", |value| match value {
            Value::Float(number) => Some(*number),
            Value::Int(number) => Some(*number as f64),
            _ => None,
        })
    }

    /// A truth value, if the key is there.
    pub fn find_flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// An array of strings, if the key is there.
    pub fn find_texts(&self, key: &str) -> Result<Option<&[String]>, GgufError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// An array of whole numbers, if the key is there.
    pub fn find_ints(&self, key: &str) -> Result<Option<&[i64]>, GgufError> {
        self.typed(key, "an array of whole numbers", |value| match value {
            Value::Ints(ints) => Some(ints.as_slice()),
            _ => None,
        })
    }

    /// An array of numbers, if the key is there.
    pub fn find_floats(&self, key: &str) -> Result<Option<&[f64]>, GgufError> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Floats(numbers) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        get: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        get(value).map(Some).ok_or_else(|| GgufError::BadValue {
            key: key.to_owned(),
            value: value.describe(),
            expected: expected.to_owned(),
        })
    }
}

fn alignment(metadata: &BTreeMap<String, Value>) -> Result<usize, GgufError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(32),
        Some(Value::Int(number))
            if (8..=limits::ALIGNMENT as i64).contains(number) && (*number as u64).is_power_of_two() =>
        {
            Ok(*number as usize)
        }
        Some(value) => Err(GgufError::BadValue {
            key: KEY.to_owned(),
            value: value.describe(),
            expected: format!("a power of two from 8 to {}", limits::ALIGNMENT),
        }),
    }
}

fn read_at(file: &File, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
    let mut file = file;
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(out)
}
