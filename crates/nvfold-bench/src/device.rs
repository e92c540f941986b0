//! Emulated devices in memory, and file systems on them: the same for every paper.

use crate::{Doing, Result};
use nvfold::{FileSystem, MkfsOptions, MountOptions};
use pmem::{DeviceSpec, FlushMode, OpenOptions, Profile, Region};
use std::sync::Arc;
use std::time::Instant;

/// An emulated device in memory, and how much of it is counted.
#[derive(Clone, Debug)]
pub struct Device {
    /// The profile that it charges.
    pub profile: Profile,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether writes are counted block by block.
    pub counts_writes: bool,
    /// Whether writes are counted line by line.
    pub counts_lines: bool,
}

impl Device {
    /// Makes a device of this profile, large enough for `bytes` bytes.
    pub fn new(profile: &Profile, bytes: u64) -> Device {
        Device {
            profile: profile.clone(),
            bytes: bytes.next_multiple_of(2 << 20),
            counts_writes: false,
            counts_lines: false,
        }
    }

    /// Creates its memory, which the host has not allocated completely yet. On a native device flush instructions are
    /// issued as on a DAX device. On an emulated one the charge for a line stands for its flush.
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

    /// Formats it, and has all its memory allocated before any clock starts.
    pub fn format(&self, mkfs: &MkfsOptions) -> Result<Region> {
        let region = self.create()?;
        FileSystem::mkfs(&region, mkfs).doing("format")?;
        // After mkfs, which gives the memory of the device back.
        populate(&[&region]);
        Ok(region)
    }

    /// Formats and mounts it, with new clocks.
    pub fn mount(&self, mkfs: &MkfsOptions, mount: MountOptions) -> Result<FileSystem> {
        remount(self.format(mkfs)?, mount)
    }
}

/// Has the host allocate the memory of devices that are compared, a piece of each in turn, so that each gets the same
/// mix of the host's memory. Depending on where the host happens to place it, memory of one device takes up to a
/// third longer to write than that of another, for as long as both exist.
pub fn populate(regions: &[&Region]) {
    const PIECE_BYTES: u64 = 2 << 20;
    let longest = regions.iter().map(|region| region.len_bytes()).max().unwrap_or(0);
    for at in (0..longest).step_by(PIECE_BYTES as usize) {
        for region in regions.iter().filter(|region| at < region.len_bytes()) {
            region.populate(at, PIECE_BYTES.min(region.len_bytes() - at));
        }
    }
}

/// Mounts a formatted region, with new clocks.
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
