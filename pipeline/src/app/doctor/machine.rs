//! Reads the machine. What is not there is unknown, never an error: other checks still say something.
//!
//! Linux tells most of it under /proc and /sys; elsewhere those readings are unknown. Cost: [`PROBE_BYTES`] written and
//! synced, and a pass over each model file that was not verified before.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::judge::{Clock, Cpu, Disk, Gpu, Memory, Model, ModelState, PortState};
use crate::{
    config::{Config, ModelGroup},
    models::{Catalogue, ModelFile, progress::Silent, resolve, verify::verify},
};

/// Written to measure the disk.
pub const PROBE_BYTES: usize = 32 << 20;

pub fn models(config: &Config) -> Vec<Model> {
    let groups = config.groups();
    if groups.iter().all(|group| group.name.is_empty()) {
        let file = ModelState::NoneNeeded("foreign workers serve alone");
        return vec![Model { name: String::new(), file, worker_bytes: 0 }];
    }
    groups.iter().map(|group| model(config, group)).collect()
}

fn model(config: &Config, group: &ModelGroup) -> Model {
    let (file, file_bytes) = match (group.source(), resolve(Catalogue::embedded(), group.source())) {
        ("simulated", _) => (ModelState::NoneNeeded("simulated"), 0),
        (_, Err(error)) => (ModelState::Unknown(error.to_string()), 0),
        (_, Ok(ModelFile::Local { path, .. })) => match fs::metadata(&path) {
            Ok(metadata) => (ModelState::Local(path, metadata.len()), metadata.len()),
            Err(error) => (ModelState::Unreadable(path, error.to_string()), 0),
        },
        (_, Ok(ModelFile::Listed(entry))) => {
            let path = entry.path_in(&config.model.models_dir);
            match verify(&path, entry, &Silent) {
                Ok(verdict) => (ModelState::Listed(path, verdict), entry.bytes),
                Err(error) => (ModelState::Unreadable(path, error.to_string()), entry.bytes),
            }
        }
    };
    let workers = u64::from(group.worker_count(config.workers.count));
    Model { name: group.name.clone(), file, worker_bytes: workers * file_bytes }
}

pub fn port(address: SocketAddr) -> PortState {
    match TcpListener::bind(address) {
        Ok(_) => PortState::Free,
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => PortState::Taken(owner(address.port())),
        Err(error) => PortState::Unusable(error.to_string()),
    }
}

/// The process that listens on the port, as far as this user may know.
fn owner(port: u16) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let inode = tables.iter().find_map(|table| listening_inode(table, port))?;
    let link = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let holds = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == link.as_str());
        if files.flatten().any(holds) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().to_string()));
        }
    }
    None
}

/// From a table as in /proc/net/tcp, the socket that listens on the port.
fn listening_inode(table: &str, port: u16) -> Option<u64> {
    const LISTENS: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, hex) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(hex, 16).ok()? == port && fields.get(3) == Some(&LISTENS);
        is_it.then(|| fields.get(9)?.parse().ok()).flatten()
    })
}

pub fn memory() -> Memory {
    let mut found = meminfo(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let number = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    // A container may have less than its machine.
    if let Some(limit) = number("/sys/fs/cgroup/memory.max") {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        let least = |known: Option<u64>, bound: u64| Some(known.map_or(bound, |known| known.min(bound)));
        found.total = least(found.total, limit);
        found.available = least(found.available, limit.saturating_sub(used));
    }
    found
}

fn meminfo(text: &str) -> Memory {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Memory { available: kib("MemAvailable"), total: kib("MemTotal") }
}

pub fn cpu() -> Cpu {
    Cpu { cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64), vectors: vectors() }
}

#[cfg(target_arch = "x86_64")]
fn vectors() -> Option<&'static str> {
    let known = [
        (std::arch::is_x86_feature_detected!("avx512bw"), "AVX-512"),
        (std::arch::is_x86_feature_detected!("avx2"), "AVX2"),
    ];
    known.into_iter().find_map(|(has, name)| has.then_some(name))
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors() -> Option<&'static str> {
    None
}

