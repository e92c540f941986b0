//! Files that lose data: by bad memory, or because something else uses what they reference.
//!
//! The device reports which bytes cannot be read, and the logs tell which files they belong to. That takes a second
//! pass over the inodes, which is done only if something is bad.

use super::Survey;
use super::bad::{Bad, overlap};
use crate::inode::Inode;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::inode::INODE_BYTES;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, SEGMENT_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;

/// A part of a file or an attribute that is lost.
struct Lost {
    ino: u64,
    what: String,
    at: u64,
}

impl Survey<'_> {
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
}
