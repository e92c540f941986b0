//! `nvfold tune`: changes how a mounted file system works, while it works.
//!
//! The serving process takes the change as the value of a virtual extended attribute, from root and from whoever
//! mounted it.

use crate::cli::Output;
use crate::device::DeviceOptions;
use crate::failure::{Failure, Outcome};
use crate::mount::{METHOD_ATTRIBUTE, parse_method};
use crate::mounts;
use crate::report;
use crate::snapshot::{NvDedup, Snapshot, mount_point_of};
use clap::Args;
use nvfold::MethodChoice;
use rustix::fs::XattrFlags;
use serde::Serialize;
use std::path::PathBuf;

/// Change how a mounted file system shares data
#[derive(Args, Debug)]
pub struct Tune {
    /// Mount point or mounted device
    #[arg(value_name = "DIR|DEVICE")]
    target: PathBuf,
    /// Method of policy nv-dedup: auto (by measured costs), paper (its three, by its thresholds), non (no
    /// fingerprints), ws (weak, then strong), str (both), wb (weak, then bytes)
    #[arg(long, value_name = "NAME", value_parser = parse_method)]
    method: MethodChoice,
}

#[derive(Serialize)]
struct Report {
    device: String,
    choice: String,
    /// What the policy does now; absent while no new data goes there.
    nv_dedup: Option<NvDedup>,
}

/// Runs it.
pub fn run(tune: &Tune, output: &Output) -> Outcome<u8> {
    let dir = mount_point_of(&tune.target)?;
    let choice = tune.method.name();
    rustix::fs::setxattr(&dir, METHOD_ATTRIBUTE, choice.as_bytes(), XattrFlags::empty()).map_err(|error| {
        let failure = Failure::new(mounts::show(&dir), format!("cannot choose the method ({error})"));
        match error {
            rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => failure.hint("only root and whoever mounted it can"),
            rustix::io::Errno::ROFS => failure.hint("it is mounted read-only, so nothing is stored"),
            _ => failure,
        }
    })?;
    let snapshot = Snapshot::of(&dir, &DeviceOptions::default())?;
    let report = Report { device: snapshot.device.clone(), choice: choice.to_owned(), nv_dedup: snapshot.nv_dedup };
    let policy = snapshot.policy.unwrap_or_default();
    report::emit(output.json, "tune", &report, || match &report.nv_dedup {
        Some(now) => format!("{}: chosen by {choice}; method now: {}", report.device, now.method),
        None => format!("{}: chosen by {choice}, once data goes to nv-dedup (policy now: {policy})", report.device),
    })?;
    Ok(0)
}
