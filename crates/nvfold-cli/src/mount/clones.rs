//! Asks the server of a mount to clone a tree, from a command; [`nvfold_mount::clones`] says how.

use crate::bounded;
use nvfold::{CloneProgress, errno};
use nvfold_fuse::{ASK_BYTES, ask};
use nvfold_mount::clones::{SOURCE_ATTRIBUTE, answered};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

pub(crate) use nvfold_mount::clones::{Question, Refusal, SourceToken};

/// How long a request that was refused because its user has too many waits before it is made again.
pub(super) const TRY_AGAIN: Duration = Duration::from_millis(10);

/// The directory for a new name on a mount, where this process may make names: see the module.
pub(crate) struct Permit(OwnedFd);

/// Returns the token of an open directory.
///
/// # Errors
/// ENODATA and EOPNOTSUPP if it is not on a mount of nvfold that can clone trees; EACCES if it may not be read.
pub(crate) fn source(directory: &File) -> rustix::io::Result<SourceToken> {
    let mut value = [0; 16];
    match bounded::as_root_asks(SOURCE_ATTRIBUTE, |name| rustix::fs::fgetxattr(directory, name, &mut value))? {
        16 => Ok(SourceToken::of_bytes(&value)),
        _ => Err(Errno::NODATA),
    }
}

impl Permit {
    /// Asks the kernel whether this process may make a name in a directory.
    ///
    /// # Errors
    /// Those of open(2): EACCES, EROFS, ENOSPC; EOPNOTSUPP before Linux 6.1.
    pub(crate) fn to_make_names_in(directory: &Path) -> rustix::io::Result<Permit> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR).map(Permit)
    }

    /// Asks for a copy of the tree of an open directory, by the question that `asked` makes of its token. `wait` is called
    /// every so often with how far it is, and answers whether to go on.
    pub(crate) fn copy(
        &self,
        directory: &File,
        asked: impl Fn(SourceToken) -> Box<[u8; ASK_BYTES]>,
        every: Duration,
        mut wait: impl FnMut(CloneProgress) -> bool,
    ) -> io::Result<Result<CloneProgress, Refusal>> {
        loop {
            let question = asked(source(directory)?);
            match self.answer_watched(question, every, &mut wait)? {
                Err(refusal) if refusal.errno == Errno::AGAIN.raw_os_error() && wait(CloneProgress::default()) => {
                    thread::sleep(TRY_AGAIN);
                }
                done => return Ok(done),
            }
        }
    }

    /// Asks in a thread of its own: once the server has the request, nothing but its answer ends the wait.
    fn answer_watched(
        &self,
        question: Box<[u8; ASK_BYTES]>,
        every: Duration,
        wait: &mut dyn FnMut(CloneProgress) -> bool,
    ) -> io::Result<Result<CloneProgress, Refusal>> {
        thread::scope(|scope| {
            let (ended, end) = mpsc::channel();
            scope.spawn(move || ended.send(self.answer(question)));
            loop {
                if let Ok(done) = end.recv_timeout(every) {
                    return done;
                }
                let progress = self.answer(Question::Progress.to_message())?.unwrap_or_default();
                if !wait(progress) {
                    let _ = self.answer(Question::Cancel.to_message())?;
                }
            }
        })
    }

    fn answer(&self, mut message: Box<[u8; ASK_BYTES]>) -> io::Result<Result<CloneProgress, Refusal>> {
        ask(self.0.as_fd(), &mut message)?;
        answered(&message[..]).ok_or_else(|| io::Error::from_raw_os_error(errno::EINVAL))
    }
}
