//! Reconcile: makes counts exact after a crash, while the file system is in use.
//!
//! The problem: a crash leaves counts that are too high, blocks in use without a reference, and inodes without a name
//! (invariants 1, 2, 4). Only all inode logs together tell which, and reading them takes time that grows with the
//! data.
//!
//! The idea: bounded steps, each holding the freeze lock, so that no operation is half done while a step runs.
//!
//! ```text
//! walk      inode after inode: its log areas and pages are in use; its extents count in the recount; its names count;
//!           log entries that still wait to be shared are queued
//! trees     directories without a name that belong to a tree which was being made or removed: link count 0, and on the
//!           list of trees to be freed
//! unnamed   inodes that no name was found for are freed, with all that they name; so are log areas that no log names
//! chains    pm index: reorders are ended, and what does not belong to a chain leaves it
//! exact     segment after segment: each chunk entry is made to say what was counted; blocks whose use is still
//!           unknown and that nobody names are free
//! packed    the same of packed chunks, part after part of the table of their entries
//! ```
//!
//! **Damage stays local.** An inode that has a name but cannot be read is kept, and gives EIO. Its references are
//! unknown, so blocks that no other inode references stay in use, and no count is lowered. Everything else continues:
//! counts of blocks that other inodes reference become exact, and inodes without a name are freed. The exception is
//! an unreadable directory, or a non-empty directory without a name that belongs to no tree which was being made or
//! removed (the rule: [`crate::trees`]). Then names are missing, and an inode without a
//! name may belong to that directory. fsck decides about the kept inodes.
//!
//! Anything can happen between steps. Operations on inodes that were already walked keep the recount up to date
//! ([`crate::chunk::recount`]), and new names and freed blocks are recorded.

use super::{Mounted, Recovery};
use crate::chunk::recount::Recount;
use crate::error::{Error, Result};
use crate::inode::table::free_slot;
use crate::inode::{Body, Inode, State};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::{BlockNumber, PackedNumber, SEGMENT_BLOCKS};
use crate::panics::Job;
use crate::space::{BlockRun, Runs};
use crate::words::{FileId, FileKind, InodeNumber};
use hashbrown::HashSet;
use nvfold_sync::atomic::Ordering;
use pmem::Flight;

/// Approximate number of entries and inodes that one step processes: well below a millisecond of work.
const STEP: u64 = 2048;
const ROOT: u64 = InodeNumber::ROOT.0;
/// Number of chains that one step processes; most are empty.
const CHAINS_STEP: u64 = 8192;

/// Records the current phase of reconcile, and how far it has come.
pub(crate) enum Reconcile {
    /// Walking inodes: the next inode, the unreadable ones so far, and the segments to be made exact.
    Walk { next: u64, unreadable: Vec<UnreadableInode>, marked: Vec<u64> },
    /// Finding trees that were being made or removed, among the inodes without a name from `next` on. No directory of
    /// them is freed before all are the tops of trees to be freed: their parents are what tells.
    Trees { next: u64, unfinished: Unfinished, rest: Rest },
    /// Freeing inodes without a name, from `next` on.
    Unnamed { next: u64, rest: Rest },
    /// pm index: repairing chains, from `next` on. This comes before any block is freed, because no chain may link a
    /// free block.
    Chains { next: u64, rest: Rest },
    /// Making chunk entries exact, segment by segment; `next` is an index into the list of segments.
    SetExact { next: usize, rest: Rest },
    /// Making entries of packed chunks exact, from `next` on.
    Packed { next: u32, rest: Rest },
    /// Everything is exact.
    Done,
    /// A block is used for two purposes, so it is unknown which blocks are in use.
    Stalled { what: String, at: Option<u64> },
}

impl Reconcile {
    /// Returns the first phase of a full reconcile; chunk entries in the `marked` segments are to be made exact.
    pub(crate) fn begin(marked: Vec<u64>) -> Reconcile {
        Reconcile::Walk { next: 1, unreadable: Vec::new(), marked }
    }
}

/// What the phases after the walk need.
pub(crate) struct Rest {
    /// Segments to be made exact.
    marked: Vec<u64>,
    /// True if an inode cannot be read: blocks without another reference may be its, so they are kept.
    keeps_blocks: bool,
    /// True if inodes without a name are kept, because the directory with the name may be unreadable.
    keeps_nameless: bool,
}

