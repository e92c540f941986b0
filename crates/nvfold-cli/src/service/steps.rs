//! What runs beside the server of a service, with rights that the server does not have.
//!
//! The problem: a server in a sandbox cannot mount where others see it, cannot unmount, and cannot open its device. The
//! idea: small programs do this before it and after it, outside the sandbox (`ExecStartPre=+` and the like):
//!
//! ```text
//! mount   opens the device, mounts, gives both descriptors to the manager        before the server
//! reload  changes how the mount is mounted, as far as that is possible
//! stop    unmounts, and ends the session of a mount that stays in use
//! clear   takes away the mount that a server left which was killed               after the server, always
//! ```

use super::description::Service;
use super::{manager, place};
use crate::bounded::{self, ANSWERS_WITHIN};
use crate::failure::{Doing, Failure, Outcome, eprint_line};
use crate::mount::{self, GRACE, Handed, requests};
use crate::mounts::{self, Mounted};
use crate::server::Server;
use crate::text::escaped;
use crate::unmount::unmount;
use crate::utab;
use nvfold_mount::{Connection, REPORT_ATTRIBUTE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::mount::UnmountFlags;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The names of what the manager keeps.
const CONNECTION: &str = "connection";
const DEVICE: &str = "device";
/// How long unmounting may take: the kernel hands over what it has cached.
const UNMOUNTS_WITHIN: Duration = Duration::from_secs(10);
/// How long a mount that stays in use may take to write back what programs have written.
const WRITES_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Mounts, and hands the mount and the device to the manager.
pub(crate) fn mount(service: &Service) -> Outcome<()> {
    let plan = service.plan(None, || ());
    make_directory(&plan.dir)?;
    if let Some(dead) = mounts::at(&plan.dir).filter(is_dead) {
        take_away(&dead);
    }
    let (connection, device) = mount::connect(&plan)?;
    let handed = hand_over(&connection, device.as_ref().map(|device| device.as_fd()));
    handed.inspect_err(|_| {
        let _ = unmount(connection.dir(), UnmountFlags::DETACH);
        place::forget();
    })
}

fn hand_over(connection: &Connection, device: Option<rustix::fd::BorrowedFd<'_>>) -> Outcome<()> {
    if let Some(mounted) = connection.mounted() {
        note(mounted)?;
    }
    manager::keep(CONNECTION, connection.as_fd())?;
    if let Some(device) = device {
        manager::keep(DEVICE, device)?;
    }
    manager::wait_until_read()
}

/// Notes where the service is mounted, for the steps that come later.
pub(crate) fn note(mounted: &Mounted) -> Outcome<()> {
    place::note(mounted).doing("note where the service is mounted (RUNTIME_DIRECTORY)")
}

/// Returns what the step `mount` has handed over; `None` if there was no such step.
pub(crate) fn handed() -> Outcome<Option<Handed>> {
    let kept = manager::kept()?;
    let number = |wanted: &str| kept.iter().find(|(name, _)| name == wanted).map(|(_, number)| *number);
    let noted = place::noted();
    let Some(descriptor) = number(CONNECTION) else {
        return match noted.filter(|(number, dir)| mounts::at(dir).is_some_and(|mounted| mounted.number == *number)) {
            Some((_, dir)) => {
                Err(Failure::new(dir.display(), "it is mounted, but its descriptor did not come with it")
                    .hint("the unit needs FileDescriptorStoreMax=2 and NotifyAccess=exec"))
            }
            None => Ok(None),
        };
    };
    let connection = noted.as_ref().and_then(|(number, _)| Some(number.split_once(':')?.1));
    let connection = Connection::inherited(descriptor, connection).doing("take over the mount")?;
    let device = number(DEVICE).map(|number| PathBuf::from(format!("/proc/self/fd/{number}")));
    Ok(Some(Handed { connection, device }))
}

/// Makes the manager close what it has kept: this process has its own copies.
pub(crate) fn forget_handed() {
    manager::drop_kept(CONNECTION);
    manager::drop_kept(DEVICE);
}

/// Changes the mount to what the file says now, as far as a remount can.
pub(crate) fn reload(service: &Service) -> Outcome<()> {
    let Some(mounted) = place::mounted(Some(&service.mountpoint)) else {
        return Err(Failure::new(service.mountpoint.display(), "the service is not mounted"));
    };
    mount::remount(&mounted.dir, &service.options.whole_remount())?;
    println!(
        "{}",
        escaped(&format!(
            "{}: read again; other changes than ro, nosuid, nodev, noexec and sync count from \
                                     the next start on",
            mounted.dir.display()
        ))
    );
    Ok(())
}

/// Unmounts. A mount that is in use is detached, and after the grace period its session ends. The server then leaves the
/// device clean.
pub(crate) fn stop(dir: Option<&Path>) -> Outcome<()> {
    let Some(mounted) = place::mounted(dir) else { return Ok(()) };
    if let Err(error) = bounded::unmount_within(&mounted.dir, UNMOUNTS_WITHIN) {
        if !matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::TimedOut) {
            return Err(Failure::new(format!("unmount {}", mounted.dir.display()), error));
        }
        eprint_line(&format!(
            "nvfold: {} is in use; it is detached, and ends in {} s",
            dir_of(&mounted),
            GRACE.as_secs()
        ));
        write_back(&mounted.dir);
        unmount(&mounted.dir, UnmountFlags::DETACH).doing(format!("detach {}", mounted.dir.display()))?;
    }
    utab::forget(&mounted.dir);
    let server = std::env::var("MAINPID").ok().and_then(|pid| pid.parse().ok()).map(Server);
    if !server.is_some_and(|server| ends(server, GRACE)) {
        mounted.abort();
    }
    Ok(())
}

