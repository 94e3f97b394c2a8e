//! Generated text, piece by piece, to text and tool calls.
//!
//! Invariants: events do not depend on where pieces end; text and calls come in the order in which they were written; a
//! call is announced only once its name is known and its arguments begin (or it ends without any), so that what turns
//! out to be no call is still text. Blanks around calls are dropped.
//!
//! A call that was announced and then breaks, or is cut off, has no [`ToolCallEvent::End`].
//!
//! Cost: O(characters). Memory: the call under way ([`MAX_CALL_BYTES`](super::MAX_CALL_BYTES)) or the beginning of a tag.

use std::collections::HashSet;

use super::{
    MAX_CALLS, ToolCallFormat,
    body::{CallBody, Reading},
};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// What a piece of text turned out to be. `index` counts the calls of the reply from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolCallEvent {
    Text(String),
    Begin {
        index: usize,
        name: String,
    },
    /// More of the arguments' JSON text.
    Arguments {
        index: usize,
        text: String,
    },
    End {
        index: usize,
    },
}

#[derive(Debug, Clone)]
enum State {
    /// Text, or the blanks before it. Held: what could begin a tag.
    Text { held: String },
    /// Inside a call; whether it was announced.
    Call { body: Box<CallBody>, announced: bool },
    /// After a call of Hermes: its closing tag is to come. Held: what was read of it.
    Closing { held: String },
    /// Nothing but text follows.
    Plain,
}

/// See the file's header.
#[derive(Debug, Clone)]
pub struct ToolCallParser {
    format: ToolCallFormat,
    names: HashSet<String>,
    state: State,
    calls: usize,
    /// Blanks at the beginning of a stretch of text, shown only if text follows.
    blanks: String,
    /// Something other than blanks was seen in this stretch of text.
    in_text: bool,
}

impl ToolCallParser {
    /// For replies of a model that was given tools with these names.
    pub fn new(format: ToolCallFormat, names: impl IntoIterator<Item = String>) -> Self {
        Self {
            format,
            names: names.into_iter().collect(),
            state: State::Text { held: String::new() },
            calls: 0,
            blanks: String::new(),
            in_text: false,
        }
    }

    /// Calls announced so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes a piece of the reply and appends what it makes to `events`.
    pub fn push(&mut self, piece: &str, events: &mut Vec<ToolCallEvent>) {
        for character in piece.chars() {
            self.step(character, events);
        }
        self.hand_out(events);
    }

    /// The reply is over: what was held back is shown.
    pub fn finish(&mut self, events: &mut Vec<ToolCallEvent>) {
        self.hand_out(events);
        match std::mem::replace(&mut self.state, State::Plain) {
            State::Text { held } => self.show(&held, events),
            State::Call { body, announced: false } => self.give_up(body.raw(), events),
            State::Call { .. } | State::Closing { .. } | State::Plain => {}
        }
        let blanks = std::mem::take(&mut self.blanks);
        if self.calls == 0 && !blanks.is_empty() {
            add_text(&blanks, events);
        }
    }

    fn step(&mut self, character: char, events: &mut Vec<ToolCallEvent>) {
        match &mut self.state {
            State::Plain => self.show(character.encode_utf8(&mut [0; 4]), events),
            State::Text { held } => match self.format {
                ToolCallFormat::Hermes => {
                    held.push(character);
                    self.step_tagged(events);
                }
                ToolCallFormat::Json => self.step_bare(character, events),
            },
            State::Call { body, .. } => {
                let reading = body.push(character);
                self.step_call(reading, events);
            }
            State::Closing { held } => {
                held.push(character);
                let tag = held.trim_start();
                if tag == CLOSE {
                    self.state = State::Text { held: String::new() };
                } else if !CLOSE.starts_with(tag) {
                    // No tag where one belongs: what is there is text.
                    let text = std::mem::take(held);
                    self.state = State::Text { held: String::new() };
                    text.chars().for_each(|character| self.step(character, events));
                }
            }
        }
    }

