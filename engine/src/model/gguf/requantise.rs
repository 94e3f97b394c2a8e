//! A file's matrices in another data type, made in memory as the file is loaded: so one file serves as several precisions
//! (SPEC D1).
//!
//! Invariant: names, sizes and metadata stay; only matrices change, and those whose rows are no whole number of the type's
//! blocks stay as they are, as do vectors (norms, biases), which are computed in f32 anyway. Four bits are too few for the
//! embedding and the output matrix, whose errors nothing evens out: they keep what they have, and eight bits at most.
//!
//! Cost: the matrices are read once, a row at a time; the new ones take their bytes in memory, each in a part of its own, so
//! that one which was packed can be let go of. No state.

use kernels::{Dtype, WeightMatrix, encode::encode_row, reference::dequantize};

use super::{Bytes, Gguf, TensorInfo};
use crate::model::ModelError;

/// What the matrices of a model are held in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightFormat {
    /// As the file has them.
    #[default]
    AsStored,
    F32,
    F16,
    Q8_0,
    Q4_0,
}

impl WeightFormat {
    pub fn dtype(self) -> Option<Dtype> {
        match self {
            WeightFormat::AsStored => None,
            WeightFormat::F32 => Some(Dtype::F32),
            WeightFormat::F16 => Some(Dtype::F16),
            WeightFormat::Q8_0 => Some(Dtype::Q8_0),
            WeightFormat::Q4_0 => Some(Dtype::Q4_0),
        }
    }
}

impl Gguf {
    /// The same file with its matrices in `format`.
    pub fn requantised(mut self, format: WeightFormat) -> Result<Self, ModelError> {
        let Some(dtype) = format.dtype() else { return Ok(self) };
        let mut stored = Vec::new();
        let mut tensors = self.tensors.clone();
        for tensor in tensors.values_mut() {
            let [cols, rows] = tensor.dims[..] else { continue };
            let dtype = dtype_of(tensor, dtype);
            if rows == 1 || tensor.dtype == dtype || dtype.row_bytes(cols).is_none() {
                continue;
            }
            let mut bytes = Vec::with_capacity(dtype.row_bytes(cols).unwrap_or(0) * rows);
            let row_bytes = tensor.len / rows;
            for row in 0..rows {
                self.parts[tensor.part].read(tensor.offset + row * row_bytes, row_bytes, &mut stored)?;
                let values = dequantize::row(&WeightMatrix::new(tensor.dtype, [1, cols], &stored)?, 0);
                encode_row(dtype, &values, &mut bytes)?;
            }
            (tensor.dtype, tensor.part, tensor.offset, tensor.len) = (dtype, self.parts.len(), 0, bytes.len());
            self.parts.push(Bytes::Owned(bytes));
        }
        self.tensors = tensors;
        Ok(self)
    }

    /// Lets go of the bytes of a matrix that was made here and that nobody reads any more; those of files stay.
    pub(in crate::model) fn release(&mut self, part: usize) {
        if part >= self.of_files
            && let Some(bytes) = self.parts.get_mut(part)
        {
            *bytes = Bytes::Owned(Vec::new());
        }
    }
}

fn dtype_of(tensor: &TensorInfo, wanted: Dtype) -> Dtype {
    let is_wide = matches!(tensor.dtype, Dtype::F32 | Dtype::F16 | Dtype::Bf16);
    match tensor.name.as_str() {
        "token_embd.weight" | "output.weight" if wanted == Dtype::Q4_0 => {
            if is_wide {
                Dtype::Q8_0
            } else {
                tensor.dtype
            }
        }
        _ => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arithmetic, Model, tiny::tiny_llama_gguf};

    /// Scenario: the test model, whose matrices are in many types, in each format.
    /// Guarantees: matrices change their type where their rows allow it and decode to what they were within the type's
    /// step; vectors, sizes and metadata stay.
    #[test]
    fn matrices_change_their_type_and_little_else() {
        let before = Gguf::from_bytes(tiny_llama_gguf(3)).unwrap();
        for (format, step) in [
            (WeightFormat::F32, 0.0),
            (WeightFormat::F16, 1e-3),
            (WeightFormat::Q8_0, 0.005),
            (WeightFormat::Q4_0, 0.13),
        ] {
            let after = Gguf::from_bytes(tiny_llama_gguf(3)).unwrap().requantised(format).unwrap();
            assert_eq!(after.metadata(), before.metadata());
            for (name, old) in before.tensors() {
                let new = &after.tensors()[name];
                assert_eq!(new.dims, old.dims, "{name}");
                let (cols, rows) = (old.dims[0], old.dims.get(1).copied().unwrap_or(1));
                let wanted = dtype_of(old, format.dtype().unwrap());
                assert_eq!(new.dtype, if rows > 1 { wanted } else { old.dtype }, "{name}");
                let old = WeightMatrix::new(old.dtype, [rows, cols], before.tensor_bytes(old)).unwrap();
                let new = WeightMatrix::new(new.dtype, [rows, cols], after.tensor_bytes(new)).unwrap();
                for row in 0..rows {
                    let (old, new) = (dequantize::row(&old, row), dequantize::row(&new, row));
                    let largest = old.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                    let worst = old.iter().zip(&new).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst <= step * largest, "{name} in {format:?}: {worst} of {largest}");
                }
            }
        }
    }

    /// Scenario: the ends of a model, stored in f32 and in five bits, and an inner matrix, in four bits.
    /// Guarantees: the ends keep eight bits at most, the inner matrix gets four.
    #[test]
    fn the_ends_keep_more_than_four_bits() {
        let file = Gguf::from_bytes(tiny_llama_gguf(3)).unwrap();
        let tensor =
            |name: &str, dtype| TensorInfo { name: name.into(), dtype, ..file.tensors()["token_embd.weight"].clone() };
        let to = |name, dtype| dtype_of(&tensor(name, dtype), Dtype::Q4_0);
        assert_eq!(to("token_embd.weight", Dtype::F32), Dtype::Q8_0);
        assert_eq!(to("output.weight", Dtype::Q5_1), Dtype::Q5_1);
        assert_eq!(to("blk.0.ffn_up.weight", Dtype::F32), Dtype::Q4_0);
    }

    /// Scenario: a requantised model with packed weights, and one without.
    /// Guarantees: of the packed one's matrices only the embedding is still held as stored.
    #[test]
    fn packed_matrices_are_not_held_twice() {
        let held = |arithmetic| -> Vec<String> {
            let file = Gguf::from_bytes(tiny_llama_gguf(3)).unwrap().requantised(WeightFormat::Q8_0).unwrap();
            let model = Model::from_gguf(file, arithmetic).unwrap();
            let file = model.gguf();
            let made = file.tensors().values().filter(|tensor| tensor.part >= file.of_files);
            made.filter(|tensor| !file.parts[tensor.part].as_slice().is_empty()).map(|t| t.name.clone()).collect()
        };
        assert!(held(Arithmetic::Int8).iter().all(|name| name == "token_embd.weight"), "{:?}", held(Arithmetic::Int8));
        assert!(held(Arithmetic::F32).len() > 5);
    }

    /// Scenario: the format of the file itself.
    /// Guarantees: nothing is copied.
    #[test]
    fn as_stored_is_the_file() {
        let file = Gguf::from_bytes(tiny_llama_gguf(3)).unwrap().requantised(WeightFormat::AsStored).unwrap();
        assert_eq!(file.parts.len(), 1);
    }
}
