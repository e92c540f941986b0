//! Limits of trees: what is charged to a tree is exact, whatever is done to it, and nothing is added past a limit.

use crate::deext::{NEW, Random, text};
use nvfold::check::{CheckOptions, check};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

const ROOT: InodeNumber = InodeNumber::ROOT;
const B: u64 = 4096;

/// Bytes that are not zeros, whatever the seed.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    crate::deext::noise(bytes, seed + 1)
}

/// A device in memory; time goes on with each look at it.
struct Site {
    region: Region,
    policy: Policy,
    pack: Pack,
    now: Arc<AtomicI64>,
    fs: FileSystem,
}

impl Site {
    fn new(policy: Policy) -> Site {
        Site::packing(policy, Pack::On)
    }

    fn packing(policy: Policy, pack: Pack) -> Site {
        let region = Region::create(&DeviceSpec::Memory, 64 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions::default()).unwrap();
        Site::mounted(region, (policy, pack), Arc::new(AtomicI64::new(1_000_000_000)))
    }

    fn mounted(region: Region, (policy, pack): (Policy, Pack), now: Arc<AtomicI64>) -> Site {
        let clock = now.clone();
        let clock = Arc::new(move || clock.fetch_add(1_000_000_007, Ordering::Relaxed));
        let options = MountOptions { policy, pack, clock, ..MountOptions::default() };
        let fs = FileSystem::mount(region.clone(), options).unwrap();
        Site { region, policy, pack, now, fs }
    }

    /// Unmounts, or ends as a crash of the process does; checks the device, and mounts it again.
    fn again(self, is_clean: bool) -> Site {
        let Site { region, policy, pack, now, fs } = self;
        if is_clean {
            fs.unmount().unwrap();
        } else {
            drop(fs);
        }
        let found = check(&region, &CheckOptions::default()).unwrap();
        assert!(found.findings.is_empty(), "{policy:?}: {found:#?}");
        Site::mounted(region, (policy, pack), now)
    }

    fn dir(&self, parent: InodeNumber, name: &str) -> InodeNumber {
        self.fs.mkdir(parent, name.as_bytes(), &NewInode { kind: FileKind::Directory, mode: 0o755, ..NEW }).unwrap().ino
    }

    fn file(&self, parent: InodeNumber, name: &str) -> File {
        self.fs.open(self.fs.create(parent, name.as_bytes(), &NEW).unwrap().ino).unwrap()
    }

    /// A directory with a limit of so many bytes.
    fn limited(&self, name: &str, bytes: u64) -> InodeNumber {
        let dir = self.dir(ROOT, name);
        self.limit(dir, Some(bytes), None);
        dir
    }

    fn limit(&self, dir: InodeNumber, logical_bytes: Option<u64>, inodes: Option<u64>) {
        self.fs.change_limits(dir, |limits| *limits = Limits { logical_bytes, inodes, ..*limits }).unwrap();
    }

    fn used(&self, dir: InodeNumber) -> (u64, u64) {
        let tree = self.fs.limited_tree(dir).unwrap().expect("it is charged to a tree");
        (tree.logical_bytes, tree.inodes)
    }

    /// Compares what each tree uses with what its files map. Nothing is open without a name.
    fn agree(&self) {
        let mut counted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut seen = std::collections::BTreeSet::new();
        let mut left = vec![ROOT];
        while let Some(at) = left.pop() {
            if !seen.insert(at.0) {
                continue;
            }
            let attr = self.fs.getattr(at).unwrap();
            let bytes = if attr.kind == FileKind::Regular { mapped(&self.fs.open(at).unwrap()) } else { 0 };
            if let Some(tree) = self.fs.limited_tree(at).unwrap() {
                let used = counted.entry(tree.top.0).or_default();
                *used = (used.0 + bytes, used.1 + 1);
            }
            if attr.kind == FileKind::Directory {
                self.fs
                    .readdir(at, 0, &mut |entry| {
                        left.push(entry.ino);
                        true
                    })
                    .unwrap();
            }
        }
        let told = self.fs.limited_trees().unwrap().into_iter();
        let told: BTreeMap<u64, (u64, u64)> =
            told.map(|tree| (tree.top.0, (tree.logical_bytes, tree.inodes))).collect();
        assert_eq!(told, counted, "{:?}", self.policy);
    }

