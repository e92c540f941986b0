//! Syncs that many processes ask for at once.
//!
//! The problem: a sync of a device on a disk takes as long as the disk does, and syncs exclude one another. A user who
//! calls fsync in many processes would keep as many threads of the server busy, each with a sync of its own.
//!
//! The idea: whoever asks while a sync runs waits for the next one, together with all others who do. So every request
//! ends with the second sync at the latest.

use nvfold_fuse::Errno;
use parking_lot::{Condvar, Mutex};

/// Syncs, by number: the first one is 1.
#[derive(Default)]
struct State {
    is_running: bool,
    /// The number of the last sync that has begun, and of the last one that has ended.
    begun: u64,
    ended: u64,
    /// The number of callers that wait until a sync has ended.
    waiting: usize,
    /// Why the last sync that has ended failed. One that succeeds makes durable what those before it could not.
    failure: Option<Errno>,
}

/// The syncs of a mount; see the module.
#[derive(Default)]
pub(crate) struct Syncs {
    state: Mutex<State>,
    one_ended: Condvar,
}

impl Syncs {
    /// Returns when a call of `sync` that began after this call has ended, with the result of that call or of
    /// a later one. Calls of it do not overlap.
    pub(crate) fn sync(&self, sync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        let mine = state.begun + 1;
        state.waiting += 1;
        while state.is_running && state.ended < mine {
            self.one_ended.wait(&mut state);
        }
        state.waiting -= 1;
        if state.ended >= mine {
            return state.failure.map_or(Ok(()), Err);
        }
        state.is_running = true;
        state.begun = mine;
        drop(state);
        let result = sync();
        let mut state = self.state.lock();
        state.is_running = false;
        state.ended = mine;
        state.failure = result.err();
        self.one_ended.notify_all();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;

    const WAITERS: usize = 50;

    /// Asks while a sync runs; returns the results, and how many syncs ran after it.
    fn ask_during_one(next: Result<(), Errno>) -> (Vec<Result<(), Errno>>, u64) {
        let (syncs, calls) = (Syncs::default(), AtomicU64::new(0));
        let ((begins, has_begun), (end, may_end)) = (mpsc::channel(), mpsc::channel::<()>());
        let results = thread::scope(|scope| {
            let syncs = &syncs;
            scope.spawn(move || {
                syncs.sync(|| {
                    begins.send(()).unwrap();
                    may_end.recv().unwrap();
                    Ok(())
                })
            });
            has_begun.recv().unwrap();
            let ask = || {
                syncs.sync(|| {
                    calls.fetch_add(1, Ordering::SeqCst);
                    next
                })
            };
            let waiters: Vec<_> = (0..WAITERS).map(|_| scope.spawn(ask)).collect();
            while syncs.state.lock().waiting < WAITERS {
                thread::yield_now();
            }
            assert_eq!(calls.load(Ordering::SeqCst), 0, "syncs do not overlap");
            end.send(()).unwrap();
            waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
        });
        (results, calls.into_inner())
    }

    #[test]
    fn callers_that_arrive_during_a_sync_share_the_next_one() {
        let (results, calls) = ask_during_one(Ok(()));
        assert!(results.iter().all(Result::is_ok));
        assert_eq!(calls, 1);
    }

    #[test]
    fn the_failure_of_a_joint_sync_is_returned_to_all_callers() {
        let (results, _) = ask_during_one(Err(Errno::EIO));
        assert!(results.iter().all(|result| *result == Err(Errno::EIO)));
    }

    #[test]
    fn a_lone_caller_gets_its_own_sync() {
        let (syncs, calls) = (Syncs::default(), AtomicU64::new(0));
        for wanted in 1..=3 {
            let call = || {
                calls.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            assert_eq!(syncs.sync(call), Ok(()));
            assert_eq!(calls.load(Ordering::SeqCst), wanted);
        }
    }
}
