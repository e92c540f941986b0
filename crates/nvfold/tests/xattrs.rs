//! Extended attributes: their number and length are bounded, and long values are read from the media, wherever a
//! compaction has put them.

use crate::deext::Random;
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::collections::BTreeMap;

const ROOT: InodeNumber = InodeNumber::ROOT;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
/// The bounds of docs/limits.md.
const MOST: usize = 128;
const MOST_BYTES: usize = 512 << 10;

fn device() -> Region {
    let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    region
}

fn mount(region: &Region) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions::default()).unwrap()
}

fn file(fs: &FileSystem) -> InodeNumber {
    fs.create(ROOT, b"file", &NEW).unwrap().ino
}

fn name(nth: usize) -> Vec<u8> {
    format!("user.{nth}").into_bytes()
}

fn set(fs: &FileSystem, ino: InodeNumber, nth: usize, value: &[u8]) -> Result<()> {
    fs.set_xattr(ino, &name(nth), value, XattrMode::Set)
}

#[track_caller]
fn assert_full(result: Result<()>) {
    assert_eq!(result.unwrap_err().errno(), errno::ENOSPC);
}

/// Values of all lengths are replaced and removed until the log was compacted often, in files, directories and symlinks.
#[test]
fn attribute_values_survive_compactions_and_a_remount() {
    let region = device();
    let fs = mount(&region);
    let inodes = [
        file(&fs),
        fs.mkdir(ROOT, b"dir", &NewInode { kind: FileKind::Directory, ..NEW }).unwrap().ino,
        fs.symlink(ROOT, b"link", &[b't'; 700], &NEW).unwrap().ino,
    ];
    let mut random = Random(11);
    let mut wanted = [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()];
    let assert_all = |fs: &FileSystem, wanted: &[BTreeMap<usize, Vec<u8>>]| {
        for (ino, wanted) in inodes.iter().zip(wanted) {
            let mut names: Vec<Vec<u8>> = wanted.keys().map(|nth| name(*nth)).collect();
            let mut listed = fs.list_xattr(*ino).unwrap();
            names.sort();
            listed.sort();
            assert_eq!(listed, names);
            wanted.iter().for_each(|(nth, value)| assert!(fs.get_xattr(*ino, &name(*nth)).unwrap() == *value, "{nth}"));
        }
        assert_eq!(fs.readlink(inodes[2]).unwrap(), [b't'; 700]);
    };
    for step in 0..6_000 {
        let (at, nth) = (random.below(3) as usize, random.below(12) as usize);
        if random.below(5) == 0 && wanted[at].remove(&nth).is_some() {
            fs.remove_xattr(inodes[at], &name(nth)).unwrap();
        } else {
            let length = [0, 1, 63, 64, 65, 200, 1000, 1024, 1025, 5000][random.below(10) as usize];
            let value: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            set(&fs, inodes[at], nth, &value).unwrap();
            wanted[at].insert(nth, value);
        }
        if step % 50 == 0 {
            assert_all(&fs, &wanted);
        }
    }
    assert_all(&fs, &wanted);
    assert!(fs.getattr(inodes[1]).unwrap().size < 64 << 10, "the log was compacted");
    fs.unmount().unwrap();
    let fs = mount(&region);
    assert_all(&fs, &wanted);
    fs.unmount().unwrap();
    assert!(check::check(&region, &check::CheckOptions::default()).unwrap().findings.is_empty());
}

#[test]
fn the_number_of_attributes_is_bounded() {
    let region = device();
    let fs = mount(&region);
    let ino = file(&fs);
    (0..MOST).for_each(|nth| set(&fs, ino, nth, b"value").unwrap());
    assert_full(set(&fs, ino, MOST, b"value"));
    assert_full(
        fs.setattr_with(
            ino,
            &SetAttr { mode: Some(0o600), ..SetAttr::default() },
            &[XattrChange { name: b"user.x", value: Some(b"") }],
        )
        .map(drop),
    );
    assert_eq!(fs.getattr(ino).unwrap().mode & 0o777, 0o644, "an operation that fails changes nothing");
    set(&fs, ino, 7, b"another value").unwrap();
    fs.remove_xattr(ino, &name(3)).unwrap();
    set(&fs, ino, MOST, b"value").unwrap();
    assert_eq!(fs.list_xattr(ino).unwrap().len(), MOST);
}

#[test]
fn the_bytes_of_attributes_are_bounded() {
    let region = device();
    let fs = mount(&region);
    let ino = file(&fs);
    (0..7).for_each(|nth| set(&fs, ino, nth, &vec![1; 65_536]).unwrap());
    let rest = MOST_BYTES - 7 * 65_536 - 8 * name(0).len();
    assert_full(set(&fs, ino, 7, &vec![2; rest + 1]));
    assert_eq!(fs.get_xattr(ino, &name(7)).unwrap_err().errno(), errno::ENODATA);
    set(&fs, ino, 7, &vec![2; rest]).unwrap();
    assert_full(set(&fs, ino, 8, b""));
    set(&fs, ino, 0, b"short").unwrap();
    set(&fs, ino, 8, b"fits").unwrap();
}

/// A user who sets as much as he may on many files makes the server hold the names, and none of the values.
#[test]
fn long_attribute_values_take_no_dram() {
    let region = device();
    let fs = mount(&region);
    let before = fs.stats().inode_dram_bytes;
    let ino = file(&fs);
    (0..MOST).for_each(|nth| set(&fs, ino, nth, &[1; 1000]).unwrap());
    let taken = fs.stats().inode_dram_bytes - before;
    assert!(taken < MOST as u64 * 150, "{taken} bytes of DRAM for {MOST} values of 1000 bytes");
}
