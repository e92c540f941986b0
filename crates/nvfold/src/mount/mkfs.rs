//! Formatting a device.

use super::superblock::read_superblock;
use crate::error::{Error, Result};
use crate::fingerprint::WeakFunction;
use crate::inode::table::write_segment;
use crate::media::direct::index_segments;
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, INODE_BYTES, InodeHead};
use crate::media::segment::SegmentEntry;
use crate::media::superblock::{Geometry, LAST_COPY, MAGIC, STATE_CLEAN, Superblock, VERSION};
use crate::media::{BLOCK_BYTES, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN, SEGMENT_BYTES};
use crate::store::write_superblock;
use crate::words::{FileKind, IndexKind, InodeNumber, TimeNs};
use pmem::{Flight, Region};
use zerocopy::FromZeros;

const ROOT: u64 = InodeNumber::ROOT.0;

/// Says how to format a device.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// Identity of the file system (16 random bytes).
    pub uuid: [u8; 16],
    /// Name of the file system, 32 bytes at most.
    pub label: String,
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Formats even if the device already holds an nvfold file system.
    pub force: bool,
    /// How chunk entries are found from fingerprints.
    pub index: IndexKind,
    /// With a pm index: the weak fingerprint function that the index is built on.
    pub weak: WeakFunction,
    /// The current time, ns.
    pub now: TimeNs,
}

/// Formats a device; see `FileSystem::mkfs`.
pub(crate) fn format(region: &Region, options: &MkfsOptions) -> Result<()> {
    let bytes = region.len_bytes();
    let geometry = Geometry::of(bytes).ok_or_else(|| Error::Format { why: unusable_size(bytes) })?.with_last_copy();
    if region.is_read_only() {
        return Err(Error::ReadOnly { doing: "mkfs" });
    }
    if !options.force && !matches!(read_superblock(region), Err(Error::NotNvfold { .. })) {
        let why = "it holds an nvfold file system already".into();
        return Err(Error::Format { why });
    }
    check_index(options.index, options.weak)?;
    if options.label.len() > 32 {
        return Err(Error::Format { why: format!("the label `{}` is longer than 32 bytes", options.label) });
    }
    // The old superblocks are erased first, so the device holds no file system until the new ones are written.
    let mut flight = Flight::new();
    geometry.copies().for_each(|offset| flight.add(region.write(offset, &Superblock::new_zeroed()).flush()));
    let _ = region.fence(flight);
    clear_tables(region, &geometry)?;
    let root_segment = geometry.first_segment();
    write_segment(region, &geometry, root_segment, &SegmentEntry::inodes(root_segment, 0))?;
    write_root(region, root_segment, (options.root_uid, options.root_gid), options.now);
    if options.index == IndexKind::Pm {
        let segments = root_segment + 1..root_segment + 1 + index_segments(geometry.blocks());
        // Even on the smallest device, at least half of the segments stay free.
        if segments.end >= geometry.segments() {
            return Err(Error::Format { why: format!("{bytes} bytes are too small for a pm index") });
        }
        let part = |(ordinal, at)| write_segment(region, &geometry, at, &SegmentEntry::index(at, ordinal));
        (0..).zip(segments).try_for_each(part)?;
    }
    let mut label = [0; 32];
    label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    write_superblock(
        region,
        Superblock {
            magic: MAGIC,
            version: VERSION,
            read_only_compatible: LAST_COPY,
            uuid: options.uuid,
            label,
            device_bytes: bytes,
            journal_offset: geometry.journal_offset,
            generators_offset: geometry.generators_offset,
            segment_table_offset: geometry.segment_table_offset,
            chunk_table_offset: geometry.chunk_table_offset,
            data_offset: geometry.data_offset,
            block_bytes: BLOCK_BYTES as u32,
            segment_bytes: SEGMENT_BYTES as u32,
            inode_bytes: INODE_BYTES as u32,
            state: STATE_CLEAN,
            created: options.now,
            ..Superblock::new_zeroed()
        }
        .with_index(options.index, options.weak),
    );
    Ok(region.sync()?)
}

/// Returns an error if an index of this kind cannot be built on a function.
pub(super) fn check_index(index: IndexKind, weak: WeakFunction) -> Result<()> {
    match index {
        IndexKind::Pm if !weak.fits_pm_index() => Err(Error::Format {
            why: format!("a pm index cannot be built on {}; choose another function", weak.name()),
        }),
        IndexKind::Dram | IndexKind::Pm => Ok(()),
    }
}

fn unusable_size(bytes: u64) -> String {
    if !bytes.is_multiple_of(BLOCK_BYTES) {
        return format!("its size, {bytes} bytes, is not a multiple of {BLOCK_BYTES}");
    }
    let limit = if bytes < DEVICE_BYTES_MIN { ("small", DEVICE_BYTES_MIN) } else { ("large", DEVICE_BYTES_MAX) };
    format!("{bytes} bytes are too {}; the limit is {} bytes", limit.0, limit.1)
}

/// Zeroes the tables without touching existing holes, so a fresh device takes no memory for them.
fn clear_tables(region: &Region, geometry: &Geometry) -> Result<()> {
    if region.can_punch() {
        region.punch(geometry.journal_offset, geometry.device_bytes - geometry.journal_offset)?;
        region.settle_holes()?;
    }
    let length = geometry.data_offset - geometry.journal_offset;
    for range in region.allocated_ranges(geometry.journal_offset, length) {
        let start = range.start.max(geometry.journal_offset);
        let zeros = region.stream_zeros(start, range.end.min(geometry.data_offset) - start);
        let _ = region.fence(zeros);
    }
    Ok(())
}

/// Writes an empty root directory into the first segment of the inode table.
pub(crate) fn write_root(region: &Region, segment: u64, (uid, gid): (u32, u32), now: TimeNs) {
    let slot = segment * SEGMENT_BYTES + ROOT * INODE_BYTES;
    let head = InodeHead::new(slot, ROOT, FileKind::Directory, 1, ROOT, now);
    let times = AttributeLine { atime: now, mtime: now, ctime: now, ..AttributeLine::default() };
    let attributes = AttributeLine { mode: 0o755, uid, gid, nlink: 1, as_of: head.commit, ..times }.sealed(ROOT);
    let mut flight = Flight::new();
    flight.add(region.write(slot, &head).flush());
    flight.add(region.write(slot + ATTRIBUTE_LINES[0], &attributes).flush());
    let _ = region.fence(flight);
}
