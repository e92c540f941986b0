//! Questions of a command about the limits of trees, and their answers, as bytes (`nvfold_fuse::ask`).
//!
//! They go beside those of [`clones`](crate::clones), by any open file, with the same tokens:
//!
//! ```text
//! question  u32 what, and then
//!   32 set    token of the directory, u64 which limits change (1 bytes, 2 inodes, 4 expiry), u64 which of them are
//!             removed, u64 bytes, u64 inodes, u64 expiry       for root and the user who mounted the file system
//!   33 get    token of the directory
//! answer    u32 errno, or 0;  u32 count, u64 each;  u32 length, path (none);  u32 length, why
//!        what is known (1 a tree, 2 a limit of bytes, 4 of inodes, 8 it expires, 16 it is being charged, 32 what it alone
//!        stores), inode of its top, bytes, inodes, limit of bytes, limit of inodes, expiry, bytes it alone stores
//! ```
//!
//! An expiry is in nanoseconds since 1970, as two's complement. What a tree alone stores is told to root and the user
//! who mounted the file system; of a directory without limits, it is what all below it alone store.

use crate::clones::{Refusal, SourceToken, encode, u32_of, u64_of};
use nvfold::{InodeNumber, LimitedTree, Limits, TimeNs};
use nvfold_fuse::ASK_BYTES;

const SET: u32 = 32;
const GET: u32 = 33;

const IS_LIMITED: u64 = 1;
const HAS_BYTES: u64 = 2;
const HAS_INODES: u64 = 4;
const EXPIRES: u64 = 8;
const IS_BEING_CHARGED: u64 = 16;
const KNOWS_ALONE: u64 = 32;

/// What is to become of limits: for each, `None` leaves it, `Some(None)` removes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsChange {
    /// Logical bytes.
    pub logical_bytes: Option<Option<u64>>,
    /// Inodes.
    pub inodes: Option<Option<u64>>,
    /// When the tree is to be removed.
    pub expires: Option<Option<TimeNs>>,
}

/// What is known of the limits at a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownLimits {
    /// The tree that it is charged to, if there is one.
    pub tree: Option<LimitedTree>,
    /// Bytes that only files of the tree reference, or below the directory if there is no tree; `None` if they were not
    /// asked for, or this user may not know.
    pub stored_alone_bytes: Option<u64>,
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LimitsQuestion {
    /// Change the limits of a directory; which are there then?
    Set { directory: SourceToken, change: LimitsChange },
    /// What limits are there at a directory, and what is used? Looks at all files, too, if the user may know what they
    /// store.
    Get { directory: SourceToken },
}

impl LimitsChange {
    /// Makes the change.
    pub fn apply(&self, limits: &mut Limits) {
        limits.logical_bytes = self.logical_bytes.unwrap_or(limits.logical_bytes);
        limits.inodes = self.inodes.unwrap_or(limits.inodes);
        limits.expires = self.expires.unwrap_or(limits.expires);
    }

    fn encode(&self) -> [u64; 5] {
        let all = [self.logical_bytes, self.inodes, self.expires.map(|at| at.map(i64::cast_unsigned))];
        let bits = |is: fn(&Option<Option<u64>>) -> bool| {
            all.iter().enumerate().map(|(bit, limit)| u64::from(is(limit)) << bit).sum::<u64>()
        };
        let value = |at: usize| all[at].flatten().unwrap_or(0);
        [bits(Option::is_some), bits(|limit| *limit == Some(None)), value(0), value(1), value(2)]
    }

    fn take(rest: &mut &[u8]) -> Option<LimitsChange> {
        let (changed, removed) = (u64_of(rest)?, u64_of(rest)?);
        if changed > 7 || removed & !changed != 0 {
            return None;
        }
        let mut next = |bit: u32| {
            let value = u64_of(rest)?;
            Some((changed >> bit & 1 == 1).then(|| (removed >> bit & 1 == 0).then_some(value)))
        };
        let (logical_bytes, inodes, expires) = (next(0)?, next(1)?, next(2)?);
        Some(LimitsChange { logical_bytes, inodes, expires: expires.map(|at| at.map(u64::cast_signed)) })
    }
}

impl LimitsQuestion {
    /// Encodes it as a message.
    pub fn to_message(self) -> Box<[u8; ASK_BYTES]> {
        let mut bytes = Vec::with_capacity(ASK_BYTES);
        match self {
            LimitsQuestion::Set { directory, change } => {
                bytes.extend(SET.to_le_bytes());
                bytes.extend(directory.to_bytes());
                change.encode().iter().for_each(|number| bytes.extend(number.to_le_bytes()));
            }
            LimitsQuestion::Get { directory } => {
                bytes.extend(GET.to_le_bytes());
                bytes.extend(directory.to_bytes());
            }
        }
        bytes.resize(ASK_BYTES, 0);
        bytes.try_into().expect("it has this length")
    }

    /// Decodes a message; `None` if it is no question of these.
    pub(crate) fn decode(message: &[u8]) -> Option<LimitsQuestion> {
        let mut rest = message;
        let what = u32_of(&mut rest)?;
        let mut directory = || SourceToken::take(&mut rest);
        Some(match what {
            SET => LimitsQuestion::Set { directory: directory()?, change: LimitsChange::take(&mut rest)? },
            GET => LimitsQuestion::Get { directory: directory()? },
            _ => return None,
        })
    }
}

