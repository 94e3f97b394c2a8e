//! `x · weightᵀ`, decoded row by row and summed in f64.

use super::dequantize;
use crate::tensor::{Rows, WeightMatrix};

/// `x.rows × weight.rows`, row-major. Panics if the columns differ.
pub fn matmul(x: Rows<'_>, weight: &WeightMatrix<'_>) -> Vec<f32> {
    assert_eq!(x.cols(), weight.cols(), "columns of activations and weights");
    let mut out = vec![0.0; x.rows() * weight.rows()];
    for row in 0..weight.rows() {
        let decoded = dequantize::row(weight, row);
        for token in 0..x.rows() {
            let sum: f64 = decoded.iter().zip(x.row(token)).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            out[token * weight.rows() + row] = sum as f32;
        }
    }
    out
}
