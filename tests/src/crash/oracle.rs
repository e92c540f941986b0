//! The conditions that must hold after every crash, in the order in which they are checked.
//!
//! ```text
//! fsck         nothing but traces that recovery removes
//! mount        the tree is one that the crash may leave: names, attributes, times, contents
//! reconcile    the same; and the totals are those of that tree
//! fsck         nothing at all; free blocks are those that no file references, and the totals match the logs
//!              (invariants 2, 4, 7)
//! mount again  after an unmount or not; changes nothing outside the superblocks; the same tree
//! drain        policy denova: the queue is shared, with the same result as without the crash
//! use          new files, shared blocks, a replaced file: the tree is the old one with those changes
//! end          unmount, or crash; fsck finds nothing; the next mount finds the same tree
//! ```
//!
//! A quarter of the states takes another road: it is used before it is reconciled, or during that. Half of the states
//! end with the fsck after recovery: states differ most up to there, and a mount and an operation cost as much as
//! everything before. The recoveries of many states end in the same image; the rest of the road is checked once for
//! each ([`Passed`]).
//!
//! [`super::defect`] shows that each of these checks can fail: it corrupts something at each of these [`Moment`]s.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use nvfold::check::{CheckOptions, CheckReport, Finding, check};
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::{FileKind, FileSystem, InodeNumber, MountOptions, RenameMode, Stats, TimeNs, Usage};
use pmem::{Action, Event, Region};

use super::defect::{Defect, Moment};
use super::disk::Disk;
use super::lock;
use super::tree::{Replaced, Tree};
use super::workload::{DEVICE_BYTES, GROWN_DEVICE_BYTES, clock_from};
use crate::device;
use crate::shared::Named;

const BLOCK_BYTES: u64 = 4096;
/// Offsets of the superblocks, which every mount writes.
const SUPERBLOCKS: [u64; 4] = [0, BLOCK_BYTES, DEVICE_BYTES - BLOCK_BYTES, GROWN_DEVICE_BYTES - BLOCK_BYTES];
const INODE_SEGMENT_BLOCKS: u64 = 512;
/// Time of the clock when a state is mounted: later than any time of a workload.
const JUDGED_AT: TimeNs = 1 << 50;

/// The order in which a state is reconciled and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Road {
    /// Reconciled, and the device checked, after an unmount or not.
    ReconciledFirst {
        /// Unmounted.
        unmounted: bool,
        /// Then mounted again, and used.
        used: bool,
    },
    /// Used, then reconciled.
    UsedFirst,
    /// One step of reconcile after each operation.
    Interleaved,
}

impl Road {
    /// Returns the road of a state, from its hash.
    pub(super) fn of(image_hash: u128) -> Road {
        match image_hash as u8 % 8 {
            0 => Road::UsedFirst,
            1 => Road::Interleaved,
            rest => Road::ReconciledFirst { unmounted: rest % 2 == 0, used: rest < 4 },
        }
    }

    /// Returns whether the first mount ends with an unmount when it reconciles first.
    pub(super) fn unmounts_first(self) -> bool {
        !matches!(self, Road::ReconciledFirst { unmounted: false, .. })
    }

    /// Returns all roads.
    pub(super) fn all() -> impl Iterator<Item = Road> {
        (0..6).map(Road::of)
    }
}

/// Ends of recoveries (image, tree, totals, kind of unmount) after which all checks passed.
#[derive(Default)]
pub(super) struct Passed(Mutex<HashSet<u128>>);

impl Passed {
    /// Adds everything that `other` has passed.
    pub(super) fn extend(&self, other: Passed) {
        lock(&self.0).extend(other.0.into_inner().expect("no thread panics with a lock"));
    }
}

/// The judgement of one crash state.
pub(super) struct Judge<'j> {
    /// Holds the state; the judgement leaves its changes there, and the caller resets it.
    pub disk: &'j mut Disk,
    /// The options of its mounts.
    pub options: MountOptions,
    /// The trees that the crash may leave.
    pub allowed: &'j [Arc<Tree>],
    /// The order of the steps.
    pub road: Road,
    /// Ends that need not be checked again.
    pub passed: &'j Passed,
    /// For tests of the judgement: the defect to inject.
    pub defect: Option<&'j Defect>,
}

