//! The threads that answer requests; one of them always waits for the next request.
//!
//! The problem: a thread that answers a request may have to wait for something that the kernel does only after
//! another request is answered. For example, the kernel writes pages back before the server looks for holes. With a
//! fixed number of threads, as many such requests at once are a deadlock.
//!
//! The idea: a thread that takes a request and leaves no thread waiting starts another thread first. So there is at
//! most one thread more than the largest number that was busy at once. A thread that has answered its request ends if
//! enough others wait.
//!
//! **A bound.** Any number of processes may send requests at once. So there are at most [`THREADS_MAX`] threads, not
//! counting those that wait for the kernel and say so ([`Caller::while_waiting`]). Such a thread starts another one if
//! it leaves none waiting. All other requests end by themselves, and what no thread has taken waits for one of them.
//!
//! [`Caller::while_waiting`]: crate::Caller::while_waiting

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The number of threads that do not wait for the kernel above which no more are started. The largest number of
/// background requests that the kernel sends at once must be well below it.
pub(crate) const THREADS_MAX: usize = 256;

/// Why a thread ended that did not fail.
pub(crate) enum End {
    /// It waited for a request, and the session is over.
    OfSession,
    /// It had answered a request, and [`Workers::waits`] told it to end.
    Surplus,
}

#[derive(Default)]
struct State {
    /// The number of threads that wait for a request, or are about to.
    waiting: usize,
    /// The number of threads that have not ended.
    alive: usize,
    /// The number of threads that wait for the kernel.
    blocked: usize,
    failure: Option<io::Error>,
}

impl State {
    fn is_over(&self) -> bool {
        self.alive == 0 || self.failure.is_some()
    }

    /// Returns true if no thread is left waiting and another one may be started.
    fn wants_another(&self) -> bool {
        self.waiting == 0 && self.alive - self.blocked < THREADS_MAX
    }
}

/// A group of threads; see the module.
pub(crate) struct Workers {
    name: String,
    /// The largest number of threads that wait for requests.
    waiting_max: usize,
    state: Mutex<State>,
    ended: Condvar,
}

impl Workers {
    /// Makes an empty group. Its threads get the name `name`, and at most `waiting_max` stay while there is nothing to
    /// do.
    pub(crate) fn new(name: &str, waiting_max: usize) -> Arc<Workers> {
        Arc::new(Workers { name: name.to_owned(), waiting_max, state: Mutex::default(), ended: Condvar::new() })
    }

