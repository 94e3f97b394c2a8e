//! The screen as cells. Pure: the same screen, moment and size give the same cells.
//!
//! Columns that find no room are left out, the least needed first; a figure that is not known is `-`.

use std::time::{Duration, Instant};

use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Modifier, Style, Stylize},
    text::{Line, Span},
    widgets::{Block, Clear, Paragraph, Row, Table},
};

use super::{
    fleet::{Fleet, Instance, Quantiles},
    screen::{Column, Link, Screen},
};

/// News older than this are called late.
const LATE: Duration = Duration::from_secs(3);
const KEYS: &str = "q quit  s/S sort  r reverse  / filter  arrows scroll  ? help";

/// Columns with their widths, the most needed first.
const BY_NEED: [(Column, u16); 12] = [
    (Column::Name, 10),
    (Column::State, 9),
    (Column::Running, 5),
    (Column::Waiting, 5),
    (Column::Kv, 6),
    (Column::Tokens, 8),
    (Column::Hit, 6),
    (Column::Share, 12),
    (Column::Context, 9),
    (Column::Model, 16),
    (Column::Cached, 7),
    (Column::Drain, 8),
];

pub fn draw(frame: &mut Frame<'_>, screen: &Screen, now: Instant) {
    let tiers = screen.beside.tiers.len().min(4) as u16;
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(4 + tiers),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .split(frame.area());
    frame.render_widget(heading(screen, now), areas[0]);
    frame.render_widget(Paragraph::new(figures(screen)), areas[1]);
    table(frame, screen, areas[2]);
    frame.render_widget(footer(screen), areas[3]);
    if screen.shows_help {
        help(frame);
    }
}

fn heading(screen: &Screen, now: Instant) -> Line<'static> {
    let place = Span::from(format!("evenkeel top  {}  ", screen.url)).bold();
    let link = match &screen.link {
        Link::Connecting => Span::from("connecting").yellow(),
        Link::Live(at) if now.duration_since(*at) > LATE => {
            Span::from(format!("no news for {} s", now.duration_since(*at).as_secs())).yellow()
        }
        Link::Live(_) => Span::from("live").green(),
        Link::Away { why, since } => {
            let seconds = now.duration_since(*since).as_secs();
            Span::from(format!("AWAY for {seconds} s: {why}; trying again")).red()
        }
    };
    Line::from(vec![place, link])
}

fn figures(screen: &Screen) -> Vec<Line<'static>> {
    let none = Fleet::default();
    let fleet = screen.fleet.as_ref().unwrap_or(&none);
    let queue = screen.beside.queue;
    let mut lines = vec![
        Line::from(vec![
            "views ".into(),
            mode(&fleet.view_mode, &["exact"]),
            "   throttle ".into(),
            mode(&fleet.throttle_step, &["open"]),
            format!("   faults {}", number(fleet.faults)).into(),
            format!("   as of {}", clock_of(&fleet.as_of)).into(),
        ]),
        Line::from(format!(
            "requests {}/s   tokens {}/s   prompt tokens {}/s   hit rate {}",
            number(fleet.requests_per_second),
            number(fleet.tokens_per_second),
            number(fleet.prompt_tokens_per_second),
            percent(fleet.hit_rate)
        )),
        Line::from(format!(
            "queue {} ({} tokens)   running {}   waiting in engines {}",
            number(queue.map(|queue| queue.requests)),
            number(queue.map(|queue| queue.tokens)),
            number(fleet.running),
            number(fleet.waiting)
        )),
        Line::from(format!("TTFT ms {}   ITL ms {}", quantiles(fleet.ttft), quantiles(fleet.itl))),
    ];
    lines.extend(screen.beside.tiers.iter().take(4).map(|tier| {
        let refused = number(tier.refused);
        let style = if tier.refused.is_some_and(|count| count > 0.0) { Style::new().yellow() } else { Style::new() };
        Line::from(vec![
            Span::from(format!("{:<8}", tier.tier)).bold(),
            format!("arrived {}/min   ", number(tier.arrived)).into(),
            Span::styled(format!("refused {refused}/min"), style),
            format!("   TTFT p95 {} ms", number(tier.ttft_ms_p95)).into(),
        ])
    }));
    lines
}

