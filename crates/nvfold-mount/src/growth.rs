//! The question of a command that makes a mounted file system longer, and its answer, as bytes (`nvfold_fuse::ask`).
//!
//! It goes beside those of [`clones`](crate::clones), by any open file, with the same tokens:
//!
//! ```text
//! question  u32 what, and then
//!   48 grow   token of a directory of the mount, u64 bytes (0: all that the device has)
//!                                                                  for root and the user who mounted the file system
//! answer    u32 errno, or 0;  u32 count, u64 each;  u32 length, path (none);  u32 length, why
//!           bytes before, bytes now, bytes that can be written, how often it can still grow, 1 if its pm index was made
//!           for fewer blocks
//! ```

use crate::clones::{Refusal, SourceToken, encode, u32_of, u64_of};
use nvfold_fuse::ASK_BYTES;

const GROW: u32 = 48;

/// The question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthQuestion {
    /// Any directory of the mount.
    pub any: SourceToken,
    /// The size that the file system is to have, in bytes; `None`: what its device has.
    pub device_bytes: Option<u64>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// The size before, in bytes.
    pub before_bytes: u64,
    /// The size now, in bytes.
    pub after_bytes: u64,
    /// How many bytes can be written.
    pub free_bytes: u64,
    /// How often it can still be made longer.
    pub growths_left: u64,
    /// True if it has an index on the device that was made for fewer blocks.
    pub index_is_small: bool,
}

impl GrowthQuestion {
    /// Encodes it as a message.
    pub fn to_message(self) -> Box<[u8; ASK_BYTES]> {
        let mut bytes = Vec::with_capacity(ASK_BYTES);
        bytes.extend(GROW.to_le_bytes());
        bytes.extend(self.any.to_bytes());
        bytes.extend(self.device_bytes.unwrap_or(0).to_le_bytes());
        bytes.resize(ASK_BYTES, 0);
        bytes.try_into().expect("it has this length")
    }

    /// Decodes a message; `None` if it is another question.
    pub(crate) fn decode(message: &[u8]) -> Option<GrowthQuestion> {
        let mut rest = message;
        if u32_of(&mut rest)? != GROW {
            return None;
        }
        let (any, bytes) = (SourceToken::take(&mut rest)?, u64_of(&mut rest)?);
        Some(GrowthQuestion { any, device_bytes: (bytes > 0).then_some(bytes) })
    }
}

impl Grown {
    /// Returns the numbers of the answer.
    pub(crate) fn to_numbers(self) -> Vec<u64> {
        let Grown { before_bytes, after_bytes, free_bytes, growths_left, index_is_small } = self;
        vec![before_bytes, after_bytes, free_bytes, growths_left, u64::from(index_is_small)]
    }

    /// Reads the numbers of an answer; `None` if they are none.
    pub fn of_numbers(numbers: &[u64]) -> Option<Grown> {
        let &[before_bytes, after_bytes, free_bytes, growths_left, index_is_small] = numbers else { return None };
        Some(Grown { before_bytes, after_bytes, free_bytes, growths_left, index_is_small: index_is_small != 0 })
    }
}

/// Encodes an answer.
pub(crate) fn answer(done: &Result<Grown, Refusal>) -> Vec<u8> {
    match done {
        Ok(grown) => encode(Ok(&grown.to_numbers())),
        Err(refusal) => encode(Err(refusal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_about_growth_survive_encoding() {
        let any = SourceToken { ino: 1, proof: u64::MAX - 7 };
        for device_bytes in [None, Some(1), Some(u64::MAX)] {
            let question = GrowthQuestion { any, device_bytes };
            let message = question.to_message();
            assert_eq!(GrowthQuestion::decode(&message[..]), Some(question));
            assert_eq!(GrowthQuestion::decode(&message[..4 + 15]), None, "{question:?}");
            assert_eq!(crate::clones::Question::decode(&message[..]), None, "{question:?}");
            assert_eq!(crate::limits::LimitsQuestion::decode(&message[..]), None, "{question:?}");
            assert_eq!(crate::snapshots::SnapshotQuestion::decode(&message[..]), None, "{question:?}");
        }
        let grown = Grown { before_bytes: 1, after_bytes: 2, free_bytes: 3, growths_left: 4, index_is_small: true };
        let numbers = crate::clones::decode(&answer(&Ok(grown))).unwrap().unwrap();
        assert_eq!(Grown::of_numbers(&numbers), Some(grown));
        assert_eq!(Grown::of_numbers(&[]), None);
    }
}
