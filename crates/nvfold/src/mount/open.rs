//! Mounting: prepares what every operation needs, after a clean unmount or any crash.

use super::index::{free_index_segments, index_of};
use super::journal::{journal_stores, replay_journal};
use super::options::{MountOptions, Share};
use super::saved::Saved;
use super::superblock::{read_superblock, require_known_features};
use super::tables::{TableDamage, Tables};
use super::{Mounted, saved, scan};
use crate::dedup::{Policies, PolicyOptions};
use crate::error::{Error, Result};
use crate::fingerprint::{Domains, Keys};
use crate::fs::Core;
use crate::media::DEVICE_BYTES_MAX;
use crate::media::inode::InodeHead;
use crate::media::layout::Layout;
use crate::media::segment::SegmentUse;
use crate::media::superblock::{Geometry, OWNER_DOMAINS, STATE_IN_USE, STATE_REPAIR, Superblock};
use crate::store::{Store, StoreOptions, write_superblock};
use crate::words::{FileKind, InodeNumber};
use pmem::{PersistenceLevel, PmemError, Region};

const ROOT: u64 = InodeNumber::ROOT.0;

/// Mounts a device; see [`crate::FileSystem::mount`].
pub(crate) fn open(region: Region, options: &MountOptions) -> Result<Mounted> {
    open_for(region, options, false)
}

/// Mounts a device for fsck, which has repaired its tables before. Inodes without a name are kept, no memory is given
/// back to the host, and the superblock says until the end that a repair is under way.
pub(crate) fn open_for_repair(region: Region) -> Result<Mounted> {
    open_for(region, &MountOptions { discard: Some(false), ..MountOptions::default() }, true)
}

fn open_for(region: Region, options: &MountOptions, for_repair: bool) -> Result<Mounted> {
    let (superblock, geometry) = read_superblock(&region)?;
    if !options.read_only {
        require_known_features(&superblock)?;
    }
    let superblock = with_secret(superblock, options);
    if region.is_read_only() && !options.read_only {
        return Err(Error::ReadOnly { doing: "mount read-write" });
    }
    if !options.read_only {
        // Says whether the disk has room for what a mount writes, and can be asked to reserve more.
        region.admit()?;
    }
    let saved = Saved::read(&region, &geometry, &superblock);
    // A saved state in bad memory counts as missing.
    let saved = if region.check().is_ok() { saved } else { None };
    let tables = Tables::read(&region, &geometry, &superblock, saved.as_ref());
    let segments = tables.inode_segments();
    let Tables { entries, uses, inodes, damage, bad } = tables;
    let tables_read = bad.map_or(Ok(()), Err);
    if segments.is_empty() {
        let what = "segment table: no part of the inode table is left in it".into();
        return Err(Error::Corrupt { what, at: geometry.segment_table_offset });
    }
    let stores = journal_stores(&region, &geometry, &segments)?;
    let tables_read = tables_read.and(region.check());
    if !options.read_only {
        tables_read.map_err(Error::of(|| "journal or segment table (mount read-only to read what is left)".into()))?;
    }
    if options.read_only && !stores.is_empty() {
        let what =
            "journal: it holds an operation that a crash cut off, and only a read-write mount can finish it".into();
        return Err(Error::Corrupt { what, at: geometry.journal_offset });
    }
    if !options.read_only {
        // The table decides which segments may be overwritten, so it must be whole before anything is written.
        require_whole_tables(&geometry, &superblock, damage, for_repair)?;
    }
    replay_journal(&region, &geometry, &stores);
    let geometry = layout(&region, geometry, options);
    let (options, index) = index_of(&region, &geometry, &superblock, options, &uses)?;
    let options = &options;
    let with = store_options(&region, options, &superblock);
    let mounted = Mounted::new(Core::new(Store::new(region, geometry, with, inodes, index)), for_repair);
    let core = &mounted.core;
    let index_segments = core.chunks.index.fact().into_iter().flat_map(|index| index.segments().iter().copied());
    segments.into_iter().chain(index_segments).for_each(|segment| core.space.adopt_table_segment(segment));
    entries.iter().for_each(|(segment, entry)| core.space.adopt_wear(*segment, entry));
    adopt_packed(core, &uses);
    if !options.read_only {
        core.space.back_tables()?;
    }
    core.chunks.load_generators();
    let saved_in = saved.and_then(|saved| saved::load(&mounted, saved));
    match &saved_in {
        Some(_) => {}
        None if options.read_only => scan::count_all(&mounted),
        None => scan::after_crash(&mounted, &uses)?,
    }
    let is_root = |slot: u64| core.region.read::<InodeHead>(slot).live(ROOT) == Some(FileKind::Directory);
    let root = core.table.slot(ROOT);
    if !root.is_some_and(is_root) {
        let at = root.unwrap_or(core.geometry.segment_table_offset);
        return Err(Error::Corrupt { what: "the root directory is missing".into(), at });
    }
    if !options.read_only {
        let (state, mount_epoch) = match for_repair {
            true => (superblock.state, superblock.mount_epoch),
            false => (STATE_IN_USE, superblock.mount_epoch.wrapping_add(1)),
        };
        write_superblock(
            &core.region,
            Superblock { state, mount_epoch, mounted: (options.clock)(), saved_state: 0, ..superblock },
        );
        core.region.sync()?;
        if core.chunks.index.dram().is_some() {
            // Only after the superblock says "in use": a crash may tear the entries, and a mount of a clean device
            // does not check for that.
            free_index_segments(core, &uses)?;
        }
        saved_in.into_iter().flatten().try_for_each(|run| core.space.discard_run(run))?;
        core.space.keep_spare_for_packed();
    }
    match core.region.check() {
        // Operations that touch the bad memory report it.
        Ok(()) | Err(PmemError::BadMemory { .. }) => {}
        Err(lost) => return Err(lost.into()),
    }
    if !options.read_only {
        core.policies.mounted(&core.ground());
    }
    Ok(mounted)
}

