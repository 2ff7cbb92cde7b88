//! What is shown while a run goes on: a bar on a terminal, plain lines elsewhere.

use crate::job::show_bytes;
use crate::report;
use crate::run_folder::StepMetrics;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Plain lines come at most this often, but for the first and last step and evaluations.
const QUIET: Duration = Duration::from_secs(5);

/// Shows how a run goes on.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    steps: u64,
    shown: Option<Instant>,
}

impl Progress {
    /// The terminal behind standard error, if there is one.
    pub(crate) fn screen() -> Option<ProgressDrawTarget> {
        std::io::stderr().is_terminal().then(ProgressDrawTarget::stderr)
    }

    /// For a run of `steps` steps of which `done` are done: a bar on `screen`, or lines without one.
    pub(crate) fn new(steps: u64, done: u64, screen: Option<ProgressDrawTarget>) -> Self {
        let bar = screen.map(|screen| {
            let bar = ProgressBar::with_draw_target(Some(steps), screen).with_position(done);
            let style = "{bar:24} step {pos}/{len}  {msg}  {elapsed} (left {eta})";
            bar.set_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { bar, steps, shown: None }
    }

    /// A step has been done.
    pub(crate) fn step(&mut self, m: &StepMetrics) {
        let r = &m.report;
        let mut text = format!(
            "loss {:.4}  norm {:.3}  {} tokens/s  MFU {:.0}%  memory {}",
            r.loss,
            r.gradient_norm,
            report::count(m.rate()),
            100.0 * m.mfu,
            show_bytes(r.live.total()),
        );
        if let Some(loss) = m.evaluation_loss {
            text.push_str(&format!("  {}", report::held_out(loss)));
        }
        if let Some(bar) = &self.bar {
            if m.evaluation_loss.is_some() {
                bar.println(format!("step {}/{}  {text}", r.step, self.steps));
            }
            bar.set_message(text);
            bar.set_position(r.step);
            return;
        }
        let quiet = self.shown.is_some_and(|t| t.elapsed() < QUIET);
        if !quiet || r.step == self.steps || m.evaluation_loss.is_some() {
            say!("step {}/{}  {text}", r.step, self.steps);
            self.shown = Some(Instant::now());
        }
    }

    /// The run has ended.
    pub(crate) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
