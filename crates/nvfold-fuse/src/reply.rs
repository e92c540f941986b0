//! A reply: the bytes after its header, written into the buffer from which they are sent.

use crate::protocol::*;
use std::time::Duration;
use zerocopy::IntoBytes;

/// Why an operation failed: a positive errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

#[allow(missing_docs)]
impl Errno {
    pub const EPERM: Errno = Errno(libc::EPERM);
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    pub const EIO: Errno = Errno(libc::EIO);
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    pub const EAGAIN: Errno = Errno(libc::EAGAIN);
    pub const EACCES: Errno = Errno(libc::EACCES);
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
    pub const EDQUOT: Errno = Errno(libc::EDQUOT);
    pub const EOVERFLOW: Errno = Errno(libc::EOVERFLOW);
}

/// The kernel's knowledge of a name: its inode, and how long the kernel may cache the name and the attributes.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The attributes of the inode. Inode number 0 means that there is no such name.
    pub attr: Attr,
    /// Tells apart two inodes that had the same number.
    pub generation: u64,
    /// How long the name and the attributes stay valid.
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

/// A reply under construction. An empty reply means success for requests that have no result.
///
/// Panics if a structure or bytes do not fit, which is a bug: every buffer has room for [`REPLY_BYTES_LEAST`], and
/// for as many bytes as the request asks for.
pub struct Reply<'b> {
    room: &'b mut [u8],
    length: usize,
}

/// The least room of a reply, in bytes.
pub const REPLY_BYTES_LEAST: usize = 128 << 10;

impl<'b> Reply<'b> {
    /// Makes an empty reply.
    pub fn new(room: &'b mut [u8]) -> Reply<'b> {
        Reply { room, length: 0 }
    }

    /// Returns the number of bytes in the reply.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Adds a name (lookup, mknod, mkdir, symlink, link).
    pub fn entry(&mut self, entry: &Entry) {
        self.put(entry.wire().as_bytes());
    }

    /// Adds a name and its open file (create).
    pub fn created(&mut self, entry: &Entry, handle: u64, flags: u32) {
        self.entry(entry);
        self.opened(handle, flags);
    }

    /// Adds attributes, and how long they stay valid.
    pub fn attr(&mut self, attr: &Attr, valid: Duration) {
        let (attr_valid, attr_valid_ns) = (valid.as_secs(), valid.subsec_nanos());
        self.put(AttrOut { attr_valid, attr_valid_ns, unused: 0, attr: *attr }.as_bytes());
    }

    /// Adds attributes with the time of birth, and how long they stay valid.
    pub fn statx(&mut self, stat: &StatX, valid: Duration) {
        let (attr_valid, attr_valid_ns) = (valid.as_secs(), valid.subsec_nanos());
        self.put(StatXOut { attr_valid, attr_valid_ns, flags: 0, spare: [0; 2], stat: *stat }.as_bytes());
    }

    /// Adds an open file or directory; `flags` are those of [`open`].
    pub fn opened(&mut self, fh: u64, flags: u32) {
        self.put(OpenOut { fh, open_flags: flags, backing: 0 }.as_bytes());
    }

    /// Adds data.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Lets `fill` write data straight into the buffer. It gets a slice of `size` bytes and returns how many it
    /// wrote.
    pub fn fill<E>(&mut self, size: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<(), E> {
        self.length = fill(&mut self.room[..size])?;
        Ok(())
    }

    /// Adds the number of bytes written or copied.
    pub fn written(&mut self, size: u32) {
        self.put(WriteOut { size, unused: 0 }.as_bytes());
    }

    /// Adds the space of the file system.
    pub fn statfs(&mut self, space: &StatFsOut) {
        self.put(space.as_bytes());
    }

    /// Adds the length of an extended attribute's value, in bytes.
    pub fn xattr_size(&mut self, size: u32) {
        self.put(XattrSizeOut { size, unused: 0 }.as_bytes());
    }

    /// Adds the offset at which data or a hole begins.
    pub fn offset(&mut self, offset: u64) {
        self.put(LSeekOut { offset }.as_bytes());
    }

    /// Adds the result of an ioctl.
    pub fn ioctl(&mut self, result: i32) {
        self.put(IoctlOut { result, ..IoctlOut::default() }.as_bytes());
    }

    /// Adds a directory entry; returns false if it does not fit into the `size` bytes requested. `next` is the offset
    /// at which the listing continues after it; `kind` holds the type bits of a mode.
    pub fn dirent(&mut self, size: u32, ino: u64, next: u64, kind: u32, name: &[u8]) -> bool {
        self.put_dirent(size, &[], ino, next, kind, name)
    }

    /// Adds an entry as `dirent` does, together with the reply to a lookup of its name.
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

/// Makes the header of a reply, and returns the number of bytes that follow it. A reply with an error is a header
/// alone.
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
    fn directory_entries_are_aligned_and_stop_at_the_size_of_the_reply() {
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
    fn an_error_reply_consists_of_a_header_alone() {
        let (header, length) = out_header(9, Err(Errno::ENOENT));
        assert_eq!((header.len, header.error, header.unique, length), (16, -libc::ENOENT, 9, 0));
        let (header, length) = out_header(9, Ok(24));
        assert_eq!((header.len, header.error, length), (40, 0, 24));
    }
}
