//! Asks the server of a mount about snapshots, and about what files share, from a command; [`nvfold_mount::snapshots`] says
//! how.

use super::clones::{Refusal, TRY_AGAIN, source};
use nvfold::errno;
use nvfold_fuse::{ASK_BYTES, ask};
use nvfold_mount::snapshots::answered;
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::thread;

pub(crate) use nvfold_mount::snapshots::SnapshotQuestion;

/// What is known of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: i64,
    /// What it holds, if this user may know.
    pub usage: Option<nvfold::SnapshotUsage>,
}

/// Deletes the snapshot of this name. `any`: a directory of the mount.
pub(crate) fn delete(any: &File, name: &OsStr) -> io::Result<Result<(), Refusal>> {
    let asked = |any_token| SnapshotQuestion::Delete { any: any_token, name: name.as_bytes() };
    let answer = repeated(any, || Ok(asked(source(any)?).to_message()))?;
    Ok(answer.map(drop))
}

/// Returns when a snapshot was made, and what it holds. `top`: its directory.
pub(crate) fn figures(top: &File) -> io::Result<Result<Figures, Refusal>> {
    let answer = repeated(top, || Ok(SnapshotQuestion::Figures { snapshot: source(top)? }.to_message()))?;
    let figures = |numbers: Vec<u64>| match numbers[..] {
        [created] => Ok(Figures { created_ns: created.cast_signed(), usage: None }),
        [created, entries, logical_bytes, alone_bytes] => {
            let usage = Some(nvfold::SnapshotUsage { entries, logical_bytes, alone_bytes });
            Ok(Figures { created_ns: created.cast_signed(), usage })
        }
        _ => Err(not_understood()),
    };
    answer.map(figures).map_or_else(|refusal| Ok(Err(refusal)), |figures| figures.map(Ok))
}

/// Returns ranges of two files that they do not share, from a byte offset on, and where to go on.
pub(crate) fn unshared(one: &File, other: &File, from: u64) -> io::Result<(Vec<Range<u64>>, u64)> {
    let question = || Ok(SnapshotQuestion::Unshared { one: source(one)?, other: source(other)?, from }.to_message());
    let numbers = repeated(one, question)?.map_err(|refusal| io::Error::from_raw_os_error(refusal.errno))?;
    let (next, ranges) = numbers.split_first().ok_or_else(not_understood)?;
    let (ranges, rest) = ranges.as_chunks::<2>();
    // A range must lead on, or the work would not end.
    if !rest.is_empty() || *next <= from {
        return Err(not_understood());
    }
    Ok((ranges.iter().map(|[start, end]| *start..*end).collect(), *next))
}

/// Returns the inode numbers of files of the same name in two directories that have equal attributes and share all their
/// bytes. Files that this user may not read are not among them.
pub(crate) fn equal_files(one: &File, other: &File) -> io::Result<HashSet<[u64; 2]>> {
    let (mut found, mut after) = (HashSet::new(), 0);
    loop {
        let question = || Ok(SnapshotQuestion::Equal { one: source(one)?, other: source(other)?, after }.to_message());
        let numbers = repeated(one, question)?.map_err(|refusal| io::Error::from_raw_os_error(refusal.errno))?;
        let (next, pairs) = numbers.split_first().ok_or_else(not_understood)?;
        let (pairs, rest) = pairs.as_chunks::<2>();
        // The work must lead on, or it would not end.
        if !rest.is_empty() || *next != 0 && *next <= after {
            return Err(not_understood());
        }
        found.extend(pairs);
        after = *next;
        if after == 0 {
            return Ok(found);
        }
    }
}

/// Asks by an open file until the server takes the question.
pub(super) fn repeated(
    file: &File,
    question: impl Fn() -> io::Result<Box<[u8; ASK_BYTES]>>,
) -> io::Result<Result<Vec<u64>, Refusal>> {
    loop {
        match ask_once(file.as_fd(), question()?)? {
            Err(refusal) if refusal.errno == Errno::AGAIN.raw_os_error() => thread::sleep(TRY_AGAIN),
            done => return Ok(done),
        }
    }
}

/// Asks once.
fn ask_once(file: BorrowedFd<'_>, mut message: Box<[u8; ASK_BYTES]>) -> io::Result<Result<Vec<u64>, Refusal>> {
    ask(file, &mut message)?;
    answered(&message[..]).ok_or_else(not_understood)
}

/// The error if the server is of another version.
pub(super) fn not_understood() -> io::Error {
    io::Error::from_raw_os_error(errno::EINVAL)
}
