//! Files as the log writes them. A trait, so that a test can fill a disk that is not full (DESIGN §3).

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
};

/// An append-only file.
pub trait SegmentFile: Write + Send + fmt::Debug {
    /// Returns when what was written is on the disk.
    fn sync(&mut self) -> io::Result<()>;
    /// Cuts the file; the next write appends there.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

/// Where segments are written.
pub trait SegmentFs: Send + Sync + fmt::Debug {
    /// A new empty file; one that is there already is emptied.
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations and removals in a folder last.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;
}

/// The machine's file system.
#[derive(Debug, Clone, Copy)]
pub struct DiskFs;

impl SegmentFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

impl SegmentFs for DiskFs {
    fn create(&self, path: &Path) -> io::Result<Box<dyn SegmentFile>> {
        // Append mode, so that after `truncate` writing goes on at the end.
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        file.set_len(0)?;
        Ok(Box::new(file))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}
