//! The saved state: the DRAM state that a clean unmount writes for the next mount.
//!
//! The idea: write the DRAM tables as they are to free blocks, with a checksum over everything. A mount that cannot
//! trust them scans instead, so only time depends on them. See [`crate::media::saved_state`] for the layout.
//!
//! The header is as untrusted as the rest. Its runs must be disjoint, and what it counts must fit the tables of the
//! device, before any of it is read: a small image must not make a mount allocate more than the image has.

use super::Mounted;
use super::superblock::read_superblock;
use crate::chunk::dram::SHARDS;
use crate::chunk::entries::Entries;
use crate::chunk::index::Index;
use crate::chunk::packed::WORDS_PER_PART;
use crate::dedup::denova::queue::{NODE_WORDS, Node};
use crate::error::Result;
use crate::fs::Core;
use crate::jobs::Jobs;
use crate::media::inode::INODES_PER_SEGMENT;
use crate::media::limits::TreeLimits;
use crate::media::log_entry::LINE;
use crate::media::saved_state::{
    MAGIC, PACKED_RECORD_WORDS, SAVED_RUNS, SEGMENT_RECORD_WORDS, SavedRun, SavedState, TREE_RECORD_WORDS,
};
use crate::media::superblock::{Geometry, STATE_CLEAN, Superblock};
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, SEGMENT_BYTES};
use crate::space::packed::{Open, POOLS};
use crate::space::{BlockRun, WORDS_PER_SEGMENT};
use crate::store::limits::TreeUse;
use crate::store::write_superblock;
use crate::words::Limits;
use hashbrown::HashMap;
use pmem::{Flight, PmPtr, Region};
use std::collections::BTreeMap;
use std::ops::Range;
use zerocopy::{FromZeros, IntoBytes};

const WORD_BYTES: u64 = 8;

/// Saves the DRAM state, if there is room for it, and marks the device clean. The caller has closed the freeze lock.
pub(crate) fn leave_clean(jobs: Jobs<'_>) -> Result<()> {
    leave(jobs, STATE_CLEAN)
}

/// Saves the DRAM state as [`leave_clean`] does, and sets the state of the device to `state`.
pub(crate) fn leave(jobs: Jobs<'_>, state: u32) -> Result<()> {
    jobs.release_all_postponed();
    jobs.end_reclaiming();
    let (superblock, _) = read_superblock(&jobs.region)?;
    jobs.chunks.flush_decreases(jobs.space.marked_segments());
    let saved_state = save(jobs, superblock.mount_epoch).map_or(0, PmPtr::offset);
    jobs.region.sync()?;
    write_superblock(&jobs.region, Superblock { state, saved_state, ..superblock });
    Ok(jobs.region.sync()?)
}

