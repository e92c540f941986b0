//! [`Connection`]: a mount that one process makes and another one serves.
//!
//! The problem: mount(2) takes the rights of root, and the mount must be made where all programs see it. The server that
//! then reads what any user writes should have no such rights, and may be locked into a place of its own, as service
//! managers do. The idea: a small program mounts and hands the descriptor over; the server starts with it
//! ([`Mount::serve`](crate::Mount::serve)), and never mounts or unmounts anything.
//!
//! ```text
//! Connection::new -> descriptor -> (service manager, exec) -> Connection::inherited -> Mount::serve
//! ```

use crate::handshake;
use crate::mounts::{self, Mounted};
use crate::options::Options;
use nvfold_fuse::mount::inherited;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A mount whose requests are not answered yet. Programs that use it wait.
pub struct Connection {
    pub(crate) descriptor: OwnedFd,
    dir: PathBuf,
    /// `None` if this process does not find it in its mount table.
    pub(crate) mounted: Option<Mounted>,
}

impl Connection {
    /// Mounts on a directory. The descriptor is the mount: when the last copy of it is closed, requests fail.
    ///
    /// # Errors
    /// Those of the directory, of mount(2) and of fusermount3; nothing is mounted then.
    pub fn new(dir: impl AsRef<Path>, options: &Options, read_only: bool) -> io::Result<Connection> {
        let dir = dir.as_ref().canonicalize()?;
        let descriptor = handshake::mounting(options, read_only).mount(&dir)?;
        let mounted = mounts::at(&dir);
        if let Some(mounted) = &mounted {
            mounted.raise_read_ahead();
        }
        Ok(Connection { descriptor, dir, mounted })
    }

    /// Takes over the mount whose descriptor this process was started with. `connection` is the number that the kernel
    /// gave it ([`Mounted::connection`]), if the process that mounted has told it; Linux 6.16 tells it, too.
    ///
    /// # Errors
    /// `InvalidInput` if no connection of FUSE is open under the number of the descriptor.
    pub fn inherited(descriptor: i32, connection: Option<&str>) -> io::Result<Connection> {
        let number = descriptor;
        let descriptor = inherited(number)?;
        let told = connection.map(str::to_owned).or_else(|| connection_of(number));
        let is_it = |mounted: &Mounted| told.as_deref() == Some(mounted.connection());
        let mounted = mounts::all().into_iter().find(is_it);
        let dir = mounted.as_ref().map_or_else(|| format!("/dev/fd/{number}").into(), |mounted| mounted.dir.clone());
        Ok(Connection { descriptor, dir, mounted })
    }

    /// Returns the mount point; `/dev/fd/N` if this process does not find it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the entry in the mount table.
    pub fn mounted(&self) -> Option<&Mounted> {
        self.mounted.as_ref()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Returns what the kernel tells of the connection of a descriptor.
fn connection_of(descriptor: i32) -> Option<String> {
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?;
    Some(facts.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().to_owned())
}
