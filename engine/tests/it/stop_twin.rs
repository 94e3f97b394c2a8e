//! Detokenisation and stop strings against slow twins on the whole output.

use engine::stop::{Detokenizer, StopMatcher, TextState};
use proptest::prelude::*;

/// Bytes likely to make, cut and break characters.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        Just(b'a'),
        Just(0xC3),
        Just(0xA9),
        Just(0xE6),
        Just(0x97),
        Just(0xA5),
        Just(0xF0),
        Just(0x9F),
        Just(0x98),
        Just(0x80),
        Just(0xED),
        any::<u8>()
    ]
}

fn detokenise(pieces: &[Vec<u8>]) -> (String, Vec<String>) {
    let mut detokenizer = Detokenizer::default();
    let mut shown = Vec::new();
    for piece in pieces {
        let mut text = String::new();
        detokenizer.push(piece, &mut text);
        shown.push(text);
    }
    let mut text = String::new();
    detokenizer.finish(&mut text);
    shown.push(text);
    (shown.concat(), shown)
}

/// Where the text ends and whether a stop string ended it: the match that completes first, the longest of those.
fn naive_stop(text: &str, stops: &[String]) -> (String, bool) {
    for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
        let longest = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str())).map(String::len).max();
        if let Some(length) = longest {
            return (text[..end - length].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    /// Scenario: random bytes, valid and broken, cut anywhere.
    /// Guarantees: joined pieces equal the lossy decoding of the whole.
    #[test]
    fn detokenised_pieces_join_to_the_lossy_whole(
        pieces in proptest::collection::vec(proptest::collection::vec(byte(), 0..5), 0..20),
    ) {
        let (joined, _) = detokenise(&pieces);
        prop_assert_eq!(joined, String::from_utf8_lossy(&pieces.concat()).into_owned());
    }

    /// Scenario: valid text, cut into bytes of one to three.
    /// Guarantees: each character appears with the piece that completes it, no later, and no U+FFFD is made up.
    #[test]
    fn valid_text_is_shown_at_once(text in "[aé日😀]{0,12}", size in 1usize..4) {
        let pieces: Vec<Vec<u8>> = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
        let (joined, shown) = detokenise(&pieces);
        prop_assert_eq!(&joined, &text);
        let mut given = 0;
        for (piece, seen) in pieces.iter().zip(shown.iter().scan(0, |sum, part| { *sum += part.len(); Some(*sum) })) {
            given += piece.len();
            let whole = (0..=given).rev().find(|end| text.is_char_boundary(*end)).unwrap();
            prop_assert_eq!(seen, whole);
        }
    }

    /// Scenario: text and stop strings over a tiny alphabet (many near matches and overlaps), in random pieces.
    /// Guarantees: what is shown equals the naive cut, whatever the pieces; at every moment only text that may begin a
    /// stop string is withheld.
    #[test]
    fn stop_strings_match_the_naive_search(
        pieces in proptest::collection::vec("[abé]{0,4}", 0..12),
        stops in proptest::collection::vec("[abé]{1,5}", 0..4),
    ) {
        let mut matcher = StopMatcher::new(&stops);
        let (mut shown, mut given, mut state) = (String::new(), String::new(), TextState::Open);
        for piece in &pieces {
            given.push_str(piece);
            state = matcher.push(piece, &mut shown);
            if state == TextState::Stopped {
                break;
            }
            let held = &given[shown.len()..];
            let reason = held.is_empty() || stops.iter().any(|stop| stop.starts_with(held));
            prop_assert!(reason, "held {held:?} for nothing");
        }
        if state == TextState::Open {
            matcher.finish(&mut shown);
        }
        let (expected, stopped) = naive_stop(&pieces.concat(), &stops);
        prop_assert_eq!(shown, expected);
        prop_assert_eq!(state == TextState::Stopped, stopped);
    }
}

/// Scenario: a stop string that begins within another's match.
/// Guarantees: the one that completes first wins, in one piece as in many; text held for the other is released.
#[test]
fn the_match_that_completes_first_wins() {
    let stops = ["abcd".to_owned(), "bc".to_owned()];
    for pieces in [vec!["xabcd"], vec!["x", "a", "b", "c", "d"], vec!["xab", "cd"]] {
        let mut matcher = StopMatcher::new(&stops);
        let mut shown = String::new();
        let stopped = pieces.iter().any(|piece| matcher.push(piece, &mut shown) == TextState::Stopped);
        assert!(stopped);
        assert_eq!(shown, "xa", "{pieces:?}");
    }
}
