//! fsck: the numbered invariants of the design as code, on an unmounted device.
//!
//! The problem: a file system that says "consistent by construction" must be able to show it, and to say where
//! it is not. The idea: count everything anew from the inode logs - in one pass over the inode table - and hold
//! the tables against it. Nothing is written unless repair is asked for, and then only what follows from the
//! logs without a guess: recovery does most of it, for it rebuilds the same truth.
//!
//! | number | invariant | what is looked at |
//! |---|---|---|
//! | 0 | the format | superblocks, segment table, inode slots, log entries, names |
//! | 1 | a count is never lower than the extents that touch the block | chunk table |
//! | 2 | counts are exact, nothing leaks or is forgotten | chunk table, nameless inodes, link counts, work queue |
//! | 3 | an operation happened wholly or not at all | journal, names and the inodes they lead to |
//! | 4 | no block is used for two things, none that is in use is free | log pages, xattr blocks, data, marks, saved state |
//! | 5 | shared bytes are never written | weak fingerprints against the bytes, reserved blocks |
//! | 6 | chains of the pm index lead to every entry, once | direct area, neighbours in the chunk table |
//!
//! Memory that cannot be read is a finding too, with the files that it takes from: `check/bad.rs`.
//! Invariant 7 (fsck finds nothing after recovery) belongs to the tests.
//! On a device that was not unmounted, what recovery is there to mend is counted as `recoverable`, not found.

mod bad;
mod index;
mod space;

use crate::error::{Error, Result};
use crate::fingerprint::{StrongFunction, WeakFunction};
use crate::fs::Core;
use crate::fs::share_queued::{each_pending, token_of};
use crate::inode::table::{read_uses, table_segments};
use crate::inode::{Body, Inode, State};
use crate::media::chunk_entry::{ChunkEntry, tag};
use crate::media::generator::{GENERATORS, Generator, parts};
use crate::media::inode::{
    COMMIT_WORD, HEAD_WORD, IN_USE, IN_USE_BYTE, INODE_BYTES, INODES_PER_SEGMENT, InodeHead, PARENT_WORD, USE_WORD,
};
use crate::media::journal::WordStore;
use crate::media::log_entry::{LINE, dedupe};
use crate::media::segment::{SegmentEntry, SegmentUse};
use crate::media::superblock::{COPIES, Geometry, STATE_CLEAN, STATE_IN_USE, Superblock};
use crate::media::{BLOCK_BYTES, BlockNumber, SEGMENT_BLOCKS, SEGMENT_BYTES};
use crate::mount;
use crate::mount::MountOptions;
use crate::space::WORDS_PER_SEGMENT;
use crate::sync::atomic::Ordering;
use crate::words::{FileKind, InodeNumber};
use hashbrown::{HashMap, HashSet};
use pmem::Region;
use zerocopy::IntoBytes;

const ROOT: u64 = InodeNumber::ROOT.0;
/// Findings that a report lists; more are only counted.
const FINDINGS_MAX: usize = 10_000;
/// Bit of a block's references: an extent reserves all of it, so its bytes mean nothing.
const RESERVED: u32 = 1 << 31;

/// What to do.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// Repair what can be repaired without a guess.
    pub repair: bool,
    /// Also read all data: hash every fingerprinted block and compare, and find bad memory.
    pub data: bool,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions { repair: false, data: true }
    }
}

/// Something that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finding {
    /// Number of the invariant, 0 for the format.
    pub invariant: u8,
    /// What is wrong.
    pub what: String,
    /// Device offset in bytes.
    pub at: u64,
    /// It was repaired.
    pub repaired: bool,
}

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is not as it must be, in the order it was met, 10,000 at most.
    pub findings: Vec<Finding>,
    /// Findings that the list had no room for.
    pub findings_unlisted: u64,
    /// The device was unmounted in order.
    pub clean: bool,
    /// On a device that was not: traces of the crash that the next mount (or repair) removes.
    pub recoverable: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Of them directories.
    pub directories: u64,
    /// Names in directories.
    pub names: u64,
    /// Extents.
    pub extents: u64,
    /// Bytes that extents name.
    pub mapped_bytes: u64,
    /// Data blocks that extents name.
    pub blocks: u64,
    /// Extents that name a block which another one names too: what sharing saves, in blocks.
    pub extra_references: u64,
    /// Chunk entries in use.
    pub chunks: u64,
    /// Log pages and xattr blocks.
    pub metadata_blocks: u64,
}

