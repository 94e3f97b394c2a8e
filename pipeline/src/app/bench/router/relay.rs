//! The least that anything between client and worker can cost: bytes go on as they come, unread.
//!
//! Each connection of a client gets one of its own to a worker, in turns. No HTTP is parsed, nothing is decided or recorded: what is
//! left is the kernel's part and waking up, which every router pays, too.
//! Two threads, as the routers have. State: two buffers a connection.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

#[derive(clap::Args)]
pub struct RelayOptions {
    #[arg(long)]
    port: u16,
    /// Where bytes go
    #[arg(long, required = true)]
    worker: Vec<SocketAddr>,
}

/// Relays until it is killed.
pub fn run(options: &RelayOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (workers, next) = (options.worker.clone(), Arc::new(AtomicUsize::new(0)));
    runtime.block_on(async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, options.port))).await?;
        loop {
            let (client, _) = listener.accept().await?;
            let worker = workers[next.fetch_add(1, Ordering::Relaxed) % workers.len()];
            // A side that left ends the other.
            tokio::spawn(relay(client, worker));
        }
    })
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
}
