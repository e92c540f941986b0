//! Gear and FastCDC: a hash that rolls with one shift and one addition.
//!
//! `hash = 2 * hash + GEAR[byte]`: a byte leaves the 64-bit hash by being shifted out, so no window is kept. A cut is
//! where chosen bits of the hash are 0. FastCDC (2016, 2020) tests more bits before the average length and fewer
//! after it, which concentrates lengths around the average, and starts at the minimum length.
//!
//! The dependency from hash to hash limits the speed, not the amount of work. So the sum over eight bytes is computed
//! independently of the hash, and the hash itself takes one shift and one addition for all of them:
//!
//! ```text
//!   hash after byte n of a block = (hash before << n) + sum of GEAR[byte k] << (n - k)
//! ```
//!
//! The table is that of the `fastcdc` crate, with which the tests compare it and its cuts.

use super::gear_table::GEAR;

/// The number of bytes that are summed independently of the hash.
const BLOCK_BYTES: usize = 8;

/// The rolling hash of the bytes since the minimum length.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gear {
    hash: u64,
}

impl Gear {
    /// Continues with `data`. Returns `Some(n)` if the bits of `mask` are 0 after the n-th byte.
    pub(super) fn find(&mut self, mask: u64, data: &[u8]) -> Option<usize> {
        let gear = &GEAR;
        let (blocks, rest) = data.as_chunks::<BLOCK_BYTES>();
        let mut hash = self.hash;
        for (number, block) in blocks.iter().enumerate() {
            let mut sum = 0u64;
            for (at, byte) in block.iter().enumerate() {
                sum = (sum << 1).wrapping_add(gear[usize::from(*byte)]);
                if (hash << (at + 1)).wrapping_add(sum) & mask == 0 {
                    return Some(number * BLOCK_BYTES + at + 1);
                }
            }
            hash = (hash << BLOCK_BYTES).wrapping_add(sum);
        }
        for (at, byte) in rest.iter().enumerate() {
            hash = (hash << 1).wrapping_add(gear[usize::from(*byte)]);
            if hash & mask == 0 {
                return Some(blocks.len() * BLOCK_BYTES + at + 1);
            }
        }
        self.hash = hash;
        None
    }

    /// Does the same with the first mask in the first `center` bytes of `data`, and with the second mask after them.
    #[cfg(feature = "papers")]
    pub(super) fn find_normalized(&mut self, masks: (u64, u64), center: usize, data: &[u8]) -> Option<usize> {
        let (before, behind) = data.split_at(center);
        self.find(masks.0, before).or_else(|| self.find(masks.1, behind).map(|count| center + count))
    }
}

/// Returns the masks of FastCDC for this average length: the one before it, and the one after it.
#[cfg(feature = "papers")]
pub(super) fn fastcdc_masks(average: usize) -> (u64, u64) {
    // log2 of the average, rounded.
    let bits = (2 * average * average).ilog2() as usize / 2;
    (fastcdc::v2020::MASKS[bits + 1], fastcdc::v2020::MASKS[bits - 1])
}
