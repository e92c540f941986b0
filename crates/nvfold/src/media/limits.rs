//! The limits of a tree: the value of an extended attribute of its top, which no call shows.
//!
//! ```text
//! 0 version 2 | 2 tree 2 | 4 flags 4 | 8 logical bytes 8 | 16 inodes 8 | 24 expires 8
//! ```
//!
//! The top and all inodes below it have the number of the tree in their attributes
//! ([`AttributeLine::tree`](super::inode::AttributeLine::tree)). While the tree is being charged, those below may have the
//! number that they had before.

use crate::words::{Limits, TimeNs};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Extended attribute that holds the limits of a tree. It cannot collide with a name from a user, because those contain
/// no NUL.
pub const TREE_LIMITS: &[u8] = b"\0limits";

/// The only version so far.
const VERSION: u16 = 1;
/// Flag of a tree whose inodes are not all charged to it yet, or, without limits, not all charged elsewhere yet.
const BEING_CHARGED: u32 = 1;
/// Value of a limit that there is not.
const NO_LIMIT: u64 = u64::MAX;
/// Time of expiry of a tree that stays.
const NEVER: TimeNs = TimeNs::MAX;

/// The value of [`TREE_LIMITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TreeLimits {
    version: u16,
    /// Number of the tree, not 0. No other tree has it.
    pub tree: u16,
    flags: u32,
    logical_bytes: u64,
    inodes: u64,
    expires: TimeNs,
}

const _: () = assert!(size_of::<TreeLimits>() == 32);
const _: () = assert!(offset_of!(TreeLimits, tree) == 2);
const _: () = assert!(offset_of!(TreeLimits, flags) == 4);
const _: () = assert!(offset_of!(TreeLimits, logical_bytes) == 8);
const _: () = assert!(offset_of!(TreeLimits, inodes) == 16);
const _: () = assert!(offset_of!(TreeLimits, expires) == 24);

impl TreeLimits {
    /// Makes the limits of the tree with this number.
    pub fn new(tree: u16, limits: &Limits, is_being_charged: bool) -> TreeLimits {
        TreeLimits {
            version: VERSION,
            tree,
            flags: if is_being_charged { BEING_CHARGED } else { 0 },
            logical_bytes: limits.logical_bytes.unwrap_or(NO_LIMIT),
            inodes: limits.inodes.unwrap_or(NO_LIMIT),
            expires: limits.expires.unwrap_or(NEVER),
        }
    }

    /// Reads a value; `None` if it is damaged.
    pub(crate) fn read(value: &[u8]) -> Option<TreeLimits> {
        let limits = TreeLimits::read_from_bytes(value).ok()?;
        let is_whole = limits.version == VERSION && limits.tree != 0 && limits.flags & !BEING_CHARGED == 0;
        is_whole.then_some(limits)
    }

    /// Returns the limits as words; [`TreeLimits::from_words`] reads them.
    pub(crate) fn words(&self) -> [u64; 3] {
        [self.logical_bytes, self.inodes, self.expires as u64]
    }

    /// Returns the limits with these words, of the tree with number 0.
    pub(crate) fn from_words([logical_bytes, inodes, expires]: [u64; 3]) -> TreeLimits {
        TreeLimits { version: VERSION, tree: 0, flags: 0, logical_bytes, inodes, expires: expires as TimeNs }
    }

    /// Returns the limits.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            logical_bytes: Some(self.logical_bytes).filter(|bytes| *bytes != NO_LIMIT),
            inodes: Some(self.inodes).filter(|inodes| *inodes != NO_LIMIT),
            expires: Some(self.expires).filter(|time| *time != NEVER),
        }
    }

    /// True if the inodes below are still being charged.
    pub(crate) fn is_being_charged(&self) -> bool {
        self.flags & BEING_CHARGED != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_read_back_as_written_and_a_damaged_value_is_refused() {
        for limits in [Limits::default(), Limits { logical_bytes: Some(7), inodes: Some(0), expires: Some(-5) }] {
            let value = TreeLimits::new(9, &limits, true);
            let read = TreeLimits::read(value.as_bytes()).unwrap();
            assert_eq!((read.limits(), read.tree, read.is_being_charged()), (limits, 9, true));
        }
        let whole = TreeLimits::new(9, &Limits::default(), false);
        assert!(!whole.is_being_charged());
        for damaged in
            [TreeLimits { version: 2, ..whole }, TreeLimits { tree: 0, ..whole }, TreeLimits { flags: 2, ..whole }]
        {
            assert_eq!(TreeLimits::read(damaged.as_bytes()), None);
        }
        assert_eq!(TreeLimits::read(&whole.as_bytes()[..31]), None);
        assert_eq!(TreeLimits::read(&[0; 33]), None);
    }
}
