//! Changes that were refused because nvfold itself has made a mistake.
//!
//! The problem: a mistake in a computation becomes a lost file if its result is committed: a log entry that nothing
//! can read back damages the whole log, and a copy that differs from the original replaces it.
//!
//! The idea: such a result is checked before the commit. A change that fails the check is not made: its caller gets an
//! error, and the file stays as it is. Here the refusals are counted, for `stats` and for the front end's log.

use crate::error::Error;
use crate::sync::Mutex;
use crate::words::Refused;

/// The changes refused since mount.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<Refused>);

impl Refusals {
    /// Counts a change that is refused, and returns the error for it: EIO. `what` is a sentence that says what was
    /// refused, and why.
    #[cold]
    pub(crate) fn refuse(&self, what: String) -> Error {
        let error = Error::Refused { what };
        let mut refused = self.0.lock();
        refused.count += 1;
        refused.last_error = Some(error.to_string());
        error
    }

    /// Returns what was refused since mount.
    pub(crate) fn total(&self) -> Refused {
        self.0.lock().clone()
    }
}
