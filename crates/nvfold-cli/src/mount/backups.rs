//! Asks the server of a mount for the bytes of its device, from a command; [`nvfold_mount::backups`] says how.

use super::requests;
use crate::bounded;
use nvfold::errno;
use nvfold_mount::backups::{BEGIN, BackupRequest, Begun, Ending, SAY_EVERY};
use nvfold_mount::requests::ANSWER_MAX;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

pub(crate) use nvfold_mount::backups::Part;

/// How long a command waits before it repeats a request that was refused because its user has too many.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// A backup that a server has begun. It ends when this is dropped.
pub(crate) struct Backup {
    root: File,
    /// What has begun.
    pub begun: Begun,
    next: u64,
    has_ended: bool,
}

impl Backup {
    /// Begins a backup of all that was written before the call.
    ///
    /// # Errors
    /// EPERM for a user who may not; EBUSY if another one is under way; ENODATA if the server knows no backups.
    pub(crate) fn begin(dir: &Path) -> io::Result<Backup> {
        requests::ask_to_write_back(dir)?;
        let root = File::open(dir)?;
        let answer = loop {
            match ask(&root, BEGIN) {
                Err(Errno::AGAIN) => thread::sleep(TRY_AGAIN),
                answered => break answered?,
            }
        };
        let begun = Begun::decode(&answer).ok_or_else(not_understood)?;
        Ok(Backup { root, begun, next: 0, has_ended: false })
    }

    /// Returns the next part.
    ///
    /// # Errors
    /// Those of the request: ENOTCONN and ECONNABORTED if the server has ended, ESTALE if it has ended the backup.
    pub(crate) fn next_part(&mut self) -> io::Result<Part> {
        let answer = self.ask(BackupRequest::Next(self.begun.id, self.next))?;
        self.next += 1;
        Part::decode(&answer).ok_or_else(not_understood)
    }

    /// Calls `work`, and says meanwhile that the command is there.
    pub(crate) fn while_alive<T>(&mut self, work: impl FnOnce(&mut Backup) -> T) -> io::Result<T> {
        let (root, id) = (self.root.try_clone()?, self.begun.id);
        Ok(thread::scope(|scope| {
            let (end, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                while ended.recv_timeout(SAY_EVERY) == Err(RecvTimeoutError::Timeout) {
                    // If the server has ended, the next part says so.
                    let _ = ask(&root, &BackupRequest::Alive(id).to_string());
                }
            });
            let done = work(self);
            drop(end);
            done
        }))
    }

    /// Ends it; returns what it has cost.
    pub(crate) fn end(mut self) -> io::Result<Ending> {
        self.has_ended = true;
        let answer = self.ask(BackupRequest::End(self.begun.id))?;
        Ending::decode(&answer).ok_or_else(not_understood)
    }

    fn ask(&self, request: BackupRequest) -> io::Result<Vec<u8>> {
        Ok(ask(&self.root, &request.to_string())?)
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        if !self.has_ended {
            // If the server does not hear it, it ends the backup when nothing is asked any more.
            let _ = self.ask(BackupRequest::End(self.begun.id));
        }
    }
}

fn ask(root: &File, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; ANSWER_MAX];
    let length = bounded::as_root_asks(name, |name| rustix::fs::fgetxattr(root, name, &mut value))?;
    value.truncate(length);
    Ok(value)
}

/// The error if the server is of another version.
fn not_understood() -> io::Error {
    io::Error::from_raw_os_error(errno::EINVAL)
}
