//! Races of clones of trees with everything that changes a tree: the copy is the tree of one instant, so it has the first of
//! two changes and not the second, both, or neither.

use super::*;
use std::collections::BTreeMap;

/// What a tree holds: content or names, number of names in the tree and extended attribute of each path.
type Seen = BTreeMap<String, (FileKind, Vec<u8>, u32, Option<Vec<u8>>)>;

const XATTR: &[u8] = b"user.x";

fn seen(fs: &FileSystem, directory: InodeNumber, path: &str, all: &mut Seen) {
    for name in names::names(fs, directory) {
        let attr = fs.lookup(directory, name.as_bytes()).unwrap();
        let path = format!("{path}/{name}");
        let bytes = match attr.kind {
            FileKind::Regular => content(&fs.open(attr.ino).unwrap()),
            _ => Vec::new(),
        };
        let xattr = fs.get_xattr(attr.ino, XATTR).ok();
        // Names outside of the tree are not copied.
        let names = if attr.kind == FileKind::Regular { 0 } else { attr.nlink };
        all.insert(path.clone(), (attr.kind, bytes, names, xattr));
        if attr.kind == FileKind::Directory {
            seen(fs, attr.ino, &path, all);
        }
    }
}

fn seen_in(fs: &FileSystem, name: &str) -> Seen {
    let mut all = Seen::new();
    seen(fs, fs.lookup(ROOT, name.as_bytes()).unwrap().ino, "", &mut all);
    all
}

/// A device with a tree `tree` of two files and a directory, and a file beside it.
fn furnished(policy: Policy) -> (Device, InodeNumber, InodeNumber) {
    let device = Device::with(MountOptions { policy, ..MountOptions::default() });
    let tree = device.directory("tree");
    let below = device.fs.mkdir(tree, b"below", &new_inode()).unwrap().ino;
    for (directory, name, byte) in [(tree, "a", 1), (below, "b", 2), (ROOT, "beside", 3)] {
        let file = device.fs.open(create(&device.fs, directory, name)).unwrap();
        file.write_at(0, &block(byte)).unwrap();
        file.write_at(BLOCK as u64, &[byte; 100]).unwrap();
    }
    device.fs.set_clone_turn(1);
    (device, tree, below)
}

/// A change of the tree; its arguments are the file system, the tree, and the directory below it.
type TreeChange = fn(&FileSystem, InodeNumber, InodeNumber);

fn clone_during(changes: [TreeChange; 2], policy: Policy) {
    explore(move || {
        let mut allowed = Vec::new();
        let (alone, tree, below) = furnished(policy);
        allowed.push(seen_in(&alone.fs, "tree"));
        for change in changes {
            change(&alone.fs, tree, below);
            allowed.push(seen_in(&alone.fs, "tree"));
        }
        let (device, tree, below) = furnished(policy);
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || _ = one.clone_tree(tree, ROOT, b"copy", &CloneOptions::default()).unwrap()),
            task(move || changes.iter().for_each(|change| change(&two, tree, below))),
        ]);
        let copy = seen_in(&device.fs, "copy");
        let what: Vec<_> = copy.iter().map(|(path, (_, bytes, ..))| (path, bytes.len(), bytes.first())).collect();
        assert!(allowed.contains(&copy), "{what:?}");
        assert_eq!(seen_in(&device.fs, "tree"), allowed[2]);
        device.settle();
    });
}

fn file(fs: &FileSystem, directory: InodeNumber, name: &str) -> File {
    fs.open(fs.lookup(directory, name.as_bytes()).unwrap().ino).unwrap()
}

#[test]
fn a_write_and_an_append_are_in_a_clone_in_their_order() {
    let write: TreeChange = |fs, tree, _| file(fs, tree, "a").write_at(50, &block(9)).unwrap();
    let append: TreeChange = |fs, _, below| _ = file(fs, below, "b").append(&[8; 300]).unwrap();
    clone_during([write, append], Policy::Off);
    clone_during([append, write], Policy::Inline);
}

#[test]
fn a_file_that_leaves_a_tree_and_changes_is_in_the_clone_with_its_old_content() {
    let out: TreeChange = |fs, _, below| fs.rename(below, b"b", ROOT, b"b", RenameMode::Replace).unwrap();
    let write: TreeChange = |fs, _, _| file(fs, ROOT, "b").write_at(0, &block(9)).unwrap();
    clone_during([out, write], Policy::Off);
}

#[test]
fn a_file_that_comes_into_a_tree_is_in_the_clone_only_with_earlier_changes() {
    let truncate: TreeChange = |fs, tree, _| file(fs, tree, "a").set_len(10).unwrap();
    let into: TreeChange = |fs, _, below| fs.rename(ROOT, b"beside", below, b"in", RenameMode::Replace).unwrap();
    clone_during([truncate, into], Policy::Off);
}

#[test]
fn an_unlinked_file_is_in_the_clone_although_another_gets_its_number() {
    let unlink: TreeChange = |fs, tree, _| fs.unlink(tree, b"a").unwrap();
    let another: TreeChange = |fs, _, below| _ = create(fs, below, "other");
    clone_during([unlink, another], Policy::Off);
    clone_during([unlink, another], Policy::Inline);
}

#[test]
fn a_link_a_directory_and_an_attribute_are_in_a_clone_in_their_order() {
    let link: TreeChange = |fs, tree, below| _ = fs.link(fs.lookup(tree, b"a").unwrap().ino, below, b"l").unwrap();
    let mkdir: TreeChange = |fs, tree, _| _ = fs.mkdir(tree, b"new", &new_inode()).unwrap();
    let xattr: TreeChange = |fs, _, below| {
        let ino = fs.lookup(below, b"b").unwrap().ino;
        fs.set_xattr(ino, XATTR, b"value", XattrMode::Set).unwrap();
    };
    clone_during([link, mkdir], Policy::Off);
    clone_during([xattr, link], Policy::Off);
}

/// One of them fails, or has made the tree before.
#[test]
fn two_clones_to_one_name_make_one_tree() {
    explore(|| {
        let (device, tree, _) = furnished(Policy::Inline);
        let before = seen_in(&device.fs, "tree");
        let (one, two, three) = (device.fs.clone(), device.fs.clone(), device.fs.clone());
        race([
            task(move || drop(one.clone_tree(tree, ROOT, b"copy", &CloneOptions::default()))),
            task(move || drop(two.clone_tree(tree, ROOT, b"copy", &CloneOptions::default()))),
            task(move || while !three.fill_step().unwrap() {}),
        ]);
        assert_eq!(seen_in(&device.fs, "copy"), before);
        device.settle();
    });
}

#[test]
fn a_tree_is_removed_while_it_is_cloned() {
    explore(|| {
        let (device, tree, _) = furnished(Policy::Inline);
        let before = seen_in(&device.fs, "tree");
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || drop(one.clone_tree(tree, ROOT, b"copy", &CloneOptions::default()))),
            task(move || {
                two.remove_tree(ROOT, b"tree").unwrap();
                while !two.remove_step().unwrap() {}
            }),
        ]);
        if device.fs.lookup(ROOT, b"copy").is_ok() {
            assert_eq!(seen_in(&device.fs, "copy"), before);
        }
        while !device.fs.remove_step().unwrap() {}
        device.settle();
    });
}
