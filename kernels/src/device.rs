//! The CPU as a device: an instruction set found at run time and a fixed number of threads.
//!
//! Cost: `threads - 1` threads that sleep between calls. A call that has the pool keeps it to the end; a second caller
//! waits. Bounds: at most [`MAX_THREADS`] threads; more are cut to that.

mod pool;

use pool::Pool;

/// Most threads a device starts.
pub const MAX_THREADS: usize = 256;

/// Instruction sets that the fast bodies are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust, eight lanes, multiply and add rounded apart.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512F (and the AVX2 set).
    Avx512,
}

impl Isa {
    /// The best set of this machine.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if avx2 && is_x86_feature_detected!("avx512f") {
                return Isa::Avx512;
            }
            if avx2 {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }

    /// Every set of this machine, slowest first.
    pub fn available() -> Vec<Self> {
        let best = Self::detect();
        [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| *isa <= best).collect()
    }
}

/// Where kernels run.
#[derive(Debug)]
pub struct Device {
    isa: Isa,
    pool: Pool,
}

impl Device {
    /// The machine's best instruction set on `threads` threads, the caller's included (0 counts as 1).
    pub fn new(threads: usize) -> Self {
        Self::with_isa(threads, Isa::detect())
    }

    /// As `new`, with a lower instruction set; one that the machine lacks is lowered to what it has.
    pub fn with_isa(threads: usize, isa: Isa) -> Self {
        Self { isa: isa.min(Isa::detect()), pool: Pool::new(threads.clamp(1, MAX_THREADS)) }
    }

    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Threads that work on a call, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Calls `body(0..tasks)`, each index once, on any thread; returns when all are done. `body` must not call the
    /// device again. A panic in `body` is passed on to the caller.
    pub(crate) fn parallel(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        self.pool.run(tasks, body);
    }
}
