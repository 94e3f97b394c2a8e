//! How a long transfer shows itself: a bar on a terminal, a line each tenth elsewhere, nothing in tests.
//!
//! Invariant: nothing is written to stdout, which belongs to results. Cost: one lock an `advance`. State: one transfer.

use std::{
    io::{IsTerminal, stderr},
    sync::{Mutex, PoisonError},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Receives what a transfer does.
pub trait Progress: Send + Sync {
    /// A sentence for the user.
    fn note(&self, text: &str);
    /// A transfer of `bytes` begins; it ends the one before.
    fn begin(&self, what: &str, bytes: u64);
    fn advance(&self, bytes: u64);
    fn end(&self);
}

/// Bars if stderr is a terminal, lines otherwise.
pub fn for_stderr() -> Box<dyn Progress> {
    if stderr().is_terminal() { Box::new(Bars::default()) } else { Box::new(Lines::default()) }
}

#[derive(Default)]
struct Bars(Mutex<Option<ProgressBar>>);

impl Progress for Bars {
    fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    fn begin(&self, what: &str, bytes: u64) {
        self.end();
        let bar = ProgressBar::new(bytes).with_message(what.to_string());
        if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
        {
            bar.set_style(style);
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            bar.inc(bytes);
        }
    }

    fn end(&self) {
        if let Some(bar) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            bar.finish_and_clear();
        }
    }
}

#[derive(Default)]
struct Transfer {
    what: String,
    total: u64,
    done: u64,
    tenths: u64,
}

#[derive(Default)]
struct Lines(Mutex<Transfer>);

impl Progress for Lines {
    fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    fn begin(&self, what: &str, bytes: u64) {
        let mut transfer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *transfer = Transfer { what: what.into(), total: bytes, done: 0, tenths: 0 };
    }

    fn advance(&self, bytes: u64) {
        let mut transfer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        transfer.done += bytes;
        let tenths = transfer.done.saturating_mul(10) / transfer.total.max(1);
        if tenths > transfer.tenths {
            transfer.tenths = tenths;
            let (done, total) = (transfer.done >> 20, transfer.total >> 20);
            eprintln!("{}: {} % ({done} of {total} MiB)", transfer.what, tenths * 10);
        }
    }

    fn end(&self) {}
}

/// Shows nothing.
pub struct Silent;

impl Progress for Silent {
    fn note(&self, _: &str) {}
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn end(&self) {}
}
