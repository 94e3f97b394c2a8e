//! A request as a part of its sender's trace (W3C trace context), and the story of it that becomes spans.
//!
//! Off unless `[tracing]` names a collector; then a request costs one comparison here. Of a request that is traced, the rows that
//! its account writes anyway are kept and handed over once, at its end; nothing is sent from here. A sender that states
//! `traceparent` decides whether it is traced; of the others, `tracing.sample_ratio` are. Bounds: [`ROWS_MAX`] rows a
//! request; a queue of `tracing.queue_max` stories, beyond which they are dropped and counted.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::http::HeaderMap;
use tokio::sync::mpsc;

use crate::{
    ids::Micros,
    rows::{DecisionRow, RequestRow},
};

/// Name of the header.
pub const TRACEPARENT: &str = "traceparent";
/// Rows of one story: arrival, queue, end, and a few moves.
pub const ROWS_MAX: usize = 16;

/// A place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    pub trace_id: u128,
    pub span_id: u64,
    pub is_sampled: bool,
}

impl TraceContext {
    /// Reads a `traceparent`; a malformed one is as none.
    pub fn parse(text: &str) -> Option<Self> {
        let lower_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let mut parts = text.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let lengths = [version, trace, span, flags].map(str::len) == [2, 32, 16, 2];
        let is_hex = [version, trace, span, flags].into_iter().all(lower_hex);
        // A later version may have more parts; this one has not.
        let is_whole = version != "ff" && (version != "00" || parts.next().is_none());
        if !(lengths && is_hex && is_whole) {
            return None;
        }
        let (trace_id, span_id) = (u128::from_str_radix(trace, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
        let is_sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
        (trace_id != 0 && span_id != 0).then_some(Self { trace_id, span_id, is_sampled })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.is_sampled))
    }
}

/// A step of a request. Its span's id is made of the request's and its number, so that it is known before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Parse = 1,
    Admit = 2,
    Queue = 3,
    Route = 4,
    Dispatch = 5,
    Prefill = 6,
    Decode = 7,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Self::Parse => "parse",
            Self::Admit => "admit",
            Self::Queue => "queue",
            Self::Route => "route",
            Self::Dispatch => "dispatch",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// What was kept of a request that is traced.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    /// The request's own span.
    pub context: TraceContext,
    /// The sender's span, if it stated one.
    pub parent: Option<u64>,
    pub route: &'static str,
    pub arrived: Micros,
    /// Understood, tokenised; the decision begins.
    pub parsed: Option<Micros>,
    /// The instance took all its sequences.
    pub started: Option<Micros>,
    /// All but those of single tokens, in order; without the blocks of prompts.
    pub rows: Vec<RequestRow>,
    /// Without candidates.
    pub decisions: Vec<DecisionRow>,
}

impl Story {
    pub fn span_id(&self, step: Step) -> u64 {
        // The request's own has its highest bit set, so this is never zero, which is no id.
        self.context.span_id ^ step as u64
    }

    /// What an instance is told, so that its spans go below that of the dispatch.
    pub fn traceparent(&self) -> String {
        TraceContext { span_id: self.span_id(Step::Dispatch), ..self.context }.to_string()
    }

    pub fn keep(&mut self, row: &RequestRow) {
        // The last row is always kept: without it there is no end.
        if self.rows.len() >= ROWS_MAX {
            self.rows.pop();
        }
        self.rows.push(RequestRow { prompt_blocks: None, ..row.clone() });
    }

    pub fn keep_decision(&mut self, row: &DecisionRow) {
        if self.decisions.len() < ROWS_MAX {
            self.decisions.push(DecisionRow { candidates: Vec::new(), bucket_fits: None, ..row.clone() });
        }
    }
}

/// Who decides which requests are traced, and takes their stories.
#[derive(Debug)]
pub struct Tracer {
    sample_ratio: f64,
    stories: mpsc::Sender<Story>,
    dropped: Arc<AtomicU64>,
}

impl Tracer {
    /// Stories come out at the other end; those that find no room are counted in `dropped`.
    pub fn new(sample_ratio: f64, queue_max: usize, dropped: Arc<AtomicU64>) -> (Self, mpsc::Receiver<Story>) {
        let (stories, told) = mpsc::channel(queue_max.max(1));
        (Self { sample_ratio, stories, dropped }, told)
    }

