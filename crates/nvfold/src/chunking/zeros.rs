//! Runs of zeros in data, which files keep as holes.
//!
//! The problem: all data is searched for zeros before it is stored, and most data has none. The search must cost next to
//! nothing there.
//!
//! The idea: data other than zeros mostly differs from zero in the first word that is looked at. So a block is given up
//! after its first word ([`may_have_zero_block`]), and a run at any offset is looked for at every 2 KiB only ([`zero_runs`]): a
//! run of 4 KiB contains one of these places. Where the word is zero, the rest is compared 256 bytes at a time, in a
//! form that the compiler turns into vector instructions.
//!
//! ```text
//! blocks  |x              |0000000000000000|0000 x          |    one word decides; all of it is zero; not all of it is
//! runs    |x      |0      |0      |0      |x      |              a place every 2 KiB, then where the run begins and ends
//! ```

use super::FIXED_BYTES;
use smallvec::SmallVec;
use std::ops::Range;

/// The fewest zeros in a row that become a hole in data that is not stored in blocks.
pub(super) const RUN_BYTES_MIN: usize = FIXED_BYTES;
/// Distance between the places where a run is looked for.
const STEP: usize = RUN_BYTES_MIN / 2;
/// Number of bytes that are compared before one branch.
const GROUP: usize = 256;
/// Number of blocks whose first words are looked at in one loop.
const BLOCKS: usize = 8;
const WORD: usize = size_of::<u64>();

/// Ranges of data that are zeros, in order. No two of them meet.
pub(crate) type ZeroRanges = SmallVec<[Range<usize>; 1]>;

/// True if a 4 KiB block of `data` may be zeros: its first word is. Blocks begin at the first byte; what follows the last
/// whole block is not looked at.
#[inline]
pub(crate) fn may_have_zero_block(data: &[u8]) -> bool {
    let begins_with_zero = |block: &[u8]| word(block, 0) == Some(0);
    let (groups, rest) = data.as_chunks::<{ BLOCKS * FIXED_BYTES }>();
    groups.iter().any(|group| (0..BLOCKS).any(|block| begins_with_zero(&group[block * FIXED_BYTES..])))
        || rest.as_chunks::<FIXED_BYTES>().0.iter().any(|block| begins_with_zero(block))
}

/// Returns the ranges of `data` that consist of 4 KiB blocks of zeros. Blocks begin at the first byte.
pub(crate) fn zero_blocks(data: &[u8]) -> ZeroRanges {
    let mut zeros = ZeroRanges::new();
    for (at, block) in data.as_chunks::<FIXED_BYTES>().0.iter().enumerate() {
        if !is_zero(block) {
            continue;
        }
        let start = at * FIXED_BYTES;
        match zeros.last_mut() {
            Some(last) if last.end == start => last.end += FIXED_BYTES,
            _ => zeros.push(start..start + FIXED_BYTES),
        }
    }
    zeros
}

/// Returns the runs of at least [`RUN_BYTES_MIN`] zeros in `data`, wherever they begin. `before` is the number of zeros
/// directly before it, which count for a run at its beginning.
pub(crate) fn zero_runs(data: &[u8], before: usize) -> ZeroRanges {
    let mut zeros = ZeroRanges::new();
    // The end of the last run that was looked at, and the place to look at next.
    let (mut end, mut place) = (0, 0);
    while let Some(word) = word(data, place) {
        if word != 0 {
            place += STEP;
            continue;
        }
        let start = place - trailing_zeros(&data[end..place]);
        end = place + leading_zeros(&data[place..]);
        let length = end - start + if start == 0 { before } else { 0 };
        if length >= RUN_BYTES_MIN {
            zeros.push(start..end);
        }
        place = end.next_multiple_of(STEP);
    }
    zeros
}

/// True if all bytes are zero.
#[inline]
pub fn is_zero(bytes: &[u8]) -> bool {
    word(bytes, 0).is_none_or(|word| word == 0) && leading_zeros(bytes) == bytes.len()
}

/// Returns the number of zeros with which `bytes` begin.
pub(super) fn leading_zeros(bytes: &[u8]) -> usize {
    let (groups, _) = bytes.as_chunks::<GROUP>();
    let whole = groups.iter().take_while(|group| is_group_zero(group)).count() * GROUP;
    whole + bytes[whole..].iter().take_while(|byte| **byte == 0).count()
}

/// Returns the number of zeros with which `bytes` end.
pub(crate) fn trailing_zeros(bytes: &[u8]) -> usize {
    let (_, groups) = bytes.as_rchunks::<GROUP>();
    let whole = groups.iter().rev().take_while(|group| is_group_zero(group)).count() * GROUP;
    whole + bytes[..bytes.len() - whole].iter().rev().take_while(|byte| **byte == 0).count()
}