/// Returns the layout of a device that is being mounted: if it may be written, as long as it can become meanwhile.
fn layout(region: &Region, geometry: Geometry, options: &MountOptions) -> Layout {
    if options.read_only {
        geometry.into()
    } else {
        Layout::new(geometry, region.capacity_bytes().min(DEVICE_BYTES_MAX))
    }
}

/// Registers the packed segments, and the segments with the entries of packed chunks.
fn adopt_packed(core: &Core, uses: &[(u64, SegmentUse)]) {
    for (segment, usage) in uses {
        match usage {
            SegmentUse::Entries(part) => {
                core.chunks.entries.set_part(*part, Some(*segment));
                core.space.adopt_table_segment(*segment);
            }
            SegmentUse::Packed => core.space.adopt_packed_segment(*segment),
            _ => {}
        }
    }
}

/// Refuses a read-write mount of a device whose tables are damaged: writing would lose data that can still be read.
fn require_whole_tables(
    geometry: &Geometry,
    superblock: &Superblock,
    damage: Option<TableDamage>,
    for_repair: bool,
) -> Result<()> {
    if superblock.state == STATE_REPAIR && !for_repair {
        return Err(Error::RepairInterrupted);
    }
    let at = geometry.segment_table_offset;
    match damage {
        None => Ok(()),
        Some(TableDamage::PmIndex) => Err(Error::PmIndexDamaged { at }),
        Some(damage) => {
            Err(Error::Corrupt { what: format!("segment table: {damage}; a read-only mount reads what is there"), at })
        }
    }
}

/// Returns the superblock with a secret if the mount shares by owner. It is durable before the mount stores anything.
fn with_secret(superblock: Superblock, options: &MountOptions) -> Superblock {
    match options.share {
        Share::Owner { new_secret } if superblock.secret().is_none() && !options.read_only => {
            let incompatible = superblock.incompatible | OWNER_DOMAINS;
            Superblock { incompatible, share_secret: new_secret, ..superblock }
        }
        Share::All | Share::Owner { .. } => superblock,
    }
}

/// Returns whose data is shared with whose. A read-only mount of a device without a secret shares nothing anyway.
fn domains(options: &MountOptions, superblock: &Superblock) -> Domains {
    match options.share {
        Share::All => Domains::default(),
        Share::Owner { .. } => superblock.secret().map(Domains::by_owner).unwrap_or_default(),
    }
}

fn store_options(region: &Region, options: &MountOptions, superblock: &Superblock) -> StoreOptions {
    let keys = Keys::of_device(options.nv_dedup.weak, &superblock.uuid);
    StoreOptions {
        domains: domains(options, superblock),
        policies: Policies::new(PolicyOptions {
            policy: options.policy,
            keys,
            nv_dedup: &options.nv_dedup,
            denova: &options.denova,
            deext: options.deext,
            auto: options.auto,
            origin_bytes_min: options.origin_bytes_min,
            compression: options.compression,
            stopwatch: options.stopwatch.clone(),
            custom_policy: options.custom_policy.clone(),
        }),
        fingerprints: (keys, options.nv_dedup.strong.unwrap_or_default()),
        generators: options.generators,
        pack: options.pack,
        compression: options.compression,
        cores: options.cores,
        discard: options.discard.unwrap_or(region.level() == PersistenceLevel::Memory),
        levels_wear: options.levels_wear,
        compares_rewrites: options.compares_rewrites,
        read_only: options.read_only,
        clock: options.clock.clone(),
    }
}