/// A word that is green where it is good.
fn mode(word: &str, good: &[&str]) -> Span<'static> {
    match word {
        "" => "-".into(),
        word if good.contains(&word) => Span::from(word.to_string()).green(),
        word => Span::from(word.to_string()).yellow().bold(),
    }
}

/// The time of day in a moment as in 2026-01-02T03:04:05.000000Z.
fn clock_of(moment: &str) -> String {
    moment.split('T').nth(1).and_then(|time| time.get(..8)).unwrap_or("-").to_string()
}

fn table(frame: &mut Frame<'_>, screen: &Screen, area: Rect) {
    let rows = screen.rows();
    if rows.is_empty() {
        let why = match (&screen.fleet, screen.filter.is_empty()) {
            (None, _) => "nothing seen yet",
            (Some(fleet), _) if fleet.instances.is_empty() => "the server has no instances",
            (Some(_), false) => "no instance matches the filter",
            (Some(_), true) => "no instance",
        };
        frame.render_widget(Paragraph::new(why).alignment(Alignment::Center).dim(), area);
        return;
    }
    let columns = columns(area.width);
    let heads = columns.iter().map(|(column, width)| {
        let mark = match (*column == screen.sort, screen.is_descending) {
            (true, true) => "▼",
            (true, false) => "▲",
            (false, _) => "",
        };
        aligned(*column, *width, format!("{}{mark}", column.title()))
    });
    let head = Row::new(heads).style(Style::new().add_modifier(Modifier::REVERSED));
    let shown = usize::from(area.height.saturating_sub(1));
    let skipped = screen.skipped.min(rows.len().saturating_sub(shown.max(1)));
    let body = rows.iter().skip(skipped).take(shown).map(|one| {
        let cells =
            columns.iter().map(|(column, width)| aligned(*column, *width, cell(screen, one, (*column, *width))));
        Row::new(cells).style(state_style(&one.state))
    });
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
    frame.render_widget(Table::new(body, widths).header(head).column_spacing(1), area);
}

/// Those that fit, in the order of the table.
fn columns(width: u16) -> Vec<(Column, u16)> {
    let (mut chosen, mut used) = (Vec::new(), 0);
    for (column, needs) in BY_NEED {
        if used + needs <= width || chosen.is_empty() {
            chosen.push((column, needs));
            used += needs + 1;
        }
    }
    let place = |column: Column| Column::ALL.iter().position(|known| *known == column);
    chosen.sort_by_key(|(column, _)| place(*column));
    chosen
}

fn aligned(column: Column, width: u16, text: String) -> Line<'static> {
    match column {
        Column::Name | Column::Model | Column::State | Column::Share => {
            Line::from(text.chars().take(usize::from(width)).collect::<String>())
        }
        _ => Line::from(text).alignment(Alignment::Right),
    }
}

fn cell(screen: &Screen, one: &Instance, (column, width): (Column, u16)) -> String {
    match column {
        Column::Name => one.name.clone(),
        Column::Model => one.model.clone(),
        Column::State => one.state.clone(),
        Column::Running => number(one.running),
        Column::Waiting => number(one.waiting),
        Column::Context => number(one.context_tokens),
        Column::Kv => percent(one.kv_used()),
        Column::Cached => percent(one.kv_cached()),
        Column::Hit => percent(screen.hit(one)),
        Column::Tokens => number(one.tokens_per_second),
        Column::Drain => one.drain_seconds.map_or("-".into(), |seconds| format!("{seconds:.1} s")),
        Column::Share => bar(one.share, usize::from(width)),
    }
}

/// A bar with its figure.
fn bar(share: Option<f64>, width: usize) -> String {
    let Some(share) = share.filter(|share| share.is_finite()) else { return "-".into() };
    let room = width.saturating_sub(5);
    let full = (share.clamp(0.0, 1.0) * room as f64).round() as usize;
    format!("{}{} {:>3.0}%", "█".repeat(full), "░".repeat(room - full), share * 100.0)
}