#[inline]
fn is_group_zero(group: &[u8; GROUP]) -> bool {
    let words = group.as_chunks::<WORD>().0.iter();
    words.fold(0, |all, word| all | u64::from_ne_bytes(*word)) == 0
}

/// Returns the word at an offset, if there is a whole one.
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
// Lists of ranges, some of which have one.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::super::tests::noise;
    use super::*;

    /// Noise without a zero, in which these ranges are zeros.
    fn data(bytes: usize, zeros: &[Range<usize>]) -> Vec<u8> {
        let mut data: Vec<u8> = noise(bytes, 1).iter().map(|byte| byte | 1).collect();
        zeros.iter().for_each(|range| data[range.clone()].fill(0));
        data
    }

    fn list(zeros: ZeroRanges) -> Vec<Range<usize>> {
        zeros.into_vec()
    }

    #[test]
    fn blocks_of_zeros_are_found_in_requests_of_any_length() {
        const B: usize = FIXED_BYTES;
        for blocks in 0..20 {
            for first in 0..blocks {
                for end in first + 1..=blocks {
                    let expected = first * B..end * B;
                    let data = data(blocks * B + 100, std::slice::from_ref(&expected));
                    assert!(may_have_zero_block(&data), "{expected:?} of {blocks} blocks");
                    assert_eq!(list(zero_blocks(&data)), [expected], "of {blocks} blocks");
                }
            }
        }
        let two = data(30 * B, &[0..B, 15 * B..17 * B]);
        assert_eq!(list(zero_blocks(&two)), [0..B, 15 * B..17 * B]);
        assert_eq!(list(zero_blocks(&vec![0; 64 * B + 1])), [0..64 * B]);
        assert_eq!(list(zero_blocks(&[0; B - 1])), []);
        let none = data(30 * B, &[8..B, B + 8..2 * B, 30 * B - 100..30 * B]);
        assert!(!may_have_zero_block(&[0; B - 1]) && !may_have_zero_block(&none) && zero_blocks(&none).is_empty());
    }

    #[test]
    fn a_single_nonzero_byte_anywhere_makes_a_block_nonzero() {
        let mut block = [0; FIXED_BYTES];
        assert!(is_zero(&block) && is_zero(&[]) && is_zero(&[0; 7]));
        for at in 0..FIXED_BYTES {
            block[at] = 1;
            assert!(!is_zero(&block) && zero_blocks(&block).is_empty(), "byte {at}");
            assert_eq!((leading_zeros(&block), trailing_zeros(&block)), (at, FIXED_BYTES - at - 1));
            block[at] = 0;
        }
        assert!(!is_zero(&[0, 0, 9]));
    }

    #[test]
    fn runs_of_zeros_are_found_at_any_position() {
        const LENGTH: usize = 20_000;
        for start in [0, 1, 7, 2040, 2047, 2048, 2049, 4095, 4096, 9999, LENGTH - RUN_BYTES_MIN] {
            for length in [RUN_BYTES_MIN - 1, RUN_BYTES_MIN, RUN_BYTES_MIN + 1, 9000, LENGTH] {
                let run = start..(start + length).min(LENGTH);
                let data = data(LENGTH, std::slice::from_ref(&run));
                let expected = if run.len() < RUN_BYTES_MIN { vec![] } else { vec![run.clone()] };
                assert_eq!(list(zero_runs(&data, 0)), expected, "{run:?}");
            }
        }
        let runs = [10..5000, 5001..12_000, 15_000..20_000];
        assert_eq!(list(zero_runs(&data(LENGTH, &runs), 0)), runs);
        let short: Vec<Range<usize>> = (0..LENGTH / 2000).map(|at| at * 2000..at * 2000 + 1999).collect();
        assert_eq!(list(zero_runs(&data(LENGTH, &short), 0)), []);
    }

    #[test]
    fn zeros_before_the_data_count_for_a_run_at_its_beginning() {
        let begins = data(600, std::slice::from_ref(&(0..512)));
        assert_eq!(list(zero_runs(&begins, RUN_BYTES_MIN - 513)), []);
        assert_eq!(list(zero_runs(&begins, RUN_BYTES_MIN - 512)), [0..512]);
        let later = data(10_000, &[0..10, 100..600, 2048..2600]);
        assert_eq!(list(zero_runs(&later, RUN_BYTES_MIN)), [0..10]);
        assert_eq!(list(zero_runs(&[0; 100], RUN_BYTES_MIN)), [0..100]);
    }
}