impl Report {
    /// Whether nothing is left to repair.
    pub fn is_consistent(&self) -> bool {
        self.findings_unlisted == 0 && self.findings.iter().all(|finding| finding.repaired)
    }
}

/// Checks a device, and repairs it if asked to.
///
/// # Errors
/// When the device holds no nvfold file system of this version, or cannot be read at all. Damage is no error but a
/// finding.
pub fn check(region: &Region, options: &CheckOptions) -> Result<Report> {
    let (before, unmarked) = survey(region, options)?;
    if !options.repair || region.is_read_only() || (before.clean && before.findings.is_empty()) {
        return Ok(before);
    }
    repair(region, &unmarked)?;
    let (after, _) = survey(region, options)?;
    let left: HashSet<(String, u64)> =
        after.findings.iter().map(|finding| (finding.what.clone(), finding.at)).collect();
    let mut findings = after.findings.clone();
    findings.extend(
        before
            .findings
            .into_iter()
            .filter(|finding| !left.contains(&(finding.what.clone(), finding.at)))
            .map(|finding| Finding { repaired: true, ..finding }),
    );
    Ok(Report { findings, clean: before.clean, ..after })
}

/// Reconcile finds counts and allocation anew from the logs; what it cannot know of is done here.
fn repair(region: &Region, unmarked: &[u64]) -> Result<()> {
    let (superblock, geometry) = mount::read_superblock(region)?;
    mount::require_known_features(&superblock)?;
    for segment in unmarked {
        let offset = geometry.segment_entry_offset(*segment);
        let is_free = region.read::<SegmentEntry>(offset).usage(*segment) == SegmentUse::Free;
        if is_free && *segment >= geometry.first_segment() {
            let _ = region.fence(region.write(offset, &SegmentEntry::blocks(*segment)).flush());
        } else {
            // Tables: no block of theirs ever has an entry.
            let entries = geometry.chunk_entry_offset(BlockNumber(segment * SEGMENT_BLOCKS));
            let _ = region.fence(region.stream_zeros(entries, geometry.blocks_in_segment(*segment) * LINE));
        }
    }
    for number in 0..GENERATORS {
        let offset = geometry.generator_offset(number);
        let seen: Generator = region.read(offset);
        if seen != seen.mended() {
            let _ = region.fence(region.write(offset, &seen.mended()).flush());
        }
    }
    mount::write_superblock(region, Superblock { state: STATE_IN_USE, saved_state: 0, ..superblock });
    // A device whose logs are damaged stays as it is: which blocks they named is not known, and cutting them off would
    // be a guess.
    let Ok(mounted) = mount::open(region.clone(), &MountOptions::default()) else { return Ok(()) };
    if mounted.reconcile().is_err() {
        return Ok(());
    }
    let core = &mounted.core;
    for (directory, cookie) in names_to_nowhere(core)? {
        core.drop_name(directory, cookie)?;
    }
    for (ino, names) in count_names(core)? {
        core.set_link_count(ino, names)?;
    }
    core.space.trim()?;
    mount::saved::leave_clean(core)
}

/// How many names lead to each inode that is no directory.
fn count_names(core: &Core) -> Result<HashMap<u64, u32>> {
    let mut names = HashMap::new();
    for ino in (1..core.table.end()).filter(|ino| core.table.is_used(*ino)) {
        let inode = core.inode(ino)?;
        if let Body::Directory(directory) = &inode.peek().body {
            let files = directory.after(0).filter(|name| name.kind() != FileKind::Directory);
            files.for_each(|name| *names.entry(name.ino).or_insert(0) += 1);
        }
    }
    Ok(names)
}

fn names_to_nowhere(core: &Core) -> Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    for ino in 1..core.table.end() {
        let slot = core.table.slot(ino).expect("in the table");
        let Some(inode) = Inode::load(&core.region, &core.geometry, slot, ino)? else { continue };
        if let Body::Directory(directory) = &inode.into_state().body {
            let leads_nowhere = |target: u64| {
                let slot = core.table.slot(target);
                slot.is_none_or(|slot| core.region.read::<InodeHead>(slot).live(target).is_none())
            };
            found.extend(directory.after(0).filter(|name| leads_nowhere(name.ino)).map(|name| (ino, name.cookie)));
        }
    }
    Ok(found)
}

