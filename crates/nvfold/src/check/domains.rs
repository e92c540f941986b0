//! The domains in which the weak fingerprints of a device may have been made (`-o share=owner`), and its keys.
//!
//! The problem: a chunk entry does not say in whose domain its weak fingerprint is.
//!
//! The idea: try the domain of all data, then those of the owners of files. A chunk that was cloned from the file of
//! another owner stays in his domain, and all his files may be gone; so the user numbers below 65,536 come last. Each domain
//! that is tried takes the fingerprint of a damaged chunk for its own with a chance of 2^-32.

use crate::fingerprint::{Domain, Domains, Keys, WeakFunction};
use crate::media::superblock::Superblock;
use std::cell::OnceCell;
use std::collections::BTreeSet;

const COMMON_UIDS: u32 = 1 << 16;

/// The domains of a device.
#[derive(Default)]
pub(super) struct KnownDomains {
    /// `None` if all data is in one domain.
    domains: Option<Domains>,
    /// The UUID of the device, from which its keys follow.
    uuid: [u8; 16],
    owners: BTreeSet<u32>,
    of_owners: OnceCell<Vec<Domain>>,
    of_others: OnceCell<Vec<Domain>>,
}

impl KnownDomains {
    /// Adds the owner of a file. All are added before the first fingerprint is compared.
    pub(super) fn add_owner(&mut self, uid: u32) {
        self.owners.insert(uid);
    }

    /// Returns true if this function makes the stored fingerprint of these bytes in some domain.
    pub(super) fn are_made(&self, function: WeakFunction, bytes: &[u8], stored: u32) -> bool {
        Keys::of_device(function, &self.uuid).all(bytes).into_iter().any(|key| self.fits(key, stored))
    }

    /// Returns true if the stored fingerprint is one that data with this weak fingerprint has in some domain.
    fn fits(&self, weak: u32, stored: u32) -> bool {
        let Some(domains) = self.domains.filter(|_| weak != stored) else { return weak == stored };
        let is_salted = |domain: &Domain| domain.salted(weak) == stored;
        let of = |uid| domains.of(uid);
        self.of_owners.get_or_init(|| self.owners.iter().copied().map(of).collect()).iter().any(is_salted)
            || self.of_others.get_or_init(|| (0..COMMON_UIDS).map(of).collect()).iter().any(is_salted)
    }
}

impl From<&Superblock> for KnownDomains {
    fn from(superblock: &Superblock) -> KnownDomains {
        let domains = superblock.secret().map(Domains::by_owner);
        KnownDomains { domains, uuid: superblock.uuid, ..KnownDomains::default() }
    }
}
