//! Rotary position embedding, one pair at a time in f64.

use crate::ops::rope::{RopeAngles, RopeLayout, RopeStyle};

/// The rotated copy of `x`, `angles.rows() × heads × head_dim`.
pub fn rope(layout: RopeLayout, angles: &RopeAngles, x: &[f32]) -> Vec<f32> {
    let mut out = x.to_vec();
    for row in 0..angles.rows() {
        let (cos, sin) = angles.row(row);
        for head in 0..layout.heads {
            let base = (row * layout.heads + head) * layout.head_dim;
            for pair in 0..angles.pairs() {
                let (first, second) = match layout.style {
                    RopeStyle::Interleaved => (base + 2 * pair, base + 2 * pair + 1),
                    RopeStyle::Halves => (base + pair, base + pair + angles.pairs()),
                };
                let (a, b) = (f64::from(x[first]), f64::from(x[second]));
                let (cos, sin) = (f64::from(cos[pair]), f64::from(sin[pair]));
                out[first] = (a * cos - b * sin) as f32;
                out[second] = (a * sin + b * cos) as f32;
            }
        }
    }
    out
}
