//! The vector entry: a log entry for many extents. An extent takes 12 bytes here, and 64 bytes in a write entry.
//!
//! ```text
//! | head line: file offset of the first byte, bytes of all, time, size, how many | record | record | ...
//! ```
//!
//! Each record begins in the file where the previous one ends, so a hole between two extents is a record, too.

use super::Location;
use super::location_word::LocationWord;
use super::log_line::{ENTRY_BYTES_MAX, LINE, VECTOR, Written, is_packed_place, seal};
use crate::words::TimeNs;
use std::mem::{offset_of, size_of};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most records of one entry: as many as fit in a log page.
pub const RECORDS_MAX: usize = (ENTRY_BYTES_MAX - size_of::<VectorHead>()) / size_of::<VectorRecord>();

const _: () = assert!(RECORDS_MAX == 330);

/// First line of a vector entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct VectorHead {
    kind: u8,
    lines: u8,
    flags: u8,
    dedupe: u8,
    check: u32,
    file_offset: u64,
    length: u64,
    time: TimeNs,
    size: u64,
    count: u32,
    spare0: u32,
    spare1: [u64; 2],
}

const _: () = assert!(size_of::<VectorHead>() == LINE as usize);
const _: () = assert!(offset_of!(VectorHead, count) == 40);

/// The length of one range of the file, and its location word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct VectorRecord {
    length: u32,
    word_low: u32,
    word_high: u32,
}

const _: () = assert!(size_of::<VectorRecord>() == 12);

/// Returns the number of lines of an entry with so many records.
pub(crate) fn lines_of(records: usize) -> u64 {
    (size_of::<VectorHead>() + records * size_of::<VectorRecord>()).div_ceil(LINE as usize) as u64
}

/// One range of the file, and what it references: a record together with its file offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Offset of the first byte in the file, in bytes.
    pub file_offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Location that the range references.
    pub word: LocationWord,
}

impl Named {
    /// Splits a range that is too long for one record, at block boundaries of the media.
    pub fn in_pieces(self) -> impl Iterator<Item = Named> {
        const PIECE_BYTES_MAX: u64 = 1 << 31;
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let of = rest.take()?;
            if of.length <= PIECE_BYTES_MAX {
                return Some(of);
            }
            let length = PIECE_BYTES_MAX - of.word.offset_in_block();
            let word = if of.word == LocationWord::HOLE { of.word } else { of.word.plus(length) };
            rest = Some(Named { file_offset: of.file_offset + length, length: of.length - length, word });
            Some(Named { length, ..of })
        })
    }
}

/// A vector entry, as its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorEntry {
    lines: Vec<u8>,
}

impl VectorEntry {
    /// Returns an entry for 1 to [`RECORDS_MAX`] consecutive ranges of the file, each at most 4 GiB long.
    pub fn new(named: &[Named], time: TimeNs, size: u64) -> VectorEntry {
        assert!((1..=RECORDS_MAX).contains(&named.len()), "an entry has 1 to {RECORDS_MAX} records");
        let head = VectorHead {
            kind: VECTOR,
            file_offset: named[0].file_offset,
            length: named.iter().map(|named| named.length).sum(),
            time,
            size,
            count: named.len() as u32,
            ..VectorHead::default()
        };
        let mut lines = Vec::with_capacity((lines_of(named.len()) * LINE) as usize);
        lines.extend_from_slice(head.as_bytes());
        let mut at = head.file_offset;
        for Named { file_offset, length, word } in named {
            debug_assert!(*file_offset == at && *length > 0);
            at += length;
            let length = u32::try_from(*length).expect("at most 4 GiB, as the function demands");
            let word = word.to_media();
            let record = VectorRecord { length, word_low: word as u32, word_high: (word >> 32) as u32 };
            lines.extend_from_slice(record.as_bytes());
        }
        lines.resize(lines.len().next_multiple_of(LINE as usize), 0);
        VectorEntry { lines }
    }

    /// Returns the entry with a valid checksum.
    pub fn sealed(mut self, ino: u64) -> VectorEntry {
        seal(ino, &mut self.lines);
        self
    }

