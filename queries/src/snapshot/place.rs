//! Where snapshots lie: a folder, or a path in an object store (SPEC E3).
//!
//! Every access goes through `object_store`, so a folder and a bucket behave alike. What a folder needs more: its files are
//! synced to disk before the manifest names them ([`Place::settle`]), and empty folders are removed.
//! Files are read in pieces of [`PIECE_BYTES`], each a request of its own: however large a file is and however slowly it is wanted,
//! no request to a store takes long. Bound: a manifest is read whole, at most [`MANIFEST_BYTES_MAX`].

use std::{path::Path as FilePath, sync::Arc};

use bytes::Bytes;
use futures::{Stream, TryStreamExt, stream};
use object_store::{ObjectStore, ObjectStoreExt, ObjectStoreScheme, PutPayload, local::LocalFileSystem, path::Path};
use url::Url;

use super::{
    SnapshotError,
    manifest::{MANIFEST, Manifest, moment_of},
    store::{self, Kind, Reading, StoreSettings},
};

/// Longest manifest that is read.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a file that are asked for at once.
pub const PIECE_BYTES: u64 = 8 << 20;

/// A folder or a path in an object store.
#[derive(Debug, Clone)]
pub struct Place {
    store: Arc<dyn ObjectStore>,
    root: Path,
    shown: String,
    side: Side,
}

/// Whose store it is.
#[derive(Debug, Clone)]
enum Side {
    /// A folder of this machine.
    Folder,
    Cloud(Reading),
    Given,
}

impl Place {
    /// The place that a path or a URL names. Nothing is created and nothing asked for yet.
    pub fn open(location: &str, settings: &StoreSettings) -> Result<Place, SnapshotError> {
        let wrong = |detail: String| SnapshotError::Target { location: store::without_secrets(location), detail };
        let (url, scheme) = address(location).map_err(wrong)?;
        let Some(kind) = Kind::of(&scheme) else {
            let path = url.to_file_path().map_err(|()| wrong("a file URL has a path and no host".to_string()))?;
            let root = Path::from_absolute_path(&path).map_err(|error| wrong(error.to_string()))?;
            let shown = path.to_string_lossy().trim_end_matches('/').to_string();
            return Ok(Place { store: Arc::new(LocalFileSystem::new()), root, shown, side: Side::Folder });
        };
        let (_, path) = ObjectStoreScheme::parse(&url).map_err(|error| wrong(error.to_string()))?;
        let root = Path::parse(path).map_err(|error| wrong(error.to_string()))?;
        let (store, reading) = store::open(kind, &url, settings)
            .map_err(|detail| SnapshotError::Settings { location: location.to_string(), detail })?;
        Ok(Place { store, root, shown: location.trim_end_matches('/').to_string(), side: Side::Cloud(reading) })
    }

    /// Whether `location` is a path or a URL of a kind that is known. What else a store wants is seen when it is opened.
    pub fn check(location: &str) -> Result<(), SnapshotError> {
        let wrong = |detail: String| SnapshotError::Target { location: store::without_secrets(location), detail };
        address(location).map(|_| ()).map_err(wrong)
    }

    /// A path of a store that is there already; `shown` is what errors call it.
    pub fn of(store: Arc<dyn ObjectStore>, root: &str, shown: &str) -> Place {
        Place { store, root: Path::from(root), shown: shown.to_string(), side: Side::Given }
    }

    /// What errors and rows call it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The folder, if it is one of this machine.
    pub fn folder(&self) -> Option<&FilePath> {
        matches!(self.side, Side::Folder).then(|| FilePath::new(&self.shown))
    }

    pub(super) fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Below this one.
    pub fn inside(&self, name: &str) -> Place {
        Place { root: self.root.clone().join(name), shown: format!("{}/{name}", self.shown), ..self.clone() }
    }

    /// The place around it and its own name there; `None` at the top of a store.
    pub(super) fn outside(&self) -> Option<(Place, String)> {
        let mut parts: Vec<_> = self.root.parts().collect();
        let last = parts.pop()?.as_ref().to_string();
        let shown = self.shown.rsplit_once('/').map_or("", |(before, _)| before).to_string();
        Some((Place { root: Path::from_iter(parts), shown, ..self.clone() }, last))
    }

    pub(super) fn path(&self, file: &str) -> Path {
        self.root.clone().join(file)
    }

    pub(super) fn failed(&self, file: &str) -> impl Fn(object_store::Error) -> SnapshotError + use<> {
        let (path, side) = (format!("{}/{file}", self.shown), self.side.clone());
        move |error| {
            let words = match &side {
                Side::Cloud(reading) => reading.explain(&error),
                Side::Folder | Side::Given => error.to_string(),
            };
            SnapshotError::Store { path: path.clone(), words, error: Box::new(error) }
        }
    }

