//! Which snapshots go (SPEC E3).
//!
//! Invariants: the newest snapshot stays; one that a kept snapshot needs stays; whole snapshots go, the oldest first among those
//! that no remaining one needs, so that a stop in between leaves every remaining one complete.

use std::{collections::BTreeSet, time::Duration};

use super::{Manifest, Place, SnapshotError, manifest::moment_of};

/// How many snapshots stay, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Newest ones that stay; at least 1.
    pub count: usize,
    /// Older ones go, also where fewer than `count` are there.
    pub age: Option<Duration>,
}

/// A snapshot as far as retention looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    pub as_of: i64,
    /// Other snapshots whose files it needs.
    pub needs: BTreeSet<String>,
}

impl From<&Manifest> for Listed {
    fn from(manifest: &Manifest) -> Listed {
        let needs = manifest.needs().into_iter().map(str::to_string).collect();
        Listed { name: manifest.name.clone(), as_of: manifest.as_of, needs }
    }
}

/// Time after which files without a manifest are taken for what a writer left that died.
pub const LEFTOVER_AGE: Duration = Duration::from_secs(24 * 3600);

/// Names to delete, in order. `listed` is in rising order of time; `now` is a time like `as_of`.
pub fn surplus(listed: &[Listed], retention: Retention, now: i64) -> Vec<String> {
    let oldest = retention.age.map_or(i64::MIN, |age| now.saturating_sub(micros(age)));
    let first_kept = listed.len().saturating_sub(retention.count.max(1));
    let newest = listed.len().saturating_sub(1);
    let kept = listed
        .iter()
        .enumerate()
        .filter(|(at, one)| *at == newest || (*at >= first_kept && one.as_of >= oldest))
        .map(|(_, one)| one);
    let needed: BTreeSet<&String> = kept.flat_map(|one| one.needs.iter().chain([&one.name])).collect();
    let mut left: Vec<&Listed> = listed.iter().filter(|one| !needed.contains(&one.name)).collect();
    let mut order = Vec::with_capacity(left.len());
    while let Some(at) = (0..left.len()).find(|at| !left.iter().any(|other| other.needs.contains(&left[*at].name))) {
        order.push(left.remove(at).name.clone());
    }
    order
}

/// Deletes what `retention` does not keep, and what dead writers left. Answers with the names of the snapshots deleted.
pub async fn delete_surplus(place: &Place, retention: Retention, now: i64) -> Result<Vec<String>, SnapshotError> {
    let manifests = place.snapshots().await?;
    let listed: Vec<Listed> = manifests.iter().map(Listed::from).collect();
    let names = surplus(&listed, retention, now);
    for name in &names {
        place.inside(name).delete().await?;
    }
    let known: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.name.as_str()).collect();
    for name in place.moments().await? {
        let is_old = moment_of(&name).is_some_and(|at| at < now.saturating_sub(micros(LEFTOVER_AGE)));
        // Asked again only where there was no manifest: one may have come since.
        if is_old && !known.contains(name.as_str()) && matches!(place.inside(&name).manifest().await, Ok(None)) {
            place.inside(&name).delete().await?;
        }
    }
    Ok(names)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
