//! Clones of trees: whatever is written, removed or moved while one is made, it is the tree of one instant.

use crate::deext::Random;
use nvfold::check::{CheckOptions, check};
use nvfold::internals::media::SEGMENT_BYTES;
use nvfold::internals::media::inode::{INODE_BYTES, InodeHead};
use nvfold::*;
use pmem::{DeviceSpec, OpenOptions, Region};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const ROOT: InodeNumber = InodeNumber::ROOT;
const BLOCK: u64 = 4096;
/// What a clone keeps of one inode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    mode: u32,
    owner: (u32, u32),
    times: (i64, i64, i64),
    size: u64,
    rdev: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    target: Vec<u8>,
    content: Vec<u8>,
    /// Which bytes are reserved and read as zeros.
    reserved: Vec<(u64, u64)>,
    /// The first path of the same inode in the tree.
    first_path: String,
    /// The number of its names in the tree; of directories, the subdirectories.
    names: u32,
}

fn seen(fs: &FileSystem, top: InodeNumber) -> BTreeMap<String, Seen> {
    let (mut all, mut firsts) = (BTreeMap::new(), BTreeMap::new());
    look(fs, top, String::from("."), &mut all, &mut firsts);
    let mut names: BTreeMap<String, u32> = BTreeMap::new();
    all.values().for_each(|seen: &Seen| *names.entry(seen.first_path.clone()).or_default() += 1);
    for seen in all.values_mut().filter(|seen| seen.kind != FileKind::Directory) {
        seen.names = names[&seen.first_path];
    }
    all
}

fn look(
    fs: &FileSystem,
    ino: InodeNumber,
    path: String,
    all: &mut BTreeMap<String, Seen>,
    firsts: &mut BTreeMap<u64, String>,
) {
    let attr = fs.getattr(ino).unwrap();
    let xattrs = fs.list_xattr(ino).unwrap().into_iter();
    let mut seen = Seen {
        kind: attr.kind,
        mode: attr.mode,
        owner: (attr.uid, attr.gid),
        times: (attr.atime, attr.mtime, attr.ctime),
        size: if attr.kind == FileKind::Directory { 0 } else { attr.size },
        rdev: attr.rdev,
        xattrs: xattrs.map(|name| (name.clone(), fs.get_xattr(ino, &name).unwrap())).collect(),
        target: Vec::new(),
        content: Vec::new(),
        reserved: Vec::new(),
        first_path: firsts.entry(ino.0).or_insert_with(|| path.clone()).clone(),
        names: attr.nlink,
    };
    match attr.kind {
        FileKind::Directory => {
            let mut names = Vec::new();
            fs.readdir(ino, 0, &mut |entry| {
                names.push(entry);
                true
            })
            .unwrap();
            for entry in names {
                look(fs, entry.ino, format!("{path}/{}", String::from_utf8(entry.name).unwrap()), all, firsts);
            }
        }
        FileKind::Regular => {
            let file = fs.open(ino).unwrap();
            seen.content = vec![0; attr.size as usize];
            assert_eq!(file.read_at(0, &mut seen.content).unwrap() as u64, attr.size);
            let unwritten = extents(&file).into_iter().filter(|extent| extent.unwritten);
            for extent in unwritten {
                match seen.reserved.last_mut() {
                    Some((start, length)) if *start + *length == extent.offset => *length += extent.length,
                    _ => seen.reserved.push((extent.offset, extent.length)),
                }
            }
        }
        FileKind::Symlink => seen.target = fs.readlink(ino).unwrap(),
        _ => {}
    }
    all.insert(path, seen);
}

fn extents(file: &File) -> Vec<MappedExtent> {
    let (mut all, mut from) = (Vec::new(), 0);
    loop {
        let some = file.extents(from, 64).unwrap();
        let Some(last) = some.last() else { return all };
        from = last.offset + last.length;
        all.extend(some);
    }
}

fn new(kind: FileKind, mode: u32) -> NewInode {
    NewInode { kind, mode, uid: 7, gid: 8, rdev: if kind == FileKind::CharDevice { 0x103 } else { 0 } }
}

fn open(fs: &FileSystem, parent: InodeNumber, name: &str) -> File {
    fs.open(fs.create(parent, name.as_bytes(), &new(FileKind::Regular, 0o640)).unwrap().ino).unwrap()
}

/// Some blocks of few kinds, so that policies share them, and some bytes at the end.
fn content(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(4) {
        let kind = random.below(6) as u8;
        bytes.extend((0..BLOCK).map(|at| (at as u8).wrapping_mul(kind)));
    }
    bytes.extend((0..random.below(3000)).map(|at| at as u8));
    bytes
}

