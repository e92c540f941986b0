//! Policy and compression of a file's new data: its own, from its attributes, or those of the mount.

use super::Core;
use crate::compression::{COMPRESSION_ATTRIBUTE, Compression};
use crate::dedup::policy::{POLICY_ATTRIBUTE, Policy, PolicyOf};
use crate::error::{Error, Result, errno};
use crate::store::placer::own;
use crate::words::{FileKind, InodeNumber};

/// Attributes that determine how new data of a file is stored. New files and directories inherit them from their
/// directory.
pub(super) const INHERITED: [&[u8]; 2] = [POLICY_ATTRIBUTE, COMPRESSION_ATTRIBUTE];

impl Core {
    /// Returns the same for an inode number. For a directory it applies to new files in it.
    pub(crate) fn compression_of(&self, ino: InodeNumber) -> Result<Compression> {
        let inode = self.inode(ino.0)?;
        let _live = inode.read()?;
        Ok(self.compression_for(&inode))
    }

    /// Returns the policy of a file's new data. For a directory it applies to new files in it.
    pub(crate) fn policy_of(&self, ino: InodeNumber) -> Result<PolicyOf> {
        let inode = self.inode(ino.0)?;
        let _live = inode.read()?;
        Ok(own(&inode).map_or(PolicyOf::Mount(self.policies.policy), PolicyOf::Own))
    }

    /// Returns the concrete policy that is used now, if the policy chooses among others.
    pub(crate) fn chosen_policy_of(&self, ino: InodeNumber) -> Result<Policy> {
        let inode = self.inode(ino.0)?;
        let _live = inode.read()?;
        Ok(self.policies.chosen(own(&inode), inode.directory()))
    }
}

/// Checks the value of an attribute that determines how new data is stored, and the kind of the inode.
///
/// # Errors
/// EINVAL for an unknown value, or if the inode is not a file or directory.
pub(super) fn check_attribute(doing: &'static str, kind: FileKind, name: &[u8], value: &[u8]) -> Result<()> {
    let (is_right, why) = match name {
        POLICY_ATTRIBUTE => {
            (Policy::named(value).is_some(), "the value of user.nvfold.dedup must be the name of a policy")
        }
        COMPRESSION_ATTRIBUTE => (
            Compression::named(value).is_some(),
            "the value of user.nvfold.compress must be off, lz4, zstd or zstd:1 to zstd:22",
        ),
        _ => return Ok(()),
    };
    let why = match kind {
        FileKind::Regular | FileKind::Directory if is_right => return Ok(()),
        FileKind::Regular | FileKind::Directory => why,
        _ => "only files and directories have a policy or a compression",
    };
    Err(Error::Posix { doing, why, errno: errno::EINVAL })
}
