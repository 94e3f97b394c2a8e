//! How view rows with arrays of floats go to another process: as plain sequences, every bit of every number.
//!
//! Invariant: what is read back equals what was written; a sequence of another length is an error. Cost: a copy. No state.

/// A shared slice.
pub(crate) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(numbers: &Arc<[f64]>, to: S) -> Result<S::Ok, S::Error> {
        numbers.as_ref().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<[f64]>, D::Error> {
        Ok(Vec::<f64>::deserialize(from)?.into())
    }
}

/// An array of any length.
pub(crate) mod numbers {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer, const N: usize>(numbers: &[f64; N], to: S) -> Result<S::Ok, S::Error> {
        numbers.as_slice().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<[f64; N], D::Error> {
        let numbers = Vec::<f64>::deserialize(from)?;
        let length = numbers.len();
        numbers.try_into().map_err(|_| D::Error::custom(format!("{length} numbers; expected {N}")))
    }
}

/// A square matrix, row by row.
pub(crate) mod matrix {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer, const N: usize>(rows: &[[f64; N]; N], to: S) -> Result<S::Ok, S::Error> {
        rows.as_flattened().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, const N: usize>(from: D) -> Result<[[f64; N]; N], D::Error> {
        let numbers = Vec::<f64>::deserialize(from)?;
        if numbers.len() != N * N {
            return Err(D::Error::custom(format!("{} numbers; expected {N} times {N}", numbers.len())));
        }
        let mut rows = [[0.0; N]; N];
        rows.as_flattened_mut().copy_from_slice(&numbers);
        Ok(rows)
    }
}
