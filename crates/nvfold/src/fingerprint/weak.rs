//! Weak fingerprints: 32 bits that find candidates.

use super::{Strong, StrongFunction};

/// The function that computes weak fingerprints. Its number is stored in the chunk entry. CRC-32, MD5, SHA-1 and
/// SHA-256 serve the papers: a build has them with the feature `papers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WeakFunction {
    /// The low 32 bits of XXH3-64.
    #[default]
    Xxh3 = 0,
    /// CRC-32 of IEEE 802.3: NV-Dedup's default.
    #[cfg(feature = "papers")]
    Crc32 = 1,
    /// Fletcher-32 over little-endian 16-bit words. It cannot tell words 0x0000 and 0xffff apart, and distinguishes
    /// sparse data badly.
    Fletcher32 = 2,
    /// The first 32 bits of MD5. This and the next three suit a policy that computes a strong fingerprint of
    /// everything anyway, as DeNOVA does: its prefix is the key of the index.
    #[cfg(feature = "papers")]
    Md5 = 3,
    /// The first 32 bits of SHA-1.
    #[cfg(feature = "papers")]
    Sha1 = 4,
    /// The first 32 bits of SHA-256.
    #[cfg(feature = "papers")]
    Sha256 = 5,
    /// The first 32 bits of BLAKE3.
    Blake3 = 6,
    /// Like [`WeakFunction::Xxh3`], but a block is looked for by some of its lines first ([`super::keys`]). It needs a
    /// dram index.
    Sample = 7,
}

/// Names on the command line, by number, of the functions of all builds.
const NAMES: [&str; 8] = ["xxh3", "crc32", "fletcher32", "md5", "sha1", "sha256", "blake3", "sample"];

impl WeakFunction {
    /// The functions of this build, by number.
    #[cfg(not(feature = "papers"))]
    pub const ALL: [WeakFunction; 4] =
        [WeakFunction::Xxh3, WeakFunction::Fletcher32, WeakFunction::Blake3, WeakFunction::Sample];
    /// The functions of this build, by number.
    #[cfg(feature = "papers")]
    pub const ALL: [WeakFunction; 8] = [
        WeakFunction::Xxh3,
        WeakFunction::Crc32,
        WeakFunction::Fletcher32,
        WeakFunction::Md5,
        WeakFunction::Sha1,
        WeakFunction::Sha256,
        WeakFunction::Blake3,
        WeakFunction::Sample,
    ];

    /// Returns the strong function whose prefix this function is.
    pub fn prefix_of(self) -> Option<StrongFunction> {
        match self {
            WeakFunction::Xxh3 | WeakFunction::Fletcher32 | WeakFunction::Sample => None,
            WeakFunction::Blake3 => Some(StrongFunction::Blake3),
            #[cfg(feature = "papers")]
            WeakFunction::Crc32 => None,
            #[cfg(feature = "papers")]
            WeakFunction::Md5 => Some(StrongFunction::Md5),
            #[cfg(feature = "papers")]
            WeakFunction::Sha1 => Some(StrongFunction::Sha1),
            #[cfg(feature = "papers")]
            WeakFunction::Sha256 => Some(StrongFunction::Sha256),
        }
    }

    /// Computes the weak fingerprint of a piece of data: of all its bytes.
    #[inline]
    pub fn of(self, block: &[u8]) -> u32 {
        match self {
            WeakFunction::Xxh3 | WeakFunction::Sample => weak(block),
            WeakFunction::Fletcher32 => fletcher32(block),
            WeakFunction::Blake3 => prefix(&StrongFunction::Blake3.of(block)),
            #[cfg(feature = "papers")]
            WeakFunction::Crc32 => super::papers::crc32(block),
            #[cfg(feature = "papers")]
            WeakFunction::Md5 => prefix(&StrongFunction::Md5.of(block)),
            #[cfg(feature = "papers")]
            WeakFunction::Sha1 => prefix(&StrongFunction::Sha1.of(block)),
            #[cfg(feature = "papers")]
            WeakFunction::Sha256 => prefix(&StrongFunction::Sha256.of(block)),
        }
    }

    /// True if a pm index can be built on it: each block has one fingerprint then.
    pub fn fits_pm_index(self) -> bool {
        self != WeakFunction::Sample
    }

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Returns the function with this name.
    pub fn from_name(name: &str) -> Option<WeakFunction> {
        WeakFunction::ALL.into_iter().find(|function| function.name() == name)
    }

    /// Returns the function with this number on the media, if this build has it.
    pub fn from_number(number: u8) -> Option<WeakFunction> {
        WeakFunction::ALL.into_iter().find(|function| *function as u8 == number)
    }

    /// Returns the name of the function with this number on the media, of this build or of another one.
    pub(crate) fn known_name(number: u64) -> Option<&'static str> {
        NAMES.get(usize::try_from(number).ok()?).copied()
    }
}

/// Returns the first 32 bits of a strong fingerprint, the first byte highest: DeNOVA's prefix (IV-C).
pub(super) fn prefix(strong: &Strong) -> u32 {
    u32::from_be_bytes([strong[0], strong[1], strong[2], strong[3]])
}

/// Computes [`WeakFunction::Xxh3`] of a piece of data: the low 32 bits of its XXH3-64.
#[inline]
pub fn weak(block: &[u8]) -> u32 {
    weak64(block) as u32
}

