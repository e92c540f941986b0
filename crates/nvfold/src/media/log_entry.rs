//! Log entries: the changes of one inode, in whole lines of 64 bytes.
//!
//! An inode's log starts in the five inline lines of its slot. It continues in log areas ([`super::log_area`]), then
//! in 4 KiB pages of 63 lines and a footer. An entry never crosses the end of such a part; a `Skip` entry fills the
//! remaining lines. Nothing past the tail is read, so an entry is made durable before the commit word moves the tail
//! over it.
//!
//! Every entry begins `kind u8 | lines u8 | ...` and `check u32` at byte 4: CRC-32C of the whole entry with
//! the check and byte 3 zero, seeded with the inode number. Byte 3 of a write or vector entry is DeNOVA's
//! dedupe-flag, which changes in place and is therefore outside the checksum.

use super::limits::TREE_LIMITS;
pub(crate) use super::log_line::Written;
pub use super::log_line::{ENTRY_BYTES_MAX, LINE, PAGE_LINES};
use super::log_line::{
    NAME, SKIP, UNMAP, UNNAME, VECTOR, WRITE, XATTR_REMOVE, XATTR_SET, checksum_of, is_packed_place, seal,
};
use super::vector_entry::VectorEntry;
use super::{Location, PackedNumber, checksum};
use crate::words::{FileKind, TimeNs};
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest xattr value that is kept in the log; longer values are stored in blocks.
pub(crate) const INLINE_VALUE_MAX: usize = 1024;
/// Longest xattr value (Linux: XATTR_SIZE_MAX).
pub(crate) const VALUE_MAX: usize = 65536;
/// Most blocks that one value can take.
pub(crate) const VALUE_BLOCKS_MAX: usize = VALUE_MAX / super::BLOCK_BYTES as usize;

/// Longest name of a file or of an extended attribute: its length is stored in one byte.
pub(crate) const NAME_BYTES_MAX: usize = u8::MAX as usize;

/// Longest target of a symlink in bytes (PATH_MAX without the NUL).
pub(crate) const TARGET_BYTES_MAX: usize = 4095;

/// Extended attribute that holds the target of a symlink. It cannot collide with a name from a user, because those
/// contain no NUL.
pub const SYMLINK_TARGET: &[u8] = b"\0target";

/// Returns true if a directory can have this name: 1 to 255 bytes without `/` and NUL, and not `.` or `..`.
pub(crate) fn is_file_name(name: &[u8]) -> bool {
    let has_length = (1..=NAME_BYTES_MAX).contains(&name.len());
    has_length && !matches!(name, b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// Returns true if an extended attribute can have this name: 1 to 255 bytes without NUL, or one of those
/// that no call shows: [`SYMLINK_TARGET`], [`TREE_LIMITS`].
pub(crate) fn is_xattr_name(name: &[u8]) -> bool {
    let is_internal = matches!(name, SYMLINK_TARGET | TREE_LIMITS);
    is_internal || (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0)
}

/// Returns true if a symlink can have this target: 1 to 4095 bytes without NUL.
pub(crate) fn is_symlink_target(target: &[u8]) -> bool {
    (1..=TARGET_BYTES_MAX).contains(&target.len()) && !target.contains(&0)
}

/// All cookies are less than this: a directory that creates a billion names per second would take a century to reach
/// it.
pub(crate) const COOKIE_END: u64 = 1 << 62;

/// DeNOVA's dedupe-flag of a write entry (IV-D, Fig. 5): whether the daemon still has to deduplicate the entry's
/// data.
pub mod dedupe {
    /// Not queued: the policy that wrote the entry does not queue.
    pub const NONE: u8 = 0;
    /// dedupe_needed: the daemon has to process the entry. A node of the work queue stands for it.
    pub const NEEDED: u8 = 1;
    /// in_process: the daemon is at its last steps. After a crash, an entry in this state is processed again.
    pub const IN_PROCESS: u8 = 2;
    /// dedupe_complete: nothing is left to do.
    pub const COMPLETE: u8 = 3;

    /// Returns true if the daemon still has to process the entry. An unknown value is damage; processing it again is
    /// harmless.
    pub fn is_pending(flag: u8) -> bool {
        !matches!(flag, NONE | COMPLETE)
    }
}

/// `flags` of a write entry: the space is reserved, and reads as zeros.
const UNWRITTEN: u8 = 1;
/// `flags` of a write entry: it references a part of a packed chunk.
const PACKED: u8 = 2;
/// `flags` of an xattr entry: the value is stored in blocks.
const IN_BLOCKS: u8 = 1;

/// Last line of a log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PageFooter {
    /// First line of the next log page or area, or 0; changes by an 8-byte store.
    pub next: u64,
    /// Inode whose log this is.
    pub ino: u64,
    /// CRC-32C of `ino`, seeded with the page's address.
    pub check: u32,
    /// Zero.
    pub spare: [u8; 44],
}

const _: () = assert!(size_of::<PageFooter>() == 64);

impl PageFooter {
    /// Returns the footer of a new page.
    pub fn new(page: u64, ino: u64) -> PageFooter {
        PageFooter { next: 0, ino, check: checksum(page, &ino.to_le_bytes()), spare: [0; 44] }
    }

    /// Returns true if this is a page of `ino`'s log.
    pub fn belongs(&self, page: u64, ino: u64) -> bool {
        self.ino == ino && self.check == checksum(page, &ino.to_le_bytes())
    }
}

/// One line: a range of the file now references these bytes of the media, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExtentEntry {
    kind: u8,
    lines: u8,
    flags: u8,
    /// DeNOVA's dedupe-flag ([`dedupe`]); changes in place, by an 8-byte store of the first word.
    pub dedupe: u8,
    check: u32,
    /// First byte of the file range.
    pub file_offset: u64,
    /// Length of the range in bytes; `u64::MAX` in an unmap entry that extends to the end.
    pub length: u64,
    /// Media address of the first byte (44 bits), or number of the packed chunk; 0 in an unmap entry.
    pub address: u64,
    /// Offset of the first byte in the packed chunk; 0 otherwise.
    pub chunk_offset: u64,
    /// mtime and ctime of the file after this entry, ns.
    pub time: TimeNs,
    /// Size of the file after this entry, in bytes.
    pub size: u64,
    spare: u64,
}

