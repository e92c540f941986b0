//! Where a service is mounted now.
//!
//! The problem: between the start and the stop of a service, its file may be edited or removed. What stops it must find
//! the mount that exists. The idea: whoever mounts notes the place in the runtime directory of the service, which the
//! manager makes, names (`RUNTIME_DIRECTORY`) and removes.
//!
//! ```text
//! /run/nvfold/NAME/mount:  0:57\n/srv/pool        device number of the mount, and its directory
//! ```
//!
//! The server may write there too. So a note counts only if an nvfold with that number is mounted on the directory.

use crate::mounts::{self, Mounted};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = "RUNTIME_DIRECTORY";

/// Notes where this service is mounted; does nothing without a runtime directory.
pub(super) fn note(mounted: &Mounted) -> io::Result<()> {
    match file() {
        Some(file) => fs::write(file, [mounted.number.as_bytes(), b"\n", mounted.dir.as_os_str().as_bytes()].concat()),
        None => Ok(()),
    }
}

/// Removes the note.
pub(super) fn forget() {
    // Best effort: a note of a mount that is gone does not count.
    let _ = file().map(fs::remove_file);
}

/// Returns what the note says, whether that is mounted or not: the device number and the directory.
pub(super) fn noted() -> Option<(String, PathBuf)> {
    decoded(&fs::read(file()?).ok()?)
}

/// Returns the mount of the note; without a note, what is mounted on `dir`.
pub(super) fn mounted(dir: Option<&Path>) -> Option<Mounted> {
    match noted() {
        Some((number, dir)) => mounts::at(&dir).filter(|mounted| mounted.number == number),
        None => mounts::at(dir?),
    }
}

fn file() -> Option<PathBuf> {
    // With several directories the variable is a list, and the first is that of the unit.
    let directories = std::env::var_os(DIRECTORY)?;
    let first = directories.as_bytes().split(|byte| *byte == b':').next().filter(|path| !path.is_empty())?;
    Some(Path::new(OsStr::from_bytes(first)).join("mount"))
}

fn decoded(note: &[u8]) -> Option<(String, PathBuf)> {
    let end = note.iter().position(|byte| *byte == b'\n')?;
    let number = std::str::from_utf8(&note[..end]).ok().filter(|number| number.contains(':'))?;
    let dir = PathBuf::from(OsStr::from_bytes(&note[end + 1..]));
    dir.is_absolute().then(|| (number.to_owned(), dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_damage_is_no_note() {
        let expected = |dir: &[u8]| Some(("0:57".to_owned(), PathBuf::from(OsStr::from_bytes(dir))));
        assert_eq!(decoded(b"0:57\n/srv/a b\n\xff"), expected(b"/srv/a b\n\xff"));
        for damaged in [&b""[..], b"0:57", b"0:57\n", b"0:57\nsrv", b"57\n/srv", b"\xff:1\n/srv"] {
            assert_eq!(decoded(damaged), None, "{damaged:?}");
        }
    }
}
