//! `nvfold fsck`: checks the numbered invariants on an unmounted device, and repairs what needs no guess.
//!
//! The options and exit codes are those of fsck(8), so that it works at boot.

use crate::cli::Output;
use crate::device::{self, DeviceOptions};
use crate::failure::{Doing, Outcome};
use clap::Args;
use std::path::PathBuf;

/// Exit code: something went wrong that is no finding.
pub const OPERATIONAL: u8 = 8;
/// Exit code: called wrongly.
pub const USAGE: u8 = 16;

/// Check an unmounted device
#[derive(Args, Debug)]
pub struct Fsck {
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    #[command(flatten)]
    device_options: DeviceOptions,
}

/// Runs it.
pub fn run(fsck: &Fsck, _output: &Output) -> Outcome<u8> {
    let region = device::open(&fsck.device, &fsck.device_options, true)?;
    nvfold::read_superblock(&region).doing(fsck.device.display())?;
    Ok(0)
}