/// A name as a directory has it.
struct Name {
    directory: u64,
    kind: FileKind,
    at: u64,
}

/// What the checks of names need to know of an inode.
struct Facts {
    slot: u64,
    kind: FileKind,
    nlink: u32,
    parent: u64,
    /// Names in it.
    names: usize,
}

struct Survey<'r> {
    region: &'r Region,
    geometry: Geometry,
    report: Report,
    /// Extents that touch each block, for segments that have any; with [`RESERVED`].
    references: HashMap<u64, Box<[u32; SEGMENT_BLOCKS as usize]>>,
    /// Blocks of logs and xattr values, with the inode they belong to.
    metadata: HashMap<u64, u64>,
    names: HashMap<u64, Vec<Name>>,
    inodes: HashMap<u64, Facts>,
    /// Inodes that could not be read: number, slot, why.
    unreadable: Vec<(u64, u64, String)>,
    /// Segments of the inode table.
    tables: HashSet<u64>,
    /// What an unmount would have saved of this device.
    space: space::Expected,
    /// What the TX_ID generators give next.
    generators: [u64; GENERATORS as usize],
    /// Bad memory, and what it takes.
    bad: bad::Bad,
    /// The pm index.
    chains: index::Chains,
}

/// Looks at everything. Also the segments that hold something and are not marked.
fn survey(region: &Region, options: &CheckOptions) -> Result<(Report, Vec<u64>)> {
    let (superblock, geometry) = mount::read_superblock(region)?;
    let mut survey = Survey {
        region,
        geometry,
        report: Report { clean: superblock.state == STATE_CLEAN, ..Report::default() },
        references: HashMap::new(),
        metadata: HashMap::new(),
        names: HashMap::new(),
        inodes: HashMap::new(),
        unreadable: Vec::new(),
        tables: HashSet::new(),
        space: space::Expected::default(),
        generators: [1; GENERATORS as usize],
        bad: bad::Bad::default(),
        chains: index::Chains::default(),
    };
    survey.superblocks();
    survey.generators();
    let uses = read_uses(region, &geometry);
    survey.segment_table(&uses);
    let segments = table_segments(&geometry, &uses);
    survey.note_bad("segment table");
    let segments = match segments {
        Ok(segments) => segments,
        Err(error) => {
            survey.find(0, error.to_string(), geometry.segment_table_offset);
            return Ok((survey.report, Vec::new()));
        }
    };
    let stores = mount::journal_stores(region, &geometry, &segments);
    survey.note_bad("journal");
    let stores = match stores {
        Ok(stores) => stores,
        Err(error) => {
            survey.find(3, error.to_string(), geometry.journal_offset);
            Vec::new()
        }
    };
    if !stores.is_empty() {
        survey.trace(3, "the journal holds an operation that was not finished".into(), geometry.journal_offset);
    }
    survey.tables.extend(&segments);
    if !survey.index_segments(&superblock, &uses) {
        return Ok((survey.report, Vec::new()));
    }
    survey.inodes(&segments, &stores);
    survey.check_names();
    survey.check_blocks(options.data);
    survey.check_chains();
    let unmarked = survey.check_marks();
    survey.check_saved_state(&superblock);
    survey.name_bad_files();
    Ok((survey.report, unmarked))
}

