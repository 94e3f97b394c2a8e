//! The measuring part of the benches: best of several rounds, and two peaks of this machine from the same run:
//! multiply- adds that stay in registers, and a read of memory past the caches. The last line printed is one JSON
//! object.
//!
//! `--quick`: one short round a measurement. Other arguments are ignored (`cargo bench` passes some).

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use kernels::Dtype;

pub struct Bench {
    name: &'static str,
    quick: bool,
    threads: usize,
    /// Per thread.
    peak_gflops: f64,
    peak_gbytes: f64,
    rows: Vec<String>,
}

impl Bench {
    pub fn new(name: &'static str) -> Self {
        let quick = std::env::args().any(|argument| argument == "--quick");
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (peak_gflops, peak_gbytes) = (fma_peak(), read_peak());
        println!("{name}: {:?}, {threads} threads", kernels::Isa::detect());
        println!("peak of one thread: {peak_gflops:.1} GFLOP/s multiply-add, {peak_gbytes:.1} GB/s read");
        Self { name, quick, threads, peak_gflops, peak_gbytes, rows: Vec::new() }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Measures `body`, which does `flops` operations and reads at least `bytes`.
    pub fn measure(&mut self, label: &str, threads: usize, (flops, bytes): (usize, usize), mut body: impl FnMut()) {
        let (rounds, length) = if self.quick { (1, 5) } else { (5, 60) };
        body();
        let best = (0..rounds).map(|_| time(Duration::from_millis(length), &mut body)).fold(f64::INFINITY, f64::min);
        let (gflops, gbytes) = (flops as f64 / best / 1e9, bytes as f64 / best / 1e9);
        let (of_flops, of_bytes) =
            (gflops / self.peak_gflops / threads as f64, gbytes / self.peak_gbytes / threads as f64);
        println!(
            "{label:58} {:10.1} us {gflops:8.1} GFLOP/s ({:3.0} %) {gbytes:7.2} GB/s ({:3.0} %)",
            best * 1e6,
            of_flops * 100.0,
            of_bytes * 100.0
        );
        self.rows.push(format!(
            "{{\"case\":\"{label}\",\"us\":{:.2},\"gflops\":{gflops:.3},\"share_of_multiply_add_peak\":{of_flops:.4},\
             \"gbytes_per_s\":{gbytes:.3},\"share_of_read_peak\":{of_bytes:.4}}}",
            best * 1e6
        ));
    }

    pub fn finish(self) {
        println!(
            "{{\"bench\":\"{}\",\"isa\":\"{:?}\",\"threads\":{},\"quick\":{},\"peak_gflops_per_thread\":{:.2},\
             \"peak_read_gbytes_per_s\":{:.2},\"cases\":[{}]}}",
            self.name,
            kernels::Isa::detect(),
            self.threads,
            self.quick,
            self.peak_gflops,
            self.peak_gbytes,
            self.rows.join(",")
        );
    }
}

/// Seconds a call, over calls that fill `length`.
fn time(length: Duration, body: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed() < length || calls == 0 {
        body();
        calls += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(calls)
}

/// GFLOP/s of multiply-adds on one thread, operands in registers.
fn fma_peak() -> f64 {
    const TURNS: usize = 200_000;
    let best = (0..5).map(|_| time(Duration::from_millis(10), &mut || fma_loop(TURNS))).fold(f64::INFINITY, f64::min);
    (2 * TURNS * fma_lanes()) as f64 / best / 1e9
}

fn fma_lanes() -> usize {
    match kernels::Isa::detect() {
        kernels::Isa::Avx512 => 12 * 16,
        _ => 12 * 8,
    }
}

fn fma_loop(turns: usize) {
    #[cfg(target_arch = "x86_64")]
    match kernels::Isa::detect() {
        // SAFETY: the CPU has the instructions.
        kernels::Isa::Avx512 => return unsafe { fma_loop_avx512(turns) },
        // SAFETY: as above.
        kernels::Isa::Avx2 => return unsafe { fma_loop_avx2(turns) },
        kernels::Isa::Portable => {}
    }
    let mut sums = [[0.5f32; 8]; 12];
    for _ in 0..turns {
        for sum in sums.iter_mut().flatten() {
            *sum = *sum * 0.999 + 0.001;
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn fma_loop_avx2(turns: usize) {
    use std::arch::x86_64::*;
    let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
    let mut sums = [b; 12];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn fma_loop_avx512(turns: usize) {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
    let mut sums = [b; 12];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, a, b);
        }
    }
    black_box(sums);
}

/// GB/s of one thread reading 256 MiB.
fn read_peak() -> f64 {
    let memory = vec![1u64; 32 << 20];
    let read = || {
        let mut sums = [0u64; 8];
        for eight in memory.chunks_exact(8) {
            for (sum, value) in sums.iter_mut().zip(eight) {
                *sum = sum.wrapping_add(*value);
            }
        }
        black_box(sums);
    };
    let best = (0..5).map(|_| time(Duration::from_millis(1), &mut || read())).fold(f64::INFINITY, f64::min);
    (memory.len() * 8) as f64 / best / 1e9
}

/// Bytes of a matrix with small finite weights.
#[allow(dead_code)]
pub fn weights(dtype: Dtype, [rows, cols]: [usize; 2]) -> Vec<u8> {
    let len = rows * dtype.row_bytes(cols).expect("whole blocks");
    // 0x11, 0x21 …: as an f16, whichever two bytes make it, this is small and finite.
    (0..len).map(|index| 0x11 + (index % 3) as u8 * 0x10 / 2).collect()
}
