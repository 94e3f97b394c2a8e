//! Packed weights and int8 activations.

use kernels::{Device, Dtype, Isa, PackedMatrix, Rows, Weight, WeightMatrix, ops::matmul::*, reference};
use proptest::prelude::*;

use crate::data::{Source, weights};

/// Data types that can be packed.
fn packable() -> Vec<Dtype> {
    Dtype::ALL.into_iter().filter(|dtype| PackedMatrix::can_pack(*dtype)).collect()
}

fn product(device: &Device, x: Rows<'_>, weight: Weight<'_>, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.rows() * weight.rows()];
    matmul(device, x, &mut [Product { weight, bias, out: &mut out }]).unwrap();
    out
}

/// For each row of weights, the sum of absolute values.
fn row_sums(weight: &WeightMatrix<'_>) -> Vec<f32> {
    (0..weight.rows()).map(|row| reference::dequantize::row(weight, row).iter().map(|w| w.abs()).sum()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Scenario: random matrices of every layout that can be packed, rows that are no multiple of 16.
    /// Guarantees: the stored bytes come back, all of them.
    #[test]
    fn packing_loses_nothing(seed: u64, kind in 0..20usize, rows in 1..40usize, blocks in 1..4usize) {
        let dtype = packable()[kind % packable().len()];
        let cols = blocks * dtype.block_len();
        let bytes = weights(dtype, [rows, cols], &mut Source::new(seed));
        let stored = WeightMatrix::new(dtype, [rows, cols], &bytes).unwrap();
        let packed = PackedMatrix::new(&stored).unwrap();
        let (mut row, mut got) = (Vec::new(), Vec::new());
        for index in 0..rows {
            packed.stored_row(index, &mut row);
            got.extend_from_slice(&row);
        }
        prop_assert_eq!(got, bytes);
        let most = rows.next_multiple_of(16) * dtype.row_bytes(cols).unwrap() * 103 / 100;
        prop_assert!(packed.len_bytes() <= most, "{} bytes", packed.len_bytes());
    }

    /// Scenario: random weights of every packed layout, long rows among them, 1 to 40 tokens, every instruction set of
    /// the machine, 1 to 3 threads, with a bias. Guarantees: each value within 1e-6 of the bound that `ops::matmul`
    /// states, from the twin on rounded activations.
    #[test]
    fn packed_matmul_is_its_twin(
        seed: u64, kind in 0..20usize, rows in 1..70usize, blocks in 1..60usize, tokens in 1..40usize,
        threads in 1..4usize,
    ) {
        let dtype = packable()[kind % packable().len()];
        let cols = (blocks * 32).next_multiple_of(dtype.block_len());
        let mut source = Source::new(seed);
        let bytes = weights(dtype, [rows, cols], &mut source);
        let stored = WeightMatrix::new(dtype, [rows, cols], &bytes).unwrap();
        let packed = PackedMatrix::new(&stored).unwrap();
        let (x, bias) = (source.values(tokens * cols), source.values(rows));
        let rounded: Vec<f32> = x.chunks(cols).flat_map(reference::int8::rounded).collect();
        let want = reference::matmul::matmul(Rows::new(&rounded, cols).unwrap(), &stored);
        let sums = row_sums(&stored);
        for isa in Isa::available() {
            let device = Device::with_isa(threads, isa);
            let got = product(&device, Rows::new(&x, cols).unwrap(), (&packed).into(), Some(&bias));
            for (index, (got, want)) in got.iter().zip(&want).enumerate() {
                let (row, want) = (index % rows, want + bias[index % rows]);
                prop_assert!((got - want).abs() <= 1e-6 * (sums[row] + 1.0), "{isa:?} {dtype:?} {got} for {want}");
            }
        }
    }

    /// Scenario: the same token alone and among up to 40 others, on one thread and on three; long rows among them.
    /// Guarantees: bit-equal results (batch invariance, DESIGN "no hidden modes").
    #[test]
    fn a_token_does_not_depend_on_its_neighbours(
        seed: u64, kind in 0..20usize, rows in 1..70usize, blocks in 1..60usize, tokens in 1..40usize,
    ) {
        let dtype = packable()[kind % packable().len()];
        let cols = (blocks * 32).next_multiple_of(dtype.block_len());
        let mut source = Source::new(seed);
        let bytes = weights(dtype, [rows, cols], &mut source);
        let packed = PackedMatrix::new(&WeightMatrix::new(dtype, [rows, cols], &bytes).unwrap()).unwrap();
        let values = source.values(tokens * cols);
        let x = Rows::new(&values, cols).unwrap();
        for isa in Isa::available() {
            let (one, three) = (Device::with_isa(1, isa), Device::with_isa(3, isa));
            let together = product(&three, x, (&packed).into(), None);
            prop_assert_eq!(&product(&one, x, (&packed).into(), None), &together);
            for token in 0..tokens {
                let alone = product(&one, Rows::new(x.row(token), cols).unwrap(), (&packed).into(), None);
                prop_assert_eq!(&alone[..], &together[token * rows..(token + 1) * rows], "{:?} token {}", isa, token);
            }
        }
    }
}

/// Scenario: the largest values of every layout against activations of 1 and -1 (the largest integers), all signs alike.
/// Guarantees: no sum saturates.
#[test]
fn the_largest_sums_do_not_saturate() {
    for dtype in packable() {
        for fill in [0x00u8, 0x7F, 0x80, 0xFF] {
            let cols = dtype.block_len().max(64);
            let mut bytes = vec![fill; 16 * dtype.row_bytes(cols).unwrap()];
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                let one = half::f16::ONE.to_le_bytes();
                let at: &[usize] = if dtype == Dtype::Q6K { &[208] } else { &[0, 2] };
                for at in
                    &at[..if matches!(dtype, Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K) { 2 } else { 1 }]
                {
                    block[*at..at + 2].copy_from_slice(&one);
                }
            }
            let stored = WeightMatrix::new(dtype, [16, cols], &bytes).unwrap();
            let (packed, sums) = (PackedMatrix::new(&stored).unwrap(), row_sums(&stored));
            for sign in [1.0, -1.0] {
                let x = vec![sign; 9 * cols];
                let x = Rows::new(&x, cols).unwrap();
                let want = reference::matmul::matmul(x, &stored);
                for isa in Isa::available() {
                    let got = product(&Device::with_isa(1, isa), x, (&packed).into(), None);
                    for (index, (got, want)) in got.iter().zip(&want).enumerate() {
                        let near = (got - want).abs() <= 1e-6 * sums[index % 16];
                        assert!(near, "{isa:?} {dtype:?} fill {fill}: {got} for {want}");
                    }
                }
            }
        }
    }
}

