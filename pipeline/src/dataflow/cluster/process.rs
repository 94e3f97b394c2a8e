//! The body of a child: timely workers between two pipes. Its first frame on stdin is a [`Setup`]; process 0 goes on reading
//! orders there and writes what they led to to stdout; for the others stdin is only the line their life hangs on. All beat on
//! stdout (`beat`).
//!
//! Invariant: the process ends, at once, on the end of stdin, on any panic (a lost peer is one, in timely's communication
//! threads), on a silent peer and on a frame it cannot read; it never lingers half alive. Bounds: [`QUEUE_FRAMES`] frames each way: a slow reader
//! of stdout slows the workers, slow workers slow the reader of stdin.

use std::{
    io::{self, BufReader, BufWriter, Stdin, Write},
    panic, process,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{self, Receiver, SyncSender, TryRecvError},
    },
    thread,
    time::Duration,
};

use operators::{FlowConfig, Gather, views::build};
use timely::{
    WorkerConfig,
    communication::{
        AllocatorBuilder, Hooks,
        allocator::{ProcessBuilder, zero_copy::initialize::initialize_networking_from_sockets},
    },
    worker::Worker,
};

use super::{
    QUEUE_FRAMES,
    beat::{self, Output},
    mesh::{self, Mesh},
    wire::{Done, Order, Setup, encode, read_frame},
};
use crate::dataflow::{flow::flow_config, threads::take_rows};

/// Longest sleep of an idle worker; rows and peers wake it.
const PARK: Duration = Duration::from_millis(100);
/// Exit codes, for the log of who started it.
const EXIT_PANICKED: i32 = 70;
const EXIT_ORPHANED: i32 = 75;

/// Runs until stdin ends or a peer is lost.
pub fn run() -> io::Result<()> {
    // One line, then the end: a backtrace of a lost peer would say nothing, and takes most of a second to make.
    panic::set_hook(Box::new(|info| {
        eprintln!("evenkeel: dataflow process ends: {info}");
        process::exit(EXIT_PANICKED);
    }));
    let mut input = BufReader::new(io::stdin());
    let setup: Setup = read_frame(&mut input)?;
    let output: Output = Arc::new(Mutex::new(BufWriter::new(io::stdout())));
    beat::beat(output.clone(), setup.silence, || process::exit(EXIT_ORPHANED))?;
    let (orders, taker) = mpsc::sync_channel(QUEUE_FRAMES);
    let (done, results) = mpsc::sync_channel(QUEUE_FRAMES);
    let awake: Awake = Arc::default();
    let reader = Reader { input, orders, awake: awake.clone(), is_fed: setup.process == 0 };
    thread::Builder::new().name("orders".into()).spawn(move || reader.run())?;
    let mut mesh = mesh::connect(&setup)?;
    beat::watch_peers(std::mem::take(&mut mesh.beats), mesh.start.silence, output.clone())?;
    thread::Builder::new().name("results".into()).spawn(move || write_results(results, &output))?;
    let _ = done.send(Done::Connected);
    work(&setup, mesh, (taker, awake), done)
}

type Awake = Arc<OnceLock<thread::Thread>>;

struct Reader {
    input: BufReader<Stdin>,
    orders: SyncSender<Order>,
    awake: Awake,
    is_fed: bool,
}

impl Reader {
    fn run(mut self) {
        while let Ok(order) = read_frame::<Order>(&mut self.input) {
            if !self.is_fed || self.orders.send(order).is_err() {
                break;
            }
            if let Some(worker) = self.awake.get() {
                worker.unpark();
            }
        }
        process::exit(EXIT_ORPHANED);
    }
}

/// Ends the process when nobody reads any more. Beats go on while a long frame is put together.
fn write_results(results: Receiver<Done>, output: &Output) {
    let write = |done| {
        let frame = encode(&done)?;
        let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(&frame)?;
        output.flush()
    };
    for done in results {
        if write(done).is_err() {
            process::exit(EXIT_ORPHANED);
        }
    }
}

fn work(setup: &Setup, mesh: Mesh, feed: (Receiver<Order>, Awake), done: SyncSender<Done>) -> io::Result<()> {
    let threads = mesh.start.dataflow.workers;
    let config = FlowConfig { gather: Gather::ToFirst, ..flow_config(&mesh.start.dataflow) };
    let hooks = Hooks::default();
    let local = ProcessBuilder::new_typed_vector(threads, hooks.refill.clone(), hooks.spill.clone());
    let (builders, comms) = initialize_networking_from_sockets(local, mesh.sockets, setup.process, threads, hooks)?;
    let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
    let (orders, awake) = feed;
    let orders = Mutex::new(Some(orders));
    let guards = timely::execute::execute_from(builders, Box::new(comms), WorkerConfig::default(), move |worker| {
        let done = done.clone();
        let flow = build(worker, &config, move |index, changes| {
            // All changes are gathered on worker 0; a send fails only while the process ends.
            if index == 0 {
                let _ = done.send(Done::Changes(Box::new(changes)));
            }
        });
        let orders = orders.lock().unwrap_or_else(PoisonError::into_inner).take_if(|_| worker.index() == 0);
        match orders {
            Some(orders) => {
                let _ = awake.set(thread::current());
                obey(worker, flow.inputs, &orders);
            }
            // No rows enter here: time is worker 0's alone.
            None => drop(flow.inputs),
        }
    });
    for result in guards.map_err(io::Error::other)?.join() {
        result.map_err(io::Error::other)?;
    }
    Ok(())
}

fn obey(worker: &mut Worker, mut inputs: operators::FlowInputs, orders: &Receiver<Order>) {
    loop {
        let mut budget = QUEUE_FRAMES;
        while budget > 0 {
            match orders.try_recv() {
                Ok(Order::Rows(rows)) => take_rows(worker, &mut inputs, rows),
                Ok(Order::Advance(epoch)) => drop(inputs.advance(epoch.max(inputs.open()))),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
            budget -= 1;
        }
        worker.step_or_park(Some(if budget == 0 { Duration::ZERO } else { PARK }));
    }
}
