//! Weights there and back.

use kernels::{
    Dtype, WeightMatrix,
    encode::{ENCODED, encode_row},
    reference::dequantize,
};
use proptest::prelude::*;

fn there_and_back(dtype: Dtype, row: &[f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    encode_row(dtype, row, &mut bytes).unwrap();
    dequantize::row(&WeightMatrix::new(dtype, [1, row.len()], &bytes).unwrap(), 0)
}

/// The largest error of a value in a block, by the layout.
fn bound(dtype: Dtype, block: &[f32], value: f32) -> f32 {
    let largest = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    // The scale is rounded to f16: 2^-11 of it, and 2^-25 where f16 has no more digits.
    let of_scale = |steps: f32| largest / 2048.0 + steps * 2.0f32.powi(-25);
    match dtype {
        Dtype::F32 => 0.0,
        Dtype::F16 => value.abs() / 2048.0 + 2.0f32.powi(-25),
        Dtype::Q8_0 => largest / 127.0 * 0.5001 + of_scale(127.0),
        _ => largest / 8.0 * 1.0001 + of_scale(8.0),
    }
}

proptest! {
    /// Scenario: rows of one to three blocks of any size and sign, some of zeros.
    /// Guarantees: every type gives values back within its stated bound, and f32 exactly.
    #[test]
    fn values_come_back_within_the_bound(
        row in prop::collection::vec(prop_oneof![3 => -2.0f32..2.0, 1 => Just(0.0), 1 => -1e-3f32..1e-3], 96),
        blocks in 1usize..4, scale in prop::sample::select(vec![1e-3f32, 1.0, 50.0]),
    ) {
        let row: Vec<f32> = row[..32 * blocks].iter().map(|value| value * scale).collect();
        for dtype in ENCODED {
            let back = there_and_back(dtype, &row);
            for (block, back) in row.chunks(32).zip(back.chunks(32)) {
                for (value, back) in block.iter().zip(back) {
                    let bound = bound(dtype, block, *value);
                    prop_assert!((value - back).abs() <= bound, "{dtype:?}: {value} came back as {back}, bound {bound}");
                }
            }
        }
    }

    /// Scenario: what was decoded from a block is encoded again in the same type.
    /// Guarantees: nothing changes any more.
    #[test]
    fn a_second_time_changes_nothing(row in prop::collection::vec(-2.0f32..2.0, 64)) {
        for dtype in [Dtype::F32, Dtype::F16] {
            let once = there_and_back(dtype, &row);
            prop_assert_eq!(there_and_back(dtype, &once), once);
        }
    }
}
