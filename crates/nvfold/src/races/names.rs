//! Races on names: lookups, opens and changes while a file is renamed or removed and its inode number is reused.

use super::*;
use crate::errno;
use crate::inode::table::write_segment;
use crate::media::inode::{ATTRIBUTE_LINES, AttributeLine, INODES_PER_SEGMENT, InodeHead};
use crate::media::log_area::AREAS_MAX;
use crate::media::segment::SegmentEntry;
use crate::media::superblock::{LOG_AREAS, Superblock};
use crate::media::{SEGMENT_BYTES, inode::INODE_BYTES};
use crate::{Error, Result};
use zerocopy::IntoBytes;

/// Returns the value, or `None` if it failed with one of these errors; panics on any other error.
fn allow<T>(result: Result<T>, errnos: &[i32]) -> Option<T> {
    let unexpected = |error: &Error| !errnos.contains(&error.errno());
    assert!(!result.as_ref().is_err_and(unexpected), "{:?}", result.err());
    result.ok()
}

fn owned_by(uid: u32) -> NewInode {
    NewInode { uid, ..new_inode() }
}

fn rename(fs: &FileSystem, from: (InodeNumber, &str), to: (InodeNumber, &str), mode: RenameMode) -> Result<()> {
    fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode)
}

pub(super) fn names(fs: &FileSystem, directory: InodeNumber) -> Vec<String> {
    let mut names = Vec::new();
    let mut each = |entry: DirEntry| {
        names.push(String::from_utf8(entry.name).unwrap());
        true
    };
    fs.readdir(directory, 0, &mut each).unwrap();
    names.sort_unstable();
    names
}

#[test]
fn renames_between_two_directories_in_both_directions_do_not_deadlock() {
    explore(|| {
        let device = Device::new();
        let (left, right) = (device.directory("left"), device.directory("right"));
        create(&device.fs, left, "a");
        create(&device.fs, right, "b");
        let fs = [0; 3].map(|_| device.fs.clone());
        let [one, two, three] = fs;
        race([
            task(move || rename(&one, (left, "a"), (right, "a"), RenameMode::Replace).unwrap()),
            task(move || rename(&two, (right, "b"), (left, "b"), RenameMode::Replace).unwrap()),
            task(move || {
                let mode = RenameMode::Exchange;
                allow(rename(&three, (left, "a"), (right, "b"), mode), &[errno::ENOENT]);
            }),
        ]);
        let (in_left, in_right) = (names(&device.fs, left), names(&device.fs, right));
        assert_eq!((in_left.len(), in_right.len()), (1, 1), "{in_left:?} {in_right:?}");
        device.settle();
    });
}

#[test]
fn a_name_that_gets_a_whiteout_is_never_absent() {
    explore(|| {
        let device = Device::new();
        let (left, right) = (device.directory("left"), device.directory("right"));
        create(&device.fs, left, "a");
        create(&device.fs, ROOT, "gone");
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        race([
            task(move || {
                let mode = RenameMode::Whiteout { uid: 3, gid: 4, replaces: false };
                rename(&one, (left, "a"), (right, "b"), mode).unwrap();
            }),
            task(move || {
                let found = two.lookup(left, b"a").unwrap();
                assert!(
                    matches!((found.kind, found.uid), (FileKind::Regular, 0) | (FileKind::CharDevice, 3)),
                    "{found:?}"
                );
            }),
            // The whiteout may get this number.
            task(move || {
                let gone = three.lookup(ROOT, b"gone").unwrap().ino;
                three.unlink(ROOT, b"gone").unwrap();
                let _ = three.open(gone);
            }),
        ]);
        assert_eq!((names(&device.fs, left), names(&device.fs, right)), (vec!["a".into()], vec!["b".into()]));
        device.settle();
    });
}

#[test]
fn two_directories_cannot_be_moved_into_each_other() {
    explore(|| {
        let device = Device::new();
        let (left, right) = (device.directory("left"), device.directory("right"));
        let (one, two) = (device.fs.clone(), device.fs.clone());
        let moves = |fs: FileSystem, from: &'static str, to: (InodeNumber, &'static str)| {
            task(move || allow(rename(&fs, (ROOT, from), to, RenameMode::Replace), &[errno::EINVAL]))
        };
        race([moves(one, "left", (right, "in")), moves(two, "right", (left, "in"))]);
        assert_eq!(names(&device.fs, ROOT).len(), 1);
        device.settle();
    });
}

