//! From a device to a mounted file system, after a clean unmount or any crash.
//!
//! The problem: what an orderly unmount knew must be there at once; after a crash the media holds three kinds of
//! truth - the journal, the inode logs, the directory names - and everything else follows from them, but reading
//! them takes time that grows with the data.
//!
//! The idea: do at mount what no operation can do without, and the rest while the file system is in use.
//!
//! ```text
//! mount   superblock      which of the two copies is whole
//!         journal         operations over several inodes that had happened are stored again
//!         clean           `saved`: the DRAM state is read back. Done
//!         after a crash   `scan`: inode table (which inodes there are), chunk table (index, counts that may be too
//!                         high), segment table: what lies in a marked segment is in use until the contrary is known
//! later   `reconcile`     every inode is walked: exact counts, blocks and inodes that nobody names are freed
//! ```
//!
//! An inode's own state is read when it is first used, crash or not. All of it is idempotent: a crash in recovery is
//! recovered by doing it again.

mod convert;
pub mod reconcile;
pub mod saved;
mod scan;

use crate::chunk::dram::DramIndex;
use crate::chunk::fact::Fact;
use crate::chunk::index::Index;
use crate::error::{Error, Result};
use crate::fs::{Core, store_words};
use crate::media::direct::index_segments;
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, COMMIT_WORD, HEAD_WORD, InodeHead, PARENT_WORD};
use crate::media::journal::{JOURNAL_SLOTS, JournalSlot, WordStore};
use crate::media::segment::{SegmentEntry, SegmentUse};
use crate::media::superblock::{
    COPIES, Geometry, KNOWN_READ_ONLY_COMPATIBLE, MAGIC, Refusal, STATE_CLEAN, STATE_IN_USE, Superblock, VERSION,
};
use crate::media::{BLOCK_BYTES, BlockNumber, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::namespace::table::{clear_segment, read_uses, table_segments, write_segment};
use crate::space::BlockRun;
use crate::types::{FileKind, IndexKind, InodeNumber, MkfsOptions, MountOptions};
use pmem::{Flight, PmemError, Region};
use zerocopy::FromZeros;

pub use convert::convert_index;

pub(crate) const ROOT: u64 = InodeNumber::ROOT.0;

/// Reads the superblock: the first whole copy and its geometry.
///
/// # Errors
/// [`Error::NotNvfold`], [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`] when neither copy is whole or the device is
/// smaller than the file system on it.
pub fn read_superblock(region: &Region) -> Result<(Superblock, Geometry)> {
    let mut refusals = Vec::new();
    for offset in COPIES {
        if !region.contains(offset, size_of::<Superblock>() as u64) {
            return Err(Error::NotNvfold { why: format!("it has only {} bytes", region.len_bytes()) });
        }
        let superblock: Superblock = region.read(offset);
        match region.check() {
            Err(PmemError::BadMemory { .. }) => {
                refusals.push(Refusal::Damaged("it lies in bad memory"));
                continue;
            }
            told => told?,
        }
        match superblock.verify() {
            Ok(geometry) if geometry.device_bytes > region.len_bytes() => {
                let (whole, here) = (geometry.device_bytes, region.len_bytes());
                let what = format!("device: truncated to {here} bytes, the file system on it has {whole}; its end");
                return Err(Error::Corrupt { what, at: here });
            }
            Ok(geometry) => return Ok((superblock, geometry)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    // The most telling refusal wins: a damaged copy says more than a foreign one.
    if let Some(Refusal::Newer(what)) = refusals.iter().find(|refusal| matches!(refusal, Refusal::Newer(_))) {
        return Err(Error::Newer { what: what.clone() });
    }
    if let Some(Refusal::Older(what)) = refusals.iter().find(|refusal| matches!(refusal, Refusal::Older(_))) {
        return Err(Error::Older { what: what.clone() });
    }
    match refusals.iter().find_map(|refusal| if let Refusal::Damaged(what) = refusal { Some(*what) } else { None }) {
        Some(what) => Err(Error::Corrupt { what: format!("superblock: both copies are damaged ({what})"), at: 0 }),
        None => Err(Error::NotNvfold { why: "neither superblock has nvfold's magic".into() }),
    }
}

/// Writes both copies, the second after the first is durable. One that is not whole comes first: a crash may tear
/// the copy that is being written, and then the other is all there is.
pub(crate) fn write_superblock(region: &Region, superblock: Superblock) {
    let is_torn = |offset: &u64| region.read::<Superblock>(*offset).verify().is_err();
    let (torn, whole): (Vec<u64>, Vec<u64>) = COPIES.into_iter().partition(is_torn);
    // A copy in bad memory stays as it is: the other one serves. Both were read just now, so it is known.
    let is_sound = |offset: &u64| region.is_sound(*offset, size_of::<Superblock>() as u64);
    for offset in torn.into_iter().chain(whole).filter(is_sound) {
        let written = region.write(offset, &superblock.sealed()).flush();
        let _ = region.fence(written);
    }
}

/// Formats a device; see `FileSystem::mkfs`.
pub(crate) fn format(region: &Region, options: &MkfsOptions) -> Result<()> {
    let bytes = region.len_bytes();
    let geometry = Geometry::of(bytes).ok_or_else(|| Error::Format { why: unusable_size(bytes) })?;
    if region.is_read_only() {
        return Err(Error::ReadOnly { doing: "mkfs" });
    }
    if !options.force && !matches!(read_superblock(region), Err(Error::NotNvfold { .. })) {
        let why = "it holds an nvfold file system already; force the format to erase it".into();
        return Err(Error::Format { why });
    }
    if options.label.len() > 32 {
        return Err(Error::Format { why: format!("the label `{}` is longer than 32 bytes", options.label) });
    }
    // Old superblocks go first: until the new ones are written this is no file system.
    let mut flight = Flight::new();
    COPIES.iter().for_each(|offset| flight.add(region.write(*offset, &Superblock::new_zeroed()).flush()));
    let _ = region.fence(flight);
    clear_tables(region, &geometry)?;
    let root_segment = geometry.first_segment();
    write_segment(region, &geometry, root_segment, 0)?;
    write_root(region, root_segment, options);
    if options.index == IndexKind::Pm {
        let segments = root_segment + 1..root_segment + 1 + index_segments(geometry.blocks());
        // Of the smallest devices at least half is left.
        if segments.end >= geometry.segments() {
            return Err(Error::Format { why: format!("{bytes} bytes are too small for a pm index") });
        }
        (0..).zip(segments).try_for_each(|(ordinal, at)| write_index_segment(region, &geometry, at, ordinal))?;
    }
    let mut label = [0; 32];
    label[..options.label.len()].copy_from_slice(options.label.as_bytes());
    write_superblock(
        region,
        Superblock {
            magic: MAGIC,
            version: VERSION,
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
            inode_bytes: crate::media::inode::INODE_BYTES as u32,
            state: STATE_CLEAN,
            created: options.now,
            ..Superblock::new_zeroed()
        }
        .with_index(options.index, options.weak),
    );
    Ok(region.sync()?)
}

fn unusable_size(bytes: u64) -> String {
    if !bytes.is_multiple_of(BLOCK_BYTES) {
        return format!("its size, {bytes} bytes, is not a multiple of {BLOCK_BYTES}");
    }
    let limit = if bytes < DEVICE_BYTES_MIN { ("small", DEVICE_BYTES_MIN) } else { ("large", DEVICE_BYTES_MAX) };
    format!("{bytes} bytes are too {}; the limit is {} bytes", limit.0, limit.1)
}

/// Makes the tables zero without touching what is a hole already: a fresh device takes no memory for them.
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

fn write_root(region: &Region, segment: u64, options: &MkfsOptions) {
    let slot = segment * SEGMENT_BYTES + ROOT * crate::media::inode::INODE_BYTES;
    let head = InodeHead::new(slot, ROOT, FileKind::Directory, 1, ROOT, options.now);
    let (uid, gid, now) = (options.root_uid, options.root_gid, options.now);
    let times = AttributeLine { atime: now, mtime: now, ctime: now, ..AttributeLine::default() };
    let attributes = AttributeLine { mode: 0o755, uid, gid, nlink: 1, as_of: head.commit, ..times }.sealed(ROOT);
    let mut flight = Flight::new();
    flight.add(region.write(slot, &head).flush());
    flight.add(region.write(slot + ATTRIBUTE_LINES[0], &attributes).flush());
    let _ = region.fence(flight);
}

/// Mounts a device; see `FileSystem::mount`.
pub(crate) fn mount(region: Region, options: &MountOptions) -> Result<Core> {
    let (superblock, geometry) = read_superblock(&region)?;
    if !options.read_only {
        require_known_features(&superblock)?;
    }
    if region.is_read_only() && !options.read_only {
        return Err(Error::ReadOnly { doing: "mount read-write" });
    }
    let uses = read_uses(&region, &geometry);
    let segments = table_segments(&geometry, &uses)?;
    let stores = journal_stores(&region, &geometry, &segments)?;
    let tables_read = region.check();
    if !options.read_only {
        tables_read.map_err(Error::of(|| "journal or segment table (mount read-only to read what is left)".into()))?;
    }
    if options.read_only && !stores.is_empty() {
        let what = "journal: an operation that a crash cut off must be finished by a read-write mount; it".into();
        return Err(Error::Corrupt { what, at: geometry.journal_offset });
    }
    replay_journal(&region, &geometry, &stores);
    let (options, index) = index_of(&region, &geometry, &superblock, options, &uses)?;
    let options = &options;
    let core = Core::new(region, geometry, options, segments, index);
    let index_segments = core.chunks.index.fact().into_iter().flat_map(|index| index.segments().iter().copied());
    core.table.segments().into_iter().chain(index_segments).for_each(|segment| core.space.adopt_table_segment(segment));
    core.chunks.load_generators();
    let saved_in = saved::load(&core, &superblock);
    match &saved_in {
        Some(_) => {}
        None if options.read_only => scan::count_all(&core),
        None => scan::after_crash(&core, &uses)?,
    }
    let root = core.table.slot(ROOT).expect("the table has a first segment");
    if core.region.read::<InodeHead>(root).live(ROOT) != Some(FileKind::Directory) {
        return Err(Error::Corrupt { what: "root directory: not there".into(), at: root });
    }
    if !options.read_only {
        let mount_epoch = superblock.mount_epoch.wrapping_add(1);
        let mounted = (options.clock)();
        write_superblock(
            &core.region,
            Superblock { state: STATE_IN_USE, mount_epoch, mounted, saved_state: 0, ..superblock },
        );
        core.region.sync()?;
        if core.chunks.index.dram().is_some() {
            // Not before: a crash may tear the entries, and on a clean device nobody looks for that.
            free_index_segments(&core, &uses)?;
        }
        saved_in.into_iter().flatten().try_for_each(|run| core.space.discard_run(run))?;
    }
    match core.region.check() {
        // Whoever uses what lay there is told.
        Ok(()) | Err(PmemError::BadMemory { .. }) => {}
        Err(lost) => return Err(lost.into()),
    }
    Ok(core)
}

/// The index that the superblock names, and the options with its fingerprints.
fn index_of(
    region: &Region,
    geometry: &Geometry,
    superblock: &Superblock,
    options: &MountOptions,
    uses: &[(u64, SegmentUse)],
) -> Result<(MountOptions, Index)> {
    let mut options = options.clone();
    let index = match superblock.index().expect("a superblock that was verified") {
        (IndexKind::Dram, _) => Index::Dram(DramIndex::new()),
        (IndexKind::Pm, function) => {
            options.nv_dedup.weak = function;
            let segments = index_segments_in(geometry, uses)?;
            let reorder = options.denova.reorder;
            Index::Pm(Box::new(Fact::new(region.clone(), *geometry, function, segments, reorder)))
        }
    };
    Ok((options, index))
}

/// The segments of the pm index by ordinal, of those in use; what is wrong with it otherwise.
pub(crate) fn index_segments_in(geometry: &Geometry, uses: &[(u64, SegmentUse)]) -> Result<Vec<u64>> {
    let part = |(segment, usage): &(u64, SegmentUse)| match usage {
        SegmentUse::Index(ordinal) => Some((*ordinal, *segment)),
        _ => None,
    };
    let mut found: Vec<(u32, u64)> = uses.iter().filter_map(part).collect();
    found.sort_unstable();
    let is_whole = (0..index_segments(geometry.blocks())).eq(found.iter().map(|(ordinal, _)| u64::from(*ordinal)));
    if !is_whole || found.iter().any(|(_, segment)| geometry.blocks_in_segment(*segment) != SEGMENT_BLOCKS) {
        let what = "segment table: the pm index's segments (`nvfold tune --index dram` does without); they".into();
        return Err(Error::Corrupt { what, at: geometry.segment_table_offset });
    }
    Ok(found.into_iter().map(|(_, segment)| segment).collect())
}

/// Makes a segment part of the pm index on the media, all of its chains empty.
fn write_index_segment(region: &Region, geometry: &Geometry, segment: u64, ordinal: u32) -> Result<()> {
    clear_segment(region, segment)?;
    let entry = SegmentEntry::index(segment, ordinal);
    let _ = region.fence(region.write(geometry.segment_entry_offset(segment), &entry).flush());
    Ok(())
}

/// A conversion that a crash cut off leaves segments of an index that does not count: they are free.
fn free_index_segments(core: &Core, uses: &[(u64, SegmentUse)]) -> Result<()> {
    for (segment, _) in uses.iter().filter(|(_, usage)| matches!(usage, SegmentUse::Index(_))) {
        core.space.write_entry(*segment, SegmentEntry::default());
        core.space.discard_run(BlockRun { start: BlockNumber(segment * SEGMENT_BLOCKS), count: SEGMENT_BLOCKS })?;
    }
    Ok(())
}

/// What every writer must make sure of first.
pub(crate) fn require_known_features(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.read_only_compatible & !KNOWN_READ_ONLY_COMPATIBLE;
    if unknown == 0 {
        return Ok(());
    }
    Err(Error::Newer { what: format!("feature flags {unknown:#x} allow reading only; mount read-only or") })
}

/// The words of whole journal slots. Operations store only commit, log head and parent of inodes of the table.
pub(crate) fn journal_stores(region: &Region, geometry: &Geometry, segments: &[u64]) -> Result<Vec<WordStore>> {
    let mut stores = Vec::new();
    for slot in 0..JOURNAL_SLOTS {
        let offset = geometry.journal_slot_offset(slot);
        let journal: JournalSlot = region.read(offset);
        for store in journal.words() {
            let in_table = segments.contains(&(store.offset / SEGMENT_BYTES));
            let in_slot = store.offset % crate::media::inode::INODE_BYTES;
            if !matches!(in_slot, COMMIT_WORD | HEAD_WORD | PARENT_WORD) || !in_table {
                return Err(Error::Corrupt { what: "journal: a word that no operation stores".into(), at: offset });
            }
            stores.push(*store);
        }
    }
    Ok(stores)
}

/// Stores the words again and empties the journal.
fn replay_journal(region: &Region, geometry: &Geometry, stores: &[WordStore]) {
    if stores.is_empty() {
        return;
    }
    store_words(region, stores);
    let clear = |slot| WordStore { offset: geometry.journal_slot_offset(slot), value: 0 };
    let cleared: Vec<_> = (0..JOURNAL_SLOTS).map(clear).collect();
    store_words(region, &cleared);
}
