//! Asks the server: its live stream, and every [`BESIDE_PAUSE`] what the stream does not have. When the server is away it says so
//! and tries again every [`AGAIN`].
//!
//! A stream that says nothing for [`SILENCE_MAX`] counts as away (the server sends a comment every ten seconds). Runs on a
//! thread of its own until the receiver is gone or this process is told to end.

use std::{sync::mpsc::SyncSender, thread::JoinHandle, time::Duration};

use anyhow::{Context, bail};
use futures::StreamExt;
use serde_json::{Value, json};

use super::{
    events::Events,
    fleet::{Beside, Fleet, HITS_QUERY, TIERS_QUERY},
};
use crate::app::{remote::Server, serve::told_to_end};

const AGAIN: Duration = Duration::from_secs(1);
const BESIDE_PAUSE: Duration = Duration::from_secs(2);
const SILENCE_MAX: Duration = Duration::from_secs(25);
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Something for the screen.
#[derive(Debug)]
pub enum News {
    Fleet(Box<Fleet>),
    Beside(Beside),
    /// Why nothing comes.
    Away(String),
}

/// Starts asking. The thread drops `news` when a signal asks for the end.
pub fn start(server: Server, news: SyncSender<News>) -> anyhow::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = async { tokio::join!(live(&server, &news), beside(&server, &news)) } => {}
                () = told_to_end() => {}
            }
        });
    };
    Ok(std::thread::Builder::new().name("top-feed".into()).spawn(work)?)
}

/// `false`: nobody looks any more. News that find no room are lost: newer ones come.
fn tell(news: &SyncSender<News>, what: News) -> bool {
    !matches!(news.try_send(what), Err(std::sync::mpsc::TrySendError::Disconnected(_)))
}

async fn live(server: &Server, news: &SyncSender<News>) {
    loop {
        let why = match stream(server, news).await {
            Ok(()) => return,
            Err(error) => format!("{error:#}"),
        };
        if !tell(news, News::Away(why)) {
            return;
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Until it breaks (`Err`) or nobody looks (`Ok`).
async fn stream(server: &Server, news: &SyncSender<News>) -> anyhow::Result<()> {
    let request = server.request(reqwest::Method::GET, "/v1/live").send();
    let response = tokio::time::timeout(ANSWER_MAX, request).await.context("no answer")?;
    let response = response.map_err(|error| match error.is_connect() {
        true => anyhow::anyhow!("no server answers"),
        false => anyhow::Error::new(error),
    })?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 => bail!("the server wants a key: give --key, or set EVENKEEL_KEY"),
        404 => bail!("what answers there is no evenkeel: it has no /v1/live"),
        status => bail!("the server answers {status}"),
    }
    let (mut pieces, mut events) = (response.bytes_stream(), Events::default());
    loop {
        let piece = tokio::time::timeout(SILENCE_MAX, pieces.next()).await.context("the stream fell silent")?;
        let piece = piece.context("the stream ended: the server stopped")?.context("the stream broke")?;
        for fleet in events.push(&piece).iter().filter_map(|data| Fleet::read(data)) {
            if !tell(news, News::Fleet(Box::new(fleet))) {
                return Ok(());
            }
        }
    }
}

async fn beside(server: &Server, news: &SyncSender<News>) {
    loop {
        // Where these cannot be had the screen shows none; that the server is away the stream says.
        let tiers = rows(server, TIERS_QUERY).await.unwrap_or_default();
        let hits = rows(server, HITS_QUERY).await.unwrap_or_default();
        let metrics = get(server.request(reqwest::Method::GET, "/metrics")).await.unwrap_or_default();
        if !tell(news, News::Beside(Beside::read(&tiers, &hits, &metrics))) {
            return;
        }
        tokio::time::sleep(BESIDE_PAUSE).await;
    }
}

async fn rows(server: &Server, query: &str) -> anyhow::Result<Value> {
    let request = server.request(reqwest::Method::POST, "/sql").json(&json!({"query": query}));
    Ok(serde_json::from_str(&get(request).await?)?)
}

async fn get(request: reqwest::RequestBuilder) -> anyhow::Result<String> {
    Ok(request.timeout(ANSWER_MAX).send().await?.error_for_status()?.text().await?)
}
