//! Data with an exact share of duplicate blocks, made before any clock starts.

const BLOCK: usize = 4096;

/// splitmix64: fast, and a seed is enough to make the same data again.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
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
            let source = (random.next() % at as u64) as usize * BLOCK;
            block.copy_from_slice(&earlier[source..source + BLOCK]);
        } else {
            block.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next().to_le_bytes());
        }
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
}