    /// Returns the entry with this dedupe-flag, which is outside the checksum.
    pub fn flagged(mut self, dedupe: u8) -> VectorEntry {
        self.flag(dedupe);
        self
    }

    /// Sets the dedupe-flag.
    pub fn flag(&mut self, dedupe: u8) {
        self.lines[offset_of!(VectorHead, dedupe)] = dedupe;
    }

    /// Decodes an entry whose checksum holds.
    pub(super) fn decode(lines: &[u8]) -> Result<VectorEntry, &'static str> {
        let entry = VectorEntry { lines: lines.to_vec() };
        let head = entry.head();
        let count = head.count as usize;
        if !(1..=RECORDS_MAX).contains(&count) || lines_of(count) * LINE != lines.len() as u64 {
            return Err("vector entry count");
        }
        let mut length = 0;
        for record in entry.records() {
            if record.length == 0 || record.word().is_none() {
                return Err("vector entry record");
            }
            length += u64::from(record.length);
        }
        let is_whole = length == head.length && head.file_offset.checked_add(length).is_some();
        if is_whole { Ok(entry) } else { Err("vector entry length") }
    }

    /// Returns the fields shared with a write entry.
    pub fn written(&self) -> Written {
        let VectorHead { dedupe, file_offset, length, time, .. } = self.head();
        let first_word = u64::from_le_bytes(self.lines[..8].try_into().expect("eight bytes"));
        Written { dedupe, first_word, file_offset, length, time }
    }

    /// Returns the entry as stored on the media.
    pub fn as_bytes(&self) -> &[u8] {
        &self.lines
    }

    fn head(&self) -> VectorHead {
        VectorHead::read_from_prefix(&self.lines).expect("it has a head").0
    }

    fn records(&self) -> impl Iterator<Item = VectorRecord> + '_ {
        let records = self.lines[size_of::<VectorHead>()..].as_chunks::<{ size_of::<VectorRecord>() }>().0;
        records.iter().take(self.head().count as usize).map(|record| zerocopy::transmute!(*record))
    }

    /// Returns the ranges, in order.
    pub fn named(&self) -> impl Iterator<Item = Named> + '_ {
        let mut at = self.file_offset();
        self.records().map(move |record| {
            let (file_offset, length) = (at, u64::from(record.length));
            at += length;
            Named { file_offset, length, word: record.word().expect("looked at when it was made") }
        })
    }

    /// Returns the file offset of the first range, in bytes.
    pub fn file_offset(&self) -> u64 {
        self.head().file_offset
    }

    /// Returns the total length of all ranges, in bytes.
    pub fn length(&self) -> u64 {
        self.head().length
    }

    /// Returns mtime and ctime of the file after this entry, ns.
    pub fn time(&self) -> TimeNs {
        self.head().time
    }

    /// Returns the size of the file after this entry, in bytes.
    pub fn size(&self) -> u64 {
        self.head().size
    }

    /// Returns DeNOVA's dedupe-flag.
    pub fn dedupe(&self) -> u8 {
        self.head().dedupe
    }

    /// Returns the location of a byte of the file, if the entry maps it.
    pub fn location_at(&self, file_offset: u64) -> Option<Location> {
        let named =
            self.named().find(|named| (named.file_offset..named.file_offset + named.length).contains(&file_offset))?;
        let (location, _) = named.word.location()?;
        Some(location.plus(file_offset - named.file_offset))
    }

    /// Returns true if all locations can exist. `holds` returns true for an address and a length in bytes that are
    /// inside the data segments.
    pub fn is_valid(&self, holds: impl Fn(u64, u64) -> bool) -> bool {
        self.records().all(|record| {
            let length = u64::from(record.length);
            match record.word().map(LocationWord::location) {
                None => false,
                Some(None) => true,
                Some(Some((Location::Media(address), _))) => holds(address, length),
                Some(Some((Location::Packed(chunk, offset), _))) => is_packed_place(chunk, offset, length),
            }
        })
    }
}

impl VectorRecord {
    fn word(&self) -> Option<LocationWord> {
        LocationWord::from_media(u64::from(self.word_high) << 32 | u64::from(self.word_low))
    }
}

