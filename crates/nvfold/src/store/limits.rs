//! What limited trees use, and the check of their limits.
//!
//! The problem: a limit is exact only if no two writers can take what is left at the same time, and a change that fails must
//! not stay counted.
//!
//! The idea: each inode says in its attributes which tree it is charged to, and DRAM has a record for each tree. A change
//! that makes a file longer takes what it adds before its commit, under the lock of the inode, and gives it back if there
//! is no commit ([`Charge`]). All that does not grow is counted after its commit, and is never refused.
//!
//! A tree without a top has lost it, or its limits, while inodes were still charged to it: open files, and files that had
//! another name elsewhere. Nobody else gets its number.

use super::Store;
use super::remap::Remap;
use crate::error::{Error, Result};
use crate::inode::extents::Extent;
use crate::inode::{Body, State};
use crate::media::limits::{TREE_LIMITS, TreeLimits};
use crate::words::Limits;
use nvfold_sync::Mutex;
use std::collections::BTreeMap;

/// A limited tree, and what is used of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeUse {
    /// The directory that has the limits.
    pub(crate) top: Option<u64>,
    pub(crate) limits: Limits,
    /// Bytes that its files map.
    pub(crate) logical_bytes: u64,
    pub(crate) inodes: u64,
    /// True while inodes below are still being charged to it, or elsewhere.
    pub(crate) is_being_charged: bool,
}

impl TreeUse {
    /// Checks whether this much more is within the limits.
    fn check(&self, doing: &'static str, bytes: u64, inodes: u64) -> Result<()> {
        let Limits { logical_bytes, inodes: inodes_most, .. } = self.limits;
        let of_bytes = ("bytes of content", logical_bytes, self.logical_bytes, bytes);
        let of_inodes = ("inodes", inodes_most, self.inodes, inodes);
        for (what, most, used, needed) in [of_bytes, of_inodes] {
            let Some(most) = most.filter(|_| needed > 0) else { continue };
            let left = most.saturating_sub(used);
            if needed > left {
                return Err(Error::OverLimit { doing, top: self.top.unwrap_or(0), what, most, needed, left });
            }
        }
        Ok(())
    }
}

/// The limited trees of a mount, by their numbers.
#[derive(Default)]
pub(crate) struct LimitedTrees {
    trees: Mutex<BTreeMap<u16, TreeUse>>,
}

impl LimitedTrees {
    /// Returns the tree with this number.
    pub(crate) fn get(&self, tree: u16) -> Option<TreeUse> {
        self.trees.lock().get(&tree).copied()
    }

    /// Returns all of them.
    pub(crate) fn all(&self) -> Vec<(u16, TreeUse)> {
        self.trees.lock().iter().map(|(tree, used)| (*tree, *used)).collect()
    }

    /// Returns a tree that is being charged.
    pub(crate) fn being_charged(&self) -> Option<(u16, TreeUse)> {
        self.trees.lock().iter().find(|(_, used)| used.is_being_charged).map(|(tree, used)| (*tree, *used))
    }

    /// True if this directory has the limits of the tree with this number.
    pub(crate) fn is_top(&self, tree: u16, ino: u64) -> bool {
        tree != 0 && self.get(tree).is_some_and(|found| found.top == Some(ino))
    }

    /// Returns the number if there is a tree with it that has a top, else 0.
    pub(crate) fn known(&self, tree: u16) -> u16 {
        if tree != 0 && self.get(tree).is_some_and(|found| found.top.is_some()) { tree } else { 0 }
    }

    /// Takes a number that no inode is charged to, for a tree with this top, or whose top is still to be made.
    pub(crate) fn take_number(&self, top: Option<u64>, limits: &Limits) -> Option<u16> {
        let mut trees = self.trees.lock();
        let mut number: u16 = 1;
        for taken in trees.keys() {
            if *taken != number {
                break;
            }
            number = number.checked_add(1)?;
        }
        trees.insert(number, TreeUse { top, limits: *limits, ..TreeUse::default() });
        Some(number)
    }

    /// Gives up a number whose tree has neither a top nor inodes.
    pub(crate) fn give_up_number(&self, tree: u16) {
        let mut trees = self.trees.lock();
        if trees.get(&tree).is_some_and(|found| found.top.is_none() && found.inodes == 0) {
            trees.remove(&tree);
        }
    }

    /// Sets top and limits of a tree.
    pub(crate) fn set(&self, tree: u16, top: u64, limits: &Limits, is_being_charged: bool) {
        let mut trees = self.trees.lock();
        let found = trees.entry(tree).or_default();
        *found = TreeUse { top: Some(top), limits: *limits, is_being_charged, ..*found };
    }

