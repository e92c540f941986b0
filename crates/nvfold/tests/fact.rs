//! The pm index under the whole file system: the same as the dram index for everybody who uses it, on the device.

use nvfold::check::{CheckOptions, check};
use nvfold::internals::fingerprint::weak;
use nvfold::internals::media::direct::prefix_bits;
use nvfold::internals::media::saved_state::SavedState;
use nvfold::internals::media::segment::{SegmentEntry, SegmentUse};
use nvfold::internals::media::superblock::Geometry;
use nvfold::internals::media::{BlockNumber, SEGMENT_BYTES};
use nvfold::{
    File, FileKind, FileSystem, IndexKind, InodeNumber, MkfsOptions, MountOptions, NewInode, Policy, ReorderOptions,
    Stats, WeakFunction, convert_index, read_superblock,
};
use pmem::{DeviceSpec, OpenOptions, Region};

const BLOCK: usize = 4096;
const NEW: NewInode = NewInode { kind: FileKind::Regular, mode: 0o600, uid: 0, gid: 0, rdev: 0 };

fn device(bytes: u64, index: IndexKind) -> Region {
    let region = Region::create(&DeviceSpec::Memory, bytes, &OpenOptions::default()).unwrap();
    FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
    region
}

fn mount(region: &Region, policy: Policy) -> FileSystem {
    FileSystem::mount(region.clone(), MountOptions { policy, ..MountOptions::default() }).unwrap()
}

fn assert_consistent(region: &Region) {
    let report = check(region, &CheckOptions::default()).unwrap();
    assert!(report.is_consistent() && report.findings.is_empty(), "{:?}", report.findings);
}