const _: () = assert!(size_of::<ExtentEntry>() == 64);
const _: () = assert!(offset_of!(ExtentEntry, file_offset) == 8);
const _: () = assert!(offset_of!(ExtentEntry, address) == 24);
const _: () = assert!(offset_of!(ExtentEntry, time) == 40);
const _: () = assert!(offset_of!(ExtentEntry, size) == 48);

impl ExtentEntry {
    /// Returns a write entry: the range references `length` bytes at `location`.
    #[inline]
    pub fn write(file_offset: u64, length: u64, location: Location, unwritten: bool, time: TimeNs, size: u64) -> Self {
        let (kind, address, chunk_offset) = match location {
            Location::Media(address) => (0, address, 0),
            Location::Packed(chunk, offset) => (PACKED, u64::from(chunk.0), u64::from(offset)),
        };
        let flags = if unwritten { kind | UNWRITTEN } else { kind };
        let spare = 0;
        ExtentEntry {
            kind: WRITE,
            lines: 1,
            flags,
            dedupe: dedupe::NONE,
            check: 0,
            file_offset,
            length,
            address,
            chunk_offset,
            time,
            size,
            spare,
        }
    }

    /// Returns the location of the first byte that a write entry references.
    #[inline]
    pub fn location(&self) -> Location {
        match self.flags & PACKED {
            0 => Location::Media(self.address),
            _ => Location::Packed(PackedNumber(self.address as u32), self.chunk_offset as u16),
        }
    }

    /// Returns the media address of a write entry that references blocks; `None` for other entries.
    #[inline]
    pub fn plain_address(&self) -> Option<u64> {
        (self.maps() && self.flags & PACKED == 0).then_some(self.address)
    }

    /// Returns true if the location of a write entry can exist. `holds` returns true for an address and a length in
    /// bytes that are inside the data segments.
    #[inline]
    pub fn is_valid(&self, holds: impl Fn(u64, u64) -> bool) -> bool {
        if self.flags & PACKED == 0 {
            return holds(self.address, self.length);
        }
        match (u32::try_from(self.address), u16::try_from(self.chunk_offset)) {
            (Ok(chunk), Ok(offset)) => {
                !self.is_unwritten() && is_packed_place(PackedNumber(chunk), offset, self.length)
            }
            _ => false,
        }
    }

    /// Returns an unmap entry: the range references nothing and reads as zeros.
    pub fn unmap(file_offset: u64, length: u64, time: TimeNs, size: u64) -> Self {
        ExtentEntry { kind: UNMAP, lines: 1, file_offset, length, time, size, ..Default::default() }
    }

