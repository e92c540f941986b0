//! A rename that leaves a whiteout: what the old name then refers to, and when there is none.

use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

const ROOT: InodeNumber = InodeNumber::ROOT;
const FILE: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 1, gid: 2, rdev: 0 };
const DIRECTORY: NewInode = NewInode { kind: FileKind::Directory, mode: 0o755, ..FILE };
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// A device with the file `file` in the directory `dir`.
struct Tree {
    region: Region,
    fs: FileSystem,
    dir: InodeNumber,
    file: InodeNumber,
}

impl Tree {
    fn new(dir: &NewInode) -> Tree {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        let dir = fs.mkdir(ROOT, b"dir", dir).unwrap().ino;
        let file = fs.create(dir, b"file", &FILE).unwrap().ino;
        Tree { region, fs, dir, file }
    }

    /// Renames `file`, and leaves a whiteout of user 3 and group 4.
    fn rename(&self, to: InodeNumber, name: &[u8], replaces: bool) -> Result<()> {
        self.fs.rename(self.dir, b"file", to, name, RenameMode::Whiteout { uid: 3, gid: 4, replaces })
    }

    fn check(self) {
        self.fs.unmount().unwrap();
        let report = check(&self.region, &CheckOptions::default()).unwrap();
        assert!(report.findings.is_empty() && report.clean, "{report:#?}");
    }
}

#[test]
fn a_whiteout_is_a_device_of_the_caller_and_inherits_nothing_but_the_group() {
    for set_group_id in [0, 0o2000] {
        let tree = Tree::new(&NewInode { mode: 0o755 | set_group_id, ..DIRECTORY });
        tree.fs.set_xattr(tree.dir, DEFAULT_ACL, b"an ACL", XattrMode::Set).unwrap();
        tree.fs.set_xattr(tree.dir, POLICY_ATTRIBUTE, b"off", XattrMode::Set).unwrap();
        tree.rename(ROOT, b"moved", true).unwrap();
        assert_eq!(tree.fs.lookup(ROOT, b"moved").unwrap().ino, tree.file);
        let left = tree.fs.lookup(tree.dir, b"file").unwrap();
        assert_eq!((left.kind, left.mode, left.rdev, left.nlink), (FileKind::CharDevice, 0, 0, 1));
        assert_eq!((left.uid, left.gid), (3, if set_group_id == 0 { 4 } else { 2 }));
        assert_eq!(tree.fs.list_xattr(left.ino).unwrap(), Vec::<Vec<u8>>::new());
        let mut names = Vec::new();
        let each = &mut |entry: DirEntry| {
            names.push((entry.name, entry.kind));
            true
        };
        tree.fs.readdir(tree.dir, 0, each).unwrap();
        assert_eq!(names, [(b"file".to_vec(), FileKind::CharDevice)]);
        tree.check();
    }
}

#[test]
fn a_whiteout_is_replaced_linked_and_removed_as_any_file() {
    let tree = Tree::new(&DIRECTORY);
    tree.rename(tree.dir, b"moved", true).unwrap();
    let whiteout = tree.fs.lookup(tree.dir, b"file").unwrap().ino;
    tree.fs.link(whiteout, ROOT, b"linked").unwrap();
    tree.fs.rename(tree.dir, b"moved", tree.dir, b"file", RenameMode::Replace).unwrap();
    assert_eq!(tree.fs.lookup(tree.dir, b"file").unwrap().ino, tree.file);
    assert_eq!(tree.fs.getattr(whiteout).unwrap().nlink, 1);
    tree.fs.unlink(ROOT, b"linked").unwrap();
    assert_eq!(tree.fs.getattr(whiteout).unwrap_err().errno(), errno::ENOENT);
    tree.check();
}

#[test]
fn a_rename_that_changes_nothing_leaves_no_whiteout() {
    let tree = Tree::new(&DIRECTORY);
    tree.fs.link(tree.file, tree.dir, b"other name").unwrap();
    tree.fs.create(ROOT, b"taken", &FILE).unwrap();
    tree.fs.mkdir(ROOT, b"directory", &DIRECTORY).unwrap();
    let inodes = tree.fs.stats().inodes;
    tree.rename(tree.dir, b"other name", true).unwrap();
    let refused = [
        (tree.rename(ROOT, b"taken", false), errno::EEXIST),
        (tree.rename(tree.dir, b"other name", false), errno::EEXIST),
        (tree.rename(ROOT, b"directory", true), errno::EISDIR),
        (tree.rename(ROOT, &[b'n'; 256], true), errno::ENAMETOOLONG),
        (tree.rename(tree.file, b"new", true), errno::ENOTDIR),
    ];
    for (result, errno) in refused {
        assert_eq!(result.unwrap_err().errno(), errno);
        assert_eq!(tree.fs.lookup(tree.dir, b"file").unwrap().ino, tree.file);
    }
    assert_eq!(tree.fs.stats().inodes, inodes);
    tree.check();
}
