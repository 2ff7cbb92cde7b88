//! How far preparing has come: a bar on a terminal, plain lines elsewhere.

use crate::job::show_bytes;
use crate::report;
use indicatif::{ProgressBar, ProgressStyle};
use memwall_data::Progress;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Plain lines come at most this often, and not before.
const QUIET: Duration = Duration::from_secs(5);

/// Shows how preparing goes on.
pub(super) struct Show {
    bar: Option<ProgressBar>,
    terminal: bool,
    shown: Instant,
}

impl Show {
    pub(super) fn new() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal(), shown: Instant::now() }
    }

    /// Preparing has come this far.
    pub(super) fn progress(&mut self, p: &Progress) {
        if p.waiting {
            say!("preparing  another process is preparing the same data: waiting for it");
            return;
        }
        let counts = format!("{} documents, {} tokens", p.documents, report::count(p.tokens as f64));
        if self.terminal {
            let bar = self.bar.get_or_insert_with(|| {
                let style = "{bar:24} preparing {bytes} of {total_bytes}, {msg}  {elapsed} (left {eta})";
                let style = ProgressStyle::with_template(style);
                ProgressBar::new(p.total_bytes)
                    .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
            });
            bar.set_message(counts);
            bar.set_position(p.bytes);
        } else if self.shown.elapsed() >= QUIET {
            say!("preparing  {} of {}, {counts}", show_bytes(p.bytes), show_bytes(p.total_bytes));
            self.shown = Instant::now();
        }
    }

    /// A source has been prepared, or has failed.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