/// Trees that were being made or removed.
#[derive(Default)]
pub(crate) struct Unfinished {
    /// Their directories without a name: the tops of what is to be freed.
    tops: Vec<FileId>,
    /// These, and directories whose parents lead up to them.
    known: HashSet<u64>,
}

/// An inode that could not be read. If it has no name, a crash interrupted its creation: its head reached the media
/// and the rest did not. If it has a name, it is damaged.
pub(crate) struct UnreadableInode {
    ino: u64,
    slot: u64,
    /// True if its slot was read, and has the content that a crash during creation may leave.
    may_be_half_created: bool,
}

impl Mounted {
    /// Returns what the mount found, and how far recovery has come.
    pub(crate) fn recovery(&self) -> Recovery {
        let recovery = self.recovery.lock().clone();
        let unreadable = self.core.damaged.count();
        let inodes = self.core.table.end();
        let (steps_done, segments, stalled) = match &*self.reconcile.lock() {
            Reconcile::Walk { next, marked, .. } => (*next, marked.len(), false),
            Reconcile::Trees { rest, .. } | Reconcile::Unnamed { rest, .. } | Reconcile::Chains { rest, .. } => {
                (inodes, rest.marked.len(), false)
            }
            Reconcile::SetExact { next, rest } => (inodes + *next as u64, rest.marked.len(), false),
            Reconcile::Packed { rest, .. } => (inodes + rest.marked.len() as u64, rest.marked.len(), false),
            Reconcile::Done => return Recovery { reconciled: true, unreadable, ..recovery },
            Reconcile::Stalled { .. } => (0, 0, true),
        };
        Recovery { stalled, unreadable, steps_done, steps_total: inodes + segments as u64, ..recovery }
    }

    /// See `FileSystem::reconcile`.
    pub(crate) fn reconcile(&self) -> Result<()> {
        while !self.reconcile_step()? {}
        Ok(())
    }

    /// See `FileSystem::reconcile_step`.
    pub(crate) fn reconcile_step(&self) -> Result<bool> {
        if !self.core.is_reconciling() {
            return Ok(true);
        }
        let mut reconcile = self.reconcile.lock();
        let _closed = self.core.freeze_lock.close();
        let before = std::mem::replace(&mut *reconcile, Reconcile::Done);
        let advanced = match before {
            stalled @ Reconcile::Stalled { .. } => Ok(stalled),
            before => self.core.panics.contain(Job::Reconcile, None, || self.advance(before)),
        };
        *reconcile = self.core.answer(advanced).unwrap_or_else(|error| match error {
            Error::Corrupt { what, at } => Reconcile::Stalled { what, at: Some(at) },
            Error::BadMemory { what, at, .. } => {
                Reconcile::Stalled { what: format!("{what}: it lies in bad memory"), at: Some(at) }
            }
            other => Reconcile::Stalled { what: other.to_string(), at: None },
        });
        match &*reconcile {
            Reconcile::Done => Ok(true),
            Reconcile::Stalled { what, at: Some(at) } => Err(Error::Corrupt { what: what.clone(), at: *at }),
            Reconcile::Stalled { what, at: None } => Err(Error::NotReconciled { why: what.clone() }),
            _ => Ok(false),
        }
    }

