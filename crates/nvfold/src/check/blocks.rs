//! Invariants 1, 2, 4 and 5: compares the chunk table with the extents that the pass over the inodes counted.
//!
//! The problem: the table has a line for every block of the device, and most blocks are unused.
//!
//! The idea: go segment by segment, and skip those that no extent touches and whose part of the table is a hole in
//! the host file. A private block without an entry takes only two comparisons.
//!
//! ```text
//! references   entry     judged
//! 0            empty     free
//! 1            empty     private
//! > 1          empty     finding 1: too low
//! 0            counts    trace 2: a leak
//! n            counts n  exact; less: finding 1; more, or updates under way: trace 2
//! ```

use super::domains::KnownDomains;
use super::{RESERVED, Survey};
use crate::fingerprint::{Strong, StrongFunction, WeakFunction};
use crate::media::chunk_entry::{ChunkEntry, tag};
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS};
use crate::space::WORDS_PER_SEGMENT;
use std::ops::Range;
use zerocopy::IntoBytes;

impl Survey<'_> {
    pub(super) fn check_blocks(&mut self, data: bool) {
        let geometry = self.geometry;
        let mut conflicts = Vec::new();
        for (block, ino) in &self.metadata {
            let segment = self.references.get(&(block / SEGMENT_BLOCKS));
            let references = segment.map_or(0, |counts| counts[(block % SEGMENT_BLOCKS) as usize]);
            if references & !RESERVED > 0 {
                conflicts.push((*block, *ino));
            }
        }
        conflicts.sort_unstable();
        for (block, ino) in conflicts {
            self.find(4, format!("a block of inode {ino}'s log or attributes is file data too"), block * BLOCK_BYTES);
            self.contested.insert(block);
        }
        self.report.metadata_blocks = self.metadata.len() as u64;
        self.metadata.keys().for_each(|block| self.space.uses(BlockNumber(*block)));
        if data {
            self.scrub_metadata();
        }
        let region = self.region;
        let backed_in = |table: Range<u64>| region.allocated_ranges(table.start, table.end - table.start);
        let mut backed = geometry.chunk_tables().flat_map(backed_in).peekable();
        let mut entries = vec![ChunkEntry::default(); SEGMENT_BLOCKS as usize];
        for segment in 0..geometry.segments() {
            let counts = self.references.remove(&segment);
            let first = segment * SEGMENT_BLOCKS;
            let entries = &mut entries[..geometry.blocks_in_segment(segment) as usize];
            if entries.is_empty() {
                // Tables of a later zone: no reference that is sound leads there.
                continue;
            }
            let start = geometry.chunk_entry_offset(BlockNumber(first));
            let end = start + entries.as_bytes().len() as u64;
            while backed.next_if(|range| range.end <= start).is_some() {}
            let is_backed = backed.peek().is_some_and(|range| range.start < end);
            if counts.is_none() && !is_backed {
                continue;
            }
            if is_backed {
                self.region.scan_into(start, entries.as_mut_bytes());
            } else {
                entries.fill(ChunkEntry::default());
            }
            let has_bad = self.region.check().is_err();
            let is_table = self.tables.contains(&segment);
            let mut used = [0; WORDS_PER_SEGMENT];
            for (block, entry) in (first..).map(BlockNumber).zip(entries.iter()) {
                let count = counts.as_ref().map_or(0, |counts| counts[(block.0 - first) as usize]);
                let (references, is_reserved) = (count & !RESERVED, count & RESERVED != 0);
                let is_empty = !has_bad && *entry == ChunkEntry::default();
                if is_empty && references == 0 {
                    continue;
                }
                // The bytes of a reserved block are meaningless, and reading a hole would make the host allocate it.
                let is_read = data && references > 0 && !is_reserved;
                if has_bad && self.is_bad_entry(block) || is_read && self.is_bad_data(block) {
                    continue;
                }
                if references > 0 {
                    let place = block.0 - first;
                    used[(place / 64) as usize] |= 1 << (place % 64);
                }
                if references > 0 && !is_reserved && !(data && has_fingerprint(entry)) {
                    self.report.uncompared_bytes += BLOCK_BYTES;
                }
                if is_empty && references == 1 && !is_table {
                    // A private block: nothing else needs a check.
                    self.report.blocks += 1;
                    continue;
                }
                self.check_block(block, references, is_reserved, entry, data);
            }
            self.space.uses_all(segment, &used);
        }
    }

    fn check_block(&mut self, block: BlockNumber, references: u32, is_reserved: bool, entry: &ChunkEntry, data: bool) {
        let at = self.geometry.chunk_entry_offset(block);
        self.report.blocks += u64::from(references > 0);
        self.space.enters(block, entry);
        self.chains.enters(block.into(), entry);
        if references > 0 && self.tables.contains(&(block.0 / SEGMENT_BLOCKS)) {
            self.find(4, format!("block {} is file data and part of a table", block.0), block.address());
            self.contested.insert(block.0);
        }
        if references > 1 && is_reserved {
            self.find(5, format!("block {} is reserved by one file and named {references} times", block.0), at);
            self.contested.insert(block.0);
        }
        if entry.is_empty() {
            if references > 1 {
                self.find(1, format!("block {} is referenced by {references} extents and not counted", block.0), at);
            }
            return;
        }
        if references == 0 {
            self.trace(2, format!("block {} is free and its chunk entry is not", block.0), at);
            return;
        }
        self.report.chunks += 1;
        self.note_transaction(entry);
        if references == 1 && is_reserved {
            // A crash interrupted the first write to it; that content was never committed.
            self.trace(2, format!("block {} is reserved and has a chunk entry", block.0), at);
        } else if entry.taken() < u64::from(references)
            || self.is_unfinished(entry) && !may_be_unfinished(entry, references)
        {
            self.find(1, format!("block {} is referenced by {references} extents and {}", block.0, counted(entry)), at);
        } else if entry.count != references || entry.update_count != 0 {
            self.trace(
                2,
                format!("block {} is referenced by {references} extents and {}", block.0, counted(entry)),
                at,
            );
        } else if self.is_unfinished(entry) {
            self.trace(1, format!("block {}: the transaction that counted it last did not end", block.0), at);
        } else if entry.address() != block.address() || entry.class() != 0 || entry.content_bytes_less_one != 0 {
            self.find(0, format!("block {}: its chunk entry is damaged", block.0), at);
            self.plan.entries.insert(block.0);
        } else if data && !self.matches_fingerprint(block, entry) {
            self.find(5, format!("block {}: its bytes do not match its fingerprint", block.0), block.address());
            self.plan.entries.insert(block.0);
            self.doubtful.insert(block.0);
        }
    }

    /// Returns true if the bytes of a block match its fingerprint. Blocks without a fingerprint are not read.
    fn matches_fingerprint(&self, block: BlockNumber, entry: &ChunkEntry) -> bool {
        !has_fingerprint(entry)
            || fingerprints_fit(entry, &self.region.to_vec(block.address(), BLOCK_BYTES), &self.domains)
    }

    /// Returns true if the transaction that added an entry, or increased its count, was not completed.
    pub(super) fn is_unfinished(&self, entry: &ChunkEntry) -> bool {
        let is_under_way = |(generator, sequence)| sequence == self.generators[generator as usize];
        !entry.is_whole() || entry.added_by().is_some_and(is_under_way)
    }

    /// Records the number of the transaction that last changed an entry.
    pub(super) fn note_transaction(&mut self, entry: &ChunkEntry) {
        if let Some((generator, sequence)) = entry.added_by() {
            let latest = &mut self.latest[generator as usize];
            *latest = (*latest).max(sequence);
        }
    }
}

