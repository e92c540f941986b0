//! What stat returns for a file, above all its times, does not change while nobody changes the file: when the kernel drops what
//! it has cached, when the device is unmounted and mounted again, and when the server is killed after an fsync.
//!
//! The kernel and the server both keep times; which of them owns which is written in `front/times.rs` of
//! nvfold-mount. So a file is made in every way that there is, with every way to cache and every policy, and each field of
//! statx is compared before and after. As negative control, one nanosecond that one file was given meanwhile is found.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use fastrand::Rng;
use nvfold::{POLICY_ATTRIBUTE, Policy};
use nvfold_tests::mount::{Mount, nvfold, nvfold_json};
use nvfold_tests::probe::compiled;
use nvfold_tests::random::{self, Seed};
use nvfold_tests::{requires, run};
use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, FileType, Mode, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags, fadvise, fallocate, futimens, ioctl_ficlone, makedev, mknodat, setxattr, statx, utimensat,
};
use rustix::mount::{MountFlags, mount_remount};
use rustix::time::{ClockId, clock_gettime};

/// Every way to cache writes and pages. Without pages there is no writeback. With `btime` all fields come by another request
/// (FUSE_STATX).
const CACHES: [&str; 5] = [
    "writeback=on,cache=auto",
    "writeback=on,cache=full,btime",
    "writeback=off,cache=auto,btime",
    "writeback=off,cache=full",
    "cache=none,btime",
];
/// The mtime that the program `store` sets after it has stored, ns.
const TIME_SET: i128 = 1_000_000_001_987_654_321;
const OFFSET_MAX: u64 = 40_000;
const LENGTH_MAX: usize = 30_000;

/// How content comes into a file, or goes.
#[derive(Clone, Copy)]
enum Content {
    Write,
    Store,
    Resize,
    SameSize,
    Empty,
    Reserve,
    Punch,
    Zero,
    CopyRange,
    Clone,
}

const CONTENTS: [Content; 10] = [
    Content::Write,
    Content::Store,
    Content::Resize,
    Content::SameSize,
    Content::Empty,
    Content::Reserve,
    Content::Punch,
    Content::Zero,
    Content::CopyRange,
    Content::Clone,
];

/// A change of something else.
#[derive(Clone, Copy)]
enum Other {
    SetTimes,
    Touch,
    SetAccess,
    Chmod,
    Chown,
    Link,
    LinkAndRemove,
    Rename,
    SetXattr,
    RemoveXattr,
    Sync,
    Flush,
}

const OTHERS: [Other; 12] = [
    Other::SetTimes,
    Other::Touch,
    Other::SetAccess,
    Other::Chmod,
    Other::Chown,
    Other::Link,
    Other::LinkAndRemove,
    Other::Rename,
    Other::SetXattr,
    Other::RemoveXattr,
    Other::Sync,
    Other::Flush,
];

fn time(random: &mut Rng) -> Timespec {
    Timespec { tv_sec: random.i64(-1_000_000_000..4_000_000_000), tv_nsec: random.i64(0..1_000_000_000) as _ }
}

fn times(random: &mut Rng) -> Timestamps {
    Timestamps { last_access: time(random), last_modification: time(random) }
}

/// Waits until the clock from which files get their times has gone on.
fn wait_for_a_tick() {
    let began = clock_gettime(ClockId::RealtimeCoarse);
    while clock_gettime(ClockId::RealtimeCoarse) == began {
        std::thread::yield_now();
    }
}

fn special(nsec: i64) -> Timespec {
    Timespec { tv_sec: 0, tv_nsec: nsec as _ }
}

/// The maker of the files of one mount.
struct Maker<'r> {
    random: &'r mut Rng,
    store: PathBuf,
}

