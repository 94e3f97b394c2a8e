//! Clients that hang up, dawdle or send what is not a request.

use std::time::Duration;

use serde_json::json;
use tests::server::{Server, client};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::completion;

/// Scenario: a client reads a few bytes of a long stream and closes the connection.
/// Guarantees: the sequence ends within a few steps, its blocks come back, the request is `cancelled`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hang_up_frees_sequence_and_blocks() {
    let Some(server) = Server::start("").await else { return };
    let mut body = completion("a long story", 480);
    body["stream"] = json!(true);
    let mut response = client().post(format!("{}/v1/completions", server.url)).json(&body).send().await.unwrap();
    response.chunk().await.unwrap().expect("a first piece");
    drop(response);
    let ended =
        server.until("select output_tokens from requests where event = 'cancelled'", |rows| rows.len() == 1).await;
    let after = server
        .until("select blocks_used, decode_tokens from engine_steps order by at desc limit 1", |rows| {
            rows.first().is_some_and(|row| row["blocks_used"] == 0)
        })
        .await;
    assert!(ended[0]["output_tokens"].as_u64() < Some(480), "{ended:?} {after:?}");
    let leased = server.get("/metrics").await.unwrap().text().await.unwrap();
    assert!(leased.lines().filter(|l| l.starts_with("evenkeel_leased_tokens{")).all(|l| l.ends_with(" 0")), "{leased}");
}

async fn answer(server: &Server, request: &[u8]) -> String {
    let mut socket = TcpStream::connect(&server.address).await.unwrap();
    socket.write_all(request).await.unwrap();
    let mut text = Vec::new();
    timeout(Duration::from_secs(20), socket.read_to_end(&mut text)).await.expect("the server ends it").unwrap_or(0);
    String::from_utf8_lossy(&text).into_owned()
}

/// Scenario: headers that never end, half a request and then silence from the sending side, and bytes that are no HTTP.
/// Guarantees: the server ends each connection by itself and serves on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_and_broken_connections_end() {
    let Some(server) = Server::start("[server]\nheader_timeout = \"500ms\"\n").await else { return };
    let slow = answer(&server, b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
    assert!(slow.is_empty() || slow.starts_with("HTTP/1.1 408"), "{slow}");
    let nonsense = answer(&server, b"\x16\x03\x01\x02\x00nonsense\r\n\r\n").await;
    assert!(nonsense.starts_with("HTTP/1.1 400"), "{nonsense}");
    let mut half = TcpStream::connect(&server.address).await.unwrap();
    half.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"model\"").await.unwrap();
    half.shutdown().await.unwrap();
    let mut text = Vec::new();
    let ended = timeout(Duration::from_secs(20), half.read_to_end(&mut text)).await;
    assert!(ended.is_ok(), "a half-closed connection ends");
    assert_eq!(server.get("/health").await.unwrap().status(), 200);
}

/// Scenario: over a real connection: malformed JSON, invalid UTF-8, a body over the limit, an unknown model, a wrong URL.
/// Guarantees: each has its status and a typed body that says what is wrong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_get_typed_errors() {
    let Some(server) = Server::start("[server]\nbody_max = \"4KiB\"\n").await else { return };
    let long = format!("{{\"model\": \"tiny\", \"prompt\": \"{}\"}}", "x".repeat(8192));
    for (path, body, status, code) in [
        ("/v1/completions", b"{\"model\": ".to_vec(), 400, "invalid_json"),
        ("/v1/completions", b"{\"model\": \"\xff\xfe\"}".to_vec(), 400, "invalid_json"),
        ("/v1/completions", long.into_bytes(), 413, "request_too_large"),
        ("/v1/completions", br#"{"model": "other", "prompt": "a"}"#.to_vec(), 404, "model_not_found"),
        ("/v1/nothing", b"{}".to_vec(), 404, "unknown_url"),
        ("/sql", br#"{"query": "selec 1"}"#.to_vec(), 400, "parse"),
        ("/sql", br#"{"query": "delete from requests"}"#.to_vec(), 400, "refused"),
        ("/sql", br#"{"question": "?"}"#.to_vec(), 400, "invalid_json"),
    ] {
        let request = client().post(format!("{}{path}", server.url)).header("content-type", "application/json");
        let response = request.body(body).send().await.unwrap();
        let (got, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(got, status, "{path}: {text}");
        let error: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(error["error"]["code"], code, "{path}: {text}");
    }
}