    /// Does the work in the background until there is nothing to do.
    fn work(&self) {
        let fs = &self.fs;
        while !fs.drain_step().unwrap() {}
        while !fs.fill_step().unwrap() {}
        while !fs.remove_step().unwrap() {}
        for _ in 0..20 {
            fs.reclaim_step(Victims::All).unwrap();
        }
    }
}

fn mapped(file: &File) -> u64 {
    let (mut bytes, mut from) = (0, 0);
    loop {
        let some = file.extents(from, 64).unwrap();
        let Some(last) = some.last() else { return bytes };
        from = last.offset + last.length;
        bytes += some.iter().map(|extent| extent.length).sum::<u64>();
    }
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

#[track_caller]
fn refused<T>(result: Result<T>, errno: i32) {
    assert_eq!(result.map(drop).map_err(|error| error.errno()), Err(errno));
}

#[test]
fn exactly_as_much_as_is_left_can_be_added_by_any_call_under_any_policy() {
    for policy in Policy::ALL {
        let site = Site::new(policy);
        let outside = site.file(ROOT, "outside");
        outside.write_at(0, &noise(20 * B as usize, 1)).unwrap();
        type Grow = fn(&File, &File, u64, u64) -> Result<()>;
        let calls: [(&str, Grow); 4] = [
            ("write", |file, _, at, bytes| file.write_at(at, &noise(bytes as usize, at + 7))),
            ("append", |file, _, at, bytes| file.append(&noise(bytes as usize, at + 9)).map(drop)),
            ("fallocate", |file, _, at, bytes| file.allocate(at, bytes, AllocateMode::Reserve)),
            ("clone", |file, outside, at, bytes| file.clone_from(outside, at, at, bytes).map(drop)),
        ];
        for (name, grow) in calls {
            let top = site.limited(name, 10 * B);
            let file = site.file(top, "file");
            refused(grow(&file, &outside, 0, 10 * B + 1), errno::EDQUOT);
            assert_eq!((site.used(top), file.attr().size), ((0, 2), 0), "{policy:?} {name}");
            grow(&file, &outside, 0, 6 * B).unwrap();
            grow(&file, &outside, 6 * B, 4 * B).unwrap();
            assert_eq!(site.used(top), (10 * B, 2), "{policy:?} {name}");
            let before = content(&file);
            refused(grow(&file, &outside, 10 * B, 1), errno::EDQUOT);
            let other = site.file(top, "other");
            refused(grow(&other, &outside, 0, 1), errno::EDQUOT);
            assert!(content(&file) == before && other.attr().size == 0, "{policy:?} {name}");
            site.agree();
            // A hole takes nothing, and what is cut off can be written again.
            file.set_len(1 << 30).unwrap();
            file.set_len(9 * B).unwrap();
            assert_eq!(site.used(top), (9 * B, 3), "{policy:?} {name}");
            grow(&other, &outside, 0, B).unwrap();
            refused(grow(&other, &outside, B, 1), errno::EDQUOT);
            assert_eq!(site.used(top), (10 * B, 3), "{policy:?} {name}");
        }
        drop(outside);
        let site = site.again(true);
        site.agree();
        site.again(false).agree();
    }
}

#[test]
fn a_full_tree_can_be_overwritten_emptied_and_worked_on() {
    for (policy, pack) in Policy::ALL.into_iter().flat_map(|policy| [(policy, Pack::On), (policy, Pack::Auto)]) {
        let site = Site::packing(policy, pack);
        let top = site.limited("tree", 1 << 40);
        let mut random = Random(5);
        let mut files: Vec<(File, Vec<u8>)> = Vec::new();
        for nth in 0..12 {
            let file = site.file(top, &format!("file{nth}"));
            let bytes = 1 + random.below(60_000) as usize;
            let data = if nth % 2 == 0 { noise(bytes, nth) } else { text(bytes, nth + 1) };
            for part in data.chunks(1 + random.below(30_000) as usize) {
                file.append(part).unwrap();
            }
            files.push((file, data));
        }
        let full = site.used(top).0;
        site.limit(top, Some(full), None);
        for nth in 0..200 {
            let (file, data) = &mut files[random.below(12) as usize];
            let at = random.below(data.len() as u64) as usize;
            let bytes = (1 + random.below(20_000) as usize).min(data.len() - at);
            let new = if nth % 3 == 0 { noise(bytes, nth) } else { text(bytes, nth + 1) };
            file.write_at(at as u64, &new).unwrap_or_else(|error| panic!("{policy:?}: {at} {bytes}: {error}"));
            data[at..at + bytes].copy_from_slice(&new);
            if nth % 50 == 0 {
                site.work();
            }
        }
        site.work();
        site.agree();
        // The last block of a file may count whole where it did not before.
        let slack = 12 * B;
        assert!(site.used(top).0 <= full + slack, "{policy:?}: {} of {full}", site.used(top).0);
        refused(files[0].0.append(&noise(13 * B as usize, 1)), errno::EDQUOT);
        for (file, data) in &files {
            assert!(content(file) == *data, "{policy:?}");
        }
        drop(files);
        site.fs.unlink(top, b"file0").unwrap();
        site.fs.open(site.fs.lookup(top, b"file1").unwrap().ino).unwrap().set_len(0).unwrap();
        site.agree();
        let site = site.again(false);
        site.agree();
        site.again(true).agree();
    }
}

#[test]
fn inodes_are_counted_from_birth_until_they_are_freed() {
    let site = Site::new(Policy::Inline);
    let fs = &site.fs;
    let top = site.dir(ROOT, "tree");
    site.limit(top, None, Some(5));
    let below = site.dir(top, "below");
    let file = site.file(below, "file");
    fs.symlink(below, b"link", b"file", &NEW).unwrap();
    let nameless = fs.tmpfile_in(below, &NEW).unwrap();
    assert_eq!(site.used(top), (0, 5));
    refused(fs.create(below, b"more", &NEW), errno::EDQUOT);
    refused(fs.mkdir(top, b"more", &NEW), errno::EDQUOT);
    refused(fs.tmpfile_in(top, &NEW), errno::EDQUOT);
    fs.link(file.ino(), top, b"second name").unwrap();
    fs.link(nameless.ino(), top, b"first name").unwrap();
    assert_eq!(site.used(top), (0, 5));
    fs.unlink(top, b"first name").unwrap();
    assert_eq!(site.used(top), (0, 5), "it is open");
    nameless.write_at(0, &noise(100, 1)).unwrap();
    assert_eq!(site.used(top).0, mapped(&nameless));
    drop(nameless);
    assert_eq!(site.used(top), (0, 4));
    fs.create(top, b"more", &NEW).unwrap();
    fs.rename(top, b"more", below, b"link", RenameMode::Replace).unwrap();
    assert_eq!(site.used(top), (0, 4), "the symlink is gone");
    drop(file);
    fs.remove_tree(top, b"below").unwrap();
    site.work();
    assert_eq!(site.used(top), (0, 2), "a file has another name");
    site.agree();
    // What is freed by a crash is not counted after it.
    let open = fs.tmpfile_in(top, &NEW).unwrap();
    open.write_at(0, &noise(9000, 1)).unwrap();
    std::mem::forget(open);
    let site = site.again(false);
    site.agree();
    let message = {
        site.limit(site.fs.resolve(b"tree").unwrap().ino, Some(0), Some(1));
        site.fs.create(site.fs.resolve(b"tree").unwrap().ino, b"no", &NEW).unwrap_err().to_string()
    };
    assert!(message.contains("may have 1 inodes, 1 more are needed and 0 are left"), "{message}");
}

#[test]
fn two_threads_at_the_last_blocks_take_exactly_what_is_left() {
    for policy in [Policy::Off, Policy::Inline, Policy::DeExt] {
        let site = Site::new(policy);
        let top = site.limited("tree", 100 * B);
        let files = [site.file(top, "one"), site.file(top, "two")];
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (nth, file) in files.iter().enumerate() {
                let written = &written;
                scope.spawn(move || {
                    for at in 0..100 {
                        match file.append(&noise(B as usize, at * 2 + nth as u64)) {
                            Ok(_) => written.fetch_add(1, Ordering::Relaxed),
                            Err(error) => {
                                assert_eq!(error.errno(), errno::EDQUOT);
                                break;
                            }
                        };
                    }
                });
            }
        });
        assert_eq!((written.into_inner(), site.used(top)), (100, (100 * B, 3)), "{policy:?}");
        site.agree();
    }
}

