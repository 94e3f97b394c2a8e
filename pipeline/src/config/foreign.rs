//! Engines of others, attached by their URL: `[[foreign.workers]]`, or `--worker-url URL`.
//!
//! Invariant: a URL that passes is plain HTTP with a host, and no two are the same. Bound: [`WORKERS_MAX`] workers.

use std::time::Duration;

use axum::http::{HeaderValue, Uri};
use serde::{Deserialize, Serialize};

use super::{ConfigError, require};

pub const WORKERS_MAX: usize = 1024;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Foreign {
    pub workers: Vec<ForeignWorker>,
    #[serde(with = "humantime_serde")]
    pub health_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub health_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    pub bytes_per_token: f64,
    pub block_bytes: usize,
    pub prefix_blocks_max: usize,
    pub default_max_tokens: u32,
    pub step_tokens: u64,
    pub default_prefill_tokens_per_second: f64,
}

/// One engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForeignWorker {
    /// `http://host:port`; a `/v1` at its end makes no difference.
    pub url: String,
    /// Sent to it as a bearer token. The keys of our clients never are.
    pub key: Option<String>,
}

impl ForeignWorker {
    /// An engine that asks for no key.
    pub fn at(url: String) -> Self {
        Self { url, key: None }
    }

    /// The URL without what makes no difference.
    pub fn base(&self) -> &str {
        let url = self.url.trim_end_matches('/');
        url.strip_suffix("/v1").unwrap_or(url)
    }
}

impl Foreign {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        const KEY: &str = "foreign.workers";
        require(self.workers.len() <= WORKERS_MAX, KEY, self.workers.len(), format!("at most {WORKERS_MAX}"))?;
        for (place, worker) in self.workers.iter().enumerate() {
            let uri = worker.base().parse::<Uri>().ok();
            let is_plain = uri.is_some_and(|uri| {
                uri.scheme_str() == Some("http")
                    && uri.host().is_some_and(|host| !host.is_empty())
                    && uri.query().is_none()
            });
            require(is_plain, KEY, &worker.url, "a URL as in http://10.0.0.7:8000; TLS is for a proxy in between")?;
            let is_first = !self.workers[..place].iter().any(|other| other.base() == worker.base());
            require(is_first, KEY, &worker.url, "each URL once")?;
            let key = worker.key.as_deref().unwrap_or_default();
            require(HeaderValue::from_str(key).is_ok(), "foreign.workers.key", "(hidden)", "what a header can carry")?;
        }
        let at_least = |least: Duration, value: Duration, key: &'static str| {
            require(value >= least, key, format!("{value:?}"), format!("at least {least:?}"))
        };
        at_least(Duration::from_millis(10), self.health_interval, "foreign.health_interval")?;
        at_least(Duration::from_millis(10), self.health_timeout, "foreign.health_timeout")?;
        at_least(Duration::from_millis(10), self.connect_timeout, "foreign.connect_timeout")?;
        let bytes = self.bytes_per_token;
        require((0.5..=64.0).contains(&bytes), "foreign.bytes_per_token", bytes, "0.5 to 64")?;
        require(
            self.block_bytes >= 64 && self.block_bytes as f64 >= bytes,
            "foreign.block_bytes",
            self.block_bytes,
            "at least 64 and at least foreign.bytes_per_token",
        )?;
        require(self.prefix_blocks_max >= 1, "foreign.prefix_blocks_max", self.prefix_blocks_max, "at least 1")?;
        require(self.default_max_tokens >= 1, "foreign.default_max_tokens", self.default_max_tokens, "at least 1")?;
        let rate = self.default_prefill_tokens_per_second;
        require(rate.is_finite() && rate > 0.0, "foreign.default_prefill_tokens_per_second", rate, "a rate above 0")
    }

    /// Tokens of one block, as estimated.
    pub fn block_tokens(&self) -> usize {
        ((self.block_bytes as f64 / self.bytes_per_token) as usize).max(1)
    }

    /// Tokens of a prompt of `bytes`, as estimated; at least 1.
    pub fn tokens_of(&self, bytes: usize) -> u32 {
        (bytes as f64 / self.bytes_per_token).ceil().clamp(1.0, f64::from(u32::MAX)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, load};

    fn refusal(urls: &[&str]) -> String {
        let workers: Vec<_> = urls.iter().map(|url| ForeignWorker::at(url.to_string())).collect();
        let config = load(None, Overrides::default().set("foreign.workers", Some(workers)));
        config.map_or_else(|error| error.to_string(), |_| "taken".into())
    }

    /// Scenario: URLs with and without `/v1`, one twice, TLS, and what is none; no worker at all.
    /// Guarantees: what is wrong is named with what would be right; a fleet needs one worker of either kind.
    #[test]
    fn urls_are_checked() {
        assert_eq!(refusal(&["http://a:1", "http://a:2/v1/"]), "taken");
        assert!(refusal(&["http://a:1", "http://a:1/v1"]).contains("each URL once"));
        assert!(refusal(&["https://a:1"]).contains("expected a URL as in http://"));
        assert!(refusal(&["a:1"]).contains("foreign.workers = a:1"));
        let nobody = load(None, Overrides::default().set("workers.count", Some(0))).unwrap_err().to_string();
        assert!(nobody.starts_with("workers.count = 0: expected 1 to 256"), "{nobody}");
    }
}
