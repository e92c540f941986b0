//! A node of the tree: its bytes, the same in DRAM and on the media.
//!
//! ```text
//! leaf    level 0, 0 | entries u16  | fingerprint 16 B, block u32, references u32 | ...
//! inner   level, 0   | children u16 | child u32 | separator u32, child u32 | ...
//! ```
//!
//! A leaf is sorted by fingerprint. A separator is the first four bytes of a fingerprint. Fingerprints are random, so
//! four bytes distinguish neighbours, and a line holds eight children instead of three with whole keys. Child `i` has
//! the fingerprints whose first bytes are at least separator `i - 1` and less than separator `i`.

use super::RivalError;
use std::ops::{Deref, DerefMut};

/// First 128 bits of a strong fingerprint: all of MD5.
pub(super) type Key = u128;

/// Bytes before the entries of a leaf, and before the first child.
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 24;
/// A separator and the child after it.
const PAIR_BYTES: usize = 8;
/// The first pair follows the first child.
const PAIRS_OFFSET: usize = 8;

/// Place of a node: its number among the places of its kind, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place(pub u32);

/// The entry of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its fingerprint.
    pub key: Key,
    /// The block.
    pub block: u32,
    /// Its number of references.
    pub references: u32,
}

/// Returns the part of a key that is compared on the way to a leaf.
pub(super) fn prefix(key: Key) -> u32 {
    (key >> 96) as u32
}

/// Returns the maximum number of entries of a leaf, or of children of an inner node, of `bytes` bytes.
pub(super) const fn most(level: u8, bytes: usize) -> usize {
    if level == 0 { (bytes - HEAD_BYTES) / ENTRY_BYTES } else { 1 + (bytes - PAIRS_OFFSET) / PAIR_BYTES }
}

/// Returns where to cut entries in two, nearest to the middle; `None` if all fingerprints begin alike.
pub(super) fn middle_of(entries: &[Entry]) -> Option<usize> {
    let differs = |at: &usize| prefix(entries[at - 1].key) != prefix(entries[*at].key);
    (1..entries.len()).filter(differs).min_by_key(|at| at.abs_diff(entries.len() / 2))
}

/// A node as bytes.
pub(super) struct Node<B>(pub B);

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// Reading a node.
impl<B: Deref<Target = [u8]>> Node<B> {
    /// Returns the number of levels below it.
    pub(super) fn level(&self) -> u8 {
        self.0[0]
    }

    /// Returns the number of entries or children.
    pub(super) fn len(&self) -> usize {
        usize::from(u16::from_le_bytes([self.0[2], self.0[3]]))
    }

    /// Returns the maximum number of entries or children.
    pub(super) fn most(&self) -> usize {
        most(self.level(), self.0.len())
    }

    /// Returns the bytes in use.
    pub(super) fn used_bytes(&self) -> usize {
        match self.level() {
            0 => HEAD_BYTES + self.len() * ENTRY_BYTES,
            _ => pair_offset(self.len().saturating_sub(1)),
        }
    }

    /// Returns an entry of a leaf.
    pub(super) fn entry(&self, at: usize) -> Entry {
        let bytes = &self.0[entry_offset(at)..entry_offset(at + 1)];
        let key = u128::from_le_bytes(bytes[..16].try_into().expect("16 bytes"));
        Entry { key, block: word(bytes, 16), references: word(bytes, 20) }
    }