impl Judge<'_> {
    /// Judges the state; returns what mount, reconcile and perhaps unmount did to the media, if nothing else was done
    /// at the same time.
    ///
    /// # Errors
    /// The condition that is violated.
    pub(super) fn judge(mut self) -> Result<Vec<Event>, String> {
        self.options.clock = clock_from(JUDGED_AT);
        let region = self.disk.region().clone();
        self.spoil_media(Moment::Crashed, &region);
        let report = fsck(&region)?;
        // A torn copy of the superblock looks damaged; another copy is intact, or the checks below would fail.
        let superblock = |finding: &Finding| finding.invariant == 0 && is_superblock(finding.at);
        if let Some(finding) = report.findings.iter().find(|finding| !superblock(finding)) {
            return Err(format!("fsck before recovery finds {finding:?}"));
        }
        let fs = mount(&region, &self.options)?;
        self.spoil(Moment::Mounted, &fs)?;
        let tree = Tree::of(&fs)?.without_space();
        allows(self.allowed, &tree, "after the mount")?;
        let ends_in_order = matches!(self.road, Road::ReconciledFirst { unmounted: true, .. });
        let (fs, expected, recovery, key) = if let Road::ReconciledFirst { used, .. } = self.road {
            reconcile(&fs)?;
            self.spoil(Moment::Reconciled, &fs)?;
            let tree = Tree::of(&fs)?;
            allows(self.allowed, &tree, "after reconcile")?;
            let (stats, usage) = (fs.stats(), usage(&fs, "after reconcile")?);
            let inode_segments = inode_segments(&region)?;
            self.spoil(Moment::Counted, &fs)?;
            end(fs, ends_in_order)?;
            let recovery = self.disk.take_events();
            let key = self.key(&tree, &stats);
            if self.defect.is_none() && lock(&self.passed.0).contains(&key) {
                return Ok(recovery);
            }
            self.spoil_media(Moment::Recovered, &region);
            consistent(&region, &stats, inode_segments, usage, "after recovery")?;
            if !used {
                lock(&self.passed.0).insert(key);
                return Ok(recovery);
            }
            let fs = self.mount_again(&region)?;
            same(&Tree::of(&fs)?, &tree, "after a second recovery")?;
            self.drain(&fs)?;
            let drained = Tree::of(&fs)?.without_space();
            same(&drained, &tree, "after the drain")?;
            let expected = self.use_it(&fs, &drained, || Ok(()))?;
            (fs, expected, recovery, Some(key))
        } else {
            let tree = match self.allowed.iter().find(|allowed| tree.agrees_with(allowed)) {
                Some(allowed) if allowed.goes_on() => {
                    reconcile(&fs)?;
                    Tree::of(&fs)?.without_space()
                }
                _ => tree,
            };
            let steps = self.road == Road::Interleaved;
            let expected = self.use_it(&fs, &tree, || {
                if steps {
                    fs.reconcile_step()?;
                    fs.drain_step()?;
                }
                Ok(())
            })?;
            reconcile(&fs)?;
            (fs, expected, Vec::new(), None)
        };
        self.spoil(Moment::Used, &fs)?;
        fs.trim().map_err(|error| format!("after it was used: {error}"))?;
        let (used, stats, usage) = (Tree::of(&fs)?, fs.stats(), usage(&fs, "after it was used")?);
        let inode_segments = inode_segments(&region)?;
        same(&used, &expected, "after it was used and reconciled")?;
        self.spoil(Moment::Counted, &fs)?;
        end(fs, !ends_in_order)?;
        self.spoil_media(Moment::Ended, &region);
        consistent(&region, &stats, inode_segments, usage, "after it was used")?;
        let fs = mount(&region, &self.options)?;
        reconcile(&fs)?;
        self.spoil(Moment::MountedAtLast, &fs)?;
        same(&Tree::of(&fs)?, &used, "used and mounted again")?;
        if self.defect.is_none() {
            lock(&self.passed.0).extend(key);
        }
        Ok(recovery)
    }

    /// Returns a hash of everything on which the rest of the judgement depends after recovery.
    fn key(&self, tree: &Tree, stats: &Stats) -> u128 {
        let mut hasher = DefaultHasher::new();
        (tree.digest(), stats.free_bytes, stats.inodes, stats.index.media_bytes).hash(&mut hasher);
        (self.road, self.drained()).hash(&mut hasher);
        let rest = hasher.finish();
        self.disk.hash_now() ^ (u128::from(rest) << 64 | u128::from(rest.rotate_left(29)))
    }

    /// Returns the least and the most blocks that sharing saves once the queue is empty, if that is known.
    fn drained(&self) -> Option<(u64, u64)> {
        let drained = || self.allowed.iter().filter_map(|tree| tree.drained());
        Some((drained().min()?, drained().max()?))
    }

    fn spoil(&self, moment: Moment, fs: &FileSystem) -> Result<(), String> {
        let spoilt = self.defect.map_or(Ok(()), |defect| defect.spoil(moment, fs));
        spoilt.map_err(|error| format!("the defect cannot be made: {error}"))
    }

    fn spoil_media(&self, moment: Moment, region: &Region) {
        self.defect.iter().for_each(|defect| defect.spoil_media(moment, region));
    }

    /// Mounts a second time: recovery must have nothing to do.
    fn mount_again(&mut self, region: &Region) -> Result<FileSystem, String> {
        self.disk.take_events();
        let fs = mount(region, &self.options)?;
        reconcile(&fs)?;
        self.spoil(Moment::MountedAgain, &fs)?;
        match self.disk.take_events().iter().find(|event| stored_at(event).is_some_and(|at| !is_superblock(at))) {
            Some(event) => Err(format!("a second recovery changes the media: {event:?}")),
            None => Ok(fs),
        }
    }

    /// Shares everything in the queue; the result must be as without the crash. Sharing of stored data gives blocks
    /// their fingerprints before it shares them, so a crash in it leaves a result between the two.
    fn drain(&self, fs: &FileSystem) -> Result<(), String> {
        let Some((least, most)) = self.drained() else { return Ok(()) };
        // Files of policy `inline` lose the fingerprints of their private blocks in a crash.
        while !fs.fill_step().map_err(|error| format!("filling: {error}"))? {}
        while !fs.drain_step().map_err(|error| format!("draining: {error}"))? {}
        self.spoil(Moment::Drained, fs)?;
        let named = Named::of(fs).map_err(|error| format!("which blocks files name: {error}"))?;
        if (least..=most).contains(&named.saved()) {
            return Ok(());
        }
        Err(format!("drained, {} blocks are shared, and {least} to {most} would have been", named.saved()))
    }

    /// Runs a few operations that take blocks, share some and free some, with `between` after each. The tree must
    /// then be the earlier one with their changes. Returns that tree.
    fn use_it(&self, fs: &FileSystem, before: &Tree, between: impl Fn() -> nvfold::Result<()>) -> Result<Tree, String> {
        let replaced = replace_a_file(fs, between).map_err(|error| format!("using it: {error}"))?;
        self.spoil(Moment::InUse, fs)?;
        let now = Tree::of(fs)?.without_space();
        let expected = before.with_replaced(&replaced, &now);
        same(&now, &expected, "after it was used")?;
        Ok(expected)
    }
}

