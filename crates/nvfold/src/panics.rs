//! Panics in work beside the calls: each costs one job on one inode, and neither the mount nor a file.
//!
//! The problem: a panic is a mistake in nvfold. In work that nobody asked for, it would end a mount whose files are
//! all well, and the next mount would do the same work and end again.
//!
//! The idea: a step of a job runs in [`Panics::contain`], which catches the panic, counts it, and stops this job for
//! this inode until the next mount. All other work goes on. What the step has left unfinished is not repaired:
//!
//! * **Locks.** They do not poison, and unwinding releases them, the inode's and the freeze lock as well. What a job
//!   keeps between its steps (a round, a victim, a cursor) is under a lock of its own, and only this job reads it. If the
//!   panic came from there and not from the work on an inode, the whole job stops, so nobody enters it again.
//! * **The inode.** From before its commit word is stored until DRAM says the same, it is
//!   [`Changing`](crate::inode::Changing). A panic meanwhile makes it unusable: its calls give EIO until the next mount.
//!   A panic at any other time finds nothing of it changed.
//! * **Blocks, references and log pages** that the step has taken are neither given back nor freed, since it is unknown
//!   whether an extent maps them already ([`Panics::abandons`]). So counts are too high at most, as after a crash
//!   (invariant 1), and what update counts hold is never free.
//! * **The tables in DRAM** that all share: free blocks, entries in use, the index. Block bitmaps, counts and entries
//!   change by single atomic words. The other tables change under a lock of rank 6 or 7, in sections that compute
//!   nothing from the content or the extents of a file. The index is only a hint, because bytes are compared.
//! * **The medium** is as after a crash at that moment, which every operation is tested for. And the unmount leaves it so
//!   ([`Panics::are_any`]): the next mount makes all counts exact.
//!
//! In tests and debug builds a contained panic is followed by another one, so that no test passes over it.

use crate::error::{Error, Result};
use crate::words::{FileId, Panicked};
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicBool, Ordering};
use std::any::Any;
use std::collections::BTreeSet;

/// The largest number of inodes that jobs are stopped for. The job of one more is stopped for all.
const STOPPED_MAX: usize = 4096;

/// Work beside the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Job {
    /// Sharing what policy `denova` has queued.
    Share,
    /// Computing fingerprints that are missing.
    Fill,
    /// Ending a stream that is not written to any more.
    EndStream,
    /// Cutting data again around a seam.
    CutSeam,
    /// Packing the end of a file that grew.
    PackEnd,
    /// Replacing chunks of which only a few bytes are live.
    Collect,
    /// Emptying segments of packed chunks.
    Reclaim,
    /// Emptying segments of blocks.
    Evacuate,
    /// Rewriting a log.
    Compact,
    /// Reordering a chain of the pm index.
    Reorder,
    /// Giving memory back to the host.
    Trim,
    /// Making counts exact after a crash.
    Reconcile,
    /// Freeing the trees that were removed.
    Remove,
    /// Releasing references that changes have dropped.
    Release,
    /// The work of a policy that a program has brought.
    OwnPolicy,
    /// Sharing stored data, compressing it, and undoing that, on request.
    Reshare,
}

impl Job {
    fn doing(self) -> &'static str {
        match self {
            Job::Share => "sharing in the background",
            Job::Fill => "computing missing fingerprints",
            Job::EndStream => "ending a stream",
            Job::CutSeam => "cutting a seam again",
            Job::PackEnd => "packing the end of a file",
            Job::Collect => "collecting byte ranges",
            Job::Reclaim => "emptying a segment of packed chunks",
            Job::Evacuate => "emptying a segment of blocks",
            Job::Compact => "rewriting a log",
            Job::Reorder => "reordering a chain of the index",
            Job::Trim => "giving memory back to the host",
            Job::Reconcile => "making counts exact after a crash",
            Job::Remove => "freeing a removed tree",
            Job::Release => "releasing dropped references",
            Job::OwnPolicy => "the work of a policy of this program",
            Job::Reshare => "sharing stored data on request",
        }
    }
}

/// A job, and the inode at hand: its number and generation. Without an inode it is the job as a whole.
type Work = (Job, Option<(u64, u32)>);

/// The panics since mount.
#[derive(Default)]
pub(crate) struct Panics {
    are_any: AtomicBool,
    stopped: Mutex<BTreeSet<Work>>,
    total: Mutex<Panicked>,
    #[cfg(all(test, not(feature = "shuttle")))]
    planned: Mutex<Option<tests::Planned>>,
}

impl Panics {
    /// Runs a step of a job for a file, or the whole step of a job.
    ///
    /// # Errors
    /// [`Error::Panicked`] if it panics, or the job is stopped for this file; those of the step.
    pub(crate) fn contain<T>(&self, job: Job, file: Option<FileId>, step: impl FnOnce() -> Result<T>) -> Result<T> {
        let work = (job, file.map(|file| (file.number, file.generation)));
        if self.are_any() && self.has_stopped(work) {
            return Err(Error::Panicked { what: name(work) });
        }
        let step = || {
            self.may_panic(Moment::Begin);
            step()
        };
        caught::run(work, step).unwrap_or_else(|payload| Err(self.record(work, &*payload)))
    }

