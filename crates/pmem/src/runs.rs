//! Which parts of two ranges are equal: the unchanged parts of a copy after a program has changed some of it (ICID
//! 4.4).
//!
//! The problem: a buffer that was copied from a file is written back with changes anywhere in it. Whether all of it
//! is equal is one question, which the first difference answers. Which parts are equal takes a search that goes on
//! after a difference, and it must cost no more than a compare.
//!
//! The idea: vectors make a mask per line, with a bit for each byte that is equal. A run is a row of ones, over as
//! many masks as it lasts. A mask of all ones or all zeros is handled in one step, and so is each row in a mixed
//! mask.
//!
//! ```text
//! media     a b c d e f g h | i j k l m n o p
//! bytes     a b c d X f g h | i j k l m Y o p      a run shorter than asked for is left out, unless more may go on
//! mask      1 1 1 1 0 1 1 1 | 1 1 1 1 1 0 1 1      before or after the range: the first and the last run
//! runs      0..4    5........... 13     14..16
//! ```
//!
//! [`crate::shared`] states what the assembly may do: for each byte, load its word and take the byte of it.

use crate::LINE_BYTES;
use crate::shared::Wide;
use std::ops::Range;

const LINE: usize = LINE_BYTES as usize;
/// Lines whose masks are made at once.
const MASKS: usize = 64;

/// The version that makes the masks, chosen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    Portable,
}

impl Version {
    /// Returns the best version for this CPU. The standard library caches the answers of the CPU.
    #[inline]
    fn detect() -> Version {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            if is_x86_feature_detected!("avx512bw") {
                return Version::Avx512;
            }
            if is_x86_feature_detected!("avx2") {
                return Version::Avx2;
            }
        }
        Version::Portable
    }

    /// Sets bit n of `masks[line]` if byte n of that line is the same in both ranges.
    ///
    /// # Safety
    /// The words that as many bytes at `media` touch are mapped. `bytes` are whole lines, at least one, and as many as
    /// there are masks. This CPU has the instructions (`detect` said so).
    #[inline]
    unsafe fn masks(self, media: *const u8, bytes: &[u8], masks: &mut [u64]) {
        debug_assert!(!masks.is_empty() && bytes.len() == masks.len() * LINE);
        // SAFETY: our contract.
        unsafe {
            match self {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Version::Avx512 => x86::avx512(media, bytes.as_ptr(), masks.len(), masks.as_mut_ptr()),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Version::Avx2 => x86::avx2(media, bytes.as_ptr(), masks.len(), masks.as_mut_ptr()),
                Version::Portable => portable(media, bytes, masks),
            }
        }
    }

    /// As [`equal_runs_at`].
    ///
    /// # Safety
    /// As for [`equal_runs_at`].
    unsafe fn equal_runs(self, media: *const u8, bytes: &[u8], least: usize, found: &mut Vec<Range<usize>>) {
        // SAFETY: the caller vouches for the range, and whole lines are a part of it; `detect` chose for this CPU.
        let masks = |at: usize, lines: &[u8], masks: &mut [u64]| unsafe { self.masks(media.add(at), lines, masks) };
        // SAFETY: the bytes behind the lines are a part of that range too, and `rest` is as long.
        let load = |at: usize, rest: &mut [u8]| unsafe {
            Wide::detect().load(media.add(at), rest.as_mut_ptr(), rest.len());
        };
        equal_runs_by(masks, load, bytes, least, found);
    }
}

/// Finds the runs in `bytes`: `make_masks` makes the masks of whole lines from an offset on, and `load` reads less
/// than a line.
fn equal_runs_by(
    make_masks: impl Fn(usize, &[u8], &mut [u64]),
    load: impl Fn(usize, &mut [u8]),
    bytes: &[u8],
    least: usize,
    found: &mut Vec<Range<usize>>,
) {
    let mut runs = Runs { least, start: None, found };
    let (lines, rest) = bytes.as_chunks::<LINE>();
    let mut masks = [0; MASKS];
    for (group, lines) in lines.chunks(MASKS).enumerate() {
        let (start, masks) = (group * MASKS * LINE, &mut masks[..lines.len()]);
        make_masks(start, lines.as_flattened(), masks);
        masks.iter().enumerate().for_each(|(line, mask)| runs.add(start + line * LINE, *mask, LINE));
    }
    if !rest.is_empty() {
        let (mut stored, mut other) = ([0; LINE], [0; LINE]);
        let start = bytes.len() - rest.len();
        load(start, &mut stored[..rest.len()]);
        other[..rest.len()].copy_from_slice(rest);
        runs.add(start, mask_of(&stored, &other), rest.len());
    }
    runs.end(bytes.len());
}