/// Writes header and payload; returns the durable header, or `None` if the device is too full.
fn save(jobs: Jobs<'_>, mount_epoch: u64) -> Option<PmPtr<[u8]>> {
    let core = jobs.core();
    let segments: Vec<u64> = core.space.marked_segments().collect();
    let inode_words = core.table.used_words();
    // A pm index is on the device already, so there is nothing to save.
    let shard = |shard| core.chunks.index.dram().map_or((0, Vec::new()), |index| index.save(shard));
    let index_words: u64 = (0..SHARDS).map(|at| 2 + shard(at).1.len() as u64).sum();
    let queued = jobs.queue_to_save().into_iter();
    let nodes: Vec<Node> = queued.map(|(entry, blocks)| Node::new(entry, blocks)).collect();
    let packed_words = core.chunks.packed.used_words();
    let packed = packed_records(core);
    let compressed_away = [core.chunks.packed.compressed_away_bytes()];
    let trees = tree_words(core);
    // Omitted if 0, so that an nvfold from before compression can read the state.
    let compressed_away = &compressed_away[..usize::from(compressed_away[0] > 0 || !trees.is_empty())];
    let fixed_words = segments.len() * SEGMENT_RECORD_WORDS
        + inode_words.len()
        + nodes.len() * NODE_WORDS
        + 1
        + packed_words.len()
        + packed.len() * PACKED_RECORD_WORDS
        + compressed_away.len()
        + trees.len();
    let payload_words = fixed_words as u64 + index_words;
    let counts = SavedState {
        segments: segments.len() as u64,
        inode_words: inode_words.len() as u64,
        queue_nodes: nodes.len() as u64,
        packed_parts: (packed_words.len() / WORDS_PER_PART) as u32,
        packed_segments: packed.len() as u32,
        ..SavedState::new_zeroed()
    };
    if !fits_tables(&core.geometry, &counts) {
        return None;
    }
    let payload_blocks = (payload_words * WORD_BYTES).div_ceil(BLOCK_BYTES);
    let mut runs = core.space.runs_to_save_in(payload_blocks + 1, SAVED_RUNS)?;
    let header = runs[0].start;
    runs[0] = BlockRun { start: BlockNumber(header.0 + 1), count: runs[0].count - 1 };
    let mut out = Writer::new(&core.region, &runs);
    for &segment in &segments {
        out.push(&[segment]);
        out.push(&core.space.used_in(segment));
        out.push(&core.chunks.entries_in(segment));
    }
    out.push(&inode_words);
    for at in 0..SHARDS {
        let (capacity, slots) = shard(at);
        out.push(&[capacity, slots.len() as u64]);
        out.push(&slots);
    }
    nodes.iter().for_each(|node| out.push(&node.words()));
    out.push(&[core.chunks.packed.saved_bytes()]);
    out.push(&packed_words);
    packed.iter().for_each(|record| out.push(&record.words()));
    out.push(compressed_away);
    out.push(&trees);
    let (payload_check, flight) = out.end();
    let mut state = SavedState {
        magic: MAGIC,
        payload_check,
        mount_epoch,
        payload_words,
        mapped_bytes: core.mapped_bytes.get(),
        data_blocks: core.data_blocks.get(),
        extra_references: core.chunks.extra_references(),
        weak_function: core.chunks.weak_function() as u64,
        runs_used: runs.len() as u64,
        filled: core.policies.filled(),
        index_entries: core.chunks.index.stats().entries,
        log_areas: core.table.areas(),
        ..counts
    };
    for (saved, run) in state.runs.iter_mut().zip(&runs) {
        *saved = SavedRun { start: run.start.0, count: run.count };
    }
    // One fence for both: a header without its payload is seen by the checksum, and the superblock comes later.
    let written = core.region.stream(header.address(), state.sealed(header.address()).as_bytes());
    let (_, written) = core.region.fence((flight, written));
    Some(written.ptr())
}

/// Loads the saved state; returns the blocks that it occupied, which are free. Returns `None`, and loads nothing, if
/// the state cannot be used.
pub(crate) fn load(mounted: &Mounted, saved: Saved) -> Option<Vec<BlockRun>> {
    let core = &mounted.core;
    let parts = (0..core.chunks.entries.parts_max()).map_while(|part| core.chunks.entries.part(part)).count();
    let is_packed = |record: &PackedRecord| core.space.packed.is_packed(record.segment);
    if saved.inode_words.len() as u64 * 64 != core.table.end()
        || saved.packed_words.len() != parts * WORDS_PER_PART
        || saved.packed.len() as u64 != core.space.packed.segments()
        || !saved.packed.iter().all(is_packed)
    {
        return None;
    }
    // The index is loaded first, because its check can still fail and nothing has used the index yet. A dram index of
    // another function's fingerprints is useless; a pm index always has the device's function.
    let is_pm = core.chunks.index.fact().is_some();
    let is_of_function = is_pm || saved.header.weak_function == core.chunks.weak_function() as u64;
    let adopts_entries = is_of_function || core.read_only;
    let holds = |chunk: ChunkRef| core.chunks.entries.exists(chunk);
    match &core.chunks.index {
        Index::Dram(index) => {
            for (shard, (capacity, slots)) in saved.index.into_iter().enumerate().filter(|_| is_of_function) {
                if !index.load(shard, capacity, slots, holds) {
                    (0..SHARDS).for_each(|shard| index.build(shard, Vec::new()));
                    return None;
                }
            }
        }
        Index::Pm(index) => index.adopt(saved.header.index_entries),
    }
    for record in &saved.segments {
        core.space.adopt_segment(record.segment, &record.used);
        if adopts_entries {
            core.chunks.adopt_entries(record.segment, &record.has_entry);
        }
    }
    if adopts_entries {
        core.chunks.adopt_totals(saved.header.extra_references);
        core.chunks.packed.adopt(saved.packed_words);
        core.chunks.packed.adopt_saved_bytes(saved.packed_saved_bytes, saved.compressed_away_bytes);
        saved.packed.iter().for_each(|record| core.space.packed.adopt_chunk(record.segment, record.live));
    } else {
        let segments: Vec<u64> = saved.segments.iter().map(|record| record.segment).collect();
        mounted.recovery.lock().entries_scanned = core.chunks.scan(&segments, &core.space);
    }
    if !core.read_only {
        saved.packed.iter().for_each(|record| record.open(core));
    }
    core.table.adopt(&saved.inode_words, saved.header.log_areas);
    core.mapped_bytes.set(saved.header.mapped_bytes);
    core.data_blocks.set(saved.header.data_blocks);
    if is_of_function {
        core.policies.adopt_filled(saved.header.filled);
    }
    core.limits.adopt(saved.trees);
    core.policies.restore(saved.nodes.into_iter().map(|node| (node.entry, node.blocks)));
    mounted.recovery.lock().loaded = true;
    Some(saved.runs)
}

