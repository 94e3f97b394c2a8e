//! Matrix products at the shapes of SmolLM2-135M: activations of f32 over stored weights beside int8 over packed ones,
//! in turns, and the share of what the machine can do, measured in the same run (see `kernels::Limits`). `model` is one step of
//! all its matrices: 85 MB of weights, more than a cache holds; its vocabulary is multiplied with 16 tokens at most.
//!
//! Best of some rounds; the median beside it says how quiet the machine was. The last line printed is one JSON object.
//! `--quick`: short rounds, one number of threads. `case=TEXT`: only cases with the text in their name. Other arguments
//! are ignored (`cargo bench` passes some).

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use kernels::{
    Device, Dtype, Limits, PackedMatrix, Rows, Weight, WeightMatrix,
    ops::matmul::{Product, matmul},
};

/// A matrix in both orders.
struct Matrix {
    dtype: Dtype,
    shape: [usize; 2],
    stored: Vec<u8>,
    packed: PackedMatrix,
}

impl Matrix {
    fn new(dtype: Dtype, shape: [usize; 2]) -> Self {
        let len = shape[0] * dtype.row_bytes(shape[1]).expect("whole blocks");
        // 0x11, 0x19 …: as an f16, whichever two bytes make it, this is small and finite.
        let stored: Vec<u8> = (0..len).map(|index| 0x11 + (index % 3) as u8 * 8).collect();
        let packed = PackedMatrix::new(&WeightMatrix::new(dtype, shape, &stored).expect("shape")).expect("layout");
        Self { dtype, shape, stored, packed }
    }

    fn weight(&self, body: Body) -> Weight<'_> {
        match body {
            Body::F32 => WeightMatrix::new(self.dtype, self.shape, &self.stored).expect("shape").into(),
            Body::Int8 => (&self.packed).into(),
        }
    }
}

#[derive(Clone, Copy)]
enum Body {
    F32,
    Int8,
}

/// Launches of one step: matrices that share their activations.
type Step<'a> = Vec<Vec<&'a Matrix>>;

/// Runs a step with `tokens` tokens; matrices above [`VOCABULARY_ROWS`] rows get 16 at most.
fn run(device: &Device, step: &Step<'_>, body: Body, tokens: usize) {
    thread_local! {
        static OUT: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        static X: Vec<f32> = (0..MOST_TOKENS * MOST_COLUMNS).map(|index| (index % 17) as f32 * 0.1 - 0.8).collect();
    }
    let mut out = OUT.take();
    X.with(|x| {
        for launch in step {
            let cols = launch[0].shape[1];
            let tokens = tokens_of(launch[0], tokens);
            out.resize(launch.iter().map(|matrix| matrix.shape[0] * tokens).sum::<usize>().max(out.len()), 0.0);
            let mut rest = &mut out[..];
            let mut products = Vec::new();
            for matrix in launch {
                let (out, after) = rest.split_at_mut(matrix.shape[0] * tokens);
                rest = after;
                products.push(Product { weight: matrix.weight(body), bias: None, out });
            }
            matmul(device, Rows::new(&x[..tokens * cols], cols).expect("rows"), &mut products).expect("shapes");
        }
    });
    OUT.set(out);
}

const VOCABULARY_ROWS: usize = 49152;
const MOST_TOKENS: usize = 512;
const MOST_COLUMNS: usize = 1536;

fn tokens_of(matrix: &Matrix, tokens: usize) -> usize {
    if matrix.shape[0] == VOCABULARY_ROWS { tokens.min(16) } else { tokens }
}

/// Seconds of each call, calls that fill `length`.
fn time(length: Duration, times: &mut Vec<f64>, mut body: impl FnMut()) {
    let start = Instant::now();
    while start.elapsed() < length || times.is_empty() {
        let call = Instant::now();
        body();
        times.push(call.elapsed().as_secs_f64());
    }
}