/// Each look at the clock sees another time, and files that were written rest at once.
fn options(policy: Policy) -> MountOptions {
    let now = AtomicI64::new(1_000_000_007);
    let clock = move || now.fetch_add(1_000_000_007, Ordering::Relaxed);
    MountOptions { policy, pack: Pack::On, clock: Arc::new(clock), ..MountOptions::default() }
}

/// A device in memory with a tree `a` of everything that a tree can have, and a tree `b` beside it.
struct Site {
    region: Region,
    policy: Policy,
    fs: FileSystem,
}

impl Site {
    fn new(policy: Policy, index: IndexKind) -> Site {
        let region = Region::create(&DeviceSpec::Memory, 128 << 20, &OpenOptions::default()).unwrap();
        FileSystem::mkfs(&region, &MkfsOptions { index, ..MkfsOptions::default() }).unwrap();
        let fs = FileSystem::mount(region.clone(), options(policy)).unwrap();
        let site = Site { region, policy, fs };
        site.fill(&mut Random(91));
        site
    }

    fn fill(&self, random: &mut Random) {
        let fs = &self.fs;
        let a = fs.mkdir(ROOT, b"a", &new(FileKind::Directory, 0o2755)).unwrap().ino;
        fs.set_xattr(a, b"user.long", &[7; 5000], XattrMode::Set).unwrap();
        fs.mkdir(ROOT, b"b", &new(FileKind::Directory, 0o755)).unwrap();
        let mut at = a;
        for depth in 0..4 {
            for nth in 0..7 {
                let file = open(fs, at, &format!("file{nth}"));
                file.write_at(0, &content(random)).unwrap();
                if nth == 1 {
                    let link = format!("link{depth}");
                    fs.link(file.ino(), at, link.as_bytes()).unwrap();
                    fs.link(file.ino(), a, format!("{link}.top").as_bytes()).unwrap();
                    fs.link(file.ino(), ROOT, format!("{link}.outside").as_bytes()).unwrap();
                }
                if nth == 2 {
                    file.allocate(5 * BLOCK, 2 * BLOCK, AllocateMode::Reserve).unwrap();
                    fs.set_xattr(file.ino(), b"user.short", b"value", XattrMode::Set).unwrap();
                    fs.set_xattr(file.ino(), b"user.long", &[depth; 3000], XattrMode::Set).unwrap();
                }
                if nth == 3 {
                    file.write_at(9 * BLOCK + 5, &content(random)).unwrap();
                    file.clone_from(&file, 100, 40 * BLOCK + 7, 900).unwrap();
                }
            }
            fs.symlink(at, b"symlink", b"../file1", &new(FileKind::Symlink, 0o777)).unwrap();
            for (name, kind) in [("fifo", FileKind::Fifo), ("socket", FileKind::Socket), ("null", FileKind::CharDevice)]
            {
                fs.create(at, name.as_bytes(), &new(kind, 0o600)).unwrap();
            }
            fs.mkdir(at, b"empty", &new(FileKind::Directory, 0o700)).unwrap();
            at = fs.mkdir(at, b"deeper", &new(FileKind::Directory, 0o750)).unwrap().ino;
        }
        (0..90).for_each(|nth| drop(open(fs, at, &format!("{}{nth}", "many names ".repeat(4)))));
    }

    fn at(&self, path: &str) -> InodeNumber {
        self.fs.resolve(path.as_bytes()).unwrap().ino
    }

    fn clone(&self, from: &str, name: &str) -> Result<Cloned> {
        self.fs.clone_tree(self.at(from), ROOT, name.as_bytes(), &CloneOptions::default())
    }

    /// Unmounts, checks, and mounts again.
    fn remount(self) -> Site {
        let Site { region, policy, fs } = self;
        fs.unmount().unwrap();
        Site::checked(region, policy)
    }

    /// Mounts again as after a crash of the process.
    fn crash(self) -> Site {
        let Site { region, policy, fs } = self;
        drop(fs);
        Site::checked(region, policy)
    }

