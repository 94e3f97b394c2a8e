//! What is on the screen and what a key does to it. Pure; time comes in.

use std::{cmp::Ordering, time::Instant};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{
    feed::News,
    fleet::{Beside, Fleet, Instance},
};

/// Letters of a filter.
const FILTER_MAX: usize = 40;

/// A column of the table of instances, and an order of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Column {
    Name,
    Model,
    State,
    Running,
    Waiting,
    Context,
    Kv,
    Cached,
    Hit,
    Tokens,
    Drain,
    Share,
}

impl Column {
    pub const ALL: [Column; 12] = [
        Self::Name,
        Self::Model,
        Self::State,
        Self::Running,
        Self::Waiting,
        Self::Context,
        Self::Kv,
        Self::Cached,
        Self::Hit,
        Self::Tokens,
        Self::Drain,
        Self::Share,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Self::Name => "INSTANCE",
            Self::Model => "MODEL",
            Self::State => "STATE",
            Self::Running => "RUN",
            Self::Waiting => "WAIT",
            Self::Context => "CONTEXT",
            Self::Kv => "KV",
            Self::Cached => "CACHED",
            Self::Hit => "HIT",
            Self::Tokens => "TOK/S",
            Self::Drain => "DRAIN",
            Self::Share => "LOAD",
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Self::Name | Self::Model | Self::State)
    }

    fn number(self, one: &Instance, hit: Option<f64>) -> Option<f64> {
        match self {
            Self::Name | Self::Model | Self::State => None,
            Self::Running => one.running,
            Self::Waiting => one.waiting,
            Self::Context => one.context_tokens,
            Self::Kv => one.kv_used(),
            Self::Cached => one.kv_cached(),
            Self::Hit => hit,
            Self::Tokens => one.tokens_per_second,
            Self::Drain => one.drain_seconds,
            Self::Share => one.share,
        }
    }
}

/// What is known of the connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Link {
    Connecting,
    /// The newest event came then.
    Live(Instant),
    Away {
        why: String,
        since: Instant,
    },
}

/// What a key leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Go,
    Quit,
}

pub struct Screen {
    pub url: String,
    pub link: Link,
    pub fleet: Option<Fleet>,
    pub beside: Beside,
    pub sort: Column,
    pub is_descending: bool,
    pub filter: String,
    pub is_editing_filter: bool,
    pub shows_help: bool,
    /// Rows above the first one shown.
    pub skipped: usize,
}

impl Screen {
    pub fn new(url: &str, filter: String, sort: Column) -> Self {
        Self {
            url: url.into(),
            link: Link::Connecting,
            fleet: None,
            beside: Beside::default(),
            sort,
            is_descending: sort.is_number(),
            filter,
            is_editing_filter: false,
            shows_help: false,
            skipped: 0,
        }
    }

    pub fn take(&mut self, news: News, now: Instant) {
        match news {
            News::Fleet(fleet) => {
                self.fleet = Some(*fleet);
                self.link = Link::Live(now);
            }
            News::Beside(beside) => self.beside = beside,
            News::Away(why) => {
                let since = match &self.link {
                    Link::Away { since, .. } => *since,
                    _ => now,
                };
                self.link = Link::Away { why, since };
            }
        }
    }

