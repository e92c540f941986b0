//! Sorted tables of a key-value store: a simplified format of LevelDB, without prefixes, restarts, filters.
//!
//! ```text
//! file     | data block | data block | ... | index block | footer, 32 bytes |
//! block    | record | record | ...              4 KiB or a little more | kind, 1 byte | CRC-32C, 4 bytes |
//! record   | key bytes u16 | value bytes u16, 0xFFFF: deleted | key | value |
//! index    | last key | offset u64 | bytes u64 | for each data block, then as a block ends
//! footer   | index offset u64 | index bytes u64 | records u64 | magic u64 |
//! ```

use crate::{Doing, LabError, Result};
use nvfold::File;

/// Bytes of a key.
pub(super) const KEY_BYTES: usize = 16;
/// Bytes of a record before its key.
pub(super) const HEAD_BYTES: usize = 4;
/// A data block ends with the record that makes it at least this long, in bytes.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Bytes after the records of a block.
pub(super) const TRAILER_BYTES: usize = 5;
/// Longest value, in bytes.
pub(super) const VALUE_BYTES_MAX: usize = 8192;
/// Longest block, in bytes.
pub(super) const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + HEAD_BYTES + KEY_BYTES + VALUE_BYTES_MAX + TRAILER_BYTES;
const INDEX_ENTRY_BYTES: usize = KEY_BYTES + 16;
const FOOTER_BYTES: usize = 32;
const DELETED: u16 = u16::MAX;
const MAGIC: u64 = 0x6E76_666F_6C64_4B56;

pub(super) type Key = [u8; KEY_BYTES];

/// Place of a data block in its file.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub offset: u64,
    pub bytes: usize,
}

/// A record in a block.
pub(super) struct Record<'b> {
    pub key: Key,
    /// `None`: the key is deleted.
    pub value: Option<&'b [u8]>,
    /// First byte of the key in the block.
    pub start: usize,
    /// First byte after the record.
    pub end: usize,
}

/// Returns the header of a record; without a value the key is deleted.
pub(super) fn head(value_bytes: Option<usize>) -> [u8; HEAD_BYTES] {
    let value_bytes = value_bytes.map_or(DELETED, |bytes| bytes as u16);
    let [a, b] = (KEY_BYTES as u16).to_le_bytes();
    let [c, d] = value_bytes.to_le_bytes();
    [a, b, c, d]
}

/// Returns the trailer of a block with these records.
pub(super) fn trailer(records: &[u8]) -> [u8; TRAILER_BYTES] {
    let mut trailer = [0; TRAILER_BYTES];
    trailer[1..].copy_from_slice(&crc32c::crc32c(records).to_le_bytes());
    trailer
}

/// Returns the record at `start` of a verified block; `None` after the last one.
pub(super) fn record_at(block: &[u8], start: usize) -> Option<Record<'_>> {
    if start + TRAILER_BYTES >= block.len() {
        return None;
    }
    let (key_start, value_start) = (start + HEAD_BYTES, start + HEAD_BYTES + KEY_BYTES);
    let value_bytes = u16::from_le_bytes([block[start + 2], block[start + 3]]);
    let end = value_start + if value_bytes == DELETED { 0 } else { usize::from(value_bytes) };
    Some(Record {
        key: block[key_start..value_start].try_into().expect("16 bytes"),
        value: (value_bytes != DELETED).then(|| &block[value_start..end]),
        start: key_start,
        end,
    })
}

/// Returns whether a block is as it was written.
pub(super) fn is_whole(block: &[u8]) -> bool {
    let (records, end) = block.split_at(block.len() - TRAILER_BYTES);
    trailer(records) == end
}

/// Builds the part of a file after the data blocks.
#[derive(Default)]
pub(super) struct Tail {
    index: Vec<u8>,
    records: u64,
}

impl Tail {
    /// Adds a data block, with its last key and its number of records.
    pub(super) fn add(&mut self, last: &Key, place: Place, records: u64) {
        self.index.extend_from_slice(last);
        self.index.extend_from_slice(&place.offset.to_le_bytes());
        self.index.extend_from_slice(&(place.bytes as u64).to_le_bytes());
        self.records += records;
    }

    /// Returns index block and footer of a file whose data blocks take `data_bytes` bytes.
    pub(super) fn finish(self, data_bytes: u64) -> Vec<u8> {
        let mut bytes = self.index;
        bytes.extend_from_slice(&trailer(&bytes));
        let index_bytes = bytes.len() as u64;
        let footer = [data_bytes, index_bytes, self.records, MAGIC];
        footer.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        bytes
    }
}

/// Returns the data blocks of a file, from its index.
pub(super) fn places(file: &File) -> Result<Vec<Place>> {
    let size = file.attr().size;
    let mut footer = [0; FOOTER_BYTES];
    read(file, size - FOOTER_BYTES as u64, &mut footer)?;
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    if word(&footer, 24) != MAGIC {
        return Err(LabError::wrong("the footer of a sorted table".into()));
    }
    let mut index = vec![0; word(&footer, 8) as usize];
    read(file, word(&footer, 0), &mut index)?;
    if !is_whole(&index) {
        return Err(LabError::wrong("the index of a sorted table".into()));
    }
    let entries = index[..index.len() - TRAILER_BYTES].chunks_exact(INDEX_ENTRY_BYTES);
    Ok(entries.map(|entry| Place { offset: word(entry, 16), bytes: word(entry, 24) as usize }).collect())
}

/// Reads as many bytes as the buffer holds.
pub(super) fn read(file: &File, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let wanted = buffer.len();
    match file.read_at(offset, buffer).doing("read a sorted table")? {
        bytes if bytes == wanted => Ok(()),
        bytes => Err(LabError::wrong(format!("a sorted table has {bytes} bytes where {wanted} were written and"))),
    }
}
