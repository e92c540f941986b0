//! Finds the process that serves a mount, without asking it.
//!
//! The server could tell, but one that is stopped or stuck never answers. The kernel knows: each file descriptor of
//! /dev/fuse shows the number of its connection in /proc (since Linux 6.16), and that is the device number of the
//! mount.

use crate::mounts::Mounted;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

/// The process of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Server(pub u32);

impl Server {
    /// Returns the server of a mount; `None` if the kernel does not tell this user.
    pub(crate) fn of(mounted: &Mounted) -> Option<Server> {
        let connection = mounted.connection();
        let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.map(Server).find(|server| server.serves(connection))
    }

    fn serves(self, connection: &str) -> bool {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.0)).into_iter().flatten().flatten();
        descriptors
            .filter(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|file| file == Path::new("/dev/fuse")))
            .any(|descriptor| {
                let number = descriptor.file_name();
                let facts = fs::read_to_string(format!("/proc/{}/fdinfo/{}", self.0, number.to_string_lossy()));
                connection_in(&facts.unwrap_or_default()) == Some(connection)
            })
    }

    /// Returns true if a signal (SIGSTOP) or a debugger has stopped the process, so that it answers nothing.
    pub(crate) fn is_stopped(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        state_in(&stat).is_some_and(|state| state.eq_ignore_ascii_case(&'T'))
    }

    /// Explains why a stopped server does not answer, and what to do.
    pub(crate) fn why_silent(self) -> String {
        format!("the serving process {0} is stopped; `kill -CONT {0}` lets it go on", self.0)
    }

    /// Returns a descriptor that becomes readable when the process ends; `None` if it has ended.
    pub(crate) fn watch(self) -> Option<OwnedFd> {
        pidfd_open(Pid::from_raw(i32::try_from(self.0).ok()?)?, PidfdFlags::empty()).ok()
    }
}

/// Returns the connection from what /proc says of a descriptor of /dev/fuse.
fn connection_in(facts: &str) -> Option<&str> {
    facts.lines().find_map(|line| line.strip_prefix("fuse_connection:")).map(str::trim)
}

/// Returns the state from /proc/PID/stat: `PID (name) state ...`, where the name may contain anything.
fn state_in(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuse_connection_is_read_from_fdinfo_if_the_kernel_shows_it() {
        assert_eq!(connection_in("pos:\t0\nflags:\t02100002\nmnt_id:\t24\nfuse_connection:\t39\n"), Some("39"));
        assert_eq!(connection_in("pos:\t0\nflags:\t02100002\n"), None);
    }

    #[test]
    fn a_process_name_with_parentheses_does_not_hide_its_state() {
        assert_eq!(state_in("12 (a) T) S 1 12"), Some('S'));
        assert_eq!(state_in("12 (nvfold) T 1 12"), Some('T'));
        assert_eq!(state_in(""), None);
    }
}
