//! An engine that costs next to nothing, for routers to be measured in front of: 32 tokens at once, whole or streamed.
//!
//! It keeps a cache of prompt blocks as an engine would (chained hashes of 256 bytes, the oldest leaves first) and says at
//! `/stats` how many it hit; `/reset` empties it and sets its size. One thread, since an engine's own time is not what is
//! measured. `/tokenize` and the render routes answer with made-up ids, which are the same for the same front: a peer asks.
//! Invariant: every token is an event and a chunk of its own. State: the cache, as large as the reset says.

use std::{
    cell::RefCell,
    collections::{HashSet, VecDeque},
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    rc::Rc,
};

use axum::body::Bytes;
use futures::stream;
use http_body_util::{BodyExt, Either, Full, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::LocalSet};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of a block of the cache.
const BLOCK: usize = 256;
/// Tokens of an answer that names no limit.
const TOKENS: usize = 32;

#[derive(clap::Args)]
pub struct WorkerOptions {
    #[arg(long)]
    port: u16,
}

/// What a worker says of itself.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(super) struct Stats {
    pub(super) requests: u64,
    pub(super) blocks: u64,
    pub(super) hit_blocks: u64,
}

#[derive(Default)]
struct Engine {
    stats: Stats,
    held: HashSet<u64>,
    order: VecDeque<u64>,
    blocks_max: usize,
}

#[derive(Deserialize)]
struct Asked {
    #[serde(default)]
    stream: bool,
    max_tokens: Option<usize>,
    #[serde(default)]
    messages: Vec<Message>,
    prompt: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Value,
}

