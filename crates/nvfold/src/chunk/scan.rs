//! How a mount learns the state of the chunk table: it reads the whole table after a crash, or the saved state
//! otherwise.
//!
//! The problem: a crash leaves entries of unfinished transactions, and loses the index and the totals, which are in
//! DRAM. The mount waits until they are rebuilt, so this must be quick.
//!
//! The idea: several threads share one pass over the entries of the segments in use. If the generator has not passed
//! an entry's transaction, the change is taken back on the spot; every other entry goes into the bits, the totals and
//! the index. Counts that are too high stay too high: recount finds the true ones while the file system is in use.
//!
//! ```text
//! generators   numbers that were passed        ends of transactions
//! entries      ADD, INCREASE beyond them       taken back, marked RECOVERED; one fence a segment
//! generators   pass the highest number seen    last: a crash before that does the same again
//! ```

use super::entries::ENTRIES_PER_SEGMENT;
use super::generators::{self, Sequences};
use super::index::Index;
use super::packed::WORDS_PER_PART;
use super::{Chunks, dram};
use crate::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, tag};
use crate::media::{BlockNumber, ChunkRef, PackedNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::parallel;
use crate::space::{Space, WORDS_PER_SEGMENT};
use nvfold_sync::atomic::Ordering;
use pmem::Flight;
use zerocopy::IntoBytes;

/// The fewest segments that are worth a thread: 64 of them have 2 MiB of table.
const SEGMENTS_PER_THREAD_MIN: usize = 64;

/// A part of the entries, read by one thread.
#[derive(Clone, Copy)]
enum Table {
    /// The entries of the blocks of a segment.
    Blocks(u64),
    /// A part of the table of packed entries.
    Packed(u32),
}

impl Chunks {
    /// Reads the TX_ID generators; for the mount.
    pub(crate) fn load_generators(&self) {
        self.generators.load(&self.region, &self.geometry);
    }

    /// Takes back the changes of unfinished transactions (4.3.2), and fills index and totals from the entries of
    /// these segments, using several threads; for a mount after a crash. Returns the number of block entries read.
    ///
    /// A crash meanwhile does no harm: a change that was taken back is marked or gone, and the generators pass the
    /// numbers of unfinished transactions last.
    pub(crate) fn scan(&self, segments: &[u64], space: &Space) -> u64 {
        let finished = generators::stored(&self.region, &self.geometry);
        let parts =
            (0..self.entries.parts_max()).map_while(|part| self.entries.part(part).map(|_| Table::Packed(part)));
        let tables: Vec<Table> = segments.iter().map(|segment| Table::Blocks(*segment)).chain(parts).collect();
        let threads = parallel::threads(tables.len(), SEGMENTS_PER_THREAD_MIN);
        let found = parallel::map(threads, &tables, |part| {
            let mut shards: Vec<Vec<u64>> = vec![Vec::new(); dram::SHARDS];
            let mut entries = vec![ChunkEntry::default(); SEGMENT_BLOCKS as usize];
            let mut seen = finished;
            let mut used = Vec::new();
            for table in part {
                match *table {
                    Table::Blocks(segment) => {
                        self.scan_segment(segment, &mut entries, &finished, &mut seen, &mut shards)
                    }
                    Table::Packed(part) => {
                        let words = self.scan_part(part, space, &mut entries, &finished, &mut seen, &mut shards);
                        used.push((part, words));
                    }
                }
            }
            (shards, seen, used)
        });
        let mut words: Vec<(u32, Vec<u64>)> = found.iter().flat_map(|(_, _, used)| used.iter().cloned()).collect();
        words.sort_unstable_by_key(|(part, _)| *part);
        self.packed.adopt(words.into_iter().flat_map(|(_, words)| words).collect());
        let passed = std::array::from_fn(|at| found.iter().map(|(_, seen, _)| seen[at]).max().unwrap_or(finished[at]));
        self.generators.pass(&self.region, &self.geometry, &finished, &passed);
        let shards: Vec<usize> = (0..dram::SHARDS).collect();
        match &self.index {
            Index::Dram(index) => {
                parallel::map(threads, &shards, |part| {
                    for &shard in part {
                        let slots = found.iter().flat_map(|(shards, ..)| shards[shard].iter().copied()).collect();
                        index.build(shard, slots);
                    }
                });
            }
            Index::Pm(index) => index.begin_count(),
        }
        segments.iter().map(|segment| self.geometry.blocks_in_segment(*segment)).sum()
    }

    /// Reads the entries of a segment, and collects its bits and, for the index, a slot of each fingerprint.
    /// `finished` holds the next sequence of each generator; `seen` is raised past the highest sequence found in an
    /// entry.
    fn scan_segment(
        &self,
        segment: u64,
        entries: &mut [ChunkEntry],
        finished: &Sequences,
        seen: &mut Sequences,
        shards: &mut [Vec<u64>],
    ) {
        let mut extra = 0;
        let mut taken_back = None;
        let first = BlockNumber(segment * SEGMENT_BLOCKS);
        let entries = &mut entries[..self.geometry.blocks_in_segment(segment) as usize];
        self.region.scan_into(self.geometry.chunk_entry_offset(first), entries.as_mut_bytes());
        for (word, entries) in (first.0 / 64..).zip(entries.chunks(64)) {
            let mut has_entry = 0;
            for (at, entry) in (0..).zip(entries).filter(|(_, entry)| !entry.is_empty()) {
                let block = BlockNumber(word * 64 + at);
                let entry = self.finished_entry(block.into(), *entry, finished, seen, &mut taken_back);
                if entry.is_empty() {
                    continue;
                }
                has_entry |= 1 << at;
                extra += u64::from(entry.count.saturating_sub(1));
                self.push_slot(block.into(), &entry, shards);
            }
            self.adopt_word(word, has_entry);
        }
        if let Some(taken_back) = taken_back {
            let _ = self.region.fence(taken_back);
        }
        self.extra_references.add(extra);
    }

    /// Reads the entries of a part of the table of packed entries, and collects its used bits, the bytes in use in
    /// each segment and, for the index, a slot of each fingerprint.
    fn scan_part(
        &self,
        part: u32,
        space: &Space,
        entries: &mut [ChunkEntry],
        finished: &Sequences,
        seen: &mut Sequences,
        shards: &mut [Vec<u64>],
    ) -> Vec<u64> {
        let mut words = vec![0; WORDS_PER_PART];
        let mut taken_back = None;
        let mut saved = 0;
        let mut has_bad = false;
        for at_once in (0..ENTRIES_PER_SEGMENT).step_by(entries.len()) {
            let first = part * ENTRIES_PER_SEGMENT + at_once;
            let offset = self.entry_offset(PackedNumber(first));
            self.region.scan_into(offset, entries.as_mut_bytes());
            if !self.region.sound_or_forget(offset, entries.as_bytes().len() as u64) {
                // An unreadable entry may count: neither it nor the bytes that it may point to are given out.
                has_bad = true;
                for number in first..first + entries.len() as u32 {
                    if !self.region.sound_or_forget(self.entry_offset(PackedNumber(number)), ENTRY_BYTES) {
                        words[(number % ENTRIES_PER_SEGMENT / 64) as usize] |= 1 << (number % 64);
                    }
                }
            }
            for (number, entry) in (first..).zip(entries.iter()).filter(|(_, entry)| !entry.is_empty()) {
                let chunk = ChunkRef::Packed(PackedNumber(number));
                let entry = self.finished_entry(chunk, *entry, finished, seen, &mut taken_back);
                if entry.is_empty() {
                    continue;
                }
                let at = number % ENTRIES_PER_SEGMENT;
                words[(at / 64) as usize] |= 1 << (at % 64);
                if let Some((address, bytes)) = self.place_of(chunk) {
                    space.packed.adopt_chunk(address / SEGMENT_BYTES, bytes);
                }
                // Added even if the entry is damaged, because the same rule subtracts it again.
                saved += u64::from(entry.count.saturating_sub(1)) * entry.content_bytes();
                self.packed.record_compressed(entry.packed_bytes());
                self.push_slot(chunk, &entry, shards);
            }
        }
        if let Some(taken_back) = taken_back {
            let _ = self.region.fence(taken_back);
        }
        if has_bad {
            space.packed.keep_all();
        }
        self.packed.saved_bytes.add(saved);
        words
    }

    /// Returns an entry after any change by an unfinished transaction was taken back.
    fn finished_entry(
        &self,
        chunk: ChunkRef,
        entry: ChunkEntry,
        finished: &Sequences,
        seen: &mut Sequences,
        taken_back: &mut Option<Flight>,
    ) -> ChunkEntry {
        // A decrease carries the number of a transaction that has not begun, and is never taken back.
        let is_finished = |(generator, sequence): &(u64, u64)| *sequence < finished[*generator as usize];
        let Some((generator, sequence)) = entry.added_by().filter(|added| !is_finished(added)) else { return entry };
        seen[generator as usize] = seen[generator as usize].max(sequence + 1);
        // A higher sequence cannot be in progress: the generator is damaged, and references of files are not taken
        // back for that.
        match sequence == finished[generator as usize] {
            true => self.take_back(chunk, entry, taken_back.get_or_insert_with(Flight::new)),
            false => entry,
        }
    }

    /// Adds the slot of an entry for the dram index.
    fn push_slot(&self, chunk: ChunkRef, entry: &ChunkEntry, shards: &mut [Vec<u64>]) {
        let is_found = |_: &u32| entry.is_whole() && entry.is_of(chunk) && self.index.dram().is_some();
        if let Some(weak) = entry.weak(self.weak_function()).filter(is_found) {
            let slot = dram::slot(weak, chunk);
            shards[dram::shard_of(slot)].push(slot);
        }
    }

    /// Takes back the change of an unfinished transaction to an entry: an addition by null_entry, an increase by
    /// decrease_RC. A removal is not undone, because its extents are gone. Returns the resulting entry.
    fn take_back(&self, chunk: ChunkRef, entry: ChunkEntry, flight: &mut Flight) -> ChunkEntry {
        let offset = self.entry_offset(chunk);
        let word = entry.word();
        if self.region.check_writable(offset, ENTRY_BYTES).is_err() {
            return entry;
        }
        match word.tag {
            tag::INCREASE if word.count > 1 => {
                let back = CountWord { tag: tag::INCREASE | tag::RECOVERED, count: word.count - 1, ..word };
                flight.add(self.region.store_u128(offset, back.encode()).flush());
                ChunkEntry { tag_tx: back.encode() as u64, count: back.count, ..entry }
            }
            tag::ADD => {
                let back = CountWord { tag: tag::NULL | tag::RECOVERED, count: 0, ..word };
                flight.add(self.region.store_u128(offset, back.encode()).flush());
                ChunkEntry { tag_tx: back.encode() as u64, count: 0, ..entry }
            }
            _ => entry,
        }
    }

    /// Sets the saved bits of a segment; for the mount. The index is loaded separately.
    pub fn adopt_entries(&self, segment: u64, has_entry: &[u64]) {
        (segment * WORDS_PER_SEGMENT as u64..).zip(has_entry).for_each(|(word, bits)| self.adopt_word(word, *bits));
    }

    fn adopt_word(&self, word: u64, bits: u64) {
        if self.index.fact().is_none() {
            return self.has_entry[word as usize].store(bits, Ordering::Relaxed);
        }
        if bits != 0 {
            self.record_may_have_entry(BlockNumber(word * 64));
            self.tracked.add(u64::from(bits.count_ones()));
        }
    }

    /// Sets the saved total; for the mount. See [`Chunks::adopt_entries`].
    pub fn adopt_totals(&self, extra_references: u64) {
        self.extra_references.set(extra_references);
    }
}