#[test]
fn names_stay_in_their_tree_and_a_top_goes_anywhere() {
    let site = Site::new(Policy::Off);
    let fs = &site.fs;
    let (one, two) = (site.limited("one", 100 * B), site.limited("two", 100 * B));
    let nested = site.dir(one, "nested");
    site.limit(nested, Some(5 * B), None);
    let file = site.file(one, "file");
    file.write_at(0, &noise(3 * B as usize, 1)).unwrap();
    site.dir(one, "dir");
    site.file(nested, "inner").write_at(0, &noise(2 * B as usize, 2)).unwrap();
    assert_eq!((site.used(one), site.used(nested)), ((3 * B, 3), (2 * B, 2)), "the nested one counts for itself");
    for target in [ROOT, two, nested] {
        refused(fs.rename(one, b"file", target, b"x", RenameMode::Replace), errno::EXDEV);
        refused(fs.rename(one, b"dir", target, b"x", RenameMode::Replace), errno::EXDEV);
        refused(fs.link(file.ino(), target, b"x"), errno::EXDEV);
    }
    let message = fs.link(file.ino(), two, b"x").unwrap_err().to_string();
    assert!(message.contains("another limited tree") && message.contains("copy it"), "{message}");
    site.file(two, "other");
    refused(fs.rename(one, b"file", two, b"other", RenameMode::Exchange), errno::EXDEV);
    refused(fs.rename(two, b"other", one, b"file", RenameMode::Exchange), errno::EXDEV);
    let tmp = fs.tmpfile_in(one, &NEW).unwrap();
    refused(fs.link(tmp.ino(), two, b"x"), errno::EXDEV);
    drop(tmp);
    fs.rename(one, b"file", one, b"renamed", RenameMode::Replace).unwrap();
    fs.rename(one, b"renamed", fs.lookup(one, b"dir").unwrap().ino, b"moved", RenameMode::Replace).unwrap();
    // A top keeps its limits, wherever it is.
    fs.rename(one, b"nested", two, b"nested", RenameMode::Replace).unwrap();
    fs.rename(two, b"nested", ROOT, b"one and two", RenameMode::Replace).unwrap();
    fs.rename(ROOT, b"one and two", ROOT, b"two", RenameMode::Exchange).unwrap();
    fs.rename(ROOT, b"one and two", nested, b"two", RenameMode::Replace).unwrap();
    refused(fs.rename(ROOT, b"one", nested, b"two", RenameMode::Replace), errno::ENOTEMPTY);
    assert_eq!((site.used(one), site.used(nested), site.used(two)), ((3 * B, 3), (2 * B, 2), (0, 2)));
    // Without its limits, what is in a nested tree belongs to the outer one.
    site.limit(two, None, None);
    assert_eq!((site.used(two), site.used(nested)), ((2 * B, 4), (2 * B, 4)));
    drop(file);
    site.agree();
    site.again(false).again(true).agree();
}