    /// A file's size, and its bytes in order.
    pub async fn read(
        &self,
        file: &str,
    ) -> Result<(u64, impl Stream<Item = Result<Bytes, SnapshotError>> + Send + use<>), SnapshotError> {
        let (path, failed) = (self.path(file), self.failed(file));
        let size = self.store.head(&path).await.map_err(&failed)?.size;
        let store = self.store.clone();
        let pieces = stream::try_unfold(0, move |start: u64| {
            let (store, path, end) = (store.clone(), path.clone(), (start + PIECE_BYTES).min(size));
            async move {
                match start < end {
                    true => Ok(Some((store.get_range(&path, start..end).await?, end))),
                    false => Ok(None),
                }
            }
        });
        Ok((size, pieces.map_err(failed)))
    }

    /// The manifest that lies here, if one does.
    pub async fn manifest(&self) -> Result<Option<Manifest>, SnapshotError> {
        let path = format!("{}/{MANIFEST}", self.shown);
        let found = match self.store.get(&self.path(MANIFEST)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.failed(MANIFEST)(error)),
        };
        if found.meta.size > MANIFEST_BYTES_MAX {
            let detail = format!("it has {} bytes, a manifest has at most {MANIFEST_BYTES_MAX}", found.meta.size);
            return Err(SnapshotError::Damaged { path, detail });
        }
        let bytes = found.bytes().await.map_err(self.failed(MANIFEST))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|source| SnapshotError::Manifest { path, source })
    }

    /// Manifests of all snapshots below this place, oldest first. One that is there and cannot be read is an error: what it
    /// needs is not known.
    pub async fn snapshots(&self) -> Result<Vec<Manifest>, SnapshotError> {
        let mut found = Vec::new();
        for name in self.moments().await? {
            if let Some(manifest) = self.inside(&name).manifest().await? {
                found.push(manifest);
            }
        }
        found.sort_by_key(|manifest| manifest.as_of);
        Ok(found)
    }

    /// Names below this place that are moments, snapshots or not, in rising order.
    pub(super) async fn moments(&self) -> Result<Vec<String>, SnapshotError> {
        let listed = match self.store.list_with_delimiter(Some(&self.root)).await {
            Ok(listed) => listed,
            Err(object_store::Error::NotFound { .. }) => return Ok(Vec::new()),
            Err(error) => return Err(self.failed("")(error)),
        };
        let names = listed.common_prefixes.iter().filter_map(|path| path.filename());
        let mut names: Vec<(i64, String)> =
            names.filter_map(|name| Some((moment_of(name)?, name.to_string()))).collect();
        names.sort();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    /// Whether anything lies here.
    pub(super) async fn is_empty(&self) -> Result<bool, SnapshotError> {
        let mut listed = self.store.list(Some(&self.root));
        match listed.try_next().await {
            Ok(first) => Ok(first.is_none()),
            Err(object_store::Error::NotFound { .. }) => Ok(true),
            Err(error) => Err(self.failed("")(error)),
        }
    }

    /// Writes the manifest, which makes the snapshot visible.
    pub(super) async fn publish(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        let path = format!("{}/{MANIFEST}", self.shown);
        let mut text =
            serde_json::to_vec_pretty(manifest).map_err(|source| SnapshotError::Manifest { path, source })?;
        text.push(b'\n');
        let put = self.store.put(&self.path(MANIFEST), PutPayload::from(text)).await;
        put.map_err(self.failed(MANIFEST))?;
        self.settle(MANIFEST)
    }

    /// Has a file of a folder, and the folder, on disk for good. An object store answers only when it has.
    pub(super) fn settle(&self, file: &str) -> Result<(), SnapshotError> {
        let Some(folder) = self.folder() else { return Ok(()) };
        for path in [folder.join(file).as_path(), folder] {
            let synced = std::fs::File::open(path).and_then(|file| file.sync_all());
            synced.map_err(|source| SnapshotError::Io { path: path.display().to_string(), source })?;
        }
        Ok(())
    }

    /// Deletes everything here, the manifest first, so that nobody takes the rest for a snapshot.
    pub async fn delete(&self) -> Result<(), SnapshotError> {
        match self.store.delete(&self.path(MANIFEST)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(self.failed(MANIFEST)(error)),
        }
        let listed: Vec<_> = self.store.list(Some(&self.root)).try_collect().await.map_err(self.failed(""))?;
        for object in listed {
            match self.store.delete(&object.location).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(self.failed("")(error)),
            }
        }
        if let Some(folder) = self.folder() {
            // What is not ours stays, and the folder with it.
            let _ = std::fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// A path or a URL as a URL of a kind that is known.
fn address(location: &str) -> Result<(Url, ObjectStoreScheme), String> {
    if location.trim().is_empty() {
        return Err("it is empty".to_string());
    }
    if !location.contains("://") {
        let path = std::path::absolute(location).map_err(|error| error.to_string())?;
        let url = Url::from_directory_path(path).map_err(|()| "the path is not absolute".to_string())?;
        return Ok((url, ObjectStoreScheme::Local));
    }
    let url = Url::parse(location).map_err(|error| error.to_string())?;
    let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|error| error.to_string())?;
    store::check_no_secret(&url, &scheme)?;
    Path::parse(&path).map_err(|error| error.to_string())?;
    match scheme == ObjectStoreScheme::Local || Kind::of(&scheme).is_some() {
        true => Ok((url, scheme)),
        false => Err(format!("snapshots cannot be written to {}", url.scheme())),
    }
}
