//! Damage to a valid image: fields of named structures set to meaningful values, structures swapped and copied, bits
//! flipped, the device cut. Afterwards the checksums are corrected, most of the time, so that the structures are well
//! formed and wrong.
//!
//! A piece of damage is always eight bytes, so that a fuzzer's small changes stay small and a shrinking test drops
//! whole pieces:
//!
//! ```text
//! | layout | index | action | field | value | argument (2) | bit 0-2 all ones: leave the checksum; others: index |
//! ```
//!
//! docs/media-format.md lists the fields: the format, its description and its fuzzer have one source.

use std::collections::HashMap;
use std::sync::LazyLock;

use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::inode::AttributeLine;
use nvfold::internals::media::journal::{JOURNAL_SLOTS, JOURNAL_WORDS, JournalSlot, WordStore};
use nvfold::internals::media::log_entry::LINE;
use nvfold::internals::media::saved_state::SavedState;
use nvfold::internals::media::superblock::{COPIES, Geometry, STATE_CLEAN, STATE_IN_USE};
use nvfold::{BLOCK_BYTES, DEVICE_BYTES_MIN, Superblock};
use zerocopy::{FromBytes, IntoBytes};

use super::image::{self, Image, Layout, Structure};
use crate::slate::Content;

/// Bytes of one piece of damage.
pub const RECORD_BYTES: usize = 8;
/// Number of kinds of damage that the third byte of a record selects.
pub const ACTIONS: u8 = 20;
/// Pieces applied to one image; more are ignored.
const PIECES_MAX: usize = 24;

/// One piece of damage.
#[derive(Clone, Copy, Debug)]
pub struct Damage {
    layout: u8,
    index: u16,
    action: u8,
    field: u8,
    value: u8,
    argument: u16,
    mend: bool,
}

/// Reads damage from plain bytes.
pub fn read(bytes: &[u8]) -> Vec<Damage> {
    bytes.as_chunks::<RECORD_BYTES>().0.iter().take(PIECES_MAX).map(Damage::read).collect()
}

/// Returns the image with the damage, and a description of it.
pub fn apply(image: &Image, list: &[Damage]) -> (Content, Vec<String>) {
    let mut canvas = Canvas { image, content: image.content.clone() };
    let done = list.iter().map(|damage| canvas.carry_out(damage)).collect();
    (canvas.content, done)
}

impl Damage {
    fn read(record: &[u8; RECORD_BYTES]) -> Damage {
        let [layout, index, action, field, value, low, high, more] = *record;
        Damage {
            layout,
            index: u16::from_le_bytes([index, more >> 3]),
            action,
            field,
            value,
            argument: u16::from_le_bytes([low, high]),
            mend: more & 7 != 7,
        }
    }
}

/// A field of a structure: bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    name: String,
    at: u64,
    bytes: u64,
}

/// The fields of each struct in docs/media-format.md, by the struct's name.
static FORMAT: LazyLock<HashMap<String, Vec<Field>>> = LazyLock::new(|| {
    let mut structs: HashMap<String, Vec<Field>> = HashMap::new();
    let mut name = String::new();
    for line in include_str!("../../../docs/media-format.md").lines() {
        if let Some(head) = line.strip_prefix("<!-- struct ") {
            name = head.split(' ').next().unwrap_or_default().into();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, at, bytes, field, ..] = cells[..]
            && let (Ok(at), Ok(bytes)) = (at.parse(), bytes.parse())
        {
            let field = Field { name: field.trim_matches('`').into(), at, bytes };
            structs.entry(name.clone()).or_default().push(field);
        }
    }
    structs
});

struct Canvas<'i> {
    image: &'i Image,
    content: Content,
}

