//! Anchors: finding copies of lately read or written bytes by samples of their content.
//!
//! The problem: a program that is not followed copies bytes from file to file (`cat a b > c`, an editor that saves),
//! and no record shows it. Looking up each byte would cost more than it saves.
//!
//! The idea: sample the data where its own content says so, about once per KiB. Where a sum of four bytes is one of
//! 64 numbers, the 64 bytes from there on are an **anchor**. Equal bytes have equal anchors wherever they are. So a
//! write that contains a known anchor was probably copied from the anchor's file, and probably around the anchor,
//! too. That is a hint, like a record of the rec-tree: the bytes are compared, to the byte, before anything is shared.
//!
//! ```text
//! read of a     ....x.........x..........x....x......      x: anchors, noted with file and offset
//! write of c         ..x..........x....x.....|....x...     found: two stretches, each as far as the other one begins
//! origins of c       [------- a at 4 --------]
//!                                        [-- b at 9 --]    they overlap: the compare finds which byte is whose
//! ```
//!
//! **Continuing a copy.** A write of a few hundred bytes may contain no anchor. If it begins where the last write
//! ended and that one was a copy, its bytes probably continue the copy. So the end of the last copy is kept for a few
//! files.
//!
//! **Bounds.** The table has [`SLOTS`] anchors, about twice the anchors of 64 MiB. The hash of an anchor gives its
//! slot, and a new anchor replaces the old one. The table is created with the first anchor.
//!
//! **Whether it pays.** Looking takes time, and storing what could have been shared takes time and space. Both are
//! measured: the time for looking at 64 MiB that were read or written, and the time for storing those that were not
//! found. If storing the found bytes would have taken less than an eighth of the looks, then [`REST_BYTES`] pass
//! without a look. The factor of eight stands for the space that a shared byte saves and the wear of the medium.
//! Where a look takes half as long as a write, as in DRAM, looking stops when less than a sixteenth is found; on a
//! slower medium less suffices. (Copied data is read first and written later, when the kernel writes it back. A
//! shorter trial would often see only one of the two.)

use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicU64, Ordering};
use std::ops::Range;
use std::time::{Duration, Instant};

/// The largest number of known anchors, of 24 bytes each.
pub const SLOTS: usize = 1 << 17;
/// Length of an anchor in bytes.
const WINDOW: usize = 64;
/// Number of bits that are fixed in the sum of an anchor's first four bytes.
const MARKED_BITS: u32 = 10;
/// Number of positions that are examined together.
const AT_ONCE: usize = 64;
/// The least distance of two anchors in bytes. Without it, repeated bytes would have an anchor at each position.
const APART: usize = 128;
/// Number of files whose last copy is remembered.
const TAILS: usize = 64;
/// Length of a trial in bytes, after which it is decided whether to continue.
const TRIAL_BYTES: u64 = 64 << 20;
/// Value of a shared byte, in multiples of the time for storing it.
const FOUND_IS_WORTH: u64 = 8;
/// Number of bytes that pass without a look when too little was found.
pub const REST_BYTES: u64 = 192 << 20;

/// A file that was read or written. The numbers are the caller's: an inode and its generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampledFile {
    /// Inode number.
    pub ino: u64,
    /// Generation of the inode number.
    pub generation: u32,
}

/// A range of a write that was probably copied from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Offset of the first byte from the beginning of the write.
    pub at: u64,
    /// Number of bytes.
    pub length: u64,
    /// The file that it was copied from.
    pub source: SampledFile,
    /// Offset of the first byte in that file.
    pub source_offset: u64,
}

/// The anchors of some bytes.
#[derive(Clone, Debug, Default)]
pub struct Sampled {
    /// Number of bytes that were looked at; 0 if looking does not pay at present.
    bytes: u64,
    /// End of the window and hash of each anchor.
    anchors: Vec<(u32, u64)>,
}

#[derive(Clone, Copy, Default)]
struct AnchorSlot {
    hash: u32,
    generation: u32,
    ino: u64,
    /// File offset of the end of the window.
    offset: u64,
}

/// The end of the last copy to a file, in the file and in its source.
#[derive(Clone, Copy, Default)]
struct CopyTail {
    target: u64,
    end: u64,
    source: SampledFile,
    source_end: u64,
}