#[test]
fn a_directory_gets_a_name_while_it_is_removed() {
    explore(|| {
        let device = Device::new();
        let directory = device.directory("d");
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || allow(one.create(directory, b"f", &new_inode()), &[errno::ENOENT])),
            task(move || allow(two.rmdir(ROOT, b"d"), &[errno::ENOTEMPTY])),
        ]);
        if let Some(attr) = allow(device.fs.lookup(ROOT, b"d"), &[errno::ENOENT]) {
            assert_eq!(names(&device.fs, attr.ino), ["f"]);
        }
        device.settle();
    });
}

#[test]
fn two_threads_cannot_create_one_name_twice() {
    explore(|| {
        let device = Device::new();
        let fs = [0; 3].map(|_| device.fs.clone());
        race(fs.map(|fs| task(move || allow(fs.create(ROOT, b"f", &new_inode()), &[errno::EEXIST]))));
        assert_eq!(names(&device.fs, ROOT), ["f"]);
        device.settle();
    });
}

#[test]
fn the_last_name_of_a_file_is_removed_while_another_is_made() {
    explore(|| {
        let device = Device::new();
        let file = device.file("a");
        file.write_at(0, &block(1)).unwrap();
        let ino = file.ino();
        drop(file);
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || one.unlink(ROOT, b"a").unwrap()),
            task(move || allow(two.link(ino, ROOT, b"b"), &[errno::ENOENT])),
        ]);
        if let Some(attr) = allow(device.fs.lookup(ROOT, b"b"), &[errno::ENOENT]) {
            assert_eq!((attr.ino, attr.nlink, attr.size), (ino, 1, 4096));
        }
        device.settle();
    });
}

#[test]
fn a_file_gets_another_name_and_a_directory_a_file_while_their_tree_is_removed() {
    explore(|| {
        let device = Device::new();
        let directory = device.directory("d");
        let below = device.fs.mkdir(directory, b"below", &new_inode()).unwrap().ino;
        let ino = device.fs.create(below, b"a", &new_inode()).unwrap().ino;
        let fs = [0; 3].map(|_| device.fs.clone());
        let [one, two, three] = fs;
        race([
            task(move || {
                one.remove_tree(ROOT, b"d").unwrap();
                while !one.remove_step().unwrap() {}
            }),
            task(move || allow(two.link(ino, ROOT, b"b"), &[errno::ENOENT])),
            task(move || allow(three.create(below, b"late", &new_inode()), &[errno::ENOENT])),
        ]);
        if let Some(attr) = allow(device.fs.lookup(ROOT, b"b"), &[errno::ENOENT]) {
            assert_eq!((attr.ino, attr.nlink), (ino, 1));
        }
        assert_eq!(device.fs.stats().removing, Removing::default());
        assert!(device.fs.getattr(below).is_err() && device.fs.getattr(directory).is_err());
        device.settle();
    });
}

/// What leaves the tree in time is kept, and what comes into it goes.
#[test]
fn names_move_out_of_a_tree_and_into_it_while_it_is_removed() {
    explore(|| {
        let device = Device::new();
        let directory = device.directory("d");
        let below = device.fs.mkdir(directory, b"below", &new_inode()).unwrap().ino;
        device.fs.mkdir(below, b"out", &new_inode()).unwrap();
        create(&device.fs, ROOT, "in");
        let fs = [0; 3].map(|_| device.fs.clone());
        let [one, two, three] = fs;
        race([
            task(move || {
                one.remove_tree(ROOT, b"d").unwrap();
                while !one.remove_step().unwrap() {}
            }),
            task(move || allow(rename(&two, (below, "out"), (ROOT, "out"), RenameMode::Replace), &[errno::ENOENT])),
            task(move || allow(rename(&three, (ROOT, "in"), (below, "in"), RenameMode::Replace), &[errno::ENOENT])),
        ]);
        for (name, nlink) in [(&b"out"[..], 2), (b"in", 1)] {
            if let Some(attr) = allow(device.fs.lookup(ROOT, name), &[errno::ENOENT]) {
                assert_eq!(attr.nlink, nlink);
            }
        }
        assert_eq!(device.fs.stats().removing, Removing::default());
        device.settle();
    });
}

