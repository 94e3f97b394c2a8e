//! From block ids to text, so that two requests that share blocks in the trace share the text, and so the tokens, of
//! exactly these blocks.
//!
//! Words stand for tokens: each is a common English word, which byte-pair vocabularies of GPT-2's kind hold as one token
//! with its leading space. So `n` words are about `n` tokens; the true count is the endpoint's `usage.prompt_tokens`, which the
//! report shows. Invariants: word `i` of block `id` depends on `(id, i)` alone; block `k` begins at the same word in every prompt.
//! Cost: O(words). No state.

use super::trace::{BLOCK_TOKENS, TraceRow};

const WORDS: [&str; 64] = [
    "time", "people", "water", "day", "part", "place", "work", "number", "sound", "year", "name", "line", "house",
    "page", "letter", "world", "school", "city", "tree", "night", "light", "food", "land", "home", "hand", "head",
    "story", "river", "book", "paper", "music", "state", "group", "road", "form", "rain", "point", "plan", "power",
    "town", "fire", "face", "wood", "stone", "horse", "table", "north", "south", "morning", "ground", "field", "rest",
    "king", "street", "course", "wind", "moon", "island", "summer", "winter", "ship", "gold", "green", "white",
];

/// What a row becomes for an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub text: String,
    /// Words in `text`, which is about the prompt's tokens.
    pub words: u64,
    pub max_tokens: u64,
    /// The row asked for more than `tokens_max`.
    pub cut: bool,
}

/// How rows are scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Multiplies lengths.
    pub lengths: f64,
    /// Most tokens of prompt and output together.
    pub tokens_max: Option<u64>,
}

/// The prompt of a row. Lengths are at least one token each.
pub fn prompt(row: &TraceRow, scale: Scale) -> Prompt {
    let scaled = |tokens: u64| ((tokens as f64 * scale.lengths).round() as u64).max(1);
    let (mut words, mut max_tokens) = (scaled(row.input), scaled(row.output));
    let most = scale.tokens_max.unwrap_or(u64::MAX);
    let cut = words.saturating_add(max_tokens) > most;
    if cut {
        max_tokens = max_tokens.min(most / 2).max(1);
        words = words.min(most - max_tokens).max(1);
    }
    let mut text = String::with_capacity(words as usize * 6);
    let mut written = 0;
    for (index, id) in row.blocks.iter().enumerate() {
        let end = boundary(index as u64 + 1, scale.lengths).min(words);
        for offset in 0..end.saturating_sub(written) {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(word(*id, offset));
        }
        written = written.max(end);
    }
    if text.is_empty() {
        text.push_str(WORDS[0]);
    }
    Prompt { text, words, max_tokens, cut }
}

/// First word of block `index`.
fn boundary(index: u64, lengths: f64) -> u64 {
    ((index * BLOCK_TOKENS) as f64 * lengths).round() as u64
}

/// A bit mixer (splitmix64's finaliser) over the pair.
fn word(id: u64, offset: u64) -> &'static str {
    let mut x = id.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(offset);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    WORDS[((x ^ (x >> 31)) % WORDS.len() as u64) as usize]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Scenario: two rows with a common prefix of blocks and different blocks after it, at any scale. Guarantees: the
        /// text is shared for exactly these blocks, and word counts are what was asked for.
        #[test]
        fn shared_blocks_are_shared_text(
            shared in 0u64..6,
            (own_a, own_b) in (1u64..4, 1u64..4),
            partial in 1u64..=BLOCK_TOKENS,
            lengths in 0.05f64..1.5,
        ) {
            let row = |own: u64, base: u64| {
                let blocks: Vec<u64> = (0..shared).chain((0..own).map(|b| base + b)).collect();
                let input = (blocks.len() as u64 - 1) * BLOCK_TOKENS + partial;
                TraceRow { at_us: 0, input, output: 10, blocks }
            };
            let scale = Scale { lengths, tokens_max: None };
            let (a, b) = (prompt(&row(own_a, 1_000), scale), prompt(&row(own_b, 2_000), scale));
            let split = |p: &Prompt| p.text.split(' ').map(str::to_string).collect::<Vec<_>>();
            let (words_a, words_b) = (split(&a), split(&b));
            prop_assert_eq!(words_a.len() as u64, a.words);
            prop_assert_eq!(words_b.len() as u64, b.words);
            let common = words_a.iter().zip(&words_b).take_while(|(x, y)| x == y).count() as u64;
            let expected = boundary(shared, lengths);
            prop_assert!(common >= expected.min(a.words).min(b.words));
            // Chance makes a few more words equal, never many.
            prop_assert!(common <= expected + 8, "{common} words in common, {expected} expected");
        }

        /// Scenario: any row with a bound on tokens. Guarantees: prompt and output fit it, each has a token, and a cut is said.
        #[test]
        fn a_bound_is_kept(input in 1u64..5_000, output in 0u64..5_000, most in 2u64..3_000) {
            let blocks = (0..input.div_ceil(BLOCK_TOKENS)).collect();
            let row = TraceRow { at_us: 0, input, output, blocks };
            let made = prompt(&row, Scale { lengths: 1.0, tokens_max: Some(most) });
            prop_assert!(made.words >= 1 && made.max_tokens >= 1 && made.words + made.max_tokens <= most);
            prop_assert_eq!(made.cut, input + output.max(1) > most);
            prop_assert_eq!(made.text.split(' ').count() as u64, made.words);
        }
    }

    /// Scenario: the word list. Guarantees: no word twice, so that different blocks differ.
    #[test]
    fn words_are_distinct() {
        let distinct: std::collections::BTreeSet<&str> = WORDS.into_iter().collect();
        assert_eq!(distinct.len(), WORDS.len());
    }
}
