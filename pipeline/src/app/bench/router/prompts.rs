//! What the routers are asked: short chats, prompts of 4,000 and 100,000 tokens, and many prompts with common fronts.
//!
//! Invariant: the same seed gives the same bytes. Words are made up, four bytes a token or so. State: the bodies.

use std::sync::Arc;

use axum::body::Bytes;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde_json::json;

use super::load::Load;

pub(super) const TOKENS: usize = 32;
const CHAT: &str = "/v1/chat/completions";
/// Common fronts, and prompts of each.
pub(super) const FRONTS: usize = 64;
pub(super) const PROMPTS_EACH: usize = 8;
const FRONT_WORDS: usize = 3000;
const END_WORDS: usize = 500;

fn words(rng: &mut StdRng, count: usize) -> String {
    let mut text = String::with_capacity(count * 6);
    for _ in 0..count {
        let length = rng.random_range(3..8);
        text.extend((0..length).map(|_| char::from(rng.random_range(b'a'..=b'z'))));
        text.push(' ');
    }
    text
}

fn body(content: &str, streams: bool) -> Bytes {
    let messages = json!([{"role": "user", "content": content}]);
    json!({"model": "mock", "messages": messages, "temperature": 0, "max_tokens": TOKENS, "stream": streams})
        .to_string()
        .into()
}

fn load(bodies: Vec<Bytes>, streams: bool) -> Load {
    Load { path: CHAT, bodies: Arc::new(bodies), streams, tokens: TOKENS }
}

/// A question of one line.
pub(super) fn short(streams: bool) -> Load {
    load(vec![body("What is the boiling point of water at sea level, in degrees Celsius?", streams)], streams)
}

/// A few different prompts of about so many tokens, answered whole.
pub(super) fn long(tokens: usize, seed: u64) -> Load {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut prompt = || {
        let mut text = words(&mut rng, tokens * 4 / 6 + 1);
        text.truncate(tokens * 4);
        body(&text, false)
    };
    load((0..4).map(|_| prompt()).collect(), false)
}

/// Prompts of about 21 kB in [`FRONTS`] groups with a common front each, shuffled, as streams.
pub(super) fn fronts(seed: u64) -> Load {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut bodies = Vec::with_capacity(FRONTS * PROMPTS_EACH);
    for _ in 0..FRONTS {
        let front = words(&mut rng, FRONT_WORDS);
        for _ in 0..PROMPTS_EACH {
            bodies.push(body(&(front.clone() + &words(&mut rng, END_WORDS)), true));
        }
    }
    bodies.shuffle(&mut rng);
    load(bodies, true)
}