fn state_style(state: &str) -> Style {
    match state {
        "ready" => Style::new(),
        "dead" => Style::new().fg(Color::Red),
        _ => Style::new().fg(Color::Yellow),
    }
}

/// Three figures, or so.
fn number(value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else { return "-".into() };
    match value.abs() {
        size if size >= 1e9 => format!("{:.1}G", value / 1e9),
        size if size >= 1e6 => format!("{:.1}M", value / 1e6),
        size if size >= 1e4 => format!("{:.0}k", value / 1e3),
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    }
}

fn percent(share: Option<f64>) -> String {
    share.filter(|share| share.is_finite()).map_or("-".into(), |share| format!("{:.0}%", share * 100.0))
}

fn quantiles(value: Option<Quantiles>) -> String {
    match value {
        None => "-".into(),
        Some(Quantiles([p50, p95, p99])) => {
            format!("p50 {} p95 {} p99 {}", number(Some(p50)), number(Some(p95)), number(Some(p99)))
        }
    }
}

fn footer(screen: &Screen) -> Line<'static> {
    let shown = screen.rows().len();
    if screen.is_editing_filter {
        return Line::from(format!("filter: {}_   Enter keeps it, Esc drops it", screen.filter)).bold();
    }
    let filter = if screen.filter.is_empty() { String::new() } else { format!("  filter `{}`", screen.filter) };
    Line::from(format!("{KEYS}   {shown} instances{filter}")).dim()
}

const HELP: [&str; 13] = [
    "q, Esc, Ctrl-C  leave",
    "s, S            sort by the next, the previous column",
    "r               reverse the order",
    "/               filter by name, model or state",
    "arrows, j k     scroll;  PgUp PgDn Home, too",
    "?               this help",
    "",
    "RUN, WAIT       sequences that run and wait in the engine",
    "CONTEXT         tokens of running sequences",
    "KV, CACHED      KV blocks held by sequences, kept for reuse",
    "HIT             prompt tokens reused, of the last minute",
    "DRAIN           until its queued prompts are computed",
    "LOAD            its share of the tokens that live in the fleet",
];