impl Canvas<'_> {
    fn carry_out(&mut self, damage: &Damage) -> String {
        let target = self.image.structure(damage.layout, damage.index);
        let said = match damage.action % ACTIONS {
            0..10 => self.set_field(target, damage),
            10 => self.flip(target, damage),
            11 => self.copy_field(target, damage),
            12 | 13 => self.swap(target, self.image.structure(damage.layout, damage.argument), damage.mend),
            14 => self.copy(target, self.image.structure(damage.layout, damage.argument)),
            15 => self.copy(target, self.image.any(damage.argument)),
            16 => self.fill(target, damage),
            17 => self.plant_in_journal(target, damage),
            18 => self.set_state(damage),
            _ => return self.cut(damage),
        };
        if damage.mend {
            self.mend(target);
        }
        let mended = if damage.mend { "" } else { ", checksum as it was" };
        format!("{said}{mended}")
    }

    fn set_field(&mut self, target: Structure, damage: &Damage) -> String {
        let (name, at, bytes) = self.field(target, damage.field);
        let mut old = [0; 8];
        old[..bytes].copy_from_slice(&self.content.read(at, bytes as u64));
        let value = self.value(u64::from_le_bytes(old), target, damage);
        self.content.write(at, &value.to_le_bytes()[..bytes]);
        format!("{}: {name} = {value:#x}", show(target))
    }

    /// Returns the field that a number selects, or eight bytes of a long one: name, offset, length.
    fn field(&self, target: Structure, number: u8) -> (String, u64, usize) {
        let fields = self.fields(target);
        let (number, part) = (usize::from(number) % fields.len(), usize::from(number) / fields.len());
        let field = &fields[number];
        if field.bytes <= 8 {
            return (field.name.clone(), target.at + field.at, field.bytes as usize);
        }
        let inside = part as u64 * 8 % field.bytes;
        (format!("{}[{inside}]", field.name), target.at + field.at + inside, 8.min(field.bytes - inside) as usize)
    }

    fn fields(&self, target: Structure) -> Vec<Field> {
        let name = match target.layout {
            Layout::Superblock => "Superblock",
            Layout::JournalSlot => "JournalSlot",
            Layout::SegmentEntry => "SegmentEntry",
            Layout::ChunkEntry | Layout::PackedEntry => "ChunkEntry",
            Layout::PackedHeader => "PackedHeader",
            Layout::InodeHead => "InodeHead",
            Layout::AttributeLine => "AttributeLine",
            Layout::PageFooter => "PageFooter",
            Layout::AreaHead => "AreaHead",
            Layout::SavedState => "SavedState",
            Layout::SavedPayload => "words",
            Layout::DirectEntry => "DirectEntry",
            Layout::LogEntry => match self.content.read(target.at, 1)[0] {
                1 | 2 => "ExtentEntry",
                3 | 4 => "NameHead",
                8 => "VectorHead",
                _ => "XattrHead",
            },
        };
        let mut fields = FORMAT.get(name).cloned().unwrap_or_default();
        // The part behind the head of a log entry (names, values, block addresses) is listed twice, because it is
        // long.
        let end = fields.iter().map(|field| field.at + field.bytes).max().unwrap_or(0);
        if end < target.len {
            let payload = Field { name: "payload".into(), at: end, bytes: target.len - end };
            fields.extend([payload.clone(), payload]);
        }
        fields
    }

    /// Returns a value that is meaningful in some structure.
    fn value(&self, old: u64, target: Structure, damage: &Damage) -> u64 {
        let argument = u64::from(damage.argument);
        let other = self.image.any(damage.argument);
        match damage.value % 20 {
            0 => argument,
            1 => 0,
            2 => u64::MAX - argument % 9,
            3 => 1 << (argument % 64),
            4 => (1 << (argument % 64)) - 1,
            5 | 6 => old.wrapping_add(argument % 9).wrapping_sub(4),
            7 => old ^ 1 << (argument % 64),
            8 => other.at,
            9 => other.at / BLOCK_BYTES * BLOCK_BYTES,
            10 => DEVICE_BYTES_MIN - argument % 8 * BLOCK_BYTES,
            11 => argument % (DEVICE_BYTES_MIN / BLOCK_BYTES) * BLOCK_BYTES,
            12 => (target.at + argument % 70 * LINE) | (old & 1),
            13 => old.wrapping_add((argument % 130).wrapping_sub(65).wrapping_mul(LINE)),
            14 => i64::MAX as u64 - argument % 9,
            15 => argument % 80,
            16 => argument.wrapping_neg(),
            17 => other.at / BLOCK_BYTES,
            18 => self.chunk_with_entry(damage.argument),
            _ => u64::from_le_bytes([b'/', b'.', b'.', 0, argument as u8, b'.', 0xff, b'a']) >> (argument % 8 * 8),
        }
    }

    /// Returns the number of a chunk that has an entry: the links of a chain are such numbers.
    fn chunk_with_entry(&self, index: u16) -> u64 {
        const PACKED: u64 = 1 << 31;
        let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size");
        let of = |layout| &self.image.structures[layout as usize];
        let (blocks, packed) = (of(Layout::ChunkEntry), of(Layout::PackedEntry));
        let index = usize::from(index) % (blocks.len() + packed.len());
        match blocks.get(index) {
            Some(entry) => (entry.at - geometry.chunk_table_offset) / LINE,
            None => PACKED | packed[index - blocks.len()].owner,
        }
    }

    fn flip(&mut self, target: Structure, damage: &Damage) -> String {
        let at = target.at + u64::from(damage.argument) % target.len;
        let bits = damage.value.max(1);
        let byte = self.content.read(at, 1)[0];
        self.content.write(at, &[byte ^ bits]);
        format!("{}: byte {} ^= {bits:#x}", show(target), at - target.at)
    }

    fn copy_field(&mut self, target: Structure, damage: &Damage) -> String {
        let other = self.image.structure(damage.layout, damage.argument);
        let (name, at, bytes) = self.field(target, damage.field);
        let from = other.at + (at - target.at).min(other.len - bytes as u64);
        self.content.write(at, &self.content.read(from, bytes as u64));
        format!("{}: {name} as in {}", show(target), show(other))
    }

    fn swap(&mut self, target: Structure, other: Structure, mend: bool) -> String {
        let len = target.len.min(other.len);
        let (one, two) = (self.content.read(target.at, len), self.content.read(other.at, len));
        self.content.write(target.at, &two);
        self.content.write(other.at, &one);
        if mend {
            self.mend(other);
        }
        format!("{} <-> {}", show(target), show(other))
    }

    fn copy(&mut self, target: Structure, other: Structure) -> String {
        let mut bytes = self.content.read(other.at, target.len.min(other.len));
        if target.layout == Layout::LogEntry && other.layout == Layout::LogEntry {
            bytes[1] = (target.len / LINE) as u8;
        }
        self.content.write(target.at, &bytes);
        format!("{} = {}", show(target), show(other))
    }

    fn fill(&mut self, target: Structure, damage: &Damage) -> String {
        let byte = [0, 0xff, damage.value][usize::from(damage.argument) % 3];
        self.content.write(target.at, &vec![byte; target.len as usize]);
        format!("{} filled with {byte:#x}", show(target))
    }

    /// Makes an intact journal slot that stores a word in the target, as if a crash had interrupted an operation.
    fn plant_in_journal(&mut self, target: Structure, damage: &Damage) -> String {
        let inodes = self.image.inodes();
        let inode = if target.layout == Layout::InodeHead { target } else { inodes[target.at as usize % inodes.len()] };
        let offset = inode.at + u64::from(damage.field) % 8 * 8;
        let old = u64::from_le_bytes(self.content.read(offset, 8).try_into().expect("eight bytes"));
        let store = WordStore { offset, value: self.value(old, inode, damage) };
        let slot = u64::from(damage.layout) % JOURNAL_SLOTS;
        let geometry = Geometry::of(DEVICE_BYTES_MIN).expect("a valid size");
        self.content.write(geometry.journal_slot_offset(slot), JournalSlot::new(&[store]).as_bytes());
        self.set_state(&Damage { value: 1, ..*damage });
        format!("journal slot {slot}: {store:x?}; in use")
    }

    fn set_state(&mut self, damage: &Damage) -> String {
        let state = [STATE_CLEAN, STATE_IN_USE, u32::from(damage.argument)][usize::from(damage.value) % 3];
        self.edit_superblocks(|superblock| superblock.state = state);
        format!("superblocks: state = {state}")
    }

    /// Makes the device shorter or longer, with or without a matching superblock.
    fn cut(&mut self, damage: &Damage) -> String {
        let step = if damage.field.is_multiple_of(2) { BLOCK_BYTES } else { SEGMENT_BYTES };
        let change = u64::from(damage.argument) * step;
        let bytes = match damage.value % 3 {
            0 => DEVICE_BYTES_MIN + change % (64 * SEGMENT_BYTES),
            _ => (DEVICE_BYTES_MIN - change % DEVICE_BYTES_MIN).max(BLOCK_BYTES),
        };
        self.content.resize(bytes);
        let known = damage.mend && damage.value.is_multiple_of(2);
        if known {
            self.edit_superblocks(|superblock| superblock.device_bytes = bytes);
        }
        format!("device of {bytes} bytes, told to the superblocks: {known}")
    }

    fn edit_superblocks(&mut self, change: impl Fn(&mut Superblock)) {
        for at in superblocks(self.content.len_bytes()) {
            let bytes = self.content.read(at, size_of::<Superblock>() as u64);
            let mut superblock = Superblock::read_from_bytes(&bytes).expect("its length");
            change(&mut superblock);
            self.content.write(at, superblock.sealed().as_bytes());
        }
    }

    /// Corrects the checksum.
    fn mend(&mut self, structure: Structure) {
        let Structure { at, len, layout, owner } = structure;
        if matches!(layout, Layout::SavedState | Layout::SavedPayload) {
            return self.mend_saved_state(owner);
        }
        let mut bytes = self.content.read(at, len);
        let put = |bytes: &mut [u8], at: usize, check: u32| bytes[at..at + 4].copy_from_slice(&check.to_le_bytes());
        match layout {
            Layout::Superblock => {
                let superblock = Superblock::read_from_bytes(&bytes).expect("its length");
                bytes = superblock.sealed().as_bytes().to_vec();
            }
            Layout::JournalSlot => {
                let slot = JournalSlot::read_from_bytes(&bytes).expect("its length");
                let count = (slot.count as usize).clamp(1, JOURNAL_WORDS);
                bytes = JournalSlot::new(&slot.stores[..count]).as_bytes().to_vec();
            }
            Layout::SegmentEntry => {
                let check = checksum(owner, &bytes[..8]);
                put(&mut bytes, 12, check);
            }
            Layout::ChunkEntry | Layout::PackedEntry | Layout::DirectEntry => {}
            Layout::PackedHeader => {
                let check = checksum(owner, &bytes[..12]);
                put(&mut bytes, 12, check);
            }
            Layout::InodeHead | Layout::AreaHead => {
                let check = checksum(owner, &bytes[32..56]);
                put(&mut bytes, 56, check);
            }
            Layout::AttributeLine => {
                let line = AttributeLine::read_from_bytes(&bytes).expect("its length");
                bytes = line.sealed(owner).as_bytes().to_vec();
            }
            Layout::LogEntry => {
                let check = entry_checksum(owner, &bytes);
                put(&mut bytes, 4, check);
            }
            Layout::PageFooter => {
                let check = checksum(owner, &bytes[8..16]);
                put(&mut bytes, 16, check);
            }
            Layout::SavedState | Layout::SavedPayload => {}
        }
        self.content.write(at, &bytes);
    }

    /// Corrects the checksum of the payload that the header references, if there is one, and then the header's.
    fn mend_saved_state(&mut self, at: u64) {
        let bytes = self.content.read(at, BLOCK_BYTES);
        let mut header = SavedState::read_from_bytes(&bytes).expect("its length");
        if let Some(payload) = image::saved_payload(&self.content, &header) {
            header.payload_check = crc32c::crc32c(&payload.bytes);
        }
        self.content.write(at, header.sealed(at).as_bytes());
    }
}

