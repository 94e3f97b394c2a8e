//! The least that anything between client and worker can cost: bytes go on as they come, unread; or, with `--http`, requests and answers
//! that are read as HTTP and as nothing else.
//!
//! Each connection of a client gets one of its own to a worker, in turns; with `--http` each request is for the next worker, by the
//! gateway's own connections. Nothing is decided or recorded: what is left is the kernel's part and waking up, and what the HTTP library
//! takes, which every router pays, too.
//! Two threads, as the routers have. State: two buffers a connection; with `--http` the body of each request and answer.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use axum::{
    body::Body,
    http::{Request, Response, header},
};
use futures::{future::poll_fn, stream::unfold};
use http_body_util::BodyExt;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use crate::{
    config::ForeignWorker,
    gateway::foreign::{Ask, Upstream},
};

const CONNECT: Duration = Duration::from_secs(5);
/// Most bytes of an answer that is read as HTTP.
const ANSWER_MAX: usize = 64 << 20;
/// What the bench asks for.
const PATHS: [&str; 3] = ["/v1/completions", "/v1/chat/completions", "/health"];

#[derive(clap::Args)]
pub struct RelayOptions {
    #[arg(long)]
    port: u16,
    /// Where bytes go
    #[arg(long, required = true)]
    worker: Vec<SocketAddr>,
    /// Reads HTTP
    #[arg(long)]
    http: bool,
}

/// The workers in turns.
struct Turns<T> {
    workers: Vec<T>,
    next: AtomicUsize,
}

impl<T> Turns<T> {
    fn of(workers: Vec<T>) -> Arc<Self> {
        Arc::new(Turns { workers, next: AtomicUsize::new(0) })
    }

    fn take(&self) -> &T {
        &self.workers[self.next.fetch_add(1, Ordering::Relaxed) % self.workers.len()]
    }
}

/// Relays until it is killed.
pub fn run(options: &RelayOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let addresses = Turns::of(options.worker.clone());
    let upstreams: anyhow::Result<Vec<_>> = options.worker.iter().map(upstream).collect();
    let upstreams = Turns::of(upstreams?);
    runtime.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, options.port))).await?;
        loop {
            let (client, _) = listener.accept().await?;
            // A side that left ends the other.
            match options.http {
                true => drop(tokio::spawn(relay_http(client, upstreams.clone()))),
                false => drop(tokio::spawn(relay(client, *addresses.take()))),
            }
        }
    })
}

fn upstream(worker: &SocketAddr) -> anyhow::Result<Arc<Upstream>> {
    let upstream = Upstream::new(&ForeignWorker::at(format!("http://{worker}")), CONNECT);
    upstream.map(Arc::new).context("the worker's address makes no URL")
}

async fn relay_http(client: TcpStream, workers: Arc<Turns<Arc<Upstream>>>) -> anyhow::Result<()> {
    client.set_nodelay(true)?;
    let service = service_fn(|request: Request<Incoming>| {
        let worker = workers.take().clone();
        async move { handed_on(request, &worker).await }
    });
    http1::Builder::new().serve_connection(TokioIo::new(client), service).await?;
    Ok(())
}

/// One request, whole, and its answer, piece by piece.
async fn handed_on(request: Request<Incoming>, worker: &Arc<Upstream>) -> anyhow::Result<Response<Body>> {
    let (mut head, body) = request.into_parts();
    let path = PATHS.iter().find(|path| **path == head.uri.path()).context("a path that nobody measures")?;
    for name in [header::HOST, header::CONTENT_LENGTH, header::CONNECTION] {
        head.headers.remove(name);
    }
    let body = body.collect().await?.to_bytes();
    let mut reply = worker.call(&Ask { method: head.method, path, headers: head.headers, body }).await?;
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = reply.status();
    if let Some(kind) = reply.head.headers.get(header::CONTENT_TYPE) {
        answer.headers_mut().insert(header::CONTENT_TYPE, kind.clone());
    }
    *answer.body_mut() = match reply.head.headers.contains_key(header::CONTENT_LENGTH) {
        true => Body::from(reply.whole(ANSWER_MAX).await?),
        false => Body::from_stream(unfold(Box::new(reply), |mut reply| async move {
            let piece = poll_fn(|cx| reply.poll_piece(cx)).await?;
            Some((piece, reply))
        })),
    };
    Ok(answer)
}

async fn relay(mut client: TcpStream, worker: SocketAddr) -> std::io::Result<()> {
    let mut worker = TcpStream::connect(worker).await?;
    client.set_nodelay(true)?;
    worker.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut worker).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Scenario: a client says something through the relay to a worker that says it back, and leaves.
    /// Guarantees: every byte comes back in order, and the worker sees the client leave.
    #[tokio::test]
    async fn bytes_go_there_and_back() {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (front, back) = (bind().await.unwrap(), bind().await.unwrap());
        let target = back.local_addr().unwrap();
        let worker = tokio::spawn(async move {
            let (mut stream, _) = back.accept().await.unwrap();
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap()
        });
        let mut client = TcpStream::connect(front.local_addr().unwrap()).await.unwrap();
        tokio::spawn(relay(front.accept().await.unwrap().0, target));
        let said: Vec<u8> = (0..100_000u32).map(|byte| byte as u8).collect();
        let (mut reader, mut writer) = client.split();
        let mut heard = vec![0; said.len()];
        let (sent, read) = tokio::join!(writer.write_all(&said), reader.read_exact(&mut heard));
        assert!(sent.is_ok() && read.is_ok() && heard == said);
        drop(client);
        assert_eq!(worker.await.unwrap(), 100_000);
    }

    /// Scenario: a request through the relay that reads HTTP, to a worker that answers with what it was asked; and a path that nobody
    /// measures.
    /// Guarantees: status, type and body come back as the worker sent them, and the worker sees method, path and body; the second ends the
    /// connection.
    #[tokio::test]
    async fn requests_go_there_and_answers_back() {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (front, back) = (bind().await.unwrap(), bind().await.unwrap());
        let workers = Turns::of(vec![upstream(&back.local_addr().unwrap()).unwrap()]);
        tokio::spawn(async move {
            let (stream, _) = back.accept().await.unwrap();
            let echo = service_fn(|request: Request<Incoming>| async move {
                let asked = format!("{} {} ", request.method(), request.uri().path());
                let body = request.into_body().collect().await?.to_bytes();
                let answer = Response::builder().status(418).header(header::CONTENT_TYPE, "text/tea");
                Ok::<_, hyper::Error>(answer.body(Body::from([asked.as_bytes(), &body].concat())).unwrap())
            });
            http1::Builder::new().serve_connection(TokioIo::new(stream), echo).await.unwrap();
        });
        let address = front.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((client, _)) = front.accept().await {
                tokio::spawn(relay_http(client, workers.clone()));
            }
        });
        let client = upstream(&address).unwrap();
        let body = "two sugars".into();
        let ask = Ask { method: Method::POST, body, ..Ask::get("/v1/completions") };
        let mut answer = client.call(&ask).await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), answer.head.headers[header::CONTENT_TYPE].as_bytes()),
            (418, &b"text/tea"[..])
        );
        assert_eq!(answer.whole(ANSWER_MAX).await.unwrap(), "POST /v1/completions two sugars");
        assert!(client.call(&Ask::get("/elsewhere")).await.is_err());
    }
}
