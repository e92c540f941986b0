//! The mounts of nvfold, from /proc/self/mountinfo.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// The type of nvfold mounts in the mount table, without `fuse.`, and as a whole.
pub(crate) const FS_SUBTYPE: &str = "nvfold";
const FS_TYPE: &str = "fuse.nvfold";

/// The read-ahead of the kernel, in KiB.
const READ_AHEAD_KIB: &str = "1024";

/// A mounted nvfold file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The mount point.
    pub dir: PathBuf,
    /// The device, as the mount table gives it.
    pub source: OsString,
    /// The device number of files on it, as `major:minor`.
    pub number: String,
    /// True if the file system is read-only at every mount point.
    pub read_only: bool,
    /// The user that mounted it.
    pub user: Option<u32>,
}

impl Mounted {
    /// Returns the number of its connection in the kernel: the minor device number.
    pub fn connection(&self) -> &str {
        self.number.split_once(':').map_or("", |(_, minor)| minor)
    }

    /// Raises the kernel's read-ahead, which is 128 KiB unless root sets it. Best effort: only speed depends on it.
    pub(crate) fn raise_read_ahead(&self) {
        let _ = std::fs::write(format!("/sys/class/bdi/{}/read_ahead_kb", self.number), READ_AHEAD_KIB);
    }

    /// Makes the kernel fail all requests of a mount, for those that still use it: the end of the process does that only
    /// when the last thread has ended, and one that drops a name may wait for a user's lock. Best effort: the directory
    /// is that of the fusectl file system.
    pub fn abort(&self) {
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{}/abort", self.connection()), "1");
    }
}

/// Returns all nvfold mounts that this process can see.
pub fn all() -> Vec<Mounted> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|byte| *byte == b'\n').filter_map(parse).collect()
}

/// Returns the nvfold mounted at `dir`; the topmost one if there are several. Asks no server.
pub fn at(dir: &Path) -> Option<Mounted> {
    let find = |dir: &Path| all().into_iter().rev().find(|mounted| mounted.dir == dir);
    let named = find(&std::path::absolute(dir).ok()?);
    // A path on a mount is not resolved, because that would ask a server, which may be stuck.
    named.or_else(|| if above(dir).is_some() { None } else { find(&dir.canonicalize().ok()?) })
}

/// Returns the nvfold mount that a path is on, by the names of the path and of the mounts alone. Asks no server.
pub fn above(path: &Path) -> Option<Mounted> {
    let path = std::path::absolute(path).ok()?;
    if path.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let over = |mounted: &Mounted| path.starts_with(&mounted.dir);
    all().into_iter().filter(over).max_by_key(|mounted| mounted.dir.as_os_str().len())
}

/// Returns the mount of a device.
pub fn of_device(device: &Path) -> Option<Mounted> {
    let device = device.canonicalize().ok()?;
    all().into_iter().find(|mounted| Path::new(&mounted.source).canonicalize().is_ok_and(|source| source == device))
}

/// Parses a line: `36 35 98:0 / /mnt rw,noatime shared:1 - fuse.nvfold /dev/pmem0 rw,...`
fn parse(line: &[u8]) -> Option<Mounted> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let dash = fields.iter().position(|field| *field == b"-")?;
    let (number, dir, fs_type, source) = (fields.get(2)?, fields.get(4)?, fields.get(dash + 1)?, fields.get(dash + 2)?);
    let options = || fields.get(dash + 3).into_iter().flat_map(|options| options.split(|byte| *byte == b','));
    let read_only = options().any(|option| option == b"ro");
    let user = options().find_map(|option| std::str::from_utf8(option).ok()?.strip_prefix("user_id=")?.parse().ok());
    let ours = *fs_type == FS_TYPE.as_bytes();
    let number = String::from_utf8_lossy(number).into_owned();
    ours.then(|| Mounted { dir: PathBuf::from(unescape(dir)), source: unescape(source), number, read_only, user })
}

/// Decodes blanks, tabs, newlines and backslashes, which the table writes as `\040` and the like.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = field.get(at..at + 4).filter(|escape| escape[0] == b'\\');
        let octal = octal.and_then(|escape| std::str::from_utf8(&escape[1..]).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 4;
            }
            None => {
                plain.push(field[at]);
                at += 1;
            }
        }
    }
    OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_with_blanks_in_device_and_directory_is_found() {
        let line = br"40 29 0:36 / /mnt/a\040b rw,nosuid shared:5 - fuse.nvfold /dev/shm/x\134y rw,user_id=0";
        let expected = Mounted {
            dir: "/mnt/a b".into(),
            source: r"/dev/shm/x\y".into(),
            number: "0:36".into(),
            read_only: false,
            user: Some(0),
        };
        assert_eq!(parse(line), Some(expected));
        // A single mount point can be read-only although the file system is not.
        let only_there = br"40 29 0:36 / /mnt ro - fuse.nvfold /dev/x rw,user_id=0";
        let everywhere = br"40 29 0:36 / /mnt ro - fuse.nvfold /dev/x ro,user_id=0";
        assert!(!parse(only_there).unwrap().read_only && parse(everywhere).unwrap().read_only);
    }

    #[test]
    fn mounts_of_other_file_systems_are_skipped() {
        assert_eq!(parse(b"40 29 0:36 / /mnt rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"40 29"), None);
    }
}