fn show(structure: Structure) -> String {
    format!("{:?} at {:#x} (of {:#x})", structure.layout, structure.at, structure.owner)
}

/// Returns the offsets of the superblock copies on a device of this size, if such a device can be formatted.
pub fn superblocks(device_bytes: u64) -> Vec<u64> {
    let geometry = Geometry::of(device_bytes).map(Geometry::with_last_copy);
    geometry.map_or(COPIES.to_vec(), |geometry| geometry.copies().collect())
}

/// Returns the CRC-32C seeded with the owner, as docs/media-format.md says.
fn checksum(owner: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(owner as u32 ^ (owner >> 32) as u32, bytes)
}

/// Returns the checksum of a log entry. It covers the whole entry with the check taken as zero, and in extent entries
/// (kinds 1 and 2) the dedupe flag too. In a skip (kind 7) it covers only the first line.
pub(super) fn entry_checksum(ino: u64, entry: &[u8]) -> u32 {
    let mut copy = entry.to_vec();
    copy[4..8].fill(0);
    match copy[0] {
        1 | 2 => copy[3] = 0,
        7 => copy.truncate(LINE as usize),
        _ => {}
    }
    checksum(ino, &copy)
}

#[cfg(test)]
mod tests {
    use super::super::image::{KINDS, Kind};
    use super::*;

