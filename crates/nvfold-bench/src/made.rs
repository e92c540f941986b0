//! A tree that a benchmark makes and knows: directories of 19 files, in which no block is like another.
//!
//! The same tree is made by system calls or in an embedded file system. A copy of it is proven by the number of its
//! entries, and by content and time of change of a sample of its files.

use crate::{BenchError, Doing, Result};
use nvfold::{FileKind, FileSystem, InodeNumber, NewInode};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const BLOCK: usize = 4096;
/// Entries of which the first is a directory, and the others are its files.
const GROUP: u64 = 20;
/// Files of a copy whose content is compared.
const SAMPLE: u64 = 200;

/// A tree.
pub(crate) struct MadeTree {
    /// Directories and files below its top.
    pub entries: u64,
    /// Bytes of each file.
    pub file_bytes: usize,
}

impl MadeTree {
    /// Returns the number of its files.
    pub(crate) fn files(&self) -> u64 {
        self.entries - self.entries.div_ceil(GROUP)
    }

    /// Returns the number of blocks of its files.
    pub(crate) fn blocks(&self) -> u64 {
        self.files() * self.file_bytes.div_ceil(BLOCK) as u64
    }

    /// Returns the path of a file in the tree; entries are numbered. `None` for a directory.
    pub(crate) fn file(&self, entry: u64) -> Option<PathBuf> {
        (!entry.is_multiple_of(GROUP)).then(|| PathBuf::from(directory(entry)).join(file(entry)))
    }

    /// Fills a buffer with the content of a file. `version` distinguishes contents that a file has one after the other.
    pub(crate) fn fill(&self, entry: u64, version: u64, content: &mut [u8]) {
        for (block, bytes) in (0u64..).zip(content.chunks_mut(BLOCK)) {
            let stamp = [entry, block, version].map(u64::to_le_bytes).concat();
            let length = stamp.len().min(bytes.len());
            bytes[..length].copy_from_slice(&stamp[..length]);
        }
    }

    /// Returns bytes of the length of a file, which `fill` makes those of one.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        (0..self.file_bytes).map(|at| (at % 251) as u8).collect()
    }

    /// Makes it in a directory of the host.
    pub(crate) fn make_at(&self, top: &Path) -> Result<()> {
        let mut content = self.buffer();
        for entry in 0..self.entries {
            match self.file(entry) {
                None => fs::create_dir(top.join(directory(entry))).doing("make a directory of the tree")?,
                Some(file) => {
                    self.fill(entry, 0, &mut content);
                    let made = File::create(top.join(file)).and_then(|mut file| file.write_all(&content));
                    made.doing("make a file of the tree")?;
                }
            }
        }
        Ok(())
    }

    /// Makes it in a directory of an embedded file system.
    pub(crate) fn make_in(&self, fs: &FileSystem, top: InodeNumber) -> Result<()> {
        let mut content = self.buffer();
        let mut parent = top;
        for entry in 0..self.entries {
            if self.file(entry).is_none() {
                let made = fs.mkdir(top, directory(entry).as_bytes(), &new_inode(FileKind::Directory));
                parent = made.doing("make a directory of the tree")?.ino;
                continue;
            }
            self.fill(entry, 0, &mut content);
            let made = fs.create(parent, file(entry).as_bytes(), &new_inode(FileKind::Regular));
            let made = made.and_then(|made| fs.open(made.ino)).and_then(|file| file.write_at(0, &content));
            made.doing("make a file of the tree")?;
        }
        Ok(())
    }

    /// Proves that a directory of the host is a whole copy of the tree, which lies at `original`.
    pub(crate) fn check_at(&self, original: &Path, copy: &Path) -> Result<()> {
        self.check_count(&copy.display().to_string(), entries_below(copy)?)?;
        let mut expected = self.buffer();
        for (entry, file) in self.sample() {
            self.fill(entry, 0, &mut expected);
            let content = fs::read(copy.join(&file)).doing("read a file of the copy")?;
            let changed = |top: &Path| fs::metadata(top.join(&file)).and_then(|about| about.modified());
            let times = (changed(original).doing("look at a file")?, changed(copy).doing("look at a file")?);
            if content != expected || times.0 != times.1 {
                return Err(BenchError::Wrong(copy.join(file).display().to_string()));
            }
        }
        Ok(())
    }

    /// Proves the same of a directory in the root of an embedded file system, whose tree has the name `original`.
    pub(crate) fn check_in(&self, fs: &FileSystem, original: &str, copy: &str) -> Result<()> {
        let top = fs.lookup(InodeNumber::ROOT, copy.as_bytes()).doing("look the copy up")?.ino;
        self.check_count(copy, entries_in(fs, top)?)?;
        let (mut expected, mut content) = (self.buffer(), self.buffer());
        for (entry, file) in self.sample() {
            self.fill(entry, 0, &mut expected);
            let find = |top: &str| fs.resolve(format!("{top}/{}", file.display()).as_bytes()).doing("find a file");
            let (of, found) = (find(original)?, find(copy)?);
            let read = fs.open(found.ino).and_then(|file| file.read_at(0, &mut content)).doing("read a file")?;
            if read != expected.len() || content != expected || (of.size, of.mtime) != (found.size, found.mtime) {
                return Err(BenchError::Wrong(format!("{copy}/{}", file.display())));
            }
        }
        Ok(())
    }

    /// Proves that a copy has as many entries as the tree.
    pub(crate) fn check_count(&self, copy: &str, found: u64) -> Result<()> {
        match found == self.entries {
            true => Ok(()),
            false => Err(BenchError::NotWhole { copy: copy.into(), found, expected: self.entries }),
        }
    }

    /// Returns files that are spread evenly over the tree, with their numbers.
    fn sample(&self) -> impl Iterator<Item = (u64, PathBuf)> + '_ {
        let step = (self.entries / SAMPLE).max(1) | 1;
        (1..self.entries).step_by(step as usize).filter_map(|entry| Some((entry, self.file(entry)?)))
    }
}

