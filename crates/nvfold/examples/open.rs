//! Keeps files on a device, which is a file of the host: makes it the first time, opens it each time after, and counts
//! how often that was.
//!
//! ```sh
//! cargo run -p nvfold --example open -- /tmp/pool
//! ```

use nvfold::{Error, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode};
use pmem::{DeviceSpec, OpenOptions, Region};
use std::path::Path;
use std::sync::Arc;

const SIZE_BYTES: u64 = 64 << 20;
const NAME: &[u8] = b"opened";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = std::env::args_os().nth(1).ok_or("usage: open DEVICE")?;
    println!("opened {} times", count_opening(device.as_ref())?);
    Ok(())
}

/// Adds a line to a file on the device, and returns how many it has.
pub(crate) fn count_opening(device: &Path) -> Result<usize, Box<dyn std::error::Error>> {
    let fs = open(device)?;
    let file = match fs.lookup(InodeNumber::ROOT, NAME) {
        Ok(attr) => fs.open(attr.ino)?,
        Err(Error::NotFound { .. }) => {
            let new = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };
            fs.open(fs.create(InodeNumber::ROOT, NAME, &new)?.ino)?
        }
        Err(other) => return Err(other.into()),
    };
    file.write_at(file.attr().size, b"again\n")?;
    let mut text = vec![0; file.attr().size as usize];
    file.read_at(0, &mut text)?;
    drop(file);
    // Without it the next one to open the device recovers it, as after a crash: nothing is lost, but it takes longer.
    fs.unmount()?;
    Ok(text.split(|byte| *byte == b'\n').count() - 1)
}

/// Opens the device; makes it and a file system on it if there is none.
fn open(device: &Path) -> Result<FileSystem, Box<dyn std::error::Error>> {
    let spec = DeviceSpec::Path(device.to_owned());
    let region = if device.exists() {
        Region::open(&spec, &OpenOptions::default())?
    } else {
        let region = Region::create(&spec, SIZE_BYTES, &OpenOptions::default())?;
        FileSystem::mkfs(&region, &MkfsOptions::default())?;
        region
    };
    // The library has no clock of its own: without one, all times are zero.
    let clock = Arc::new(pmem::clock::coarse_now_ns);
    Ok(FileSystem::mount(region, MountOptions { clock, ..MountOptions::default() })?)
}
