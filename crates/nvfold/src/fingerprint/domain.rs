//! Sharing domains: whose data is shared with whose (`-o share=owner`).
//!
//! The problem: if equal data of all users is shared, a user can find out what another one stores. He guesses a block,
//! writes it, and sees by references, free space or time whether it was there already.
//!
//! The idea: data is found by its weak fingerprint alone. Each owner has a *domain*, a secret 64-bit key, and the key is
//! mixed into the weak fingerprints of his data. So chunk entries, both indexes, the saved state and recovery need no
//! field for the owner: data of another domain is not found. Two domains give one content the same fingerprint with a
//! chance of 2^-32, and nobody can choose the content for that without the device's secret.
//!
//! ```text
//! key    = BLAKE3(secret of the device, uid), 64 bits
//! salted = high 32 bits of mix64(weak fingerprint ^ key)
//! ```
//!
//! Like other fingerprints, salted ones are part of the media format: the tests pin them.

use super::{Fingerprint, StrongFunction};

/// The domain of a file's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Domain(u64);

impl Domain {
    /// All data is in one domain: weak fingerprints are those of the content.
    pub(crate) const ALL: Domain = Domain(0);
    /// Data gets no fingerprint: it finds nothing, and is not found. A file is there while its owner changes.
    pub(crate) const NOBODY: Domain = Domain(u64::MAX);

    /// Returns the domain as a number, to be kept in a word.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns the domain with this number.
    pub(crate) fn numbered(number: u64) -> Domain {
        Domain(number)
    }

    /// Returns the weak fingerprint in this domain of data with this weak fingerprint.
    #[inline]
    pub(crate) fn salted(self, weak: u32) -> u32 {
        if self == Domain::ALL { weak } else { (mix(u64::from(weak) ^ self.0) >> 32) as u32 }
    }

    /// Returns the fingerprint by which data is found in this domain.
    #[inline]
    pub(crate) fn fingerprint(self, of_content: Fingerprint) -> Fingerprint {
        match self {
            Domain::ALL => of_content,
            Domain::NOBODY => Fingerprint::default(),
            _ => Fingerprint { weak: of_content.weak.map(|weak| self.salted(weak)), ..of_content },
        }
    }
}

/// The domains of a mount.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Domains {
    /// The secret of the device, if each owner has a domain.
    secret: Option<[u8; 16]>,
}

impl Domains {
    /// Returns the domains with this secret: one for each owner.
    pub(crate) fn by_owner(secret: [u8; 16]) -> Domains {
        Domains { secret: Some(secret) }
    }

    /// True if each owner has a domain.
    pub(crate) fn are_by_owner(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns the domain of the data of this user.
    pub(crate) fn of(&self, uid: u32) -> Domain {
        let Some(secret) = self.secret else { return Domain::ALL };
        let mut input = [0; 20];
        input[..16].copy_from_slice(&secret);
        input[16..].copy_from_slice(&uid.to_le_bytes());
        let hash = StrongFunction::Blake3.of(&input);
        let key = hash.first_chunk::<8>().expect("a strong fingerprint has 20 bytes");
        // Two values mean something else.
        Domain(u64::from_le_bytes(*key).clamp(1, u64::MAX - 1))
    }
}

/// Mixes all bits of a word: the last step of MurmurHash3.
fn mix(word: u64) -> u64 {
    let word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn salted_fingerprints_in_the_media_format_never_change() {
        let domains = Domains::by_owner(*b"0123456789abcdef");
        assert_eq!(domains.of(1000).number(), 0xb458_01ad_35ef_1c54);
        assert_eq!(domains.of(1000).salted(0x1234_5678), 0x21a3_12df);
        assert_eq!(Domain::ALL.salted(0x1234_5678), 0x1234_5678);
    }

    /// One content has other fingerprints with other owners and other secrets, and the contents of one owner are told
    /// apart.
    #[test]
    fn equal_data_of_two_owners_has_different_salted_fingerprints() {
        let domains = Domains::by_owner([7; 16]);
        let of_owners: HashSet<u32> = (0..10_000).map(|uid| domains.of(uid).salted(42)).collect();
        let of_contents: HashSet<u32> = (0..10_000).map(|weak| domains.of(1).salted(weak)).collect();
        assert!(of_owners.len() > 9_990 && of_contents.len() > 9_990, "{} {}", of_owners.len(), of_contents.len());
        assert_ne!(domains.of(1), Domains::by_owner([8; 16]).of(1));
        assert_eq!((Domains::default().of(1), Domains::default().of(2)), (Domain::ALL, Domain::ALL));
    }

    #[test]
    fn a_file_without_a_domain_gets_no_fingerprints() {
        let of_content = Fingerprint { weak: Some(1), strong: Some([2; 20]) };
        assert!(Domain::NOBODY.fingerprint(of_content).is_empty());
        assert_eq!(Domain::ALL.fingerprint(of_content), of_content);
        let owner = Domains::by_owner([7; 16]).of(3);
        assert_eq!(owner.fingerprint(of_content), Fingerprint { weak: Some(owner.salted(1)), ..of_content });
    }
}
