//! The error type: the operation, its object, and the errno that a front end returns.

use pmem::PmemError;

/// Result of every operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. [`Error::errno`] gives the POSIX number.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// ENOENT.
    #[error("{what}: no such file or directory")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// EEXIST.
    #[error("{what}: a file of this name exists already")]
    Exists {
        /// The name.
        what: String,
    },
    /// EACCES, or EPERM for a device node.
    #[error("{what}: {why}")]
    Denied {
        /// Path of the file, from the directory of the call.
        what: String,
        /// Why not.
        why: &'static str,
        /// The errno.
        errno: i32,
    },
    /// Any other POSIX condition that depends only on the arguments.
    #[error("{doing}: {why}")]
    Posix {
        /// The operation.
        doing: &'static str,
        /// Why not.
        why: &'static str,
        /// The errno.
        errno: i32,
    },
    /// ENOSPC.
    #[error(
        "{doing}: no space left on the device: {blocks_needed} blocks of 4 KiB are needed and \
         {blocks_free} are free; delete files, or use a larger device"
    )]
    NoSpace {
        /// The operation.
        doing: &'static str,
        /// Blocks that the operation needs.
        blocks_needed: u64,
        /// Blocks that are free for it.
        blocks_free: u64,
    },
    /// EDQUOT: a limit of the tree that the file or directory belongs to ([`crate::Limits`]).
    #[error(
        "{doing}: the tree below the directory with inode {top} may have {most} {what}, {needed} more are needed and {left} are \
         left; delete files in it, or change its limits with `nvfold set`"
    )]
    OverLimit {
        /// The operation.
        doing: &'static str,
        /// The directory that has the limits.
        top: u64,
        /// What is limited: `bytes of content` or `inodes`.
        what: &'static str,
        /// The limit.
        most: u64,
        /// How many more the operation needs.
        needed: u64,
        /// How many are left.
        left: u64,
    },
    /// EROFS.
    #[error("{doing}: the file system is mounted read-only")]
    ReadOnly {
        /// The operation.
        doing: &'static str,
    },
    /// EIO: bytes on the media that nvfold did not write, or that are damaged.
    #[error("{what} (device offset {at:#x})")]
    Corrupt {
        /// The damage, as a sentence with the structure as its subject: `inode 7: its log tail is damaged`.
        what: String,
        /// Device offset in bytes.
        at: u64,
    },
    /// EIO: every copy of the superblock is damaged, and nothing of the device can be read without one.
    #[error("all copies of the superblock are damaged, and nothing on the device can be read without one: {why}")]
    NoSuperblock {
        /// What is wrong with a copy.
        why: &'static str,
    },
    /// EIO: the device is shorter than the file system on it.
    #[error("the device was truncated to {bytes} bytes, and the file system on it has {whole_bytes}")]
    Truncated {
        /// Its length.
        bytes: u64,
        /// The length that it had.
        whole_bytes: u64,
    },
    /// EIO: a repair was interrupted, so the device cannot be mounted read-write.
    #[error("a repair of this device was interrupted; until it is repeated, the device can be mounted read-only")]
    RepairInterrupted,
    /// EIO: the pm index is not whole. The device can be mounted read-only, or get another index.
    #[error("segment table: segments of the pm index are missing or damaged (device offset {at:#x})")]
    PmIndexDamaged {
        /// Device offset of the segment table in bytes.
        at: u64,
    },
    /// EIO: bytes on the media that cannot be read any longer.
    #[error(
        "{what}: {length} bytes at device offset {at:#x} lie in bad memory and cannot be read; write them anew, or restore \
         them from a copy"
    )]
    BadMemory {
        /// The structure in bad memory.
        what: String,
        /// Device offset in bytes.
        at: u64,
        /// Length in bytes.
        length: u64,
    },
    /// EIO: the counts from before a crash cannot be made exact, for a reason other than damage of the device.
    #[error(
        "reconcile the counts after a crash: {why}; space of before the crash is not used again until the next mount"
    )]
    NotReconciled {
        /// The error that ended the reconciliation.
        why: String,
    },
    /// EIO: a change was not made because nvfold itself has made a mistake: it would have written what it could not
    /// read back, or other content than that which it was to move.
    #[error("{what}; this is a mistake in nvfold, please report it: the change was not made, and no data is lost")]
    Refused {
        /// What was refused, and why.
        what: String,
    },
    /// EIO: a panic has ended work, or a change of an inode that cannot be used before the next mount.
    #[error(
        "{what} was ended by a panic; this is a mistake in nvfold, please report it: no data is lost, and after an unmount \
         it can be tried again"
    )]
    Panicked {
        /// What was ended, and the message of the panic.
        what: String,
    },
    /// EINVAL: the device holds no nvfold file system.
    #[error("this is not an nvfold device: {why}")]
    NotNvfold {
        /// What was found instead.
        why: String,
    },
    /// EINVAL: the file system was made by a newer version.
    #[error("a newer nvfold made this file system: {what}")]
    Newer {
        /// Version or feature flags.
        what: String,
    },
    /// EINVAL: the file system was made by an older version, in a format that is no longer supported.
    #[error("an older nvfold made this file system, in a format that this one does not read: {what}")]
    Older {
        /// Version.
        what: String,
    },
    /// EINVAL: the pm index is made with a hash function that only builds with the feature `papers` have.
    #[error(
        "the index of this device is made with {function}, a hash function of the papers that this build of nvfold does \
         not have; use one with the feature `papers`"
    )]
    NotBuilt {
        /// Name of the function.
        function: &'static str,
    },
    /// EINVAL: the file system was made on a machine of the other byte order.
    #[error("a machine of the other byte order made this file system, and it cannot be read here")]
    OtherByteOrder,
    /// EINVAL: the device cannot hold a file system.
    #[error("the device cannot be formatted: {why}")]
    Format {
        /// Why not.
        why: String,
    },
    /// EINVAL: the file system cannot have the size that was asked for.
    #[error("the file system cannot be resized: {why}")]
    Resize {
        /// Why not, and what to do.
        why: String,
    },
    /// EINVAL: an undo file of fsck cannot be used.
    #[error("the undo file cannot be used: {why}")]
    Undo {
        /// Why not.
        why: String,
    },
    /// An error of the device.
    #[error(transparent)]
    Device(#[from] PmemError),
}

