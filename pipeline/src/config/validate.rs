//! The checks that types cannot make, section by section. Each names the key, the value and what would be right.

use std::{ops::RangeInclusive, time::Duration};

use bytesize::ByteSize;

use super::{
    Bus, Config, ConfigError, Dataflow, Key, LOCAL_TENANT, Listen, Server, Speculation, Sql, Tracing, Workers, models,
    variants,
};

/// Most sessions of the PostgreSQL wire, and of Flight SQL, that may be allowed.
const DOOR_CONNECTIONS_MAX: usize = 10_000;

/// Most rows that there may be room for on their way into the bus: each takes two KiB at most, and an Arrow column less than 2 GiB.
pub const QUEUE_ROWS_MAX: usize = (1 << 20) - 1;

/// How long a process of the dataflow may be silent, at least and at most.
pub const HEARTBEAT_TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);

/// Address space that the process for SQL needs besides the operators' memory and its threads' stacks.
const SQL_WORKER_ROOM: u64 = 512 << 20;

pub(super) fn validate(config: &Config) -> Result<(), ConfigError> {
    config.foreign.validate()?;
    fleet(config)?;
    workers(&config.workers)?;
    bus(&config.bus)?;
    dataflow(&config.dataflow)?;
    tracing(&config.tracing)?;
    sql(&config.sql)?;
    sql_of_keys(config)?;
    server(&config.server)?;
    variants::validate(&config.model.variants)?;
    models::validate(config)?;
    let tenants: Vec<String> = match config.server.keys.as_slice() {
        [] => vec![LOCAL_TENANT.into()],
        keys => keys.iter().map(|key| key.tenant.clone()).collect(),
    };
    config.policy.variants.validate(&models::variant_names(config), &tenants)?;
    crate::policy::validate(&config.policy)
}

/// Somebody serves something.
fn fleet(config: &Config) -> Result<(), ConfigError> {
    let count = config.workers.count;
    let least = if config.foreign.workers.is_empty() { 1 } else { 0 };
    require(
        (least..=256).contains(&count),
        "workers.count",
        count,
        "1 to 256, or 0 with foreign.workers, which then serve alone",
    )?;
    require(
        count == 0 || !config.models.is_empty() || !config.model.name.is_empty(),
        "model.name",
        "empty",
        "a model, since workers.count is not 0",
    )?;
    require(
        count > 0 || config.models.is_empty(),
        "workers.count",
        count,
        "at least 1 with [[models]], which are served by workers of our own",
    )
}

fn workers(w: &Workers) -> Result<(), ConfigError> {
    require(w.threads >= 1 && w.threads <= 1024, "workers.threads", w.threads, "1 to 1024")?;
    require(
        (16..=64).contains(&w.block_size) && w.block_size.is_power_of_two(),
        "workers.block_size",
        w.block_size,
        "16, 32 or 64",
    )?;
    require(w.token_budget >= w.block_size, "workers.token_budget", w.token_budget, "at least workers.block_size")?;
    at_least_one(w.running_max, "workers.running_max")?;
    require(
        w.running_max <= w.token_budget,
        "workers.running_max",
        w.running_max,
        "at most workers.token_budget, since each running sequence takes a token of it",
    )?;
    require((1..=16).contains(&w.draft_tokens_max), "workers.draft_tokens_max", w.draft_tokens_max, "1 to 16")?;
    at_least_one(w.verify_interval, "workers.verify_interval")?;
    require(
        w.speculation != Speculation::Draft || !w.draft_model.is_empty(),
        "workers.draft_model",
        "empty",
        "the path of a .gguf file, since workers.speculation is \"draft\"",
    )?;
    at_least_one(w.waiting_max, "workers.waiting_max")?;
    above_zero(w.start_timeout, "workers.start_timeout")?;
    above_zero(w.restart_backoff, "workers.restart_backoff")?;
    above_zero(w.health_interval, "workers.health_interval")?;
    above_zero(w.health_timeout, "workers.health_timeout")
}

