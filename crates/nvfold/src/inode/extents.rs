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
use std::ops::Range;

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

    /// Whether it is whole blocks of a file that lie in whole blocks of the device.
    pub fn is_whole_blocks(&self, offset: u64) -> bool {
        [offset, self.address, self.length].iter().all(|at| at.is_multiple_of(BLOCK_BYTES))
    }

    fn is_shifted(&self, offset: u64) -> bool {
        !(self.address ^ offset).is_multiple_of(BLOCK_BYTES)
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

/// Most extents in one leaf.
const LEAF_MAX: usize = 128;

type Item = (u64, Extent);

/// The extents of one file, sorted by file offset, in leaves of at most 128: a search is two binary searches, and
/// an insertion moves one leaf at most. A file that was written in order has a leaf of one extent, and
/// overwriting it in order changes that in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    leaves: Vec<Vec<Item>>,
    /// File offset of the first extent of each leaf.
    firsts: Vec<u64>,
    count: usize,
    bytes: u64,
    unwritten_bytes: u64,
    /// Extents whose bytes do not lie at the same place in a block as in the file (from byte-granular clones).
    shifted: usize,
}

/// A place between extents.
#[derive(Clone, Copy)]
struct Cursor {
    leaf: usize,
    at: usize,
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
        self.count
    }

    /// DRAM it takes, bytes.
    pub fn dram_bytes(&self) -> u64 {
        let items: usize = self.leaves.iter().map(Vec::capacity).sum();
        (items * size_of::<Item>() + self.leaves.capacity() * (size_of::<Vec<Item>>() + 8)) as u64
    }

    /// All extents in order of file offset.
    pub fn iter(&self) -> impl Iterator<Item = Item> + '_ {
        self.leaves.iter().flatten().copied()
    }

    /// The parts of extents that lie in `start..end`, in order.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = Item> + '_ {
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
            let (mut first, mut last) = (run.start.0, run.blocks_end());
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

    /// Whether replacing a range of whole blocks can never split an extent inside a block, so that no plan is
    /// needed before the commit.
    pub fn splits_only_between_blocks(&self) -> bool {
        self.shifted == 0
    }

    /// Makes `start..end` name nothing.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start < end {
            self.replace(start, end, None, None);
        }
    }

    /// Makes the range at `offset` name `extent`.
    pub fn insert(&mut self, offset: u64, extent: Extent) {
        self.replace(offset, offset + extent.length, Some(extent), None);
    }

    /// Plan and insertion in one pass, for a range of whole blocks when `splits_only_between_blocks`.
    pub fn exchange(&mut self, offset: u64, extent: Extent, dropped: &mut Runs) {
        debug_assert!(self.shifted == 0);
        self.replace(offset, offset + extent.length, Some(extent), Some(dropped));
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

    /// Cuts `start..end` out of the extents it overlaps and puts `new` there, merged with what it continues.
    /// `dropped` gets the blocks that lost their reference.
    fn replace(&mut self, start: u64, end: u64, new: Option<Extent>, mut dropped: Option<&mut Runs>) {
        let mut from = self.seek(start);
        let (mut left, mut right): (Option<Item>, Option<Item>) = (None, None);
        let mut gone = 0;
        for (offset, extent) in self.items_from(from).take_while(|(offset, _)| *offset < end) {
            gone += 1;
            let extent_end = offset + extent.length;
            if let Some(dropped) = &mut dropped {
                let skip = start.saturating_sub(offset);
                dropped.push(extent.sub(skip, extent_end.min(end) - offset - skip).blocks());
            }
            if offset < start {
                left = Some((offset, extent.sub(0, start - offset)));
            }
            if extent_end > end {
                right = Some((end, extent.sub(end - offset, extent_end - end)));
            }
        }
        let mut middle = None;
        if let Some(mut extent) = new {
            let mut offset = start;
            // Neighbours that are not cut may be continued as well; they are taken out and merged.
            if left.is_none()
                && let Some((cursor, before)) = self.before(from)
                && before.0 + before.1.length == start
                && before.1.continues(&extent)
            {
                (from, gone, left) = (cursor, gone + 1, Some(before));
            }
            if right.is_none()
                && let Some(after) = self.items_from(from).nth(gone).filter(|after| after.0 == end)
                && extent.continues(&after.1)
            {
                (gone, right) = (gone + 1, Some(after));
            }
            if let Some((before, part)) = left.take_if(|(_, part)| part.continues(&extent)) {
                extent = Extent { length: part.length + extent.length, ..part };
                offset = before;
            }
            if let Some((_, part)) = right.take_if(|(_, part)| extent.continues(part)) {
                extent.length += part.length;
            }
            middle = Some((offset, extent));
        }
        let mut items = [(0, Extent { length: 0, address: 0, unwritten: false }); 3];
        let mut count = 0;
        for item in [left, middle, right].into_iter().flatten() {
            items[count] = item;
            count += 1;
        }
        self.splice(from, gone, &items[..count]);
    }

    fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = Item> + '_ {
        // An empty range overlaps nothing.
        let end = if start < end { end } else { 0 };
        self.items_from(self.seek(start)).take_while(move |(offset, _)| *offset < end)
    }

    /// The place before the first extent that ends after `offset`.
    fn seek(&self, offset: u64) -> Cursor {
        let leaf = self.firsts.partition_point(|first| *first <= offset).saturating_sub(1);
        let Some(items) = self.leaves.get(leaf) else { return Cursor { leaf: 0, at: 0 } };
        Cursor { leaf, at: items.partition_point(|(start, extent)| start + extent.length <= offset) }
    }

    fn items_from(&self, from: Cursor) -> impl Iterator<Item = Item> + '_ {
        let first = self.leaves.get(from.leaf).map_or(&[][..], |items| &items[from.at..]);
        let rest = self.leaves.get(from.leaf + 1..).unwrap_or_default();
        first.iter().chain(rest.iter().flatten()).copied()
    }

    fn before(&self, cursor: Cursor) -> Option<(Cursor, Item)> {
        let (leaf, at) = match cursor {
            Cursor { leaf, at: 0 } => (leaf.checked_sub(1)?, self.leaves.get(leaf - 1)?.len().checked_sub(1)?),
            Cursor { leaf, at } => (leaf, at - 1),
        };
        Some((Cursor { leaf, at }, self.leaves[leaf][at]))
    }

    /// Takes `gone` extents out at `from` and puts `items` there.
    fn splice(&mut self, from: Cursor, gone: usize, items: &[Item]) {
        if self.leaves.is_empty() {
            self.leaves.push(Vec::new());
            self.firsts.push(0);
        }
        for item in items {
            self.account(item, true);
        }
        let in_first = gone.min(self.leaves[from.leaf].len() - from.at);
        self.account_gone(from.leaf, from.at..from.at + in_first);
        // What fits is written over what goes; then one insertion or removal makes up the difference.
        let over = in_first.min(items.len());
        let first = &mut self.leaves[from.leaf];
        first[from.at..from.at + over].copy_from_slice(&items[..over]);
        if over < items.len() {
            first.splice(from.at + over..from.at + over, items[over..].iter().copied());
        } else if over < in_first {
            first.drain(from.at + over..from.at + in_first);
        }
        let mut left_to_go = gone - in_first;
        while left_to_go > 0 {
            let next = from.leaf + 1;
            let taken = left_to_go.min(self.leaves[next].len());
            self.account_gone(next, 0..taken);
            self.leaves[next].drain(..taken);
            self.rebalance(next);
            left_to_go -= taken;
        }
        self.rebalance(from.leaf);
    }

    fn account_gone(&mut self, leaf: usize, range: Range<usize>) {
        for at in range {
            let item = self.leaves[leaf][at];
            self.account(&item, false);
        }
    }

    fn account(&mut self, (offset, extent): &Item, comes: bool) {
        let unwritten = if extent.unwritten { extent.length } else { 0 };
        let shifted = usize::from(extent.is_shifted(*offset));
        if comes {
            self.count += 1;
            self.bytes += extent.length;
            self.unwritten_bytes += unwritten;
            self.shifted += shifted;
        } else {
            self.count -= 1;
            self.bytes -= extent.length;
            self.unwritten_bytes -= unwritten;
            self.shifted -= shifted;
        }
    }

    /// Splits a leaf that is too long, drops an empty one, and records where it begins.
    fn rebalance(&mut self, leaf: usize) {
        let items = &mut self.leaves[leaf];
        match items.first() {
            None => {
                self.leaves.remove(leaf);
                self.firsts.remove(leaf);
                return;
            }
            Some((first, _)) => self.firsts[leaf] = *first,
        }
        if items.len() > LEAF_MAX {
            let upper = items.split_off(LEAF_MAX / 2);
            self.firsts.insert(leaf + 1, upper[0].0);
            self.leaves.insert(leaf + 1, upper);
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
