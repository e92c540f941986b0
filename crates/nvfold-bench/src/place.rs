//! Proof that a row was measured on the file system that the row names.
//!
//! The problem: a mount point without a mount is still a directory. A benchmark runs on it, and its rows then show
//! the file system underneath.
//!
//! The idea: the kernel shows the mount by which a file was opened (`mnt_id` in /proc/self/fdinfo), and the mount
//! table describes that mount. Every measured file and directory is looked up in this way, before and after each
//! pass. A mount that goes away in between is no longer in the table, even if its open files still work.

use crate::{BenchError, Doing, Result};
use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A type of file system as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsType {
    /// Its type in the mount table.
    pub name: &'static str,
    /// Its type in statfs(2).
    magic: u32,
}

impl FsType {
    /// A mount of nvfold.
    pub const NVFOLD: FsType = FsType { name: "fuse.nvfold", magic: FUSE_MAGIC };
    /// The FUSE file system of `bench ceiling`.
    pub const CEILING: FsType = FsType { name: "fuse.ceiling", magic: FUSE_MAGIC };
    /// tmpfs.
    pub const TMPFS: FsType = FsType { name: "tmpfs", magic: 0x0102_1994 };
    /// ext4.
    pub const EXT4: FsType = FsType { name: "ext4", magic: 0xEF53 };
    /// xfs.
    pub const XFS: FsType = FsType { name: "xfs", magic: 0x5846_5342 };
    /// btrfs.
    pub const BTRFS: FsType = FsType { name: "btrfs", magic: 0x9123_683E };
    /// overlayfs.
    pub const OVERLAY: FsType = FsType { name: "overlay", magic: 0x794C_7630 };

    /// Returns whether it is served through FUSE.
    pub fn is_fuse(self) -> bool {
        self.magic == FUSE_MAGIC
    }
}

const FUSE_MAGIC: u32 = 0x6573_5546;

/// A directory to measure in, and the file system that it must be on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// The file system.
    pub fs_type: FsType,
    /// Whether the directory is the root of its mount; otherwise it may be anywhere on one.
    is_mount_point: bool,
}

impl Place {
    /// Returns the root of a mount.
    pub fn mount_point(dir: &Path, fs_type: FsType) -> Place {
        Place { dir: dir.to_owned(), fs_type, is_mount_point: true }
    }

    /// Returns a directory somewhere on a mount.
    pub fn inside(dir: &Path, fs_type: FsType) -> Place {
        Place { dir: dir.to_owned(), fs_type, is_mount_point: false }
    }

    /// Proves that a path now leads to this file system.
    pub fn prove(&self, path: &Path) -> Result<()> {
        let file = File::open(path).doing(format!("open {}", path.display()))?;
        self.prove_open(path, &file)
    }

    /// Proves that an open file is on this file system, and that it is still mounted.
    pub fn prove_open(&self, path: &Path, file: &File) -> Result<()> {
        let found = Found::of(path, file)?;
        if self.is_what_was(&found) {
            return Ok(());
        }
        Err(BenchError::Elsewhere {
            path: path.display().to_string(),
            expected: self.to_string(),
            found: found.to_string(),
        })
    }

    fn is_what_was(&self, found: &Found) -> bool {
        let Some(mount) = &found.mount else { return false };
        let is_there = !self.is_mount_point || mount.dir == escaped(&self.dir);
        is_there && mount.fs_type == self.fs_type.name && found.magic == self.fs_type.magic
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (statfs type {:#x})", self.fs_type.name, self.fs_type.magic)?;
        if self.is_mount_point { write!(f, " mounted on {}", self.dir.display()) } else { Ok(()) }
    }
}

/// The file system of an open file.
struct Found {
    /// Its line of the mount table; `None` if the mount is gone from the tree.
    mount: Option<Mount>,
    /// Type in statfs(2).
    magic: u32,
}

impl Found {
    fn of(path: &Path, file: &File) -> Result<Found> {
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).doing("read fdinfo")?;
        let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
        let id = id.ok_or_else(|| BenchError::Wrong("/proc/self/fdinfo (no mnt_id)".into()))?;
        let mount = mount_table()?.into_iter().find(|mount| mount.id == id);
        let status = rustix::fs::fstatfs(file).map_err(std::io::Error::from);
        // The types fit 32 bits; sign and length of the field depend on the architecture.
        let magic = status.doing(format!("statfs {}", path.display()))?.f_type as u32;
        Ok(Found { mount, magic })
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mount {
            Some(Mount { fs_type, dir, .. }) => {
                write!(f, "{fs_type} (statfs type {:#x}) mounted on {dir}", self.magic)
            }
            None => write!(f, "a file system (statfs type {:#x}) that is no longer mounted", self.magic),
        }
    }
}

/// One line of the mount table.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    id: String,
    /// Mount point, with blanks and similar characters escaped as `\040`.
    dir: String,
    fs_type: String,
}

