//! The hash functions of the papers, which nothing but their evaluation, and a device that was made with one, needs:
//! MD5, SHA-1 and SHA-256 (NV-Dedup 5.1), a salted MD5 (DeEXT IV-A) and CRC-32 (NV-Dedup 4.2).

use super::Strong;
use super::strong::first_bits;
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;

/// The prefix of [`md5_salted`]. It is the same on all devices, as part of the media format.
const MD5_SALT: &[u8; 16] = b"nvfold chunk md5";

/// Computes [`StrongFunction::Md5`](super::StrongFunction::Md5).
pub fn md5(block: &[u8]) -> Strong {
    first_bits(&Md5::digest(block))
}

/// Computes [`StrongFunction::Md5Salted`](super::StrongFunction::Md5Salted).
pub fn md5_salted(block: &[u8]) -> Strong {
    first_bits(&Md5::new_with_prefix(MD5_SALT).chain_update(block).finalize())
}

/// Computes [`StrongFunction::Sha1`](super::StrongFunction::Sha1).
pub fn sha1(block: &[u8]) -> Strong {
    first_bits(&Sha1::digest(block))
}

/// Computes [`StrongFunction::Sha256`](super::StrongFunction::Sha256).
pub fn sha256(block: &[u8]) -> Strong {
    first_bits(&Sha256::digest(block))
}

/// Computes [`WeakFunction::Crc32`](super::WeakFunction::Crc32).
pub fn crc32(block: &[u8]) -> u32 {
    crc32fast::hash(block)
}
