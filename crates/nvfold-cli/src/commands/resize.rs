//! `nvfold resize`: makes a file system longer, mounted or not.

use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome};
use crate::mount::{growth, requests};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::Statistics;
use crate::text::escaped;
use clap::Args;
use nvfold::IndexKind;
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Make a file system longer
///
/// A mounted file system grows while programs use it, `mem:` too: root and the user who mounted it may do that. All
/// files stay where they are, so that this takes no longer for a large device. If it is interrupted, the file system has
/// its old size or the new one, and the same command goes on.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold resize /srv/pool 16G")]
pub(crate) struct Resize {
    /// Device, or where it is mounted: a file gets the size, and so does mem:; a device-dax node has it already
    #[arg(value_name = "DEVICE|MOUNTPOINT")]
    device: PathBuf,
    /// New size, for example 16G; by default all that the device has
    #[arg(value_name = "SIZE", value_parser = size::parse, allow_negative_numbers = true)]
    size: Option<u64>,
    #[command(flatten)]
    device_options: DeviceOptions,
}

#[derive(Serialize)]
struct Resized {
    device: String,
    /// Where it is mounted.
    mount_point: Option<String>,
    before_bytes: u64,
    after_bytes: u64,
    free_bytes: u64,
    /// How often it can be made longer after this.
    growths_left: u64,
    /// True if the index on the device was made for fewer blocks than there are now.
    index_is_small: bool,
}

/// Runs the command.
pub(crate) fn run(resize: &Resize, output: &Output) -> Outcome<u8> {
    let Resize { device, size, device_options } = resize;
    let resized = match mounts::of_device(device).or_else(|| mounts::at(device)) {
        Some(mounted) => grow_mounted(&mounted, *size)?,
        None => grow_unmounted(device, *size, device_options)?,
    };
    report::emit_done(output.json, output.quiet, "resize", &resized, || describe(&resized))?;
    Ok(0)
}

fn grow_unmounted(device: &Path, size: Option<u64>, device_options: &DeviceOptions) -> Outcome<Resized> {
    if device == Path::new("mem:") {
        return Err(Failure::usage("mem:", "a memory device exists only while it is mounted")
            .hint("give the directory on which it is mounted: nvfold resize MOUNTPOINT SIZE"));
    }
    let name = mounts::show(device);
    let grown = nvfold::resize(&device::spec(device), size, &device_options.open_options(false)).doing(&name)?;
    let region = device::open(device, device_options, true)?;
    let (superblock, geometry) = nvfold::read_superblock(&region).doing(&name)?;
    let has_pm_index = superblock.index().is_some_and(|(kind, _)| kind == IndexKind::Pm);
    drop(region);
    Ok(Resized {
        device: name,
        mount_point: None,
        before_bytes: grown.before_bytes,
        after_bytes: grown.after_bytes,
        free_bytes: Statistics::of(device, device_options)?.known_space()?.free_bytes,
        growths_left: geometry.growths_left() as u64,
        index_is_small: has_pm_index && geometry.index_is_small(),
    })
}

fn grow_mounted(mounted: &mounts::Mounted, size: Option<u64>) -> Outcome<Resized> {
    let dir = mounts::show(&mounted.dir);
    // Says so if the server does not answer.
    requests::answers(&mounted.dir).doing(&dir)?;
    let directory = File::open(&mounted.dir).doing(&dir)?;
    let grown = growth::grow(&directory, size).map_err(|error| match Errno::from_io_error(&error) {
        Some(Errno::NODATA | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => {
            let why = "its mount is of a version of nvfold that cannot make a mounted file system longer";
            Failure::new(&dir, why).hint(format!("unmount it first: nvfold umount {dir}"))
        }
        _ => Failure::of(&dir, error),
    })?;
    let grown = grown.map_err(|refusal| Failure::new(&dir, refusal.why).because_of(refusal.errno))?;
    Ok(Resized {
        device: mounts::show(&mounted.source),
        mount_point: Some(dir),
        before_bytes: grown.before_bytes,
        after_bytes: grown.after_bytes,
        free_bytes: grown.free_bytes,
        growths_left: grown.growths_left,
        index_is_small: grown.index_is_small,
    })
}

fn describe(resized: &Resized) -> String {
    let Resized { device, mount_point, before_bytes, after_bytes, free_bytes, .. } = resized;
    let of = match mount_point {
        Some(dir) => format!("{device}, mounted on {dir},"),
        None => device.clone(),
    };
    let [before, after, free] = [before_bytes, after_bytes, free_bytes].map(|bytes| size::show(*bytes));
    let mut text = match before_bytes == after_bytes {
        true => escaped(&format!("the file system on {of} has {after} already; {free} are free")),
        false => escaped(&format!("the file system on {of} has {after} now, before {before}; {free} are free")),
    };
    if resized.index_is_small {
        text += "\nits index on the device was made for fewer blocks: it works, and ";
        text += &escaped(&format!("`nvfold tune {device} --index pm` makes it faster (unmounted)"));
    }
    text
}
