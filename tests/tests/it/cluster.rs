//! The dataflow over several processes on different loopback addresses: the results of one worker, and the loss of a process
//! (DESIGN §4).

use std::{
    collections::BTreeMap,
    io::{BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use operators::{
    ArrivedRow, End, FinishedRow, FlowRows, KvChange, KvRow, LoadEvent, LoadRow, StepRow, TrafficRow, ViewChanges,
    views,
};
use pipeline::{
    config,
    dataflow::{
        cluster::{Done, Order, Setup, Start, read_frame, write_frame},
        flow_config, take_rows,
    },
};
use tests::server::binary;

const EPOCHS: u64 = 60;

/// Numbers from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// Epochs of rows with what goes wrong in a fleet: duplicates, gaps, restarts, unknown removals, values out of range.
fn stream(seed: u64) -> Vec<FlowRows> {
    let mut dice = Dice(seed);
    let (mut seqs, mut incarnations, mut steps) = ([0u64; 5], [1u64; 5], [0u64; 5]);
    (0..EPOCHS)
        .map(|epoch| {
            let mut rows = FlowRows::default();
            for _ in 0..dice.roll(40) {
                let at = dice.roll(5) as usize;
                let (instance, request) = (at as u32, dice.roll(200));
                let event = [LoadEvent::Arrived, LoadEvent::Grew, LoadEvent::Finished][dice.roll(3) as usize];
                let (seq, tokens) = (dice.roll(6) as u32, dice.roll(9000) as u32);
                let group = (dice.roll(2) as u16, dice.roll(3) as u32, dice.roll(3) as u8);
                let (region, model, tier) = group;
                rows.load.push(LoadRow { request, seq, instance, tokens, event, region, model, tier });
                if dice.roll(40) == 0 {
                    (incarnations[at], seqs[at], steps[at]) = (incarnations[at] + 1, 0, 0);
                }
                seqs[at] += [1, 1, 1, 1, 0, 2][dice.roll(6) as usize];
                let (hash, level) = (dice.roll(100), dice.roll(4) as u8);
                let event = match dice.roll(10) {
                    0 => KvChange::Removed { hash, level },
                    1 => KvChange::Cleared,
                    2 => KvChange::Hit { hash, level, tokens: 16 },
                    _ => KvChange::Stored { hash, parent: None, level, tokens: dice.roll(20) as u32 },
                };
                rows.kv.push(KvRow { instance, epoch: incarnations[at], seq: seqs[at], event });
                let (model, tier, prompt_tokens) = (dice.roll(3) as u32, dice.roll(3) as u8, dice.roll(4000) as u32);
                let at_us = (epoch * 100_000 + dice.roll(100_000)) as i64;
                rows.traffic.push(TrafficRow::Arrived(ArrivedRow {
                    model,
                    tier,
                    prompt_tokens,
                    at_us,
                    session: Some(dice.roll(50)),
                    turns: dice.roll(5) as u32,
                }));
                rows.traffic.push(TrafficRow::Finished(FinishedRow {
                    model,
                    tier,
                    prompt_tokens,
                    output_tokens: dice.roll(900) as u32,
                    cached_tokens: dice.roll(5000) as u32,
                    ttft_us: Some(dice.roll(1_000_000)),
                    itl_us_mean: Some(dice.roll(50_000)),
                    at_us,
                    end: if dice.roll(4) == 0 { End::Capped } else { End::Stopped },
                    tenant_class: dice.roll(3) as u8,
                }));
                steps[at] += dice.roll(3);
                rows.steps.push(step(instance, (incarnations[at], steps[at]), at_us, &mut dice));
            }
            rows
        })
        .collect()
}

fn step(instance: u32, (epoch, step): (u64, u64), at_us: i64, dice: &mut Dice) -> StepRow {
    StepRow {
        instance,
        epoch,
        step,
        at_us,
        running: dice.roll(9) as u32,
        waiting: dice.roll(4) as u32,
        queued_prefill_tokens: dice.roll(5000),
        context_tokens: dice.roll(9000),
        blocks_used: dice.roll(120) as u32,
        blocks_cached: dice.roll(50) as u32,
        blocks_total: 100,
        prefill_tokens: dice.roll(500) as u32,
        decode_tokens: dice.roll(9) as u32,
        step_us: dice.roll(50_000),
        shape: instance % 2,
    }
}

type Epochs = BTreeMap<u64, ViewChanges>;

fn settings(workers: usize) -> config::Dataflow {
    let mut dataflow = config::load(None, config::Overrides::default()).unwrap().dataflow;
    dataflow.workers = workers;
    dataflow
}

fn alone(stream: Vec<FlowRows>) -> Epochs {
    let config = flow_config(&settings(1));
    timely::execute_directly(move |worker| {
        let (teller, told) = std::sync::mpsc::channel();
        let mut flow = views::build(worker, &config, move |_, changes| teller.send(changes).unwrap());
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
        Cluster::start_among(processes, workers, |_| {})
    }

    /// `strangers` come while process 0 waits for the others.
    fn start_among(processes: usize, workers: usize, strangers: impl Fn(&[String])) -> Option<Cluster> {
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
            let start = (process == 0).then(|| Start { generation: 1, dataflow: settings(workers) });
            let setup = Setup { process, addresses: addresses.clone(), key: "test".into(), start };
            write_frame(&mut input, &setup).unwrap();
            inputs.push(input);
            children.push(child);
            if process == 0 {
                strangers(&addresses);
            }
        }
        let mut output = BufReader::new(children[0].stdout.take().unwrap());
        assert_eq!(read_frame::<Done>(&mut output).unwrap(), Done::Connected);
        let input = inputs.remove(0);
        Some(Cluster { children, input, output, _lifelines: inputs })
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
            match read_frame::<Done>(&mut self.output).unwrap() {
                Done::Changes(changes) => {
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
/// Guarantees: the changes of every epoch are those of one worker in one process, exactly.
#[test]
fn several_processes_give_what_one_worker_gives() {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand_seed);
    println!("SEED={seed}");
    let rows = stream(seed);
    let expected = alone(rows.clone());
    assert!(expected.len() > 40 && expected.values().any(|changes| !changes.refused.is_empty()));
    for (processes, workers) in [(2, 1), (3, 1), (2, 2)] {
        let Some(mut cluster) = Cluster::start(processes, workers) else { return };
        cluster.feed(0, &rows);
        let got = cluster.until(EPOCHS - 1);
        assert_eq!(got.len(), expected.len(), "{processes} processes");
        for (epoch, changes) in &expected {
            assert_eq!(got.get(epoch), Some(changes), "{processes} processes of {workers} workers, epoch {epoch}");
        }
    }
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
    let Some(mut cluster) = Cluster::start_among(2, 1, strangers) else { return };
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
        while read_frame::<Done>(&mut cluster.output).is_ok() {}
        println!("process 0 noticed after {:?} (rows flow: {flows})", killed.elapsed());
        for process in [0, 2] {
            let status = cluster.children[process].wait().unwrap();
            assert!(!status.success(), "process {process}: {status}");
        }
        println!("all ended after {:?}", killed.elapsed());
    }
}
