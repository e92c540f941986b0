//! XXH3-64 of long inputs, with vectors of 512 bits.
//!
//! The problem: every written block gets a weak fingerprint, and the library that computes it uses vectors of at most
//! 256 bits. The idea: the eight sums of XXH3 fill one AVX-512 register, so 64 bytes of input take seven
//! instructions. The compiler unrolls them for a whole block, with the secret in registers. The order of additions
//! within a block is free.
//!
//! ```text
//!   input    | block: 16 stripes of 64 bytes, 1024 bytes | ... | last block: 1 to 1024 bytes |
//!                                                                        | last 64 bytes |
//!   secret     stripe n uses secret[8 n ..], the scramble at the end of a block secret[128 ..], the last 64 bytes
//!              secret[121 ..], the eight sums at the end secret[11 ..]
//! ```
//!
//! The last block is not scrambled, and only those of its stripes count that end before the input does. The last 64
//! bytes may overlap any of these. The specification of xxHash defines it so. The values are stored on media; the
//! tests here and in `nvfold::internals::fingerprint` compare every bit with the library's result.
//!
//! The module is in this crate because intrinsics are `unsafe`, and all `unsafe` code is here. The library serves as
//! the portable twin.

/// Returns XXH3-64 (seed 0, default secret) of an input of more than 240 bytes. `None` if the input is shorter,
/// because XXH3 uses another algorithm there, or if this CPU does not have AVX-512.
#[inline]
pub fn xxh3_64_wide(bytes: &[u8]) -> Option<u64> {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() > SHORT_MAX && is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU has the features that the function is compiled for.
        return Some(unsafe { x86::xxh3_64(bytes) });
    }
    let _ = bytes;
    None
}

