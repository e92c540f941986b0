//! Memory that goes bad under the file system, and devices that go away: EIO for what is lost and for nothing else.
//!
//! Each test poisons the lines of one structure and looks at three things: the file that it belongs to gives EIO and
//! never wrong bytes, everything else works on, and fsck names the file and the range.

use crate::check::noise;
use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::inode::{INODE_BYTES, InodeHead};
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use nvfold::internals::media::{BlockNumber, SEGMENT_BYTES};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, PmemError, Region};

const ROOT: InodeNumber = InodeNumber::ROOT;
const DEVICE_BYTES: u64 = 24 << 20;
const BLOCK: usize = BLOCK_BYTES as usize;
const POLICIES: [Policy; 2] = [Policy::Off, Policy::Inline];

fn format() -> Region {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    region
}

fn try_mount(region: &Region, policy: Policy, read_only: bool) -> Result<FileSystem> {
    FileSystem::mount(region.clone(), MountOptions { policy, read_only, ..MountOptions::default() })
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    try_mount(region, policy, false).unwrap()
}

const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };

fn create(fs: &FileSystem, name: &str, content: &[u8]) -> File {
    let file = fs.open(fs.create(ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap();
    file.write_at(0, content).unwrap();
    file
}

fn open(fs: &FileSystem, name: &str) -> Result<File> {
    fs.open(fs.lookup(ROOT, name.as_bytes())?.ino)
}

fn read(file: &File) -> Result<Vec<u8>> {
    let mut content = vec![0xEE; file.attr().size as usize];
    let length = file.read_at(0, &mut content)?;
    content.truncate(length);
    Ok(content)
}

/// Blocks that are all different.
fn blocks(seed: u8, count: usize) -> Vec<u8> {
    (0..count * BLOCK).map(|at| (at / BLOCK) as u8 ^ (at % 251) as u8 ^ seed).collect()
}

/// Where these bytes lie on the device.
fn find(region: &Region, bytes: &[u8]) -> u64 {
    let media = region.to_vec(0, DEVICE_BYTES);
    let mut lines = media.chunks(64).enumerate().map(|(line, _)| line * 64);
    lines.find(|at| media[*at..].starts_with(bytes)).expect("the bytes are on the device") as u64
}

fn slot(ino: InodeNumber) -> u64 {
    Geometry::of(DEVICE_BYTES).unwrap().first_segment() * SEGMENT_BYTES + ino.0 * INODE_BYTES
}

#[track_caller]
fn assert_eio<T>(result: Result<T>) {
    match result {
        Err(error) => assert_eq!(error.errno(), errno::EIO, "{error}"),
        Ok(_) => panic!("EIO was expected"),
    }
}

/// Everything that is not lost works: reading, writing, creating, removing, and filling the device to the last block.
#[track_caller]
fn assert_all_else_works(fs: &FileSystem, others: &[(&str, &[u8])]) {
    assert_can_be_read(fs, others);
    let file = create(fs, "new", &blocks(200, 3));
    assert!(read(&file).unwrap() == blocks(200, 3));
    fs.rename(ROOT, b"new", ROOT, b"newer", RenameMode::Replace).unwrap();
    let mut filler = Vec::new();
    for number in 0u32.. {
        let mut content = blocks(number as u8, 64);
        content.chunks_mut(BLOCK).enumerate().for_each(|(at, block)| {
            block[..8].copy_from_slice(&(u64::from(number) << 32 | at as u64).to_le_bytes());
        });
        let made = fs.create(ROOT, format!("filler{number}").as_bytes(), &NEW).unwrap();
        let file = fs.open(made.ino).unwrap();
        match file.write_at(0, &content) {
            Ok(()) => filler.push((file, content)),
            Err(error) => {
                assert_eq!(error.errno(), errno::ENOSPC, "{error}");
                break;
            }
        }
    }
    assert!(filler.iter().all(|(file, content)| read(file).unwrap() == *content), "no bad block was handed out");
    for number in 0..=filler.len() {
        fs.unlink(ROOT, format!("filler{number}").as_bytes()).unwrap();
    }
    fs.unlink(ROOT, b"newer").unwrap();
    assert!(!fs.region().is_lost());
}

#[track_caller]
fn assert_can_be_read(fs: &FileSystem, files: &[(&str, &[u8])]) {
    for (name, content) in files {
        assert!(read(&open(fs, name).unwrap()).unwrap() == *content, "{name}");
    }
}

/// What fsck finds, one line each.
fn fsck(region: &Region) -> Vec<String> {
    let report = check(region, &CheckOptions::default()).unwrap();
    report.findings.iter().map(|finding| format!("{} at {:#x}", finding.what, finding.at)).collect()
}

#[track_caller]
fn assert_fsck_names(region: &Region, words: &[&str]) {
    let findings = fsck(region);
    let names_all = |finding: &String| words.iter().all(|word| finding.contains(word));
    assert!(findings.iter().any(names_all), "{words:?} are not in\n{}", findings.join("\n"));
}

#[test]
fn a_bad_block_gives_eio_to_its_file_until_it_is_overwritten() {
    for policy in POLICIES {
        let region = format();
        let fs = mount(&region, policy);
        let content = blocks(1, 4);
        let file = create(&fs, "victim", &content);
        create(&fs, "other", &blocks(2, 4));
        let bad = find(&region, &content[2 * BLOCK..3 * BLOCK]);
        region.poison(bad + 1000, 1);
        assert_eio(read(&file));
        assert_eio(read(&file));
        let mut part = [0; 2 * BLOCK];
        file.read_at(0, &mut part).unwrap();
        assert!(part == content[..2 * BLOCK], "the rest of it is there");
        let sector = bad + 512 - 2 * BLOCK_BYTES;
        let mut around = [0; 512];
        file.read_at(2 * BLOCK_BYTES, &mut around).unwrap();
        assert_eio(file.read_at(2 * BLOCK_BYTES + 1023, &mut around));
        assert_eio(file.write_at(2 * BLOCK_BYTES + 5, b"in part"));
        assert_fsck_names(&region, &["/victim", "bytes 8704 to 9215", &format!("{:#x}", sector + 2 * BLOCK_BYTES)]);
        assert_all_else_works(&fs, &[("other", &blocks(2, 4))]);

        // A clone shares the loss, and an equal write does not join it.
        let clone = create(&fs, "clone", b"");
        clone.clone_from(&file, 0, 0, 4 * BLOCK_BYTES).unwrap();
        assert_eio(read(&clone));
        let equal = create(&fs, "equal", &content);
        assert!(read(&equal).unwrap() == content);

        file.write_at(2 * BLOCK_BYTES, &content[2 * BLOCK..3 * BLOCK]).unwrap();
        assert!(read(&file).unwrap() == content, "overwritten wholly it is healed");
        fs.unlink(ROOT, b"clone").unwrap();
        drop(clone);
        assert_all_else_works(&fs, &[("victim", &content), ("equal", &content)]);
        drop((file, equal));
        fs.unmount().unwrap();
        let fs = mount(&region, policy);
        assert_all_else_works(&fs, &[("victim", &content), ("equal", &content), ("other", &blocks(2, 4))]);
        fs.unmount().unwrap();
        assert_eq!(fsck(&region), Vec::<String>::new());
    }
}

#[test]
fn dedup_does_not_turn_a_bad_block_that_reads_as_zeros_into_a_hole() {
    for policy in POLICIES {
        let region = format();
        let fs = mount(&region, policy);
        let lost = create(&fs, "lost", &blocks(1, 3));
        region.poison(find(&region, &blocks(1, 3)), 3 * BLOCK_BYTES);
        let zeros = create(&fs, "zeros", &[0; BLOCK]);
        assert_eq!(lost.dedup_range(0, u64::MAX).unwrap().changed_bytes, 0);
        let kept = if policy == Policy::Off { BLOCK_BYTES } else { 0 };
        assert_eq!(zeros.dedup_range(0, u64::MAX).unwrap().changed_bytes, kept, "what `off` has stored");
        assert_eio(read(&lost));
        assert!(lost.seek(0, Whence::Data).unwrap() == 0 && zeros.seek(0, Whence::Data).is_err());
        assert!(read(&zeros).unwrap() == [0; BLOCK]);
    }
}

#[test]
fn writing_to_a_bad_reserved_block_stores_the_data_elsewhere() {
    for policy in POLICIES {
        let region = format();
        let fs = mount(&region, policy);
        let file = create(&fs, "file", &blocks(1, 1));
        file.allocate(BLOCK_BYTES, 4 * BLOCK_BYTES, AllocateMode::Reserve).unwrap();
        let marker = create(&fs, "marker", &blocks(9, 1));
        let first = find(&region, &blocks(1, 1)) + BLOCK_BYTES;
        assert!(first < find(&region, &blocks(9, 1)));
        region.poison(first, 4 * BLOCK_BYTES);
        region.scrub(first, 4 * BLOCK_BYTES).unwrap_err();
        file.write_at(BLOCK_BYTES, &blocks(5, 4)).unwrap();
        assert!(read(&file).unwrap() == [blocks(1, 1), blocks(5, 4)].concat());
        assert!(read(&marker).unwrap() == blocks(9, 1));
        assert!(!region.is_lost());
    }
}

#[test]
fn a_bad_inode_slot_costs_one_file() {
    for policy in POLICIES {
        let region = format();
        let fs = mount(&region, policy);
        let names: Vec<String> = (0..24).map(|number| format!("file{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            create(&fs, name, &blocks(number as u8, 2));
        }
        let victim = fs.lookup(ROOT, b"file11").unwrap().ino;
        fs.unmount().unwrap();
        for line in [0, 1, 3] {
            let region = copy_of(&region);
            let fs = mount(&region, policy);
            region.poison(slot(victim) + line * 64, 64);
            assert_eio(fs.lookup(ROOT, b"file11"));
            assert_eio(fs.getattr(victim));
            assert_eio(fs.open(victim));
            // The slots beside it lie in the same page: they can be read, and not be changed.
            let beside = open(&fs, "file10").unwrap();
            assert!(read(&beside).unwrap() == blocks(10, 2));
            assert_eq!(slot(victim) / BLOCK_BYTES, slot(beside.ino()) / BLOCK_BYTES);
            assert_eio(beside.write_at(0, b"no"));
            assert_eio(fs.unlink(ROOT, b"file10"));
            assert_eio(fs.link(beside.ino(), ROOT, b"link"));
            assert_eio(fs.rename(ROOT, b"file10", ROOT, b"renamed", RenameMode::Replace));
            assert!(read(&open(&fs, "file10").unwrap()).unwrap() == blocks(10, 2), "nothing of it happened");
            let mut listed = 0;
            fs.readdir(ROOT, 0, &mut |_| {
                listed += 1;
                true
            })
            .unwrap();
            assert_eq!(listed, names.len());
            let far = [("file0", &blocks(0, 2)[..]), ("file20", &blocks(20, 2)[..])];
            open(&fs, "file20").unwrap().write_at(0, &blocks(20, 1)).unwrap();
            assert_all_else_works(&fs, &far);
            let words = [&format!("inode {} (/file11)", victim.0), "bad memory", &format!("{:#x}", slot(victim))];
            assert_fsck_names(&region, &words);
            drop(beside);
            fs.unmount().unwrap();
            // The next mount cannot know what the inode named: that stays in use, and everything else goes on.
            let fs = mount(&region, policy);
            fs.reconcile().unwrap();
            assert!(fs.stats().recovery.reconciled);
            assert_eq!(fs.stats().recovery.unreadable, 1);
            assert_eio(open(&fs, "file11"));
            assert_can_be_read(&fs, &[("file10", &blocks(10, 2)), far[0], far[1]]);
            let free = fs.stats().free_bytes;
            fs.unlink(ROOT, b"file23").unwrap();
            assert_eq!(fs.stats().free_bytes, free + 2 * BLOCK_BYTES, "what was another's is freed");
            // Its name can go, and be taken by another; what it named stays.
            fs.rename(ROOT, b"file22", ROOT, b"file11", RenameMode::Replace).unwrap();
            let freed = fs.stats().free_bytes - free;
            assert!(freed <= 2 * BLOCK_BYTES, "{freed} bytes: what it named is freed");
            assert!(freed >= BLOCK_BYTES, "{freed} bytes: the log of the root takes more than a page");
            let all = [("file10", &blocks(10, 2)[..]), ("file11", &blocks(22, 2)[..]), far[0], far[1]];
            assert_can_be_read(&fs, &all);
            fs.unmount().unwrap();
            let fs = mount(&region, policy);
            assert_all_else_works(&fs, &all);
            fs.unmount().unwrap();
            let fs = try_mount(&region, policy, true).unwrap();
            assert_can_be_read(&fs, &all);
            assert!(read(&open(&fs, "file10").unwrap()).unwrap() == blocks(10, 2));
            assert!(!region.is_lost());
        }
    }
}

/// The same bytes in a device of its own.
fn copy_of(region: &Region) -> Region {
    let copy = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    let _ = copy.fence(copy.stream(0, &region.to_vec(0, DEVICE_BYTES)));
    copy
}

#[test]
fn free_inode_slots_next_to_a_bad_one_are_not_used() {
    for is_known in [false, true] {
        let region = format();
        let fs = mount(&region, Policy::Inline);
        let per_page = BLOCK_BYTES / INODE_BYTES;
        let last = (0..).map(|number| create(&fs, &format!("file{number}"), b"content").ino());
        // So many that the log of the root ends in a page, not in a slot beside theirs.
        let last = last.take(72).last().unwrap();
        let free_beside = per_page - 1 - last.0 % per_page;
        assert!(free_beside > 0, "the page has free slots");
        // The next slot itself is bad, which is met when it is looked at; or one that is known to be.
        region.poison(slot(last) + if is_known { 0 } else { INODE_BYTES }, 64);
        if is_known {
            region.scrub(slot(last), 64).unwrap_err();
        }
        let names: Vec<String> = (0..2 * per_page).map(|number| format!("new{number}")).collect();
        for name in &names {
            let file = create(&fs, name, name.as_bytes());
            assert!(file.ino().0 > last.0 + free_beside, "inode {}", file.ino().0);
        }
        for name in &names {
            assert_eq!(read(&open(&fs, name).unwrap()).unwrap(), name.as_bytes());
        }
        assert!(!region.is_lost());
    }
}

#[test]
fn an_open_inode_whose_slot_goes_bad_becomes_unchangeable() {
    let region = format();
    let fs = mount(&region, Policy::Inline);
    let file = create(&fs, "file", &blocks(1, 2));
    create(&fs, "other", &blocks(2, 2));
    region.poison(slot(file.ino()), 64);
    region.scrub(slot(file.ino()), 64).unwrap_err();
    assert!(read(&file).unwrap() == blocks(1, 2), "its data is where it was");
    assert_eio(file.write_at(0, &blocks(3, 1)));
    assert_eio(file.append(b"x"));
    assert_eio(file.set_len(5));
    assert_eio(file.allocate(0, BLOCK_BYTES, AllocateMode::PunchHole));
    assert_eio(fs.setattr(file.ino(), &SetAttr { mode: Some(0), ..SetAttr::default() }));
    assert_eio(fs.set_xattr(file.ino(), b"user.name", b"value", XattrMode::Set));
    assert_eio(fs.unlink(ROOT, b"file"));
    assert!(read(&file).unwrap() == blocks(1, 2));
    assert!(!region.is_lost());
    // The root shares the page with the first files.
    assert_eio(fs.create(ROOT, b"new", &NEW));
}

#[test]
fn a_bad_log_page_costs_one_directory_or_file() {
    for policy in POLICIES {
        let region = format();
        let fs = mount(&region, policy);
        let dir = fs.mkdir(ROOT, b"crowded", &NEW).unwrap().ino;
        let name = |number: usize| format!("{number:03} {}", "x".repeat(100)).into_bytes();
        for number in 0..100 {
            fs.create(dir, &name(number), &NEW).unwrap();
        }
        create(&fs, "other", &blocks(2, 4));
        let at = find_anywhere(&region, &name(60));
        fs.unmount().unwrap();
        let fs = mount(&region, policy);
        region.poison(at, 1);
        assert_eio(fs.lookup(dir, &name(60)));
        assert_eio(fs.lookup(dir, &name(0)));
        assert_eio(fs.readdir(dir, 0, &mut |_| true));
        assert_eio(fs.create(dir, b"new", &NEW));
        assert_eio(fs.rmdir(ROOT, b"crowded"));
        assert_all_else_works(&fs, &[("other", &blocks(2, 4))]);
        let words = ["(/crowded)", "log lies in bad memory, 512 bytes", &format!("{:#x}", at / 512 * 512)];
        assert_fsck_names(&region, &words);
        fs.unmount().unwrap();
        // Everything else is served. What was in the directory has no name that could be read, and is kept.
        let fs = mount(&region, policy);
        let inodes = fs.stats().inodes;
        fs.reconcile().unwrap();
        assert_eq!((fs.stats().recovery.unreadable, fs.stats().inodes), (1, inodes));
        assert_eio(fs.lookup(dir, &name(0)));
        assert_eio(fs.rmdir(ROOT, b"crowded"));
        assert_all_else_works(&fs, &[("other", &blocks(2, 4))]);
        fs.unmount().unwrap();
    }
}

fn find_anywhere(region: &Region, bytes: &[u8]) -> u64 {
    let media = region.to_vec(0, DEVICE_BYTES);
    media.windows(bytes.len()).position(|window| window == bytes).expect("the bytes are on the device") as u64
}

#[test]
fn a_name_in_memory_that_goes_bad_gives_eio_instead_of_enoent() {
    let region = format();
    let fs = mount(&region, Policy::Off);
    let dir = fs.mkdir(ROOT, b"crowded", &NEW).unwrap().ino;
    let name = |number: usize| format!("{number:03} {}", "x".repeat(100)).into_bytes();
    for number in 0..100 {
        fs.create(dir, &name(number), &NEW).unwrap();
    }
    let at = find_anywhere(&region, &name(60));
    region.poison(at, 1);
    assert_eio(fs.lookup(dir, &name(60)));
    assert_eio(fs.create(dir, &name(60), &NEW));
    assert_eio(fs.rename(dir, &name(0), dir, &name(60), RenameMode::Replace));
    assert_eio(fs.readdir(dir, 0, &mut |_| true));
    fs.lookup(dir, &name(0)).unwrap();
    fs.lookup(dir, &name(99)).unwrap();
    // Compaction must not write zeros for names that it cannot read.
    for _ in 0..300 {
        fs.create(dir, b"come and gone", &NEW).unwrap();
        fs.unlink(dir, b"come and gone").unwrap();
    }
    assert_eio(fs.lookup(dir, &name(60)));
    fs.lookup(dir, &name(99)).unwrap();
    assert!(!region.is_lost());
}

#[test]
fn bad_memory_in_an_attribute_value_or_link_target_gives_eio() {
    let region = format();
    let fs = mount(&region, Policy::Off);
    let file = create(&fs, "file", b"content");
    let value = blocks(7, 3);
    fs.set_xattr(file.ino(), b"user.long", &value, XattrMode::Set).unwrap();
    fs.set_xattr(file.ino(), b"user.short", b"value", XattrMode::Set).unwrap();
    let target: Vec<u8> = (0..4000).map(|at| b'a' + (at % 26) as u8).collect();
    let link = fs.symlink(ROOT, b"link", &target, &NEW).unwrap().ino;
    let (bad_value, bad_target) = (find(&region, &value[BLOCK..2 * BLOCK]), find(&region, &target));
    region.poison(bad_value + 64, 1);
    region.poison(bad_target, 1);
    assert_eio(fs.get_xattr(file.ino(), b"user.long"));
    assert_eio(fs.readlink(link));
    assert_eq!(fs.get_xattr(file.ino(), b"user.short").unwrap(), b"value");
    assert_eq!(read(&file).unwrap(), b"content");
    assert_fsck_names(&region, &["(/file)", "512 bytes of an attribute", &format!("{bad_value:#x}")]);
    assert_fsck_names(&region, &["(/link)", "an attribute", &format!("{bad_target:#x}")]);
    fs.set_xattr(file.ino(), b"user.long", &value, XattrMode::Set).unwrap();
    assert_eq!(fs.get_xattr(file.ino(), b"user.long").unwrap(), value, "set anew it is healed");
    fs.unlink(ROOT, b"link").unwrap();
    assert_all_else_works(&fs, &[("file", b"content")]);
}

#[test]
fn a_bad_chunk_entry_keeps_its_block_in_use_and_affects_nothing_else() {
    let region = format();
    let fs = mount(&region, Policy::Inline);
    let content = blocks(1, 3);
    let one = create(&fs, "one", &content);
    create(&fs, "two", &content);
    create(&fs, "other", &blocks(2, 4));
    assert_eq!(fs.stats().saved_bytes, 3 * BLOCK_BYTES);
    let block = BlockNumber::containing(find(&region, &content[BLOCK..2 * BLOCK]));
    let entry = Geometry::of(DEVICE_BYTES).unwrap().chunk_entry_offset(block);
    region.poison(entry, 64);
    assert!(read(&one).unwrap() == content, "data is not touched by it");
    // An equal block is stored again, and a clone cannot be counted.
    let three = create(&fs, "three", &content);
    assert!(read(&three).unwrap() == content);
    let clone = create(&fs, "clone", b"");
    assert_eio(clone.clone_from(&one, 0, 0, 3 * BLOCK_BYTES));
    assert_eq!(clone.attr().size, 0);
    fs.unlink(ROOT, b"clone").unwrap();
    drop(clone);
    // One of the two goes: the other must keep the block, whatever its entry said.
    one.write_at(0, &blocks(60, 3)).unwrap();
    fs.unlink(ROOT, b"one").unwrap();
    drop(one);
    let others = [("two", &content[..]), ("three", &content[..]), ("other", &blocks(2, 4)[..])];
    assert_all_else_works(&fs, &others);
    assert_fsck_names(&region, &["(/two)", &format!("block {}", block.0)]);
    assert_fsck_names(&region, &["chunk entry lies in bad memory", &format!("{entry:#x}")]);
    drop(three);
    fs.unmount().unwrap();
    let fs = mount(&region, Policy::Inline);
    fs.reconcile().unwrap();
    fs.unlink(ROOT, b"three").unwrap();
    assert_can_be_read(&fs, &[("two", &content), ("other", &blocks(2, 4))]);
    fs.unmount().unwrap();
    let fs = try_mount(&region, Policy::Inline, true).unwrap();
    assert!(read(&open(&fs, "two").unwrap()).unwrap() == content);
}

#[test]
fn one_readable_copy_of_the_superblock_suffices() {
    let copies = Geometry::of(DEVICE_BYTES).unwrap().with_last_copy().copies().collect::<Vec<_>>();
    assert_eq!(copies.len(), 3);
    for &bad in &copies {
        let region = format();
        let fs = mount(&region, Policy::Inline);
        create(&fs, "file", &blocks(1, 3));
        fs.unmount().unwrap();
        region.poison(bad + 64, 64);
        for _ in 0..2 {
            let fs = mount(&region, Policy::Inline);
            assert_all_else_works(&fs, &[("file", &blocks(1, 3))]);
            fs.unmount().unwrap();
        }
        assert_fsck_names(&region, &["superblock", &format!("{:#x}", bad)]);
        let (other, last) =
            (copies.iter().find(|copy| **copy != bad).unwrap(), copies.iter().rfind(|copy| **copy != bad));
        region.poison(*other, 64);
        assert_can_be_read(&try_mount(&region, Policy::Inline, true).unwrap(), &[("file", &blocks(1, 3))]);
        region.poison(*last.unwrap(), 64);
        assert_eio(try_mount(&region, Policy::Inline, true));
    }
}

#[test]
fn a_bad_table_prevents_only_read_write_mounts() {
    let geometry = Geometry::of(DEVICE_BYTES).unwrap();
    for bad in [geometry.journal_slot_offset(5), geometry.segment_entry_offset(geometry.first_segment() + 1)] {
        let region = format();
        let fs = mount(&region, Policy::Inline);
        create(&fs, "file", &blocks(1, 3));
        fs.unmount().unwrap();
        region.poison(bad, 1);
        assert_eio(try_mount(&region, Policy::Inline, false));
        assert!(!region.is_lost(), "nothing was written");
        assert_fsck_names(&region, &["bad memory", &format!("{:#x}", bad / 512 * 512)]);
    }
}

/// Slots of the journal take turns: one in memory that became bad is left out.
#[test]
fn a_journal_slot_in_bad_memory_is_not_used() {
    let region = format();
    let fs = mount(&region, Policy::Inline);
    create(&fs, "file", &blocks(1, 3));
    let bad = Geometry::of(DEVICE_BYTES).unwrap().journal_slot_offset(5);
    region.poison(bad, 1);
    // Who reads it finds out that it is bad.
    let _ = region.to_vec(bad, 1);
    let _ = region.check();
    for (from, to) in (0..200).map(|turn| if turn % 2 == 0 { ("file", "other") } else { ("other", "file") }) {
        fs.rename(ROOT, from.as_bytes(), ROOT, to.as_bytes(), RenameMode::Replace).unwrap();
        fs.mkdir(ROOT, b"dir", &NEW).unwrap();
        fs.rmdir(ROOT, b"dir").unwrap();
    }
    assert!(!region.is_lost());
    assert!(read(&open(&fs, "file").unwrap()).unwrap() == blocks(1, 3));
}

#[test]
fn a_lost_device_gives_eio_to_every_call_and_the_process_survives() {
    let dir = tempfile::tempdir().unwrap();
    for policy in POLICIES {
        let path = dir.path().join("device");
        let spec = DeviceSpec::Path(path.clone());
        let region = Region::create(&spec, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions { force: true, ..MkfsOptions::default() }).unwrap();
        let fs = mount(&region, policy);
        let file = create(&fs, "file", &blocks(1, 3));
        let dir = fs.mkdir(ROOT, b"dir", &NEW).unwrap().ino;
        let truncate = |bytes| std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
        truncate(BLOCK_BYTES);
        assert_eio(file.write_at(0, &blocks(2, 3)));
        assert_eio(read(&file));
        assert_eio(file.append(b"x"));
        assert_eio(file.set_len(0));
        assert_eio(file.sync());
        assert_eio(file.seek(0, Whence::Data));
        assert_eio(fs.lookup(ROOT, b"file"));
        assert_eio(fs.getattr(dir));
        assert_eio(fs.create(ROOT, b"new", &NEW));
        assert_eio(fs.unlink(ROOT, b"file"));
        assert_eio(fs.readdir(ROOT, 0, &mut |_| true));
        assert_eio(fs.rename(ROOT, b"file", dir, b"moved", RenameMode::Replace));
        assert_eio(fs.set_xattr(dir, b"user.name", b"value", XattrMode::Set));
        assert_eio(fs.sync());
        fs.stats();
        fs.trim().unwrap();
        drop(file);
        assert!(matches!(fs.unmount(), Err(Error::Device(PmemError::Lost { .. }))));
        drop(region);
        assert_eq!(path.metadata().unwrap().len(), BLOCK_BYTES, "nothing was written to it");
    }
}

// --- packed chunks -------------------------------------------------------------------------------

/// A device whose data is packed, cut every 16 KiB.
fn packed_device(index: IndexKind) -> (Region, FileSystem) {
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    let fs = mount(&region, Policy::DeExt);
    (region, fs)
}

/// Where the entries of packed chunks lie.
fn packed_entries(region: &Region) -> u64 {
    let geometry = Geometry::of(DEVICE_BYTES).unwrap();
    let is_entries = |segment: &u64| {
        let entry: SegmentEntry = region.read(geometry.segment_entry_offset(*segment));
        entry.usage(*segment) == SegmentUse::Entries(0)
    };
    (geometry.first_segment()..geometry.segments()).find(is_entries).unwrap() * SEGMENT_BYTES
}

#[test]
fn a_bad_part_of_a_packed_chunk_gives_eio_for_those_bytes_until_they_are_overwritten() {
    for index in IndexKind::ALL {
        let (region, fs) = packed_device(index);
        let (content, other) = (noise(1, 40_000), noise(2, 40_000));
        let file = create(&fs, "victim", &content);
        create(&fs, "other", &other);
        let bad = find_anywhere(&region, &content[20_000..20_100]);
        let first = 20_000 - bad as usize % 512;
        region.poison(bad, 1);
        assert_eio(read(&file));
        assert_eio(read(&file));
        let mut part = vec![0; first];
        file.read_at(0, &mut part).unwrap();
        assert!(part == content[..first], "what lies before it is there");
        let mut part = vec![0; 40_000 - first - 512];
        file.read_at(first as u64 + 512, &mut part).unwrap();
        assert!(part == content[first + 512..], "and what lies behind it");
        assert_eio(file.read_at(first as u64 + 511, &mut [0; 2]));
        let told = format!("bytes {first} to {} of the file", first + 511);
        assert_fsck_names(&region, &["/victim", &told, &format!("{:#x}", bad / 512 * 512)]);

        // A clone shares the loss, and an equal write does not join it.
        let clone = create(&fs, "clone", b"");
        clone.clone_from(&file, 0, 0, 40_000).unwrap();
        assert_eio(read(&clone));
        let equal = create(&fs, "equal", &content);
        assert!(read(&equal).unwrap() == content);
        file.write_at(first as u64, &content[first..first + 512]).unwrap();
        assert!(read(&file).unwrap() == content, "overwritten it is healed");
        fs.unlink(ROOT, b"clone").unwrap();
        drop((clone, file, equal));
        let files = [("victim", &content[..]), ("equal", &content), ("other", &other)];
        assert_all_else_works(&fs, &files);
        fs.unmount().unwrap();
        let fs = mount(&region, Policy::DeExt);
        fs.reconcile().unwrap();
        assert_all_else_works(&fs, &files);
        fs.unmount().unwrap();
        assert_eq!(fsck(&region), Vec::<String>::new());
        assert!(!region.is_lost());
    }
}

/// A sector holds eight entries. What they led to stays where it is, and a device that can be written there has them again.
#[test]
fn bad_entries_of_packed_chunks_cost_their_files_and_keep_the_bytes_for_repair() {
    for index in IndexKind::ALL {
        let (region, fs) = packed_device(index);
        let (content, other) = (noise(1, 200_000), noise(2, 30_000));
        let lost = 8 * (16 << 10);
        let one = create(&fs, "one", &content);
        create(&fs, "two", &content);
        create(&fs, "other", &other);
        let entries = packed_entries(&region);
        region.poison(entries + 100, 1);
        let assert_reads = |file: &File| {
            assert_eio(read(file));
            let mut rest = vec![0; content.len() - lost];
            file.read_at(lost as u64, &mut rest).unwrap();
            assert!(rest == content[lost..], "the rest of it is there");
        };
        assert_reads(&one);
        // Equal pieces are stored again, and a clone cannot be counted.
        let three = create(&fs, "three", &content);
        assert!(read(&three).unwrap() == content);
        let clone = create(&fs, "clone", b"");
        assert_eio(clone.clone_from(&one, 0, 0, 200_000));
        assert_eq!(clone.attr().size, 0);
        fs.unlink(ROOT, b"clone").unwrap();
        // One of the two goes: the other keeps the bytes, whatever the entries said.
        one.write_at(0, &noise(3, 200_000)).unwrap_or_else(|error| panic!("{index:?}: {error}"));
        fs.unlink(ROOT, b"one").unwrap();
        drop((one, clone, three));
        let others = [("three", &content[..]), ("other", &other)];
        assert_all_else_works(&fs, &others);
        assert_fsck_names(&region, &["(/two)", "bytes 0 to 16383 of the file", "packed chunk 0"]);
        assert_fsck_names(&region, &["packed chunk 7: its entry lies in bad memory, 64 bytes"]);
        fs.unmount().unwrap();
        let fs = mount(&region, Policy::DeExt);
        fs.reconcile().unwrap();
        assert_eq!(fs.stats().recovery.unreadable, 0);
        assert_reads(&open(&fs, "two").unwrap());
        fs.trim().unwrap();
        assert_all_else_works(&fs, &others);
        fs.unmount().unwrap();
        let fs = try_mount(&region, Policy::DeExt, true).unwrap();
        assert_reads(&open(&fs, "two").unwrap());
        drop(fs);
        // Repair gives nothing up: the memory may be replaced.
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        assert!(check(&region, &repair).unwrap().given_up.is_empty());
        assert_reads(&open(&mount(&region, Policy::DeExt), "two").unwrap());
        assert!(!region.is_lost());
        let region = copy_of(&region);
        let report = check(&region, &repair).unwrap();
        assert!(report.given_up.is_empty(), "{:?}", report.given_up);
        assert_eq!(fsck(&region), Vec::<String>::new());
        let fs = mount(&region, Policy::DeExt);
        assert_can_be_read(&fs, &[("two", &content), others[0], others[1]]);
    }
}

#[test]
fn bad_headers_of_packed_chunks_cost_no_file_and_stop_appends_there() {
    for index in IndexKind::ALL {
        let (region, fs) = packed_device(index);
        let content = noise(1, 40_000);
        create(&fs, "file", &content);
        fs.unmount().unwrap();
        let segment = find_anywhere(&region, &content[..100]) / SEGMENT_BYTES;
        let bad = (segment + 1) * SEGMENT_BYTES - 512;
        region.poison(bad, 512);
        let words = [&format!("segment {segment}: 512 bytes of headers of packed chunks"), &format!("{bad:#x}")[..]];
        assert_fsck_names(&region, &words);
        for _ in 0..2 {
            let fs = mount(&region, Policy::DeExt);
            fs.reconcile().unwrap();
            assert_all_else_works(&fs, &[("file", &content)]);
            fs.unmount().unwrap();
        }
        assert!(!region.is_lost());
        let repair = CheckOptions { repair: true, ..CheckOptions::default() };
        assert!(check(&region, &repair).unwrap().given_up.is_empty());
        assert_can_be_read(&mount(&region, Policy::DeExt), &[("file", &content)]);
    }
}

#[test]
fn a_bad_log_of_many_extents_costs_one_file() {
    for index in IndexKind::ALL {
        let (region, fs) = packed_device(index);
        let (content, other) = (noise(1, 200_000), noise(2, 40_000));
        let file = create(&fs, "victim", &content);
        create(&fs, "other", &other);
        let tail = || region.read::<InodeHead>(slot(file.ino())).tail();
        // One record of many extents each; the log leaves the slot.
        while (slot(file.ino())..slot(file.ino()) + INODE_BYTES).contains(&tail()) {
            file.write_at(0, &content).unwrap();
        }
        let bad = tail() - 64;
        drop(file);
        fs.unmount().unwrap();
        region.poison(bad, 1);
        let fs = mount(&region, Policy::DeExt);
        assert_eio(open(&fs, "victim").and_then(|file| read(&file)));
        assert_all_else_works(&fs, &[("other", &other)]);
        assert_fsck_names(&region, &["(/victim)", "its log lies in bad memory, 512 bytes"]);
        fs.unmount().unwrap();
        let fs = mount(&region, Policy::DeExt);
        fs.reconcile().unwrap();
        assert_eq!(fs.stats().recovery.unreadable, 1);
        assert_eio(open(&fs, "victim").and_then(|file| read(&file)));
        assert_all_else_works(&fs, &[("other", &other)]);
        fs.unmount().unwrap();
        // Where the line can be written, the file is given up, and nothing else.
        let region = copy_of(&region);
        let report = check(&region, &CheckOptions { repair: true, ..CheckOptions::default() }).unwrap();
        let given_up: Vec<_> = report.given_up.iter().filter_map(|inode| inode.path.as_deref()).collect();
        assert_eq!(given_up, [std::path::Path::new("/victim")]);
        assert_eq!(fsck(&region), Vec::<String>::new());
        assert_can_be_read(&mount(&region, Policy::DeExt), &[("other", &other)]);
    }
}

/// The page behind a tail, and the one with its entry, are known to be bad.
#[test]
fn a_tail_does_not_grow_into_bad_memory_and_bad_entries_are_not_used() {
    for (index, is_entry) in IndexKind::ALL.into_iter().flat_map(|index| [(index, false), (index, true)]) {
        let (region, fs) = packed_device(index);
        let file = create(&fs, "file", b"");
        let part = |number: u8| [number; 500];
        (1..4).for_each(|number| _ = file.append(&part(number)).unwrap());
        let bad = match is_entry {
            true => packed_entries(&region) + 8 * 64,
            false => (find_anywhere(&region, &part(3)) + 500).next_multiple_of(512),
        };
        region.poison(bad, 1);
        region.scrub(bad, 1).unwrap_err();
        (4..7).for_each(|number| _ = file.append(&part(number)).unwrap());
        let content: Vec<u8> = (1..7).flat_map(part).collect();
        assert!(read(&file).unwrap() == content);
        while !fs.fill_step().unwrap() {}
        drop(file);
        for number in 0..20 {
            create(&fs, &format!("short {number}"), &noise(number, 900));
        }
        assert_all_else_works(&fs, &[("file", &content), ("short 7", &noise(7, 900))]);
        assert!(!region.is_lost());
        fs.unmount().unwrap();
        let fs = mount(&region, Policy::DeExt);
        fs.reconcile().unwrap();
        assert_all_else_works(&fs, &[("file", &content), ("short 7", &noise(7, 900))]);
        assert!(!region.is_lost());
    }
}

/// A chunk in bad memory stays where it is while the others of its segment move; it keeps the segment, and nothing else.
#[test]
fn a_packed_chunk_in_bad_memory_does_not_move() {
    for index in IndexKind::ALL {
        let (region, fs) = packed_device(index);
        let names: Vec<String> = (0..8).map(|at| at.to_string()).collect();
        let contents: Vec<Vec<u8>> = (0..8).map(|at| noise(2 * at + 1, 16_000)).collect();
        names.iter().zip(&contents).for_each(|(name, content)| drop(create(&fs, name, content)));
        // A crash closes the segment.
        std::mem::forget(fs);
        let fs = mount(&region, Policy::DeExt);
        fs.reconcile().unwrap();
        let place = |fs: &FileSystem, name: &str| open(fs, name).unwrap().extents(0, 1).unwrap()[0].address;
        let (bad, before) = (place(&fs, "3"), place(&fs, "4"));
        region.poison(bad + 5000, 64);
        while !fs.reclaim_step(Victims::All).unwrap() {}
        assert_eq!((place(&fs, "3"), fs.stats().reclaim.segments), (bad, 0));
        assert_ne!(place(&fs, "4"), before, "the others have moved");
        assert_eio(read(&open(&fs, "3").unwrap()));
        let others = names.iter().zip(&contents).filter(|(name, _)| *name != "3");
        let others: Vec<(&str, &[u8])> = others.map(|(name, content)| (&name[..], &content[..])).collect();
        assert_can_be_read(&fs, &others);
        fs.unlink(ROOT, b"3").unwrap();
        assert_all_else_works(&fs, &others);
        fs.unmount().unwrap();
    }
}
