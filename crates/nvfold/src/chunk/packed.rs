//! Which entries of packed chunks are free.
//!
//! The problem: all threads take and free entries one by one, and the existing parts of the table may have no free
//! entry left.
//!
//! The idea: DRAM holds one used bit per entry. Entries are taken from the lowest part that has a free one, so a
//! shrinking table can give its last parts back; within a part they are taken round robin, so that all lines wear
//! evenly (DeEXT III-C). The entry itself says whether it counts. Its bit is set before the entry counts, and cleared
//! after its emptying is durable.

use super::entries::{ENTRIES_PER_SEGMENT, Entries, PACKED_END};
use crate::error::Result;
use crate::media::PackedNumber;
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::packed::PackedBytes;
use crate::media::segment::KIND_ENTRIES;
use crate::space::{Space, clear_segment};
use nvfold_sync::Sum;
use nvfold_sync::{Mutex, MutexGuard};
use pmem::Region;
use std::sync::Arc;

/// The number of words with the used bits of one part.
pub(crate) const WORDS_PER_PART: usize = ENTRIES_PER_SEGMENT as usize / 64;
const BITS_PER_PART: usize = ENTRIES_PER_SEGMENT as usize;

/// A packed chunk that is about to get its entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewPacked {
    /// The number of its entry.
    pub number: PackedNumber,
    /// Media address of its bytes.
    pub address: u64,
    /// Its content and stored lengths.
    pub bytes: PackedBytes,
    /// The class of the method that cut it, 1 to 15.
    pub class: u8,
}

/// The free entries of a device, and the totals of its packed chunks.
pub(crate) struct PackedEntries {
    entries: Arc<Entries>,
    used: Mutex<UsedEntries>,
    /// Bytes that sharing packed chunks saves.
    pub(super) saved_bytes: Sum,
    /// Bytes that compressing packed chunks saves; a shared chunk counts once.
    pub(super) compressed_away: Sum,
}

#[derive(Default)]
struct UsedEntries {
    /// Used bits of all parts, in order.
    words: Vec<u64>,
    count: u64,
    /// The first part that may have a free bit.
    part: usize,
    /// The bit of that part at which the next search begins.
    next: usize,
}

impl UsedEntries {
    /// Returns the first free bit of a part, searched from `next` on and then from the part's start.
    fn free_in(&self, part: usize) -> Option<usize> {
        let (start, end) = (part * BITS_PER_PART, (part + 1) * BITS_PER_PART);
        self.free_between(start + self.next, end).or_else(|| self.free_between(start, start + self.next))
    }

    fn free_between(&self, from: usize, end: usize) -> Option<usize> {
        let words = from / 64..end.div_ceil(64);
        let bit = words.into_iter().find_map(|at| {
            let taken = if at == from / 64 { (1u64 << (from % 64)) - 1 } else { 0 };
            let free = !(self.words[at] | taken);
            (free != 0).then(|| at * 64 + free.trailing_zeros() as usize)
        });
        bit.filter(|bit| *bit < end)
    }
}

impl PackedEntries {
    /// Makes a table with no entry in use.
    pub(crate) fn new(entries: Arc<Entries>) -> PackedEntries {
        let (saved_bytes, compressed_away) = (Sum::default(), Sum::default());
        PackedEntries { entries, used: Mutex::default(), saved_bytes, compressed_away }
    }

    /// Returns the number of packed chunks in use.
    pub(crate) fn count(&self) -> u64 {
        self.used.lock().count
    }

    /// Returns how many bytes sharing packed chunks saves.
    pub(crate) fn saved_bytes(&self) -> u64 {
        self.saved_bytes.get()
    }

    /// Returns how many bytes compressing packed chunks saves; a shared chunk counts once.
    pub(crate) fn compressed_away_bytes(&self) -> u64 {
        self.compressed_away.get()
    }

    /// Returns whether the entry of a packed chunk is in use or about to be.
    pub(crate) fn is_used(&self, PackedNumber(number): PackedNumber) -> bool {
        let used = self.used.lock();
        used.words.get(number as usize / 64).is_some_and(|word| word & 1 << (number % 64) != 0)
    }

