//! Files that are about to be freed with the directory that has their only name.

use crate::error::{Error, Result};
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;

/// Files whose only name is in a directory that loses all its names at once. They can get no other name.
#[derive(Default)]
pub(crate) struct Doomed {
    any: AtomicBool,
    files: Mutex<BTreeSet<u64>>,
}

impl Doomed {
    /// Dooms a file. The caller holds its lock.
    pub(super) fn add(&self, ino: u64) {
        self.any.store(true, Ordering::Release);
        self.files.lock().insert(ino);
    }

    /// Ends the doom of these files, which are freed, or open without a name.
    pub(super) fn remove(&self, inos: &[u64]) {
        let mut files = self.files.lock();
        inos.iter().for_each(|ino| _ = files.remove(ino));
        self.any.store(!files.is_empty(), Ordering::Release);
    }

    /// Spares all of them: the directory keeps its names.
    pub(crate) fn clear(&self) {
        self.files.lock().clear();
        self.any.store(false, Ordering::Release);
    }

    /// Returns an error if a file cannot get a name. The caller holds its lock.
    ///
    /// # Errors
    /// ENOENT.
    #[inline]
    pub(super) fn check(&self, ino: u64) -> Result<()> {
        if !self.any.load(Ordering::Acquire) || !self.files.lock().contains(&ino) {
            return Ok(());
        }
        Err(Error::NotFound { what: "the file, which was removed with its directory".into() })
    }

    /// Returns the number of files.
    pub(crate) fn len(&self) -> usize {
        self.files.lock().len()
    }

    /// Returns the first files, at most `count`.
    pub(crate) fn first(&self, count: usize) -> Vec<u64> {
        self.files.lock().iter().copied().take(count).collect()
    }
}