impl Survey<'_> {
    fn find(&mut self, invariant: u8, what: String, at: u64) {
        if self.report.findings.len() == FINDINGS_MAX {
            self.report.findings_unlisted += 1;
        } else {
            self.report.findings.push(Finding { invariant, what, at, repaired: false });
        }
    }

    /// Something that a crash may leave behind and recovery removes: a finding only on a clean device.
    fn trace(&mut self, invariant: u8, what: String, at: u64) {
        if self.report.clean {
            self.find(invariant, what, at);
        } else {
            self.report.recoverable += 1;
        }
    }

    fn superblocks(&mut self) {
        let copies = COPIES.map(|offset| self.region.read::<Superblock>(offset));
        if self.note_bad("superblock") {
            return;
        }
        for (offset, copy) in COPIES.into_iter().zip(&copies) {
            if let Err(refusal) = copy.verify() {
                self.find(0, format!("this copy of the superblock cannot be used: {refusal:?}"), offset);
                return;
            }
        }
        if copies[0].check != copies[1].check {
            // The second copy is written after the first: a crash in between leaves them apart.
            self.trace(0, "the copies of the superblock differ".into(), COPIES[1]);
        }
    }

    fn segment_table(&mut self, uses: &[(u64, SegmentUse)]) {
        for (segment, _) in uses.iter().filter(|(_, usage)| *usage == SegmentUse::Torn) {
            let segment = *segment;
            let at = self.geometry.segment_entry_offset(segment);
            self.trace(0, format!("segment {segment}: half an entry"), at);
        }
    }

    /// All slots but those for which the host holds no memory: they were never used.
    fn inodes(&mut self, segments: &[u64], stores: &[WordStore]) {
        for (ordinal, segment) in segments.iter().enumerate() {
            let start = segment * SEGMENT_BYTES;
            let end = start + SEGMENT_BYTES;
            let mut page = self.region.next_allocated(start, end) / BLOCK_BYTES * BLOCK_BYTES;
            while page < end {
                for slot in (page..page + BLOCK_BYTES).step_by(INODE_BYTES as usize) {
                    let ino = ordinal as u64 * INODES_PER_SEGMENT + (slot - start) / INODE_BYTES;
                    if ino != 0 {
                        self.inode(ino, slot, stores);
                    }
                }
                page = self.region.next_allocated(page + BLOCK_BYTES, end) / BLOCK_BYTES * BLOCK_BYTES;
            }
        }
        if !matches!(self.inodes.get(&ROOT), Some(Facts { kind: FileKind::Directory, .. })) {
            self.find(0, "the root directory is not there".into(), segments[0] * SEGMENT_BYTES);
        }
    }

    fn inode(&mut self, ino: u64, slot: u64, stores: &[WordStore]) {
        // Most slots are free, and no operation stores their use in the journal.
        let in_use = u64::to_le_bytes(self.region.load_u64(slot + USE_WORD))[IN_USE_BYTE] == IN_USE;
        if self.region.check().is_err() {
            return self.bad.slots.push((ino, slot));
        }
        if !in_use {
            return;
        }
        let mut head: InodeHead = self.region.read(slot);
        for store in stores.iter().filter(|store| store.offset / 512 == slot / 512) {
            match store.offset - slot {
                COMMIT_WORD => head.commit = store.value,
                PARENT_WORD => head.parent = store.value,
                HEAD_WORD => head.head = store.value,
                _ => {}
            }
        }
        if self.region.check().is_err() {
            return self.bad.slots.push((ino, slot));
        }
        match Inode::load_with_head(self.region, &self.geometry, slot, ino, head) {
            Ok(Some(inode)) => self.live_inode(inode, slot),
            Ok(None) => self.trace(0, format!("inode {ino}: its head is torn"), slot),
            Err(Error::BadMemory { at, length, .. }) => self.bad.inodes.push((ino, at..at + length)),
            Err(error) => self.unreadable.push((ino, slot, error.to_string())),
        }
    }

    fn live_inode(&mut self, inode: Inode, slot: u64) {
        let (ino, kind, parent) = (inode.ino, inode.kind, inode.parent.load(Ordering::Relaxed));
        self.dedupe_flags(&inode);
        let state = inode.into_state();
        self.report.inodes += 1;
        let names = if let Body::Directory(directory) = &state.body { directory.len() } else { 0 };
        self.inodes.insert(ino, Facts { slot, kind, nlink: state.attributes.nlink, parent, names });
        let pages = state.log.pages.iter().map(|page| BlockNumber::containing(*page));
        for block in pages.chain(state.xattr_blocks()) {
            if self.tables.contains(&(block.0 / SEGMENT_BLOCKS)) {
                self.find(4, format!("a block of inode {ino}'s log lies in a table"), block.address());
            }
            if let Some(other) = self.metadata.insert(block.0, ino) {
                self.find(4, format!("a block belongs to inode {other} and to inode {ino}"), block.address());
            }
        }
        self.report.mapped_bytes += state.mapped_bytes();
        self.extents(&state);
        if let Body::Directory(directory) = &state.body {
            self.report.directories += 1;
            let mut seen = HashSet::new();
            for slot_of_name in directory.after(0) {
                let name = slot_of_name.name(self.region);
                let (target, kind) = (slot_of_name.ino, slot_of_name.kind());
                self.report.names += 1;
                let shown = String::from_utf8_lossy(&name).into_owned();
                if name.contains(&b'/') || name.contains(&0) || matches!(&name[..], b"." | b"..") {
                    self.find(0, format!("directory {ino}: the name `{shown}` is none"), slot);
                }
                if !seen.insert(name) {
                    self.find(3, format!("directory {ino}: the name `{shown}` is there twice"), slot);
                }
                self.names.entry(target).or_default().push(Name { directory: ino, kind, at: slot });
            }
        }
    }

    /// Entries that still wait to be shared.
    fn dedupe_flags(&mut self, inode: &Inode) {
        if inode.peek().needed.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut pending = Vec::new();
        let read = each_pending(self.region, &self.geometry, inode, |position, entry| pending.push((position, *entry)));
        if let Err(error) = read {
            return self.find(0, error.to_string(), inode.slot);
        }
        for (position, entry) in pending {
            let what = |flag: &str| format!("inode {}: a log entry {flag}", inode.ino);
            match entry.dedupe {
                dedupe::NEEDED => self.space.needs(token_of(inode, position, &entry)),
                dedupe::IN_PROCESS => self.trace(2, what("is in process of being shared"), position),
                _ => self.find(0, what("has a dedupe-flag that is none"), position),
            }
        }
    }

    fn extents(&mut self, state: &State) {
        for (_, extent) in state.extents().into_iter().flat_map(|extents| extents.iter()) {
            self.report.extents += 1;
            let mut counts = None;
            for block in extent.blocks().blocks() {
                let (segment, place) = (block.0 / SEGMENT_BLOCKS, (block.0 % SEGMENT_BLOCKS) as usize);
                if counts.as_ref().is_none_or(|(of, _)| *of != segment) {
                    let new = || Box::new([0; SEGMENT_BLOCKS as usize]);
                    counts = Some((segment, self.references.entry(segment).or_insert_with(new)));
                }
                let count = &mut counts.as_mut().expect("of this segment").1[place];
                if *count & !RESERVED < !RESERVED {
                    *count += 1;
                }
                // Only a block that is reserved as a whole is ever written in place.
                let whole = extent.address <= block.address()
                    && block.address() + BLOCK_BYTES <= extent.address + extent.length;
                if extent.unwritten && whole {
                    *count |= RESERVED;
                }
            }
        }
    }

    fn check_names(&mut self) {
        let names = std::mem::take(&mut self.names);
        for (ino, slot, why) in std::mem::take(&mut self.unreadable) {
            if ino == ROOT || names.contains_key(&ino) {
                self.find(0, why, slot);
            } else {
                // Cut off while it was made: the head came first, the rest did not come.
                self.trace(0, why, slot);
            }
        }
        for (target, names) in &names {
            let Some(facts) = self.inodes.get(target) else {
                if self.bad.took(*target) {
                    continue;
                }
                self.find(
                    3,
                    format!("directory {}: a name leads to inode {target}, which is not there", names[0].directory),
                    names[0].at,
                );
                continue;
            };
            let (kind, parent, slot) = (facts.kind, facts.parent, facts.slot);
            for name in names.iter().filter(|name| name.kind != kind) {
                self.find(
                    3,
                    format!("directory {}: inode {target} is no {:?} as its name says", name.directory, name.kind),
                    name.at,
                );
            }
            if kind == FileKind::Directory && (names.len() != 1 || *target == ROOT) {
                self.find(3, format!("directory {target} has {} names", names.len()), slot);
            } else if kind == FileKind::Directory && parent != names[0].directory {
                let what = format!("directory {target} is in {} and says it is in {parent}", names[0].directory);
                self.find(3, what, slot);
            }
        }
        let mut inodes: Vec<u64> = self.inodes.keys().copied().collect();
        inodes.sort_unstable();
        let mut reachable = HashSet::from([ROOT]);
        for ino in inodes {
            let facts = &self.inodes[&ino];
            let (kind, nlink, slot) = (facts.kind, facts.nlink, facts.slot);
            let count = names.get(&ino).map_or(0, Vec::len) as u32;
            if ino != ROOT && count == 0 && facts.names > 0 {
                self.find(3, format!("directory {ino} has no name, and is not empty"), slot);
            } else if ino != ROOT && count == 0 {
                self.trace(2, format!("inode {ino} has no name"), slot);
            } else if nlink != if kind == FileKind::Directory { 1 } else { count } {
                // No crash leaves that: names and counts change in one commit.
                self.find(2, format!("inode {ino} has {count} names and counts {nlink}"), slot);
            } else if kind == FileKind::Directory && !self.leads_to_root(ino, &mut reachable) {
                self.find(3, format!("directory {ino} cannot be reached from the root"), slot);
            }
        }
    }

    /// Follows parents upward; `reachable` remembers directories that are known to lead to the root.
    fn leads_to_root(&self, ino: u64, reachable: &mut HashSet<u64>) -> bool {
        let mut path = Vec::new();
        let mut at = ino;
        while !reachable.contains(&at) {
            let Some(facts) = self.inodes.get(&at).filter(|_| path.len() <= self.inodes.len()) else { return false };
            path.push(at);
            at = facts.parent;
        }
        reachable.extend(path);
        true
    }

    fn check_blocks(&mut self, data: bool) {
        let geometry = self.geometry;
        let mut conflicts = Vec::new();
        for (block, ino) in &self.metadata {
            let segment = self.references.get(&(block / SEGMENT_BLOCKS));
            let references = segment.map_or(0, |counts| counts[(block % SEGMENT_BLOCKS) as usize]);
            if references & !RESERVED > 0 {
                conflicts.push((*block, *ino));
            }
        }
        conflicts.sort_unstable();
        for (block, ino) in conflicts {
            self.find(4, format!("a block of inode {ino}'s log or attributes is file data too"), block * BLOCK_BYTES);
        }
        self.report.metadata_blocks = self.metadata.len() as u64;
        self.metadata.keys().for_each(|block| self.space.uses(BlockNumber(*block)));
        if data {
            self.scrub_metadata();
        }
        let table = geometry.chunk_entry_offset(BlockNumber(0));
        let table_bytes = geometry.chunk_entry_offset(BlockNumber(geometry.blocks())) - table;
        let mut backed = self.region.allocated_ranges(table, table_bytes).into_iter().peekable();
        let mut entries = vec![ChunkEntry::default(); SEGMENT_BLOCKS as usize];
        for segment in 0..geometry.segments() {
            let counts = self.references.remove(&segment);
            let first = segment * SEGMENT_BLOCKS;
            let entries = &mut entries[..geometry.blocks_in_segment(segment) as usize];
            let start = geometry.chunk_entry_offset(BlockNumber(first));
            let end = start + entries.as_bytes().len() as u64;
            while backed.next_if(|range| range.end <= start).is_some() {}
            let is_backed = backed.peek().is_some_and(|range| range.start < end);
            if counts.is_none() && !is_backed {
                continue;
            }
            if is_backed {
                self.region.scan_into(start, entries.as_mut_bytes());
            } else {
                entries.fill(ChunkEntry::default());
            }
            let has_bad = self.region.check().is_err();
            let is_table = self.tables.contains(&segment);
            let mut used = [0; WORDS_PER_SEGMENT];
            for (block, entry) in (first..).map(BlockNumber).zip(entries.iter()) {
                let count = counts.as_ref().map_or(0, |counts| counts[(block.0 - first) as usize]);
                let (references, is_reserved) = (count & !RESERVED, count & RESERVED != 0);
                let is_empty = !has_bad && *entry == ChunkEntry::default();
                if is_empty && references == 0 {
                    continue;
                }
                // The bytes of a reserved block mean nothing, and reading a hole would make the host allocate it.
                let is_read = data && references > 0 && !is_reserved;
                if has_bad && self.is_bad_entry(block) || is_read && self.is_bad_data(block) {
                    continue;
                }
                if references > 0 {
                    let place = block.0 - first;
                    used[(place / 64) as usize] |= 1 << (place % 64);
                }
                if is_empty && references == 1 && !is_table {
                    // Private, and nothing else is to be said of it.
                    self.report.blocks += 1;
                    continue;
                }
                self.check_block(block, references, is_reserved, entry, data);
            }
            self.space.uses_all(segment, &used);
        }
    }

    fn check_block(&mut self, block: BlockNumber, references: u32, is_reserved: bool, entry: &ChunkEntry, data: bool) {
        let at = self.geometry.chunk_entry_offset(block);
        self.report.blocks += u64::from(references > 0);
        self.report.extra_references += u64::from(references.saturating_sub(1));
        self.space.enters(block, entry);
        self.chains.enters(block, entry);
        if references > 0 && self.tables.contains(&(block.0 / SEGMENT_BLOCKS)) {
            self.find(4, format!("block {} is file data and part of a table", block.0), block.address());
        }
        if references > 1 && is_reserved {
            self.find(5, format!("block {} is reserved by one file and named {references} times", block.0), at);
        }
        if entry.is_empty() {
            if references > 1 {
                self.find(1, format!("block {} is named by {references} extents and not counted", block.0), at);
            }
            return;
        }
        if references == 0 {
            self.trace(2, format!("block {} is free and its chunk entry is not", block.0), at);
            return;
        }
        self.report.chunks += 1;
        if references == 1 && is_reserved {
            // A crash in the first write to it; its content never happened.
            self.trace(2, format!("block {} is reserved and has a chunk entry", block.0), at);
        } else if entry.taken() < u64::from(references)
            || self.is_unfinished(entry) && !may_be_unfinished(entry, references)
        {
            self.find(1, format!("block {} is named by {references} extents and {}", block.0, counted(entry)), at);
        } else if entry.count != references || entry.update_count != 0 {
            self.trace(2, format!("block {} is named by {references} extents and {}", block.0, counted(entry)), at);
        } else if self.is_unfinished(entry) {
            self.trace(1, format!("block {}: the transaction that counted it last did not end", block.0), at);
        } else if entry.address() != block.address() || entry.spare != [0; 2] {
            self.find(0, format!("block {}: its chunk entry is damaged", block.0), at);
        } else if data && !self.fits(block, entry) {
            self.find(5, format!("block {}: its bytes do not match its fingerprint", block.0), block.address());
        }
    }

    /// Whether the transaction that added an entry or increased its count did not come to its end.
    fn is_unfinished(&self, entry: &ChunkEntry) -> bool {
        let word = entry.word();
        let (generator, sequence) = parts(word.tx);
        let adds = matches!(word.tag, tag::ADD | tag::INCREASE);
        !entry.is_whole() || adds && sequence >= self.generators[generator as usize]
    }

    /// Whether the fingerprints of an entry are those of its block.
    fn fits(&self, block: BlockNumber, entry: &ChunkEntry) -> bool {
        let bytes = || self.region.bytes(block.address(), BLOCK_BYTES);
        let weak = entry.any_weak().is_none_or(|(function, weak)| {
            WeakFunction::from_number(function).is_some_and(|function| function.of(bytes()) == weak)
        });
        let strong = entry.any_strong().is_none_or(|(function, strong)| {
            StrongFunction::from_number(function).is_some_and(|function| function.of(bytes()) == strong)
        });
        weak && strong
    }

    /// The TX_ID generators: one line each, a sequence and nothing else.
    fn generators(&mut self) {
        for number in 0..GENERATORS {
            let at = self.geometry.generator_offset(number);
            let generator: Generator = self.region.read(at);
            if self.note_bad("TX_ID generator") {
                return;
            }
            if generator != generator.mended() {
                self.find(0, format!("TX_ID generator {number} is damaged"), at);
            }
            self.generators[number as usize] = generator.next.max(1);
        }
    }
}

/// How often an entry says that its block is taken.
fn counted(entry: &ChunkEntry) -> String {
    match entry.update_count {
        0 => format!("counted {} times", entry.count),
        updates => format!("counted {} times, with {updates} updates under way", entry.count),
    }
}

/// Whether a crash can leave an entry of an unfinished transaction with so many references: what the transaction added
/// is not among them.
fn may_be_unfinished(entry: &ChunkEntry, references: u32) -> bool {
    match entry.word().tag {
        tag::INCREASE => u64::from(references) < entry.taken(),
        _ => references <= 1,
    }
}
