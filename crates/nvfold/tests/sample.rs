//! `weak=sample`: versions of a block that differ in a line which the first look does not read are told apart, and each of
//! them is found again, whatever stored it.

use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};

const BLOCK: usize = 4096;
const LINE: usize = 64;
/// One version of a block for each of its lines; most of them have the same first key.
const VERSIONS: u64 = (BLOCK / LINE) as u64;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o644, uid: 0, gid: 0, rdev: 0 };

fn device() -> Region {
    let region = Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { uuid: *b"eight lines of a", ..MkfsOptions::default() }).unwrap();
    region
}

fn options(policy: Policy, weak: WeakFunction) -> MountOptions {
    let nv_dedup = NvDedupOptions { weak, method: MethodChoice::Fixed(Method::WBFin), ..NvDedupOptions::default() };
    MountOptions { policy, nv_dedup, ..MountOptions::default() }
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    let fs = FileSystem::mount(region.clone(), options(policy, WeakFunction::Sample)).unwrap();
    fs.reconcile().unwrap();
    settle(&fs);
    fs
}

/// Runs the work beside the calls until nothing is left.
fn settle(fs: &FileSystem) {
    while !fs.fill_step().unwrap() {}
    while !fs.drain_step().unwrap() {}
}

fn unmount(fs: FileSystem, region: &Region) {
    fs.unmount().unwrap();
    let found = check(region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
    assert!(found.clean && found.findings.is_empty(), "{found:?}");
}

fn create(fs: &FileSystem, name: &str) -> File {
    fs.open(fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap()
}

/// The version of a block in which this line is another.
fn version(line: u64) -> Vec<u8> {
    let words = (1..=BLOCK as u64 / 8).map(|at| at.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut block: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    block[line as usize * LINE + 5] ^= 0xa5;
    block
}

fn versions() -> Vec<u8> {
    (0..VERSIONS).flat_map(version).collect()
}

/// Stores all versions in a new file, some blocks a call, and sees that they read back.
fn store(fs: &FileSystem, name: &str, blocks_a_call: usize) -> File {
    let (file, all) = (create(fs, name), versions());
    for (at, part) in all.chunks(blocks_a_call * BLOCK).enumerate() {
        file.write_at((at * blocks_a_call * BLOCK) as u64, part).unwrap();
    }
    let mut read = vec![0; all.len()];
    assert_eq!(file.read_at(0, &mut read).unwrap(), all.len());
    assert!(read == all, "{name}");
    file
}

fn stored_blocks(fs: &FileSystem) -> u64 {
    settle(fs);
    fs.stats().data_blocks
}

const SHARING: [Policy; 5] = [Policy::Inline, Policy::NvDedup, Policy::DeNova, Policy::IcidInline, Policy::Auto];

#[test]
fn every_version_of_a_block_is_found_again_under_every_policy() {
    for policy in SHARING {
        for blocks_a_call in [1, 16, VERSIONS as usize] {
            let region = device();
            let fs = mount(&region, policy);
            store(&fs, "one", blocks_a_call);
            let before = stored_blocks(&fs);
            store(&fs, "two", blocks_a_call);
            // `auto` may store first and look later.
            let added = stored_blocks(&fs) - before;
            let is_auto = policy == Policy::Auto;
            assert!(before == VERSIONS && (added == 0 || is_auto), "{policy:?} {blocks_a_call}: {before} and {added}");
            unmount(fs, &region);
        }
    }
}

#[test]
fn a_write_of_versions_looks_at_four_candidates_a_block_at_most() {
    let region = device();
    let fs = mount(&region, Policy::Inline);
    store(&fs, "one", 1);
    let collisions = fs.stats().weak_collisions;
    assert!((VERSIONS..=4 * VERSIONS).contains(&collisions), "{collisions} candidates differed");
    unmount(fs, &region);
}

#[test]
fn versions_are_found_after_a_crash_and_after_a_clean_unmount() {
    for policy in SHARING {
        let region = device();
        let fs = mount(&region, policy);
        store(&fs, "one", 16);
        let before = stored_blocks(&fs);
        drop(fs);
        let fs = mount(&region, Policy::Inline);
        store(&fs, "two", 16);
        assert_eq!(stored_blocks(&fs), before, "{policy:?}, after a crash");
        unmount(fs, &region);
        let fs = mount(&region, Policy::Inline);
        store(&fs, "three", 16);
        assert_eq!(stored_blocks(&fs), before, "{policy:?}, after a clean unmount");
        unmount(fs, &region);
    }
}

#[test]
fn versions_stored_with_other_functions_or_without_any_are_shared_afterwards() {
    for (policy, weak) in [(Policy::Inline, WeakFunction::Xxh3), (Policy::Off, WeakFunction::Sample)] {
        let region = device();
        let fs = FileSystem::mount(region.clone(), options(policy, weak)).unwrap();
        let files = ["one", "two"].map(|name| store(&fs, name, 16));
        unmount(fs, &region);
        let fs = mount(&region, Policy::Inline);
        for file in files {
            let file = fs.open(file.ino()).unwrap();
            file.dedup_range(0, VERSIONS * BLOCK as u64).unwrap();
        }
        assert_eq!(stored_blocks(&fs), VERSIONS, "{policy:?} {weak:?}");
        // Sharing has freed those that were entered by their first key: see below.
        store(&fs, "three", 16);
        let now = stored_blocks(&fs);
        assert!(now <= VERSIONS + 1, "{policy:?} {weak:?}: {now}");
        store(&fs, "four", 16);
        assert_eq!(stored_blocks(&fs), now, "{policy:?} {weak:?}");
        unmount(fs, &region);
    }
}

/// Entered by its second key, a version is missed only while no block has the first one: once for all of them.
#[test]
fn when_the_versions_that_were_entered_first_are_freed_one_copy_is_stored_again() {
    let region = device();
    let fs = mount(&region, Policy::Inline);
    let one = store(&fs, "one", 16);
    let file = create(&fs, "two");
    // Zeros become holes, so the first half of the versions is gone.
    one.write_at(0, &vec![0; VERSIONS as usize / 2 * BLOCK]).unwrap();
    let before = stored_blocks(&fs);
    assert_eq!(before, VERSIONS / 2);
    let rest = &versions()[VERSIONS as usize / 2 * BLOCK..];
    file.write_at(0, rest).unwrap();
    file.write_at(1 << 20, rest).unwrap();
    let added = stored_blocks(&fs) - before;
    assert!(added <= 1, "{added} blocks were stored again");
    unmount(fs, &region);
}

#[test]
fn the_lines_that_a_device_reads_do_not_matter_to_blocks_that_are_equal_or_quite_different() {
    for device_number in 0..8u128 {
        let region = Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap();
        let uuid = device_number.to_le_bytes();
        FileSystem::mkfs(&region, &MkfsOptions { uuid, ..MkfsOptions::default() }).unwrap();
        let fs = mount(&region, Policy::Inline);
        let different: Vec<u8> = (0..200u64)
            .flat_map(|block| (1..=512u64).map(move |at| (block << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
            .flat_map(u64::to_le_bytes)
            .collect();
        ["one", "two"].into_iter().for_each(|name| create(&fs, name).write_at(0, &different).unwrap());
        assert_eq!((stored_blocks(&fs), fs.stats().weak_collisions), (200, 0));
        unmount(fs, &region);
    }
}

#[test]
fn a_pm_index_is_not_built_on_it() {
    let region = Region::create(&DeviceSpec::Memory, 32 << 20, &OpenOptions::default()).unwrap();
    let sampled = MkfsOptions { index: IndexKind::Pm, weak: WeakFunction::Sample, ..MkfsOptions::default() };
    let refused = FileSystem::mkfs(&region, &sampled).unwrap_err().to_string();
    assert!(refused.contains("a pm index cannot be built on sample"), "{refused}");
    FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
    let mut progress = |_, _| {};
    let refused = convert_index(&region, IndexKind::Pm, WeakFunction::Sample, &mut progress).unwrap_err().to_string();
    assert!(refused.contains("a pm index cannot be built on sample"), "{refused}");
    // A device with a pm index has the function of that, whatever the mount asks for.
    convert_index(&region, IndexKind::Pm, WeakFunction::Xxh3, &mut progress).unwrap();
    let fs = mount(&region, Policy::Inline);
    assert_eq!(fs.weak_function(), WeakFunction::Xxh3);
    unmount(fs, &region);
}