    fn checked(region: Region, policy: Policy) -> Site {
        let found = check(&region, &CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
        assert!(found.findings.is_empty(), "{policy:?}: {found:?}");
        let fs = FileSystem::mount(region.clone(), options(policy)).unwrap();
        fs.reconcile().unwrap();
        Site { region, policy, fs }
    }

    /// Does a step of each work in the background.
    fn work(&self) {
        let fs = &self.fs;
        let _ = (fs.drain_step().unwrap(), fs.fill_step().unwrap(), fs.reclaim_step(Victims::All).unwrap());
    }
}

#[test]
fn a_clone_is_equal_to_its_tree_and_stores_no_data() {
    for policy in Policy::ALL {
        for index in [IndexKind::Dram, IndexKind::Pm] {
            let site = Site::new(policy, index);
            let then = seen(&site.fs, site.at("/a"));
            let before = site.fs.stats();
            let cloned = site.clone("/a", "c").unwrap();
            let after = site.fs.stats();
            assert_eq!(cloned.copied.entries as usize + 1, then.len(), "{policy:?}");
            // Reserved space is not shared.
            assert_eq!(after.stored_bytes - before.stored_bytes, 4 * 2 * BLOCK, "{policy:?} {index:?}");
            let of_a = seen(&site.fs, site.at("/a"));
            let copy = seen(&site.fs, site.at("/c"));
            assert!(then == of_a, "{policy:?}: the clone changed its original");
            assert_eq!(first_difference(&then, &copy), None, "{policy:?} {index:?}");
            let second = site.clone("/c", "d").unwrap();
            assert_eq!(second.copied.entries, cloned.copied.entries);
            let site = site.crash().remount();
            for name in ["/a", "/c", "/d"] {
                assert_eq!(
                    first_difference(&then, &seen(&site.fs, site.at(name))),
                    None,
                    "{policy:?} {index:?} {name}"
                );
            }
            // Each goes its own way from here on.
            site.fs.open(site.at("/c/file0")).unwrap().write_at(3, b"changed").unwrap();
            site.fs.unlink(site.at("/d/deeper"), b"file1").unwrap();
            assert!(first_difference(&then, &seen(&site.fs, site.at("/a"))).is_none());
            site.remount();
        }
    }
}

/// Returns the first path at which two trees differ, with what is there.
fn first_difference(one: &BTreeMap<String, Seen>, other: &BTreeMap<String, Seen>) -> Option<String> {
    let paths = one.keys().chain(other.keys());
    let differs = |path: &&String| one.get(*path) != other.get(*path);
    let path = paths.filter(differs).min()?;
    let short = |seen: Option<&Seen>| {
        seen.map(|seen| {
            let at = |other: &Seen| seen.content.iter().zip(&other.content).position(|(a, b)| a != b);
            let content = [one.get(path), other.get(path)].into_iter().flatten().find_map(at);
            let xattrs = seen.xattrs.iter().map(|(name, value)| (name.clone(), value[..value.len().min(9)].to_vec()));
            let short = Seen { content: Vec::new(), xattrs: xattrs.collect(), ..seen.clone() };
            format!("{short:?} (first other byte: {content:?})")
        })
    };
    Some(format!("{path}: {:?} | {:?}", short(one.get(path)), short(other.get(path))))
}

/// Changes anything in both trees, at random.
struct Writer<'s> {
    site: &'s Site,
    random: RefCell<Random>,
    made: Cell<u64>,
}

impl Writer<'_> {
    /// Returns a path in one of the trees, at random.
    fn path(&self, tree: &str) -> String {
        let paths: Vec<String> = seen(&self.site.fs, self.site.at(tree)).into_keys().collect();
        let chosen = &paths[self.random.borrow_mut().below(paths.len() as u64) as usize];
        format!("{tree}/{chosen}")
    }

    fn change(&self) {
        let fs = &self.site.fs;
        let below = |limit| self.random.borrow_mut().below(limit);
        let tree = if below(3) > 0 { "/a" } else { "/b" };
        let path = self.path(tree);
        let (parent, name) = path.rsplit_once('/').unwrap();
        let Ok(parent) = fs.resolve(parent.as_bytes()) else { return };
        let attr = fs.lookup(parent.ino, name.as_bytes()).unwrap();
        self.made.set(self.made.get() + 1);
        let fresh = format!("new{}", self.made.get());
        let is_file = attr.kind == FileKind::Regular;
        let other = self.path(if below(2) == 0 { "/a" } else { "/b" });
        let other = fs.resolve(other.as_bytes()).ok().filter(|other| other.kind == FileKind::Directory);
        // What is impossible, such as a directory below itself, is refused.
        let _ = match below(17) {
            0..=3 if is_file => {
                let bytes = content(&mut self.random.borrow_mut());
                let at = below(12 * BLOCK);
                fs.open(attr.ino).unwrap().write_at(at, &bytes)
            }
            4 if is_file => fs.open(attr.ino).unwrap().append(&[below(9) as u8; 100]).map(drop),
            5 if is_file => fs.open(attr.ino).unwrap().set_len(below(6 * BLOCK)),
            6 if is_file => {
                let mode = [AllocateMode::PunchHole, AllocateMode::Reserve, AllocateMode::ZeroRange][below(3) as usize];
                fs.open(attr.ino).unwrap().allocate(below(5 * BLOCK), 1 + below(3 * BLOCK), mode)
            }
            7 if is_file => {
                let file = fs.open(attr.ino).unwrap();
                file.clone_from(&file, 0, 20 * BLOCK + below(99), 1 + below(9000)).map(drop)
            }
            8 if attr.kind == FileKind::Directory => fs.rmdir(parent.ino, name.as_bytes()),
            8 | 9 => fs.unlink(parent.ino, name.as_bytes()),
            10 | 11 => match other {
                Some(other) => fs.rename(parent.ino, name.as_bytes(), other.ino, fresh.as_bytes(), RenameMode::Replace),
                None => Ok(()),
            },
            12 => {
                let mode = RenameMode::Exchange;
                fs.rename(parent.ino, name.as_bytes(), self.site.at("/a"), b"file0", mode)
            }
            13 => other.map_or(Ok(()), |other| fs.link(attr.ino, other.ino, fresh.as_bytes()).map(drop)),
            14 => fs.set_xattr(attr.ino, b"user.short", &[below(9) as u8; 200], XattrMode::Set),
            15 => fs.setattr(attr.ino, &SetAttr { mode: Some(below(0o777) as u32), ..SetAttr::default() }).map(drop),
            _ => match attr.kind {
                FileKind::Directory => {
                    let file = open(fs, attr.ino, &fresh);
                    fs.mkdir(attr.ino, format!("{fresh}.d").as_bytes(), &new(FileKind::Directory, 0o711)).unwrap();
                    file.write_at(0, &content(&mut self.random.borrow_mut()))
                }
                _ => Ok(()),
            },
        };
        if below(4) == 0 {
            self.site.work();
        }
    }
}

