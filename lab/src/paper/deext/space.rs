//! The space of files: their data, and each kind of metadata in use.
//!
//! A segment has 2 MiB and a set of files is small, so only the used part of each kind of metadata counts: slots of
//! inodes, not the segment of the inode table that holds them. The same is done for ext4.

use crate::{Doing, Result};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::chunk_entry::ENTRY_BYTES;
use nvfold::internals::media::inode::INODE_BYTES;
use nvfold::internals::media::packed::{HEADER_BYTES, PackedHeader, header_offset};
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use nvfold::{BLOCK_BYTES, FileSystem};
use pmem::Region;

/// Kinds of space, as the chart stacks them.
pub(super) const KINDS: [&str; 5] =
    ["data", "dead and unused in segments", "inodes", "logs and directories", "chunks and tables"];

/// Bytes of each of [`KINDS`].
pub(super) type Space = [u64; KINDS.len()];

/// Returns the bytes of all kinds.
pub(super) fn total(space: &Space) -> u64 {
    space.iter().sum()
}

/// Returns the space of a mounted file system. This reads the media, so read the counters first.
pub(super) fn of_mounted(fs: &FileSystem) -> Result<Space> {
    let region = fs.region();
    let (_, geometry) = nvfold::read_superblock(region).doing("read the superblock")?;
    let stats = fs.stats();
    let mut whole_segments = 0;
    let (mut front, mut headers) = (0, 0);
    for segment in geometry.first_segment()..geometry.segments() {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(segment));
        match entry.usage(segment) {
            SegmentUse::Packed => {
                let filled = Filled::of(region, segment, entry.wear);
                (front, headers) = (front + filled.front, headers + filled.headers);
                whole_segments += 1;
            }
            SegmentUse::Inodes(_) | SegmentUse::Entries(_) | SegmentUse::Index(_) => whole_segments += 1,
            SegmentUse::Free | SegmentUse::Blocks | SegmentUse::Torn => {}
        }
    }
    let in_blocks = stats.data_blocks * BLOCK_BYTES;
    // The segment kept for reclamation is as free as the unused part of an open segment.
    let used = geometry.data_end - stats.free_bytes - stats.reclaim.kept_bytes;
    let logs = used - geometry.data_offset - whole_segments * SEGMENT_BYTES - in_blocks;
    let packed = stats.stored_bytes - in_blocks;
    let entries = stats.chunks * ENTRY_BYTES + headers * HEADER_BYTES;
    Ok([
        stats.stored_bytes,
        front.saturating_sub(packed),
        (stats.inodes + stats.log_areas) * INODE_BYTES,
        logs,
        entries + fixed_tables(&geometry),
    ])
}

/// Returns the bytes of superblocks, journal, generators and the segment table. Of the chunk table only entries in
/// use count.
fn fixed_tables(geometry: &Geometry) -> u64 {
    geometry.chunk_table_offset + (geometry.copies().count() as u64 - 2) * BLOCK_BYTES
}

/// The fill of a segment of packed chunks.
struct Filled {
    /// Bytes of chunks, including dead ones, and the rest of a segment that fits no chunk.
    front: u64,
    headers: u64,
}

impl Filled {
    fn of(region: &Region, segment: u64, opened: u32) -> Filled {
        let header = |nth| region.read::<PackedHeader>(segment * SEGMENT_BYTES + header_offset(nth));
        let headers =
            (0..SEGMENT_BYTES / HEADER_BYTES).map(header).take_while(|header| header.is_whole(segment, opened));
        let (mut front, mut count) = (0, 0);
        for header in headers {
            front = front.max(u64::from(header.offset) + header.bytes().stored);
            count += 1;
        }
        let left = SEGMENT_BYTES - front - count * HEADER_BYTES;
        // The longest chunk has 64 KiB: with more space left the segment is open, and that space is free.
        Filled { front: if left < 64 << 10 { front + left } else { front }, headers: count }
    }
}
