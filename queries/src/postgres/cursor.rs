//! Cursors: where `FETCH` and `MOVE` go, and which rows they pass.
//!
//! A cursor stands before the first row (0), on a row (counted from 1), or behind the last. Pure: the door keeps the rows.
//! Cost: O(1) a step.

/// Where a step goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forward(Count),
    Backward(Count),
    /// Row of this number; below zero from the end.
    Absolute(i64),
    /// As many rows on, or back.
    Relative(i64),
}

/// How many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    Rows(usize),
    All,
}

/// Whether a cursor may go back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scroll {
    Yes,
    No,
}

/// Whether a cursor outlives its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    Yes,
    No,
}

/// How a cursor's rows are sent where the client does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorForm {
    Text,
    Binary,
}

/// What DECLARE says before its query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Declared {
    pub name: String,
    pub scroll: Scroll,
    pub hold: Hold,
    pub form: CursorForm,
}

/// The rows that a step passes, and where the cursor stands after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Place of the first row that is passed, from 0.
    pub first: usize,
    pub rows: usize,
    /// Rows come last first.
    pub is_backward: bool,
    pub place: usize,
}

impl Direction {
    /// A step from `place` over an answer of `rows`.
    pub fn step(self, place: usize, rows: usize) -> Step {
        let none = |place| Step { first: 0, rows: 0, is_backward: false, place };
        let one = |at: i64| match usize::try_from(at) {
            Ok(at) if (1..=rows).contains(&at) => Step { first: at - 1, rows: 1, is_backward: false, place: at },
            Ok(0) | Err(_) => none(0),
            Ok(_) => none(rows + 1),
        };
        match self {
            Direction::Forward(Count::Rows(0)) | Direction::Backward(Count::Rows(0)) | Direction::Relative(0) => {
                // The row it stands on once more.
                Step { place, ..one(place as i64) }
            }
            Direction::Forward(count) => {
                let left = rows.saturating_sub(place);
                let (taken, place) = match count {
                    Count::Rows(wanted) if wanted <= left => (wanted, place + wanted),
                    _ => (left, rows + 1),
                };
                Step { first: rows - left, rows: taken, is_backward: false, place }
            }
            Direction::Backward(count) => {
                let before = place.saturating_sub(1).min(rows);
                let (taken, place) = match count {
                    Count::Rows(wanted) if wanted <= before => (wanted, before + 1 - wanted),
                    _ => (before, 0),
                };
                Step { first: before - taken, rows: taken, is_backward: true, place }
            }
            Direction::Absolute(at) if at < 0 => one((rows as i64).saturating_add(1).saturating_add(at)),
            Direction::Absolute(at) => one(at),
            Direction::Relative(by) => one((place as i64).saturating_add(by)),
        }
    }
}

/// The words of a FETCH or MOVE behind it: where it goes, and of which cursor. `None`: something else.
pub(super) fn fetch(words: &[&str]) -> Option<(Direction, String)> {
    let (before, name) = match words {
        [before @ .., "from" | "in", name] => (before, name),
        [before @ .., name] => (before, name),
        [] => return None,
    };
    let whole = |words: &[&str]| words.concat().parse::<i64>().ok();
    let rows = |count: i64| match usize::try_from(count) {
        Ok(count) => Direction::Forward(Count::Rows(count)),
        Err(_) => Direction::Backward(Count::Rows(count.unsigned_abs() as usize)),
    };
    let back = |count: i64| rows(count.checked_neg().unwrap_or(i64::MAX));
    let direction = match before {
        [] | ["next"] | ["forward"] => Direction::Forward(Count::Rows(1)),
        ["prior"] | ["backward"] => Direction::Backward(Count::Rows(1)),
        ["first"] => Direction::Absolute(1),
        ["last"] => Direction::Absolute(-1),
        ["absolute", at @ ..] => Direction::Absolute(whole(at)?),
        ["relative", by @ ..] => Direction::Relative(whole(by)?),
        ["all"] | ["forward", "all"] => Direction::Forward(Count::All),
        ["backward", "all"] => Direction::Backward(Count::All),
        ["forward", count @ ..] => rows(whole(count)?),
        ["backward", count @ ..] => back(whole(count)?),
        count => rows(whole(count)?),
    };
    Some((direction, name.to_string()))
}

