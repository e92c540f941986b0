//! `nvfold top`: shows live what mounted file systems do.
//!
//! At every interval each mount is asked for its counters, and two successive reports give rates ([`rates`]). They
//! are shown on a full screen ([`screen`]), or printed as lines if there is no terminal.

mod rates;
mod screen;

use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::statistics::{self, mount_point_of};
use crate::stop::{self, Stop};
use clap::Args;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rates::{Figures, Watched};
use rustix::event::{PollFd, PollFlags, poll};
use screen::Screen;
use serde::Serialize;
use signal_hook::consts::SIGHUP;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// The second sample comes this soon, so that the screen fills however long the interval is.
const FIRST_LOOK_AFTER: Duration = Duration::from_millis(300);
/// The longest delay before a key or a signal is processed.
const LISTEN_FOR: Duration = Duration::from_millis(100);

/// Watch mounted file systems live: throughput, savings, queue, transactions, wear
///
/// Keys: q quits, arrows select a mount, Enter shows it alone, Esc returns to the list.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold top /tmp/fold")]
pub(crate) struct Top {
    /// Mount point or mounted device, or all for every mount
    #[arg(value_name = "DIR|DEVICE|all", default_value = "all")]
    target: PathBuf,
    /// Seconds between updates
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    interval: Duration,
    /// Print the figures once as text and exit; with --json, as JSON. --json without --once prints one line of JSON per
    /// interval until stopped
    #[arg(long)]
    once: bool,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "must be a number of seconds from 0.1 to 3600".into())
}

#[derive(Serialize)]
struct Report<'a> {
    mounts: Vec<&'a Figures>,
}

/// Runs the command.
pub(crate) fn run(top: &Top, output: &Output) -> Outcome<u8> {
    let mut watch = Watch::new(&top.target)?;
    let stop = Stop::on_signals()?;
    if top.once || output.json {
        in_lines(top, &mut watch, output, &stop)?;
        stop.end_if_asked();
        return Ok(0);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage("top", "stdout is not a terminal")
            .hint("for scripts: --once prints the figures once, --json prints a line of JSON at each interval"));
    }
    end_on_hang_up().doing("watch the terminal")?;
    let mut terminal = ratatui::try_init().doing("take over the terminal")?;
    let ended = on_screen(top, &mut watch, &mut terminal, &stop);
    ratatui::try_restore().doing("give the terminal back")?;
    // Shows the cursor again.
    drop(terminal);
    stop.end_if_asked();
    ended.map(|()| 0)
}

/// Ends the process when its terminal is gone, as SIGHUP does, which does not come to every process that has a terminal.
/// The library that reads keys would read the end of the terminal again and again, for ever.
fn end_on_hang_up() -> std::io::Result<()> {
    let stdin = std::io::stdin();
    // The one from which that library reads.
    let terminal =
        if stdin.is_terminal() { stdin.as_fd().try_clone_to_owned()? } else { File::open("/dev/tty")?.into() };
    thread::spawn(move || {
        // Without events to wait for, only a hang-up or an error ends this.
        while !matches!(poll(&mut [PollFd::new(&terminal, PollFlags::empty())], None), Ok(1..)) {}
        stop::end_by(SIGHUP);
    });
    Ok(())
}

/// Prints one sample, or one line of JSON for each sample.
fn in_lines(top: &Top, watch: &mut Watch, output: &Output, stop: &Stop) -> Outcome<()> {
    loop {
        sleep_until(Instant::now() + top.interval, stop);
        if stop.is_asked() {
            return Ok(());
        }
        watch.look()?;
        let report = Report { mounts: watch.mounts.iter().filter_map(|mount| mount.figures.as_ref()).collect() };
        if top.once {
            let lines = || report.mounts.iter().map(|figures| figures.in_lines()).collect::<Vec<_>>().join("\n\n");
            return report::emit(output.json, "top", &report, lines);
        }
        if !report::print_to_reader(&report::json_line("top", &report)?)? {
            return Ok(());
        }
    }
}

fn sleep_until(when: Instant, stop: &Stop) {
    while !stop.is_asked() {
        match when.saturating_duration_since(Instant::now()) {
            Duration::ZERO => return,
            left => thread::sleep(left.min(LISTEN_FOR)),
        }
    }
}

/// Shows the screen until the user quits.
fn on_screen(top: &Top, watch: &mut Watch, terminal: &mut ratatui::DefaultTerminal, stop: &Stop) -> Outcome<()> {
    let doing = "show the figures";
    let mut screen = Screen::new(top.interval, watch.only.is_some());
    let mut next_look = Instant::now() + top.interval.min(FIRST_LOOK_AFTER);
    loop {
        terminal.draw(|frame| screen.draw(frame, &watch.mounts)).doing(doing)?;
        let wait = next_look.saturating_duration_since(Instant::now()).min(LISTEN_FOR);
        if event::poll(wait).doing(doing)?
            && let Event::Key(key) = event::read().doing(doing)?
            && key.kind == KeyEventKind::Press
            && is_end(&mut screen, key, watch.mounts.len())
        {
            return Ok(());
        }
        if stop.is_asked() {
            return Ok(());
        }
        if Instant::now() >= next_look {
            watch.look()?;
            next_look = Instant::now() + top.interval;
        }
    }
}

/// Carries out a key; returns true if it ends the program.
fn is_end(screen: &mut Screen, key: KeyEvent, mounts: usize) -> bool {
    match key.code {
        KeyCode::Char('q') => return true,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Esc if !screen.back() => return true,
        KeyCode::Enter => screen.open(),
        KeyCode::Up | KeyCode::Char('k') => screen.choose(-1, mounts),
        KeyCode::Down | KeyCode::Char('j') => screen.choose(1, mounts),
        _ => {}
    }
    false
}

/// The mounts to sample.
struct Watch {
    /// The named mount; `None`: all mounts.
    only: Option<PathBuf>,
    mounts: Vec<Watched>,
}

impl Watch {
    /// Takes the first sample, with which the next one is compared.
    fn new(target: &Path) -> Outcome<Watch> {
        let only = if target == Path::new("all") { None } else { Some(mount_point_of(target)?) };
        let mut watch = Watch { only, mounts: Vec::new() };
        watch.look()?;
        if watch.mounts.is_empty() {
            return Err(Failure::new("top", "no nvfold is mounted").hint("mount one: nvfold mount DEVICE DIR"));
        }
        Ok(watch)
    }

    /// Samples every mount. Drops a mount that no longer answers, unless it was named.
    fn look(&mut self) -> Outcome<()> {
        let dirs = match &self.only {
            Some(dir) => vec![dir.clone()],
            None => mounts::all().into_iter().map(|mounted| mounted.dir).collect(),
        };
        let mut before = std::mem::take(&mut self.mounts);
        for dir in dirs {
            match statistics::ask(&dir).and_then(|statistics| statistics.check_is_whole().map(|()| statistics)) {
                Ok(statistics) => {
                    let known = before.iter().position(|mount| mount.dir == dir).map(|at| before.remove(at));
                    let mut mount = known.unwrap_or_else(|| Watched::new(dir));
                    mount.add(statistics, Instant::now());
                    self.mounts.push(mount);
                }
                Err(failure) if self.only.is_some() => return Err(failure),
                Err(_) => {}
            }
        }
        Ok(())
    }
}
