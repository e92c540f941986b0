//! Mounting: what every operation needs, after an orderly unmount or any crash.

use super::index::{free_index_segments, index_of};
use super::journal::{journal_stores, replay_journal};
use super::options::MountOptions;
use super::superblock::{read_superblock, require_known_features, write_superblock};
use super::{Mounted, saved, scan};
use crate::dedup::{Policies, PolicyOptions};
use crate::error::{Error, Result};
use crate::fs::{Core, CoreOptions};
use crate::inode::table::{read_entries, table_segments, uses_of};
use crate::media::inode::InodeHead;
use crate::media::superblock::{STATE_IN_USE, Superblock};
use crate::words::{FileKind, InodeNumber};
use pmem::{PersistenceLevel, PmemError, Region};

const ROOT: u64 = InodeNumber::ROOT.0;

/// Mounts a device; see [`crate::FileSystem::mount`].
pub(crate) fn open(region: Region, options: &MountOptions) -> Result<Mounted> {
    let (superblock, geometry) = read_superblock(&region)?;
    if !options.read_only {
        require_known_features(&superblock)?;
    }
    if region.is_read_only() && !options.read_only {
        return Err(Error::ReadOnly { doing: "mount read-write" });
    }
    let entries = read_entries(&region, &geometry);
    let uses = uses_of(&entries);
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
    let with = core_options(&region, options);
    let mounted = Mounted::new(Core::new(region, geometry, with, segments, index));
    let core = &mounted.core;
    let index_segments = core.chunks.index.fact().into_iter().flat_map(|index| index.segments().iter().copied());
    core.table.segments().into_iter().chain(index_segments).for_each(|segment| core.space.adopt_table_segment(segment));
    entries.iter().for_each(|(segment, entry)| core.space.adopt_wear(*segment, entry));
    core.chunks.load_generators();
    let saved_in = saved::load(&mounted, &superblock);
    match &saved_in {
        Some(_) => {}
        None if options.read_only => scan::count_all(&mounted),
        None => scan::after_crash(&mounted, &uses)?,
    }
    let root = core.table.slot(ROOT).expect("the table has a first segment");
    if core.region.read::<InodeHead>(root).live(ROOT) != Some(FileKind::Directory) {
        return Err(Error::Corrupt { what: "root directory: not there".into(), at: root });
    }
    if !options.read_only {
        let mount_epoch = superblock.mount_epoch.wrapping_add(1);
        write_superblock(
            &core.region,
            Superblock { state: STATE_IN_USE, mount_epoch, mounted: (options.clock)(), saved_state: 0, ..superblock },
        );
        core.region.sync()?;
        if core.chunks.index.dram().is_some() {
            // Not before: a crash may tear the entries, and on a clean device nobody looks for that.
            free_index_segments(core, &uses)?;
        }
        saved_in.into_iter().flatten().try_for_each(|run| core.space.discard_run(run))?;
    }
    match core.region.check() {
        // Whoever uses what lay there is told.
        Ok(()) | Err(PmemError::BadMemory { .. }) => {}
        Err(lost) => return Err(lost.into()),
    }
    if !options.read_only {
        core.policies.mounted(&core.ground());
    }
    Ok(mounted)
}

fn core_options(region: &Region, options: &MountOptions) -> CoreOptions {
    CoreOptions {
        policies: Policies::new(PolicyOptions {
            policy: options.policy,
            nv_dedup: &options.nv_dedup,
            denova: &options.denova,
            stopwatch: options.stopwatch.clone(),
            foreign: options.foreign.clone(),
        }),
        fingerprints: (options.nv_dedup.weak, options.nv_dedup.strong.unwrap_or_default()),
        generators: options.generators,
        cores: options.cores,
        discard: options.discard.unwrap_or(region.level() == PersistenceLevel::Memory),
        read_only: options.read_only,
        clock: options.clock.clone(),
    }
}
