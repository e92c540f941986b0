//! Crash states that once were not recovered, each in its smallest form.

use nvfold::check::{CheckOptions, CheckReport, Finding, check};
use nvfold::internals::media::chunk_entry::ChunkEntry;
use nvfold::internals::media::superblock::{COPIES, LOG_AREAS};
use nvfold::internals::media::{BlockNumber, SEGMENT_BLOCKS};
use nvfold::{FileKind, FileSystem, IndexKind, InodeNumber, MkfsOptions, MountOptions, NewInode, Superblock};
use pmem::{Action, DeviceSpec, OpenOptions, PendingWord, Recording, Region, Replay, StoreOrder};

const DEVICE_BYTES: u64 = 16 << 20;
const SLOT_BYTES: u64 = 512;

fn recorded() -> Region {
    let options = OpenOptions { record: true, huge_pages: false, ..OpenOptions::default() };
    Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &options).unwrap()
}

fn mount(region: &Region) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions::default()).unwrap()
}

fn fsck(region: &Region) -> CheckReport {
    check(region, &CheckOptions::default()).unwrap()
}

/// Panics unless no extent names anything after a crash before this event, fsck finds nothing then, and nothing after
/// recovery.
#[track_caller]
fn names_no_data(image: &[u8], event: usize) {
    let crashed = recorded();
    let _ = crashed.fence(crashed.write(0, image).flush());
    let report = fsck(&crashed);
    assert_eq!((report.extents, report.findings), (0, vec![]), "crash before event {event}");
    mount(&crashed).unmount().unwrap();
    assert_eq!(fsck(&crashed).findings, []);
}

/// The device after a crash just before the first fence of a mkdir in a fresh file system, with those words of the new
/// inode's slot that `reached` the media (by their offset in the slot).
fn mkdir_cut_off(reached: impl Fn(u64) -> bool) -> Region {
    let region = recorded();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region);
    region.take_recording();
    let before = region.to_vec(0, DEVICE_BYTES);
    let new = NewInode { kind: FileKind::Directory, mode: 0o755, uid: 0, gid: 0, rdev: 0 };
    let ino = fs.mkdir(InodeNumber::ROOT, b"directory", &new).unwrap().ino;
    drop(fs);
    let recording = region.take_recording();
    let fence = recording.events.iter().position(|event| event.action == Action::Fence).unwrap();
    let (_, geometry) = nvfold::read_superblock(&region).unwrap();
    let slot = geometry.data_offset + ino.0 * SLOT_BYTES;
    let in_slot = |word: &PendingWord| (slot..slot + SLOT_BYTES).contains(&word.offset) && reached(word.offset - slot);
    let image = recording.image(&before, fence, StoreOrder::AnyWord, in_slot);
    let crashed = recorded();
    let _ = crashed.fence(crashed.write(0, &image[..]).flush());
    crashed
}

#[test]
fn a_directory_half_made_by_a_crash_does_not_stop_the_mount() {
    let region = mkdir_cut_off(|offset| offset < 64);
    let before = fsck(&region);
    assert_eq!((before.findings, before.recoverable), (vec![], 1), "what recovery is there to mend is no finding");
    mount(&region).unmount().unwrap();
    let after = fsck(&region);
    assert_eq!((after.findings, after.inodes), (vec![], 1));
}

#[test]
fn a_slot_torn_during_the_creation_of_an_inode_is_free_after_recovery() {
    // The word that says that the slot is in use, and none of the others.
    let region = mkdir_cut_off(|offset| offset == 48);
    assert_eq!(fsck(&region).recoverable, 1);
    mount(&region).unmount().unwrap();
    assert_eq!(fsck(&region).findings, []);
}

#[test]
fn a_torn_copy_of_the_superblock_is_rewritten_before_the_intact_one() {
    let region = recorded();
    let last = region.len_bytes() - nvfold::BLOCK_BYTES;
    for (torn, order) in [
        (COPIES[0], [COPIES[0], last, COPIES[1]]),
        (COPIES[1], [COPIES[1], last, COPIES[0]]),
        (last, [last, COPIES[0], COPIES[1]]),
    ] {
        let region = recorded();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let _ = region.fence(region.store_u64(torn + 64, !0).flush());
        region.take_recording();
        drop(mount(&region));
        let recording = region.take_recording();
        let written = recording.events.iter().filter_map(|event| match event.action {
            Action::Store { offset, .. } => Some(offset),
            _ => None,
        });
        assert_eq!(written.collect::<Vec<_>>(), order, "a crash may tear the one being written");
        assert!(order.iter().all(|offset| region.read::<Superblock>(*offset).verify().is_ok()));
    }
}