    /// Returns the entry with a valid checksum. It works on whole words: after a streaming copy, reading back a word
    /// that was stored byte by byte would wait for the copy.
    #[inline]
    pub fn sealed(self, ino: u64) -> Self {
        let mut words: [u64; 8] = zerocopy::transmute!(self);
        let dedupe = words[0] & 0xFF00_0000;
        words[0] &= 0x00FF_FFFF;
        words[0] |= u64::from(checksum(ino, words.as_bytes())) << 32 | dedupe;
        zerocopy::transmute!(words)
    }

    /// Returns the entry with this dedupe-flag.
    #[inline]
    pub fn flagged(self, dedupe: u8) -> Self {
        ExtentEntry { dedupe, ..self }
    }

    /// Returns the fields shared with a vector entry, or `None` if this is not a write entry.
    #[inline]
    pub fn written(&self) -> Option<Written> {
        let words: [u64; 8] = zerocopy::transmute!(*self);
        let &ExtentEntry { dedupe, file_offset, length, time, .. } = self;
        let first_word = u64::from_le(words[0]);
        self.maps().then_some(Written { dedupe, first_word, file_offset, length, time })
    }

    /// Returns true if the range references media bytes.
    pub fn maps(&self) -> bool {
        self.kind == WRITE
    }

    /// Returns true if the range is reserved and reads as zeros.
    pub fn is_unwritten(&self) -> bool {
        self.flags & UNWRITTEN != 0
    }
}

/// Head of an entry that adds or removes a name.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct NameHead {
    kind: u8,
    lines: u8,
    name_bytes: u8,
    file_kind: u8,
    check: u32,
    ino: u64,
    cookie: u64,
    time: TimeNs,
}

/// Offset of the name in a name entry.
pub const NAME_OFFSET: u64 = size_of::<NameHead>() as u64;
const _: () = assert!(NAME_OFFSET == 32);

/// Head of an entry that sets or removes an extended attribute.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct XattrHead {
    kind: u8,
    lines: u8,
    flags: u8,
    name_bytes: u8,
    check: u32,
    value_bytes: u32,
    spare: u32,
    time: TimeNs,
}

/// Offset of the attribute's name in the entry; an inline value follows the name.
pub(crate) const XATTR_NAME_OFFSET: u64 = size_of::<XattrHead>() as u64;
const _: () = assert!(XATTR_NAME_OFFSET == 24);

/// Where an xattr's value is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrValue {
    /// The value itself, in the log entry.
    Inline(Vec<u8>),
    /// The value is stored in blocks.
    Blocks {
        /// Length of the value in bytes.
        bytes: u32,
        /// Media addresses, in order.
        blocks: Vec<u64>,
    },
}

/// A decoded entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEntry {
    /// A file range references something else.
    Extent(ExtentEntry),
    /// Many consecutive file ranges reference something else.
    Vector(VectorEntry),
    /// A directory got a name.
    Name {
        /// The name.
        name: Vec<u8>,
        /// Inode that it references.
        ino: u64,
        /// Kind of that inode.
        kind: FileKind,
        /// Position in readdir's order.
        cookie: u64,
        /// mtime and ctime of the directory.
        time: TimeNs,
    },
    /// A directory got a name that none can have: damage, which costs this name and no other. It is never written.
    BadName {
        /// Length of the name in bytes.
        name_bytes: u8,
        /// Inode that it references.
        ino: u64,
        /// Kind of that inode.
        kind: FileKind,
        /// Position in readdir's order.
        cookie: u64,
        /// mtime and ctime of the directory.
        time: TimeNs,
    },
    /// A directory lost the name with this cookie.
    Unname {
        /// Cookie of the name.
        cookie: u64,
        /// mtime and ctime of the directory.
        time: TimeNs,
    },
    /// An xattr was set.
    XattrSet {
        /// Name of the xattr.
        name: Vec<u8>,
        /// Value of the xattr.
        value: XattrValue,
        /// ctime of the inode.
        time: TimeNs,
    },
    /// An xattr was removed.
    XattrRemove {
        /// Name of the xattr.
        name: Vec<u8>,
        /// ctime of the inode.
        time: TimeNs,
    },
    /// Fills the rest of an area.
    Skip,
}

/// Returns the number of lines of the entry that sets an extended attribute, with so many bytes for its value.
pub(crate) fn xattr_lines(name: &[u8], value_bytes: usize) -> u64 {
    lines_of(size_of::<XattrHead>() + name.len() + value_bytes)
}

