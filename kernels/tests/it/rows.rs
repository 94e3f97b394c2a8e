//! Norms, rotations and elementwise operations.

use kernels::{
    Device, Isa, Rows,
    ops::{elementwise, rms_norm::*, rope::*},
    reference,
};
use proptest::prelude::*;

use crate::data::{Source, close};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Scenario: rows of any length, many or few, on every instruction set.
    /// Guarantees: within abs 1e-6, eps 1e-5 of the reference; the same in place, bit for bit.
    #[test]
    fn rms_norm_is_the_reference(seed: u64, rows in 1..50usize, cols in 1..900usize) {
        let mut source = Source::new(seed);
        let (x, weight) = (source.values(rows * cols), source.values(cols));
        let (x, norm) = (Rows::new(&x, cols).unwrap(), RmsNorm { weight: &weight, eps: 1e-5 });
        for isa in Isa::available() {
            let mut out = vec![0.0; rows * cols];
            rms_norm(&Device::with_isa(2, isa), norm, x, &mut out).unwrap();
            close(&out, &reference::rms_norm::rms_norm(norm, x), (1e-6, 1e-5)).unwrap();
            let mut own: Vec<f32> = (0..rows).flat_map(|row| x.row(row)).copied().collect();
            rms_norm_in_place(&Device::with_isa(2, isa), norm, &mut own).unwrap();
            prop_assert_eq!(own, out);
        }
    }

    /// Scenario: both styles, heads rotated in whole or in part, positions to 100 000.
    /// Guarantees: within abs 1e-6, eps 1e-5 of the reference.
    #[test]
    fn rope_is_the_reference(
        seed: u64, rows in 1..30usize, heads in 1..5usize, pairs in 1..33usize, spare in 0..9usize,
        first in 0..100_000usize,
    ) {
        let mut source = Source::new(seed);
        for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
            let layout = RopeLayout { heads, head_dim: 2 * pairs + spare, style };
            let frequencies: Vec<f32> = (0..pairs).map(|pair| 1e4f32.powf(-(pair as f32) / pairs as f32)).collect();
            let mut angles = RopeAngles::default();
            angles.fill(&frequencies, first..first + rows);
            let mut x = source.values(rows * heads * layout.head_dim);
            let want = reference::rope::rope(layout, &angles, &x);
            rope(&Device::new(2), layout, &angles, &mut x).unwrap();
            close(&x, &want, (1e-6, 1e-5)).unwrap();
        }
    }

    /// Scenario: gates from far below to far above zero, any length.
    /// Guarantees: swiglu and geglu within abs 1e-6, eps 1e-5 of the reference; add is exact.
    #[test]
    fn gates_are_the_reference(seed: u64, len in 1..40_000usize, reach in 0.1..120f32) {
        let mut source = Source::new(seed);
        let gate: Vec<f32> = source.values(len).iter().map(|value| value * reach).collect();
        let up = source.values(len);
        let want = reference::elementwise::swiglu(&gate, &up);
        let want_geglu = reference::elementwise::geglu(&gate, &up);
        for isa in Isa::available() {
            let device = Device::with_isa(2, isa);
            let mut out = gate.clone();
            elementwise::swiglu(&device, &mut out, &up).unwrap();
            close(&out, &want, (1e-6, 1e-5)).unwrap();
            let mut out = gate.clone();
            elementwise::geglu(&device, &mut out, &up).unwrap();
            close(&out, &want_geglu, (1e-6, 1e-5)).unwrap();
            let mut sum = gate.clone();
            elementwise::add(&device, &mut sum, &up).unwrap();
            prop_assert!(sum.iter().zip(gate.iter().zip(&up)).all(|(sum, (a, b))| *sum == a + b));
        }
    }
}

/// Scenario: NaN and infinite gates.
/// Guarantees: NaN stays NaN (a broken model is seen, not hidden), nothing panics.
#[test]
fn gates_keep_nan() {
    for isa in Isa::available() {
        for gated in [elementwise::swiglu, elementwise::geglu] {
            let mut gate = [f32::NAN, 1.0, f32::NEG_INFINITY, 0.0, 1.0, 1.0, 1.0, 1.0, f32::NAN];
            gated(&Device::with_isa(1, isa), &mut gate, &[1.0; 9]).unwrap();
            assert!(gate[0].is_nan() && gate[8].is_nan() && gate[3] == 0.0, "{isa:?} {gate:?}");
        }
    }
}
