//! Policies of files and directories, sharing of stored data, and undedup.
//!
//! Sharing and copying change nothing that can be read. The stored bytes change by exactly the amount that was
//! announced.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nvfold::internals::media::log_entry::{LogEntry, XattrValue};
use nvfold::{
    AllocateMode, Attr, File, FileKind, FileSystem, InodeNumber, MappedExtent, Method, MethodChoice, MountOptions,
    NvDedupOptions, POLICY_ATTRIBUTE, Policy, PolicyOf, RenameMode, SetAttr, UndedupPlan, Whence, XattrMode, errno,
};
use nvfold_tests::block::{self, Label};
use nvfold_tests::device::{self, BLOCK_POLICIES, Device, POLICIES};
use nvfold_tests::random::{Seed, soak_factor};

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 4096;
const DEVICE_MIB: u64 = 64;

fn create(fs: &FileSystem, dir: InodeNumber, name: &str) -> File {
    let attr = fs.create(dir, name.as_bytes(), &device::regular()).expect("create");
    fs.open(attr.ino).expect("open")
}

fn set_policy(fs: &FileSystem, ino: InodeNumber, policy: Policy) {
    fs.set_xattr(ino, POLICY_ATTRIBUTE, policy.name().as_bytes(), XattrMode::Set).expect("set the policy");
}

/// Returns blocks that are all different, the same for the same seed.
fn distinct(seed: u64, blocks: usize) -> Vec<u8> {
    let mut bytes = vec![0; blocks * BLOCK as usize];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).expect("read"), bytes.len());
    bytes
}

