//! Everything that `stat` and related calls report about a directory tree, to compare with.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A tree by relative path.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// One inode as its owner sees it, without anything that a file system may choose freely.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Kind and permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Device number of a device node.
    pub rdev: u64,
    /// Bytes; 0 for directories.
    pub size: u64,
    /// Modification time in ns.
    pub mtime: i128,
    /// The first path (in order) with the same inode.
    pub first_link: PathBuf,
    /// CRC of the content, or of a symlink's target.
    pub content: u32,
    /// Extended attributes with their values, including ACLs.
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
}

/// Reads a tree, without the root itself.
pub fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut first_links = HashMap::new();
    visit(root, Path::new(""), &mut tree, &mut first_links);
    tree
}

/// Panics with the first few differences unless the trees are equal.
#[track_caller]
pub fn assert_same(got: &Tree, expected: &Tree) {
    let mut differences = Vec::new();
    for (path, entry) in expected {
        match got.get(path) {
            None => differences.push(format!("{}: missing", path.display())),
            Some(found) if found != entry => {
                differences.push(format!("{}:\n  {found:?}\n  expected\n  {entry:?}", path.display()));
            }
            _ => {}
        }
    }
    let unexpected = got.keys().filter(|path| !expected.contains_key(*path));
    differences.extend(unexpected.map(|path| format!("{}: unexpected", path.display())));
    let shown: Vec<_> = differences.iter().take(5).cloned().collect();
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), shown.join("\n"));
}

fn visit(root: &Path, dir: &Path, tree: &mut Tree, first_links: &mut HashMap<u64, PathBuf>) {
    let listing = std::fs::read_dir(root.join(dir)).expect("list a directory");
    let mut names: Vec<_> = listing.map(|entry| entry.expect("read a directory").file_name()).collect();
    names.sort();
    for name in names {
        let path = dir.join(&name);
        let full = root.join(&path);
        let meta = full.symlink_metadata().expect("stat");
        let first_link = first_links.entry(meta.ino()).or_insert_with(|| path.clone()).clone();
        let entry = Entry {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            rdev: if meta.is_file() || meta.is_dir() { 0 } else { meta.rdev() },
            size: if meta.is_dir() { 0 } else { meta.len() },
            mtime: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
            first_link,
            content: content(&full, &meta),
            xattrs: xattrs(&full),
        };
        tree.insert(path.clone(), entry);
        if meta.is_dir() {
            visit(root, &path, tree, first_links);
        }
    }
}

fn content(path: &Path, meta: &std::fs::Metadata) -> u32 {
    if meta.is_symlink() {
        let target = std::fs::read_link(path).expect("read a symlink");
        return crc32c::crc32c(&target.into_os_string().into_vec());
    }
    if !meta.is_file() {
        return 0;
    }
    let mut file = File::open(path).expect("open");
    let mut buffer = vec![0; 1 << 18];
    let mut checksum = 0;
    loop {
        let count = file.read(&mut buffer).expect("read");
        if count == 0 {
            return checksum;
        }
        checksum = crc32c::crc32c_append(checksum, &buffer[..count]);
    }
}

fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut list[..]).expect("list xattrs");
    let names = list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 65536];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).expect("get an xattr");
            value.truncate(len);
            (OsString::from_vec(name.to_vec()), value)
        })
        .collect()
}
