//! What a request's headers say of its budget and its tier (SPEC A1, A4 a), as far as its sender's key allows.
//!
//! | header | says |
//! |---|---|
//! | `x-evenkeel-deadline-ms` | budget left for the whole answer |
//! | `x-evenkeel-first-token-ms`, `x-evenkeel-token-ms` | for the first token, and for each after it |
//! | `x-evenkeel-tier` | the tier asked for |
//! | `x-llm-d-inference-ttl` (`1m30s`) | the whole answer |
//! | `x-llm-d-slo-ttft-ms`, `x-sgl-ttft-slo-ms`, `x-dynamo-slo-ttft-ms` | the first token |
//! | `x-llm-d-slo-tpot-ms`, `x-sgl-tps-slo` (tokens a second) | each token after it |
//! | `x-smg-priority` | the tier asked for |
//!
//! Ours go before others'; of others' the smallest budget counts. A header of ours with a wrong value is an error; another's
//! is ignored, as it is where nobody knows it. Invariants: no budget is shorter than the key allows; a tier asked for lowers
//! a request's tier, and raises it only where the key says so, never above its class. Cost: a dozen look-ups. No state.

use std::time::Duration;

use axum::http::HeaderMap;

use super::{auth::Tenant, error::ApiError};
use crate::{
    config::TierHeader,
    ids::micros,
    policy::{Asked, DeadlineConfig, SloAsk, Tier},
};

/// Longest budget that counts: ten days.
const BUDGET_MAX_US: i64 = 864_000_000_000;

const FIRST: [&str; 3] = ["x-llm-d-slo-ttft-ms", "x-sgl-ttft-slo-ms", "x-dynamo-slo-ttft-ms"];

/// Reads the headers.
///
/// # Errors
/// A header of ours with a value that is none.
pub fn read(headers: &HeaderMap, tenant: &Tenant, config: &DeadlineConfig) -> Result<Asked, ApiError> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("").trim());
    let own = |name: &'static str| text(name).map(|value| millis(value).ok_or_else(|| wrong(name, value))).transpose();
    let others = |names: &[&str]| names.iter().filter_map(|name| millis(text(name)?)).min();
    let whole = own("x-evenkeel-deadline-ms")?.or_else(|| text("x-llm-d-inference-ttl").and_then(go_duration));
    let first = own("x-evenkeel-first-token-ms")?.or_else(|| others(&FIRST));
    let pace = || [others(&["x-llm-d-slo-tpot-ms"]), text("x-sgl-tps-slo").and_then(per_second)];
    let per_token_us = own("x-evenkeel-token-ms")?.or_else(|| pace().into_iter().flatten().min());
    let tier = match text("x-evenkeel-tier") {
        Some(name) => Some(tier_of(name).ok_or_else(|| wrong("x-evenkeel-tier", name))?),
        None => text("x-smg-priority").and_then(tier_of),
    };
    let least = |own: Option<Duration>, usual: Duration| micros(own.unwrap_or(usual));
    let slo = SloAsk {
        first_token_us: first.map(|us| us.max(least(tenant.first_token_min, config.first_token_min))),
        whole_us: whole.map(|us| us.max(least(tenant.whole_min, config.whole_min))),
        per_token_us,
    };
    Ok(match tenant.tier_header {
        TierHeader::Choose => Asked { slo, tier, tier_max: None },
        TierHeader::Lower => Asked { slo, tier: None, tier_max: tier },
    })
}

fn wrong(name: &'static str, value: &str) -> ApiError {
    let expected = match name {
        "x-evenkeel-tier" => "High, Medium or Low",
        _ => "a number of milliseconds from 0",
    };
    let shown = super::json_body::shorten(value);
    ApiError::parameter(name, format!("Invalid value for header '{name}': expected {expected}, but got `{shown}`."))
}

fn bounded(us: f64) -> Option<i64> {
    (us.is_finite() && us >= 0.0).then(|| (us as i64).min(BUDGET_MAX_US))
}

fn millis(value: &str) -> Option<i64> {
    bounded(value.parse::<f64>().ok()? * 1e3)
}

/// Tokens a second, as time per token.
fn per_second(value: &str) -> Option<i64> {
    let rate: f64 = value.parse().ok()?;
    if rate > 0.0 { bounded(1e6 / rate) } else { None }
}

