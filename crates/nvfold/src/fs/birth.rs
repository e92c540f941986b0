//! Making inodes. An inode is written before any name refers to it; publishing its name makes it reachable.

use super::Core;
use super::xattr::StoredValue;
use crate::error::{Error, Result, errno};
use crate::inode::log::{Addition, Log};
use crate::inode::{HeldValue, Inode, SYMLINK_TARGET, State, table};
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, INODE_BYTES, InodeHead, OVERFLOW_WORD};
use crate::media::log_entry::LogEntry;
use crate::space::Purpose;
use crate::store::limits::Charge;
use crate::words::{FileKind, InodeNumber, NewInode, TimeNs};
use nvfold_sync::atomic::Ordering;
use pmem::Flight;
use std::sync::Arc;

const SETGID: u16 = 0o2000;

/// Permission bits an inode keeps.
const MODE_BITS: u32 = 0o7777;

/// Returns the permission bits that an inode keeps of a mode.
pub(super) fn kept_mode(mode: u32) -> u16 {
    (mode & MODE_BITS) as u16
}

/// The description of an inode to make.
pub(super) struct Birth<'b> {
    pub(crate) ino: u64,
    pub(crate) parent: &'b Inode,
    pub(crate) parent_attributes: &'b AttributeLine,
    /// Names and values of its first extended attributes: the target of a symlink, the policy of its directory, and
    /// those that the caller gives.
    pub(crate) xattrs: &'b [(&'b [u8], &'b [u8])],
    pub(crate) new: &'b NewInode,
    pub(crate) nlink: u32,
}