/// The inode number of the removed file is reused at once.
#[test]
fn a_lookup_never_returns_another_file() {
    explore(|| {
        let device = Device::new();
        device.fs.create(ROOT, b"a", &owned_by(1)).unwrap();
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || {
                if let Some(attr) = allow(one.lookup(ROOT, b"a"), &[errno::ENOENT]) {
                    assert_eq!((attr.uid, attr.nlink), (1, 1));
                }
            }),
            task(move || {
                two.unlink(ROOT, b"a").unwrap();
                two.create(ROOT, b"b", &owned_by(2)).unwrap();
            }),
        ]);
        device.settle();
    });
}

#[test]
fn the_parent_of_a_directory_is_correct_while_it_moves() {
    explore(|| {
        let device = Device::new();
        let (old, new) = (device.directory("old"), device.directory("new"));
        let child = device.fs.mkdir(old, b"child", &new_inode()).unwrap().ino;
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || {
                let parent = one.lookup(child, b"..").unwrap();
                assert!(parent.kind == FileKind::Directory && [old, new].contains(&parent.ino), "{parent:?}");
            }),
            task(move || {
                rename(&two, (old, "child"), (new, "child"), RenameMode::Replace).unwrap();
                two.rmdir(ROOT, b"old").unwrap();
                create(&two, ROOT, "file");
            }),
        ]);
        device.settle();
    });
}

#[test]
fn a_file_is_opened_while_its_last_name_is_removed() {
    explore(|| {
        let device = Device::new();
        let file = device.file("a");
        file.write_at(0, &block(1)).unwrap();
        let ino = file.ino();
        drop(file);
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || {
                if let Some(file) = allow(one.open(ino), &[errno::ENOENT]) {
                    file.append(&block(2)).unwrap();
                    assert_eq!(content(&file), [block(1), block(2)].concat());
                }
            }),
            task(move || two.unlink(ROOT, b"a").unwrap()),
        ]);
        assert!(device.fs.getattr(ino).is_err());
        assert_eq!(device.fs.stats().data_blocks, 0);
        device.settle();
    });
}

/// The last `File` of a nameless inode is dropped while another is opened: exactly one of them frees the inode.
#[test]
fn a_nameless_file_is_opened_while_it_is_closed() {
    explore(|| {
        let device = Device::new();
        let file = device.file("a");
        file.write_at(0, &block(1)).unwrap();
        let ino = file.ino();
        device.fs.unlink(ROOT, b"a").unwrap();
        let fs = device.fs.clone();
        race([
            task(move || drop(file)),
            task(move || {
                if let Some(file) = allow(fs.open(ino), &[errno::ENOENT]) {
                    assert_eq!(content(&file), block(1));
                }
            }),
        ]);
        assert_eq!(device.fs.stats().data_blocks, 0);
        device.settle();
    });
}

/// A thread still has the inode number of a removed file, and opens it.
#[test]
fn a_new_nameless_file_is_not_freed_through_an_older_file_of_its_number() {
    explore(|| {
        let device = Device::new();
        let ino = create(&device.fs, ROOT, "a");
        device.fs.unlink(ROOT, b"a").unwrap();
        let (one, two) = (device.fs.clone(), device.fs.clone());
        race([
            task(move || allow(one.open(ino), &[errno::ENOENT])),
            task(move || {
                let file = two.tmpfile(&new_inode()).unwrap();
                file.write_at(0, &block(1)).unwrap();
                two.link(file.ino(), ROOT, b"b").unwrap();
            }),
        ]);
        assert_eq!(device.fs.lookup(ROOT, b"b").unwrap().size, 4096);
        device.settle();
    });
}

/// Attributes are changed by inode number while that number is reused by another file.
#[test]
fn a_change_of_a_removed_file_does_not_reach_the_next_file_in_its_slot() {
    explore(|| {
        let device = Device::new();
        let ino = create(&device.fs, ROOT, "a");
        device.fs.set_xattr(ino, b"user.old", b"1", XattrMode::Set).unwrap();
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        race([
            task(move || {
                let change = SetAttr { atime: Some(5), ..SetAttr::default() };
                allow(one.setattr(ino, &change), &[errno::ENOENT, errno::ESTALE]);
            }),
            task(move || allow(two.set_xattr(ino, b"user.x", b"2", XattrMode::Set), &[errno::ENOENT])),
            task(move || {
                three.unlink(ROOT, b"a").unwrap();
                let attr = three.create(ROOT, b"b", &owned_by(2)).unwrap();
                let file = three.open(attr.ino).unwrap();
                file.write_at(0, &block(1)).unwrap();
            }),
        ]);
        let attr = device.fs.lookup(ROOT, b"b").unwrap();
        assert_eq!((attr.size, attr.uid), (4096, 2));
        let left = device.fs.list_xattr(attr.ino).unwrap();
        assert!(!left.contains(&b"user.old".to_vec()));
        device.settle();
    });
}

