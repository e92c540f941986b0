//! How to find equal data without comparing it with everything?
//!
//! By a **weak** fingerprint: a short number that equal bytes always share and different bytes seldom do.
//! It finds candidates and never decides: whoever shares compares the bytes first. So a collision costs one
//! wasted compare and a wrong fingerprint costs a missed saving, never data.
//!
//! The function is XXH3, which reads at memory speed; its vector form is chosen from the CPU at run time.
//! Values are stored on the device, so the function, its seed (0) and the truncation are part of the media
//! format: the tests below pin them.

/// Weak fingerprint of a piece of data: the low 32 bits of its XXH3-64.
#[inline]
pub fn weak(block: &[u8]) -> u32 {
    weak64(block) as u32
}

/// XXH3-64 of a piece of data, seed 0, for uses that want more bits than [`weak`] stores.
#[inline]
pub fn weak64(block: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_on_media_never_change() {
        // Published XXH3-64 vectors (seed 0) of the empty input, and of inputs that take each internal path.
        assert_eq!(weak64(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(weak(b""), 0x38d3_94c2);
        assert_eq!(weak64(&[0u8; 4096]), ZERO_BLOCK);
        let ramp: Vec<u8> = (0..4096u32).map(|position| (position % 251) as u8).collect();
        assert_eq!(weak64(&ramp), RAMP_BLOCK);
    }

    // From the reference implementation (`xxhsum -H3` of 4096 zeros, and of the bytes 0..=250 repeated).
    const ZERO_BLOCK: u64 = 0x93d7_6fe1_48c6_89ba;
    const RAMP_BLOCK: u64 = 0x7135_ffa5_04f1_bc71;

    #[test]
    fn one_changed_byte_changes_the_fingerprint() {
        let block = vec![0x5au8; 4096];
        let whole = weak(&block);
        for position in 0..block.len() {
            let mut changed = block.clone();
            changed[position] ^= 1;
            assert_ne!(weak(&changed), whole, "byte {position} does not count");
        }
    }

    #[test]
    fn alignment_does_not_matter() {
        let long: Vec<u8> = (0..4096 + 64u32).map(|position| (position * 31 % 256) as u8).collect();
        for shift in 0..64 {
            let moved: Vec<u8> = long[shift..shift + 4096].to_vec();
            assert_eq!(weak64(&long[shift..shift + 4096]), weak64(&moved));
        }
    }
}
