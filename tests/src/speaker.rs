//! Scripted parts of a [`Kit`](crate::gateway_kit::Kit): a model whose tokens are bytes, and instances that speak, fail or
//! fall silent as a test says.
//!
//! A [`Speaker`] behaves as an engine does: one byte a token, text only at whole characters, a stop token at the end, the
//! same reply from any offset.

use std::sync::{
    Arc, LazyLock, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use engine::{
    grammar::{GrammarError, GrammarSource, GrammarVocabulary, factory::GrammarFactory},
    request::FinishReason,
    step::TokenLogprob,
    stop::TokenBytes,
    tool_calls::ToolCallFormat,
};
use futures::{StreamExt, stream::unfold};
use pipeline::gateway::{
    conversation::Conversation,
    deps::{TextFault, TextModel},
    instances::{Chunk, ChunkFinish, ChunkStream, GenerateCall, InstanceClient, InstanceError},
    tool_prompt::plain_messages,
};
use tokio::sync::Semaphore;

/// The token that ends a reply; below it, token = byte.
pub const END_TOKEN: u32 = 256;
/// Longest sequence of the model.
pub const CONTEXT: usize = 2048;

/// Bytes as tokens, for a model of that name.
pub struct ByteText(pub String);

impl TextModel for ByteText {
    fn name(&self) -> &str {
        &self.0
    }
    fn context(&self) -> usize {
        CONTEXT
    }
    fn vocab(&self) -> usize {
        257
    }
    fn block_size(&self) -> usize {
        16
    }
    fn stop_tokens(&self) -> &[u32] {
        &[END_TOKEN]
    }
    fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextFault> {
        Ok(text.bytes().map(u32::from).collect())
    }
    fn render_conversation(&self, conversation: &Conversation) -> Result<String, TextFault> {
        let messages = plain_messages(conversation);
        let lines = messages.iter().map(|message| format!("{}: {}\n", message.role.name(), message.content));
        Ok(lines.chain(["assistant: ".to_string()]).collect())
    }
    fn tool_format(&self) -> ToolCallFormat {
        ToolCallFormat::Hermes
    }
    fn check_grammar(&self, source: &GrammarSource) -> Result<(), GrammarError> {
        FACTORY.compile(source).map(|_| ())
    }
    fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TextFault> {
        self.encode_prompt(rendered)
    }
    fn token_bytes(&self, token: u32) -> Vec<u8> {
        u8::try_from(token).map(|byte| vec![byte]).unwrap_or_default()
    }
    fn block_hashes(&self, prompt: &[u32], cache_salt: u64) -> Vec<u64> {
        let mut hash = cache_salt;
        let mut chain = |block: &[u32]| {
            hash = block.iter().fold(hash, |h, token| h.wrapping_mul(1_000_003).wrapping_add(u64::from(*token)));
            hash
        };
        prompt.chunks_exact(16).map(&mut chain).collect()
    }
}

/// Compiles for bytes; one for all tests of a process.
static FACTORY: LazyLock<GrammarFactory> = LazyLock::new(|| {
    let bytes = Bytes((0..=255u8).collect());
    let vocabulary = GrammarVocabulary::of_bytes(&bytes, 257, &[END_TOKEN]);
    GrammarFactory::new(&vocabulary).expect("bytes can be constrained")
});

/// All bytes in order, so that each is the text of its token.
struct Bytes(Vec<u8>);

impl TokenBytes for Bytes {
    fn token_bytes(&self, token: u32) -> &[u8] {
        self.0.get(token as usize).map(std::slice::from_ref).unwrap_or_default()
    }
}

/// How an instance misbehaves.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    None,
    /// `generate` answers this.
    AtStart(InstanceError),
    /// After this many tokens of one sequence, once.
    After(usize, InstanceError),
    /// The stream ends after this many tokens without a finish, once.
    Silence(usize),
    /// The runner fails after this many tokens.
    Runner(usize),
}

/// A scripted instance.
pub struct Speaker {
    pub reply: String,
    pub fault: Mutex<Fault>,
    pub calls: Mutex<Vec<GenerateCall>>,
    /// What the text of each call had to look like. The reply is the same whatever it says.
    pub grammars: Mutex<Vec<Option<GrammarSource>>>,
    /// Streams that exist.
    pub live: Arc<AtomicUsize>,
    /// A token costs a permit, if set.
    pub pace: Option<Arc<Semaphore>>,
    pub cached_tokens: u32,
    /// Confirming a cancellation costs a permit, if set.
    pub confirms: Option<Arc<Semaphore>>,
    /// Reply, and log-probability of each of its tokens, by the call's seed modulo their number; empty: `reply` at -0.5.
    pub by_seed: Vec<(String, f32)>,
}