    /// Text of Hermes: everything but the beginning of a tag is shown.
    fn step_tagged(&mut self, events: &mut Vec<ToolCallEvent>) {
        let State::Text { held } = &mut self.state else { return };
        if held == OPEN && self.calls < MAX_CALLS {
            self.state = State::Call { body: Box::default(), announced: false };
            self.leave_text();
            return;
        }
        // The longest end of `held` that begins a tag stays.
        let starts = held.char_indices().map(|(at, _)| at);
        let kept = starts.filter(|at| OPEN.starts_with(&held[*at..]) && held[*at..] != *OPEN).min();
        let text: String = held.drain(..kept.unwrap_or(held.len())).collect();
        self.show(&text, events);
    }

    /// Before a call of plain JSON: blanks and, after a first call, separators.
    fn step_bare(&mut self, character: char, events: &mut Vec<ToolCallEvent>) {
        match character {
            '{' if self.calls < MAX_CALLS => {
                let mut body = Box::<CallBody>::default();
                body.push(character);
                self.state = State::Call { body, announced: false };
            }
            ';' | ',' if self.calls > 0 => {}
            blank if blank.is_whitespace() => self.show(blank.encode_utf8(&mut [0; 4]), events),
            other => {
                self.state = State::Plain;
                self.show(other.encode_utf8(&mut [0; 4]), events);
            }
        }
    }

    fn step_call(&mut self, reading: Reading, events: &mut Vec<ToolCallEvent>) {
        let State::Call { body, announced } = &mut self.state else { return };
        let named = body.name.as_ref().is_some_and(|name| match self.format {
            ToolCallFormat::Hermes => true,
            ToolCallFormat::Json => self.names.contains(name),
        });
        // Without arguments a tag still makes it a call; bare JSON with a name is most likely an answer.
        let whole = reading == Reading::Done && self.format == ToolCallFormat::Hermes;
        if !*announced && reading != Reading::Broken && named && (body.has_arguments() || whole) {
            *announced = true;
            let name = body.name.clone().unwrap_or_default();
            events.push(ToolCallEvent::Begin { index: self.calls, name });
            self.calls += 1;
        }
        match (reading, *announced) {
            (Reading::More, _) => {}
            (Reading::Done, true) => {
                if !body.has_arguments() {
                    events.push(ToolCallEvent::Arguments { index: self.calls - 1, text: "{}".to_owned() });
                }
                self.hand_out(events);
                events.push(ToolCallEvent::End { index: self.calls - 1 });
                self.leave_text();
                self.state = match self.format {
                    ToolCallFormat::Hermes => State::Closing { held: String::new() },
                    ToolCallFormat::Json => State::Text { held: String::new() },
                };
            }
            (Reading::Broken, true) => {
                self.hand_out(events);
                self.state = State::Plain;
            }
            (Reading::Done | Reading::Broken, false) => {
                let raw = body.raw().to_owned();
                self.give_up(&raw, events);
            }
        }
    }

    /// What looked like a call is text.
    fn give_up(&mut self, raw: &str, events: &mut Vec<ToolCallEvent>) {
        if self.format == ToolCallFormat::Hermes {
            self.show(OPEN, events);
        }
        self.show(raw, events);
        self.state = match self.format {
            ToolCallFormat::Hermes => State::Text { held: String::new() },
            ToolCallFormat::Json => State::Plain,
        };
    }

    /// Hands out the arguments that came.
    fn hand_out(&mut self, events: &mut Vec<ToolCallEvent>) {
        if let State::Call { body, announced: true } = &mut self.state {
            let text = body.take_arguments();
            if !text.is_empty() {
                events.push(ToolCallEvent::Arguments { index: self.calls - 1, text });
            }
        }
    }

    /// A call begins or ends: blanks before it are no text.
    fn leave_text(&mut self) {
        self.in_text = false;
        self.blanks.clear();
    }

    fn show(&mut self, text: &str, events: &mut Vec<ToolCallEvent>) {
        let shown = if self.in_text { text } else { text.trim_start() };
        self.blanks.push_str(&text[..text.len() - shown.len()]);
        if shown.is_empty() {
            return;
        }
        self.in_text = true;
        add_text(&std::mem::take(&mut self.blanks), events);
        add_text(shown, events);
    }
}

/// Appends text, to the last event if that is text.
fn add_text(text: &str, events: &mut Vec<ToolCallEvent>) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(ToolCallEvent::Text(last)) => last.push_str(text),
        _ => events.push(ToolCallEvent::Text(text.to_owned())),
    }
}
