//! The policy and the compression of a file's new data: its own, from its attributes, or those of the mount.

use super::Store;
use crate::compression::{COMPRESSION_ATTRIBUTE, Compression};
use crate::dedup::Dedup;
use crate::dedup::policy::{POLICY_ATTRIBUTE, Policy};
use crate::fingerprint::{Domain, Fingerprint};
use crate::inode::{Inode, State};
use std::ops::Deref;

/// The policy that places the new data of a file, in the sharing domain of the file's owner.
#[derive(Clone, Copy)]
pub(crate) struct Placer<'p> {
    dedup: &'p dyn Dedup,
    domain: Domain,
}

impl<'p> Placer<'p> {
    /// A policy for an operation that stores no data of a file.
    #[inline]
    pub(crate) fn of_no_file(dedup: &'p dyn Dedup) -> Placer<'p> {
        Placer { dedup, domain: Domain::ALL }
    }

    /// Returns another policy for the same file.
    #[inline]
    pub(crate) fn with(self, dedup: &'p dyn Dedup) -> Placer<'p> {
        Placer { dedup, ..self }
    }

    /// Returns the same policy in the domain that a file has now that it is locked.
    #[inline]
    pub(crate) fn with_domain_of(self, inode: &Inode) -> Placer<'p> {
        Placer { domain: inode.domain(), ..self }
    }

    #[inline]
    pub(crate) fn domain(self) -> Domain {
        self.domain
    }

    /// Returns the fingerprint by which a piece is found in the domain. It hides that of the policy.
    #[inline]
    pub(crate) fn fingerprint(self, piece: &[u8]) -> Fingerprint {
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

impl Store {
    /// Returns the rung at which a write begins.
    #[inline]
    pub(crate) fn first_rung(&self) -> Rung {
        if self.chunks.entries.may_pack() { Rung::Packed } else { Rung::Blocks }
    }

    /// Returns the policy that places at a rung: where there are only blocks, none that cuts.
    #[inline]
    pub(crate) fn policy_at<'p>(&'p self, rung: Rung, policy: Placer<'p>) -> Placer<'p> {
        match rung {
            Rung::Blocks if policy.streams().is_some() => policy.with(self.policies.of_blocks()),
            Rung::Packed | Rung::Blocks => policy,
        }
    }

    /// Returns the policy that places new data of a file.
    #[inline]
    pub(crate) fn policy_for(&self, inode: &Inode) -> Placer<'_> {
        Placer { dedup: self.policies.of_file(own(inode), inode.directory()), domain: inode.domain() }
    }

    /// Sets what an inode that is new in DRAM takes from its attributes.
    pub(crate) fn take_attributes(&self, inode: &Inode, state: &State) {
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
    pub(crate) fn compression_for(&self, inode: &Inode) -> Compression {
        inode.own_compression().and_then(Compression::numbered).unwrap_or(self.compression)
    }
}

/// Reads policy and compression of an inode from its attributes.
pub(crate) fn take_over(inode: &Inode, state: &State) {
    let policy = state.short_attribute(POLICY_ATTRIBUTE).and_then(Policy::named);
    inode.set_own_policy(policy.map(Policy::number));
    let compression = state.short_attribute(COMPRESSION_ATTRIBUTE).and_then(Compression::named);
    inode.set_own_compression(compression.map(Compression::number));
}

pub(crate) fn own(inode: &Inode) -> Option<Policy> {
    inode.own_policy().and_then(Policy::numbered)
}

/// Where new data is stored, from the best place down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// Pieces go to packed chunks.
    Packed,
    /// Everything goes to blocks.
    Blocks,
}
