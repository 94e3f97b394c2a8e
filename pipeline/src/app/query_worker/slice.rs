//! Long turns for threads that compute for long, so that those who serve are let in at once.
//!
//! A thread of the ordinary class with a longer turn than others' is preempted as soon as one of them wakes, and still gets its share by
//! niceness: it waits longer and then runs longer (Linux from 6.12 on: `sched_attr::sched_runtime` of SCHED_OTHER). SCHED_IDLE would
//! be let in as late, but gets no share at all beside threads that always run, such as engines' on a processor. Older kernels
//! take the call and change nothing. One system call, for which no crate of ours has a safe function; no state.

use std::{io, time::Duration};

/// The longest turn that the kernel takes.
pub(super) const LONGEST: Duration = Duration::from_millis(100);

/// Gives the calling thread turns of this length, and leaves its niceness.
///
/// # Errors
/// The kernel's: it does not know the call, or does not allow it.
#[cfg(target_os = "linux")]
pub(super) fn take_turns_of(turn: Duration, niceness: i32) -> io::Result<()> {
    let wanted = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: niceness,
        sched_priority: 0,
        sched_runtime: u64::try_from(turn.min(LONGEST).as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the call reads `size` bytes at `wanted`, which live until it returns; 0 is the calling thread.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Turns are the kernel's own matter elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn take_turns_of(_: Duration, _: i32) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Scenario: a thread of its own that takes long turns.
    /// Guarantees: the kernel has its niceness, still of the ordinary class, and, where it knows turns, their length; no other
    /// thread is changed.
    #[test]
    fn turns_are_the_threads_own() {
        let of = |thread: &str| std::fs::read_to_string(format!("/proc/{thread}/sched")).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split(':').nth(1)).map(|value| value.trim().to_owned())
        };
        let before = of("thread-self");
        let within = std::thread::spawn(move || {
            take_turns_of(LONGEST, 3).expect("a thread may give way");
            of("thread-self")
        });
        let within = within.join().expect("the thread answers");
        if within.is_empty() {
            println!("SKIPPED (this kernel shows no scheduling figures of a thread)");
        } else {
            assert_eq!(field(&within, "policy").as_deref(), Some("0"), "{within}");
            assert_eq!(field(&within, "prio").as_deref(), Some("123"), "{within}");
            if field(&within, "se.slice").is_some() {
                assert_eq!(field(&within, "se.slice").as_deref(), Some("100000000"), "{within}");
            }
            let after = std::fs::read_to_string("/proc/thread-self/sched").expect("it was there before");
            assert_eq!(field(&before, "prio"), field(&after, "prio"));
            assert_eq!(field(&before, "se.slice"), field(&after, "se.slice"));
        }
    }
}
