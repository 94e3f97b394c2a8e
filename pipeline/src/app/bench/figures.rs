//! Figures of the benches: medians and percentiles, the profile of this binary, the CPU time of a process.
//!
//! Invariant: a figure of no samples is `None`, never zero. Cost: one sort of a copy. No state.

use std::{fs, time::Duration};

use anyhow::Context;
use serde::Serialize;

use crate::app::cpu_time;

/// Smallest sample that at least `share` of all samples do not exceed (nearest rank). `share` is from 0 to 1.
pub(super) fn percentile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Mean of the two middle samples, or the middle one.
pub(super) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get(sorted.len().saturating_sub(1) / 2)?;
    Some((lower + upper) / 2.0)
}

/// Median of `ours[n] / theirs[n]`: the ratio of samples taken next to each other.
pub(super) fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).filter(|(_, peer)| **peer > 0.0).map(|(a, b)| a / b).collect();
    median(&ratios)
}

pub(super) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// How this binary was built: figures of the two are not comparable.
pub(super) fn profile() -> &'static str {
    if cfg!(debug_assertions) { "dev" } else { "release" }
}

/// User and system time of the process itself in microseconds, in steps of 10 ms; threads included, children not.
pub(super) fn cpu_us(pid: u32) -> anyhow::Result<u64> {
    Ok(cpu_time::of(pid)?.as_micros() as u64)
}

/// Most memory that the process has had resident, in bytes.
pub(super) fn peak_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_peak_bytes(&text).with_context(|| format!("{path}: expected a line \"VmHWM: … kB\""))
}

fn parse_peak_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Prints the report as the last line of stdout.
pub(super) fn print_json(report: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: no, one, an even and an odd number of samples. Guarantees: nearest rank, and nothing from nothing.
    #[test]
    fn percentiles_and_medians() {
        assert_eq!((median(&[]), percentile(&[], 0.5)), (None, None));
        assert_eq!((median(&[7.0]), percentile(&[7.0], 0.99)), (Some(7.0), Some(7.0)));
        assert_eq!((median(&[4.0, 1.0, 3.0, 2.0]), percentile(&[4.0, 1.0, 3.0, 2.0], 0.5)), (Some(2.5), Some(2.0)));
        assert_eq!((median(&[3.0, 1.0, 2.0]), percentile(&[3.0, 1.0, 2.0], 1.0)), (Some(2.0), Some(3.0)));
        assert_eq!(paired_ratio(&[2.0, 9.0, 4.0], &[1.0, 0.0, 1.0]), Some(3.0));
    }

    /// Scenario: what Linux tells of a process, with and without the line. Guarantees: its peak is found, and nonsense is not.
    #[test]
    fn peak_of_a_process() {
        assert_eq!(parse_peak_bytes("VmPeak:\t 9 kB\nVmHWM:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(parse_peak_bytes("VmPeak:\t 9 kB\n"), None);
    }
}