    /// Iterates over all entries of a leaf.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        (0..self.len()).map(|at| self.entry(at))
    }

    /// Returns the position of a fingerprint in a leaf, or the position where it would be.
    pub(super) fn search(&self, key: Key) -> Result<usize, usize> {
        let at = first_where(self.len(), |at| self.entry(at).key >= key);
        if at < self.len() && self.entry(at).key == key { Ok(at) } else { Err(at) }
    }

    /// Returns a child of an inner node.
    pub(super) fn child(&self, at: usize) -> Place {
        Place(word(&self.0, if at == 0 { HEAD_BYTES } else { pair_offset(at - 1) + 4 }))
    }

    /// Returns the separator after a child.
    pub(super) fn separator(&self, at: usize) -> u32 {
        word(&self.0, pair_offset(at))
    }

    /// Returns the position of the child that has a fingerprint.
    pub(super) fn child_of(&self, key: Key) -> usize {
        first_where(self.len() - 1, |at| self.separator(at) > prefix(key))
    }

    /// Checks that it is a valid node of a level.
    ///
    /// # Errors
    /// It is not. `at` is its offset.
    pub(super) fn check(&self, level: u8, at: u64) -> Result<(), RivalError> {
        let damaged = |what| Err(RivalError::Damaged { what, at });
        if self.level() != level || self.len() == 0 || self.len() > self.most() {
            return damaged("the head of a node");
        }
        let sorted = match level {
            0 => (1..self.len()).all(|at| self.entry(at - 1).key < self.entry(at).key),
            _ => (2..self.len()).all(|at| self.separator(at - 2) < self.separator(at - 1)),
        };
        if sorted { Ok(()) } else { damaged("the order in a node") }
    }
}

/// Changing a node.
impl<B: DerefMut<Target = [u8]>> Node<B> {
    /// Makes it a leaf with these entries.
    pub(super) fn set_entries(&mut self, entries: &[Entry]) {
        self.set_head(0, entries.len());
        entries.iter().enumerate().for_each(|(at, entry)| self.set_entry(at, *entry));
    }

    /// Makes it an inner node with one child.
    pub(super) fn set_only_child(&mut self, level: u8, child: Place) {
        self.set_head(level, 1);
        self.set_child(0, child);
    }

    fn set_head(&mut self, level: u8, length: usize) {
        self.0[..2].copy_from_slice(&[level, 0]);
        self.set_len(length);
    }

    fn set_len(&mut self, length: usize) {
        self.0[2..4].copy_from_slice(&(length as u16).to_le_bytes());
    }

    /// Replaces an entry.
    pub(super) fn set_entry(&mut self, at: usize, entry: Entry) {
        let bytes = &mut self.0[entry_offset(at)..entry_offset(at + 1)];
        bytes[..16].copy_from_slice(&entry.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&entry.block.to_le_bytes());
        bytes[20..].copy_from_slice(&entry.references.to_le_bytes());
    }

    /// Adds an entry to a leaf that is not full.
    pub(super) fn insert_entry(&mut self, at: usize, entry: Entry) {
        let length = self.len();
        self.0.copy_within(entry_offset(at)..entry_offset(length), entry_offset(at + 1));
        self.set_len(length + 1);
        self.set_entry(at, entry);
    }

    /// Removes an entry of a leaf.
    pub(super) fn remove_entry(&mut self, at: usize) {
        let length = self.len();
        self.0.copy_within(entry_offset(at + 1)..entry_offset(length), entry_offset(at));
        self.set_len(length - 1);
    }

    /// Sets a child.
    pub(super) fn set_child(&mut self, at: usize, child: Place) {
        let offset = if at == 0 { HEAD_BYTES } else { pair_offset(at - 1) + 4 };
        self.0[offset..offset + 4].copy_from_slice(&child.0.to_le_bytes());
    }

    /// Adds a child after another one, in a node that is not full.
    pub(super) fn insert_child(&mut self, behind: usize, separator: u32, child: Place) {
        let length = self.len();
        self.0.copy_within(pair_offset(behind)..pair_offset(length - 1), pair_offset(behind + 1));
        self.0[pair_offset(behind)..][..4].copy_from_slice(&separator.to_le_bytes());
        self.set_len(length + 1);
        self.set_child(behind + 1, child);
    }

    /// Removes a child. Its left neighbour takes over its range of fingerprints; without one, the right neighbour does.
    pub(super) fn remove_child(&mut self, at: usize) {
        let length = self.len();
        if at == 0 && length > 1 {
            self.set_child(0, self.child(1));
        }
        let pair = at.saturating_sub(1);
        if length > 1 {
            self.0.copy_within(pair_offset(pair + 1)..pair_offset(length - 1), pair_offset(pair));
        }
        self.set_len(length - 1);
    }

