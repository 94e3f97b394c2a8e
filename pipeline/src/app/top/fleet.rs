//! What the server tells of the fleet, as numbers. Missing or of another type is unknown, never zero. Pure.

use serde_json::Value;

/// p50, p95 and p99 in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantiles(pub [f64; 3]);

/// One event of `/v1/live`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fleet {
    pub as_of: String,
    pub view_mode: String,
    pub throttle_step: String,
    pub tokens_per_second: Option<f64>,
    pub prompt_tokens_per_second: Option<f64>,
    pub requests_per_second: Option<f64>,
    pub ttft: Option<Quantiles>,
    pub itl: Option<Quantiles>,
    pub hit_rate: Option<f64>,
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    pub faults: Option<f64>,
    pub instances: Vec<Instance>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Instance {
    pub number: Option<u64>,
    pub name: String,
    pub model: String,
    pub state: String,
    pub running: Option<f64>,
    pub waiting: Option<f64>,
    pub context_tokens: Option<f64>,
    pub blocks_used: Option<f64>,
    pub blocks_cached: Option<f64>,
    pub blocks_total: Option<f64>,
    pub tokens_per_second: Option<f64>,
    /// Of all tokens that live in the fleet.
    pub share: Option<f64>,
    pub drain_seconds: Option<f64>,
}

impl Instance {
    /// Blocks held by sequences, as a share.
    pub fn kv_used(&self) -> Option<f64> {
        self.of_blocks(self.blocks_used)
    }

    /// Blocks kept for reuse, as a share.
    pub fn kv_cached(&self) -> Option<f64> {
        self.of_blocks(self.blocks_cached)
    }

    fn of_blocks(&self, blocks: Option<f64>) -> Option<f64> {
        let total = self.blocks_total.filter(|total| *total > 0.0)?;
        Some(blocks? / total)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn quantiles(value: &Value) -> Option<Quantiles> {
    Some(Quantiles([value["p50"].as_f64()?, value["p95"].as_f64()?, value["p99"].as_f64()?]))
}

impl Fleet {
    /// `None`: it is no event of a fleet (the first one of a server that just started is empty).
    pub fn read(data: &str) -> Option<Self> {
        let event: Value = serde_json::from_str(data).ok()?;
        let number = |name: &str| event[name].as_f64();
        let instance = |one: &Value| Instance {
            number: one["instance"].as_u64(),
            name: text(&one["name"]),
            model: text(&one["model"]),
            state: text(&one["state"]),
            running: one["running"].as_f64(),
            waiting: one["waiting"].as_f64(),
            context_tokens: one["context_tokens"].as_f64(),
            blocks_used: one["blocks_used"].as_f64(),
            blocks_cached: one["blocks_cached"].as_f64(),
            blocks_total: one["blocks_total"].as_f64(),
            tokens_per_second: one["tokens_per_second"].as_f64(),
            share: one["share"].as_f64(),
            drain_seconds: one["load_seconds"].as_f64(),
        };
        Some(Self {
            as_of: text(&event["as_of"]),
            view_mode: text(&event["view_mode"]),
            throttle_step: text(&event["throttle_step"]),
            tokens_per_second: number("tokens_per_second"),
            prompt_tokens_per_second: number("prompt_tokens_per_second"),
            requests_per_second: number("requests_per_second"),
            ttft: quantiles(&event["ttft_ms"]),
            itl: quantiles(&event["itl_ms"]),
            hit_rate: number("hit_rate"),
            running: number("running"),
            waiting: number("waiting"),
            faults: number("faults"),
            instances: event["instances"].as_array()?.iter().map(instance).collect(),
        })
    }
}

/// A tier over the last minute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TierFigures {
    pub tier: String,
    pub arrived: Option<f64>,
    pub refused: Option<f64>,
    pub ttft_ms_p95: Option<f64>,
}

/// What waits for an instance, of all models.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Queue {
    pub requests: f64,
    pub tokens: f64,
}

/// What else is asked for, less often.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Beside {
    pub tiers: Vec<TierFigures>,
    pub queue: Option<Queue>,
    /// Hit rate of each instance over the last minute.
    pub hits: Vec<(u64, f64)>,
}

