//! The pass over the inode table: reads every log once, and records what it references.
//!
//! The problem: names, counts and free space can only be checked when all inodes are known, and reading the logs is
//! most of the cost of a check.
//!
//! The idea: one pass that checks each inode by itself, and keeps only what the later checks need: [`Facts`], the
//! names of directories, and a count for each block that an extent touches.

use super::{DirectoryName, Facts, RESERVED, ROOT, Survey};
use crate::error::Error;
use crate::inode::directory::{Damage, shown};
use crate::inode::table::{TablePart, exact_parts};
use crate::inode::{Body, HeldValue, Inode, SYMLINK_TARGET, State};
use crate::media::inode::{
    AttributeLine, COMMIT_WORD, HEAD_WORD, INODE_BYTES, INODES_PER_SEGMENT, InodeHead, PARENT_WORD, USE_WORD, is_free,
};
use crate::media::journal::WordStore;
use crate::media::log_area::AreaHead;
use crate::media::log_entry::{dedupe, is_symlink_target};
use crate::media::superblock::LOG_AREAS;
use crate::media::{BLOCK_BYTES, Location, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::store::queued::{each_pending, token_of};
use crate::words::FileKind;
use nvfold_sync::atomic::Ordering;

impl Survey<'_> {
    /// Checks all slots except those in holes of the host file, which were never used.
    pub(super) fn inodes(&mut self, parts: &[Option<TablePart>], stores: &[WordStore]) {
        for (ordinal, part) in exact_parts(parts) {
            let start = part.segment * SEGMENT_BYTES;
            let end = start + SEGMENT_BYTES;
            let mut page = self.region.next_allocated(start, end) / BLOCK_BYTES * BLOCK_BYTES;
            while page < end {
                for slot in (page..page + BLOCK_BYTES).step_by(INODE_BYTES as usize) {
                    let ino = u64::from(ordinal) * INODES_PER_SEGMENT + (slot - start) / INODE_BYTES;
                    if ino != 0 {
                        self.inode(ino, slot, stores);
                    }
                }
                page = self.region.next_allocated(page + BLOCK_BYTES, end) / BLOCK_BYTES * BLOCK_BYTES;
            }
        }
        if !matches!(self.inodes.get(&ROOT), Some(Facts { kind: FileKind::Directory, .. })) {
            let first = parts.first().copied().flatten();
            let at = first.map_or(self.geometry.segment_table_offset, |first| first.segment * SEGMENT_BYTES);
            self.find(0, "the root directory is not there".into(), at);
            self.plan.condemn(ROOT, None, "it is not there");
        }
    }

    fn inode(&mut self, ino: u64, slot: u64, stores: &[WordStore]) {
        // Most slots are free, and the journal never holds the word with their use.
        let is_free = is_free(self.region.load_u64(slot + USE_WORD));
        if self.region.check().is_err() {
            return self.bad.slots.push((ino, slot));
        }
        if is_free {
            return;
        }
        let area: AreaHead = self.region.read(slot);
        if area.is_whole(slot) && area.number == ino {
            self.areas.insert(slot, area);
            return;
        }
        let mut head: InodeHead = self.region.read(slot);
        for store in stores.iter().filter(|store| store.offset / 512 == slot / 512) {
            match store.offset - slot {
                COMMIT_WORD => head.commit = store.value,
                PARENT_WORD => head.parent = store.value,
                HEAD_WORD => head.head = store.value,
                _ => {}
            }
        }
        if self.region.check().is_err() {
            return self.bad.slots.push((ino, slot));
        }
        match Inode::load_with_head(self.region, &self.geometry, slot, ino, head) {
            Ok(Some(inode)) => self.live_inode(inode, slot),
            Ok(None) => self.unreadable.push((ino, slot, format!("inode {ino}: its head is torn"))),
            Err(Error::BadMemory { at, length, .. }) => self.bad.inodes.push((ino, at..at + length)),
            Err(error) => self.unreadable.push((ino, slot, error.to_string())),
        }
    }

    fn live_inode(&mut self, inode: Inode, slot: u64) {
        let (ino, kind, parent) = (inode.ino, inode.kind, inode.parent.load(Ordering::Relaxed));
        let is_read_only = inode.is_read_only;
        self.dedupe_flags(&inode);
        let state = inode.into_state();
        self.report.inodes += 1;
        self.domains.add_owner(state.attributes.uid);
        let names = if let Body::Directory(directory) = &state.body { directory.len() } else { 0 };
        let AttributeLine { nlink, tree, .. } = state.attributes;
        self.inodes.insert(ino, Facts { slot, kind, nlink, parent, names, is_read_only, tree });
        self.charges.add(ino, slot, &state);
        self.named_areas.extend(state.log.areas().map(|area| (area, ino)));
        self.report.log_lines += state.log.lines;
        for block in state.log.pages().chain(state.xattr_blocks()) {
            if self.tables.contains(&(block.0 / SEGMENT_BLOCKS)) {
                self.find(4, format!("a block of inode {ino}'s log lies in a table"), block.address());
                self.plan.condemn(ino, Some(slot), "its log lies in a table");
            }
            if let Some(other) = self.metadata.insert(block.0, ino) {
                self.find(4, format!("a block belongs to inode {other} and to inode {ino}"), block.address());
                self.plan.condemn(ino, Some(slot), format!("its log or attributes lie in a block of inode {other}"));
            }
        }
        self.extents(&state);
        self.check_target(ino, slot, &state);
        if let Body::Directory(directory) = &state.body {
            self.report.directories += 1;
            for name in directory.after(0) {
                let (target, kind) = (name.ino, name.kind());
                self.report.names += 1;
                let shown = || shown(&name.name(self.region));
                match directory.damage(name.cookie) {
                    Some(Damage::BadName) => {
                        let what = format!("directory {ino}: no name can be `{}`", shown());
                        self.find(0, what, name.position());
                    }
                    Some(Damage::Repeats(_)) => {
                        let what = format!("directory {ino}: the name `{}` is there twice", shown());
                        self.find(3, what, name.position());
                    }
                    None => {}
                }
                if ino == ROOT {
                    self.charges.add_name_of_root(&name.name(self.region), target);
                }
                self.names.entry(target).or_default().push(DirectoryName { directory: ino, kind, at: slot });
            }
        }
    }

    /// Checks the target of a symlink: loading has checked one that is in the log.
    fn check_target(&mut self, ino: u64, slot: u64, state: &State) {
        let Some(value @ HeldValue::Blocks { .. }) = state.xattrs.get(SYMLINK_TARGET) else { return };
        let target = value.read(self.region);
        // What lies in bad memory is reported with the memory.
        if self.region.check().is_ok() && !is_symlink_target(&target) {
            self.bad_targets.push((ino, slot));
        }
    }

    /// Checks the log areas once all logs are known: each must be referenced once, by the log of the inode that owns
    /// it.
    pub(super) fn check_areas(&mut self) {
        self.report.log_areas = self.areas.len() as u64;
        let mut unnamed = self.areas.clone();
        for (slot, ino) in std::mem::take(&mut self.named_areas) {
            if unnamed.remove(&slot).is_none() {
                self.find(
                    4,
                    format!("inode {ino}: a log area that it references is not a slot of the inode table"),
                    slot,
                );
                let at = self.inodes.get(&ino).map(|facts| facts.slot);
                self.plan.condemn(ino, at, "its log goes on outside of the inode table");
            }
        }
        let feature = self.superblock_features & LOG_AREAS;
        if feature == 0 && !self.areas.is_empty() {
            self.find(0, "there are log areas, and the superblock does not have their feature flag".into(), 0);
        }
        for (slot, AreaHead { number, owner, .. }) in unnamed {
            let is_unreadable = self.unreadable.iter().any(|(ino, _, _)| *ino == owner) || self.bad.took(owner);
            if !is_unreadable {
                self.trace(
                    2,
                    format!("log area {number} is marked as inode {owner}'s, and no log references it"),
                    slot,
                );
            }
        }
    }

    /// Records the log entries that still have to be deduplicated.
    fn dedupe_flags(&mut self, inode: &Inode) {
        if inode.peek().needed.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut pending = Vec::new();
        let read = each_pending(self.region, &self.geometry, inode, |position, entry| pending.push((position, *entry)));
        if let Err(error) = read {
            return self.find(0, error.to_string(), inode.slot);
        }
        for (position, entry) in pending {
            let what = |flag: &str| format!("inode {}: a log entry {flag}", inode.ino);
            match entry.dedupe {
                dedupe::NEEDED => self.space.needs(token_of(inode, position, &entry)),
                dedupe::IN_PROCESS => self.trace(2, what("is in process of being shared"), position),
                _ => self.find(0, what("has a dedupe-flag that is none"), position),
            }
        }
    }

    fn extents(&mut self, state: &State) {
        for (_, extent) in state.extents().into_iter().flat_map(|extents| extents.iter()) {
            self.report.extents += 1;
            self.coverage.add(&extent);
            let Location::Media(first) = extent.location else {
                self.packed.names(&extent);
                continue;
            };
            let mut counts = None;
            for block in extent.blocks().blocks() {
                let (segment, place) = (block.0 / SEGMENT_BLOCKS, (block.0 % SEGMENT_BLOCKS) as usize);
                if counts.as_ref().is_none_or(|(of, _)| *of != segment) {
                    let new = || Box::new([0; SEGMENT_BLOCKS as usize]);
                    counts = Some((segment, self.references.entry(segment).or_insert_with(new)));
                }
                let count = &mut counts.as_mut().expect("of this segment").1[place];
                if *count & !RESERVED < !RESERVED {
                    *count += 1;
                }
                // Only a block that is reserved as a whole is ever written in place.
                let whole = first <= block.address() && block.address() + BLOCK_BYTES <= first + extent.length;
                if extent.unwritten && whole {
                    *count |= RESERVED;
                }
            }
        }
    }
}
