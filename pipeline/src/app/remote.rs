//! A running server as the tools see it: they use the same doors as everybody else.

use std::sync::OnceLock;

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
    /// Made once, so that connections are used again.
    #[arg(skip)]
    client: OnceLock<reqwest::Client>,
}

impl Server {
    #[cfg(test)]
    pub(super) fn at(url: &str) -> Self {
        Server { url: url.into(), key: None, client: OnceLock::new() }
    }

    pub(super) fn request(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let client = self.client.get_or_init(reqwest::Client::new);
        let request = client.request(method, format!("{}{path}", self.url.trim_end_matches('/')));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    pub(super) async fn send(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Vec<u8>> {
        Ok(self.answer(request).await?.bytes().await?.to_vec())
    }

    /// The answer, to be read as it comes; an error in the server's words.
    pub(super) async fn answer(&self, request: reqwest::RequestBuilder) -> anyhow::Result<reqwest::Response> {
        let response = request.send().await.with_context(|| {
            format!("no server answers at {}; start one with `evenkeel serve`, or give --url", self.url)
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = response.bytes().await?;
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
