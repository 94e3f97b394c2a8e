//! The Grafana dashboards of `dashboards/grafana`, made from one list of panels and from the saved queries.
//!
//! Pure: the same lists give the same files. A test writes them (`UPDATE=1`) or compares; nothing else makes them.

use serde_json::{Value, json};

/// Width of the grid.
const COLUMNS: usize = 24;
const PANEL_HEIGHT: usize = 8;

/// A panel over Prometheus.
pub struct Panel {
    pub title: &'static str,
    /// What the reader should know.
    pub about: &'static str,
    /// Grafana's name of the unit.
    pub unit: &'static str,
    /// Expressions with their legends.
    pub lines: &'static [(&'static str, &'static str)],
}

/// A dashboard over Prometheus.
pub struct Board {
    /// File and uid.
    pub name: &'static str,
    pub title: &'static str,
    pub panels: &'static [Panel],
}

const SERVERS: &str = "job=~\"$job\",instance=~\"$instance\"";

/// What is asked of Prometheus; `$s` stands for the servers chosen.
pub const BOARDS: [Board; 3] = [
    Board {
        name: "fleet",
        title: "Evenkeel: fleet",
        panels: &[
            Panel {
                title: "Requests by outcome",
                about: "Requests that ended, a second",
                unit: "reqps",
                lines: &[("sum by (outcome) (rate(evenkeel_requests_total{$s}[$__rate_interval]))", "{{outcome}}")],
            },
            Panel {
                title: "Refusals by reason",
                about: "Refused by policy, a second",
                unit: "reqps",
                lines: &[("sum by (reason) (rate(evenkeel_rejections_total{$s}[$__rate_interval]))", "{{reason}}")],
            },
            Panel {
                title: "Time to first token",
                about: "From arrival to the first token",
                unit: "s",
                lines: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(evenkeel_time_to_first_token_seconds_bucket{$s}[$__rate_interval])))",
                        "p50",
                    ),
                    (
                        "histogram_quantile(0.95, sum by (le) (rate(evenkeel_time_to_first_token_seconds_bucket{$s}[$__rate_interval])))",
                        "p95",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(evenkeel_time_to_first_token_seconds_bucket{$s}[$__rate_interval])))",
                        "p99",
                    ),
                ],
            },
            Panel {
                title: "Inter-token latency",
                about: "Between two tokens of a sequence",
                unit: "s",
                lines: &[
                    (
                        "histogram_quantile(0.5, sum by (le) (rate(evenkeel_inter_token_latency_seconds_bucket{$s}[$__rate_interval])))",
                        "p50",
                    ),
                    (
                        "histogram_quantile(0.95, sum by (le) (rate(evenkeel_inter_token_latency_seconds_bucket{$s}[$__rate_interval])))",
                        "p95",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le) (rate(evenkeel_inter_token_latency_seconds_bucket{$s}[$__rate_interval])))",
                        "p99",
                    ),
                ],
            },
            Panel {
                title: "Tokens",
                about: "Tokens a second: generated, prompts computed, prompts reused",
                unit: "short",
                lines: &[
                    ("sum(rate(evenkeel_generation_tokens_total{$s}[$__rate_interval]))", "generated"),
                    ("sum(rate(evenkeel_engine_prefill_tokens_total{$s}[$__rate_interval]))", "prompt, computed"),
                    ("sum(rate(evenkeel_engine_cached_prompt_tokens_total{$s}[$__rate_interval]))", "prompt, reused"),
                ],
            },
            Panel {
                title: "Deadlines missed or refused",
                about: "Share of requests by tier",
                unit: "percentunit",
                lines: &[(
                    "sum by (tier) (rate(evenkeel_deadlines_total{$s,outcome=~\"missed|refused\"}[$__rate_interval])) / sum by (tier) (rate(evenkeel_deadlines_total{$s}[$__rate_interval]))",
                    "{{tier}}",
                )],
            },
            Panel {
                title: "Saturation and its forecast",
                about: "1 is full; the forecast is that of now times the growth expected within the horizon",
                unit: "percentunit",
                lines: &[
                    ("evenkeel_saturation_ratio{$s}", "{{model}}"),
                    (
                        "evenkeel_saturation_ratio{$s} * on (job, instance, model) evenkeel_arrivals_forecast_high_per_second{$s} / on (job, instance, model) (evenkeel_arrivals_per_second{$s} > 0)",
                        "{{model}}, forecast",
                    ),
                ],
            },
            Panel {
                title: "Throttle step",
                about: "0 open, 1 shape batch, 2 throttle Low, 3 throttle Medium, 4 shrink, 5 throttle High",
                unit: "short",
                lines: &[("evenkeel_throttle_step{$s}", "{{model}}")],
            },
            Panel {
                title: "Queue",
                about: "Requests that wait for an instance",
                unit: "short",
                lines: &[("evenkeel_queue_requests{$s}", "{{model}}")],
            },
            Panel {
                title: "Wait in the queue",
                about: "One request in twenty waits longer",
                unit: "s",
                lines: &[(
                    "histogram_quantile(0.95, sum by (le) (rate(evenkeel_queue_wait_seconds_bucket{$s}[$__rate_interval])))",
                    "p95",
                )],
            },
            Panel {
                title: "Sequences by engine",
                about: "That run",
                unit: "short",
                lines: &[("evenkeel_engine_requests_running{$s}", "{{engine}}")],
            },
            Panel {
                title: "Tokens in flight by engine",
                about: "Leased by the gateway",
                unit: "short",
                lines: &[("evenkeel_leased_tokens{$s}", "{{engine}}")],
            },
        ],
    },
    Board {
        name: "cache",
        title: "Evenkeel: cache",
        panels: &[
            Panel {
                title: "Hit rate by layer of the funnel",
                about: "Share of prompt tokens that reached each layer; potential is the theoretical hit rate, delivered the actual one",
                unit: "percentunit",
                lines: &[(
                    "sum by (layer) (rate(evenkeel_funnel_tokens_total{$s,layer!=\"prompt\"}[5m])) / on () group_left () sum(rate(evenkeel_funnel_tokens_total{$s,layer=\"prompt\"}[5m]))",
                    "{{layer}}",
                )],
            },
            Panel {
                title: "Actual over theoretical",
                about: "Delivered over potential; 90 % is the bar",
                unit: "percentunit",
                lines: &[(
                    "sum by (model) (rate(evenkeel_funnel_tokens_total{$s,layer=\"delivered\"}[5m])) / sum by (model) (rate(evenkeel_funnel_tokens_total{$s,layer=\"potential\"}[5m]))",
                    "{{model}}",
                )],
            },
            Panel {
                title: "Tokens lost by reason",
                about: "Prompt tokens a second that did not reach a layer; never_seen is no loss that a cache could avoid",
                unit: "short",
                lines: &[(
                    "sum by (layer, reason) (rate(evenkeel_funnel_lost_tokens_total{$s,reason!=\"never_seen\"}[5m]))",
                    "{{layer}}: {{reason}}",
                )],
            },
            Panel {
                title: "Reuse by engine",
                about: "Share of prompt tokens whose KV the engine reused",
                unit: "percentunit",
                lines: &[(
                    "sum by (engine) (rate(evenkeel_engine_cached_prompt_tokens_total{$s}[5m])) / sum by (engine) (rate(evenkeel_engine_prompt_tokens_total{$s}[5m]))",
                    "{{engine}}",
                )],
            },
            Panel {
                title: "KV blocks in use",
                about: "Held by sequences, as a share of the pool",
                unit: "percentunit",
                lines: &[("evenkeel_engine_kv_blocks_used{$s} / evenkeel_engine_kv_blocks{$s}", "{{engine}}")],
            },
            Panel {
                title: "Preemptions and swaps",
                about: "Sequences interrupted, blocks copied, a second",
                unit: "short",
                lines: &[
                    (
                        "sum by (engine) (rate(evenkeel_engine_preemptions_total{$s}[$__rate_interval]))",
                        "{{engine}} preempted",
                    ),
                    (
                        "sum by (direction) (rate(evenkeel_engine_swapped_blocks_total{$s}[$__rate_interval]))",
                        "blocks {{direction}}",
                    ),
                ],
            },
            Panel {
                title: "Trust in the cache index",
                about: "Instances by how far their part can be trusted",
                unit: "short",
                lines: &[
                    ("evenkeel_cache_view_exact_instances{$s}", "exact"),
                    ("evenkeel_cache_view_approximate_instances{$s}", "approximate"),
                    ("evenkeel_cache_view_degraded_instances{$s}", "degraded"),
                ],
            },
            Panel {
                title: "Drift found by audits",
                about: "Largest share of differing blocks",
                unit: "percentunit",
                lines: &[("evenkeel_cache_view_drift_ratio{$s}", "{{instance}}")],
            },
        ],
    },
    Board {
        name: "health",
        title: "Evenkeel: health",
        panels: &[
            Panel {
                title: "Instances that take requests",
                about: "Ready, and all",
                unit: "short",
                lines: &[
                    ("evenkeel_ready_instances{$s}", "{{instance}} ready"),
                    ("count by (instance) (evenkeel_engine_up{$s})", "{{instance}} known"),
                ],
            },
            Panel {
                title: "Parts in a lesser mode",
                about: "docs/operations.md says what is done meanwhile",
                unit: "short",
                lines: &[("evenkeel_mode_degraded{$s}", "{{component}} {{subject}} {{mode}}")],
            },
            Panel {
                title: "Workers that died, sequences moved",
                about: "In five minutes",
                unit: "short",
                lines: &[
                    ("increase(evenkeel_worker_deaths_total{$s}[5m])", "{{instance}} deaths"),
                    ("increase(evenkeel_reroutes_total{$s}[5m])", "{{instance}} moved"),
                ],
            },
            Panel {
                title: "Faults",
                about: "In five minutes; the table faults has the words",
                unit: "short",
                lines: &[(
                    "sum by (component, kind) (increase(evenkeel_faults_total{$s}[5m]))",
                    "{{component}}: {{kind}}",
                )],
            },
            Panel {
                title: "Age of the views",
                about: "Above dataflow.stale_after policies take the safe branch",
                unit: "s",
                lines: &[("evenkeel_view_age_seconds{$s}", "{{instance}}")],
            },
            Panel {
                title: "Length of engine steps",
                about: "One step in a hundred is longer",
                unit: "s",
                lines: &[(
                    "histogram_quantile(0.99, sum by (kind, le) (rate(evenkeel_engine_step_duration_seconds_bucket{$s}[$__rate_interval])))",
                    "{{kind}} p99",
                )],
            },
            Panel {
                title: "Rows on the bus",
                about: "A second, by topic",
                unit: "short",
                lines: &[("sum by (topic) (rate(evenkeel_bus_rows_total{$s}[$__rate_interval])) > 0", "{{topic}}")],
            },
            Panel {
                title: "Rows lost or refused",
                about: "In five minutes",
                unit: "short",
                lines: &[
                    ("increase(evenkeel_bus_gap_batches_total{$s}[5m])", "batches that never came"),
                    ("increase(evenkeel_bus_rows_invalid_total{$s}[5m])", "rows that fit no topic"),
                    ("increase(evenkeel_refused_rows_total{$s}[5m])", "rows the dataflow refused"),
                    ("increase(evenkeel_log_rows_lost_total{$s}[5m])", "rows not in the log"),
                    ("increase(evenkeel_bus_watcher_lag_batches_total{$s}[5m])", "batches watchers skipped"),
                ],
            },
            Panel {
                title: "Log and disk",
                about: "Bytes",
                unit: "bytes",
                lines: &[
                    ("evenkeel_log_size_bytes{$s}", "{{instance}} log"),
                    ("evenkeel_disk_free_bytes{$s}", "{{instance}} free"),
                ],
            },
            Panel {
                title: "Speculation",
                about: "Share of guessed tokens that were right",
                unit: "percentunit",
                lines: &[(
                    "sum by (engine) (rate(evenkeel_engine_accepted_draft_tokens_total{$s}[5m])) / sum by (engine) (rate(evenkeel_engine_draft_tokens_total{$s}[5m]) > 0)",
                    "{{engine}}",
                )],
            },
        ],
    },
];

