//! A node of the tree, in DRAM and as bytes.
//!
//! ```text
//! leaf    level 0 | entries u16    | fingerprint 16 B, block u32, references u32 | ...
//! inner   level   | children u16   | child u32 | ... | separator u32 | ...
//! ```
//!
//! A leaf is sorted by fingerprint. A separator is the first four bytes of a fingerprint: fingerprints are random, so
//! four bytes tell neighbours apart, and a line holds eight children where it would hold three with whole keys. Child
//! `i` has the fingerprints whose first bytes are at least separator `i - 1` and less than separator `i`.

use super::RivalError;

/// First 128 bits of a strong fingerprint: all of MD5.
pub type Key = u128;

/// Bytes before the entries of a node.
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 24;
const CHILD_BYTES: usize = 4;

/// Where a node lies: its number among the places of its kind, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place(pub u32);

/// What is kept of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its fingerprint.
    pub key: Key,
    /// The block.
    pub block: u32,
    /// How often it is named.
    pub references: u32,
}

/// A node in DRAM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// Level 0.
    Leaf(Vec<Entry>),
    /// Level 1 and up.
    Inner {
        /// Levels below it.
        level: u8,
        /// One less than children.
        separators: Vec<u32>,
        /// Nodes one level below.
        children: Vec<Place>,
    },
}

/// What is compared on the way to a leaf.
pub fn prefix(key: Key) -> u32 {
    (key >> 96) as u32
}

/// Most entries of a leaf of so many bytes.
pub const fn entries_max(leaf_bytes: usize) -> usize {
    (leaf_bytes - HEAD_BYTES) / ENTRY_BYTES
}

/// Most children of an inner node of so many bytes.
pub const fn children_max(inner_bytes: usize) -> usize {
    (inner_bytes - HEAD_BYTES + size_of::<u32>()) / (CHILD_BYTES + size_of::<u32>())
}

/// Where to cut a leaf in two, nearest to the middle; `None` when all its fingerprints begin alike.
pub fn middle_of(entries: &[Entry]) -> Option<usize> {
    let differs = |at: &usize| prefix(entries[at - 1].key) != prefix(entries[*at].key);
    (1..entries.len()).filter(differs).min_by_key(|at| at.abs_diff(entries.len() / 2))
}

impl Node {
    /// Levels below it.
    pub fn level(&self) -> u8 {
        match self {
            Node::Leaf(_) => 0,
            Node::Inner { level, .. } => *level,
        }
    }

    /// Entries or children.
    pub fn len(&self) -> usize {
        match self {
            Node::Leaf(entries) => entries.len(),
            Node::Inner { children, .. } => children.len(),
        }
    }

    /// Where to cut it in two; `None` for a leaf that cannot be.
    pub fn middle(&self) -> Option<usize> {
        match self {
            Node::Inner { .. } => Some(self.len() / 2),
            Node::Leaf(entries) => middle_of(entries),
        }
    }

    /// Cuts off what is behind `middle`; returns the separator and the new right node.
    pub fn split(&mut self, middle: usize) -> (u32, Node) {
        match self {
            Node::Leaf(entries) => {
                let right = entries.split_off(middle);
                (prefix(right[0].key), Node::Leaf(right))
            }
            Node::Inner { level, separators, children } => {
                let right = children.split_off(middle);
                let right_separators = separators.split_off(middle);
                let separator = separators.pop().expect("one separator between the halves");
                (separator, Node::Inner { level: *level, separators: right_separators, children: right })
            }
        }
    }

    /// Takes in its right neighbour.
    pub fn absorb(&mut self, separator: u32, right: Node) {
        match (self, right) {
            (Node::Leaf(entries), Node::Leaf(more)) => entries.extend(more),
            (Node::Inner { separators, children, .. }, Node::Inner { separators: more, children: grand, .. }) => {
                separators.push(separator);
                separators.extend(more);
                children.extend(grand);
            }
            _ => unreachable!("neighbours are of one level"),
        }
    }

