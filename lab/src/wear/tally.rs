//! Write counts of lines by kind of structure.
//!
//! The earlier uses of a segment are unknown. A segment that is free, or was ever opened for packed chunks, counts as
//! a data segment. The end of every data segment counts as headers, as much as the largest number of headers in one
//! of them takes, although segments of long chunks need less.

use nvfold::BLOCK_BYTES;
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::packed::{HEADER_BYTES, PackedHeader, header_offset};
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use pmem::{LineWear, Region};
use serde::Serialize;

/// Data segments: writes of each, per line.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Pools {
    pub segments: u64,
    pub mean: f64,
    pub most: f64,
    /// Ratio of the maximum to the mean, which wear levelling should bring to 1.
    pub most_to_mean: f64,
    /// Writes of the most written line, without headers.
    pub hottest_line: u32,
}

/// The lines of one kind of structure.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Kind {
    pub name: &'static str,
    /// Whether it is always at the same offset.
    pub is_fixed: bool,
    /// Lines that were written at least once.
    pub lines: u64,
    /// Writes of these lines.
    pub writes: u64,
    /// Writes of the most written line.
    pub hottest: u32,
    /// The same relative to the mean of the lines of data segments.
    pub hottest_to_mean: f64,
}

/// Counts of data segments and of all kinds.
pub(super) struct Tally {
    pub pools: Pools,
    pub kinds: Vec<Kind>,
}

/// Kinds of structures, in the order of the report: name, and whether their offset is fixed.
const KINDS: [(&str, bool); 10] = [
    ("superblock", true),
    ("journal", true),
    ("TX_ID generators", true),
    ("segment table", true),
    ("chunk table", true),
    ("inode table", false),
    ("packed entries", false),
    ("blocks: log pages, and data without a pool", false),
    ("headers of packed chunks", false),
    ("packed chunks", false),
];
const SUPERBLOCK: usize = 0;
const INODES: usize = 5;
const ENTRIES: usize = 6;
const BLOCKS: usize = 7;
const HEADERS: usize = 8;
const CHUNKS: usize = 9;

impl Tally {
    /// Counts the lines of a device that was opened with line counters.
    pub(super) fn of(region: &Region, geometry: &Geometry) -> Tally {
        let wear = |from: u64, to: u64| region.line_wear(from, to - from).expect("lines are counted");
        let mut sums = [LineWear::default(); KINDS.len()];
        let table_ends = [
            geometry.journal_offset,
            geometry.generators_offset,
            geometry.segment_table_offset,
            geometry.chunk_table_offset,
            geometry.data_offset,
        ];
        let mut from = 0;
        for (sum, end) in sums.iter_mut().zip(table_ends) {
            add(sum, wear(from, end));
            from = end;
        }
        geometry.copies().skip(2).for_each(|copy| add(&mut sums[SUPERBLOCK], wear(copy, copy + BLOCK_BYTES)));
        let mut pools = Vec::new();
        let headers_bytes = headers_bytes_max(region, geometry);
        for segment in geometry.first_segment()..geometry.segments() {
            let (start, end) = (segment * SEGMENT_BYTES, ((segment + 1) * SEGMENT_BYTES).min(geometry.data_end));
            let entry: SegmentEntry = region.read(geometry.segment_entry_offset(segment));
            let kind = match entry.usage(segment) {
                SegmentUse::Inodes(_) => INODES,
                SegmentUse::Entries(_) | SegmentUse::Index(_) => ENTRIES,
                SegmentUse::Blocks if entry.wear == 0 => BLOCKS,
                // The last segment fits no pool if a superblock is at its end.
                _ if end - start < SEGMENT_BYTES => BLOCKS,
                SegmentUse::Blocks | SegmentUse::Torn | SegmentUse::Free | SegmentUse::Packed => {
                    let headers = end.min(start + SEGMENT_BYTES - headers_bytes);
                    add(&mut sums[HEADERS], wear(headers, end));
                    pools.push(wear(start, end));
                    add(&mut sums[CHUNKS], wear(start, headers));
                    continue;
                }
            };
            add(&mut sums[kind], wear(start, end));
        }
        let pools = summed(&pools, sums[CHUNKS].hottest_writes);
        let kind = |((name, is_fixed), sum): ((&'static str, bool), LineWear)| Kind {
            name,
            is_fixed,
            lines: sum.lines_written,
            writes: sum.writes,
            hottest: sum.hottest_writes,
            hottest_to_mean: f64::from(sum.hottest_writes) / pools.mean,
        };
        Tally { pools, kinds: KINDS.into_iter().zip(sums).map(kind).collect() }
    }
}

/// Returns the bytes of the largest number of headers in a segment, in whole lines.
fn headers_bytes_max(region: &Region, geometry: &Geometry) -> u64 {
    let headers = |segment: u64| {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(segment));
        headers_of(region, segment, entry.wear)
    };
    let most = (geometry.first_segment()..geometry.segments()).map(headers).max().unwrap_or(0);
    (most * HEADER_BYTES).next_multiple_of(pmem::LINE_BYTES)
}

/// Returns the number of valid headers of a segment that was opened this many times, whether it is free or not.
fn headers_of(region: &Region, segment: u64, opened: u32) -> u64 {
    let is_header = |nth: &u64| {
        let header: PackedHeader = region.read(segment * SEGMENT_BYTES + header_offset(*nth));
        header.is_whole(segment, opened)
    };
    (0..SEGMENT_BYTES / HEADER_BYTES).take_while(is_header).count() as u64
}

fn add(sum: &mut LineWear, more: LineWear) {
    sum.lines += more.lines;
    sum.lines_written += more.lines_written;
    sum.writes += more.writes;
    if more.hottest_writes > sum.hottest_writes {
        (sum.hottest_writes, sum.hottest_at) = (more.hottest_writes, more.hottest_at);
    }
}

fn summed(pools: &[LineWear], hottest_line: u32) -> Pools {
    let of_line = |pool: &LineWear| pool.writes as f64 / pool.lines as f64;
    let (writes, lines) = pools.iter().fold((0, 0), |(writes, lines), pool| (writes + pool.writes, lines + pool.lines));
    let (mean, most) = (writes as f64 / lines.max(1) as f64, pools.iter().map(of_line).fold(0.0, f64::max));
    Pools { segments: pools.len() as u64, mean, most, most_to_mean: most / mean, hottest_line }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold::{FileSystem, MkfsOptions};
    use nvfold_bench::device::Device;
    use pmem::Profile;

    #[test]
    fn each_written_line_is_counted_once() {
        let device = Device { counts_lines: true, ..Device::new(&Profile::NATIVE, 64 << 20) };
        let region = device.create().unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let (_, geometry) = nvfold::read_superblock(&region).unwrap();
        let last = geometry.segments() - 2;
        for _ in 0..5 {
            let _ = region.fence(region.stream(last * SEGMENT_BYTES, &[1; 128]));
        }
        let tally = Tally::of(&region, &geometry);
        let writes: u64 = tally.kinds.iter().map(|kind| kind.writes).sum();
        assert_eq!(writes, region.counters().lines_written());
        assert_eq!((tally.pools.hottest_line, tally.kinds[CHUNKS].lines), (5, 2));
        assert!(tally.pools.most_to_mean > 20.0, "one segment has it all: {:?}", tally.pools);
    }
}
