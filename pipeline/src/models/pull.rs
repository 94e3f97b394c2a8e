//! Fetch a model file once, verify it, put it in place.
//!
//! The file lands as `<file>.partial` in its own folder `<models_dir>/<name>/`, is verified, synced and renamed; what an interrupted
//! pull left behind is removed (the hub's client goes on where it stopped). A lock file lets one process at a time pull a
//! model; a second one waits and then finds the file.
//! Invariant: the path returned names a file with the catalogue's checksum. Cost: the file twice on disk for a moment.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{
    catalogue::{Catalogue, ModelEntry, Source, UnknownModel},
    progress::Progress,
    source::{self, Target},
    verify::{Verdict, verify},
};

/// What to pull.
#[derive(Debug, Clone)]
pub struct PullRequest<'a> {
    pub entry: &'a ModelEntry,
    pub models_dir: &'a Path,
    /// A file to take it from, before all the catalogue's sources.
    pub from: Option<PathBuf>,
}

/// Why there is no model file. The text says what was tried and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(transparent)]
    Unknown(#[from] UnknownModel),
    #[error("model file {}: {problem}", path.display())]
    File { path: PathBuf, problem: String },
    #[error("cannot write {}: {source}; expected a writable folder (set EVENKEEL_HOME or model.models_dir)", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(
        "cannot get model `{name}`:{}\n  a file that you have already: evenkeel models pull {name} --from PATH",
        tried.iter().map(|(place, why)| format!("\n  {place}: {why}")).collect::<String>()
    )]
    NoSource { name: String, tried: Vec<(String, String)> },
}

/// A model as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelFile<'a> {
    /// A file that is there; its name for clients is the file's stem.
    Local { name: String, path: PathBuf },
    /// A model of the catalogue; [`pull`] gives its path.
    Listed(&'a ModelEntry),
}

/// A name of the catalogue, or the path of a .gguf file or of a Hugging Face folder.
pub fn resolve<'a>(catalogue: &'a Catalogue, name_or_path: &str) -> Result<ModelFile<'a>, PullError> {
    let path = Path::new(name_or_path);
    let looks_like_path = name_or_path.contains('/') || path.extension().is_some_and(|ext| ext == "gguf");
    if !looks_like_path {
        return Ok(ModelFile::Listed(catalogue.find(name_or_path)?));
    }
    let refuse = |problem: &str| PullError::File { path: path.into(), problem: problem.into() };
    let metadata = fs::metadata(path).map_err(|error| refuse(&error.to_string()))?;
    let is_folder = metadata.is_dir() && path.join("config.json").is_file();
    if !metadata.is_file() && !is_folder {
        let problem = "not a model; expected a .gguf file, a Hugging Face folder with config.json, or a name from \
                       `evenkeel models list`";
        return Err(refuse(problem));
    }
    // A folder's name may have dots that begin no extension.
    let name = if is_folder { path.file_name() } else { path.file_stem() };
    let name = name.map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(ModelFile::Local { name, path: path.into() })
}

/// The model's verified file; fetched if it is not there. Blocks, for minutes if there is much to fetch.
pub fn pull(request: &PullRequest<'_>, progress: &dyn Progress) -> Result<PathBuf, PullError> {
    let PullRequest { entry, models_dir, from } = request;
    let path = entry.path_in(models_dir);
    if is_good(&path, entry, progress)? {
        return Ok(path);
    }
    let write_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| PullError::Write { path, source }
    };
    let folder = path.parent().unwrap_or(models_dir);
    fs::create_dir_all(folder).map_err(write_error(folder))?;
    let lock_path = with_suffix(&path, ".lock");
    let lock = File::create(&lock_path).map_err(write_error(&lock_path))?;
    if lock.try_lock().is_err() {
        progress.note("another process pulls this model; waiting for it …");
        lock.lock().map_err(write_error(&lock_path))?;
    }
    if is_good(&path, entry, progress)? {
        return Ok(path);
    }
    let partial = with_suffix(&path, ".partial");
    let own = from.iter().map(|path| Source::Path { path: path.clone() });
    let mut tried = Vec::new();
    for source in own.chain(entry.sources.iter().cloned()) {
        progress.note(&format!("trying {} …", source.describe()));
        match attempt(&source, &Target { entry, partial: &partial, progress }) {
            Ok(()) => {
                fs::rename(&partial, &path).map_err(write_error(&path))?;
                // The verdict is kept under the final name: the rename keeps size and time.
                is_good(&path, entry, progress)?;
                return Ok(path);
            }
            Err(why) => {
                progress.note(&format!("  {why}"));
                tried.push((source.describe(), why));
            }
        }
    }
    Err(PullError::NoSource { name: entry.name.clone(), tried })
}

/// Fetches into the partial file and verifies it; on failure nothing is left of it.
fn attempt(source: &Source, target: &Target<'_>) -> Result<(), String> {
    let _ = fs::remove_file(target.partial);
    let result = source::fetch(source, target).and_then(|()| {
        match verify(target.partial, target.entry, target.progress).map_err(|error| error.to_string())? {
            Verdict::Good => Ok(()),
            Verdict::Absent => Err("the file vanished".into()),
            Verdict::Different(how) => Err(format!("another file: {how}")),
        }
    });
    let note = with_suffix(target.partial, ".verified");
    let _ = fs::remove_file(note);
    if result.is_err() {
        let _ = fs::remove_file(target.partial);
    }
    result
}

/// Whether the right file is in place. A wrong one is left there and overwritten by the next good one.
fn is_good(path: &Path, entry: &ModelEntry, progress: &dyn Progress) -> Result<bool, PullError> {
    let verdict = verify(path, entry, progress)
        .map_err(|error| PullError::File { path: path.into(), problem: error.to_string() })?;
    if let Verdict::Different(how) = &verdict {
        progress.note(&format!("{} is damaged or another file ({how}); it is fetched again", path.display()));
    }
    Ok(verdict == Verdict::Good)
}

/// The path with more at the end of its file name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(suffix);
    path.with_file_name(name)
}