    pub fn key(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Next::Quit;
        }
        if self.is_editing_filter {
            self.edit_filter(key.code);
            return Next::Go;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Esc if self.shows_help => self.shows_help = false,
            KeyCode::Esc if !self.filter.is_empty() => self.filter.clear(),
            KeyCode::Esc => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.shows_help = !self.shows_help,
            KeyCode::Char('/') => self.is_editing_filter = true,
            KeyCode::Char('s') | KeyCode::Right => self.sort_by(1),
            KeyCode::Char('S') | KeyCode::Left => self.sort_by(Column::ALL.len() - 1),
            KeyCode::Char('r') => self.is_descending = !self.is_descending,
            KeyCode::Up | KeyCode::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.skipped += 1,
            KeyCode::PageUp => self.skipped = self.skipped.saturating_sub(10),
            KeyCode::PageDown => self.skipped += 10,
            KeyCode::Home => self.skipped = 0,
            _ => {}
        }
        // There is always a row left.
        self.skipped = self.skipped.min(self.rows().len().saturating_sub(1));
        Next::Go
    }

    fn edit_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_editing_filter = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.is_editing_filter = false;
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(letter) if self.filter.chars().count() < FILTER_MAX => self.filter.push(letter),
            _ => {}
        }
        self.skipped = 0;
    }

    /// Numbers begin with the largest, words with the first.
    fn sort_by(&mut self, further: usize) {
        let at = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = Column::ALL[(at + further) % Column::ALL.len()];
        self.is_descending = self.sort.is_number();
    }

    pub fn hit(&self, one: &Instance) -> Option<f64> {
        self.beside.hits.iter().find(|(number, _)| Some(*number) == one.number).map(|(_, hit)| *hit)
    }

    /// Instances that pass the filter, in order; unknown figures come last either way.
    pub fn rows(&self) -> Vec<&Instance> {
        let wanted = self.filter.to_lowercase();
        let passes = |one: &&Instance| {
            [&one.name, &one.model, &one.state].iter().any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<&Instance> =
            self.fleet.iter().flat_map(|fleet| &fleet.instances).filter(|one| passes(one)).collect();
        rows.sort_by(|a, b| self.order(a, b).then(a.number.cmp(&b.number)));
        rows
    }

    fn order(&self, a: &Instance, b: &Instance) -> Ordering {
        let directed = |order: Ordering| if self.is_descending { order.reverse() } else { order };
        match self.sort {
            // w10 after w9.
            Column::Name => directed(a.number.cmp(&b.number).then_with(|| a.name.cmp(&b.name))),
            Column::Model => directed(a.model.cmp(&b.model)),
            Column::State => directed(a.state.cmp(&b.state)),
            column => match (column.number(a, self.hit(a)), column.number(b, self.hit(b))) {
                (Some(a), Some(b)) => directed(a.total_cmp(&b)),
                (None, None) => Ordering::Equal,
                (None, Some(_)) => Ordering::Greater,
                (Some(_), None) => Ordering::Less,
            },
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn instance(number: u64, running: Option<f64>) -> Instance {
        Instance {
            number: Some(number),
            name: format!("w{number}"),
            model: if number.is_multiple_of(2) { "chat".into() } else { "code".into() },
            state: "ready".into(),
            running,
            blocks_used: Some(number as f64 * 10.0),
            blocks_total: Some(100.0),
            ..Instance::default()
        }
    }

    fn screen() -> Screen {
        let mut screen = Screen::new("http://here", String::new(), Column::Name);
        let instances =
            vec![instance(10, Some(3.0)), instance(2, None), instance(1, Some(7.0)), instance(3, Some(3.0))];
        screen.take(News::Fleet(Box::new(Fleet { instances, ..Fleet::default() })), Instant::now());
        screen
    }

    fn names(screen: &Screen) -> Vec<&str> {
        screen.rows().iter().map(|one| one.name.as_str()).collect()
    }

    fn press(screen: &mut Screen, keys: &str) -> Next {
        let mut next = Next::Go;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                letter => KeyCode::Char(letter),
            };
            next = screen.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        next
    }

    /// Scenario: sorting by words and by numbers, both ways. Guarantees: w10 after w3; unknown comes last whichever way.
    #[test]
    fn rows_are_sorted() {
        let mut screen = screen();
        assert_eq!(names(&screen), ["w1", "w2", "w3", "w10"]);
        press(&mut screen, "sss");
        assert_eq!((screen.sort, names(&screen)), (Column::Running, vec!["w1", "w3", "w10", "w2"]));
        press(&mut screen, "r");
        assert_eq!(names(&screen), ["w3", "w10", "w1", "w2"]);
        press(&mut screen, "SSSS");
        assert_eq!(screen.sort, Column::Share);
    }

    /// Scenario: a filter is typed, kept, emptied; `q` in a filter is a letter. Guarantees: only what matches is shown.
    #[test]
    fn rows_are_filtered() {
        let mut screen = screen();
        assert_eq!(press(&mut screen, "/q"), Next::Go);
        assert!(names(&screen).is_empty());
        screen.key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE));
        press(&mut screen, "COD\n");
        assert_eq!(names(&screen), ["w1", "w3"]);
        assert_eq!(press(&mut screen, "\x1b"), Next::Go, "the first Esc empties the filter");
        assert_eq!(names(&screen).len(), 4);
        assert_eq!(press(&mut screen, "\x1b"), Next::Quit);
        assert_eq!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Next::Quit);
    }

    /// Scenario: scrolling past the end, then a filter that leaves fewer rows. Guarantees: a row stays in view.
    #[test]
    fn scrolling_ends_at_the_last_row() {
        let mut screen = screen();
        press(&mut screen, "jjjjjjjjjj");
        assert_eq!(screen.skipped, 3);
        press(&mut screen, "/w1\n");
        assert_eq!(screen.skipped, 0);
    }

    /// Scenario: the server goes away, stays away, and is back. Guarantees: how long is counted from the first failure.
    #[test]
    fn an_absence_is_counted_from_its_beginning() {
        let (mut screen, first) = (screen(), Instant::now());
        screen.take(News::Away("no server answers".into()), first);
        screen.take(News::Away("no server answers".into()), first + std::time::Duration::from_secs(9));
        assert_eq!(screen.link, Link::Away { why: "no server answers".into(), since: first });
        assert!(screen.fleet.is_some(), "what was seen last stays");
        screen.take(News::Fleet(Box::default()), first);
        assert_eq!(screen.link, Link::Live(first));
    }
}
