//! `nvfold umount`: unmounts, and returns when the device is clean and released.

use crate::bounded::{self, ANSWERS_WITHIN};
use crate::device::{self, DeviceOptions};
use crate::failure::{Failure, Outcome};
use crate::mounts::{self, Mounted};
use crate::output::Output;
use crate::report;
use crate::server::Server;
use crate::statistics::{self, mount_of};
use crate::text::escaped;
use crate::unmount::unmount;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a command that waits for a server checks whether it is stopped.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Unmount, and wait until the device is clean and released
#[derive(Args, Debug)]
#[command(before_help = "Example: nvfold umount /tmp/fold")]
pub(crate) struct Umount {
    /// Mount point, or the device mounted there
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Detach now even if busy; finish when the last open file is closed
    #[arg(short, long)]
    lazy: bool,
    /// How long to wait for the serving process in all, in seconds
    #[arg(long, default_value_t = 60)]
    timeout: u32,
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
    #[arg(short = 'N', hide = true)]
    namespace: Option<String>,
}

#[derive(Serialize)]
struct Unmounted {
    mount_point: String,
    /// The bytes of the path in hexadecimal, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    mount_point_hex: Option<String>,
    device: Option<String>,
    /// True if the server is known to have ended.
    released: bool,
}

/// Runs the command.
pub(crate) fn run(umount: &Umount, output: &Output) -> Outcome<u8> {
    let mounted = mount_of(&umount.target)?;
    let released = if umount.lazy { detach(&mounted)? } else { unmount_and_wait(&mounted, umount.timeout)? };
    if released && was_left_unclean(&mounted) {
        let what = format!("unmount {}", mounted.dir.display());
        let why = "it is unmounted, but its server could not leave the device clean";
        let hint = "the kernel's log (dmesg) has the reason; what was not synced before may be lost. `nvfold info` shows the \
                    state of the device, and the next mount recovers it";
        return Err(Failure::new(escaped(&what), why).hint(hint));
    }
    let device = Some(mounts::show(&mounted.source));
    let (mount_point, mount_point_hex) = (mounts::show(&mounted.dir), mounts::hex(&mounted.dir));
    let report = Unmounted { mount_point, mount_point_hex, device, released };
    report::emit_done(output.json, output.quiet, "umount", &report, || {
        let state = if released { "is unmounted and its device released" } else { "is unmounted" };
        escaped(&format!("{} {state}", mounted.dir.display()))
    })?;
    Ok(0)
}

/// Detaches the mount. The server may be stuck, so nothing is asked of it.
fn detach(mounted: &Mounted) -> Outcome<bool> {
    unmount(&mounted.dir, UnmountFlags::DETACH).map_err(|errno| not_unmounted(mounted, errno.into()))?;
    Ok(false)
}

/// Unmounts and waits for the end of the server, which then has released the device. Returns false if the server is
/// not known.
fn unmount_and_wait(mounted: &Mounted, timeout_seconds: u32) -> Outcome<bool> {
    let end = Instant::now() + Duration::from_secs(timeout_seconds.into());
    // The server is looked for before the unmount, which ends it.
    let left = || end.saturating_duration_since(Instant::now());
    let told = || statistics::ask_within(&mounted.dir, left().min(ANSWERS_WITHIN)).ok()?.pid.map(Server);
    let server = Server::of(mounted).or_else(told);
    let process = server.and_then(Server::watch);
    bounded::unmount_within(&mounted.dir, left()).map_err(|error| not_unmounted(mounted, error))?;
    let (Some(server), Some(process)) = (server, process) else { return Ok(false) };
    while !has_ended(&process)? {
        let failure = |why| Failure::new("umount", why);
        if server.is_stopped() {
            return Err(failure(format!("it is unmounted, but {}", server.why_silent())));
        }
        if left().is_zero() {
            let why = format!("the serving process has not ended within {timeout_seconds} s");
            return Err(failure(why).hint("it is unmounted; the device is clean once the process has ended"));
        }
    }
    Ok(true)
}

/// Returns whether the device of a mount that was unmounted is known not to be clean: for example, because its disk
/// did not take the last sync.
fn was_left_unclean(mounted: &Mounted) -> bool {
    let device = Path::new(&mounted.source);
    if mounted.read_only || !device.is_absolute() {
        return false;
    }
    // Another process may have it by now, or this user may not read it.
    let region = device::open(device, &DeviceOptions::default(), true).ok();
    let superblock = region.and_then(|region| nvfold::read_superblock(&region).ok());
    superblock.is_some_and(|(superblock, _)| !superblock.is_clean())
}

/// Waits for the end of a process, at most [`LOOK_EVERY`].
fn has_ended(process: &OwnedFd) -> Outcome<bool> {
    match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&LOOK_EVERY)) {
        Ok(events) => Ok(events > 0),
        Err(errno) => Err(Failure::new("wait for the serving process", errno)),
    }
}

fn not_unmounted(mounted: &Mounted, error: io::Error) -> Failure {
    let kind = error.kind();
    let failure = Failure::new(format!("unmount {}", mounted.dir.display()), error);
    match kind {
        io::ErrorKind::ResourceBusy => failure.hint(
            "a process has a file open there or works in it: `fuser -vm DIR` shows it; --lazy detaches the mount now",
        ),
        io::ErrorKind::PermissionDenied => {
            let why = match mounted.user {
                Some(0) => "root mounted it, so only root may unmount it".to_owned(),
                Some(user) => format!("user {user} mounted it, so only that user and root may unmount it"),
                None => "another user mounted it, so only that user and root may unmount it".to_owned(),
            };
            Failure::new(format!("unmount {}", mounted.dir.display()), why).because_of(Errno::PERM.raw_os_error())
        }
        io::ErrorKind::TimedOut => {
            failure.hint("the kernel waits for the server to take what is cached; --lazy detaches the mount now")
        }
        _ => failure,
    }
}
