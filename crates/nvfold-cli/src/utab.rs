//! The table of umount(8) (/run/mount/utab), in which a mount by root is entered while it exists.
//!
//! The problem: `umount /absolute/path` takes the type of the file system from statfs(2), which says `fuse`, and so
//! never finds the helper umount.fuse.nvfold. It unmounts by itself and returns while the server still writes to the
//! device.
//!
//! The idea: umount(8) first looks for the mount in its table, and an entry there names the helper. libmount reads and
//! writes the table, so we keep to its rules (libmount/src/tab_update.c): one line an entry, changed under a lock on
//! `utab.lock`, and replaced as a whole by a rename. An entry counts if device, directory and root are those of the
//! kernel's table.
//!
//! ```text
//! SRC=/dev/shm/pool TARGET=/mnt ROOT=/ OPTS=uhelper=fuse.nvfold,_netdev
//! ```
//!
//! mount(8) leaves an entry that it finds as it is. So options that it would record, and passes on to us, are in ours.
//!
//! The table is a help, not a promise: where it cannot be written, mounting goes on, and opening the device waits for
//! the server (`pmem`).

use crate::mounts;
use rustix::fs::FlockOperation;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Names the helper: umount(8) runs /sbin/umount.fuse.nvfold.
const HELPER: &[u8] = b"uhelper=fuse.nvfold";
/// How long another process may hold the lock.
const LOCKS_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Enters the mount on `dir`, if this process is root. `options` are further ones that the table is to hold.
pub(crate) fn record(dir: &Path, options: &[String]) {
    let Some(mounted) = mounts::at(dir).filter(|_| is_root()) else { return };
    let entry = entry(&mounted.source, dir, options);
    // Best effort, as the module says.
    let _ = change(&path(), |lines| {
        lines.retain(|line| !is_ours(line, dir));
        lines.push(entry);
    });
}

/// Takes out the mount that was on `dir`, if this process is root and no nvfold is mounted there now.
pub(crate) fn forget(dir: &Path) {
    let path = path();
    if is_root() && path.exists() && mounts::at(dir).is_none() {
        let _ = change(&path, |lines| lines.retain(|line| !is_ours(line, dir)));
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the path of the table; as for libmount, the environment can name another.
fn path() -> PathBuf {
    std::env::var_os("LIBMOUNT_UTAB").map_or_else(|| "/run/mount/utab".into(), PathBuf::from)
}

fn entry(source: &OsStr, dir: &Path, options: &[String]) -> Vec<u8> {
    let mut line = Vec::new();
    for (name, value) in [("SRC", source.as_bytes()), ("TARGET", dir.as_os_str().as_bytes()), ("ROOT", b"/")] {
        line.extend_from_slice(format!("{name}=").as_bytes());
        line.extend(mangled(value));
        line.push(b' ');
    }
    line.extend_from_slice(b"OPTS=");
    line.extend_from_slice(HELPER);
    for option in options {
        line.push(b',');
        line.extend(mangled(option.as_bytes()));
    }
    line
}

/// Encodes what separates fields as the kernel's table does: a blank becomes `\040`.
fn mangled(value: &[u8]) -> Vec<u8> {
    let encode = |byte: &u8| match byte {
        b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
        byte => vec![*byte],
    };
    value.iter().flat_map(encode).collect()
}

/// Returns true for the line of an nvfold mount on `dir`.
fn is_ours(line: &[u8], dir: &Path) -> bool {
    let target = [b"TARGET=", mangled(dir.as_os_str().as_bytes()).as_slice()].concat();
    let names_helper = |field: &[u8]| {
        field.strip_prefix(b"OPTS=").is_some_and(|options| options.split(|byte| *byte == b',').any(|one| one == HELPER))
    };
    let mut fields = line.split(|byte| *byte == b' ');
    fields.clone().any(|field| field == target) && fields.any(names_helper)
}

/// Changes the lines of a table, under its lock. The table is replaced at once, or stays as it was.
fn change(path: &Path, edit: impl FnOnce(&mut Vec<Vec<u8>>)) -> io::Result<()> {
    let dir = path.parent().ok_or(ErrorKind::InvalidInput)?;
    fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
    let _lock = lock(&beside(path, ".lock"))?;
    let before = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let mut lines: Vec<Vec<u8>> =
        before.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect();
    edit(&mut lines);
    let after: Vec<u8> = lines.into_iter().flat_map(|line| [line, vec![b'\n']].concat()).collect();
    if after == before {
        return Ok(());
    }
    let new = beside(path, &format!(".nvfold-{}", std::process::id()));
    replace(path, &new, &after).inspect_err(|_| _ = fs::remove_file(&new))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn replace(path: &Path, new: &Path, content: &[u8]) -> io::Result<()> {
    // A process that had our number may have been killed here.
    let _ = fs::remove_file(new);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(content)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    fs::rename(new, path)
}

/// Takes the lock, which libmount takes too; it is released when the file is closed.
fn lock(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o644).open(path)?;
    let end = Instant::now() + LOCKS_WITHIN;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => thread::sleep(LOOK_AGAIN),
            locked => return locked.map(|()| file).map_err(io::Error::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_mount_table_has_device_directory_root_and_helper() {
        let line = entry("mem:".as_ref(), Path::new("/mnt/a b"), &["x-foo".into(), "_netdev".into()]);
        let text = String::from_utf8(line.clone()).unwrap();
        assert_eq!(text, r"SRC=mem: TARGET=/mnt/a\040b ROOT=/ OPTS=uhelper=fuse.nvfold,x-foo,_netdev");
        assert!(is_ours(&line, Path::new("/mnt/a b")) && !is_ours(&line, Path::new("/mnt/a")));
        assert!(!is_ours(b"SRC=x TARGET=/mnt ROOT=/ OPTS=uhelper=udisks2", Path::new("/mnt")));
    }

    #[test]
    fn concurrent_changes_of_the_mount_table_keep_lines_of_other_mounts() {
        let scratch = tempfile::tempdir().unwrap();
        let table = scratch.path().join("mount/utab");
        change(&table, |lines| lines.push(b"SRC=x TARGET=/other ROOT=/ OPTS=user=a".to_vec())).unwrap();
        thread::scope(|scope| {
            for number in 0..8 {
                let table = &table;
                scope.spawn(move || {
                    let dir = PathBuf::from(format!("/mnt/{number}"));
                    for _ in 0..20 {
                        change(table, |lines| lines.push(entry("d".as_ref(), &dir, &[]))).unwrap();
                        change(table, |lines| lines.retain(|line| !is_ours(line, &dir))).unwrap();
                    }
                    change(table, |lines| lines.push(entry("d".as_ref(), &dir, &[]))).unwrap();
                });
            }
        });
        let lines = fs::read_to_string(&table).unwrap();
        assert_eq!(lines.lines().count(), 9, "{lines}");
        assert!(lines.starts_with("SRC=x TARGET=/other ROOT=/ OPTS=user=a\n"));
        let left: Vec<_> =
            fs::read_dir(table.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }
}
