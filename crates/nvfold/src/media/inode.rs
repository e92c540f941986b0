//! The inode slot: 512 bytes that hold a whole small file's metadata.
//!
//! ```text
//!   0  head line: commit word, log head, identity
//!  64  attribute line A      the commit word's bit 0 says which of the two is current
//! 128  attribute line B
//! 192  five log lines: the log starts here, so a small file needs no log page
//! ```
//!
//! **Every change of one inode is committed by one 8-byte store** of the commit word: the log's tail (a multiple of
//! 64) with the selector of the attribute line in bit 0. NOVA stores a tail and appends attribute entries to the log;
//! with the selector, an attribute change costs one line and leaves no garbage in the log.

use super::checksum;
use crate::words::{FileKind, TimeNs};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes in one slot.
pub const INODE_BYTES: u64 = 512;
/// Slots in one segment of the inode table.
pub const INODES_PER_SEGMENT: u64 = super::SEGMENT_BYTES / INODE_BYTES;
/// Offset of the two attribute lines in a slot.
pub const ATTRIBUTE_LINES: [u64; 2] = [64, 128];
/// Offset of the first inline log line in a slot.
pub const INLINE_LOG: u64 = 192;
/// `in_use` of a live slot.
pub const IN_USE: u8 = 0xA7;

/// Flag of an inode of a snapshot: nothing of it may change.
pub(crate) const READ_ONLY_COPY: u16 = 1;

/// First line of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InodeHead {
    /// Log tail | selector of the attribute line (bit 0). Changes by an 8-byte store, or with `head` by a
    /// 16-byte store.
    pub commit: u64,
    /// Media address of the log's first line.
    pub head: u64,
    /// First line of the log area or page that follows the inline lines, or 0.
    pub overflow: u64,
    /// Directories: inode number of the parent. Changes by an 8-byte store.
    pub parent: u64,
    /// Number of this inode.
    pub ino: u64,
    /// Birth time, ns.
    pub btime: TimeNs,
    /// [`FileKind`]; 0 in a free slot. The 8-byte word with this field is stored at once.
    pub kind: u8,
    /// [`IN_USE`] or 0.
    pub in_use: u8,
    /// [`READ_ONLY_COPY`] or 0.
    pub flags: u16,
    /// Number of inodes that have used this slot.
    pub generation: u32,
    /// CRC-32C of ino, btime and the word above.
    pub check: u32,
    /// Zero.
    pub spare1: u32,
}

const _: () = assert!(size_of::<InodeHead>() == 64);
const _: () = assert!(offset_of!(InodeHead, head) == 8);
const _: () = assert!(offset_of!(InodeHead, overflow) == 16);
const _: () = assert!(offset_of!(InodeHead, parent) == 24);
const _: () = assert!(offset_of!(InodeHead, ino) == 32);
const _: () = assert!(offset_of!(InodeHead, kind) == 48);
const _: () = assert!(offset_of!(InodeHead, check) == 56);

/// Offset of [`InodeHead::commit`] in the slot. This word, and those below, change independently.
pub(crate) const COMMIT_WORD: u64 = offset_of!(InodeHead, commit) as u64;
/// Offset of the word with the address of the log.
pub(crate) const HEAD_WORD: u64 = offset_of!(InodeHead, head) as u64;
/// Offset of [`InodeHead::overflow`].
pub const OVERFLOW_WORD: u64 = offset_of!(InodeHead, overflow) as u64;
/// Offset of [`InodeHead::parent`].
pub const PARENT_WORD: u64 = offset_of!(InodeHead, parent) as u64;
/// Offset of the word with kind, use and generation.
pub const USE_WORD: u64 = offset_of!(InodeHead, kind) as u64;

/// Returns whether this use word is one of a free slot: nothing but the generation is in it. `in_use` alone does not
/// tell, because one byte of a damaged slot may be 0 by chance, and nobody else may get the number of such a slot.
pub(crate) fn is_free(use_word: u64) -> bool {
    use_word as u32 == 0
}

impl InodeHead {
    /// Returns a sealed head with an empty inline log.
    pub fn new(slot: u64, ino: u64, kind: FileKind, generation: u32, parent: u64, btime: TimeNs) -> InodeHead {
        InodeHead {
            commit: slot + INLINE_LOG,
            head: slot + INLINE_LOG,
            parent,
            ino,
            btime,
            kind: kind as u8,
            in_use: IN_USE,
            generation,
            ..InodeHead::default()
        }
        .sealed()
    }

    /// Returns the head with these flags, sealed.
    pub fn with_flags(self, flags: u16) -> InodeHead {
        InodeHead { flags, ..self }.sealed()
    }

    /// Returns the head as that of a slot that looks free: all of it but the use word, which makes it live by one store.
    pub fn hidden(self) -> InodeHead {
        InodeHead { kind: 0, in_use: 0, flags: 0, ..self }
    }

    /// Returns the word of a live slot with kind, use, flags and generation.
    pub fn use_word(&self) -> u64 {
        let [low, high] = self.flags.to_le_bytes();
        u64::from(u32::from_le_bytes([self.kind, self.in_use, low, high])) | u64::from(self.generation) << 32
    }

    fn sealed(mut self) -> InodeHead {
        self.check = checksum(self.ino, &self.as_bytes()[32..56]);
        self
    }

    /// Returns the kind of a live slot for inode `ino`; `None` if the slot is free, torn or damaged.
    pub fn live(&self, ino: u64) -> Option<FileKind> {
        let whole = self.in_use == IN_USE && self.ino == ino && self.sealed().check == self.check;
        if whole { FileKind::from_byte(self.kind) } else { None }
    }

    /// Returns the use word of this slot once it is freed. It keeps the generation, so that the next user gets
    /// another one.
    pub fn freed_use_word(&self) -> u64 {
        u64::from(self.generation) << 32
    }

    /// Returns the log tail, a media address.
    pub fn tail(&self) -> u64 {
        self.commit & !63
    }

    /// Returns which attribute line is current, 0 or 1.
    pub fn selector(&self) -> u64 {
        self.commit & 1
    }
}

/// Attributes as of a position in the log: log entries after it may change size and times again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttributeLine {
    /// CRC-32C of the line with this field zero, seeded with the inode number.
    pub check: u32,
    /// Permission bits.
    pub mode: u16,
    /// Number of the limited tree that the inode is charged to; 0: of none.
    pub tree: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access, ns.
    pub atime: TimeNs,
    /// Last change of the content, ns.
    pub mtime: TimeNs,
    /// Last change of the inode, ns.
    pub ctime: TimeNs,
    /// Number of names; unused for directories (2 + subdirectories).
    pub nlink: u32,
    /// Device number.
    pub rdev: u32,
    /// Log tail when this line was written.
    pub as_of: u64,
}

const _: () = assert!(size_of::<AttributeLine>() == 64);
const _: () = assert!(offset_of!(AttributeLine, tree) == 6);
const _: () = assert!(offset_of!(AttributeLine, size) == 16);
const _: () = assert!(offset_of!(AttributeLine, ctime) == 40);
const _: () = assert!(offset_of!(AttributeLine, nlink) == 48);
const _: () = assert!(offset_of!(AttributeLine, as_of) == 56);

impl AttributeLine {
    /// Returns the line with a valid checksum.
    pub fn sealed(mut self, ino: u64) -> AttributeLine {
        self.check = 0;
        self.check = checksum(ino, self.as_bytes());
        self
    }

    /// Returns true if the checksum holds.
    pub fn is_whole(&self, ino: u64) -> bool {
        self.sealed(ino).check == self.check
    }
}
