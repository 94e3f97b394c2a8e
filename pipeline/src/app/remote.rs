//! A running server as the tools see it, and `evenkeel snapshot`.
//!
//! They use the same doors as everybody else. Blocking at the edges: each runs one request on a runtime of its own.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::prompt::Ask;

/// How `evenkeel sql` prints an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Aligned columns
    Table,
    /// An array of row objects
    Json,
    Csv,
    /// An Arrow IPC stream, for a file or a pipe
    Arrow,
}

/// A server and how to talk to it.
#[derive(Debug, Clone, clap::Args)]
pub struct Server {
    /// Where the server listens
    #[arg(long, env = "EVENKEEL_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// API key, if the server asks for one
    #[arg(long, env = "EVENKEEL_KEY", hide_env_values = true)]
    pub key: Option<String>,
}

impl Server {
    pub(super) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let request = reqwest::Client::new().request(method, format!("{}{path}", self.url.trim_end_matches('/')));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Vec<u8>> {
        let response = request.send().await.with_context(|| {
            format!("no server answers at {}; start one with `evenkeel serve`, or give --url", self.url)
        })?;
        let status = response.status();
        let body = response.bytes().await?.to_vec();
        if status.is_success() {
            return Ok(body);
        }
        let error: Option<Value> = serde_json::from_slice(&body).ok();
        match error.as_ref().and_then(|error| error["error"]["message"].as_str()) {
            Some(message) => bail!("{message}"),
            None => bail!("{status}: {}", String::from_utf8_lossy(&body)),
        }
    }
}

#[async_trait]
impl Ask for Server {
    async fn body(&self, query: &str, format: Format) -> anyhow::Result<Vec<u8>> {
        let accept = match format {
            Format::Table | Format::Arrow => "application/vnd.apache.arrow.stream",
            Format::Json => "application/json",
            Format::Csv => "text/csv",
        };
        let request = self.request(reqwest::Method::POST, "/sql").header("accept", accept);
        self.send(request.json(&json!({"query": query}))).await
    }

    fn name(&self) -> String {
        format!("the live tables of {}", self.url)
    }
}

/// Has the server write a snapshot and fetches its files into `folder`, which must not exist or be empty.
pub fn snapshot(server: &Server, folder: &Path) -> anyhow::Result<()> {
    if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("--out {}: expected a folder that does not exist or is empty", folder.display());
    }
    std::fs::create_dir_all(folder).with_context(|| format!("--out {}: cannot create the folder", folder.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (files, rows) = runtime.block_on(fetch(server, folder))?;
    println!("{} files, {rows} rows in {}", files, folder.display());
    Ok(())
}

async fn fetch(server: &Server, folder: &Path) -> anyhow::Result<(usize, u64)> {
    let body = server.send(server.request(reqwest::Method::POST, "/snapshots")).await?;
    let made: Value = serde_json::from_slice(&body).context("the server's answer is not JSON")?;
    let (name, manifest) = (made["name"].as_str().unwrap_or_default(), &made["manifest"]);
    let (mut files, mut rows) = (vec!["manifest.json".to_string()], 0);
    for table in manifest["tables"].as_array().into_iter().flatten() {
        rows += table["rows"].as_u64().unwrap_or(0);
        files.extend(table["files"].as_array().into_iter().flatten().filter_map(|f| f.as_str().map(String::from)));
    }
    for file in &files {
        let plain = Path::new(file).file_name().map(PathBuf::from);
        let plain = plain.filter(|plain| plain == Path::new(file)).context("the server named a file with a path")?;
        let bytes = server.send(server.request(reqwest::Method::GET, &format!("/snapshots/{name}/{file}"))).await?;
        std::fs::write(folder.join(plain), bytes).with_context(|| format!("cannot write {file}"))?;
    }
    Ok((files.len(), rows))
}
