//! A segment of packed chunks: data from the front, headers from the end.
//!
//! Chunks are appended and never overwritten in place. Only their entries say which of them are live
//! ([`super::chunk_entry`]). The headers say which chunk the bytes belong to, so that fsck can rebuild lost entries.
//!
//! ```text
//! | chunk 0 | chunk 1 | chunk 2 |   ...free...   | header 2 | header 1 | header 0 |
//! 0                                                                          2 MiB
//! ```

use super::{PackedNumber, SEGMENT_BYTES};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The length of a packed chunk, stored and uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedBytes {
    /// Number of bytes on the media.
    pub stored: u64,
    /// Number of bytes of the content; greater than `stored` if the content is compressed.
    pub content: u64,
}

impl PackedBytes {
    /// Returns the length of an uncompressed chunk.
    pub fn plain(bytes: u64) -> PackedBytes {
        PackedBytes { stored: bytes, content: bytes }
    }

    /// Returns true if the content is compressed.
    pub fn is_compressed(self) -> bool {
        self.stored != self.content
    }

    /// Returns true if a packed chunk can have these lengths: compression must make it shorter.
    pub fn is_sound(self) -> bool {
        self.stored > 0 && self.stored <= self.content && self.content <= super::PACKED_BYTES_MAX
    }

    /// Returns the number of bytes that compression saves.
    pub fn saved(self) -> u64 {
        self.content.saturating_sub(self.stored)
    }
}

/// Says which chunk a range of the segment belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PackedHeader {
    /// Number of the packed chunk.
    pub chunk: u32,
    /// Offset of the chunk's first byte in the segment.
    pub offset: u32,
    /// Number of bytes stored there, minus one.
    pub stored_bytes_less_one: u16,
    /// Number of bytes of the content, minus one.
    pub content_bytes_less_one: u16,
    /// CRC-32C of the fields above, seeded with the segment's address and how often the segment was opened.
    pub check: u32,
}

/// Most headers that a segment can have: each describes at least one byte.
pub const HEADERS_MAX: u64 = SEGMENT_BYTES / (HEADER_BYTES + 1);
/// Bytes of one header.
pub const HEADER_BYTES: u64 = 16;

const _: () = assert!(size_of::<PackedHeader>() as u64 == HEADER_BYTES);
const _: () = assert!(offset_of!(PackedHeader, offset) == 4);
const _: () = assert!(offset_of!(PackedHeader, stored_bytes_less_one) == 8);
const _: () = assert!(offset_of!(PackedHeader, check) == 12);

impl PackedHeader {
    /// Returns the header of a chunk with these lengths at `offset` in a segment that was opened `opened` times.
    pub fn new(chunk: PackedNumber, offset: u64, bytes: PackedBytes, segment: u64, opened: u32) -> PackedHeader {
        let header = PackedHeader {
            chunk: chunk.0,
            offset: offset as u32,
            stored_bytes_less_one: (bytes.stored - 1) as u16,
            content_bytes_less_one: (bytes.content - 1) as u16,
            check: 0,
        };
        PackedHeader { check: header.checksum(segment, opened), ..header }
    }

    /// Returns true if the header was written after the segment was last opened, which was for the `opened`th time.
    pub fn is_whole(&self, segment: u64, opened: u32) -> bool {
        self.check == self.checksum(segment, opened)
    }

    /// Returns how often the segment had been opened when this header was written, computed from the checksum.
    /// Arbitrary bytes also give some number, but usually one that is too large.
    pub fn opened(&self, segment: u64) -> u32 {
        let seed = super::seed_of(self.check, &self.as_bytes()[..offset_of!(PackedHeader, check)]);
        seed ^ super::folded(segment * SEGMENT_BYTES)
    }

    /// Returns the length of the chunk.
    pub fn bytes(&self) -> PackedBytes {
        let of = |less_one| u64::from(less_one) + 1;
        PackedBytes { stored: of(self.stored_bytes_less_one), content: of(self.content_bytes_less_one) }
    }

    fn checksum(&self, segment: u64, opened: u32) -> u32 {
        let owner = (segment * SEGMENT_BYTES) ^ (u64::from(opened) << 32);
        super::checksum(owner, &self.as_bytes()[..offset_of!(PackedHeader, check)])
    }
}

/// Returns the offset of the `nth` header, in bytes from the start of the segment.
pub fn header_offset(nth: u64) -> u64 {
    SEGMENT_BYTES - (nth + 1) * HEADER_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_header_of_another_segment_or_use_is_rejected() {
        let header = PackedHeader::new(PackedNumber(7), 4096, PackedBytes::plain(65_536), 3, 1);
        assert!(header.is_whole(3, 1));
        assert!(!header.is_whole(4, 1) && !header.is_whole(3, 2));
        assert_eq!(header.bytes(), PackedBytes::plain(65_536));
        let bytes = PackedBytes { stored: 2, content: 100 };
        let compressed = PackedHeader::new(PackedNumber(9), 1, bytes, 1 << 20, 77);
        assert_eq!((header.opened(3), compressed.opened(1 << 20)), (1, 77));
        assert_eq!(compressed.bytes(), bytes);
        assert!(header.opened(4) > 1 << 20);
        let moved = PackedHeader { offset: 4097, ..header };
        assert!(!moved.is_whole(3, 1));
    }
}
