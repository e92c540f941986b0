//! Streaming copies: whole cache lines written past the cache, with the widest stores the CPU has.
//!
//! Each version fills 64-byte lines at a 64-byte aligned destination; the caller copies what lies before the
//! first and after the last whole line. The portable twin is what every other is tested against.

/// Which version this CPU runs, chosen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    #[cfg_attr(all(target_arch = "x86_64", not(test)), expect(dead_code, reason = "the twin that tests compare with"))]
    Portable,
}

impl Streaming {
    pub(crate) fn detect() -> Streaming {
        #[cfg(target_arch = "x86_64")]
        {
            match () {
                _ if is_x86_feature_detected!("avx512f") => Streaming::Avx512,
                _ if is_x86_feature_detected!("avx2") => Streaming::Avx2,
                _ => Streaming::Sse2,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Streaming::Portable
    }

    /// Copies `lines` lines.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `lines * 64` bytes, `to` is a multiple of 64, the two do not
    /// overlap, and this CPU has the instructions (`detect` said so).
    #[inline]
    pub(crate) unsafe fn copy_lines(self, from: *const u8, to: *mut u8, lines: usize) {
        // SAFETY: what each version asks for is what this function asks for.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Streaming::Avx512 => x86::avx512(from, to, lines),
                #[cfg(target_arch = "x86_64")]
                Streaming::Avx2 => x86::avx2(from, to, lines),
                #[cfg(target_arch = "x86_64")]
                Streaming::Sse2 => x86::sse2(from, to, lines),
                Streaming::Portable => std::ptr::copy_nonoverlapping(from, to, lines * 64),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// See [`super::Streaming::copy_lines`]; needs AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn avx512(from: *const u8, to: *mut u8, lines: usize) {
        for line in 0..lines {
            // SAFETY: `line` is below `lines`, so both 64-byte accesses are in range; `to` is aligned.
            unsafe { _mm512_stream_si512(to.add(line * 64).cast(), _mm512_loadu_si512(from.add(line * 64).cast())) };
        }
    }

    /// # Safety
    /// See [`super::Streaming::copy_lines`]; needs AVX2.
    #[target_feature(enable = "avx2")]
    pub unsafe fn avx2(from: *const u8, to: *mut u8, lines: usize) {
        for half in 0..lines * 2 {
            // SAFETY: `half * 32` is below `lines * 64`; `to` is aligned to 64, so also to 32.
            unsafe { _mm256_stream_si256(to.add(half * 32).cast(), _mm256_loadu_si256(from.add(half * 32).cast())) };
        }
    }

    /// # Safety
    /// See [`super::Streaming::copy_lines`].
    pub unsafe fn sse2(from: *const u8, to: *mut u8, lines: usize) {
        for quarter in 0..lines * 4 {
            // SAFETY: `quarter * 16` is below `lines * 64`; `to` is aligned to 64, so also to 16.
            unsafe { _mm_stream_si128(to.add(quarter * 16).cast(), _mm_loadu_si128(from.add(quarter * 16).cast())) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions() -> Vec<Streaming> {
        let mut versions = vec![Streaming::Portable, Streaming::detect()];
        #[cfg(target_arch = "x86_64")]
        {
            versions.push(Streaming::Sse2);
            if is_x86_feature_detected!("avx2") {
                versions.push(Streaming::Avx2);
            }
        }
        versions
    }

    #[test]
    fn every_version_copies_exactly_the_lines() {
        let source: Vec<u8> = (0..5000u32).map(|at| (at.wrapping_mul(2654435761) >> 13) as u8).collect();
        for version in versions() {
            for lines in [0, 1, 2, 3, 7, 64] {
                for shift in 0..64 {
                    let mut target = vec![0xEEu8; 6000];
                    let start = target.as_ptr().align_offset(64);
                    // SAFETY: both vectors are long enough for 64 lines and the shift, and do not overlap.
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
