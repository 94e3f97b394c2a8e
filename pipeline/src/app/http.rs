//! Connections: how many, how slow a client may be, and how they end.
//!
//! Bounds: `connections_max` at once (further ones wait in the listen backlog), `header_timeout` for a request's headers, then
//! `server.body_max` for its body. A client that closes its sending side counts as gone: its request is cancelled. At the
//! end running answers may finish for `drain_timeout`, then they are cut.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::CancellationToken;

use crate::config;

/// The address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({key}): {source}{}", hint(.source))]
pub struct ListenError {
    pub key: &'static str,
    pub address: SocketAddr,
    pub source: std::io::Error,
}

fn hint(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => "; another process has it: stop that one or choose another port",
        std::io::ErrorKind::PermissionDenied => "; ports below 1024 need rights: choose another port",
        std::io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}

/// Takes the address, with an error that names the setting.
pub async fn listen(key: &'static str, address: SocketAddr) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address).await.map_err(|source| ListenError { key, address, source })
}

/// The next connection, with a place to be held while it lasts; `None` after `stop`. Without a free place nobody is let in.
pub(super) async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let place = tokio::select! {
        _ = stop.cancelled() => return None,
        place = places.clone().acquire_owned() => place.expect("invariant: the places are never closed"),
    };
    loop {
        let accepted = tokio::select! {
            _ = stop.cancelled() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => return Some((stream, place)),
            Err(error) => {
                // Out of file handles, say: the connections that are there must end first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// Serves until `stop`, then drains.
pub async fn serve(listener: TcpListener, router: Router, config: &config::Server, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(config.connections_max.max(1)));
    let graceful = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(config.header_timeout).half_close(false);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(20)));
    while let Some((stream, place)) = accept(&listener, &places, &stop).await {
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    if tokio::time::timeout(config.drain_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("some connections did not end within server.drain_timeout; they are cut");
    }
}
