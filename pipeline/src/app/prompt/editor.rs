//! The prompt on a terminal: lines, history and Tab by `reedline`. Nothing is decided here.
//!
//! A failed query is printed and the prompt goes on; also where no server answers, so that one can be started meanwhile.

use std::borrow::Cow;

use reedline::{
    ColumnarMenu, Completer, CompletionResult, Emacs, FileBackedHistory, KeyCode, KeyModifiers, MenuBuilder, Prompt,
    PromptEditMode, PromptHistorySearch, Reedline, ReedlineEvent, ReedlineMenu, Signal, Span, Suggestion,
    ValidationResult, Validator, default_emacs_keybindings,
};

use super::{
    Ended, HISTORY_MAX, Session,
    script::{self, Command, Item},
    words::Vocabulary,
};
use crate::config::home_dir;

const MENU: &str = "completions";

struct Look;

impl Prompt for Look {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        "evenkeel".into()
    }
    fn render_prompt_right(&self) -> Cow<'_, str> {
        "".into()
    }
    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        "> ".into()
    }
    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        "       -> ".into()
    }
    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        format!("(history: {}) ", search.term).into()
    }
}

struct Ends;

impl Validator for Ends {
    fn validate(&self, line: &str) -> ValidationResult {
        match script::is_complete(line) {
            true => ValidationResult::Complete,
            false => ValidationResult::Incomplete,
        }
    }
}

struct Words(Vocabulary);

impl Completer for Words {
    fn complete(&mut self, line: &str, pos: usize) -> CompletionResult {
        let fits = self.0.fits(line, pos);
        let suggestion = |value: String| Suggestion {
            append_whitespace: !value.ends_with('('),
            value,
            span: Span::new(fits.start.min(pos), pos),
            ..Suggestion::default()
        };
        CompletionResult::fresh(fits.words.into_iter().map(suggestion).collect::<Vec<_>>())
    }
}

fn editor(vocabulary: Vocabulary) -> Reedline {
    let mut keys = default_emacs_keybindings();
    let open = ReedlineEvent::UntilFound(vec![ReedlineEvent::Menu(MENU.into()), ReedlineEvent::MenuNext]);
    keys.add_binding(KeyModifiers::NONE, KeyCode::Tab, open);
    keys.add_binding(KeyModifiers::SHIFT, KeyCode::BackTab, ReedlineEvent::MenuPrevious);
    let menu = Box::new(ColumnarMenu::default().with_name(MENU).with_marker("> "));
    let made = Reedline::create()
        .with_validator(Box::new(Ends))
        .with_completer(Box::new(Words(vocabulary)))
        .with_quick_completions(true)
        .with_partial_completions(true)
        .with_menu(ReedlineMenu::EngineCompleter(menu))
        .with_edit_mode(Box::new(Emacs::new(keys)));
    let file = home_dir().join("sql_history");
    match FileBackedHistory::with_file(HISTORY_MAX, file.clone()) {
        Ok(history) => made.with_history(Box::new(history)),
        Err(error) => {
            eprintln!("history is not kept: {}: {error}", file.display());
            made
        }
    }
}

/// Asks and answers until `\q` or Ctrl-D.
pub fn converse(session: Session<'_>) -> anyhow::Result<()> {
    println!("SQL over {}. \\d lists tables, \\? helps, \\q leaves.", session.source.name());
    let vocabulary = session.vocabulary();
    if vocabulary.is_empty() {
        println!("No answer from there yet, so Tab knows no tables.");
    }
    let mut editor = editor(vocabulary);
    let mut last = String::new();
    loop {
        match editor.read_line(&Look)? {
            Signal::Success(text) => {
                let (items, _) = script::split(&text);
                for item in items {
                    match obey(&session, item, &mut last) {
                        Ok(After::Prompt) => {}
                        // The statements behind it on the line are given up with it.
                        Ok(After::Stopped) => break,
                        Ok(After::End) => return Ok(()),
                        Err(error) => {
                            eprintln!("error: {error:#}");
                            break;
                        }
                    }
                }
            }
            Signal::CtrlD => return Ok(()),
            // Ctrl-C empties the line.
            _ => {}
        }
    }
}

enum After {
    Prompt,
    /// By Ctrl-C.
    Stopped,
    End,
}

fn obey(session: &Session<'_>, item: Item, last: &mut String) -> anyhow::Result<After> {
    let query = match item {
        Item::Statement(query) => query,
        Item::Command(line) => match script::command(&line)? {
            Command::Quit => return Ok(After::End),
            Command::Help => {
                println!("{}", script::HELP);
                return Ok(After::Prompt);
            }
            Command::Ask(query) => return Ok(after(session.repeat(&query, None)?)),
            Command::Watch(_) if last.is_empty() => anyhow::bail!("\\watch repeats a statement; run one first"),
            Command::Watch(pause) => return Ok(after(session.repeat(last, Some(pause))?)),
        },
    };
    last.clone_from(&query);
    Ok(after(session.repeat(&query, None)?))
}

fn after(ended: Ended) -> After {
    match ended {
        Ended::Answered => After::Prompt,
        Ended::Stopped => After::Stopped,
    }
}