/// Lets the state on a disk recover without judging it; returns what mount, reconcile and perhaps unmount did to the
/// media.
///
/// # Errors
/// It does not recover.
pub(super) fn recover(disk: &mut Disk, mut options: MountOptions, unmounted: bool) -> Result<Vec<Event>, String> {
    options.clock = clock_from(JUDGED_AT);
    let fs = mount(disk.region(), &options)?;
    reconcile(&fs)?;
    end(fs, unmounted)?;
    Ok(disk.take_events())
}

/// Unmounts, or crashes.
fn end(fs: FileSystem, in_order: bool) -> Result<(), String> {
    if in_order { fs.unmount().map_err(|error| format!("unmounting: {error}")) } else { Ok(()) }
}

fn mount(region: &Region, options: &MountOptions) -> Result<FileSystem, String> {
    FileSystem::mount(region.clone(), options.clone()).map_err(|error| format!("mounting: {error}"))
}

fn reconcile(fs: &FileSystem) -> Result<(), String> {
    fs.reconcile().map_err(|error| format!("reconciling: {error}"))?;
    while !fs.remove_step().map_err(|error| format!("freeing removed trees: {error}"))? {}
    Ok(())
}

fn allows(allowed: &[Arc<Tree>], tree: &Tree, when: &str) -> Result<(), String> {
    if allowed.iter().any(|allowed| tree.agrees_with(allowed)) {
        return Ok(());
    }
    let mut text = format!("{when} the tree is none that the crash may leave");
    for allowed in allowed {
        text.push_str(&format!("; differences to one of them:\n{}", tree.differences(allowed)));
    }
    Err(text)
}

fn fsck(region: &Region) -> Result<CheckReport, String> {
    check(region, &CheckOptions::default()).map_err(|error| format!("fsck: {error}"))
}

fn is_superblock(offset: u64) -> bool {
    SUPERBLOCKS.contains(&(offset / BLOCK_BYTES * BLOCK_BYTES))
}