impl Speaker {
    pub fn new(reply: &str) -> Self {
        Self {
            reply: reply.into(),
            fault: Mutex::new(Fault::None),
            calls: Mutex::default(),
            grammars: Mutex::default(),
            live: Arc::default(),
            pace: None,
            cached_tokens: 0,
            confirms: None,
            by_seed: Vec::new(),
        }
    }
}

/// Counts a stream for as long as it exists.
struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Speech {
    _live: Live,
    call: GenerateCall,
    tokens: Vec<u32>,
    at: usize,
    pending: Vec<u8>,
    fault: Fault,
    pace: Option<Arc<Semaphore>>,
    cached_tokens: u32,
    logprob: f32,
    is_over: bool,
}

impl Speech {
    async fn next(&mut self) -> Option<Result<Chunk, InstanceError>> {
        if self.is_over {
            return None;
        }
        if let Some(pace) = &self.pace {
            pace.acquire().await.expect("the test keeps the semaphore").forget();
        }
        match std::mem::replace(&mut self.fault, Fault::None) {
            Fault::After(count, error) if count == self.at => {
                self.is_over = true;
                return Some(Err(error));
            }
            Fault::Silence(count) if count == self.at => return None,
            Fault::Runner(count) if count == self.at => {
                return Some(Ok(self.end(FinishReason::Failed, Chunk::default())));
            }
            other => self.fault = other,
        }
        let token = self.tokens[self.call.sampling_offset as usize + self.at];
        self.at += 1;
        let mut chunk = Chunk { tokens: vec![token], ..Chunk::default() };
        if let Some(count) = self.call.sampling.logprobs {
            let top =
                (0..u32::from(count)).map(|rank| (token.saturating_sub(rank), self.logprob - rank as f32)).collect();
            chunk.logprobs = vec![TokenLogprob { token, logprob: self.logprob, top }];
        }
        self.pending.extend(u8::try_from(token));
        if let Ok(text) = String::from_utf8(self.pending.clone()) {
            chunk.text = text;
            self.pending.clear();
        }
        if token == END_TOKEN {
            return Some(Ok(self.end(FinishReason::Stop, chunk)));
        }
        let is_lost_here = matches!(&self.fault, Fault::After(count, _) if *count == self.at);
        if self.at == self.call.stop.max_tokens as usize && !is_lost_here {
            return Some(Ok(self.end(FinishReason::Length, chunk)));
        }
        Some(Ok(chunk))
    }

    fn end(&mut self, reason: FinishReason, mut chunk: Chunk) -> Chunk {
        self.is_over = true;
        chunk.finish = Some(ChunkFinish {
            reason,
            prompt_tokens: self.call.prompt.len() as u32,
            completion_tokens: self.at as u32,
            cached_tokens: self.cached_tokens,
            error: (reason == FinishReason::Failed).then(|| "out of memory".into()),
        });
        chunk
    }
}

#[async_trait]
impl InstanceClient for Speaker {
    async fn cancel(&self, _request_id: &str, chunks: ChunkStream) -> Result<(), InstanceError> {
        drop(chunks);
        if let Some(confirms) = &self.confirms {
            confirms.acquire().await.expect("the test keeps the semaphore").forget();
        }
        Ok(())
    }

    async fn generate_within(
        &self,
        call: GenerateCall,
        grammar: Option<GrammarSource>,
    ) -> Result<ChunkStream, InstanceError> {
        self.grammars.lock().unwrap().push(grammar);
        self.calls.lock().unwrap().push(call.clone());
        let fault = {
            let mut fault = self.fault.lock().unwrap();
            match &*fault {
                Fault::AtStart(error) => return Err(error.clone()),
                _ => std::mem::replace(&mut *fault, Fault::None),
            }
        };
        self.live.fetch_add(1, Ordering::SeqCst);
        let of_seed = match self.by_seed.len() as u64 {
            0 => None,
            count => self.by_seed.get((call.sampling.seed % count) as usize),
        };
        let (reply, logprob) = of_seed.map_or((&self.reply, -0.5), |(reply, logprob)| (reply, *logprob));
        let tokens = reply.bytes().map(u32::from).chain([END_TOKEN]).collect();
        let speech = Speech {
            _live: Live(self.live.clone()),
            call,
            tokens,
            at: 0,
            pending: Vec::new(),
            fault,
            pace: self.pace.clone(),
            cached_tokens: self.cached_tokens,
            logprob,
            is_over: false,
        };
        let stream = unfold(speech, |mut speech| async move { speech.next().await.map(|item| (item, speech)) });
        Ok(stream.boxed())
    }
}