/// Arithmetic of file offsets, media addresses and lengths in work on extents. If there is no such number, the extents
/// are damaged or the work has computed them wrongly: that is an error, and never a number near 2^64.
pub(crate) trait Offset {
    /// Returns the offset `bytes` further on.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none.
    fn after(self, bytes: u64) -> Result<u64>;

    /// Returns the number of bytes from `start` to this offset.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `start` lies after it.
    fn since(self, start: u64) -> Result<u64>;
}

impl Offset for u64 {
    #[inline]
    fn after(self, bytes: u64) -> Result<u64> {
        self.checked_add(bytes).ok_or_else(|| no_offset(self, "no offset lies", bytes, "bytes further on"))
    }

    #[inline]
    fn since(self, start: u64) -> Result<u64> {
        self.checked_sub(start).ok_or_else(|| no_offset(self, "it lies before", start, ""))
    }
}

#[cold]
fn no_offset(at: u64, what: &str, number: u64, of: &str) -> Error {
    Error::Corrupt { what: format!("extents: offset {at}: {what} {number} {of}").trim_end().into(), at }
}

/// Linux errno values.
pub mod errno {
    #![allow(missing_docs)]
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENODEV: i32 = 19;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const ERANGE: i32 = 34;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ESTALE: i32 = 116;
    pub const EBUSY: i32 = 16;
    pub const E2BIG: i32 = 7;
    pub const EPERM: i32 = 1;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EDQUOT: i32 = 122;
    pub const ECANCELED: i32 = 125;
}

impl Error {
    /// Returns a function that converts a device error; for bad memory, `what` names the structure in it.
    pub(crate) fn of(what: impl FnOnce() -> String) -> impl FnOnce(PmemError) -> Error {
        |error| match error {
            PmemError::BadMemory { offset: at, length, .. } => Error::BadMemory { what: what(), at, length },
            error => Error::Device(error),
        }
    }

    /// Returns whether the error is about the whole device or mount, so that no other operation can succeed there
    /// either: a lost device, or a mount that was read-only or has ended. Every other error is about the file, entry
    /// or block at hand.
    pub fn is_of_device(&self) -> bool {
        match self {
            Error::Device(error) => !matches!(error, PmemError::BadMemory { .. }),
            error => matches!(error, Error::ReadOnly { .. }),
        }
    }

    /// Returns the POSIX error number of this failure.
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotFound { .. } => errno::ENOENT,
            Error::Exists { .. } => errno::EEXIST,
            Error::Denied { errno, .. } | Error::Posix { errno, .. } => *errno,
            Error::NoSpace { .. } => errno::ENOSPC,
            Error::OverLimit { .. } => errno::EDQUOT,
            Error::ReadOnly { .. } => errno::EROFS,
            Error::Corrupt { .. }
            | Error::NoSuperblock { .. }
            | Error::Truncated { .. }
            | Error::RepairInterrupted
            | Error::PmIndexDamaged { .. }
            | Error::BadMemory { .. }
            | Error::NotReconciled { .. }
            | Error::Refused { .. }
            | Error::Panicked { .. } => errno::EIO,
            Error::NotNvfold { .. }
            | Error::Newer { .. }
            | Error::Older { .. }
            | Error::NotBuilt { .. }
            | Error::OtherByteOrder
            | Error::Undo { .. }
            | Error::Resize { .. }
            | Error::Format { .. } => errno::EINVAL,
            Error::Device(error) => error.errno(),
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn an_offset_overflow_is_reported_as_corruption() {
        assert_eq!((5.after(7).unwrap(), 12.since(7).unwrap(), 7.since(7).unwrap()), (12, 5, 0));
        assert_eq!((u64::MAX - 7).after(7).unwrap(), u64::MAX);
        let error = u64::MAX.after(1).unwrap_err();
        assert!(matches!(error, Error::Corrupt { at: u64::MAX, .. }), "{error}");
        let error = 5.since(7).unwrap_err();
        assert!(error.to_string().starts_with("extents: offset 5: it lies before 7 (device"), "{error}");
    }
}