/// Computes XXH3-64 of a piece of data, seed 0, for uses that need more bits than [`weak`] stores.
#[inline]
pub fn weak64(block: &[u8]) -> u64 {
    pmem::xxh3_64_wide(block).unwrap_or_else(|| library64(block))
}

/// Computes [`weak64`] of short data, and of any data on a CPU that [`pmem::xxh3_64_wide`] does not support.
#[inline]
fn library64(block: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(block)
}

/// Computes two running sums modulo 65535: of the words, and of the first sum after each word. A last odd byte counts
/// as a word with a zero after it.
fn fletcher32(data: &[u8]) -> u32 {
    const MODULUS: u64 = 65535;
    /// Words per step: their sums have no carry from word to word, so the compiler vectorises them.
    const STEP: usize = 16;
    /// Words between two reductions: after these the 64-bit sums are far from overflowing.
    const WORDS: usize = 1 << 16;
    let (mut sum, mut sum_of_sums) = (0u64, 0u64);
    for part in data.chunks(2 * WORDS) {
        let mut steps = part.chunks_exact(2 * STEP);
        for step in &mut steps {
            let (mut words, mut weighted) = (0u32, 0u32);
            for (at, word) in step.as_chunks::<2>().0.iter().enumerate() {
                let word = u32::from(u16::from_le_bytes(*word));
                words += word;
                weighted += (STEP - at) as u32 * word;
            }
            sum_of_sums += STEP as u64 * sum + u64::from(weighted);
            sum += u64::from(words);
        }
        for word in steps.remainder().chunks(2) {
            sum += u64::from(u16::from_le_bytes([word[0], *word.get(1).unwrap_or(&0)]));
            sum_of_sums += sum;
        }
        (sum, sum_of_sums) = (sum % MODULUS, sum_of_sums % MODULUS);
    }
    (sum_of_sums << 16 | sum) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    // From the reference implementation (`xxhsum -H3` of 4096 zeros, and of the bytes 0..=250 repeated).
    const ZERO_BLOCK: u64 = 0x93d7_6fe1_48c6_89ba;
    const RAMP_BLOCK: u64 = 0x7135_ffa5_04f1_bc71;

    #[test]
    fn fingerprint_values_in_the_media_format_never_change() {
        // Published XXH3-64 vectors (seed 0) of the empty input, and of inputs that take each internal path.
        assert_eq!(weak64(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(WeakFunction::Xxh3.of(b""), 0x38d3_94c2);
        assert_eq!(weak64(&[0u8; 4096]), ZERO_BLOCK);
        let ramp: Vec<u8> = (0..4096u32).map(|position| (position % 251) as u8).collect();
        assert_eq!(weak64(&ramp), RAMP_BLOCK);
        assert_eq!((library64(&[0; 4096]), library64(&ramp)), (ZERO_BLOCK, RAMP_BLOCK));
        // The check value of the CRC catalogue, and well known texts.
        assert_eq!(WeakFunction::Crc32.of(b"123456789"), 0xcbf4_3926);
        assert_eq!(WeakFunction::Crc32.of(b"The quick brown fox jumps over the lazy dog"), 0x414f_a339);
        assert_eq!(WeakFunction::Crc32.of(b""), 0);
        // The commonly quoted examples.
        assert_eq!(WeakFunction::Fletcher32.of(b"abcde"), 0xf04f_c729);
        assert_eq!(WeakFunction::Fletcher32.of(b"abcdef"), 0x5650_2d2a);
        assert_eq!(WeakFunction::Fletcher32.of(b"abcdefgh"), 0xebe1_9591);
    }

    #[test]
    fn our_wide_xxh3_equals_the_librarys_at_every_length() {
        let longest = if cfg!(miri) { 4096 } else { 1 << 20 };
        let data: Vec<u8> = (0..longest as u32 + 64).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        if pmem::xxh3_64_wide(&data).is_none() {
            return println!("skipped: no AVX-512 here");
        }
        assert_eq!(pmem::xxh3_64_wide(&data[..240]), None, "short data is the library's");
        let around = |middle: usize| [middle - 65, middle - 64, middle - 1, middle, middle + 1];
        let larger = [4096, 8192, 65_536, 131_072].into_iter().flat_map(around).chain([100_003, longest - 1, longest]);
        for length in (241..=3000).chain(larger) {
            // At a different place in a line each time, and at its start.
            for start in [0, 1 + length % 63] {
                let bytes = &data[start..start + length];
                assert_eq!(pmem::xxh3_64_wide(bytes), Some(library64(bytes)), "{length} bytes from {start} on");
            }
        }
        // Every bit, and the largest words: the sums of the two halves of a block wrap.
        for byte in [0, 0x80, 0xff] {
            let bytes = vec![byte; 4096];
            assert_eq!(pmem::xxh3_64_wide(&bytes), Some(library64(&bytes)), "4096 bytes {byte:#x}");
        }
    }

    #[test]
    fn fletcher32_matches_its_definition() {
        let data: Vec<u8> = (0..300_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8 | 0x80).collect();
        for length in [0, 1, 2, 31, 32, 33, 4096, 131_072, 131_073, 300_001] {
            let (mut sum, mut sum_of_sums) = (0u32, 0u32);
            for word in data[..length].chunks(2) {
                sum = (sum + u32::from(u16::from_le_bytes([word[0], *word.get(1).unwrap_or(&0)]))) % 65535;
                sum_of_sums = (sum_of_sums + sum) % 65535;
            }
            assert_eq!(fletcher32(&data[..length]), sum_of_sums << 16 | sum, "{length} bytes");
        }
    }
}
