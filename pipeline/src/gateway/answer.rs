//! From running sequences to the HTTP answer: a whole body, or server-sent events.
//!
//! The stream is pulled: the next step is taken when the connection can take more, so a slow client holds nothing but its
//! own sequences. A failure after the head was sent is one `data: {"error": …}` event; `data: [DONE]` is always last.

use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use axum::{
    Json,
    body::{Body, Bytes},
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures::stream::unfold;
use serde_json::Value;

use super::{
    best_of::{Sampling, keep_best},
    deps::TextModel,
    error::ApiError,
    running::{Running, Step},
    shape::{Envelope, Gathered},
};

/// Gathers all sequences into one body.
pub async fn whole(
    mut running: Running,
    envelope: &Envelope,
    text: &dyn TextModel,
    sampling: Sampling,
) -> Result<Response, ApiError> {
    let mut gathered = vec![Gathered::default(); sampling.sequences()];
    while let Some(step) = running.next().await {
        let Step::News { choice, news } = step? else { continue };
        gathered[choice].add(news);
    }
    let gathered = keep_best(gathered, sampling);
    Ok(Json(envelope.whole(&gathered, running.usage(), text)).into_response())
}

struct EventStream {
    running: Running,
    envelope: Envelope,
    text: Arc<dyn TextModel>,
    ready: VecDeque<Bytes>,
    /// Characters of each choice sent so far.
    offsets: Vec<usize>,
    is_done: bool,
}

/// The answer as server-sent events.
pub fn stream(running: Running, envelope: Envelope, text: Arc<dyn TextModel>, choices: usize) -> Response {
    let ready = (0..choices).filter_map(|choice| envelope.opening(choice)).map(|chunk| event(&chunk)).collect();
    let state = EventStream { running, envelope, text, ready, offsets: vec![0; choices], is_done: false };
    let body = Body::from_stream(unfold(state, |mut state| async move {
        let bytes = state.next().await?;
        Some((Ok::<_, Infallible>(bytes), state))
    }));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl EventStream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                return Some(bytes);
            }
            if self.is_done {
                return None;
            }
            match self.running.next().await {
                Some(Ok(Step::News { choice, news })) => {
                    let offset = self.offsets[choice];
                    self.offsets[choice] += news.text_chars();
                    let chunks = self.envelope.news(choice, &news, self.text.as_ref(), offset);
                    self.ready.extend(chunks.iter().map(event));
                }
                Some(Ok(Step::Idle)) => return Some(Bytes::from_static(b": waiting\n\n")),
                Some(Err(error)) => {
                    self.ready.push_back(event(&error.body()));
                    self.finish();
                }
                None => {
                    if let Some(chunk) = self.envelope.usage_chunk(self.running.usage()) {
                        self.ready.push_back(event(&chunk));
                    }
                    self.finish();
                }
            }
        }
    }

    fn finish(&mut self) {
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
        self.is_done = true;
    }
}

fn event(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}
