//! The filler: gives stored chunks the weak fingerprints that they lack (NV-Dedup 4.4.2). All policies that use the
//! index share it.
//!
//! The problem: data that is stored while a policy does not fingerprint cannot be found later, so copies of it are
//! missed. The paper flags such chunks in the metadata table, and a thread scans the table for them.
//!
//! The idea: a chunk without a fingerprint needs no chunk entry, or an entry with an empty fingerprint, so storing it
//! writes no metadata. Files know their blocks: files that were written without fingerprints are listed in DRAM. Once
//! fingerprints are looked up again, the filler processes the list in bounded steps.
//!
//! After a mount it processes all files once, unless the last unmount recorded that no fingerprint was missing: a
//! crash loses the fingerprints that only the dram index held.

use crate::dedup::work::Host;
use crate::error::Result;
use crate::words::FileId;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

/// The files to fill, and the progress.
pub(crate) struct Filler {
    waiting: Mutex<VecDeque<FileId>>,
    /// The filler's position. Its lock is held during a step; adding a file does not wait for it.
    cursor: Mutex<FillPosition>,
    filled: AtomicU64,
    /// Next file of the pass over all files; 0 when the pass is over.
    swept_to: AtomicU64,
}

struct FillPosition {
    /// The current file and the offset at which to continue.
    file: Option<(FileId, u64)>,
    /// The next file of the pass over all files; `None` when the pass is over.
    sweep: Option<u64>,
}

impl Filler {
    pub(super) fn new() -> Filler {
        let cursor = Mutex::new(FillPosition { file: None, sweep: None });
        Filler { waiting: Mutex::default(), cursor, filled: AtomicU64::new(0), swept_to: AtomicU64::new(0) }
    }

    /// Starts a pass over all files that existed before the mount.
    pub(super) fn sweep(&self) {
        self.cursor.lock().sweep = Some(1);
        self.swept_to.store(1, Ordering::Relaxed);
    }

    /// Cancels the pass, because the last unmount recorded that no fingerprint was missing.
    pub(super) fn skip_sweep(&self) {
        self.cursor.lock().sweep = None;
        self.swept_to.store(0, Ordering::Relaxed);
    }

    /// Returns the next file of the pass over all files; `None` when the pass is over.
    pub(crate) fn sweeps_at(&self) -> Option<u64> {
        Some(self.swept_to.load(Ordering::Relaxed)).filter(|file| *file > 0)
    }

    /// True if no file waits.
    pub(super) fn is_done(&self) -> bool {
        let cursor = self.cursor.lock();
        cursor.file.is_none() && cursor.sweep.is_none() && self.waiting.lock().is_empty()
    }

    /// Returns the number of chunks that got their fingerprint since mount.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// Adds a file with chunks that were stored without fingerprints. The caller adds a file once until a step takes
    /// it.
    pub(crate) fn add(&self, file: FileId) {
        self.waiting.lock().push_back(file);
    }

    /// Fills some blocks of the next file. Returns true when no file waits.
    pub(super) fn step(&self, host: &dyn Host) -> Result<bool> {
        let mut cursor = self.cursor.lock();
        let Some((file, from)) = cursor.file.take().or_else(|| self.next(&mut cursor, host)) else { return Ok(true) };
        let done = host.fill(file, from)?;
        self.filled.fetch_add(done.chunks, Ordering::Relaxed);
        cursor.file = done.next.map(|next| (file, next));
        Ok(false)
    }

    /// Returns the next file: first those that wait, then those of the pass.
    fn next(&self, cursor: &mut FillPosition, host: &dyn Host) -> Option<(FileId, u64)> {
        if let Some(file) = self.waiting.lock().pop_front() {
            return Some((file, 0));
        }
        let next = cursor.sweep?;
        let file = host.next_file(next);
        cursor.sweep = file.map(|file| file.number + 1);
        self.swept_to.store(cursor.sweep.unwrap_or(0), Ordering::Relaxed);
        file.map(|file| (file, 0))
    }
}