impl KnownLimits {
    /// Returns the numbers of the answer.
    pub(crate) fn to_numbers(self) -> Vec<u64> {
        let KnownLimits { tree, stored_alone_bytes } = self;
        let limits = tree.map(|tree| tree.limits).unwrap_or_default();
        let known = [
            (tree.is_some(), IS_LIMITED),
            (limits.logical_bytes.is_some(), HAS_BYTES),
            (limits.inodes.is_some(), HAS_INODES),
            (limits.expires.is_some(), EXPIRES),
            (tree.is_some_and(|tree| tree.is_being_charged), IS_BEING_CHARGED),
            (stored_alone_bytes.is_some(), KNOWS_ALONE),
        ];
        let known = known.iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum();
        let of = |fact: fn(LimitedTree) -> u64| tree.map_or(0, fact);
        vec![
            known,
            of(|tree| tree.top.0),
            of(|tree| tree.logical_bytes),
            of(|tree| tree.inodes),
            limits.logical_bytes.unwrap_or(0),
            limits.inodes.unwrap_or(0),
            limits.expires.unwrap_or(0).cast_unsigned(),
            stored_alone_bytes.unwrap_or(0),
        ]
    }

    /// Reads the numbers of an answer; `None` if they are none.
    pub fn of_numbers(numbers: &[u64]) -> Option<KnownLimits> {
        let &[known, top, logical_bytes, inodes, limit_bytes, limit_inodes, expires, alone] = numbers else {
            return None;
        };
        let has = |bit| known & bit != 0;
        let limits = Limits {
            logical_bytes: has(HAS_BYTES).then_some(limit_bytes),
            inodes: has(HAS_INODES).then_some(limit_inodes),
            expires: has(EXPIRES).then_some(expires.cast_signed()),
        };
        let is_being_charged = has(IS_BEING_CHARGED);
        let tree = LimitedTree { top: InodeNumber(top), limits, logical_bytes, inodes, is_being_charged };
        let stored_alone_bytes = has(KNOWS_ALONE).then_some(alone);
        Some(KnownLimits { tree: has(IS_LIMITED).then_some(tree), stored_alone_bytes })
    }
}

/// Encodes an answer.
pub(crate) fn answer(done: &Result<Vec<u64>, Refusal>) -> Vec<u8> {
    encode(done.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_limits_survive_encoding() {
        let directory = SourceToken { ino: 7, proof: u64::MAX - 7 };
        let changes = [
            LimitsChange::default(),
            LimitsChange { logical_bytes: Some(Some(u64::MAX)), ..LimitsChange::default() },
            LimitsChange { inodes: Some(None), expires: Some(Some(-5)), ..LimitsChange::default() },
            LimitsChange { logical_bytes: Some(Some(0)), inodes: Some(Some(1)), expires: Some(None) },
        ];
        let set = changes.map(|change| LimitsQuestion::Set { directory, change });
        let get = [LimitsQuestion::Get { directory }];
        for question in set.into_iter().chain(get) {
            let message = question.to_message();
            assert_eq!(LimitsQuestion::decode(&message[..]), Some(question));
            assert_eq!(LimitsQuestion::decode(&message[..4 + 15]), None, "{question:?}");
            assert_eq!(crate::clones::Question::decode(&message[..]), None, "{question:?}");
            assert_eq!(crate::snapshots::SnapshotQuestion::decode(&message[..]), None, "{question:?}");
        }
        let mut odd = *LimitsQuestion::Set { directory, change: changes[3] }.to_message();
        odd[20] = 8;
        assert_eq!(LimitsQuestion::decode(&odd), None, "a limit that there is not");
    }

    #[test]
    fn answers_about_limits_survive_encoding() {
        let limits = Limits { logical_bytes: Some(0), inodes: None, expires: Some(-1) };
        let top = InodeNumber(9);
        let tree = LimitedTree { top, limits, logical_bytes: 1 << 40, inodes: 3, is_being_charged: true };
        for known in [
            KnownLimits::default(),
            KnownLimits { tree: None, stored_alone_bytes: Some(0) },
            KnownLimits { tree: Some(tree), stored_alone_bytes: None },
            KnownLimits { tree: Some(LimitedTree { is_being_charged: false, ..tree }), stored_alone_bytes: Some(5) },
        ] {
            let message = answer(&Ok(known.to_numbers()));
            assert_eq!(KnownLimits::of_numbers(&crate::clones::decode(&message).unwrap().unwrap()), Some(known));
        }
        assert_eq!(KnownLimits::of_numbers(&[]), None);
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let mut limits = Limits { logical_bytes: Some(1), inodes: Some(2), expires: Some(3) };
        LimitsChange { logical_bytes: Some(None), inodes: Some(Some(5)), expires: None }.apply(&mut limits);
        assert_eq!(limits, Limits { logical_bytes: None, inodes: Some(5), expires: Some(3) });
    }
}
