//! Progress of long work, on stderr: a bar on a terminal, else plain lines on request.

use crate::failure::eprint_line;
use crate::size;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// When to show progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// A bar on a terminal, lines elsewhere.
    Always,
    /// A bar on a terminal, nothing elsewhere.
    #[default]
    Auto,
    /// Nothing.
    Never,
}

/// The progress of one piece of work, in bytes. Its methods may be called from one thread at a time.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    lines: bool,
    what: &'static str,
    total_bytes: u64,
    started: Instant,
    last_line: Instant,
}

impl Progress {
    /// Starts at zero; `total_bytes` is 0 if unknown.
    pub(crate) fn new(when: When, what: &'static str, total_bytes: u64) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        let bar = (terminal && when != When::Never).then(|| bar(what, total_bytes));
        let now = Instant::now();
        let lines = !terminal && when == When::Always;
        Progress { bar, lines, what, total_bytes, started: now, last_line: now }
    }

    /// Returns true if progress is shown. Only then is it worth counting the work beforehand.
    pub(crate) fn wanted(when: When) -> bool {
        when == When::Always || (when == When::Auto && std::io::stderr().is_terminal())
    }

    /// Reports that `done_bytes` are done; `note` adds details.
    pub(crate) fn update(&mut self, done_bytes: u64, note: impl FnOnce() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_position(done_bytes);
            bar.set_message(note());
        } else if self.lines && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprint_line(&self.line(done_bytes, &note()));
        }
    }

    /// Ends the display. A bar disappears; plain lines end with a last one.
    pub(crate) fn finish(&mut self, done_bytes: u64, note: impl FnOnce() -> String) {
        match &self.bar {
            Some(bar) => bar.finish_and_clear(),
            None if self.lines => eprint_line(&self.line(done_bytes, &note())),
            None => {}
        }
    }

    fn line(&self, done_bytes: u64, note: &str) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        let rate = done_bytes as f64 / seconds.max(1e-3);
        let left = self.total_bytes.saturating_sub(done_bytes) as f64 / rate.max(1.0);
        let of_total = if self.total_bytes == 0 {
            String::new()
        } else {
            format!(
                " of {} ({:.0} %), {left:.0} s left",
                size::show(self.total_bytes),
                done_bytes as f64 * 100.0 / self.total_bytes as f64
            )
        };
        format!("{}: {}{of_total}, {}/s, {note}", self.what, size::show(done_bytes), size::show(rate as u64))
    }
}

fn bar(what: &'static str, total_bytes: u64) -> ProgressBar {
    let template = if total_bytes == 0 {
        "{prefix} {spinner} {binary_bytes} {binary_bytes_per_sec} {wide_msg}"
    } else {
        "{prefix} [{bar:24}] {percent:>3}% {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} ETA {eta} {wide_msg}"
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let target = ProgressDrawTarget::stderr_with_hz(10);
    let bar = ProgressBar::with_draw_target((total_bytes > 0).then_some(total_bytes), target);
    bar.with_style(style.progress_chars("=> ")).with_prefix(what)
}