/// The longest input for which XXH3 uses another algorithm.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT_MAX: usize = 240;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::*;

    const STRIPE: usize = 64;
    /// Stripes between two scrambles: the secret advances by 8 bytes per stripe.
    const STRIPES: usize = (SECRET.len() - STRIPE) / 8;
    const BLOCK: usize = STRIPES * STRIPE;

    const SCRAMBLE_SECRET: usize = SECRET.len() - STRIPE;
    const LAST_SECRET: usize = SECRET.len() - STRIPE - 7;
    const MERGE_SECRET: usize = 11;

    const PRIME32_1: u64 = 0x9E37_79B1;
    const PRIME32_2: u64 = 0x85EB_CA77;
    const PRIME32_3: u64 = 0xC2B2_AE3D;
    const PRIME64_1: u64 = 0x9E37_79B1_85EB_CA87;
    const PRIME64_2: u64 = 0xC2B2_AE3D_27D4_EB4F;
    const PRIME64_3: u64 = 0x1656_67B1_9E37_79F9;
    const PRIME64_4: u64 = 0x85EB_CA77_C2B2_AE63;
    const PRIME64_5: u64 = 0x27D4_EB2F_1656_67C5;
    const AVALANCHE: u64 = 0x1656_6791_9E37_79F9;

    const INITIAL: [u64; 8] = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];

    #[rustfmt::skip]
    static SECRET: [u8; 192] = [
        0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
        0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
        0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
        0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
        0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
        0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
        0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
        0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
        0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
        0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
        0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
        0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
    ];

    /// Computes XXH3-64 of `bytes`. Panics unless they are more than [`super::SHORT_MAX`].
    #[target_feature(enable = "avx512f")]
    pub(super) fn xxh3_64(bytes: &[u8]) -> u64 {
        assert!(bytes.len() > super::SHORT_MAX);
        // The last block is never empty: it holds the bytes behind the last scramble.
        let (blocks, last_block) = bytes.split_at((bytes.len() - 1) / BLOCK * BLOCK);
        let mut sums = initial();
        for block in blocks.as_chunks::<STRIPE>().0.as_chunks::<STRIPES>().0 {
            sums = scramble(accumulate(sums, block));
        }
        sums = accumulate(sums, last_block[..last_block.len() - 1].as_chunks::<STRIPE>().0);
        if let Some(last) = bytes.last_chunk::<STRIPE>() {
            sums = _mm512_add_epi64(sums, mixed(last, LAST_SECRET));
        }
        merge(sums, bytes.len() as u64)
    }

    /// Adds the stripes of a block, at most [`STRIPES`]. Stripes with even and odd numbers are summed separately:
    /// with one chain of sums the compiler makes code that takes 50 ns for 4 KiB in the cache, with two chains 35 ns.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn accumulate(sums: __m512i, stripes: &[[u8; STRIPE]]) -> __m512i {
        let (mut even, mut odd) = (sums, _mm512_setzero_si512());
        let (pairs, rest) = stripes.as_chunks::<2>();
        for (at, [first, second]) in pairs.iter().enumerate() {
            even = _mm512_add_epi64(even, mixed(first, 16 * at));
            odd = _mm512_add_epi64(odd, mixed(second, 16 * at + 8));
        }
        if let [last] = rest {
            even = _mm512_add_epi64(even, mixed(last, 16 * pairs.len()));
        }
        _mm512_add_epi64(even, odd)
    }

    /// Returns what a stripe adds to the sums: to each sum the product of the halves of its own word, keyed with the
    /// secret, and the unchanged word of its neighbour.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn mixed(stripe: &[u8; STRIPE], secret_at: usize) -> __m512i {
        let words = load(stripe);
        let keyed = _mm512_xor_si512(words, secret(secret_at));
        let products = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
        let neighbours = _mm512_shuffle_epi32::<0b01_00_11_10>(words);
        _mm512_add_epi64(products, neighbours)
    }

    /// Scrambles the sums at the end of a block.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn scramble(sums: __m512i) -> __m512i {
        let folded = _mm512_xor_si512(sums, _mm512_srli_epi64::<47>(sums));
        let keyed = _mm512_xor_si512(folded, secret(SCRAMBLE_SECRET));
        // Multiplies by a prime of 32 bits: AVX-512F has no product of 64-bit words.
        let prime = _mm512_set1_epi64(PRIME32_1 as i64);
        let low = _mm512_mul_epu32(keyed, prime);
        let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(keyed), prime);
        _mm512_add_epi64(low, _mm512_slli_epi64::<32>(high))
    }

    /// Merges the sums into the hash of an input of this length.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn merge(sums: __m512i, length: u64) -> u64 {
        let mut words = [0u64; 8];
        // SAFETY: the array has room for the register, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), sums) };
        let mut value = length.wrapping_mul(PRIME64_1);
        for (pair, key) in words.as_chunks::<2>().0.iter().zip(SECRET[MERGE_SECRET..].as_chunks::<16>().0) {
            let key = u128::from_le_bytes(*key);
            let product = u128::from(pair[0] ^ key as u64) * u128::from(pair[1] ^ (key >> 64) as u64);
            value = value.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        value = (value ^ value >> 37).wrapping_mul(AVALANCHE);
        value ^ value >> 32
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn initial() -> __m512i {
        // SAFETY: the array is as long as the register, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(INITIAL.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn secret(at: usize) -> __m512i {
        load(SECRET[at..].first_chunk().expect("offsets of stripes are less than the length without one"))
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load(bytes: &[u8; STRIPE]) -> __m512i {
        // SAFETY: the array is as long as the register, and the load needs no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wide_xxh3_declines_short_inputs() {
        assert_eq!(xxh3_64_wide(&[0; 240]), None);
        assert_eq!(xxh3_64_wide(b""), None);
    }

    /// `nvfold::internals::fingerprint` compares all lengths with the library.
    #[test]
    fn the_xxh3_of_a_block_matches_the_reference_implementation() {
        let Some(zeros) = xxh3_64_wide(&[0; 4096]) else {
            return println!("skipped: no AVX-512 here");
        };
        // `xxhsum -H3` of 4096 zeros, and of the bytes 0..=250 repeated.
        assert_eq!(zeros, 0x93d7_6fe1_48c6_89ba);
        let ramp: Vec<u8> = (0..4096u32).map(|position| (position % 251) as u8).collect();
        assert_eq!(xxh3_64_wide(&ramp), Some(0x7135_ffa5_04f1_bc71));
    }
}