/// Returns a mask with bit n set if byte n of the two lines is the same.
fn mask_of(left: &[u8; LINE], right: &[u8; LINE]) -> u64 {
    let is_equal = |(left, right): (&u8, &u8)| u64::from(left == right);
    left.iter().zip(right).map(is_equal).rev().fold(0, |mask, bit| mask << 1 | bit)
}

/// Collects runs from masks that come in order.
struct Runs<'f> {
    least: usize,
    /// Start of the current run.
    start: Option<usize>,
    found: &'f mut Vec<Range<usize>>,
}

impl Runs<'_> {
    /// Adds the next `length` bytes, from `at` on; they are equal where the mask has ones.
    #[inline]
    fn add(&mut self, at: usize, mask: u64, length: usize) {
        match (self.start, mask) {
            (Some(_), u64::MAX) if length == LINE => return,
            (None, 0) => return,
            _ => {}
        }
        let mut bit = 0;
        while bit < length {
            let rest = mask >> bit;
            match self.start {
                Some(start) => {
                    bit += (rest.trailing_ones() as usize).min(length - bit);
                    if bit < length {
                        self.start = None;
                        if start == 0 || at + bit - start >= self.least {
                            self.found.push(start..at + bit);
                        }
                    }
                }
                None => {
                    bit += (rest.trailing_zeros() as usize).min(length - bit);
                    if bit < length {
                        self.start = Some(at + bit);
                    }
                }
            }
        }
    }

    /// Ends the range. A run that reaches the end may go on behind it, so it is kept whatever its length.
    fn end(self, length: usize) {
        if let Some(start) = self.start {
            self.found.push(start..length);
        }
    }
}

/// Appends to `found` the runs in which the bytes at `media` equal `bytes`: all runs of at least `least` bytes, and
/// shorter ones at the beginning and at the end of the range.
///
/// # Safety
/// The words that as many bytes at `media` touch are mapped.
pub(crate) unsafe fn equal_runs_at(media: *const u8, bytes: &[u8], least: usize, found: &mut Vec<Range<usize>>) {
    // SAFETY: our contract.
    unsafe { Version::detect().equal_runs(media, bytes, least, found) }
}

/// Appends to `found` the runs in which two slices are equal: all runs of at least `least` bytes, and shorter ones at
/// the beginning and at the end. Panics if the slices differ in length.
pub fn equal_runs(left: &[u8], right: &[u8], least: usize, found: &mut Vec<Range<usize>>) {
    assert_eq!(left.len(), right.len(), "two ranges of one length are compared");
    let version = Version::detect();
    let masks = |at: usize, lines: &[u8], masks: &mut [u64]| match version {
        // Not the version for media: the aligned words at the ends of a slice may hold bytes of other memory.
        Version::Portable => {
            let pairs = left[at..].as_chunks::<LINE>().0.iter().zip(lines.as_chunks::<LINE>().0);
            masks.iter_mut().zip(pairs).for_each(|(mask, (left, right))| *mask = mask_of(left, right));
        }
        // SAFETY: a vector version reads only the lines, which are a part of the slice.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        _ => unsafe { version.masks(left[at..].as_ptr(), lines, masks) },
    };
    let load = |at: usize, rest: &mut [u8]| rest.copy_from_slice(&left[at..at + rest.len()]);
    equal_runs_by(masks, load, right, least, found);
}

