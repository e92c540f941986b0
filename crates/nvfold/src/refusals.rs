//! Changes that were refused because nvfold itself has made a mistake.
//!
//! The problem: a mistake in a computation becomes a lost file if its result is committed: a log entry that nothing
//! can read back damages the whole log, and a copy that differs from the original replaces it.
//!
//! The idea: such a result is checked before the commit. A change that fails the check is not made: its caller gets an
//! error, and the file stays as it is. Here the refusals are counted, for `stats` and for the front end's log.

use crate::error::Error;
use crate::words::Refused;
use nvfold_sync::Mutex;

/// The changes refused since mount.
#[derive(Default)]
pub(crate) struct Refusals {
    total: Mutex<Refused>,
    /// Set by tests that make a wrong rewrite on purpose.
    #[cfg(test)]
    are_expected: nvfold_sync::atomic::AtomicBool,
}

impl Refusals {
    /// Counts the error of a change if it is a refusal, and returns it.
    #[cold]
    pub(crate) fn count(&self, error: Error) -> Error {
        if matches!(error, Error::Refused { .. }) {
            let mut refused = self.total.lock();
            refused.count += 1;
            refused.last_error = Some(error.to_string());
        }
        error
    }

    /// Refuses a rewrite that would have changed content which it only moves. Only tests and debug builds look for
    /// that, and there it is a panic, so that no test passes over it.
    #[cold]
    pub(crate) fn refuse_rewrite(&self, what: String) -> Error {
        let error = self.count(Error::Refused { what });
        assert!(!cfg!(debug_assertions) || self.are_expected(), "{error}");
        error
    }

    #[cfg(test)]
    pub(crate) fn expect(&self) {
        self.are_expected.store(true, nvfold_sync::atomic::Ordering::Relaxed);
    }

    #[cfg(test)]
    fn are_expected(&self) -> bool {
        self.are_expected.load(nvfold_sync::atomic::Ordering::Relaxed)
    }

    #[cfg(not(test))]
    fn are_expected(&self) -> bool {
        false
    }

    /// Returns what was refused since mount.
    pub(crate) fn total(&self) -> Refused {
        self.total.lock().clone()
    }
}