    fn advance(&self, reconcile: Reconcile) -> Result<Reconcile> {
        Ok(match reconcile {
            Reconcile::Walk { next, mut unreadable, marked } => match self.walk_some(next, &mut unreadable)? {
                Some(next) => Reconcile::Walk { next, unreadable, marked },
                None => {
                    let (keeps_blocks, keeps_nameless) = self.judge_unreadable(unreadable)?;
                    let rest = Rest { marked, keeps_blocks, keeps_nameless };
                    Reconcile::Trees { next: 0, unfinished: Unfinished::default(), rest }
                }
            },
            Reconcile::Trees { next, mut unfinished, mut rest } => {
                match self.find_unfinished(next, &mut unfinished, &mut rest)? {
                    Some(next) => Reconcile::Trees { next, unfinished, rest },
                    None => {
                        self.trees().add_tops(unfinished.tops);
                        Reconcile::Unnamed { next: 0, rest }
                    }
                }
            }
            Reconcile::Unnamed { rest, .. } if rest.keeps_nameless => {
                let mut nameless = self.core.table.take_unnamed_inodes();
                nameless.retain(|number| !self.free_unnamed_area(*number));
                self.nameless.lock().append(&mut nameless);
                Reconcile::Chains { next: 0, rest }
            }
            Reconcile::Unnamed { next, rest } => match self.free_unnamed(next)? {
                Some(next) => Reconcile::Unnamed { next, rest },
                None => Reconcile::Chains { next: 0, rest },
            },
            Reconcile::Chains { next, rest } => match self.tidy_chains(next) {
                Some(next) => Reconcile::Chains { next, rest },
                None => Reconcile::SetExact { next: 0, rest },
            },
            Reconcile::SetExact { next, rest } => match rest.marked.get(next) {
                Some(segment) => {
                    let set = |recount: &Recount| self.set_exact(*segment, recount, rest.keeps_blocks);
                    self.core.chunks.with_recount(set).transpose()?;
                    Reconcile::SetExact { next: next + 1, rest }
                }
                None => Reconcile::Packed { next: 0, rest },
            },
            Reconcile::Packed { next, rest } => {
                let set = |recount: &Recount| self.set_packed_exact(next, recount, rest.keeps_blocks);
                match self.core.chunks.with_recount(set).flatten() {
                    Some(next) => Reconcile::Packed { next, rest },
                    None => {
                        self.core.chunks.set_recount(None);
                        self.core.walked.store(u64::MAX, Ordering::Release);
                        self.core.table.settle_absent(&self.core.space);
                        self.core.space.free_empty_packed();
                        self.core.give_up_empty_packed();
                        self.core.space.keep_spare_for_packed();
                        Reconcile::Done
                    }
                }
            }
            Reconcile::Done | Reconcile::Stalled { .. } => reconcile,
        })
    }

    /// Walks inodes from `next` on; returns the inode to continue with.
    fn walk_some(&self, next: u64, unreadable: &mut Vec<UnreadableInode>) -> Result<Option<u64>> {
        let mut next = next;
        let mut looked_at = 0;
        while looked_at < STEP {
            let ino = self.core.table.next_used(next);
            if ino >= self.core.table.end() {
                self.core.walked.store(ino, Ordering::Release);
                return Ok(None);
            }
            let slot = self.core.table.slot(ino).expect("in the table");
            match Inode::load(&self.core.region, &self.core.geometry, slot, ino) {
                Ok(Some(inode)) => {
                    self.core.queue_after_crash(&inode)?;
                    looked_at += self.walk(ino, slot, &inode.into_state(), unreadable)?;
                }
                // A log area: the walk of its owner's log decides whether it is in use.
                Ok(None) if self.core.table.area(ino).is_some() => {}
                Ok(None) | Err(Error::Corrupt { .. }) => {
                    let may_be_half_created = Inode::may_be_half_created(&self.core.region, slot, ino);
                    unreadable.push(UnreadableInode { ino, slot, may_be_half_created });
                }
                Err(Error::BadMemory { .. }) => {
                    unreadable.push(UnreadableInode { ino, slot, may_be_half_created: false })
                }
                Err(other) => return Err(other),
            }
            looked_at += 1;
            next = ino + 1;
            self.core.walked.store(next, Ordering::Release);
        }
        Ok(Some(next))
    }

    /// Decides about the inodes that could not be read, now that all names are known. Returns whether blocks, and
    /// inodes without a name, must be kept.
    fn judge_unreadable(&self, unreadable: Vec<UnreadableInode>) -> Result<(bool, bool)> {
        if unreadable.is_empty() && !self.for_repair {
            return Ok((false, false));
        }
        let directories = self.named_directories();
        let is_unnamed = |inode: &UnreadableInode| inode.ino != ROOT && self.core.table.is_unnamed(inode.ino);
        let lacks_names = unreadable.iter().any(|inode| inode.ino == ROOT || directories.contains(&inode.ino));
        let mut keeps_blocks = false;
        for inode in unreadable {
            if is_unnamed(&inode) && inode.may_be_half_created && !lacks_names {
                self.free_half_created(&inode);
            } else {
                self.core.table.note_name_found(inode.ino);
                self.core.damaged.add(inode.ino, inode.slot);
                self.core.cache.remove(inode.ino);
                keeps_blocks = true;
            }
        }
        Ok((keeps_blocks, lacks_names || self.for_repair))
    }

