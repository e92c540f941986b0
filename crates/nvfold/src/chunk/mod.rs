//! The chunk table: how often each block is named, and the index that finds a block by its fingerprint.
//!
//! The problem: a count must never be lower on the media than the extents that can be reached
//! (invariant 1), must be exact after recovery (invariant 2), and must cost nothing for data that
//! nobody shares.
//!
//! The idea: three states of a block, told by its one-line entry.
//!
//! ```text
//! entry empty    free, or private: named by exactly one extent, no fingerprint
//! count >= 1     tracked: named by exactly `count` extents
//!
//!  private --share--> 2        n --share--> n+1       n --release--> n-1     1 --release--> free
//!  private --release--> free
//! ```
//!
//! Counts change by one 16-byte compare-and-exchange of tag, transaction and counts, then one line flush.
//! An increase is durable before the commit word that publishes the extent, a decrease comes after it. So a crash
//! leaves counts too high, never too low. What a [`transaction`] left unfinished is taken back at the mount, and
//! [`recount`] finds the true counts while the file system is in use. Beside the count an entry has an update count:
//! references of those who are about to name the block (`update.rs`).

pub mod dram;
pub mod fact;
pub mod index;
pub mod recount;
pub mod reference;
pub mod transaction;
mod update;

use crate::fingerprint::{Strong, StrongFunction, WeakFunction};
use crate::media::chunk_entry::{ChunkEntry, CountWord, ENTRY_BYTES, LINKS_WORD, STRONG_VALID, WEAK_VALID, tag};
use crate::media::generator::parts;
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS};
use crate::padded::Padded;
use crate::parallel;
use crate::space::WORDS_PER_SEGMENT;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, RwLock, zeroed};
use index::Index;
use pmem::{Flight, PmemError, Region};
use recount::Recount;
use transaction::{GeneratorLines, Generators, Sequences, Transaction};
use zerocopy::IntoBytes;

/// Where delete pointer, flags and functions lie in an entry: one word.
const FLAGS_WORD: u64 = LINKS_WORD + 8;

/// Fewer segments than this are not worth a thread: 64 of them are 2 MiB of table.
const SEGMENTS_PER_THREAD_MIN: usize = 64;

/// What became of a block when one extent let go of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Nobody names it any more.
    Free,
    /// Others still do.
    Kept,
}

/// Why a block gets no further reference.
#[derive(Debug)]
pub enum Unshareable {
    /// Its count cannot grow further.
    Saturated,
    /// Its entry lies in bad memory.
    Bad(PmemError),
}

/// Locks of what is changed in an entry beside its counts, which is seldom.
#[derive(Default)]
struct Lines {
    locks: [Padded<Mutex<()>>; 16],
}

impl Lines {
    fn lock(&self, block: BlockNumber) -> MutexGuard<'_, ()> {
        self.locks[block.0 as usize % self.locks.len()].lock()
    }
}

/// The table and its index.
pub struct Chunks {
    region: Region,
    geometry: Geometry,
    /// Finds tracked blocks by weak fingerprint.
    pub index: Index,
    /// What makes the fingerprints; the index holds the weak ones. Those of other functions count as missing.
    weak: WeakFunction,
    strong: StrongFunction,
    generators: GeneratorLines,
    /// Dram index: one bit a block, has an entry. A private block is released without a look at the media, so the
    /// table of a device that shares nothing stays a hole. With a pm index there is one bit a segment, has had an
    /// entry since the mount, and the table itself tells the rest.
    has_entry: Box<[AtomicU64]>,
    /// Entries in use, with a pm index.
    tracked: Padded<AtomicU64>,
    extra_references: Padded<AtomicU64>,
    lines: Lines,
    /// Whether `recount` holds anything: looked at without its lock.
    recounting: AtomicBool,
    recount: RwLock<Option<Recount>>,
}

