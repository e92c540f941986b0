//! Extents: which media bytes a file range names.
//!
//! The map is a pure function of the log: replaying the entries in order gives the same extents, so the
//! reference counts that follow from it - a block's count is the number of extents that touch any byte of
//! it - are the same before and after a crash.
//!
//! Neighbours are merged only where the seam lies on a block boundary of the media. There no block is
//! touched by both, so merging never changes a count, and a file written in 4 KiB steps is still one extent.

use crate::media::{BLOCK_BYTES, BlockNumber};
use crate::space::{BlockRun, Runs};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// What one file range names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes; never 0.
    pub length: u64,
    /// Media address of the first byte.
    pub address: u64,
    /// Reserved: the bytes on the media mean nothing and read as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The blocks it touches.
    pub fn blocks(&self) -> BlockRun {
        let start = self.address / BLOCK_BYTES;
        BlockRun { start: BlockNumber(start), count: (self.address + self.length).div_ceil(BLOCK_BYTES) - start }
    }

    fn sub(&self, skip: u64, length: u64) -> Extent {
        Extent { length, address: self.address + skip, unwritten: self.unwritten }
    }

    fn continues(&self, next: &Extent) -> bool {
        let end = self.address + self.length;
        end == next.address && end.is_multiple_of(BLOCK_BYTES) && self.unwritten == next.unwritten
    }
}

/// How references change when a range of the map is replaced, apart from those of what replaces it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Blocks that lose one reference: release them after the commit.
    pub dropped: Runs,
    /// Blocks that gain one, because an extent falls into two that touch the same block: share them before.
    pub split: SmallVec<[BlockNumber; 2]>,
}

/// The extents of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    map: BTreeMap<u64, Extent>,
    bytes: u64,
    unwritten_bytes: u64,
}

impl Extents {
    /// Bytes that the extents name, reserved ones included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether any range is reserved but unwritten.
    pub fn has_unwritten(&self) -> bool {
        self.unwritten_bytes > 0
    }