#[test]
fn a_copy_is_charged_to_the_tree_of_its_place_and_cancelled_whole_at_a_limit() {
    for policy in [Policy::Off, Policy::Inline, Policy::DeExt, Policy::DeNova] {
        let site = Site::new(policy);
        let fs = &site.fs;
        let source = site.dir(ROOT, "source");
        let mut at = source;
        for nth in 0..6 {
            let file = site.file(at, "file");
            file.write_at(0, &noise(3 * B as usize, nth)).unwrap();
            fs.link(file.ino(), source, format!("link{nth}").as_bytes()).unwrap();
            at = site.dir(at, "deeper");
        }
        site.limit(at, Some(7), None);
        let whole = 18 * B;
        let clone = |place, name: &str| fs.clone_tree(source, place, name.as_bytes(), &CloneOptions::default());
        let top = site.dir(ROOT, "tree");
        for (bytes, inodes, fits) in [
            (Some(whole - 1), None, false),
            (None, Some(13), false),
            (Some(whole), Some(14), true),
            (Some(2 * whole - 1), None, false),
        ] {
            site.limit(top, bytes, inodes);
            let before = (site.used(top), fs.stats().inodes);
            if fits {
                clone(top, "copy").unwrap();
                assert_eq!(site.used(top), (whole, 14), "{policy:?}");
            } else {
                refused(clone(top, "no"), errno::EDQUOT);
                while !fs.remove_step().unwrap() {}
                assert_eq!((site.used(top), fs.stats().inodes), before, "{policy:?}");
            }
        }
        // Limits are not copied, and a snapshot is charged to nobody.
        assert_eq!(fs.limited_trees().unwrap().len(), 2);
        fs.create_snapshot(b"then", top, &CloneOptions::default()).unwrap();
        assert_eq!(site.used(top), (whole, 14), "{policy:?}");
        let snapshot = fs.resolve(b".nvfold/snapshots/then").unwrap().ino;
        assert_eq!(fs.limited_tree(snapshot).unwrap(), None);
        refused(fs.change_limits(snapshot, |limits| limits.inodes = Some(1)), errno::EROFS);
        for hidden in [&b".nvfold"[..], b".nvfold/snapshots"] {
            let hidden = fs.resolve(hidden).unwrap().ino;
            refused(fs.change_limits(hidden, |limits| limits.inodes = Some(1)), errno::EINVAL);
        }
        // A tree that is restored keeps its limits, and the copy is charged to them alone.
        fs.unlink(top, b"copy/none").unwrap_err();
        site.limit(top, Some(whole), Some(14));
        fs.restore_snapshot(b"then", ROOT, b"tree", &CloneOptions::default()).unwrap();
        while !fs.remove_step().unwrap() {}
        let top = fs.resolve(b"tree").unwrap().ino;
        assert_eq!(site.used(top), (whole, 14), "{policy:?}");
        refused(fs.create(top, b"more", &NEW), errno::EDQUOT);
        site.limit(top, Some(whole - 1), None);
        refused(fs.restore_snapshot(b"then", ROOT, b"tree", &CloneOptions::default()), errno::EDQUOT);
        site.agree();
        let site = site.again(false);
        site.agree();
        site.again(true).agree();
    }
}