/// A log takes a slot of the inode table as soon as it is free, and frees it again, while others create inodes and
/// look up names.
#[test]
fn a_slot_is_never_used_by_an_inode_and_a_log_at_once() {
    explore(|| {
        let device = Device::new();
        let directory = device.directory("d");
        (0..5).for_each(|number| _ = create(&device.fs, directory, &format!("{number}")));
        device.file("gone").write_at(0, &block(1)).unwrap();
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        race([
            task(move || create(&one, directory, "with an area")),
            task(move || {
                two.unlink(ROOT, b"gone").unwrap();
                two.open(create(&two, ROOT, "new")).unwrap().write_at(0, &block(2)).unwrap();
            }),
            task(move || {
                assert!(three.lookup(directory, b"4").is_ok());
                allow(three.lookup(directory, b"with an area"), &[errno::ENOENT]);
            }),
        ]);
        let expected: Vec<String> = (0..5).map(|number| format!("{number}")).chain(["with an area".into()]).collect();
        assert_eq!(names(&device.fs, directory), expected);
        assert_eq!(device.fs.stats().log_areas, 1);
        assert_eq!(content(&device.fs.open(device.fs.lookup(ROOT, b"new").unwrap().ino).unwrap()), block(2));
        let [one, two] = [0; 2].map(|_| device.fs.clone());
        for name in expected {
            device.fs.unlink(directory, name.as_bytes()).unwrap();
        }
        race([
            task(move || one.rmdir(ROOT, b"d").unwrap()),
            task(move || (create(&two, ROOT, "x"), create(&two, ROOT, "y"))),
        ]);
        assert_eq!(device.fs.stats().log_areas, 1, "the root's");
        device.settle();
    });
}

/// Two logs are the first to outgrow their slots, at the same time: the feature flag must be set before either has an
/// area.
#[test]
fn the_feature_flag_is_durable_before_the_first_log_area_in_use() {
    explore(|| {
        let device = Device::new();
        let directories = ["a", "b"].map(|name| device.directory(name));
        for directory in directories {
            (0..5).for_each(|number| _ = create(&device.fs, directory, &format!("{number}")));
        }
        let grows = |directory| {
            let (fs, region) = (device.fs.clone(), device.region.clone());
            task(move || {
                create(&fs, directory, "with an area");
                let copies = crate::read_superblock(&region).unwrap().1.copies();
                let tells = |copy| region.read::<Superblock>(copy).incompatible & LOG_AREAS != 0;
                assert!(copies.into_iter().all(tells));
            })
        };
        race(directories.map(grows));
        device.settle();
    });
}

/// Returns the nonzero parts of a device whose first inode table segment is full, and whose second one has no inodes.
fn full_table() -> Vec<(u64, Vec<u8>)> {
    let device = Device::new();
    // The root's log takes slots, too.
    for number in 2..INODES_PER_SEGMENT - AREAS_MAX as u64 {
        assert!(create(&device.fs, ROOT, &format!("{number}")).0 < INODES_PER_SEGMENT);
    }
    assert_eq!(create(&device.fs, ROOT, "last").0, INODES_PER_SEGMENT);
    device.fs.unlink(ROOT, b"last").unwrap();
    // No unmount, because it would free the second segment.
    let parts = device.region.allocated_ranges(0, DEVICE_BYTES);
    parts.into_iter().map(|part| (part.start, device.region.to_vec(part.start, part.end - part.start))).collect()
}

