//! Mounting and unmounting: by mount(2), or by fusermount3 for users to whom the kernel does not allow that.
//!
//! The problem: mount(2) needs root. The idea: fusermount3 is installed with the rights of root. It opens /dev/fuse,
//! mounts, and sends the descriptor over a socket, which is its standard input here:
//!
//! ```text
//! mount(2) -- EPERM --> fusermount3 -o OPTIONS -- DIR,  _FUSE_COMMFD=0  -->  SCM_RIGHTS: the connection
//! ```
//!
//! A process without any of these rights serves a connection that another one has made ([`inherited`]).

use crate::sys;
use rustix::fs::FileType;
use rustix::io::Errno as Os;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const DEVICE: &str = "/dev/fuse";
/// Its major and minor number, the same on every Linux.
const DEVICE_NUMBER: (u32, u32) = (10, 229);
/// Names another program in the place of fusermount3.
const HELPER_VARIABLE: &str = "FUSERMOUNT_PATH";
const HELPERS: [&str; 4] = ["fusermount3", "fusermount", "/bin/fusermount3", "/sbin/fusermount3"];
/// Tells the helper the number of its socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// How a file system is mounted. The kernel checks permissions (`default_permissions`).
#[derive(Clone, Debug)]
pub struct Mounting {
    /// The device in the mount table.
    pub source: String,
    /// The type in the mount table is `fuse.` and this.
    pub subtype: &'static str,
    /// The flags of mount(2). fusermount3 sets NOSUID and NODEV whatever they are.
    pub flags: MountFlags,
    /// Users other than the one who mounts may use it. fusermount3 allows that if /etc/fuse.conf does.
    pub allow_other: bool,
}

impl Mounting {
    /// Mounts on a directory, and returns the connection to the kernel. Then the handshake comes
    /// ([`handshake`](crate::handshake)).
    ///
    /// # Errors
    /// Those of opening the directory and /dev/fuse, and of mount(2). What fusermount3 says, if the kernel allows
    /// mount(2) to root alone; `NotFound` if there is no such program.
    pub fn mount(&self, dir: &Path) -> io::Result<OwnedFd> {
        let dir = dir.canonicalize()?;
        match self.mount_directly(&dir)? {
            Some(connection) => Ok(connection),
            None => self.mount_by_helper(&dir),
        }
    }

    /// Calls mount(2); `None` if it is not permitted.
    fn mount_directly(&self, dir: &Path) -> io::Result<Option<OwnedFd>> {
        let mode = File::open(dir)?.metadata()?.permissions().mode();
        let connection = File::options().read(true).write(true).open(DEVICE)?;
        let options = self.kernel_options(connection.as_raw_fd(), mode);
        let data = CString::new(options.as_str())?;
        match rustix::mount::mount(self.source.as_str(), dir, "fuse", self.flags, data.as_c_str()) {
            Ok(()) => Ok(Some(connection.into())),
            Err(Os::PERM) => Ok(None),
            Err(errno) => {
                let why = format!("mount(2) with options {options} and flags {:#x}: {errno}", self.flags.bits());
                Err(io::Error::new(io::Error::from(errno).kind(), why))
            }
        }
    }

    fn kernel_options(&self, connection: i32, mode: u32) -> String {
        let (user, group) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let others = if self.allow_other { ",allow_other" } else { "" };
        format!(
            "fd={connection},rootmode={mode:o},user_id={user},group_id={group},subtype={},default_permissions{others}",
            self.subtype
        )
    }

    fn mount_by_helper(&self, dir: &Path) -> io::Result<OwnedFd> {
        let (theirs, ours) = UnixStream::pair()?;
        let options = self.helper_options();
        let arguments = [OsStr::new("-o"), options.as_ref(), OsStr::new("--"), dir.as_os_str()];
        let child = start_helper(|program| {
            let mut command = Command::new(program);
            command.args(arguments).env(SOCKET_VARIABLE, "0").stdin(OwnedFd::from(theirs.try_clone()?));
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
        })?;
        // The helper has its own. If it ends without a word, the socket is closed.
        drop(theirs);
        let connection = receive_descriptor(&ours);
        let ended = child.wait_with_output()?;
        connection?.ok_or_else(|| io::Error::other(said(&ended)))
    }

    /// Returns the options for fusermount3: flags by their names in fstab, and what it makes of others for the kernel.
    fn helper_options(&self) -> String {
        let names = [
            (MountFlags::RDONLY, "ro", "rw"),
            (MountFlags::NOSUID, "nosuid", "suid"),
            (MountFlags::NODEV, "nodev", "dev"),
            (MountFlags::NOEXEC, "noexec", "exec"),
            (MountFlags::SYNCHRONOUS, "sync", "async"),
            (MountFlags::DIRSYNC, "dirsync", ""),
        ];
        let flags = names.map(|(flag, set, unset)| if self.flags.contains(flag) { set } else { unset }.to_owned());
        let mut options: Vec<String> = flags.into_iter().filter(|name| !name.is_empty()).collect();
        options.push(format!("fsname={}", self.source.replace('\\', r"\\").replace(',', r"\,")));
        options.push(format!("subtype={}", self.subtype));
        options.push("default_permissions".into());
        options.extend(self.allow_other.then(|| "allow_other".into()));
        options.join(",")
    }
}