fn clone_under_changes(policy: Policy, index: IndexKind, seed: u64) {
    let mut site = Site::new(policy, index);
    for round in 0..3 {
        let then = seen(&site.fs, site.at("/a"));
        let name = format!("c{round}");
        let writer = Writer { site: &site, random: RefCell::new(Random(seed + round)), made: Cell::new(1000 * round) };
        site.fs.set_clone_turn(if round == 0 { 1 } else { 20 });
        let turns = Cell::new(0);
        let progress = |_: CloneProgress| {
            turns.set(turns.get() + 1);
            (0..2).for_each(|_| writer.change());
            ControlFlow::Continue(())
        };
        let options = CloneOptions { progress: Some(&progress), ..CloneOptions::default() };
        site.fs.clone_tree(site.at("/a"), ROOT, name.as_bytes(), &options).unwrap();
        assert!(turns.get() > 10, "{} turns", turns.get());
        let what = format!("{policy:?}, {index:?}, seed {seed}, round {round}");
        assert_eq!(first_difference(&then, &seen(&site.fs, site.at(&name))), None, "{what}");
        site = if round == 1 { site.crash() } else { site.remount() };
        assert_eq!(first_difference(&then, &seen(&site.fs, site.at(&name))), None, "{what}");
    }
}

#[test]
fn a_clone_under_a_writer_is_the_tree_of_one_instant() {
    for (seed, policy) in (1..).zip(Policy::ALL) {
        let index = if seed % 2 == 0 { IndexKind::Pm } else { IndexKind::Dram };
        clone_under_changes(policy, index, 1000 * seed);
    }
}

/// The block holds what is kept of the end, too.
#[test]
fn a_block_that_is_filled_in_place_while_its_end_is_kept_stays_in_use() {
    for policy in Policy::ALL {
        for place in ["/a", "/b"] {
            let mut site = Site::new(policy, IndexKind::Dram);
            let mut expected = Vec::new();
            let grow = |site: &Site, expected: &mut Vec<u8>, bytes: usize| {
                let mut random = Random(bytes as u64);
                let more: Vec<u8> = (0..bytes).map(|_| random.below(256) as u8).collect();
                let file = site.fs.open(site.at(&format!("{place}/grows"))).unwrap();
                file.append(&more).unwrap();
                expected.extend(more);
            };
            open(&site.fs, site.at(place), "grows");
            [1500, 300, 200].into_iter().for_each(|bytes| grow(&site, &mut expected, bytes));
            let then = expected.clone();
            site.fs.set_clone_turn(1);
            let has_grown = Cell::new(false);
            let now = RefCell::new(&mut expected);
            let progress = |_: CloneProgress| {
                if !has_grown.replace(true) {
                    grow(&site, &mut now.borrow_mut(), 3000);
                }
                ControlFlow::Continue(())
            };
            let options = CloneOptions { progress: Some(&progress), ..CloneOptions::default() };
            site.fs.clone_tree(site.at("/a"), ROOT, b"c", &options).unwrap();
            assert!(site.fs.usage().unwrap().is_none_or(|usage| usage.adds_up()), "{policy:?}, {place}");
            // Whatever was freed is used again.
            let other = open(&site.fs, site.at("/b"), "other");
            other.write_at(0, &vec![0x5a; 64 * BLOCK as usize]).unwrap();
            other.write_at(0, &(0..64 * BLOCK).map(|at| (at / 7) as u8).collect::<Vec<_>>()).unwrap();
            site = site.remount();
            let read = |path: String| {
                let file = site.fs.open(site.at(&path)).unwrap();
                let mut bytes = vec![0; file.attr().size as usize];
                file.read_at(0, &mut bytes).unwrap();
                bytes
            };
            assert!(read(format!("{place}/grows")) == expected, "{policy:?}, {place}");
            assert!(place == "/b" || read("/c/grows".into()) == then, "{policy:?}, {place}");
        }
    }
}

