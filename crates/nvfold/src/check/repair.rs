//! Repair: what fsck writes, and only what follows from the logs without a guess.
//!
//! The problem: fsck and recovery must not each have a truth of their own. The idea: repair is a mount, a reconcile and
//! an orderly unmount, which find counts and allocation anew from the logs. Before that it mends what a mount would
//! refuse or overlook, after that what a mount does not look for. Every step can be done again after a crash.
//!
//! ```text
//! before    segments that hold blocks are marked, tables have no entries, generators are whole
//! mount     scan and reconcile; the saved state is discarded
//! after     names that lead nowhere go, link counts are what the names say
//! ```

use crate::error::Result;
use crate::fs::Core;
use crate::inode::{Body, Inode};
use crate::media::generator::{GENERATORS, Generator};
use crate::media::inode::InodeHead;
use crate::media::log_entry::LINE;
use crate::media::segment::{KIND_BLOCKS, SegmentEntry, SegmentUse};
use crate::media::superblock::{STATE_IN_USE, Superblock};
use crate::media::{BlockNumber, SEGMENT_BLOCKS};
use crate::mount;
use crate::mount::MountOptions;
use crate::words::FileKind;
use hashbrown::HashMap;
use pmem::Region;

/// Reconcile finds counts and allocation anew from the logs; what it cannot know of is done here.
pub(super) fn repair(region: &Region, unmarked: &[u64]) -> Result<()> {
    let (superblock, geometry) = mount::read_superblock(region)?;
    mount::require_known_features(&superblock)?;
    for segment in unmarked {
        let offset = geometry.segment_entry_offset(*segment);
        let entry: SegmentEntry = region.read(offset);
        if entry.usage(*segment) == SegmentUse::Free && *segment >= geometry.first_segment() {
            let marked = entry.used_for(*segment, KIND_BLOCKS, 0);
            let _ = region.fence(region.write(offset, &marked).flush());
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
