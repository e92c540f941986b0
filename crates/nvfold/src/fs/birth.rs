//! The birth and the death of inodes.
//!
//! An inode is written while nothing leads to it; the name that its maker publishes makes it reachable. It is freed slot
//! first, so that nothing of it can be reached, then all that only it names. A crash in between is found by reconcile:
//! what no name leads to is freed.

use super::Core;
use super::policy;
use super::xattr::StoredValue;
use crate::error::Result;
use crate::inode::extents::Dropped;
use crate::inode::log::{Addition, Log};
use crate::inode::table;
use crate::inode::{Body, Inode, SYMLINK_TARGET, State};
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, INODE_BYTES, InodeHead, OVERFLOW_WORD};
use crate::media::log_entry::LogEntry;
use crate::space::{BlockRun, Purpose};
use crate::sync::atomic::Ordering;
use crate::words::{FileKind, InodeNumber, NewInode, TimeNs};
use pmem::Flight;
use std::sync::Arc;

const SETGID: u32 = 0o2000;
/// Permission bits an inode keeps.
pub const MODE_BITS: u32 = 0o7777;

/// An inode to make.
pub(super) struct Birth<'b> {
    pub(super) ino: u64,
    pub(super) parent: &'b Inode,
    pub(super) parent_attributes: &'b AttributeLine,
    /// The extended attributes that it is born with, names and values: the target of a symlink, the policy of its
    /// directory, what its maker gives it.
    pub(super) xattrs: &'b [(&'b [u8], &'b [u8])],
    pub(super) new: &'b NewInode,
    pub(super) nlink: u32,
}

impl Core {
    /// Finds a free inode number. One whose slot lies in bad memory is never given back.
    pub(super) fn allocate_inode(&self) -> Result<u64> {
        loop {
            let ino = self.table.allocate(&self.space)?;
            let slot = self.table.slot(ino).expect("an allocated inode has a slot");
            let _: InodeHead = self.region.read(slot);
            if self.region.sound_or_forget(slot, INODE_BYTES) {
                return Ok(ino);
            }
            // Of a lost device no slot is sound.
            self.region.check()?;
        }
    }

    /// Writes a new inode's slot, runs `publish` (which fences), and takes the inode into the cache.
    pub(super) fn with_new_inode(
        &self,
        birth: &Birth<'_>,
        publish: impl FnOnce(Flight) -> Result<()>,
    ) -> Result<Arc<Inode>> {
        let Birth { ino, parent, parent_attributes, xattrs, new, nlink } = *birth;
        let time = self.now();
        self.table.note_name_found(ino);
        let slot = self.table.slot(ino).expect("an allocated inode has a slot");
        let old: InodeHead = self.region.read(slot);
        table::empty_old_log(&self.region, slot, &old);
        let mut head = InodeHead::new(slot, ino, new.kind, next_generation(old.generation, time), parent.ino, time);
        let mut flight = Flight::new();
        let mut log = Log { head: head.head, tail: head.head, ..Log::default() };
        let mut first = None;
        if !xattrs.is_empty() {
            let entries = self.first_entries(birth, slot, &log, time, &mut flight);
            let (values, addition) = entries.inspect_err(|_| self.table.free(ino))?;
            if old.generation != 0 || addition.has_parts() {
                // Where these lines go an earlier user of the number may have left valid ones. They must be gone before
                // the head says that the log has lines: a crash would give the new inode blocks that are others' now.
                let _ = self.region.fence(std::mem::take(&mut flight));
            }
            first = Some((values, addition));
        }
        head.commit = first.as_ref().map_or(log.tail, |(_, addition)| addition.tail);
        if first.as_ref().is_some_and(|(_, addition)| addition.has_parts()) {
            // The overflow word was stored by the addition; the head is written after it and must agree.
            head.overflow = self.region.load_u64(slot + OVERFLOW_WORD);
        }
        let inherits = parent_attributes.mode & SETGID != 0;
        let directory_bit = if inherits && new.kind == FileKind::Directory { SETGID } else { 0 };
        let attributes = AttributeLine {
            mode: new.mode & MODE_BITS | directory_bit,
            uid: new.uid,
            gid: if inherits { parent_attributes.gid } else { new.gid },
            size: xattrs.iter().find(|(name, _)| *name == SYMLINK_TARGET).map_or(0, |(_, target)| target.len() as u64),
            atime: time,
            mtime: time,
            ctime: time,
            nlink,
            rdev: new.rdev,
            as_of: head.commit,
            check: 0,
        }
        .sealed(ino);
        let mut state = State::new(new.kind, attributes, Log::default());
        if let Some((values, addition)) = first {
            addition.keep(&mut log);
            let values = values.into_iter().map(StoredValue::keep);
            state.xattrs.extend(xattrs.iter().map(|(name, _)| name.to_vec()).zip(values));
        }
        state.log = log;
        let inode = Arc::new(Inode::new(ino, slot, &head, new.kind, state));
        // Without a name it is born pinned: somebody who still has the number from its last user may open and close it.
        inode.pins.store(usize::from(nlink == 0), Ordering::SeqCst);
        // Into the cache before the slot is live: a thread that looks this number up meanwhile must find this object, and
        // wait at its lock, rather than read a second one from the media.
        let mut created = inode.lock();
        policy::take_over(&inode, &created);
        self.cache.insert(inode.clone());
        flight.add(self.region.write(slot, &head).flush());
        flight.add(self.region.write(slot + ATTRIBUTE_LINES[0], &attributes).flush());
        if let Err(error) = publish(flight) {
            self.free_inode(&inode, &mut created);
            return Err(error);
        }
        drop(created);
        Ok(inode)
    }