    /// Returns the inodes that names say are directories.
    fn named_directories(&self) -> HashSet<u64> {
        let mut directories = HashSet::new();
        for ino in self.core.table.used() {
            let slot = self.core.table.slot(ino).expect("in the table");
            if let Ok(Some(inode)) = Inode::load(&self.core.region, &self.core.geometry, slot, ino)
                && let Body::Directory(names) = &inode.into_state().body
            {
                let named = names.after(0).filter(|name| name.kind() == FileKind::Directory);
                directories.extend(named.map(|name| name.ino));
            }
        }
        directories
    }

    /// Looks at inodes without a name from `from` on; returns the one to continue with. A directory that has names is
    /// damage, unless it belongs to a tree that was being made or removed: some directory has lost names.
    fn find_unfinished(&self, from: u64, unfinished: &mut Unfinished, rest: &mut Rest) -> Result<Option<u64>> {
        let mut from = from;
        for _ in 0..STEP {
            let Some(ino) = self.core.table.first_unnamed(from) else { return Ok(None) };
            from = ino + 1;
            if ino <= ROOT || !self.core.table.is_used(ino) || self.core.table.area(ino).is_some() {
                continue;
            }
            let inode = self.core.inode(ino)?;
            if !matches!(&inode.peek().body, Body::Directory(directory) if !directory.is_empty()) {
                continue;
            }
            let top =
                if self.leads_to_top(ino, &mut unfinished.known) { self.core.make_top(&inode).ok() } else { None };
            if top.is_none() && !rest.keeps_nameless {
                self.core.damaged.add(ino, inode.slot);
            }
            rest.keeps_nameless |= top.is_none();
            unfinished.tops.extend(top);
        }
        Ok(Some(from))
    }

    /// Returns true if a directory is the top of a tree that was being made or removed, or its parents lead up to one.
    /// The parents of a damaged device may form a loop.
    fn leads_to_top(&self, ino: u64, known: &mut HashSet<u64>) -> bool {
        let (mut at, mut path) = (ino, HashSet::new());
        while !known.contains(&at) {
            let directory = self.core.inode(at).ok().filter(|inode| inode.kind == FileKind::Directory);
            let Some(directory) = directory.filter(|_| at != ROOT && path.insert(at)) else { return false };
            if self.core.table.is_unnamed(at) && directory.peek().attributes.nlink == 0 {
                break;
            }
            at = directory.parent.load(Ordering::Relaxed);
        }
        known.extend(path);
        true
    }

    /// Frees an inode whose creation a crash interrupted: it has no name, and its log references nothing.
    fn free_half_created(&self, inode: &UnreadableInode) {
        self.core.table.note_name_found(inode.ino);
        free_slot(&self.core.region, inode.slot);
        self.core.table.free(inode.ino);
    }

    /// Adds one inode to the recount; returns the number of lines of its log.
    fn walk(&self, ino: u64, slot: u64, state: &State, unreadable: &mut Vec<UnreadableInode>) -> Result<u64> {
        let walked = self.core.chunks.with_recount(|recount| self.walk_blocks(recount, ino, state)).transpose();
        match walked {
            // Blocks that the inode references are kept, and the inode is never changed again.
            Err(Error::Corrupt { .. }) => unreadable.push(UnreadableInode { ino, slot, may_be_half_created: false }),
            walked => drop(walked?),
        }
        self.core.mapped_bytes.add(state.mapped_bytes());
        self.core.count_charged(ino, state);
        if let Body::Directory(directory) = &state.body {
            for name in directory.after(0) {
                self.core.table.note_name_found(name.ino);
                // A free slot that has a name is damaged; its number must not be given to a new inode.
                if !self.for_repair && self.core.table.keep(name.ino) {
                    let slot = self.core.table.slot(name.ino).expect("in the table");
                    unreadable.push(UnreadableInode { ino: name.ino, slot, may_be_half_created: false });
                }
            }
        }
        Ok(state.log.lines)
    }

