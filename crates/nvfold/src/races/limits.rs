//! Races of the limits of trees: two writers for what is left, and charging what is below a directory against operations
//! that change it.

use super::*;
use crate::inode::Body;

const NO_LIMITS: Limits = Limits { logical_bytes: None, inodes: None, expires: None };

fn limit(fs: &FileSystem, directory: InodeNumber, limits: Limits) {
    fs.change_limits(directory, |all| *all = limits).unwrap();
}

/// Compares what the tree of a directory uses with what is charged to it, inode by inode.
fn used(fs: &FileSystem, top: InodeNumber) -> (u64, u64) {
    let core = fs.core();
    let number = core.inode(top.0).unwrap().peek().attributes.tree;
    let (mut bytes, mut inodes) = (0, 0);
    for ino in core.table.used() {
        let Ok(inode) = core.inode(ino) else { continue };
        let state = inode.peek();
        if state.attributes.tree == number {
            (bytes, inodes) = (bytes + state.mapped_bytes(), inodes + 1);
        }
    }
    let tree = fs.limited_tree(top).unwrap().unwrap();
    assert_eq!((tree.logical_bytes, tree.inodes), (bytes, inodes));
    (bytes, inodes)
}

/// Checks that all that is named below a directory is charged as it is.
fn all_below_have_its_number(fs: &FileSystem, directory: InodeNumber) {
    let core = fs.core();
    let (tree, below) = {
        let inode = core.inode(directory.0).unwrap();
        let state = inode.peek();
        let Body::Directory(names) = &state.body else { return };
        (state.attributes.tree, names.after(0).map(|name| name.ino).collect::<Vec<u64>>())
    };
    for ino in below {
        assert_eq!(core.inode(ino).unwrap().peek().attributes.tree, tree, "inode {ino} in {directory:?}");
        all_below_have_its_number(fs, InodeNumber(ino));
    }
}

/// A tree with a file in it and one below, and a directory beside it.
fn furnished() -> (Device, InodeNumber, InodeNumber) {
    let device = Device::new();
    let tree = device.directory("tree");
    let below = device.fs.mkdir(tree, b"below", &new_inode()).unwrap().ino;
    for (directory, name) in [(tree, "a"), (below, "b")] {
        let file = device.fs.open(create(&device.fs, directory, name)).unwrap();
        file.write_at(0, &block(7)).unwrap();
    }
    (device, tree, below)
}

#[test]
fn only_one_of_two_writers_gets_the_last_block() {
    explore(|| {
        let (device, tree, below) = furnished();
        limit(&device.fs, tree, Limits { logical_bytes: Some(3 * BLOCK_BYTES), ..NO_LIMITS });
        let files = [(tree, "a"), (below, "b")].map(|(directory, name)| {
            device.fs.open(device.fs.lookup(directory, name.as_bytes()).unwrap().ino).unwrap()
        });
        let [one, two] = files;
        let (one_done, two_done) = (Arc::new(nvfold_sync::Mutex::new(None)), Arc::new(nvfold_sync::Mutex::new(None)));
        let (told_one, told_two) = (one_done.clone(), two_done.clone());
        race([
            task(move || *told_one.lock() = Some(one.append(&block(8)).is_ok())),
            task(move || *told_two.lock() = Some(two.append(&block(9)).is_ok())),
        ]);
        assert_eq!([*one_done.lock(), *two_done.lock()].into_iter().filter(|done| *done == Some(true)).count(), 1);
        assert_eq!(used(&device.fs, tree), (3 * BLOCK_BYTES, 4));
        device.settle();
    });
}

/// What runs while a tree gets limits, or loses them; its arguments are the file system, the tree, and the directory below.
type Meanwhile = fn(&FileSystem, InodeNumber, InodeNumber);

fn charge_during(meanwhile: Meanwhile) {
    for loses in [false, true] {
        explore(move || {
            let (device, tree, below) = furnished();
            let limits = Limits { inodes: Some(99), ..NO_LIMITS };
            if loses {
                limit(&device.fs, tree, limits);
            }
            let (one, two) = (device.fs.clone(), device.fs.clone());
            race([
                task(move || limit(&one, tree, if loses { NO_LIMITS } else { limits })),
                task(move || meanwhile(&two, tree, below)),
            ]);
            // Without limits all have the number of the root.
            all_below_have_its_number(&device.fs, if loses { ROOT } else { tree });
            if !loses {
                used(&device.fs, tree);
            }
            device.settle();
        });
    }
}

#[test]
fn a_file_that_is_made_and_written_while_its_tree_is_charged_is_charged_to_it() {
    charge_during(|fs, tree, below| {
        let file = fs.open(create(fs, below, "new")).unwrap();
        file.write_at(0, &block(9)).unwrap();
        fs.unlink(tree, b"a").unwrap();
    });
}

#[test]
fn a_file_that_moves_within_a_tree_that_is_charged_is_charged_to_it() {
    charge_during(|fs, tree, below| {
        // Half of the tree may be charged and the other half not.
        let _ = fs.rename(tree, b"a", below, b"moved", RenameMode::Replace);
        let _ = fs.rename(below, b"b", below, b"renamed", RenameMode::Replace);
    });
}

#[test]
fn a_directory_that_comes_into_a_tree_that_is_charged_or_leaves_it_is_charged_as_its_place_is() {
    charge_during(|fs, tree, below| {
        let _ = fs.rename(tree, b"below", ROOT, b"out", RenameMode::Replace);
        let inner = fs.mkdir(below, b"inner", &new_inode()).unwrap().ino;
        create(fs, inner, "deep");
        let _ = fs.rename(below, b"inner", tree, b"up", RenameMode::Replace);
        let _ = fs.rename(ROOT, b"out", tree, b"back", RenameMode::Replace);
    });
}

#[test]
fn a_tree_is_removed_while_it_is_charged() {
    explore(|| {
        let (device, tree, _) = furnished();
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || _ = one.change_limits(tree, |limits| limits.inodes = Some(9))),
            task(move || {
                two.remove_tree(ROOT, b"tree").unwrap();
                while !two.remove_step().unwrap() {}
            }),
        ]);
        while !device.fs.remove_step().unwrap() {}
        assert!(device.fs.limited_trees().unwrap().is_empty());
        device.settle();
    });
}
