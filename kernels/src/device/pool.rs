//! A fixed pool of threads that share one job at a time: indices `0..tasks`, taken one by one from a counter.
//!
//! Invariant: `run` returns only after every helper that joined the job has left it, so the borrowed body outlives its
//! use. Who has not joined by the time the indices are gone is not waited for: a helper that the operating system took
//! off its core delays a call by one task at most. Helpers spin for [`SPINS`] turns before they sleep, and so does the
//! caller that waits for their last tasks: a pass of a model is some hundred calls with less than that between them, and
//! to be woken takes longer than most of them. Cost when nothing runs: none, after one such spin.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

/// Turns of a spin loop before a thread sleeps: about a hundred microseconds, more than the gap between two calls of one
/// pass.
const SPINS: u32 = 4000;

type Body = dyn Fn(usize) + Sync;

/// A borrowed body with its lifetime taken away; see the invariant above.
#[derive(Clone, Copy)]
struct Job {
    body: *const Body,
    tasks: usize,
}

// SAFETY: the body is `Sync`, and it is alive while a job is set or joined (`run` waits).
unsafe impl Send for Job {}

#[derive(Default)]
struct State {
    job: Option<Job>,
    epoch: u64,
    joined: usize,
    panicked: bool,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    left: Condvar,
    /// Copy of `state.epoch` to spin on.
    epoch: AtomicU64,
    /// Copy of `state.joined`, likewise.
    joined: AtomicUsize,
    next: AtomicUsize,
}

impl Shared {
    /// No code that can panic runs under this lock, so a poisoned state is still consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, job: Job) {
        // SAFETY: the caller has joined the job (or is `run` itself), so the body is alive until it leaves.
        let body = unsafe { &*job.body };
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= job.tasks {
                return;
            }
            body(index);
        }
    }
}

pub(super) struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// One job at a time.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// `threads - 1` helpers. A helper that the system will not start is done without.
    pub(super) fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared::default());
        let helpers = (1..threads)
            .filter_map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("kernel-{index}")).spawn(move || help(&shared)).ok()
            })
            .collect();
        Self { shared, helpers, turn: Mutex::new(()) }
    }

    pub(super) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    pub(super) fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        if tasks <= 1 || self.helpers.is_empty() {
            (0..tasks).for_each(body);
            return;
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: only the lifetime changes; this function does not return, nor unwind, while a helper may use it.
        let body: *const Body = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Body>(body) };
        let job = Job { body, tasks };
        {
            let mut state = self.shared.lock();
            self.shared.next.store(0, Ordering::Relaxed);
            state.job = Some(job);
            state.panicked = false;
            state.epoch += 1;
            self.shared.epoch.store(state.epoch, Ordering::Release);
        }
        self.shared.wake.notify_all();
        let own = catch_unwind(AssertUnwindSafe(|| self.shared.work(job)));
        let mut state = self.shared.lock();
        state.job = None;
        if state.joined > 0 {
            drop(state);
            spin_until(|| self.shared.joined.load(Ordering::Acquire) == 0);
            state = self.shared.lock();
        }
        while state.joined > 0 {
            state = self.shared.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let helper_panicked = state.panicked;
        drop(state);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!helper_panicked, "a kernel task panicked on a helper thread");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.epoch.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper catches the panics of bodies, so there is nothing to report here.
            let _ = helper.join();
        }
    }
}

/// Spins until `done`, for [`SPINS`] turns at most. On a busy machine what is waited for may need this very core: now and
/// then it is offered.
fn spin_until(done: impl Fn() -> bool) {
    for turn in 1..=SPINS {
        if done() {
            return;
        }
        match turn % 128 {
            0 => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

fn help(shared: &Shared) {
    let mut seen = 0;
    loop {
        spin_until(|| shared.epoch.load(Ordering::Acquire) != seen);
        let mut state = shared.lock();
        let job = loop {
            if state.stop {
                return;
            }
            if state.epoch != seen {
                seen = state.epoch;
                if let Some(job) = state.job {
                    state.joined += 1;
                    shared.joined.store(state.joined, Ordering::Release);
                    break job;
                }
            }
            state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        let outcome = catch_unwind(AssertUnwindSafe(|| shared.work(job)));
        let mut state = shared.lock();
        state.panicked |= outcome.is_err();
        state.joined -= 1;
        shared.joined.store(state.joined, Ordering::Release);
        if state.joined == 0 {
            shared.left.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: many jobs of many sizes on pools of one to four threads.
    /// Guarantees: each index is done exactly once, and before `run` returns.
    #[test]
    fn every_index_is_done_once() {
        for threads in 1..=4 {
            let pool = Pool::new(threads);
            for tasks in (0..40).chain([1000]) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|index| {
                    counts[index].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks}");
            }
        }
    }

    /// Scenario: one index of a job panics.
    /// Guarantees: the caller sees a panic, and the pool serves the next job.
    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives() {
        let pool = Pool::new(3);
        let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(64, &|index| assert!(index != 33, "index 33"))));
        assert!(outcome.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|index| {
            sum.fetch_add(index, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }
}
