//! The hash functions of the papers, which nothing but their evaluation, and a device that was made with one, needs:
//! MD5, SHA-1 and SHA-256 (NV-Dedup 5.1), a salted MD5 (DeEXT IV-A) and CRC-32 (NV-Dedup 4.2).

use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;

/// The prefix of [`md5_salted`]. It is the same on all devices, as part of the media format.
const MD5_SALT: &[u8; 16] = b"nvfold chunk md5";

/// Computes MD5.
pub(super) fn md5(block: &[u8]) -> [u8; 16] {
    Md5::digest(block).into()
}

/// Computes MD5 of the salt and the data.
pub(super) fn md5_salted(block: &[u8]) -> [u8; 16] {
    Md5::new_with_prefix(MD5_SALT).chain_update(block).finalize().into()
}

/// Computes SHA-1.
pub(super) fn sha1(block: &[u8]) -> [u8; 20] {
    Sha1::digest(block).into()
}

/// Computes SHA-256.
pub(super) fn sha256(block: &[u8]) -> [u8; 32] {
    Sha256::digest(block).into()
}

/// Computes CRC-32 of IEEE 802.3.
pub(super) fn crc32(block: &[u8]) -> u32 {
    crc32fast::hash(block)
}
