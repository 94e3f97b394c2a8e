//! The checks that types cannot make. Each names the key, the value and what would be right.

use super::{Config, ConfigError, LOCAL_TENANT, Speculation, models, variants};

pub(super) fn validate(config: &Config) -> Result<(), ConfigError> {
    let w = &config.workers;
    config.foreign.validate()?;
    let least = if config.foreign.workers.is_empty() { 1 } else { 0 };
    require(
        (least..=256).contains(&w.count),
        "workers.count",
        w.count,
        "1 to 256, or 0 with foreign.workers, which then serve alone",
    )?;
    require(
        w.count == 0 || !config.models.is_empty() || !config.model.name.is_empty(),
        "model.name",
        "empty",
        "a model, since workers.count is not 0",
    )?;
    require(
        w.count > 0 || config.models.is_empty(),
        "workers.count",
        w.count,
        "at least 1 with [[models]], which are served by workers of our own",
    )?;
    require(w.threads >= 1 && w.threads <= 1024, "workers.threads", w.threads, "1 to 1024")?;
    require(
        (16..=64).contains(&w.block_size) && w.block_size.is_power_of_two(),
        "workers.block_size",
        w.block_size,
        "16, 32 or 64",
    )?;
    require(w.token_budget >= w.block_size, "workers.token_budget", w.token_budget, "at least workers.block_size")?;
    require(w.running_max >= 1, "workers.running_max", w.running_max, "at least 1")?;
    require(
        w.running_max <= w.token_budget,
        "workers.running_max",
        w.running_max,
        "at most workers.token_budget, since each running sequence takes a token of it",
    )?;
    require((1..=16).contains(&w.draft_tokens_max), "workers.draft_tokens_max", w.draft_tokens_max, "1 to 16")?;
    require(w.verify_interval >= 1, "workers.verify_interval", w.verify_interval, "at least 1")?;
    require(
        w.speculation != Speculation::Draft || !w.draft_model.is_empty(),
        "workers.draft_model",
        "empty",
        "the path of a .gguf file, since workers.speculation is \"draft\"",
    )?;
    require(w.waiting_max >= 1, "workers.waiting_max", w.waiting_max, "at least 1")?;
    require(config.bus.flush_rows >= 1, "bus.flush_rows", config.bus.flush_rows, "at least 1")?;
    require(
        config.bus.queue_rows >= config.bus.flush_rows,
        "bus.queue_rows",
        config.bus.queue_rows,
        "at least bus.flush_rows",
    )?;
    require(config.bus.subscriber_batches >= 1, "bus.subscriber_batches", config.bus.subscriber_batches, "at least 1")?;
    let d = &config.dataflow;
    require((1..=64).contains(&d.workers), "dataflow.workers", d.workers, "1 to 64")?;
    require((1..=64).contains(&d.processes), "dataflow.processes", d.processes, "1 to 64")?;
    require(
        (100..=60_000).contains(&d.heartbeat_timeout.as_millis()),
        "dataflow.heartbeat_timeout",
        format!("{:?}", d.heartbeat_timeout),
        "100ms to 60s",
    )?;
    require(
        d.epoch.as_millis() >= 1 && d.epoch <= d.stale_after,
        "dataflow.epoch",
        format!("{:?}", d.epoch),
        "at least 1ms and at most dataflow.stale_after",
    )?;
    require(
        d.window >= d.publish_interval,
        "dataflow.window",
        format!("{:?}", d.window),
        "at least dataflow.publish_interval",
    )?;
    require(
        d.mrc_window >= d.mrc_interval && d.mrc_interval >= d.epoch,
        "dataflow.mrc_window",
        format!("{:?}", d.mrc_window),
        "at least dataflow.mrc_interval, and that at least dataflow.epoch",
    )?;
    require(d.mrc_exact_blocks >= 1, "dataflow.mrc_exact_blocks", d.mrc_exact_blocks, "at least 1")?;
    require(d.mrc_sample_max >= 1, "dataflow.mrc_sample_max", d.mrc_sample_max, "at least 1")?;
    require(
        d.funnel_window >= d.epoch,
        "dataflow.funnel_window",
        format!("{:?}", d.funnel_window),
        "at least dataflow.epoch",
    )?;
    require(d.funnel_hashes_max >= 1, "dataflow.funnel_hashes_max", d.funnel_hashes_max, "at least 1")?;
    require(
        d.trend_period >= d.epoch,
        "dataflow.trend_period",
        format!("{:?}", d.trend_period),
        "at least dataflow.epoch",
    )?;
    // A season is a number per period and model, copied at each period's end.
    require(
        d.trend_season.as_micros() / d.trend_period.as_micros().max(1) <= 100_000,
        "dataflow.trend_season",
        format!("{:?}", d.trend_season),
        "at most 100000 dataflow.trend_period",
    )?;
    require(
        d.trend_horizon.as_micros() / d.trend_period.as_micros().max(1) <= 10_000,
        "dataflow.trend_horizon",
        format!("{:?}", d.trend_horizon),
        "at most 10000 dataflow.trend_period",
    )?;
    require(
        d.audit_interval.as_millis() >= 100,
        "dataflow.audit_interval",
        format!("{:?}", d.audit_interval),
        "at least 100ms",
    )?;
    require(config.sql.concurrent_max >= 1, "sql.concurrent_max", config.sql.concurrent_max, "at least 1")?;
    require(config.sql.rows_max >= 1, "sql.rows_max", config.sql.rows_max, "at least 1")?;
    require(
        config.server.listen.ip().is_loopback() || !config.server.keys.is_empty(),
        "server.listen",
        config.server.listen,
        "a loopback address, or server.keys set: anything but loopback requires keys",
    )?;
    require(
        config.server.flight_listen.ip().is_loopback(),
        "server.flight_listen",
        config.server.flight_listen,
        "a loopback address: workers publish here without a key",
    )?;
    variants::validate(&config.model.variants)?;
    models::validate(config)?;
    let tenants: Vec<String> = match config.server.keys.as_slice() {
        [] => vec![LOCAL_TENANT.into()],
        keys => keys.iter().map(|key| key.tenant.clone()).collect(),
    };
    config.policy.variants.validate(&models::variant_names(config), &tenants)?;
    crate::policy::validate(&config.policy)
}

/// One rule: `ok`, or an error that names the key, the value and what would be right.
pub(crate) fn require(
    ok: bool,
    key: &'static str,
    value: impl ToString,
    expected: impl Into<String>,
) -> Result<(), ConfigError> {
    if ok {
        Ok(())
    } else {
        Err(ConfigError::Invalid { key, value: value.to_string(), expected: format!("expected {}", expected.into()) })
    }
}
