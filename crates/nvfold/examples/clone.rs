//! Clones a tree: the copy is there at once, takes no space for data, and goes its own way from then on.
//!
//! ```sh
//! cargo run -p nvfold --example clone
//! ```

use nvfold::{CloneOptions, FileKind, FileSystem, InodeNumber, MkfsOptions, MountOptions, NewInode, Result};
use pmem::{DeviceSpec, OpenOptions, Region};

const MIB: u64 = 1 << 20;
const FILES: u64 = 8;

fn main() -> Result<()> {
    println!("{}", clone_a_tree()?);
    Ok(())
}

/// Makes a tree of files, clones it, changes a file of the copy, and returns what that took.
pub(crate) fn clone_a_tree() -> Result<String> {
    let region = Region::create(&DeviceSpec::Memory, 64 * MIB, &OpenOptions::default())?;
    FileSystem::mkfs(&region, &MkfsOptions::default())?;
    let fs = FileSystem::mount(region, MountOptions::default())?;

    let new = |kind, mode| NewInode { kind, mode, uid: 0, gid: 0, rdev: 0 };
    let tree = fs.mkdir(InodeNumber::ROOT, b"tree", &new(FileKind::Directory, 0o755))?.ino;
    for number in 0..FILES {
        let name = format!("file-{number}");
        let file = fs.open(fs.create(tree, name.as_bytes(), &new(FileKind::Regular, 0o644))?.ino)?;
        file.write_at(0, &content(number))?;
    }
    let before = fs.stats().stored_bytes;

    let clone = fs.clone_tree(tree, InodeNumber::ROOT, b"clone", &CloneOptions::default())?;
    let cloned = fs.stats().stored_bytes;

    let changed = fs.open(fs.lookup(clone.attr.ino, b"file-0")?.ino)?;
    changed.write_at(0, b"other")?;
    let original = fs.open(fs.lookup(tree, b"file-0")?.ino)?;
    let mut start = [0; 5];
    original.read_at(0, &mut start)?;
    assert_eq!(start[..], content(0)[..5], "the original is as it was");

    let kib = |bytes: u64| bytes >> 10;
    let told = format!(
        "tree: {} KiB; with its clone: {} KiB; after a change: {} KiB",
        kib(before),
        kib(cloned),
        kib(fs.stats().stored_bytes)
    );
    drop((changed, original));
    fs.unmount()?;
    Ok(told)
}

/// Returns data that no other file has.
fn content(number: u64) -> Vec<u8> {
    (0..MIB / 8).flat_map(|at| (number << 32 | at).to_le_bytes()).collect()
}
