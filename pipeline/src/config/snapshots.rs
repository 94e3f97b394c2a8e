//! `[snapshots]`: where snapshots go, when, in which form, and how long they stay (SPEC E3).
//!
//! Invariant: after loading every target is a path or a URL that a store is known for, every table is one, and formats are named
//! once. Credentials of stores are no settings: they come from the environment, under the names that each store's own tools use.

use std::{fmt, time::Duration};

use queries::{
    Topic,
    snapshot::{Format, Place, store::without_secrets},
};
use serde::{Deserialize, Serialize, de::Error as _};

use super::{Config, ConfigError, Mode, did_you_mean, require};

/// Shortest time between two scheduled snapshots.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Shortest time a store is given.
const STORE_TIMEOUT_MIN: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshots {
    pub target: String,
    pub allow_targets: Vec<String>,
    pub interval: Span,
    pub formats: Vec<Format>,
    pub tables: Vec<String>,
    pub incremental: Mode,
    pub chain_max: u32,
    pub retain_count: usize,
    pub retain_age: Span,
    #[serde(with = "humantime_serde")]
    pub store_timeout: Duration,
}

impl Snapshots {
    /// Tables of a snapshot that names none itself.
    pub fn topics(&self) -> Vec<Topic> {
        match self.tables.as_slice() {
            [] => Topic::ALL.to_vec(),
            names => names.iter().filter_map(|name| Topic::from_name(name)).collect(),
        }
    }
}

/// A span of time, or `"off"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    Off,
    Of(Duration),
}

impl Span {
    pub fn duration(self) -> Option<Duration> {
        match self {
            Span::Off => None,
            Span::Of(span) => Some(span),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Off => f.write_str("off"),
            Span::Of(span) => write!(f, "{}", humantime::format_duration(*span)),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "off" {
            return Ok(Span::Off);
        }
        let span = humantime::parse_duration(&text);
        span.map(Span::Of).map_err(|_| D::Error::custom(format!("{text:?}: expected \"off\" or a time such as \"1h\"")))
    }
}

pub(super) fn validate(config: &Config) -> Result<(), ConfigError> {
    let s = &config.snapshots;
    for (key, target) in [("snapshots.target", &s.target)]
        .into_iter()
        .chain(s.allow_targets.iter().map(|target| ("snapshots.allow_targets", target)))
    {
        let fault = Place::check(target).err().map(|error| error.to_string());
        require(fault.is_none(), key, without_secrets(target), fault.unwrap_or_default())?;
    }
    let interval_fits = s.interval.duration().is_none_or(|interval| interval >= INTERVAL_MIN);
    require(interval_fits, "snapshots.interval", s.interval, "\"off\" or at least 1s")?;
    let named_once = s.formats.iter().enumerate().all(|(at, format)| !s.formats[..at].contains(format));
    let formats: Vec<_> = s.formats.iter().map(|format| format.ending()).collect();
    let are_right = !formats.is_empty() && named_once;
    require(are_right, "snapshots.formats", format!("{formats:?}"), "\"arrow\", \"parquet\" or both, each once")?;
    let known: Vec<String> = Topic::ALL.iter().map(|topic| topic.name().to_string()).collect();
    for (at, name) in s.tables.iter().enumerate() {
        let is_new = known.contains(name) && !s.tables[..at].contains(name);
        let near = did_you_mean(name, &known);
        require(is_new, "snapshots.tables", name, format!("names of tables, each once{near}"))?;
    }
    require((1..=1000).contains(&s.chain_max), "snapshots.chain_max", s.chain_max, "1 to 1000")?;
    require(s.retain_count >= 1, "snapshots.retain_count", s.retain_count, "at least 1")?;
    let is_long = s.store_timeout >= STORE_TIMEOUT_MIN;
    require(is_long, "snapshots.store_timeout", format!("{:?}", s.store_timeout), "at least 100ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, load};

    /// Scenario: values that cannot be. Guarantees: each is refused with its key, the value and what would be right; a target's secrets
    /// are not repeated.
    #[test]
    fn wrong_values_are_named() {
        let refusal = |change: fn(&mut Snapshots)| {
            let mut config = load(None, Overrides::default()).expect("the defaults are valid");
            change(&mut config.snapshots);
            validate(&config).expect_err("a wrong value").to_string()
        };
        let lines = [
            refusal(|snapshots| snapshots.interval = Span::Of(Duration::ZERO)),
            refusal(|snapshots| snapshots.formats.clear()),
            refusal(|snapshots| snapshots.tables = vec!["request".into()]),
            refusal(|snapshots| snapshots.chain_max = 0),
            refusal(|snapshots| snapshots.retain_count = 0),
            refusal(|snapshots| snapshots.store_timeout = Duration::ZERO),
            refusal(|snapshots| snapshots.target = "az://fleet/a?sig=sesame".into()),
        ];
        expect_test::expect![[r#"
            snapshots.interval = 0s: expected "off" or at least 1s
            snapshots.formats = []: expected "arrow", "parquet" or both, each once
            snapshots.tables = request: expected names of tables, each once; did you mean `requests`?
            snapshots.chain_max = 0: expected 1 to 1000
            snapshots.retain_count = 0: expected at least 1
            snapshots.store_timeout = 0ns: expected at least 100ms
            snapshots.target = az://fleet/a: expected snapshot target "az://fleet/a" is no folder and no URL: a target has no user, password or options in it; credentials come from the environment; give a path, or a URL such as "s3://bucket/fleet", "gs://bucket/fleet", "az://container/fleet" or "file:///srv/snapshots""#]].assert_eq(&lines.join("\n"));
    }
}