/// A saved query as a panel.
pub struct TableQuery {
    /// `<subject>/<name>`.
    pub name: String,
    pub question: String,
    pub units: String,
    /// With its parameters filled in.
    pub statement: String,
}

/// All files: name and content.
pub fn files(queries: &[TableQuery]) -> Vec<(String, Value)> {
    let mut files: Vec<(String, Value)> =
        BOARDS.iter().map(|board| (format!("{}.json", board.name), prometheus_board(board))).collect();
    if !queries.is_empty() {
        files.push(("tables.json".into(), tables_board(queries)));
    }
    files
}

fn place(at: usize, width: usize) -> Value {
    let each = COLUMNS / width;
    json!({"x": at % each * width, "y": at / each * PANEL_HEIGHT, "w": width, "h": PANEL_HEIGHT})
}

fn prometheus_board(board: &Board) -> Value {
    let source = json!({"type": "prometheus", "uid": "${DS_PROMETHEUS}"});
    let panel = |(at, panel): (usize, &Panel)| {
        let target = |(number, (expression, legend)): (usize, &(&str, &str))| {
            json!({
                "datasource": source, "expr": expression.replace("$s", SERVERS), "legendFormat": legend,
                "refId": char::from(b'A' + number as u8).to_string(),
            })
        };
        json!({
            "id": at + 1, "type": "timeseries", "title": panel.title, "description": panel.about, "datasource": source,
            "gridPos": place(at, COLUMNS / 2),
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"showPoints": "never", "spanNulls": true}}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}},
            "targets": panel.lines.iter().enumerate().map(target).collect::<Vec<_>>(),
        })
    };
    let choice = |name: &str, of: &str| {
        json!({
            "name": name, "type": "query", "datasource": source, "query": {"query": of, "refId": name}, "definition": of,
            "refresh": 2, "multi": true, "includeAll": true, "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        })
    };
    let variables = [
        choice("job", "label_values(evenkeel_build_info, job)"),
        choice("instance", "label_values(evenkeel_build_info{job=~\"$job\"}, instance)"),
    ];
    let input = json!({"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus", "pluginName": "Prometheus"});
    let panels: Vec<Value> = board.panels.iter().enumerate().map(panel).collect();
    dashboard((board.name, board.title), input, (panels, variables.to_vec()))
}

fn tables_board(queries: &[TableQuery]) -> Value {
    let source = json!({"type": "grafana-postgresql-datasource", "uid": "${DS_EVENKEEL}"});
    let (mut panels, mut subject, mut y) = (Vec::new(), "", 0);
    for query in queries {
        let of = query.name.split('/').next().unwrap_or_default();
        if of != subject {
            let row = json!({"x": 0, "y": y, "w": COLUMNS, "h": 1});
            panels.push(json!({"id": panels.len() + 1, "type": "row", "title": of, "collapsed": false, "gridPos": row, "panels": []}));
            (subject, y) = (of, y + 1);
        }
        panels.push(json!({
            "id": panels.len() + 1, "type": "table", "title": query.question, "datasource": source,
            "description": format!("{}. Units: {}", query.name, query.units),
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": PANEL_HEIGHT},
            "fieldConfig": {"defaults": {}, "overrides": []}, "options": {"showHeader": true},
            "targets": [{
                "datasource": source, "refId": "A", "format": "table", "rawQuery": true, "editorMode": "code",
                "rawSql": query.statement,
            }],
        }));
        y += PANEL_HEIGHT;
    }
    let input = json!({"name": "DS_EVENKEEL", "label": "Evenkeel's tables", "type": "datasource",
        "pluginId": "grafana-postgresql-datasource", "pluginName": "PostgreSQL"});
    dashboard(("tables", "Evenkeel: tables"), input, (panels, Vec::new()))
}

fn dashboard((name, title): (&str, &str), input: Value, (panels, variables): (Vec<Value>, Vec<Value>)) -> Value {
    json!({
        "__inputs": [input],
        "uid": format!("evenkeel-{name}"), "title": title, "tags": ["evenkeel"], "schemaVersion": 39, "version": 1,
        "editable": true, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "annotations": {"list": []}, "links": [{"title": "Evenkeel", "type": "dashboards", "tags": ["evenkeel"], "asDropdown": true}],
        "templating": {"list": variables}, "panels": panels,
    })
}