/// Returns the device offset of a store.
fn stored_at(event: &Event) -> Option<u64> {
    match &event.action {
        Action::Store { offset, .. } | Action::Stream { offset, .. } => Some(*offset),
        _ => None,
    }
}

/// Returns what every stored byte is for.
fn usage(fs: &FileSystem, when: &str) -> Result<Usage, String> {
    let usage = fs.usage().map_err(|error| format!("the usage {when}: {error}"))?;
    usage.ok_or_else(|| format!("the usage {when} is not known"))
}

/// Returns how many segments the inode table has now. An unmount gives the empty ones back.
fn inode_segments(region: &Region) -> Result<u64, String> {
    let (_, geometry) = nvfold::read_superblock(region).map_err(|error| format!("the superblock: {error}"))?;
    let entry = |segment| region.read::<SegmentEntry>(geometry.segment_entry_offset(segment)).usage(segment);
    let segments = geometry.first_segment()..geometry.segments();
    Ok(segments.filter(|segment| matches!(entry(*segment), SegmentUse::Inodes(_))).count() as u64)
}

/// Checks that fsck finds nothing, not even traces, that the allocator treats exactly the unreferenced blocks as
/// free, that the totals match the logs, and that they add up.
fn consistent(region: &Region, stats: &Stats, inode_segments: u64, usage: Usage, when: &str) -> Result<(), String> {
    let report = fsck(region)?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("fsck {when} finds {finding:?}"));
    }
    if report.recoverable > 0 {
        return Err(format!("fsck {when} finds {} traces of a crash", report.recoverable));
    }
    let (_, geometry) = nvfold::read_superblock(region).map_err(|error| format!("{when}: {error}"))?;
    let total = geometry.data_blocks();
    let inode_tables = inode_segments * INODE_SEGMENT_BLOCKS;
    let tables = inode_tables + stats.index.media_bytes / BLOCK_BYTES;
    let packed = report.packed_segments * INODE_SEGMENT_BLOCKS;
    let free = (total - tables - packed - report.blocks - report.metadata_blocks) * BLOCK_BYTES;
    let Stats { free_bytes, inodes, log_areas, logical_bytes, stored_bytes, .. } = *stats;
    let told = [free_bytes, inodes, log_areas, logical_bytes, stored_bytes];
    let stored = report.blocks * BLOCK_BYTES + report.packed_bytes;
    let counted = [free, report.inodes, report.log_areas, report.usage.logical_bytes, stored];
    if told != counted {
        let what = "[free bytes, inodes, log areas, logical, stored bytes]";
        return Err(format!("{when} the totals {what} are {told:?}, and fsck counts {counted:?}"));
    }
    if !usage.adds_up() || usage != report.usage {
        return Err(format!("{when} the usage is {usage:?}, and fsck counts {:?}", report.usage));
    }
    Ok(())
}

fn same(tree: &Tree, expected: &Tree, when: &str) -> Result<(), String> {
    if tree.agrees_with(expected) {
        return Ok(());
    }
    Err(format!("{when} the tree is another one:\n{}", tree.differences(expected)))
}

/// Writes a new file (an existing block, a hole, new bytes) while a directory is made and removed, and moves the file
/// over the first regular file of the root, if there is one.
fn replace_a_file(fs: &FileSystem, between: impl Fn() -> nvfold::Result<()>) -> nvfold::Result<Replaced> {
    const HOLE_BYTES: usize = 100;
    let root = InodeNumber::ROOT;
    let mut regular = None;
    fs.readdir(root, 0, &mut |entry| {
        regular = (entry.kind == FileKind::Regular).then_some(entry);
        regular.is_none()
    })?;
    let mut block = vec![0x5A; BLOCK_BYTES as usize];
    if let Some(entry) = &regular {
        fs.open(entry.ino)?.read_at(0, &mut block)?;
    }
    let file = fs.open(fs.create(root, b"new file", &device::regular())?.ino)?;
    between()?;
    file.write_at(0, &block)?;
    between()?;
    file.write_at(BLOCK_BYTES + HOLE_BYTES as u64, &[0xC3; 5000])?;
    between()?;
    fs.mkdir(root, b"new directory", &device::directory())?;
    let name = regular.map_or(b"new file".to_vec(), |entry| entry.name);
    if name != b"new file" {
        between()?;
        fs.rename(root, b"new file", root, &name, RenameMode::Replace)?;
    }
    between()?;
    fs.rmdir(root, b"new directory")?;
    block.extend([0; HOLE_BYTES]);
    block.extend([0xC3; 5000]);
    Ok(Replaced { name, bytes: block, since: JUDGED_AT })
}
