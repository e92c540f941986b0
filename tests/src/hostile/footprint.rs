//! The bytes of a device on which each inode depends: its slot, its log, its attributes, its data and the references
//! to it.
//!
//! They are found from the bytes alone, as docs/media-format.md describes them, so that repair is judged by
//! independent code.

use std::collections::BTreeMap;
use std::ops::Range;

use nvfold::BLOCK_BYTES;
use nvfold::internals::media::chunk_entry::{ChunkEntry, ENTRY_BYTES};
use nvfold::internals::media::inode::{INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead, OVERFLOW_WORD};
use nvfold::internals::media::log_area::{AREA_LOG, NEXT_WORD};
use nvfold::internals::media::log_entry::{LINE, LogEntry, PAGE_LINES, XattrValue};
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use nvfold::internals::media::{Location, PackedNumber, SEGMENT_BYTES};
use zerocopy::FromBytes;

use crate::slate::Content;

/// The bytes on which one inode depends.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// Slot, log areas and log pages: without them the inode cannot be read.
    pub metadata: Vec<Range<u64>>,
    /// Blocks of attributes and data, and bytes of packed chunks.
    pub blocks: Vec<Range<u64>>,
    /// Entries of the packed chunks: without them the place of the bytes is unknown.
    pub entries: Vec<Range<u64>>,
}

impl Footprint {
    /// Returns whether a range touches slot or log, or the entry of a packed chunk.
    pub fn is_hit(&self, range: &Range<u64>) -> bool {
        self.metadata.iter().chain(&self.entries).any(|own| own.start < range.end && range.start < own.end)
    }

    /// Returns whether a range touches data or attributes.
    pub fn is_content_hit(&self, range: &Range<u64>) -> bool {
        self.blocks.iter().any(|own| own.start < range.end && range.start < own.end)
    }
}

/// Returns the footprints of all inodes of an undamaged device, by their numbers.
pub fn footprints(content: &Content) -> BTreeMap<u64, Footprint> {
    let geometry = Geometry::of(content.len_bytes()).expect("a size that can be formatted").with_last_copy();
    let mut found = BTreeMap::new();
    let usage = |segment| {
        let entry = content.read(geometry.segment_entry_offset(segment), size_of::<SegmentEntry>() as u64);
        SegmentEntry::read_from_bytes(&entry).expect("its length").usage(segment)
    };
    let segments = geometry.first_segment()..geometry.segments();
    let part = |segment: u64| match usage(segment) {
        SegmentUse::Entries(part) => Some((part, segment * SEGMENT_BYTES)),
        _ => None,
    };
    let parts: Parts = segments.clone().filter_map(part).collect();
    for segment in segments {
        let SegmentUse::Inodes(ordinal) = usage(segment) else { continue };
        for place in 0..INODES_PER_SEGMENT {
            let (slot, ino) =
                (segment * SEGMENT_BYTES + place * INODE_BYTES, u64::from(ordinal) * INODES_PER_SEGMENT + place);
            let head = InodeHead::read_from_bytes(&content.read(slot, LINE)).expect("its length");
            if head.live(ino).is_some() {
                found.insert(ino, footprint(content, slot, &head, &parts));
            }
        }
    }
    found
}

/// Returns the log area or page whose first line is at this offset.
pub fn part(first: u64) -> Range<u64> {
    match first % INODE_BYTES {
        AREA_LOG => first - AREA_LOG..first - AREA_LOG + INODE_BYTES,
        _ => first..first + BLOCK_BYTES,
    }
}

/// Returns the end of the lines that begin at this offset.
pub fn part_end(first: u64) -> u64 {
    if first % INODE_BYTES == AREA_LOG { part(first).end } else { first + PAGE_LINES * LINE }
}

/// The offsets of the parts of the table of packed entries.
type Parts = BTreeMap<u32, u64>;

impl Footprint {
    fn names(&mut self, content: &Content, parts: &Parts, location: Location, length: u64) {
        let (chunk, offset) = match location {
            Location::Media(address) => return self.blocks.push(address..address + length),
            Location::Packed(PackedNumber(chunk), offset) => (u64::from(chunk), u64::from(offset)),
        };
        let in_part = SEGMENT_BYTES / ENTRY_BYTES;
        let Some(part) = parts.get(&((chunk / in_part) as u32)) else { return };
        let at = part + chunk % in_part * ENTRY_BYTES;
        let entry = ChunkEntry::read_from_bytes(&content.read(at, ENTRY_BYTES)).expect("its length");
        self.entries.push(at..at + ENTRY_BYTES);
        self.blocks.push(entry.address() + offset..entry.address() + offset + length);
    }
}

fn footprint(content: &Content, slot: u64, head: &InodeHead, parts: &Parts) -> Footprint {
    let mut own = Footprint::default();
    own.metadata.push(slot..slot + INODE_BYTES);
    let (mut at, mut end) = (head.head, slot + INODE_BYTES);
    if at != slot + INLINE_LOG {
        end = part_end(at);
        own.metadata.push(part(at));
    }
    while at != head.tail() {
        if at == end {
            let next = match () {
                () if end == slot + INODE_BYTES => slot + OVERFLOW_WORD,
                () if end.is_multiple_of(INODE_BYTES) => end - INODE_BYTES + NEXT_WORD,
                () => end,
            };
            at = u64::from_le_bytes(content.read(next, 8).try_into().expect("eight bytes"));
            own.metadata.push(part(at));
            end = part_end(at);
            continue;
        }
        let (entry, lines) = LogEntry::decode(head.ino, &content.read(at, end - at)).expect("a whole device");
        match entry {
            LogEntry::Extent(entry) if entry.maps() => own.names(content, parts, entry.location(), entry.length),
            LogEntry::Vector(entry) => {
                let named = entry.named().filter_map(|named| Some((named.word.location()?.0, named.length)));
                named.for_each(|(location, length)| own.names(content, parts, location, length));
            }
            LogEntry::XattrSet { value: XattrValue::Blocks { blocks, .. }, .. } => {
                own.blocks.extend(blocks.into_iter().map(|block| block..block + BLOCK_BYTES));
            }
            _ => {}
        }
        at += lines * LINE;
    }
    own
}