    /// True if something may be left behind, so that the device cannot be marked clean.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Relaxed)
    }

    /// True if the calling thread is unwinding: what it has taken is not given back.
    #[inline]
    pub(crate) fn abandons(&self) -> bool {
        let is_unwinding = std::thread::panicking();
        if is_unwinding {
            self.are_any.store(true, Ordering::Relaxed);
        }
        is_unwinding
    }

    /// True if a job is stopped as a whole.
    pub(crate) fn have_stopped(&self, job: Job) -> bool {
        self.are_any() && self.stopped.lock().contains(&(job, None))
    }

    /// Returns the panics since mount.
    pub(crate) fn total(&self) -> Panicked {
        self.total.lock().clone()
    }

    #[cold]
    fn has_stopped(&self, (job, file): Work) -> bool {
        let stopped = self.stopped.lock();
        stopped.contains(&(job, None)) || stopped.contains(&(job, file))
    }

    #[cold]
    fn record(&self, work: Work, payload: &(dyn Any + Send)) -> Error {
        self.are_any.store(true, Ordering::Relaxed);
        {
            let mut stopped = self.stopped.lock();
            let is_full = stopped.len() >= STOPPED_MAX;
            stopped.insert(if is_full { (work.0, None) } else { work });
        }
        let what = format!("{} ({})", name(work), message_of(payload));
        {
            let mut total = self.total.lock();
            total.count += 1;
            total.last = Some(what.clone());
        }
        assert!(!cfg!(debug_assertions) || self.are_expected(), "{what}");
        Error::Panicked { what }
    }
}

fn name((job, file): Work) -> String {
    match file {
        Some((number, _)) => format!("{}, at inode {number}", job.doing()),
        None => job.doing().into(),
    }
}

fn message_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}

/// A moment of a step at which tests make a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// The beginning of the step.
    Begin,
    /// All is staged and nothing committed.
    Staged,
    /// The commit word is stored, and DRAM does not say it yet.
    Committed,
}

#[cfg(any(not(test), feature = "shuttle"))]
impl Panics {
    #[inline(always)]
    pub(crate) fn may_panic(&self, _: Moment) {}

    fn are_expected(&self) -> bool {
        false
    }
}

#[cfg(not(feature = "shuttle"))]
mod caught {
    use super::Work;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    // How many steps that contain panics the calling thread is in, one in another.
    thread_local!(static DEPTH: Cell<u32> = const { Cell::new(0) });
    #[cfg(test)]
    thread_local!(pub(super) static WORK: Cell<Option<Work>> = const { Cell::new(None) });

    /// Returns true if nvfold catches a panic of the calling thread now. For the panic hook of a front end that ends
    /// the process.
    pub fn panic_is_contained() -> bool {
        DEPTH.get() > 0
    }

    /// Runs a step, and returns the payload if it panics. The head of this file says why going on is safe.
    pub(super) fn run<T>(_work: Work, step: impl FnOnce() -> T) -> std::thread::Result<T> {
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        #[cfg(test)]
        let outer = WORK.replace(Some(_work));
        let done = catch_unwind(AssertUnwindSafe(step));
        #[cfg(test)]
        WORK.set(outer);
        DEPTH.set(depth);
        done
    }
}

#[cfg(not(feature = "shuttle"))]
pub use caught::panic_is_contained;

/// Under the scheduler of `shuttle`, a panic fails the test at once.
#[cfg(feature = "shuttle")]
mod caught {
    use super::Work;

    pub(super) fn run<T>(_: Work, step: impl FnOnce() -> T) -> std::thread::Result<T> {
        Ok(step())
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    /// A panic that a test makes.
    pub(super) struct Planned {
        job: Job,
        /// The inode; `None` for the job as a whole, `Some(0)` for any inode.
        number: Option<u64>,
        moment: Moment,
        is_made: bool,
    }

    impl Panics {
        /// Makes a panic in the next step of a job: for this inode (0: for any), or for the job as a whole.
        pub(crate) fn plan(&self, job: Job, number: Option<u64>, moment: Moment) {
            *self.planned.lock() = Some(Planned { job, number, moment, is_made: false });
        }

        pub(crate) fn may_panic(&self, moment: Moment) {
            let Some((job, file)) = caught::WORK.get() else { return };
            let mut planned = self.planned.lock();
            let Some(plan) = planned.as_mut().filter(|plan| !plan.is_made && plan.job == job && plan.moment == moment)
            else {
                return;
            };
            let is_meant = match (plan.number, file) {
                (None, None) | (Some(0), Some(_)) => true,
                (Some(number), Some((at, _))) => number == at,
                _ => false,
            };
            if is_meant {
                plan.is_made = true;
                drop(planned);
                panic!("made by a test");
            }
        }

        pub(super) fn are_expected(&self) -> bool {
            self.planned.lock().is_some()
        }
    }
}
