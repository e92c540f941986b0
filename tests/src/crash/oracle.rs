//! What must hold after every crash, in the order in which it is looked at.
//!
//! ```text
//! 1 fsck before recovery    nothing but traces that recovery removes
//! 2 mount                   the tree is one that the crash may leave: all of it, times and space included
//! 3 fsck after recovery     nothing at all, and what is free is what nobody names (invariants 2, 4, 7)
//! 4 mount again             changes nothing outside the superblock; the same tree
//! 5 write                   new files, shared blocks, a replaced file: they work, and nothing else changes
//! 6 unmount or crash        fsck finds nothing; the tree is what it was
//! ```

use std::sync::Arc;

use nvfold::check::{CheckOptions, Finding, Report, check};
use nvfold::{FileKind, FileSystem, InodeNumber, MountOptions, RenameMode, Stats};
use pmem::{Action, Event, Region};

use super::disk::Disk;
use super::tree::Tree;
use crate::device;

/// Bytes at the start of the device that every mount writes: the two superblocks.
const SUPERBLOCKS_BYTES: u64 = 8192;
const BLOCK_BYTES: u64 = 4096;
const INODE_SEGMENT_BLOCKS: u64 = 512;
const INODES_PER_SEGMENT: u64 = 4096;

/// Judges the crash state that the disk is in; returns what recovery did to the media. The disk is left as the
/// judgement leaves it: the caller puts it back.
///
/// # Errors
/// What does not hold.
pub fn judge(disk: &mut Disk, options: &MountOptions, allowed: &[Arc<Tree>]) -> Result<Vec<Event>, String> {
    let region = disk.region().clone();
    let report = fsck(&region)?;
    // A torn copy of the superblock looks like a damaged one; the other is whole, or nothing below would hold.
    let superblock = |finding: &Finding| finding.invariant == 0 && finding.at < SUPERBLOCKS_BYTES;
    if let Some(finding) = report.findings.iter().find(|finding| !superblock(finding)) {
        return Err(format!("fsck before recovery finds {finding:?}"));
    }
    let fs = recover(&region, options)?;
    let recovery = disk.take_events();
    let tree = Tree::of(&fs)?;
    if !allowed.iter().any(|allowed| tree.agrees_with(allowed)) {
        return Err(not_allowed(&tree, allowed));
    }
    let stats = fs.stats();
    drop(fs);
    consistent(&region, &stats, "after recovery")?;

    let fs = recover(&region, options)?;
    let again = disk.take_events();
    if let Some(event) = again.iter().find(|event| stored_at(event).is_some_and(|at| at >= SUPERBLOCKS_BYTES)) {
        return Err(format!("a second recovery changes the media: {event:?}"));
    }
    same(&Tree::of(&fs)?, &tree, "after a second recovery")?;
    use_it(&fs).map_err(|error| format!("after recovery it cannot be used: {error}"))?;
    let (used, stats) = (Tree::of(&fs)?, fs.stats());
    if stats.free_bytes % (2 * BLOCK_BYTES) == 0 {
        fs.unmount().map_err(|error| format!("unmounting: {error}"))?;
    } else {
        drop(fs);
    }
    consistent(&region, &stats, "after it was used")?;
    let fs = recover(&region, options)?;
    same(&Tree::of(&fs)?, &used, "after it was used and mounted again")?;
    Ok(recovery)
}

fn recover(region: &Region, options: &MountOptions) -> Result<FileSystem, String> {
    FileSystem::mount(region.clone(), options.clone()).map_err(|error| format!("mounting: {error}"))
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
    let tables = (stats.inodes + 1).div_ceil(INODES_PER_SEGMENT) * INODE_SEGMENT_BLOCKS;
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

fn not_allowed(tree: &Tree, allowed: &[Arc<Tree>]) -> String {
    let mut text = "the tree is none that the crash may leave".to_owned();
    for allowed in allowed {
        text.push_str(&format!("; differences to one of them:\n{}", tree.differences(allowed)));
    }
    text
}

/// A few operations that take blocks, share some and free some. What they leave must be what they wrote.
fn use_it(fs: &FileSystem) -> nvfold::Result<()> {
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
    file.write_at(0, &block)?;
    file.write_at(BLOCK_BYTES + 100, &[0xC3; 5000])?;
    let mut read = vec![0; BLOCK_BYTES as usize + 5100];
    file.read_at(0, &mut read)?;
    assert!(read[..block.len()] == block && read[block.len() + 100..] == [0xC3; 5000], "it reads what was written");
    fs.mkdir(root, b"new directory", &device::directory())?;
    if let Some(entry) = regular {
        fs.rename(root, b"new file", root, &entry.name, RenameMode::Replace)?;
    }
    fs.rmdir(root, b"new directory")
}
