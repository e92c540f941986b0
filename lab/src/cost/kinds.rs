//! The purpose of lines: the offset of a line on the device determines its kind.
//!
//! The media format gives every block one use, and the device itself records it: the superblock has the places of the
//! tables, the segment table the use of a segment, the footer of a log page its owner. So the lines of a block, which
//! `pmem` counts, have the kind of that block. The kind is read after the operation: a log page keeps its footer
//! until the block gets another use.

use crate::{Doing, LabError, Result};
use nvfold::BLOCK_BYTES;
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::log_entry::PageFooter;
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use pmem::{LINE_BYTES, Region};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The use of a block of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Bytes of files.
    Data,
    /// Log pages.
    Log,
    /// Chunk table, including the lists of the pm index.
    Entry,
    /// Heads of the chains of the pm index.
    Index,
    /// TX_ID generators.
    Generator,
    /// Inode slots, including the five log lines in each.
    Inode,
    /// Superblocks, journal, segment table.
    Other,
}

impl Kind {
    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Data => "data",
            Kind::Log => "log",
            Kind::Entry => "entry",
            Kind::Index => "index",
            Kind::Generator => "generator",
            Kind::Inode => "inode",
            Kind::Other => "other",
        }
    }
}

/// Lines of each kind; kinds without lines are absent.
pub type Lines = BTreeMap<Kind, u64>;

/// Lines written to and read from each block of a device since it was opened.
pub(crate) struct Traffic {
    written: Vec<u64>,
    read: Vec<u64>,
}

impl Traffic {
    /// Returns the counts until now. The device must have been opened with `track_wear`.
    pub(crate) fn of(region: &Region) -> Traffic {
        let blocks = || (0..region.len_bytes()).step_by(BLOCK_BYTES as usize);
        Traffic {
            written: blocks().map(|at| region.lines_written_in(at, BLOCK_BYTES).unwrap_or(0)).collect(),
            read: blocks().map(|at| region.lines_read_in(at, BLOCK_BYTES).unwrap_or(0)).collect(),
        }
    }

    /// Returns the lines written and the lines read by kind from `self` to `after`.
    pub(crate) fn until(&self, after: &Traffic, region: &Region) -> Result<(Lines, Lines)> {
        let (_, geometry) = nvfold::read_superblock(region).doing("read the superblock")?;
        let by_kind = |before: &[u64], after: &[u64]| -> Result<Lines> {
            let mut lines = Lines::new();
            for (block, count) in before.iter().zip(after).map(|(before, after)| after - before).enumerate() {
                if count > 0 {
                    *lines.entry(kind_of(region, &geometry, block as u64 * BLOCK_BYTES)?).or_insert(0) += count;
                }
            }
            Ok(lines)
        };
        Ok((by_kind(&self.written, &after.written)?, by_kind(&self.read, &after.read)?))
    }
}

/// Returns the use of the block at this offset.
fn kind_of(region: &Region, geometry: &Geometry, at: u64) -> Result<Kind> {
    if at < geometry.generators_offset {
        return Ok(Kind::Other);
    } else if at < geometry.segment_table_offset {
        return Ok(Kind::Generator);
    } else if at < geometry.chunk_table_offset {
        return Ok(Kind::Other);
    } else if at < geometry.data_offset {
        return Ok(Kind::Entry);
    }
    let segment = at / SEGMENT_BYTES;
    match region.read::<SegmentEntry>(geometry.segment_entry_offset(segment)).usage(segment) {
        SegmentUse::Inodes(_) => Ok(Kind::Inode),
        SegmentUse::Index(_) => Ok(Kind::Index),
        SegmentUse::Entries(_) => Ok(Kind::Entry),
        SegmentUse::Packed => Ok(Kind::Data),
        SegmentUse::Blocks if is_log_page(region, at) => Ok(Kind::Log),
        SegmentUse::Blocks => Ok(Kind::Data),
        SegmentUse::Free | SegmentUse::Torn => {
            Err(LabError::Miscounted(format!("segment {segment} has traffic but no recorded use")))
        }
    }
}

fn is_log_page(region: &Region, at: u64) -> bool {
    let footer: PageFooter = region.read(at + BLOCK_BYTES - LINE_BYTES);
    footer.ino != 0 && footer.belongs(at, footer.ino)
}
