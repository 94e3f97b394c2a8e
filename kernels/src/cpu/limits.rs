//! What this machine can do on as many threads as the kernels use: multiply-adds of f32 and of int8 that stay in
//! registers, and reads of 192 KiB (second-level cache), 8 MiB (third-level) and 256 MiB (memory) a thread. The limits
//! that benches compare with (E's rooflines); each is the best of some rounds.
//!
//! Invariant: the loops do what the fast bodies do, without loads and scales, in the instruction set they would use.
//! Cost: a quarter of a second a call and 256 MiB a thread, given back at its end.

use std::{hint::black_box, sync::Barrier};

use crate::Isa;

/// Of `threads` threads together; operations count a multiplication and an addition each. In 10⁹ a second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    pub f32_gflops: f64,
    pub int8_gops: f64,
    pub l2_gbytes: f64,
    pub l3_gbytes: f64,
    pub memory_gbytes: f64,
}

impl Limits {
    /// `seconds` reads a clock that never goes back.
    pub fn measure(threads: usize, seconds: &(dyn Fn() -> f64 + Sync)) -> Self {
        const TURNS: usize = 20_000;
        let threads = threads.max(1);
        let read = |words: usize, rounds: usize| {
            let memory: Vec<Vec<u64>> = (0..threads).map(|_| vec![1; words]).collect();
            let times = (4 << 20) / words.min(4 << 20);
            let work = (words * 8 * times * threads) as f64;
            let body = |thread: usize| (0..times).for_each(|_| sum(&memory[thread]));
            work / 1e9 / together(threads, rounds, (seconds, &body))
        };
        let operations = |lanes: usize| (2 * TURNS * lanes * threads) as f64 / 1e9;
        Self {
            f32_gflops: operations(f32_lanes()) / together(threads, 20, (seconds, &|_| f32_loop(TURNS))),
            int8_gops: operations(int8_lanes()) / together(threads, 20, (seconds, &|_| int8_loop(TURNS))),
            l2_gbytes: read(24 << 10, 10),
            l3_gbytes: read(1 << 20, 10),
            memory_gbytes: read(32 << 20, 3),
        }
    }
}

type Clock<'a> = &'a (dyn Fn() -> f64 + Sync);

/// Best seconds of `rounds` in which every thread runs the body once; the slowest thread counts.
fn together(threads: usize, rounds: usize, (seconds, body): (Clock<'_>, &(dyn Fn(usize) + Sync))) -> f64 {
    let barrier = Barrier::new(threads);
    let round = |thread: usize| {
        body(thread);
        let mut all = Vec::new();
        for _ in 0..rounds {
            barrier.wait();
            let start = seconds();
            body(thread);
            all.push(seconds() - start);
        }
        all
    };
    let times: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn({
                    let round = &round;
                    move || round(thread)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("invariant: a limit's loop does not panic")).collect()
    });
    (0..rounds)
        .map(|index| times.iter().map(|thread| thread[index]).fold(0.0, f64::max))
        .fold(f64::INFINITY, f64::min)
        .max(f64::MIN_POSITIVE)
}

fn sum(memory: &[u64]) {
    let mut sums = [0u64; 16];
    for some in memory.chunks_exact(16) {
        for (sum, value) in sums.iter_mut().zip(some) {
            *sum = sum.wrapping_add(*value);
        }
    }
    black_box(sums);
}

/// True where the int8 bodies use AVX-512.
fn vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Isa::detect() == Isa::Avx512 && is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

fn f32_lanes() -> usize {
    if Isa::detect() == Isa::Avx512 { 12 * 16 } else { 12 * 8 }
}

fn int8_lanes() -> usize {
    if vnni() { 12 * 64 } else { 12 * 32 }
}

fn f32_loop(turns: usize) {
    #[cfg(target_arch = "x86_64")]
    match Isa::detect() {
        // SAFETY: the CPU has the instructions.
        Isa::Avx512 => return unsafe { x86::f32_avx512(turns) },
        // SAFETY: as above.
        Isa::Avx2 => return unsafe { x86::f32_avx2(turns) },
        Isa::Portable => {}
    }
    let mut sums = [[0.5f32; 8]; 12];
    for _ in 0..turns {
        for sum in sums.iter_mut().flatten() {
            *sum = *sum * 0.999 + 0.001;
        }
    }
    black_box(sums);
}

fn int8_loop(turns: usize) {
    #[cfg(target_arch = "x86_64")]
    match Isa::detect() {
        // SAFETY: the CPU has the instructions.
        Isa::Avx512 if vnni() => return unsafe { x86::int8_vnni(turns) },
        // SAFETY: as above.
        Isa::Avx512 | Isa::Avx2 => return unsafe { x86::int8_avx2(turns) },
        Isa::Portable => {}
    }
    let (mut sums, a, b) = ([[0i32; 8]; 12], black_box([3i16; 32]), black_box([5i16; 32]));
    for _ in 0..turns {
        for sum in &mut sums {
            for (lane, sum) in sum.iter_mut().enumerate() {
                for k in 0..4 {
                    *sum = sum.wrapping_add(i32::from(a[4 * lane + k]) * i32::from(b[4 * lane + k]));
                }
            }
        }
    }
    black_box(sums);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{arch::x86_64::*, hint::black_box};

    #[target_feature(enable = "avx2,fma")]
    pub fn f32_avx2(turns: usize) {
        let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
        let mut sums = [b; 12];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f")]
    pub fn f32_avx512(turns: usize) {
        let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
        let mut sums = [b; 12];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
    }

    /// Multiply pairs of bytes and add them up in 16 bits: what the 4-bit body does, without loads and scales. One
    /// operand is a running sum, so that no multiplication can leave the loop.
    #[target_feature(enable = "avx2")]
    pub fn int8_avx2(turns: usize) {
        let a = _mm256_set1_epi8(black_box(3));
        let mut sums = [_mm256_set1_epi8(black_box(1)); 12];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm256_add_epi16(*sum, _mm256_maddubs_epi16(a, *sum));
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn int8_vnni(turns: usize) {
        let (a, b) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(5)));
        let mut sums = [_mm512_setzero_si512(); 12];
        for _ in 0..turns {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }
}
