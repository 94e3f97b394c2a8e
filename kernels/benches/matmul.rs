//! Matrix products at the shapes of SmolLM2-135M, beside the machine's peaks measured in the same run. See `bench`.

mod bench;

use bench::{Bench, weights};
use kernels::{
    Device, Dtype, Rows, WeightMatrix,
    ops::matmul::{Product, matmul},
};

fn main() {
    let mut bench = Bench::new("matmul");
    let shapes: [(&str, Dtype, [usize; 2]); 4] = [
        ("ffn_up", Dtype::Q4_1, [1536, 576]),
        ("ffn_down", Dtype::Q4_1, [576, 1536]),
        ("output", Dtype::Q8_0, [49152, 576]),
        ("large", Dtype::F16, [4096, 4096]),
    ];
    for threads in [1, bench.threads()] {
        let device = Device::new(threads);
        for (name, dtype, shape) in shapes {
            let bytes = weights(dtype, shape);
            let weight = WeightMatrix::new(dtype, shape, &bytes).expect("shape");
            for tokens in [1, 2, 4, 8, 16, 64, 512] {
                if tokens * shape[0] * shape[1] > 4_000_000_000 {
                    continue;
                }
                let x: Vec<f32> = (0..tokens * shape[1]).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
                let mut out = vec![0.0; tokens * shape[0]];
                let label =
                    format!("{name} {} {}x{} tokens={tokens} threads={threads}", dtype.name(), shape[0], shape[1]);
                let work = (2 * tokens * shape[0] * shape[1], bytes.len());
                bench.measure(&label, threads, work, || {
                    let x = Rows::new(&x, shape[1]).expect("rows");
                    let product = Product { weight: weight.into(), bias: None, out: &mut out };
                    matmul(&device, x, &mut [product]).expect("shapes");
                });
            }
        }
    }
    bench.finish();
}
