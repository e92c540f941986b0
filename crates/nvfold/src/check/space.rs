//! Free space: compares the marks of the segment table, and the saved state, with what the logs reference.

use super::Survey;
use crate::chunk::dram::{self, SHARDS};
use crate::dedup::denova::queue::{NODE_WORDS, Node};
use crate::dedup::work::Token;
use crate::fingerprint::WeakFunction;
use crate::media::chunk_entry::ChunkEntry;
use crate::media::segment::SegmentUse;
use crate::media::superblock::Superblock;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::mount::Tables;
use crate::mount::saved::Saved;
use crate::space::WORDS_PER_SEGMENT;
use crate::words::Usage;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

type Bits = [u64; WORDS_PER_SEGMENT];

/// The state that an unmount would have saved, according to the survey.
#[derive(Default)]
pub(super) struct Expected {
    used: BTreeMap<u64, Bits>,
    has_entry: BTreeMap<u64, Bits>,
    /// Each fingerprint's function number and its slot in the index.
    index: BTreeSet<(u8, u64)>,
    extra_references: u64,
    /// The expected nodes of the work queue, as they would be saved.
    needed: BTreeSet<[u64; NODE_WORDS]>,
}

fn set(bits: &mut BTreeMap<u64, Bits>, block: BlockNumber) {
    let (segment, place) = (block.0 / SEGMENT_BLOCKS, block.0 % SEGMENT_BLOCKS);
    bits.entry(segment).or_default()[(place / 64) as usize] |= 1 << (place % 64);
}

impl Expected {
    /// Records a block that is in use.
    pub(super) fn uses(&mut self, block: BlockNumber) {
        set(&mut self.used, block);
    }

    fn is_used(&self, block: BlockNumber) -> bool {
        let bits = self.used.get(&(block.0 / SEGMENT_BLOCKS));
        bits.is_some_and(|bits| bits[(block.0 % SEGMENT_BLOCKS / 64) as usize] & 1 << (block.0 % 64) != 0)
    }

    /// Records blocks of a segment that are in use.
    pub(super) fn uses_all(&mut self, segment: u64, blocks: &Bits) {
        if *blocks != Bits::default() {
            let words = self.used.entry(segment).or_default().iter_mut();
            words.zip(blocks).for_each(|(word, blocks)| *word |= blocks);
        }
    }

    /// Records a log entry that the daemon has to process.
    pub(super) fn needs(&mut self, (entry, blocks): (Token, u32)) {
        let node = Node::new(entry, blocks);
        self.needed.insert(node.words());
    }

    /// Records a block's chunk entry, unless it is empty.
    pub(super) fn enters(&mut self, block: BlockNumber, entry: &ChunkEntry) {
        if entry.is_empty() {
            return;
        }
        set(&mut self.has_entry, block);
        self.extra_references += u64::from(entry.count.saturating_sub(1));
        self.indexes(block.into(), entry);
    }

    /// Records the weak fingerprint of an entry, which the index should contain.
    pub(super) fn indexes(&mut self, chunk: ChunkRef, entry: &ChunkEntry) {
        let weak = entry.any_weak().filter(|_| entry.is_of(chunk));
        self.index.extend(weak.map(|(function, weak)| (function, dram::slot(weak, chunk))));
    }
}

