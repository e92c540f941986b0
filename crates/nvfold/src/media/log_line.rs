//! The parts that all log entries share, and those that write and vector entries share.

use super::{PACKED_BYTES_MAX, PackedNumber, checksum};
use crate::words::TimeNs;

/// Bytes of one log line.
pub const LINE: u64 = 64;
/// Lines of entries in a log page; the last line is the footer.
pub const PAGE_LINES: u64 = 63;
/// Longest entry in bytes: one whole page.
pub const ENTRY_BYTES_MAX: usize = (PAGE_LINES * LINE) as usize;

pub(super) const WRITE: u8 = 1;
pub(super) const UNMAP: u8 = 2;
pub(super) const NAME: u8 = 3;
pub(super) const UNNAME: u8 = 4;
pub(super) const XATTR_SET: u8 = 5;
pub(super) const XATTR_REMOVE: u8 = 6;
pub(super) const SKIP: u8 = 7;
pub(super) const VECTOR: u8 = 8;

/// Numbers of packed chunks are less than this.
const PACKED_NUMBER_END: u32 = 0x7fff_ffff;

/// Returns true if a packed chunk can have this number, and `length` bytes from `offset` on.
pub(super) fn is_packed_place(chunk: PackedNumber, offset: u16, length: u64) -> bool {
    let end = u64::from(offset).checked_add(length);
    chunk.0 < PACKED_NUMBER_END && end.is_some_and(|end| end <= PACKED_BYTES_MAX)
}

/// The fields that write and vector entries share: a range of the file that was written, and may still have to be
/// deduplicated.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// DeNOVA's dedupe-flag ([`super::log_entry::dedupe`]).
    pub dedupe: u8,
    pub(super) first_word: u64,
    /// First byte of the file range.
    pub file_offset: u64,
    /// Length of the range in bytes.
    pub length: u64,
    /// mtime of the file after this entry, ns.
    pub time: TimeNs,
}

impl Written {
    /// Returns the first word of the entry as stored on the media, with another dedupe-flag.
    pub fn first_word(&self, dedupe: u8) -> u64 {
        self.first_word & !0xFF00_0000 | u64::from(dedupe) << 24
    }
}

/// Computes the checksum of an entry, with its check field, and byte 3 of a write or vector entry, taken as zero.
pub(super) fn checksum_of(ino: u64, entry: &[u8]) -> u32 {
    let mut first = [0; 64];
    first.copy_from_slice(&entry[..64]);
    first[4..8].fill(0);
    if matches!(first[0], WRITE | UNMAP | VECTOR) {
        first[3] = 0;
    }
    crc32c::crc32c_append(checksum(ino, &first), &entry[64..])
}

pub(super) fn seal(ino: u64, entry: &mut [u8]) {
    entry[1] = (entry.len() / LINE as usize) as u8;
    let check = checksum_of(ino, entry);
    entry[4..8].copy_from_slice(&check.to_le_bytes());
}