/// What is above a relative folder ends with an empty path, which stands for the folder we are in.
fn named(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

pub fn disk(data_dir: &Path) -> Disk {
    let folder = data_dir.ancestors().map(named).find(|folder| folder.is_dir()).unwrap_or(Path::new("/")).to_path_buf();
    let free = rustix::fs::statvfs(&folder).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let write_bytes_per_s = write_rate(&folder).map_err(|error| error.to_string());
    Disk { free: free.map_err(|error| error.to_string()), write_bytes_per_s, folder }
}

fn write_rate(folder: &Path) -> std::io::Result<f64> {
    let mut file = tempfile::tempfile_in(folder)?;
    // Not zeros: some disks keep none of those.
    let chunk: Vec<u8> = (0..1usize << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let started = Instant::now();
    for _ in 0..PROBE_BYTES / chunk.len() {
        file.write_all(&chunk)?;
    }
    file.sync_data()?;
    Ok(PROBE_BYTES as f64 / started.elapsed().as_secs_f64().max(1e-6))
}

pub fn open_files() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

pub fn clock(data_dir: &Path) -> Clock {
    let now = SystemTime::now();
    let source = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource").ok();
    Clock {
        now_s: now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        source: source.map(|text| text.trim().to_string()),
        log_ahead: newest(data_dir).map(|newest| newest.duration_since(now).unwrap_or(Duration::ZERO)),
    }
}

/// When the newest file of the data folder, or of a folder in it, was written.
fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let inner = |entry: fs::DirEntry| {
        let own = entry.metadata().ok()?.modified().ok();
        let below = entry.path().is_dir().then(|| fs::read_dir(entry.path()).ok()).flatten();
        let below = below.into_iter().flatten().flatten().filter_map(|file| file.metadata().ok()?.modified().ok());
        below.chain(own).max()
    };
    entries.filter_map(inner).max()
}

pub fn shared_memory() -> Result<u64, String> {
    let disk = rustix::fs::statvfs("/dev/shm").map_err(|error| error.to_string())?;
    Ok(disk.f_blocks.saturating_mul(disk.f_frsize))
}

pub fn gpu() -> Gpu {
    let devices = fs::read_dir("/dev").into_iter().flatten().flatten();
    let is_device = |name: &String| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let devices = devices.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(is_device).collect();
    let folders = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let usual = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/cuda/compat", "/usr/lib/wsl/lib"];
    let folders = folders.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let library =
        folders.chain(usual.map(PathBuf::from)).map(|folder| folder.join("libcuda.so.1")).find(|path| path.exists());
    Gpu {
        devices,
        library,
        driver: fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| driver(&text)),
    }
}

/// The version in a text as in /proc/driver/nvidia/version.
fn driver(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.lines().next()?.split_whitespace().find(is_version).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Overrides, load},
        models::verify::Verdict,
    };

    /// Scenario: no model file; another file where a fetched one would lie. Guarantees: it is looked for where it is fetched to.
    #[test]
    fn a_model_is_looked_for_where_it_is_fetched_to() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = load(None, Overrides::default()).unwrap();
        config.model.name = "smollm2-135m".into();
        config.model.models_dir = folder.path().into();
        let verdict = || match models(&config).remove(0).file {
            ModelState::Listed(_, verdict) => verdict,
            other => panic!("{other:?}"),
        };
        assert_eq!(verdict(), Verdict::Absent);
        let path = Catalogue::embedded().find("smollm2-135m").unwrap().path_in(folder.path());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "no model").unwrap();
        assert!(matches!(verdict(), Verdict::Different(_)));
    }

    /// Scenario: /proc texts as they are, torn, and empty. Guarantees: what cannot be read is unknown.
    #[test]
    fn torn_texts_are_unknown() {
        let text = "MemTotal:       24576000 kB\nMemFree:         1000 kB\nMemAvailable:   12288000 kB\n";
        assert_eq!(meminfo(text), Memory { available: Some(12_288_000 * 1024), total: Some(24_576_000 * 1024) });
        for bad in ["", "MemTotal: many kB", "MemTotal: 12", "MemTotalX: 1 kB", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(meminfo(bad), Memory::default(), "{bad}");
        }
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 4242 1 0\n\
            1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  0  0 4343 1 0\n";
        assert_eq!(listening_inode(table, 8080), Some(4242));
        assert_eq!(listening_inode(table, 8081), None, "connected, not listening");
        assert_eq!(listening_inode("head\n0: nonsense\n1: a:zz b 0A\n", 8080), None);
        let version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version:";
        assert_eq!(driver(version), Some("550.54.15".into()));
        assert_eq!(driver("nothing here"), None);
    }

    /// Scenario: a port that this test holds, and a free one. Guarantees: the holder is found.
    #[test]
    fn the_holder_of_a_port_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        match port(address) {
            PortState::Taken(Some((pid, _))) => assert_eq!(pid, std::process::id()),
            PortState::Taken(None) => println!("SKIPPED (no /proc/net/tcp)"),
            other => panic!("{other:?}"),
        }
        drop(listener);
        assert_eq!(port(address), PortState::Free);
    }

    /// Scenario: a data folder that does not exist yet. Guarantees: the folder above it is looked at, and nothing is left there.
    #[test]
    fn a_folder_that_is_not_there_yet_is_judged_by_the_one_above() {
        let above = tempfile::tempdir().expect("a folder");
        let found = disk(&above.path().join("not/here"));
        assert_eq!(found.folder, above.path());
        assert!(found.free.is_ok() && found.write_bytes_per_s.is_ok(), "{found:?}");
        assert_eq!(fs::read_dir(above.path()).expect("the folder").count(), 0);
    }
}
