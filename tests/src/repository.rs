//! The source tree as the house-rule tests read it. Cost: one walk over the tracked folders.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders with our own Rust code, one crate each.
pub const CRATES: [&str; 6] = ["kernels", "engine", "operators", "queries", "pipeline", "tests"];

/// Root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("invariant: the crate lies in the checkout").to_path_buf()
}

/// Every `.rs` file of our crates: path relative to the root, and text.
pub fn rust_files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for name in CRATES {
        walk(&root().join(name), &mut files);
    }
    files.sort();
    files
}

fn walk(folder: &Path, files: &mut Vec<(String, String)>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a readable folder entry").path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target" && name != "node_modules") {
                walk(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let relative = path.strip_prefix(root()).expect("invariant: the walk starts below the root");
            files.push((relative.display().to_string(), text));
        }
    }
}
