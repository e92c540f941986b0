//! The process that holds a device, for the message that the device is in use, and for the time in which it is about
//! to let go.
//!
//! The problem: unmounting a FUSE file system returns when the kernel has done its part. The server then still brings
//! the device into order, and a program that opens the device right after `umount` finds it locked.
//!
//! The idea: a server whose mount is gone is about to end, so opening waits for it. Whether that is so is visible in
//! /proc: the holder of the lock, its command line, and the mounts that it sees.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The type of a mount in the mount table whose source is a device.
const MOUNT_TYPE: &[u8] = b"fuse.nvfold";

/// Returns the process that owns a device, if it can be found.
pub(crate) fn of(path: &Path) -> Option<u32> {
    let device = fs::metadata(path).ok()?;
    lock_holder(&fs::read_to_string("/proc/locks").ok()?, &device)
        // The process that took the lock may have handed it to a child and ended.
        .filter(|pid| Path::new(&format!("/proc/{pid}")).exists())
        .or_else(|| process_with_open(&device))
}

/// Returns `process N (name)`.
pub(crate) fn describe(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("process {pid} ({})", name.trim()),
        Err(_) => format!("process {pid}"),
    }
}

/// Returns true if a process that holds a device is about to let go: it is a server whose mount of the device is gone,
/// or it is ending. One that is stopped is not.
pub(crate) fn is_ending(pid: u32, device: &Path) -> bool {
    if pid == std::process::id() {
        return false;
    }
    let of = |what: &str| fs::read(format!("/proc/{pid}/{what}"));
    let (Ok(arguments), Ok(status)) = (of("cmdline"), of("stat")) else { return true };
    if matches!(state_in(&status), Some(b'T' | b't')) {
        return false;
    }
    // The memory of a process, and with it its arguments, goes before its open files do.
    arguments.is_empty() || is_server(&arguments) && !of("mountinfo").is_ok_and(|table| is_mounted(&table, device))
}

/// Returns the state in /proc/PID/stat: `PID (name) state ...`, where the name may contain anything.
fn state_in(status: &[u8]) -> Option<u8> {
    let at = status.windows(2).rposition(|two| two == b") ")?;
    status.get(at + 2).copied()
}

/// Returns true for the arguments of `nvfold mount` and `nvfold serve`.
fn is_server(arguments: &[u8]) -> bool {
    let mut arguments = arguments.split(|byte| *byte == 0);
    let program = Path::new(OsStr::from_bytes(arguments.next().unwrap_or_default())).file_name().unwrap_or_default();
    program.as_bytes().starts_with(b"nvfold") && arguments.any(|argument| argument == b"mount" || argument == b"serve")
}

/// Returns true if a table of mounts (/proc/PID/mountinfo) has a mount of the device.
fn is_mounted(table: &[u8], device: &Path) -> bool {
    let Ok(device) = fs::metadata(device) else { return false };
    let sources = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip_while(|field| *field != b"-").skip(1);
        (fields.next()? == MOUNT_TYPE).then(|| fields.next()).flatten()
    });
    let is_device = |source: &[u8]| {
        let source = std::ffi::OsString::from_vec(decoded(source));
        fs::metadata(source).is_ok_and(|found| (found.dev(), found.ino()) == (device.dev(), device.ino()))
    };
    sources.into_iter().any(is_device)
}

/// Decodes what separates fields in the table: `\040` is a blank.
pub(crate) fn decoded(field: &[u8]) -> Vec<u8> {
    let mut parts = field.split(|byte| *byte == b'\\');
    let mut plain = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let digits = part.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        plain.extend(digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()));
        plain.extend_from_slice(part.get(3..).unwrap_or_default());
    }
    plain
}

/// Returns the holder of the lock from the kernel's list: `N: FLOCK ADVISORY WRITE pid major:minor:inode 0 EOF`.
fn lock_holder(locks: &str, device: &fs::Metadata) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(device.dev()), rustix::fs::minor(device.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", device.ino());
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_ours = fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&file.as_str());
        if is_ours { fields.get(4)?.parse().ok() } else { None }
    })
}

/// Returns another process that has the device open.
fn process_with_open(device: &fs::Metadata) -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id()).find(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        descriptors
            .filter_map(|descriptor| fs::metadata(descriptor.path()).ok())
            .any(|open| (open.dev(), open.ino()) == (device.dev(), device.ino()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it makes a file")]
    fn the_owner_of_a_device_is_found_in_proc_locks() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = file.as_file().metadata().unwrap();
        let name =
            |inode| format!("{:02x}:{:02x}:{inode}", rustix::fs::major(device.dev()), rustix::fs::minor(device.dev()));
        let locks = format!(
            "1: POSIX  ADVISORY  WRITE 11 {ours} 0 EOF\n2: FLOCK  ADVISORY  WRITE 22 {other} 0 EOF\n\
             3: FLOCK  ADVISORY  WRITE 33 {ours} 0 EOF\n",
            ours = name(device.ino()),
            other = name(device.ino() + 1),
        );
        assert_eq!(lock_holder(&locks, &device), Some(33));
        assert_eq!(lock_holder("garbage\n\n", &device), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it makes a file")]
    fn a_mount_of_the_device_is_found_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("a device");
        fs::write(&device, b"").unwrap();
        let source = device.to_str().unwrap().replace(' ', "\\040");
        let table =
            |kind: &str| format!("1 0 0:3 / / rw - tmpfs x rw\n40 29 0:36 / /mnt rw shared:5 - {kind} {source} rw\n");
        assert!(is_mounted(table("fuse.nvfold").as_bytes(), &device));
        assert!(!is_mounted(table("ext4").as_bytes(), &device));
        assert!(!is_mounted(b"", &device));
    }

    #[test]
    fn opening_a_device_waits_only_for_an_ending_server() {
        assert!(is_server(b"/usr/bin/nvfold\0mount\0--background-child\0/dev/x\0/mnt\0"));
        assert!(is_server(b"nvfold\0--json\0mount\0dev\0dir\0"));
        assert!(is_server(b"/usr/bin/nvfold\0serve\0/etc/nvfold/pool.toml\0"));
        assert!(!is_server(b"nvfold\0fsck\0dev\0") && !is_server(b"mount\0dev\0") && !is_server(b""));
        assert_eq!(state_in(b"12 (a) T) S 1 12"), Some(b'S'));
    }
}