/// Returns the number of lines of the entry of a name.
pub(crate) fn name_lines(name_bytes: usize) -> u64 {
    lines_of(size_of::<NameHead>() + name_bytes)
}

fn lines_of(bytes: usize) -> u64 {
    bytes.div_ceil(LINE as usize) as u64
}

impl LogEntry {
    /// Appends the sealed entry to `lines`; returns its length in bytes.
    pub fn encode(&self, ino: u64, lines: &mut Vec<u8>) -> usize {
        let start = lines.len();
        match self {
            LogEntry::Extent(entry) => lines.extend_from_slice(entry.sealed(ino).as_bytes()),
            LogEntry::Vector(entry) => lines.extend_from_slice(entry.as_bytes()),
            LogEntry::Name { name, ino: target, kind, cookie, time } => {
                let head = NameHead {
                    kind: NAME,
                    name_bytes: name.len() as u8,
                    file_kind: *kind as u8,
                    ino: *target,
                    cookie: *cookie,
                    time: *time,
                    ..NameHead::default()
                };
                lines.extend_from_slice(head.as_bytes());
                lines.extend_from_slice(name);
            }
            // Only the head: the bytes of the name are on the media alone.
            LogEntry::BadName { ino: target, kind, cookie, time, .. } => {
                let (ino, cookie, time) = (*target, *cookie, *time);
                let head = NameHead { kind: NAME, file_kind: *kind as u8, ino, cookie, time, ..NameHead::default() };
                lines.extend_from_slice(head.as_bytes());
            }
            LogEntry::Unname { cookie, time } => {
                let head = NameHead { kind: UNNAME, cookie: *cookie, time: *time, ..NameHead::default() };
                lines.extend_from_slice(head.as_bytes());
            }
            LogEntry::XattrSet { name, value, time } => encode_xattr(XATTR_SET, name, Some(value), *time, lines),
            LogEntry::XattrRemove { name, time } => encode_xattr(XATTR_REMOVE, name, None, *time, lines),
            LogEntry::Skip => lines.extend_from_slice(&[SKIP]),
        }
        lines.resize(lines.len().next_multiple_of(LINE as usize), 0);
        seal(ino, &mut lines[start..]);
        lines.len() - start
    }

    /// Returns the range that a write or vector entry wrote; `None` for other entries.
    pub fn written(&self) -> Option<Written> {
        match self {
            LogEntry::Extent(entry) => entry.written(),
            LogEntry::Vector(entry) => Some(entry.written()),
            _ => None,
        }
    }

    /// Gives a write or vector entry another dedupe-flag.
    pub fn flag(&mut self, dedupe: u8) {
        match self {
            LogEntry::Extent(entry) if entry.maps() => entry.dedupe = dedupe,
            LogEntry::Vector(entry) => entry.flag(dedupe),
            _ => {}
        }
    }

    /// Returns the location of a byte of the file, if the entry wrote it.
    pub fn location_at(&self, file_offset: u64) -> Option<Location> {
        match self {
            LogEntry::Extent(entry) if entry.maps() => {
                let skipped = file_offset.checked_sub(entry.file_offset).filter(|skipped| *skipped < entry.length)?;
                Some(entry.location().plus(skipped))
            }
            LogEntry::Vector(entry) => entry.location_at(file_offset),
            _ => None,
        }
    }

    /// Returns the skip line, which says that the remaining `lines` of this area are unused.
    pub fn skip(ino: u64, lines: u64) -> [u8; 64] {
        let mut line = [0; 64];
        line[0] = SKIP;
        line[1] = lines as u8;
        let check = checksum_of(ino, &line);
        line[4..8].copy_from_slice(&check.to_le_bytes());
        line
    }

    /// Decodes the entry at the start of `bytes`, of which [`check_entry`](crate::inode::log::check_entry) then checks
    /// the values. They extend to the end of its area. Returns the entry and its
    /// length in lines, or a description of what is wrong.
    pub fn decode(ino: u64, bytes: &[u8]) -> Result<(LogEntry, u64), &'static str> {
        let lines = u64::from(*bytes.get(1).ok_or("log entry past the end of its page")?);
        let stored = if bytes[0] == SKIP { 1 } else { lines } as usize * LINE as usize;
        if lines == 0 || lines as usize * LINE as usize > bytes.len() {
            return Err("log entry length");
        }
        let bytes = &bytes[..stored];
        if checksum_of(ino, bytes).to_le_bytes() != bytes[4..8] {
            return Err("log entry checksum");
        }
        let entry = match bytes[0] {
            WRITE | UNMAP => LogEntry::Extent(ExtentEntry::read_from_bytes(bytes).map_err(|_| "extent entry length")?),
            NAME => decode_name(bytes)?,
            UNNAME => {
                let head = NameHead::read_from_prefix(bytes).map_err(|_| "name entry length")?.0;
                LogEntry::Unname { cookie: head.cookie, time: head.time }
            }
            XATTR_SET | XATTR_REMOVE => decode_xattr(bytes)?,
            VECTOR => LogEntry::Vector(VectorEntry::decode(bytes)?),
            SKIP => LogEntry::Skip,
            _ => return Err("log entry kind"),
        };
        Ok((entry, lines))
    }
}

