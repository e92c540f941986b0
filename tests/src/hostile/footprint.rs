//! Which bytes of a device each inode stands on: its slot, its log, its attributes, its data.
//!
//! Read from the bytes alone, as docs/media-format.md draws them, so that what repair keeps is judged by other code than
//! its own.

use std::collections::BTreeMap;
use std::ops::Range;

use nvfold::media::inode::{INLINE_LOG, INODE_BYTES, INODES_PER_SEGMENT, InodeHead};
use nvfold::media::log_entry::{LINE, LogEntry, PAGE_LINES, XattrValue};
use nvfold::media::segment::{SegmentEntry, SegmentUse};
use nvfold::media::superblock::Geometry;
use nvfold::media::{BLOCK_BYTES, SEGMENT_BYTES};
use zerocopy::FromBytes;

use crate::slate::Content;

/// What one inode stands on.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    /// Slot and log pages: without them the inode cannot be read.
    pub metadata: Vec<Range<u64>>,
    /// Blocks of attributes and data.
    pub blocks: Vec<Range<u64>>,
}

impl Footprint {
    /// Whether a range touches slot or log.
    pub fn is_hit(&self, range: &Range<u64>) -> bool {
        self.metadata.iter().any(|own| own.start < range.end && range.start < own.end)
    }

    /// Whether a range touches data or attributes.
    pub fn is_content_hit(&self, range: &Range<u64>) -> bool {
        self.blocks.iter().any(|own| own.start < range.end && range.start < own.end)
    }
}

/// The footprints of all inodes of a whole device, by their numbers.
pub fn footprints(content: &Content) -> BTreeMap<u64, Footprint> {
    let geometry = Geometry::of(content.len_bytes()).expect("a size that can be formatted").with_last_copy();
    let mut found = BTreeMap::new();
    for segment in geometry.first_segment()..geometry.segments() {
        let entry = content.read(geometry.segment_entry_offset(segment), size_of::<SegmentEntry>() as u64);
        let entry = SegmentEntry::read_from_bytes(&entry).expect("its length");
        let SegmentUse::Inodes(ordinal) = entry.usage(segment) else { continue };
        for place in 0..INODES_PER_SEGMENT {
            let (slot, ino) =
                (segment * SEGMENT_BYTES + place * INODE_BYTES, u64::from(ordinal) * INODES_PER_SEGMENT + place);
            let head = InodeHead::read_from_bytes(&content.read(slot, LINE)).expect("its length");
            if head.live(ino).is_some() {
                found.insert(ino, footprint(content, slot, &head));
            }
        }
    }
    found
}

fn footprint(content: &Content, slot: u64, head: &InodeHead) -> Footprint {
    let mut own = Footprint::default();
    own.metadata.push(slot..slot + INODE_BYTES);
    let mut at = head.head;
    let mut area_end = if at == slot + INLINE_LOG { slot + INODE_BYTES } else { at + PAGE_LINES * LINE };
    if at != slot + INLINE_LOG {
        own.metadata.push(at..at + BLOCK_BYTES);
    }
    while at != head.tail() {
        if at == area_end {
            let next = if area_end == slot + INODE_BYTES { slot + 16 } else { area_end };
            at = u64::from_le_bytes(content.read(next, 8).try_into().expect("eight bytes"));
            own.metadata.push(at..at + BLOCK_BYTES);
            area_end = at + PAGE_LINES * LINE;
            continue;
        }
        let (entry, lines) = LogEntry::decode(head.ino, &content.read(at, area_end - at)).expect("a whole device");
        match entry {
            LogEntry::Extent(entry) if entry.maps() => own.blocks.push(entry.address..entry.address + entry.length),
            LogEntry::XattrSet { value: XattrValue::Blocks { blocks, .. }, .. } => {
                own.blocks.extend(blocks.into_iter().map(|block| block..block + BLOCK_BYTES));
            }
            _ => {}
        }
        at += lines * LINE;
    }
    own
}