    /// Moves the upper half of an inner node to `right`; returns the separator between them.
    pub(super) fn split_to(&mut self, right: &mut [u8]) -> u32 {
        let (length, middle) = (self.len(), self.len() / 2);
        let mut right = Node(right);
        right.set_only_child(self.level(), self.child(middle));
        let pairs = &self.0[pair_offset(middle)..pair_offset(length - 1)];
        right.0[PAIRS_OFFSET..PAIRS_OFFSET + pairs.len()].copy_from_slice(pairs);
        right.set_len(length - middle);
        self.set_len(middle);
        self.separator(middle - 1)
    }

    /// Appends the content of its right neighbour.
    pub(super) fn absorb(&mut self, separator: u32, right: &[u8]) {
        let (length, right) = (self.len(), Node(right));
        if self.level() == 0 {
            right.entries().enumerate().for_each(|(at, entry)| self.set_entry(length + at, entry));
            self.set_len(length + right.len());
            return;
        }
        self.insert_child(length - 1, separator, right.child(0));
        for at in 1..right.len() {
            self.insert_child(length + at - 1, right.separator(at - 1), right.child(at));
        }
    }
}

fn entry_offset(at: usize) -> usize {
    HEAD_BYTES + at * ENTRY_BYTES
}

fn pair_offset(at: usize) -> usize {
    PAIRS_OFFSET + at * PAIR_BYTES
}

/// Returns the first of `0..length` for which `holds` is true, if it is true for all later ones too; `length` if
/// there is none.
fn first_where(length: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, length);
    while low < high {
        let middle = low.midpoint(high);
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: u128) -> Entry {
        Entry { key, block: key as u32 + 1, references: 2 }
    }

    #[test]
    fn an_encoded_tree_node_never_exceeds_its_size() {
        assert_eq!((most(0, 64), most(1, 64)), (2, 8));
        assert_eq!((most(0, 4096), most(1, 4096)), (170, 512));
        for bytes in [64, 128, 256, 4096] {
            let mut leaf = Node(vec![0xaa; bytes]);
            leaf.set_entries(&[]);
            let mut inner = Node(vec![0xaa; bytes]);
            inner.set_only_child(3, Place(7));
            for at in 0..leaf.most() {
                leaf.insert_entry(0, entry((leaf.most() - at) as u128));
            }
            for at in 1..inner.most() {
                inner.insert_child(at - 1, at as u32, Place(at as u32 + 7));
            }
            assert!(leaf.used_bytes() <= bytes && leaf.used_bytes() + ENTRY_BYTES > bytes);
            assert_eq!(inner.used_bytes(), bytes);
            leaf.check(0, 0).unwrap();
            inner.check(3, 0).unwrap();
            assert!(leaf.check(1, 0).is_err() && inner.check(2, 0).is_err(), "of another level");
            assert_eq!(leaf.search(2), Ok(1));
            assert_eq!(leaf.search(1 << 100), Err(leaf.most()));
            assert_eq!((inner.child_of(0), inner.child_of(3 << 96), inner.child(3)), (0, 3, Place(10)));
        }
    }

    #[test]
    fn a_node_that_is_split_and_joined_again_is_unchanged() {
        let mut node = Node(vec![0; 64]);
        node.set_only_child(1, Place(1));
        (1..8).for_each(|at| node.insert_child(at as usize - 1, at * 10, Place(at + 1)));
        let (before, mut right) = (node.0.clone(), vec![0; 64]);
        let separator = node.split_to(&mut right);
        assert_eq!((node.len(), separator, Node(&right[..]).len()), (4, 40, 4));
        node.check(1, 0).unwrap();
        Node(&right[..]).check(1, 0).unwrap();
        node.absorb(separator, &right);
        assert_eq!(node.0, before);
        node.remove_child(0);
        node.remove_child(3);
        let children: Vec<u32> = (0..node.len()).map(|at| node.child(at).0).collect();
        let separators: Vec<u32> = (0..node.len() - 1).map(|at| node.separator(at)).collect();
        assert_eq!((children, separators), (vec![2, 3, 4, 6, 7, 8], vec![20, 30, 50, 60, 70]));
    }

    #[test]
    fn a_split_keeps_fingerprints_with_equal_prefixes_in_one_node() {
        let high = 5u128 << 96;
        assert_eq!(middle_of(&[1, high, high + 1, high + 2].map(entry)), Some(1));
        assert_eq!(middle_of(&[high, high + 1, high + 2].map(entry)), None);
    }
}
