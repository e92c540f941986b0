//! Requests of a command to the server of a mount, as a command sends them; [`nvfold_mount::requests`] says what they are.

use crate::bounded::{self, ANSWERS_WITHIN};
use nvfold::{MappedExtent, Reshared, errno};
use nvfold_mount::REPORT_ATTRIBUTE;
use nvfold_mount::requests::{ANSWER_MAX, DRAIN, RECLAIM, REMOVE, SYNC, WRITE_BACK};
pub(crate) use nvfold_mount::requests::{EXTENTS_MAX, Left, RANGE_BYTES_MAX, ReclaimLeft, Request};
pub(crate) use nvfold_mount::requests::{drain_some, queued, reclaim_some};
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

/// How long a command waits before it repeats a request that was refused because its user has too many.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Returns true if a path is on an nvfold mount.
///
/// # Errors
/// `TimedOut` if it is, and its server does not answer.
pub(crate) fn answers(path: &Path) -> io::Result<bool> {
    bounded::has(path, REPORT_ATTRIBUTE)
}

/// Sends a request to the server, from a command.
pub(crate) fn ask(path: &Path, request: &Request) -> io::Result<Reshared> {
    let answer = read(path, &request.to_string())?;
    match numbers(&answer)[..] {
        [looked_at_bytes, changed_bytes] => Ok(Reshared { looked_at_bytes, changed_bytes }),
        _ => Err(not_understood()),
    }
}

/// Sends a drain request to the server, from a command.
pub(crate) fn ask_to_drain(path: &Path) -> io::Result<Left> {
    match numbers(&text(bounded::get(path, DRAIN, ANSWERS_WITHIN)?)?)[..] {
        [is_done, entries, bytes] => Ok(Left { is_done: is_done != 0, entries, bytes }),
        _ => Err(not_understood()),
    }
}

/// Sends a reclaim request to the server, from a command.
pub(crate) fn ask_to_reclaim(path: &Path) -> io::Result<ReclaimLeft> {
    match numbers(&text(bounded::get(path, RECLAIM, ANSWERS_WITHIN)?)?)[..] {
        [is_done, dead_bytes] => Ok(ReclaimLeft { is_done: is_done != 0, dead_bytes }),
        _ => Err(not_understood()),
    }
}

/// Makes durable all that was written to a mount before the call, from a command; returns the persistence level. This
/// takes as long as the disk does.
///
/// # Errors
/// Also the reason why data that programs have written could not be stored.
pub(crate) fn ask_to_sync(path: &Path) -> io::Result<String> {
    with_writeback(path, SYNC)
}

/// Stores all that was written to a mount before the call, from a command.
///
/// # Errors
/// As for [`ask_to_sync`].
pub(crate) fn ask_to_write_back(path: &Path) -> io::Result<()> {
    with_writeback(path, WRITE_BACK).map(drop)
}

/// Sends a request that waits for the kernel to write back what it has cached.
fn with_writeback(path: &Path, name: &str) -> io::Result<String> {
    let open = std::fs::File::open(path)?;
    // This only begins to write back, but many pages at once.
    let begun = rustix::fs::syncfs(&open);
    let answer = read(path, name)?;
    begun?;
    // What has failed since the file was opened is told once.
    rustix::fs::syncfs(&open)?;
    Ok(answer)
}

/// Removes a directory of a mount with all that is below it, from a command.
pub(crate) fn ask_to_remove(path: &Path) -> io::Result<()> {
    read(path, REMOVE).map(drop)
}

/// Returns the extents of a file from a byte offset on, at most [`EXTENTS_MAX`].
pub(crate) fn extents(path: &Path, offset: u64) -> io::Result<Vec<MappedExtent>> {
    let answer = read(path, &Request::Extents { offset }.to_string())?;
    let extent = |line: &str| match numbers(line)[..] {
        [offset, length, address, unwritten, references, class, stored_bytes] => Ok(MappedExtent {
            offset,
            length,
            address,
            stored_bytes,
            unwritten: unwritten != 0,
            references: references as u32,
            class: class as u8,
        }),
        _ => Err(not_understood()),
    };
    answer.lines().map(extent).collect()
}

fn read(path: &Path, name: &str) -> io::Result<String> {
    let mut value = vec![0; ANSWER_MAX];
    let length = loop {
        match bounded::attribute(path, name, &mut value) {
            Err(rustix::io::Errno::AGAIN) => thread::sleep(TRY_AGAIN),
            answered => break answered?,
        }
    };
    value.truncate(length);
    text(value)
}

fn text(answer: Vec<u8>) -> io::Result<String> {
    String::from_utf8(answer).map_err(|_| not_understood())
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map_while(|number| number.parse().ok()).collect()
}

/// The error if the server is of another version.
fn not_understood() -> io::Error {
    io::Error::from_raw_os_error(errno::EINVAL)
}
