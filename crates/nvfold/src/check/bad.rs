//! Bad memory: which entries, blocks and inodes cannot be read. `bad_files.rs` finds the files that lose data by it.

use super::Survey;
use crate::media::chunk_entry::ChunkEntry;
use crate::media::{BLOCK_BYTES, BlockNumber, PackedNumber};
use std::collections::BTreeSet;
use std::ops::Range;

/// The bad memory that the survey found.
#[derive(Default)]
pub(super) struct Bad {
    /// Inodes whose slot cannot be read: number and slot. It is unknown whether they were in use.
    pub(super) slots: Vec<(u64, u64)>,
    /// Inodes whose log or attributes cannot be read, and the unreadable range.
    pub(super) inodes: Vec<(u64, Range<u64>)>,
    /// Blocks whose chunk entry cannot be read.
    pub(super) entries: BTreeSet<u64>,
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
}

/// Returns the bytes that two ranges have in common.
pub(super) fn overlap(one: &Range<u64>, other: &Range<u64>) -> Option<Range<u64>> {
    let (start, end) = (one.start.max(other.start), one.end.min(other.end));
    (start < end).then_some(start..end)
}
