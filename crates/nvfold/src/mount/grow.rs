//! Growth: makes a file system longer, on a device that is mounted or not.
//!
//! The problem: the tables stand before the data, and a longer device needs longer ones. A crash must leave the old size
//! or the new one, whole.
//!
//! The idea: the new part becomes a zone with tables of its own (`media/zone.rs`), and nothing old moves. The superblock
//! decides which size counts, so all that the new one needs is durable before:
//!
//! ```text
//! the file is longer            the superblock says how long the file system is: bytes after that have no effect
//! tables of the zone are zero   no entry in them is in use
//! copy C at the new end         it says "in use" and names no saved state. A crash may leave it there while the old
//!                               size counts; found later, when both copies at the front are lost, it is not taken for
//!                               the state of a clean device
//! copies A and B                the first of them decides; a damaged one is written first
//! copy C again                  as A and B
//! ```
//!
//! The state that the last unmount saved stays valid: it says what is in use, and nothing of the new zone is.
//!
//! **While it is mounted** the order is the same. Tables are made while operations go on, which know nothing of the new
//! part. The superblock is written, and the new part added to what operations know ([`Layout`](crate::media::layout)),
//! with the freeze lock closed: no operation sees two sizes. Recovery is completed before.

use super::Mounted;
use super::open::open;
use super::options::MountOptions;
use super::superblock::{read_superblock, require_known_features};
use crate::dedup::policy::Policy;
use crate::error::{Error, Result};
use crate::media::superblock::{COPIES, Geometry, PACKED_CHUNKS, STATE_IN_USE, Superblock};
use crate::media::zone::ZONES_MAX;
use crate::media::{BLOCK_BYTES, DEVICE_BYTES_MAX, PACKED_DEVICE_BYTES_MAX, SEGMENT_BYTES};
use pmem::{DeviceSpec, OpenOptions, Region};

const GROW: &str = "make the file system longer";

/// The size of a file system before and after it was made longer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resized {
    /// What it had.
    pub before_bytes: u64,
    /// What it has.
    pub after_bytes: u64,
}

/// Gives an unmounted device and the file system on it `device_bytes` bytes; without a number, the file system gets what
/// the device has. A crash at any moment leaves the old size or the new one; the file may be longer then, and the next
/// call goes on.
///
/// # Errors
/// [`Error::Resize`] if it cannot have that size; errors of the device and of a mount. The file system has its old size
/// then, and so has the file if this call made it longer.
pub fn resize(spec: &DeviceSpec, device_bytes: Option<u64>, options: &OpenOptions) -> Result<Resized> {
    let (before, file_bytes) = {
        let region = Region::open(spec, options)?;
        let (superblock, geometry) = read_superblock(&region)?;
        let wanted = device_bytes.unwrap_or(region.len_bytes());
        if wanted != geometry.device_bytes {
            grown(&superblock, &geometry, wanted)?;
        }
        (geometry.device_bytes, region.len_bytes())
    };
    let wanted = device_bytes.unwrap_or(file_bytes);
    if wanted == before {
        return Ok(Resized { before_bytes: before, after_bytes: before });
    }
    refuse_longer_file(wanted, file_bytes)?;
    let done = grow(&Region::lengthen(spec, wanted, options)?);
    if done.is_err() && wanted > file_bytes {
        // The first error is returned. A file that stays longer does no harm.
        let _ = shorten(spec, before, file_bytes, options);
    }
    done
}

fn refuse_longer_file(wanted: u64, file_bytes: u64) -> Result<()> {
    if wanted >= file_bytes {
        return Ok(());
    }
    let why = format!(
        "the device has {file_bytes} bytes already: leave the size out to take all of them, or cut the file to {wanted} \
         bytes first"
    );
    Err(Error::Resize { why })
}

/// Gives the file of a device its old length again, if the file system has its old size.
fn shorten(spec: &DeviceSpec, before: u64, file_bytes: u64, options: &OpenOptions) -> Result<()> {
    let (_, geometry) = read_superblock(&Region::open(spec, options)?)?;
    if geometry.device_bytes == before {
        Region::create(spec, file_bytes, options)?;
    }
    Ok(())
}

