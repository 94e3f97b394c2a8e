//! Where recorded workloads and golden references are. They lie beside the checkout for the team and for CI, and not on a
//! user's machine: a test that needs one and does not find it prints `SKIPPED (…)` and passes.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::repository::root;

/// A file of the shared data (`data/mooncake/…`, `golden/…`), from `EVENKEEL_DATA` or the folder `shared` beside the
/// checkout. `None` after printing why, if it is absent.
pub fn find(relative: &str) -> Option<PathBuf> {
    let beside = root().parent().map(|parent| parent.join("shared"));
    let folders = [env::var_os("EVENKEEL_DATA").map(PathBuf::from), beside];
    let found = folders.into_iter().flatten().map(|folder| folder.join(relative)).find(|path| path.exists());
    if found.is_none() {
        println!("SKIPPED (no shared data: {relative}; set EVENKEEL_DATA)");
    }
    found
}

/// The default model's file, from `EVENKEEL_MODEL` or the models folder. `None` after printing why, if it is absent.
pub fn model() -> Option<PathBuf> {
    let pulled = pipeline::config::home_dir().join("models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf");
    let given = env::var_os("EVENKEEL_MODEL").map(PathBuf::from);
    let found = given.into_iter().chain([pulled]).find(|path: &PathBuf| Path::exists(path));
    if found.is_none() {
        println!("SKIPPED (no model file: run `evenkeel models pull smollm2-135m`, or set EVENKEEL_MODEL)");
    }
    found
}
