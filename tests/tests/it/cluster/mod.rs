//! The dataflow over several processes on different loopback addresses: the results of one worker, and the loss of a process
//! (DESIGN §4).

mod stream;

use std::{
    collections::BTreeMap,
    io::{BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use operators::{FlowRows, ViewChanges, views};
use pipeline::{
    config,
    dataflow::{
        cluster::{Done, Order, Setup, Start, read_frame, write_frame},
        flow_config, take_rows,
    },
};
use serde_json::Value;
use tests::server::binary;

use stream::{EPOCHS, stream};

type Epochs = BTreeMap<u64, ViewChanges>;

/// Windows of a few epochs, so that every view has some; a sample of prompt blocks.
fn settings(workers: usize) -> config::Dataflow {
    let mut dataflow = config::load(None, config::Overrides::default()).unwrap().dataflow;
    let ms = Duration::from_millis;
    dataflow.workers = workers;
    (dataflow.window, dataflow.funnel_window) = (ms(1200), ms(500));
    (dataflow.trend_period, dataflow.trend_season, dataflow.trend_horizon) = (ms(500), ms(2000), ms(1000));
    (dataflow.mrc_interval, dataflow.mrc_window) = (ms(300), ms(1800));
    (dataflow.mrc_exact_blocks, dataflow.mrc_sample_max) = (60, 100);
    dataflow
}

/// Entries of each list of the changes, over all epochs.
fn entries(epochs: &Epochs) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for changes in epochs.values() {
        let Value::Object(lists) = serde_json::to_value(changes).unwrap() else { panic!("changes are a struct") };
        for (name, list) in lists {
            if let Value::Array(list) = list {
                *counts.entry(name).or_default() += list.len();
            }
        }
    }
    counts
}

fn alone(stream: Vec<FlowRows>) -> Epochs {
    let config = flow_config(&settings(1));
    timely::execute_directly(move |worker| {
        let (teller, told) = std::sync::mpsc::channel();
        let mut flow = views::build(worker, &config, move |_, changes| {
            // What comes when the inputs have ended is not asked for.
            let _ = teller.send(changes);
        });
        for (epoch, rows) in (0u64..).zip(stream) {
            take_rows(worker, &mut flow.inputs, rows);
            flow.inputs.advance(epoch + 1).unwrap();
            while flow.closed().is_none_or(|closed| closed < epoch) {
                worker.step_or_park(None);
            }
        }
        told.try_iter().filter(|changes| !changes.is_empty()).map(|changes| (changes.epoch, changes)).collect()
    })
}

/// What a process says besides that it runs; `None` at the end.
fn says(output: &mut BufReader<ChildStdout>) -> Option<Done> {
    loop {
        match read_frame::<Done>(output) {
            Ok(Done::Beat) => {}
            other => return other.ok(),
        }
    }
}

/// Long, so that no test depends on how busy the machine is; the test of a silence has its own.
const SILENCE: Duration = Duration::from_secs(60);

/// Processes on 127.0.0.1, 127.0.0.2 and so on, connected.
struct Cluster {
    children: Vec<Child>,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Closed with the cluster: the other processes' lives hang on it.
    _lifelines: Vec<ChildStdin>,
}

impl Cluster {
    fn start(processes: usize, workers: usize) -> Option<Cluster> {
        Cluster::start_with(processes, workers, SILENCE)
    }

    fn start_with(processes: usize, workers: usize, silence: Duration) -> Option<Cluster> {
        Cluster::start_among((processes, workers), silence, |_| {})
    }

    /// `strangers` come while process 0 waits for the others.
    fn start_among(
        (processes, workers): (usize, usize),
        silence: Duration,
        strangers: impl Fn(&[String]),
    ) -> Option<Cluster> {
        let held: Vec<_> =
            (1..=processes).map(|number| TcpListener::bind((format!("127.0.0.{number}"), 0)).unwrap()).collect();
        let addresses: Vec<_> = held.iter().map(|port| port.local_addr().unwrap().to_string()).collect();
        drop(held);
        let program = binary()?;
        let (mut children, mut inputs) = (Vec::new(), Vec::new());
        for process in 0..processes {
            let stdout = if process == 0 { Stdio::piped() } else { Stdio::null() };
            let command = &mut Command::new(&program);
            let mut child =
                command.arg("dataflow-process").stdin(Stdio::piped()).stdout(stdout).spawn().expect("it starts");
            let mut input = child.stdin.take().unwrap();
            let start = (process == 0).then(|| Start { generation: 1, silence, dataflow: settings(workers) });
            let setup = Setup { process, addresses: addresses.clone(), key: "test".into(), silence, start };
            write_frame(&mut input, &setup).unwrap();
            inputs.push(input);
            children.push(child);
            if process == 0 {
                strangers(&addresses);
            }
        }
        let mut output = BufReader::new(children[0].stdout.take().unwrap());
        assert_eq!(says(&mut output), Some(Done::Connected));
        let input = inputs.remove(0);
        Some(Cluster { children, input, output, _lifelines: inputs })
    }

    fn signal(&self, process: usize, signal: &str) {
        let pid = self.children[process].id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    }

    fn feed(&mut self, from: u64, epochs: &[FlowRows]) {
        for (epoch, rows) in (from..).zip(epochs) {
            write_frame(&mut self.input, &Order::Rows(rows.clone())).unwrap();
            write_frame(&mut self.input, &Order::Advance(epoch + 1)).unwrap();
        }
    }

    /// Changes until an epoch is closed.
    fn until(&mut self, last: u64) -> Epochs {
        let mut epochs = Epochs::new();
        loop {
            match says(&mut self.output) {
                Some(Done::Changes(changes)) => {
                    let epoch = changes.epoch;
                    if !changes.is_empty() {
                        assert!(epochs.insert(epoch, *changes).is_none(), "epoch {epoch} came twice");
                    }
                    if epoch >= last {
                        return epochs;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Scenario: a random stream with faults in it, over 2 and 3 processes of one worker, and over 2 of two workers.
/// Guarantees: every view has entries, and the changes of every epoch are those of one worker in one process, exactly.
#[test]
fn several_processes_give_what_one_worker_gives() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand_seed);
    println!("SEED={seed}");
    let rows = stream(seed);
    let expected = alone(rows.clone());
    let counts = entries(&expected);
    println!("{} epochs: {counts:?}", expected.len());
    assert!(expected.len() > 40 && counts.len() >= 19 && counts.values().all(|count| *count > 0), "{counts:?}");
    for (processes, workers) in [(2, 1), (3, 1), (2, 2)] {
        let Some(mut cluster) = Cluster::start(processes, workers) else { return };
        cluster.feed(0, &rows);
        let got = cluster.until(EPOCHS - 1);
        assert_eq!(got.len(), expected.len(), "{processes} processes");
        for (epoch, changes) in &expected {
            assert_same(got.get(epoch), changes, &format!("{processes} processes of {workers} workers, epoch {epoch}"));
        }
    }
}

/// Names the first list that differs, which is more than anybody can read of the whole.
fn assert_same(got: Option<&ViewChanges>, expected: &ViewChanges, what: &str) {
    if got == Some(expected) {
        return;
    }
    let (got, expected) = (serde_json::to_value(got).unwrap(), serde_json::to_value(expected).unwrap());
    for (list, expected) in expected.as_object().unwrap() {
        assert_eq!(got.get(list), Some(expected), "{what}: {list}");
    }
    panic!("{what}: they differ where JSON does not tell");
}

fn rand_seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Scenario: while process 0 waits for the other, something that speaks HTTP, something that says nothing and leaves, and a process
/// with another key connect.
/// Guarantees: they are dropped, and the cluster starts and works.
#[test]
fn strangers_are_dropped() {
    let strangers = |addresses: &[String]| {
        let connect = || loop {
            match TcpStream::connect(&addresses[0]) {
                Ok(socket) => return socket,
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
        };
        connect().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        drop(connect());
        let wrong = ("evenkeel dataflow 1".to_string(), "another".to_string(), 1usize, None::<u64>);
        write_frame(&mut connect(), &wrong).unwrap();
    };
    let Some(mut cluster) = Cluster::start_among((2, 1), SILENCE, strangers) else { return };
    let rows = stream(3);
    cluster.feed(0, &rows[..5]);
    assert_eq!(cluster.until(4), alone(rows[..5].to_vec()));
}

/// Scenario: process 1 of three is killed with SIGKILL while rows flow, and while nothing flows.
/// Guarantees: every other process ends by itself, also idle ones; nothing hangs.
#[test]
fn a_lost_process_ends_all() {
    for flows in [true, false] {
        let Some(mut cluster) = Cluster::start(3, 1) else { return };
        let rows = stream(7);
        cluster.feed(0, &rows[..10]);
        cluster.until(9);
        if flows {
            cluster.feed(10, &rows[10..12]);
        }
        let killed = Instant::now();
        cluster.children[1].kill().unwrap();
        while says(&mut cluster.output).is_some() {}
        println!("process 0 noticed after {:?} (rows flow: {flows})", killed.elapsed());
        for process in [0, 2] {
            let status = cluster.children[process].wait().unwrap();
            assert!(!status.success(), "process {process}: {status}");
        }
        println!("all ended after {:?}", killed.elapsed());
    }
}

/// Scenario: a dataflow of three processes that may be silent for a second; process 2 is stopped with SIGSTOP while rows flow, and
/// while nothing flows.
/// Guarantees: process 0 hears nothing of it, names it with its last word and ends, and so does process 1; the stopped one is left,
/// as nobody here kills it, and ends by itself when it goes on. While all run, none is missed.
#[test]
fn a_process_that_stands_still_ends_the_others() {
    for flows in [true, false] {
        let Some(mut cluster) = Cluster::start_with(3, 1, Duration::from_secs(1)) else { return };
        let rows = stream(7);
        cluster.feed(0, &rows[..10]);
        cluster.until(9);
        cluster.signal(2, "-STOP");
        if flows {
            cluster.feed(10, &rows[10..12]);
        }
        let last = std::iter::from_fn(|| says(&mut cluster.output)).last();
        assert_eq!(last, Some(Done::Silent { process: 2 }), "rows flow: {flows}");
        for process in [0, 1] {
            let status = cluster.children[process].wait().unwrap();
            assert!(!status.success(), "process {process}: {status}");
        }
        assert!(cluster.children[2].try_wait().unwrap().is_none(), "a stopped process ended by itself");
        cluster.signal(2, "-CONT");
        assert!(!cluster.children[2].wait().unwrap().success());
    }
}
