//! Notices: messages to the kernel that answer no request.

use crate::protocol::{NOTIFY_ENTRY, NOTIFY_INODE, NotifyEntryOut, NotifyInodeOut, OutHeader};
use rustix::io::Errno as Os;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Sends notices. The kernel acts before a call returns, so a call may take as long as that: it may write pages back,
/// which are requests to this server, or wait for the lock of a directory.
#[derive(Clone, Debug)]
pub struct Notifier {
    connection: Arc<OwnedFd>,
}

impl Notifier {
    /// Makes one for a connection, whose handshake is done.
    pub fn new(connection: OwnedFd) -> Notifier {
        Notifier { connection: Arc::new(connection) }
    }

    /// Makes the kernel forget the attributes of an inode, and drop its pages in a range of bytes after it has written
    /// them back. Length 0 means up to the end; a negative offset keeps all pages.
    ///
    /// # Errors
    /// Those of the kernel. It is none if the kernel does not know the inode.
    pub fn forget_inode(&self, nodeid: u64, offset: i64, length: i64) -> io::Result<()> {
        self.send(NOTIFY_INODE, &[NotifyInodeOut { nodeid, offset, length }.as_bytes()])
    }

    /// Makes the kernel forget a name in a directory.
    ///
    /// # Errors
    /// As for [`forget_inode`](Notifier::forget_inode).
    pub fn forget_name(&self, parent: u64, name: &OsStr) -> io::Result<()> {
        let about = NotifyEntryOut { parent, name_bytes: name.len() as u32, flags: 0 };
        self.send(NOTIFY_ENTRY, &[about.as_bytes(), name.as_bytes(), &[0]])
    }

    fn send(&self, number: i32, parts: &[&[u8]]) -> io::Result<()> {
        let body = parts.concat();
        let header = OutHeader { len: (size_of::<OutHeader>() + body.len()) as u32, error: number, unique: 0 };
        match rustix::io::write(&self.connection, &[header.as_bytes(), &body].concat()) {
            Ok(_) | Err(Os::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    /// Returns the bytes that a notice sends, as words.
    fn sent(notify: impl FnOnce(&Notifier) -> io::Result<()>) -> Vec<u32> {
        let (kernel, server) = UnixDatagram::pair().unwrap();
        notify(&Notifier::new(server.into())).unwrap();
        let mut bytes = [0; 256];
        let length = kernel.recv(&mut bytes).unwrap();
        bytes[..length].chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn notices_have_the_encoding_that_the_kernel_expects() {
        // struct fuse_out_header { len, error, unique }, then fuse_notify_inval_inode_out or fuse_notify_inval_entry_out.
        assert_eq!(sent(|notifier| notifier.forget_inode(66, 100, 200)), [40, 2, 0, 0, 66, 0, 100, 0, 200, 0]);
        assert_eq!(sent(|notifier| notifier.forget_inode(66, -1, 0)), [40, 2, 0, 0, 66, 0, u32::MAX, u32::MAX, 0, 0]);
        let name = u32::from_ne_bytes(*b"abc\0");
        assert_eq!(sent(|notifier| notifier.forget_name(66, OsStr::new("abc"))), [36, 3, 0, 0, 66, 0, 3, 0, name]);
    }
}
