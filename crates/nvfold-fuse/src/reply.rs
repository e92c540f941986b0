//! A reply: the bytes that follow its header, put into the place from where they are sent.

use crate::protocol::*;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Why an operation was not done: an errno (positive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

#[allow(missing_docs)]
impl Errno {
    pub const EPERM: Errno = Errno(libc::EPERM);
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    pub const EIO: Errno = Errno(libc::EIO);
    pub const EISDIR: Errno = Errno(libc::EISDIR);
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    pub const ENXIO: Errno = Errno(libc::ENXIO);
    pub const ENOTTY: Errno = Errno(libc::ENOTTY);
    pub const ENOSPC: Errno = Errno(libc::ENOSPC);
    pub const EROFS: Errno = Errno(libc::EROFS);
    pub const ERANGE: Errno = Errno(libc::ERANGE);
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);
    pub const ENODATA: Errno = Errno(libc::ENODATA);
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    pub const ESTALE: Errno = Errno(libc::ESTALE);
}

/// What the kernel is told of a name: an inode, and how long it may believe the name and the attributes.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The inode; number 0 says that there is no such name.
    pub attr: Attr,
    /// What tells two inodes of one number from each other.
    pub generation: u64,
    /// For how long both are true.
    pub valid: Duration,
}

impl Entry {
    fn wire(&self) -> EntryOut {
        let (seconds, ns) = (self.valid.as_secs(), self.valid.subsec_nanos());
        EntryOut {
            nodeid: self.attr.ino,
            generation: self.generation,
            entry_valid: seconds,
            attr_valid: seconds,
            entry_valid_ns: ns,
            attr_valid_ns: ns,
            attr: self.attr,
        }
    }
}

/// A reply that is being made. Empty at first, which says "done" to requests that want to know no more.
///
/// A structure or some bytes that do not fit are a mistake of ours, and panic: there is room for
/// [`REPLY_BYTES_LEAST`] at least, and for what a request says that it takes.
pub struct Reply<'b> {
    room: &'b mut [u8],
    length: usize,
}

/// Room that each reply has.
pub const REPLY_BYTES_LEAST: usize = 128 << 10;

impl<'b> Reply<'b> {
    /// Makes an empty reply.
    pub fn new(room: &'b mut [u8]) -> Reply<'b> {
        Reply { room, length: 0 }
    }

    /// Bytes that were put into it.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Puts a name into it (lookup, mknod, mkdir, symlink, link).
    pub fn entry(&mut self, entry: &Entry) {
        self.put(entry.wire().as_bytes());
    }

    /// Puts a name and its open file into it (create).
    pub fn created(&mut self, entry: &Entry, handle: u64, flags: u32) {
        self.entry(entry);
        self.opened(handle, flags);
    }

    /// Attributes, and how long they are true.
    pub fn attr(&mut self, attr: &Attr, valid: Duration) {
        let (attr_valid, attr_valid_ns) = (valid.as_secs(), valid.subsec_nanos());
        self.put(AttrOut { attr_valid, attr_valid_ns, unused: 0, attr: *attr }.as_bytes());
    }

    /// Puts an open file or directory into it; `flags` are those of [`open`].
    pub fn opened(&mut self, fh: u64, flags: u32) {
        self.put(OpenOut { fh, open_flags: flags, backing: 0 }.as_bytes());
    }

    /// Puts data into it.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Data that `fill` puts into the place from where it is sent; it returns how many bytes of `size` these were.
    pub fn fill<E>(&mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<(), E> {
        self.length = fill(&mut self.room[..size])?;
        Ok(())
    }

    /// Bytes that were written or copied.
    pub fn written(&mut self, size: u32) {
        self.put(WriteOut { size, unused: 0 }.as_bytes());
    }

    /// Puts the space of the file system into it.
    pub fn statfs(&mut self, space: &StatFsOut) {
        self.put(space.as_bytes());
    }

    /// How much room a value takes.
    pub fn xattr_size(&mut self, size: u32) {
        self.put(XattrSizeOut { size, unused: 0 }.as_bytes());
    }

    /// Where data or a hole is.
    pub fn offset(&mut self, offset: u64) {
        self.put(LSeekOut { offset }.as_bytes());
    }

    /// What an ioctl returns.
    pub fn ioctl(&mut self, result: i32) {
        self.put(IoctlOut { result, ..IoctlOut::default() }.as_bytes());
    }

    /// An entry of a directory, if it fits into the `size` bytes that were asked for. `next` is where a listing goes on
    /// behind it; `kind` is its type as in a mode.
    pub fn dirent(&mut self, size: u32, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.put_dirent(size, &[], ino, next, kind, name)
    }

    /// As `dirent`, with what a lookup would tell.
    pub fn dirent_plus(&mut self, size: u32, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let kind = entry.attr.mode;
        self.put_dirent(size, entry.wire().as_bytes(), entry.attr.ino, next, kind, name)
    }

    fn put_dirent(&mut self, size: u32, before: &[u8], ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        let bytes = (before.len() + size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.length + bytes > (size as usize).min(self.room.len()) {
            return false;
        }
        let end = self.length + bytes;
        self.put(before);
        self.put(Dirent { ino, next, name_bytes: name.len() as u32, kind: (kind & 0o170000) >> 12 }.as_bytes());
        self.put(name);
        self.room[self.length..end].fill(0);
        self.length = end;
        true
    }

    fn put(&mut self, bytes: &[u8]) {
        self.room[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

/// Makes the header of a reply. What went wrong is said with a header alone.
pub fn out_header(unique: u64, answer: Result<usize, Errno>) -> (OutHeader, usize) {
    let (length, error) = match answer {
        Ok(length) => (length, 0),
        Err(Errno(errno)) => (0, -errno),
    };
    (OutHeader { len: (size_of::<OutHeader>() + length) as u32, error, unique }, length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn entries_of_a_directory_are_aligned_and_end_where_they_do_not_fit() {
        let mut room = [0xff; 128];
        let mut reply = Reply::new(&mut room);
        assert!(reply.dirent(72, 5, 1, 0o040755, b"directory"));
        assert_eq!(reply.length(), 40);
        assert!(reply.dirent(72, 6, 2, 0o100644, b"file"));
        assert!(!reply.dirent(72, 7, 3, 0o100644, b"x"), "it is full");
        let length = reply.length();
        assert_eq!(length, 72);
        let (first, _) = Dirent::read_from_prefix(&room).unwrap();
        assert_eq!((first.ino, first.next, first.name_bytes, first.kind), (5, 1, 9, 4));
        assert_eq!(&room[24..40], b"directory\0\0\0\0\0\0\0");
    }

    #[test]
    fn an_error_is_said_by_a_header_alone() {
        let (header, length) = out_header(9, Err(Errno::ENOENT));
        assert_eq!((header.len, header.error, header.unique, length), (16, -libc::ENOENT, 9, 0));
        let (header, length) = out_header(9, Ok(24));
        assert_eq!((header.len, header.error, length), (40, 0, 24));
    }
}