/// The saved record of one segment.
pub(crate) struct SegmentRecord {
    /// Number of the segment.
    pub segment: u64,
    /// One bit per block: the block is in use.
    pub used: [u64; WORDS_PER_SEGMENT],
    /// One bit per block: the block has a chunk entry.
    pub has_entry: [u64; WORDS_PER_SEGMENT],
}

/// The saved record of one packed segment.
pub(crate) struct PackedRecord {
    /// Number of the segment.
    pub segment: u64,
    /// Bytes of live chunks.
    pub live: u64,
    /// The pool in which the segment is open, and its write positions.
    pub open: Option<(usize, Open)>,
}

impl PackedRecord {
    /// Encodes the record.
    fn words(&self) -> [u64; PACKED_RECORD_WORDS] {
        let (pool, front, headers) =
            self.open.map_or((0, 0, 0), |(pool, open)| (pool as u64 + 1, open.front, open.headers));
        [self.segment, self.live, pool, front, headers]
    }

    /// Decodes a record; `None` if it is not valid.
    fn from_words(geometry: &Geometry, words: [u64; PACKED_RECORD_WORDS]) -> Option<PackedRecord> {
        let [segment, live, pool, front, headers] = words;
        let open = Open::new(segment, front, headers);
        let is_sound =
            geometry.is_data_segment(segment) && live <= SEGMENT_BYTES && pool <= POOLS as u64 && open.is_sound();
        is_sound.then(|| PackedRecord { segment, live, open: (pool > 0).then(|| (pool as usize - 1, open)) })
    }

    fn open(&self, core: &Core) {
        // Without disk for its free end, it stays closed.
        if let Some((pool, open)) = self.open.filter(|_| core.space.back(self.segment).unwrap_or(false)) {
            core.space.packed.adopt_open(pool, open);
        }
    }
}

fn packed_records(core: &Core) -> Vec<PackedRecord> {
    let open: HashMap<u64, (usize, Open)> =
        core.space.packed.open().into_iter().map(|(pool, open)| (open.segment, (pool, open))).collect();
    let segments =
        (core.geometry.first_segment()..core.geometry.segments()).filter(|at| core.space.packed.is_packed(*at));
    let record =
        |segment| PackedRecord { segment, live: core.space.packed.live_in(segment), open: open.get(&segment).copied() };
    segments.map(record).collect()
}

/// Returns the records of all limited trees, with their number in front; nothing if there are none.
fn tree_words(core: &Core) -> Vec<u64> {
    let trees = core.limits.all();
    let count = [trees.len() as u64];
    let record = |(tree, used): &(u16, TreeUse)| -> [u64; TREE_RECORD_WORDS] {
        // One without a top is there because inodes are charged to it; its limits are gone with its top.
        let limits = used.top.map_or_else(Limits::default, |_| used.limits);
        let [logical_bytes, inodes, expires] = TreeLimits::new(*tree, &limits, false).words();
        let head = u64::from(*tree) | u64::from(used.is_being_charged) << 16;
        [head, used.top.unwrap_or(0), used.logical_bytes, used.inodes, logical_bytes, inodes, expires]
    };
    let words = count.into_iter().chain(trees.iter().flat_map(record));
    if trees.is_empty() { Vec::new() } else { words.collect() }
}

/// Decodes a record; `None` if it is not valid.
fn tree_from_words(words: [u64; TREE_RECORD_WORDS]) -> Option<(u16, TreeUse)> {
    let [head, top, logical_bytes, inodes, limits @ ..] = words;
    let is_sound = head < 2 << 16 && head as u16 != 0;
    let limits = TreeLimits::from_words(limits).limits();
    let top = Some(top).filter(|top| *top != 0);
    let used = TreeUse { top, limits, logical_bytes, inodes, is_being_charged: head >> 16 != 0 };
    is_sound.then_some((head as u16, used))
}