/// The anchors of a mount; see the module.
#[derive(Default)]
pub struct Anchors {
    slots: Mutex<Vec<AnchorSlot>>,
    tails: Mutex<Vec<CopyTail>>,
    worth: Worth,
}

/// Measures whether a look is worth its time.
#[derive(Default)]
struct Worth {
    /// Bytes that were looked at, and the time that took.
    looked_at: AtomicU64,
    look_ns: AtomicU64,
    /// Bytes that were found.
    found: AtomicU64,
    /// Bytes that were looked at and not found, and the time for storing them.
    stored: AtomicU64,
    store_ns: AtomicU64,
    /// Number of bytes that will still pass without a look.
    rest: AtomicU64,
}

impl Anchors {
    /// Returns the anchors of bytes that were read or are about to be written; none while looking does not pay.
    pub fn sample(&self, bytes: &[u8]) -> Sampled {
        if !self.worth.should_look(bytes.len() as u64) {
            return Sampled::default();
        }
        Sampled { bytes: bytes.len() as u64, anchors: self.worth.measure_lookup(|| anchors_of(bytes)) }
    }

    /// Records that a file contains the sampled bytes, from an offset on.
    pub fn note(&self, sampled: &Sampled, place: SampledFile, offset: u64) {
        if sampled.anchors.is_empty() {
            return;
        }
        self.worth.measure_lookup(|| {
            let mut slots = self.slots.lock();
            if slots.is_empty() {
                slots.resize(SLOTS, AnchorSlot::default());
            }
            for (end, hash) in &sampled.anchors {
                let SampledFile { ino, generation } = place;
                let offset = offset.saturating_add((*end).into());
                slots[slot_of(*hash)] = AnchorSlot { hash: *hash as u32, generation, ino, offset };
            }
        });
    }

    /// Finds from where sampled bytes that are written to a file at an offset were probably copied. Returns stretches
    /// in order. Each reaches as far as its neighbours' anchors permit, so two of them may overlap.
    pub fn find(&self, sampled: &Sampled, target: SampledFile, offset: u64) -> Vec<Stretch> {
        if sampled.bytes == 0 {
            return Vec::new();
        }
        self.worth.measure_lookup(|| stretches(&self.runs(sampled, target, offset), sampled.bytes))
    }

    fn runs(&self, sampled: &Sampled, target: SampledFile, offset: u64) -> Vec<AnchorRun> {
        let mut runs: Vec<AnchorRun> = self.run_that_goes_on(target, offset).into_iter().collect();
        let slots = self.slots.lock();
        if !slots.is_empty() {
            for (end, hash) in &sampled.anchors {
                let slot = slots[slot_of(*hash)];
                if slot.hash == *hash as u32 && slot.ino != 0 {
                    AnchorRun::add(&mut runs, *end, &slot);
                }
            }
        }
        runs
    }

    /// Records the result for a write: `equal_bytes` of the sampled bytes were equal to one of the stretches; `last`
    /// is the last of them. If none were, `took` is the time for storing the bytes.
    pub fn looked_up(
        &self,
        sampled: &Sampled,
        target: SampledFile,
        offset: u64,
        last: Option<&Stretch>,
        equal_bytes: u64,
        took: Duration,
    ) {
        if sampled.bytes == 0 {
            return;
        }
        if equal_bytes > 0 {
            self.worth.found.fetch_add(equal_bytes, Ordering::Relaxed);
        } else {
            self.worth.stored.fetch_add(sampled.bytes, Ordering::Relaxed);
            add_time(&self.worth.store_ns, took);
        }
        let mut tails = self.tails.lock();
        if tails.is_empty() {
            tails.resize(TAILS, CopyTail::default());
        }
        let tail = last.filter(|_| equal_bytes > 0).map(|last| CopyTail {
            target: target.ino,
            end: offset.saturating_add(last.at + last.length),
            source: last.source,
            source_end: last.source_offset.saturating_add(last.length),
        });
        tails[target.ino as usize % TAILS] = tail.unwrap_or_default();
    }

    /// Returns an empty run that continues the last copy, if this place does.
    fn run_that_goes_on(&self, target: SampledFile, offset: u64) -> Option<AnchorRun> {
        let tails = self.tails.lock();
        let tail = tails.get(target.ino as usize % TAILS)?;
        let goes_on = tail.target == target.ino && tail.end == offset && tail.source.ino != 0;
        goes_on.then_some(AnchorRun { place: tail.source, start: 0, end: 0, source_end: tail.source_end })
    }
}