/// # Safety
/// As [`Version::masks`].
unsafe fn portable(media: *const u8, bytes: &[u8], masks: &mut [u64]) {
    for (at, (line, mask)) in bytes.as_chunks::<LINE>().0.iter().zip(masks).enumerate() {
        let mut stored = [0; LINE];
        // SAFETY: a line of the range, into a buffer of one.
        unsafe { Wide::Portable.load(media.add(at * LINE), stored.as_mut_ptr(), LINE) };
        *mask = mask_of(&stored, line);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use super::LINE;
    use std::arch::asm;

    /// # Safety
    /// As [`super::Version::masks`], for `lines` lines, one at least. Needs AVX-512BW.
    pub(super) unsafe fn avx512(media: *const u8, bytes: *const u8, lines: usize, masks: *mut u64) {
        let length = lines * LINE;
        // SAFETY: reads and writes what the contract allows. All vector registers are clobbered, because the last
        // instruction clears their upper halves.
        unsafe {
            asm!(
                "2:",
                "vmovdqu8 zmm0, [rsi + rcx]",
                "vpcmpeqb k1, zmm0, [rdi + rcx]",
                "kmovq [rdx], k1",
                "add rdx, 8",
                "add rcx, 64",
                "jnz 2b",
                "vzeroupper",
                in("rsi") media.add(length),
                in("rdi") bytes.add(length),
                inout("rcx") length.wrapping_neg() => _,
                inout("rdx") masks => _,
                clobber_abi("C"),
                options(nostack),
            );
        }
    }

    /// # Safety
    /// As [`super::Version::masks`], for `lines` lines, one at least. Needs AVX2.
    pub(super) unsafe fn avx2(media: *const u8, bytes: *const u8, lines: usize, masks: *mut u64) {
        let length = lines * LINE;
        // SAFETY: as above.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [rsi + rcx]",
                "vmovdqu ymm1, [rsi + rcx + 32]",
                "vpcmpeqb ymm0, ymm0, [rdi + rcx]",
                "vpcmpeqb ymm1, ymm1, [rdi + rcx + 32]",
                "vpmovmskb eax, ymm0",
                "vpmovmskb r8d, ymm1",
                "shl r8, 32",
                "or rax, r8",
                "mov [rdx], rax",
                "add rdx, 8",
                "add rcx, 64",
                "jnz 2b",
                "vzeroupper",
                in("rsi") media.add(length),
                in("rdi") bytes.add(length),
                inout("rcx") length.wrapping_neg() => _,
                inout("rdx") masks => _,
                out("rax") _,
                out("r8") _,
                clobber_abi("C"),
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    fn versions() -> Vec<Version> {
        let all = [
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Version::Avx512,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Version::Avx2,
            Version::Portable,
        ];
        // The list begins with the best version: a CPU that runs one also runs those behind it.
        let best = all.iter().position(|version| *version == Version::detect()).unwrap();
        all[best..].to_vec()
    }

    /// Finds the runs byte by byte.
    fn naive(left: &[u8], right: &[u8], least: usize) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < left.len() {
            let equal = left[at..].iter().zip(&right[at..]).take_while(|(left, right)| left == right).count();
            let end = at + equal;
            if equal > 0 && (equal >= least || at == 0 || end == left.len()) {
                runs.push(at..end);
            }
            at = end + 1;
        }
        runs
    }

    fn assert_all_agree(left: &[u8], right: &[u8], least: usize) {
        let expected = naive(left, right, least);
        // Media begins and ends with whole words; the bytes may begin and end inside them.
        let skipped = left.len() % 8;
        let mut padded = vec![0u8; skipped];
        padded.extend_from_slice(left);
        padded.resize(padded.len().next_multiple_of(8), 0);
        let media: Vec<AtomicU64> =
            padded.as_chunks::<8>().0.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect();
        for version in versions() {
            let mut found = Vec::new();
            // SAFETY: all words are mapped, and this CPU runs the version.
            unsafe { version.equal_runs(media.as_ptr().cast::<u8>().add(skipped), right, least, &mut found) };
            assert_eq!(found, expected, "{version:?}, {} bytes, at least {least}", left.len());
        }
        let mut found = Vec::new();
        equal_runs(left, right, least, &mut found);
        assert_eq!(found, expected, "slices, {} bytes, at least {least}", left.len());
    }

    #[test]
    fn every_version_finds_the_runs_that_a_byte_by_byte_compare_finds() {
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let rounds = if cfg!(miri) { 5 } else { 600 };
        for round in 0..rounds {
            let length = if cfg!(miri) { random(300) } else { random(9000) };
            let (from_left, from_right) = (random(9), random(9));
            let left: Vec<u8> = (0..from_left + length).map(|_| random(4) as u8).collect();
            let left = &left[from_left..];
            let mut right = vec![0; from_right];
            right.extend_from_slice(left);
            let right = &mut right[from_right..];
            // Few changes, many, and other content altogether.
            for _ in 0..[0, 1, 5, length / 40, length][round % 5] {
                if length > 0 {
                    right[random(length)] = random(4) as u8;
                }
            }
            for least in if cfg!(miri) { &[1, 64][..] } else { &[1, 16, 64, 65] } {
                assert_all_agree(left, right, *least);
            }
        }
    }

    #[test]
    fn runs_of_equal_bytes_may_begin_and_end_anywhere_in_a_line() {
        let left = [7u8; 200];
        for at in (0..left.len()).step_by(if cfg!(miri) { 37 } else { 1 }) {
            let mut right = left;
            right[at] = 0;
            assert_all_agree(&left, &right, 64);
            right[left.len() - 1 - at] = 0;
            assert_all_agree(&left, &right, 1);
        }
        assert_all_agree(&[], &[], 64);
    }
}