/// Scenario: activations of zeros, of a NaN and of an infinity.
/// Guarantees: zeros give the bias; what is not finite shows in the results of its own token and in no other.
#[test]
fn what_is_not_finite_is_not_hidden() {
    let mut source = Source::new(3);
    let bytes = weights(Dtype::Q4_1, [16, 64], &mut source);
    let packed = PackedMatrix::new(&WeightMatrix::new(Dtype::Q4_1, [16, 64], &bytes).unwrap()).unwrap();
    let mut x = vec![0.0; 3 * 64];
    (x[64], x[130]) = (f32::NAN, f32::INFINITY);
    let bias = source.values(16);
    for isa in Isa::available() {
        let device = Device::with_isa(1, isa);
        let got = product(&device, Rows::new(&x, 64).unwrap(), (&packed).into(), Some(&bias));
        assert_eq!(got[..16], bias, "{isa:?}");
        assert!(got[16..].iter().all(|value| !value.is_finite()), "{isa:?}: {:?}", &got[16..]);
    }
}

/// Scenario: 64 tokens of values uniform in -1..1 (as even as rounding meets them) against 64 random rows of 576.
/// Guarantees: what int8 activations cost: every result within the bound of rounding, and 0.6 % of the results' root mean
/// square altogether.
#[test]
fn rounding_activations_costs_half_a_percent() {
    for dtype in [Dtype::Q4_1, Dtype::Q8_0] {
        let mut source = Source::new(11);
        let bytes = weights(dtype, [64, 576], &mut source);
        let stored = WeightMatrix::new(dtype, [64, 576], &bytes).unwrap();
        let packed = PackedMatrix::new(&stored).unwrap();
        let values = source.values(64 * 576);
        let x = Rows::new(&values, 576).unwrap();
        let (want, sums) = (reference::matmul::matmul(x, &stored), row_sums(&stored));
        let got = product(&Device::new(1), x, (&packed).into(), None);
        let (mut error, mut size) = (0.0, 0.0);
        for (index, (got, want)) in got.iter().zip(&want).enumerate() {
            let difference = f64::from(got - want);
            assert!(difference.abs() <= f64::from(sums[index % 64]) / 254.0 * 1.001, "{dtype:?} {got} for {want}");
            error += difference * difference;
            size += f64::from(want * want);
        }
        let share = (error / size).sqrt();
        assert!(share < 0.006, "{dtype:?}: {share}");
    }
}

/// Scenario: a layout without a packed order; packed and stored weights in one launch.
/// Guarantees: a refusal by name; each product is what it is alone.
#[test]
fn packed_and_stored_share_a_launch() {
    let error = PackedMatrix::new(&WeightMatrix::new(Dtype::F16, [1, 16], &[0; 32]).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "pack: no kernel for data type F16");
    let mut source = Source::new(9);
    let bytes = weights(Dtype::Q4_1, [50, 64], &mut source);
    let stored = WeightMatrix::new(Dtype::Q4_1, [50, 64], &bytes).unwrap();
    let packed = PackedMatrix::new(&stored).unwrap();
    let values = source.values(5 * 64);
    let x = Rows::new(&values, 64).unwrap();
    let device = Device::new(2);
    let (mut out_a, mut out_b) = (vec![0.0; 5 * 50], vec![0.0; 5 * 50]);
    let mut products = [
        Product { weight: stored.into(), bias: None, out: &mut out_a },
        Product { weight: (&packed).into(), bias: None, out: &mut out_b },
    ];
    matmul(&device, x, &mut products).unwrap();
    assert_eq!(out_a, product(&device, x, stored.into(), None));
    assert_eq!(out_b, product(&device, x, (&packed).into(), None));
}
