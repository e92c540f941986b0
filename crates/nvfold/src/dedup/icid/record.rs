//! A record: the bytes of a page that were copied from a file (4.2, Fig. 6).
//!
//! ```text
//! 0  u32  file            4  u16  offset in page       6  u16  length, at most a page      8  u64  offset in file
//! ```
//!
//! The number of the page stands once in the node (`pages`). The paper's record has no length in its drawing; without one
//! nobody could tell where a copy ends.

use super::files::FileToken;

/// Bytes of memory whose records share a node: a page of the paper's machine.
pub const PAGE_BYTES: u64 = 4096;

/// One copy, or the part of it that went to one page.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Record {
    /// Where the bytes came from.
    pub file: FileToken,
    /// First byte in the page.
    pub page_offset: u16,
    /// Bytes; the copy ends at the end of the page or before.
    pub length: u16,
    /// First byte in the file.
    pub file_offset: u64,
}

const _: () = assert!(size_of::<Record>() == 16);

impl Record {
    /// First byte in the page that it does not say anything of.
    #[inline]
    pub fn end(&self) -> u16 {
        self.page_offset + self.length
    }

    /// Whether `next` goes on where this one ends, in the page and in the file.
    #[inline]
    pub fn continues_as(&self, next: &Record) -> bool {
        self.end() == next.page_offset
            && self.file == next.file
            && self.file_offset + u64::from(self.length) == next.file_offset
    }
}