fn bus(bus: &Bus) -> Result<(), ConfigError> {
    at_least_one(bus.flush_rows, "bus.flush_rows")?;
    let is_room = (bus.flush_rows..=QUEUE_ROWS_MAX).contains(&bus.queue_rows);
    let range = format!("at least bus.flush_rows and at most {QUEUE_ROWS_MAX}");
    require(is_room, "bus.queue_rows", bus.queue_rows, range)?;
    above_zero(bus.flush_interval, "bus.flush_interval")?;
    at_least_one(bus.subscriber_batches, "bus.subscriber_batches")?;
    at_least_one(bus.live_rows, "bus.live_rows")
}

fn dataflow(d: &Dataflow) -> Result<(), ConfigError> {
    let span =
        |ok: bool, key: &'static str, value: Duration, expected: &str| require(ok, key, format!("{value:?}"), expected);
    require((1..=64).contains(&d.workers), "dataflow.workers", d.workers, "1 to 64")?;
    require((1..=64).contains(&d.processes), "dataflow.processes", d.processes, "1 to 64")?;
    let is_patience = HEARTBEAT_TIMEOUTS.contains(&d.heartbeat_timeout);
    span(is_patience, "dataflow.heartbeat_timeout", d.heartbeat_timeout, "100ms to 60s")?;
    let is_epoch = d.epoch.as_millis() >= 1 && d.epoch <= d.stale_after;
    span(is_epoch, "dataflow.epoch", d.epoch, "at least 1ms and at most dataflow.stale_after")?;
    above_zero(d.publish_interval, "dataflow.publish_interval")?;
    above_zero(d.silent_after, "dataflow.silent_after")?;
    span(d.window >= d.publish_interval, "dataflow.window", d.window, "at least dataflow.publish_interval")?;
    span(d.mrc_interval >= d.epoch, "dataflow.mrc_interval", d.mrc_interval, "at least dataflow.epoch")?;
    span(d.mrc_window >= d.mrc_interval, "dataflow.mrc_window", d.mrc_window, "at least dataflow.mrc_interval")?;
    require(d.mrc_exact_blocks >= 1, "dataflow.mrc_exact_blocks", d.mrc_exact_blocks, "at least 1")?;
    at_least_one(d.mrc_sample_max, "dataflow.mrc_sample_max")?;
    span(d.funnel_window >= d.epoch, "dataflow.funnel_window", d.funnel_window, "at least dataflow.epoch")?;
    at_least_one(d.funnel_hashes_max, "dataflow.funnel_hashes_max")?;
    at_least_one(d.open_requests_max, "dataflow.open_requests_max")?;
    at_least_one(d.cache_entries_max, "dataflow.cache_entries_max")?;
    span(d.trend_period >= d.epoch, "dataflow.trend_period", d.trend_period, "at least dataflow.epoch")?;
    let periods = |span: Duration| span.as_micros() / d.trend_period.as_micros().max(1);
    // A season is a number per period and model, copied at each period's end.
    let is_season = periods(d.trend_season) <= 100_000;
    span(is_season, "dataflow.trend_season", d.trend_season, "at most 100000 dataflow.trend_period")?;
    let is_horizon = periods(d.trend_horizon) <= 10_000;
    span(is_horizon, "dataflow.trend_horizon", d.trend_horizon, "at most 10000 dataflow.trend_period")?;
    span(d.audit_interval.as_millis() >= 100, "dataflow.audit_interval", d.audit_interval, "at least 100ms")
}

fn tracing(tracing: &Tracing) -> Result<(), ConfigError> {
    let endpoint = &tracing.otlp_endpoint;
    require(
        endpoint.is_empty() || endpoint.starts_with("http://"),
        "tracing.otlp_endpoint",
        endpoint,
        "nothing, or the address of an OTLP collector's gRPC as in http://127.0.0.1:4317",
    )?;
    let ratio = tracing.sample_ratio;
    require((0.0..=1.0).contains(&ratio), "tracing.sample_ratio", ratio, "0 to 1")?;
    let queue_max = tracing.queue_max;
    require((1..=1_000_000).contains(&queue_max), "tracing.queue_max", queue_max, "1 to 1000000")?;
    above_zero(tracing.export_timeout, "tracing.export_timeout")
}