/// Best and median.
fn best(mut times: Vec<f64>) -> [f64; 2] {
    times.sort_by(f64::total_cmp);
    [times[0], times[times.len() / 2]]
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let only =
        std::env::args().find_map(|argument| argument.strip_prefix("case=").map(str::to_owned)).unwrap_or_default();
    let (rounds, length) = if quick { (3, 4) } else { (7, 30) };
    let length = Duration::from_millis(length);
    let shapes: [(&str, Dtype, [usize; 2]); 6] = [
        ("query", Dtype::Q4_1, [576, 576]),
        ("key", Dtype::Q4_1, [192, 576]),
        ("ffn_up", Dtype::Q4_1, [1536, 576]),
        ("ffn_down", Dtype::Q4_1, [576, 1536]),
        ("ffn_down", Dtype::Q8_0, [576, 1536]),
        ("output", Dtype::Q8_0, [VOCABULARY_ROWS, 576]),
    ];
    let single: Vec<(&str, Matrix)> =
        shapes.iter().map(|(name, dtype, shape)| (*name, Matrix::new(*dtype, *shape))).collect();
    let layer = [[576, 576], [192, 576], [192, 576], [576, 576], [1536, 576], [1536, 576], [576, 1536]];
    let layers: Vec<Vec<Matrix>> =
        (0..30).map(|_| layer.iter().map(|shape| Matrix::new(Dtype::Q4_1, *shape)).collect()).collect();
    let mut steps: Vec<(String, Step<'_>)> = single
        .iter()
        .map(|(name, matrix)| {
            let [rows, cols] = matrix.shape;
            (format!("{name} {} {rows}x{cols}", matrix.dtype.name()), vec![vec![matrix]])
        })
        .collect();
    let mut model: Step<'_> = Vec::new();
    for m in &layers {
        model.extend([vec![&m[0], &m[1], &m[2]], vec![&m[3]], vec![&m[4], &m[5]], vec![&m[6]]]);
    }
    model.push(vec![&single[5].1]);
    steps.push(("model".into(), model));

    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let (start, mut cases) = (Instant::now(), Vec::new());
    for threads in if quick || most == 1 { vec![most] } else { vec![1, most] } {
        let (device, limits) = (Device::new(threads), Limits::measure(threads, &|| start.elapsed().as_secs_f64()));
        println!("{threads} threads, {:?}: {limits:.1?}", device.isa());
        for (name, step) in &steps {
            for tokens in [1, 8, 16, MOST_TOKENS] {
                let label = format!("{name} tokens={tokens} threads={threads}");
                if !label.contains(&only) {
                    continue;
                }
                let mut times = [Vec::new(), Vec::new()];
                for round in 0..=rounds {
                    for (body, times) in [Body::F32, Body::Int8].into_iter().zip(&mut times) {
                        if round == 0 {
                            run(&device, step, body, tokens);
                        } else {
                            time(length, times, || run(&device, step, body, tokens));
                        }
                    }
                }
                cases.push(report(&label, (step, tokens), times, limits));
            }
        }
    }
    println!(
        "{{\"bench\":\"matmul\",\"isa\":\"{:?}\",\"quick\":{quick},\"cases\":[{}]}}",
        kernels::Isa::detect(),
        cases.join(",")
    );
}

/// Prints a case and gives it as JSON.
fn report(label: &str, (step, tokens): (&Step<'_>, usize), times: [Vec<f64>; 2], limits: Limits) -> String {
    let matrices = || step.iter().flatten();
    let operations: usize =
        matrices().map(|matrix| 2 * matrix.shape[0] * matrix.shape[1] * tokens_of(matrix, tokens)).sum();
    let bytes: usize = matrices().map(|matrix| matrix.packed.len_bytes()).sum();
    let [f32_times, [int8, median]] = times.map(best);
    let (gops, gbytes) = (operations as f64 / int8 / 1e9, bytes as f64 / int8 / 1e9);
    let (of_int8, of_memory) = (gops / limits.int8_gops, gbytes / limits.memory_gbytes);
    println!(
        "{label:46} f32 {:9.1} us, int8 {:9.1} us (median {:9.1}), {:5.2}x, {gops:6.1} Gop/s ({:3.0} % of int8), {gbytes:5.1} GB/s ({:3.0} % of memory)",
        f32_times[0] * 1e6,
        int8 * 1e6,
        median * 1e6,
        f32_times[0] / int8,
        of_int8 * 100.0,
        of_memory * 100.0,
    );
    format!(
        "{{\"case\":\"{label}\",\"f32_us\":{:.2},\"int8_us\":{:.2},\"int8_median_us\":{:.2},\"gops\":{gops:.2},\
         \"share_of_int8_peak\":{of_int8:.4},\"share_of_f32_peak\":{:.4},\"gbytes_per_s\":{gbytes:.3},\
         \"share_of_memory\":{of_memory:.4},\"share_of_l3\":{:.4},\"share_of_l2\":{:.4}}}",
        f32_times[0] * 1e6,
        int8 * 1e6,
        median * 1e6,
        gops / limits.f32_gflops,
        gbytes / limits.l3_gbytes,
        gbytes / limits.l2_gbytes,
    )
}
