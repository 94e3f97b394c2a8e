//! Activations rounded to int8, the slow way; with `reference::matmul` the twin of the int8 matmul.

/// Values that share a scale.
const BLOCK: usize = 32;

/// Each block of 32 (the last may be shorter) as `q · scale` with `scale = max|x| / 127` and `q` an integer, ties to even.
pub fn rounded(x: &[f32]) -> Vec<f32> {
    x.chunks(BLOCK).flat_map(block).collect()
}

fn block(x: &[f32]) -> Vec<f32> {
    let largest = x.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    if largest == 0.0 {
        return vec![0.0; x.len()];
    }
    x.iter().map(|value| (value * (127.0 / largest)).round_ties_even() * (largest / 127.0)).collect()
}