impl Maker<'_> {
    /// Does something to the content of an open file; `source` is another one with content.
    fn change_content(&mut self, how: Content, path: &Path, file: &File, source: &File) {
        let (at, length) = (self.random.u64(0..OFFSET_MAX), self.random.usize(1..LENGTH_MAX));
        let reserve = |flags| fallocate(file, flags, at, length as u64).expect("fallocate");
        match how {
            Content::Write => {
                let mut bytes = vec![0; length];
                random::fill(self.random, &mut bytes);
                file.write_all_at(&bytes, at).expect("write");
            }
            Content::Store => {
                let end = at + length as u64;
                if file.metadata().expect("stat").len() < end {
                    file.set_len(end).expect("ftruncate");
                }
                let how = ["sync", "unmap", "touch", "set"][self.random.usize(0..4)];
                let (at, length) = (at.to_string(), length.to_string());
                run::ok(Command::new(&self.store).arg(path).args([&at, &length, how]));
                if how == "set" {
                    let mtime = fields(path, AtFlags::empty())["mtime"];
                    assert_eq!(mtime, TIME_SET, "a store before the time was set does not take its place");
                }
            }
            Content::Resize => file.set_len(at).expect("ftruncate"),
            Content::SameSize => file.set_len(file.metadata().expect("stat").len()).expect("ftruncate"),
            Content::Empty => drop(File::options().write(true).truncate(true).open(path).expect("O_TRUNC")),
            Content::Reserve if self.random.bool() => reserve(FallocateFlags::empty()),
            Content::Reserve => reserve(FallocateFlags::KEEP_SIZE),
            Content::Punch => reserve(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            Content::Zero => reserve(FallocateFlags::ZERO_RANGE),
            Content::CopyRange => {
                let (mut from, mut to) = (self.random.u64(0..10_000), at);
                rustix::fs::copy_file_range(source, Some(&mut from), file, Some(&mut to), length).expect("copy");
            }
            // The kernel refuses it for all FUSE file systems; a refusal must change nothing either.
            Content::Clone => assert!(ioctl_ficlone(file, source).is_err(), "the documents say that it is refused"),
        }
    }

    /// Does something else to an open file; returns its path afterwards.
    fn change_other(&mut self, how: Other, path: &Path, file: &File) -> PathBuf {
        let other = path.with_extension("other");
        match how {
            Other::SetTimes => futimens(file, &times(self.random)).expect("utimens"),
            Other::Touch => {
                let now = Timestamps { last_access: special(UTIME_OMIT), last_modification: special(UTIME_NOW) };
                futimens(file, &now).expect("utimens");
            }
            Other::SetAccess => {
                let access = Timestamps { last_access: time(self.random), last_modification: special(UTIME_OMIT) };
                futimens(file, &access).expect("utimens");
            }
            Other::Chmod => {
                let mode = fs::Permissions::from_mode(self.random.u32(0..0o10000) | 0o600);
                file.set_permissions(mode).expect("chmod");
            }
            Other::Chown => chown(path, Some(self.random.u32(0..3)), Some(self.random.u32(0..3))).expect("chown"),
            Other::Link => drop(fs::hard_link(path, other)),
            Other::LinkAndRemove => {
                let _ = fs::hard_link(path, &other);
                fs::remove_file(other).expect("unlink");
            }
            Other::Rename => {
                let moved = path.with_extension("moved");
                fs::rename(path, &moved).expect("rename");
                return moved;
            }
            Other::SetXattr => setxattr(path, "trusted.name", b"value", XattrFlags::empty()).expect("setxattr"),
            Other::RemoveXattr => {
                setxattr(path, "user.name", b"value", XattrFlags::empty()).expect("setxattr");
                rustix::fs::removexattr(path, "user.name").expect("removexattr");
            }
            Other::Sync => file.sync_all().expect("fsync"),
            Other::Flush => drop(file.try_clone().expect("dup")),
        }
        path.to_owned()
    }

    /// Makes changes to an open file, of which `first` is the first. Returns its path afterwards.
    fn change(&mut self, first: Content, path: &Path, file: &File, source: &File) -> PathBuf {
        self.change_content(first, path, file, source);
        let mut path = path.to_owned();
        for _ in 0..self.random.usize(0..4) {
            if self.random.bool() {
                let how = CONTENTS[self.random.usize(0..CONTENTS.len())];
                self.change_content(how, &path, file, source);
            } else {
                let how = OTHERS[self.random.usize(0..OTHERS.len())];
                path = self.change_other(how, &path, file);
            }
        }
        // What is written back from here on comes later than what the kernel has told.
        wait_for_a_tick();
        path
    }

    /// Makes a directory with a file of each kind of content, and what is no file. Returns the paths of the files.
    fn fill(&mut self, dir: &Path) -> Vec<PathBuf> {
        let open =
            |path: &Path| File::options().read(true).write(true).create_new(true).mode(0o640).open(path).expect("open");
        let source = open(&dir.join("source"));
        let mut bytes = vec![0; LENGTH_MAX];
        random::fill(self.random, &mut bytes);
        source.write_all_at(&bytes, 0).expect("write");
        let mut paths = vec![dir.join("source")];
        for (number, first) in CONTENTS.into_iter().enumerate() {
            let path = dir.join(format!("{number}"));
            paths.push(self.change(first, &path, &open(&path), &source));
        }
        let inner = dir.join("directory");
        fs::create_dir(&inner).expect("mkdir");
        symlink("target", dir.join("symlink")).expect("symlink");
        lchown(dir.join("symlink"), Some(7), None).expect("lchown");
        mknodat(CWD, inner.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("mknod");
        mknodat(CWD, dir.join("device"), FileType::CharacterDevice, Mode::from_raw_mode(0o600), makedev(1, 3))
            .expect("mknod");
        fs::rename(dir.join("device"), inner.join("device")).expect("rename");
        for name in ["symlink", "directory"] {
            utimensat(CWD, dir.join(name), &times(self.random), AtFlags::SYMLINK_NOFOLLOW).expect("utimens");
        }
        paths
    }
}

/// What statx tells of a path, by the names of its fields. Without the number of blocks, which is no property of the file
/// alone: work in the background packs the end of a file that rests.
type Fields = BTreeMap<&'static str, i128>;

/// Asks the kernel, or the server in any case.
fn fields(path: &Path, how: AtFlags) -> Fields {
    let all = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = statx(CWD, path, how | AtFlags::SYMLINK_NOFOLLOW, all).expect("statx");
    let at = |time: rustix::fs::StatxTimestamp| i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    let device = |major: u32, minor: u32| i128::from(major) << 32 | i128::from(minor);
    BTreeMap::from([
        ("mask", found.stx_mask.into()),
        ("block size", found.stx_blksize.into()),
        ("links", found.stx_nlink.into()),
        ("owner", found.stx_uid.into()),
        ("group", found.stx_gid.into()),
        ("mode", found.stx_mode.into()),
        ("number", found.stx_ino.into()),
        ("size", found.stx_size.into()),
        ("device", device(found.stx_rdev_major, found.stx_rdev_minor)),
        ("atime", at(found.stx_atime)),
        ("mtime", at(found.stx_mtime)),
        ("ctime", at(found.stx_ctime)),
        ("btime", at(found.stx_btime)),
    ])
}

/// Returns what statx tells of everything below a directory.
fn tree(dir: &Path, how: AtFlags) -> BTreeMap<PathBuf, Fields> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("list") {
        let path = entry.expect("list").path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(tree(&path, how));
        }
        found.insert(path.clone(), fields(&path, how));
    }
    found
}