impl Chunks {
    /// The table of a device, with its index as far as that is there.
    pub(crate) fn new(
        region: Region,
        geometry: Geometry,
        index: Index,
        (weak, strong): (WeakFunction, StrongFunction),
        generators: Generators,
    ) -> Chunks {
        let words = if index.fact().is_some() { 1 } else { SEGMENT_BLOCKS };
        Chunks {
            weak,
            strong,
            generators: GeneratorLines::new(generators),
            region,
            geometry,
            index,
            has_entry: zeroed((geometry.segments() * words).div_ceil(64)),
            tracked: Padded::default(),
            extra_references: Padded::default(),
            lines: Lines::default(),
            recounting: AtomicBool::new(false),
            recount: RwLock::new(None),
        }
    }

    /// Entries in use.
    pub fn tracked(&self) -> u64 {
        if self.index.fact().is_some() {
            return self.tracked.load(Ordering::Relaxed);
        }
        self.has_entry.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Dedup transactions that began since the device was formatted.
    pub fn transactions(&self) -> u64 {
        self.generators.begun()
    }

    /// References beyond the first of every block: blocks saved by sharing.
    pub fn extra_references(&self) -> u64 {
        self.extra_references.load(Ordering::Relaxed)
    }

    /// A block's entry, copied.
    pub fn entry(&self, block: BlockNumber) -> ChunkEntry {
        self.region.read(self.geometry.chunk_entry_offset(block))
    }

    /// Extents that touch a block that is in use.
    pub(crate) fn count(&self, block: BlockNumber) -> u32 {
        if self.has_entry(block) { self.entry(block).count.max(1) } else { 1 }
    }

    /// Device offset of a block's entry.
    pub(crate) fn entry_offset(&self, block: BlockNumber) -> u64 {
        self.geometry.chunk_entry_offset(block)
    }

    /// Whether a referenced block holds these bytes.
    pub fn equal(&self, block: BlockNumber, piece: &[u8]) -> bool {
        let equal = piece.len() as u64 == BLOCK_BYTES && self.region.equal(block.address(), piece);
        // Bad memory equals nothing, and is no failure of who compares with it.
        self.region.is_sound(block.address(), BLOCK_BYTES) && equal
    }

    /// Asks for the first bytes of a block, so that comparing it soon after need not wait for them: the processor sees
    /// where that leads and asks for the rest.
    pub(crate) fn prefetch(&self, block: BlockNumber) {
        self.region.prefetch(block.address());
    }

    /// What makes the weak fingerprints.
    pub fn weak_function(&self) -> WeakFunction {
        self.weak
    }

    /// What makes the strong fingerprints.
    pub fn strong_function(&self) -> StrongFunction {
        self.strong
    }

    /// A transaction; it begins with its first entry operation.
    pub fn begin(&self) -> Transaction<'_> {
        Transaction::new(self)
    }

    /// Mount: reads the TX_ID generators.
    pub(crate) fn load_generators(&self) {
        self.generators.load(&self.region, &self.geometry);
    }