impl Mount {
    /// `36 35 98:0 / /mnt rw,noatime shared:1 - fuse.nvfold /dev/pmem0 rw,...`
    fn parse(line: &str) -> Option<Mount> {
        let (mount, fs) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (id, dir, fs_type) = (fields.next()?, fields.nth(3)?, fs.split(' ').next()?);
        Some(Mount { id: id.into(), dir: dir.into(), fs_type: fs_type.into() })
    }
}

fn mount_table() -> Result<Vec<Mount>> {
    let table = fs::read("/proc/self/mountinfo").doing("read the mount table")?;
    Ok(String::from_utf8_lossy(&table).lines().filter_map(Mount::parse).collect())
}

/// Returns whether something is mounted on a directory. It does not access the mount, so it cannot hang.
pub fn is_mount_point(dir: &Path) -> Result<bool> {
    let dir = escaped(dir);
    Ok(mount_table()?.iter().any(|mount| mount.dir == dir))
}

/// Returns the mount points on a directory and below it, in the order in which they were mounted. Paths with blanks are
/// left out: no benchmark makes them.
pub fn mount_points_below(dir: &Path) -> Vec<PathBuf> {
    let mounts = mount_table().unwrap_or_default().into_iter();
    mounts.map(|mount| PathBuf::from(mount.dir)).filter(|mounted| mounted.starts_with(dir)).collect()
}

/// Returns a path as the mount table writes it.
fn escaped(path: &Path) -> String {
    let path = path.to_string_lossy().replace('\\', r"\134");
    path.replace(' ', r"\040").replace('\t', r"\011").replace('\n', r"\012")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(proof: Result<()>) -> String {
        match proof {
            Err(error @ BenchError::Elsewhere { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_directory_without_a_mount_is_not_mistaken_for_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lane0");
        let open = File::create(&file).unwrap();
        for fs_type in [FsType::NVFOLD, FsType::CEILING, FsType::EXT4, FsType::XFS, FsType::BTRFS, FsType::TMPFS] {
            let place = Place::mount_point(dir.path(), fs_type);
            let expected = format!("not on {} (statfs type", fs_type.name);
            for said in [why(place.prove(dir.path())), why(place.prove_open(&file, &open))] {
                assert!(said.contains(&expected), "{said}");
                assert!(said.contains(&format!("mounted on {}: ", dir.path().display())), "{said}");
            }
        }
    }

    #[test]
    fn type_mount_point_and_statfs_must_all_agree() {
        const PROC: FsType = FsType { name: "proc", magic: 0x9FA0 };
        let proc = Path::new("/proc");
        Place::mount_point(proc, PROC).prove(proc).unwrap();
        Place::inside(&proc.join("self"), PROC).prove(&proc.join("self")).unwrap();
        why(Place::mount_point(&proc.join("self"), PROC).prove(&proc.join("self")));
        why(Place::mount_point(proc, FsType { magic: 1, ..PROC }).prove(proc));
        why(Place::mount_point(proc, FsType { name: "tmpfs", ..PROC }).prove(proc));
        // A path may lead off the mount, even from below it.
        why(Place::mount_point(proc, PROC).prove(&proc.join("self/root")));
    }

    #[test]
    fn a_line_of_the_mount_table_is_parsed() {
        let line = r"40 29 0:36 / /mnt/a\040b rw,nosuid shared:5 - fuse.nvfold mem: rw,user_id=0";
        let expected = Mount { id: "40".into(), dir: escaped(Path::new("/mnt/a b")), fs_type: "fuse.nvfold".into() };
        assert_eq!(Mount::parse(line), Some(expected));
        assert_eq!(Mount::parse(""), None);
        assert_eq!(Mount::parse("40 29 - "), None);
    }
}