#[test]
fn a_chunk_entry_of_which_only_the_count_survived_is_emptied() {
    let region = recorded();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region);
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &new).unwrap().ino).unwrap();
    (0..2).for_each(|at| file.write_at(4096 * at, &[7; 4096]).unwrap());
    let (_, geometry) = nvfold::read_superblock(&region).unwrap();
    let entries = (geometry.first_segment() * SEGMENT_BLOCKS..geometry.blocks()).map(BlockNumber);
    let entry = |block: BlockNumber| region.read::<ChunkEntry>(geometry.chunk_entry_offset(block));
    let used = entries.clone().find(|block| entry(*block).count > 0).unwrap();
    let free = BlockNumber(used.0 + 1);
    assert_eq!(entry(free), ChunkEntry::default());
    let _ = region.fence(region.store_u64(geometry.chunk_entry_offset(free) + 8, 1).flush());
    drop((file, fs));
    assert_eq!(fsck(&region).recoverable, 1);
    mount(&region).unmount().unwrap();
    assert_eq!(fsck(&region).findings, []);
}

/// The new identity of a slot reached the media, the new commit word did not: the log of the slot's last user, who was
/// removed, must not be taken for the new one's. Its blocks may be another file's by now.
#[test]
fn reusing_the_slot_of_a_removed_file_does_not_revive_its_log() {
    for freeing_was_cut_off in [false, true] {
        let region = recorded();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        let fs = mount(&region);
        let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
        let old = fs.create(InodeNumber::ROOT, b"old", &new).unwrap().ino;
        fs.open(old).unwrap().write_at(0, &[7; 4096]).unwrap();
        let (_, geometry) = nvfold::read_superblock(&region).unwrap();
        let slot = geometry.data_offset + old.0 * SLOT_BYTES;
        let log = region.load_u128(slot);
        fs.unlink(InodeNumber::ROOT, b"old").unwrap();
        if freeing_was_cut_off {
            let _ = region.fence(region.store_u128(slot, log).flush());
        }
        region.take_recording();
        let before = region.to_vec(0, DEVICE_BYTES);
        assert_eq!(fs.create(InodeNumber::ROOT, b"new", &new).unwrap().ino, old, "the slot is used again");
        let recording = region.take_recording();
        let fences = (0..recording.events.len()).filter(|at| recording.events[*at].action == Action::Fence);
        for fence in fences {
            let identity = |word: &PendingWord| (slot + 8..slot + SLOT_BYTES).contains(&word.offset);
            names_no_data(&recording.image(&before, fence, StoreOrder::AnyWord, identity), fence);
        }
    }
}

#[test]
fn a_symlink_half_made_in_a_reused_slot_does_not_get_the_old_blocks() {
    let region = recorded();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region);
    let new = |kind| NewInode { kind, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let old = fs.create(InodeNumber::ROOT, b"old", &new(FileKind::Regular)).unwrap().ino;
    fs.open(old).unwrap().write_at(0, &[7; 4096]).unwrap();
    fs.unlink(InodeNumber::ROOT, b"old").unwrap();
    region.take_recording();
    let before = region.to_vec(0, DEVICE_BYTES);
    let link = fs.symlink(InodeNumber::ROOT, b"new", b"a target", &new(FileKind::Symlink)).unwrap();
    assert_eq!(link.ino, old, "the slot is used again");
    let recording = region.take_recording();
    let (_, geometry) = nvfold::read_superblock(&region).unwrap();
    let slot = geometry.data_offset + old.0 * SLOT_BYTES;
    // The head says that there is one log line; what the file wrote into that line must be gone by then.
    for fence in (0..recording.events.len()).filter(|at| recording.events[*at].action == Action::Fence) {
        let head = |word: &PendingWord| (slot..slot + 64).contains(&word.offset);
        names_no_data(&recording.image(&before, fence, StoreOrder::AnyWord, head), fence);
    }
}

#[test]
fn a_new_pm_index_in_punched_memory_is_empty_after_a_power_failure() {
    let region = recorded();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region);
    let new = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &new).unwrap().ino).unwrap();
    (0..64).for_each(|block| file.write_at(u64::from(block) * 4096, &[block; 4096]).unwrap());
    let weak = fs.weak_function();
    drop(file);
    fs.unmount().unwrap();
    let convert = |to| nvfold::convert_index(&region, to, weak, &mut |_, _| {}).unwrap();
    convert(IndexKind::Pm);
    region.take_recording();
    let mut replay = Replay::new(&region.to_vec(0, DEVICE_BYTES));
    // The segment of the first index is free in between, and a hole; the second one takes it.
    convert(IndexKind::Dram);
    convert(IndexKind::Pm);
    let recording = region.take_recording();
    assert!(recording.events.iter().any(|event| matches!(event.action, Action::Punch { .. })), "memory is given back");
    for fence in (0..recording.events.len()).filter(|at| recording.events[*at].action == Action::Fence) {
        replay.advance(&recording, fence);
        // All that was stored reached the media, and no hole did.
        let image = replay.image(StoreOrder::AnyWord, |word| !word.punched);
        let crashed = recorded();
        let _ = crashed.fence(crashed.write(0, &image[..]).flush());
        // A crash between the two copies of the superblock leaves them apart.
        let findings: Vec<_> = fsck(&crashed).findings.into_iter().filter(|finding| finding.invariant != 0).collect();
        assert_eq!(findings, [], "crash before event {fence}");
        mount(&crashed).unmount().unwrap();
        assert_eq!(fsck(&crashed).findings, []);
    }
}

