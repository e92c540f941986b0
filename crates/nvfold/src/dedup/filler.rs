//! The filler: gives stored chunks the weak fingerprints that they lack (NV-Dedup 4.4.2). Policies that go by the index
//! share it.
//!
//! The problem: while a policy does not fingerprint, nobody can find what is stored, and when it begins to, copies of
//! that are missed. The paper flags such chunks in the metadata table and has a thread that scans it.
//!
//! The idea: a chunk without a fingerprint has no entry at all (or one without), so nothing is written for it when it
//! is stored. Files know their blocks: those that were written without fingerprints are listed in DRAM, and gone over
//! in bounded steps when fingerprints are looked for again. After a mount all files are, once, unless the unmount
//! recorded that nothing was missing: a crash loses what only the dram index knew.

use crate::dedup::work::Host;
use crate::error::Result;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

/// What is to be filled.
pub(crate) struct Filler {
    waiting: Mutex<VecDeque<u64>>,
    /// Where the filler is. Held over a step; adding a file does not wait for it.
    cursor: Mutex<Cursor>,
    filled: AtomicU64,
    /// Position of the pass over all files; 0 once it is over.
    swept_to: AtomicU64,
}

struct Cursor {
    /// The file under way, and the offset to go on at.
    file: Option<(u64, u64)>,
    /// The next file of the pass over all of them, if it is not done.
    sweep: Option<u64>,
}

impl Filler {
    pub(super) fn new() -> Filler {
        let cursor = Mutex::new(Cursor { file: None, sweep: None });
        Filler { waiting: Mutex::default(), cursor, filled: AtomicU64::new(0), swept_to: AtomicU64::new(0) }
    }

    /// All files of before the mount are looked at once.
    pub(super) fn sweep(&self) {
        self.cursor.lock().sweep = Some(1);
        self.swept_to.store(1, Ordering::Relaxed);
    }

    /// The unmount before recorded that no fingerprint was missing.
    pub(super) fn skip_sweep(&self) {
        self.cursor.lock().sweep = None;
        self.swept_to.store(0, Ordering::Relaxed);
    }

    /// The next file of the pass over all of them; `None` when that is over.
    pub(crate) fn sweeps_at(&self) -> Option<u64> {
        Some(self.swept_to.load(Ordering::Relaxed)).filter(|file| *file > 0)
    }

    /// Whether no file waits.
    pub(super) fn is_done(&self) -> bool {
        let cursor = self.cursor.lock();
        cursor.file.is_none() && cursor.sweep.is_none() && self.waiting.lock().is_empty()
    }

    /// Chunks that got their fingerprint since mount.
    pub(crate) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// A file of which chunks were stored without fingerprints; each once until a step comes to it.
    pub(super) fn add(&self, file: u64) {
        self.waiting.lock().push_back(file);
    }

    /// Fills some blocks of the next file; true when no file waits.
    pub(super) fn step(&self, host: &dyn Host) -> Result<bool> {
        let mut cursor = self.cursor.lock();
        let Some((file, from)) = cursor.file.take().or_else(|| self.next(&mut cursor, host)) else { return Ok(true) };
        let done = host.fill(file, from)?;
        self.filled.fetch_add(done.chunks, Ordering::Relaxed);
        cursor.file = done.next.map(|next| (file, next));
        Ok(false)
    }

    /// The next file, of those that wait, and then of all.
    fn next(&self, cursor: &mut Cursor, host: &dyn Host) -> Option<(u64, u64)> {
        if let Some(file) = self.waiting.lock().pop_front() {
            return Some((file, 0));
        }
        let next = cursor.sweep?;
        let file = host.next_file(next);
        cursor.sweep = file.map(|file| file + 1);
        self.swept_to.store(cursor.sweep.unwrap_or(0), Ordering::Relaxed);
        file.map(|file| (file, 0))
    }
}
