//! Appends: a file that grows by small steps takes from the host what it holds, and bytes after its end are
//! content of no file until an append is committed.

use crate::deext::{Random, create, open, read, unmount};
use nvfold::*;
use pmem::{Action, DeviceSpec, OpenOptions, Region, StoreOrder};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
const DEVICE_BYTES: u64 = 16 << 20;
/// The policies that store blocks.
const OF_BLOCKS: [Policy; 7] =
    [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova, Policy::Icid, Policy::IcidInline, Policy::Auto];
/// The smallest device on which ends of files are packed.
const PACKS_MIB: u64 = 128;

fn device(mib: u64, index: IndexKind) -> Region {
    let region = Region::create(&DeviceSpec::Memory, mib << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed * 2 + 1);
    (0..length).map(|_| random.below(256) as u8).collect()
}

/// The media address of the block in which a file ends.
fn end_of(file: &File) -> u64 {
    file.extents(0, 1000).unwrap().last().map(|last| (last.address + last.length - 1) / BLOCK as u64).unwrap()
}

/// What a device takes from the host for its first bytes, besides them: a window of 256 KiB each for blocks and packed
/// chunks, a few log pages and entries, and with a pm index the heads of its chains.
fn first_bytes(index: IndexKind) -> u64 {
    let heads = if index == IndexKind::Pm { PACKS_MIB * MIB / BLOCK as u64 * 16 } else { 0 };
    640 * KIB + heads
}

/// Appends 100 bytes at a time to files by turns, and compares at each MiB what the device takes from the host with
/// what the files hold.
fn grow_by_turns(policy: Policy, index: IndexKind, files: usize, appends: usize) {
    let region = device(PACKS_MIB, index);
    let fs = mount(&region, policy);
    let new: Vec<File> = (0..files).map(|nth| create(&fs, &format!("log {nth}"))).collect();
    let (mut contents, mut written) = (vec![Vec::new(); files], 0);
    for nth in 0..appends {
        let line = bytes(100, nth as u64);
        new[nth % files].append(&line).unwrap();
        contents[nth % files].extend_from_slice(&line);
        written += line.len() as u64;
        if written % MIB < line.len() as u64 {
            let host = region.allocated_bytes();
            let most = written * 6 / 5 + first_bytes(index);
            assert!(host <= most, "{policy:?}, {index:?}, {files} files: {host} of the host for {written} bytes");
        }
    }
    let host = region.allocated_bytes();
    println!("{policy:?}, {index:?}, {files} files: {:.3}", host as f64 / written as f64);
    assert!(host <= written * 6 / 5, "{policy:?}, {index:?}, {files} files: {host} of the host for {written} bytes");
    new.iter().zip(&contents).for_each(|(file, content)| assert!(read(file) == *content, "{policy:?}"));
    drop(new);
    unmount(&region, fs);
    let fs = mount(&region, policy);
    (0..files).for_each(|nth| assert!(read(&open(&fs, &format!("log {nth}"))) == contents[nth], "{policy:?}"));
}

fn grow_under_every_policy(appends: usize) {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        for policy in OF_BLOCKS {
            [1, 2, 7].into_iter().for_each(|files| grow_by_turns(policy, index, files, appends));
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "too long")]
fn files_that_grow_in_turns_take_only_their_size_from_the_host() {
    grow_under_every_policy(120_000);
}

#[test]
#[ignore = "long; `make soak` runs it"]
fn files_that_grow_to_100_mb_take_only_their_size_from_the_host() {
    grow_under_every_policy(1_000_000);
}

/// Blocks that are filled step by step are shared like others.
#[test]
#[cfg_attr(miri, ignore = "too long")]
fn files_that_grow_to_the_same_content_share_their_blocks() {
    let shares = [Policy::Inline, Policy::NvDedup, Policy::DeNova, Policy::IcidInline, Policy::Auto];
    for (index, policy) in [IndexKind::Dram, IndexKind::Pm].into_iter().flat_map(|i| shares.map(|policy| (i, policy))) {
        let region = device(PACKS_MIB, index);
        let fs = mount(&region, policy);
        let content = bytes(10 * BLOCK, 3);
        let files = ["one", "other"].map(|name| create(&fs, name));
        for part in content.chunks(1000) {
            files.iter().for_each(|file| _ = file.append(part).unwrap());
        }
        while !fs.drain_step().unwrap() {}
        // Under `icid+inline` the rest of the first block, of which a packed piece is shared, is stored by itself.
        let least = if policy.follows_origins() { 8 } else { 10 };
        let saved = fs.stats().saved_bytes as usize;
        assert!((least * BLOCK..=10 * BLOCK).contains(&saved), "{policy:?}, {index:?}: {saved} bytes");
        files.iter().for_each(|file| assert!(read(file) == content, "{policy:?}, {index:?}"));
        drop(files);
        unmount(&region, fs);
    }
}