    /// Records the blocks that the inode uses, and checks that none is free, in the inode table, or used twice.
    fn walk_blocks(&self, recount: &Recount, ino: u64, state: &State) -> Result<()> {
        let blocks =
            || state.extents().into_iter().flat_map(|extents| extents.iter()).flat_map(|(_, e)| e.blocks().blocks());
        let keep = |block| {
            self.core.space.mark_used(block);
        };
        let twice = |block: BlockNumber| {
            let what = format!("inode {ino}: a block that it references is free, or used for something else");
            Err(Error::Corrupt { what, at: block.address() })
        };
        for slot in state.log.areas() {
            let Some(area) = self.core.table.area_in(slot).filter(|area| self.core.table.is_used(area.number)) else {
                let what = format!("inode {ino}: a log area that it references is free, or is not a log area");
                return Err(Error::Corrupt { what, at: slot });
            };
            self.core.table.note_name_found(area.number);
        }
        for block in state.log.pages().chain(state.xattr_blocks()) {
            let is_data_too = recount.counted(block).0 > 0;
            if self.core.space.mark_used(block) || !recount.claim_metadata(block) || is_data_too {
                blocks().for_each(keep);
                return twice(block);
            }
        }
        for (_, extent) in state.extents().into_iter().flat_map(|extents| extents.iter()) {
            for block in extent.blocks().blocks() {
                if self.core.space.mark_used(block) || recount.is_metadata(block) || self.is_packed_place(block) {
                    blocks().for_each(keep);
                    return twice(block);
                }
                self.count(recount, block, extent.unwritten);
            }
            if let Some(chunk) = extent.packed() {
                if !self.core.chunks.packed.is_used(chunk) {
                    blocks().for_each(keep);
                    let at = self.core.chunks.entries.packed_offset(chunk).unwrap_or(0);
                    let what =
                        format!("inode {ino}: packed chunk {}, which it references, has a damaged entry", chunk.0);
                    return Err(Error::Corrupt { what, at });
                }
                recount.count(chunk, false);
            }
        }
        Ok(())
    }

    /// Returns true if a block is in a segment of packed chunks or of their entries.
    fn is_packed_place(&self, block: BlockNumber) -> bool {
        let segment = block.0 / SEGMENT_BLOCKS;
        self.core.space.packed.is_packed(segment) || self.core.chunks.entries.has_part_in(segment)
    }

    /// Counts one more extent of a block. A crash during the first write to a reserved block leaves the fingerprint
    /// of content that was never committed, so the entry is hidden from searches.
    fn count(&self, recount: &Recount, block: BlockNumber, unwritten: bool) {
        recount.count(block, unwritten);
        if unwritten && self.core.chunks.has_entry(block) {
            self.core.chunks.hide(block);
        }
    }

    /// Frees inodes without a name, from `from` on; returns the inode to continue with. An open inode stays until it
    /// is closed.
    fn free_unnamed(&self, from: u64) -> Result<Option<u64>> {
        let Some(ino) = self.core.table.next_unnamed(from) else { return Ok(None) };
        if ino > ROOT && self.core.table.is_used(ino) && !self.free_unnamed_area(ino) {
            let inode = self.core.inode(ino)?;
            let mut state = inode.lock();
            if inode.is_pinned() {
                self.core.set_nlink(&inode, &mut state, 0)?;
            } else {
                state.attributes.nlink = 0;
                self.core.free_if_unused(&inode, &mut state);
            }
        }
        Ok(Some(ino + 1))
    }

    /// Returns true if this number is a log area that no log references. The area is freed, unless its owner's log
    /// cannot be read and may reference it.
    fn free_unnamed_area(&self, number: u64) -> bool {
        let table = &self.core.table;
        let Some(area) = table.area(number).filter(|_| table.is_used(number)) else { return false };
        if !self.core.damaged.contains(area.owner) {
            table.free_areas(table.slot(number).into_iter());
        }
        true
    }

    /// Repairs chains of a pm index from `from` on; returns the chain to continue with.
    fn tidy_chains(&self, from: u64) -> Option<u64> {
        let index = self.core.chunks.index.fact()?;
        let end = index.chains().min(from + CHAINS_STEP);
        index.tidy(from..end);
        if end == index.chains() {
            index.end_count();
            return None;
        }
        Some(end)
    }

