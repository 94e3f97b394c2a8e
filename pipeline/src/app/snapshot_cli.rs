//! `evenkeel snapshot`: has a server write one and fetches its files, or lists those that are there (SPEC E3).
//!
//! Invariant: files are checked against the manifest's sizes and checksums as they come, and the manifest is written last, so a
//! folder with a manifest is complete. Memory: a chunk of a file at a time.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail, ensure};
use queries::snapshot::{MANIFEST, Manifest, Place};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{offline::moment, remote::Server, snapshot_routes::summary, snapshots::store_settings};
use crate::config::{self, Overrides};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SnapshotArgs {
    #[command(subcommand)]
    command: Option<SnapshotCommand>,
    /// Folder for the files; must not exist or be empty
    #[arg(long, required_unless_present = "remote")]
    out: Option<PathBuf>,
    /// Leave the snapshot in the server's target, and go on from the one before if the server's settings or --incremental say so
    #[arg(long, conflicts_with = "out")]
    remote: bool,
    /// Write only what came since the snapshot before
    #[arg(long, requires = "remote")]
    incremental: bool,
    /// Another target of the server; one of its snapshots.allow_targets
    #[arg(long, requires = "remote")]
    target: Option<String>,
    /// Tables, separated by commas; all without it
    #[arg(long, value_delimiter = ',')]
    tables: Option<Vec<String>>,
    #[command(flatten)]
    server: Server,
}

#[derive(Debug, clap::Subcommand)]
enum SnapshotCommand {
    /// List snapshots, newest first: those of a running server, or of a folder or URL
    List {
        /// A folder or URL to look into, instead of asking a server
        #[arg(long = "in", value_name = "FOLDER_OR_URL")]
        place: Option<String>,
        /// Another target of the server
        #[arg(long, conflicts_with = "place")]
        target: Option<String>,
        #[command(flatten)]
        server: Server,
    },
}

pub fn run(args: SnapshotArgs) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match (&args.command, &args.out) {
        (Some(SnapshotCommand::List { place: Some(location), .. }), _) => {
            let stores = store_settings(&config::load(None, Overrides::default())?.snapshots);
            let found = runtime.block_on(Place::open(location, &stores)?.snapshots())?;
            let lines: Vec<Value> = found.iter().rev().map(summary).collect();
            print(&lines)
        }
        (Some(SnapshotCommand::List { place: None, target, server }), _) => {
            let path = match target {
                Some(target) => format!("/snapshots?{}", asking("target", target)?),
                None => "/snapshots".to_string(),
            };
            let request = server.request(reqwest::Method::GET, &path);
            let listed: Value = serde_json::from_slice(&runtime.block_on(server.send(request))?)?;
            print(listed["snapshots"].as_array().map_or(&[][..], Vec::as_slice))
        }
        (None, Some(folder)) => runtime.block_on(fetch(&args, folder)),
        (None, None) => {
            let made = runtime.block_on(order(&args, args.incremental.then_some(true)))?;
            let written = &made["written"];
            let (files, rows) = (&written["files"], &written["rows"]);
            println!("{files} files, {rows} rows in {}", made["location"].as_str().unwrap_or_default());
            Ok(())
        }
    }
}

/// A field as it stands behind the `?` of a URL.
fn asking(name: &str, value: &str) -> anyhow::Result<String> {
    let url = reqwest::Url::parse_with_params("http://localhost/", [(name, value)])?;
    Ok(url.query().unwrap_or_default().to_string())
}

fn print(snapshots: &[Value]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{:<18} {:<27} {:<18} {:>5} {:>12} {:>12} {:>14}",
        "NAME", "AS OF", "BASE", "CHAIN", "ROWS", "OWN ROWS", "OWN BYTES"
    )?;
    for one in snapshots {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let base = if one["base"].is_null() { "-".to_string() } else { text(&one["base"]) };
        writeln!(
            out,
            "{:<18} {:<27} {:<18} {:>5} {:>12} {:>12} {:>14}",
            text(&one["name"]),
            moment(one["as_of"].as_i64().unwrap_or(0)),
            base,
            text(&one["chain"]),
            text(&one["rows"]),
            text(&one["written"]["rows"]),
            text(&one["written"]["bytes"]),
        )?;
    }
    Ok(())
}

/// Has the server write a snapshot and answers with what it says of it.
async fn order(args: &SnapshotArgs, incremental: Option<bool>) -> anyhow::Result<Value> {
    let wish = json!({"target": args.target, "tables": args.tables, "incremental": incremental});
    let request = args.server.request(reqwest::Method::POST, "/snapshots").json(&wish);
    serde_json::from_slice(&args.server.send(request).await?).context("the server's answer is not JSON")
}

/// A whole snapshot, its files in `folder`.
async fn fetch(args: &SnapshotArgs, folder: &Path) -> anyhow::Result<()> {
    let is_occupied = folder.read_dir().is_ok_and(|mut entries| entries.next().is_some());
    ensure!(!is_occupied, "--out {}: expected a folder that does not exist or is empty", folder.display());
    std::fs::create_dir_all(folder).with_context(|| format!("--out {}: cannot create the folder", folder.display()))?;
    let made = order(args, Some(false)).await?;
    let manifest: Manifest = serde_json::from_value(made["manifest"].clone()).context("the server sent no manifest")?;
    let mut files = 0;
    for file in manifest.own_parts().flat_map(|part| &part.files) {
        let plain = Path::new(&file.name).file_name().filter(|plain| *plain == file.name.as_str());
        let plain = plain.context("the server named a file with a path")?;
        let path = format!("/snapshots/{}/{}", manifest.name, file.name);
        let sum = download(&args.server, &path, &folder.join(plain)).await?;
        if sum != file.sha256 {
            bail!("{}: it came with SHA-256 {sum}, the manifest says {}", file.name, file.sha256);
        }
        files += 1;
    }
    let text = serde_json::to_string_pretty(&manifest)?;
    let path = folder.join(MANIFEST);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{} files, {} rows in {}", files + 1, manifest.rows(), folder.display());
    Ok(())
}

/// Fetches one file and answers with its SHA-256.
async fn download(server: &Server, path: &str, target: &Path) -> anyhow::Result<String> {
    let mut response = server.answer(server.request(reqwest::Method::GET, path)).await?;
    let mut file = std::fs::File::create(target).with_context(|| format!("cannot write {}", target.display()))?;
    let mut sum = Sha256::new();
    while let Some(chunk) = response.chunk().await? {
        sum.update(&chunk);
        file.write_all(&chunk).with_context(|| format!("cannot write {}", target.display()))?;
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
