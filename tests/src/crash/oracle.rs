//! What must hold after every crash, in the order in which it is looked at.
//!
//! ```text
//! fsck         nothing but traces that recovery removes
//! mount        the tree is one that the crash may leave: names, attributes, times, contents
//! reconcile    still; and the totals are those of that tree
//! fsck         nothing at all, and what is free is what nobody names (invariants 2, 4, 7)
//! mount again  after an unmount or not; changes nothing outside the superblocks; the same tree
//! drain        policy denova: what is queued is shared, as much as it would have been without the crash
//! use          new files, shared blocks, a replaced file: they work, and nothing else changes
//! end          unmount, or crash; fsck finds nothing; the next mount finds the tree as it was
//! ```
//!
//! Some states take another road: they are used before they are reconciled, or while they are.

use std::sync::Arc;

use nvfold::check::{CheckOptions, Finding, Report, check};
use nvfold::{FileKind, FileSystem, InodeNumber, MountOptions, RenameMode, Stats};
use pmem::{Action, Event, Region};

use super::disk::Disk;
use super::tree::Tree;
use crate::device;
use crate::shared::Named;

/// Bytes at the start of the device that every mount writes: the two superblocks.
const SUPERBLOCKS_BYTES: u64 = 8192;
const BLOCK_BYTES: u64 = 4096;
const INODE_SEGMENT_BLOCKS: u64 = 512;
const INODES_PER_SEGMENT: u64 = 4096;

/// In which order a state is reconciled and used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// Reconciled, mounted again (after an unmount or not), used.
    ReconciledFirst {
        /// Unmounted before it is mounted again.
        unmounted: bool,
    },
    /// Used, reconciled.
    UsedFirst,
    /// A step of reconcile behind each operation.
    Interleaved,
}

impl Road {
    /// The road of a state, from its hash: half of them are reconciled first.
    pub fn of(image_hash: u128) -> Road {
        let reconciled_first = |unmounted| Road::ReconciledFirst { unmounted };
        [reconciled_first(false), Road::UsedFirst, reconciled_first(true), Road::Interleaved][image_hash as usize % 4]
    }
}

/// Judges the crash state that the disk is in; returns what mount, reconcile and perhaps unmount did to the media, if
/// nothing else was done meanwhile. The disk is left as the judgement leaves it: the caller puts it back.
///
/// # Errors
/// What does not hold.
pub fn judge(disk: &mut Disk, options: &MountOptions, allowed: &[Arc<Tree>], road: Road) -> Result<Vec<Event>, String> {
    let region = disk.region().clone();
    let report = fsck(&region)?;
    // A torn copy of the superblock looks like a damaged one; the other is whole, or nothing below would hold.
    let superblock = |finding: &Finding| finding.invariant == 0 && finding.at < SUPERBLOCKS_BYTES;
    if let Some(finding) = report.findings.iter().find(|finding| !superblock(finding)) {
        return Err(format!("fsck before recovery finds {finding:?}"));
    }
    let fs = mount(&region, options)?;
    let tree = Tree::of(&fs)?.without_space();
    allows(allowed, &tree, "after the mount")?;
    let ends_in_order = road == Road::ReconciledFirst { unmounted: true };
    let (fs, recovery) = if let Road::ReconciledFirst { .. } = road {
        reconcile(&fs)?;
        let tree = Tree::of(&fs)?;
        allows(allowed, &tree, "after reconcile")?;
        let stats = fs.stats();
        end(fs, ends_in_order)?;
        let recovery = disk.take_events();
        consistent(&region, &stats, "after recovery")?;
        let fs = mount_again(disk, &region, options)?;
        same(&Tree::of(&fs)?, &tree, "after a second recovery")?;
        drain(&fs, allowed)?;
        same(&Tree::of(&fs)?.without_space(), &tree, "after the drain")?;
        use_it(&fs, || Ok(()))?;
        (fs, recovery)
    } else {
        use_it(&fs, || {
            if road == Road::Interleaved {
                fs.reconcile_step()?;
                fs.drain_step()?;
            }
            Ok(())
        })?;
        let used = Tree::of(&fs)?.without_space();
        reconcile(&fs)?;
        same(&Tree::of(&fs)?, &used, "used and then reconciled")?;
        (fs, Vec::new())
    };
    let (used, stats) = (Tree::of(&fs)?, fs.stats());
    end(fs, !ends_in_order)?;
    consistent(&region, &stats, "after it was used")?;
    let fs = mount(&region, options)?;
    reconcile(&fs)?;
    same(&Tree::of(&fs)?, &used, "used and mounted again")?;
    Ok(recovery)
}

/// Unmounts, or crashes.
fn end(fs: FileSystem, in_order: bool) -> Result<(), String> {
    if in_order { fs.unmount().map_err(|error| format!("unmounting: {error}")) } else { Ok(()) }
}