/// The words of a DECLARE behind it, up to FOR, and how many there are with it. `None`: something else.
pub(super) fn declare(words: &[&str]) -> Option<(Declared, usize)> {
    let end = words.iter().position(|word| *word == "for")?;
    let (name, options) = words[..end].split_first()?;
    if !options.contains(&"cursor") {
        return None;
    }
    let mut declared = Declared { name: name.to_string(), scroll: Scroll::Yes, hold: Hold::No, form: CursorForm::Text };
    let mut options = options;
    while let Some((first, rest)) = options.split_first() {
        options = match (*first, rest) {
            ("no", ["scroll", rest @ ..]) => {
                declared.scroll = Scroll::No;
                rest
            }
            ("with", ["hold", rest @ ..]) => {
                declared.hold = Hold::Yes;
                rest
            }
            ("without", ["hold", rest @ ..]) => rest,
            ("binary", rest) => {
                declared.form = CursorForm::Binary;
                rest
            }
            ("scroll" | "insensitive" | "asensitive" | "cursor", rest) => rest,
            _ => return None,
        };
    }
    Some((declared, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scenario: FETCH in every form it has. Guarantees: where it goes, and whose it is.
    #[test]
    fn directions_are_read() {
        let read = |text: &str| fetch(&text.split(' ').collect::<Vec<_>>()).map(|(direction, _)| direction);
        let forward = |rows| Some(Direction::Forward(Count::Rows(rows)));
        assert_eq!(fetch(&["from", "C x"]), Some((Direction::Forward(Count::Rows(1)), "C x".into())));
        assert_eq!((read("c"), read("next from c"), read("100 c")), (forward(1), forward(1), forward(100)));
        assert_eq!(
            (read("forward 5 in c"), read("backward - 5 in c"), read("- 2 c")),
            (forward(5), forward(5), Some(Direction::Backward(Count::Rows(2))))
        );
        assert_eq!(
            (read("first c"), read("last from c")),
            (Some(Direction::Absolute(1)), Some(Direction::Absolute(-1)))
        );
        assert_eq!(
            (read("absolute - 3 from c"), read("relative 0 c")),
            (Some(Direction::Absolute(-3)), Some(Direction::Relative(0)))
        );
        assert_eq!(
            (read("all c"), read("backward all c")),
            (Some(Direction::Forward(Count::All)), Some(Direction::Backward(Count::All)))
        );
        assert_eq!(
            (read("prior c"), read("some from c"), fetch(&[])),
            (Some(Direction::Backward(Count::Rows(1))), None, None)
        );
    }

    /// Scenario: steps over three rows, from every place. Guarantees: the rows and the place after them are PostgreSQL's.
    #[test]
    fn steps_pass_rows() {
        let walk = |steps: &[Direction]| {
            let mut place = 0;
            let passed = steps.iter().map(|direction| {
                let step = direction.step(place, 3);
                place = step.place;
                let rows = step.first + 1..step.first + 1 + step.rows;
                let rows: Vec<String> = match step.is_backward {
                    true => rows.rev().map(|row| row.to_string()).collect(),
                    false => rows.map(|row| row.to_string()).collect(),
                };
                format!("{}@{place}", rows.join("+"))
            });
            passed.collect::<Vec<_>>().join(" ")
        };
        let (forward, back) = (|n| Direction::Forward(Count::Rows(n)), |n| Direction::Backward(Count::Rows(n)));
        assert_eq!(walk(&[forward(2), forward(1), forward(1), forward(1)]), "1+2@2 3@3 @4 @4");
        assert_eq!(walk(&[forward(5), back(2), back(5), back(1)]), "1+2+3@4 3+2@2 1@0 @0");
        assert_eq!(walk(&[forward(2), forward(0), back(0), Direction::Relative(0)]), "1+2@2 2@2 2@2 2@2");
        assert_eq!(walk(&[forward(0), Direction::Forward(Count::All), forward(0)]), "@0 1+2+3@4 @4");
        assert_eq!(
            walk(&[Direction::Absolute(-1), Direction::Absolute(2), Direction::Absolute(9), Direction::Absolute(-9)]),
            "3@3 2@2 @4 @0"
        );
        assert_eq!(
            walk(&[
                Direction::Relative(2),
                Direction::Relative(-1),
                Direction::Relative(i64::MIN),
                Direction::Relative(i64::MAX)
            ]),
            "2@2 1@1 @0 @4"
        );
        assert_eq!(
            walk(&[Direction::Absolute(0), back(1), forward(3), Direction::Backward(Count::All)]),
            "@0 @0 1+2+3@3 2+1@0"
        );
        assert_eq!(Direction::Forward(Count::All).step(0, 0), Step { first: 0, rows: 0, is_backward: false, place: 1 });
    }

    /// Scenario: DECLARE with and without options. Guarantees: they are read; an unknown one is none.
    #[test]
    fn declarations_are_read() {
        let read = |text: &str| declare(&text.split(' ').collect::<Vec<_>>());
        let plain = Declared { name: "c".into(), scroll: Scroll::Yes, hold: Hold::No, form: CursorForm::Text };
        assert_eq!(read("c cursor for select"), Some((plain.clone(), 3)));
        let all = Declared { scroll: Scroll::No, hold: Hold::Yes, form: CursorForm::Binary, ..plain };
        assert_eq!(read("c binary insensitive no scroll cursor with hold for select"), Some((all, 9)));
        assert_eq!((read("c cursor of for x"), read("c for select"), read("c cursor")), (None, None, None));
    }
}