/// A tree with hard links within it and to the outside, a nested limited tree, and all kinds of files.
fn populate(site: &Site, top: InodeNumber, depth: u64, per_directory: u64) -> InodeNumber {
    let fs = &site.fs;
    let mut at = top;
    for level in 0..depth {
        for nth in 0..per_directory {
            let file = site.file(at, &format!("file{nth}"));
            file.write_at(0, &noise((nth * 97 % 9000) as usize, level * 1000 + nth)).unwrap();
            if nth == 3 {
                fs.link(file.ino(), top, format!("link{level}").as_bytes()).unwrap();
                fs.link(file.ino(), ROOT, format!("outside{level}").as_bytes()).unwrap();
            }
        }
        fs.symlink(at, b"symlink", b"file1", &NEW).unwrap();
        fs.create(at, b"fifo", &NewInode { kind: FileKind::Fifo, ..NEW }).unwrap();
        at = site.dir(at, "deeper");
    }
    at
}

#[test]
fn limits_on_a_tree_with_content_charge_all_of_it_and_removing_them_gives_it_back() {
    let site = Site::new(Policy::Inline);
    let fs = &site.fs;
    let outer = site.dir(ROOT, "outer");
    let top = site.dir(outer, "top");
    let lowest = populate(&site, top, 4, 300);
    site.limit(outer, Some(1 << 40), None);
    site.limit(lowest, Some(B), None);
    let before = site.used(outer);
    site.limit(top, Some(1), Some(1));
    let all = site.used(top);
    assert_eq!((all.0 + site.used(outer).0, all.1 + site.used(outer).1), before);
    assert_eq!(site.used(outer), (0, 1), "all that was below is in the inner tree");
    assert_eq!(all.1, 4 * 300 + 4 * 3);
    assert!(!fs.limited_tree(top).unwrap().unwrap().is_being_charged);
    refused(fs.create(top, b"no", &NEW), errno::EDQUOT);
    fs.change_limits(top, |limits| (limits.logical_bytes, limits.inodes) = (Some(all.0), None)).unwrap();
    assert_eq!(site.used(top), all);
    site.agree();
    let site = site.again(false);
    site.agree();
    site.limit(top, None, None);
    assert_eq!(site.used(outer), before);
    assert_eq!(site.fs.limited_trees().unwrap().len(), 2);
    site.agree();
    let site = site.again(true);
    site.agree();
    site.limit(outer, None, None);
    site.limit(lowest, None, None);
    assert!(site.fs.limited_trees().unwrap().is_empty() && site.fs.limited_tree(top).unwrap().is_none());
    site.again(true);
}

