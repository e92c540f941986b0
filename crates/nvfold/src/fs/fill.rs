//! The filler: gives stored chunks the weak fingerprints that they lack (NV-Dedup 4.4.2).
//!
//! The problem: while a policy does not fingerprint, nobody can find what is stored, and when it begins to, copies of
//! that are missed. The paper flags such chunks in the metadata table and has a thread that scans it.
//!
//! The idea: a chunk without a fingerprint has no entry at all (or one without), so nothing is written for it when it
//! is stored. Files know their blocks: those that were written without fingerprints are noted in DRAM, and gone over
//! in bounded steps when fingerprints are looked for again. After a mount all files are, once, unless the unmount
//! noted that nothing was missing.

use super::Core;
use super::inode::{Body, Inode};
use crate::dedup::{Dedup, Filling};
use crate::error::{Error, Result};
use crate::fingerprint::Fingerprint;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;

/// Blocks that one step fingerprints under the lock of their file, and blocks that it looks at: some 20 us.
const FILL_BLOCKS: usize = 64;
const LOOK_BLOCKS: usize = 4096;

/// What is to be filled.
pub(crate) struct Fill {
    waiting: Mutex<VecDeque<u64>>,
    /// Where the filler is. Held over a step; whoever notes a file does not wait for it.
    cursor: Mutex<Cursor>,
    filled: AtomicU64,
}

struct Cursor {
    /// The file under way, and the offset to go on at.
    file: Option<(u64, u64)>,
    /// The next inode of the pass over all of them, if it is not done.
    sweep: Option<u64>,
}

impl Fill {
    pub(super) fn new() -> Fill {
        let cursor = Mutex::new(Cursor { file: None, sweep: Some(1) });
        Fill { waiting: Mutex::default(), cursor, filled: AtomicU64::new(0) }
    }

    /// The unmount before noted that no fingerprint was missing.
    pub(crate) fn skip_sweep(&self) {
        self.cursor.lock().sweep = None;
    }

    /// Whether no file waits.
    fn is_done(&self) -> bool {
        let cursor = self.cursor.lock();
        cursor.file.is_none() && cursor.sweep.is_none() && self.waiting.lock().is_empty()
    }

    /// Chunks that got their fingerprint since mount.
    pub(super) fn filled(&self) -> u64 {
        self.filled.load(Ordering::Relaxed)
    }

    /// Notes a file of which chunks were stored without fingerprints.
    pub(super) fn note(&self, inode: &Inode) {
        if !inode.lacks_fingerprints.load(Ordering::Relaxed) && !inode.lacks_fingerprints.swap(true, Ordering::Relaxed)
        {
            self.waiting.lock().push_back(inode.ino);
        }
    }
}

impl Core {
    /// Whether no file is known to lack fingerprints: no policy stored anything without telling, and no file waits.
    pub(crate) fn is_filled(&self) -> bool {
        matches!(self.policies.filling(), Filling::Later | Filling::Now) && self.fill.is_done()
    }

    /// See `FileSystem::dedup_step`.
    pub(super) fn fill_step(&self) -> Result<bool> {
        // What may be freed by reconcile is not worth a fingerprint yet.
        let sweeps = self.policies.filling() == Filling::Now;
        if self.is_reconciling() || !(sweeps || self.policies.nv_dedup.filling() == Filling::Now) {
            return Ok(true);
        }
        let mut cursor = self.fill.cursor.lock();
        let Some((ino, offset)) = cursor.file.take().or_else(|| self.next_to_fill(&mut cursor, sweeps)) else {
            return Ok(true);
        };
        cursor.file = match self.fill_file(ino, offset) {
            // A file that cannot be read is told to who reads it.
            Err(Error::NotFound { .. } | Error::Corrupt { .. } | Error::BadMemory { .. }) => None,
            next => next?.map(|next| (ino, next)),
        };
        Ok(false)
    }

    /// The next file, of those that wait, and then of all if the policy of the mount `sweeps`.
    fn next_to_fill(&self, cursor: &mut Cursor, sweeps: bool) -> Option<(u64, u64)> {
        if let Some(ino) = self.fill.waiting.lock().pop_front() {
            return Some((ino, 0));
        }
        let next = cursor.sweep.filter(|_| sweeps)?;
        let used = (next..self.table.end()).find(|ino| self.table.is_used(*ino));
        cursor.sweep = used.map(|ino| ino + 1);
        used.map(|ino| (ino, 0))
    }

    /// Fills some of a file from an offset on; where to go on.
    fn fill_file(&self, ino: u64, from: u64) -> Result<Option<u64>> {
        let inode = self.inode(ino)?;
        // Nobody else writes, clones or removes the file meanwhile, so its blocks stay what they are.
        let state = inode.state.write();
        if from == 0 {
            inode.lacks_fingerprints.store(false, Ordering::Relaxed);
        }
        let Body::File(extents) = &state.body else { return Ok(None) };
        // What a policy of its own keeps to itself, others do not share.
        if state.freed || matches!(self.policies.of(inode.own_policy()).filling(), Filling::Never | Filling::Queued) {
            return Ok(None);
        }
        let mut lacking: Vec<BlockNumber> = Vec::new();
        let mut looked_at = 0;
        let mut next = None;
        'file: for (offset, extent) in extents.within(from, u64::MAX).filter(|(_, extent)| !extent.unwritten) {
            for block in extent.blocks().blocks() {
                if lacking.len() == FILL_BLOCKS || looked_at == LOOK_BLOCKS {
                    next = Some(offset + block.address().saturating_sub(extent.address));
                    break 'file;
                }
                looked_at += 1;
                if !self.can_be_found(block) {
                    lacking.push(block);
                }
            }
        }
        let filled = self.enter_all(lacking);
        self.fill.filled.fetch_add(filled, Ordering::Relaxed);
        Ok(next)
    }

    /// Gives blocks of a file that the caller has locked the weak fingerprints that they lack, so that they can be
    /// found; returns how many got one. What lies in bad memory gets none.
    pub(super) fn enter_all(&self, blocks: impl IntoIterator<Item = BlockNumber>) -> u64 {
        let (chunks, region) = (&self.chunks, &self.region);
        let mut tx = chunks.begin();
        let mut entered: Vec<(u32, BlockNumber)> = Vec::new();
        for block in blocks.into_iter().filter(|block| !self.can_be_found(*block)) {
            let weak = chunks.weak_function().of(region.bytes(block.address(), BLOCK_BYTES));
            let is_writable = region.check_writable(chunks.entry_offset(block), ENTRY_BYTES).is_ok();
            if !region.is_sound(block.address(), BLOCK_BYTES) || !is_writable {
                continue;
            }
            if chunks.has_entry(block) {
                chunks.set_weak(block, weak, &mut tx.flight);
            } else {
                tx.add(block, 1, &Fingerprint { weak: Some(weak), strong: None });
            }
            entered.push((weak, block));
        }
        if !entered.is_empty() {
            // These blocks are named already, unlike those of a write: no entry may count as done before it is whole.
            let _ = region.fence(std::mem::take(&mut tx.flight));
            let _ = tx.end(());
            entered.iter().for_each(|(weak, block)| chunks.index.insert(*weak, *block));
        }
        entered.len() as u64
    }

    pub(super) fn can_be_found(&self, block: BlockNumber) -> bool {
        self.chunks.has_entry(block) && self.chunks.entry(block).weak(self.chunks.weak_function()).is_some()
    }
}