/// A saved state that was read: its checksums hold, and it is inside the device.
pub(crate) struct Saved {
    /// The header.
    pub header: SavedState,
    /// Marked segments.
    pub segments: Vec<SegmentRecord>,
    /// One bit per inode: the slot is in use.
    pub inode_words: Vec<u64>,
    /// Capacity and slots of each shard.
    pub index: Vec<(u64, Vec<u64>)>,
    /// The work queue, oldest node first.
    pub nodes: Vec<Node>,
    /// Bytes saved by sharing packed chunks.
    pub packed_saved_bytes: u64,
    /// Bytes saved by compressing packed chunks.
    pub compressed_away_bytes: u64,
    /// Used bits of the table of packed entries.
    pub packed_words: Vec<u64>,
    /// Segments of packed chunks.
    pub packed: Vec<PackedRecord>,
    /// The limited trees, by their numbers.
    pub trees: BTreeMap<u16, TreeUse>,
    /// Blocks that the state occupies, the header's first.
    pub runs: Vec<BlockRun>,
}

impl Saved {
    /// Reads the saved state that the superblock points to; `None` if there is none or it is not whole.
    pub(crate) fn read(region: &Region, geometry: &Geometry, superblock: &Superblock) -> Option<Saved> {
        let address = superblock.saved_state;
        if superblock.state != STATE_CLEAN
            || !address.is_multiple_of(BLOCK_BYTES)
            || !geometry.holds_data(address, BLOCK_BYTES)
        {
            return None;
        }
        let header: SavedState = region.read(address);
        if !header.is_whole(address) || header.mount_epoch != superblock.mount_epoch {
            return None;
        }
        if !fits_tables(geometry, &header) {
            return None;
        }
        let runs = runs_of(geometry, &header, BlockNumber::containing(address))?;
        let mut input = Reader::new(region, &runs[1..], header.payload_words)?;
        let mut segments: Vec<SegmentRecord> = Vec::new();
        for _ in 0..header.segments {
            let record: [u64; SEGMENT_RECORD_WORDS] = input.take(SEGMENT_RECORD_WORDS as u64)?.try_into().ok()?;
            let segment = record[0];
            let is_next = segments.last().is_none_or(|last| last.segment < segment);
            if !is_next || !geometry.is_data_segment(segment) {
                return None;
            }
            let bits = |from: usize| std::array::from_fn(|at| record[from + at]);
            segments.push(SegmentRecord { segment, used: bits(1), has_entry: bits(1 + WORDS_PER_SEGMENT) });
        }
        let inode_words = input.take(header.inode_words)?;
        let mut index = Vec::new();
        for _ in 0..SHARDS {
            let head = input.take(2)?;
            index.push((head[0], input.take(head[1])?));
        }
        let mut nodes = Vec::new();
        for _ in 0..header.queue_nodes {
            let words: [u64; NODE_WORDS] = input.take(NODE_WORDS as u64)?.try_into().ok()?;
            nodes.push(Node::from_words(words));
        }
        // A state from before packed chunks ends here.
        let has_packed = input.left > 0;
        let packed_saved_bytes = if has_packed { input.take(1)?[0] } else { 0 };
        let packed_words = input.take(u64::from(header.packed_parts) * WORDS_PER_PART as u64)?;
        let mut packed: Vec<PackedRecord> = Vec::new();
        for _ in 0..header.packed_segments {
            let words: [u64; PACKED_RECORD_WORDS] = input.take(PACKED_RECORD_WORDS as u64)?.try_into().ok()?;
            let record = PackedRecord::from_words(geometry, words)?;
            if packed.last().is_some_and(|last| last.segment >= record.segment) {
                return None;
            }
            packed.push(record);
        }
        // A state without compressed chunks ends here.
        let compressed_away_bytes = if input.left > 0 { input.take(1)?[0] } else { 0 };
        // A state without limited trees ends here.
        let mut trees = BTreeMap::new();
        if input.left > 0 {
            for _ in 0..input.take(1)?[0].min(u64::from(u16::MAX)) {
                let words: [u64; TREE_RECORD_WORDS] = input.take(TREE_RECORD_WORDS as u64)?.try_into().ok()?;
                let (tree, used) = tree_from_words(words)?;
                if trees.insert(tree, used).is_some() {
                    return None;
                }
            }
        }
        (input.left == 0 && input.check == header.payload_check).then_some(Saved {
            header,
            segments,
            inode_words,
            index,
            nodes,
            packed_saved_bytes,
            compressed_away_bytes,
            packed_words,
            packed,
            trees,
            runs,
        })
    }
}

/// Returns true if a device of this geometry can have as many segments, inodes, queued entries and packed chunks as a
/// header counts. Each queued entry has a line of a log.
fn fits_tables(geometry: &Geometry, header: &SavedState) -> bool {
    let segments = geometry.segments();
    header.segments <= segments
        && header.inode_words <= segments * (INODES_PER_SEGMENT / 64)
        && header.queue_nodes <= geometry.device_bytes / LINE
        && u64::from(header.packed_parts) <= Entries::parts_max_of(geometry)
        && u64::from(header.packed_segments) <= segments
}

