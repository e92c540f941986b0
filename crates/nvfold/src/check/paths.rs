//! Paths of inodes for the report. They need a second pass over the directories, which is done only if there is
//! something to report.

use super::{ROOT, Survey};
use crate::inode::{Body, Inode};
use crate::words::FileKind;
use hashbrown::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Most bytes of a path in a report: Linux's PATH_MAX.
const PATH_BYTES_MAX: usize = 4096;
/// Bytes that all paths of a report share. Each has [`PATH_BYTES_MIN`] in any case.
const PATHS_BYTES: usize = 16 << 20;
const PATH_BYTES_MIN: usize = 256;

impl Survey<'_> {
    /// Returns the paths of these inodes, if names lead to them. Of a long path only the end is kept: on a damaged
    /// device there may be as many as there are inodes, each as long as all names together.
    pub(super) fn paths(&self, wanted: HashSet<u64>) -> HashMap<u64, PathBuf> {
        let mut names: HashMap<u64, (u64, Vec<u8>)> = HashMap::new();
        for (ino, facts) in self.inodes.iter().filter(|(_, facts)| facts.kind == FileKind::Directory) {
            let Ok(Some(inode)) = Inode::load(self.region, &self.geometry, facts.slot, *ino) else { continue };
            let state = inode.into_state();
            let Body::Directory(directory) = &state.body else { continue };
            for slot in directory.after(0) {
                if slot.kind() == FileKind::Directory || wanted.contains(&slot.ino) {
                    names.insert(slot.ino, (*ino, slot.name(self.region)));
                }
            }
        }
        let bytes_max = (PATHS_BYTES / wanted.len().max(1)).clamp(PATH_BYTES_MIN, PATH_BYTES_MAX);
        wanted.iter().filter_map(|ino| Some((*ino, path_of(*ino, &names, bytes_max)?))).collect()
    }
}

/// Returns the path of an inode, or its last `bytes_max` bytes, by the directory and the name of each inode; `None` if
/// the names do not lead to it.
fn path_of(ino: u64, names: &HashMap<u64, (u64, Vec<u8>)>, bytes_max: usize) -> Option<PathBuf> {
    let mut parts: Vec<&[u8]> = Vec::new();
    let (mut at, mut bytes) = (ino, 0);
    // Ends in a loop of damaged names too, because no name is empty.
    while at != ROOT && bytes < bytes_max {
        let (parent, name) = names.get(&at)?;
        bytes += name.len() + 1;
        parts.push(name);
        at = *parent;
    }
    if at != ROOT {
        parts.push(b"...");
    }
    parts.push(b"");
    if parts.len() == 1 {
        parts.push(b"");
    }
    parts.reverse();
    Some(PathBuf::from(OsString::from_vec(parts.join(&b'/'))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_path_is_complete_or_shortened_at_the_front_and_ends_at_a_loop() {
        let mut names = HashMap::from_iter([(7, (ROOT, b"a".to_vec())), (8, (7, b"b".to_vec()))]);
        names.extend([(20, (21, b"x".to_vec())), (21, (20, b"y".to_vec())), (30, (31, b"lost".to_vec()))]);
        let path = |ino, bytes_max| path_of(ino, &names, bytes_max).map(|path| path.display().to_string());
        assert_eq!(path(ROOT, 100).as_deref(), Some("/"));
        assert_eq!(path(8, 100).as_deref(), Some("/a/b"));
        assert_eq!(path(8, 1).as_deref(), Some("/.../b"));
        assert_eq!(path(20, 6).as_deref(), Some("/.../x/y/x"));
        assert_eq!(path(30, 100), None);
    }
}
