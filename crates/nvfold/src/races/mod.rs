//! Race tests that explore thread schedules systematically.
//!
//! The problem: most races need one thread to stop between two instructions while another runs a whole operation
//! there. Running real threads and hoping (`tests/threads.rs`) finds few of them and reproduces none.
//!
//! The idea: under the feature `shuttle`, a scheduler chooses the next thread at every lock, atomic and access to
//! media. Each test below is one small situation, run under many schedules ([`schedules`]). After each schedule fsck
//! must find nothing, all totals must be exact, and the contents must be among those allowed.
//!
//! The tests do not cover memory orders weaker than sequential consistency, nor the words of one store to media
//! becoming visible one by one.

mod collect;
mod collect_copies;
mod data;
mod dedup;
mod denova;
mod fact;
mod growth;
mod limits;
mod moves;
mod names;
mod origins;
mod owner;
mod packed;
mod parts;
mod recovery;
mod space;
mod trees;

use crate::check::{CheckOptions, check};
use crate::inode::table::{read_entries, table_parts, uses_of};
use crate::media::chunk_entry::ChunkEntry;
use crate::media::segment::SegmentUse;
use crate::media::superblock::Geometry;
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::*;
use nvfold_sync::schedules::{self, Task, task};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::sync::Arc;

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: usize = BLOCK_BYTES as usize;
const DEVICE_BYTES: u64 = 16 << 20;
/// Runs `test` under many schedules; shuttle prints a failing one.
fn explore(test: impl Fn() + Send + Sync + 'static) {
    schedules::explore(from_a_single_thread(test));
}

/// Runs `test` under every possible schedule, and returns their number; only for very small tests.
fn exhaust(test: impl Fn() + Send + Sync + 'static) -> usize {
    schedules::exhaust(from_a_single_thread(test))
}

/// A schedule that failed may have left threads switching at media.
fn from_a_single_thread(test: impl Fn() + Send + Sync + 'static) -> impl Fn() + Send + Sync + 'static {
    move || {
        pmem::switch_threads_at_media(false);
        test();
    }
}

/// Runs each task in a thread, and waits until all have ended.
fn race<const N: usize>(tasks: [Task; N]) {
    pmem::switch_threads_at_media(true);
    schedules::race(tasks);
    pmem::switch_threads_at_media(false);
}

/// A mounted device.
struct Device {
    region: Region,
    fs: FileSystem,
}

impl Device {
    fn new() -> Device {
        Device::with(MountOptions::default())
    }

    fn with(options: MountOptions) -> Device {
        Device::made(&MkfsOptions::default(), options)
    }

    fn made(mkfs: &MkfsOptions, options: MountOptions) -> Device {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, mkfs).unwrap();
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        Device { region, fs }
    }

    /// Makes a new file in the root directory.
    fn file(&self, name: &str) -> File {
        self.fs.open(create(&self.fs, ROOT, name)).unwrap()
    }

    fn directory(&self, name: &str) -> InodeNumber {
        self.fs.mkdir(ROOT, name.as_bytes(), &new_inode()).unwrap().ino
    }

    /// Unmounts, and asserts that nothing is lost, leaked or miscounted: fsck finds nothing, and agrees with the
    /// totals.
    fn settle(self) {
        self.fs.trim().unwrap();
        let told = self.fs.stats();
        let usage = self.fs.usage().unwrap().expect("nothing is being recovered");
        assert!(usage.adds_up(), "{usage:?}");
        self.fs.clone().unmount().unwrap();
        let report = check(&self.region, &CheckOptions::default()).unwrap();
        assert!(report.clean && report.findings.is_empty(), "{:?}", report.findings);
        let geometry = Geometry::of(DEVICE_BYTES).unwrap().with_last_copy();
        let first = geometry.first_segment() * SEGMENT_BLOCKS;
        let entries = read_entries(&self.region, &geometry);
        let uses = uses_of(&entries);
        let mut indexed = 0;
        for entry in self.chunk_entries(&geometry).filter(|entry| entry.count > 0) {
            indexed += u64::from(entry.any_weak().is_some());
        }
        let of_packed = self.packed_entries(&uses).filter(|entry| entry.count > 0 && entry.any_weak().is_some());
        indexed += of_packed.count() as u64;
        let parts = table_parts(&geometry, &entries).unwrap().into_iter().flatten();
        let tables = parts.count() as u64 + report.packed_segments;
        let index = told.index.media_bytes / BLOCK_BYTES;
        let free = geometry.blocks() - first - tables * SEGMENT_BLOCKS - index - report.blocks - report.metadata_blocks;
        assert_eq!(
            (told.inodes, told.data_blocks, told.chunks, told.logical_bytes, told.free_bytes),
            (report.inodes, report.blocks, report.chunks, report.usage.logical_bytes, free * BLOCK_BYTES)
        );
        // The dram index also has blocks without an entry; fsck has checked that they are file data.
        let most = if told.index.media_bytes > 0 { indexed } else { indexed + report.blocks };
        assert!((indexed..=most).contains(&told.index.entries), "{} of {indexed}", told.index.entries);
        assert_eq!(told.log_areas, report.log_areas);
    }

    /// Returns the chunk entries that are not in holes.
    fn chunk_entries(&self, geometry: &Geometry) -> impl Iterator<Item = ChunkEntry> {
        let at = |block| geometry.chunk_entry_offset(BlockNumber(block));
        let ranges = self.region.allocated_ranges(at(0), at(geometry.blocks()) - at(0));
        let offsets = ranges.into_iter().flat_map(|range| range.step_by(size_of::<ChunkEntry>()));
        offsets.map(|offset| self.region.read(offset))
    }

    /// Returns the entries of packed chunks, including free ones.
    fn packed_entries(&self, uses: &[(u64, SegmentUse)]) -> impl Iterator<Item = ChunkEntry> {
        let parts = uses.iter().filter(|(_, usage)| matches!(usage, SegmentUse::Entries(_)));
        let first_page =
            |(segment, _): &(u64, SegmentUse)| segment * SEGMENT_BYTES..segment * SEGMENT_BYTES + BLOCK_BYTES;
        // Numbers are allocated in order, and no test uses more than a page of entries.
        parts.flat_map(move |part| first_page(part).step_by(size_of::<ChunkEntry>())).map(|at| self.region.read(at))
    }
}

fn new_inode() -> NewInode {
    NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 }
}

fn create(fs: &FileSystem, parent: InodeNumber, name: &str) -> InodeNumber {
    fs.create(parent, name.as_bytes(), &new_inode()).unwrap().ino
}

/// Returns one block of this byte.
fn block(byte: u8) -> [u8; BLOCK] {
    [byte; BLOCK]
}

/// Returns the whole content of a file.
fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Returns the whole content of a file of at most 64 KiB, whose size may change meanwhile.
fn seen(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xEE; 1 << 16];
    let length = file.read_at(0, &mut bytes).unwrap();
    bytes.truncate(length);
    bytes
}

fn reclaim(fs: &FileSystem) {
    while !fs.reclaim_step(Victims::All).unwrap() {}
}

fn reclaims(device: &Device) -> Task {
    let fs = device.fs.clone();
    task(move || reclaim(&fs))
}