    /// How many extents.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// All extents in order of file offset.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.map.iter().map(|(offset, extent)| (*offset, *extent))
    }

    /// The parts of extents that lie in `start..end`, in order.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        self.overlapping(start, end).map(move |(offset, extent)| {
            let from = offset.max(start);
            let to = (offset + extent.length).min(end);
            (from, extent.sub(from - offset, to - from))
        })
    }

    /// How references change when `start..end` is replaced.
    pub fn plan(&self, start: u64, end: u64) -> Plan {
        let mut plan = Plan::default();
        for (offset, extent) in self.overlapping(start, end) {
            let run = extent.blocks();
            let (mut first, mut last) = (run.start.0, run.start.0 + run.count);
            if offset < start {
                first = extent.sub(0, start - offset).blocks().blocks_end();
            }
            if offset + extent.length > end {
                last = (extent.address + (end - offset)) / BLOCK_BYTES;
            }
            if first < last {
                plan.dropped.push(BlockRun { start: BlockNumber(first), count: last - first });
            } else if first > last {
                plan.split.push(BlockNumber(last));
            }
        }
        plan
    }

    /// Makes `start..end` name nothing.
    pub fn remove(&mut self, start: u64, end: u64) {
        loop {
            let first = self.overlapping(start, end).next();
            let Some((offset, extent)) = first else { return };
            self.take(offset);
            if offset < start {
                self.put(offset, extent.sub(0, start - offset));
            }
            if offset + extent.length > end {
                self.put(end, extent.sub(end - offset, offset + extent.length - end));
            }
        }
    }

    /// Makes the range at `offset` name `extent`.
    pub fn insert(&mut self, offset: u64, extent: Extent) {
        self.remove(offset, offset + extent.length);
        let (mut start, mut merged) = (offset, extent);
        if let Some((&before, left)) = self.map.range(..offset).next_back()
            && before + left.length == offset
            && left.continues(&extent)
        {
            merged = Extent { length: left.length + extent.length, ..*left };
            start = before;
            self.take(before);
        }
        if let Some(right) = self.map.get(&(offset + extent.length))
            && merged.continues(right)
        {
            merged.length += right.length;
            self.take(offset + extent.length);
        }
        self.put(start, merged);
    }

    /// Media address of the reserved block at file offset `offset` (a multiple of 4096), if there is one.
    pub fn reserved_block(&self, offset: u64) -> Option<u64> {
        let (start, extent) = self.overlapping(offset, offset + BLOCK_BYTES).next()?;
        let address = extent.address.checked_add(offset.checked_sub(start)?)?;
        let whole = start + extent.length >= offset + BLOCK_BYTES && address.is_multiple_of(BLOCK_BYTES);
        (extent.unwritten && whole).then_some(address)
    }

    /// First byte at or after `offset` that is data (not a hole, not reserved), if any.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        self.overlapping(offset, u64::MAX).find(|(_, extent)| !extent.unwritten).map(|(start, _)| start.max(offset))
    }

    /// First byte at or after `offset` that is a hole or reserved.
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        for (start, extent) in self.overlapping(offset, u64::MAX) {
            if start > at || extent.unwritten {
                break;
            }
            at = start + extent.length;
        }
        at
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, Extent)> + '_ {
        let first = self.map.range(..=start).next_back().filter(|(offset, extent)| *offset + extent.length > start);
        let from = first.map_or(start, |(offset, _)| *offset);
        // An empty range overlaps nothing.
        let to = if start < end { end } else { from };
        self.map.range(from..to).map(|(offset, extent)| (*offset, *extent))
    }

    fn put(&mut self, offset: u64, extent: Extent) {
        self.bytes += extent.length;
        self.unwritten_bytes += if extent.unwritten { extent.length } else { 0 };
        self.map.insert(offset, extent);
    }

    fn take(&mut self, offset: u64) {
        if let Some(extent) = self.map.remove(&offset) {
            self.bytes -= extent.length;
            self.unwritten_bytes -= if extent.unwritten { extent.length } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn counts(extents: &Extents) -> HashMap<u64, i64> {
        let mut counts = HashMap::new();
        for (_, extent) in extents.iter() {
            for block in extent.blocks().blocks() {
                *counts.entry(block.0).or_insert(0) += 1;
            }
        }
        counts
    }

    proptest! {
        #[test]
        fn plans_and_merges_agree_with_a_byte_map(steps in prop::collection::vec(
            (0u64..40_000, 1u64..20_000, 0u64..60_000, 0u8..4), 1..60)) {
            let mut extents = Extents::default();
            let mut bytes: Vec<Option<u64>> = vec![None; 64_000];
            for (start, length, address, kind) in steps {
                // Half of the steps are block-aligned, as plain writes are.
                let round = |value: u64| if kind % 2 == 0 { value / 4096 * 4096 } else { value };
                let (start, length, address) = (round(start), round(length).max(if kind % 2 == 0 { 4096 } else { 1 }), round(address));
                let before = counts(&extents);
                let plan = extents.plan(start, start + length);
                extents.remove(start, start + length);
                let mut expected = before.clone();
                for block in plan.dropped.iter().flat_map(|run| run.blocks()) {
                    *expected.get_mut(&block.0).unwrap() -= 1;
                }
                for block in &plan.split {
                    *expected.get_mut(&block.0).unwrap() += 1;
                }
                expected.retain(|_, count| *count != 0);
                prop_assert_eq!(counts(&extents), expected);
                let mut with_new = counts(&extents);
                if kind < 2 {
                    let new = Extent { length, address, unwritten: false };
                    extents.insert(start, new);
                    new.blocks().blocks().for_each(|block| *with_new.entry(block.0).or_insert(0) += 1);
                }
                prop_assert_eq!(counts(&extents), with_new, "merging changes no count");
                for at in start..start + length {
                    bytes[at as usize] = (kind < 2).then_some(address + at - start);
                }
            }
            let mut seen: Vec<Option<u64>> = vec![None; 64_000];
            for (offset, extent) in extents.iter() {
                (0..extent.length).for_each(|at| seen[(offset + at) as usize] = Some(extent.address + at));
            }
            prop_assert_eq!(extents.bytes(), bytes.iter().filter(|byte| byte.is_some()).count() as u64);
            prop_assert!(seen == bytes);
        }
    }
}