    /// One more reference on a block that the caller knows to be referenced (it holds the lock of an
    /// inode that names it).
    fn share(&self, block: BlockNumber, tx: u64, flight: &mut Flight) -> Result<(), Unshareable> {
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let seen = CountWord::decode(self.region.load_u128(offset));
            self.region.check_writable(offset, ENTRY_BYTES).map_err(Unshareable::Bad)?;
            if seen.count > 0 {
                match self.increase(block, tx, flight) {
                    Some(result) => return result,
                    None => continue,
                }
            }
            // Private: its one reference becomes explicit together with the new one. The rest of the line
            // is stored first, so that the count is never seen with what another block left there; by one alone, for
            // as soon as it is counted it may get its fingerprints.
            let _alone = self.lines.lock(block);
            if self.region.load_u128(offset) != seen.encode() {
                continue;
            }
            let word = CountWord { tag: tag::ADD, tx, count: 2, update_count: 0 };
            let entry = ChunkEntry::for_block(block, word);
            let _ = self.region.write(offset + 16, &entry.as_bytes()[16..LINKS_WORD as usize]);
            // After a crash the block may still hang in a chain, which must not break.
            let pointer = self.region.load_u64(offset + FLAGS_WORD) & u64::from(u32::MAX);
            let _ = self.region.store_u64(offset + FLAGS_WORD, pointer);
            // Whoever sees the count must not take the entry for a new one.
            self.note_there(block);
            if let Ok(line) = self.region.compare_exchange_u128(offset, seen.encode(), word.encode()) {
                flight.add(line.flush());
                self.note_entry(block, 2);
                return Ok(());
            }
        }
    }

    /// Whether a crash left it open how often the block is named.
    fn is_unknown(&self, block: BlockNumber) -> bool {
        self.with_recount(|recount| recount.is_unknown(block)) == Some(true)
    }

    /// Unmount: makes the decreases of all threads durable, for a device that is clean has exact counts.
    pub(crate) fn flush_decreases(&self, segments: impl Iterator<Item = u64>) {
        let mut flight = Flight::new();
        let mut entries = vec![ChunkEntry::default(); SEGMENT_BLOCKS as usize];
        for segment in segments.filter(|segment| self.entries_in(*segment).iter().any(|word| *word != 0)) {
            let first = BlockNumber(segment * SEGMENT_BLOCKS);
            let entries = &mut entries[..self.geometry.blocks_in_segment(segment) as usize];
            self.region.scan_into(self.entry_offset(first), entries.as_mut_bytes());
            for (block, _) in (first.0..).zip(entries).filter(|(_, entry)| entry.word().tag == tag::DECREASE) {
                flight.add(self.region.flush(self.entry_offset(BlockNumber(block)), ENTRY_BYTES));
            }
        }
        let _ = self.region.fence(flight);
    }

    /// Whether the content of a block can be trusted: after a crash somebody must vouch for it first.
    fn is_vouched(&self, block: BlockNumber) -> bool {
        let unvouched = |recount: &Recount| recount.is_unknown(block) && !recount.is_vouched(block);
        self.with_recount(unvouched) != Some(true)
    }

    /// One more reference on a block that is tracked and known not to be freed meanwhile; `None` when it is not
    /// tracked.
    fn increase(&self, block: BlockNumber, tx: u64, flight: &mut Flight) -> Option<Result<(), Unshareable>> {
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            if !self.region.is_sound(offset, ENTRY_BYTES) || seen.count == 0 {
                return None;
            }
            if seen.count == u32::MAX {
                return Some(Err(Unshareable::Saturated));
            }
            let word = CountWord { tag: tag::INCREASE, tx, count: seen.count + 1, ..seen };
            if let Ok(line) = self.region.compare_exchange_u128(offset, stored, word.encode()) {
                flight.add(line.flush());
                self.extra_references.fetch_add(1, Ordering::Relaxed);
                return Some(Ok(()));
            }
        }
    }

    /// null_entry, if the caller's extent is the only one that names the block. Its entry is empty then, which says
    /// that much too; so this may come before the extent goes. The index keeps the block until [`Chunks::forget`]:
    /// nobody can take a reference any more.
    pub(crate) fn null_if_sole(&self, block: BlockNumber, flight: &mut Flight) -> bool {
        if !self.has_entry(block) || self.is_unknown(block) {
            return false;
        }
        let offset = self.geometry.chunk_entry_offset(block);
        let stored = self.region.load_u128(offset);
        let seen = CountWord::decode(stored);
        let is_sole = seen.count == 1 && seen.update_count == 0 && self.region.is_sound(offset, ENTRY_BYTES);
        is_sole && self.null(block, stored, flight)
    }

    /// decrease_RC, or null_entry for the last reference: the extent that was the reference cannot be reached any
    /// more. An entry that was emptied must be durable before its block gets another user; a decrease need not be until
    /// the unmount ([`Chunks::flush_decreases`]).
    ///
    /// After a crash a block of before it stays as it is until it has been counted anew: nothing is freed by a count
    /// that may be wrong.
    pub(crate) fn release(&self, block: BlockNumber, flight: &mut Flight) -> Released {
        if self.is_unknown(block) {
            return Released::Kept;
        }
        if !self.has_entry(block) {
            return Released::Free;
        }
        let offset = self.geometry.chunk_entry_offset(block);
        loop {
            let stored = self.region.load_u128(offset);
            let seen = CountWord::decode(stored);
            match seen.count {
                // How many name it is not known, or cannot be written: it stays until it is counted anew.
                _ if !self.region.is_sound(offset, ENTRY_BYTES) => return Released::Kept,
                0 if seen.update_count == 0 => return Released::Free,
                0 => return Released::Kept,
                1 if seen.update_count == 0 => {
                    if self.null(block, stored, flight) {
                        flight.extend(self.forget(block));
                        return Released::Free;
                    }
                }
                count => {
                    let tx = self.generators.passing_id();
                    let word = CountWord { tag: tag::DECREASE, tx, count: count - 1, ..seen };
                    // Not flushed: lost, it leaves a count too high, which reconcile removes. Unmount flushes it.
                    if self.region.compare_exchange_u128(offset, stored, word.encode()).is_ok() {
                        // The last one goes, and somebody is about to name the block: nothing was saved by it.
                        let was_extra = u64::from(count > 1);
                        self.extra_references.fetch_sub(was_extra, Ordering::Relaxed);
                        return Released::Kept;
                    }
                }
            }
        }
    }

    /// null_entry. False when the count is not what was stored any more.
    fn null(&self, block: BlockNumber, stored: u128, flight: &mut Flight) -> bool {
        let offset = self.geometry.chunk_entry_offset(block);
        let tx = self.generators.passing_id();
        let nulled = CountWord { tag: tag::NULL, tx, count: 0, ..CountWord::decode(stored) };
        let Ok(line) = self.region.compare_exchange_u128(offset, stored, nulled.encode()) else { return false };
        flight.add(line.flush());
        self.note_no_entry(block);
        true
    }

    /// The entry of a block is empty now: out of bits and index with it. What is returned must be fenced before the block
    /// gets another user.
    fn forget_entry(&self, block: BlockNumber) -> Flight {
        self.note_no_entry(block);
        self.forget(block)
    }

    /// Takes a block whose entry was emptied out of the index, before it gets another user: what is returned must be
    /// fenced before that.
    pub(crate) fn forget(&self, block: BlockNumber) -> Flight {
        match self.entry(block).weak(self.weak) {
            Some(weak) => self.index.remove(weak, block),
            None => Flight::new(),
        }
    }

    /// Reconcile: keeps anybody from finding a block by its weak fingerprint, durably.
    fn hide_by(&self, weak: u32, block: BlockNumber) {
        match &self.index {
            Index::Dram(index) => index.remove(weak, block),
            Index::Pm(index) => index.remove_lost(weak, block),
        }
    }

    /// Reconcile: keeps anybody from finding a block, durably.
    pub(crate) fn hide(&self, block: BlockNumber) {
        if let Some(weak) = self.entry(block).weak(self.weak) {
            self.hide_by(weak, block);
        }
    }

    /// Gives an entry that counts, and whose block cannot lose its last reference now, its weak fingerprint.
    pub(crate) fn set_weak(&self, block: BlockNumber, weak: u32, flight: &mut Flight) {
        let _alone = self.lines.lock(block);
        let offset = self.geometry.chunk_entry_offset(block);
        if self.entry(block).any_weak().is_some() {
            self.make_invalid(offset, WEAK_VALID);
        }
        let mut words = self.set_word(offset + 40, |word| word & u64::from(u32::MAX) | u64::from(weak) << 32);
        if let Some(index) = self.index.fact() {
            let chain = index.chain_of(weak);
            words.extend(self.set_word(offset + FLAGS_WORD, |word| word & !u64::from(u32::MAX) | chain));
        }
        self.make_valid(offset, words, WEAK_VALID, |functions| functions & 0xf0 | self.weak as u8, flight);
    }

    /// Likewise its strong fingerprint.
    fn set_strong(&self, block: BlockNumber, strong: Strong, flight: &mut Flight) {
        let _alone = self.lines.lock(block);
        let offset = self.geometry.chunk_entry_offset(block);
        if self.entry(block).any_strong().is_some() {
            self.make_invalid(offset, STRONG_VALID);
        }
        let (words, tail) = strong.as_chunks::<8>();
        for (at, word) in (24..).step_by(8).zip(words) {
            // In the line that is flushed next.
            let _ = self.region.store_u64(offset + at, u64::from_le_bytes(*word));
        }
        let tail = u64::from(u32::from_le_bytes(tail.try_into().expect("20 bytes are two words and a half")));
        let written = self.set_word(offset + 40, |word| word & !u64::from(u32::MAX) | tail);
        self.make_valid(offset, written, STRONG_VALID, |of| of & 0x0f | (self.strong as u8) << 4, flight);
    }

    /// Takes back, durably, that a fingerprint is valid: the new one must not be taken for one of the old function.
    fn make_invalid(&self, entry: u64, flag: u8) {
        let invalid = self.set_word(entry + FLAGS_WORD, |word| word & !(u64::from(flag) << 32));
        let _ = self.region.fence(invalid);
    }

    /// Says that a fingerprint is valid, once it is durable: this one word may reach the media alone.
    fn make_valid(&self, entry: u64, words: Flight, flag: u8, functions: impl Fn(u8) -> u8, flight: &mut Flight) {
        let _ = self.region.fence(words);
        flight.extend(self.set_word(entry + FLAGS_WORD, |word| {
            let [a, b, c, d, flags, made_by, e, f] = word.to_le_bytes();
            u64::from_le_bytes([a, b, c, d, flags | flag, functions(made_by), e, f])
        }));
    }

    /// Changes a word that others may change too.
    fn set_word(&self, offset: u64, change: impl Fn(u64) -> u64) -> Flight {
        let mut flight = Flight::new();
        let mut seen = self.region.load_u64(offset);
        loop {
            match self.region.compare_exchange_u64(offset, seen, change(seen)) {
                Ok(word) => {
                    flight.add(word.flush());
                    return flight;
                }
                Err(other) => seen = other,
            }
        }
    }

    /// Reconcile: makes the entry of a block, and what is known of it in DRAM, say what is true, if it does not.
    /// `count` 0: no entry. Its fingerprints stay if `keeps` them. One in bad memory stays as it is.
    pub(crate) fn set_exact(&self, block: BlockNumber, count: u32, keeps: bool, flight: &mut Flight) {
        if self.region.check_writable(self.geometry.chunk_entry_offset(block), ENTRY_BYTES).is_err() {
            return;
        }
        let old = if self.has_entry(block) { self.entry(block) } else { ChunkEntry::default() };
        let word = CountWord { tag: tag::ADD | tag::RECOVERED, tx: 0, count, update_count: 0 };
        let mut new = match count {
            0 => ChunkEntry::default(),
            _ if keeps && old.is_of(block) => ChunkEntry::for_block(block, word).with_fingerprints_of(&old),
            _ => ChunkEntry::for_block(block, word),
        };
        if let Some((index, weak)) = self.index.fact().zip(new.weak(self.weak)) {
            new.delete_pointer = index.chain_of(weak) as u32;
        }
        // The transaction of an entry that counts may be any.
        let is_right = match count {
            0 => old.is_empty(),
            _ => old.is_whole() && old == (ChunkEntry { tag_tx: old.tag_tx, ..new }),
        };
        if !is_right {
            self.note_gone(block, &old, new.weak(self.weak).is_none());
            let written = self.region.write(self.geometry.chunk_entry_offset(block), &new).flush();
            if count == 0 || old.delete_pointer == new.delete_pointer {
                flight.add(written);
            } else {
                // Damage. Where it belongs must be there before it is led to.
                let _ = self.region.fence(written);
            }
            if count > 0 {
                self.note_entry(block, count);
            }
        }
        // A crash may have left an entry that counts out of the index.
        if let Some(weak) = new.weak(self.weak).filter(|_| !is_right || self.index.fact().is_some()) {
            self.index.insert(weak, block);
        }
    }

    /// Mount after a crash: takes back what unfinished transactions did (4.3.2), and fills index and totals from the
    /// entries of these segments, read by several threads. Returns how many entries were looked at.
    ///
    /// A crash meanwhile does no harm: what was taken back is marked so, or gone, and the generators pass the
    /// unfinished numbers last.
    pub(crate) fn scan(&self, segments: &[u64]) -> u64 {
        let finished = transaction::stored(&self.region, &self.geometry);
        let threads = parallel::threads(segments.len(), SEGMENTS_PER_THREAD_MIN);
        let found = parallel::map(threads, segments, |part| {
            let mut shards: Vec<Vec<u64>> = vec![Vec::new(); dram::SHARDS];
            let mut entries = vec![ChunkEntry::default(); SEGMENT_BLOCKS as usize];
            let mut seen = finished;
            for segment in part {
                self.scan_segment(*segment, &mut entries, &finished, &mut seen, &mut shards);
            }
            (shards, seen)
        });
        let passed = std::array::from_fn(|at| found.iter().map(|(_, seen)| seen[at]).max().unwrap_or(finished[at]));
        self.generators.pass(&self.region, &self.geometry, &finished, &passed);
        let shards: Vec<usize> = (0..dram::SHARDS).collect();
        match &self.index {
            Index::Dram(index) => {
                parallel::map(threads, &shards, |part| {
                    for &shard in part {
                        let slots = found.iter().flat_map(|(shards, _)| shards[shard].iter().copied()).collect();
                        index.build(shard, slots);
                    }
                });
            }
            Index::Pm(index) => index.begin_count(),
        }
        segments.iter().map(|segment| self.geometry.blocks_in_segment(*segment)).sum()
    }

    /// Reads the entries of a segment: its bits, and for the index a slot of each fingerprint. `finished`: the
    /// transactions that came to their end; `seen`: behind the last that there is.
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
                let (generator, sequence) = parts(entry.word().tx);
                let mut entry = *entry;
                // A decrease has the number of a transaction that has not begun, and is never taken back.
                let adds = matches!(entry.word().tag, tag::ADD | tag::INCREASE);
                if adds && sequence >= finished[generator as usize] {
                    seen[generator as usize] = seen[generator as usize].max(sequence + 1);
                    entry = self.take_back(block, entry, taken_back.get_or_insert_with(Flight::new));
                    if entry.is_empty() {
                        continue;
                    }
                }
                has_entry |= 1 << at;
                extra += u64::from(entry.count.saturating_sub(1));
                let is_found = |_: &u32| entry.is_whole() && entry.is_of(block) && self.index.dram().is_some();
                if let Some(weak) = entry.weak(self.weak).filter(is_found) {
                    let slot = dram::slot(weak, block);
                    shards[dram::shard_of(slot)].push(slot);
                }
            }
            self.adopt_word(word, has_entry);
        }
        if let Some(taken_back) = taken_back {
            let _ = self.region.fence(taken_back);
        }
        self.extra_references.fetch_add(extra, Ordering::Relaxed);
    }

    /// Takes back what an unfinished transaction did to an entry: an addition by null_entry, an increase by
    /// decrease_RC. What it took away stays away: the extents are gone. Returns the entry as it is then.
    fn take_back(&self, block: BlockNumber, entry: ChunkEntry, flight: &mut Flight) -> ChunkEntry {
        let offset = self.geometry.chunk_entry_offset(block);
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

    /// Which blocks of a segment have an entry, one bit each.
    pub fn entries_in(&self, segment: u64) -> [u64; WORDS_PER_SEGMENT] {
        if self.index.fact().is_none() {
            let word = |at| segment as usize * WORDS_PER_SEGMENT + at;
            return std::array::from_fn(|at| self.has_entry[word(at)].load(Ordering::Relaxed));
        }
        let mut bits = [0; WORDS_PER_SEGMENT];
        let first = segment * SEGMENT_BLOCKS;
        if self.may_have_entry(BlockNumber(first)) {
            for at in 0..self.geometry.blocks_in_segment(segment) {
                bits[(at / 64) as usize] |= u64::from(self.has_entry(BlockNumber(first + at))) << (at % 64);
            }
        }
        bits
    }

    /// Mount: takes saved bits and totals in; the index is loaded by itself.
    pub fn adopt_entries(&self, segment: u64, has_entry: &[u64]) {
        (segment * WORDS_PER_SEGMENT as u64..).zip(has_entry).for_each(|(word, bits)| self.adopt_word(word, *bits));
    }

    fn adopt_word(&self, word: u64, bits: u64) {
        if self.index.fact().is_none() {
            return self.has_entry[word as usize].store(bits, Ordering::Relaxed);
        }
        if bits != 0 {
            self.note_may_have_entry(BlockNumber(word * 64));
            self.tracked.fetch_add(u64::from(bits.count_ones()), Ordering::Relaxed);
        }
    }

    /// Mount: see [`Chunks::adopt_entries`].
    pub fn adopt_totals(&self, extra_references: u64) {
        self.extra_references.store(extra_references, Ordering::Relaxed);
    }

    /// Begins or ends counting anew.
    pub fn set_recount(&self, recount: Option<Recount>) {
        let mut current = self.recount.write();
        self.recounting.store(recount.is_some(), Ordering::Release);
        *current = recount;
    }

    /// What `of` says of the recount; `None` when there is none.
    pub fn with_recount<T>(&self, of: impl FnOnce(&Recount) -> T) -> Option<T> {
        if !self.recounting.load(Ordering::Acquire) {
            return None;
        }
        self.recount.read().as_ref().map(of)
    }

    /// A read-only mount: one more extent touches a block, whatever its entry says.
    pub fn note_extra_reference(&self) {
        self.extra_references.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a block has an entry: is tracked.
    pub fn has_entry(&self, block: BlockNumber) -> bool {
        if self.index.fact().is_none() {
            return self.has_entry[(block.0 / 64) as usize].load(Ordering::Relaxed) & (1 << (block.0 % 64)) != 0;
        }
        let count = || CountWord::decode(self.region.load_u128(self.geometry.chunk_entry_offset(block)));
        self.may_have_entry(block) && !count().is_empty()
    }

    /// pm index: whether any block of its segment has had an entry.
    fn may_have_entry(&self, block: BlockNumber) -> bool {
        let segment = block.0 / SEGMENT_BLOCKS;
        self.has_entry[(segment / 64) as usize].load(Ordering::Relaxed) & 1 << (segment % 64) != 0
    }

    fn note_may_have_entry(&self, block: BlockNumber) {
        let segment = block.0 / SEGMENT_BLOCKS;
        if !self.may_have_entry(block) {
            self.has_entry[(segment / 64) as usize].fetch_or(1 << (segment % 64), Ordering::Relaxed);
        }
    }

    /// Takes an entry that is gone out of bits and totals, and if it `loses` its fingerprint out of the index: durably,
    /// for what is written in its place leads nowhere.
    fn note_gone(&self, block: BlockNumber, entry: &ChunkEntry, loses: bool) {
        if !entry.is_empty() {
            self.note_no_entry(block);
        }
        self.extra_references.fetch_sub(u64::from(entry.count.saturating_sub(1)), Ordering::Relaxed);
        if let Some(weak) = entry.weak(self.weak).filter(|_| loses) {
            self.hide_by(weak, block);
        }
    }

    fn note_no_entry(&self, block: BlockNumber) {
        if self.index.fact().is_some() {
            self.tracked.fetch_sub(1, Ordering::Relaxed);
        } else {
            self.has_entry[(block.0 / 64) as usize].fetch_and(!(1 << (block.0 % 64)), Ordering::Relaxed);
        }
    }

    /// Takes an entry that came into bits and totals.
    fn note_entry(&self, block: BlockNumber, count: u32) {
        self.note_there(block);
        if self.index.fact().is_some() {
            self.tracked.fetch_add(1, Ordering::Relaxed);
        }
        if count > 1 {
            self.extra_references.fetch_add(u64::from(count) - 1, Ordering::Relaxed);
        }
    }

    /// Takes an entry that comes into the bits.
    fn note_there(&self, block: BlockNumber) {
        if self.index.fact().is_some() {
            self.note_may_have_entry(block);
        } else {
            self.has_entry[(block.0 / 64) as usize].fetch_or(1 << (block.0 % 64), Ordering::Relaxed);
        }
    }
}
