//! Reads the text of one choice as it comes: plain text, or text and tool calls (SPEC E1).
//!
//! Invariant: what is handed out, joined, does not depend on how the text was cut into pieces. Memory: the call under way,
//! bounded by the engine's parser. Time: linear in the text.

use engine::{
    step::TokenLogprob,
    tool_calls::{ToolCallEvent, ToolCallParser},
};

use super::{
    sequence::{EndReason, Piece},
    structure::ToolReply,
};

/// What a piece of a choice came to.
#[derive(Debug, Clone, Default)]
pub struct News {
    pub events: Vec<ToolCallEvent>,
    pub logprobs: Vec<TokenLogprob>,
    /// At the choice's end: OpenAI's finish reason.
    pub finish_reason: Option<&'static str>,
}

impl News {
    /// Characters of text in it.
    pub fn text_chars(&self) -> usize {
        let chars = |event: &ToolCallEvent| match event {
            ToolCallEvent::Text(text) => text.chars().count(),
            _ => 0,
        };
        self.events.iter().map(chars).sum()
    }
}

/// See the file's header.
pub struct Reader {
    tools: Option<ToolCallParser>,
}

impl Reader {
    /// For a choice of a request that gave these tools, if it gave any.
    pub fn new(tools: Option<&ToolReply>) -> Self {
        Self { tools: tools.map(|tools| ToolCallParser::new(tools.format, tools.names.iter().cloned())) }
    }

    /// Takes the choice's next piece.
    pub fn read(&mut self, piece: Piece) -> News {
        let mut events = Vec::new();
        let mut finish_reason = piece.end.map(|end| end.reason.name());
        match &mut self.tools {
            Some(parser) => {
                parser.push(&piece.text, &mut events);
                if let Some(end) = piece.end {
                    parser.finish(&mut events);
                    if end.reason == EndReason::Stop && parser.calls() > 0 {
                        finish_reason = Some("tool_calls");
                    }
                }
            }
            None if piece.text.is_empty() => {}
            None => events.push(ToolCallEvent::Text(piece.text)),
        }
        if events.is_empty() && !piece.logprobs.is_empty() {
            events.push(ToolCallEvent::Text(String::new()));
        }
        News { events, logprobs: piece.logprobs, finish_reason }
    }
}
