//! Media as the language sees it: shared memory, made of aligned 8-byte atomic words.
//!
//! The problem: any thread may store to any byte of the media at any moment, by safe calls. A `&[u8]` of media, a
//! plain copy, or two atomics of different sizes at one address would each be undefined behaviour, however well the
//! file system above keeps its locks.
//!
//! The idea: **every access is atomic and consists of whole aligned words.** A part of a word is read by loading the
//! word, and stored by exchanging it. So no two accesses can race, from any thread, and no caller can do anything
//! wrong. A reader may see a mix of old and new words, and in long copies also of old and new bytes; types without
//! invalid bit patterns (`FromBytes`) allow both. No reference to media leaves this crate.
//!
//! ```text
//! read of 11 bytes at 6    | . . . . . . x x | x x x x x x x x | x . . . . . . . |     three loads
//! store of 11 bytes at 6   |    exchange     |      store      |    exchange     |
//! ```
//!
//! **What the assembly is allowed to do.** Loops over words are slow for blocks, and a compiler must not merge
//! atomics into wider accesses. So long copies and compares are written in assembly. The compiler sees only the
//! registers that go in and out, and there must be Rust code that can do everything the assembly does (Rust
//! reference, "Inline assembly"). That code is
//!
//! - for loads and compares here: *for each byte, in any order: load its word, relaxed, and take the byte of it.* A
//!   vector load may be torn anywhere, and still each byte of it is a byte of a word that was there;
//! - for streaming stores (`copy`): *another thread stores each word, relaxed, and is joined by this thread's next
//!   sfence.* Until then the words may or may not be there, also for this thread, and in any order;
//! - for pairs (`atomic`): *both words are loaded (and stored), acquire and release, and no other access comes
//!   between.*
//!
//! The portable twins are that code, and tests compare each version with them. Miri, which finds data races, runs the
//! twins (`make miri`). Another process that maps the device counts as one more thread in all this.

use crate::LINE_BYTES;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub(crate) const WORD_BYTES: usize = 8;
/// Bytes that the wide loops load at once. Shorter ranges are read by words, or by aligned pairs of words.
const STEP_BYTES: usize = 128;
/// Length from which a copy gains by aligning its target.
const ALIGNED_FROM_BYTES: usize = 1024;
/// Bytes that a CPU with AVX loads in one access if they are aligned.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PAIR_BYTES: usize = 16;

/// Returns the word at an aligned address.
///
/// # Safety
/// `at` is a multiple of 8, and mapped for as long as the word is used.
#[inline]
pub(crate) unsafe fn word<'m>(at: *const u8) -> &'m AtomicU64 {
    debug_assert!(at.addr().is_multiple_of(WORD_BYTES));
    // SAFETY: aligned and mapped by contract; any bytes are a word, and all stores to it are atomic. On a read-only
    // mapping it is only loaded, relaxed, which is allowed there (`std::sync::atomic`).
    unsafe { &*at.cast::<AtomicU64>() }
}

/// The wide loop that this CPU runs, chosen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wide {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Sse2,
    Portable,
}

impl Wide {
    pub(crate) fn detect() -> Wide {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return if is_x86_feature_detected!("avx2") { Wide::Avx2 } else { Wide::Sse2 };
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        return Wide::Portable;
    }

    /// Copies bytes out of media.
    ///
    /// # Safety
    /// The words that the `length` bytes at `from` touch are mapped. `to` is writable for `length` bytes, and is not
    /// media. This CPU has the instructions (`detect` said so).
    #[inline(always)] // where the length is known, only a few loads remain
    pub(crate) unsafe fn load(self, from: *const u8, to: *mut u8, length: usize) {
        // SAFETY: our contract; pairs are aligned, and a CPU with AVX2 has AVX.
        unsafe {
            match self {
                _ if length >= STEP_BYTES => self.load_long(from, to, length),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Wide::Avx2 if from.addr().is_multiple_of(PAIR_BYTES) => x86::load_pairs(from, to, length),
                _ => load_words(from, to, length),
            }
        }
    }

