//! Real trees: the files of a folder of the machine, read into memory before anything is measured.

use crate::{Doing, Result};
use std::path::Path;

/// The files of a tree, or of a part of it.
pub(super) struct Tree {
    /// Its folder.
    pub name: String,
    /// Content of its files.
    pub files: Vec<Vec<u8>>,
}

impl Tree {
    /// Reads regular files, in the order of their names, up to `most_bytes` bytes.
    pub(super) fn read(root: &Path, most_bytes: u64) -> Result<Tree> {
        let mut files = Vec::new();
        let mut left = most_bytes;
        let mut pending = vec![root.to_owned()];
        while let Some(path) = pending.pop() {
            let what = || format!("read {}", path.display());
            let kind = std::fs::symlink_metadata(&path).doing(what())?;
            if kind.is_dir() {
                let entries = std::fs::read_dir(&path).doing(what())?;
                let mut entries: Vec<_> =
                    entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>().doing(what())?;
                entries.sort();
                pending.extend(entries.into_iter().rev());
            } else if kind.is_file() && kind.len() <= left {
                // Unreadable files are left out.
                let Ok(content) = std::fs::read(&path) else { continue };
                left -= content.len() as u64;
                files.push(content);
            }
        }
        Ok(Tree { name: root.display().to_string(), files })
    }

    /// Returns the bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }
}