#[test]
fn an_append_stays_in_the_last_block_unless_the_block_is_shared() {
    // Under the others the rest of a shared block stays shared.
    for policy in OF_BLOCKS.into_iter().filter(|policy| !policy.follows_origins()) {
        let region = device(16, IndexKind::Dram);
        let fs = mount(&region, policy);
        let file = create(&fs, "file");
        let mut content = bytes(1000, 1);
        let append = |file: &File, length: usize, content: &mut Vec<u8>| {
            let part = bytes(length, content.len() as u64);
            file.append(&part).unwrap();
            content.extend_from_slice(&part);
            assert!(read(file) == *content, "{policy:?}");
            end_of(file)
        };
        file.append(&content).unwrap();
        let begins = append(&file, 10, &mut content);
        for length in [1, 7, 8, 63, 64, 65, 700] {
            assert_eq!(append(&file, length, &mut content), begins, "{policy:?}: {length} more");
        }
        // A clone names the block, and keeps what it has when either of them grows.
        let clone = create(&fs, "clone");
        clone.clone_from(&file, 0, 0, content.len() as u64).unwrap();
        let mut of_clone = content.clone();
        let moved = append(&file, 20, &mut content);
        assert_ne!(moved, begins, "{policy:?}");
        assert_ne!(append(&clone, 30, &mut of_clone), moved, "{policy:?}");
        assert_eq!(append(&file, 21, &mut content), moved, "{policy:?}");
        assert!(read(&clone) == of_clone && read(&file) == content, "{policy:?}");
        // What was cut off is not seen again, wherever the file goes on.
        file.set_len(1200).unwrap();
        content.truncate(1200);
        file.set_len(1500).unwrap();
        content.resize(1500, 0);
        append(&file, 30, &mut content);
        file.set_len(1505).unwrap();
        content.truncate(1505);
        append(&file, 5000, &mut content);
        drop((file, clone));
        unmount(&region, fs);
    }
}

/// The kernel's writeback cache writes the page at the end of a file from its beginning each time.
#[test]
fn a_last_page_that_is_rewritten_longer_stays_in_its_block() {
    let region = device(16, IndexKind::Dram);
    let fs = mount(&region, Policy::Inline);
    let file = create(&fs, "file");
    let content = bytes(3 * BLOCK, 1);
    file.write_at(0, &content[..500]).unwrap();
    file.write_at(0, &content[..600]).unwrap();
    let begins = end_of(&file);
    for end in [601, 1000, 2048, 4000] {
        file.write_at(0, &content[..end]).unwrap();
        assert_eq!(end_of(&file), begins, "up to {end}");
    }
    file.write_at(0, &content[..BLOCK + 10]).unwrap();
    assert_eq!(file.extents(0, 1).unwrap()[0].address / BLOCK as u64, begins);
    file.write_at(BLOCK as u64, &content[BLOCK..]).unwrap();
    assert!(read(&file) == content);
    // Other bytes in front of the end are a write like any other.
    file.set_len(5000).unwrap();
    let mut changed = content[BLOCK..BLOCK + 2000].to_vec();
    changed[7] ^= 1;
    file.write_at(BLOCK as u64, &changed).unwrap();
    assert!(read(&file) == [&content[..BLOCK], &changed].concat());
    drop(file);
    unmount(&region, fs);
}

#[test]
fn appends_to_reserved_space_use_it() {
    let region = device(16, IndexKind::Dram);
    let fs = mount(&region, Policy::Off);
    let file = create(&fs, "file");
    file.allocate(0, 4 * BLOCK as u64, AllocateMode::ReserveKeepSize).unwrap();
    let free = fs.stats().free_bytes;
    let content = bytes(4 * BLOCK, 1);
    content.chunks(100).for_each(|part| _ = file.append(part).unwrap());
    assert!(read(&file) == content);
    // The first block is written whole by the first append, and moved by the second.
    assert!(fs.stats().free_bytes >= free - 2 * BLOCK as u64, "{} of {free}", fs.stats().free_bytes);
    drop(file);
    unmount(&region, fs);
}