/// A duration as Go writes it: `1h2m3.5s`, `300ms`.
fn go_duration(value: &str) -> Option<i64> {
    let mut rest = value;
    let mut sum = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let us = match unit {
            "h" => 3.6e9,
            "m" => 6e7,
            "s" => 1e6,
            "ms" => 1e3,
            "us" | "µs" => 1.0,
            "ns" => 1e-3,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * us;
        rest = after;
    }
    bounded(sum)
}

fn tier_of(name: &str) -> Option<Tier> {
    Tier::ALL.into_iter().find(|tier| tier.name().eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::test_policy;

    fn tenant(first_ms: Option<u64>, tier_header: TierHeader) -> Tenant {
        let first_token_min = first_ms.map(Duration::from_millis);
        let sql = crate::config::KeySql::default();
        Tenant { name: "acme".into(), class: Tier::High, first_token_min, whole_min: None, tier_header, sql }
    }

    fn of(tenant: &Tenant, pairs: &[(&'static str, &str)]) -> Result<Asked, ApiError> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        let usual = Duration::from_secs(1);
        let config = DeadlineConfig { first_token_min: usual, whole_min: usual, ..test_policy().deadline };
        read(&headers, tenant, &config)
    }

    /// Scenario: each header alone, ours beside others', wrong values.
    /// Guarantees: every one counts with its unit; ours go before others'; ours with a wrong value are named, others' ignored.
    #[test]
    fn headers_and_units() {
        let any = tenant(Some(0), TierHeader::Choose);
        let slo = |pairs: &[(&'static str, &str)]| {
            let asked = of(&any, pairs).unwrap().slo;
            (asked.first_token_us, asked.whole_us, asked.per_token_us)
        };
        assert_eq!(slo(&[("x-evenkeel-deadline-ms", "2500")]), (None, Some(2_500_000), None));
        assert_eq!(
            slo(&[("x-evenkeel-first-token-ms", "0.5"), ("x-evenkeel-token-ms", "20")]),
            (Some(500), None, Some(20_000))
        );
        assert_eq!(slo(&[("x-llm-d-inference-ttl", "1m30.5s")]), (None, Some(90_500_000), None));
        assert_eq!(slo(&[("x-llm-d-slo-ttft-ms", "300"), ("x-sgl-ttft-slo-ms", "200")]), (Some(200_000), None, None));
        assert_eq!(slo(&[("x-dynamo-slo-ttft-ms", "7"), ("x-evenkeel-first-token-ms", "9")]), (Some(9000), None, None));
        assert_eq!(slo(&[("x-sgl-tps-slo", "50"), ("x-llm-d-slo-tpot-ms", "30")]), (None, None, Some(20_000)));
        for pair in [("x-llm-d-inference-ttl", "soon"), ("x-sgl-tps-slo", "0"), ("x-llm-d-slo-ttft-ms", "-1")] {
            assert_eq!(slo(&[pair]), (None, None, None), "{pair:?}");
        }
        let error = of(&any, &[("x-evenkeel-deadline-ms", "soon")]).unwrap_err();
        expect_test::expect![
            "Invalid value for header 'x-evenkeel-deadline-ms': expected a number of milliseconds from 0, but got `soon`."
        ]
        .assert_eq(&error.to_string());
        assert_eq!((error.status().as_u16(), error.code()), (400, "invalid_value"));
        assert!(of(&any, &[("x-evenkeel-tier", "urgent")]).is_err());
    }

    /// Scenario: tight budgets and a better tier asked for with keys that allow less, and with one that lets choose.
    /// Guarantees: a budget is no shorter than the key allows, or than is usual where it says nothing; a tier is lowered, and
    /// raised only where the key says so.
    #[test]
    fn keys_bound_what_counts() {
        let tight = [("x-evenkeel-first-token-ms", "1"), ("x-evenkeel-deadline-ms", "2"), ("x-smg-priority", "high")];
        let asked = of(&tenant(None, TierHeader::Lower), &tight).unwrap();
        assert_eq!((asked.slo.first_token_us, asked.slo.whole_us), (Some(1_000_000), Some(1_000_000)));
        assert_eq!((asked.tier, asked.tier_max), (None, Some(Tier::High)));
        let asked = of(&tenant(Some(200), TierHeader::Choose), &tight).unwrap();
        assert_eq!((asked.slo.first_token_us, asked.tier, asked.tier_max), (Some(200_000), Some(Tier::High), None));
    }
}
