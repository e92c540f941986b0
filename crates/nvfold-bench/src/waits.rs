//! How long the operations of a writer take while something else is at work: a histogram, and the longest.
//!
//! The problem: the longest of many waits is set by whoever is disturbed once, and on a machine with few processors the
//! scheduler disturbs everybody.
//!
//! The idea: the time in which the writer's thread could run and the scheduler ran others (/proc/thread-self/schedstat)
//! is not counted. What is left is what the writer waited for the file system, and for threads that answer it. The same
//! writer also runs alone for as long, just before.

use crate::{Doing, Result};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// Upper bounds of the histogram's columns; the last one has none.
pub(crate) const BOUNDS_US: [u64; 6] = [10, 100, 500, 1000, 2000, 10_000];

/// Does its next operation.
pub(crate) type Writer = dyn FnMut() -> Result<()> + Send;

/// The waits of a writer's operations.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Waits {
    /// Operations by their time: up to each bound, and longer.
    counts: [u64; BOUNDS_US.len() + 1],
    /// The longest, in microseconds.
    pub longest_us: f64,
}

impl Waits {
    fn add(&mut self, us: f64) {
        self.counts[BOUNDS_US.partition_point(|bound| (*bound as f64) < us)] += 1;
        self.longest_us = self.longest_us.max(us);
    }

    /// Adds the waits of another run.
    pub(crate) fn merge(&mut self, other: &Waits) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// Returns the histogram: the number of operations up to each bound, and of longer ones.
    pub(crate) fn counts(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().copied()
    }
}

/// Returns the names of the histogram's columns.
pub(crate) fn columns() -> impl Iterator<Item = String> {
    let up_to = BOUNDS_US.iter().map(|bound| match bound {
        bound if *bound < 1000 => format!("{bound} us"),
        bound => format!("{} ms", bound / 1000),
    });
    up_to.chain(["longer".into()])
}

/// Runs `work` while another thread writes; returns the waits of what it did meanwhile.
pub(crate) fn waits_during(writer: &mut Writer, work: impl FnOnce() -> Result<()>) -> Result<Waits> {
    let is_over = AtomicBool::new(false);
    let (begun, begins) = mpsc::channel();
    thread::scope(|scope| {
        let is_over = &is_over;
        let writing = scope.spawn(move || {
            // What it does first is not counted: it has to warm up.
            writer()?;
            let _ = begun.send(());
            let mut queued = Queued::of_this_thread();
            let mut waits = Waits::default();
            while !is_over.load(Ordering::Relaxed) {
                let clock = Instant::now();
                writer()?;
                let took = clock.elapsed().as_nanos() as f64;
                waits.add((took - queued.since_last_ns()).max(0.0) / 1e3);
            }
            Ok(waits)
        });
        // A writer that fails has told nothing; its error comes when it is joined.
        let done = if begins.recv().is_ok() { work() } else { Ok(()) };
        is_over.store(true, Ordering::Relaxed);
        let waits = writing.join().expect("a writer does not panic")?;
        done.map(|()| waits)
    })
}

/// The time in which a thread could run, and others ran.
struct Queued {
    file: Option<File>,
    last_ns: f64,
}

impl Queued {
    fn of_this_thread() -> Queued {
        // A kernel without it counts nothing, and the waits are longer.
        let mut queued = Queued { file: File::open("/proc/thread-self/schedstat").ok(), last_ns: 0.0 };
        queued.since_last_ns();
        queued
    }

    fn since_last_ns(&mut self) -> f64 {
        let mut text = [0; 64];
        let length = self.file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let all = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
        let all = all.unwrap_or(self.last_ns);
        let since = all - self.last_ns;
        self.last_ns = all;
        since
    }
}

/// Sleeps as long as work took that is to be compared.
pub(crate) fn as_long_as(seconds: f64) -> Result<()> {
    thread::sleep(std::time::Duration::try_from_secs_f64(seconds).map_err(std::io::Error::other).doing("wait")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wait_is_in_the_column_of_the_first_bound_that_it_does_not_exceed() {
        let mut waits = Waits::default();
        [1.0, 10.0, 10.1, 2000.0, 2000.1, 50_000.0].into_iter().for_each(|us| waits.add(us));
        assert_eq!(waits.counts, [2, 1, 0, 0, 1, 1, 1]);
        assert_eq!(waits.longest_us, 50_000.0);
        let mut both = waits.clone();
        both.merge(&waits);
        assert_eq!((both.counts().sum::<u64>(), both.longest_us), (12, 50_000.0));
        let names: Vec<String> = columns().collect();
        assert_eq!(names, ["10 us", "100 us", "500 us", "1 ms", "2 ms", "10 ms", "longer"]);
    }

    #[test]
    fn a_writer_runs_as_long_as_the_work_and_its_error_ends_both() {
        let (sent, seen) = mpsc::channel();
        let mut writer = move || {
            let _ = sent.send(());
            Ok(())
        };
        let waits = waits_during(&mut writer, || {
            (0..10).for_each(|_| assert_eq!(seen.recv(), Ok(())));
            Ok(())
        });
        assert!(waits.unwrap().counts().sum::<u64>() >= 9);
        let mut failing = || Err(crate::BenchError::Wrong("the writer".into()));
        assert!(waits_during(&mut failing, || unreachable!("the writer failed before")).is_err());
    }
}