    /// Starts a thread, which counts as waiting from now on. Fails if the operating system refuses the thread.
    pub(crate) fn start(self: &Arc<Self>, body: impl FnOnce() -> io::Result<End> + Send + 'static) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.waiting += 1;
            state.alive += 1;
        }
        let workers = self.clone();
        let started = thread::Builder::new().name(self.name.clone()).spawn(move || workers.end(body()));
        started.map(drop).inspect_err(|_| self.end(Ok(End::OfSession)))
    }

    /// Records that a thread has taken a request; returns true if it must start another thread.
    pub(crate) fn took(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting -= 1;
        state.wants_another()
    }

    /// Records that a thread is about to wait for the kernel; returns true if it must start another thread.
    pub(crate) fn waits_for_kernel(&self) -> bool {
        let mut state = self.state.lock();
        state.blocked += 1;
        state.wants_another()
    }

    /// Records that a thread no longer waits for the kernel.
    pub(crate) fn goes_on(&self) {
        self.state.lock().blocked -= 1;
    }

    /// Records that the thread has answered its request and waits for the next one. Returns false if enough others
    /// wait; the thread must end then.
    #[must_use]
    pub(crate) fn waits(&self) -> bool {
        let mut state = self.state.lock();
        let stays = state.waiting < self.waiting_max;
        state.waiting += usize::from(stays);
        stays
    }

    /// Records that a thread has ended.
    fn end(&self, result: io::Result<End>) {
        let mut state = self.state.lock();
        state.waiting -= usize::from(!matches!(result, Ok(End::Surplus)));
        state.alive -= 1;
        if let Err(error) = result {
            state.failure.get_or_insert(error);
        }
        self.ended.notify_all();
    }

    /// Returns true if all threads have ended, or one has failed.
    pub(crate) fn have_ended(&self) -> bool {
        self.state.lock().is_over()
    }

    /// Waits for that, at most for this time; returns whether it is so.
    pub(crate) fn end_within(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        !self.ended.wait_while_for(&mut state, |state| !state.is_over(), time).timed_out()
    }

    /// Waits until all threads have ended, one has failed, or `at_most` has passed.
    ///
    /// # Errors
    /// The error of the first thread that failed.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> io::Result<()> {
        let mut state = self.state.lock();
        while !state.is_over() {
            match at_most {
                None => self.ended.wait(&mut state),
                Some(time) if self.ended.wait_for(&mut state, time).timed_out() => break,
                Some(_) => {}
            }
        }
        state.failure.take().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn starting_the_last_permitted_worker_is_reported() {
        let workers = Workers::new("test", 2);
        let (end, over) = mpsc::channel::<()>();
        let over = Arc::new(Mutex::new(over));
        for _ in 0..2 {
            let over = over.clone();
            let wait = move || {
                let _ = over.lock().recv();
                Ok(End::OfSession)
            };
            workers.start(wait).unwrap();
        }
        assert!(!workers.took(), "another one waits");
        assert!(workers.took(), "nobody waits");
        assert!(workers.waits() && workers.waits());
        assert!(!workers.took());
        assert!(workers.waits());
        drop(end);
        assert!(workers.wait(None).is_ok());
    }

    #[test]
    fn worker_threads_are_limited_but_not_those_that_wait_for_the_kernel() {
        let workers = Workers::new("test", THREADS_MAX);
        let state = |waiting, alive, blocked| *workers.state.lock() = State { waiting, alive, blocked, failure: None };
        state(1, THREADS_MAX - 1, 0);
        assert!(workers.took(), "one more is allowed");
        state(1, THREADS_MAX, 0);
        assert!(!workers.took(), "all are busy, and end by themselves");
        assert!(workers.waits_for_kernel(), "what the kernel needs for that may be a request");
        state(0, THREADS_MAX + 2, 1);
        assert!(!workers.waits_for_kernel(), "enough others end by themselves");
        state(2, THREADS_MAX, 0);
        assert!(!workers.waits_for_kernel(), "others wait for requests");
        workers.goes_on();
        assert_eq!(workers.state.lock().blocked, 0);
    }

    #[test]
    fn idle_worker_threads_end() {
        let workers = Workers::new("test", 2);
        // Twenty threads take a request each, and answer.
        for _ in 0..20 {
            let asked = workers.clone();
            let answer = move || {
                asked.took();
                match asked.waits() {
                    true => asked.until_it_is_over(),
                    false => Ok(End::Surplus),
                }
            };
            workers.start(answer).unwrap();
        }
        while workers.state.lock().alive > 2 {
            thread::yield_now();
        }
        assert_eq!(workers.state.lock().waiting, 2, "two stay, and are counted");
        workers.state.lock().failure = Some(io::Error::from_raw_os_error(libc::EIO));
        workers.ended.notify_all();
        while workers.state.lock().alive > 0 {
            thread::yield_now();
        }
        assert_eq!(workers.state.lock().waiting, 0);
    }

    impl Workers {
        /// Stands for a wait for the next request.
        fn until_it_is_over(&self) -> io::Result<End> {
            let mut state = self.state.lock();
            while state.failure.is_none() {
                self.ended.wait(&mut state);
            }
            Ok(End::OfSession)
        }
    }

    #[test]
    fn the_first_failure_of_a_worker_is_returned() {
        let workers = Workers::new("test", 1);
        workers.start(|| Err(io::Error::from_raw_os_error(libc::EIO))).unwrap();
        assert_eq!(workers.wait(None).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