fn mount(region: &Region, options: &MountOptions) -> Result<FileSystem, String> {
    FileSystem::mount(region.clone(), options.clone()).map_err(|error| format!("mounting: {error}"))
}

fn reconcile(fs: &FileSystem) -> Result<(), String> {
    fs.reconcile().map_err(|error| format!("reconciling: {error}"))
}

/// Shares all that is queued: as much as would have been shared without the crash. Sharing what is stored gives blocks
/// their fingerprints before it shares them, so a crash in it leaves something between the two.
fn drain(fs: &FileSystem, allowed: &[Arc<Tree>]) -> Result<(), String> {
    let drained: Vec<u64> = allowed.iter().filter_map(|tree| tree.drained()).collect();
    let (Some(least), Some(most)) = (drained.iter().min(), drained.iter().max()) else { return Ok(()) };
    while !fs.drain_step().map_err(|error| format!("draining: {error}"))? {}
    let named = Named::of(fs).map_err(|error| format!("which blocks files name: {error}"))?;
    if (*least..=*most).contains(&named.saved()) {
        return Ok(());
    }
    Err(format!("drained, {} blocks are shared, and {least} to {most} would have been", named.saved()))
}

/// A second recovery: there is nothing for it to do.
fn mount_again(disk: &mut Disk, region: &Region, options: &MountOptions) -> Result<FileSystem, String> {
    let fs = mount(region, options)?;
    reconcile(&fs)?;
    match disk.take_events().iter().find(|event| stored_at(event).is_some_and(|at| at >= SUPERBLOCKS_BYTES)) {
        Some(event) => Err(format!("a second recovery changes the media: {event:?}")),
        None => Ok(fs),
    }
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

fn fsck(region: &Region) -> Result<Report, String> {
    check(region, &CheckOptions::default()).map_err(|error| format!("fsck: {error}"))
}

/// Device offset of a store.
fn stored_at(event: &Event) -> Option<u64> {
    match &event.action {
        Action::Store { offset, .. } | Action::Stream { offset, .. } => Some(*offset),
        _ => None,
    }
}

/// fsck finds nothing, not even traces, and the allocator takes for free exactly what nobody names.
fn consistent(region: &Region, stats: &Stats, when: &str) -> Result<(), String> {
    let report = fsck(region)?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("fsck {when} finds {finding:?}"));
    }
    if report.recoverable > 0 {
        return Err(format!("fsck {when} finds {} traces of a crash", report.recoverable));
    }
    let (_, geometry) = nvfold::read_superblock(region).map_err(|error| format!("{when}: {error}"))?;
    let total = geometry.blocks() - geometry.first_segment() * INODE_SEGMENT_BLOCKS;
    let inode_tables = (stats.inodes + 1).div_ceil(INODES_PER_SEGMENT) * INODE_SEGMENT_BLOCKS;
    let tables = inode_tables + stats.index.media_bytes / BLOCK_BYTES;
    let free = (total - tables - report.blocks - report.metadata_blocks) * BLOCK_BYTES;
    if stats.free_bytes != free || stats.inodes != report.inodes {
        let (has, inodes) = (stats.free_bytes, stats.inodes);
        return Err(format!("{when}: {has} bytes and {inodes} inodes free or in use; it is {free} and {report:?}"));
    }
    Ok(())
}

fn same(tree: &Tree, expected: &Tree, when: &str) -> Result<(), String> {
    if tree.agrees_with(expected) {
        return Ok(());
    }
    Err(format!("{when} the tree is another one:\n{}", tree.differences(expected)))
}

/// A few operations that take blocks, share some and free some, with `between` behind each. What they leave must be
/// what they wrote.
fn use_it(fs: &FileSystem, between: impl Fn() -> nvfold::Result<()>) -> Result<(), String> {
    let root = InodeNumber::ROOT;
    let used = || -> nvfold::Result<bool> {
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
        file.write_at(BLOCK_BYTES + 100, &[0xC3; 5000])?;
        between()?;
        fs.mkdir(root, b"new directory", &device::directory())?;
        if let Some(entry) = regular {
            between()?;
            fs.rename(root, b"new file", root, &entry.name, RenameMode::Replace)?;
        }
        between()?;
        fs.rmdir(root, b"new directory")?;
        let mut read = vec![0; BLOCK_BYTES as usize + 5100];
        file.read_at(0, &mut read)?;
        let (first, rest) = read.split_at(block.len());
        Ok(first == block && rest[..100] == [0; 100] && rest[100..] == [0xC3; 5000])
    };
    match used() {
        Ok(true) => Ok(()),
        Ok(false) => Err("a new file does not hold what was written to it".into()),
        Err(error) => Err(format!("using it: {error}")),
    }
}
