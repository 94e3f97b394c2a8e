//! Metadata values. All integer types become i64 and all floats f64, so that readers need not care how wide a writer
//! chose to be. An unsigned number past i64 is refused.

use super::{GgufError, cursor::Cursor, limits};

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    /// An array of integers or truth values.
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Texts(Vec<String>),
}

/// Value types by GGUF number.
const UINT8: u32 = 0;
const INT8: u32 = 1;
const UINT16: u32 = 2;
const INT16: u32 = 3;
const UINT32: u32 = 4;
const INT32: u32 = 5;
const FLOAT32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const UINT64: u32 = 10;
const INT64: u32 = 11;
const FLOAT64: u32 = 12;

/// Least bytes of one value of a type, or `None` for a type that cannot stand in an array.
fn least_bytes(type_id: u32) -> Option<u64> {
    match type_id {
        UINT8 | INT8 | BOOL => Some(1),
        UINT16 | INT16 => Some(2),
        UINT32 | INT32 | FLOAT32 => Some(4),
        UINT64 | INT64 | FLOAT64 | STRING => Some(8),
        _ => None,
    }
}

impl Value {
    /// Reads a type number and a value of it.
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self, GgufError> {
        let type_id = cursor.u32(key)?;
        if type_id != ARRAY {
            return Self::read_one(cursor, type_id, key);
        }
        let type_id = cursor.u32(key)?;
        let least = least_bytes(type_id).ok_or_else(|| GgufError::ValueType {
            key: key.to_owned(),
            type_id,
            expected: "a number, truth value or string as array element",
        })?;
        let count = cursor.count(key, limits::ARRAY, least)?;
        let values = (0..count).map(|_| Self::read_one(cursor, type_id, key));
        match type_id {
            STRING => values.map(|value| value.map(Self::into_text)).collect::<Result<_, _>>().map(Self::Texts),
            FLOAT32 | FLOAT64 => {
                values.map(|value| value.map(Self::into_float)).collect::<Result<_, _>>().map(Self::Floats)
            }
            _ => values.map(|value| value.map(Self::into_int)).collect::<Result<_, _>>().map(Self::Ints),
        }
    }

    fn read_one(cursor: &mut Cursor<'_>, type_id: u32, key: &str) -> Result<Self, GgufError> {
        Ok(match type_id {
            UINT8 => Self::Int(i64::from(u8::from_le_bytes(cursor.array(key)?))),
            INT8 => Self::Int(i64::from(i8::from_le_bytes(cursor.array(key)?))),
            UINT16 => Self::Int(i64::from(u16::from_le_bytes(cursor.array(key)?))),
            INT16 => Self::Int(i64::from(i16::from_le_bytes(cursor.array(key)?))),
            UINT32 => Self::Int(i64::from(cursor.u32(key)?)),
            INT32 => Self::Int(i64::from(i32::from_le_bytes(cursor.array(key)?))),
            UINT64 => {
                let value = cursor.u64(key)?;
                let limit = i64::MAX as u64;
                Self::Int(i64::try_from(value).map_err(|_| GgufError::TooLarge {
                    what: key.to_owned(),
                    value,
                    limit,
                })?)
            }
            INT64 => Self::Int(i64::from_le_bytes(cursor.array(key)?)),
            FLOAT32 => Self::Float(f64::from(f32::from_le_bytes(cursor.array(key)?))),
            FLOAT64 => Self::Float(f64::from_le_bytes(cursor.array(key)?)),
            BOOL => match u8::from_le_bytes(cursor.array(key)?) {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                other => {
                    let (value, expected) = (other.to_string(), "0 or 1 (a truth value)".to_owned());
                    return Err(GgufError::BadValue { key: key.to_owned(), value, expected });
                }
            },
            STRING => Self::Text(cursor.text(key, limits::TEXT_BYTES)?),
            _ => return Err(GgufError::ValueType { key: key.to_owned(), type_id, expected: "0 to 12" }),
        })
    }

    fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            _ => unreachable!("invariant: the element type is string"),
        }
    }

    fn into_float(self) -> f64 {
        match self {
            Self::Float(number) => number,
            _ => unreachable!("invariant: the element type is a float"),
        }
    }

    fn into_int(self) -> i64 {
        match self {
            Self::Int(number) => number,
            Self::Bool(flag) => i64::from(flag),
            _ => unreachable!("invariant: the element type is an integer or a truth value"),
        }
    }

    /// A short text for error messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Int(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Bool(flag) => flag.to_string(),
            Self::Text(text) => format!("{:?}", text.chars().take(60).collect::<String>()),
            Self::Ints(values) => format!("an array of {} whole numbers", values.len()),
            Self::Floats(values) => format!("an array of {} numbers", values.len()),
            Self::Texts(values) => format!("an array of {} strings", values.len()),
        }
    }
}
