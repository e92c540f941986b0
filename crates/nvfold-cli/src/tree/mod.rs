//! Whole trees between the host's file systems and one of ours: import, export, compare.
//!
//! One thread walks, several copy; a bounded queue lies between them, so memory does not grow with the tree (only
//! directories, whose times are set last, and files with several names are remembered). What goes wrong with one
//! file is noted and the rest goes on; a full device or a signal ends it.

pub mod export;
pub mod host;
pub mod import;
pub mod stored;
pub mod verify;

use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::progress::Progress;
use crate::size;
use parking_lot::Mutex;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// Bytes read and written at a time.
pub const BUFFER_BYTES: usize = 1 << 20;
/// Files between the thread that walks and those that copy.
const QUEUE_FILES: usize = 256;
/// Problems that are kept word for word; more are only counted.
const PROBLEMS_KEPT: usize = 1000;

/// What has been done so far; shared by the threads.
#[derive(Default)]
pub struct Tally {
    pub files: AtomicU64,
    pub directories: AtomicU64,
    pub symlinks: AtomicU64,
    pub hard_links: AtomicU64,
    pub specials: AtomicU64,
    pub bytes: AtomicU64,
    problems: Mutex<Vec<Problem>>,
    problem_count: AtomicU64,
    notes: Mutex<Vec<Problem>>,
    stopped: Arc<AtomicBool>,
    stop_reason: Mutex<Option<Failure>>,
}

/// What went wrong with one file.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    pub path: String,
    pub problem: String,
}

/// Counts for a report.
#[derive(Clone, Debug, Serialize)]
pub struct Counts {
    pub files: u64,
    pub directories: u64,
    pub symlinks: u64,
    pub hard_links: u64,
    pub specials: u64,
    pub bytes: u64,
    pub problem_count: u64,
    pub problems: Vec<Problem>,
    /// Left out on purpose.
    pub skipped: Vec<Problem>,
}

impl Tally {
    /// A tally that SIGINT and SIGTERM stop.
    pub fn new() -> Outcome<Tally> {
        let tally = Tally::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, tally.stopped.clone()).doing("wait for signals")?;
        }
        Ok(tally)
    }

    /// One more.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether to stop now.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Stops all threads; the first reason given is told.
    pub fn stop(&self, reason: Failure) {
        self.stop_reason.lock().get_or_insert(reason);
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Notes a problem with a file.
    pub fn problem(&self, path: &Path, problem: impl Display) {
        Tally::count(&self.problem_count);
        keep(&self.problems, path, problem);
    }

    /// Notes a file left out on purpose.
    pub fn skip(&self, path: &Path, why: impl Display) {
        keep(&self.notes, path, why);
    }

    /// Everything counted.
    pub fn counts(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            files: of(&self.files),
            directories: of(&self.directories),
            symlinks: of(&self.symlinks),
            hard_links: of(&self.hard_links),
            specials: of(&self.specials),
            bytes: of(&self.bytes),
            problem_count: of(&self.problem_count),
            problems: self.problems.lock().clone(),
            skipped: self.notes.lock().clone(),
        }
    }

    /// Why it was stopped, if it was.
    pub fn stop_reason(&self, what: &str) -> Option<Failure> {
        let reason = self.stop_reason.lock().take();
        reason.or_else(|| self.is_stopped().then(|| Failure::new(what, "interrupted; what was done so far stays")))
    }
}

fn keep(list: &Mutex<Vec<Problem>>, path: &Path, problem: impl Display) {
    let mut list = list.lock();
    if list.len() < PROBLEMS_KEPT {
        list.push(Problem { path: crate::mounts::show(path), problem: problem.to_string() });
    }
}

impl Counts {
    /// Says on stderr what was left out and what went wrong.
    pub fn tell_problems(&self) {
        for skipped in &self.skipped {
            eprint_line(&format!("nvfold: {}: left out: {}", skipped.path, skipped.problem));
        }
        for problem in &self.problems {
            eprint_line(&format!("nvfold: {}: {}", problem.path, problem.problem));
        }
        let untold = self.problem_count - self.problems.len() as u64;
        if untold > 0 {
            eprint_line(&format!("nvfold: and {untold} more problems"));
        }
    }

    /// `12 files, 3 directories, ...`, nothing that is 0 but files.
    pub fn words(&self) -> String {
        let others = [
            (self.directories, "directories"),
            (self.symlinks, "symlinks"),
            (self.hard_links, "hard links"),
            (self.specials, "special files"),
        ];
        let others = others.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!(", {count} {what}"));
        format!("{} files ({}){}", self.files, size::show(self.bytes), others.collect::<String>())
    }
}

/// Runs `walk`, which hands out jobs, and `threads` workers that do them, and shows progress meanwhile.
pub fn run_parallel<J: Send>(
    tally: &Tally,
    threads: usize,
    progress: &mut Progress,
    note: impl Fn() -> String,
    walk: impl FnOnce(&mut dyn FnMut(J)) + Send,
    work: impl Fn(J, &mut [u8]) + Sync,
) {
    let (sender, receiver) = mpsc::sync_channel::<J>(QUEUE_FILES);
    let receiver = Mutex::new(receiver);
    let (done, all_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (receiver, work, done) = (&receiver, &work, done.clone());
            scope.spawn(move || {
                let mut buffer = vec![0; BUFFER_BYTES];
                loop {
                    let job = receiver.lock().recv();
                    let Ok(job) = job else { break };
                    // After a stop the queue is emptied without work, so that the walker is not stuck.
                    if !tally.is_stopped() {
                        work(job, &mut buffer);
                    }
                }
                drop(done);
            });
        }
        drop(done);
        scope.spawn(move || {
            walk(&mut |job| {
                // Only fails when all workers are gone, and they outlive the sender.
                let _ = sender.send(job);
            });
        });
        while all_done.recv_timeout(Duration::from_millis(100)) == Err(mpsc::RecvTimeoutError::Timeout) {
            progress.update(tally.bytes.load(Ordering::Relaxed), &note);
        }
    });
    progress.finish(tally.bytes.load(Ordering::Relaxed), &note);
}
