//! Streaming copies: whole cache lines written past the cache, with the widest stores the CPU has.
//!
//! Each version fills 64-byte lines at a 64-byte aligned destination; the caller copies the bytes before the first
//! and after the last whole line. Tests compare every other version with the portable twin.
//!
//! The copies are written in assembly because the compiler's intrinsics forbid every other access to the target
//! before the next sfence, which no safe caller could promise. `shared` states which Rust code the assembly stands
//! for.

use crate::LINE_BYTES;
use crate::shared::{WORD_BYTES, word};
use std::sync::atomic::Ordering;

/// The version that this CPU runs, chosen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Sse2,
    #[cfg_attr(
        all(target_arch = "x86_64", not(miri), not(test)),
        expect(dead_code, reason = "the twin that tests compare with")
    )]
    Portable,
}

impl Streaming {
    pub(crate) fn detect() -> Streaming {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            match () {
                _ if is_x86_feature_detected!("avx512f") => Streaming::Avx512,
                _ if is_x86_feature_detected!("avx2") => Streaming::Avx2,
                _ => Streaming::Sse2,
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        Streaming::Portable
    }

    /// Copies `lines` lines to media.
    ///
    /// # Safety
    /// `from` is readable and `to` mapped and writable for `lines * 64` bytes, `to` is a multiple of 64, the two do not
    /// overlap, and this CPU has the instructions (`detect` said so).
    #[inline]
    pub(crate) unsafe fn copy_lines(self, from: *const u8, to: *mut u8, lines: usize) {
        if lines == 0 {
            return;
        }
        // SAFETY: each version has the contract of this function, and there is at least one line.
        unsafe {
            match self {
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Streaming::Avx512 => x86::avx512(from, to, lines),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Streaming::Avx2 => x86::avx2(from, to, lines),
                #[cfg(all(target_arch = "x86_64", not(miri)))]
                Streaming::Sse2 => x86::sse2(from, to, lines),
                Streaming::Portable => portable(from, to, lines),
            }
        }
    }
}

/// # Safety
/// See [`Streaming::copy_lines`].
unsafe fn portable(from: *const u8, to: *mut u8, lines: usize) {
    for at in (0..lines * LINE_BYTES as usize).step_by(WORD_BYTES) {
        // SAFETY: both are in range; `to` is aligned.
        unsafe { word(to.add(at)).store(from.add(at).cast::<u64>().read_unaligned(), Ordering::Relaxed) };
    }
}

/// All versions copy at least one line: the addresses point to the end, and a negative index counts up to 0.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use crate::LINE_BYTES;
    use std::arch::asm;

    /// # Safety
    /// See [`super::Streaming::copy_lines`]; needs AVX-512F.
    pub(super) unsafe fn avx512(from: *const u8, to: *mut u8, lines: usize) {
        let length = lines * LINE_BYTES as usize;
        // SAFETY: both accesses are in range and `to` is aligned. All vector registers are clobbered, because the
        // last instruction clears their upper parts.
        unsafe {
            asm!(
                "2:",
                "vmovdqu64 zmm0, [rsi + rcx]",
                "vmovntdq [rdi + rcx], zmm0",
                "add rcx, 64",
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
    /// See [`super::Streaming::copy_lines`]; needs AVX2.
    pub(super) unsafe fn avx2(from: *const u8, to: *mut u8, lines: usize) {
        let length = lines * LINE_BYTES as usize;
        // SAFETY: as above.
        unsafe {
            asm!(
                "2:",
                "vmovdqu ymm0, [rsi + rcx]",
                "vmovdqu ymm1, [rsi + rcx + 32]",
                "vmovntdq [rdi + rcx], ymm0",
                "vmovntdq [rdi + rcx + 32], ymm1",
                "add rcx, 64",
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
    /// See [`super::Streaming::copy_lines`].
    pub(super) unsafe fn sse2(from: *const u8, to: *mut u8, lines: usize) {
        let length = lines * LINE_BYTES as usize;
        // SAFETY: the accesses are in range, and `to` is aligned.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{from} + {at}]",
                "movdqu {b}, [{from} + {at} + 16]",
                "movdqu {c}, [{from} + {at} + 32]",
                "movdqu {d}, [{from} + {at} + 48]",
                "movntdq [{to} + {at}], {a}",
                "movntdq [{to} + {at} + 16], {b}",
                "movntdq [{to} + {at} + 32], {c}",
                "movntdq [{to} + {at} + 48], {d}",
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions() -> Vec<Streaming> {
        let others = [
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Streaming::Sse2,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            if is_x86_feature_detected!("avx2") { Streaming::Avx2 } else { Streaming::Sse2 },
        ];
        [Streaming::Portable, Streaming::detect()].into_iter().chain(others).collect()
    }

    const ROOM: usize = if cfg!(miri) { 256 } else { 5000 };

    #[test]
    fn every_simd_version_copies_exactly_the_given_lines() {
        let source: Vec<u8> = (0..ROOM as u32).map(|at| (at.wrapping_mul(2654435761) >> 13) as u8).collect();
        for version in versions() {
            for lines in if cfg!(miri) { &[0, 1, 2][..] } else { &[0, 1, 2, 3, 7, 64] }.iter().copied() {
                for shift in (0..64).step_by(if cfg!(miri) { 33 } else { 1 }) {
                    let mut target = vec![0xEEu8; ROOM + 64];
                    let start = target.as_ptr().align_offset(64);
                    // SAFETY: both vectors are long enough for the lines and the shift, and do not overlap.
                    unsafe { version.copy_lines(source.as_ptr().add(shift), target.as_mut_ptr().add(start), lines) };
                    crate::flush::store_fence();
                    let end = start + lines * 64;
                    assert_eq!(target[start..end], source[shift..shift + lines * 64], "{version:?}");
                    assert!(target[..start].iter().chain(&target[end..]).all(|byte| *byte == 0xEE), "{version:?}");
                }
            }
        }
    }
}
