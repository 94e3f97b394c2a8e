//! Server-sent events out of a stream that comes in pieces. Pure.
//!
//! Invariant: an event is given once, whole, wherever the pieces are cut. State: what is not finished, at most
//! [`EVENT_BYTES_MAX`]; a longer event is skipped.

/// Longest event taken.
pub const EVENT_BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Default)]
pub struct Events {
    open: Vec<u8>,
    is_skipping: bool,
}

impl Events {
    /// The data of the events that this piece completes.
    pub fn push(&mut self, piece: &[u8]) -> Vec<String> {
        let mut whole = Vec::new();
        for &byte in piece.iter().filter(|byte| **byte != b'\r') {
            self.open.push(byte);
            if self.open.ends_with(b"\n\n") {
                let text = String::from_utf8_lossy(&self.open);
                let lines: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data:")).collect();
                if !lines.is_empty() && !self.is_skipping {
                    whole.push(lines.iter().map(|line| line.trim_start()).collect::<Vec<_>>().join("\n"));
                }
                self.open.clear();
                self.is_skipping = false;
            } else if self.open.len() == EVENT_BYTES_MAX {
                // Its end is still looked for.
                self.is_skipping = true;
                let tail = self.open.split_off(self.open.len() - 1);
                self.open = tail;
            }
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        "event: fleet\ndata: {\"a\":1}\n\n: keep-alive\n\ndata: two\ndata: lines\n\nid: 7\r\ndata: ü\r\n\r\n";

    /// Scenario: a stream with comments, several lines and both line ends, cut at every place.
    /// Guarantees: the same events, once each.
    #[test]
    fn events_are_whole_wherever_the_stream_is_cut() {
        for cut in 0..=STREAM.len() {
            let mut events = Events::default();
            let mut told = events.push(&STREAM.as_bytes()[..cut]);
            told.extend(events.push(&STREAM.as_bytes()[cut..]));
            assert_eq!(told, ["{\"a\":1}", "two\nlines", "ü"], "cut at {cut}");
        }
    }

    /// Scenario: an event longer than the bound, then a short one. Guarantees: memory stays bounded, the short one comes.
    #[test]
    fn a_flood_is_skipped() {
        let mut events = Events::default();
        assert!(events.push(b"data: ").is_empty());
        let flood = vec![b'x'; 1 << 20];
        for _ in 0..10 {
            assert!(events.push(&flood).is_empty());
            assert!(events.open.len() <= EVENT_BYTES_MAX);
        }
        assert_eq!(events.push(b"\n\ndata: after\n\n"), ["after"]);
    }
}
