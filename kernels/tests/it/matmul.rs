//! Matrix products.

use kernels::{Device, Dtype, Isa, Rows, WeightMatrix, ops::matmul::*, reference};
use proptest::prelude::*;

use crate::data::{Source, weights};

fn product(device: &Device, x: Rows<'_>, weight: WeightMatrix<'_>, bias: Option<&[f32]>) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.rows() * weight.rows()];
    matmul(device, x, &mut [Product { weight: weight.into(), bias, out: &mut out }]).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Scenario: random weights of every data type, 1 to 40 tokens, every instruction set of the machine, 1 to 3
    /// threads. Guarantees: each value within 1e-5 of the sum of absolute terms of its dot product.
    #[test]
    fn matmul_is_the_reference(
        seed: u64, dtype in 0..Dtype::ALL.len(), rows in 1..70usize, blocks in 1..4usize, tokens in 1..40usize,
        threads in 1..4usize,
    ) {
        let dtype = Dtype::ALL[dtype];
        let cols = blocks * dtype.block_len().max(16);
        let mut source = Source::new(seed);
        let bytes = weights(dtype, [rows, cols], &mut source);
        let weight = WeightMatrix::new(dtype, [rows, cols], &bytes).unwrap();
        let (x, bias) = (source.values(tokens * cols), source.values(rows));
        let x = Rows::new(&x, cols).unwrap();
        let want = reference::matmul::matmul(x, &weight);
        for isa in Isa::available() {
            let got = product(&Device::with_isa(threads, isa), x, weight, Some(&bias));
            for row in 0..rows {
                let decoded = reference::dequantize::row(&weight, row);
                for token in 0..tokens {
                    let terms: f32 = decoded.iter().zip(x.row(token)).map(|(w, x)| (w * x).abs()).sum();
                    let (got, want) = (got[token * rows + row], want[token * rows + row] + bias[row]);
                    prop_assert!((got - want).abs() <= 1e-5 * (terms + 1.0), "{isa:?} {dtype:?} {got} for {want}");
                }
            }
        }
    }

    /// Scenario: the same token alone and among up to 40 others, on one thread and on three.
    /// Guarantees: bit-equal results (batch invariance, DESIGN "no hidden modes").
    #[test]
    fn a_token_does_not_depend_on_its_neighbours(
        seed: u64, dtype in 0..Dtype::ALL.len(), rows in 1..70usize, blocks in 1..4usize, tokens in 1..40usize,
    ) {
        let dtype = Dtype::ALL[dtype];
        let cols = blocks * dtype.block_len().max(16);
        let mut source = Source::new(seed);
        let bytes = weights(dtype, [rows, cols], &mut source);
        let weight = WeightMatrix::new(dtype, [rows, cols], &bytes).unwrap();
        let values = source.values(tokens * cols);
        let x = Rows::new(&values, cols).unwrap();
        for isa in Isa::available() {
            let (one, three) = (Device::with_isa(1, isa), Device::with_isa(3, isa));
            let together = product(&three, x, weight, None);
            prop_assert_eq!(&product(&one, x, weight, None), &together);
            for token in 0..tokens {
                let alone = product(&one, Rows::new(x.row(token), cols).unwrap(), weight, None);
                prop_assert_eq!(&alone[..], &together[token * rows..(token + 1) * rows], "{:?} token {}", isa, token);
            }
        }
    }
}

/// Scenario: several products in one launch, and shapes that do not agree.
/// Guarantees: each product is what it is alone; a wrong shape is refused by name.
#[test]
fn products_share_a_launch_and_wrong_shapes_are_refused() {
    let mut source = Source::new(7);
    let (a, b) = (weights(Dtype::Q4_1, [48, 64], &mut source), weights(Dtype::F16, [16, 64], &mut source));
    let a = WeightMatrix::new(Dtype::Q4_1, [48, 64], &a).unwrap();
    let b = WeightMatrix::new(Dtype::F16, [16, 64], &b).unwrap();
    let values = source.values(5 * 64);
    let x = Rows::new(&values, 64).unwrap();
    let device = Device::new(2);
    let (mut out_a, mut out_b) = (vec![0.0; 5 * 48], vec![0.0; 5 * 16]);
    let mut products = [
        Product { weight: a.into(), bias: None, out: &mut out_a },
        Product { weight: b.into(), bias: None, out: &mut out_b },
    ];
    matmul(&device, x, &mut products).unwrap();
    assert_eq!(out_a, product(&device, x, a, None));
    assert_eq!(out_b, product(&device, x, b, None));

    let mut short = vec![0.0; 5 * 48 - 1];
    let error = matmul(&device, x, &mut [Product { weight: a.into(), bias: None, out: &mut short }]).unwrap_err();
    assert_eq!(error.to_string(), "matmul: output values is 239, expected 240");
    assert!(WeightMatrix::new(Dtype::Q4_0, [2, 33], &[0; 36]).is_err());
}