/// Returns what a new file or directory is made with.
pub(crate) fn new_inode(kind: FileKind) -> NewInode {
    NewInode { kind, mode: 0o755, uid: 0, gid: 0, rdev: 0 }
}

fn directory(entry: u64) -> String {
    format!("directory{:07}", entry - entry % GROUP)
}

fn file(entry: u64) -> String {
    format!("file{entry:07}")
}

/// Counts what is below a directory of the host.
pub(crate) fn entries_below(top: &Path) -> Result<u64> {
    let (mut count, mut directories) = (0, vec![top.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).doing(format!("list {}", directory.display()))? {
            let entry = entry.doing("list the copy")?;
            count += 1;
            if entry.file_type().doing("look at a file")?.is_dir() {
                directories.push(entry.path());
            }
        }
    }
    Ok(count)
}

/// Counts what is below a directory of an embedded file system.
pub(crate) fn entries_in(fs: &FileSystem, top: InodeNumber) -> Result<u64> {
    let (mut count, mut directories) = (0, vec![top]);
    while let Some(directory) = directories.pop() {
        let mut each = |entry: nvfold::DirEntry| {
            count += 1;
            if entry.kind == FileKind::Directory {
                directories.push(entry.ino);
            }
            true
        };
        fs.readdir(directory, 0, &mut each).doing("list the copy")?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(tree: &MadeTree) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let (original, copy) = (dir.path().join("tree"), dir.path().join("copy"));
        fs::create_dir(&original).unwrap();
        tree.make_at(&original).unwrap();
        crate::process::run(std::process::Command::new("cp").arg("-a").arg(&original).arg(&copy)).unwrap();
        (dir, original, copy)
    }

    #[test]
    fn a_whole_copy_of_a_made_tree_is_accepted() {
        let tree = MadeTree { entries: 50, file_bytes: 5000 };
        let (_dir, original, copy) = made(&tree);
        assert_eq!((tree.files(), tree.blocks()), (47, 94));
        tree.check_at(&original, &copy).unwrap();
    }

    #[test]
    fn a_copy_without_a_file_with_another_byte_or_with_another_time_is_refused() {
        let tree = MadeTree { entries: 50, file_bytes: 5000 };
        let (_dir, original, copy) = made(&tree);
        let file = copy.join(tree.file(1).unwrap());
        let content = fs::read(&file).unwrap();
        let set_time = |like: &Path| {
            let time = fs::metadata(like).unwrap().modified().unwrap();
            File::open(&file).unwrap().set_modified(time).unwrap();
        };
        fs::write(&file, [&content[..4999], &[!content[4999]]].concat()).unwrap();
        set_time(&original.join(tree.file(1).unwrap()));
        assert!(matches!(tree.check_at(&original, &copy), Err(BenchError::Wrong(_))));
        fs::write(&file, &content).unwrap();
        File::open(&file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert!(matches!(tree.check_at(&original, &copy), Err(BenchError::Wrong(_))));
        set_time(&original.join(tree.file(1).unwrap()));
        tree.check_at(&original, &copy).unwrap();
        fs::remove_file(copy.join(tree.file(49).unwrap())).unwrap();
        let refused = tree.check_at(&original, &copy).unwrap_err().to_string();
        assert!(refused.contains("has 49 entries, and its tree has 50"), "{refused}");
    }
}