/// Returns each field that differs, with its path.
fn differences(before: &BTreeMap<PathBuf, Fields>, after: &BTreeMap<PathBuf, Fields>) -> Vec<String> {
    assert!(before.keys().eq(after.keys()), "the same names");
    let mut found = Vec::new();
    for (path, fields) in before {
        for (name, value) in fields.iter().filter(|(name, value)| after[path][*name] != **value) {
            found.push(format!("{}: {name} {value} became {}", path.display(), after[path][name]));
        }
    }
    found
}

#[track_caller]
fn assert_same(before: &BTreeMap<PathBuf, Fields>, after: &BTreeMap<PathBuf, Fields>, what: &str) {
    let found = differences(before, after);
    assert!(found.is_empty(), "{what}: {} differences\n{}", found.len(), found.join("\n"));
}

/// Makes the kernel drop pages, names and inodes of a mount.
fn evict(mount: &Mount, files: &[PathBuf]) {
    for path in files {
        fadvise(File::open(path).expect("open"), 0, None, Advice::DontNeed).expect("fadvise");
    }
    mount_remount(mount.path(), MountFlags::empty(), "").expect("remount");
}

/// Returns how often the kernel has asked for entries of directories.
fn listings(mount: &Mount) -> u64 {
    let stats = nvfold_json(&["stats", "--json"], &[mount.path()]);
    stats["requests_by_kind"]["readdirplus"].as_u64().expect("a count")
}

