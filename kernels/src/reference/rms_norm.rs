//! RMS norm in f64.

use crate::{ops::rms_norm::RmsNorm, tensor::Rows};

/// `x / sqrt(mean(x²) + eps) * weight`, row by row.
pub fn rms_norm(norm: RmsNorm<'_>, x: Rows<'_>) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.rows() * x.cols());
    for row in 0..x.rows() {
        let row = x.row(row);
        let mean = row.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + f64::from(norm.eps)).sqrt();
        out.extend(row.iter().zip(norm.weight).map(|(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32));
    }
    out
}