/// Makes the file system on an unmounted device as long as the device. Without a longer device nothing changes.
///
/// # Errors
/// As [`resize`].
pub fn grow(region: &Region) -> Result<Resized> {
    let (superblock, geometry) = read_superblock(region)?;
    require_known_features(&superblock)?;
    let (before_bytes, after_bytes) = (geometry.device_bytes, region.len_bytes());
    if before_bytes == after_bytes {
        return Ok(Resized { before_bytes, after_bytes });
    }
    if region.is_read_only() {
        return Err(Error::ReadOnly { doing: GROW });
    }
    grown(&superblock, &geometry, after_bytes)?;
    region.admit()?;
    if !superblock.is_clean() {
        recover(region)?;
    }
    let (superblock, geometry) = read_superblock(region)?;
    let (superblock, geometry) = grown(&superblock, &geometry, after_bytes)?;
    clear_zone(region, &geometry)?;
    write_superblocks(region, &geometry, superblock)?;
    region.sync()?;
    Ok(Resized { before_bytes, after_bytes })
}

impl Mounted {
    /// See [`FileSystem::grow`](crate::FileSystem::grow).
    pub(crate) fn grow(&self, device_bytes: Option<u64>) -> Result<Resized> {
        let core = &self.core;
        let _growing = self.growing.lock();
        core.check_changeable(GROW)?;
        self.reconcile()?;
        let (region, before_bytes) = (&core.region, core.geometry.device_bytes);
        let after_bytes = device_bytes.unwrap_or_else(|| region.host_bytes());
        if after_bytes == before_bytes {
            return Ok(Resized { before_bytes, after_bytes });
        }
        let (_, geometry) = core.change_superblock(|whole| self.grown(&whole[0], after_bytes))?;
        refuse_longer_file(after_bytes, region.host_bytes())?;
        let length = region.len_bytes();
        if after_bytes > length {
            region.lengthen_mapped(after_bytes)?;
        }
        if let Err(error) = make_tables(region, &geometry) {
            if after_bytes > length {
                region.shorten_mapped(length);
            }
            return Err(error);
        }
        self.lengthen(after_bytes)?;
        region.sync()?;
        Ok(Resized { before_bytes, after_bytes })
    }

    /// Makes the new part count, between two operations.
    fn lengthen(&self, device_bytes: u64) -> Result<()> {
        let core = &self.core;
        let _closed = core.freeze_lock.close();
        core.check_changeable(GROW)?;
        core.change_superblock(|whole| {
            let (superblock, geometry) = self.grown(&whole[0], device_bytes)?;
            write_superblocks(&core.region, &geometry, superblock)?;
            let segments_before = core.geometry.segments();
            core.geometry.lengthen(geometry);
            core.space.lengthen(segments_before);
            Ok(())
        })
    }

    /// Does what [`grown`] does, for a device that is mounted.
    fn grown(&self, superblock: &Superblock, device_bytes: u64) -> Result<(Superblock, Geometry)> {
        let before = self.core.geometry.device_bytes;
        if (before..device_bytes).contains(&PACKED_DEVICE_BYTES_MAX) && device_bytes <= DEVICE_BYTES_MAX {
            let why = format!(
                "more than {PACKED_DEVICE_BYTES_MAX} bytes need another kind of tables in memory: unmount it, and run \
                 `nvfold resize` on the device then"
            );
            return Err(Error::Resize { why });
        }
        grown(superblock, &self.core.geometry, device_bytes)
    }
}

/// Makes the tables of the new zone of a mounted device, and takes room for its superblock: a store to memory or disk
/// that the host does not have would lose the whole mount. Stores nothing to a new part that is a hole.
fn make_tables(region: &Region, geometry: &Geometry) -> Result<()> {
    clear_zone(region, geometry)?;
    for offset in geometry.copies().skip(COPIES.len()) {
        region.take_room(offset, BLOCK_BYTES)?;
    }
    // Less is left to write while operations wait.
    Ok(region.sync()?)
}

/// Mounts a device that no other process uses, completes recovery, and unmounts it.
fn recover(region: &Region) -> Result<()> {
    let mounted = open(region.clone(), &MountOptions { policy: Policy::Off, ..MountOptions::default() })?;
    mounted.reconcile()?;
    mounted.jobs().end_reclaiming();
    mounted.leave_clean()
}