fn sql(sql: &Sql) -> Result<(), ConfigError> {
    above_zero(sql.timeout, "sql.timeout")?;
    require((1..=256).contains(&sql.concurrent_max), "sql.concurrent_max", sql.concurrent_max, "1 to 256")?;
    at_least_one(sql.rows_max, "sql.rows_max")?;
    let stacks = (sql.worker_threads() + sql.light_threads()) as u64 * queries::sql::STACK_BYTES as u64;
    let least = sql.memory_max.as_u64() + stacks + SQL_WORKER_ROOM;
    require(
        sql.worker_memory.as_u64() >= least,
        "sql.worker_memory",
        sql.worker_memory,
        format!(
            "at least {}: sql.memory_max, the stacks of its threads, and 512MiB for code and tables",
            ByteSize(least)
        ),
    )?;
    require(sql.niceness <= 19, "sql.niceness", sql.niceness, "0 to 19")
}

/// Limits of a key's SQL are narrower than those of everybody, or they would say what does not hold.
fn sql_of_keys(config: &Config) -> Result<(), ConfigError> {
    let sql = &config.sql;
    for key in &config.server.keys {
        let own = &key.sql;
        require(
            own.timeout.is_none_or(|own| !own.is_zero() && own <= sql.timeout),
            "server.keys.sql.timeout",
            format!("{:?}", own.timeout.unwrap_or_default()),
            format!("more than 0s and at most sql.timeout, {:?}", sql.timeout),
        )?;
        require(
            own.memory_max.is_none_or(|own| own.as_u64() > 0 && own <= sql.share()),
            "server.keys.sql.memory_max",
            own.memory_max.unwrap_or_default(),
            format!("more than 0B and at most sql.memory_max / sql.concurrent_max, {}", sql.share()),
        )?;
        require(
            own.rows_max.is_none_or(|own| (1..=sql.rows_max).contains(&own)),
            "server.keys.sql.rows_max",
            own.rows_max.unwrap_or_default(),
            format!("1 to sql.rows_max, {}", sql.rows_max),
        )?;
        require(
            own.concurrent_max.is_none_or(|own| own >= 1),
            "server.keys.sql.concurrent_max",
            own.concurrent_max.unwrap_or_default(),
            "at least 1",
        )?;
    }
    Ok(())
}

fn server(server: &Server) -> Result<(), ConfigError> {
    above_zero(server.header_timeout, "server.header_timeout")?;
    above_zero(server.request_timeout, "server.request_timeout")?;
    above_zero(server.pg_idle_timeout, "server.pg_idle_timeout")?;
    at_least_one(server.connections_max, "server.connections_max")?;
    for (place, Key { key, tenant, .. }) in server.keys.iter().enumerate() {
        // A key is a secret: it is not shown.
        let value = format!("(hidden, of tenant {tenant:?})");
        let is_key = !key.is_empty() && key.trim() == key;
        require(is_key, "server.keys.key", &value, "at least one character, and no space around it")?;
        let is_first = server.keys[..place].iter().all(|other| other.key != *key);
        require(is_first, "server.keys.key", &value, "each key once: it stands for one tenant")?;
        require(!tenant.is_empty(), "server.keys.tenant", "empty", "the name of who has the key")?;
    }
    require(
        server.listen.ip().is_loopback() || !server.keys.is_empty(),
        "server.listen",
        server.listen,
        "a loopback address, or server.keys set: anything but loopback requires keys",
    )?;
    let guarded = "a loopback address, or server.keys set: anything but loopback requires keys";
    require(
        server.flight_listen.ip().is_loopback() || !server.keys.is_empty(),
        "server.flight_listen",
        server.flight_listen,
        guarded,
    )?;
    for (connections, key) in [
        (server.pg_connections_max, "server.pg_connections_max"),
        (server.flight_connections_max, "server.flight_connections_max"),
    ] {
        at_least_one(connections, key)?;
        let most = format!("at most {DOOR_CONNECTIONS_MAX}");
        require(connections <= DOOR_CONNECTIONS_MAX, key, connections, most)?;
    }
    let (cert, key) = (server.pg_tls_cert.as_os_str(), server.pg_tls_key.as_os_str());
    let both = "server.pg_tls_cert and server.pg_tls_key together, or neither";
    require(cert.is_empty() == key.is_empty(), "server.pg_tls_key", format!("{key:?}"), both)?;
    match server.pg_listen {
        Listen::Off => Ok(()),
        Listen::On(address) => {
            let is_fine = address.ip().is_loopback() || !server.keys.is_empty();
            require(is_fine, "server.pg_listen", address, guarded)
        }
    }
}