    /// # Safety
    /// As [`Wide::load`], and at least one step.
    #[inline(never)]
    unsafe fn load_long(self, from: *const u8, to: *mut u8, length: usize) {
        let load: unsafe fn(*const u8, *mut u8, usize) = match self {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Wide::Avx2 => x86::load_avx2,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Wide::Sse2 => x86::load_sse2,
            Wide::Portable => load_steps,
        };
        // Stores that cross lines are slow, so long copies continue at the first line boundary of the target.
        let skipped = if length < ALIGNED_FROM_BYTES { 0 } else { to.addr().wrapping_neg() % LINE_BYTES as usize };
        let (rest, last) = (length - skipped, length - STEP_BYTES);
        // SAFETY: the first step, the steps behind the line boundary, and the step that ends with the range all lie
        // in the range. Bytes in two of these steps are copied twice.
        unsafe {
            if skipped > 0 {
                load(from, to, 1);
            }
            load(from.add(skipped), to.add(skipped), rest / STEP_BYTES);
            if !rest.is_multiple_of(STEP_BYTES) {
                load(from.add(last), to.add(last), 1);
            }
        }
    }

    /// Returns whether media holds these bytes. It stops soon after the first difference.
    ///
    /// # Safety
    /// The words that as many bytes at `media` touch are mapped. This CPU has the instructions (`detect` said so).
    #[inline]
    pub(crate) unsafe fn equal(self, media: *const u8, bytes: &[u8]) -> bool {
        // SAFETY: our contract.
        unsafe { if bytes.len() < STEP_BYTES { equal_words(media, bytes) } else { self.equal_long(media, bytes) } }
    }

    /// # Safety
    /// As [`Wide::equal`], and at least one step.
    #[inline(never)]
    unsafe fn equal_long(self, media: *const u8, bytes: &[u8]) -> bool {
        let equal: unsafe fn(*const u8, *const u8, usize) -> bool = match self {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Wide::Avx2 => x86::equal_avx2,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Wide::Sse2 => x86::equal_sse2,
            Wide::Portable => equal_steps,
        };
        let last = bytes.len() - STEP_BYTES;
        // SAFETY: as in `load_long`.
        unsafe {
            equal(media, bytes.as_ptr(), bytes.len() / STEP_BYTES)
                && (bytes.len().is_multiple_of(STEP_BYTES) || equal(media.add(last), bytes.as_ptr().add(last), 1))
        }
    }
}

