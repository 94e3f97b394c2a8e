//! `evenkeel serve`: gateway, bus, dataflow, policies and supervised workers in one process (DESIGN §6).
//!
//! Start: data folder and log → bus → dataflow → ports → process for SQL → Flight and PostgreSQL doors → workers → HTTP. Ports are
//! taken before workers are started, so that a busy port costs nothing. End, on SIGINT or SIGTERM: the Flight and PostgreSQL doors
//! end, HTTP drains → process for SQL → workers drain → bus → dataflow.

use std::{io::Write, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use axum::{Router, extract::DefaultBodyLimit};
use futures::future::join_all;
use queries::{LiveTables, SqlAnswers, SqlEngine, Topic, query_runtime};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use tower_http::cors::{self, AllowOrigin, CorsLayer};

use super::{
    bucket_planner, engine_metrics,
    explain::{self, ExplainDoor},
    flight_sql::{self, FlightDoor},
    glue::{BusSink, Views, WallClock},
    http, live,
    loaded::Loaded,
    modes, page,
    postgres::{self, PgDoor},
    query_worker::{Keeper, KeeperSetup, QueryWorkerOptions},
    row_metrics,
    shadow::{self, Outlet, ShadowSink, Told},
    snapshot_routes::{self, SnapshotDoor},
    snapshots::{Snapshots, Sources},
    sql_routes::{self, SqlDoor},
    traces, view_reports,
};
use crate::{
    bus::{Bus, BusGuard, Clock as BusClock, LogWriter},
    config::{Config, Listen, Mode, Recorded},
    dataflow::{
        Dataflow, FlowViews, PredictorSpan, funnel_rows, horizon_periods, predictor_rows, trend_epochs, view_rows,
    },
    gateway::{
        Gateway, auth::Keys, deps, deps::Clock as _, deps::EventSink as _, foreign::ForeignModels,
        instances::InstanceDirectory, metrics::Metrics, registry::Registry, routes, with_fallbacks,
    },
    ids::Micros,
    rows::{FaultRow, Row},
    worker::{
        child::WorkerCommand,
        foreign::{ForeignKeepers, ForeignPlant},
        supervisor::{Supervisor, SupervisorConfig},
    },
};

/// How long the last spans may take at the end.
const SPANS_WAIT: Duration = Duration::from_secs(2);
/// Threads for the server's own statements, which are few and short.
const OWN_SQL_THREADS: usize = 2;
/// Threads that encode answers to outside statements: while one is at a large answer, the other serves the rest.
const SQL_DOOR_THREADS: usize = 2;

/// Runs until a signal.
pub fn run(config: Config) -> anyhow::Result<()> {
    let config = Arc::new(config);
    let models = Loaded::all(&config)?;
    let main = Builder::new_multi_thread().thread_name("http").enable_all().build()?;
    let ingest = Builder::new_multi_thread().worker_threads(1).thread_name("ingest").enable_all().build()?;
    let text_jobs = Builder::new_multi_thread().worker_threads(1).thread_name("text").build()?;
    let own_sql = query_runtime(OWN_SQL_THREADS)?;
    let sql =
        Builder::new_multi_thread().worker_threads(SQL_DOOR_THREADS).thread_name("sql-door").enable_all().build()?;
    let runtimes = Runtimes { main, ingest, text_jobs, own_sql, sql };
    let result = serve(&config, models, &runtimes);
    for runtime in [runtimes.main, runtimes.ingest, runtimes.text_jobs, runtimes.own_sql, runtimes.sql] {
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
    result
}

struct Runtimes {
    main: Runtime,
    ingest: Runtime,
    text_jobs: Runtime,
    /// The server's own statements.
    own_sql: Runtime,
    /// What goes to and comes from the process for SQL, and the Flight and PostgreSQL doors, which encode large answers.
    sql: Runtime,
}

/// Rows of a topic that this process has in memory where there is a log: what it asks itself about is recent, and the process for
/// SQL has `bus.live_rows`. Memory that is used over and over costs less than memory that grows.
const OWN_ROWS: usize = 65_536;

/// What is measured and kept: bus, log, tables, dataflow.
struct Plant {
    bus: Bus,
    guard: BusGuard,
    tables: Arc<LiveTables>,
    flow: Option<Dataflow>,
    views: Arc<Views>,
    directory: Arc<InstanceDirectory>,
}

impl Plant {
    fn start(config: &Config) -> anyhow::Result<Self> {
        let log = match config.log.mode {
            Mode::On => Some(LogWriter::open(&config.server.data_dir, &config.log)?),
            Mode::Off => None,
        };
        let rows_max = if log.is_some() { config.bus.live_rows.min(OWN_ROWS) } else { config.bus.live_rows };
        let tables = Arc::new(LiveTables::new(rows_max));
        let clock: BusClock = Arc::new(|| WallClock.now());
        let reader = log.as_ref().map(LogWriter::reader);
        let (bus, guard) = Bus::start(&config.bus, log, tables.clone(), clock.clone())?;
        let flow = match config.dataflow.mode {
            Mode::On => Some(Dataflow::start(&config.dataflow, &bus, (reader, clock))?),
            Mode::Off => None,
        };
        let directory = Arc::new(InstanceDirectory::default());
        let views = Arc::new(Views {
            directory: directory.clone(),
            flow: flow.as_ref().map(Dataflow::views),
            plans: Arc::default(),
            stale_after_us: config.dataflow.stale_after.as_micros() as Micros,
            silent_after_us: config.dataflow.silent_after.as_micros() as Micros,
        });
        Ok(Self { bus, guard, tables, flow, views, directory })
    }

    /// The bus ends first, which ends the dataflow's subscription. Blocks.
    fn stop(self) {
        self.guard.stop();
        if let Some(flow) = self.flow {
            flow.join();
        }
    }
}

fn serve(config: &Arc<Config>, models: Vec<Loaded>, runtimes: &Runtimes) -> anyhow::Result<()> {
    let plant = Plant::start(config)?;
    let served = runtimes.main.block_on(doors(config, models, &plant, runtimes));
    plant.stop();
    served
}

/// Everything between taking the ports and having drained.
async fn doors(config: &Arc<Config>, models: Vec<Loaded>, plant: &Plant, runtimes: &Runtimes) -> anyhow::Result<()> {
    let listener = http::listen("server.listen", config.server.listen).await?;
    let flight = http::listen("server.flight_listen", config.server.flight_listen).await?;
    let (address, flight_address) = (listener.local_addr()?, flight.local_addr()?);
    let stop = CancellationToken::new();
    let pg = match config.server.pg_listen {
        Listen::On(address) => Some(http::listen("server.pg_listen", address).await?),
        Listen::Off => None,
    };
    let pg_address = pg.as_ref().map(TcpListener::local_addr).transpose()?;
    let sql = keep_sql(config, plant, runtimes)?;
    let telemetry = Arc::new(BusSink(plant.bus.clone()));
    let (keys, bounds) = (Keys::new(&config.server.keys), flight_sql::Bounds::of(config));
    let ingest = runtimes.ingest.handle().clone();
    let door = FlightDoor { answers: sql.answers(), keys, telemetry, ingest, bounds };
    serve_on(&runtimes.sql, flight, |flight| flight_sql::serve(flight, door, stop.clone()))?;
    if let Some(pg) = pg {
        let door = Arc::new(PgDoor::new(&config.server, sql.answers())?);
        serve_on(&runtimes.sql, pg, |pg| postgres::serve(pg, door, stop.clone()))?;
    }

    // Without workers of our own, a model file counts the tokens of others.
    let (models, counting) =
        if config.workers.count > 0 { (models, None) } else { (Vec::new(), models.first().map(Loaded::text)) };
    let names: Vec<&str> = models.iter().map(|loaded| loaded.model.name.as_str()).collect();
    let recorded = Recorded::of(config, &names, config.workers.block_size);
    let families = models.iter().map(|loaded| (loaded.model.name.clone(), loaded.text.family().to_string())).collect();
    BusSink(plant.bus.clone()).settings(recorded.row(WallClock.now())).await;
    let (deps, metrics, spans) = gateway_deps(config, (&models, &recorded), plant, runtimes)?;
    let foreign = match config.foreign.workers.as_slice() {
        [] => Arc::default(),
        _ => Arc::new(ForeignModels::new(deps.clone(), counting)),
    };
    let own_models = deps.models.names().into_iter().map(String::from).collect();
    let gateway = Gateway::with_foreign(deps, foreign.clone());
    let modes = modes::Modes::default();
    super::query_worker::register(&metrics, sql.counters());
    let watch = modes::Watch::new((plant.bus.clone(), plant.views.clone()), sql.counters(), modes.clone());
    let sources = Sources { tables: plant.tables.clone(), bus: plant.bus.clone(), clock: Arc::new(WallClock) };
    let snapshots = Snapshots::new(&config.snapshots, sources, &metrics);
    let (events, live_events) = watch::channel(Arc::<str>::from("{}"));
    let tasks = [
        tokio::spawn(tick(gateway.clone())),
        runtimes.ingest.spawn(live::run(plant.bus.clone(), plant.views.clone(), || WallClock.now(), events)),
        runtimes.ingest.spawn(view_reports::ask_workers(plant.views.clone(), config.dataflow.audit_interval)),
        runtimes.ingest.spawn(bucket_planner::run(config.clone(), families, (plant.bus.clone(), plant.views.clone()))),
        runtimes.ingest.spawn(publish_views(config.clone(), plant.bus.clone(), plant.views.clone())),
        runtimes.ingest.spawn(watch.run(|| WallClock.now())),
        runtimes.ingest.spawn(row_metrics::RowMetrics::new(&metrics).run(plant.bus.clone())),
        runtimes.ingest.spawn(snapshots.clone().run()),
    ];
    engine_metrics::register(&metrics, plant.views.clone(), config.server.data_dir.clone());
    super::plant_metrics::register(&metrics, (plant.bus.clone(), modes), plant.views.clone());

    let no_more = CancellationToken::new();
    let sending = spans.map(|spans| runtimes.ingest.spawn(spans.run(no_more.clone())));
    let first = models.iter().map(|loaded| loaded.group.worker_count(config.workers.count)).sum();
    let supervisors = supervise(config, models, plant, flight_address)?;
    let (directory, sink) = (plant.directory.clone(), Arc::new(BusSink(plant.bus.clone())));
    let keeping = ForeignPlant { models: foreign, directory, instances: sink.clone(), events: sink, own_models };
    let keepers = ForeignKeepers::start(&config.foreign, first, &keeping);
    let router = router(config, (gateway, snapshots), plant, (runtimes, live_events, sql.answers()))?;
    announce(address, (flight_address, pg_address), config);
    let server = tokio::spawn({
        let (stop, config) = (stop.clone(), config.server.clone());
        async move { http::serve(listener, router, &config, stop).await }
    });
    told_to_end().await;
    let patience = config.server.drain_timeout;
    // Where nothing can be written (a full disk) it stops all the same.
    let _ = writeln!(std::io::stderr(), "evenkeel: stopping; running answers may finish for {patience:?}");
    stop.cancel();
    server.await?;
    no_more.cancel();
    if let Some(sending) = sending {
        let _ = tokio::time::timeout(SPANS_WAIT, sending).await;
    }
    sql.stop().await;
    keepers.stop().await;
    join_all(supervisors.into_iter().map(Supervisor::stop)).await;
    tasks.into_iter().for_each(|task| task.abort());
    Ok(())
}

/// Serves a port that was taken already on another runtime, which then also waits for its sockets.
fn serve_on<F: Future<Output = ()> + Send + 'static>(
    runtime: &Runtime,
    listener: TcpListener,
    door: impl FnOnce(TcpListener) -> F,
) -> std::io::Result<()> {
    let listener = listener.into_std()?;
    let _guard = runtime.enter();
    runtime.spawn(door(TcpListener::from_std(listener)?));
    Ok(())
}

/// Starts the process that answers SQL from outside.
fn keep_sql(config: &Config, plant: &Plant, runtimes: &Runtimes) -> anyhow::Result<Keeper> {
    let source = (plant.bus.clone(), plant.tables.clone(), Arc::new(|| WallClock.now()) as BusClock);
    let setup = KeeperSetup::own(&QueryWorkerOptions::new(config), config.sql.stop_grace, source)?;
    let _guard = runtimes.sql.enter();
    Ok(Keeper::start(setup))
}

/// Starts each model's workers; their numbers go on from model to model.
fn supervise(
    config: &Config,
    models: Vec<Loaded>,
    plant: &Plant,
    flight: SocketAddr,
) -> anyhow::Result<Vec<Supervisor>> {
    let (mut first, mut supervisors) = (0, Vec::new());
    for Loaded { group, model, text } in models {
        let workers = SupervisorConfig::new(config, model, flight, WorkerCommand::own()?);
        let mut workers = workers.of_group(&group, first);
        first += workers.count;
        workers.options.simulated_vocab = text.vocab_size();
        workers.options.simulated_context = super::text::SIMULATED_CONTEXT;
        let sink = Arc::new(BusSink(plant.bus.clone()));
        supervisors.push(Supervisor::start(workers, plant.directory.clone(), sink));
    }
    Ok(supervisors)
}

fn gateway_deps(
    config: &Arc<Config>,
    (models, recorded): (&[Loaded], &Recorded),
    plant: &Plant,
    runtimes: &Runtimes,
) -> anyhow::Result<(deps::Deps, Arc<Metrics>, Option<traces::Sender>)> {
    let metrics = Arc::new(Metrics::default());
    let (tracer, sender) = traces::tracer(&config.tracing, &metrics).unzip();
    let texts = models.iter().map(Loaded::text).collect();
    let deps = deps::Deps {
        config: config.clone(),
        directory: plant.directory.clone(),
        views: plant.views.clone(),
        events: events(config, recorded, (&plant.bus, &metrics))?,
        models: Arc::new(if models.is_empty() { Registry::none() } else { Registry::new(config, texts) }),
        clock: Arc::new(WallClock),
        metrics: metrics.clone(),
        traces: tracer,
        text_runtime: runtimes.text_jobs.handle().clone(),
    };
    Ok((deps, metrics, sender))
}

/// Where the gateway's rows go: to the bus, and past the shadow policies if there are any.
fn events(
    config: &Config,
    acting: &Recorded,
    (bus, metrics): (&Bus, &Metrics),
) -> anyhow::Result<Arc<dyn deps::EventSink>> {
    let sink: Arc<dyn deps::EventSink> = Arc::new(BusSink(bus.clone()));
    let shadows = shadow::configured(config, acting)?;
    if shadows.is_empty() {
        return Ok(sink);
    }
    let bus = bus.clone();
    let outlet: Outlet = Box::new(move |told| match told {
        Told::Decision(row) => bus.try_publish(*row).is_ok(),
        Told::Fault(row) => bus.try_publish(row).is_ok(),
    });
    let sink = ShadowSink::start(sink, shadows, (config.shadow.queue_max, outlet))?;
    super::plant_metrics::register_shadow(metrics, sink.counters());
    Ok(Arc::new(sink))
}

fn router(
    config: &Config,
    (gateway, snapshots): (Arc<Gateway>, Arc<Snapshots>),
    plant: &Plant,
    (runtimes, events, answers): (&Runtimes, watch::Receiver<Arc<str>>, Arc<dyn SqlAnswers>),
) -> anyhow::Result<Router> {
    let keys = || Keys::new(&config.server.keys);
    let engine = SqlEngine::new(config.sql.limits(), plant.tables.clone(), runtimes.own_sql.handle().clone());
    let explain = ExplainDoor {
        engine: Arc::new(engine),
        bus: plant.bus.clone(),
        keys: keys(),
        life_max: config.server.request_timeout + config.policy.queue.wait_max,
    };
    let snapshots = SnapshotDoor { snapshots, keys: keys() };
    let rest = Router::new()
        .merge(sql_routes::routes(Arc::new(SqlDoor { answers, keys: keys() })))
        .merge(explain::routes(Arc::new(explain)))
        .merge(snapshot_routes::routes(Arc::new(snapshots)))
        .merge(live::routes(Arc::new(live::LiveDoor { keys: keys(), events })))
        .merge(page::routes())
        .layer(DefaultBodyLimit::max(config.server.body_max.as_u64() as usize));
    let router = with_fallbacks(routes(gateway).merge(rest));
    if config.server.allow_origins.is_empty() {
        return Ok(router);
    }
    let origins = config.server.allow_origins.iter().map(|origin| origin.parse()).collect::<Result<Vec<_>, _>>();
    let origins = origins.context("server.allow_origins: expected origins such as \"https://ops.example\"")?;
    let headers = [axum::http::header::AUTHORIZATION, axum::http::header::CONTENT_TYPE, axum::http::header::ACCEPT];
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::list(origins))
        .allow_methods([axum::http::Method::GET, axum::http::Method::POST])
        .allow_headers(headers)
        .expose_headers(cors::Any);
    Ok(router.layer(cors))
}