/// Serves until it is killed.
pub fn run(options: &WorkerOptions) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, options.port))).await?;
        let engine = Rc::new(RefCell::new(Engine::default()));
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let engine = engine.clone();
            tokio::task::spawn_local(async move {
                let service = service_fn(move |request| handle(engine.clone(), request));
                // A client that left is no matter.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

type Reply = Response<Either<Full<Bytes>, Events>>;
type Events = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn handle(engine: Rc<RefCell<Engine>>, request: Request<Incoming>) -> Result<Reply, Infallible> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if parts.method == Method::GET {
        return Ok(match path {
            "/v1/models" => {
                reply(json!({"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "mock"}]}))
            }
            "/get_model_info" | "/model_info" => reply(
                json!({"model_path": "mock", "served_model_name": "mock", "tokenizer_path": "mock", "is_generation": true}),
            ),
            "/get_server_info" | "/server_info" => reply(
                json!({"model_path": "mock", "served_model_name": "mock", "tp_size": 1, "dp_size": 1, "version": "mock"}),
            ),
            "/stats" => reply(json!(engine.borrow().stats)),
            _ => reply(json!({"status": "ok"})),
        });
    }
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(status(StatusCode::BAD_REQUEST)),
    };
    Ok(match path {
        "/reset" => {
            let blocks_max = std::str::from_utf8(&body).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
            *engine.borrow_mut() = Engine { blocks_max, ..Engine::default() };
            reply(json!({}))
        }
        "/v1/chat/completions" | "/v1/completions" => match serde_json::from_slice::<Asked>(&body) {
            Ok(asked) => engine.borrow_mut().answer(&asked, path.ends_with("/chat/completions")),
            Err(_) => status(StatusCode::BAD_REQUEST),
        },
        "/tokenize" | "/v1/chat/completions/render" | "/v1/completions/render" => {
            let ids: Vec<u64> = body.chunks(4).map(|chunk| xxh3_64_with_seed(chunk, 0) % 49_152).collect();
            reply(json!({"count": ids.len(), "tokens": ids, "max_model_len": 1 << 20}))
        }
        _ => status(StatusCode::NOT_FOUND),
    })
}

fn status(status: StatusCode) -> Reply {
    let mut response = reply(json!({"error": {"message": status.to_string()}}));
    *response.status_mut() = status;
    response
}

fn reply(value: Value) -> Reply {
    whole(value.to_string().into())
}

fn whole(body: Bytes) -> Reply {
    let mut response = Response::new(Either::Left(Full::new(body)));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

impl Engine {
    fn answer(&mut self, asked: &Asked, is_chat: bool) -> Reply {
        self.stats.requests += 1;
        if self.blocks_max > 0 {
            let texts = asked.messages.iter().map(|message| &message.content).chain(asked.prompt.as_ref());
            let text: String = texts.filter_map(Value::as_str).collect();
            self.touch(text.as_bytes());
        }
        let tokens = asked.max_tokens.unwrap_or(TOKENS);
        let usage = json!({"prompt_tokens": 16, "completion_tokens": tokens, "total_tokens": 16 + tokens});
        if !asked.stream {
            let text = " tok".repeat(tokens);
            let choice = match is_chat {
                true => {
                    json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"})
                }
                false => json!({"index": 0, "text": text, "finish_reason": "length"}),
            };
            let object = if is_chat { "chat.completion" } else { "text_completion" };
            return reply(
                json!({"id": "mock", "object": object, "created": 1, "model": "mock", "choices": [choice], "usage": usage}),
            );
        }
        let event = Bytes::from_static(match is_chat {
            true => b"data: {\"id\":\"chatcmpl-mock\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" tok\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            false => b"data: {\"id\":\"cmpl-mock\",\"object\":\"text_completion\",\"created\":1,\"model\":\"mock\",\"choices\":[{\"index\":0,\"text\":\" tok\",\"logprobs\":null,\"finish_reason\":null}]}\n\n",
        });
        let done = Bytes::from_static(b"data: [DONE]\n\n");
        let events = std::iter::repeat_n(event, tokens).chain([done]).map(|event| Ok(Frame::data(event)));
        let body = StreamBody::new(stream::iter(events.collect::<Vec<_>>()));
        let mut response = Response::new(Either::Right(body));
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/event-stream"));
        response
    }

    /// Looks a prompt's blocks up and takes them in. A block after the first that was missing is no hit.
    fn touch(&mut self, text: &[u8]) {
        let (mut chained, mut is_prefix) = (0, true);
        for block in text.chunks(BLOCK) {
            chained = xxh3_64_with_seed(block, chained);
            self.stats.blocks += 1;
            if !self.held.insert(chained) {
                self.stats.hit_blocks += u64::from(is_prefix);
                continue;
            }
            is_prefix = false;
            self.order.push_back(chained);
            if self.order.len() > self.blocks_max
                && let Some(oldest) = self.order.pop_front()
            {
                self.held.remove(&oldest);
            }
        }
    }
}

/// Held by a test of the bench: what a worker sends is what a router may be judged by.
#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: the same front twice, then more than fits. Guarantees: the second is a hit but for its end; what is oldest
    /// leaves.
    #[test]
    fn fronts_hit() {
        let mut engine = Engine { blocks_max: 4, ..Engine::default() };
        let text = |end: char| -> Vec<u8> { (0..768).map(|at| (at / 256) as u8).chain([end as u8]).collect() };
        engine.touch(&text('a'));
        engine.touch(&text('b'));
        assert_eq!((engine.stats.blocks, engine.stats.hit_blocks, engine.held.len()), (8, 3, 4));
        engine.touch(&text('a'));
        assert_eq!(engine.stats.hit_blocks, 3, "the front's first block was the oldest");
    }

    /// Scenario: an answer of 3 tokens as a stream. Guarantees: an event a token, and the end.
    #[tokio::test]
    async fn a_token_is_an_event() {
        let asked: Asked = serde_json::from_str("{\"stream\":true,\"max_tokens\":3}").unwrap();
        let reply = Engine::default().answer(&asked, false);
        let Either::Right(body) = reply.into_body() else { panic!("a stream") };
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(bytes.windows(6).filter(|bytes| *bytes == b"data: ").count(), 4);
    }
}