impl Survey<'_> {
    /// Checks that segments with blocks in use are marked, because a mount after a crash would reuse them otherwise,
    /// and that chunk entries are only where recovery looks for them. Returns the segments that hold blocks or
    /// entries and should not.
    pub(super) fn check_marks(&mut self, tables: &Tables) -> Vec<u64> {
        let uses: HashMap<u64, SegmentUse> = tables.uses.iter().copied().collect();
        let may_hold = |segment: &u64| matches!(uses.get(segment), Some(SegmentUse::Blocks | SegmentUse::Torn));
        let segments: BTreeSet<u64> = self.space.used.keys().chain(self.space.has_entry.keys()).copied().collect();
        let wrong: Vec<u64> = segments.into_iter().filter(|segment| !may_hold(segment)).collect();
        for segment in wrong.clone() {
            let at = self.geometry.segment_entry_offset(segment);
            if self.space.used.contains_key(&segment) {
                self.find(4, format!("segment {segment} is not marked as used, and blocks of it are in use"), at);
            } else {
                self.find(2, format!("segment {segment} is not marked as used, and has chunk entries"), at);
            }
        }
        wrong
    }

    pub(super) fn check_saved_state(&mut self, superblock: &Superblock) {
        let at = superblock.saved_state;
        if !self.report.clean || at == 0 {
            return;
        }
        let Some(saved) = Saved::read(self.region, &self.geometry, superblock) else {
            return self.find(0, "the saved state is damaged; a mount scans the tables instead".into(), at);
        };
        let lies_in_use = saved.runs.iter().flat_map(|run| run.blocks()).find(|block| self.space.is_used(*block));
        if let Some(block) = lies_in_use {
            self.find(4, "the saved state lies in a block that is in use".into(), block.address());
        }
        self.check_saved_index(&saved, at);
        self.check_saved_segments(&saved, at);
        self.check_saved_inodes(&saved, at);
        self.check_saved_packed(&saved, at);
        self.check_saved_trees(&saved, at);
        let queued: BTreeSet<[u64; NODE_WORDS]> = saved.nodes.iter().map(Node::words).collect();
        if queued != self.space.needed || queued.len() != saved.nodes.len() {
            let (entries, nodes) = (self.space.needed.len(), saved.nodes.len());
            let what =
                format!("the saved work queue has {nodes} nodes, and they are not those of the {entries} entries");
            self.find(2, what + " that need it", at);
        }
        let header = &saved.header;
        let in_chains = self.chains.expected.len() as u64;
        if self.chains.is_pm() && header.index_entries != in_chains {
            let told = header.index_entries;
            self.find(2, format!("the saved state counts {told} fingerprints, and {in_chains} are in chains"), at);
        }
        let totals = (header.mapped_bytes, header.data_blocks, header.extra_references);
        let counted = (self.report.usage.logical_bytes, self.report.blocks, self.space.extra_references);
        if totals != counted {
            self.find(2, format!("the saved totals are {totals:?} and the counted ones {counted:?}"), at);
        }
        self.check_saved_usage(&saved, at);
    }

    /// Checks that the saved totals add up with what the extents map of each chunk.
    fn check_saved_usage(&mut self, saved: &Saved, at: u64) {
        let packed = saved.packed.iter().fold(0u64, |sum, record| sum.saturating_add(record.live));
        let told = Usage {
            logical_bytes: saved.header.mapped_bytes,
            stored_bytes: saved.header.data_blocks.saturating_mul(BLOCK_BYTES).saturating_add(packed),
            compressed_away_bytes: saved.compressed_away_bytes,
            ..self.report.usage
        };
        if self.bad.packed_entries.is_empty() && !told.adds_up() {
            self.find(2, format!("the saved totals do not add up: {told:?}"), at);
        }
    }

    /// Returns what the bytes of all chunks in use are, by the extents and the chunk table alone.
    pub(super) fn usage(&self) -> Usage {
        let stored = self.report.blocks * BLOCK_BYTES + self.report.packed_bytes;
        let content_bytes = |number| match self.packed.entries.packed_offset(number) {
            Some(at) => self.region.read::<ChunkEntry>(at).content_bytes(),
            None => 0,
        };
        let usage = self.coverage.usage(stored, self.report.compressed_away_bytes, content_bytes);
        // Entries in bad memory are findings already.
        let _ = self.region.check();
        usage
    }

    /// Checks the saved dram index: it has the fingerprints of all entries, and otherwise only blocks of file data
    /// without an entry. A pm index is not saved.
    fn check_saved_index(&mut self, saved: &Saved, at: u64) {
        let slots = |shard: usize| saved.index[shard].1.iter().copied().filter(|slot| *slot != 0);
        let indexed: BTreeSet<u64> = (0..SHARDS).flat_map(slots).collect();
        let is_saved = !self.chains.is_pm();
        let of_function = |(function, _): &&(u8, u64)| is_saved && u64::from(*function) == saved.header.weak_function;
        let expected: BTreeSet<u64> = self.space.index.iter().filter(of_function).map(|(_, slot)| *slot).collect();
        let missing = expected.difference(&indexed).count();
        if is_saved && WeakFunction::known_name(saved.header.weak_function).is_none() {
            self.find(2, "the saved index is of fingerprints that no function makes".into(), at);
        }
        if missing > 0 {
            self.find(2, format!("the saved index misses {missing} fingerprints of the chunk table"), at);
        }
        let is_data = |block: BlockNumber| self.space.is_used(block) && !self.metadata.contains_key(&block.0);
        let may_be_there = |slot: &&u64| self.packed.entries.chunk(**slot as u32).block().is_some_and(is_data);
        let lost = indexed.difference(&expected).filter(|slot| is_saved && !may_be_there(slot)).count();
        if lost > 0 {
            self.find(2, format!("the saved index has {lost} chunks that no file references"), at);
        }
    }

    fn check_saved_segments(&mut self, saved: &Saved, at: u64) {
        let mut used = std::mem::take(&mut self.space.used);
        let mut has_entry = std::mem::take(&mut self.space.has_entry);
        for record in &saved.segments {
            let segment = record.segment;
            let mut expected = used.remove(&segment).unwrap_or_default();
            for missing in self.geometry.blocks_in_segment(segment)..SEGMENT_BLOCKS {
                expected[(missing / 64) as usize] |= 1 << (missing % 64);
            }
            if record.used != expected {
                self.find(4, format!("segment {segment}: the saved state has other blocks in use than the logs"), at);
            }
            if record.has_entry != has_entry.remove(&segment).unwrap_or_default() {
                self.find(2, format!("segment {segment}: the saved state has other entries than the chunk table"), at);
            }
        }
        for segment in used.into_keys() {
            self.find(4, format!("segment {segment} is not in the saved state, and blocks of it are in use"), at);
        }
        for segment in has_entry.into_keys() {
            self.find(2, format!("segment {segment} is not in the saved state, and has chunk entries"), at);
        }
    }

    fn check_saved_packed(&mut self, saved: &Saved, at: u64) {
        if !self.bad.packed_entries.is_empty() {
            // The counts in the unreadable entries are unknown.
            return;
        }
        if saved.packed_words != self.packed.used_words {
            self.find(2, "the saved state and the entries of packed chunks differ in which are in use".into(), at);
        }
        let live: BTreeMap<u64, u64> = saved.packed.iter().map(|record| (record.segment, record.live)).collect();
        if live != self.packed.live {
            let segments: BTreeSet<u64> = live.keys().chain(self.packed.live.keys()).copied().collect();
            let differs = segments.into_iter().find(|segment| live.get(segment) != self.packed.live.get(segment));
            let segment = differs.expect("two maps that are not equal");
            let bytes =
                |live: Option<&u64>| live.map_or("no packed chunks".into(), |bytes| format!("{bytes} live bytes"));
            let (told, found) = (bytes(live.get(&segment)), bytes(self.packed.live.get(&segment)));
            self.find(2, format!("segment {segment}: the saved state counts {told}, the entries {found}"), at);
        }
        if saved.packed_saved_bytes != self.packed.saved_bytes {
            let (told, counted) = (saved.packed_saved_bytes, self.packed.saved_bytes);
            let what = format!("by the saved state, sharing packed chunks saves {told} bytes, and it is {counted}");
            self.find(2, what, at);
        }
        if saved.compressed_away_bytes != self.packed.compressed_away_bytes {
            let (told, counted) = (saved.compressed_away_bytes, self.packed.compressed_away_bytes);
            let what = format!("by the saved state, compression saves {told} bytes, and it is {counted}");
            self.find(2, what, at);
        }
        for (_, open) in saved.packed.iter().filter_map(|record| record.open) {
            let front = open.segment * SEGMENT_BYTES + open.front;
            if self.packed.lives_behind(front) {
                let what = format!("segment {}: packed chunks lie after its append position", open.segment);
                self.find(4, what, front);
            }
        }
    }

    fn check_saved_inodes(&mut self, saved: &Saved, at: u64) {
        let mut expected = vec![0u64; saved.inode_words.len()];
        if let Some(first) = expected.first_mut() {
            *first = 1;
        }
        let inodes = self.inodes.keys().copied().chain(self.areas.values().map(|area| area.number));
        let outside =
            inodes.filter(|ino| expected.get_mut((ino / 64) as usize).map(|w| *w |= 1 << (ino % 64)).is_none());
        let outside = outside.count();
        let mut wrong = expected.iter().zip(&saved.inode_words).filter(|(expected, saved)| expected != saved);
        if outside > 0 || wrong.next().is_some() {
            self.find(2, "the saved state has other inodes in use than the inode table".into(), at);
        }
        let (told, found) = (saved.header.log_areas, self.areas.len() as u64);
        if told != found {
            self.find(2, format!("the saved state counts {told} log areas, and there are {found}"), at);
        }
    }
}
