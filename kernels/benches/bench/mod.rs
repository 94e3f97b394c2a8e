//! The measuring part of the benches: best of several rounds, beside the limits of this machine from the same run
//! (`kernels::Limits`, on as many threads). The last line printed is one JSON object.
//!
//! `--quick`: one short round a measurement. Other arguments are ignored (`cargo bench` passes some).

use std::time::{Duration, Instant};

use kernels::Limits;

pub struct Bench {
    name: &'static str,
    quick: bool,
    threads: usize,
    /// On one thread and on all.
    limits: [Limits; 2],
    rows: Vec<String>,
}

impl Bench {
    pub fn new(name: &'static str) -> Self {
        let quick = std::env::args().any(|argument| argument == "--quick");
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let start = Instant::now();
        let limits = [1, threads].map(|threads| Limits::measure(threads, &|| start.elapsed().as_secs_f64()));
        println!("{name}: {:?}, {threads} threads", kernels::Isa::detect());
        println!("one thread: {:.1?}\nall threads: {:.1?}", limits[0], limits[1]);
        Self { name, quick, threads, limits, rows: Vec::new() }
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
        let limits = self.limits[usize::from(threads > 1)];
        let (of_flops, of_bytes) = (gflops / limits.f32_gflops, gbytes / limits.memory_gbytes);
        println!(
            "{label:58} {:10.1} us {gflops:8.1} GFLOP/s ({:3.0} %) {gbytes:7.2} GB/s ({:3.0} %)",
            best * 1e6,
            of_flops * 100.0,
            of_bytes * 100.0
        );
        self.rows.push(format!(
            "{{\"case\":\"{label}\",\"us\":{:.2},\"gflops\":{gflops:.3},\"share_of_f32_peak\":{of_flops:.4},\
             \"gbytes_per_s\":{gbytes:.3},\"share_of_memory\":{of_bytes:.4}}}",
            best * 1e6
        ));
    }

    pub fn finish(self) {
        println!(
            "{{\"bench\":\"{}\",\"isa\":\"{:?}\",\"threads\":{},\"quick\":{},\"f32_gflops\":{:.2},\
             \"memory_gbytes_per_s\":{:.2},\"cases\":[{}]}}",
            self.name,
            kernels::Isa::detect(),
            self.threads,
            self.quick,
            self.limits[1].f32_gflops,
            self.limits[1].memory_gbytes,
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
