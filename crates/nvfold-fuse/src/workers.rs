//! Threads that answer requests, of which one always waits for the next.
//!
//! The problem: a thread that answers a request may have to wait for something that the kernel does only after another
//! request is answered (it writes pages back before holes are looked for). With a fixed number of threads as many such
//! requests at once stop everything, for ever.
//!
//! The idea: whoever takes a request and leaves nobody waiting starts another thread first. There are never more threads
//! than were busy at once, and one. They stay until the session ends.

use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[derive(Default)]
struct State {
    /// Threads that wait for a request, or are about to.
    waiting: usize,
    /// Threads that have not ended.
    alive: usize,
    failure: Option<io::Error>,
}

/// See the module.
pub struct Workers {
    name: String,
    state: Mutex<State>,
    ended: Condvar,
}

impl Workers {
    /// Makes a group without threads. `name` is that of the threads.
    pub fn new(name: &str) -> Arc<Workers> {
        Arc::new(Workers { name: name.to_owned(), state: Mutex::default(), ended: Condvar::new() })
    }

    /// Starts a thread, which counts as waiting from now on.
    pub fn start(self: &Arc<Self>, body: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.waiting += 1;
            state.alive += 1;
        }
        let workers = self.clone();
        let started = thread::Builder::new().name(self.name.clone()).spawn(move || workers.end(body()));
        started.map(drop).inspect_err(|_| self.end(Ok(())))
    }

    /// A thread has taken a request; true if nobody waits for the next one now.
    pub fn took(&self) -> bool {
        let mut state = self.state.lock();
        state.waiting -= 1;
        state.waiting == 0
    }

    /// It has answered, and waits for the next one.
    pub fn waits(&self) {
        self.state.lock().waiting += 1;
    }

    /// A waiting thread ends.
    fn end(&self, result: io::Result<()>) {
        let mut state = self.state.lock();
        state.waiting -= 1;
        state.alive -= 1;
        if let Err(error) = result {
            state.failure.get_or_insert(error);
        }
        self.ended.notify_all();
    }

    /// Waits until all threads have ended, or one has failed, or for this long.
    ///
    /// # Errors
    /// What the first thread met that could not go on.
    pub fn wait(&self, at_most: Option<Duration>) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.alive > 0 && state.failure.is_none() {
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
    fn whoever_takes_the_last_place_is_told() {
        let workers = Workers::new("test");
        let (end, over) = mpsc::channel::<()>();
        let over = Arc::new(Mutex::new(over));
        for _ in 0..2 {
            let over = over.clone();
            let wait = move || {
                let _ = over.lock().recv();
                Ok(())
            };
            workers.start(wait).unwrap();
        }
        assert!(!workers.took(), "another one waits");
        assert!(workers.took(), "nobody waits");
        workers.waits();
        workers.waits();
        assert!(!workers.took());
        workers.waits();
        drop(end);
        assert!(workers.wait(None).is_ok());
    }

    #[test]
    fn the_first_failure_is_told() {
        let workers = Workers::new("test");
        workers.start(|| Err(io::Error::from_raw_os_error(libc::EIO))).unwrap();
        assert_eq!(workers.wait(None).unwrap_err().raw_os_error(), Some(libc::EIO));
    }
}
