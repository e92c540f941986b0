//! Questions of a command about clones of trees, and their answers, as bytes (`nvfold_fuse::ask`).
//!
//! The problem: a clone names two directories. The server must know that its caller may read the one and make names in
//! the other, with all that the kernel looks at: search permission on the paths, ACLs, read-only and idmapped mounts.
//!
//! The idea: the kernel says so itself.
//!
//! ```text
//! read      the token of the source is the value of an attribute: the kernel gives it only to those who have reached
//!           the directory and may read it. It is valid for one user, for a minute.
//! make      the question comes by a file without a name, made in the new directory with O_TMPFILE: the permit. The
//!           kernel lets nobody make one who could not make a name there. Its owner is that of the copy.
//!
//! question  u32 what: 1 clone, 2 progress, 3 cancel;  for 1: u64 inode, u64 proof (the token), u32 length, name
//! answer    u32 errno, or 0;  u32 count, u64 each;  u32 length, path in the source;  u32 length, why
//!           the numbers of a clone: entries, bytes
//! ```
//!
//! All integers are little-endian. `progress` and `cancel` speak of the clone that was asked for by the same permit.

use nvfold::CloneProgress;
use nvfold_fuse::ASK_BYTES;

/// The attribute of a directory whose value is its token, which names it as the source of a clone. It is not listed.
pub const SOURCE_ATTRIBUTE: &str = "user.nvfold.clone-source";

const CLONE: u32 = 1;
const PROGRESS: u32 = 2;
const CANCEL: u32 = 3;
/// The longest path in an answer. A longer one is cut.
pub(crate) const PATH_BYTES_MAX: usize = 6 << 10;
pub(crate) const WHY_BYTES_MAX: usize = 1 << 10;
const _: () = assert!(4 * 4 + 2 * 8 + PATH_BYTES_MAX + WHY_BYTES_MAX <= ASK_BYTES);

/// Names a directory as the source of a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceToken {
    /// Inode number.
    pub ino: u64,
    /// Proof that the server has issued it.
    pub proof: u64,
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'q> {
    /// Clone a directory to this name.
    Clone {
        /// The directory.
        source: SourceToken,
        /// The name, in the directory of the permit.
        name: &'q [u8],
    },
    /// How far is the clone?
    Progress,
    /// End the clone. Nothing is left of it, unless it is done.
    Cancel,
}

/// Why a tree was not cloned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The errno.
    pub errno: i32,
    /// Path of the file that is the reason, in the source; empty if none is.
    pub path: Vec<u8>,
    /// The reason.
    pub why: String,
}

impl SourceToken {
    /// Encodes it as the attribute's value.
    pub fn to_bytes(self) -> [u8; 16] {
        (u128::from(self.proof) << 64 | u128::from(self.ino)).to_le_bytes()
    }

    pub(crate) fn take(rest: &mut &[u8]) -> Option<SourceToken> {
        Some(SourceToken { ino: u64_of(rest)?, proof: u64_of(rest)? })
    }

    /// Decodes the attribute's value.
    pub fn of_bytes(bytes: &[u8; 16]) -> SourceToken {
        let both = u128::from_le_bytes(*bytes);
        SourceToken { ino: both as u64, proof: (both >> 64) as u64 }
    }
}

impl Question<'_> {
    /// Encodes it as a message.
    pub fn to_message(self) -> Box<[u8; ASK_BYTES]> {
        let mut bytes = Vec::with_capacity(ASK_BYTES);
        match self {
            Question::Clone { source, name } => {
                bytes.extend(CLONE.to_le_bytes());
                bytes.extend(source.to_bytes());
                put(&mut bytes, name, PATH_BYTES_MAX);
            }
            Question::Progress => bytes.extend(PROGRESS.to_le_bytes()),
            Question::Cancel => bytes.extend(CANCEL.to_le_bytes()),
        }
        bytes.resize(ASK_BYTES, 0);
        bytes.try_into().expect("it has this length")
    }

    /// Decodes a message; `None` if it is no question.
    pub(crate) fn decode(message: &[u8]) -> Option<Question<'_>> {
        let mut rest = message;
        match u32_of(&mut rest)? {
            CLONE => Some(Question::Clone { source: SourceToken::take(&mut rest)?, name: bytes_of(&mut rest)? }),
            PROGRESS => Some(Question::Progress),
            CANCEL => Some(Question::Cancel),
            _ => None,
        }
    }
}

/// Encodes an answer about a clone.
pub(crate) fn answer(done: &Result<CloneProgress, Refusal>) -> Vec<u8> {
    match done {
        Ok(CloneProgress { entries, bytes }) => encode(Ok(&[*entries, *bytes])),
        Err(refusal) => encode(Err(refusal)),
    }
}

