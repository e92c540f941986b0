//! Emulated devices in memory, and file systems on them: the same for every paper.

use crate::{Doing, Result};
use nvfold::{FileSystem, MkfsOptions, MountOptions};
use pmem::{DeviceSpec, FlushMode, OpenOptions, Profile, Region};
use std::sync::Arc;
use std::time::Instant;

/// An emulated device in memory, and how much of it is watched.
#[derive(Clone, Debug)]
pub struct Device {
    /// What it charges.
    pub profile: Profile,
    /// Its size.
    pub bytes: u64,
    /// Whether writes are counted block by block.
    pub counts_writes: bool,
    /// Whether writes are counted line by line.
    pub counts_lines: bool,
}

impl Device {
    /// Of this profile, as large as needed for so many bytes.
    pub fn new(profile: &Profile, bytes: u64) -> Device {
        Device {
            profile: profile.clone(),
            bytes: bytes.next_multiple_of(2 << 20),
            counts_writes: false,
            counts_lines: false,
        }
    }

    /// Its memory, which is not all there yet. Flush instructions are issued as on a DAX device where nothing else stands
    /// for them; what an emulated device charges for a line is what its flush takes.
    pub fn create(&self) -> Result<Region> {
        let options = OpenOptions {
            profile: self.profile.clone(),
            flush: if self.profile.is_native() { FlushMode::Always } else { FlushMode::Auto },
            track_wear: self.counts_writes,
            track_lines: self.counts_lines,
            ..OpenOptions::default()
        };
        let region = Region::create(&DeviceSpec::Memory, self.bytes, &options);
        region.map_err(nvfold::Error::from).doing("make a memory device")
    }

    /// Formats it, with all its memory there before any clock starts.
    pub fn format(&self, mkfs: &MkfsOptions) -> Result<Region> {
        let region = self.create()?;
        FileSystem::mkfs(&region, mkfs).doing("format")?;
        // Behind mkfs, which gives back what the device has.
        populate(&[&region]);
        Ok(region)
    }

    /// Formats and mounts it, with clocks of its own.
    pub fn mount(&self, mkfs: &MkfsOptions, mount: MountOptions) -> Result<FileSystem> {
        remount(self.format(mkfs)?, mount)
    }
}

/// Asks for the memory of devices that are compared, for each a piece in turn: so each gets the same mix of what the
/// host has. Memory of one device differs from that of another by up to a third in the time that it takes to write, for
/// as long as both live, by where the host happens to have it.
pub fn populate(regions: &[&Region]) {
    const PIECE_BYTES: u64 = 2 << 20;
    let longest = regions.iter().map(|region| region.len_bytes()).max().unwrap_or(0);
    for at in (0..longest).step_by(PIECE_BYTES as usize) {
        for region in regions.iter().filter(|region| at < region.len_bytes()) {
            region.populate(at, PIECE_BYTES.min(region.len_bytes() - at));
        }
    }
}

/// Mounts what is formatted, with clocks.
pub fn remount(region: Region, mount: MountOptions) -> Result<FileSystem> {
    let epoch = Instant::now();
    let mount = MountOptions {
        stopwatch: Some(Arc::new(move || pmem::clock::device_ns(epoch))),
        clock: Arc::new(pmem::clock::coarse_now_ns),
        discard: Some(false),
        ..mount
    };
    FileSystem::mount(region, mount).doing("mount")
}
