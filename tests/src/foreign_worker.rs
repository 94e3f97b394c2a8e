//! An engine of somebody else, as far as HTTP shows it: answers, fails, stalls or talks nonsense as a test says.
//!
//! It speaks plain sockets, so that a test sees the bytes that came and can cut an answer anywhere. It ends when the value
//! drops. Memory: all requests, so for tests only.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// What it does with an inference request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    Answers,
    /// Reads the request and closes.
    Closes,
    /// Says so many events of a stream, half of the next, and closes.
    Breaks(usize),
    /// Says one event and no more.
    Stalls,
    /// 503.
    IsBusy,
    /// 500.
    IsBroken,
    /// 400.
    Refuses,
    /// 200 with a page instead of JSON.
    TalksNonsense,
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    pub head: String,
    pub body: String,
}

struct State {
    manner: Mutex<Manner>,
    model: String,
    seen: Mutex<Vec<Seen>>,
    /// Streams whose reader left before their end.
    hang_ups: AtomicUsize,
    connections: AtomicUsize,
}

/// See the file's header.
pub struct ForeignWorker {
    pub url: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

/// Body of a whole answer.
pub const WHOLE: &str = r#"{"id":"x-1",  "object":"text_completion","choices":[{"index":0,"text":" a b","finish_reason":"length","odd":1}],"usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":4}}}"#;
/// Body of a refusal.
pub const REFUSAL: &str = r#"{"error":{"message":"not with me","type":"bad","param":null,"code":7}}"#;
/// Events of a stream.
pub const EVENTS: usize = 5;

/// Event `number` of a stream, the last ones included.
pub fn event(number: usize) -> String {
    match number {
        0..4 => format!("data: {{\"id\":\"x\",\"choices\":[{{\"text\":\" t{number}\",\"finish_reason\":null}}]}}\n\n"),
        4 => "data: {\"id\":\"x\",\"choices\":[{\"text\":\"\",\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":11,\
              \"completion_tokens\":4}}\n\n"
            .into(),
        _ => "data: [DONE]\n\n".into(),
    }
}

/// A whole stream.
pub fn stream() -> String {
    (0..=EVENTS).map(event).collect()
}

impl ForeignWorker {
    /// Listens on a free port of the loopback address.
    pub async fn start(model: &str) -> ForeignWorker {
        ForeignWorker::start_at(model, 0).await
    }

    pub async fn start_at(model: &str, port: u16) -> ForeignWorker {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let state = Arc::new(State {
            manner: Mutex::new(Manner::Answers),
            model: model.into(),
            seen: Mutex::default(),
            hang_ups: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
        });
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let state = shared.clone();
                connections.spawn(async move { drop(serve(stream, &state).await) });
            }
        });
        ForeignWorker { url, state, task }
    }

    pub fn port(&self) -> u16 {
        self.url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
    }

    pub fn set(&self, manner: Manner) {
        *self.state.manner.lock().unwrap() = manner;
    }

    /// Inference requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    pub fn hang_ups(&self) -> usize {
        self.state.hang_ups.load(Ordering::SeqCst)
    }

    /// Connections so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl Drop for ForeignWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let Some(seen) = read_request(&mut stream, &mut buffer).await? else { return Ok(()) };
        if seen.head.starts_with("GET /health") {
            respond(&mut stream, "200 OK", "").await?;
            continue;
        }
        if seen.head.starts_with("GET /v1/models") {
            let list =
                format!("{{\"object\":\"list\",\"data\":[{{\"id\":\"{}\",\"object\":\"model\"}}]}}", state.model);
            respond(&mut stream, "200 OK", &list).await?;
            continue;
        }
        let streams = seen.body.contains("\"stream\": true") || seen.body.contains("\"stream\":true");
        state.seen.lock().unwrap().push(seen);
        let manner = *state.manner.lock().unwrap();
        match manner {
            Manner::Closes => return Ok(()),
            Manner::IsBusy => respond(&mut stream, "503 Service Unavailable", "{}").await?,
            Manner::IsBroken => respond(&mut stream, "500 Internal Server Error", "{}").await?,
            Manner::Refuses => respond(&mut stream, "400 Bad Request", REFUSAL).await?,
            Manner::TalksNonsense => respond(&mut stream, "200 OK", "<html>").await?,
            Manner::Breaks(_) if !streams => {
                stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{")
                    .await?;
                return Ok(());
            }
            _ if !streams => respond(&mut stream, "200 OK", WHOLE).await?,
            _ => {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nx-engine: e\r\n\r\n").await?;
                match manner {
                    Manner::Breaks(count) => {
                        for number in 0..count {
                            chunk(&mut stream, &event(number)).await?;
                        }
                        let next = event(count);
                        return chunk(&mut stream, &next[..next.len() / 2]).await;
                    }
                    Manner::Stalls => {
                        chunk(&mut stream, &event(0)).await?;
                        // Nothing more comes from a client but the end of its connection.
                        let left = stream.read(&mut [0; 16]).await;
                        if !matches!(left, Ok(1..)) {
                            state.hang_ups.fetch_add(1, Ordering::SeqCst);
                        }
                        return Ok(());
                    }
                    _ => {
                        for number in 0..=EVENTS {
                            chunk(&mut stream, &event(number)).await?;
                        }
                        stream.write_all(b"0\r\n\r\n").await?;
                    }
                }
            }
        }
    }
}

async fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await
}

async fn respond(stream: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).await
}

/// The next request; `None` at the end of the connection.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Seen>> {
    loop {
        let text = String::from_utf8_lossy(buffer).into_owned();
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase().replacen("get ", "GET ", 1);
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
            if rest.len() >= length {
                let seen = Seen { head: head.clone(), body: rest[..length].to_string() };
                *buffer = rest.as_bytes()[length..].to_vec();
                return Ok(Some(seen));
            }
        }
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await?;
        if count == 0 {
            return Ok(None);
        }
        buffer.extend_from_slice(&piece[..count]);
    }
}