fn help(frame: &mut Frame<'_>) {
    let area = frame.area();
    let (width, height) = (66.min(area.width), (HELP.len() as u16 + 2).min(area.height));
    let place = Rect { x: (area.width - width) / 2, y: (area.height - height) / 2, width, height };
    frame.render_widget(Clear, place);
    let text: Vec<Line<'_>> = HELP.into_iter().map(Line::from).collect();
    frame.render_widget(Paragraph::new(text).block(Block::bordered().title(" keys and columns ")), place);
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::{
        super::{
            feed::News,
            fleet::{Beside, Queue, TierFigures},
            screen::tests::instance,
        },
        *,
    };

    fn screen(now: Instant) -> Screen {
        let mut screen = Screen::new("http://here:8080", String::new(), Column::Name);
        let mut instances = vec![instance(0, Some(4.0)), instance(1, None)];
        instances[0].tokens_per_second = Some(123.4);
        instances[0].share = Some(0.75);
        instances[1].state = "dead".into();
        let fleet = Fleet {
            as_of: "2026-01-02T03:04:05.678901Z".into(),
            view_mode: "exact".into(),
            throttle_step: "throttle_low".into(),
            tokens_per_second: Some(123.4),
            ttft: Some(Quantiles([12.0, 50.5, 20_000.0])),
            hit_rate: Some(0.714),
            instances,
            ..Fleet::default()
        };
        screen.take(News::Fleet(Box::new(fleet)), now);
        let tiers = vec![TierFigures { tier: "Low".into(), arrived: Some(6.0), refused: Some(2.0), ttft_ms_p95: None }];
        let queue = Some(Queue { requests: 3.0, tokens: 12_000.0 });
        screen.take(News::Beside(Beside { tiers, queue, hits: vec![(0, 0.5)] }), now);
        screen
    }

    fn drawn(screen: &Screen, (width, height): (u16, u16), now: Instant) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal.draw(|frame| draw(frame, screen, now)).expect("a drawing");
        let buffer = terminal.backend().buffer().clone();
        let line =
            |y| (0..width).map(|x| buffer[(x, y)].symbol().to_string()).collect::<String>().trim_end().to_string();
        (0..height).map(line).collect::<Vec<_>>().join("\n").trim_end().to_string()
    }

    /// Scenario: two instances, one dead, a throttled fleet, on a wide terminal.
    /// Guarantees: every figure has its place and its unit; what is not known is `-`.
    #[test]
    fn a_wide_terminal_shows_everything() {
        let now = Instant::now();
        expect_test::expect![[r"
            evenkeel top  http://here:8080  live
            views exact   throttle throttle_low   faults -   as of 03:04:05
            requests -/s   tokens 123/s   prompt tokens -/s   hit rate 71%
            queue 3 (12k tokens)   running -   waiting in engines -
            TTFT ms p50 12 p95 50.5 p99 20k   ITL ms -
            Low     arrived 6/min   refused 2/min   TTFT p95 - ms
            INSTANCE▲  MODEL            STATE       RUN  WAIT   CONTEXT     KV  CACHED    HIT    TOK/S    DRAIN LOAD
            w0         chat             ready         4     -         -     0%       -    50%      123        - █████░░  75%
            w1         code             dead          -     -         -    10%       -      -        -        - -

            q quit  s/S sort  r reverse  / filter  arrows scroll  ? help   2 instances"]]
        .assert_eq(&drawn(&screen(now), (118, 11), now));
    }

    /// Scenario: narrow and low terminals, down to nothing. Guarantees: columns give way, the names stay, nothing panics.
    #[test]
    fn columns_give_way_on_a_narrow_terminal() {
        let now = Instant::now();
        let narrow = drawn(&screen(now), (40, 12), now);
        assert!(narrow.contains("INSTANCE") && narrow.contains("KV") && !narrow.contains("MODEL"), "{narrow}");
        let mut screen = screen(now);
        screen.shows_help = true;
        for size in [(1, 1), (3, 2), (10, 4), (200, 3), (20, 60)] {
            drawn(&screen, size, now);
        }
        screen.skipped = 1000;
        assert!(drawn(&screen, (40, 60), now).contains("w1"));
    }

    /// Scenario: a server that was never reached, one that went away, one whose stream is late; a filter that nothing matches.
    /// Guarantees: the screen says which it is, and keeps what it saw last.
    #[test]
    fn it_says_when_the_server_is_away() {
        let now = Instant::now();
        let fresh = Screen::new("http://here:8080", String::new(), Column::Name);
        assert!(drawn(&fresh, (80, 10), now).contains("connecting"));
        let mut screen = screen(now);
        let late = drawn(&screen, (80, 12), now + Duration::from_secs(5));
        assert!(late.contains("no news for 5 s"), "{late}");
        screen.take(News::Away("no server answers".into()), now);
        let away = drawn(&screen, (80, 12), now + Duration::from_secs(7));
        assert!(away.contains("AWAY for 7 s: no server answers; trying again") && away.contains("w0"), "{away}");
        screen.filter = "nothing".into();
        assert!(drawn(&screen, (80, 12), now).contains("no instance matches the filter"));
    }

    /// Scenario: figures of every size, and none. Guarantees: at most five signs each.
    #[test]
    fn figures_are_short() {
        let shown = |value| number(Some(value));
        assert_eq!([0.0, 0.25, 12.0, 99.96, 1234.5, 12_345.0].map(shown), ["0", "0.2", "12", "100.0", "1234", "12k"]);
        assert_eq!([2.5e6, 3e9, f64::NAN].map(shown), ["2.5M", "3.0G", "-"]);
        assert_eq!(bar(Some(1.5), 12), "███████ 150%");
    }
}
