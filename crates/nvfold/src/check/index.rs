//! Invariant 6: the chains of a pm index contain every entry that can be found exactly once, and end.

use super::Survey;
use crate::fingerprint::WeakFunction;
use crate::media::chunk_entry::ChunkEntry;
use crate::media::direct::{BEGUN, DIRECT_BYTES, DIRECT_PER_SEGMENT, DirectEntry, chain_of, prefix_bits};
use crate::media::segment::SegmentUse;
use crate::media::superblock::Superblock;
use crate::media::{ChunkRef, SEGMENT_BYTES};
use crate::mount::index_segments_in;
use crate::words::IndexKind;
use hashbrown::HashSet;
use zerocopy::IntoBytes;

/// Chain heads that are read at once; few enough to stay in the CPU's cache.
const HEADS_AT_ONCE: usize = 4096;

/// The chunks that the chains must contain, and those that were found in them.
#[derive(Default)]
pub(super) struct Chains {
    /// The pm index's function; `None` with a dram index.
    function: Option<WeakFunction>,
    segments: Vec<u64>,
    /// Chunks whose entries have a fingerprint of that function.
    pub(super) expected: HashSet<ChunkRef>,
    met: HashSet<ChunkRef>,
}

impl Chains {
    /// Returns true if the device has a pm index.
    pub(super) fn is_pm(&self) -> bool {
        self.function.is_some()
    }

    /// Adds a chunk to the expected ones if its entry has a fingerprint of the index's function.
    pub(super) fn enters(&mut self, chunk: ChunkRef, entry: &ChunkEntry) {
        if entry.is_of(chunk) && self.function.is_some_and(|function| entry.weak(function).is_some()) {
            self.expected.insert(chunk);
        }
    }
}

impl Survey<'_> {
    /// Finds the segments of the pm index, which hold nothing else. Returns false if the index is too damaged to be
    /// checked.
    pub(super) fn index_segments(&mut self, superblock: &Superblock, uses: &[(u64, SegmentUse)]) -> bool {
        let Some((IndexKind::Pm, function)) = superblock.index() else {
            // An interrupted conversion leaves index segments on a clean device; the next mount frees them.
            self.report.recoverable +=
                uses.iter().filter(|(_, usage)| matches!(usage, SegmentUse::Index(_))).count() as u64;
            return true;
        };
        match index_segments_in(&self.geometry, uses) {
            Ok(segments) => {
                self.tables.extend(&segments);
                (self.chains.function, self.chains.segments) = (Some(function), segments);
                true
            }
            Err(error) => {
                self.find(6, error.to_string(), self.geometry.segment_table_offset);
                false
            }
        }
    }

    /// Follows all chains.
    pub(super) fn check_chains(&mut self) {
        let Some(function) = self.chains.function else { return };
        let mut heads = vec![DirectEntry::default(); HEADS_AT_ONCE];
        let chains = 1u64 << prefix_bits(self.geometry.index_blocks());
        for (ordinal, segment) in self.chains.segments.clone().into_iter().enumerate() {
            let start = segment * SEGMENT_BYTES;
            let end = start + SEGMENT_BYTES;
            // A chain whose head is in a hole of the host file is empty.
            let mut offset = self.region.next_allocated(start, end) / DIRECT_BYTES * DIRECT_BYTES;
            while offset < end {
                let count = heads.len().min(((end - offset) / DIRECT_BYTES) as usize);
                let heads = &mut heads[..count];
                self.region.scan_into(offset, heads.as_mut_bytes());
                let first = ordinal as u64 * DIRECT_PER_SEGMENT + (offset - start) / DIRECT_BYTES;
                if !self.note_bad("pm index") {
                    let is_used = |(_, head): &(u64, &DirectEntry)| **head != DirectEntry::default();
                    for (chain, head) in (first..).zip(heads.iter()).filter(is_used) {
                        let at = offset + (chain - first) * DIRECT_BYTES;
                        if chain < chains {
                            self.check_chain(chain, *head, at, function);
                        } else {
                            self.find(6, format!("chain {chain}: no fingerprint begins so"), at);
                        }
                    }
                }
                let next = offset + heads.as_bytes().len() as u64;
                offset = self.region.next_allocated(next, end) / DIRECT_BYTES * DIRECT_BYTES;
            }
        }
        let mut lost: Vec<ChunkRef> = self.chains.expected.difference(&self.chains.met).copied().collect();
        lost.sort_unstable();
        for chunk in lost {
            let at = self.packed.entries.offset(chunk);
            self.trace(6, format!("{chunk}: it has a fingerprint, and is not in its chain"), at);
        }
    }

    fn check_chain(&mut self, chain: u64, head: DirectEntry, at: u64, function: WeakFunction) {
        if head.order != 0 {
            self.trace(6, format!("chain {chain}: a reorder was not finished"), at);
        }
        if head.block != 0 {
            let entry = self.member(chain, head.block, function);
            if entry.is_none_or(|entry| entry.weak != head.weak) {
                let chunk = self.packed.entries.chunk(head.block);
                self.trace(6, format!("chain {chain}: it begins with {chunk}, which does not belong there"), at);
            }
            self.chains.met.insert(self.packed.entries.chunk(head.block));
        }
        let (mut before, mut next) = (0, head.next);
        while next != 0 {
            let chunk = self.packed.entries.chunk(next);
            let Some(entry) = self.member(chain, next, function) else {
                let what = format!("chain {chain}: it leads to {chunk}, which does not belong there");
                return self.trace(6, what, at);
            };
            if !self.chains.met.insert(chunk) {
                let what = format!("chain {chain}: it leads to {chunk} twice");
                // No crash leaves that in a committed list: an entry's own link is cleared before anything links to
                // the entry.
                let is_found = head.order == 0 || head.order == BEGUN;
                return if is_found { self.find(6, what, at) } else { self.trace(6, what, at) };
            }
            // During a reorder, `previous` already has the new order.
            if entry.previous != before && head.order == 0 {
                let told = entry.previous;
                self.trace(6, format!("chain {chain}: before {chunk} is {before}, and its entry has {told}"), at);
            }
            (before, next) = (next, entry.next);
        }
    }

    /// Returns the entry of a chunk, if it belongs to the chain.
    fn member(&self, chain: u64, word: u32, function: WeakFunction) -> Option<ChunkEntry> {
        let chunk = self.packed.entries.chunk(word);
        let exists = self.packed.entries.exists(chunk);
        let entry: ChunkEntry = exists.then(|| self.region.read(self.packed.entries.offset(chunk)))?;
        let of_weak = chain_of(entry.weak(function)?, prefix_bits(self.geometry.index_blocks()));
        let is_of_chain = u64::from(entry.delete_pointer) == chain && of_weak == chain;
        (is_of_chain && entry.is_of(chunk)).then_some(entry)
    }
}
