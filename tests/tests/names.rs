//! Names at their limits: a million in one directory, the longest, the strangest, and files that lost their names.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::{Duration, Instant};

use nvfold::{FileKind, FileSystem, InodeNumber, Policy, XattrMode, errno};
use nvfold_tests::device::{self, Device, POLICIES};
use nvfold_tests::mount::Mount;
use nvfold_tests::random::Seed;
use nvfold_tests::requires;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, XattrFlags};

const ROOT: InodeNumber = InodeNumber::ROOT;

fn name(number: u64) -> Vec<u8> {
    // Unordered and of many lengths, as real names are.
    format!("{:x}-{}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15), "n".repeat(number as usize % 20)).into_bytes()
}

/// Lists a directory by following every cookie, `bite` names at a time, as a front end does.
fn list(fs: &FileSystem, dir: InodeNumber, bite: usize) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let (after, mut left) = (cookie, bite);
        let mut each = |entry: nvfold::DirEntry| {
            assert_ne!(entry.cookie, 0, "a cookie is never 0");
            cookie = entry.cookie;
            names.push(entry.name);
            left -= 1;
            left > 0
        };
        fs.readdir(dir, after, &mut each).expect("readdir");
        if left > 0 {
            return names;
        }
    }
}

#[test]
fn a_directory_holds_a_million_names() {
    const NAMES: u64 = 1_000_000;
    let device = Device::fresh(2048);
    let mut fs = device.mount(Policy::Inline);
    let dir = fs.mkdir(ROOT, b"million", &device::directory()).expect("mkdir").ino;
    let one = fs.create(ROOT, b"one", &device::regular()).expect("create").ino;
    for number in 0..NAMES {
        // One name in ten has its own inode, the others are links, because the test is about names.
        if number % 10 == 0 {
            fs.create(dir, &name(number), &device::regular()).expect("create");
        } else {
            fs.link(one, dir, &name(number)).expect("link");
        }
    }
    fs.unmount().expect("unmount");
    fs = device.mount(Policy::Inline);
    let mut expected: Vec<_> = (0..NAMES).map(name).collect();
    expected.sort();
    let mut names = list(&fs, dir, 1000);
    assert_eq!(names.len() as u64, NAMES);
    names.sort();
    assert!(names == expected, "readdir gives every name exactly once");
    for number in (0..NAMES).step_by(7) {
        fs.lookup(dir, &name(number)).expect("look up");
    }
    let absent = fs.lookup(dir, b"absent").expect_err("look up an absent name");
    assert_eq!(absent.errno(), errno::ENOENT);
    assert_eq!(fs.rmdir(ROOT, b"million").expect_err("not empty").errno(), errno::ENOTEMPTY);
    for number in 0..NAMES {
        fs.unlink(dir, &name(number)).expect("unlink");
    }
    assert_eq!(list(&fs, dir, 100), Vec::<Vec<u8>>::new());
    assert_eq!(fs.getattr(one).expect("stat").nlink, 1);
    fs.rmdir(ROOT, b"million").expect("rmdir");
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn readdir_returns_persistent_names_exactly_once_during_changes() {
    let device = Device::fresh(64);
    let fs = device.mount(Policy::Off);
    let steady: Vec<_> = (0..2000).map(|number| format!("steady{number}").into_bytes()).collect();
    for name in &steady {
        fs.create(ROOT, name, &device::regular()).expect("create");
    }
    let mut names = Vec::new();
    let mut cookie = 0;
    for round in 0.. {
        let mut entries = Vec::new();
        let mut each = |entry: nvfold::DirEntry| {
            entries.push(entry);
            entries.len() < 50
        };
        fs.readdir(ROOT, cookie, &mut each).expect("readdir");
        let Some(last) = entries.last() else { break };
        cookie = last.cookie;
        names.extend(entries.into_iter().map(|entry| entry.name).filter(|name| name.starts_with(b"steady")));
        let fleeting = |number: u64| format!("fleeting{number}").into_bytes();
        for number in 0..if round < 60 { 40 } else { 0 } {
            fs.create(ROOT, &fleeting(round * 40 + number), &device::regular()).expect("create");
            if round > 0 {
                fs.unlink(ROOT, &fleeting((round - 1) * 40 + number)).expect("unlink");
            }
        }
        assert!(round < 10_000, "readdir comes to an end though names are added");
    }
    names.sort();
    let mut expected = steady;
    expected.sort();
    assert!(names == expected, "{} names of {} seen", names.len(), expected.len());
}

#[test]
fn a_directory_of_the_mount_holds_a_hundred_thousand_names() {
    requires!(root, fuse);
    const NAMES: u64 = 100_000;
    let mut mount = Mount::fresh(512, "inline");
    let dir = mount.join("many");
    let path = |number: u64| dir.join(OsStr::from_bytes(&name(number)));
    std::fs::create_dir(&dir).expect("mkdir");
    for number in 0..NAMES {
        File::create_new(path(number)).expect("create");
    }
    mount.remount();
    let mut names: Vec<_> = std::fs::read_dir(&dir)
        .expect("list")
        .map(|entry| entry.expect("an entry").file_name().as_bytes().to_vec())
        .collect();
    names.sort();
    let mut expected: Vec<_> = (0..NAMES).map(name).collect();
    expected.sort();
    assert!(names == expected, "readdir gives every name exactly once");
    for number in (0..NAMES).step_by(11) {
        path(number).metadata().expect("stat");
    }
    std::fs::remove_dir_all(&dir).expect("remove the directory");
    mount.check();
}

#[test]
fn a_listing_of_the_mount_ends_even_if_each_listed_name_is_renamed() {
    requires!(root, fuse);
    const NAMES: usize = 3000;
    let mut mount = Mount::fresh(64, "off");
    for number in 0..NAMES {
        File::create_new(mount.join(format!("{number}"))).expect("create");
    }
    // This does `for f in *; mv $f $f.new` in one process: names may appear again under the new name, but not without
    // end.
    for (listed, entry) in std::fs::read_dir(mount.path()).expect("list").enumerate() {
        let path = entry.expect("an entry").path();
        let renamed = path.with_extension(format!("{listed}"));
        std::fs::rename(&path, renamed).expect("rename");
        assert!(listed < 3 * NAMES, "{NAMES} names and {listed} of them listed already");
    }
    mount.check();
}

#[test]
fn a_file_has_many_hard_links_and_lives_until_the_last_is_gone() {
    const LINKS: u32 = 40_000;
    for policy in POLICIES {
        let device = Device::of(128, policy);
        let fs = device.mount(policy);
        let ino = fs.create(ROOT, b"first", &device::regular()).expect("create").ino;
        fs.open(ino).expect("open").write_at(0, b"content").expect("write");
        for number in 1..LINKS {
            fs.link(ino, ROOT, format!("link{number}").as_bytes()).expect("link");
        }
        assert_eq!(fs.getattr(ino).expect("stat").nlink, LINKS);
        fs.unlink(ROOT, b"first").expect("unlink");
        for number in 1..LINKS - 1 {
            fs.unlink(ROOT, format!("link{number}").as_bytes()).expect("unlink");
        }
        fs.unmount().expect("unmount");
        let fs = device.mount(policy);
        let last = format!("link{}", LINKS - 1).into_bytes();
        let attr = fs.lookup(ROOT, &last).expect("look up");
        assert_eq!(attr.nlink, 1);
        let mut content = [0; 7];
        fs.open(attr.ino).expect("open").read_at(0, &mut content).expect("read");
        assert_eq!(&content, b"content");
        fs.unlink(ROOT, &last).expect("unlink");
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn values_of_extended_attributes_go_up_to_64_kib() {
    let device = Device::fresh(64);
    let fs = device.mount(Policy::Inline);
    let ino = fs.create(ROOT, b"file", &device::regular()).expect("create").ino;
    let sizes = [0, 1, 100, 4000, 4096, 4097, 30_000, 65_535, 65_536];
    let value = |size: usize| -> Vec<u8> { (0..size).map(|at| (at * 7) as u8).collect() };
    let key = |size: usize| format!("user.of{size}").into_bytes();
    for size in sizes {
        fs.set_xattr(ino, &key(size), &value(size), XattrMode::Create).expect("set");
    }
    for (size, other) in sizes.iter().zip(sizes.iter().rev()) {
        assert_eq!(fs.get_xattr(ino, &key(*size)).expect("get"), value(*size));
        fs.set_xattr(ino, &key(*size), &value(*other), XattrMode::Replace).expect("replace");
    }
    let too_large = fs.set_xattr(ino, b"user.large", &value(65_537), XattrMode::Set);
    assert!([errno::E2BIG, errno::ERANGE].contains(&too_large.expect_err("64 KiB is the most").errno()));
    fs.unmount().expect("unmount");
    let fs = device.mount(Policy::Inline);
    for (size, other) in sizes.iter().zip(sizes.iter().rev()) {
        assert_eq!(fs.get_xattr(ino, &key(*size)).expect("get"), value(*other));
        fs.remove_xattr(ino, &key(*size)).expect("remove");
    }
    assert_eq!(fs.list_xattr(ino).expect("list"), Vec::<Vec<u8>>::new());
    fs.unmount().expect("unmount");
    device.check();
}

#[test]
fn the_mount_takes_names_links_and_values_up_to_their_limits() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    let file = mount.join("file");
    std::fs::write(&file, b"content").expect("write");
    let value = vec![b'v'; 60_000];
    rustix::fs::setxattr(&file, "trusted.large", &value, XattrFlags::empty()).expect("setxattr");
    let target = "t/".repeat(2047) + "t";
    std::os::unix::fs::symlink(&target, mount.join("link")).expect("symlink");
    let long = mount.join("l".repeat(255));
    std::fs::hard_link(&file, &long).expect("link");
    let too_long = File::create(mount.join("l".repeat(256))).expect_err("256 bytes are too many");
    assert_eq!(too_long.raw_os_error(), Some(errno::ENAMETOOLONG));
    let odd = mount.join(OsStr::from_bytes(b"\xff\xfe\x80 not UTF-8"));
    std::fs::write(&odd, b"odd").expect("any bytes are a name");
    mount.remount();
    let mut found = vec![0; 65_536];
    let len = rustix::fs::getxattr(&long, "trusted.large", &mut found[..]).expect("getxattr");
    assert!(found[..len] == value[..]);
    assert_eq!(std::fs::read_link(mount.join("link")).expect("readlink").as_os_str(), &*target);
    assert_eq!(long.metadata().expect("stat").nlink(), 2);
    assert_eq!(std::fs::read(&odd).expect("read"), b"odd");
    mount.check();
}

#[test]
fn symlinks_are_followed_and_loops_detected() {
    let device = Device::fresh(64);
    let fs = device.mount(Policy::Off);
    let new = device::new_inode(FileKind::Symlink, 0o777);
    let dir = fs.mkdir(ROOT, b"dir", &device::directory()).expect("mkdir").ino;
    let file = fs.create(dir, b"file", &device::regular()).expect("create").ino;
    fs.symlink(ROOT, b"to_dir", b"/dir", &new).expect("symlink");
    fs.symlink(dir, b"back", b"../to_dir/file", &new).expect("symlink");
    assert_eq!(fs.resolve(b"/to_dir/back").expect("resolve").ino, file);
    assert_eq!(fs.resolve(b"dir/../to_dir/./file").expect("resolve").ino, file);
    fs.symlink(ROOT, b"a", b"b/x", &new).expect("symlink");
    fs.symlink(ROOT, b"b", b"a", &new).expect("symlink");
    fs.symlink(ROOT, b"self", b"self", &new).expect("symlink");
    for path in [&b"a"[..], b"b/c", b"self", b"/self/x"] {
        assert_eq!(fs.resolve(path).expect_err("a loop").errno(), errno::ELOOP);
    }
    assert_eq!(fs.resolve(b"dir/file/x").expect_err("not a directory").errno(), errno::ENOTDIR);
    let longest = vec![b'l'; 4095];
    fs.symlink(ROOT, b"longest", &longest, &new).expect("4095 bytes are allowed");
    let ino = fs.lookup(ROOT, b"longest").expect("look up").ino;
    assert_eq!(fs.readlink(ino).expect("readlink"), longest);
}

#[test]
fn a_nameless_file_lives_while_it_is_open_and_can_get_a_name() {
    for policy in POLICIES {
        let device = Device::of(64, policy);
        let fs = device.mount(policy);
        let file = fs.tmpfile(&device::regular()).expect("tmpfile");
        file.write_at(0, &[7; 10_000]).expect("write");
        assert_eq!(file.attr().nlink, 0);
        fs.link(file.ino(), ROOT, b"named").expect("link");
        let orphan = fs.tmpfile(&device::regular()).expect("tmpfile");
        orphan.write_at(0, &[8; 10_000]).expect("write");
        drop((file, orphan));
        fs.unmount().expect("unmount");
        let fs = device.mount(policy);
        let attr = fs.lookup(ROOT, b"named").expect("look up");
        assert_eq!((attr.nlink, attr.size), (1, 10_000));
        assert_eq!(fs.stats().inodes, 2, "the root and the named file");
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn the_mount_supports_o_tmpfile_if_the_kernel_does() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    let opened = rustix::fs::open(mount.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
    match opened {
        Ok(file) => {
            rustix::io::write(&file, b"content").expect("write");
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            rustix::fs::linkat(CWD, path, CWD, mount.join("named"), AtFlags::SYMLINK_FOLLOW).expect("link");
            drop(file);
            assert_eq!(std::fs::read(mount.join("named")).expect("read"), b"content");
        }
        Err(error) => assert_eq!(error.raw_os_error(), errno::EOPNOTSUPP, "O_TMPFILE"),
    }
    mount.check();
}

#[test]
fn orphans_of_a_crash_are_freed_by_the_next_mount() {
    for policy in POLICIES {
        let device = Device::of(64, policy);
        let fs = device.mount(policy);
        let baseline = fs.stats();
        let mut open = Vec::new();
        for number in 0..50 {
            let name = format!("doomed{number}").into_bytes();
            let ino = fs.create(ROOT, &name, &device::regular()).expect("create").ino;
            let file = fs.open(ino).expect("open");
            file.write_at(0, &vec![number; 30_000]).expect("write");
            fs.unlink(ROOT, &name).expect("unlink");
            open.push(file);
        }
        open.push(fs.tmpfile(&device::regular()).expect("tmpfile"));
        let mut byte = [0];
        open[3].read_at(29_999, &mut byte).expect("read an unlinked file");
        assert_eq!(byte, [3]);
        assert!(fs.stats().stored_bytes > baseline.stored_bytes);
        // The crash: everything is dropped without an unmount.
        drop((open, fs));
        let fs = device.mount(policy);
        let stats = fs.stats();
        assert_eq!(stats.inodes, baseline.inodes, "orphans are gone");
        assert_eq!(stats.stored_bytes, baseline.stored_bytes, "and so is their data");
        fs.unmount().expect("unmount");
        device.check();
    }
}

#[test]
fn orphans_of_a_killed_mount_are_freed_by_the_next_mount() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "off");
    if !mount.is_real() {
        return;
    }
    let free = |mount: &Mount| rustix::fs::statvfs(mount.path()).expect("statvfs").f_bfree;
    let fresh = free(&mount);
    let path = mount.join("doomed");
    let file = File::create(&path).expect("create");
    let mut bytes = vec![0; 10 << 20];
    Seed::new("an orphan").generator().fill(&mut bytes);
    file.write_all_at(&bytes, 0).expect("write");
    file.sync_all().expect("fsync");
    std::fs::remove_file(&path).expect("unlink");
    assert!(free(&mount) + 2500 < fresh, "an open file keeps its space");
    mount.kill();
    mount.mount();
    // Space that was freed before the crash is found in the background, while requests are served.
    let is_free = || free(&mount) + 16 > fresh;
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_free() && Instant::now() < patience {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(is_free(), "the orphan's space is free again");
    drop(file);
    mount.check();
}