/// Decodes an answer about a clone; `None` if it is none.
pub fn answered(message: &[u8]) -> Option<Result<CloneProgress, Refusal>> {
    match decode(message)? {
        Ok(numbers) => match numbers[..] {
            [entries, bytes] => Some(Ok(CloneProgress { entries, bytes })),
            _ => None,
        },
        Err(refusal) => Some(Err(refusal)),
    }
}

/// Encodes an answer.
pub(crate) fn encode(done: Result<&[u64], &Refusal>) -> Vec<u8> {
    let none = Refusal { errno: 0, path: Vec::new(), why: String::new() };
    let (numbers, Refusal { errno, path, why }) = match done {
        Ok(numbers) => (numbers, &none),
        Err(refusal) => (&[][..], refusal),
    };
    let mut answer = errno.to_le_bytes().to_vec();
    answer.extend((numbers.len() as u32).to_le_bytes());
    numbers.iter().for_each(|number| answer.extend(number.to_le_bytes()));
    put(&mut answer, path, PATH_BYTES_MAX);
    put(&mut answer, why.as_bytes(), WHY_BYTES_MAX);
    answer
}

/// Decodes an answer; `None` if it is none.
pub(crate) fn decode(message: &[u8]) -> Option<Result<Vec<u64>, Refusal>> {
    let mut rest = message;
    let (errno, count) = (u32_of(&mut rest)?.cast_signed(), u32_of(&mut rest)?);
    let numbers = (0..count).map(|_| u64_of(&mut rest)).collect::<Option<Vec<u64>>>()?;
    let (path, why) = (bytes_of(&mut rest)?.to_vec(), String::from_utf8_lossy(bytes_of(&mut rest)?).into_owned());
    Some(if errno == 0 { Ok(numbers) } else { Err(Refusal { errno, path, why }) })
}

pub(crate) fn put(into: &mut Vec<u8>, bytes: &[u8], most: usize) {
    let bytes = &bytes[..bytes.len().min(most)];
    into.extend((bytes.len() as u32).to_le_bytes());
    into.extend(bytes);
}

pub(crate) fn u32_of(rest: &mut &[u8]) -> Option<u32> {
    rest.split_off(..4)?.try_into().ok().map(u32::from_le_bytes)
}

pub(crate) fn u64_of(rest: &mut &[u8]) -> Option<u64> {
    rest.split_off(..8)?.try_into().ok().map(u64::from_le_bytes)
}

pub(crate) fn bytes_of<'r>(rest: &mut &'r [u8]) -> Option<&'r [u8]> {
    let length = u32_of(rest)?;
    rest.split_off(..length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_about_clones_survive_encoding() {
        let source = SourceToken { ino: 7, proof: u64::MAX - 1 };
        assert_eq!(SourceToken::of_bytes(&source.to_bytes()), source);
        let name = [0xff; 255];
        for question in [Question::Clone { source, name: &name }, Question::Progress, Question::Cancel] {
            assert_eq!(Question::decode(&question.to_message()[..]), Some(question));
        }
        let refusal = Refusal { errno: 13, path: b"a/\xff".to_vec(), why: "no permission".into() };
        for done in [Ok(CloneProgress { entries: 3, bytes: 1 << 40 }), Err(refusal)] {
            let mut message = answer(&done);
            message.resize(ASK_BYTES, 7);
            assert_eq!(answered(&message), Some(done));
        }
    }

    #[test]
    fn malformed_questions_about_clones_are_refused() {
        let whole = Question::Clone { source: SourceToken { ino: 1, proof: 2 }, name: b"name" }.to_message();
        for length in 0..4 + 16 + 4 + 4 {
            assert_eq!(Question::decode(&whole[..length]), None, "{length} bytes");
        }
        assert_eq!(Question::decode(&[0; ASK_BYTES]), None);
        let mut too_long = *whole;
        too_long[20..24].fill(0xff);
        assert_eq!(Question::decode(&too_long), None);
    }

    #[test]
    fn a_path_too_long_for_an_answer_is_cut() {
        let refusal = Refusal { errno: 13, path: vec![b'a'; 2 * PATH_BYTES_MAX], why: "b".repeat(2 * WHY_BYTES_MAX) };
        let message = answer(&Err(refusal));
        assert!(message.len() <= ASK_BYTES);
        let refusal = answered(&message).unwrap().unwrap_err();
        assert_eq!((refusal.path.len(), refusal.why.len()), (PATH_BYTES_MAX, WHY_BYTES_MAX));
    }
}