/// Stores bytes: whole words at once, and parts of words by exchange.
///
/// # Safety
/// The words that as many bytes at `to` touch are mapped and writable.
#[inline]
pub(crate) unsafe fn store(to: *mut u8, bytes: &[u8]) {
    let (first, rest) = bytes.split_at(part_of_first_word(to, bytes.len()));
    let (words, last) = rest.as_chunks::<WORD_BYTES>();
    // SAFETY: the parts follow one another in the range; all behind the first are aligned.
    unsafe {
        if !first.is_empty() {
            store_part(to, first);
        }
        let to = to.add(first.len());
        for (at, bytes) in words.iter().enumerate() {
            word(to.add(at * WORD_BYTES)).store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        if !last.is_empty() {
            store_part(to.add(words.len() * WORD_BYTES), last);
        }
    }
}

/// Stores a part of one word, and leaves the rest of it as it is.
///
/// # Safety
/// The bytes lie within one aligned word, which is mapped and writable.
#[cold]
#[inline(never)]
unsafe fn store_part(to: *mut u8, bytes: &[u8]) {
    let skipped = to.addr() % WORD_BYTES;
    // SAFETY: a word is aligned, so it begins in the same page as any of its bytes.
    let word = unsafe { word(to.sub(skipped)) };
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        let mut new = seen.to_ne_bytes();
        new[skipped..skipped + bytes.len()].copy_from_slice(bytes);
        match word.compare_exchange_weak(seen, u64::from_ne_bytes(new), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Returns how many of `length` bytes at an address lie in a word that begins before it.
#[inline]
fn part_of_first_word(at: *const u8, length: usize) -> usize {
    if at.addr().is_multiple_of(WORD_BYTES) { 0 } else { length.min(WORD_BYTES - at.addr() % WORD_BYTES) }
}

/// # Safety
/// As [`Wide::load`].
unsafe fn load_words(from: *const u8, to: *mut u8, length: usize) {
    if !from.addr().is_multiple_of(WORD_BYTES) {
        // SAFETY: our contract.
        return unsafe { load_unaligned(from, to, length) };
    }
    let (words, rest) = (length / WORD_BYTES * WORD_BYTES, length % WORD_BYTES);
    // SAFETY: all words but the last lie in the range, which is aligned, and the last lies in it in part.
    unsafe {
        for at in (0..words).step_by(WORD_BYTES) {
            to.add(at).cast::<u64>().write_unaligned(word(from.add(at)).load(Ordering::Relaxed));
        }
        if rest > 0 {
            let last = word(from.add(words)).load(Ordering::Relaxed).to_ne_bytes();
            std::ptr::copy_nonoverlapping(last.as_ptr(), to.add(words), rest);
        }
    }
}

/// # Safety
/// As [`Wide::load`].
#[cold]
#[inline(never)]
unsafe fn load_unaligned(from: *const u8, to: *mut u8, length: usize) {
    let skipped = from.addr() % WORD_BYTES;
    let part = part_of_first_word(from, length);
    // SAFETY: the first word begins before the range, in the same page; the rest of the range is aligned.
    unsafe {
        let first = word(from.sub(skipped)).load(Ordering::Relaxed).to_ne_bytes();
        std::ptr::copy_nonoverlapping(first[skipped..].as_ptr(), to, part);
        if part < length {
            load_words(from.add(part), to.add(part), length - part);
        }
    }
}

/// # Safety
/// As [`Wide::equal`].
#[inline]
unsafe fn equal_words(media: *const u8, bytes: &[u8]) -> bool {
    let (first, rest) = bytes.split_at(part_of_first_word(media, bytes.len()));
    let (words, last) = rest.as_chunks::<WORD_BYTES>();
    // SAFETY: the parts follow one another in the range; all behind the first are aligned.
    unsafe {
        let aligned = media.add(first.len());
        (first.is_empty() || equal_part(media, first))
            && words.iter().enumerate().all(|(at, bytes)| {
                word(aligned.add(at * WORD_BYTES)).load(Ordering::Relaxed) == u64::from_ne_bytes(*bytes)
            })
            && (last.is_empty() || equal_part(aligned.add(words.len() * WORD_BYTES), last))
    }
}

/// # Safety
/// The bytes lie within one aligned word, which is mapped.
#[inline]
unsafe fn equal_part(media: *const u8, bytes: &[u8]) -> bool {
    let skipped = media.addr() % WORD_BYTES;
    // SAFETY: a word is aligned, so it begins in the same page as any of its bytes.
    let seen = u64::from_le(unsafe { word(media.sub(skipped)) }.load(Ordering::Relaxed)) >> (8 * skipped);
    bytes.iter().enumerate().all(|(at, byte)| (seen >> (8 * at)) as u8 == *byte)
}

/// # Safety
/// As [`Wide::load`], for `steps` steps.
unsafe fn load_steps(from: *const u8, to: *mut u8, steps: usize) {
    // SAFETY: our contract.
    unsafe { load_words(from, to, steps * STEP_BYTES) }
}

/// # Safety
/// As [`Wide::equal`], for `steps` steps; `bytes` is readable for as many bytes.
unsafe fn equal_steps(media: *const u8, bytes: *const u8, steps: usize) -> bool {
    // SAFETY: our contract.
    unsafe { equal_words(media, std::slice::from_raw_parts(bytes, steps * STEP_BYTES)) }
}

/// All four functions take at least one step of [`STEP_BYTES`]: the addresses point to the end, and a negative index
/// counts up to 0.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use super::{PAIR_BYTES, STEP_BYTES, load_words};
    use crate::LINE_BYTES;
    use std::arch::asm;
    use std::arch::x86_64::__m128i;

    const LINE: usize = LINE_BYTES as usize;

    /// Copies by pairs of words, each loaded in one access (see `atomic`), so no word is torn.
    ///
    /// # Safety
    /// As [`super::Wide::load`], and `from` is a multiple of 16. Needs AVX.
    #[inline(always)]
    pub(super) unsafe fn load_pairs(from: *const u8, to: *mut u8, length: usize) {
        let (lines, pairs) = (length / LINE * LINE, length / PAIR_BYTES * PAIR_BYTES);
        // SAFETY: lines, pairs and the rest follow one another in the range, and all but the rest are aligned.
        unsafe {
            for at in (0..lines).step_by(LINE) {
                to.add(at).cast::<[__m128i; 4]>().write_unaligned(line(from.add(at)));
            }
            for at in (lines..pairs).step_by(PAIR_BYTES) {
                to.add(at).cast::<__m128i>().write_unaligned(pair(from.add(at)));
            }
            if pairs < length {
                load_words(from.add(pairs), to.add(pairs), length - pairs);
            }
        }
    }

    /// # Safety
    /// `at` is a multiple of 16, and 64 bytes there are mapped.
    #[inline]
    unsafe fn line(at: *const u8) -> [__m128i; 4] {
        let (first, second, third, fourth);
        // SAFETY: reads what the contract allows.
        unsafe {
            asm!(
                "movdqa {first}, [{at}]",
                "movdqa {second}, [{at} + 16]",
                "movdqa {third}, [{at} + 32]",
                "movdqa {fourth}, [{at} + 48]",
                at = in(reg) at,
                first = out(xmm_reg) first,
                second = out(xmm_reg) second,
                third = out(xmm_reg) third,
                fourth = out(xmm_reg) fourth,
                options(nostack, readonly, preserves_flags),
            );
        }
        [first, second, third, fourth]
    }

    /// # Safety
    /// `at` is a multiple of 16, and 16 bytes there are mapped.
    #[inline]
    unsafe fn pair(at: *const u8) -> __m128i {
        let pair;
        // SAFETY: reads what the contract allows.
        unsafe {
            asm!("movdqa {pair}, [{at}]", at = in(reg) at, pair = out(xmm_reg) pair,
                options(nostack, readonly, preserves_flags));
        }
        pair
    }

    /// # Safety
    /// As [`super::Wide::load`] for `steps` steps, at least one; needs AVX2.
    pub(super) unsafe fn load_avx2(from: *const u8, to: *mut u8, steps: usize) {
        let length = steps * STEP_BYTES;
        // SAFETY: reads and writes what the contract allows. All vector registers are clobbered, because the last
        // instruction clears their upper halves.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [rsi + rcx]",
                "vmovdqu ymm1, [rsi + rcx + 32]",
                "vmovdqu ymm2, [rsi + rcx + 64]",
                "vmovdqu ymm3, [rsi + rcx + 96]",
                "vmovdqu [rdi + rcx], ymm0",
                "vmovdqu [rdi + rcx + 32], ymm1",
                "vmovdqu [rdi + rcx + 64], ymm2",
                "vmovdqu [rdi + rcx + 96], ymm3",
                "add rcx, 128",
                "jnz 2b",
                "vzeroupper",
                in("rsi") from.add(length),
                in("rdi") to.add(length),
                inout("rcx") length.wrapping_neg() => _,
                clobber_abi("C"),
                options(nostack),
            );
        }
    }

    /// # Safety
    /// As [`super::Wide::load`] for `steps` steps, at least one.
    pub(super) unsafe fn load_sse2(from: *const u8, to: *mut u8, steps: usize) {
        let length = steps * STEP_BYTES;
        // SAFETY: reads and writes what the contract allows; a round copies half a step.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{from} + {at}]",
                "movdqu {b}, [{from} + {at} + 16]",
                "movdqu {c}, [{from} + {at} + 32]",
                "movdqu {d}, [{from} + {at} + 48]",
                "movdqu [{to} + {at}], {a}",
                "movdqu [{to} + {at} + 16], {b}",
                "movdqu [{to} + {at} + 32], {c}",
                "movdqu [{to} + {at} + 48], {d}",
                "add {at}, 64",
                "jnz 2b",
                from = in(reg) from.add(length),
                to = in(reg) to.add(length),
                at = inout(reg) length.wrapping_neg() => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }

    /// # Safety
    /// As [`super::Wide::equal`] for `steps` steps, at least one; `bytes` is readable for as many bytes. Needs AVX2.
    pub(super) unsafe fn equal_avx2(media: *const u8, bytes: *const u8, steps: usize) -> bool {
        let length = steps * STEP_BYTES;
        let left: usize;
        // SAFETY: reads what the contract allows. As in `load_avx2`.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [rsi + rcx]",
                "vmovdqu ymm1, [rsi + rcx + 32]",
                "vmovdqu ymm2, [rsi + rcx + 64]",
                "vmovdqu ymm3, [rsi + rcx + 96]",
                "vpxor ymm0, ymm0, [rdi + rcx]",
                "vpxor ymm1, ymm1, [rdi + rcx + 32]",
                "vpxor ymm2, ymm2, [rdi + rcx + 64]",
                "vpxor ymm3, ymm3, [rdi + rcx + 96]",
                "vpor ymm0, ymm0, ymm1",
                "vpor ymm2, ymm2, ymm3",
                "vpor ymm0, ymm0, ymm2",
                "vptest ymm0, ymm0",
                "jnz 3f",
                "add rcx, 128",
                "jnz 2b",
                "3:",
                "vzeroupper",
                in("rsi") media.add(length),
                in("rdi") bytes.add(length),
                inout("rcx") length.wrapping_neg() => left,
                clobber_abi("C"),
                options(nostack, readonly),
            );
        }
        left == 0
    }

    /// # Safety
    /// As [`equal_avx2`], without AVX2.
    pub(super) unsafe fn equal_sse2(media: *const u8, bytes: *const u8, steps: usize) -> bool {
        let length = steps * STEP_BYTES;
        let left: usize;
        // SAFETY: reads what the contract allows; a round compares a quarter of a step.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{media} + {at}]",
                "movdqu {b}, [{bytes} + {at}]",
                "movdqu {c}, [{media} + {at} + 16]",
                "movdqu {d}, [{bytes} + {at} + 16]",
                "pcmpeqb {a}, {b}",
                "pcmpeqb {c}, {d}",
                "pand {a}, {c}",
                "pmovmskb {mask:e}, {a}",
                "cmp {mask:e}, 0xffff",
                "jne 3f",
                "add {at}, 32",
                "jnz 2b",
                "3:",
                media = in(reg) media.add(length),
                bytes = in(reg) bytes.add(length),
                at = inout(reg) length.wrapping_neg() => left,
                mask = out(reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, readonly),
            );
        }
        left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    /// Words for the longest range and the words around it.
    const ROOM: usize = if cfg!(miri) { 150 } else { 180 };
    /// Lengths below, at and above the steps of the loops.
    const LENGTHS: &[usize] = if cfg!(miri) {
        &[0, 1, 7, 8, 9, 17, 129, 1030]
    } else {
        &[
            0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 127, 128, 129, 191, 255, 256, 257, 383, 511, 600, 1023, 1024,
            1025, 1300,
        ]
    };

    fn versions() -> Vec<Wide> {
        let others = [
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Wide::Sse2,
        ];
        [Wide::Portable, Wide::detect()].into_iter().chain(others).collect()
    }

    fn media() -> Vec<AtomicU64> {
        (0..ROOM as u64).map(|at| AtomicU64::new((at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
    }

    /// Returns the plain bytes of media that no other thread uses.
    fn bytes_of(media: &mut [AtomicU64]) -> Vec<u8> {
        let words: Vec<u64> = media.iter_mut().map(|word| *word.get_mut()).collect();
        words.as_bytes().to_vec()
    }

    fn base(media: &[AtomicU64]) -> *mut u8 {
        media.as_ptr().cast_mut().cast()
    }

    fn ranges() -> impl Iterator<Item = (usize, usize)> {
        (0..=WORD_BYTES).flat_map(|from| LENGTHS.iter().map(move |length| (from, *length)))
    }

    #[test]
    fn every_simd_version_loads_exactly_the_given_range() {
        let mut media = media();
        let expected = bytes_of(&mut media);
        for (version, (from, length)) in
            versions().into_iter().flat_map(|version| ranges().map(move |at| (version, at)))
        {
            let mut buffer = vec![0xEE; length + 2];
            // SAFETY: the range lies in the media, and the buffer has as many bytes behind its first.
            unsafe { version.load(base(&media).add(from), buffer.as_mut_ptr().add(1), length) };
            assert_eq!(buffer[1..=length], expected[from..from + length], "{version:?} {from} {length}");
            assert_eq!((buffer[0], buffer[length + 1]), (0xEE, 0xEE), "{version:?} {from} {length}");
        }
    }

    #[test]
    fn every_simd_version_detects_every_difference() {
        let mut media = media();
        let expected = bytes_of(&mut media);
        for (version, (from, length)) in
            versions().into_iter().flat_map(|version| ranges().map(move |at| (version, at)))
        {
            let mut bytes = expected[from..from + length].to_vec();
            // SAFETY: the range lies in the media.
            let equal = |bytes: &[u8]| unsafe { version.equal(base(&media).add(from), bytes) };
            assert!(equal(&bytes), "{version:?} {from} {length}");
            for at in (0..length).step_by(if cfg!(miri) { 61 } else { 1 }) {
                bytes[at] ^= 1 << (at % 8);
                assert!(!equal(&bytes), "{version:?} {from} {length}: byte {at}");
                bytes[at] ^= 1 << (at % 8);
            }
        }
    }

    #[test]
    fn a_store_changes_exactly_the_given_range() {
        let mut media = media();
        let mut expected = bytes_of(&mut media);
        for (number, (from, length)) in ranges().enumerate() {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8 ^ number as u8).collect();
            // SAFETY: the range lies in the media.
            unsafe { store(base(&media).add(from), &bytes) };
            expected[from..from + length].copy_from_slice(&bytes);
            assert_eq!(bytes_of(&mut media), expected, "{from} {length}");
        }
    }

    /// Each thread has its own bytes, but shares their words with others: no store is lost, and a reader of the words
    /// sees no half of one. Under Miri this test would also report atomics of two sizes, or a plain copy.
    #[test]
    fn parts_of_one_word_are_stored_by_many_threads_and_read_by_another() {
        const ROUNDS: u8 = if cfg!(miri) { 4 } else { 200 };
        let media: Vec<AtomicU64> = (0..20).map(|_| AtomicU64::new(0)).collect();
        let at = |offset: usize| {
            // SAFETY: within the media.
            unsafe { base(&media).add(offset) }
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        // SAFETY: 11 bytes at 3, 14 and 25 of 160.
                        unsafe { store(at(3 + 11 * thread), &[round; 11]) };
                    }
                });
            }
            scope.spawn(|| {
                let mut seen = [0u8; 144];
                for _ in 0..ROUNDS {
                    // SAFETY: within the media.
                    unsafe { Wide::detect().load(at(1), seen.as_mut_ptr(), seen.len()) };
                    assert!(seen.iter().all(|byte| *byte <= ROUNDS));
                    // SAFETY: as above.
                    unsafe { Wide::detect().equal(at(1), &seen) };
                }
            });
        });
        let mut media = media;
        let mut expected = vec![0; 160];
        expected[3..36].fill(ROUNDS);
        assert_eq!(bytes_of(&mut media), expected);
    }

    /// An earlier version copied out of media this way: scripts/miri.sh runs it and expects Miri to object.
    #[test]
    #[cfg(miri)]
    #[ignore = "undefined behaviour on purpose, for Miri to find"]
    fn on_purpose_a_plain_copy_beside_a_store() {
        let media = media();
        std::thread::scope(|scope| {
            // SAFETY: within the media.
            scope.spawn(|| unsafe { store(base(&media), &[7; 64]) });
            let mut copy = [0u8; 64];
            // SAFETY: none; the copy is not an atomic load.
            unsafe { std::ptr::copy_nonoverlapping(base(&media).cast_const(), copy.as_mut_ptr(), copy.len()) };
        });
    }

    /// An earlier version borrowed media this way, and it was stored to during the borrow. As above.
    #[test]
    #[cfg(miri)]
    #[ignore = "undefined behaviour on purpose, for Miri to find"]
    fn on_purpose_a_store_to_what_is_borrowed() {
        let mut plain = [0u64; 8];
        let media = plain.as_mut_ptr().cast::<u8>();
        // SAFETY: none; the slice promises that its bytes do not change.
        let borrowed = unsafe { std::slice::from_raw_parts(media, 64) };
        // SAFETY: in range and aligned.
        unsafe { store(media, &[7; 64]) };
        assert_eq!(borrowed[0], 7);
    }

    /// An earlier version stored the bytes at the edges of a store this way, next to a load of their word. As above.
    #[test]
    #[cfg(miri)]
    #[ignore = "undefined behaviour on purpose, for Miri to find"]
    fn on_purpose_a_byte_beside_its_word() {
        let media = media();
        std::thread::scope(|scope| {
            // SAFETY: within the media, but the byte is a part of a word that another thread loads.
            scope.spawn(|| unsafe { std::sync::atomic::AtomicU8::from_ptr(base(&media)) }.store(7, Ordering::Relaxed));
            media[0].load(Ordering::Relaxed);
        });
    }
}
