//! `nvfold resize`: makes a file system longer, on a device that is not mounted.

use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Failure, Outcome};
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::size;
use crate::statistics::Statistics;
use clap::Args;
use nvfold::IndexKind;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Make a file system longer
///
/// The device must not be mounted. Its files stay where they are, so that this takes no longer for a large device. If it
/// is interrupted, the file system has its old size, and the same command goes on.
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold resize /srv/pool 16G")]
pub(crate) struct Resize {
    /// Device: a file gets the size; a device-dax node has it already
    #[arg(value_name = "DEVICE")]
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
    before_bytes: u64,
    after_bytes: u64,
    free_bytes: u64,
    /// How often it can be made longer after this.
    growths_left: usize,
    /// True if the index on the device was made for fewer blocks than there are now.
    index_is_small: bool,
}

/// Runs the command.
pub(crate) fn run(resize: &Resize, output: &Output) -> Outcome<u8> {
    let Resize { device, size, device_options } = resize;
    let name = mounts::show(device);
    if device == Path::new("mem:") {
        return Err(Failure::usage("mem:", "a memory device keeps the size with which it was mounted")
            .hint("mount another one with a larger `-o size=`, and copy the files"));
    }
    if let Some(mounted) = mounts::of_device(device).or_else(|| mounts::at(device)) {
        return Err(refuse_mounted(&name, &mounted, *size));
    }
    let grown = nvfold::resize(&device::spec(device), *size, &device_options.open_options(false)).doing(&name)?;
    let region = device::open(device, device_options, true)?;
    let (superblock, geometry) = nvfold::read_superblock(&region).doing(&name)?;
    let has_pm_index = superblock.index().is_some_and(|(kind, _)| kind == IndexKind::Pm);
    drop(region);
    let resized = Resized {
        device: name,
        before_bytes: grown.before_bytes,
        after_bytes: grown.after_bytes,
        free_bytes: Statistics::of(device, device_options)?.known_space()?.free_bytes,
        growths_left: geometry.growths_left(),
        index_is_small: has_pm_index && geometry.index_is_small(),
    };
    report::emit(output.json, "resize", &resized, || describe(&resized))?;
    Ok(0)
}

fn refuse_mounted(name: &str, mounted: &mounts::Mounted, size: Option<u64>) -> Failure {
    let dir = mounted.dir.display();
    let why = format!("it is mounted on {dir}, and the size of a mounted file system does not change");
    let failure = Failure::new(name, why);
    if mounted.source == Path::new("mem:") {
        return failure.hint("mount another `mem:` with a larger `-o size=`, and copy the files");
    }
    let (device, size) = (mounts::show(&mounted.source), size.map(|bytes| format!(" {bytes}")).unwrap_or_default());
    failure.hint(format!("unmount it first: nvfold umount {dir} && nvfold resize {device}{size}"))
}

fn describe(resized: &Resized) -> String {
    let Resized { device, before_bytes, after_bytes, free_bytes, .. } = resized;
    let mut facts = vec![
        ("device", device.clone()),
        ("size before", size::show(*before_bytes)),
        ("size now", format!("{} ({after_bytes} bytes)", size::show(*after_bytes))),
        ("free", size::show(*free_bytes)),
    ];
    if resized.index_is_small {
        let advice = format!("made for fewer blocks: it works, and `nvfold tune {device} --index pm` makes it faster");
        facts.push(("index", advice));
    }
    report::facts(&facts)
}