/// Returns true if an entry has a fingerprint of any function.
pub(super) fn has_fingerprint(entry: &ChunkEntry) -> bool {
    entry.any_weak().is_some() || entry.any_strong().is_some()
}

/// Returns true if the fingerprints of an entry match the bytes, the weak one in some domain. What a function has made
/// that this build does not have cannot be judged, and counts as right.
pub(super) fn fingerprints_fit(entry: &ChunkEntry, bytes: &[u8], domains: &KnownDomains) -> bool {
    let is_weak = |(function, weak): (u8, u32)| {
        let is_known = WeakFunction::known_name(function.into()).is_some();
        WeakFunction::from_number(function).map_or(is_known, |function| domains.are_made(function, bytes, weak))
    };
    let is_strong = |(function, strong): (u8, Strong)| {
        let is_known = StrongFunction::is_known(function);
        StrongFunction::from_number(function).map_or(is_known, |function| function.of(bytes) == strong)
    };
    entry.any_weak().is_none_or(is_weak) && entry.any_strong().is_none_or(is_strong)
}

/// Returns a description of the counts of an entry.
pub(super) fn counted(entry: &ChunkEntry) -> String {
    match entry.update_count {
        0 => format!("counted {} times", entry.count),
        updates => format!("counted {} times, with {updates} updates under way", entry.count),
    }
}

/// Returns true if a crash can leave an entry of an unfinished transaction with this number of references: the
/// reference that the transaction added is not among them.
pub(super) fn may_be_unfinished(entry: &ChunkEntry, references: u32) -> bool {
    match entry.word().tag {
        tag::INCREASE => u64::from(references) < entry.taken(),
        _ => references <= 1,
    }
}
