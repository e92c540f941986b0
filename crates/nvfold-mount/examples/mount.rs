//! Mounts a file system from Rust: a device in memory, with an empty file system on it, that other programs use through
//! the kernel. Needs root, or fusermount3.
//!
//! ```sh
//! mkdir -p /tmp/fold && cargo run -p nvfold-mount --example mount -- /tmp/fold
//! ```

use nvfold::{FileSystem, MkfsOptions, MountOptions, Policy};
use nvfold_mount::{Mount, Options};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: mount DIR")?;
    println!("{}", share_a_copy(dir.as_ref())?);
    Ok(())
}

/// Stores two equal files on a mount, and returns what that took.
pub(crate) fn share_a_copy(dir: &Path) -> Result<String, Box<dyn Error>> {
    let region = Region::create(&DeviceSpec::Memory, 64 * MIB, &OpenOptions::default())?;
    FileSystem::mkfs(&region, &MkfsOptions::default())?;
    let clock = Arc::new(pmem::clock::coarse_now_ns);
    let fs = FileSystem::mount(region, MountOptions { policy: Policy::Inline, clock, ..MountOptions::default() })?;
    let mut mount = Mount::new(fs.clone(), dir, Options::default())?;

    let data: Vec<u8> = (0..MIB / 8).flat_map(u64::to_le_bytes).collect();
    fs::write(mount.dir().join("first"), &data)?;
    fs::copy(mount.dir().join("first"), mount.dir().join("second"))?;
    if fs::read(mount.dir().join("second"))? != data {
        return Err("the copy differs".into());
    }

    // The kernel hands over what it has cached.
    mount.unmount()?;
    let stats = fs.stats();
    let kib = |bytes: u64| bytes >> 10;
    let told = format!(
        "{} KiB in files, {} KiB stored, {} KiB saved",
        kib(stats.logical_bytes),
        kib(stats.stored_bytes),
        kib(stats.saved_bytes)
    );
    fs.unmount()?;
    Ok(told)
}
