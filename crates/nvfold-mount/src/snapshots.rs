//! Questions of a command about snapshots, and about what two files share, as bytes (`nvfold_fuse::ask`).
//!
//! They go beside those of [`clones`](crate::clones), with the same tokens and permits:
//!
//! ```text
//! question  u32 what, and then
//!   16 create    token of the tree, name      by a permit made in the root, which root or the owner of the root has made
//!   17 restore   token of the snapshot, name  by a permit made in the directory of the name, as for a clone
//!   18 delete    token of any directory, name       for root and the owner of the root, by any open file
//!   19 figures   token of the snapshot              by any open file; all but the first for root and the owner of the root
//!   20 unshared  token of a file, of another, u64 from    by any open file
//!   21 equal     token of a directory, of another, u64 after    by any open file
//! answer    u32 errno, or 0;  u32 count, u64 each;  u32 length, path;  u32 length, why
//!   create, restore: entries, bytes;   figures: created (ns since 1970), entries, logical bytes, bytes it alone holds;
//!   unshared: where to go on, and then offset and end of each range that the files do not share
//!   equal: where to go on, or 0 at the end, and then pairs of inode numbers: files of one name in both directories that have
//!   equal attributes and share all their bytes
//! ```
//!
//! A token of a file proves that its user may read it. So the answer about two files tells what he could find out by
//! reading both. The answer about two directories names only files that he may read.

use crate::clones::{
    PATH_BYTES_MAX, Refusal, SourceToken, WHY_BYTES_MAX, bytes_of, decode, encode, put, u32_of, u64_of,
};
use nvfold_fuse::ASK_BYTES;

const CREATE: u32 = 16;
const RESTORE: u32 = 17;
const DELETE: u32 = 18;
const FIGURES: u32 = 19;
const UNSHARED: u32 = 20;
const EQUAL: u32 = 21;

/// The most ranges in an answer.
pub(crate) const RANGES_MAX: usize = 500;
const _: () = assert!(4 * 4 + (2 * RANGES_MAX + 1) * 8 <= ASK_BYTES);
const _: () = assert!(4 * 4 + PATH_BYTES_MAX + WHY_BYTES_MAX <= ASK_BYTES);

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SnapshotQuestion<'q> {
    /// Make a snapshot of a directory.
    Create { source: SourceToken, name: &'q [u8] },
    /// Make this name in the directory of the permit what a snapshot is.
    Restore { snapshot: SourceToken, name: &'q [u8] },
    /// Delete a snapshot.
    Delete { any: SourceToken, name: &'q [u8] },
    /// When was this snapshot made, and what does it hold?
    Figures { snapshot: SourceToken },
    /// What do two files not share, from a byte offset on?
    Unshared { one: SourceToken, other: SourceToken, from: u64 },
    /// Which files of the same name in two directories are equal for sure, among those that come `after` this cookie in the
    /// first one?
    Equal { one: SourceToken, other: SourceToken, after: u64 },
}

impl SnapshotQuestion<'_> {
    /// Encodes it as a message.
    pub fn to_message(self) -> Box<[u8; ASK_BYTES]> {
        let (what, tokens, name) = match self {
            SnapshotQuestion::Create { source, name } => (CREATE, [Some(source), None], name),
            SnapshotQuestion::Restore { snapshot, name } => (RESTORE, [Some(snapshot), None], name),
            SnapshotQuestion::Delete { any, name } => (DELETE, [Some(any), None], name),
            SnapshotQuestion::Figures { snapshot } => (FIGURES, [Some(snapshot), None], &[][..]),
            SnapshotQuestion::Unshared { one, other, .. } => (UNSHARED, [Some(one), Some(other)], &[][..]),
            SnapshotQuestion::Equal { one, other, .. } => (EQUAL, [Some(one), Some(other)], &[][..]),
        };
        let mut bytes = what.to_le_bytes().to_vec();
        tokens.into_iter().flatten().for_each(|token| bytes.extend(token.to_bytes()));
        match self {
            SnapshotQuestion::Unshared { from: at, .. } | SnapshotQuestion::Equal { after: at, .. } => {
                bytes.extend(at.to_le_bytes());
            }
            _ => put(&mut bytes, name, PATH_BYTES_MAX),
        }
        bytes.resize(ASK_BYTES, 0);
        bytes.try_into().expect("it has this length")
    }

    /// Decodes a message; `None` if it is no question of these.
    pub(crate) fn decode(message: &[u8]) -> Option<SnapshotQuestion<'_>> {
        let mut rest = message;
        let what = u32_of(&mut rest)?;
        Some(match what {
            CREATE => SnapshotQuestion::Create { source: SourceToken::take(&mut rest)?, name: bytes_of(&mut rest)? },
            RESTORE => {
                SnapshotQuestion::Restore { snapshot: SourceToken::take(&mut rest)?, name: bytes_of(&mut rest)? }
            }
            DELETE => SnapshotQuestion::Delete { any: SourceToken::take(&mut rest)?, name: bytes_of(&mut rest)? },
            FIGURES => SnapshotQuestion::Figures { snapshot: SourceToken::take(&mut rest)? },
            UNSHARED => {
                let (one, other) = (SourceToken::take(&mut rest)?, SourceToken::take(&mut rest)?);
                SnapshotQuestion::Unshared { one, other, from: u64_of(&mut rest)? }
            }
            EQUAL => {
                let (one, other) = (SourceToken::take(&mut rest)?, SourceToken::take(&mut rest)?);
                SnapshotQuestion::Equal { one, other, after: u64_of(&mut rest)? }
            }
            _ => return None,
        })
    }
}

/// Encodes an answer.
pub(crate) fn answer(done: &Result<Vec<u64>, Refusal>) -> Vec<u8> {
    encode(done.as_deref())
}

/// Decodes an answer; `None` if it is none.
pub fn answered(message: &[u8]) -> Option<Result<Vec<u64>, Refusal>> {
    decode(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_about_snapshots_survive_encoding() {
        let [one, other] = [7, 8].map(|ino| SourceToken { ino, proof: u64::MAX - ino });
        let name = &[0xff; 255][..];
        let questions = [
            SnapshotQuestion::Create { source: one, name },
            SnapshotQuestion::Restore { snapshot: one, name },
            SnapshotQuestion::Delete { any: other, name },
            SnapshotQuestion::Figures { snapshot: one },
            SnapshotQuestion::Unshared { one, other, from: 1 << 62 },
            SnapshotQuestion::Equal { one, other, after: 1 << 62 },
        ];
        for question in questions {
            let message = question.to_message();
            assert_eq!(SnapshotQuestion::decode(&message[..]), Some(question));
            assert_eq!(crate::clones::Question::decode(&message[..]), None, "{question:?}");
            assert_eq!(SnapshotQuestion::decode(&message[..4 + 15]), None, "{question:?}");
        }
        let refusal = Refusal { errno: 13, path: b"a/\xff".to_vec(), why: "no permission".into() };
        for done in [Ok(vec![1, 2, u64::MAX]), Ok(vec![5; 2 * RANGES_MAX + 1]), Err(refusal)] {
            let mut message = answer(&done);
            message.resize(ASK_BYTES, 7);
            assert_eq!(answered(&message), Some(done));
        }
    }
}
