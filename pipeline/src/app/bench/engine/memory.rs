//! How fast this machine's memory is read.
//!
//! Two halves of a buffer that are equal are compared, which the C library does with vector loads in any profile of
//! ours. Invariant: the buffer is larger than the caches and has been written, so reads come from memory.

use std::{hint::black_box, thread, time::Instant};

use anyhow::ensure;

use super::super::figures::median;

/// Bytes read in a pass.
pub(super) const READ_BYTES: usize = 256 << 20;
const PASSES: usize = 5;

pub(super) fn buffer() -> Vec<u8> {
    vec![1; READ_BYTES]
}

/// Median over passes. Errors: the halves differ.
pub(super) fn read_bytes_per_second(buffer: &[u8], threads: usize) -> anyhow::Result<f64> {
    let (left, right) = buffer.split_at(buffer.len() / 2);
    let part = left.len().div_ceil(threads.max(1)).max(1);
    let mut speeds = Vec::with_capacity(PASSES);
    for _ in 0..PASSES {
        let started = Instant::now();
        let are_equal = thread::scope(|scope| {
            let parts = left.chunks(part).zip(right.chunks(part));
            let readers: Vec<_> = parts.map(|(a, b)| scope.spawn(move || black_box(a) == black_box(b))).collect();
            readers.into_iter().all(|reader| reader.join().unwrap_or(false))
        });
        ensure!(are_equal, "the two halves of a buffer of equal bytes differ: this machine's memory is faulty");
        speeds.push(buffer.len() as f64 / started.elapsed().as_secs_f64());
    }
    Ok(median(&speeds).unwrap_or(0.0))
}