#[test]
fn limits_are_set_and_removed_while_writers_change_the_tree() {
    let site = Site::new(Policy::Inline);
    let top = site.dir(ROOT, "top");
    populate(&site, top, 3, 100);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (site, ends) = (&site, &ends);
            scope.spawn(move || {
                let mut random = Random(writer + 1);
                while !ends.load(Ordering::Relaxed) {
                    change_something(&site.fs, top, writer, &mut random);
                }
            });
        }
        for round in 0..12 {
            site.limit(top, (round % 2 == 0).then_some(1 << 40), None);
        }
        ends.store(true, Ordering::Relaxed);
    });
    site.limit(top, Some(1 << 40), None);
    site.work();
    site.agree();
    let outside = site.fs.resolve(b"top/deeper/deeper/deeper").unwrap().ino;
    assert_eq!(site.fs.limited_tree(outside).unwrap().unwrap().top, top, "all directories are charged");
    let site = site.again(false);
    site.agree();
    site.again(true).agree();
}

/// What a writer does must succeed, or be refused for a reason that the tree gives.
fn change_something(fs: &FileSystem, top: InodeNumber, writer: u64, random: &mut Random) {
    let depth = random.below(4);
    let path = |depth: u64| format!("top{}", "/deeper".repeat(depth as usize));
    let at = fs.resolve(path(depth).as_bytes()).unwrap().ino;
    let other = fs.resolve(path(random.below(4)).as_bytes()).unwrap().ino;
    let name = |random: &mut Random| format!("{writer} {}", random.below(6));
    let (one, two) = (name(random), name(random));
    let done = match random.below(8) {
        0 | 1 => fs.create(at, one.as_bytes(), &NEW).map(drop),
        2 => fs.rename(at, one.as_bytes(), other, two.as_bytes(), RenameMode::Replace),
        3 => fs.unlink(at, one.as_bytes()),
        4 => fs.mkdir(at, format!("dir {one}").as_bytes(), &NEW).map(drop),
        5 => {
            let (from, to) = (format!("dir {one}"), format!("dir {two}"));
            fs.rename(at, from.as_bytes(), other, to.as_bytes(), RenameMode::NoReplace)
        }
        6 => fs.lookup(at, one.as_bytes()).and_then(|found| {
            fs.link(found.ino, other, format!("link {two}").as_bytes())?;
            fs.unlink(other, format!("link {two}").as_bytes())
        }),
        _ => fs.lookup(at, b"file7").and_then(|found| {
            let file = fs.open(found.ino)?;
            file.write_at(random.below(9000), &noise(1 + random.below(9000) as usize, random.below(99)))?;
            file.set_len(random.below(20_000))
        }),
    };
    let allowed = [errno::EEXIST, errno::ENOENT, errno::EXDEV, errno::ENOTDIR, errno::EINVAL, errno::ENOTEMPTY];
    if let Err(error) = done {
        assert!(allowed.contains(&error.errno()), "{top:?}: {error}");
    }
}