fn encode_xattr(kind: u8, name: &[u8], value: Option<&XattrValue>, time: TimeNs, lines: &mut Vec<u8>) {
    let (flags, value_bytes) = match value {
        Some(XattrValue::Blocks { bytes, .. }) => (IN_BLOCKS, *bytes),
        Some(XattrValue::Inline(value)) => (0, value.len() as u32),
        None => (0, 0),
    };
    let head = XattrHead { kind, flags, name_bytes: name.len() as u8, value_bytes, time, ..XattrHead::default() };
    lines.extend_from_slice(head.as_bytes());
    lines.extend_from_slice(name);
    match value {
        Some(XattrValue::Inline(value)) => lines.extend_from_slice(value),
        Some(XattrValue::Blocks { blocks, .. }) => {
            blocks.iter().for_each(|block| lines.extend_from_slice(&block.to_le_bytes()));
        }
        None => {}
    }
}

fn decode_name(bytes: &[u8]) -> Result<LogEntry, &'static str> {
    let (head, rest) = NameHead::read_from_prefix(bytes).map_err(|_| "name entry length")?;
    let name = rest.get(..usize::from(head.name_bytes)).ok_or("name entry length")?;
    let kind = FileKind::from_byte(head.file_kind).ok_or("name entry file kind")?;
    let NameHead { name_bytes, ino, cookie, time, .. } = head;
    Ok(match is_file_name(name) {
        true => LogEntry::Name { name: name.to_vec(), ino, kind, cookie, time },
        false => LogEntry::BadName { name_bytes, ino, kind, cookie, time },
    })
}

fn decode_xattr(bytes: &[u8]) -> Result<LogEntry, &'static str> {
    let (head, rest) = XattrHead::read_from_prefix(bytes).map_err(|_| "xattr entry length")?;
    let name_bytes = usize::from(head.name_bytes);
    let name = rest.get(..name_bytes).filter(|name| is_xattr_name(name)).ok_or("xattr entry name")?.to_vec();
    if head.kind == XATTR_REMOVE {
        return Ok(LogEntry::XattrRemove { name, time: head.time });
    }
    let rest = &rest[name_bytes..];
    let value = if head.flags & IN_BLOCKS == 0 {
        XattrValue::Inline(rest.get(..head.value_bytes as usize).ok_or("xattr entry value")?.to_vec())
    } else {
        let blocks = (head.value_bytes as usize).div_ceil(super::BLOCK_BYTES as usize);
        let list = rest.get(..blocks * 8).ok_or("xattr entry blocks")?;
        let blocks = list.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        XattrValue::Blocks { bytes: head.value_bytes, blocks }
    };
    check_target(&name, &value)?;
    Ok(LogEntry::XattrSet { name, value, time: head.time })
}

/// Checks the target of a symlink, as far as it is in the entry. Whoever reads one from blocks checks it then.
pub(crate) fn check_target(name: &[u8], value: &XattrValue) -> Result<(), &'static str> {
    let is_valid = match value {
        _ if name != SYMLINK_TARGET => true,
        XattrValue::Inline(target) => is_symlink_target(target),
        XattrValue::Blocks { bytes, .. } => *bytes as usize <= TARGET_BYTES_MAX,
    };
    if is_valid { Ok(()) } else { Err("target of a symlink") }
}

#[cfg(test)]
mod tests {
    use super::super::location_word::LocationWord;
    use super::super::vector_entry::Named;
    use super::*;

