//! Space comes back, and can be had: dead bytes are free again at every fill, and ENOSPC says that there is no room.

use crate::deext::*;
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::*;
use pmem::Region;
use std::collections::BTreeMap;

const MAX_BYTES: u64 = 200_000;
/// Blocks that are kept for operations that free space.
const KEPT_BYTES: u64 = 256 << 10;

/// Files of many lengths that come, change and go, and what they hold.
struct Churn {
    fs: FileSystem,
    random: Random,
    files: BTreeMap<u64, Vec<u8>>,
    next: u64,
}

impl Churn {
    fn new(fs: FileSystem) -> Churn {
        Churn { fs, random: Random(11), files: BTreeMap::new(), next: 0 }
    }

    fn any(&mut self) -> u64 {
        let nth = self.random.below(self.files.len() as u64) as usize;
        *self.files.keys().nth(nth).unwrap()
    }

    fn remove(&mut self) {
        let at = self.any();
        self.files.remove(&at);
        self.fs.unlink(ROOT, name(at).as_bytes()).unwrap();
    }

    /// Makes a file; false if there was no room for it.
    fn make(&mut self) -> bool {
        let (at, bytes) = (self.next, 1 + self.random.below(MAX_BYTES) as usize);
        let data = if at % 2 == 0 { text(bytes, at + 1) } else { noise(bytes, at + 1) };
        let Ok(new) = self.fs.create(ROOT, name(at).as_bytes(), &NEW) else { return false };
        let written = self.fs.open(new.ino).unwrap().write_at(0, &data).is_ok();
        if written {
            self.files.insert(at, data);
            self.next += 1;
        } else {
            self.fs.unlink(ROOT, name(at).as_bytes()).unwrap();
        }
        written
    }

    /// Overwrites a part of a file, if there is room.
    fn change(&mut self) {
        let at = self.any();
        let (offset, bytes) = (self.random.below(self.files[&at].len() as u64) as usize, self.random.below(30_000));
        let part = text(1 + bytes as usize, self.next);
        if open(&self.fs, &name(at)).write_at(offset as u64, &part).is_ok() {
            let data = self.files.get_mut(&at).unwrap();
            data.resize(data.len().max(offset + part.len()), 0);
            data[offset..offset + part.len()].copy_from_slice(&part);
        }
    }

    fn assert_whole(&self) {
        self.files.iter().for_each(|(at, data)| assert!(read(&open(&self.fs, &name(*at))) == *data, "file {at}"));
    }
}

fn name(at: u64) -> String {
    format!("file {at}")
}

/// Up to a fraction of the device lives, and the rest is dead. The segment that is kept for reclamation used to be
/// filled by writers; then nothing that lived could move any more, and all that was dead stayed.
#[test]
fn dead_bytes_can_be_reused_at_every_fill_of_the_device() {
    for percent in [50, 75, 85, 97] {
        let region = device(48, IndexKind::Dram);
        let mut churn = Churn::new(mount(&region));
        let total = churn.fs.statfs().blocks * 4096;
        for turn in 0..400 {
            if !churn.make() {
                let stats = churn.fs.stats();
                let left = stats.reclaim.dead_bytes + stats.free_bytes - KEPT_BYTES;
                assert!(left <= total / 100 * 3 + MAX_BYTES, "{percent} %, turn {turn}: ENOSPC with {stats:?}");
                churn.remove();
            }
            (turn % 3 == 0).then(|| churn.change());
            while churn.fs.stats().stored_bytes > total / 100 * percent {
                churn.remove();
            }
        }
        assert!(churn.fs.stats().reclaim.segments > 2, "{percent} %: {:?}", churn.fs.stats().reclaim);
        (0..churn.files.len() / 4).for_each(|_| churn.remove());
        let before = churn.fs.stats();
        assert!(before.reclaim.dead_bytes > 2 * SEGMENT_BYTES, "{percent} %: {before:?}");
        let Churn { fs, files, .. } = churn;
        unmount(&region, fs);
        let churn = Churn { files, ..Churn::new(mount(&region)) };
        while !churn.fs.reclaim_step(Victims::All).unwrap() {}
        let after = churn.fs.stats();
        assert!(after.reclaim.dead_bytes <= 2 * SEGMENT_BYTES, "{percent} %: {after:?}");
        assert!(after.reclaim.kept_bytes > 0, "{percent} %: {after:?}");
        churn.assert_whole();
        unmount(&region, churn.fs);
    }
}

/// Bytes of a file of the device that is nearly full of them.
const FILE_BYTES: usize = 48 << 10;

/// Makes a file anew; false if there was no room for it.
fn replace(fs: &FileSystem, at: u64, seed: u64) -> bool {
    let name = name(at);
    let _ = fs.unlink(ROOT, name.as_bytes());
    let Ok(new) = fs.create(ROOT, name.as_bytes(), &NEW) else { return false };
    fs.open(new.ino).unwrap().write_at(0, &text(FILE_BYTES, seed)).is_ok()
}

