//! Races on reconcile after a crash: the file system is in use, so the counted data changes meanwhile.

use super::names::names;
use super::*;
use crate::media::chunk_entry::CountWord;
use crate::media::inode::INODE_BYTES;
use crate::media::log_area::AreaHead;

/// Makes a device after a crash that left the counts of all shared blocks one too high; it is mounted and not yet
/// reconciled. Files `a` and `b` share blocks 1 and 2, and `c` has an unshared block.
fn crashed() -> Device {
    let device = Device::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| device.file(name));
    a.write_at(0, &[block(1), block(2)].concat()).unwrap();
    b.clone_from(&a, 0, 0, 8192).unwrap();
    c.write_at(0, &block(3)).unwrap();
    drop((a, b, c));
    let Device { region, fs } = device;
    drop(fs);
    let geometry = Geometry::of(DEVICE_BYTES).unwrap();
    for number in geometry.first_segment() * SEGMENT_BLOCKS..geometry.blocks() {
        let offset = geometry.chunk_entry_offset(BlockNumber(number));
        let word = CountWord::decode(region.load_u128(offset));
        if word.count > 1 {
            let one_more = CountWord { count: word.count + 1, ..word };
            let _ = region.fence(region.store_u128(offset, one_more.encode()).flush());
        }
    }
    let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
    Device { region, fs }
}

fn open(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.lookup(ROOT, name.as_bytes()).unwrap().ino).unwrap()
}

#[test]
fn counts_are_reconciled_while_they_change() {
    explore(|| {
        let device = crashed();
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        race([
            task(move || one.reconcile().unwrap()),
            task(move || {
                open(&two, "a").write_at(4096, &block(3)).unwrap();
                open(&two, "c").clone_from(&open(&two, "a"), 0, 4096, 4096).unwrap();
            }),
            task(move || three.unlink(ROOT, b"b").unwrap()),
        ]);
        assert_eq!(content(&open(&device.fs, "a")), [block(1), block(3)].concat());
        assert_eq!(content(&open(&device.fs, "c")), [block(3), block(1)].concat());
        device.settle();
    });
}

/// Logs of directories, walked and not yet walked, take and free log areas. One log area was left without an owner by
/// a crash.
#[test]
fn log_areas_are_made_and_freed_while_counts_are_reconciled() {
    explore(|| {
        let device = Device::new();
        let [full, longer, gone] = ["full", "longer", "gone"].map(|name| device.directory(name));
        for number in 0..6 {
            create(&device.fs, longer, &format!("{number}"));
            if number < 5 {
                create(&device.fs, full, &format!("{number}"));
            }
        }
        for number in 0..4 {
            create(&device.fs, gone, &format!("{number}"));
            device.fs.unlink(gone, format!("{number}").as_bytes()).unwrap();
        }
        assert_eq!(device.fs.stats().log_areas, 2);
        let Device { region, fs } = device;
        drop(fs);
        let geometry = Geometry::of(DEVICE_BYTES).unwrap();
        let slot = geometry.data_offset + 1000 * INODE_BYTES;
        let _ = region.fence(region.write(slot, &AreaHead::new(slot, 1000, longer.0, 1)).flush());
        let device = Device { fs: FileSystem::mount(region.clone(), MountOptions::default()).unwrap(), region };
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        race([
            task(move || one.reconcile().unwrap()),
            task(move || (create(&two, full, "x"), create(&two, longer, "x"))),
            task(move || {
                three.rmdir(ROOT, b"gone").unwrap();
                create(&three, ROOT, "y");
            }),
        ]);
        device.fs.reconcile().unwrap();
        assert_eq!(names(&device.fs, full).len() + names(&device.fs, longer).len(), 6 + 7);
        assert_eq!(device.fs.stats().recovery.unreadable, 0);
        device.settle();
    });
}

#[test]
fn space_is_allocated_and_freed_while_counts_are_reconciled() {
    explore(|| {
        let device = crashed();
        let [one, two, three] = [0; 3].map(|_| device.fs.clone());
        race([
            task(move || one.reconcile().unwrap()),
            task(move || {
                two.unlink(ROOT, b"c").unwrap();
                two.trim().unwrap();
                open(&two, "b").set_len(100).unwrap();
            }),
            task(move || {
                let ino = create(&three, ROOT, "d");
                three.open(ino).unwrap().write_at(0, &[block(2), block(4)].concat()).unwrap();
            }),
        ]);
        assert_eq!(content(&open(&device.fs, "b")), block(1)[..100]);
        assert_eq!(content(&open(&device.fs, "d")), [block(2), block(4)].concat());
        device.settle();
    });
}