#[test]
fn a_number_is_used_again_only_when_nothing_is_charged_to_it() {
    let site = Site::new(Policy::Off);
    let fs = &site.fs;
    let one = site.dir(ROOT, "one");
    let shared = site.file(one, "shared");
    shared.write_at(0, &noise(100, 1)).unwrap();
    fs.link(shared.ino(), ROOT, b"outside").unwrap();
    site.limit(one, Some(1 << 20), None);
    let open = site.file(one, "open");
    fs.remove_tree(ROOT, b"one").unwrap();
    site.work();
    // An open file, and one with another name, are charged to the tree that is gone.
    assert!(fs.limited_trees().unwrap().is_empty());
    assert_eq!((fs.limited_tree(open.ino()).unwrap(), fs.limited_tree(shared.ino()).unwrap()), (None, None));
    let two = site.limited("two", 1 << 20);
    assert_eq!(site.used(two), (0, 1), "it has another number");
    drop(open);
    fs.link(shared.ino(), ROOT, b"third").unwrap();
    fs.rename(ROOT, b"third", ROOT, b"fourth", RenameMode::Replace).unwrap();
    refused(fs.link(shared.ino(), two, b"fifth"), errno::EXDEV);
    drop(shared);
    let site = site.again(true);
    site.agree();
    let site = site.again(false);
    site.agree();
    for name in ["outside", "fourth"] {
        site.fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    for nth in 0..50 {
        let dir = site.limited("short lived", 9);
        assert_eq!(site.used(dir), (0, 1), "{nth}");
        site.fs.rmdir(ROOT, b"short lived").unwrap();
    }
    site.agree();
    site.again(false).again(true).agree();
}

#[test]
fn the_limits_of_the_root_count_all_but_snapshots() {
    let site = Site::new(Policy::Inline);
    let fs = &site.fs;
    let tree = site.dir(ROOT, "tree");
    site.file(tree, "file").write_at(0, &noise(3 * B as usize, 1)).unwrap();
    fs.create_snapshot(b"first", ROOT, &CloneOptions::default()).unwrap();
    site.limit(ROOT, Some(3 * B), Some(3));
    fs.create_snapshot(b"second", tree, &CloneOptions::default()).unwrap();
    assert_eq!(site.used(ROOT), (3 * B, 3));
    refused(fs.create(ROOT, b"more", &NEW), errno::EDQUOT);
    refused(fs.tmpfile(&NEW), errno::EDQUOT);
    refused(fs.change_limits(ROOT, |limits| limits.expires = Some(7)), errno::EINVAL);
    let site = site.again(false);
    assert_eq!(site.used(ROOT), (3 * B, 3));
    let site = site.again(true);
    assert_eq!(site.used(ROOT), (3 * B, 3));
    site.limit(ROOT, None, None);
    assert!(site.fs.limited_trees().unwrap().is_empty());
    let fresh = Site::new(Policy::Off);
    fresh.limit(ROOT, Some(0), Some(1));
    fresh.fs.create_snapshot(b"first", ROOT, &CloneOptions::default()).unwrap();
    fresh.again(true).again(false);
}

#[test]
fn limits_can_be_asked_for_and_show_in_statfs() {
    let site = Site::new(Policy::Inline);
    let fs = &site.fs;
    let (top, file) = (site.dir(ROOT, "tree"), site.file(ROOT, "file"));
    refused(fs.change_limits(file.ino(), |limits| limits.inodes = Some(1)), errno::ENOTDIR);
    refused(fs.change_limits(InodeNumber(4000), |limits| limits.inodes = Some(1)), errno::ENOENT);
    fs.change_limits(top, |limits| assert_eq!(*limits, Limits::default())).unwrap();
    assert_eq!((fs.limited_tree(top).unwrap(), fs.statfs_at(top).unwrap()), (None, fs.statfs()));
    let limits = Limits { logical_bytes: Some(100 * B), inodes: Some(10), expires: None };
    fs.change_limits(top, |old| *old = limits).unwrap();
    let below = site.dir(top, "below");
    let held = site.file(below, "held");
    held.write_at(0, &noise(30 * B as usize, 3)).unwrap();
    let found = fs.limited_tree(held.ino()).unwrap().unwrap();
    let expected = LimitedTree { top, limits, logical_bytes: 30 * B, inodes: 3, is_being_charged: false };
    assert_eq!((found, fs.limited_trees().unwrap()), (expected, vec![expected]));
    let seen = fs.statfs_at(held.ino()).unwrap();
    assert_eq!((seen.blocks, seen.blocks_free, seen.blocks_available), (100, 70, 70));
    assert_eq!((seen.inodes, seen.inodes_free), (10, 7));
    assert_eq!(fs.statfs_at(file.ino()).unwrap(), fs.statfs());
    // Limits that leave more than the device has do not show.
    fs.change_limits(top, |old| *old = Limits { logical_bytes: Some(1 << 50), ..Limits::default() }).unwrap();
    assert_eq!(fs.statfs_at(top).unwrap().blocks_free, fs.statfs().blocks_free);
    // The limits show through no call for extended attributes, and take no place there.
    assert!(fs.list_xattr(top).unwrap().is_empty());
    refused(fs.get_xattr(top, b"\0limits"), errno::ENODATA);
    refused(fs.set_xattr(top, b"\0limits", b"", XattrMode::Set), errno::EINVAL);
    refused(fs.remove_xattr(top, b"\0limits"), errno::ENODATA);
    (0..128).for_each(|nth| fs.set_xattr(top, format!("user.{nth}").as_bytes(), b"", XattrMode::Set).unwrap());
    site.limit(top, Some(7), None);
    // What is shared within the tree is of the tree alone; what is shared with others is not.
    held.write_at(30 * B, &[]).unwrap();
    let twin = site.file(ROOT, "twin");
    site.limit(top, None, None);
    let copy = site.file(below, "copy");
    copy.clone_from(&held, 0, 0, 30 * B).unwrap();
    assert_eq!(fs.stored_alone_bytes(top).unwrap(), 30 * B);
    twin.clone_from(&held, 0, 0, 10 * B).unwrap();
    assert_eq!(fs.stored_alone_bytes(top).unwrap(), 20 * B);
    refused(fs.stored_alone_bytes(twin.ino()), errno::ENOTDIR);
}

#[test]
fn trees_whose_time_has_come_are_removed_and_others_stay() {
    let site = Site::new(Policy::Inline);
    let outer = site.dir(ROOT, "outer");
    let late = site.now.load(Ordering::Relaxed) + 1_000_000_000_000;
    for (parent, name, time) in [(outer, "now", 7), (outer, "later", late), (ROOT, "top", 9), (ROOT, "never", 0)] {
        let dir = site.dir(parent, name);
        site.file(dir, "file").write_at(0, &noise(3 * B as usize, 1)).unwrap();
        site.fs.change_limits(dir, |limits| limits.expires = Some(time).filter(|time| *time > 0)).unwrap();
        if name == "top" {
            let inner = site.dir(dir, "inner");
            site.fs.change_limits(inner, |limits| limits.expires = Some(1)).unwrap();
        }
    }
    let open = site.fs.open(site.fs.resolve(b"top/file").unwrap().ino).unwrap();
    let mut gone = site.fs.remove_expired().unwrap();
    gone.sort_by(|one, other| one.path.cmp(&other.path));
    let paths: Vec<&[u8]> = gone.iter().map(|tree| &tree.path[..]).collect();
    assert!(paths == [&b"outer/now"[..], b"top"] || paths == [&b"outer/now"[..], b"top", b"top/inner"], "{paths:?}");
    let now = &gone[0];
    assert_eq!(
        (now.parent, now.tree.limits.expires, now.tree.logical_bytes, now.tree.inodes),
        (outer, Some(7), 3 * B, 2)
    );
    assert!(site.fs.remove_expired().unwrap().is_empty());
    refused(site.fs.resolve(b"top"), errno::ENOENT);
    assert_eq!(content(&open), noise(3 * B as usize, 1), "who has a file open keeps it");
    drop(open);
    site.work();
    site.agree();
    let site = site.again(false);
    assert!(site.fs.remove_expired().unwrap().is_empty());
    site.now.fetch_add(2_000_000_000_000, Ordering::Relaxed);
    let site = site.again(true);
    assert_eq!(site.fs.remove_expired().unwrap().len(), 1);
    assert!(site.fs.resolve(b"outer/later").is_err() && site.fs.resolve(b"never/file").is_ok());
    site.again(true).agree();
}
