//! Bad memory, and the files that lose data by it.
//!
//! The device reports which bytes cannot be read, and the logs tell which files they belong to. Paths need a second
//! pass over the directories, which is done only if something is bad.

use super::{ROOT, Survey};
use crate::inode::{Body, Inode};
use crate::media::chunk_entry::{ChunkEntry, ENTRY_BYTES};
use crate::media::inode::INODE_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber, SEGMENT_BYTES};
use crate::words::FileKind;
use hashbrown::{HashMap, HashSet};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The bad memory that the survey found.
#[derive(Default)]
pub(super) struct Bad {
    /// Inodes whose slot cannot be read: number and slot. It is unknown whether they were in use.
    pub(super) slots: Vec<(u64, u64)>,
    /// Inodes whose log or attributes cannot be read, and the unreadable range.
    pub(super) inodes: Vec<(u64, Range<u64>)>,
    /// Blocks whose chunk entry cannot be read.
    entries: BTreeSet<u64>,
    /// Packed chunks whose entry cannot be read.
    pub(super) packed_entries: BTreeSet<PackedNumber>,
}

impl Bad {
    /// Returns true if an inode is unknown because of bad memory.
    pub(super) fn took(&self, ino: u64) -> bool {
        self.slots.iter().any(|(bad, _)| *bad == ino) || self.inodes.iter().any(|(bad, _)| *bad == ino)
    }
}

