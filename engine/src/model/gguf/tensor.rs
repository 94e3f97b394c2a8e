//! The tensor table: names, sizes, types and places. Invariant: what [`place`] accepts lies inside the file.

use kernels::Dtype;

use super::{GgufError, cursor::Cursor, limits};

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    /// Sizes as GGUF writes them, the fastest-moving (columns) first; 1 to 4 of them, none 0.
    pub dims: Vec<usize>,
    pub dtype: Dtype,
    /// Which of the model's files has the data: 0 for a GGUF file.
    pub part: usize,
    /// Where the data starts in the file, and its length in bytes.
    pub offset: usize,
    pub len: usize,
}

/// Reads one entry of the tensor table; `offset` is still relative to the data, `len` is computed.
pub(super) fn read_tensor(cursor: &mut Cursor<'_>) -> Result<TensorInfo, GgufError> {
    let name = cursor.text("tensor name", limits::NAME_BYTES)?;
    let bad = |what: &str, value: String, expected: &str| GgufError::Tensor {
        name: name.clone(),
        what: what.to_owned(),
        value,
        expected: expected.to_owned(),
    };
    let dim_count = cursor.u32("tensor dimensions")?;
    if !(1..=4).contains(&dim_count) {
        return Err(bad("number of dimensions", dim_count.to_string(), "1 to 4"));
    }
    let mut dims = Vec::with_capacity(4);
    for _ in 0..dim_count {
        let size = cursor.u64("tensor size")?;
        match usize::try_from(size) {
            Ok(size) if (1..=1 << 40).contains(&size) => dims.push(size),
            _ => return Err(bad("size", size.to_string(), "1 to 2^40")),
        }
    }
    let type_id = cursor.u32("tensor type")?;
    let dtype = dtype(type_id).ok_or_else(|| {
        let names: Vec<&str> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
        bad("type", type_id.to_string(), &format!("one of {}", names.join(", ")))
    })?;
    let row_bytes = dtype.row_bytes(dims[0]).ok_or_else(|| {
        bad("row length", dims[0].to_string(), &format!("a multiple of {} for {}", dtype.block_len(), dtype.name()))
    })?;
    let len = dims[1..].iter().try_fold(row_bytes, |len, size| len.checked_mul(*size));
    let len = len.ok_or_else(|| bad("sizes", format!("{dims:?}"), "a product below 2^64"))?;
    let offset = cursor.u64("tensor offset")?;
    let offset = usize::try_from(offset).map_err(|_| bad("offset", offset.to_string(), "below 2^64"))?;
    Ok(TensorInfo { name, dims, dtype, part: 0, offset, len })
}

/// Turns the offset in the data into one in the file; `[data start, alignment, file length]`.
pub(super) fn place(tensor: &mut TensorInfo, [start, alignment, file]: [usize; 3]) -> Result<(), GgufError> {
    let bad = |what: &str, value: String, expected: String| GgufError::Tensor {
        name: tensor.name.clone(),
        what: what.to_owned(),
        value,
        expected,
    };
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(bad("offset", tensor.offset.to_string(), format!("a multiple of the alignment {alignment}")));
    }
    let end = start.checked_add(tensor.offset).and_then(|from| from.checked_add(tensor.len));
    match end {
        Some(end) if end <= file => {
            tensor.offset += start;
            Ok(())
        }
        _ => Err(bad(
            "data",
            format!("{} bytes at {} past the header's {start}", tensor.len, tensor.offset),
            format!("inside the file of {file} bytes (is the download complete?)"),
        )),
    }
}

fn dtype(type_id: u32) -> Option<Dtype> {
    Some(match type_id {
        0 => Dtype::F32,
        1 => Dtype::F16,
        2 => Dtype::Q4_0,
        3 => Dtype::Q4_1,
        6 => Dtype::Q5_0,
        7 => Dtype::Q5_1,
        8 => Dtype::Q8_0,
        12 => Dtype::Q4K,
        13 => Dtype::Q5K,
        14 => Dtype::Q6K,
        20 => Dtype::Iq4Nl,
        30 => Dtype::Bf16,
        _ => return None,
    })
}

/// The number GGUF gives a data type.
pub(in crate::model) fn type_id(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::Q4_0 => 2,
        Dtype::Q4_1 => 3,
        Dtype::Q5_0 => 6,
        Dtype::Q5_1 => 7,
        Dtype::Q8_0 => 8,
        Dtype::Q4K => 12,
        Dtype::Q5K => 13,
        Dtype::Q6K => 14,
        Dtype::Iq4Nl => 20,
        Dtype::Bf16 => 30,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: every data type's number, there and back.
    /// Guarantees: reader and writer mean the same types.
    #[test]
    fn type_numbers_agree() {
        for known in Dtype::ALL {
            assert_eq!(dtype(type_id(known)), Some(known));
        }
        assert_eq!(dtype(4), None);
    }
}
