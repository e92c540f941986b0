//! Keys: the weak fingerprints by which a device's index is searched, and `sample`, which need not read a whole block.
//!
//! The problem: a weak fingerprint reads the block, and the copy to its place reads it again. On memory the first reading
//! takes as long as the copy, although most blocks of most workloads are new.
//!
//! The idea: bytes are compared before anything is shared, so a weak fingerprint only has to find candidates. The *first
//! key* of a block is the fingerprint of eight of its 64 lines. Most new blocks have no candidate by it, and their other
//! lines are read once, by the copy. Versions of a block that differ in other lines have the same first key; so a search
//! looks at [`FIRST_KEY_MAX`] candidates at most, and then goes by the *second key*, the fingerprint of the whole block:
//!
//! ```text
//! search   first key: up to 4 candidates, bytes compared     one differed: second key, all candidates
//! enter    by the first key, or by the second if 4 others have the first
//! ```
//!
//! So one block costs at most four compares and one whole fingerprint, whatever the data. A block that was entered by its
//! second key is missed only while no other block has its first key, that is, when all four have been freed since; the
//! next copy of it is then entered by the first.
//!
//! The lines are those of the device: the first and the last, where pages of databases keep what changes in every version,
//! and six others, chosen by the device's UUID. Which of the two keys an entry has is not recorded.

use super::{Domain, StrongFunction, WeakFunction, weak};
use smallvec::SmallVec;

/// The most candidates that a search by a first key looks at.
pub(crate) const FIRST_KEY_MAX: usize = 4;

/// A block, in bytes. Pieces of another length have one key.
const BLOCK: usize = 4096;
const LINE: usize = 64;
const LINES_OF_BLOCK: usize = BLOCK / LINE;
/// The lines that a first key reads.
const LINES: usize = 8;

/// The lines of a block that the first keys of a device read, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SampledLines([u8; LINES]);

impl SampledLines {
    /// Returns the lines of the device with this UUID.
    fn of_device(uuid: &[u8; 16]) -> SampledLines {
        let random = StrongFunction::Blake3.of(uuid);
        let mut others: [u8; LINES_OF_BLOCK - 2] = std::array::from_fn(|at| at as u8 + 1);
        let mut lines = [0; LINES];
        for (at, random) in random.as_chunks::<2>().0.iter().take(LINES - 2).enumerate() {
            let left = others.len() - at;
            others.swap(at, at + usize::from(u16::from_le_bytes(*random)) % left);
            lines[at + 1] = others[at];
        }
        lines[LINES - 1] = LINES_OF_BLOCK as u8 - 1;
        lines.sort_unstable();
        SampledLines(lines)
    }

    /// Returns the fingerprint of these lines of a block.
    #[inline]
    fn key(&self, block: &[u8]) -> u32 {
        let lines = block.as_chunks::<LINE>().0;
        let mut read = [0; LINES * LINE];
        for (to, line) in read.as_chunks_mut::<LINE>().0.iter_mut().zip(self.0) {
            *to = lines[usize::from(line)];
        }
        weak(&read)
    }
}

/// The keys of a device: see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    function: WeakFunction,
    /// What the first keys of blocks read, if blocks have two keys.
    sampled: Option<SampledLines>,
}

impl From<WeakFunction> for Keys {
    /// Returns the keys of a device of which every piece has one key.
    fn from(function: WeakFunction) -> Keys {
        Keys { function, sampled: None }
    }
}

impl Keys {
    /// Returns the keys that this function makes on the device with this UUID.
    pub(crate) fn of_device(function: WeakFunction, uuid: &[u8; 16]) -> Keys {
        let sampled = (function == WeakFunction::Sample).then(|| SampledLines::of_device(uuid));
        Keys { function, sampled }
    }

    /// Returns the function, for entries of the chunk table.
    #[inline]
    pub(crate) fn function(&self) -> WeakFunction {
        self.function
    }

    /// Returns what the first key of a piece reads, if the piece has a second one.
    #[inline]
    fn sampled(&self, piece: &[u8]) -> Option<SampledLines> {
        self.sampled.filter(|_| piece.len() == BLOCK)
    }