impl Survey<'_> {
    /// Returns true, and reports a finding, if the bytes that were just read are in bad memory.
    pub(super) fn note_bad(&mut self, what: &str) -> bool {
        let told = self.region.check();
        if let Err(error) = &told {
            let at = if let pmem::PmemError::BadMemory { offset, .. } = error { *offset } else { 0 };
            self.find(0, format!("{what}: {error}"), at);
        }
        told.is_err()
    }

    /// Returns true if the chunk entry of a block is in bad memory.
    pub(super) fn is_bad_entry(&mut self, block: BlockNumber) -> bool {
        let _: ChunkEntry = self.region.read(self.geometry.chunk_entry_offset(block));
        let is_bad = self.region.check().is_err();
        if is_bad {
            self.bad.entries.insert(block.0);
        }
        is_bad
    }

    /// Returns true if the entry of a packed chunk is in bad memory. Such a chunk is neither counted nor checked.
    pub(super) fn is_bad_packed_entry(&mut self, chunk: PackedNumber) -> bool {
        let _: ChunkEntry = self.region.read(self.packed.entries.offset(chunk.into()));
        let is_bad = self.region.check().is_err();
        if is_bad {
            self.bad.packed_entries.insert(chunk);
        }
        is_bad
    }

    /// Returns true if bytes of a packed chunk are in memory that was found to be bad.
    pub(super) fn is_bad_packed_data(&self, entry: &ChunkEntry) -> bool {
        let media = entry.address()..entry.address() + entry.stored_bytes();
        self.region.bad_ranges().iter().any(|range| overlap(range, &media).is_some())
    }

    /// Returns true if the data of a block is in bad memory.
    pub(super) fn is_bad_data(&self, block: BlockNumber) -> bool {
        self.region.scrub(block.address(), BLOCK_BYTES).is_err()
    }

    /// Reads the blocks of logs and attributes, only to find bad memory in them.
    pub(super) fn scrub_metadata(&mut self) {
        for block in self.metadata.keys() {
            // `name_bad_files` reports the files that lose data.
            let _ = self.region.scrub(BlockNumber(*block).address(), BLOCK_BYTES);
        }
    }

    /// Reports all bad memory that was found, with the files that lose data.
    pub(super) fn name_bad_files(&mut self) {
        let bad = std::mem::take(&mut self.bad);
        if self.region.bad_ranges().is_empty() {
            return;
        }
        let lost = self.lost_parts(&bad);
        let inodes = bad.slots.iter().map(|(ino, _)| *ino).chain(bad.inodes.iter().map(|(ino, _)| *ino));
        let paths = self.paths(inodes.chain(lost.iter().map(|lost| lost.ino)).collect());
        let name = |ino: u64| match paths.get(&ino) {
            Some(path) => format!("inode {ino} ({})", path.display()),
            None => format!("inode {ino}"),
        };
        for (ino, slot) in &bad.slots {
            let what = match paths.contains_key(ino) {
                true => format!("{}: its slot lies in bad memory, {INODE_BYTES} bytes", name(*ino)),
                false => format!("inode {ino}: its slot lies in bad memory, and no name leads to it"),
            };
            self.find(0, what, *slot);
        }
        for (ino, range) in &bad.inodes {
            let bytes = range.end - range.start;
            self.find(0, format!("{}: its log lies in bad memory, {bytes} bytes", name(*ino)), range.start);
        }
        for Lost { ino, what, at } in &lost {
            self.find(0, format!("{}: {what}", name(*ino)), *at);
        }
        for block in &bad.entries {
            let at = self.geometry.chunk_entry_offset(BlockNumber(*block));
            let what = format!("block {block}: its chunk entry lies in bad memory, {ENTRY_BYTES} bytes");
            self.find(1, what, at);
        }
        for chunk in &bad.packed_entries {
            let at = self.packed.entries.offset((*chunk).into());
            let what = format!("packed chunk {}: its entry lies in bad memory, {ENTRY_BYTES} bytes", chunk.0);
            self.find(1, what, at);
        }
        for range in self.region.bad_ranges() {
            let (segment, bytes) = (range.start / SEGMENT_BYTES, range.end - range.start);
            // The last headers may be the unreadable ones.
            let are_headers = |headers: Range<u64>| range.end >= headers.start && range.start < headers.end;
            let is_data = lost.iter().any(|lost| range.contains(&lost.at));
            if !is_data && self.headers_of(segment).is_some_and(are_headers) {
                let what = format!("segment {segment}: {bytes} bytes of headers of packed chunks lie in bad memory");
                self.find(0, what, range.start);
            }
        }
    }

    /// Finds the files that reference contested blocks, which must be given up, and the files whose content may be
    /// damaged; also the paths of everything that must be given up.
    pub(super) fn find_contested_files(&mut self) {
        let mut doubtful: Vec<(u64, ChunkRef)> = Vec::new();
        let inodes: BTreeMap<u64, u64> = self.inodes.iter().map(|(ino, facts)| (*ino, facts.slot)).collect();
        let is_asked = !self.contested.is_empty() || !self.doubtful.is_empty();
        let is_asked = is_asked || !self.packed.contested.is_empty() || !self.packed.doubtful.is_empty();
        for (ino, slot) in inodes.into_iter().filter(|_| is_asked) {
            let Ok(Some(inode)) = Inode::load(self.region, &self.geometry, slot, ino) else { continue };
            let state = inode.into_state();
            let extents = || state.extents().into_iter().flat_map(|extents| extents.iter());
            for chunk in extents().filter_map(|(_, extent)| extent.packed()) {
                if self.packed.contested.contains(&chunk) {
                    self.plan.condemn(
                        ino,
                        Some(slot),
                        format!("it references packed chunk {}, which is lost", chunk.0),
                    );
                }
                if self.packed.doubtful.contains(&chunk) {
                    doubtful.push((ino, chunk.into()));
                }
            }
            for block in extents().flat_map(|(_, extent)| extent.blocks().blocks()) {
                if self.contested.contains(&block.0) {
                    let why = format!("it references block {}, which is also used for something else", block.0);
                    self.plan.condemn(ino, Some(slot), why);
                }
                if self.doubtful.contains(&block.0) {
                    doubtful.push((ino, block.into()));
                }
            }
        }
        let wanted = self.plan.condemned.keys().copied().chain(doubtful.iter().map(|(ino, _)| *ino)).collect();
        if self.plan.condemned.is_empty() && doubtful.is_empty() {
            return;
        }
        let paths = self.paths(wanted);
        for (ino, chunk) in doubtful {
            let path = paths.get(&ino).map_or_else(|| "no name".into(), |path| path.display().to_string());
            let what = format!("inode {ino} ({path}): its content may be damaged in {chunk}");
            self.find(5, what, chunk.block().map_or(0, BlockNumber::address));
        }
        self.plan.paths = paths.into_iter().collect();
    }

    /// Returns the parts of files and attributes that are in bad memory, or whose blocks cannot be counted.
    fn lost_parts(&self, bad: &Bad) -> Vec<Lost> {
        let mut lost = Vec::new();
        let ranges = self.region.bad_ranges();
        for (ino, slot) in self.inodes.iter().map(|(ino, facts)| (*ino, facts.slot)).collect::<BTreeMap<_, _>>() {
            let Ok(Some(inode)) = Inode::load(self.region, &self.geometry, slot, ino) else { continue };
            let state = inode.into_state();
            let extents = state.extents().into_iter().flat_map(|extents| extents.iter());
            for (offset, extent) in extents.filter(|(_, extent)| !extent.unwritten) {
                if let Some(chunk) = extent.packed().filter(|chunk| bad.packed_entries.contains(chunk)) {
                    let (last, number) = (offset + extent.length - 1, chunk.0);
                    let why = "cannot be found, for its entry lies in bad memory";
                    let what = format!("bytes {offset} to {last} of the file: packed chunk {number} {why}");
                    lost.push(Lost { ino, what, at: self.packed.entries.offset(chunk.into()) });
                    continue;
                }
                let place = match extent.location {
                    Location::Media(address) => Some(address..address + extent.length),
                    Location::Packed(chunk, at) => self.packed_part(chunk, u64::from(at), extent.length),
                };
                let Some(media) = place else { continue };
                let counted = extent.blocks().blocks().filter(|block| bad.entries.contains(&block.0));
                for block in counted {
                    let what =
                        format!("its block {} cannot be counted, for the chunk entry lies in bad memory", block.0);
                    lost.push(Lost { ino, what, at: block.address() });
                }
                for part in ranges.iter().filter_map(|range| overlap(range, &media)) {
                    let (first, last) = (offset + part.start - media.start, offset + part.end - media.start - 1);
                    let what = format!("bytes {first} to {last} of the file lie in bad memory");
                    lost.push(Lost { ino, what, at: part.start });
                }
            }
            for block in state.xattr_blocks() {
                let media = block.address()..block.address() + BLOCK_BYTES;
                for part in ranges.iter().filter_map(|range| overlap(range, &media)) {
                    let what = format!("{} bytes of an attribute lie in bad memory", part.end - part.start);
                    lost.push(Lost { ino, what, at: part.start });
                }
            }
        }
        lost
    }

    /// Returns the paths of these inodes, if names lead to them. Of a long path only the end is kept: on a damaged
    /// device there may be as many as there are inodes, each as long as all names together.
    fn paths(&self, wanted: HashSet<u64>) -> HashMap<u64, PathBuf> {
        let mut names: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        for (ino, facts) in self.inodes.iter().filter(|(_, facts)| facts.kind == FileKind::Directory) {
            let Ok(Some(inode)) = Inode::load(self.region, &self.geometry, facts.slot, *ino) else { continue };
            let state = inode.into_state();
            let Body::Directory(directory) = &state.body else { continue };
            for slot in directory.after(0) {
                if slot.kind() == FileKind::Directory || wanted.contains(&slot.ino) {
                    names.insert(slot.ino, (*ino, slot.name(self.region)));
                }
            }
        }
        let bytes_max = (PATHS_BYTES / wanted.len().max(1)).clamp(PATH_BYTES_MIN, PATH_BYTES_MAX);
        wanted.iter().filter_map(|ino| Some((*ino, path_of(*ino, &names, bytes_max)?))).collect()
    }
}