/// An end is packed at once, then in a block while it grows, and packed once more when it rests.
#[test]
fn the_end_of_a_file_at_rest_is_packed_once() {
    let region = device(PACKS_MIB, IndexKind::Dram);
    let now = Arc::new(AtomicI64::new(0));
    let clock = now.clone();
    let options = MountOptions {
        policy: Policy::Inline,
        clock: Arc::new(move || clock.load(Ordering::Relaxed)),
        ..MountOptions::default()
    };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    let file = create(&fs, "file");
    let is_packed = || fs.stats().data_blocks == 0;
    let rest = |seconds: i64| {
        now.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
        while !fs.fill_step().unwrap() {}
    };
    file.append(&bytes(1000, 1)).unwrap();
    assert!(is_packed());
    file.append(&bytes(100, 2)).unwrap();
    assert!(!is_packed());
    rest(0);
    assert!(!is_packed(), "it was written to just now");
    let attr = file.attr();
    rest(2);
    assert!(is_packed());
    assert_eq!(file.attr(), attr, "that changes nothing that can be seen");
    assert!(read(&file) == [bytes(1000, 1), bytes(100, 2)].concat());
    file.append(&bytes(100, 3)).unwrap();
    rest(2);
    assert!(!is_packed(), "it grows again and again");
    // Another file is packed at the unmount.
    let other = create(&fs, "other");
    (0..5).for_each(|nth| _ = other.append(&bytes(50, nth)).unwrap());
    assert_eq!(fs.stats().data_blocks, 2);
    drop((file, other));
    unmount(&region, fs);
    assert_eq!(mount(&region, Policy::Inline).stats().data_blocks, 1);
}

/// A region that is recorded, with a file whose end grows, and what the file has.
fn growing(policy: Policy, index: IndexKind) -> (Region, FileSystem, Vec<u8>) {
    let options = OpenOptions { record: true, huge_pages: false, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &options).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    let fs = mount(&region, policy);
    let file = create(&fs, "file");
    let content = bytes(3000, 1);
    content.chunks(1000).for_each(|part| _ = file.append(part).unwrap());
    (region, fs, content)
}

/// Crashes an append at each fence, with some of the words that were not durable yet, and continues in each way in
/// which bytes behind the end could be seen.
fn crash_in_append(policy: Policy, index: IndexKind, length: usize) {
    let (region, fs, content) = growing(policy, index);
    region.take_recording();
    let before = region.to_vec(0, region.len_bytes());
    let cut_off = bytes(length, 2);
    open(&fs, "file").append(&cut_off).unwrap();
    drop(fs);
    let recording = region.take_recording();
    let all = [&content[..], &cut_off].concat();
    let fences = recording.events.iter().enumerate().filter(|(_, event)| event.action == Action::Fence);
    for (fence, kept) in fences.flat_map(|(at, _)| (0..4).map(move |kept| (at, kept))) {
        let image = recording.image(&before, fence, StoreOrder::AnyWord, |word| match kept {
            0 => false,
            1 => true,
            2 => word.offset / 8 % 2 == 0,
            _ => word.offset / 8 % 3 != 0,
        });
        let crashed = Region::create(&DeviceSpec::Memory, DEVICE_BYTES, &OpenOptions::default()).unwrap();
        let _ = crashed.fence(crashed.write(0, &image[..]).flush());
        let what = format!("{policy:?}, {index:?}: {length} bytes, fence {fence}, kept {kept}");
        go_on_after_crash(&crashed, policy, [&content, &all], (fence + kept) % 4, &what);
    }
}

/// Sees that the file has one of these contents after a crash, and lets it grow: at once, after all counts are exact, or
/// behind a hole.
fn go_on_after_crash(crashed: &Region, policy: Policy, allowed: [&Vec<u8>; 2], way: usize, what: &str) {
    let fs = mount(crashed, policy);
    if way == 1 {
        fs.reconcile().unwrap();
    }
    let file = open(&fs, "file");
    let mut content = read(&file);
    assert!(allowed.contains(&&content), "{what}: {} bytes", content.len());
    match way {
        2 => file.set_len(content.len() as u64 + 2000).unwrap(),
        3 => file.write_at(content.len() as u64 + 10, b"behind").unwrap(),
        _ => {}
    }
    content.resize(content.len() + [0, 0, 2000, 10][way], 0);
    if way == 3 {
        content.extend_from_slice(b"behind");
    }
    assert!(read(&file) == content, "{what}");
    for (nth, length) in [13, 1000, 90, BLOCK].into_iter().enumerate() {
        let part = bytes(length, 5 + nth as u64);
        file.append(&part).unwrap();
        content.extend_from_slice(&part);
    }
    assert!(read(&file) == content, "{what}");
    drop(file);
    unmount(crashed, fs);
    assert!(read(&open(&mount(crashed, policy), "file")) == content, "{what}");
}

#[test]
#[cfg_attr(miri, ignore = "too long")]
fn an_append_interrupted_by_a_crash_has_no_visible_effect() {
    for index in [IndexKind::Dram, IndexKind::Pm] {
        for policy in [Policy::Off, Policy::Inline, Policy::NvDedup, Policy::DeNova] {
            // Inside the block, up to its end, and beyond.
            [100, BLOCK - 3000, 3 * BLOCK].into_iter().for_each(|length| crash_in_append(policy, index, length));
        }
    }
}