/// Takes away a mount whose server has ended, and what the manager keeps of it.
pub(crate) fn clear(dir: Option<&Path>) -> Outcome<()> {
    forget_handed();
    let _ = manager::wait_until_read();
    let is_noted = place::noted().is_some();
    // The server of a mount that the service has noted has ended: the manager calls this afterwards.
    if let Some(mounted) = place::mounted(dir).filter(|mounted| is_noted || is_dead(mounted)) {
        eprint_line(&format!(
            "nvfold: {}: its server has ended before it was unmounted; it is taken away",
            dir_of(&mounted)
        ));
        take_away(&mounted);
    }
    place::forget();
    Ok(())
}

fn take_away(mounted: &Mounted) {
    mounted.abort();
    if let Err(errno) = unmount(&mounted.dir, UnmountFlags::DETACH) {
        eprint_line(&format!("nvfold: unmount {}: {errno}", dir_of(mounted)));
    }
    utab::forget(&mounted.dir);
}

fn dir_of(mounted: &Mounted) -> String {
    escaped(&mounts::show(&mounted.dir))
}

/// Returns true if the mount has lost its server, so that the kernel itself refuses every request. One that is stuck is
/// not dead.
fn is_dead(mounted: &Mounted) -> bool {
    bounded::get(&mounted.dir, REPORT_ATTRIBUTE, ANSWERS_WITHIN)
        .is_err_and(|error| error.kind() == ErrorKind::NotConnected)
}

/// Makes the kernel write back what programs have written, as far as it does within a time.
fn write_back(dir: &Path) {
    let dir = dir.to_owned();
    if within(WRITES_BACK_WITHIN, move || requests::ask_to_write_back(&dir)).is_none_or(|written| written.is_err()) {
        eprint_line("nvfold: not all that programs have written could be written back");
    }
}

/// Makes a call that may hang, and gives it up after a time.
fn within<T: Send + 'static>(time: Duration, call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(call()));
    result.recv_timeout(time).ok()
}

/// Waits for the end of a process, at most for this time; returns whether it has ended.
fn ends(server: Server, time: Duration) -> bool {
    let Some(process) = server.watch() else { return true };
    let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&time)).is_ok_and(|events| events > 0)
}

/// Makes the mount point if it is missing, as systemd does for its own mounts.
pub(crate) fn make_directory(dir: &Path) -> Outcome<()> {
    // What is mounted there may not answer, so it is not asked.
    if mounts::at(dir).is_some() {
        return Ok(());
    }
    std::fs::create_dir_all(dir).doing(format!("make the mount point {}", dir.display()))
}
