//! Which policy new data of a file gets, and which compression: its own, from its attributes, or those of the mount.

use super::Core;
use crate::compression::{COMPRESSION_ATTRIBUTE, Compression};
use crate::dedup::Dedup;
use crate::dedup::policy::{POLICY_ATTRIBUTE, Policy, PolicyOf};
use crate::error::{Error, Result, errno};
use crate::inode::{Inode, State};
use crate::words::{FileKind, InodeNumber};

/// Attributes that say how new data of a file is stored: what is made in a directory gets copies.
pub(super) const INHERITED: [&[u8]; 2] = [POLICY_ATTRIBUTE, COMPRESSION_ATTRIBUTE];

/// Takes over what an inode's attributes say now.
pub(super) fn take_over(inode: &Inode, state: &State) {
    let policy = state.short_attribute(POLICY_ATTRIBUTE).and_then(Policy::named);
    inode.set_own_policy(policy.map(Policy::number));
    let compression = state.short_attribute(COMPRESSION_ATTRIBUTE).and_then(Compression::named);
    inode.set_own_compression(compression.map(Compression::number));
}

fn own(inode: &Inode) -> Option<Policy> {
    inode.own_policy().and_then(Policy::numbered)
}

/// What may be the value of an attribute that says how new data is stored, and of what.
pub(super) fn check_attribute(doing: &'static str, kind: FileKind, name: &[u8], value: &[u8]) -> Result<()> {
    let (is_right, why) = match name {
        POLICY_ATTRIBUTE => {
            (Policy::named(value).is_some(), "user.nvfold.dedup names a policy, and there is none of that name")
        }
        COMPRESSION_ATTRIBUTE => {
            (Compression::named(value).is_some(), "user.nvfold.compress is off, lz4, zstd or zstd:1 to zstd:22")
        }
        _ => return Ok(()),
    };
    let why = match kind {
        FileKind::Regular | FileKind::Directory if is_right => return Ok(()),
        FileKind::Regular | FileKind::Directory => why,
        _ => "only files and directories have a policy or a compression",
    };
    Err(Error::Posix { doing, why, errno: errno::EINVAL })
}

impl Core {
    /// The policy that places new data of a file.
    #[inline]
    pub(super) fn policy_for(&self, inode: &Inode) -> &dyn Dedup {
        self.policies.of_file(own(inode), inode.directory())
    }

    /// Whether new data of a file is shared with what it was copied from.
    #[inline]
    pub(crate) fn follows_origins(&self, inode: &Inode) -> bool {
        self.policies.follow_origins(own(inode))
    }

    /// How new packed chunks of a file are stored.
    #[inline]
    pub(super) fn compression_for(&self, inode: &Inode) -> Compression {
        inode.own_compression().and_then(Compression::numbered).unwrap_or(self.compression)
    }

    /// The same, or of what is made in a directory.
    pub(crate) fn compression_of(&self, ino: InodeNumber) -> Result<Compression> {
        let inode = self.inode(ino.0)?;
        let _live = inode.read()?;
        Ok(self.compression_for(&inode))
    }

    /// Which policy new data of a file gets, or of what is made in a directory.
    pub(crate) fn policy_of(&self, ino: InodeNumber) -> Result<PolicyOf> {
        let inode = self.inode(ino.0)?;
        let _live = inode.read()?;
        Ok(own(&inode).map_or(PolicyOf::Mount(self.policies.policy), PolicyOf::Own))
    }

    /// Which one that is now, where the policy chooses another.
    pub(crate) fn chosen_policy_of(&self, ino: InodeNumber) -> Result<Policy> {
        let inode = self.inode(ino.0)?;
        let _live = inode.read()?;
        Ok(self.policies.chosen(own(&inode), inode.directory()))
    }
}
