//! From a device to a mounted file system, after a clean unmount or any crash.
//!
//! The idea: the media holds three kinds of truth - the journal, the inode logs, the directory names - and
//! everything else follows from them.
//!
//! ```text
//! 1 superblock    which of the two copies is whole
//! 2 journal       operations over several inodes that had happened are stored again
//! 3 directories   every name counts for the inode it names
//! 4 inodes        without a name: freed. With one: its log pages and extents are in use
//! 5 chunk table   each entry is made to say exactly how many extents touch its block (invariant 2)
//! ```
//!
//! All of it is idempotent: a crash in recovery is recovered by doing it again.

use crate::error::{Error, Result};
use crate::fs::inode::{Body, Inode};
use crate::fs::{Core, store_words};
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, COMMIT_WORD, HEAD_WORD, InodeHead, PARENT_WORD, USE_WORD};
use crate::media::journal::{JOURNAL_SLOTS, JournalSlot, WordStore};
use crate::media::log_entry::LINE;
use crate::media::superblock::{
    COPIES, Geometry, KNOWN_READ_ONLY_COMPATIBLE, MAGIC, Refusal, STATE_CLEAN, STATE_IN_USE, Superblock, VERSION,
};
use crate::media::{BLOCK_BYTES, BlockNumber, DEVICE_BYTES_MAX, DEVICE_BYTES_MIN, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::namespace::table::{clear_torn_entries, read_segments, write_segment};
use crate::types::{FileKind, InodeNumber, MkfsOptions, MountOptions, TimeNs};
use pmem::{Flight, Region};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use zerocopy::FromZeros;

const ROOT: u64 = InodeNumber::ROOT.0;

/// Reads the superblock: the first whole copy and its geometry.
///
/// # Errors
/// [`Error::NotNvfold`], [`Error::Newer`], [`Error::Corrupt`] when neither copy is whole or the device is
/// smaller than the file system on it.
pub fn read_superblock(region: &Region) -> Result<(Superblock, Geometry)> {
    let mut refusals = Vec::new();
    for offset in COPIES {
        if !region.contains(offset, size_of::<Superblock>() as u64) {
            return Err(Error::NotNvfold { why: format!("it has only {} bytes", region.len_bytes()) });
        }
        let superblock: Superblock = region.read(offset);
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
    match refusals.iter().find_map(|refusal| if let Refusal::Damaged(what) = refusal { Some(*what) } else { None }) {
        Some(what) => Err(Error::Corrupt { what: format!("superblock: both copies are damaged ({what})"), at: 0 }),
        None => Err(Error::NotNvfold { why: "neither superblock has nvfold's magic".into() }),
    }
}

/// Writes the state into both copies of the superblock, the second after the first is durable. `mounted`
/// counts a new read-write mount.
pub(crate) fn write_state(region: &Region, state: u32, mounted: Option<TimeNs>) -> Result<()> {
    let (mut superblock, _) = read_superblock(region)?;
    superblock.state = state;
    if let Some(now) = mounted {
        superblock.mount_epoch = superblock.mount_epoch.wrapping_add(1);
        superblock.mounted = now;
    }
    write_superblock(region, superblock);
    Ok(())
}

pub(crate) fn write_superblock(region: &Region, superblock: Superblock) {
    for offset in COPIES {
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
    let backed = !region.allocated_ranges(root_segment * SEGMENT_BYTES, SEGMENT_BYTES).is_empty();
    write_segment(region, &geometry, root_segment, 0, backed);
    write_root(region, root_segment, options);
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
            segment_table_offset: geometry.segment_table_offset,
            chunk_table_offset: geometry.chunk_table_offset,
            data_offset: geometry.data_offset,
            block_bytes: BLOCK_BYTES as u32,
            segment_bytes: SEGMENT_BYTES as u32,
            inode_bytes: crate::media::inode::INODE_BYTES as u32,
            state: STATE_CLEAN,
            created: options.now,
            ..Superblock::new_zeroed()
        },
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
    let segments = read_segments(&region, &geometry)?;
    let stores = journal_stores(&region, &geometry, &segments)?;
    if options.read_only {
        if !stores.is_empty() {
            let what = "journal: an operation that a crash cut off must be finished by a read-write mount; it".into();
            return Err(Error::Corrupt { what, at: geometry.journal_offset });
        }
        return read_only_core(region, geometry, options, segments);
    }
    replay_journal(&region, &geometry, &stores);
    clear_torn_entries(&region, &geometry);
    let core = Core::new(region, geometry, options, segments);
    rebuild(&core)?;
    let now = (options.clock)();
    write_state(&core.region, STATE_IN_USE, Some(now))?;
    core.region.sync()?;
    Ok(core)
}

/// What every writer must make sure of first.
pub(crate) fn require_known_features(superblock: &Superblock) -> Result<()> {
    let unknown = superblock.read_only_compatible & !KNOWN_READ_ONLY_COMPATIBLE;
    if unknown == 0 {
        return Ok(());
    }
    Err(Error::Newer { what: format!("feature flags {unknown:#x} allow reading only; mount read-only or") })
}

/// A read-only mount reads inodes as they are asked for and counts what it can without repairing.
fn read_only_core(region: Region, geometry: Geometry, options: &MountOptions, segments: Vec<u64>) -> Result<Core> {
    let core = Core::new(region, geometry, options, segments);
    let root = core.table.slot(ROOT).expect("the table has a first segment");
    let damaged = || Error::Corrupt { what: "root directory: not there".into(), at: root };
    Inode::load(&core.region, &geometry, root, ROOT)?.ok_or_else(damaged)?;
    for ino in 1..core.table.end() {
        // Damaged inodes give EIO when they are used; the rest stays readable.
        let Some(slot) = core.table.slot(ino) else { continue };
        let Ok(Some(inode)) = Inode::load(&core.region, &geometry, slot, ino) else { continue };
        core.table.mark_used(ino);
        let state = inode.state.into_inner();
        core.mapped_bytes.fetch_add(state.mapped_bytes(), Ordering::Relaxed);
        let pages = state.log.pages.iter().map(|page| BlockNumber::containing(*page));
        for block in pages.chain(state.xattr_blocks()) {
            core.space.mark_used(block);
        }
        for block in
            state.extents().into_iter().flat_map(|extents| extents.iter()).flat_map(|(_, e)| e.blocks().blocks())
        {
            if core.space.mark_used(block) {
                core.data_blocks.fetch_add(1, Ordering::Relaxed);
            } else {
                core.chunks.note_extra_reference();
            }
        }
    }
    Ok(core)
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

/// Bit of a [`Truth`] count: an extent reserves the block, so its bytes mean nothing.
const UNWRITTEN: u32 = 1 << 31;

/// What the inode logs say: how many extents touch each block, kept for the segments that have any.
struct Truth {
    segments: Vec<Option<Box<[u32; SEGMENT_BLOCKS as usize]>>>,
}

impl Truth {
    fn count(&mut self, block: BlockNumber, unwritten: bool) {
        let segment = &mut self.segments[(block.0 / SEGMENT_BLOCKS) as usize];
        let counts = segment.get_or_insert_with(|| Box::new([0; SEGMENT_BLOCKS as usize]));
        let count = &mut counts[(block.0 % SEGMENT_BLOCKS) as usize];
        let touched = (*count & !UNWRITTEN).saturating_add(1).min(!UNWRITTEN);
        *count = touched | *count & UNWRITTEN | if unwritten { UNWRITTEN } else { 0 };
    }
}

/// Rebuilds allocator, counts, index and inode table from the logs.
fn rebuild(core: &Core) -> Result<()> {
    let geometry = &core.geometry;
    for segment in 0..core.table.end() / crate::media::inode::INODES_PER_SEGMENT {
        let slot = core.table.slot((segment * crate::media::inode::INODES_PER_SEGMENT).max(1)).expect("in the table");
        core.space.mark_segment_used(slot / SEGMENT_BYTES);
    }
    let data_length = geometry.device_bytes - geometry.data_offset;
    for range in core.region.allocated_ranges(geometry.data_offset, data_length) {
        core.space.note_backed(range.start, range.end - range.start);
    }
    let names = count_names(core)?;
    let mut truth = Truth { segments: vec![None; geometry.segments() as usize] };
    for ino in live_inodes(core) {
        let slot = core.table.slot(ino).expect("in the table");
        match names.get(&ino) {
            Some(count) => adopt_inode(core, &mut truth, slot, ino, *count)?,
            None => free_slot(&core.region, slot),
        }
    }
    adopt_blocks(core, &truth)
}

/// Inode numbers whose slots are live, in order. A torn slot was never reachable: it counts as free.
fn live_inodes(core: &Core) -> impl Iterator<Item = u64> + '_ {
    let live = |ino: &u64| {
        let slot = core.table.slot(*ino).expect("in the table");
        core.region.read::<InodeHead>(slot).live(*ino).is_some()
    };
    (1..core.table.end()).filter(live)
}

/// How many names lead to each inode.
fn count_names(core: &Core) -> Result<HashMap<u64, u32>> {
    let mut names = HashMap::from([(ROOT, 1)]);
    let mut root_seen = false;
    for ino in live_inodes(core) {
        let slot = core.table.slot(ino).expect("in the table");
        if core.region.read::<InodeHead>(slot).live(ino) != Some(FileKind::Directory) {
            continue;
        }
        root_seen |= ino == ROOT;
        let Some(inode) = Inode::load(&core.region, &core.geometry, slot, ino)? else { continue };
        if let Body::Directory(directory) = &inode.state.into_inner().body {
            directory.after(0).for_each(|name| *names.entry(name.ino).or_insert(0) += 1);
        }
    }
    let root = core.table.slot(ROOT).unwrap_or(0);
    if root_seen { Ok(names) } else { Err(Error::Corrupt { what: "root directory: not there".into(), at: root }) }
}

fn free_slot(region: &Region, slot: u64) {
    let head: InodeHead = region.read(slot);
    let freed = region.store_u64(slot + USE_WORD, head.freed_use_word()).flush();
    let _ = region.fence(freed);
}

/// Takes a live inode in: its blocks are in use, and its link count is what its names say.
fn adopt_inode(core: &Core, truth: &mut Truth, slot: u64, ino: u64, names: u32) -> Result<()> {
    let Some(inode) = Inode::load(&core.region, &core.geometry, slot, ino)? else { return Ok(()) };
    core.table.mark_used(ino);
    let kind = inode.kind;
    let state = inode.state.into_inner();
    let pages = state.log.pages.iter().map(|page| BlockNumber::containing(*page));
    for block in pages.chain(state.xattr_blocks()) {
        if !core.space.mark_used(block) {
            let what = format!("inode {ino}: a block of its log or attributes is used twice; it");
            return Err(Error::Corrupt { what, at: block.address() });
        }
    }
    for (_, extent) in state.extents().into_iter().flat_map(|extents| extents.iter()) {
        extent.blocks().blocks().for_each(|block| truth.count(block, extent.unwritten));
    }
    core.mapped_bytes.fetch_add(state.mapped_bytes(), Ordering::Relaxed);
    let nlink = if kind == FileKind::Directory { 1 } else { names };
    if state.attributes.nlink != nlink {
        let selector = state.selector ^ 1;
        let attributes = AttributeLine { nlink, as_of: state.log.tail, ..state.attributes }.sealed(ino);
        let line = core.region.write(slot + ATTRIBUTE_LINES[selector as usize], &attributes).flush();
        let _ = core.region.fence(line);
        let word = WordStore { offset: slot + COMMIT_WORD, value: state.log.tail | selector };
        store_words(&core.region, &[word]);
    }
    Ok(())
}

/// Makes the chunk table agree with the logs, and fills allocator and index. Entries that lie in holes of
/// the device are empty and are not touched.
fn adopt_blocks(core: &Core, truth: &Truth) -> Result<()> {
    let geometry = &core.geometry;
    let table = geometry.chunk_entry_offset(BlockNumber(0));
    let table_length = geometry.chunk_entry_offset(BlockNumber(geometry.blocks())) - table;
    let mut backed = core.region.allocated_ranges(table, table_length).into_iter().peekable();
    let mut flight = Flight::new();
    for segment in geometry.first_segment()..geometry.segments() {
        let counts = truth.segments[segment as usize].as_deref();
        let first = BlockNumber(segment * SEGMENT_BLOCKS);
        let after = BlockNumber(first.0 + geometry.blocks_in_segment(segment));
        while backed.next_if(|range| range.end <= geometry.chunk_entry_offset(first)).is_some() {}
        let has_lines = backed.peek().is_some_and(|range| range.start < geometry.chunk_entry_offset(after));
        if counts.is_none() && !has_lines {
            continue;
        }
        for block in (first.0..after.0).map(BlockNumber) {
            let offset = geometry.chunk_entry_offset(block);
            while backed.next_if(|range| range.end <= offset).is_some() {}
            let has_line = backed.peek().is_some_and(|range| range.start < offset + LINE);
            let references = counts.map_or(0, |counts| counts[(block.0 - first.0) as usize]);
            if references > 0 || has_line {
                adopt_block(core, block, references, has_line, &mut flight)?;
            }
        }
    }
    let _ = core.region.fence(flight);
    Ok(())
}

fn adopt_block(core: &Core, block: BlockNumber, truth: u32, has_line: bool, flight: &mut Flight) -> Result<()> {
    let (references, reserved) = (truth & !UNWRITTEN, truth & UNWRITTEN != 0);
    if references > 0 {
        if !core.space.mark_used(block) {
            let what = "block: it is file data and part of a log or table at once; it".into();
            return Err(Error::Corrupt { what, at: block.address() });
        }
        core.data_blocks.fetch_add(1, Ordering::Relaxed);
    }
    let entry = if has_line { core.chunks.entry(block) } else { Default::default() };
    let whole = entry.count > 0 && entry.address() == block.address();
    // A crash in the first write to a reserved block leaves the entry of a content that never happened. Kept, it
    // would let others share a block that its owner still writes in place (invariant 5).
    let weak = entry.weak().filter(|_| whole && !reserved);
    match references {
        0 | 1 if entry == Default::default() => {}
        0 => core.chunks.set_exact(block, 0, None, flight),
        1 if reserved => core.chunks.set_exact(block, 0, None, flight),
        1 if weak.is_none() && !(whole && entry.count == 1) => core.chunks.set_exact(block, 0, None, flight),
        _ => {
            if !whole || entry.count != references || entry.weak() != weak {
                core.chunks.set_exact(block, references, weak, flight);
            }
            core.chunks.adopt(block, references, weak);
        }
    }
    Ok(())
}
