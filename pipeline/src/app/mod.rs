//! The application: parts put together into the commands of `evenkeel`.
//!
//! | file | idea |
//! |---|---|
//! | `cli`, `examples` | the command line, and what its help ends with |
//! | `serve` | gateway, bus, dataflow and supervised workers in one process; start and stop in order |
//! | `loaded` | the models to be served, with their text sides |
//! | `glue` | the bus and the views behind the small traits of gateway and workers |
//! | `text` | tokenizer and chat template of the model served |
//! | `http` | connections: limits, slow clients, graceful end |
//! | `sql_routes`, `snapshot_routes` | `POST /sql`, `/snapshots` |
//! | `query_worker` | SQL from outside in a process of its own: bounds, feed, restarts |
//! | `postgres` | the PostgreSQL wire: psql, Grafana, JDBC |
//! | `flight_sql` | Arrow Flight SQL, beside workers' telemetry |
//! | `snapshots` | snapshots written when asked and when due, and deleted when their time is over |
//! | `explain` | `GET /v1/requests/{id}/explain`: why a request went as it did |
//! | `shadow` | policies on the live stream that decide and do not act |
//! | `traces` | spans of requests for an OTLP collector |
//! | `live`, `page` | the stream behind the page, and the page |
//! | `bucket_planner`, `plan_book`, `capacity_file` | bucket plans: cut from the live load, in force, and what they are weighed by |
//! | `modes` | in which mode each part works, as rows and metrics |
//! | `plant_metrics`, `engine_metrics`, `row_metrics` | metrics of bus, log and dataflow; of engines; sums of rows |
//! | `view_reports` | refused rows and what the cache index says of itself, as rows |
//! | `top` | `evenkeel top`: the fleet on a terminal, live |
//! | `doctor` | `evenkeel doctor`: is this machine ready to serve |
//! | `remote` | a running server as the tools see it |
//! | `prompt` | `evenkeel sql`: a query, a script or a prompt |
//! | `offline`, `saved_cli` | `evenkeel sql` of a snapshot, without a server; saved queries by name |
//! | `snapshot_cli` | `evenkeel snapshot` |
//! | `bench` | `evenkeel bench …` |
//! | `calibrate` | `evenkeel calibrate`: the capacity of an instance by length of request |
//! | `cpu_time` | how long a process has computed |
//! | `driver` | an engine driven by its steps, for both |
//! | `quality` | `evenkeel models quality`: what precision costs in quality, variant by variant |
//! | `table_file` | measured rows as a Parquet file |
//!
//! The only module that reads the wall clock for others and starts runtimes: HTTP, text, queries and event ingestion each
//! have one of their own (DESIGN §7 rule 9).

pub mod bench;
mod bucket_planner;
mod calibrate;
mod capacity_file;
pub mod cli;
mod cpu_time;
mod doctor;
mod driver;
mod engine_metrics;
mod examples;
pub mod explain;
mod flight_sql;
pub mod glue;
pub mod http;
pub mod live;
mod loaded;
mod modes;
mod offline;
pub mod page;
mod plan_book;
mod plant_metrics;
mod postgres;
pub mod prompt;
mod quality;
pub mod query_worker;
pub mod remote;
mod row_metrics;
mod saved_cli;
pub mod serve;
pub mod shadow;
mod snapshot_cli;
pub mod snapshot_routes;
pub mod snapshots;
pub mod sql_routes;
mod table_file;
pub mod text;
mod top;
pub mod traces;
mod view_reports;