fn all_extents(file: &File) -> Vec<MappedExtent> {
    let mut all: Vec<MappedExtent> = Vec::new();
    loop {
        let from = all.last().map_or(0, |last| last.offset + last.length);
        // A few at a time, as a program does it.
        let more = file.extents(from, 3).expect("extents");
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}

fn plan(files: &[&File]) -> UndedupPlan {
    let mut plan = UndedupPlan::new();
    files.iter().for_each(|file| plan.add(&all_extents(file)));
    plan
}

/// Returns everything visible of a file, except the number of its blocks.
fn visible(file: &File) -> (Attr, Vec<u8>) {
    (Attr { blocks: 0, ..file.attr() }, content(file))
}

#[test]
fn new_files_and_directories_inherit_the_policy() {
    for mount_policy in POLICIES {
        let own = if mount_policy == Policy::Off { Policy::Inline } else { Policy::Off };
        let device = Device::of(DEVICE_MIB, mount_policy);
        let fs = device.mount(mount_policy);
        let dir = fs.mkdir(ROOT, b"dir", &device::directory()).expect("mkdir").ino;
        let before = create(&fs, dir, "before");
        set_policy(&fs, dir, own);
        let sub = fs.mkdir(dir, b"sub", &device::directory()).expect("mkdir").ino;
        let (inside, outside) = (create(&fs, sub, "inside"), create(&fs, ROOT, "outside"));
        let link = fs.symlink(dir, b"link", b"nowhere", &device::new_inode(FileKind::Symlink, 0o777)).expect("symlink");
        let fifo = fs.create(dir, b"fifo", &device::new_inode(FileKind::Fifo, 0o644)).expect("fifo");
        for (what, ino, expected) in [
            ("the directory", dir, PolicyOf::Own(own)),
            ("a directory in it", sub, PolicyOf::Own(own)),
            ("a file in that", inside.ino(), PolicyOf::Own(own)),
            ("what was there before", before.ino(), PolicyOf::Mount(mount_policy)),
            ("what is elsewhere", outside.ino(), PolicyOf::Mount(mount_policy)),
            ("a symlink", link.ino, PolicyOf::Mount(mount_policy)),
            ("a fifo", fifo.ino, PolicyOf::Mount(mount_policy)),
        ] {
            assert_eq!(fs.policy_of(ino).expect("policy"), expected, "{what}");
        }
        // The policy applies to later writes, and moves with the file.
        fs.rename(sub, b"inside", ROOT, b"moved", RenameMode::Replace).expect("rename");
        let data = distinct(1, 4);
        let stored = |file: &File| {
            let before = fs.stats().stored_bytes;
            file.write_at(0, &data).expect("write");
            fs.stats().stored_bytes - before
        };
        let fill = |file: &File| (stored(file), stored(&create(&fs, sub, &format!("again {}", file.ino().0))));
        let expected = match own {
            // The first file of a sharing policy is stored, the second is shared with it.
            Policy::Inline => (4 * BLOCK, 0),
            _ => (4 * BLOCK, 4 * BLOCK),
        };
        assert_eq!(fill(&inside), expected, "{mount_policy:?}");
        assert_eq!(stored(&outside), 4 * BLOCK, "the policy of the mount shares nothing with what `off` stored");
        let again = create(&fs, ROOT, "outside again");
        match (mount_policy.without_origins(), stored(&again)) {
            (Policy::Off | Policy::DeNova, taken) => assert_eq!(taken, 4 * BLOCK),
            (Policy::Inline | Policy::DeExt, taken) => assert_eq!(taken, 0),
            // The policy may be in a period in which it does not search.
            (_, taken) => assert!(taken == 4 * BLOCK || taken == 0),
        }
        drop((inside, outside, before, again));
        fs.unmount().expect("unmount");
        device.check();
        // The policy survives an unmount, and a crash.
        for _ in 0..2 {
            let fs = device.mount(mount_policy);
            let moved = fs.resolve(b"/moved").expect("resolve").ino;
            assert_eq!(fs.policy_of(moved).expect("policy"), PolicyOf::Own(own));
            assert_eq!(fs.policy_of(dir).expect("policy"), PolicyOf::Own(own));
        }
        let fs = device.mount(mount_policy);
        fs.remove_xattr(dir, POLICY_ATTRIBUTE).expect("remove");
        assert_eq!(fs.policy_of(dir).expect("policy"), PolicyOf::Mount(mount_policy));
        let plain = create(&fs, dir, "plain");
        assert_eq!(fs.list_xattr(plain.ino()).expect("list"), Vec::<Vec<u8>>::new());
        drop(plain);
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn an_unknown_policy_is_refused_and_a_stored_unknown_one_is_ignored() {
    let device = Device::fresh(DEVICE_MIB);
    let fs = device.mount(Policy::Inline);
    let dir = fs.mkdir(ROOT, b"dir", &device::directory()).expect("mkdir").ino;
    let link = fs.symlink(ROOT, b"link", b"dir", &device::new_inode(FileKind::Symlink, 0o777)).expect("symlink").ino;
    let set = |ino, value: &[u8]| fs.set_xattr(ino, POLICY_ATTRIBUTE, value, XattrMode::Set);
    for value in [&b""[..], b"on", b"off ", b"off\n", b"OFF", b"inline,off", &[b'x'; 5000]] {
        let refused = set(dir, value).expect_err("no policy");
        assert_eq!(refused.errno(), errno::EINVAL, "{}", value.escape_ascii());
    }
    assert_eq!(set(link, b"off").expect_err("a symlink has no data").errno(), errno::EINVAL);
    assert_eq!(fs.list_xattr(dir).expect("list"), Vec::<Vec<u8>>::new());
    set(dir, b"off").expect("a policy");
    fs.unmount().expect("unmount");
    // The same entry with another value, as a newer version would write it.
    let region = device.region().expect("open");
    let bytes = region.to_vec(0, DEVICE_MIB << 20);
    let entry = |value: &[u8], time| {
        let (name, value) = (POLICY_ATTRIBUTE.to_vec(), XattrValue::Inline(value.to_vec()));
        let mut lines = Vec::new();
        LogEntry::XattrSet { name, value, time }.encode(dir.0, &mut lines);
        lines
    };
    let head = entry(b"off", 0).windows(POLICY_ATTRIBUTE.len()).position(|at| at == POLICY_ATTRIBUTE).expect("a name");
    let at = bytes.windows(POLICY_ATTRIBUTE.len()).position(|at| at == POLICY_ATTRIBUTE).expect("stored") - head;
    let time = i64::from_le_bytes(bytes[at + 16..at + 24].try_into().expect("eight bytes"));
    assert_eq!(bytes[at..at + 64], entry(b"off", time), "the entry as it is");
    let _ = region.fence(region.stream(at as u64, &entry(b"zzzz", time)));
    drop(region);
    device.check();
    let fs = device.mount(Policy::Inline);
    assert_eq!(fs.policy_of(dir).expect("policy"), PolicyOf::Mount(Policy::Inline));
    let file = create(&fs, dir, "file");
    assert_eq!(fs.policy_of(file.ino()).expect("policy"), PolicyOf::Mount(Policy::Inline));
    assert_eq!(fs.get_xattr(file.ino(), POLICY_ATTRIBUTE).expect("copied as it is"), b"zzzz");
    file.write_at(0, &distinct(1, 1)).expect("write");
    drop(file);
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn dedup_shares_equal_blocks_and_changes_nothing_else() {
    for policy in BLOCK_POLICIES {
        let device = Device::of(DEVICE_MIB, policy);
        let fs = device.mount(policy);
        let files: Vec<File> = (0..3).map(|number| create(&fs, ROOT, &format!("file {number}"))).collect();
        let data = [distinct(1, 200), distinct(2, 3), distinct(1, 100), vec![5; 4096 * 20], vec![9; 100]].concat();
        for file in &files {
            set_policy(&fs, file.ino(), Policy::Off);
            file.write_at(0, &data).expect("write");
            file.allocate(2 << 20, 40_000, AllocateMode::Reserve).expect("reserve");
            // The inode's time of change is later than that of its content.
            let change = SetAttr { mode: Some(0o600), ..SetAttr::default() };
            fs.setattr(file.ino(), &change).expect("chmod");
        }
        let before: Vec<_> = files.iter().map(visible).collect();
        let (blocks, reserved) = (324, 10);
        assert_eq!(fs.stats().stored_bytes, 3 * (blocks + reserved) * BLOCK);
        for file in &files {
            let done = file.dedup_range(0, u64::MAX).expect("dedup");
            assert_eq!(done.looked_at_bytes, blocks * BLOCK);
        }
        // There are 200 + 3 + 1 + 1 different blocks.
        assert_eq!(fs.stats().stored_bytes, (205 + 3 * reserved) * BLOCK);
        assert_eq!(files.iter().map(visible).collect::<Vec<_>>(), before);
        for file in &files {
            assert_eq!(file.dedup_range(0, u64::MAX).expect("dedup").changed_bytes, 0, "there is nothing left to do");
            assert_eq!(file.seek(blocks * BLOCK, Whence::Data).expect_err("reserved").errno(), errno::ENXIO);
        }
        // New writes find the blocks that were added to the index.
        let new = create(&fs, ROOT, "new");
        set_policy(&fs, new.ino(), Policy::Inline);
        new.write_at(0, &data).expect("write");
        assert_eq!(fs.stats().stored_bytes, (205 + 3 * reserved) * BLOCK);
        drop((files, new));
        fs.unmount().expect("unmount");
        device.check();
        let fs = device.mount(policy);
        for (number, before) in before.iter().enumerate() {
            let file = fs.open(fs.resolve(format!("/file {number}").as_bytes()).expect("resolve").ino).expect("open");
            assert_eq!(visible(&file), *before);
        }
    }
}

#[test]
fn undedup_copies_every_shared_block_within_the_predicted_space() {
    for policy in BLOCK_POLICIES {
        let device = Device::of(DEVICE_MIB, policy);
        let fs = device.mount(policy);
        let (one, two) = (create(&fs, ROOT, "one"), create(&fs, ROOT, "two"));
        one.write_at(0, &distinct(1, 300)).expect("write");
        two.clone_from(&one, 0, 0, 300 * BLOCK).expect("clone");
        two.clone_from(&one, 1000, 400 * BLOCK + 77, 10 * BLOCK).expect("clone of bytes");
        one.clone_from(&one, 0, 500 * BLOCK, 5 * BLOCK).expect("clone within");
        let before = [visible(&one), visible(&two)];
        // If both are given copies, the last file that shares a block keeps it.
        let both = plan(&[&one, &two]);
        let alone = plan(&[&two]);
        assert_eq!(alone.copied_bytes(), 311 * BLOCK);
        let free = fs.statfs().blocks_free;
        let changed: u64 =
            [&one, &two].iter().map(|file| file.undedup_range(0, u64::MAX).expect("undedup").changed_bytes).sum();
        assert_eq!(changed, both.copied_bytes());
        let taken = (free - fs.statfs().blocks_free) * BLOCK;
        assert!((both.data_bytes()..=both.data_bytes() + both.log_bytes()).contains(&taken), "{taken} taken");
        let stats = fs.stats();
        // The cloned bytes kept their old blocks, because they begin and end inside a block.
        assert_eq!((stats.saved_bytes, stats.logical_bytes + BLOCK), (0, stats.stored_bytes));
        assert_eq!([visible(&one), visible(&two)], before);
        assert_eq!(plan(&[&one, &two]).copied_bytes(), 0);
        for file in [&one, &two] {
            assert!(all_extents(file).iter().all(|extent| extent.references == 1));
            assert_eq!(file.undedup_range(0, u64::MAX).expect("undedup").changed_bytes, 0, "nothing is left to do");
        }
        drop((one, two));
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn undedup_succeeds_with_exactly_the_space_that_it_computed() {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Inline);
    let (one, two, filler) = (create(&fs, ROOT, "one"), create(&fs, ROOT, "two"), create(&fs, ROOT, "filler"));
    one.write_at(0, &distinct(1, 500)).expect("write");
    two.clone_from(&one, 0, 0, 500 * BLOCK).expect("clone");
    let before = visible(&two);
    let needed = (plan(&[&two]).data_bytes() + plan(&[&two]).log_bytes()) / BLOCK;
    let reserve = |blocks| filler.allocate(0, blocks * BLOCK, AllocateMode::Reserve).expect("reserve");
    let available = fs.statfs().blocks_available;
    // The space is 100 blocks short: the call does as much as it can and reports the rest. Nothing that can be read
    // has changed.
    reserve(available - 400);
    assert_eq!(two.undedup_range(0, u64::MAX).expect_err("400 blocks for 500").errno(), errno::ENOSPC);
    assert_eq!(visible(&two), before);
    // A block may have taken the page of its log: on a full device logs are short.
    filler.set_len(0).expect("truncate");
    two.clone_from(&one, 0, 0, 500 * BLOCK).expect("clone");
    fs.setattr(two.ino(), &SetAttr { mtime: Some(1), ctime: Some(2), ..SetAttr::default() }).expect("times");
    let before = visible(&two);
    let available = fs.statfs().blocks_available;
    reserve(available - needed - 4);
    let left = fs.statfs().blocks_available;
    assert!((needed..needed + 5).contains(&left), "{left} blocks left for {needed}");
    assert_eq!(two.undedup_range(0, u64::MAX).expect("there is space").changed_bytes, 500 * BLOCK);
    assert_eq!(visible(&two), before);
    drop((one, two, filler));
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn background_work_adds_no_fingerprints_to_files_with_policy_off() {
    let nv_dedup = NvDedupOptions { method: MethodChoice::Fixed(Method::WBFin), ..NvDedupOptions::default() };
    // Policies of the mount and of the two writers, and whether their blocks are shared.
    for (mount, own, later, shares) in [
        (Policy::NvDedup, Policy::Off, Policy::NvDedup, false),
        (Policy::NvDedup, Policy::Inline, Policy::NvDedup, true),
        (Policy::Off, Policy::NvDedup, Policy::Off, false),
        (Policy::Off, Policy::NvDedup, Policy::NvDedup, true),
    ] {
        let device = Device::fresh(DEVICE_MIB);
        let fs = device.try_mount(MountOptions { policy: mount, nv_dedup, ..device::options() }).expect("mount");
        for (name, policy) in [("first", own), ("later", later)] {
            let file = create(&fs, ROOT, name);
            set_policy(&fs, file.ino(), policy);
            file.write_at(0, &distinct(1, 20)).expect("write");
            while !fs.fill_step().expect("fill") {}
        }
        let stored = if shares { 20 } else { 40 };
        assert_eq!(fs.stats().stored_bytes, stored * BLOCK, "{own:?}, then {later:?} on a mount with {mount:?}");
        fs.unmount().expect("unmount");
        device.check();
        // The same holds after the next mount, which scans all files.
        let fs = device.try_mount(MountOptions { policy: mount, nv_dedup, ..device::options() }).expect("mount");
        while !fs.fill_step().expect("fill") {}
        let file = create(&fs, ROOT, "last");
        set_policy(&fs, file.ino(), Policy::NvDedup);
        file.write_at(0, &distinct(1, 20)).expect("write");
        // Only if both have `off` can the block not be found.
        let is_found = own != Policy::Off || later != Policy::Off;
        assert_eq!(fs.stats().stored_bytes, (stored + if is_found { 0 } else { 20 }) * BLOCK, "{own:?}, {later:?}");
    }
}

#[test]
fn after_undedup_under_policy_off_new_data_does_not_share_the_copies() {
    let device = Device::fresh(DEVICE_MIB);
    let fs = device.mount(Policy::Inline);
    let (one, two) = (create(&fs, ROOT, "one"), create(&fs, ROOT, "two"));
    one.write_at(0, &distinct(1, 20)).expect("write");
    two.write_at(0, &distinct(1, 20)).expect("write");
    assert_eq!(fs.stats().stored_bytes, 20 * BLOCK);
    set_policy(&fs, two.ino(), Policy::Off);
    two.undedup_range(0, u64::MAX).expect("undedup");
    assert_eq!(fs.stats().stored_bytes, 40 * BLOCK);
    // Neither finds the other: blocks that `two` writes are not shared, and other files share with `one`.
    two.write_at(0, &distinct(1, 5)).expect("write");
    create(&fs, ROOT, "three").write_at(0, &distinct(1, 20)).expect("write");
    assert_eq!(fs.stats().stored_bytes, 40 * BLOCK);
    assert!(all_extents(&two).iter().all(|extent| extent.references == 1));
    // Without its own policy the file shares again when it is written.
    fs.remove_xattr(two.ino(), POLICY_ATTRIBUTE).expect("remove");
    two.write_at(0, &distinct(1, 20)).expect("write");
    assert_eq!(fs.stats().stored_bytes, 20 * BLOCK);
}

#[test]
fn dedup_works_on_a_full_device() {
    let device = Device::fresh(32);
    let fs = device.mount(Policy::Off);
    let (one, two, filler) = (create(&fs, ROOT, "one"), create(&fs, ROOT, "two"), create(&fs, ROOT, "filler"));
    let data = distinct(1, 1000);
    // In separate pieces, so that the logs must grow.
    for block in (0..1000).step_by(2).chain((1..1000).step_by(2)) {
        let piece = &data[block * BLOCK as usize..(block + 1) * BLOCK as usize];
        one.write_at(block as u64 * BLOCK, piece).expect("write");
        two.write_at((999 - block as u64) * BLOCK, piece).expect("write");
    }
    filler.allocate(0, (fs.statfs().blocks_available - 8) * BLOCK, AllocateMode::Reserve).expect("reserve");
    assert_eq!(create(&fs, ROOT, "no space").write_at(0, &data).expect_err("full").errno(), errno::ENOSPC);
    let before = [visible(&one), visible(&two)];
    one.dedup_range(0, u64::MAX).expect("dedup of a full device");
    two.dedup_range(0, u64::MAX).expect("dedup of a full device");
    assert_eq!(fs.stats().saved_bytes, 1000 * BLOCK);
    assert_eq!([visible(&one), visible(&two)], before);
    drop((one, two, filler));
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn a_read_only_mount_refuses_dedup_and_reports_sharing() {
    let device = Device::fresh(DEVICE_MIB);
    let fs = device.mount(Policy::Off);
    let file = create(&fs, ROOT, "file");
    file.write_at(0, &[7; 8192]).expect("write");
    drop(file);
    fs.unmount().expect("unmount");
    let fs = device.try_mount(MountOptions { read_only: true, ..device::options() }).expect("mount");
    let file = fs.open(fs.resolve(b"/file").expect("resolve").ino).expect("open");
    assert_eq!(file.dedup_range(0, 8192).expect_err("read-only").errno(), errno::EROFS);
    assert_eq!(file.undedup_range(0, 8192).expect_err("read-only").errno(), errno::EROFS);
    assert_eq!(all_extents(&file).iter().map(|extent| extent.length).sum::<u64>(), 8192);
}

/// Makes random files with writes, clones of any bytes, holes and reserved ranges.
fn random_files(fs: &FileSystem, random: &mut fastrand::Rng) -> Vec<File> {
    let files: Vec<File> = (0..4).map(|number| create(fs, ROOT, &format!("file {number}"))).collect();
    let offset = |random: &mut fastrand::Rng| {
        let any = random.u64(0..60 * BLOCK);
        if random.bool() { any / BLOCK * BLOCK } else { any }
    };
    for _ in 0..60 {
        let (one, two) = (&files[random.usize(0..files.len())], &files[random.usize(0..files.len())]);
        let (at, from, len) = (offset(random), offset(random), random.u64(1..8 * BLOCK));
        match random.u8(0..10) {
            0..4 => {
                let mut data = vec![0; len as usize];
                nvfold_tests::random::fill(random, &mut data);
                one.write_at(at, &data).expect("write");
            }
            4..7 => drop(one.clone_from(two, from, at, len)),
            7 => one.allocate(at, len, AllocateMode::Reserve).expect("reserve"),
            8 => one.allocate(at, len, AllocateMode::PunchHole).expect("punch"),
            _ => one.set_len(at + len).expect("truncate"),
        }
    }
    files
}

#[test]
fn random_files_are_unshared_as_planned_and_shared_until_nothing_is_equal() {
    for policy in POLICIES {
        let seed = Seed::new("sharing and unsharing");
        for round in 0..75 * soak_factor() {
            let mut random = fastrand::Rng::with_seed(seed.value().wrapping_add(round));
            let device = Device::of(16, policy);
            let fs = device.mount(policy);
            let files = random_files(&fs, &mut random);
            let before: Vec<_> = files.iter().map(visible).collect();
            let check = |what: &str| {
                assert!(files.iter().map(visible).eq(before.iter().cloned()), "{policy:?}, {what}: something changed");
            };
            let planned = plan(&files.iter().collect::<Vec<_>>());
            let data_blocks = fs.stats().data_blocks;
            let undone: u64 =
                files.iter().map(|file| file.undedup_range(0, u64::MAX).expect("undedup").changed_bytes).sum();
            check("undedup");
            assert_eq!(undone, planned.copied_bytes(), "{policy:?}");
            let grown = fs.stats().data_blocks.saturating_sub(data_blocks) * BLOCK;
            assert!(grown <= planned.data_bytes(), "{grown} bytes more for {} planned", planned.data_bytes());
            // Holes punched into a block leave two extents of one file that touch it; no other file touches it.
            assert_eq!(plan(&files.iter().collect::<Vec<_>>()).copied_bytes(), 0, "{policy:?}");

            // A block is replaced by one with a lower number, and a pm index returns another one first each time.
            let round = || -> u64 {
                let changed =
                    files.iter().map(|file| file.dedup_range(0, u64::MAX).expect("dedup").changed_bytes).sum();
                check("dedup");
                changed
            };
            assert!((0..10).any(|_| round() == 0), "{policy:?}: it ends");
            assert_no_equal_blocks(&fs, &files);
            drop(files);
            fs.unmount().expect("unmount");
            device.check();
        }
    }
}

/// Checks that no two whole blocks of the files are equal. Packed chunks may be: a cutting policy finds a piece only
/// if it cuts at the same places.
fn assert_no_equal_blocks(fs: &FileSystem, files: &[File]) {
    let mut seen = std::collections::HashMap::new();
    let is_in_blocks = |extent: &MappedExtent| !extent.unwritten && extent.class == 0;
    for extent in files.iter().flat_map(all_extents).filter(is_in_blocks) {
        let first = extent.address.next_multiple_of(BLOCK);
        for address in (first..(extent.address + extent.length) / BLOCK * BLOCK).step_by(BLOCK as usize) {
            let bytes = fs.region().to_vec(address, BLOCK);
            let other = seen.entry(bytes).or_insert(address);
            assert_eq!(*other, address, "two equal blocks are stored");
        }
    }
}

#[test]
fn readers_and_writers_continue_during_dedup_and_undedup() {
    const FILES: u64 = 3;
    const BLOCKS: u64 = 96;
    const VERSIONS: u64 = 60;
    let device = Device::fresh(DEVICE_MIB);
    let fs = device.mount(Policy::Inline);
    let files: Vec<File> = (0..FILES).map(|number| create(&fs, ROOT, &format!("file {number}"))).collect();
    // The same label in all files, so that every block has equal ones.
    let write = |file: &File, at: u64, version: u64| {
        let block = block::make(Label { file: 0, offset: at * BLOCK, version });
        file.write_at(at * BLOCK, &block).expect("write");
    };
    files.iter().for_each(|file| (0..BLOCKS).for_each(|at| write(file, at, 0)));
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (file, kind) in files.iter().flat_map(|file| [(file, true), (file, false)]) {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let done = if kind { file.dedup_range(0, u64::MAX) } else { file.undedup_range(0, u64::MAX) };
                    done.expect("there is space");
                }
            });
        }
        for file in &files {
            let over = &over;
            scope.spawn(move || {
                let mut bytes = vec![0; BLOCK as usize];
                while !over.load(Ordering::Relaxed) {
                    for at in 0..BLOCKS {
                        file.read_at(at * BLOCK, &mut bytes).expect("read");
                        block::verify(&bytes, 0, at * BLOCK).expect("a whole block");
                    }
                }
            });
        }
        let writers: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(move || {
                    (1..=VERSIONS).for_each(|version| (0..BLOCKS).for_each(|at| write(file, at, version)))
                })
            })
            .collect();
        let ended: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|writer| writer.expect("a writer"));
    });
    for file in &files {
        let bytes = content(file);
        for (at, bytes) in bytes.chunks(BLOCK as usize).enumerate() {
            let label = block::verify(bytes, 0, at as u64 * BLOCK).expect("a whole block");
            assert_eq!(label.version, VERSIONS);
        }
        file.dedup_range(0, u64::MAX).expect("dedup");
    }
    files.iter().for_each(|file| _ = file.dedup_range(0, u64::MAX).expect("dedup"));
    assert_eq!(fs.stats().stored_bytes, BLOCKS * BLOCK, "all files are equal");
    drop(files);
    fs.unmount().expect("unmount");
    device.check();
}