    fn samples() -> Vec<LogEntry> {
        let word = LocationWord::new(Location::Media(3 << 12), false);
        vec![
            LogEntry::Extent(ExtentEntry::write(1, 2, Location::Media(3 << 12), true, 4, 5).sealed(9)),
            LogEntry::Extent(ExtentEntry::write(1, 2, Location::Packed(PackedNumber(7), 65534), false, 4, 5).sealed(9)),
            LogEntry::Extent(ExtentEntry::unmap(1, u64::MAX, 4, 5).sealed(9)),
            LogEntry::Vector(VectorEntry::new(&[Named { file_offset: 1, length: 2, word }; 1], 4, 5).sealed(9)),
            LogEntry::Name { name: vec![b'n'; 255], ino: 7, kind: FileKind::Socket, cookie: 3, time: -1 },
            LogEntry::Unname { cookie: 3, time: 8 },
            LogEntry::XattrSet { name: b"user.a".to_vec(), value: XattrValue::Inline(vec![1; 1000]), time: 2 },
            LogEntry::XattrSet {
                name: vec![b'x'; 255],
                value: XattrValue::Blocks { bytes: 65536, blocks: (0..16).map(|block| block << 12).collect() },
                time: 2,
            },
            LogEntry::XattrRemove { name: b"user.a".to_vec(), time: 2 },
        ]
    }

    #[test]
    fn log_entries_survive_encoding_and_any_flipped_byte_is_detected() {
        for entry in samples() {
            let mut bytes = Vec::new();
            let length = entry.encode(9, &mut bytes);
            assert_eq!(LogEntry::decode(9, &bytes), Ok((entry.clone(), length as u64 / 64)));
            assert!(LogEntry::decode(8, &bytes).is_err(), "an entry of another inode is refused");
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x5a;
                let dedupe_flag = at == 3 && matches!(entry, LogEntry::Extent(_) | LogEntry::Vector(_));
                assert_eq!(LogEntry::decode(9, &damaged).is_err(), !dedupe_flag, "byte {at} of {entry:?}");
            }
        }
    }

    /// The entry as an encoder without checks would make it.
    fn decoded(entry: &LogEntry) -> Result<LogEntry, &'static str> {
        let mut bytes = Vec::new();
        entry.encode(9, &mut bytes);
        LogEntry::decode(9, &bytes).map(|(entry, _)| entry)
    }

    #[test]
    fn an_impossible_name_in_a_log_is_damage_of_that_name_only() {
        let (ino, kind, cookie, time) = (7, FileKind::Directory, 3, -1);
        let long = [b'n'; 255];
        for good in [&b"a"[..], b"...", b".a", b"..a", b"\xff\n", &long] {
            let entry = LogEntry::Name { name: good.to_vec(), ino, kind, cookie, time };
            assert_eq!(decoded(&entry), Ok(entry));
        }
        for bad in [&b""[..], b".", b"..", b"/", b"/etc/passwd", b"../../up", b"a/", b"a\0b", b"\0"] {
            let entry = LogEntry::Name { name: bad.to_vec(), ino, kind, cookie, time };
            let name_bytes = bad.len() as u8;
            assert_eq!(decoded(&entry), Ok(LogEntry::BadName { name_bytes, ino, kind, cookie, time }), "{bad:?}");
        }
    }

    #[test]
    fn invalid_attribute_names_and_symlink_targets_are_damage() {
        let inline = |name: &[u8], value: &[u8]| LogEntry::XattrSet {
            name: name.to_vec(),
            value: XattrValue::Inline(value.to_vec()),
            time: 2,
        };
        let target = |value: &[u8]| decoded(&inline(SYMLINK_TARGET, value));
        for bad in [&b""[..], b"user.\0", b"\0targeT"] {
            assert_eq!(decoded(&inline(bad, b"x")), Err("xattr entry name"), "{bad:?}");
            assert_eq!(decoded(&LogEntry::XattrRemove { name: bad.to_vec(), time: 2 }), Err("xattr entry name"));
        }
        for bad in [&b""[..], b"a\0b", b"\0"] {
            assert_eq!(target(bad), Err("target of a symlink"), "{bad:?}");
        }
        assert!(target(b"/a/../b").is_ok());
        let blocks = |bytes| LogEntry::XattrSet {
            name: SYMLINK_TARGET.to_vec(),
            value: XattrValue::Blocks { bytes, blocks: vec![4096] },
            time: 2,
        };
        assert!(decoded(&blocks(4095)).is_ok());
        assert_eq!(decoded(&blocks(4096)), Err("target of a symlink"));
    }

    #[test]
    fn a_skip_entry_covers_the_rest_of_a_log_area() {
        let mut area = vec![0; 64 * 5];
        area[..64].copy_from_slice(&LogEntry::skip(9, 5));
        assert_eq!(LogEntry::decode(9, &area), Ok((LogEntry::Skip, 5)));
    }
}