    /// As it lies on the media: what is in use of it.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        bytes.extend([self.level(), 0]);
        bytes.extend((self.len() as u16).to_le_bytes());
        match self {
            Node::Leaf(entries) => {
                for entry in entries {
                    bytes.extend(entry.key.to_le_bytes());
                    bytes.extend(entry.block.to_le_bytes());
                    bytes.extend(entry.references.to_le_bytes());
                }
            }
            Node::Inner { separators, children, .. } => {
                children.iter().for_each(|child| bytes.extend(child.0.to_le_bytes()));
                separators.iter().for_each(|separator| bytes.extend(separator.to_le_bytes()));
            }
        }
    }

    /// Reads a node of a level.
    ///
    /// # Errors
    /// The bytes are no node of that level.
    pub fn decode(level: u8, bytes: &[u8], at: u64) -> Result<Node, RivalError> {
        let damaged = |what| RivalError::Damaged { what, at };
        let length = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        let most = if level == 0 { entries_max(bytes.len()) } else { children_max(bytes.len()) };
        if bytes[0] != level || length == 0 || length > most {
            return Err(damaged("the head of a node"));
        }
        if level == 0 {
            let entry = |part: &[u8; ENTRY_BYTES]| Entry {
                key: u128::from_le_bytes(part[..16].try_into().expect("16 bytes")),
                block: u32::from_le_bytes(part[16..20].try_into().expect("4 bytes")),
                references: u32::from_le_bytes(part[20..].try_into().expect("4 bytes")),
            };
            let entries: Vec<Entry> = bytes[HEAD_BYTES..].as_chunks().0[..length].iter().map(entry).collect();
            let sorted = entries.is_sorted_by(|left, right| left.key < right.key);
            return if sorted { Ok(Node::Leaf(entries)) } else { Err(damaged("the order of a leaf")) };
        }
        let words = bytes[HEAD_BYTES..].as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let children: Vec<Place> = words.clone().take(length).map(Place).collect();
        let separators: Vec<u32> = words.skip(length).take(length - 1).collect();
        let sorted = separators.is_sorted_by(|left, right| left < right);
        if sorted { Ok(Node::Inner { level, separators, children }) } else { Err(damaged("the order of a node")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_fills_its_bytes_and_no_more() {
        assert_eq!((entries_max(128), children_max(64)), (5, 8));
        assert_eq!((entries_max(4096), children_max(4096)), (170, 512));
        for (leaf_bytes, inner_bytes) in [(64, 64), (128, 64), (256, 128), (4096, 4096)] {
            let entry = |at| Entry { key: at as u128, block: 1, references: 1 };
            let leaf = Node::Leaf((0..entries_max(leaf_bytes)).map(entry).collect());
            let count = children_max(inner_bytes) as u32;
            let children = (0..count).map(|at| Place(at + 7)).collect();
            let inner = Node::Inner { level: 3, separators: (1..count).collect(), children };
            for (node, size) in [(leaf, leaf_bytes), (inner, inner_bytes)] {
                let (level, mut bytes) = (node.level(), Vec::new());
                node.encode(&mut bytes);
                assert!(bytes.len() <= size);
                bytes.resize(size, 0);
                assert_eq!(Node::decode(level, &bytes, 0).unwrap(), node);
                assert!(Node::decode(level + 1, &bytes, 0).is_err(), "of another level");
            }
        }
    }

    #[test]
    fn fingerprints_that_begin_alike_stay_together() {
        let entry = |key: u128| Entry { key, block: 0, references: 1 };
        let high = 5u128 << 96;
        let mut node = Node::Leaf([1, high, high + 1, high + 2].map(entry).to_vec());
        let middle = node.middle().unwrap();
        let (separator, right) = node.split(middle);
        assert_eq!((node.len(), separator, right.len()), (1, 5, 3));
        assert_eq!(right.middle(), None);
    }
}
