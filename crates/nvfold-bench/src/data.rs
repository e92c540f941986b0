//! Data with an exact share of duplicate blocks, and data in which nothing repeats, made before any clock starts.

const BLOCK: usize = 4096;

/// splitmix64: fast, and the same seed gives the same data again.
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Fills `buffer` (whole 4 KiB blocks): `percent` of the blocks, spread evenly, repeat an earlier one of the
/// buffer; all others occur nowhere else, also not in the buffers of other seeds.
pub fn fill(buffer: &mut [u8], percent: u64, seed: u64) {
    let mut random = Random(seed);
    let blocks = buffer.len() / BLOCK;
    for at in 0..blocks {
        let repeats = |count: u64| count * percent / 100;
        let (earlier, rest) = buffer.split_at_mut(at * BLOCK);
        let block = &mut rest[..BLOCK];
        if at > 0 && repeats(at as u64 + 1) > repeats(at as u64) {
            let source = (random.next_u64() % at as u64) as usize * BLOCK;
            block.copy_from_slice(&earlier[source..source + BLOCK]);
        } else {
            block.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next_u64().to_le_bytes());
        }
    }
}

/// Bytes from one number in unshared content to the next: every piece that a chunker cuts contains one.
const STAMP_EVERY: usize = 2 << 10;
/// Words of 8 bytes that compressible content is made of.
const WORDS: usize = 256;

/// Content of one length, compressible or not, with a number every 2 KiB. As long as no number is used twice, nothing
/// of it can be shared.
#[derive(Clone)]
pub struct Unshared {
    /// Made of 256 words of 8 bytes.
    pub compressible: Vec<u8>,
    /// Random bytes.
    pub random: Vec<u8>,
}

impl Unshared {
    /// Makes content of `bytes` bytes, a multiple of 8.
    pub fn new(bytes: usize, seed: u64) -> Unshared {
        let mut random = Random(seed);
        let words: Vec<[u8; 8]> = (0..WORDS).map(|_| random.next_u64().to_le_bytes()).collect();
        Unshared {
            compressible: (0..bytes / 8).flat_map(|_| words[random.next_u64() as usize % WORDS]).collect(),
            random: (0..bytes / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect(),
        }
    }

    /// Returns the content with this number in it.
    pub fn stamped(&mut self, is_compressible: bool, number: u64) -> &[u8] {
        let content = if is_compressible { &mut self.compressible } else { &mut self.random };
        content.chunks_mut(STAMP_EVERY).for_each(|part| part[..8].copy_from_slice(&number.to_le_bytes()));
        content
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_share_of_duplicates_is_exact() {
        let mut seen = HashSet::new();
        for (seed, percent) in [(1, 0), (2, 25), (3, 50), (4, 75)] {
            let mut buffer = vec![0; 400 * BLOCK];
            fill(&mut buffer, percent, seed);
            let before = seen.len();
            seen.extend(buffer.chunks(BLOCK).map(<[u8]>::to_vec));
            assert_eq!((seen.len() - before) as u64, 400 - 4 * percent, "{percent} %");
        }
    }

    #[test]
    fn every_unshared_piece_is_unique() {
        let mut unshared = Unshared::new(64 << 10, 23);
        for is_compressible in [true, false] {
            let before = unshared.stamped(is_compressible, 6).to_vec();
            let after = unshared.stamped(is_compressible, 7);
            assert!(before.chunks(4096).zip(after.chunks(4096)).all(|(before, after)| before != after));
        }
        let one_of_words = unshared.compressible[8..16].to_vec();
        assert!(unshared.compressible.chunks(8).filter(|word| **word == one_of_words).count() > 10);
    }
}