/// The last segment of the inode table is freed whenever it has no inode, while inodes are created and removed there,
/// and data is stored where the table was.
#[test]
fn a_segment_with_an_inode_in_use_stays_in_the_inode_table() {
    let parts = Arc::new(std::sync::Mutex::new(Vec::new()));
    let made = parts.clone();
    schedules::once(move || *made.lock().unwrap() = full_table());
    let parts = parts.lock().unwrap().clone();
    explore(move || {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        parts.iter().for_each(|(at, bytes)| _ = region.fence(region.stream(*at, bytes)));
        let fs = FileSystem::mount(region.clone(), MountOptions { cores: 4, ..MountOptions::default() }).unwrap();
        fs.reconcile().unwrap();
        let device = Device { region, fs };
        let data = device.fs.open(device.fs.lookup(ROOT, b"2").unwrap().ino).unwrap();
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        let writer = data.clone();
        race([
            task(move || {
                let file = one.open(create(&one, ROOT, "x")).unwrap();
                file.write_at(0, &block(1)).unwrap();
                assert_eq!(content(&file), block(1));
            }),
            task(move || {
                create(&two, ROOT, "y");
                two.unlink(ROOT, b"y").unwrap();
                two.trim().unwrap();
            }),
            task(move || {
                three.trim().unwrap();
                writer.write_at(0, &[block(2), block(3)].concat()).unwrap();
            }),
        ]);
        let x = device.fs.lookup(ROOT, b"x").unwrap().ino;
        assert!(x.0 >= INODES_PER_SEGMENT, "in the second segment of the table");
        let x = device.fs.open(x).unwrap();
        assert_eq!((content(&x), content(&data)), (block(1).to_vec(), [block(2), block(3)].concat()));
        drop((x, data));
        device.settle();
    });
}

/// The last segment of the inode table is freed and reused for data that looks like an inode, while another thread
/// looks for an inode there.
#[test]
fn an_inode_is_not_read_from_a_segment_that_left_the_table() {
    explore(|| {
        let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let geometry = Geometry::of(DEVICE_BYTES).unwrap();
        let segment = geometry.first_segment() + 1;
        write_segment(&region, &geometry, segment, &SegmentEntry::inodes(segment, 1)).unwrap();
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        let device = Device { region, fs };
        let ino = INODES_PER_SEGMENT + 1;
        let file = device.file("data");
        let (one, two, writer) = (device.fs.clone(), device.fs.clone(), file.clone());
        race([
            task(move || assert_eq!(one.getattr(InodeNumber(ino)).unwrap_err().errno(), errno::ENOENT)),
            task(move || {
                two.trim().unwrap();
                writer.write_at(0, &block_like_an_inode(segment * SEGMENT_BYTES, ino)).unwrap();
            }),
        ]);
        let expected = block_like_an_inode(segment * SEGMENT_BYTES, ino);
        assert!(device.region.equal(segment * SEGMENT_BYTES, &expected), "the data lies where the table was");
        drop(file);
        device.settle();
    });
}

/// Returns a block that, at this address, would hold inode `ino` in its second slot.
fn block_like_an_inode(address: u64, ino: u64) -> [u8; BLOCK] {
    let slot = address + INODE_BYTES;
    let head = InodeHead::new(slot, ino, FileKind::Regular, 1, ROOT.0, 0);
    let attributes = AttributeLine { nlink: 1, as_of: head.commit, ..AttributeLine::default() }.sealed(ino);
    let mut bytes = block(0);
    let mut put = |at: u64, part: &[u8]| bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
    put(slot - address, head.as_bytes());
    put(slot - address + ATTRIBUTE_LINES[0], attributes.as_bytes());
    bytes
}

/// The next entries make the directory's log long enough to be compacted.
#[test]
fn a_directory_log_is_compacted_while_it_is_read() {
    explore(|| {
        let device = Device::new();
        let directory = device.directory("d");
        create(&device.fs, directory, "kept");
        for _ in 0..62 {
            create(&device.fs, directory, "f");
            device.fs.unlink(directory, b"f").unwrap();
        }
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        race([
            task(move || {
                create(&one, directory, "f");
                one.unlink(directory, b"f").unwrap();
            }),
            task(move || two.lookup(directory, b"kept").unwrap()),
            task(move || assert!(names(&three, directory).contains(&"kept".to_string()))),
        ]);
        assert_eq!(names(&device.fs, directory), ["kept"]);
        device.settle();
    });
}

/// Acknowledged changes survive the unmount, and no change happens after it.
#[test]
fn an_unmount_waits_for_changes_under_way() {
    explore(|| {
        let device = Device::new();
        let file = device.file("a");
        let (fs, writer) = (device.fs.clone(), file.clone());
        race([
            task(move || allow(writer.write_at(0, &block(1)), &[errno::EROFS])),
            task(move || fs.unmount().unwrap()),
        ]);
        drop(file);
        device.settle();
    });
}
