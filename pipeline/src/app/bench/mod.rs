//! `evenkeel bench …`: each compares with a peer or the machine's limit in one run and ends with one line of JSON.
//!
//! | file | idea |
//! |---|---|
//! | `gateway` | what the gateway adds to a call of a worker, in time and CPU |
//! | `router` | the gateway in front of foreign workers, beside sglang-router and vllm-router |
//! | `dataflow` | events absorbed a second against a plain program; time from an event to the view |
//! | `cache_index` | memory of the cache index, and longest-prefix matches while it absorbs events |
//! | `decide` | time of a decision at 64 and 1,000 instances, beside a scan of all of them |
//! | `engine` | tokens a second against llama.cpp on the same file, and against the machine's limits |
//! | `buckets` | what length buckets buy on a recorded trace, with a modelled fleet |
//! | `mrc` | the miss-ratio curve of a trace, beside a direct simulation of LRU caches |
//! | `overload` | goodput from half to twice of what the fleet carries, with deadlines and without |
//! | `sql` | GROUP BY beside DuckDB, a small query beside DataFusion, requests beside heavy queries |
//! | `figures` | medians, percentiles, CPU time of a process |
//!
//! Invariant: both sides of a ratio are measured in turns in the same run. Figures carry their unit in their name.
//! Cost and state: a bench keeps one number per request or event measured. Nothing here is used by serving code.

mod buckets;
mod cache_index;
mod dataflow;
mod decide;
pub(super) mod engine;
mod figures;
mod gateway;
mod mrc;
mod overload;
mod router;
mod sql;

use clap::Subcommand;

#[derive(Subcommand)]
pub enum Bench {
    /// Latency and CPU that the gateway adds to calling a worker directly
    Gateway(gateway::GatewayOptions),
    /// Requests a second, latency and CPU in front of foreign workers, beside other routers
    Router(router::RouterOptions),
    /// One of the workers behind the routers, started by `router`
    #[command(hide = true)]
    RouterWorker(router::WorkerOptions),
    /// The relay beside the routers, started by `router`
    #[command(hide = true)]
    RouterRelay(router::RelayOptions),
    /// Events a second that bus and dataflow absorb, and the time from an event to the view
    Dataflow(dataflow::DataflowOptions),
    /// Goodput while the load steps to twice the capacity, with deadlines and without
    Overload(overload::OverloadOptions),
    /// Imbalance and time to first token of a modelled fleet on a recorded trace, with length buckets and without
    Buckets(buckets::BucketsOptions),
    /// Hit rate by cache capacity of a recorded trace, beside simulated LRU caches
    Mrc(mrc::MrcOptions),
    /// GROUP BY over live rows beside DuckDB, a small query beside DataFusion, and requests while heavy queries run
    Sql(sql::SqlOptions),
    /// Memory of the cache index, and the time of a longest-prefix match while it absorbs events
    CacheIndex(cache_index::CacheIndexOptions),
    /// Time of a decision (admission and routing), beside a scan of all instances
    Decide(decide::DecideOptions),
    /// One side of `cache-index`, started by it
    #[command(hide = true)]
    CacheIndexSide(cache_index::SideOptions),
    /// Tokens a second of the engine, beside llama.cpp on the same file
    Engine(engine::EngineOptions),
    /// Our side of `engine`, started by it
    #[command(hide = true)]
    EngineSide(engine::SideOptions),
    /// The peer's side of `engine`, started by it
    #[command(hide = true)]
    PeerSide(engine::PeerSideOptions),
}

/// Measures and prints; the last line on stdout is one JSON object.
pub fn run(bench: Bench) -> anyhow::Result<()> {
    match bench {
        Bench::Gateway(options) => gateway::run(options),
        Bench::Router(options) => router::run(&options),
        Bench::RouterWorker(options) => router::run_worker(&options),
        Bench::RouterRelay(options) => router::run_relay(&options),
        Bench::Dataflow(options) => dataflow::run(options),
        Bench::Overload(options) => overload::run(options),
        Bench::Buckets(options) => buckets::run(&options),
        Bench::Mrc(options) => mrc::run(&options),
        Bench::Sql(options) => sql::run(&options),
        Bench::CacheIndex(options) => cache_index::run(options),
        Bench::CacheIndexSide(options) => cache_index::run_side(&options),
        Bench::Decide(options) => decide::run(&options),
        Bench::Engine(options) => engine::run(options),
        Bench::EngineSide(options) => engine::answer(&options),
        Bench::PeerSide(options) => engine::become_peer(options),
    }
}
