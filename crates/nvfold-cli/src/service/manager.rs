//! What the service manager (systemd) is told, and what it keeps for us: sd_notify(3).
//!
//! A program that runs before the server hands descriptors to the manager (`FDSTORE=1`), which starts the server with them
//! (`LISTEN_FDS`). The server takes them and has the manager forget its copies: while the manager holds one, a mount
//! outlives the server that answers it.
//!
//! Without a manager (no `NOTIFY_SOCKET`) nobody is told.

use crate::failure::{Doing, Failure, Outcome, warn};
use crate::text::escaped;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sd_notify::NotifyState;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// How long the manager may take to read what it was told.
const READS_WITHIN: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const SOCKET: &str = "NOTIFY_SOCKET";

/// Says in a sentence what is being done before the mount answers.
pub(crate) fn starting(what: &str) {
    tell(&[NotifyState::Status(&escaped(what))]);
}

/// Says that the mount answers.
pub(crate) fn ready(what: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(&escaped(what))]);
}

/// Says that the mount ends.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("Ending the mount and leaving the device clean")]);
}

fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        warn(&format!("tell the service manager: {error}"));
    }
}

/// Moves this process, which must have one thread, into the mount namespace of the manager that has started it: systemd 252
/// gives even a step outside the sandbox (`+`) a namespace of its own, and what is mounted there is seen by nobody else. A
/// process without a manager stays where it is.
pub(crate) fn enter_its_namespace() -> Outcome<()> {
    let doing = "enter the mount namespace of the service manager";
    let Some(manager) = rustix::process::getppid().filter(|_| std::env::var_os(SOCKET).is_some()) else {
        return Ok(());
    };
    let its = format!("/proc/{}/ns/mnt", manager.as_raw_nonzero());
    let place = |path: &str| std::fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino()));
    match (place(&its), place("/proc/self/ns/mnt")) {
        (Ok(its), Ok(own)) if its == own => return Ok(()),
        // The manager of a user has made none.
        _ if !rustix::process::geteuid().is_root() => return Ok(()),
        _ => {}
    }
    let namespace = File::open(&its).doing(doing)?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount)).doing(doing)
}

/// Gives the manager a descriptor, under a name, for the server that it starts next.
pub(super) fn keep(name: &str, descriptor: BorrowedFd<'_>) -> Outcome<()> {
    let doing = "hand a descriptor to the service manager";
    if std::env::var_os(SOCKET).is_none() {
        return Err(Failure::new(doing, format!("there is none ({SOCKET} is not set)"))
            .hint("without a manager, `nvfold serve NAME` mounts and serves in one process"));
    }
    sd_notify::notify_with_fds(&[NotifyState::FdStore, NotifyState::FdName(name)], &[descriptor]).doing(doing)
}

/// Makes the manager close its copies of descriptors with this name.
pub(super) fn drop_kept(name: &str) {
    tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
}

/// Waits until the manager has read all that it was told. It closes the descriptor that comes with the message then.
pub(super) fn wait_until_read() -> Outcome<()> {
    let doing = "wait for the service manager";
    let (here, there) = std::io::pipe().doing(doing)?;
    sd_notify::notify_with_fds(&[NotifyState::Custom("BARRIER=1")], &[there.as_fd()]).doing(doing)?;
    drop(there);
    match poll(&mut [PollFd::new(&here, PollFlags::IN)], Some(&READS_WITHIN)).doing(doing)? {
        0 => Err(Failure::new(doing, "it has not read what it was told within 10 s")),
        _ => Ok(()),
    }
}

/// Returns the descriptors that this process was started with, by the names under which they were kept.
pub(super) fn kept() -> Outcome<Vec<(String, i32)>> {
    let named = sd_notify::listen_fds_with_names().doing("take the descriptors of the service manager (LISTEN_FDS)")?;
    Ok(named.map(|(number, name)| (name, number)).collect())
}
