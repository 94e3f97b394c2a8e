//! Readings of the machine become findings. Pure: all that is known comes in, so every bad case has a test.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bytesize::ByteSize;

use super::Finding;
use crate::{config::ConfigError, models::verify::Verdict};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// What the server takes beside its workers: live tables, views, buffers.
const SERVER_BYTES: u64 = GIB;
/// Below this, what a second of traffic writes may not fit.
const DISK_LEAST_BYTES: u64 = 256 * MIB;
/// Slower disks hold up the log's syncs when there is much traffic.
const WRITE_SLOW_BYTES_PER_S: f64 = 50e6;
const WRITE_FAST_BYTES_PER_S: f64 = 200e6;
/// Files that a server opens beside its clients' connections.
const FILES_BESIDE: u64 = 512;
/// 2024-01-01: a clock before it was never set.
const CLOCK_LEAST_S: u64 = 1_704_067_200;
/// How far a file may be ahead of the clock before somebody turned it back.
const CLOCK_BACK_MAX: Duration = Duration::from_secs(60);

/// What the settings ask of the machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Needs {
    pub workers: u64,
    pub threads: u64,
    /// Of all workers.
    pub memory_bytes: u64,
    pub l2_bytes: u64,
    pub log_bytes: u64,
}

fn bytes(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

pub fn settings(file: Option<&Path>, error: Option<&ConfigError>) -> Finding {
    let origin = file.map_or_else(|| "defaults and environment".to_string(), |file| file.display().to_string());
    match error {
        None => Finding::ok("settings", format!("{origin}: in order")),
        Some(error) => {
            let advice = "correct it; pipeline/src/default.toml has every setting. The checks below take the defaults";
            Finding::fail("settings", error.to_string(), advice)
        }
    }
}

/// A model that is to be served, as it was found.
#[derive(Debug, Clone)]
pub struct Model {
    pub name: String,
    pub file: ModelState,
    /// Weights in the memory of all its workers, roughly.
    pub worker_bytes: u64,
}

#[derive(Debug, Clone)]
pub enum ModelState {
    /// Foreign workers serve alone, or the model is simulated.
    NoneNeeded(&'static str),
    /// A file that the catalogue does not know, with its size.
    Local(PathBuf, u64),
    Listed(PathBuf, Verdict),
    Unreadable(PathBuf, String),
    Unknown(String),
}

pub fn model(model: &Model) -> Finding {
    let name = &model.name;
    match &model.file {
        ModelState::NoneNeeded(why) => Finding::ok("model", format!("no file needed: {why}")),
        ModelState::Local(path, size) if *size == 0 => {
            Finding::fail("model", format!("{name}: {} is empty", path.display()), "fetch or copy it again")
        }
        ModelState::Local(path, size) => Finding::ok(
            "model",
            format!("{name}: {} ({}), not of the catalogue: no checksum", path.display(), bytes(*size)),
        ),
        ModelState::Listed(path, Verdict::Good) => {
            Finding::ok("model", format!("{name}: {}, checksum right", path.display()))
        }
        ModelState::Listed(_, Verdict::Absent) => {
            let advice = format!("`evenkeel models pull {name}` fetches it now; the first start would");
            Finding::warn("model", format!("{name}: not here yet"), advice)
        }
        ModelState::Listed(path, Verdict::Different(how)) => {
            let advice = format!("remove it and run `evenkeel models pull {name}`");
            Finding::fail("model", format!("{name}: {} is not the model: {how}", path.display()), advice)
        }
        ModelState::Unreadable(path, error) => {
            Finding::fail("model", format!("{name}: {}: {error}", path.display()), "correct the path, or its rights")
        }
        ModelState::Unknown(error) => Finding::fail("model", error.clone(), "`evenkeel models list` shows the names"),
    }
}

/// An address that is to be listened on.
#[derive(Debug, Clone)]
pub struct Port {
    pub key: &'static str,
    pub address: SocketAddr,
    pub state: PortState,
    pub own_pid: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortState {
    Free,
    /// By this process, if it could be found out.
    Taken(Option<(u32, String)>),
    Unusable(String),
}

pub fn port(port: &Port) -> Finding {
    let Port { key, address, .. } = port;
    match &port.state {
        PortState::Free => Finding::ok("port", format!("{address} is free ({key})")),
        PortState::Taken(Some((pid, name))) if name == "evenkeel" && *pid != port.own_pid => {
            Finding::ok("port", format!("{address}: an evenkeel serves there (process {pid}, {key})"))
        }
        PortState::Taken(Some((pid, name))) => {
            let advice = format!("stop process {pid}, or give {key} another port");
            Finding::fail("port", format!("{address} is taken by {name} (process {pid}, {key})"), advice)
        }
        PortState::Taken(None) => {
            let advice = format!("`ss -ltnp` as root says whose it is; stop that, or give {key} another port");
            Finding::fail("port", format!("{address} is taken by another user's process ({key})"), advice)
        }
        PortState::Unusable(error) => Finding::fail(
            "port",
            format!("{address}: {error} ({key})"),
            format!("give {key} an address of this machine"),
        ),
    }
}

/// Bytes; `None`: the machine does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub available: Option<u64>,
    pub total: Option<u64>,
}

pub fn memory(memory: &Memory, needs: &Needs) -> Finding {
    let need = needs.memory_bytes + SERVER_BYTES;
    let (Some(available), Some(total)) = (memory.available, memory.total) else {
        return Finding::warn("memory", "not known on this machine", format!("see that {} are free", bytes(need)));
    };
    let found = format!("{} of {} available; these settings may take {}", bytes(available), bytes(total), bytes(need));
    let advice = "lower workers.kv_bytes_max, workers.count or workers.l2_bytes, or take a larger machine";
    match need {
        need if need > total => Finding::fail("memory", found, advice),
        need if need > available => Finding::warn("memory", found, format!("end other programs, or {advice}")),
        _ => Finding::ok("memory", found),
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    pub cores: u64,
    /// Of the instructions that the arithmetic is written for.
    pub vectors: Option<&'static str>,
}

pub fn cpu(cpu: &Cpu, needs: &Needs) -> Finding {
    let found = format!("{} cores for {} workers with {} threads", cpu.cores, needs.workers, needs.threads);
    match cpu.vectors {
        None => Finding::warn("cpu", format!("{found}; no vector instructions known to us"), "expect slow arithmetic"),
        Some(vectors) if needs.threads > cpu.cores => Finding::warn(
            "cpu",
            format!("{found}; {vectors}"),
            "lower workers.count or workers.threads: threads that wait for a core slow each step",
        ),
        Some(vectors) => Finding::ok("cpu", format!("{found}; {vectors}")),
    }
}

#[derive(Debug, Clone)]
pub struct Disk {
    /// The data folder, or the nearest one above it that exists.
    pub folder: PathBuf,
    pub free: Result<u64, String>,
    pub write_bytes_per_s: Result<f64, String>,
}

pub fn disk(disk: &Disk, needs: &Needs) -> Vec<Finding> {
    let folder = disk.folder.display();
    let room = match &disk.free {
        Err(error) => {
            Finding::fail("disk room", format!("{folder}: {error}"), "give server.data_dir a folder that exists")
        }
        Ok(free) => {
            let found = format!("{} free in {folder}; the log keeps up to {}", bytes(*free), bytes(needs.log_bytes));
            let advice = "make room, lower log.retain_bytes, or give server.data_dir a larger disk";
            match *free {
                free if free < DISK_LEAST_BYTES => Finding::fail("disk room", found, advice),
                free if free < needs.log_bytes + DISK_LEAST_BYTES => Finding::warn("disk room", found, advice),
                _ => Finding::ok("disk room", found),
            }
        }
    };
    let speed = match &disk.write_bytes_per_s {
        Err(error) => {
            let advice = "give server.data_dir a folder that this user may write to";
            Finding::fail("disk speed", format!("cannot write in {folder}: {error}"), advice)
        }
        Ok(rate) => {
            let found = |class: &str| format!("{class}: {:.0} MB/s written and synced in {folder}", rate / 1e6);
            match *rate {
                rate if rate < WRITE_SLOW_BYTES_PER_S => Finding::warn(
                    "disk speed",
                    found("slow"),
                    "put server.data_dir on a local SSD, or set log.sync_interval higher",
                ),
                rate if rate < WRITE_FAST_BYTES_PER_S => Finding::ok("disk speed", found("enough")),
                _ => Finding::ok("disk speed", found("fast")),
            }
        }
    };
    vec![room, speed]
}

/// `limit`: `None` if there is none.
pub fn open_files(limit: Option<u64>, connections_max: u64) -> Finding {
    let need = connections_max.saturating_add(FILES_BESIDE);
    match limit {
        None => Finding::ok("open files", "no limit"),
        Some(limit) if limit < FILES_BESIDE => Finding::fail(
            "open files",
            format!("limit {limit}; the server alone needs {FILES_BESIDE}"),
            format!("`ulimit -n {need}` before the start, or LimitNOFILE={need} in its unit"),
        ),
        Some(limit) if limit < need => Finding::warn(
            "open files",
            format!("limit {limit}; server.connections_max = {connections_max} needs {need}"),
            format!("`ulimit -n {need}` before the start, LimitNOFILE={need} in its unit, or fewer connections"),
        ),
        Some(limit) => Finding::ok("open files", format!("limit {limit} for {connections_max} connections")),
    }
}

#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// Seconds since 1970.
    pub now_s: u64,
    /// The kernel's source of time.
    pub source: Option<String>,
    /// How far the newest file of the log is ahead of the clock.
    pub log_ahead: Option<Duration>,
}

pub fn clock(clock: &Clock) -> Finding {
    if clock.now_s < CLOCK_LEAST_S {
        let found = format!("stands at {} s since 1970, before this program was written", clock.now_s);
        return Finding::fail("clock", found, "set it (timedatectl set-ntp true): every row carries its time");
    }
    if let Some(ahead) = clock.log_ahead.filter(|ahead| *ahead > CLOCK_BACK_MAX) {
        let found = format!("{ahead:.0?} behind the newest file of the log");
        return Finding::warn(
            "clock",
            found,
            "it was turned back: let it be kept by NTP, or old rows count as new ones",
        );
    }
    match clock.source.as_deref() {
        Some(source @ ("hpet" | "acpi_pm" | "jiffies" | "refined-jiffies")) => Finding::warn(
            "clock",
            format!("source {source} takes a microsecond and more to read"),
            "let the kernel use tsc or the hypervisor's clock (clocksource=tsc)",
        ),
        Some(source) => Finding::ok("clock", format!("set; source {source}")),
        None => Finding::ok("clock", "set"),
    }
}

/// `size`: of /dev/shm, or why it is not known.
pub fn shared_memory(size: Result<u64, String>, needs: &Needs) -> Finding {
    let need = needs.l2_bytes.max(64 * MIB);
    match size {
        Err(error) => Finding::warn("shared memory", format!("/dev/shm: {error}"), "mount a tmpfs there"),
        Ok(size) if size < need => Finding::warn(
            "shared memory",
            format!("/dev/shm has {}; KV in host memory is set to {}", bytes(size), bytes(needs.l2_bytes)),
            format!("`mount -o remount,size={need} /dev/shm`, or --shm-size={need} for a container"),
        ),
        Ok(size) => Finding::ok("shared memory", format!("/dev/shm has {}", bytes(size))),
    }
}

#[derive(Debug, Clone, Default)]
pub struct Gpu {
    pub devices: Vec<String>,
    /// Path of the driver's library.
    pub library: Option<PathBuf>,
    pub driver: Option<String>,
}

pub fn gpu(gpu: &Gpu) -> Finding {
    let driver = gpu.driver.as_deref().unwrap_or("unknown version");
    match (gpu.devices.len(), &gpu.library) {
        (0, None) => Finding::ok("gpu", "none: this machine computes on the CPU"),
        (0, Some(library)) => Finding::warn(
            "gpu",
            format!("{} is there, and no device", library.display()),
            "in a container pass the devices in (--gpus all); else check `nvidia-smi`",
        ),
        (count, None) => Finding::warn(
            "gpu",
            format!("{count} devices ({}), and no libcuda.so.1", gpu.devices.join(", ")),
            "install the NVIDIA driver's libraries, or pass them into the container",
        ),
        (count, Some(_)) => {
            Finding::ok("gpu", format!("{count} devices, driver {driver}; this version computes on the CPU"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Status, *};

    #[track_caller]
    fn told(finding: &Finding, status: Status, words: &str) {
        assert_eq!(finding.status, status, "{finding}");
        assert!(finding.to_string().contains(words), "{finding}");
        assert_eq!(finding.advice.is_empty(), status == Status::Ok, "what is wrong has advice: {finding}");
    }

    /// Scenario: settings that do not hold. Guarantees: the finding has the error's words.
    #[test]
    fn wrong_settings_fail() {
        told(&settings(None, None), Status::Ok, "in order");
        let error =
            ConfigError::Invalid { key: "sql.rows_max", value: "0".into(), expected: "expected at least 1".into() };
        told(&settings(Some(Path::new("a.toml")), Some(&error)), Status::Fail, "sql.rows_max = 0: expected at least 1");
    }

    /// Scenario: a model that is absent, damaged, empty, unknown. Guarantees: each says what to do.
    #[test]
    fn models_are_judged() {
        let state = |file| model(&Model { name: "m".into(), file, worker_bytes: 0 });
        let path = PathBuf::from("m.gguf");
        told(&state(ModelState::NoneNeeded("simulated")), Status::Ok, "simulated");
        told(&state(ModelState::Local(path.clone(), 2 * GIB)), Status::Ok, "no checksum");
        told(&state(ModelState::Local(path.clone(), 0)), Status::Fail, "empty");
        told(&state(ModelState::Listed(path.clone(), Verdict::Good)), Status::Ok, "checksum right");
        told(&state(ModelState::Listed(path.clone(), Verdict::Absent)), Status::Warn, "models pull m");
        let different = Verdict::Different("3 bytes; expected 9".into());
        told(&state(ModelState::Listed(path.clone(), different)), Status::Fail, "3 bytes; expected 9");
        told(&state(ModelState::Unreadable(path, "denied".into())), Status::Fail, "denied");
        told(&state(ModelState::Unknown("no model named `x`".into())), Status::Fail, "models list");
    }

    /// Scenario: a port that is free, ours, another's, unknown whose, of no interface. Guarantees: only a server of ours may have it.
    #[test]
    fn ports_are_judged() {
        let judged = |state| {
            port(&Port {
                key: "server.listen",
                address: "127.0.0.1:8080".parse().expect("an address"),
                state,
                own_pid: 7,
            })
        };
        told(&judged(PortState::Free), Status::Ok, "free");
        told(&judged(PortState::Taken(Some((42, "evenkeel".into())))), Status::Ok, "process 42");
        told(&judged(PortState::Taken(Some((42, "nginx".into())))), Status::Fail, "stop process 42");
        told(&judged(PortState::Taken(None)), Status::Fail, "ss -ltnp");
        told(&judged(PortState::Unusable("no such address".into())), Status::Fail, "no such address");
    }

    /// Scenario: memory that is enough, in use by others, too little, unknown.
    /// Guarantees: what cannot ever fit fails; what could, warns.
    #[test]
    fn memory_is_judged() {
        let needs = Needs { memory_bytes: 3 * GIB, ..Needs::default() };
        let judged = |available, total| memory(&Memory { available: Some(available), total: Some(total) }, &needs);
        told(&judged(4 * GIB, 8 * GIB), Status::Ok, "4.0 GiB of 8.0 GiB");
        told(&judged(4 * GIB - 1, 8 * GIB), Status::Warn, "end other programs");
        told(&judged(GIB, 2 * GIB), Status::Fail, "kv_bytes_max");
        told(&memory(&Memory::default(), &needs), Status::Warn, "4.0 GiB are free");
    }

    /// Scenario: fewer cores than threads; no vector instructions. Guarantees: both warn.
    #[test]
    fn cores_are_judged() {
        let needs = Needs { workers: 2, threads: 4, ..Needs::default() };
        told(&cpu(&Cpu { cores: 8, vectors: Some("AVX2") }, &needs), Status::Ok, "AVX2");
        told(&cpu(&Cpu { cores: 2, vectors: Some("AVX2") }, &needs), Status::Warn, "workers.threads");
        told(&cpu(&Cpu { cores: 8, vectors: None }, &needs), Status::Warn, "slow arithmetic");
    }

    /// Scenario: room and speed of a disk, and one that cannot be read or written. Guarantees: classes at their borders.
    #[test]
    fn disks_are_judged() {
        let needs = Needs { log_bytes: GIB, ..Needs::default() };
        let judged = |free: Result<u64, String>, rate: Result<f64, String>| {
            disk(&Disk { folder: "/data".into(), free, write_bytes_per_s: rate }, &needs)
        };
        let good = judged(Ok(2 * GIB), Ok(300e6));
        told(&good[0], Status::Ok, "2.0 GiB free");
        told(&good[1], Status::Ok, "fast: 300 MB/s");
        let tight = judged(Ok(GIB), Ok(60e6));
        told(&tight[0], Status::Warn, "log.retain_bytes");
        told(&tight[1], Status::Ok, "enough");
        let bad = judged(Ok(MIB), Ok(10e6));
        told(&bad[0], Status::Fail, "make room");
        told(&bad[1], Status::Warn, "slow: 10 MB/s");
        let broken = judged(Err("no such file".into()), Err("read-only".into()));
        told(&broken[0], Status::Fail, "no such file");
        told(&broken[1], Status::Fail, "read-only");
    }

    /// Scenario: limits of open files. Guarantees: below what the server needs it fails, below what clients may need it warns.
    #[test]
    fn open_files_are_judged() {
        told(&open_files(None, 4096), Status::Ok, "no limit");
        told(&open_files(Some(1 << 20), 4096), Status::Ok, "1048576");
        told(&open_files(Some(1024), 4096), Status::Warn, "ulimit -n 4608");
        told(&open_files(Some(64), 4096), Status::Fail, "LimitNOFILE=4608");
        told(&open_files(Some(1024), u64::MAX), Status::Warn, "fewer connections");
    }

    /// Scenario: a clock never set, turned back, slow to read, good. Guarantees: each is told apart.
    #[test]
    fn clocks_are_judged() {
        let good = Clock { now_s: 2_000_000_000, source: Some("tsc".into()), log_ahead: Some(Duration::from_secs(1)) };
        told(&clock(&good), Status::Ok, "tsc");
        told(&clock(&Clock { now_s: 12, ..good.clone() }), Status::Fail, "timedatectl");
        told(
            &clock(&Clock { log_ahead: Some(Duration::from_secs(3600)), ..good.clone() }),
            Status::Warn,
            "turned back",
        );
        told(&clock(&Clock { source: Some("hpet".into()), ..good.clone() }), Status::Warn, "clocksource=tsc");
        told(&clock(&Clock { source: None, ..good }), Status::Ok, "set");
    }

    /// Scenario: shared memory and GPUs, whole and in part. Guarantees: halves of a driver warn, nothing at all is fine.
    #[test]
    fn shared_memory_and_gpus_are_judged() {
        let needs = Needs { l2_bytes: GIB, ..Needs::default() };
        told(&shared_memory(Ok(2 * GIB), &needs), Status::Ok, "2.0 GiB");
        told(&shared_memory(Ok(64 * MIB), &needs), Status::Warn, "--shm-size=1073741824");
        told(&shared_memory(Err("absent".into()), &needs), Status::Warn, "absent");
        let (device, library) = (vec!["nvidia0".to_string()], Some(PathBuf::from("libcuda.so.1")));
        told(&gpu(&Gpu::default()), Status::Ok, "none");
        told(&gpu(&Gpu { library: library.clone(), ..Gpu::default() }), Status::Warn, "--gpus all");
        told(&gpu(&Gpu { devices: device.clone(), ..Gpu::default() }), Status::Warn, "no libcuda.so.1");
        told(&gpu(&Gpu { devices: device, library, driver: Some("550.1".into()) }), Status::Ok, "550.1");
    }
}