impl Worth {
    /// True if `bytes` bytes should be looked up, false if they pass without a look-up. With concurrent threads the
    /// number of bytes that pass is approximate.
    fn should_look(&self, bytes: u64) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        if rest > 0 {
            self.rest.store(rest.saturating_sub(bytes), Ordering::Relaxed);
            return false;
        }
        let looked_at = self.looked_at.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if looked_at >= TRIAL_BYTES && !self.is_trial_worthwhile() {
            self.rest.store(REST_BYTES, Ordering::Relaxed);
        }
        true
    }

    /// Ends a trial and returns whether looking pays. If everything was found, the time for storing is unknown and
    /// not needed.
    fn is_trial_worthwhile(&self) -> bool {
        self.looked_at.store(0, Ordering::Relaxed);
        let [look_ns, found, stored, store_ns] = [&self.look_ns, &self.found, &self.stored, &self.store_ns]
            .map(|counter| u128::from(counter.swap(0, Ordering::Relaxed)));
        found > 0 && found * store_ns * u128::from(FOUND_IS_WORTH) >= look_ns * stored
    }

    fn measure_lookup<T>(&self, look: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let seen = look();
        add_time(&self.look_ns, began.elapsed());
        seen
    }
}

fn add_time(counter: &AtomicU64, took: Duration) {
    counter.fetch_add(took.as_nanos().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Consecutive anchors at the same distance in the write and in a file.
struct AnchorRun {
    place: SampledFile,
    /// Beginning of the first anchor's window and end of the last one's, in the write.
    start: u64,
    end: u64,
    /// End of the last anchor's window in the file.
    source_end: u64,
}

impl AnchorRun {
    fn add(runs: &mut Vec<AnchorRun>, end: u32, slot: &AnchorSlot) {
        let (end, source_end) = (u64::from(end), slot.offset);
        let place = SampledFile { ino: slot.ino, generation: slot.generation };
        match runs.last_mut() {
            Some(last) if last.place == place && source_end.checked_sub(last.source_end) == Some(end - last.end) => {
                (last.end, last.source_end) = (end, source_end);
            }
            _ if source_end >= WINDOW as u64 => {
                runs.push(AnchorRun { place, start: end - WINDOW as u64, end, source_end });
            }
            _ => {}
        }
    }
}

fn stretches(runs: &[AnchorRun], bytes: u64) -> Vec<Stretch> {
    let stretch = |(number, run): (usize, &AnchorRun)| {
        let before = number.checked_sub(1).map_or(0, |before| runs[before].end);
        let behind = runs.get(number + 1).map_or(bytes, |behind| behind.start);
        // A stretch cannot begin before the first byte of the file.
        let start = before.min(run.start).max(run.end.saturating_sub(run.source_end));
        let source_offset = run.source_end - (run.end - start);
        Stretch { at: start, length: behind.max(run.end) - start, source: run.place, source_offset }
    };
    runs.iter().enumerate().map(stretch).collect()
}

/// Returns where each anchor ends, and its hash.
fn anchors_of(bytes: &[u8]) -> Vec<(u32, u64)> {
    let mut found = Vec::new();
    let mut next = 0;
    let starts = bytes.len().saturating_sub(WINDOW - 1);
    for first in (0..starts).step_by(AT_ONCE) {
        // One group in sixteen has an anchor, so the others are skipped as a whole, with vector instructions.
        let Some(together) = bytes[first..].first_chunk() else {
            find_one_by_one(bytes, first..starts, &mut next, &mut found);
            break;
        };
        if any_is_marked(together) {
            find_one_by_one(bytes, first..starts.min(first + AT_ONCE), &mut next, &mut found);
        }
    }
    found
}

fn find_one_by_one(bytes: &[u8], starts: Range<usize>, next: &mut usize, found: &mut Vec<(u32, u64)>) {
    for start in starts {
        let window: &[u8; WINDOW] = bytes[start..].first_chunk().expect("a window fits from each start on");
        if start >= *next && is_marked(window[0], window[1], window[2], window[3]) {
            found.push(((start + WINDOW) as u32, hash_of(window)));
            *next = start + APART;
        }
    }
}

/// True if a window that begins with these bytes is an anchor. One window in 1,024 is.
#[inline]
fn is_marked(a: u8, b: u8, c: u8, d: u8) -> bool {
    let sum = [(a, 0x9e35), (b, 0x85eb), (c, 0xc2b1), (d, 0x27d5)]
        .iter()
        .fold(0u16, |sum, (byte, factor)| sum.wrapping_add(u16::from(*byte).wrapping_mul(*factor)));
    // The offset excludes zero bytes, which are often numerous.
    sum.wrapping_sub(0x5a5a) < 1 << (u16::BITS - MARKED_BITS)
}

/// True if one of [`AT_ONCE`] windows, at consecutive positions, is an anchor.
#[inline]
fn any_is_marked(bytes: &[u8; AT_ONCE + 3]) -> bool {
    (0..AT_ONCE).fold(false, |any, at| any | is_marked(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]))
}

fn hash_of(window: &[u8; WINDOW]) -> u64 {
    let words = window.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let hash = words.fold(0, |hash: u64, word| (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    hash ^ hash >> 29
}

fn slot_of(hash: u64) -> usize {
    (hash >> 32) as usize % SLOTS
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const A: SampledFile = SampledFile { ino: 1, generation: 1 };
    const B: SampledFile = SampledFile { ino: 2, generation: 1 };
    const C: SampledFile = SampledFile { ino: 3, generation: 1 };

    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed << 1 | 1;
        let byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        std::iter::repeat_with(byte).take(length).collect()
    }

    fn note(anchors: &Anchors, bytes: &[u8], place: SampledFile, offset: u64) {
        anchors.note(&anchors.sample(bytes), place, offset);
    }

    fn find(anchors: &Anchors, bytes: &[u8]) -> Vec<Stretch> {
        anchors.find(&anchors.sample(bytes), C, 0)
    }

    #[test]
    fn anchors_find_copied_bytes_at_any_offset() {
        let anchors = Anchors::default();
        let bytes = noise(100_000, 1);
        note(&anchors, &bytes, A, 1 << 30);
        let written = [&noise(777, 2)[..], &bytes[5_000..90_001]].concat();
        let found = find(&anchors, &written);
        assert_eq!(found.len(), 1, "{found:?}");
        let Stretch { at, length, source, source_offset } = found[0];
        assert_eq!((source, source_offset + 777), (A, (1 << 30) + 5_000 + at), "the same distance");
        assert_eq!((at, at + length), (0, written.len() as u64), "as far as it may go");
    }

    #[test]
    fn origins_of_two_adjacent_files_overlap_up_to_each_others_anchors() {
        let anchors = Anchors::default();
        let (a, b) = (noise(50_000, 3), noise(50_000, 4));
        note(&anchors, &a, A, 0);
        note(&anchors, &b, B, 0);
        let found = find(&anchors, &[&a[..30_000], &b[..]].concat());
        assert_eq!(found.iter().map(|found| found.source).collect::<Vec<_>>(), [A, B]);
        assert!(found[0].at + found[0].length >= 30_000 && found[0].length < 35_000, "{found:?}");
        // A stretch of b cannot begin before its first byte.
        assert_eq!((found[1].at, found[1].source_offset, found[1].length), (30_000, 0, 50_000), "{found:?}");
    }

    #[test]
    fn a_short_write_continues_the_origin_of_the_previous_write() {
        let anchors = Anchors::default();
        let bytes = noise(100_000, 12);
        note(&anchors, &bytes, A, 0);
        let mut found_bytes = 0;
        for at in (0..100_000).step_by(100) {
            let (offset, part) = (at as u64 + 7, &bytes[at..at + 100]);
            let sampled = anchors.sample(part);
            let found = anchors.find(&sampled, C, offset);
            let length = found.iter().map(|found| found.length).sum::<u64>();
            assert!(found.iter().all(|found| found.source_offset + 7 == offset + found.at), "{found:?}");
            anchors.looked_up(&sampled, C, offset, found.last(), length, Duration::ZERO);
            found_bytes += length;
        }
        assert!(found_bytes > 90_000, "{found_bytes}: all from the first anchor on");
        assert_eq!(anchors.find(&anchors.sample(&bytes[..100]), C, 50), [], "it goes on nowhere");
        assert_eq!(anchors.find(&anchors.sample(&bytes[..100]), B, 100_007), [], "another file");
    }

    #[test]
    fn anchors_find_nothing_in_new_data() {
        let anchors = Anchors::default();
        assert_eq!(find(&anchors, &noise(100_000, 5)), []);
        note(&anchors, &noise(100_000, 6), A, 0);
        assert_eq!(find(&anchors, &noise(100_000, 7)), []);
        for short in [&[][..], &[0; 63]] {
            note(&anchors, short, A, 0);
            assert_eq!(find(&anchors, short), []);
        }
    }

    #[test]
    fn the_newest_place_of_an_anchor_wins() {
        let anchors = Anchors::default();
        let bytes = noise(20_000, 8);
        note(&anchors, &bytes, A, 0);
        note(&anchors, &bytes, B, 64);
        assert_eq!(find(&anchors, &bytes), [Stretch { at: 0, length: 20_000, source: B, source_offset: 64 }]);
    }

    #[test]
    fn anchors_of_repeating_bytes_keep_their_distance() {
        for byte in 0..=255 {
            let anchors = anchors_of(&[byte; 10_000]);
            assert!(anchors.len() <= 10_000 / APART + 1, "{byte}: {}", anchors.len());
        }
        // Random bytes have one per KiB.
        let anchors = anchors_of(&noise(10 << 20, 9)).len();
        assert!((8_000..11_000).contains(&anchors), "{anchors}");
    }

    #[test]
    fn the_anchor_table_has_a_fixed_size_and_keeps_the_newest_anchors() {
        let anchors = Anchors::default();
        let parts: Vec<Vec<u8>> = (0..63).map(|part| noise(1 << 20, 100 + part)).collect();
        for (number, part) in parts.iter().enumerate() {
            note(&anchors, part, SampledFile { ino: 1 + number as u64, generation: 0 }, 0);
        }
        let length = |part: &[u8]| find(&anchors, part).iter().map(|found| found.length).sum::<u64>();
        assert_eq!(anchors.slots.lock().len(), SLOTS);
        assert!(length(&parts[0]) > 1_000_000, "62 MiB ago");
    }

    #[test]
    fn sampling_without_finds_pauses_and_resumes_later() {
        let anchors = Anchors::default();
        let mebibyte = noise(1 << 20, 10);
        let write = |found| {
            let sampled = anchors.sample(&mebibyte);
            anchors.looked_up(&sampled, C, 0, None, found, Duration::from_millis(1));
            sampled.bytes > 0
        };
        assert!((0..200).all(|_| write(1 << 20)), "it finds all");
        let (looks, rests): (Vec<_>, Vec<_>) = (0..1000).map(|_| write(0)).partition(|looks| *looks);
        let share = looks.len() as f64 / (looks.len() + rests.len()) as f64;
        assert!((0.2..0.4).contains(&share), "it finds nothing, and looks at {share}");
        assert!((0..300).any(|_| write(1 << 20)), "it looks again");
        assert!((0..300).all(|_| write(1 << 20)), "and goes on");
    }

    #[test]
    fn sampling_continues_if_its_finds_save_an_eighth_of_its_time() {
        let trial = |found: u64, store_ns_a_kibibyte: u64| {
            let worth = Worth::default();
            let stored = TRIAL_BYTES / 2 - found;
            worth.found.store(found, Ordering::Relaxed);
            worth.stored.store(stored, Ordering::Relaxed);
            worth.store_ns.store(stored / 1024 * store_ns_a_kibibyte, Ordering::Relaxed);
            // A look takes 50 ns per KiB, for bytes that are read and for bytes that are written.
            worth.look_ns.store(TRIAL_BYTES / 1024 * 50, Ordering::Relaxed);
            worth.is_trial_worthwhile()
        };
        let mebibyte = 1 << 20;
        assert_eq!((trial(4 * mebibyte, 100), trial(3 * mebibyte, 100)), (true, false), "a sixteenth, in DRAM");
        assert_eq!((trial(mebibyte, 400), trial(mebibyte / 2, 400)), (true, false), "less on what is slower");
        assert_eq!((trial(31 * mebibyte, 10), trial(0, u64::from(u32::MAX))), (false, false));
        assert!(trial(TRIAL_BYTES / 2, 0), "all was found");
    }
}
