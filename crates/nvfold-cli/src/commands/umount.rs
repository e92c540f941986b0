//! `nvfold umount`: unmounts, and returns when the device is clean and released.

use crate::failure::{Failure, Outcome};
use crate::mount;
use crate::mounts;
use crate::output::Output;
use crate::report;
use crate::snapshot::{Snapshot, mount_point_of};
use crate::text::escaped;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Serialize;
use std::path::PathBuf;

/// Unmount, and wait until the device is clean and released
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold umount /tmp/fold")]
pub struct Umount {
    /// Mount point, or the device mounted there
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Detach now even if busy; finish when the last open file is closed
    #[arg(short, long)]
    lazy: bool,
    /// How long to wait for the serving process, in seconds
    #[arg(long, default_value_t = 60)]
    timeout: u32,
    /// Print nothing on success; for umount(8)
    #[arg(long, hide = true)]
    quiet: bool,
    /// From umount(8); no effect
    #[arg(short = 'f', hide = true)]
    force: bool,
    #[arg(short = 'n', hide = true)]
    no_mtab: bool,
    #[arg(short = 'r', hide = true)]
    read_only: bool,
    #[arg(short = 'v', hide = true)]
    verbose: bool,
    #[arg(short = 't', hide = true)]
    fs_type: Option<String>,
}

#[derive(Serialize)]
struct Unmounted {
    mount_point: String,
    device: Option<String>,
    /// True if the server is known to have ended.
    released: bool,
}

/// Runs the command.
pub fn run(umount: &Umount, output: &Output) -> Outcome<u8> {
    let dir = mount_point_of(&umount.target)?;
    // Must be asked before the unmount, which ends the server.
    let server = Snapshot::of(&dir, &Default::default()).ok();
    let process = server.as_ref().and_then(|server| watch(server.pid?));
    let flags = if umount.lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    mount::unmount(&dir, flags).map_err(|errno| {
        let failure = Failure::new(format!("unmount {}", dir.display()), errno);
        match errno {
            rustix::io::Errno::BUSY => {
                failure.hint("a process has a file open there or works in it: `fuser -vm DIR` names it; --lazy detaches the mount now")
            }
            rustix::io::Errno::PERM => failure.hint("it was mounted by somebody else"),
            _ => failure,
        }
    })?;
    let released = match &process {
        Some(process) if !umount.lazy => wait(process, umount.timeout)?,
        _ => false,
    };
    let report = Unmounted { mount_point: mounts::show(&dir), device: server.map(|server| server.device), released };
    if umount.quiet && !output.json {
        return Ok(0);
    }
    report::emit(output.json, "umount", &report, || {
        let state = if released { "is unmounted and its device released" } else { "is unmounted" };
        escaped(&format!("{} {state}", dir.display()))
    })?;
    Ok(0)
}

fn watch(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended. Fails after the timeout.
fn wait(process: &OwnedFd, timeout_seconds: u32) -> Outcome<bool> {
    let timeout = Timespec { tv_sec: i64::from(timeout_seconds), tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
    match ended {
        Ok(1..) => Ok(true),
        Ok(0) => Err(Failure::new("umount", format!("the serving process has not ended within {timeout_seconds} s"))
            .hint("it is unmounted, and being finished; the device is clean once the process is gone")),
        Err(errno) => Err(Failure::new("wait for the serving process", errno)),
    }
}
