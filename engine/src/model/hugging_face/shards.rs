//! Safetensors files: the `safetensors` crate reads and checks headers, tensors stay in the maps.
//!
//! Invariant: a tensor kept here lies inside its part and has the bytes its sizes say (the crate checks both; offsets
//! are compared with the file before, since the crate adds them up unchecked). The last part holds vectors made here.

use std::{collections::BTreeMap, path::Path};

use kernels::{Dtype, WeightMatrix, reference::dequantize};
use safetensors::SafeTensors;

use super::{HubError, names::gguf_name};
use crate::model::{
    family::Family,
    gguf::{Bytes, TensorInfo},
};

#[derive(Default)]
pub(super) struct Shards {
    parts: Vec<Bytes>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Vectors made here, f32, by name.
    made: Vec<(String, Vec<f32>)>,
}

impl Shards {
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub(super) fn add_vector(&mut self, name: &str, values: &[f32]) {
        self.made.push((name.to_owned(), values.to_vec()));
    }

    /// Maps one file and takes its tensors over, under GGUF's names.
    pub(super) fn add(&mut self, path: &Path, family: Family) -> Result<(), HubError> {
        let map = Bytes::map(path).map_err(|source| HubError::Io { path: path.to_owned(), source })?;
        let file = map.as_slice();
        let bad = |problem: String| HubError::Safetensors { path: path.to_owned(), problem };
        offsets_inside(file).map_err(bad)?;
        let (header, metadata) = SafeTensors::read_metadata(file).map_err(|error| bad(error.to_string()))?;
        let start = size_of::<u64>() + header;
        let offset = family.recipe().norm_offset;
        for (theirs, info) in metadata.tensors() {
            let Some(name) = gguf_name(family, &theirs) else { continue };
            let dtype = dtype(&theirs, info.dtype)?;
            let dims = dims(&theirs, &info.shape)?;
            let (from, to) = (start + info.data_offsets.0, start + info.data_offsets.1);
            if offset != 0.0 && dims.len() == 1 && name.ends_with("norm.weight") {
                let stored = WeightMatrix::new(dtype, [1, dims[0]], &file[from..to])
                    .map_err(|error| HubError::Tensor { name: theirs.clone(), problem: error.to_string() })?;
                let values = dequantize::row(&stored, 0).iter().map(|value| value + offset).collect();
                self.made.push((name.clone(), values));
            }
            let part = self.parts.len();
            let tensor = TensorInfo { name: name.clone(), dims, dtype, part, offset: from, len: to - from };
            if self.tensors.insert(name, tensor).is_some() {
                return Err(HubError::Tensor { name: theirs, problem: "occurs twice, expected once".to_owned() });
            }
        }
        self.parts.push(map);
        Ok(())
    }

    /// Tensors and parts, with the vectors made here in a part of their own.
    pub(super) fn finish(mut self) -> (BTreeMap<String, TensorInfo>, Vec<Bytes>) {
        let (mut bytes, part) = (Vec::new(), self.parts.len());
        for (name, values) in self.made {
            let (offset, len) = (bytes.len(), values.len() * size_of::<f32>());
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let dims = vec![values.len()];
            let tensor = TensorInfo { name: name.clone(), dims, dtype: Dtype::F32, part, offset, len };
            self.tensors.insert(name, tensor);
        }
        self.parts.push(Bytes::Owned(bytes));
        (self.tensors, self.parts)
    }
}

/// No tensor's declared end is past the file.
fn offsets_inside(file: &[u8]) -> Result<(), String> {
    let length = file.first_chunk::<8>().ok_or_else(|| format!("it has {} bytes, expected at least 8", file.len()))?;
    let length = u64::from_le_bytes(*length);
    let rest = &file[8..];
    let header = usize::try_from(length).ok().and_then(|length| rest.get(..length));
    let header = header.ok_or_else(|| format!("its header has {length} bytes and the file {} more", rest.len()))?;
    let header: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(header).map_err(|error| format!("its header is no JSON object: {error}"))?;
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let end = tensor["data_offsets"][1].as_u64();
        if end.is_none_or(|end| end > file.len() as u64) {
            let offsets = &tensor["data_offsets"];
            return Err(format!("tensor {name}: data_offsets is {offsets}, expected an end of at most {}", file.len()));
        }
    }
    Ok(())
}

fn dtype(name: &str, stored: safetensors::Dtype) -> Result<Dtype, HubError> {
    match stored {
        safetensors::Dtype::F32 => Ok(Dtype::F32),
        safetensors::Dtype::F16 => Ok(Dtype::F16),
        safetensors::Dtype::BF16 => Ok(Dtype::Bf16),
        other => {
            let problem = format!("has data type {other:?}, expected F32, F16 or BF16");
            Err(HubError::Tensor { name: name.to_owned(), problem })
        }
    }
}

/// Sizes as GGUF has them: columns first, 1 to 4, none 0.
fn dims(name: &str, shape: &[usize]) -> Result<Vec<usize>, HubError> {
    if (1..=4).contains(&shape.len()) && !shape.contains(&0) {
        return Ok(shape.iter().rev().copied().collect());
    }
    let problem = format!("has sizes {shape:?}, expected 1 to 4 of them, none 0");
    Err(HubError::Tensor { name: name.to_owned(), problem })
}