/// Returns the runs of a saved state, its header's block first; `None` if one is not inside the data segments, or two
/// have a block in common.
fn runs_of(geometry: &Geometry, header: &SavedState, at: BlockNumber) -> Option<Vec<BlockRun>> {
    let mut runs = vec![BlockRun { start: at, count: 1 }];
    for run in header.runs.get(..usize::try_from(header.runs_used).ok()?)?.iter().filter(|run| run.count > 0) {
        let (address, bytes) = (run.start.checked_mul(BLOCK_BYTES)?, run.count.checked_mul(BLOCK_BYTES)?);
        if !geometry.holds_data(address, bytes) {
            return None;
        }
        runs.push(BlockRun { start: BlockNumber(run.start), count: run.count });
    }
    let mut by_start: Vec<Range<u64>> = runs.iter().map(|run| run.start.0..run.start.0 + run.count).collect();
    by_start.sort_unstable_by_key(|run| run.start);
    by_start.is_sorted_by(|one, next| one.end <= next.start).then_some(runs)
}

/// Treats runs of blocks, which need not be adjacent, as one sequence of bytes.
struct RunsAsBytes {
    runs: Vec<BlockRun>,
    run: usize,
    offset: u64,
}

impl RunsAsBytes {
    /// Returns the address and length of the next bytes, at most `bytes` of them; `None` past the end.
    fn next(&mut self, bytes: u64) -> Option<(u64, u64)> {
        while self.offset == self.runs.get(self.run)?.count * BLOCK_BYTES {
            (self.run, self.offset) = (self.run + 1, 0);
        }
        let run = &self.runs[self.run];
        let length = bytes.min(run.count * BLOCK_BYTES - self.offset);
        let place = run.start.address() + self.offset;
        self.offset += length;
        Some((place, length))
    }
}

struct Writer<'r> {
    region: &'r Region,
    places: RunsAsBytes,
    pending: Vec<u64>,
    check: u32,
    flight: Flight,
}

/// Words written at once: enough to write whole lines past the cache.
const WORDS_AT_ONCE: usize = 8192;

impl<'r> Writer<'r> {
    fn new(region: &'r Region, runs: &[BlockRun]) -> Writer<'r> {
        let places = RunsAsBytes { runs: runs.to_vec(), run: 0, offset: 0 };
        Writer { region, places, pending: Vec::new(), check: 0, flight: Flight::new() }
    }

    fn push(&mut self, words: &[u64]) {
        self.pending.extend_from_slice(words);
        if self.pending.len() >= WORDS_AT_ONCE {
            self.write();
        }
    }

    fn write(&mut self) {
        let mut bytes = self.pending.as_bytes();
        self.check = crc32c::crc32c_append(self.check, bytes);
        while !bytes.is_empty() {
            let (place, length) = self.places.next(bytes.len() as u64).expect("as many blocks as the payload needs");
            let (part, rest) = bytes.split_at(length as usize);
            self.flight.add(self.region.stream(place, part));
            bytes = rest;
        }
        self.pending.clear();
    }

    fn end(mut self) -> (u32, Flight) {
        self.write();
        (self.check, self.flight)
    }
}

struct Reader<'r> {
    region: &'r Region,
    places: RunsAsBytes,
    left: u64,
    check: u32,
}

impl<'r> Reader<'r> {
    /// Returns a reader of so many words; `None` if the runs, which are disjoint, have no room for them. So all that
    /// is taken is at most as long as the device.
    fn new(region: &'r Region, runs: &[BlockRun], words: u64) -> Option<Reader<'r>> {
        let room: u64 = runs.iter().map(|run| run.count * (BLOCK_BYTES / WORD_BYTES)).sum();
        let places = RunsAsBytes { runs: runs.to_vec(), run: 0, offset: 0 };
        (words <= room).then_some(Reader { region, places, left: words, check: 0 })
    }

    fn take(&mut self, words: u64) -> Option<Vec<u64>> {
        self.left = self.left.checked_sub(words)?;
        let mut taken = vec![0u64; words as usize];
        let mut bytes = taken.as_mut_bytes();
        while !bytes.is_empty() {
            let (place, length) = self.places.next(bytes.len() as u64)?;
            let (part, rest) = bytes.split_at_mut(length as usize);
            self.region.read_into(place, part);
            bytes = rest;
        }
        self.check = crc32c::crc32c_append(self.check, taken.as_bytes());
        Some(taken)
    }
}