/// The device after crashes before each fence: of the words on their way none is there, all are, or some, chosen by a
/// hash of their place.
fn each_crash(mut replay: Replay, recording: &Recording, mut check: impl FnMut(&Region, &str)) {
    const CHOICES: u64 = 12;
    for fence in (0..recording.events.len()).filter(|at| recording.events[*at].action == Action::Fence) {
        replay.advance(recording, fence);
        for choice in 0..CHOICES {
            let mixed = |word: &PendingWord| (word.offset / 8 + choice).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62;
            let image = replay.image(StoreOrder::AnyWord, |word| match choice {
                0 => false,
                1 => true,
                _ => mixed(word) == choice % 4,
            });
            let crashed = recorded();
            let _ = crashed.fence(crashed.write(0, &image[..]).flush());
            check(&crashed, &format!("crash before event {fence}, choice {choice}"));
        }
    }
}

/// The first log that needs an area upgrades the device: whichever words of the copies of the superblock, of the area and
/// of the log reached the media, the device has all names but the last, or that one too, and no area that its superblock
/// does not tell of.
#[test]
fn a_crash_while_the_first_log_area_is_made_is_recovered() {
    let region = recorded();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region);
    let file = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };
    let create = |name: &[u8]| fs.create(InodeNumber::ROOT, name, &file).unwrap();
    (0..5).for_each(|number| _ = create(&[b'a' + number]));
    let has_feature = |region: &Region| nvfold::read_superblock(region).unwrap().0.incompatible & LOG_AREAS != 0;
    assert!(!has_feature(&region), "five names fit into the slot");
    region.take_recording();
    let replay = Replay::new(&region.to_vec(0, DEVICE_BYTES));
    create(b"f");
    assert!(has_feature(&region));
    drop(fs);
    let (mut seen, mut has_feature_alone) = ([0; 2], 0);
    each_crash(replay, &region.take_recording(), |crashed, at| {
        // A torn copy of the superblock is a finding until a mount has written it again.
        let is_other = |finding: &Finding| !finding.what.contains("of the superblock");
        let findings: Vec<_> = fsck(crashed).findings.into_iter().filter(is_other).collect();
        assert_eq!(findings, [], "{at}");
        let names = names_if_any(crashed).expect("some copy of the superblock is whole").len();
        assert_eq!(fsck(crashed).log_areas, names as u64 - 5, "{at}");
        seen[names - 5] += 1;
        has_feature_alone += u32::from(names == 5 && has_feature(crashed));
    });
    assert!(seen.iter().all(|count| *count > 0) && has_feature_alone > 0, "{seen:?}, {has_feature_alone}");
}

/// What is on a device after a crash in mkfs: names in the root, or nothing that is a file system.
fn names_if_any(region: &Region) -> Option<Vec<Vec<u8>>> {
    nvfold::read_superblock(region).ok()?;
    let fs = mount(region);
    let mut names = Vec::new();
    fs.readdir(InodeNumber::ROOT, 0, &mut |entry| {
        names.push(entry.name);
        true
    })
    .unwrap();
    fs.unmount().unwrap();
    assert_eq!(fsck(region).findings, []);
    Some(names)
}

#[test]
fn an_interrupted_mkfs_leaves_the_old_file_system_or_none_or_the_new_one() {
    let region = recorded();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let fs = mount(&region);
    let new = NewInode { kind: FileKind::Directory, mode: 0o755, uid: 0, gid: 0, rdev: 0 };
    fs.mkdir(InodeNumber::ROOT, b"old", &new).unwrap();
    fs.unmount().unwrap();
    region.take_recording();
    let replay = Replay::new(&region.to_vec(0, DEVICE_BYTES));
    FileSystem::mkfs(&region, &MkfsOptions { force: true, ..MkfsOptions::default() }).unwrap();
    let mut seen = [0; 3];
    each_crash(replay, &region.take_recording(), |crashed, at| {
        let outcome = match names_if_any(crashed) {
            None => 0,
            Some(names) if names == [b"old".to_vec()] => 1,
            Some(names) => {
                assert_eq!(names, Vec::<Vec<u8>>::new(), "{at}");
                2
            }
        };
        seen[outcome] += 1;
    });
    assert!(seen.iter().all(|count| *count > 0), "none, old and new: {seen:?}");
}
