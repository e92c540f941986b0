//! The operations (interface first).

use crate::*;
use pmem::Region;
use std::sync::Arc;

/// A mounted file system: names. Cheap to clone; all methods may be called from any thread.
#[derive(Clone)]
pub struct FileSystem {
    _inner: Arc<()>,
}

/// An open file: bytes. Keeps an unlinked inode alive until dropped; cheap to clone.
#[derive(Clone)]
pub struct File {
    _inner: Arc<()>,
}

#[allow(unused_variables, missing_docs)]
impl FileSystem {
    pub fn mkfs(region: &Region, options: &MkfsOptions) -> Result<()> { todo!() }
    pub fn mount(region: Region, options: MountOptions) -> Result<FileSystem> { todo!() }
    /// Marks the device clean. Open `File`s must be gone or are abandoned. Drop without it leaves a crashed device (recovered at next mount).
    pub fn unmount(self) -> Result<()> { todo!() }
    pub fn is_read_only(&self) -> bool { todo!() }
    pub fn policy(&self) -> Policy { todo!() }
    pub fn region(&self) -> &Region { todo!() }

    pub fn lookup(&self, parent: InodeNumber, name: &[u8]) -> Result<Attr> { todo!() }
    pub fn getattr(&self, ino: InodeNumber) -> Result<Attr> { todo!() }
    pub fn setattr(&self, ino: InodeNumber, change: &SetAttr) -> Result<Attr> { todo!() }
    /// Regular files, fifos, sockets, device nodes.
    pub fn create(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> { todo!() }
    pub fn mkdir(&self, parent: InodeNumber, name: &[u8], new: &NewInode) -> Result<Attr> { todo!() }
    pub fn symlink(&self, parent: InodeNumber, name: &[u8], target: &[u8], new: &NewInode) -> Result<Attr> { todo!() }
    pub fn readlink(&self, ino: InodeNumber) -> Result<Vec<u8>> { todo!() }
    pub fn link(&self, ino: InodeNumber, parent: InodeNumber, name: &[u8]) -> Result<Attr> { todo!() }
    pub fn unlink(&self, parent: InodeNumber, name: &[u8]) -> Result<()> { todo!() }
    pub fn rmdir(&self, parent: InodeNumber, name: &[u8]) -> Result<()> { todo!() }
    pub fn rename(&self, parent: InodeNumber, name: &[u8], new_parent: InodeNumber, new_name: &[u8], mode: RenameMode) -> Result<()> { todo!() }
    /// Calls `each` for every entry after `cookie` (0: from the start; no `.` and `..`) until it returns false.
    pub fn readdir(&self, dir: InodeNumber, cookie: u64, each: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> { todo!() }
    /// Parent of a directory (the root's is the root).
    pub fn parent(&self, dir: InodeNumber) -> Result<InodeNumber> { todo!() }

    /// Any name is taken as it is (`user.x`, `security.y`, `system.posix_acl_access`, ...).
    pub fn set_xattr(&self, ino: InodeNumber, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> { todo!() }
    /// ENODATA when absent.
    pub fn get_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<Vec<u8>> { todo!() }
    pub fn list_xattr(&self, ino: InodeNumber) -> Result<Vec<Vec<u8>>> { todo!() }
    pub fn remove_xattr(&self, ino: InodeNumber, name: &[u8]) -> Result<()> { todo!() }

    /// Opens (pins) an inode of any kind; data calls need a regular file.
    pub fn open(&self, ino: InodeNumber) -> Result<File> { todo!() }
    /// O_TMPFILE: a regular file with no name (nlink 0); `link` gives it one.
    pub fn tmpfile(&self, new: &NewInode) -> Result<File> { todo!() }

    /// Makes all that was acknowledged durable (ordered msync at level `file`; elsewhere it is already).
    pub fn sync(&self) -> Result<()> { todo!() }
    pub fn statfs(&self) -> StatFs { todo!() }
    pub fn stats(&self) -> Stats { todo!() }
    /// Gives the memory of freed segments back to the host now. Front ends call it every few seconds and at unmount. Returns bytes given back.
    pub fn trim(&self) -> Result<u64> { todo!() }

    /// Path helpers for embedders (absolute or relative to the root, symlinks followed).
    pub fn resolve(&self, path: &[u8]) -> Result<Attr> { todo!() }
}

#[allow(unused_variables, missing_docs)]
impl File {
    pub fn ino(&self) -> InodeNumber { todo!() }
    pub fn attr(&self) -> Attr { todo!() }
    /// Bytes read; fewer than asked only at the end of the file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> { todo!() }
    /// Writes all of `data` atomically, or fails and changes nothing.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> { todo!() }
    /// Appends atomically; returns the offset.
    pub fn append(&self, data: &[u8]) -> Result<u64> { todo!() }
    pub fn set_len(&self, size: u64) -> Result<()> { todo!() }
    pub fn allocate(&self, offset: u64, len: u64, mode: AllocateMode) -> Result<()> { todo!() }
    /// ENXIO when `offset` is at or past the end, or no data follows.
    pub fn seek(&self, offset: u64, whence: Whence) -> Result<u64> { todo!() }
    /// Shares any byte range of `source` (metadata only); both may be the same file if the ranges do not overlap. Returns bytes cloned (short at the source's end).
    pub fn clone_from(&self, source: &File, source_offset: u64, offset: u64, len: u64) -> Result<u64> { todo!() }
    pub fn sync(&self) -> Result<()> { todo!() }
}
