//! How far sampled curves are off, over many choices of the sample.
//!
//! Invariant: the samples differ in nothing but the seed. Cost: one sampled curve a seed. Memory: that of one.

use operators::{PromptRow, ReuseDistanceConfig};
use serde::Serialize;

use super::{CAPACITIES, curve, rates};

/// What a sample of one block in a hundred is meant to keep within, in points.
const BAR_POINTS: f64 = 1.5;

/// One capacity over all seeds.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Spread {
    /// `None`: without a bound.
    capacity_blocks: Option<u64>,
    /// Root of the mean square of the difference to the exact hit rate.
    rms_points: f64,
    worst_points: f64,
    /// Seeds that were off by more than [`BAR_POINTS`].
    beyond_bar: u64,
    /// Mean square of the difference over the error stated with it: 1 if that says what it should.
    error_ratio: f64,
}

/// `exact`: hit rates without a bound, then at [`CAPACITIES`].
pub(super) fn over_seeds(
    rows: &[PromptRow],
    sampled: ReuseDistanceConfig,
    (seeds, exact): (u64, [f64; 4]),
) -> anyhow::Result<Vec<Spread>> {
    let capacities = [None].into_iter().chain(CAPACITIES.map(Some));
    let mut spreads: Vec<Spread> =
        capacities.map(|capacity_blocks| Spread { capacity_blocks, ..Spread::default() }).collect();
    for seed in 0..seeds {
        let (curve, _) = curve(rows, ReuseDistanceConfig { seed, ..sampled })?;
        for ((spread, exact), (rate, error)) in spreads.iter_mut().zip(exact).zip(rates(&curve)) {
            let points = (rate.unwrap_or(f64::NAN) - exact) * 100.0;
            spread.rms_points += points.powi(2);
            spread.worst_points = spread.worst_points.max(points.abs());
            spread.beyond_bar += u64::from(points.abs() > BAR_POINTS);
            spread.error_ratio += (points / (error * 100.0).max(0.01)).powi(2);
        }
    }
    for spread in &mut spreads {
        spread.rms_points = (spread.rms_points / seeds.max(1) as f64).sqrt();
        spread.error_ratio /= seeds.max(1) as f64;
    }
    print(&spreads, seeds);
    Ok(spreads)
}

fn print(spreads: &[Spread], seeds: u64) {
    if seeds == 0 {
        return;
    }
    println!("over {seeds} samples, in points");
    println!("{:>14} {:>9} {:>9} {:>12} {:>12}", "blocks", "rms", "worst", "beyond 1.5", "(off/error)²");
    for spread in spreads {
        let name = spread.capacity_blocks.map_or("no bound".into(), |capacity| capacity.to_string());
        let Spread { rms_points, worst_points, beyond_bar, error_ratio, .. } = spread;
        println!("{name:>14} {rms_points:>9.2} {worst_points:>9.2} {beyond_bar:>12} {error_ratio:>12.2}");
    }
}