fn hold_what_stat_tells(options: &str, random: &mut Rng) {
    let mut mount = Mount::with_options(64, options);
    if !mount.is_real() {
        return;
    }
    let mut maker = Maker { random, store: compiled("store", mount.scratch()) };
    let mut files = Vec::new();
    for policy in Policy::ALL {
        let dir = mount.join(policy.name());
        fs::create_dir(&dir).expect("mkdir");
        setxattr(&dir, POLICY_ATTRIBUTE, policy.name().as_bytes(), XattrFlags::empty()).expect("setxattr");
        files.extend(maker.fill(&dir));
    }
    let made = tree(mount.path(), AtFlags::empty());
    assert_same(
        &made,
        &tree(mount.path(), AtFlags::STATX_FORCE_SYNC),
        "what the kernel keeps and what the server says",
    );

    let before = listings(&mount);
    evict(&mount, &files);
    let evicted = tree(mount.path(), AtFlags::empty());
    assert!(listings(&mount) - before >= Policy::ALL.len() as u64, "the kernel has dropped its inodes and listings");
    assert_same(&made, &evicted, &format!("{options}: eviction"));
    let control = &files[maker.random.usize(0..files.len())];
    let meta = fields(control, AtFlags::empty());
    let moved = meta["mtime"] + 1;
    let time =
        |at: i128| Timespec { tv_sec: at.div_euclid(1_000_000_000) as i64, tv_nsec: at.rem_euclid(1_000_000_000) as _ };
    let moved = Timestamps { last_access: time(meta["atime"]), last_modification: time(moved) };
    utimensat(CWD, control, &moved, AtFlags::empty()).expect("utimens");
    let found = differences(&made, &tree(mount.path(), AtFlags::empty()));
    assert!(found.iter().any(|one| one.contains(": mtime ")), "a nanosecond is seen: {found:?}");

    let before = tree(mount.path(), AtFlags::empty());
    nvfold(&["dedup", "--drain"], &[mount.path()]).success();
    mount.remount();
    assert_same(&before, &tree(mount.path(), AtFlags::empty()), &format!("{options}: a new mount"));

    let mut open = Vec::new();
    let source = File::open(&files[0]).expect("open");
    for path in &files[1..] {
        let file = File::options().read(true).write(true).open(path).expect("open");
        let how = CONTENTS[maker.random.usize(0..CONTENTS.len())];
        maker.change(how, path, &file, &source);
        file.sync_all().expect("fsync");
        open.push(file);
    }
    let synced = tree(mount.path(), AtFlags::STATX_FORCE_SYNC);
    mount.kill();
    drop((open, source));
    mount.mount();
    assert_same(&synced, &tree(mount.path(), AtFlags::empty()), &format!("{options}: a crash"));
    mount.check();
}

#[test]
fn the_times_of_a_file_do_not_change_without_a_change_of_the_file() {
    requires!(root, fuse, tool("cc"));
    let seed = Seed::new("times");
    let mut random = seed.generator();
    for _ in 0..random::soak_factor() {
        CACHES.iter().for_each(|options| hold_what_stat_tells(options, &mut random));
    }
}

#[test]
fn the_time_of_birth_is_shown_with_its_option_and_never_changes() {
    requires!(root, fuse);
    let now = || clock_gettime(ClockId::Realtime);
    let mut mount = Mount::with_options(64, "btime");
    if !mount.is_real() {
        return;
    }
    let (file, node) = (mount.join("file"), mount.join("node"));
    let start = now();
    fs::write(&file, b"content").expect("write");
    mknodat(CWD, &node, FileType::CharacterDevice, Mode::RUSR, makedev(0x123, 0x4_5678)).expect("mknod");
    let end = now();
    let born = |path: &Path| {
        let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BTIME).expect("statx");
        assert_ne!(found.stx_mask & StatxFlags::BTIME.bits(), 0, "{}", path.display());
        (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
    };
    let births = [born(&file), born(&node)];
    let seconds = start.tv_sec - 1..=end.tv_sec;
    assert!(births.iter().all(|(at, _)| seconds.contains(at)), "{births:?} {start:?} {end:?}");
    assert_eq!(fields(&node, AtFlags::empty())["device"], 0x123 << 32 | 0x4_5678);

    let change = |path: &Path| {
        utimensat(CWD, path, &Timestamps { last_access: start, last_modification: start }, AtFlags::empty())
            .expect("utimens");
        fs::rename(path, path.with_extension("new")).expect("rename");
        fs::rename(path.with_extension("new"), path).expect("rename");
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod");
    };
    [&file, &node].into_iter().for_each(|path| change(path));
    fs::write(&file, b"other content").expect("write");
    assert_eq!([born(&file), born(&node)], births);
    mount.remount();
    assert_eq!([born(&file), born(&node)], births, "after an unmount");

    mount.set_options("");
    mount.remount();
    assert_eq!(fields(&file, AtFlags::STATX_FORCE_SYNC)["mask"] & i128::from(StatxFlags::BTIME.bits()), 0);
    mount.check();
}