    /// Sets the entries of a segment to the counted values, and frees blocks without a reference. `keeps_blocks` is
    /// true if an unreadable inode may have more references.
    fn set_exact(&self, segment: u64, recount: &Recount, keeps_blocks: bool) -> Result<()> {
        let first = segment * SEGMENT_BLOCKS;
        let entries = self.core.geometry.chunk_entry_offset(BlockNumber(first));
        let bytes = self.core.geometry.blocks_in_segment(segment) * ENTRY_BYTES;
        let has_bad_entries = self.core.region.check_writable(entries, bytes).is_err();
        let mut flight = Flight::new();
        let mut free = Runs::new();
        for block in (first..first + self.core.geometry.blocks_in_segment(segment)).map(BlockNumber) {
            let (references, reserved) = recount.counted(block);
            if references > 0 && recount.is_metadata(block) {
                // The block is both data and metadata. One of the two users is never changed again, and a count that
                // cannot reach 0 keeps the block for it.
                self.core.chunks.set_exact(block, references + 1, false, &mut flight);
                recount.mark_known(block);
                continue;
            }
            if has_bad_entries && self.is_bad_entry(block) {
                // Its count cannot be set, so the block stays in use.
                let named = recount.mark_known(block) && references > 0;
                self.core.data_blocks.add(u64::from(named));
                continue;
            }
            let may_have_more = keeps_blocks && recount.is_unknown(block);
            if may_have_more && (references == 0 || self.core.chunks.count(block) > references) {
                let named = recount.mark_known(block) && references > 0;
                self.core.data_blocks.add(u64::from(named));
                continue;
            }
            self.set_block_exact(block, references, reserved, &mut flight);
            if !recount.mark_known(block) {
                continue;
            }
            if references > 0 {
                self.core.data_blocks.add(1);
            } else {
                // The block may have got a label while its use was unknown.
                let _gone = self.core.chunks.take_off(block.into());
                free.push(BlockRun { start: block, count: 1 });
            }
        }
        // An emptied entry must be durable before its block is reused.
        let _ = self.core.region.fence(flight);
        free.iter().for_each(|run| self.core.space.free(*run));
        Ok(())
    }

    /// Sets the entries of packed chunks from `next` on to the counted values, and frees chunks without a reference;
    /// returns the entry to continue with.
    fn set_packed_exact(&self, next: u32, recount: &Recount, keeps_blocks: bool) -> Option<u32> {
        let chunks = &self.core.chunks;
        let mut flight = Flight::new();
        let mut free = Vec::new();
        let end = next + STEP as u32;
        // Reads the bitmap word by word, because most entries of a part are free.
        let unknown = (next..end).step_by(64).flat_map(|first| {
            let bits = recount.unknown_packed(PackedNumber(first));
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| PackedNumber(first + bit))
        });
        for chunk in unknown.filter(|chunk| recount.is_unknown(*chunk)) {
            let (references, _) = recount.counted(chunk);
            recount.mark_known(chunk);
            let may_have_more = keeps_blocks && (references == 0 || chunks.count(chunk) > references);
            let offset = chunks.entry_offset(chunk);
            if may_have_more || !self.core.region.sound_or_forget(offset, ENTRY_BYTES) {
                continue;
            }
            let entry = chunks.entry(chunk);
            let place = chunks.place_of(chunk.into());
            // An entry without a whole tag was being added when the crash happened: its fingerprint may be torn.
            chunks.set_exact(chunk, references, entry.is_whole(), &mut flight);
            if references == 0 {
                free.push((chunk, place));
            }
        }
        // An emptied entry must be durable before its space is reused.
        let _ = self.core.region.fence(flight);
        for (chunk, place) in free {
            chunks.packed.free(chunk);
            if let Some((address, bytes)) = place {
                self.core.space.drop_packed(address, bytes);
            }
        }
        (u64::from(end) < chunks.packed.entries_end()).then_some(end)
    }

    fn is_bad_entry(&self, block: BlockNumber) -> bool {
        let entry = self.core.geometry.chunk_entry_offset(block);
        !self.core.region.sound_or_forget(entry, ENTRY_BYTES)
    }

    /// Makes a block private if one extent references it and its entry holds nothing worth keeping; otherwise sets
    /// the exact count.
    fn set_block_exact(&self, block: BlockNumber, references: u32, reserved: bool, flight: &mut Flight) {
        if !self.core.chunks.has_entry(block) && references < 2 {
            return;
        }
        let entry = self.core.chunks.entry(block);
        // An entry without a whole tag was being added when the crash happened: its fingerprint may be torn.
        let keeps = entry.is_of(block) && entry.is_whole() && !reserved;
        let has_fingerprint = entry.any_weak().is_some() || entry.any_strong().is_some();
        let count = match references {
            1 if reserved => 0,
            1 if !(keeps && (has_fingerprint || entry.count == 1)) => 0,
            references => references,
        };
        self.core.chunks.set_exact(block, count, keeps, flight);
    }
}