    /// Takes its top from a tree, if it is this directory. The tree keeps its limits as long as it has inodes.
    pub(crate) fn lose_top(&self, tree: u16, top: u64) {
        let mut trees = self.trees.lock();
        let Some(found) = trees.get_mut(&tree).filter(|found| found.top == Some(top)) else { return };
        (found.top, found.is_being_charged) = (None, false);
        if found.inodes == 0 {
            trees.remove(&tree);
        }
    }

    /// Takes over what a clean unmount has saved.
    pub(crate) fn adopt(&self, trees: impl IntoIterator<Item = (u16, TreeUse)>) {
        self.trees.lock().extend(trees);
    }

    /// Counts more, or less in two's complement.
    fn add(&self, tree: u16, bytes: u64, inodes: u64) {
        let mut trees = self.trees.lock();
        let found = trees.entry(tree).or_default();
        found.logical_bytes = found.logical_bytes.wrapping_add(bytes);
        found.inodes = found.inodes.wrapping_add(inodes);
        if found.top.is_none() && found.inodes == 0 {
            trees.remove(&tree);
        }
    }

    /// Counts more if the limits leave as many bytes as are `needed`.
    fn charge(&self, doing: &'static str, tree: u16, (bytes, needed): (u64, u64), inodes: u64) -> Result<()> {
        let mut trees = self.trees.lock();
        let found = trees.entry(tree).or_default();
        found.check(doing, needed, inodes)?;
        found.logical_bytes = found.logical_bytes.wrapping_add(bytes);
        found.inodes = found.inodes.wrapping_add(inodes);
        Ok(())
    }
}

/// What a change has taken from a limit before its commit. Dropping it gives it back.
#[must_use = "what is dropped is given back"]
pub(crate) struct Charge<'s> {
    trees: &'s LimitedTrees,
    tree: u16,
    bytes: u64,
    inodes: u64,
}

impl Charge<'_> {
    /// Returns the bytes that it has taken.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Keeps what it has taken, after the commit.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        self.trees.add(self.tree, self.bytes.wrapping_neg(), self.inodes.wrapping_neg());
    }
}

