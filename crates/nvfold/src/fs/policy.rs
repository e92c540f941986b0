//! Policy and compression of a file's new data: its own, from its attributes, or those of the mount.

use super::Core;
use crate::compression::{COMPRESSION_ATTRIBUTE, Compression};
use crate::dedup::Dedup;
use crate::dedup::policy::{POLICY_ATTRIBUTE, Policy, PolicyOf};
use crate::error::{Error, Result, errno};
use crate::fingerprint::{Domain, Fingerprint};
use crate::inode::{Inode, State};
use crate::words::{FileKind, InodeNumber};
use std::ops::Deref;

/// Attributes that determine how new data of a file is stored. New files and directories inherit them from their
/// directory.
pub(super) const INHERITED: [&[u8]; 2] = [POLICY_ATTRIBUTE, COMPRESSION_ATTRIBUTE];

/// Reads policy and compression of an inode from its attributes.
pub(super) fn take_over(inode: &Inode, state: &State) {
    let policy = state.short_attribute(POLICY_ATTRIBUTE).and_then(Policy::named);
    inode.set_own_policy(policy.map(Policy::number));
    let compression = state.short_attribute(COMPRESSION_ATTRIBUTE).and_then(Compression::named);
    inode.set_own_compression(compression.map(Compression::number));
}

/// The policy that places the new data of a file, in the sharing domain of the file's owner.
#[derive(Clone, Copy)]
pub(super) struct Placer<'p> {
    dedup: &'p dyn Dedup,
    domain: Domain,
}

impl<'p> Placer<'p> {
    /// A policy for an operation that stores no data of a file.
    pub(super) fn of_no_file(dedup: &'p dyn Dedup) -> Placer<'p> {
        Placer { dedup, domain: Domain::ALL }
    }

    /// Returns another policy for the same file.
    pub(super) fn with(self, dedup: &'p dyn Dedup) -> Placer<'p> {
        Placer { dedup, ..self }
    }

    /// Returns the same policy in the domain that a file has now that it is locked.
    pub(super) fn with_domain_of(self, inode: &Inode) -> Placer<'p> {
        Placer { domain: inode.domain(), ..self }
    }

    #[inline]
    pub(super) fn domain(self) -> Domain {
        self.domain
    }

    /// Returns the fingerprint by which a piece is found in the domain. It hides that of the policy.
    #[inline]
    pub(super) fn fingerprint(self, piece: &[u8]) -> Fingerprint {
        match self.domain {
            Domain::NOBODY => Fingerprint::default(),
            domain => domain.fingerprint(self.dedup.fingerprint(piece)),
        }
    }
}

impl<'p> Deref for Placer<'p> {
    type Target = dyn Dedup + 'p;

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.dedup
    }
}

fn own(inode: &Inode) -> Option<Policy> {
    inode.own_policy().and_then(Policy::numbered)
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

impl Core {
    /// Returns the policy that places new data of a file.
    #[inline]
    pub(super) fn policy_for(&self, inode: &Inode) -> Placer<'_> {
        Placer { dedup: self.policies.of_file(own(inode), inode.directory()), domain: inode.domain() }
    }

    /// Sets what an inode that is new in DRAM takes from its attributes.
    pub(super) fn take_attributes(&self, inode: &Inode, state: &State) {
        take_over(inode, state);
        inode.set_domain(self.domains.of(state.attributes.uid));
    }

    /// True if new data of a file is shared with the data that it was copied from.
    #[inline]
    pub(crate) fn follows_origins(&self, inode: &Inode) -> bool {
        self.policies.follow_origins(own(inode))
    }

    /// Returns how new packed chunks of a file are stored.
    #[inline]
    pub(super) fn compression_for(&self, inode: &Inode) -> Compression {
        inode.own_compression().and_then(Compression::numbered).unwrap_or(self.compression)
    }

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