async fn tick(gateway: Arc<Gateway>) {
    let mut interval = tokio::time::interval(Duration::from_secs(1));
    loop {
        interval.tick().await;
        gateway.tick().await;
    }
}

/// Views as rows, once per period, with what they say of themselves; a view that went stale as a fault.
async fn publish_views(config: Arc<Config>, bus: Bus, views: Arc<Views>) {
    use deps::ViewSource;
    let Some(flow) = views.flow.clone() else { return };
    let epoch_us = config.dataflow.epoch.as_micros() as i64;
    let sink = BusSink(bus.clone());
    let mut interval = tokio::time::interval(config.dataflow.publish_interval);
    let (mut published, mut modes) = (None, view_reports::ViewModes::default());
    let period_seconds = trend_epochs(&config.dataflow) as f64 * epoch_us as f64 / 1e6;
    let horizon_seconds = f64::from(horizon_periods(&config.dataflow)) * period_seconds;
    let mut span = PredictorSpan { period_seconds, horizon_seconds, told: None };
    loop {
        interval.tick().await;
        let (state, now) = (flow.load(), WallClock.now());
        let told =
            (state.instances.clone(), state.cached_blocks.clone(), state.distribution.clone(), state.sessions.clone());
        let is_idle = state.atoms.is_empty() && published.as_ref() == Some(&told);
        if !is_idle {
            let leased: Vec<_> = views.directory.load().iter().map(|e| (e.id.0, e.leases.tokens())).collect();
            let rows = view_rows(&state, flow.names(), &leased, epoch_us);
            publish_all(&bus, rows.atoms).await;
            publish_all(&bus, rows.totals).await;
            publish_all(&bus, rows.instances).await;
            publish_all(&bus, rows.distribution).await;
            publish_all(&bus, rows.sessions).await;
            published = Some(told);
        }
        for row in flow.take_curves() {
            let _ = bus.publish(row).await;
        }
        publish_funnel(&bus, &flow, now).await;
        let rows = predictor_rows(&state, flow.names(), span);
        span.told = rows.epoch;
        publish_all(&bus, rows.service_times).await;
        publish_all(&bus, rows.output_lengths).await;
        publish_all(&bus, rows.arrival_trends).await;
        publish_all(&bus, rows.errors).await;
        if let Some(row) = modes.change(now, (views.cluster(now).mode, state.as_of)) {
            deps::EventSink::fault(&sink, row).await;
        }
        view_reports::publish(&flow, &bus, now).await;
    }
}