impl Store {
    /// Charges bytes and inodes to a limited tree; `None` for none.
    ///
    /// # Errors
    /// EDQUOT; also while recovery has not counted what is used: then the caller waits for it and tries again.
    #[inline]
    pub(crate) fn charge(&self, doing: &'static str, tree: u16, bytes: u64, inodes: u64) -> Result<Option<Charge<'_>>> {
        if tree == 0 { Ok(None) } else { self.charge_to(doing, tree, bytes, inodes).map(Some) }
    }

    #[inline(never)]
    fn charge_to(&self, doing: &'static str, tree: u16, bytes: u64, inodes: u64) -> Result<Charge<'_>> {
        self.check_counted(doing)?;
        self.limits.charge(doing, tree, (bytes, bytes), inodes)?;
        Ok(Charge { trees: &self.limits, tree, bytes, inodes })
    }

    /// Checks that recovery knows all limited trees and what they use.
    ///
    /// # Errors
    /// EDQUOT while it does not: the caller waits for recovery and tries again.
    pub(crate) fn check_counted(&self, doing: &'static str) -> Result<()> {
        let what = "inodes and bytes that recovery has not counted yet";
        let unknown = Error::OverLimit { doing, top: 0, what, most: 0, needed: 0, left: 0 };
        if self.is_reconciling() { Err(unknown) } else { Ok(()) }
    }

    /// Charges what a change adds to the bytes that a file maps. A change that only moves content is never refused, and no
    /// more is needed than content: the rest of the last block of a file counts where the block is stored whole, and refuses
    /// nothing. So what is there can be overwritten however full the tree is.
    ///
    /// # Errors
    /// Those of [`Store::charge`].
    #[inline]
    pub(super) fn charge_growth(&self, state: &State, remap: &Remap<'_>) -> Result<Option<Charge<'_>>> {
        let tree = state.attributes.tree;
        if tree == 0 || remap.mapped.is_empty() || remap.stamp.keeps_content() {
            return Ok(None);
        }
        self.charge_growth_of(tree, state, remap)
    }

    #[inline(never)]
    fn charge_growth_of(&self, tree: u16, state: &State, remap: &Remap<'_>) -> Result<Option<Charge<'_>>> {
        let extents = self.file_extents(state, "write")?;
        let end = state.attributes.size.max(remap.stamp.attributes(&state.attributes).size);
        let replaced = || remap.ranges.iter().flat_map(|range| extents.within(range.start, range.end));
        let length = |(_, extent): (u64, Extent)| extent.length;
        let content = |(offset, extent): (u64, Extent)| match extent.unwritten {
            true => extent.length,
            false => (offset + extent.length).min(end).saturating_sub(offset),
        };
        let mapped = || remap.mapped.iter().copied();
        let growth = mapped().map(length).sum::<u64>().saturating_sub(replaced().map(length).sum());
        let needed = mapped().map(content).sum::<u64>().saturating_sub(replaced().map(content).sum());
        if growth == 0 {
            return Ok(None);
        }
        self.check_counted("write")?;
        self.limits.charge("write", tree, (growth, needed.min(growth)), 0)?;
        Ok(Some(Charge { trees: &self.limits, tree, bytes: growth, inodes: 0 }))
    }

    /// Counts a change of the bytes that an inode maps, of which `charged` were counted before the commit.
    pub(crate) fn account_mapped(&self, ino: u64, tree: u16, (before, after): (u64, u64), charged: u64) {
        if before == after && charged == 0 || !self.is_walked(ino) {
            return;
        }
        // Two's complement: a decrease is an addition too.
        let added = after.wrapping_sub(before);
        self.mapped_bytes.add(added);
        if tree != 0 && added != charged {
            self.limits.add(tree, added.wrapping_sub(charged), 0);
        }
    }

    /// Counts an inode that was freed.
    pub(crate) fn uncount_inode(&self, ino: u64, tree: u16) {
        if tree != 0 && self.is_walked(ino) {
            self.limits.add(tree, 0, 1u64.wrapping_neg());
        }
        if tree != 0 {
            self.limits.lose_top(tree, ino);
        }
    }

    /// Counts a locked inode that is charged to another tree from now on.
    pub(crate) fn move_charge(&self, ino: u64, state: &State, from: u16) {
        let (to, bytes) = (state.attributes.tree, state.mapped_bytes());
        if from == to || !self.is_walked(ino) {
            return;
        }
        if to != 0 {
            self.limits.add(to, bytes, 1);
        }
        if from != 0 {
            self.limits.add(from, bytes.wrapping_neg(), 1u64.wrapping_neg());
        }
    }

    /// Recovery: counts an inode that was read from the media. Of two directories with limits of one tree the first is
    /// its top, and limits that are damaged are none: fsck decides about both.
    pub(crate) fn count_charged(&self, ino: u64, state: &State) {
        if let Some(limits) = limits_of(state) {
            let top = self.limits.get(limits.tree).and_then(|found| found.top);
            if top.is_none() {
                self.limits.set(limits.tree, ino, &limits.limits(), limits.is_being_charged());
            }
        }
        if state.attributes.tree != 0 {
            self.limits.add(state.attributes.tree, state.mapped_bytes(), 1);
        }
    }
}

/// Returns the limits that a directory has; `None` also if they are damaged.
pub(crate) fn limits_of(state: &State) -> Option<TreeLimits> {
    match state.body {
        Body::Directory(_) => state.short_attribute(TREE_LIMITS).and_then(TreeLimits::read),
        Body::File(_) | Body::Other => None,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { logical_bytes: Some(10), inodes: Some(2), expires: None };

    #[test]
    fn the_lowest_number_without_a_tree_is_taken_until_none_is_left() {
        let trees = LimitedTrees::default();
        trees.adopt((1..=u16::MAX).filter(|number| *number != 700).map(|number| (number, TreeUse::default())));
        assert_eq!(trees.take_number(Some(5), &LIMITS), Some(700));
        assert_eq!(trees.take_number(Some(6), &LIMITS), None);
        trees.lose_top(700, 6);
        assert_eq!(trees.take_number(Some(6), &LIMITS), None, "the top is another one");
        trees.lose_top(700, 5);
        assert_eq!(trees.take_number(None, &LIMITS), Some(700));
        trees.give_up_number(700);
        assert_eq!(trees.get(700), None);
    }

    #[test]
    fn a_tree_takes_exactly_what_its_limits_leave_and_lives_until_it_is_empty() {
        let trees = LimitedTrees::default();
        let tree = trees.take_number(Some(5), &LIMITS).unwrap();
        trees.charge("test", tree, (10, 10), 1).unwrap();
        let error = trees.charge("test", tree, (1, 1), 0).unwrap_err();
        assert!(matches!(error, Error::OverLimit { top: 5, most: 10, needed: 1, left: 0, .. }), "{error}");
        // What is not content is counted, and refused by no limit.
        trees.charge("test", tree, (7, 0), 0).unwrap();
        trees.charge("test", tree, (0, 0), 1).unwrap();
        assert_eq!(trees.charge("test", tree, (0, 0), 1).unwrap_err().errno(), crate::errno::EDQUOT);
        drop(Charge { trees: &trees, tree, bytes: 7, inodes: 1 });
        let used = trees.get(tree).unwrap();
        assert_eq!((used.logical_bytes, used.inodes, trees.is_top(tree, 5), trees.known(tree)), (10, 1, true, tree));
        trees.lose_top(tree, 5);
        assert_eq!((trees.known(tree), trees.get(tree).unwrap().inodes), (0, 1));
        trees.add(tree, 10u64.wrapping_neg(), 1u64.wrapping_neg());
        assert_eq!(trees.get(tree), None);
    }
}