    /// Writes the extended attributes of a new inode to its log: their values, and the lines that name them.
    fn first_entries<'a>(
        &'a self,
        birth: &Birth<'_>,
        slot: u64,
        log: &Log,
        time: TimeNs,
        flight: &mut Flight,
    ) -> Result<(Vec<StoredValue<'a>>, Addition<'a>)> {
        let (mut values, mut lines, mut lengths) = (Vec::new(), Vec::new(), Vec::new());
        for (name, value) in birth.xattrs {
            let value = self.store_value(value, flight)?;
            let entry = LogEntry::XattrSet { name: name.to_vec(), value: value.value().clone(), time };
            lengths.push(entry.encode(birth.ino, &mut lines));
            values.push(value);
        }
        let mut addition = self.addition(slot, birth.ino, birth.new.kind, log, lines.len() as u64, Purpose::Log)?;
        let mut rest = &lines[..];
        for length in lengths {
            let (entry, left) = rest.split_at(length);
            addition.push(entry, flight)?;
            rest = left;
        }
        // The tail is in the head already: what makes the head reachable is the name.
        addition.take_newest().into_iter().for_each(|newest| flight.add(newest));
        Ok((values, addition))
    }

    /// A file without a name, pinned once for the caller.
    pub(crate) fn tmpfile(&self, new: &NewInode) -> Result<Arc<Inode>> {
        let root = self.inode(InodeNumber::ROOT.0)?;
        let ino = self.allocate_inode()?;
        let no_parent = AttributeLine::default();
        let birth = Birth { ino, parent: &root, parent_attributes: &no_parent, xattrs: &[], new, nlink: 0 };
        self.with_new_inode(&birth, |flight| {
            let _ = self.region.fence(flight);
            Ok(())
        })
    }

    /// Frees the inode when no name leads to it and nobody holds it open.
    pub(crate) fn free_if_unused(&self, inode: &Inode, state: &mut State) {
        if state.attributes.nlink == 0 && !state.freed && !inode.is_pinned() {
            self.free_inode(inode, state);
        }
    }

    /// Unmount: frees inodes that are open and have no name.
    pub(crate) fn free_nameless(&self) {
        for inodes in self.cache.inodes() {
            for inode in inodes {
                let mut state = inode.lock();
                if state.attributes.nlink == 0 && !state.freed {
                    self.free_inode(&inode, &mut state);
                }
            }
        }
    }

    /// Frees an inode and all that only it names: first the slot, so that nothing of it can be reached.
    pub(super) fn free_inode(&self, inode: &Inode, state: &mut State) {
        let _: InodeHead = self.region.read(inode.slot);
        state.freed = true;
        if !self.region.sound_or_forget(inode.slot, INODE_BYTES) {
            // It cannot be freed on the media: all that it names stays in use.
            return self.cache.remove(inode.ino);
        }
        table::free_slot(&self.region, inode.slot);
        let mut mapped = 0;
        if let Body::File(extents) = &state.body {
            mapped = extents.bytes();
            // Of what it names others may name parts.
            if !extents.splits_only_between_blocks() || self.policies.follow_origins(None) {
                self.collector.may_have_died(mapped);
            }
            let mut dropped = Dropped::default();
            extents.iter().for_each(|(_, extent)| dropped.push(&extent));
            if self.is_walked(inode.ino) {
                self.chunks.with_recount(|recount| recount.uncount_all(dropped.chunks()));
            }
            self.chunks.fetch_entries(&dropped.blocks);
            self.release(&dropped, &[], 0);
        }
        self.account_mapped(inode.ino, mapped, 0);
        state.xattr_blocks().for_each(|start| self.free(BlockRun { start, count: 1 }));
        self.free_log(std::mem::take(&mut state.log.parts));
        state.body = Body::Other;
        state.xattrs.clear();
        self.cache.remove(inode.ino);
        self.table.free(inode.ino);
    }
}

/// Generation of a new inode in a slot whose last user had generation `old`: another one, so that a number that somebody
/// kept with its generation (a file handle) does not lead to a stranger. 0 is that of a slot without a user.
///
/// A slot that left the table with its segment has forgotten its users when it comes back. So the first one does not
/// start at 1 but with the time, in units of 1024 ns, in which no slot can be used more often than once.
fn next_generation(old: u32, time: TimeNs) -> u32 {
    let next = if old == 0 { (time >> 10) as u32 } else { old.wrapping_add(1) };
    next.max(1)
}
