//! Stored layouts against values recorded from another implementation (the `gguf` Python package 0.19).

use half::f16;
use kernels::{Device, Dtype, Isa, PackedMatrix, WeightMatrix, ops::embedding::gather, reference};

/// Where a block has its f16 scales.
fn scales(dtype: Dtype) -> &'static [usize] {
    match dtype {
        Dtype::F32 | Dtype::Bf16 => &[],
        Dtype::F16 | Dtype::Q4_0 | Dtype::Q5_0 | Dtype::Q8_0 | Dtype::Iq4Nl => &[0],
        Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
        Dtype::Q6K => &[208],
    }
}

/// The recorded block: byte `i` is `(37 i + 11) mod 251`, then the k-th scale `0.03125 (k + 1) + 0.001`.
fn block(dtype: Dtype) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..dtype.block_bytes()).map(|index| ((index * 37 + 11) % 251) as u8).collect();
    for (k, at) in scales(dtype).iter().enumerate() {
        let scale = f16::from_f64(0.03125 * (k + 1) as f64 + 0.001);
        bytes[*at..*at + 2].copy_from_slice(&scale.to_le_bytes());
    }
    bytes
}

/// Scenario: one block of each quantised layout.
/// Guarantees: weights 0, 17, the middle one and the last, and the sum of `(index + 1) * weight`, are those recorded.
#[test]
fn blocks_decode_to_the_recorded_weights() {
    let recorded: [(Dtype, [f64; 4], f64); 9] = [
        (Dtype::Q4_0, [-0.096771240234375, -0.032257080078125, -0.096771240234375, 0.0], -12.354461669921875),
        (Dtype::Q4_1, [0.547332763671875, 0.4505615234375, 0.353790283203125, 0.482818603515625], 169.1243896484375),
        (Dtype::Q5_0, [0.290313720703125, 0.032257080078125, 0.45159912109375, 0.06451416015625], 9.031982421875),
        (Dtype::Q5_1, [0.837646484375, 0.224761962890625, 0.676361083984375, 0.25701904296875], 293.7980041503906),
        (Dtype::Q8_0, [2.741851806640625, -1.4193115234375, -2.612823486328125, -0.9031982421875], -92.38427734375),
        (Dtype::Q4K, [1.445159912109375, 0.4451904296875, 2.076904296875, -2.28515625], 192652.46865844727),
        (Dtype::Q5K, [26.44439697265625, 9.444915771484375, 14.8507080078125, -2.28515625], 481820.9985046387),
        (
            Dtype::Iq4Nl,
            [-1.128997802734375, -0.32257080078125, -1.128997802734375, 0.032257080078125],
            -148.93093872070312,
        ),
        (Dtype::Q6K, [-14.031829833984375, -23.999267578125, -31.9990234375, 74.83642578125], 18646.011596679688),
    ];
    for (dtype, values, sum) in recorded {
        let bytes = block(dtype);
        let weight = WeightMatrix::new(dtype, [1, dtype.block_len()], &bytes).unwrap();
        let got = reference::dequantize::row(&weight, 0);
        let some = [got[0], got[17], got[got.len() / 2], got[got.len() - 1]];
        assert_eq!(some.map(f64::from), values, "{dtype:?}");
        let weighted: f64 = got.iter().zip(1..).map(|(value, index)| f64::from(*value) * f64::from(index)).sum();
        assert!((weighted - sum).abs() <= 1e-6 * sum.abs(), "{dtype:?}: {weighted} for {sum}");
    }
}

/// Scenario: rows of a table of every layout, gathered by number on every instruction set, one out of range.
/// Guarantees: bit-equal to the reference decoder, packed tables too; a missing row is refused.
#[test]
fn gathered_rows_are_the_decoded_ones() {
    for dtype in Dtype::ALL {
        let cols = dtype.block_len().max(32);
        let blocks = 3 * cols / dtype.block_len();
        let bytes: Vec<u8> = (0..blocks).flat_map(|_| block(dtype)).collect();
        let table = WeightMatrix::new(dtype, [3, cols], &bytes).unwrap();
        for isa in Isa::available() {
            let device = Device::with_isa(2, isa);
            let mut out = vec![0.0; 2 * cols];
            gather(&device, table, &[2, 0], &mut out).unwrap();
            assert_eq!(out[..cols], reference::dequantize::row(&table, 2), "{dtype:?} {isa:?}");
            assert_eq!(out[cols..], reference::dequantize::row(&table, 0), "{dtype:?} {isa:?}");
            if let Ok(packed) = PackedMatrix::new(&table) {
                let mut again = vec![0.0; 2 * cols];
                gather(&device, &packed, &[2, 0], &mut again).unwrap();
                assert_eq!(again, out, "{dtype:?} {isa:?}");
            }
            let error = gather(&device, table, &[0, 3], &mut out).unwrap_err();
            assert_eq!(error.to_string(), "gather: row number is 3, expected 2");
        }
    }
}