    /// Prefetches what the first key of a block reads.
    #[inline]
    pub(crate) fn prefetch(&self, block: &[u8]) {
        let address = block.as_ptr() as usize;
        match self.sampled(block) {
            Some(SampledLines(lines)) => {
                lines.into_iter().for_each(|line| pmem::prefetch(address + usize::from(line) * LINE))
            }
            None => pmem::prefetch_lines(address, block.len()),
        }
    }

    /// True if first keys do not read the whole of a block.
    #[inline]
    pub(crate) fn are_sampled(&self) -> bool {
        self.sampled.is_some()
    }

    /// Returns the key by which a piece is looked for first.
    #[inline]
    pub(crate) fn first(&self, piece: &[u8]) -> u32 {
        self.sampled(piece).map_or_else(|| self.function.of(piece), |lines| lines.key(piece))
    }

    /// Returns the second key of a piece, if it has two.
    pub(crate) fn second(&self, piece: &[u8]) -> Option<u32> {
        self.sampled(piece).map(|_| self.function.of(piece))
    }

    /// Returns all keys of a piece, the first one first.
    pub(crate) fn all(&self, piece: &[u8]) -> SmallVec<[u32; 2]> {
        self.all_in(Domain::ALL, piece)
    }

    /// Returns all keys that a piece has in a domain, the first one first.
    pub(crate) fn all_in(&self, domain: Domain, piece: &[u8]) -> SmallVec<[u32; 2]> {
        [self.first(piece)].into_iter().chain(self.second(piece)).map(|key| domain.salted(key)).collect()
    }

    /// Returns the most candidates that a search by a first key looks at.
    #[inline]
    pub(crate) fn first_key_max(&self) -> usize {
        if self.are_sampled() { FIRST_KEY_MAX } else { usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn block() -> Vec<u8> {
        (0..BLOCK as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn sampled_keys_in_the_media_format_never_change() {
        let uuid = *b"0123456789abcdef";
        let lines = SampledLines::of_device(&uuid);
        assert_eq!(lines, SampledLines([0, 5, 10, 24, 33, 36, 45, 63]));
        let keys = Keys::of_device(WeakFunction::Sample, &uuid);
        // Computed by other implementations of XXH3 and BLAKE3, by the description in docs/media-format.md.
        assert_eq!((keys.first(&block()), keys.second(&block())), (0x426e_8844, Some(0x664c_8217)));
    }

    #[test]
    fn every_device_reads_eight_lines_the_first_and_the_last_among_them() {
        let mut all = HashSet::new();
        for device in 0..1000u128 {
            let SampledLines(lines) = SampledLines::of_device(&device.to_le_bytes());
            assert!(lines.is_sorted_by(|one, next| one < next), "{lines:?}");
            assert_eq!((lines[0], lines[LINES - 1]), (0, 63));
            all.insert(lines);
        }
        assert!(all.len() > 990, "{} devices of 1000 read other lines", all.len());
    }

    #[test]
    fn a_change_in_a_line_that_is_not_read_changes_the_second_key_alone() {
        let keys = Keys::of_device(WeakFunction::Sample, &[7; 16]);
        let read = keys.sampled.unwrap().0;
        let whole = block();
        for line in 0..LINES_OF_BLOCK {
            let mut changed = whole.clone();
            changed[line * LINE + 17] ^= 1;
            assert_ne!(keys.second(&changed), keys.second(&whole), "line {line}");
            assert_eq!(keys.first(&changed) != keys.first(&whole), read.contains(&(line as u8)), "line {line}");
        }
    }

    #[test]
    fn pieces_of_other_lengths_and_other_functions_have_one_key() {
        let sampled = Keys::of_device(WeakFunction::Sample, &[7; 16]);
        for length in [0, 1, 4095, 4097, 16384] {
            let piece = vec![3; length];
            assert_eq!(sampled.all(&piece)[..], [weak(&piece)], "{length} bytes");
        }
        let whole = Keys::of_device(WeakFunction::Xxh3, &[7; 16]);
        assert_eq!(whole, Keys::from(WeakFunction::Xxh3));
        assert_eq!(whole.all(&block())[..], [weak(&block())]);
        assert!(sampled.are_sampled() && !whole.are_sampled());
    }
}