/// Returns the connection that the program which started this one has left open under a number.
///
/// # Errors
/// `InvalidInput` if no connection of FUSE is open under the number.
pub fn inherited(number: i32) -> io::Result<OwnedFd> {
    let refused = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {number} {why}"));
    let connection = sys::duplicate(number).map_err(|_| refused("is not open"))?;
    let stat = rustix::fs::fstat(&connection)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    match is_device && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == DEVICE_NUMBER {
        true => Ok(connection),
        false => Err(refused(&format!("is not open on {DEVICE}"))),
    }
}

/// Unmounts: by umount2(2), or by fusermount3 if that needs root; it allows it to the user who mounted.
///
/// # Errors
/// Those of umount2(2).
pub fn unmount(dir: &Path, flags: UnmountFlags) -> rustix::io::Result<()> {
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Err(Os::PERM) => unmount_by_helper(dir, flags.contains(UnmountFlags::DETACH)),
        unmounted => unmounted,
    }
}

fn unmount_by_helper(dir: &Path, is_lazy: bool) -> rustix::io::Result<()> {
    let how = if is_lazy { "-uz" } else { "-u" };
    let arguments = [OsStr::new(how), OsStr::new("--"), dir.as_os_str()];
    // The message for EBUSY is that of the C library.
    let run = |program: &OsStr| Command::new(program).args(arguments).env("LC_ALL", "C").output();
    match start_helper(run) {
        Ok(ended) if ended.status.success() => Ok(()),
        Ok(ended) if said(&ended).contains("busy") => Err(Os::BUSY),
        Ok(_) | Err(_) => Err(Os::PERM),
    }
}

/// Starts the first program that exists.
fn start_helper<T>(start: impl Fn(&OsStr) -> io::Result<T>) -> io::Result<T> {
    let programs = match std::env::var_os(HELPER_VARIABLE) {
        Some(program) => vec![program],
        None => HELPERS.map(OsString::from).to_vec(),
    };
    let mut missing = io::Error::from(Os::NOENT);
    for program in programs {
        match start(&program) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing = error,
            started => return started,
        }
    }
    Err(missing)
}

/// Returns what a program that ended has said on stderr, or how it ended.
fn said(ended: &Output) -> String {
    match String::from_utf8_lossy(&ended.stderr).trim_end() {
        "" => format!("fusermount3 mounted nothing ({})", ended.status),
        text => text.to_owned(),
    }
}

/// Receives a descriptor; `None` if the other end was closed without one.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut data, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    use std::io::{IoSlice, Read, Write};
    use std::os::fd::AsFd;

    fn mounting(flags: MountFlags, allow_other: bool) -> Mounting {
        Mounting { source: "mem:".into(), subtype: "nvfold", flags, allow_other }
    }

    #[test]
    fn the_kernel_and_fusermount3_get_the_same_options() {
        let safe = mounting(MountFlags::NOSUID | MountFlags::NODEV | MountFlags::RDONLY, true);
        assert_eq!(
            safe.helper_options(),
            "ro,nosuid,nodev,exec,async,fsname=mem:,subtype=nvfold,default_permissions,allow_other"
        );
        let options = safe.kernel_options(7, 0o40755);
        assert!(options.starts_with("fd=7,rootmode=40755,user_id="), "{options}");
        assert!(options.ends_with(",subtype=nvfold,default_permissions,allow_other"), "{options}");
        let open = mounting(MountFlags::NOEXEC | MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC, false);
        let expected = "rw,suid,dev,noexec,sync,dirsync,fsname=mem:,subtype=nvfold,default_permissions";
        assert_eq!(open.helper_options(), expected);
    }

    #[test]
    fn only_a_connection_of_fuse_is_inherited() {
        let (here, _there) = UnixStream::pair().unwrap();
        for number in [-1, 1 << 30, here.as_raw_fd()] {
            assert_eq!(inherited(number).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{number}");
        }
    }

    #[test]
    fn a_name_of_a_device_is_no_option() {
        let named = Mounting { source: r"/tmp/a,suid\b".into(), ..mounting(MountFlags::NOSUID, false) };
        assert!(named.helper_options().contains(r",fsname=/tmp/a\,suid\\b,subtype"), "{}", named.helper_options());
    }

    #[test]
    fn the_fuse_descriptor_is_received_or_the_end_of_the_socket_detected() {
        let (theirs, ours) = UnixStream::pair().unwrap();
        let (mut pipe, mut end) = std::io::pipe().unwrap();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let sent = [pipe.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        rustix::net::sendmsg(&theirs, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
        let received = receive_descriptor(&ours).unwrap().unwrap();
        end.write_all(b"it").unwrap();
        let mut text = [0; 2];
        File::from(received).read_exact(&mut text).unwrap();
        assert_eq!(&text, b"it");
        drop(theirs);
        assert!(receive_descriptor(&ours).unwrap().is_none());
        drop(end);
        assert_eq!(pipe.read(&mut text).unwrap(), 0);
    }
}
