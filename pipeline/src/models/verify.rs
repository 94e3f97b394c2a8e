//! Is this file the one the catalogue means?
//!
//! The answer costs a pass over the file (about half a second for 100 MB), so a good one is kept beside the file in
//! `<file>.verified` with the file's size and time of change; while both still hold it is believed.
//! Invariant: a wrong or unreadable note only costs a new pass. No state in memory.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{catalogue::ModelEntry, progress::Progress};

const CHUNK_BYTES: usize = 1 << 20;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    sha256: String,
    bytes: u64,
    changed_us: u64,
}

/// What was found under a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is no such file.
    Absent,
    Good,
    /// It is another file; the text says in what.
    Different(String),
}

/// Compares the file with the entry, by the note if it still holds, else byte by byte.
pub fn verify(path: &Path, entry: &ModelEntry, progress: &dyn Progress) -> io::Result<Verdict> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Verdict::Absent),
        Err(error) => return Err(error),
    };
    if metadata.len() != entry.bytes {
        return Ok(Verdict::Different(format!("{} bytes; expected {}", metadata.len(), entry.bytes)));
    }
    let note = Note { sha256: entry.sha256.clone(), bytes: metadata.len(), changed_us: changed_us(&metadata) };
    if read_note(path).is_some_and(|kept| kept == note) {
        return Ok(Verdict::Good);
    }
    let found = sha256_of(path, progress)?;
    if found != entry.sha256 {
        return Ok(Verdict::Different(format!("sha256 {found}; expected {}", entry.sha256)));
    }
    // Without the note the next start hashes again; that is all.
    if let Ok(text) = serde_json::to_vec(&note) {
        let _ = fs::write(note_path(path), text);
    }
    Ok(Verdict::Good)
}

fn changed_us(metadata: &fs::Metadata) -> u64 {
    let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    u64::try_from(changed.as_micros()).unwrap_or(u64::MAX)
}

fn note_path(path: &Path) -> PathBuf {
    super::pull::with_suffix(path, ".verified")
}

fn read_note(path: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(note_path(path)).ok()?).ok()
}

/// The file's SHA-256 in hex.
pub fn sha256_of(path: &Path, progress: &dyn Progress) -> io::Result<String> {
    let mut file = File::open(path)?;
    progress.begin("verifying", file.metadata()?.len());
    let mut digest = Sha256::new();
    let mut chunk = vec![0u8; CHUNK_BYTES];
    loop {
        let count = file.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        digest.update(&chunk[..count]);
        progress.advance(count as u64);
    }
    progress.end();
    Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
