//! The time that a process has computed for, as Linux tells it. Cost: one small file. No state.

use std::{fs, time::Duration};

use anyhow::Context;

/// One tick of `/proc/<pid>/stat`: Linux shows 100 ticks a second to programs, whatever its own rate.
const TICK: Duration = Duration::from_millis(10);

/// User and system time of the process itself, in steps of 10 ms; threads included, children not.
///
/// # Errors
/// The process is gone, or the system has no `/proc`.
pub(super) fn of(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse(&text).with_context(|| format!("{path}: expected user and system time in fields 14 and 15"))
}

/// The program's name in field 2 may hold spaces and brackets, so fields are counted from its last bracket.
fn parse(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * user.checked_add(system)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a process whose name has a space and a bracket. Guarantees: its times are found, and nonsense is not.
    #[test]
    fn times_of_a_process() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194304 100 0 0 0 150 25 7 8 20 0 4 0 1000 1 1";
        assert_eq!(parse(stat), Some(Duration::from_millis(1_750)));
        assert_eq!(parse("42 (a"), None);
    }
}