/// Also if it ends in the middle, at any turn: by a request, without space, or at unmount.
#[test]
fn a_clone_that_ends_early_leaves_nothing() {
    for policy in [Policy::Off, Policy::NvDedup, Policy::DeExt] {
        let mut site = Site::new(policy, IndexKind::Dram);
        site.fs.set_clone_turn(30);
        for last in [0, 1, 5, 20] {
            let before = site.fs.stats();
            let turns = Cell::new(0);
            let progress = |_: CloneProgress| {
                turns.set(turns.get() + 1);
                if turns.get() > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let options = CloneOptions { progress: Some(&progress), ..CloneOptions::default() };
            let error = site.fs.clone_tree(site.at("/a"), ROOT, b"c", &options).unwrap_err();
            assert_eq!(error.errno(), errno::ECANCELED, "{error}");
            let after = site.fs.stats();
            let of = |stats: &Stats| (stats.stored_bytes, stats.logical_bytes, stats.inodes);
            assert_eq!(of(&before), of(&after), "{policy:?}, {last} turns");
            assert!(site.fs.lookup(ROOT, b"c").is_err());
            site = site.remount();
            site.fs.set_clone_turn(30);
        }
        // Every allocation in turn finds no space: the clone is there in the end, because work has made room.
        for nth in 1.. {
            let before = site.fs.stats().inodes;
            site.fs.fail_allocation(nth);
            site.clone("/a", &format!("f{nth}")).unwrap();
            let has_failed = site.fs.fail_allocation(0) == 0;
            assert_eq!(site.fs.stats().inodes - before, site.fs.stats().inodes - before);
            if !has_failed || nth > 12 {
                break;
            }
        }
        site.remount();
    }
}

#[test]
fn a_clone_that_cannot_be_made_fails_with_a_reason() {
    let site = Site::new(Policy::Inline, IndexKind::Dram);
    let of = |from: &str, to: &str, name: &str| {
        let error = site.fs.clone_tree(site.at(from), site.at(to), name.as_bytes(), &CloneOptions::default());
        error.unwrap_err().errno()
    };
    assert_eq!(of("/a", "/a/deeper", "c"), errno::EINVAL, "into itself");
    assert_eq!(of("/a", "/a", "c"), errno::EINVAL, "into itself");
    assert_eq!(of("/", "/b", "c"), errno::EINVAL, "into itself");
    assert_eq!(of("/a", "/", "b"), errno::EEXIST);
    assert_eq!(of("/a/file0", "/", "c"), errno::ENOTDIR);
    assert_eq!(of("/a", "/a/file0", "c"), errno::ENOTDIR);
    assert_eq!(of("/a", "/b", "c/d"), errno::EINVAL);
    let nobody = |attr: &Attr, _: Option<&[u8]>| attr.mode & 0o004 != 0 || attr.kind == FileKind::Directory;
    let caller = CloneCaller { uid: 99, gid: 98, may_read: &nobody };
    let options = CloneOptions { caller: Some(caller), ..CloneOptions::default() };
    let error = site.fs.clone_tree(site.at("/a"), ROOT, b"c", &options).unwrap_err();
    assert_eq!(error.errno(), errno::EACCES);
    assert_eq!(error.to_string(), "c/file0: no permission to read it, so nothing was cloned");
    // Whom all may read, belongs to who clones it.
    let file = site.fs.mkdir(ROOT, b"open", &new(FileKind::Directory, 0o755)).unwrap().ino;
    let file = site.fs.create(file, b"tool", &new(FileKind::Regular, 0o6755)).unwrap();
    site.fs.set_xattr(file.ino, b"security.capability", b"all", XattrMode::Set).unwrap();
    site.fs.clone_tree(site.at("/open"), ROOT, b"own", &options).unwrap();
    let own = site.fs.resolve(b"/own/tool").unwrap();
    assert_eq!((own.uid, own.gid, own.mode), (99, 98, 0o755));
    assert!(site.fs.list_xattr(own.ino).unwrap().is_empty());
    site.remount();
}

/// Every call that would change something of a snapshot fails with EROFS, whoever makes it.
#[test]
fn nothing_can_change_a_snapshot() {
    for policy in Policy::ALL {
        let site = Site::new(policy, IndexKind::Dram);
        let fs = &site.fs;
        let then = seen(fs, site.at("/a"));
        fs.create_snapshot(b"first", site.at("/a"), &CloneOptions::default()).unwrap();
        let top = site.at("/.nvfold/snapshots/first");
        let name = |name: &str| fs.lookup(top, name.as_bytes()).unwrap().ino;
        let (file, live) = (fs.open(name("file3")).unwrap(), fs.open(site.at("/a/file3")).unwrap());
        let snapshots = fs.snapshots().unwrap();
        assert_eq!(snapshots.iter().map(|found| &found.name[..]).collect::<Vec<_>>(), [b"first"]);
        let home = site.at("/.nvfold/snapshots");
        let times = SetAttr { atime: Some(1), ..SetAttr::default() };
        let refused: Vec<(&str, Result<()>)> = vec![
            ("create", fs.create(top, b"new", &new(FileKind::Regular, 0o600)).map(drop)),
            ("mkdir", fs.mkdir(top, b"new", &new(FileKind::Directory, 0o700)).map(drop)),
            ("symlink", fs.symlink(top, b"new", b"x", &new(FileKind::Symlink, 0o777)).map(drop)),
            ("link in", fs.link(live.ino(), top, b"new").map(drop)),
            ("link out", fs.link(file.ino(), ROOT, b"new").map(drop)),
            ("unlink", fs.unlink(top, b"file0")),
            ("rmdir", fs.rmdir(top, b"empty")),
            ("rename in", fs.rename(ROOT, b"b", top, b"b", RenameMode::Replace)),
            ("rename out", fs.rename(top, b"file0", ROOT, b"new", RenameMode::Replace)),
            ("exchange", fs.rename(top, b"file0", site.at("/a"), b"file0", RenameMode::Exchange)),
            ("rename the top", fs.rename(home, b"first", ROOT, b"new", RenameMode::Replace)),
            ("rename in it", fs.rename(home, b"first", home, b"second", RenameMode::Replace)),
            ("set attributes", fs.setattr(name("fifo"), &times).map(drop)),
            ("set xattr", fs.set_xattr(top, b"user.x", b"y", XattrMode::Set)),
            ("remove xattr", fs.remove_xattr(top, b"user.long")),
            ("write", file.write_at(0, b"x")),
            ("append", file.append(b"x").map(drop)),
            ("write with origins", file.write_at_from(0, b"x", &[]).map(drop)),
            ("truncate", file.set_len(1)),
            ("punch", file.allocate(0, 4096, AllocateMode::PunchHole)),
            ("reserve", file.allocate(1 << 20, 4096, AllocateMode::Reserve)),
            ("clone into", file.clone_from(&live, 0, 0, 4096).map(drop)),
            ("remove a tree", fs.remove_tree(top, b"deeper")),
            ("remove the top", fs.remove_tree(home, b"first")),
            ("clone a tree into", fs.clone_tree(site.at("/b"), top, b"b", &CloneOptions::default()).map(drop)),
        ];
        for (what, result) in refused {
            assert_eq!(result.map_err(|error| error.errno()), Err(errno::EROFS), "{policy:?}: {what}");
        }
        let busy = [fs.remove_tree(ROOT, b".nvfold"), fs.rename(ROOT, b".nvfold", ROOT, b"x", RenameMode::Replace)];
        assert!(busy.into_iter().all(|result| result.unwrap_err().errno() == errno::EBUSY));
        // What shares data in the background may move it, and nothing else.
        (0..20).for_each(|_| site.work());
        file.dedup_range(0, u64::MAX).unwrap();
        assert_eq!(first_difference(&then, &seen(fs, top)), None, "{policy:?}");
        let site = site.crash();
        assert_eq!(first_difference(&then, &seen(&site.fs, site.at("/.nvfold/snapshots/first"))), None, "{policy:?}");
        assert_eq!(site.fs.unlink(site.at("/.nvfold/snapshots/first"), b"file0").unwrap_err().errno(), errno::EROFS);
        site.remount();
    }
}

/// It lies in bad memory here.
#[test]
fn shared_data_is_not_read_to_compare_two_trees() {
    let site = Site::new(Policy::Inline, IndexKind::Dram);
    let fs = &site.fs;
    fs.create_snapshot(b"a", site.at("/a"), &CloneOptions::default()).unwrap();
    let top = site.at("/.nvfold/snapshots/a");
    let file = |top, name: &str| fs.open(fs.lookup(top, name.as_bytes()).unwrap().ino).unwrap();
    let (live, kept) = (file(site.at("/a"), "file3"), file(top, "file3"));
    let size = kept.attr().size;
    let extents = kept.extents(0, 1000).unwrap();
    extents.iter().for_each(|extent| site.region.poison(extent.address, extent.stored_bytes));
    assert_eq!(kept.read_at(0, &mut vec![0; size as usize]).unwrap_err().errno(), errno::EIO);
    let mut different = Vec::new();
    let mut each = |path: &[u8], _| {
        different.push(String::from_utf8(path.to_vec()).unwrap());
        true
    };
    fs.diff_trees(top, site.at("/a"), &mut each).unwrap();
    assert_eq!(different, [""; 0]);
    let unshared = |from, most| fs.unshared_ranges((kept.ino(), live.ino()), from, most).unwrap();
    assert_eq!(unshared(0, 10), (vec![], size));
    assert_eq!(unshared(size, 10), (vec![], size));
    let are_equal = || fs.are_equal_unread(kept.ino(), live.ino()).unwrap();
    assert!(are_equal());
    fs.set_xattr(live.ino(), b"user.a", b"value", XattrMode::Set).unwrap();
    assert!(!are_equal(), "an extended attribute differs");
    fs.remove_xattr(live.ino(), b"user.a").unwrap();
    assert!(are_equal());
    assert!(!fs.are_equal_unread(top, site.at("/a")).unwrap(), "directories are not files");

    // What differs is told in ranges, as many as are wanted at a time.
    live.set_len(0).unwrap();
    live.set_len(size).unwrap();
    let mapped = extents.iter().filter(|extent| !extent.unwritten);
    let mapped: u64 = mapped.map(|extent| extent.length.min(size - extent.offset)).sum();
    let (mut at, mut total) = (0, 0);
    while at < size {
        let (ranges, next) = unshared(at, 1);
        assert!(ranges.len() <= 1 && next > at);
        total += ranges.iter().map(|range| range.end - range.start).sum::<u64>();
        at = next;
    }
    assert_eq!(total, mapped);
    let error = fs.diff_trees(top, site.at("/a"), &mut |_, _| true).unwrap_err();
    assert_eq!(error.errno(), errno::EIO, "what is not shared is read");
    assert!(!are_equal());
}

#[test]
fn a_snapshot_is_restored_in_place_and_deleted_with_what_it_holds_alone() {
    let mut site = Site::new(Policy::Inline, IndexKind::Dram);
    let all = CloneOptions::default();
    let then = seen(&site.fs, site.at("/a"));
    let stored = site.fs.stats().stored_bytes;
    site.fs.create_snapshot(b"whole", ROOT, &all).unwrap();
    site.fs.create_snapshot(b"a", site.at("/a"), &all).unwrap();
    let reserved = 4 * 2 * BLOCK;
    assert_eq!(site.fs.only_in_snapshots().unwrap(), 2 * reserved);
    assert_eq!(site.fs.create_snapshot(b"a", site.at("/a"), &all).unwrap_err().errno(), errno::EEXIST);
    let of_a = site.at("/.nvfold/snapshots/a");
    for part in ["/.nvfold", "/.nvfold/snapshots", "/.nvfold/snapshots/a"] {
        assert_eq!(site.fs.create_snapshot(b"c", site.at(part), &all).unwrap_err().errno(), errno::EINVAL, "{part}");
    }
    assert_eq!(first_difference(&then, &seen(&site.fs, site.at("/.nvfold/snapshots/whole/a"))), None);
    assert!(site.fs.lookup(site.at("/.nvfold/snapshots/whole"), b".nvfold").is_err());
    let is_listed = |name: &[u8]| {
        let mut names = Vec::new();
        let mut each = |entry: DirEntry| {
            names.push(entry.name);
            true
        };
        site.fs.readdir(ROOT, 0, &mut each).unwrap();
        names.iter().any(|listed| listed == name)
    };
    assert!(is_listed(b"b") && !is_listed(b".nvfold"), "a listing of the root leaves the snapshots out");
    for holder in [site.at("/.nvfold"), site.at("/.nvfold/snapshots")] {
        assert_eq!(site.fs.remove_directory(holder).unwrap_err().errno(), errno::EBUSY);
    }
    assert_eq!(site.fs.remove_tree(site.at("/.nvfold"), b"snapshots").unwrap_err().errno(), errno::EBUSY);
    // New content, of which only the tree holds the old.
    let file = site.fs.open(site.at("/a/file3")).unwrap();
    file.write_at(0, &(0..5 * BLOCK).map(|at| (at / 5 + at / 4099) as u8).collect::<Vec<_>>()).unwrap();
    site.fs.unlink(site.at("/a"), b"file0").unwrap();
    let mut different = Vec::new();
    let mut each = |path: &[u8], difference| {
        different.push((String::from_utf8(path.to_vec()).unwrap(), difference));
        true
    };
    site.fs.diff_trees(of_a, site.at("/a"), &mut each).unwrap();
    let expected = [("file0", Difference::Removed), ("file3", Difference::Content)];
    assert_eq!(different, expected.map(|(path, difference)| (path.to_owned(), difference)));
    let opened = site.fs.open(site.at("/a/file3")).unwrap();
    site.fs.restore_snapshot(b"a", ROOT, b"a", &all).unwrap();
    assert_eq!(first_difference(&then, &seen(&site.fs, site.at("/a"))), None);
    opened.write_at(0, b"whoever has it open keeps it").unwrap();
    site.fs.restore_snapshot(b"a", ROOT, b"again", &all).unwrap();
    assert_eq!(first_difference(&then, &seen(&site.fs, site.at("/again"))), None);
    site.fs.open(site.at("/again/file3")).unwrap().write_at(0, b"it can be changed").unwrap();
    for (name, parent, errno) in [(&b"none"[..], ROOT, errno::ENOENT), (b"a", site.at("/a/deeper"), errno::ENOTDIR)] {
        assert_eq!(site.fs.restore_snapshot(name, parent, b"file1", &all).unwrap_err().errno(), errno);
    }
    drop(opened);
    drop(file);
    site = site.crash();
    site.fs.delete_snapshot(b"whole").unwrap();
    site.fs.delete_snapshot(b"a").unwrap();
    assert_eq!(site.fs.delete_snapshot(b"a").unwrap_err().errno(), errno::ENOENT);
    site.fs.remove_tree(ROOT, b"again").unwrap();
    while !site.fs.remove_step().unwrap() {}
    assert_eq!((site.fs.snapshots().unwrap(), site.fs.only_in_snapshots().unwrap()), (Vec::new(), 0));
    assert_eq!(site.fs.stats().stored_bytes, stored, "nothing is left of the snapshots");
    site.remount();
}

/// An inode below a snapshot that can be changed, and one that cannot elsewhere, are found and put right.
#[test]
fn fsck_finds_what_is_of_a_snapshot_by_its_place_only_or_by_its_flag_only() {
    let site = Site::new(Policy::Inline, IndexKind::Dram);
    site.fs.create_snapshot(b"first", site.at("/a"), &CloneOptions::default()).unwrap();
    let then = seen(&site.fs, site.at("/a"));
    let inside = site.at("/.nvfold/snapshots/first/deeper/file0");
    let outside = site.at("/a/file0");
    let Site { region, policy, fs } = site;
    fs.unmount().unwrap();
    let first = read_superblock(&region).unwrap().1.first_segment() * SEGMENT_BYTES;
    for (ino, flags) in [(inside, 0), (outside, 1)] {
        let slot = first + ino.0 * INODE_BYTES;
        let head: InodeHead = region.read(slot);
        assert_eq!(head.ino, ino.0, "the table is one segment");
        let _ = region.fence(region.write(slot, &head.with_flags(flags)).flush());
    }
    let what = |repair| {
        let report = check(&region, &CheckOptions { data: true, repair }).unwrap();
        report.findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>()
    };
    let found = [
        format!("inode {} cannot be changed, and is in no snapshot", outside.0),
        format!("inode {} is in a snapshot, and can be changed", inside.0),
    ];
    assert_eq!((what(false), what(true), what(false)), (found.to_vec(), found.to_vec(), Vec::new()));
    let site = Site::checked(region, policy);
    let file = site.fs.open(site.at("/.nvfold/snapshots/first/deeper/file0")).unwrap();
    assert_eq!(file.write_at(0, b"x").unwrap_err().errno(), errno::EROFS);
    assert_eq!(first_difference(&then, &seen(&site.fs, site.at("/a"))), None);
    site.fs.open(site.at("/a/file0")).unwrap().write_at(0, b"x").unwrap();
    site.remount();
}
