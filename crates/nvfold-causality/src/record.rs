//! A record: describes the bytes of a page that were copied from a file (ICID 4.2, Fig. 6).
//!
//! ```text
//! 0  u32  file            4  u16  offset in page       6  u16  length, at most a page      8  u64  offset in file
//! ```
//!
//! The page number is stored once, in the node (`pages`). The paper's drawing of a record has no length, but without
//! one the end of a copy would be unknown.

use crate::files::FileToken;

/// Bytes of memory whose records share a node: a page, as in the paper.
pub const PAGE_BYTES: u64 = 4096;

/// One copy, or the part of a copy that went to one page.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct CopyRecord {
    /// Where the bytes came from.
    pub file: FileToken,
    /// Offset of the first byte in the page.
    pub page_offset: u16,
    /// Number of bytes; the copy ends at the end of the page or before.
    pub length: u16,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
}

const _: () = assert!(size_of::<CopyRecord>() == 16);

impl CopyRecord {
    /// Returns the offset in the page of the first byte after it.
    #[inline]
    pub(crate) fn end(&self) -> u16 {
        self.page_offset + self.length
    }

    /// True if `next` begins where this one ends, in the page and in the file.
    #[inline]
    pub(crate) fn continues_as(&self, next: &CopyRecord) -> bool {
        self.end() == next.page_offset
            && self.file == next.file
            && self.file_offset + u64::from(self.length) == next.file_offset
    }
}