    /// A story to be told, if this request is traced.
    pub fn begin(&self, headers: &HeaderMap, (route, arrived): (&'static str, Micros)) -> Option<Box<Story>> {
        let stated = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        let sender = stated.and_then(TraceContext::parse);
        let mut random = [0u8; 24];
        getrandom_4::fill(&mut random).ok()?;
        let (low, high) = random.split_at(8);
        let span_id = u64::from_le_bytes(low.try_into().ok()?) | 1 << 63;
        let drawn = u128::from_le_bytes(high.try_into().ok()?).max(1);
        let is_sampled = sender.map_or_else(|| self.takes(drawn), |sender| sender.is_sampled);
        let trace_id = sender.map_or(drawn, |sender| sender.trace_id);
        is_sampled.then(|| {
            Box::new(Story {
                context: TraceContext { trace_id, span_id, is_sampled },
                parent: sender.map(|sender| sender.span_id),
                route,
                arrived,
                parsed: None,
                started: None,
                rows: Vec::new(),
                decisions: Vec::new(),
            })
        })
    }

    /// By the random part of the trace's id, as other tracers do.
    fn takes(&self, trace_id: u128) -> bool {
        let drawn = (trace_id as u64 >> 1) as f64 / (u64::MAX >> 1) as f64;
        drawn < self.sample_ratio || self.sample_ratio >= 1.0
    }

    /// The request has ended. Never waits.
    pub fn tell(&self, story: Story) {
        if self.stories.try_send(story).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(traceparent: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, traceparent.parse().expect("a header"));
        headers
    }

    /// Scenario: headers of the specification, and malformed ones. Guarantees: only a right one is believed.
    #[test]
    fn only_a_right_header_is_believed() {
        let context = TraceContext::parse(GOOD).expect("right");
        assert_eq!((context.to_string(), context.is_sampled), (GOOD.to_string(), true));
        assert!(TraceContext::parse("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more").is_some());
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }

    /// Scenario: senders that want a trace, want none, say nonsense, say nothing, at each ratio.
    /// Guarantees: a sender's word goes before the ratio; its trace is continued below its span.
    #[test]
    fn the_sender_decides_else_the_ratio() {
        let begin = |ratio: f64, headers: &HeaderMap| Tracer::new(ratio, 1, Arc::default()).0.begin(headers, ("/", 7));
        let story = begin(0.0, &headers(GOOD)).expect("wanted");
        assert_eq!(
            (story.context.trace_id, story.parent),
            (0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736, Some(0x00f0_67aa_0ba9_02b7))
        );
        assert_ne!(story.context.span_id, 0x00f0_67aa_0ba9_02b7);
        assert!(begin(1.0, &headers(&GOOD.replace("-01", "-00"))).is_none());
        assert!(begin(0.0, &HeaderMap::new()).is_none() && begin(0.0, &headers("nonsense")).is_none());
        assert_eq!(begin(1.0, &headers("nonsense")).expect("all are").parent, None);
    }

    /// Scenario: more stories than the queue holds, and more rows than a story. Guarantees: both bounds hold, and the end stays.
    #[test]
    fn bounds_hold() {
        let dropped = Arc::new(AtomicU64::new(0));
        let (tracer, mut told) = Tracer::new(1.0, 2, dropped.clone());
        for _ in 0..5 {
            let mut story = tracer.begin(&HeaderMap::new(), ("/", 0)).expect("all are");
            for seq in 1..100 {
                story.keep(&RequestRow { seq, prompt_blocks: Some(vec![vec![1]]), ..RequestRow::default() });
            }
            assert_eq!((story.rows.len(), story.rows[ROWS_MAX - 1].seq), (ROWS_MAX, 99));
            assert!(story.rows.iter().all(|row| row.prompt_blocks.is_none()));
            tracer.tell(*story);
        }
        assert_eq!(dropped.load(Ordering::Relaxed), 3);
        assert!(told.try_recv().is_ok() && told.try_recv().is_ok() && told.try_recv().is_err());
    }

    proptest! {
        /// Scenario: any text as a header, any place in a trace. Guarantees: no panic; what is written is read as it was.
        #[test]
        fn contexts_survive_the_wire(text in ".{0,80}", trace_id in 1u128.., span_id in 1u64.., is_sampled: bool) {
            let _ = TraceContext::parse(&text);
            let context = TraceContext { trace_id, span_id, is_sampled };
            prop_assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
        }
    }
}