/// Nearly all that fits lives, and files are replaced in random order. Each segment has a few dead bytes, so that much
/// moves for each file. After a segment was emptied, calls used to compare what was left with what had been there when
/// work for space last ended in vain, and gave up although there was enough.
#[test]
fn overwriting_a_full_device_uses_all_dead_bytes() {
    let region = device(128, IndexKind::Dram);
    let fs = mount(&region);
    let fits = (0..).take_while(|at| replace(&fs, *at, at + 1)).count() as u64;
    (0..=fits).for_each(|at| drop(fs.unlink(ROOT, name(at).as_bytes())));
    fs.trim().unwrap();
    let (live, total) = (fits * 97 / 100, fs.statfs().blocks * 4096);
    (0..live).for_each(|at| assert!(replace(&fs, at, at + 1)));
    let mut random = Random(5);
    let (mut refused, mut most_left) = (0, 0);
    for turn in 0..fits {
        if !replace(&fs, random.below(live), fits + turn) {
            let stats = fs.stats();
            refused += 1;
            most_left = most_left.max(stats.reclaim.dead_bytes + stats.free_bytes - KEPT_BYTES);
        }
    }
    assert!(most_left <= total / 100 * 3, "{refused} of {fits} refused, with {most_left} of {total} bytes left");
    unmount(&region, fs);
}

const PART: usize = 32 << 10;
const VALUE: &[u8] = b"user.value";

/// Bytes that nothing compresses, quickly made.
fn random_bytes(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..bytes / 8).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect()
}

/// A device of which half is free, and no segment: one file has every other part, and between them lie log pages, values
/// of attributes, the target of a symlink, reserved blocks, and blocks that clones share at odd offsets.
struct Scattered {
    fs: FileSystem,
    big: Vec<u8>,
    clone: Vec<u8>,
    values: Vec<(u64, Vec<u8>)>,
}

impl Scattered {
    fn new(region: &Region, policy: Policy) -> Scattered {
        let fs = FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap();
        let file = create(&fs, "big");
        let (mut big, mut values) = (Vec::new(), Vec::new());
        for part in 1.. {
            let data = random_bytes(PART, part);
            if fs.statfs().blocks_available < 64 || file.write_at(big.len() as u64, &data).is_err() {
                break;
            }
            big.extend(data);
            if part % 40 == 0 {
                values.push((part, random_bytes(9000, part)));
                let other = create(&fs, &format!("value {part}"));
                fs.set_xattr(other.ino(), VALUE, &values.last().unwrap().1, XattrMode::Create).unwrap();
                fs.symlink(ROOT, format!("link {part}").as_bytes(), &[b'x'; 3000], &NEW).unwrap();
            }
        }
        big.truncate(file.attr().size as usize);
        for part in big.chunks_mut(PART).step_by(2).enumerate().map(|(nth, part)| (2 * nth * PART, part)) {
            file.allocate(part.0 as u64, PART as u64, AllocateMode::PunchHole).unwrap();
            part.1.fill(0);
        }
        let clone = create(&fs, "clone");
        let range = 3 * PART + 100..3 * PART + 20_077;
        clone.write_at(0, &random_bytes(80, 7)).unwrap();
        clone.clone_from(&file, range.start as u64, 80, range.len() as u64).unwrap();
        let clone = [&random_bytes(80, 7)[..], &big[range]].concat();
        create(&fs, "reserved").allocate(0, 90_000, AllocateMode::Reserve).unwrap();
        Scattered { fs, big, clone, values }
    }

    fn assert_whole(&self, what: &str) {
        let Scattered { fs, big, clone, values } = self;
        assert!(read(&open(fs, "big")) == *big && read(&open(fs, "clone")) == *clone, "{what}");
        assert!(read(&open(fs, "reserved")) == vec![0; 90_000], "{what}");
        for (part, value) in values {
            let other = fs.lookup(ROOT, format!("value {part}").as_bytes()).unwrap().ino;
            assert!(fs.get_xattr(other, VALUE).unwrap() == *value, "{what}: value {part}");
            let link = fs.lookup(ROOT, format!("link {part}").as_bytes()).unwrap().ino;
            assert!(fs.readlink(link).unwrap() == [b'x'; 3000], "{what}: link {part}");
        }
    }
}

/// The inode table needs whole segments. As many files as statfs promises can be made, though the free blocks are
/// scattered; what lies between them moves and stays what it was.
#[test]
fn scattered_free_blocks_serve_as_many_inodes_as_statfs_promises() {
    for policy in Policy::ALL {
        let region = device(32, IndexKind::Dram);
        let scattered = Scattered::new(&region, policy);
        let fs = &scattered.fs;
        // Dead bytes of packed chunks are promised once they are free.
        while !fs.reclaim_step(Victims::All).unwrap() {}
        scattered.assert_whole("before");
        let dir = fs.mkdir(ROOT, b"dir", &NEW).unwrap().ino;
        let make = |nth: &u64| fs.create(dir, format!("n{nth}").as_bytes(), &NEW).is_ok();
        // The first lines of a directory's log take slots of the table, too.
        assert!((0..100).all(|nth| make(&nth)));
        let promised = 100 + fs.statfs().inodes_free;
        let made = (100..1_000_000).take_while(make).count() as u64 + 100;
        assert!(made >= promised, "{policy:?}: {promised} promised, {made} made");
        assert!(made > 8192 && promised > made / 10 * 7, "{policy:?}: {promised} promised, {made} made");
        scattered.assert_whole("full");
        (0..made).for_each(|nth| fs.unlink(dir, format!("n{nth}").as_bytes()).unwrap());
        if policy == Policy::Inline {
            // What moved can be found where it is now.
            let stored = fs.stats().stored_bytes;
            create(fs, "copy").write_at(0, &scattered.big[PART..2 * PART]).unwrap();
            assert_eq!(fs.stats().stored_bytes, stored);
        }
        let Scattered { fs, big, clone, values } = scattered;
        unmount(&region, fs);
        let again = Scattered { fs: mount(&region), big, clone, values };
        again.assert_whole("mounted again");
        unmount(&region, again.fs);
    }
}