    /// Takes a free entry, and adds a part to the table if there is none.
    ///
    /// # Errors
    /// `ENOSPC` if the table is full or no segment is free for a new part.
    pub(crate) fn take(&self, region: &Region, space: &Space) -> Result<PackedNumber> {
        let mut used = self.used.lock();
        loop {
            let part = used.part;
            if part * WORDS_PER_PART < used.words.len() {
                let Some(bit) = used.free_in(part) else {
                    (used.part, used.next) = (part + 1, 0);
                    continue;
                };
                let number = bit as u32;
                used.next = (bit + 1) % BITS_PER_PART;
                if number < PACKED_END {
                    used.words[bit / 64] |= 1 << (bit % 64);
                    let entry = self.entries.offset(PackedNumber(number).into());
                    // An entry in bad memory stays marked as used.
                    if region.check_writable(entry, ENTRY_BYTES).is_err() {
                        continue;
                    }
                    used.count += 1;
                    return Ok(PackedNumber(number));
                }
            }
            self.grow(region, space, &mut used)?;
        }
    }

    /// Frees an entry whose emptying is durable.
    pub(crate) fn free(&self, PackedNumber(number): PackedNumber) {
        let mut used = self.used.lock();
        let (at, bit) = (number as usize / 64, 1 << (number % 64));
        // A damaged saved state may have marked it as free.
        let Some(word) = used.words.get_mut(at).filter(|word| **word & bit != 0) else { return };
        *word &= !bit;
        used.count -= 1;
        let part = at / WORDS_PER_PART;
        if part < used.part {
            (used.part, used.next) = (part, 0);
        }
    }

    /// Adds a part to the table. Its empty entries are durable before the segment table refers to them.
    fn grow(&self, region: &Region, space: &Space, used: &mut MutexGuard<'_, UsedEntries>) -> Result<()> {
        let part = (used.words.len() / WORDS_PER_PART) as u32;
        if part >= self.entries.parts_max() {
            return Err(space.no_space_for_segment("pack"));
        }
        let segment = space.allocate_segment("pack")?;
        clear_segment(region, segment).inspect_err(|_| space.free_segment(segment))?;
        space.write_use(segment, KIND_ENTRIES, part);
        self.entries.set_part(part, Some(segment));
        let words = used.words.len() + WORDS_PER_PART;
        used.words.resize(words, 0);
        Ok(())
    }

    /// Gives back the last parts without entries in use. Returns how many it gave back.
    pub(crate) fn shrink(&self, space: &Space) -> usize {
        let mut used = self.used.lock();
        let mut given_back = 0;
        while let Some(last) = used.words.len().checked_sub(WORDS_PER_PART)
            && used.words[last..].iter().all(|word| *word == 0)
        {
            let part = (last / WORDS_PER_PART) as u32;
            let segment = self.entries.part(part).expect("a part that has bits");
            self.entries.set_part(part, None);
            used.words.truncate(last);
            used.part = used.part.min(last / WORDS_PER_PART);
            space.free_segment(segment);
            given_back += 1;
        }
        given_back
    }

    /// Returns the number of parts at the end of the table without entries in use: [`PackedEntries::shrink`] gives them
    /// back.
    pub(crate) fn empty_parts(&self) -> u64 {
        let used = self.used.lock();
        used.words.rchunks(WORDS_PER_PART).take_while(|part| part.iter().all(|word| *word == 0)).count() as u64
    }

    /// Returns the number of entries in the existing parts, free ones included.
    pub(crate) fn entries_end(&self) -> u64 {
        self.used.lock().words.len() as u64 * 64
    }

    /// Iterates over the entries in use.
    pub(crate) fn used(&self) -> impl Iterator<Item = PackedNumber> {
        let words = self.used_words();
        let bits = |(at, word): (usize, u64)| {
            (0..64).filter(move |bit| word & 1 << bit != 0).map(move |bit| at as u32 * 64 + bit)
        };
        words.into_iter().enumerate().flat_map(bits).map(PackedNumber)
    }

    /// Returns the used bits of all parts, in order.
    pub(crate) fn used_words(&self) -> Vec<u64> {
        self.used.lock().words.clone()
    }

    /// Sets the used bits of the existing parts; for the mount.
    pub(crate) fn adopt(&self, words: Vec<u64>) {
        let mut used = self.used.lock();
        used.count = words.iter().map(|word| u64::from(word.count_ones())).sum();
        (used.words, used.part, used.next) = (words, 0, 0);
    }

    /// Adds a packed chunk of this length to the bytes that compression saves.
    pub(crate) fn record_compressed(&self, bytes: PackedBytes) {
        self.compressed_away.add(bytes.saved());
    }

    /// Sets both totals from the saved state; for the mount.
    pub(crate) fn adopt_saved_bytes(&self, shared: u64, compressed_away: u64) {
        self.saved_bytes.set(shared);
        self.compressed_away.set(compressed_away);
    }
}