/// What the funnel and the diagnosis told since the last period.
async fn publish_funnel(bus: &Bus, flow: &FlowViews, now: Micros) {
    let news = flow.take_funnel();
    let rows = funnel_rows(&news, flow);
    for batch in rows.cases {
        let _ = bus.publish_batch(Topic::Funnel, batch).await;
    }
    publish_all(bus, rows.windows).await;
    publish_all(bus, rows.diagnoses).await;
    if news.dropped > 0 {
        let detail = "more requests ended in a period than the funnel keeps; its sums have them all".into();
        let (component, kind) = ("dataflow".into(), "funnel_rows_dropped".into());
        let _ = bus.publish(FaultRow { at: now, component, kind, detail, count: news.dropped }).await;
    }
}

/// A bus that has stopped takes no rows, and nobody asks for them any more.
async fn publish_all<R: Row>(bus: &Bus, rows: Vec<R>) {
    for row in rows {
        let _ = bus.publish(row).await;
    }
}

fn announce(address: SocketAddr, (flight, pg): (SocketAddr, Option<SocketAddr>), config: &Config) {
    if !config.foreign.workers.is_empty() {
        eprintln!("evenkeel: serving what {} foreign worker(s) serve", config.foreign.workers.len());
    }
    for group in config.groups().iter().filter(|_| config.workers.count > 0) {
        eprintln!("evenkeel: serving {} with {} worker(s)", group.name, group.worker_count(config.workers.count));
    }
    eprintln!("  OpenAI API  http://{address}/v1   (ready when http://{address}/ready answers 200)");
    eprintln!("  dashboard   http://{address}/");
    eprintln!("  SQL         POST http://{address}/sql      metrics http://{address}/metrics");
    eprintln!("  Flight SQL  grpc://{flight}      telemetry of workers, too");
    if let Some(pg) = pg {
        eprintln!("  PostgreSQL  psql -h {} -p {} evenkeel", pg.ip(), pg.port());
    }
    eprintln!("  data        {}", config.server.data_dir.display());
}

/// SIGTERM or SIGINT.
pub(super) async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let terminated = async {
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: a port taken on one runtime, served on another, and a client that connects from the first.
    /// Guarantees: the connection is taken, and what the door spawns runs, on threads of the other.
    #[test]
    fn a_door_is_served_on_the_runtime_that_it_is_given() {
        let named = |name: &str| {
            Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build().expect("a runtime")
        };
        let (chat, sql) = (named("chat"), named("sql"));
        let (told, tells) = std::sync::mpsc::channel();
        chat.block_on(async {
            let listener = http::listen("server.pg_listen", ([127, 0, 0, 1], 0).into()).await.unwrap();
            let address = listener.local_addr().unwrap();
            let door = |listener: TcpListener| async move {
                let tell = move || told.send(std::thread::current().name().map(String::from)).unwrap();
                let connection = listener.accept().await.unwrap();
                tell();
                tokio::spawn(async move {
                    tell();
                    drop(connection);
                });
            };
            serve_on(&sql, listener, door).unwrap();
            tokio::net::TcpStream::connect(address).await.unwrap();
        });
        for _ in 0..2 {
            assert_eq!(tells.recv().unwrap().as_deref(), Some("sql"));
        }
    }
}