/// Returns the superblock and the layout of a device with a zone more.
fn grown(superblock: &Superblock, geometry: &Geometry, device_bytes: u64) -> Result<(Superblock, Geometry)> {
    let refused = |why: String| Err(Error::Resize { why });
    let before = geometry.device_bytes;
    if device_bytes < before {
        return refused(format!(
            "it has {before} bytes, and nvfold cannot make a file system shorter: format a device of {device_bytes} bytes \
             with `nvfold mkfs`, and copy the files with `nvfold export` and `nvfold import`"
        ));
    }
    if !device_bytes.is_multiple_of(BLOCK_BYTES) {
        return refused(format!("{device_bytes} bytes are not a multiple of {BLOCK_BYTES}"));
    }
    if device_bytes > DEVICE_BYTES_MAX {
        return refused(format!("{device_bytes} bytes are too many; the limit is {DEVICE_BYTES_MAX} bytes"));
    }
    if superblock.incompatible & PACKED_CHUNKS != 0 && device_bytes > PACKED_DEVICE_BYTES_MAX {
        return refused(format!(
            "it has packed chunks, and the limit of a device with them is {PACKED_DEVICE_BYTES_MAX} bytes"
        ));
    }
    let Some(grown) = superblock.grown(device_bytes) else {
        return refused(format!(
            "it was made longer {ZONES_MAX} times, which is the limit: format a device of that size with `nvfold mkfs`, \
             and copy the files with `nvfold export` and `nvfold import`"
        ));
    };
    match grown.sealed().verify() {
        Ok(geometry) => Ok((grown, geometry)),
        Err(_) => refused(format!(
            "{device_bytes} bytes are too few more: the new part needs room for its tables and {SEGMENT_BYTES} bytes of \
             data, {} bytes are enough",
            before + 4 * SEGMENT_BYTES
        )),
    }
}

/// Makes the tables of the last zone zero, durably, and gives back what the host holds for its data. Holes stay holes. The
/// tables are written, not given back: how much of a hole the host makes is its choice, and no fence waits for it.
fn clear_zone(region: &Region, geometry: &Geometry) -> Result<()> {
    let Some(zone) = geometry.last_zone() else { return Ok(()) };
    for range in region.allocated_ranges(zone.start, zone.data_offset - zone.start) {
        let start = range.start.max(zone.start);
        let zeros = region.stream_zeros(start, range.end.min(zone.data_offset) - start);
        let _ = region.fence(zeros);
    }
    Ok(region.punch(zone.data_offset, geometry.device_bytes - zone.data_offset)?)
}

/// Writes the copies of the superblock of a longer device, in the order that the module describes.
///
/// # Errors
/// Those of the host, if it has no room for what was written so far; the old size counts then.
fn write_superblocks(region: &Region, geometry: &Geometry, superblock: Superblock) -> Result<()> {
    let whole = superblock.sealed();
    let not_saved = Superblock { state: STATE_IN_USE, saved_state: 0, ..superblock }.sealed();
    let last: Vec<u64> = geometry.copies().skip(COPIES.len()).collect();
    let is_whole = |offset: &u64| region.read::<Superblock>(*offset).verify().is_ok();
    let (intact, damaged): (Vec<u64>, Vec<u64>) = COPIES.into_iter().partition(is_whole);
    let fronts = damaged.into_iter().chain(intact);
    last.iter().for_each(|offset| write_copy(region, *offset, &not_saved));
    // Memory that the host does not have shows when it is stored to.
    region.check()?;
    region.sync()?;
    // A copy in bad memory stays as it is, and the others are used.
    let is_sound = |offset: &u64| region.sound_or_forget(*offset, size_of::<Superblock>() as u64);
    fronts.chain(last.iter().copied()).filter(is_sound).for_each(|offset| write_copy(region, offset, &whole));
    Ok(region.check()?)
}

fn write_copy(region: &Region, offset: u64, copy: &Superblock) {
    let written = region.write(offset, copy).flush();
    let _ = region.fence(written);
}