    #[test]
    fn the_damaged_fields_match_the_media_format() {
        for (name, bytes) in [("Superblock", 512), ("JournalSlot", 128), ("ChunkEntry", 64), ("XattrHead", 24)] {
            assert_eq!(FORMAT[name].iter().map(|field| field.bytes).sum::<u64>(), bytes, "{name}");
        }
        assert!(FORMAT["InodeHead"].contains(&Field { name: "overflow".into(), at: 16, bytes: 8 }));
    }

    #[test]
    fn fixing_the_checksum_of_an_intact_structure_changes_nothing() {
        for kind in KINDS {
            let image = image::image(kind);
            let mut canvas = Canvas { image, content: image.content.clone() };
            for structure in image.structures.iter().flatten() {
                let before = canvas.content.read(structure.at, structure.len);
                // An empty journal slot, and structures that were never written, have no checksum.
                if before[..8] != [0; 8] && structure.layout != Layout::JournalSlot {
                    let whole = structure.layout != Layout::AttributeLine || before[..4] != [0; 4];
                    canvas.mend(*structure);
                    let after = canvas.content.read(structure.at, structure.len);
                    assert!(!whole || after == before, "{kind:?}: {}", show(*structure));
                }
            }
        }
    }

    #[test]
    fn hostile_images_contain_the_structures_of_their_kind() {
        let of = |kind, layout: Layout| image::image(kind).structures[layout as usize].len();
        let (pages, areas) = (of(Kind::LongLogs, Layout::PageFooter), of(Kind::LongLogs, Layout::AreaHead));
        assert!(pages > 2 && areas > 5, "{pages} pages, {areas} areas");
        assert!(of(Kind::Shared, Layout::ChunkEntry) > 6);
        assert!(of(Kind::Tombstones, Layout::LogEntry) > 60);
        assert!(of(Kind::Full, Layout::PageFooter) + of(Kind::Full, Layout::AreaHead) > 1);
        assert!(of(Kind::Small, Layout::SavedPayload) > 3);
        assert!(of(Kind::Chains, Layout::DirectEntry) > 4);
        for kind in [Kind::Packed, Kind::Streams, Kind::Ends, Kind::Compressed] {
            let (entries, headers) = (of(kind, Layout::PackedEntry), of(kind, Layout::PackedHeader));
            assert!(entries > 8 && headers >= entries, "{kind:?}: {entries} entries, {headers} headers");
        }
        assert!(KINDS.into_iter().all(|kind| of(kind, Layout::Superblock) == 3 && of(kind, Layout::InodeHead) > 0));
    }
}
