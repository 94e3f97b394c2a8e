//! SwiGLU in f64.

/// `gate * sigmoid(gate) * up`.
pub fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter()
        .zip(up)
        .map(|(gate, up)| {
            let gate = f64::from(*gate);
            (gate / (1.0 + (-gate).exp()) * f64::from(*up)) as f32
        })
        .collect()
}
