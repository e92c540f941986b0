//! What a command asks for a backup of a mounted device, and the answers, as bytes.
//!
//! The problem: the copy is written with the rights of the user who wants it, and read with those of the server. The server
//! must open no path for a user.
//!
//! The idea: the command opens its file itself, and gets the bytes from the server by virtual attributes of the root of the
//! mount, as other requests are made (`requests`). Root and the user who mounted the file system may ask: they can read all
//! of the device anyway.
//!
//! ```text
//! user.nvfold.backup                -> begins one: number, bytes of the device, bytes to copy at most       text
//! user.nvfold.backup-next.ID.NTH    -> the piece NTH, from 0: u64 offset, u64 bytes left, u8 state, bytes
//! user.nvfold.backup-alive.ID       -> the command is there still
//! user.nvfold.backup-end.ID         -> ends it: longest time that an operation waited (ns), unreadable bytes   text
//! ```
//!
//! All integers are little-endian. The state of a piece is 0, or says that there is none: 1 that all were taken, 2 that the
//! copy was given up (`image`), 3 that the device is lost. A piece is given again when its number is asked again, so an
//! answer that is lost on its way costs nothing. A mount has one backup at a time (EBUSY). It ends by itself when its
//! command has ended, or has asked nothing for [`SILENT_FOR`].

use crate::image::{Cost, Ended};
use std::fmt::{self, Display};
use std::time::Duration;

/// The attribute that begins a backup.
pub const BEGIN: &str = "user.nvfold.backup";
const NEXT: &str = "user.nvfold.backup-next.";
const ALIVE: &str = "user.nvfold.backup-alive.";
const END: &str = "user.nvfold.backup-end.";
/// How long a command may ask nothing before its backup ends.
pub const SILENT_FOR: Duration = Duration::from_secs(30);
/// How often a command says that it is there while it does something else.
pub const SAY_EVERY: Duration = Duration::from_secs(2);

const HEAD_BYTES: usize = 8 + 8 + 1;
const DONE: u8 = 1;
const GIVEN_UP: u8 = 2;
const LOST: u8 = 3;

/// A request about the backup of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupRequest {
    /// The piece of this number, from 0 on.
    Next(u64, u64),
    /// The command is there still.
    Alive(u64),
    /// The backup is over.
    End(u64),
}

/// What has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The number of the backup.
    pub id: u64,
    /// The length of the device.
    pub device_bytes: u64,
    /// The most bytes that there are to copy.
    pub used_bytes: u64,
}

/// A part of the device, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// What is at this offset, in bytes, and how many bytes are left at most.
    Bytes(u64, u64, Vec<u8>),
    /// There is nothing more. What no part held is zeros.
    Done,
    /// Operations of the mount have waited too long for this command.
    GivenUp,
    /// The device is lost.
    Lost,
}

/// What a backup has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// The longest time that an operation of the mount has waited, in nanoseconds.
    pub waited_ns: u64,
    /// Bytes that could not be read; the copy has zeros there.
    pub unreadable_bytes: u64,
}

impl Display for BackupRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BackupRequest::Next(id, nth) => write!(f, "{NEXT}{id}.{nth}"),
            BackupRequest::Alive(id) => write!(f, "{ALIVE}{id}"),
            BackupRequest::End(id) => write!(f, "{END}{id}"),
        }
    }
}

impl BackupRequest {
    /// Parses the name of an attribute; `None` if it is no such request.
    pub(crate) fn named(name: &[u8]) -> Option<BackupRequest> {
        let name = std::str::from_utf8(name).ok()?;
        if let Some(text) = name.strip_prefix(NEXT) {
            let (id, nth) = text.split_once('.')?;
            return Some(BackupRequest::Next(id.parse().ok()?, nth.parse().ok()?));
        }
        if let Some(text) = name.strip_prefix(ALIVE) {
            return text.parse().ok().map(BackupRequest::Alive);
        }
        name.strip_prefix(END)?.parse().ok().map(BackupRequest::End)
    }
}

impl Begun {
    pub(crate) fn encode(self) -> Vec<u8> {
        format!("{} {} {}", self.id, self.device_bytes, self.used_bytes).into_bytes()
    }