fn block(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(BLOCK);
    while bytes.len() < BLOCK {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// What does not hang on the index: with the one in DRAM fewer blocks have an entry.
fn told(stats: &Stats) -> (u64, u64, u64, u64) {
    (stats.logical_bytes, stats.stored_bytes, stats.saved_bytes, stats.index.entries)
}

/// Writes, overwrites, clones and removes by a seed; the same calls whatever the device.
fn work(fs: &FileSystem, seed: u64, steps: u64) {
    let mut state = seed;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let open = |number: u64| {
        let name = format!("file{number}");
        let ino = match fs.lookup(InodeNumber::ROOT, name.as_bytes()) {
            Ok(attr) => attr.ino,
            Err(_) => fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).unwrap().ino,
        };
        fs.open(ino).unwrap()
    };
    for _ in 0..steps {
        let file = open(random(8));
        match random(10) {
            0..=5 => {
                let data: Vec<u8> = (0..=random(4)).flat_map(|_| block(random(200))).collect();
                file.write_at(random(64) * BLOCK as u64, &data).unwrap();
            }
            6 => drop(file.clone_from(&open(random(8)), random(32) * 4096, (64 + random(32)) * 4096, 8 * 4096)),
            7 => file.set_len(random(64) * 4096).unwrap(),
            8 => drop(file.dedup_range(0, u64::MAX).unwrap()),
            _ => fs.unlink(InodeNumber::ROOT, format!("file{}", random(8)).as_bytes()).unwrap_or_default(),
        }
    }
}

#[test]
fn the_pm_index_saves_as_much_as_the_dram_index() {
    for policy in [Policy::Inline, Policy::NvDedup, Policy::Off] {
        for seed in 0..4 {
            let devices = IndexKind::ALL.map(|kind| device(32 << 20, kind));
            for round in 0..3 {
                let systems = [mount(&devices[0], policy), mount(&devices[1], policy)];
                for fs in &systems {
                    work(fs, seed * 10 + round, 300);
                    while !fs.fill_step().unwrap() {}
                }
                assert_eq!(told(&systems[0].stats()), told(&systems[1].stats()), "{policy:?}, seed {seed}");
                assert_eq!(systems[1].index_kind(), IndexKind::Pm);
                for (fs, region) in systems.into_iter().zip(&devices) {
                    // The last round ends with a crash.
                    if round < 2 {
                        fs.unmount().unwrap();
                    } else {
                        drop(fs);
                    }
                    assert_consistent(region);
                }
            }
            let after = devices.map(|region| {
                let fs = mount(&region, policy);
                fs.reconcile().unwrap();
                while !fs.fill_step().unwrap() {}
                let stats = told(&fs.stats());
                fs.unmount().unwrap();
                assert_consistent(&region);
                stats
            });
            assert_eq!(after[0], after[1], "{policy:?}, seed {seed}, after the crash");
        }
    }
}

#[test]
fn the_pm_index_takes_no_dram_for_stored_blocks() {
    let region = device(64 << 20, IndexKind::Pm);
    let fs = mount(&region, Policy::Inline);
    let before = fs.stats().index;
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    (0..5000).for_each(|at| file.write_at(at * 4096, &block(at)).unwrap());
    let after = fs.stats().index;
    assert_eq!((after.entries, after.dram_bytes), (5000, before.dram_bytes));
    assert_eq!(after.media_bytes, 2 << 20);
}

/// Contents whose fingerprints begin with the same bits.
fn of_one_chain(bits: u32, count: usize) -> Vec<Vec<u8>> {
    let mut content = vec![0; BLOCK];
    let mut found = Vec::new();
    for number in 0u64.. {
        content[..8].copy_from_slice(&number.to_le_bytes());
        if weak(&content) >> (32 - bits) == 7 {
            found.push(content.clone());
        }
        if found.len() == count {
            break;
        }
    }
    found
}

#[test]
fn a_chain_with_all_blocks_is_slow_and_correct() {
    let region = device(16 << 20, IndexKind::Pm);
    let bits = prefix_bits(Geometry::of(16 << 20).unwrap().blocks());
    let contents = of_one_chain(bits, 40);
    let fs = mount(&region, Policy::Inline);
    let files: Vec<_> = (0..3)
        .map(|number| {
            fs.open(fs.create(InodeNumber::ROOT, format!("f{number}").as_bytes(), &NEW).unwrap().ino).unwrap()
        })
        .collect();
    for file in &files {
        contents.iter().zip(0..).for_each(|(content, at)| file.write_at(at * 4096, content).unwrap());
    }
    assert_eq!((fs.stats().data_blocks, fs.stats().index.entries), (40, 40));
    // Out of the middle, from the front, and again.
    for at in [20, 0, 39, 1, 21] {
        files.iter().for_each(|file| file.write_at(at * 4096, &block(at)).unwrap());
        files[0].write_at((100 + at) * 4096, &contents[at as usize]).unwrap();
        files[1].write_at((100 + at) * 4096, &contents[at as usize]).unwrap();
    }
    assert_eq!(fs.stats().data_blocks, 45);
    drop(files);
    fs.unmount().unwrap();
    assert_consistent(&region);
    let fs = mount(&region, Policy::Inline);
    let again = fs.open(fs.create(InodeNumber::ROOT, b"again", &NEW).unwrap().ino).unwrap();
    contents.iter().zip(0..).for_each(|(content, at)| again.write_at(at * 4096, content).unwrap());
    assert_eq!(fs.stats().data_blocks, 45, "a mount finds what was there");
}

/// Requests of one block to more than a batch bring blocks of one chain that is empty, that has a direct entry, a list
/// or both. An unmount or a crash follows.
#[test]
fn a_request_brings_any_number_of_blocks_of_one_chain() {
    let contents = of_one_chain(prefix_bits(Geometry::of(16 << 20).unwrap().blocks()), 70);
    for (there, has_direct) in [(0, true), (1, true), (4, true), (4, false)] {
        for (count, crashes) in [(1, false), (2, true), (7, false), (65, true)] {
            let region = device(16 << 20, IndexKind::Pm);
            let fs = mount(&region, Policy::Inline);
            let [one, two, again] = ["one", "two", "again"]
                .map(|name| fs.open(fs.create(InodeNumber::ROOT, name.as_bytes(), &NEW).unwrap().ino).unwrap());
            contents[..there].iter().zip(0..).for_each(|(content, at)| one.write_at(at * 4096, content).unwrap());
            if !has_direct {
                one.write_at(0, &block(1)).unwrap();
            }
            let first = usize::from(!has_direct);
            two.write_at(0, &contents[there..there + count].concat()).unwrap();
            let stored = fs.stats().data_blocks;
            assert_eq!(stored as usize, there + count);
            again.write_at(0, &contents[first..there + count].concat()).unwrap();
            assert_eq!(fs.stats().data_blocks, stored, "all of {count} behind {there} are found");
            // They leave: every other one, and then the others from the end.
            (0..count as u64).step_by(2).for_each(|at| two.write_at(at * 4096, &block(2 + at)).unwrap());
            let gone = (first as u64..(there + count) as u64).rev();
            gone.for_each(|at| again.write_at((at - first as u64) * 4096, &block(100 + at)).unwrap());
            for (content, at) in contents[there..there + count].iter().zip(0..) {
                let before = fs.stats().data_blocks;
                again.write_at((200 + at) * 4096, content).unwrap();
                assert_eq!(fs.stats().data_blocks - before, u64::from(at % 2 == 0), "the {at}-th of {count}");
            }
            drop((one, two, again));
            if crashes {
                drop(fs)
            } else {
                fs.unmount().unwrap()
            }
            assert_consistent(&region);
            let fs = mount(&region, Policy::Inline);
            fs.reconcile().unwrap();
            fs.unmount().unwrap();
            assert_consistent(&region);
        }
    }
}

#[test]
fn a_search_reads_one_and_a_half_entries_at_full_load() {
    let bytes = 48 << 20;
    let region = device(bytes, IndexKind::Pm);
    let fs = mount(&region, Policy::Inline);
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    let mut stored = 0;
    while fs.statfs().blocks_available > 256 {
        file.write_at(stored * 4096, &block(stored)).unwrap();
        stored += 1;
    }
    let before = fs.stats().index;
    for at in 0..stored {
        file.write_at(at * 4096, &block(at)).unwrap();
    }
    let after = fs.stats().index;
    let reads = (after.reads - before.reads) as f64 / (after.lookups - before.lookups) as f64;
    assert!(stored * 4096 > bytes * 4 / 5, "{stored} blocks fit");
    assert!((1.2..=1.5).contains(&reads), "{reads} entries a search");
}

/// Mounts a device on which 12 blocks are in one chain of the index, and the last one has been found often enough to
/// become the first.
fn with_a_chain_to_reorder(region: &Region) -> (FileSystem, File, Vec<Vec<u8>>) {
    let bits = prefix_bits(Geometry::of(16 << 20).unwrap().blocks());
    let contents = of_one_chain(bits, 12);
    let reorder = ReorderOptions { references: 4, reads: 2 };
    let denova = nvfold::DeNovaOptions { reorder, ..Default::default() };
    let options = MountOptions { policy: Policy::Inline, denova, ..MountOptions::default() };
    let fs = FileSystem::mount(region.clone(), options).unwrap();
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    // What one request brings keeps its order.
    file.write_at(0, &contents.concat()).unwrap();
    for at in 0..8 {
        file.write_at((100 + at) * 4096, &contents[11]).unwrap();
    }
    (fs, file, contents)
}

/// Steps of a reorder.
const REORDER_STEPS: usize = 4;

#[test]
fn an_unmount_ends_a_reorder_after_any_of_its_steps() {
    for steps in 0..=REORDER_STEPS {
        let region = device(16 << 20, IndexKind::Pm);
        let (fs, file, contents) = with_a_chain_to_reorder(&region);
        (0..steps).for_each(|_| assert!(!fs.reorder_step().unwrap()));
        drop(file);
        fs.unmount().unwrap();
        assert_consistent(&region);
        let fs = FileSystem::mount(region.clone(), MountOptions::default()).unwrap();
        let file = fs.open(fs.lookup(InodeNumber::ROOT, b"file").unwrap().ino).unwrap();
        contents.iter().zip(200..).for_each(|(content, at)| file.write_at(at * 4096, content).unwrap());
        assert_eq!(fs.stats().data_blocks, 12, "after {steps} steps");
        drop(file);
        fs.unmount().unwrap();
    }
}

#[test]
fn a_reorder_moves_frequently_found_blocks_to_the_front() {
    let region = device(16 << 20, IndexKind::Pm);
    let (fs, file, contents) = with_a_chain_to_reorder(&region);
    let reads = |fs: &FileSystem| fs.stats().index.reads;
    let look = |at: u64| {
        let before = reads(&fs);
        file.write_at(at * 4096, &contents[11]).unwrap();
        reads(&fs) - before
    };
    assert_eq!(look(120), 12, "the last of a chain");
    // Between any two steps everything is found.
    for round in 0..REORDER_STEPS as u64 {
        assert!(!fs.reorder_step().unwrap());
        for (content, at) in contents.iter().zip(200..) {
            file.write_at((at + 20 * round) * 4096, content).unwrap();
        }
        assert_eq!(fs.stats().data_blocks, 12);
    }
    assert_eq!((look(121), fs.stats().index.reordered), (1, 1), "now the first");
    drop(file);
    fs.unmount().unwrap();
    assert_consistent(&region);
}

#[test]
fn converting_the_index_keeps_all_data_shared() {
    for policy in [Policy::Inline, Policy::NvDedup] {
        let region = device(32 << 20, IndexKind::Dram);
        let fs = mount(&region, policy);
        work(&fs, 5, 400);
        fs.unmount().unwrap();
        let fs = mount(&region, Policy::Inline);
        while !fs.fill_step().unwrap() {}
        let before = told(&fs.stats());
        fs.unmount().unwrap();
        let mut steps = Vec::new();
        for (to, weak) in [
            (IndexKind::Pm, WeakFunction::Xxh3),
            (IndexKind::Pm, WeakFunction::Xxh3),
            (IndexKind::Dram, WeakFunction::Xxh3),
            (IndexKind::Pm, WeakFunction::Crc32),
            (IndexKind::Pm, WeakFunction::Xxh3),
            (IndexKind::Dram, WeakFunction::Xxh3),
        ] {
            convert_index(&region, to, weak, &mut |done, total| steps.push((done, total))).unwrap();
            assert_consistent(&region);
            let fs = mount(&region, Policy::Inline);
            assert_eq!((fs.index_kind(), fs.stats().recovery.loaded), (to, true));
            while !fs.fill_step().unwrap() {}
            assert_eq!(told(&fs.stats()), before);
            fs.unmount().unwrap();
            assert_consistent(&region);
        }
        assert!(steps.iter().all(|(done, total)| done <= total) && steps.iter().any(|(done, _)| *done > 0));
        let fs = mount(&region, policy);
        let entries = fs.stats().index.entries;
        work(&fs, 6, 200);
        assert!(entries > 0 && fs.stats().index.entries > 0);
        fs.unmount().unwrap();
        assert_consistent(&region);
    }
}

#[test]
fn converting_the_index_of_a_full_device_fails_and_keeps_the_old_one() {
    let region = device(16 << 20, IndexKind::Dram);
    let fs = mount(&region, Policy::Inline);
    let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
    let mut stored = 0;
    while file.write_at(stored * 4096, &block(stored)).is_ok() {
        stored += 1;
    }
    drop(file);
    let before = told(&fs.stats());
    fs.unmount().unwrap();
    let refused = convert_index(&region, IndexKind::Pm, WeakFunction::Xxh3, &mut |_, _| {}).unwrap_err();
    assert_eq!(refused.errno(), nvfold::errno::ENOSPC, "{refused}");
    assert_consistent(&region);
    let fs = mount(&region, Policy::Inline);
    assert_eq!((fs.index_kind(), told(&fs.stats())), (IndexKind::Dram, before));
}

/// An unmounted device whose chain 7 has four blocks, by place: the direct one and the list.
struct Chain {
    region: Region,
    geometry: Geometry,
    head: u64,
    blocks: Vec<u64>,
    contents: Vec<Vec<u8>>,
}

impl Chain {
    fn make() -> Chain {
        let region = device(16 << 20, IndexKind::Pm);
        let geometry = Geometry::of(16 << 20).unwrap();
        let contents = of_one_chain(prefix_bits(geometry.blocks()), 4);
        let fs = mount(&region, Policy::Inline);
        let file = fs.open(fs.create(InodeNumber::ROOT, b"file", &NEW).unwrap().ino).unwrap();
        file.write_at(0, &contents.concat()).unwrap();
        // Some other entry, and a block without one.
        file.write_at(1 << 20, &block(1)).unwrap();
        let blocks = (0..4).map(|at| file.extents(at * 4096, 1).unwrap()[0].address / 4096).collect();
        drop(file);
        fs.unmount().unwrap();
        let is_index = |segment: &u64| {
            let entry: SegmentEntry = region.read(geometry.segment_entry_offset(*segment));
            entry.usage(*segment) == SegmentUse::Index(0)
        };
        let head = (0..geometry.segments()).find(is_index).unwrap() * SEGMENT_BYTES + 7 * 16;
        Chain { region, geometry, head, blocks, contents }
    }

    fn entry_at(&self, place: usize, field: u64) -> u64 {
        self.geometry.chunk_entry_offset(BlockNumber(self.blocks[place])) + field
    }

    fn store(&self, offset: u64, value: u32) {
        let _ = self.region.fence(self.region.write(offset, &value).flush());
    }

    /// Whoever mounts it as it is gets right data, whatever is found of it; fsck tells, and repairs.
    fn found_and_repaired(self, what: &str) {
        let report = check(&self.region, &CheckOptions::default()).unwrap();
        let tells = report.findings.iter().any(|finding| finding.invariant == 6 && finding.what.contains(what));
        assert!(tells, "`{what}` is not in {:?}", report.findings);
        let fs = mount(&self.region, Policy::Inline);
        let file = fs.open(fs.create(InodeNumber::ROOT, b"more", &NEW).unwrap().ino).unwrap();
        for (content, at) in self.contents.iter().zip(0..) {
            file.write_at(at * 4096, content).unwrap();
            let mut read = vec![0; BLOCK];
            file.read_at(at * 4096, &mut read).unwrap();
            assert_eq!(&read, content);
        }
        fs.unlink(InodeNumber::ROOT, b"more").unwrap();
        drop(file);
        drop(fs);
        let report = check(&self.region, &CheckOptions { repair: true, data: true }).unwrap();
        assert!(report.is_consistent(), "{:?}", report.findings);
        assert_consistent(&self.region);
        let fs = mount(&self.region, Policy::Inline);
        let stored = fs.stats().data_blocks;
        let file = fs.open(fs.create(InodeNumber::ROOT, b"more", &NEW).unwrap().ino).unwrap();
        self.contents.iter().zip(0..).for_each(|(content, at)| file.write_at(at * 4096, content).unwrap());
        assert_eq!(fs.stats().data_blocks, stored, "all are found again");
    }
}

/// Where the fields lie: of a head, and of an entry.
const HEAD_WEAK: u64 = 0;
const HEAD_BLOCK: u64 = 4;
const HEAD_NEXT: u64 = 8;
const HEAD_ORDER: u64 = 12;
const PREVIOUS: u64 = 48;
const NEXT: u64 = 52;
const POINTER: u64 = 56;

#[test]
fn a_chain_that_begins_with_the_wrong_block_is_found() {
    let chain = Chain::make();
    chain.store(chain.head + HEAD_BLOCK, 5);
    chain.found_and_repaired("begins with block 5");
    let chain = Chain::make();
    chain.store(chain.head + HEAD_WEAK, 5);
    chain.found_and_repaired("begins with block");
    let chain = Chain::make();
    chain.store(chain.head + HEAD_BLOCK, 0);
    chain.found_and_repaired("is not in its chain");
}

#[test]
fn a_chain_with_an_entry_of_another_chain_is_found() {
    for (from, to) in [(1, 3), (2, u32::MAX), (1, 0)] {
        let chain = Chain::make();
        chain.store(chain.entry_at(from, NEXT), to);
        chain.found_and_repaired(if to == 0 { "is not in its chain" } else { "does not belong there" });
    }
    let chain = Chain::make();
    chain.store(chain.head + HEAD_NEXT, 0);
    chain.found_and_repaired("is not in its chain");
    let chain = Chain::make();
    chain.store(chain.entry_at(2, POINTER), 8);
    chain.found_and_repaired("does not belong there");
}

#[test]
fn a_circular_chain_is_found() {
    for to in 1..4 {
        let chain = Chain::make();
        chain.store(chain.entry_at(3, NEXT), chain.blocks[to] as u32);
        chain.found_and_repaired("twice");
    }
    let chain = Chain::make();
    chain.store(chain.entry_at(3, NEXT), chain.blocks[0] as u32);
    chain.found_and_repaired("twice");
}

#[test]
fn a_wrong_previous_link_of_a_chain_is_found() {
    for place in 1..4 {
        let chain = Chain::make();
        chain.store(chain.entry_at(place, PREVIOUS), chain.blocks[0] as u32);
        chain.found_and_repaired("and its entry has");
    }
}

#[test]
fn a_reorder_that_was_not_finished_is_found() {
    let chain = Chain::make();
    chain.store(chain.head + HEAD_ORDER, u32::MAX);
    chain.found_and_repaired("was not finished");
    for last in [1, 3, 0] {
        let chain = Chain::make();
        chain.store(chain.head + HEAD_ORDER, chain.blocks[last] as u32);
        chain.found_and_repaired("was not finished");
    }
    let chain = Chain::make();
    chain.store(chain.head + HEAD_ORDER, 3);
    chain.found_and_repaired("was not finished");
}

#[test]
fn a_lost_pm_index_segment_is_reported_and_the_device_can_be_converted() {
    let chain = Chain::make();
    let segment = chain.head / SEGMENT_BYTES;
    let entry = chain.geometry.segment_entry_offset(segment);
    let _ = chain.region.fence(chain.region.write(entry, &SegmentEntry::default()).flush());
    let report = check(&chain.region, &CheckOptions::default()).unwrap();
    assert!(report.findings.iter().any(|finding| finding.invariant == 6), "{:?}", report.findings);
    let refused = FileSystem::mount(chain.region.clone(), MountOptions::default()).err().unwrap();
    assert!(matches!(refused, nvfold::Error::PmIndexDamaged { .. }), "{refused}");
    convert_index(&chain.region, IndexKind::Dram, WeakFunction::Xxh3, &mut |_, _| {}).unwrap();
    assert_consistent(&chain.region);
    assert_eq!(mount(&chain.region, Policy::Inline).stats().index.entries, 5);
}

#[test]
fn a_segment_left_over_by_a_conversion_is_freed() {
    let region = device(16 << 20, IndexKind::Dram);
    let geometry = Geometry::of(16 << 20).unwrap();
    let at = geometry.segment_entry_offset(geometry.first_segment() + 2);
    let _ = region.fence(region.write(at, &SegmentEntry::index(geometry.first_segment() + 2, 0)).flush());
    let report = check(&region, &CheckOptions::default()).unwrap();
    assert_eq!((report.findings.len(), report.recoverable), (0, 1), "{report:?}");
    mount(&region, Policy::Inline).unmount().unwrap();
    assert_consistent(&region);
    assert_eq!(region.read::<SegmentEntry>(at), SegmentEntry::default());
}

/// What is saved says of which function a dram index is; a pm index is of the device's, whatever that says.
#[test]
fn a_saved_state_with_another_weak_function_keeps_counts_exact() {
    let chain = Chain::make();
    let (superblock, _) = read_superblock(&chain.region).unwrap();
    let address = superblock.saved_state;
    let saved = SavedState { weak_function: 99, ..chain.region.read(address) };
    let _ = chain.region.fence(chain.region.write(address, &saved.sealed(address)).flush());
    let fs = mount(&chain.region, Policy::Inline);
    assert_eq!(fs.stats().index.entries, 5);
    fs.unmount().unwrap();
    assert_consistent(&chain.region);
}
