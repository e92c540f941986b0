//! The file of a backup. It is made under another name, and gets its own when it is whole and on the disk.

use crate::failure::{Doing, Failure, Outcome, warn};
use crate::mounts;
use crate::size;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a copy is called until it is whole.
const SUFFIX: &str = ".partial";
/// Blocks of zeros are left out, so that they are holes.
const BLOCK: usize = nvfold::BLOCK_BYTES as usize;
/// What recovery of the copy may take besides.
const ROOM_BYTES: u64 = 16 << 20;

/// A file that is being written; removed if it is dropped before [`Target::commit`].
pub(super) struct Target {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    written_bytes: u64,
    is_committed: bool,
}

impl Target {
    /// Makes the file, for its owner alone. `device`: what is copied, which must not be replaced.
    pub(super) fn make(path: &Path, force: bool, device: &Path) -> Outcome<Target> {
        check_replaceable(path, force, device)?;
        let partial = partial_of(path);
        let file = create(&partial)?;
        Ok(Target { path: path.to_owned(), partial, file, written_bytes: 0, is_committed: false })
    }

    /// Returns the name that it has until it is whole.
    pub(super) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Returns how many bytes were written.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    pub(super) fn set_length(&mut self, bytes: u64) -> Outcome<()> {
        self.file.set_len(bytes).map_err(|error| self.failed(&error))
    }

    /// Fails if its file system has no room for this many bytes.
    pub(super) fn check_room(&self, bytes: u64) -> Outcome<()> {
        let Ok(space) = rustix::fs::fstatvfs(&self.file) else { return Ok(()) };
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if free >= bytes + ROOM_BYTES {
            return Ok(());
        }
        let why = format!("the copy may take {}, and its file system has {} left", size::show(bytes), size::show(free));
        Err(Failure::new(mounts::show(&self.path), why))
    }

    /// Makes it share the blocks of a device that nobody changes. Returns false where the host cannot do that.
    pub(super) fn share_blocks_of(&self, device: &Path) -> bool {
        let is_file = device.metadata().is_ok_and(|metadata| metadata.is_file());
        is_file && File::open(device).is_ok_and(|device| rustix::fs::ioctl_ficlone(&self.file, &device).is_ok())
    }

    /// Writes bytes of the device, at their offset. Blocks of zeros stay holes.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let is_data = |block: &[u8]| block != &[0; BLOCK][..block.len()];
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = offset + (bytes.len() - rest.len()) as u64;
            let blocks = rest.chunks(BLOCK).take_while(|block| is_data(block)).map(<[u8]>::len).sum();
            let (data, after) = rest.split_at(blocks);
            self.file.write_all_at(data, at).map_err(|error| self.failed(&error))?;
            self.written_bytes += data.len() as u64;
            let zeros = after.chunks(BLOCK).take_while(|block| !is_data(block)).map(<[u8]>::len).sum();
            rest = &after[zeros..];
        }
        Ok(())
    }

    /// Brings all that was written to the disk.
    pub(super) fn sync(&self) -> Outcome<()> {
        self.file.sync_all().map_err(|error| self.failed(&error))
    }

    /// Lets this process open the file as a device.
    pub(super) fn unlock(&self) -> Outcome<()> {
        rustix::fs::flock(&self.file, FlockOperation::Unlock).doing(mounts::show(&self.partial))
    }

    /// Gives it its name.
    pub(super) fn commit(mut self) -> Outcome<()> {
        self.sync()?;
        std::fs::rename(&self.partial, &self.path).map_err(|error| self.failed(&error))?;
        self.is_committed = true;
        let folder = folder_of(&self.path);
        File::open(&folder).and_then(|folder| folder.sync_all()).doing(mounts::show(&folder))
    }

    fn failed(&self, error: &io::Error) -> Failure {
        let failure = Failure::new(mounts::show(&self.path), format!("cannot write the copy: {error}"));
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                failure.hint("no copy was made; free some space there")
            }
            ErrorKind::FileTooLarge => failure.hint("its file system takes no file of this size"),
            _ => failure,
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.is_committed {
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// Returns the folder of a file.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// Refuses to replace what is not meant to be replaced.
fn check_replaceable(path: &Path, force: bool, device: &Path) -> Outcome<()> {
    let refused = |why: &str| Failure::new(mounts::show(path), why);
    let folder = folder_of(path);
    std::fs::metadata(&folder).doing(mounts::show(&folder))?;
    let Ok(metadata) = path.symlink_metadata() else { return Ok(()) };
    if metadata.is_dir() {
        return Err(refused("it is a directory").hint("name the file that is to hold the copy"));
    }
    let id = |metadata: &std::fs::Metadata| (metadata.dev(), metadata.ino());
    if device.metadata().is_ok_and(|device| id(&device) == id(&metadata)) {
        return Err(refused("it is the device that is to be copied"));
    }
    if !metadata.is_file() {
        return Err(refused("it exists, and is no regular file"));
    }
    if !force {
        return Err(refused("it exists").hint("--force replaces it when the copy is whole"));
    }
    // Of a device that is in use, the next mount would see another one.
    let open = File::open(path).doing(mounts::show(path))?;
    match rustix::fs::flock(&open, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Err(refused("it is a device that is in use").hint("name another file")),
        _ => Ok(()),
    }
}

/// Makes the file, and locks it: one that nobody has locked was left by a command that was killed.
fn create(partial: &Path) -> Outcome<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed();
    let new = || File::options().read(true).write(true).create_new(true).mode(0o600).custom_flags(flags).open(partial);
    let made = match new() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            remove_left(partial)?;
            new()
        }
        made => made,
    };
    let file = made.doing(mounts::show(partial))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).doing(mounts::show(partial))?;
    Ok(file)
}

/// Removes what a command that was killed has left.
fn remove_left(partial: &Path) -> Outcome<()> {
    let refused = |why: &str| Failure::new(mounts::show(partial), why);
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed();
    let open = File::options().read(true).custom_flags(flags).open(partial).doing(mounts::show(partial))?;
    let metadata = open.metadata().doing(mounts::show(partial))?;
    if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(
            refused("it is there, and was not left by a backup of yours").hint("remove it, or name another file")
        );
    }
    if rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        return Err(refused("another backup is writing it").hint("wait until that one has ended, or name another file"));
    }
    warn(&format!("{}: left by a backup that was ended; it is replaced", mounts::show(partial)));
    std::fs::remove_file(partial).doing(mounts::show(partial))
}
