//! SwiGLU and GeGLU in f64.

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

/// `gelu(gate) * up`, the tanh form.
pub fn geglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    gate.iter()
        .zip(up)
        .map(|(gate, up)| {
            let gate = f64::from(*gate);
            let z = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
            (0.5 * gate * (1.0 + z.tanh()) * f64::from(*up)) as f32
        })
        .collect()
}
