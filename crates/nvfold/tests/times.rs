//! mtime and ctime: changes that keep them keep both, under every policy, also over a crash and whatever works in the
//! background; and setting a size frees the space that is reserved after the end.

use crate::deext::{create, device, noise, open, settle, text, unmount};
use nvfold::*;
use pmem::Region;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const BLOCK: u64 = 4096;

/// Mounts with a clock that gives another time whenever it is asked.
fn mount(region: &Region, policy: Policy) -> FileSystem {
    let ticks = AtomicI64::new(1_000_000_000_000_000_000);
    let clock: Clock = Arc::new(move || ticks.fetch_add(1_000_003, Ordering::Relaxed));
    FileSystem::mount(region.clone(), MountOptions { policy, clock, ..MountOptions::default() }).unwrap()
}

fn times(file: &File) -> (i64, i64, i64, i64) {
    let Attr { atime, mtime, ctime, btime, .. } = file.attr();
    (atime, mtime, ctime, btime)
}

/// Every kind of change of content, on a file that has some: in blocks, in parts of them, behind the end, of zeros, of
/// what is there already, of what `other` holds.
fn change_content(file: &File, other: &File, with_origin: bool) {
    let whole = read(other);
    file.write_at(0, &noise(3 * 4096, 7)).unwrap();
    file.write_at(5000, &text(300, 8)).unwrap();
    file.write_at(2 * BLOCK, &whole[..2 * 4096]).unwrap();
    file.append(&text(10_000, 9)).unwrap();
    file.append(&text(60, 10)).unwrap();
    file.write_at(BLOCK, &[0; 4096]).unwrap();
    file.write_at(1 << 20, &[0; 4096]).unwrap();
    file.allocate(40_000, 9000, AllocateMode::Reserve).unwrap();
    file.allocate(2 << 20, 9000, AllocateMode::ReserveKeepSize).unwrap();
    file.allocate(2 << 20, 9000, AllocateMode::ReserveKeepSize).unwrap();
    file.allocate(3000, 9000, AllocateMode::PunchHole).unwrap();
    file.allocate(0, 5000, AllocateMode::ZeroRange).unwrap();
    file.write_at(40_000, &text(5000, 11)).unwrap();
    file.clone_from(other, 100, 50_000, 20_000).unwrap();
    if with_origin {
        let origin = Origin { at: 0, length: 9000, source: other, source_offset: 11 };
        file.write_at_from(70_001, &whole[11..9011], &[origin]).unwrap();
    }
}

fn read(file: &File) -> Vec<u8> {
    crate::deext::read(file)
}

#[test]
fn a_change_that_keeps_times_keeps_mtime_and_ctime() {
    for policy in Policy::ALL {
        let region = device(64, IndexKind::Dram);
        let mut fs = mount(&region, policy);
        let other = create(&fs, "other");
        other.write_at(0, &text(50_000, 3)).unwrap();
        drop(other);
        // One log entry sets both times: the same, or each its own.
        for (name, mtime, ctime) in [("same", 77, 77), ("own", -5, 88)] {
            let file = create(&fs, name).with_times(Times::Kept);
            fs.setattr(file.ino(), &SetAttr { mtime: Some(mtime), ctime: Some(ctime), ..SetAttr::default() }).unwrap();
            let before = times(&file);
            change_content(&file, &open(&fs, "other"), true);
            let keeps = SetAttr { size: Some(81_111), mode: Some(0o600), times: Times::Kept, ..SetAttr::default() };
            fs.setattr(file.ino(), &keeps).unwrap();
            while !fs.drain_step().unwrap() {}
            settle(&fs);
            file.dedup_range(0, u64::MAX).unwrap();
            assert_eq!((times(&file), before.1, before.2), (before, mtime, ctime), "{policy:?} {name}");
            let (content, blocks) = (read(&file), file.attr().blocks);
            drop(file);
            // As a crash leaves it.
            drop(fs);
            fs = mount(&region, policy);
            let file = open(&fs, name);
            assert_eq!((times(&file), read(&file), file.attr().blocks), (before, content, blocks), "{policy:?} {name}");
            drop(file);
            unmount(&region, fs);
            fs = mount(&region, policy);
            assert_eq!(times(&open(&fs, name)), before, "{policy:?} {name}");
        }
        // The control: without the word, each change is stamped.
        let file = open(&fs, "own");
        let before = times(&file);
        change_content(&file, &open(&fs, "other"), false);
        let after = times(&file);
        assert!(after.1 == after.2 && after.1 > before.2 && (after.0, after.3) == (before.0, before.3), "{policy:?}");
        let again = times(&file);
        file.allocate(40_000, 1, AllocateMode::ReserveKeepSize).unwrap();
        assert!(times(&file).1 > again.1, "a reservation of what is there is a change, as on ext4");
        drop(file);
        unmount(&region, fs);
    }
}

/// Blocks of 512 bytes that a file covers, and blocks of the device that are free or hold metadata, such as the log of
/// the changes.
fn space(fs: &FileSystem, file: &File) -> (u64, u64) {
    (file.attr().blocks, fs.statfs().blocks_free + fs.stats().metadata_bytes / BLOCK)
}

#[test]
fn setting_the_size_frees_space_reserved_beyond_it() {
    // Those that keep the end of a file in a block, so that blocks can be counted; the cut is the same code for all.
    for policy in [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova] {
        let region = device(64, IndexKind::Dram);
        let fs = mount(&region, policy);
        for (name, bytes) in [("empty", 0), ("end in a block", 5000), ("end of a block", 2 * BLOCK)] {
            let file = create(&fs, name);
            file.write_at(0, &noise(bytes as usize, 5)).unwrap();
            let written = space(&fs, &file);
            let kept = read(&file);
            let reserve = || file.allocate(0, 1 << 20, AllocateMode::ReserveKeepSize).unwrap();
            let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };

            reserve();
            let reserved = space(&fs, &file);
            assert!(reserved.0 >= 2048 && reserved.1 <= written.1 - 250, "{policy:?} {name}: {written:?} {reserved:?}");
            fs.setattr(file.ino(), &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
            fs.setattr(file.ino(), &size(bytes + 1)).unwrap();
            assert_eq!(file.attr().blocks, reserved.0, "another mode, and a larger size, keep it: {policy:?} {name}");
            // A size that is cut maps the end exactly.
            fs.setattr(file.ino(), &size(bytes)).unwrap();
            let written = space(&fs, &file);
            assert!(written.0 * 512 < bytes + 4096, "{policy:?} {name}: {written:?}");
            reserve();
            let before = file.attr().mtime;
            fs.setattr(file.ino(), &size(bytes)).unwrap();
            assert!(file.attr().mtime > before);
            assert_eq!(space(&fs, &file), written, "{policy:?} {name}");
            reserve();
            file.set_len(bytes).unwrap();
            assert_eq!((space(&fs, &file), read(&file)), (written, kept), "{policy:?} {name}");
        }
        unmount(&region, fs);
    }
}
