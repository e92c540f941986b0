//! Questions of a program to the server of a mount, by an ioctl on an open file of the mount.
//!
//! The kernel passes the bytes of the question to the server, with who asks, and returns those of the answer. It checks no
//! permission beyond that of having the file open, and takes no lock, so a question may take as long as it needs. What the
//! bytes mean is a matter of the two ends.

use crate::sys;
use rustix::fs::FileType;
use std::io;
use std::os::fd::BorrowedFd;

/// The length of a question and of an answer. An ioctl number can say up to 16,383.
pub const ASK_BYTES: usize = 8192;
/// The number of the ioctl: it passes [`ASK_BYTES`] in and out.
pub const ASK: u32 = 3 << 30 | (ASK_BYTES as u32) << 16 | 0xe6 << 8 | 0x02;

/// The magic number of FUSE file systems in statfs(2).
const FUSE_MAGIC: u64 = 0x6573_5546;

/// Asks the server of the mount on which `file` is open: the answer takes the place of the question. Bytes that the server
/// does not answer stay as they are.
///
/// # Errors
/// ENOTTY if it is no regular file or directory of a FUSE file system, or the server knows no questions; EINVAL or
/// another errno of the server; those of fstat and fstatfs.
pub fn ask(file: BorrowedFd<'_>, message: &mut [u8; ASK_BYTES]) -> io::Result<()> {
    let kind = FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
    let is_fuse = rustix::fs::fstatfs(file)?.f_type as u64 == FUSE_MAGIC;
    if !is_fuse || !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Err(io::Error::from_raw_os_error(libc::ENOTTY));
    }
    sys::ask_fuse(file, ASK, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn only_files_of_fuse_file_systems_are_asked() {
        let mut message = [7; ASK_BYTES];
        for path in ["/dev/null", "/proc/self/exe", "/proc"] {
            let file = std::fs::File::open(path).unwrap();
            let refused = ask(file.as_fd(), &mut message).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::ENOTTY), "{path}");
        }
        assert_eq!(message, [7; ASK_BYTES]);
    }
}