    /// Decodes the answer; `None` if it is none.
    pub fn decode(answer: &[u8]) -> Option<Begun> {
        let [id, device_bytes, used_bytes] = numbers(answer)?;
        Some(Begun { id, device_bytes, used_bytes })
    }
}

impl Ending {
    pub(crate) fn of(cost: Cost) -> Ending {
        Ending { waited_ns: cost.waited_ns, unreadable_bytes: cost.unreadable_bytes }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        format!("{} {}", self.waited_ns, self.unreadable_bytes).into_bytes()
    }

    /// Decodes the answer; `None` if it is none.
    pub fn decode(answer: &[u8]) -> Option<Ending> {
        let [waited_ns, unreadable_bytes] = numbers(answer)?;
        Some(Ending { waited_ns, unreadable_bytes })
    }
}

impl Part {
    pub(crate) fn encode(piece: Result<(u64, Vec<u8>), Ended>, left_bytes: u64) -> Vec<u8> {
        let (offset, state, bytes) = match piece {
            Ok((offset, bytes)) => (offset, 0, bytes),
            Err(Ended::Done) => (0, DONE, Vec::new()),
            Err(Ended::GivenUp) => (0, GIVEN_UP, Vec::new()),
            Err(Ended::Lost) => (0, LOST, Vec::new()),
        };
        [&offset.to_le_bytes()[..], &left_bytes.to_le_bytes(), &[state], &bytes].concat()
    }

    /// Decodes the answer; `None` if it is none.
    pub fn decode(answer: &[u8]) -> Option<Part> {
        let (head, bytes) = answer.split_at_checked(HEAD_BYTES)?;
        let word = |at: usize| head[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        Some(match head[16] {
            0 => Part::Bytes(word(0)?, word(8)?, bytes.to_vec()),
            DONE => Part::Done,
            GIVEN_UP => Part::GivenUp,
            LOST => Part::Lost,
            _ => return None,
        })
    }
}

fn numbers<const N: usize>(answer: &[u8]) -> Option<[u64; N]> {
    let text = std::str::from_utf8(answer).ok()?;
    let all: Option<Vec<u64>> = text.split(' ').map(|number| number.parse().ok()).collect();
    all?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::PIECE_BLOCKS;
    use crate::requests::ANSWER_MAX;

    const _: () = assert!(PIECE_BLOCKS as usize * nvfold::BLOCK_BYTES as usize + HEAD_BYTES <= ANSWER_MAX);

    #[test]
    fn requests_and_answers_about_backups_survive_encoding() {
        let requests = [BackupRequest::Next(u64::MAX, 0), BackupRequest::Alive(0), BackupRequest::End(7)];
        for request in requests {
            assert_eq!(BackupRequest::named(request.to_string().as_bytes()), Some(request));
        }
        for name in [BEGIN, "user.nvfold.backup-next.1", "user.nvfold.backup-end.", "user.nvfold.backup-alive.-1"] {
            assert_eq!(BackupRequest::named(name.as_bytes()), None, "{name}");
        }
        let begun = Begun { id: u64::MAX, device_bytes: 1 << 40, used_bytes: 4096 };
        assert_eq!(Begun::decode(&begun.encode()), Some(begun));
        let ending = Ending { waited_ns: 5, unreadable_bytes: 512 };
        assert_eq!(Ending::decode(&ending.encode()), Some(ending));
        let parts = [
            (Ok((8192, vec![7; 4096])), Part::Bytes(8192, 1 << 30, vec![7; 4096])),
            (Err(Ended::Done), Part::Done),
            (Err(Ended::GivenUp), Part::GivenUp),
            (Err(Ended::Lost), Part::Lost),
        ];
        for (piece, part) in parts {
            assert_eq!(Part::decode(&Part::encode(piece, 1 << 30)), Some(part));
        }
        assert_eq!((Part::decode(&[0; 16]), Part::decode(&[9; 17])), (None, None));
        assert_eq!((Begun::decode(b"1 2"), Ending::decode(b"1 2 3")), (None, None));
    }
}
