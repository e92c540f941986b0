//! Zones: how a device that was made longer is laid out.
//!
//! The problem: the tables of a device stand before its data, and have a place for every block. A longer device needs
//! longer tables, and behind them is data.
//!
//! The idea: nothing moves. Each time that the device is made longer, a **zone** is added that begins at the old end and
//! has tables of its own, for its own blocks. The first zone is the device that mkfs made. The superblock lists where the
//! others begin, and the rest follows:
//!
//! ```text
//! start                                            data_offset (2 MiB aligned)           data_end    end
//! | segment table | chunk table | (unused)         | segments: data, logs, ...           | last block |
//!   16 B a segment  64 B a block                                                           superblock C
//! ```
//!
//! The tables have the entries of the segments that begin in the zone, from the first one after its start. The segment
//! in which the zone before ends keeps its entry there, and has only the blocks before that end. A segment in which there
//! are only tables holds no block of data. The last block of a zone is reserved, also after the next one was added.

use super::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::media::chunk_entry::ENTRY_BYTES;
use crate::media::segment::SegmentEntry;
use std::mem::size_of;
use std::ops::Range;

/// How often a device can be made longer. If its size doubles each time, it has the largest size long before.
pub const ZONES_MAX: usize = 32;

/// The starts of the zones after the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Zones {
    /// Numbers of blocks, in order, and then zeros.
    starts: [u32; ZONES_MAX],
    count: usize,
}

impl Zones {
    /// Returns the zones that a superblock lists; `None` if they are not in order.
    pub(super) fn new(starts: [u32; ZONES_MAX]) -> Option<Zones> {
        let count = starts.iter().position(|start| *start == 0).unwrap_or(ZONES_MAX);
        let is_in_order = starts[..count].is_sorted_by(|one, next| one < next);
        let ends = starts[count..].iter().all(|start| *start == 0);
        (is_in_order && ends).then_some(Zones { starts, count })
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the list as a superblock has it.
    pub(super) fn stored(&self) -> [u32; ZONES_MAX] {
        self.starts
    }

    /// Returns the device offset at which a zone begins; `None` if there are not so many.
    pub(super) fn start(&self, number: usize) -> Option<u64> {
        self.starts[..self.count].get(number).map(|start| u64::from(*start) * BLOCK_BYTES)
    }

    /// Returns the list with another zone at its end; `None` if it is full.
    pub(super) fn with(mut self, start: u32) -> Option<Zones> {
        *self.starts.get_mut(self.count)? = start;
        Some(Zones { count: self.count + 1, ..self })
    }
}

/// A zone after the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Zone {
    /// Its first byte, which is that of its segment table.
    pub(crate) start: u64,
    /// The number of the first segment that its tables have an entry for.
    pub(super) first_segment: u64,
    chunk_table_offset: u64,
    /// Offset of the first segment after the tables.
    pub(crate) data_offset: u64,
    /// First byte after the last block that may hold data.
    pub(crate) data_end: u64,
}

impl Zone {
    /// Returns the layout of the zone of these bytes.
    pub(super) fn new(start: u64, end: u64, data_end: u64) -> Zone {
        let first_segment = start.div_ceil(SEGMENT_BYTES);
        let segments = end.div_ceil(SEGMENT_BYTES).saturating_sub(first_segment);
        let blocks = (end / BLOCK_BYTES).saturating_sub(first_segment * SEGMENT_BLOCKS);
        let segment_table_bytes = segments * size_of::<SegmentEntry>() as u64;
        let chunk_table_offset = (start + segment_table_bytes).next_multiple_of(BLOCK_BYTES);
        let data_offset = (chunk_table_offset + blocks * ENTRY_BYTES).next_multiple_of(SEGMENT_BYTES);
        Zone { start, first_segment, chunk_table_offset, data_offset, data_end }
    }

    /// Returns whether there is room for a segment of data.
    pub(super) fn is_useful(&self) -> bool {
        self.data_end >= self.data_offset + SEGMENT_BYTES
    }

    pub(super) fn blocks_in_segment(&self, segment: u64) -> u64 {
        match segment < self.data_offset / SEGMENT_BYTES {
            true => 0,
            false => (self.data_end / BLOCK_BYTES).saturating_sub(segment * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS),
        }
    }

    pub(super) fn chunk_entry_offset(&self, block: BlockNumber) -> u64 {
        self.chunk_table_offset + (block.0 - self.first_segment * SEGMENT_BLOCKS) * ENTRY_BYTES
    }

    pub(super) fn segment_entry_offset(&self, segment: u64) -> u64 {
        self.start + (segment - self.first_segment) * size_of::<SegmentEntry>() as u64
    }

    /// Returns the device offsets of the chunk table.
    pub(super) fn chunk_table(&self) -> Range<u64> {
        let end = BlockNumber(self.data_end / BLOCK_BYTES);
        self.chunk_table_offset..self.chunk_entry_offset(end)
    }
}