pub const TIERS_QUERY: &str = "select tier, count(*) filter (where event = 'arrived') as arrived, \
    count(*) filter (where event = 'rejected') as refused, \
    approx_percentile_cont(0.95) within group (order by case when event = 'first_token' then gap_us end) / 1000.0 as ttft_ms \
    from requests where at > now() - interval '1 minute' group by tier order by tier";

pub const HITS_QUERY: &str = "select instance, sum(cached_tokens) as cached, sum(scheduled_prompt_tokens) as prompt \
    from engine_steps where at > now() - interval '1 minute' group by instance";

impl Beside {
    /// `tiers` and `hits`: rows of the queries; `metrics`: the text of `/metrics`.
    pub fn read(tiers: &Value, hits: &Value, metrics: &str) -> Self {
        let tier = |row: &Value| TierFigures {
            tier: text(&row["tier"]),
            arrived: row["arrived"].as_f64(),
            refused: row["refused"].as_f64(),
            ttft_ms_p95: row["ttft_ms"].as_f64(),
        };
        let hit = |row: &Value| {
            let prompt = row["prompt"].as_f64().filter(|prompt| *prompt > 0.0)?;
            Some((row["instance"].as_u64()?, row["cached"].as_f64()? / prompt))
        };
        let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let sum = |name: &str| -> Option<f64> {
            let of = |line: &str| line.strip_prefix(name)?.strip_prefix('{')?.rsplit_once(' ')?.1.parse::<f64>().ok();
            metrics.lines().filter_map(of).reduce(|sum, more| sum + more)
        };
        let queue = sum("evenkeel_queue_requests").zip(sum("evenkeel_queue_tokens"));
        Self {
            tiers: rows(tiers).iter().map(tier).collect(),
            hits: rows(hits).iter().filter_map(hit).collect(),
            queue: queue.map(|(requests, tokens)| Queue { requests, tokens }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Scenario: a full event, an empty one, one of other types, no JSON.
    /// Guarantees: what is not told is unknown; nothing that is no event becomes one.
    #[test]
    fn what_is_not_told_is_unknown() {
        let event = json!({"view_mode": "exact", "ttft_ms": {"p50": 1.0, "p95": 2.0, "p99": 3.0}, "itl_ms": null, "hit_rate": null,
            "running": 2, "instances": [{"instance": 1, "name": "w1", "blocks_used": 5, "blocks_total": 10, "running": "two"}, {}]});
        let fleet = Fleet::read(&event.to_string()).expect("an event");
        assert_eq!((fleet.ttft, fleet.itl, fleet.hit_rate), (Some(Quantiles([1.0, 2.0, 3.0])), None, None));
        assert_eq!(fleet.instances[0].kv_used(), Some(0.5));
        assert_eq!((fleet.instances[0].running, fleet.instances[0].kv_cached()), (None, None));
        assert_eq!(fleet.instances[1], Instance::default());
        for bad in ["{}", "", "[", "null", r#"{"instances": 3}"#] {
            assert_eq!(Fleet::read(bad), None, "{bad}");
        }
    }

    /// Scenario: rows and metrics, whole and missing. Guarantees: models are added up; an instance without prompts has no hit rate.
    #[test]
    fn queue_and_hits_are_read() {
        let hits = json!([{"instance": 0, "cached": 30, "prompt": 40}, {"instance": 1, "cached": 0, "prompt": 0}]);
        let metrics = "# HELP evenkeel_queue_requests x\nevenkeel_queue_requests{model=\"a\"} 2\nevenkeel_queue_requests{model=\"b\"} 1\n\
            evenkeel_queue_tokens{model=\"a\"} 300\nevenkeel_queue_requests_total{model=\"a\"} 9\n";
        let beside =
            Beside::read(&json!([{"tier": "High", "arrived": 4, "refused": 0, "ttft_ms": null}]), &hits, metrics);
        assert_eq!(beside.queue, Some(Queue { requests: 3.0, tokens: 300.0 }));
        assert_eq!(beside.hits, [(0, 0.75)]);
        assert_eq!((beside.tiers[0].arrived, beside.tiers[0].ttft_ms_p95), (Some(4.0), None));
        assert_eq!(Beside::read(&Value::Null, &Value::Null, ""), Beside::default());
    }
}
