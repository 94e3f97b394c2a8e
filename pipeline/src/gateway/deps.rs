//! What the gateway needs of the rest of the process, as small traits, and the figures it was configured with.
//!
//! Nothing here is optional at run time: a dataflow that is off still has a [`ViewSource`], which says so in its mode.
//! Implementations must not block: they are called on the HTTP runtime, except [`TextModel`], which is called on
//! [`Deps::text_runtime`]'s blocking threads (DESIGN §7 rule 9).

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use engine::{
    grammar::{GrammarError, GrammarSource},
    tool_calls::ToolCallFormat,
};
use futures::future::BoxFuture;
use tokio::runtime::Handle;

use super::{
    conversation::Conversation, instances::InstanceDirectory, metrics::Metrics, registry::Registry, trace::Tracer,
};
use crate::{
    config::Config,
    dataflow::{ForecastRequest, Predicted},
    ids::Micros,
    policy::{ClusterView, PrefixReading},
    rows::{DecisionRow, FaultRow, PolicyInputRow, RequestRow, SettingsRow, SloReliabilityRow, SloRow},
};

/// A row on its way: taken already, or still waiting for room.
#[must_use = "a row that waits is not taken before this is awaited"]
pub enum Sent<'a> {
    Taken,
    Waits(BoxFuture<'a, ()>),
}

impl Future for Sent<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match &mut *self {
            Sent::Taken => Poll::Ready(()),
            Sent::Waits(waits) => waits.as_mut().poll(cx),
        }
    }
}

/// Where rows go. Waits when the bus is full, so that accounts stay complete; never fails the request. Each call takes the row, and
/// says whether that is done, so that the usual case costs no boxed future.
pub trait EventSink: Send + Sync {
    fn request(&self, row: RequestRow) -> Sent<'_>;
    fn decision(&self, row: DecisionRow) -> Sent<'_>;
    /// What a decision was made from; comes before it.
    fn policy_input(&self, row: Box<PolicyInputRow>) -> Sent<'_>;
    fn fault(&self, row: FaultRow) -> Sent<'_>;
    /// Settings under which decisions are made from now on.
    fn settings(&self, row: SettingsRow) -> Sent<'_>;
    /// How a request's deadline fared.
    fn slo(&self, row: SloRow) -> Sent<'_>;
    fn slo_reliability(&self, row: SloReliabilityRow) -> Sent<'_>;
}

/// The views policies read. Cheap: no lock held while answering.
pub trait ViewSource: Send + Sync {
    /// The fleet now: instances and leases from the directory, engine figures and mode from the dataflow.
    fn cluster(&self, now: Micros) -> ClusterView;
    /// Longest cached prefix per instance of the prompts, whose block hashes are given.
    fn prefix_hits(&self, prompts: &[Vec<u64>], block_size: usize) -> PrefixReading;
    /// What the predictors say, and as of when; nothing, where nothing has learnt.
    fn forecast(&self, request: &ForecastRequest<'_>) -> (Predicted, Option<Micros>);
}

/// Who says something in a chat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The name chat templates know.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// One message, with its text parts joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChatMessage {
    pub role: Role,
    pub content: String,
}

/// Why text could not be made into tokens; the text goes to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    #[error("the model's chat template refuses the conversation: {0}")]
    Template(String),
    #[error("the text cannot be tokenised: {0}")]
    Tokenizer(String),
}

/// Text side of a model served: tokenizer, chat template and what goes with them.
pub trait TextModel: Send + Sync {
    /// Name that requests give.
    fn name(&self) -> &str;
    /// Longest sequence, in tokens.
    fn context(&self) -> usize;
    /// Token ids are below this.
    fn vocab(&self) -> usize;
    /// Tokens per KV block.
    fn block_size(&self) -> usize;
    /// Tokens that end a sequence.
    fn stop_tokens(&self) -> &[u32];
    /// A plain prompt to tokens, with the start token if the model wants one.
    fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TextFault>;
    /// A conversation to text, with the opening of the answer.
    fn render_conversation(&self, conversation: &Conversation) -> Result<String, TextFault>;
    /// The same for messages of text alone.
    fn render_chat(&self, messages: &[ChatMessage]) -> Result<String, TextFault> {
        self.render_conversation(&messages.into())
    }
    /// How the model writes tool calls.
    fn tool_format(&self) -> ToolCallFormat;
    /// Compiles the grammar, to find out whether an engine of the model can enforce it. May take milliseconds.
    fn check_grammar(&self, source: &GrammarSource) -> Result<(), GrammarError>;
    /// A rendered conversation to tokens; the template has set its special tokens already.
    fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>, TextFault>;
    /// Bytes a token adds to the output; empty for special tokens.
    fn token_bytes(&self, token: u32) -> Vec<u8>;
    /// Token for display; bytes that are no text are replaced.
    fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(&self.token_bytes(token)).into_owned()
    }
    /// Chained hashes of the prompt's full blocks.
    fn block_hashes(&self, prompt: &[u32], cache_salt: u64) -> Vec<u64>;
}

/// The wall clock, or a test's.
pub trait Clock: Send + Sync {
    fn now(&self) -> Micros;
}

/// Everything `app` needs.
#[derive(Clone)]
pub struct Deps {
    pub config: Arc<Config>,
    pub directory: Arc<InstanceDirectory>,
    pub views: Arc<dyn ViewSource>,
    pub events: Arc<dyn EventSink>,
    pub models: Arc<Registry>,
    pub clock: Arc<dyn Clock>,
    pub metrics: Arc<Metrics>,
    /// Takes the stories of traced requests; `None`: traces are off.
    pub traces: Option<Arc<Tracer>>,
    /// Runtime whose blocking threads render and tokenise.
    pub text_runtime: Handle,
}