/// Most bytes of a path in a report: Linux's PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;
/// Bytes that all paths of a report share. Each has [`PATH_BYTES_MIN`] in any case.
const PATHS_BYTES: usize = 16 << 20;
const PATH_BYTES_MIN: usize = 256;

/// Returns the path of an inode, or its last `bytes_max` bytes, by the directory and the name of each inode; `None` if
/// the names do not lead to it.
fn path_of(ino: u64, names: &HashMap<u64, (u64, Vec<u8>)>, bytes_max: usize) -> Option<PathBuf> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let (mut at, mut bytes) = (ino, 0);
    // Ends in a loop of damaged names too, because no name is empty.
    while at != ROOT && bytes < bytes_max {
        let (parent, name) = names.get(&at)?;
        bytes += name.len() + 1;
        parts.push(name);
        at = *parent;
    }
    if at != ROOT {
        parts.push(b"...");
    }
    parts.push(b"");
    if parts.len() == 1 {
        parts.push(b"");
    }
    parts.reverse();
    Some(PathBuf::from(OsString::from_vec(parts.join(&b'/'))))
}

struct Lost {
    ino: u64,
    what: String,
    at: u64,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_whole_or_its_end_and_ends_in_a_loop_of_names() {
        let mut names = HashMap::from_iter([(7, (ROOT, b"a".to_vec())), (8, (7, b"b".to_vec()))]);
        names.extend([(20, (21, b"x".to_vec())), (21, (20, b"y".to_vec())), (30, (31, b"lost".to_vec()))]);
        let path = |ino, bytes_max| path_of(ino, &names, bytes_max).map(|path| path.display().to_string());
        assert_eq!(path(ROOT, 100).as_deref(), Some("/"));
        assert_eq!(path(8, 100).as_deref(), Some("/a/b"));
        assert_eq!(path(8, 1).as_deref(), Some("/.../b"));
        assert_eq!(path(20, 6).as_deref(), Some("/.../x/y/x"));
        assert_eq!(path(30, 100), None);
    }
}