impl Core {
    /// Finds a free inode number. A number whose slot is in bad memory is never used again.
    pub(crate) fn allocate_inode(&self) -> Result<u64> {
        loop {
            let ino = self.table.allocate(&self.space)?;
            let slot = self.table.slot(ino).expect("an allocated inode has a slot");
            let _: InodeHead = self.region.read(slot);
            if self.region.sound_or_forget(slot, INODE_BYTES) {
                return Ok(ino);
            }
            // On a lost device no slot is sound.
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
        let tree = parent_attributes.tree;
        let charge = self.charge("create", tree, 0, 1).inspect_err(|_| self.table.free(ino))?;
        let time = self.now();
        self.table.note_name_found(ino);
        self.keep_nothing_of(ino);
        let slot = self.table.slot(ino).expect("an allocated inode has a slot");
        let old: InodeHead = self.region.read(slot);
        table::empty_old_log(&self.region, slot, &old);
        let mut head = InodeHead::new(slot, ino, new.kind, next_generation(old.generation, time), parent.ino, time);
        let mut flight = Flight::new();
        let mut log = Log { head: head.head, tail: head.head, ..Log::default() };
        let mut first = None;
        if !xattrs.is_empty() {
            let entries = self.first_entries(birth, slot, &log, time, &mut flight);
            let (values, positions, addition) = entries.inspect_err(|_| self.table.free(ino))?;
            if old.generation != 0 || addition.has_parts() {
                // An earlier user of the number may have left valid lines where these lines go. The old lines must be
                // gone before the head says that the log has lines; otherwise, after a crash, the new inode would map
                // blocks of other files.
                let _ = self.region.fence(std::mem::take(&mut flight));
            }
            first = Some((values, positions, addition));
        }
        head.commit = first.as_ref().map_or(log.tail, |(.., addition)| addition.tail);
        if first.as_ref().is_some_and(|(.., addition)| addition.has_parts()) {
            // The overflow word was stored by the addition; the head is written after it and must agree.
            head.overflow = self.region.load_u64(slot + OVERFLOW_WORD);
        }
        let inherits = parent_attributes.mode & SETGID != 0;
        let directory_bit = if inherits && new.kind == FileKind::Directory { SETGID } else { 0 };
        let attributes = AttributeLine {
            mode: kept_mode(new.mode) | directory_bit,
            tree,
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
        if let Some((values, positions, addition)) = first {
            addition.keep(&mut log);
            for ((value, position), (name, _)) in values.into_iter().zip(positions).zip(xattrs) {
                state.set_xattr(name.to_vec(), HeldValue::of(name, &value.keep(), position));
            }
        }
        state.log = log;
        let inode = Arc::new(Inode::new(ino, slot, &head, new.kind, state));
        // An inode without a name is born pinned: a thread that still has the number from its last user may open and
        // close it.
        inode.pins.store(usize::from(nlink == 0), Ordering::SeqCst);
        // Insert it into the cache before the slot is live. A thread that looks up this number meanwhile must find
        // this object and wait for its lock, and not read a second one from the media.
        let mut created = inode.lock();
        self.take_attributes(&inode, &created);
        self.cache.insert(inode.clone());
        flight.add(self.region.write(slot, &head).flush());
        flight.add(self.region.write(slot + ATTRIBUTE_LINES[0], &attributes).flush());
        // From here on the inode has it.
        charge.into_iter().for_each(Charge::keep);
        if let Err(error) = publish(flight) {
            self.free_inode(&inode, &mut created);
            return Err(error);
        }
        drop(created);
        Ok(inode)
    }

    /// Writes the extended attributes of a new inode to its log: the values, and the log lines, whose positions it
    /// returns.
    fn first_entries<'a>(
        &'a self,
        birth: &Birth<'_>,
        slot: u64,
        log: &Log,
        time: TimeNs,
        flight: &mut Flight,
    ) -> Result<(Vec<StoredValue<'a>>, Vec<u64>, Addition<'a>)> {
        let (mut values, mut positions, mut lines, mut entries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (name, value) in birth.xattrs {
            let value = self.store_value(value, flight)?;
            let entry = LogEntry::XattrSet { name: name.to_vec(), value: value.value().clone(), time };
            let length = entry.encode(birth.ino, &mut lines);
            entries.push((entry, length));
            values.push(value);
        }
        let mut addition = self.addition(slot, birth.ino, birth.new.kind, log, lines.len() as u64, Purpose::Log)?;
        let mut rest = &lines[..];
        for (entry, length) in &entries {
            let (lines, left) = rest.split_at(*length);
            positions.push(addition.push(entry, lines, flight).map_err(|error| self.refusals.count(error))?);
            rest = left;
        }
        // The head already contains the tail, and the name makes the head reachable.
        addition.take_newest().into_iter().for_each(|newest| flight.add(newest));
        Ok((values, positions, addition))
    }

    /// Makes a file without a name, pinned once for the caller. It is charged as a file in this directory is.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR, EROFS below a snapshot, ENOSPC, EDQUOT.
    pub(crate) fn tmpfile(&self, within: InodeNumber, new: &NewInode) -> Result<Arc<Inode>> {
        let within = self.inode(within.0)?;
        within.check_changeable("create")?;
        let AttributeLine { tree, nlink, .. } = within.read()?.attributes;
        if within.kind != FileKind::Directory || nlink == 0 {
            let (why, errno) = match within.kind {
                FileKind::Directory => ("the directory was removed", errno::ENOENT),
                _ => ("it is not a directory", errno::ENOTDIR),
            };
            return Err(Error::Posix { doing: "create", why, errno });
        }
        let root = self.inode(InodeNumber::ROOT.0)?;
        let ino = self.allocate_inode()?;
        let no_parent = AttributeLine { tree, ..AttributeLine::default() };
        let birth = Birth { ino, parent: &root, parent_attributes: &no_parent, xattrs: &[], new, nlink: 0 };
        self.with_new_inode(&birth, |flight| {
            let _ = self.region.fence(flight);
            Ok(())
        })
    }
}

/// Returns the generation of a new inode in a slot whose last user had generation `old`. It differs from `old`, so
/// that a file handle (a number with its generation) cannot refer to the new inode. Generation 0 means that a slot
/// has no user.
///
/// A slot that left the table with its segment loses its generation. So the first user does not start at 1 but with
/// the time in units of 1024 ns, in which no slot can be used more than once.
pub(crate) fn next_generation(old: u32, time: TimeNs) -> u32 {
    let next = if old == 0 { (time >> 10) as u32 } else { old.wrapping_add(1) };
    next.max(1)
}