#[cfg(test)]
mod tests {
    use super::super::PackedNumber;
    use super::super::log_entry::LogEntry;
    use super::*;

    fn named(count: usize) -> Vec<Named> {
        let mut at = 1000;
        let word = |number: u64| match number % 4 {
            0 => LocationWord::HOLE,
            1 => LocationWord::new(Location::Media(number << 12), false),
            2 => LocationWord::new(Location::Media(number << 12), true),
            _ => LocationWord::new(Location::Packed(PackedNumber(number as u32), 9), false),
        };
        let next = |number| {
            let named = Named { file_offset: at, length: 100 + number, word: word(number) };
            at += named.length;
            named
        };
        (0..count as u64).map(next).collect()
    }

    fn decode(bytes: &[u8]) -> Result<VectorEntry, &'static str> {
        match LogEntry::decode(9, bytes)? {
            (LogEntry::Vector(entry), _) => Ok(entry),
            other => panic!("{other:?}"),
        }
    }

    /// The entry with one field changed and the checksum made right.
    fn changed(change: impl Fn(&mut [u8])) -> Result<VectorEntry, &'static str> {
        let mut entry = VectorEntry::new(&named(4), 3, 1 << 20);
        change(&mut entry.lines);
        decode(entry.sealed(9).as_bytes())
    }

    #[test]
    fn a_vector_entry_decodes_to_the_encoded_extents() {
        for count in [1, 4, 5, RECORDS_MAX] {
            let entry = VectorEntry::new(&named(count), 3, 1 << 20).flagged(1).sealed(9);
            let entry = decode(entry.as_bytes()).unwrap();
            assert_eq!(entry.named().collect::<Vec<_>>(), named(count));
            assert_eq!((entry.file_offset(), entry.time(), entry.size(), entry.dedupe()), (1000, 3, 1 << 20, 1));
            assert_eq!(entry.length(), named(count).iter().map(|named| named.length).sum::<u64>());
            assert!(entry.as_bytes().len() <= ENTRY_BYTES_MAX);
        }
        let entry = VectorEntry::new(&named(4), 3, 1 << 20);
        assert_eq!(entry.location_at(1000), None, "a hole");
        assert_eq!(entry.location_at(1110), Some(Location::Media(4096 + 10)));
        assert_eq!(entry.location_at(1406), None, "behind it");
    }

    #[test]
    fn invalid_vector_entries_are_refused() {
        assert!(changed(|_| {}).is_ok());
        for (count, why) in [(0, "none"), (3, "too few for its length"), (5, "an empty record"), (331, "too many")] {
            let changed = changed(|lines| lines[40..44].copy_from_slice(&u32::to_le_bytes(count)));
            assert!(changed.is_err(), "{why}");
        }
        assert!(changed(|lines| lines[64..68].fill(0)).is_err(), "a length of zero");
        assert!(changed(|lines| lines[64] += 1).is_err(), "a sum that is not the length");
        assert!(changed(|lines| lines[8..16].fill(0xff)).is_err(), "an end beyond all numbers");
        assert!(changed(|lines| lines[68] = 1).is_err(), "a hole at an address");
        assert!(changed(|lines| lines[75] |= 0x20).is_err(), "a bit that is none of the word's");
    }

    #[test]
    fn an_extent_too_long_for_a_record_is_split_at_block_boundaries() {
        let word = LocationWord::new(Location::Media((5 << 12) + 100), false);
        let pieces: Vec<Named> = Named { file_offset: 7, length: 9 << 30, word }.in_pieces().collect();
        assert_eq!(pieces.iter().map(|piece| piece.length).sum::<u64>(), 9 << 30);
        assert!(pieces[1..].iter().all(|piece| piece.word.offset_in_block() == 0));
        let place = |piece: &Named| piece.word == word.plus(piece.file_offset - 7) && piece.length <= 1 << 31;
        assert!(pieces.iter().all(place));
        let hole = Named { file_offset: 7, length: 9 << 30, word: LocationWord::HOLE };
        assert!(hole.in_pieces().all(|piece| piece.word == LocationWord::HOLE));
    }
}