fn at_least_one(count: usize, key: &'static str) -> Result<(), ConfigError> {
    require(count >= 1, key, count, "at least 1")
}

/// A timer of no length would never rest, and a patience of none would wait for nobody.
fn above_zero(span: Duration, key: &'static str) -> Result<(), ConfigError> {
    require(!span.is_zero(), key, format!("{span:?}"), "more than 0")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{KeySql, Overrides, load},
        policy::Tier,
    };

    /// Scenario: one wrong value in each section, and at each of the timers that would never rest.
    /// Guarantees: the configuration is refused with the key, the value and what would be right; a key is never shown.
    #[test]
    fn wrong_values_are_named() {
        let refusal = |change: fn(&mut Config)| {
            let mut config = load(None, Overrides::default()).expect("the defaults are valid");
            change(&mut config);
            validate(&config).expect_err("a wrong value").to_string()
        };
        let lines = [
            refusal(|config| config.workers.threads = 0),
            refusal(|config| config.workers.block_size = 48),
            refusal(|config| config.workers.running_max = 513),
            refusal(|config| config.workers.speculation = Speculation::Draft),
            refusal(|config| config.workers.restart_backoff = Duration::ZERO),
            refusal(|config| config.workers.health_interval = Duration::ZERO),
            refusal(|config| config.bus.queue_rows = 1023),
            refusal(|config| config.bus.live_rows = 0),
            refusal(|config| config.dataflow.heartbeat_timeout = Duration::from_secs(61)),
            refusal(|config| config.dataflow.epoch = Duration::from_secs(3)),
            refusal(|config| config.dataflow.publish_interval = Duration::ZERO),
            refusal(|config| config.dataflow.mrc_interval = Duration::from_millis(99)),
            refusal(|config| config.dataflow.mrc_window = Duration::from_secs(9)),
            refusal(|config| config.dataflow.trend_season = Duration::from_secs(1_000_010)),
            refusal(|config| config.tracing.otlp_endpoint = "127.0.0.1:4317".into()),
            refusal(|config| config.tracing.sample_ratio = f64::NAN),
            refusal(|config| config.tracing.queue_max = 0),
            refusal(|config| config.sql.rows_max = 0),
            refusal(|config| config.sql.worker_memory = ByteSize::gib(1)),
            refusal(|config| config.sql.niceness = 20),
            refusal(|config| config.server.request_timeout = Duration::ZERO),
            refusal(|config| config.server.listen = ([0, 0, 0, 0], 8080).into()),
            refusal(|config| config.server.flight_listen = ([0, 0, 0, 0], 8815).into()),
            refusal(|config| config.server.pg_listen = Listen::On(([0, 0, 0, 0], 5454).into())),
            refusal(|config| config.server.pg_connections_max = 0),
            refusal(|config| config.server.flight_connections_max = 10_001),
            refusal(|config| config.server.pg_tls_cert = "cert.pem".into()),
        ];
        expect_test::expect![[r#"
            workers.threads = 0: expected 1 to 1024
            workers.block_size = 48: expected 16, 32 or 64
            workers.running_max = 513: expected at most workers.token_budget, since each running sequence takes a token of it
            workers.draft_model = empty: expected the path of a .gguf file, since workers.speculation is "draft"
            workers.restart_backoff = 0ns: expected more than 0
            workers.health_interval = 0ns: expected more than 0
            bus.queue_rows = 1023: expected at least bus.flush_rows and at most 1048575
            bus.live_rows = 0: expected at least 1
            dataflow.heartbeat_timeout = 61s: expected 100ms to 60s
            dataflow.epoch = 3s: expected at least 1ms and at most dataflow.stale_after
            dataflow.publish_interval = 0ns: expected more than 0
            dataflow.mrc_interval = 99ms: expected at least dataflow.epoch
            dataflow.mrc_window = 9s: expected at least dataflow.mrc_interval
            dataflow.trend_season = 1000010s: expected at most 100000 dataflow.trend_period
            tracing.otlp_endpoint = 127.0.0.1:4317: expected nothing, or the address of an OTLP collector's gRPC as in http://127.0.0.1:4317
            tracing.sample_ratio = NaN: expected 0 to 1
            tracing.queue_max = 0: expected 1 to 1000000
            sql.rows_max = 0: expected at least 1
            sql.worker_memory = 1.0 GiB: expected at least 1.8 GiB: sql.memory_max, the stacks of its threads, and 512MiB for code and tables
            sql.niceness = 20: expected 0 to 19
            server.request_timeout = 0ns: expected more than 0
            server.listen = 0.0.0.0:8080: expected a loopback address, or server.keys set: anything but loopback requires keys
            server.flight_listen = 0.0.0.0:8815: expected a loopback address, or server.keys set: anything but loopback requires keys
            server.pg_listen = 0.0.0.0:5454: expected a loopback address, or server.keys set: anything but loopback requires keys
            server.pg_connections_max = 0: expected at least 1
            server.flight_connections_max = 10001: expected at most 10000
            server.pg_tls_key = "": expected server.pg_tls_cert and server.pg_tls_key together, or neither"#]]
        .assert_eq(&lines.join("\n"));
        let narrower = |change: fn(&mut KeySql)| {
            let mut config = load(None, Overrides::default()).expect("the defaults are valid");
            let mut key = Key::new("secret", "ann", Tier::High);
            change(&mut key.sql);
            config.server.keys = vec![key];
            validate(&config).expect_err("a wrong value").to_string()
        };
        let lines = [
            narrower(|own| own.timeout = Some(Duration::from_secs(11))),
            narrower(|own| own.memory_max = Some(ByteSize::mib(129))),
            narrower(|own| own.rows_max = Some(0)),
            narrower(|own| own.concurrent_max = Some(0)),
        ];
        expect_test::expect![[r#"
            server.keys.sql.timeout = 11s: expected more than 0s and at most sql.timeout, 10s
            server.keys.sql.memory_max = 129.0 MiB: expected more than 0B and at most sql.memory_max / sql.concurrent_max, 128.0 MiB
            server.keys.sql.rows_max = 0: expected 1 to sql.rows_max, 100000
            server.keys.sql.concurrent_max = 0: expected at least 1"#]]
        .assert_eq(&lines.join("\n"));
        let of_keys = |list: &[(&str, &str)]| {
            let mut config = load(None, Overrides::default()).expect("the defaults are valid");
            config.server.keys = list.iter().map(|(key, tenant)| Key::new(key, tenant, Tier::High)).collect();
            validate(&config).map_err(|error| error.to_string())
        };
        assert_eq!(of_keys(&[("secret-1", "ann"), ("secret-2", "ann")]), Ok(()));
        let lines = [
            of_keys(&[("secret-1", "ann"), ("secret-1", "bob")]),
            of_keys(&[("", "ann")]),
            of_keys(&[("secret-1 ", "ann")]),
            of_keys(&[("secret-1", "")]),
        ]
        .map(|refused| refused.expect_err("wrong keys"));
        expect_test::expect![[r#"
            server.keys.key = (hidden, of tenant "bob"): expected each key once: it stands for one tenant
            server.keys.key = (hidden, of tenant "ann"): expected at least one character, and no space around it
            server.keys.key = (hidden, of tenant "ann"): expected at least one character, and no space around it
            server.keys.tenant = empty: expected the name of who has the key"#]]
        .assert_eq(&lines.join("\n"));
    }
}
