//! Limits of trees on real mounts: exact to the byte and the inode, for every program, also after a kill; and trees
//! whose time has come.

use nvfold::errno::{EDQUOT, ENOSPC, EXDEV};
use nvfold_tests::mount::{Mount, command, in_own_namespace, nvfold, nvfold_json};
use nvfold_tests::random::Seed;
use nvfold_tests::requires;
use nvfold_tests::run::{self, Outcome, shell};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Every policy, each in turn with another way to cache pages and another transport.
const OPTIONS: [&str; 9] = [
    "policy=off,writeback=off",
    "policy=inline,cache=none",
    "policy=nv-dedup,writeback=off,transport=device",
    "policy=denova,cache=none,transport=device",
    "policy=deext,writeback=off",
    "policy=icid,cache=none",
    "policy=icid+inline,writeback=off,transport=device",
    "policy=icid+deext,cache=none",
    "policy=auto,writeback=off",
];
const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const USER: u32 = 1001;

fn noise(bytes: usize, name: &'static str) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Seed::new(name).generator().fill(&mut noise);
    noise
}

/// Makes a directory and limits it.
#[track_caller]
fn limited(mount: &Mount, name: &str, limits: &str) -> PathBuf {
    let dir = mount.join(name);
    fs::create_dir_all(&dir).expect("make a directory");
    set(&dir, limits);
    dir
}

#[track_caller]
fn set(dir: &Path, limits: &str) {
    nvfold(&["set", limits], &[dir]).success();
}

/// What is used of the limits at a directory.
#[derive(Debug, PartialEq)]
struct Used {
    bytes: u64,
    inodes: u64,
}

#[track_caller]
fn used(dir: &Path) -> Used {
    let told = nvfold_json(&["get", "--json"], &[dir]);
    let number = |name: &str| told[name].as_u64().unwrap_or_else(|| panic!("{name}: {told}"));
    assert_eq!(told["is_being_charged"], false, "{told}");
    Used { bytes: number("used_bytes"), inodes: number("used_inodes") }
}

#[track_caller]
fn errno<T: std::fmt::Debug>(done: io::Result<T>) -> i32 {
    done.expect_err("it is refused").raw_os_error().expect("by the kernel")
}

/// Waits until something holds, which takes as long as a busy machine does.
#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + run::limit();
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a command that a limit stops.
#[track_caller]
fn stopped(dir: &Path, script: &str) -> Outcome {
    let outcome = run::run(Command::new("bash").args(["-euo", "pipefail", "-c", script]).current_dir(dir));
    let says = outcome.stderr.contains("Disk quota exceeded") || outcome.stderr.contains("No space left on device");
    assert!(outcome.code() != 0 && says, "{}", outcome.report());
    outcome
}

#[test]
fn a_tree_takes_exactly_the_bytes_of_its_limit_under_every_policy_and_after_a_kill() {
    requires!(fuse);
    let content = noise(2 * MIB, "limits");
    for options in OPTIONS {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        let (one, other) = (limited(&mount, "one", "limit=1M"), limited(&mount, "other", "limit=2M"));
        let mut file = File::create(one.join("file")).expect("create");
        for piece in content[..MIB].chunks(64 << 10) {
            file.write_all(piece).unwrap_or_else(|error| panic!("{options}: {error}"));
        }
        assert_eq!(errno(file.write(&content[MIB..MIB + 1])), EDQUOT, "{options}");
        assert_eq!(errno(fs::write(one.join("another"), &content[MIB..MIB + 1])), EDQUOT, "{options}");
        // What is there may change, and what is removed makes room.
        file.write_all_at(&content[MIB..], 0).unwrap_or_else(|error| panic!("{options}: {error}"));
        file.set_len(MIB as u64 - 4096).expect("truncate");
        fs::write(one.join("another"), &content[MIB..MIB + 4096]).unwrap_or_else(|error| panic!("{options}: {error}"));
        // Its neighbour has its own limit, and equal content counts in both.
        fs::write(other.join("file"), &content).unwrap_or_else(|error| panic!("{options}: {error}"));
        assert_eq!(errno(fs::write(other.join("more"), b"x")), EDQUOT, "{options}");
        fs::write(mount.join("outside"), &content).expect("no limit");
        let expected = [Used { bytes: MIB as u64, inodes: 3 }, Used { bytes: 2 * MIB as u64, inodes: 3 }];
        assert_eq!([used(&one), used(&other)], expected, "{options}");
        drop(file);
        File::open(one.join("another")).expect("open").sync_all().expect("sync");
        nvfold(&["sync"], &[mount.path()]).success();
        mount.kill();
        mount.mount();
        assert_eq!([used(&one), used(&other)], expected, "{options}, after a kill");
        assert_eq!(errno(fs::write(one.join("third"), b"x")), EDQUOT, "{options}, after a kill");
        mount.remount();
        fs::remove_file(one.join("third")).expect("remove");
        assert_eq!([used(&one), used(&other)], expected, "{options}, after an unmount");
        fs::remove_file(one.join("file")).expect("remove");
        wait_until("the room is free", || used(&one) == Used { bytes: 4096, inodes: 2 });
        mount.check();
    }
}

/// Appends blocks to a file until a limit refuses one; returns how many there are.
fn append_until_refused(path: &Path, content: &[u8]) -> u64 {
    let mut file = File::create(path).expect("create");
    for (blocks, block) in (0..).zip(content.chunks(BLOCK).cycle()) {
        if let Err(error) = file.write_all(block) {
            assert_eq!(error.raw_os_error(), Some(EDQUOT), "{}: {error}", path.display());
            return blocks;
        }
    }
    unreachable!("the content is repeated")
}

#[test]
fn several_writers_get_together_what_a_limit_leaves() {
    requires!(fuse);
    for options in ["policy=inline,writeback=off", "policy=denova,cache=none", "policy=icid+deext,writeback=off"] {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        let dir = limited(&mount, "work", "limit=8M");
        let contents = ["one", "two", "three"].map(|name| (name, noise(4 * MIB, name)));
        let blocks: u64 = thread::scope(|scope| {
            let writers = contents.each_ref().map(|(name, content)| {
                let path = dir.join(name);
                scope.spawn(move || append_until_refused(&path, content))
            });
            writers.into_iter().map(|writer| writer.join().expect("a writer")).sum()
        });
        assert_eq!((blocks * BLOCK as u64, used(&dir).bytes), (8 * MIB as u64, 8 * MIB as u64), "{options}");
        mount.check();
    }
}

#[test]
fn reserved_space_and_clones_of_ranges_count_and_a_restored_tree_keeps_its_limits() {
    requires!(fuse);
    let mut mount = Mount::with_options(64, "policy=inline,writeback=off");
    if !mount.is_real() {
        return;
    }
    let dir = limited(&mount, "work", "limit=4M,expire=1w");
    let outside = noise(3 * MIB, "limits");
    fs::write(mount.join("outside"), &outside).expect("write");
    let file = File::create(dir.join("reserved")).expect("create");
    let reserve = |bytes: usize| rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64);
    assert_eq!(reserve(4 * MIB + 1), Err(rustix::io::Errno::DQUOT));
    reserve(2 * MIB).expect("there is room");
    assert_eq!(used(&dir).bytes, 2 * MIB as u64);
    file.write_all_at(&outside[..2 * MIB], 0).expect("reserved space is charged already");
    let copy = |to: &str| run::run(Command::new("cp").arg(mount.join("outside")).arg(dir.join(to)));
    let refused = copy("copy");
    assert!(refused.code() != 0 && refused.stderr.contains("Disk quota exceeded"), "{}", refused.report());
    file.set_len(MIB as u64).expect("truncate");
    copy("copy").success();
    assert_eq!((used(&dir).bytes, fs::read(dir.join("copy")).expect("read")), (4 * MIB as u64, outside));
    nvfold(&["snapshot", "create", "kept"], &[&dir]).success();
    fs::remove_file(dir.join("copy")).expect("remove");
    nvfold(&["snapshot", "restore", "kept"], &[&dir]).success();
    let told = nvfold_json(&["get", "--json"], &[&dir]);
    assert_eq!((&told["limit_bytes"], &told["used_bytes"]), (&(4 * MIB).into(), &(4 * MIB).into()), "{told}");
    assert!(told["expires_ns"].is_number(), "{told}");
    assert_eq!(errno(fs::write(dir.join("more"), b"x")), EDQUOT);
    drop(file);
    mount.check();
}

#[test]
fn df_shows_the_limit_of_a_tree_and_what_is_left_of_it() {
    requires!(fuse);
    let mut mount = Mount::with_options(64, "policy=inline,writeback=off");
    if !mount.is_real() {
        return;
    }
    let whole = rustix::fs::statvfs(mount.path()).expect("statvfs");
    let dir = limited(&mount, "work", "limit=8M,inodes=100");
    fs::create_dir_all(dir.join("a/b")).expect("make directories");
    fs::write(dir.join("a/b/file"), noise(2 * MIB, "limits")).expect("write");
    for path in [dir.clone(), dir.join("a/b"), dir.join("a/b/file")] {
        let told = rustix::fs::statvfs(&path).expect("statvfs");
        let bytes = [told.f_blocks, told.f_bfree, told.f_bavail].map(|blocks| blocks * told.f_frsize);
        assert_eq!(bytes, [8, 6, 6].map(|mib| mib * MIB as u64), "{}", path.display());
        assert_eq!((told.f_files, told.f_ffree), (100, 96), "{}", path.display());
    }
    let df = run::ok(Command::new("df").args(["--output=size,used,avail", "-BM"]).arg(dir.join("a"))).stdout;
    let cells: Vec<&str> = df.lines().nth(1).expect("a row").split_whitespace().collect();
    assert_eq!(cells, ["8M", "2M", "6M"], "{df}");
    let told = rustix::fs::statvfs(mount.path()).expect("statvfs");
    assert_eq!(told.f_blocks, whole.f_blocks, "the device above");
    // A limit that the device cannot hold shows the device.
    set(&dir, "limit=1T,inodes=none");
    let told = rustix::fs::statvfs(&dir).expect("statvfs");
    assert!(told.f_bavail * told.f_frsize < 64 * MIB as u64, "{} blocks", told.f_bavail);
    mount.check();
}

#[test]
fn data_that_a_limit_refuses_after_the_kernel_took_it_is_an_error_of_fsync_and_of_the_next_write() {
    requires!(fuse);
    let mut mount = Mount::with_options(64, "policy=inline,writeback=on");
    if !mount.is_real() {
        return;
    }
    let content = noise(4 * MIB, "limits");
    let dir = limited(&mount, "work", "limit=1M");
    let mut file = File::create(dir.join("file")).expect("create");
    let taken = file.write_all(&content);
    assert!(taken.is_ok() || errno(taken) == EDQUOT);
    // `close` can tell ENOSPC from an error of the device, and no other error.
    assert_eq!(errno(file.sync_all()), ENOSPC);
    assert_eq!(errno(file.write_all(&content)), EDQUOT);
    assert!(used(&dir).bytes <= MIB as u64);
    set(&dir, "limit=16M");
    file.write_all_at(&content, 0).expect("there is room now");
    file.sync_all().expect("sync");
    drop(file);
    // `cp` does not sync.
    fs::write(mount.scratch().join("big"), noise(17 * MIB, "limits")).expect("write");
    stopped(&dir, &format!("cp {} copy", mount.scratch().join("big").display()));
    fs::remove_file(dir.join("copy")).expect("remove");
    let read = fs::read(dir.join("file")).expect("read");
    assert!(read.starts_with(&content));
    mount.check();
}

/// What the kernel has taken before a limit is set is stored, and counts.
#[test]
fn a_limit_below_what_is_there_loses_nothing_and_allows_nothing_more() {
    requires!(fuse);
    let mut mount = Mount::with_options(64, "policy=inline,writeback=on");
    if !mount.is_real() {
        return;
    }
    let dir = mount.join("work");
    shell(mount.path(), "mkdir -p work/a/b; for n in {1..200}; do echo $n > work/a/$n; done; ln work/a/1 work/a/b/1");
    let content = noise(2 * MIB, "limits");
    let mut file = File::create(dir.join("a/b/file")).expect("create");
    file.write_all(&content).expect("write");
    set(&dir, "limit=1M,inodes=10");
    let shown = nvfold(&["get"], &[&dir.join("a/b")]).success().stdout;
    assert!(shown.contains(&format!("of {}", dir.display())) && shown.contains("204 of 10"), "{shown}");
    assert!(used(&dir).bytes > 2 * MIB as u64 && used(&dir).inodes == 204);
    file.sync_all().expect("it was written before");
    assert_eq!(errno(File::create(dir.join("more"))), EDQUOT);
    assert_eq!(errno(fs::create_dir(dir.join("a/more"))), EDQUOT);
    assert_eq!(errno(std::os::unix::fs::symlink("x", dir.join("more"))), EDQUOT);
    fs::hard_link(dir.join("a/2"), dir.join("a/b/2")).expect("a name needs no inode");
    assert_eq!(fs::read(dir.join("a/b/file")).expect("read"), content);
    // A tree within has limits of its own, and does not count outside, with files that have names in both. Without limits
    // it counts again.
    set(&dir.join("a/b"), "inodes=5");
    assert_eq!(used(&dir.join("a/b")), Used { bytes: 2 * MIB as u64 + 8192, inodes: 4 });
    assert_eq!(used(&dir).inodes, 200);
    set(&dir.join("a/b"), "inodes=none");
    assert_eq!(used(&dir.join("a/b")).inodes, 204);
    set(&dir, "limit=none,inodes=none");
    let told = nvfold_json(&["get", "--json"], &[&dir]);
    assert!(told.get("top").is_none() && told["stored_alone_bytes"].as_u64() > Some(2 * MIB as u64), "{told}");
    File::create(dir.join("more")).expect("no limit");
    drop(file);
    mount.check();
}

#[test]
fn names_move_within_a_tree_and_mv_copies_into_another() {
    requires!(fuse);
    for options in ["policy=inline,writeback=off", "policy=denova,cache=none", "policy=deext"] {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        let [one, other] = ["one", "other"].map(|name| limited(&mount, name, "limit=8M,inodes=100"));
        shell(
            &one,
            "mkdir -p sub dir/deep; head -c 307200 /dev/urandom > file; cp file dir/deep/copy; ln file sub/link",
        );
        fs::rename(one.join("file"), one.join("sub/file")).expect("within the tree");
        for (from, to) in [(one.join("sub/file"), other.join("file")), (one.join("dir"), mount.join("dir"))] {
            assert_eq!(errno(fs::rename(&from, &to)), EXDEV, "{options}");
        }
        assert_eq!(errno(fs::hard_link(one.join("sub/file"), other.join("link"))), EXDEV, "{options}");
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        File::create(other.join("empty")).expect("create");
        let exchanged = rustix::fs::renameat_with(
            rustix::fs::CWD,
            one.join("sub/file"),
            rustix::fs::CWD,
            other.join("empty"),
            flags,
        );
        assert_eq!(exchanged, Err(rustix::io::Errno::XDEV), "{options}");
        let content = fs::read(one.join("sub/file")).expect("read");
        shell(mount.path(), "mv one/sub/file other/file && mv one/dir other/dir && test ! -e one/dir");
        assert_eq!(fs::read(other.join("file")).expect("read"), content, "{options}");
        assert_eq!(fs::read(other.join("dir/deep/copy")).expect("read"), content, "{options}");
        run::ok(Command::new("sync").arg("-f").arg(mount.path()));
        // The link is left.
        wait_until("what was moved is freed", || used(&one) == Used { bytes: 307_200, inodes: 3 });
        wait_until("all is written back", || used(&other) == Used { bytes: 614_400, inodes: 6 });
        // The top of a tree is moved with what it has.
        fs::rename(&one, other.join("dir/one")).expect("a tree has its own limits wherever it is");
        assert_eq!(used(&other.join("dir/one")).inodes, 3);
        assert_eq!(used(&other).inodes, 6);
        mount.check();
    }
}

#[test]
fn programs_in_a_tree_without_inodes_left_fail_and_work_again_once_there_are() {
    requires!(fuse, tool("rsync"), tool("tar"), tool("git"));
    let mut mount = Mount::fresh(128, "inline");
    if !mount.is_real() {
        return;
    }
    shell(mount.scratch(), "mkdir -p tree/{a,b,c}; for n in tree/{a,b,c}/{1..30}; do echo $n > $n; done");
    let tree = mount.scratch().join("tree");
    let tree = tree.display();
    let git = "git -c user.name=t -c user.email=t@example.org -c init.defaultBranch=main";
    let work = [
        ("cp", format!("cp -r {tree} copy")),
        ("rsync", format!("rsync -a {tree}/ copy")),
        ("tar", format!("mkdir -p copy; tar -C {tree} -c . | tar -C copy -x")),
        (
            "git",
            format!("{git} init -q copy; cd copy; cp -r {tree}/. .; {git} add .; {git} commit -qm all; {git} fsck"),
        ),
    ];
    for (name, script) in &work {
        let dir = limited(&mount, name, "inodes=40,limit=16M");
        stopped(&dir, script);
        assert_eq!(used(&dir).inodes, 40, "{name}");
        // Removing works, and what was removed can be made again at once.
        fs::remove_dir_all(dir.join("copy")).expect("remove");
        for round in 0..3 {
            let names: Vec<PathBuf> = (0..39).map(|at| dir.join(format!("{at}"))).collect();
            for path in &names {
                fs::write(path, b"x").unwrap_or_else(|error| panic!("{name}, round {round}: {error}"));
            }
            names.iter().for_each(|path| fs::remove_file(path).expect("remove"));
        }
        set(&dir, "inodes=4000");
        shell(&dir, script);
        run::ok(Command::new("diff").args(["-r", "--exclude=.git"]).arg(format!("{tree}")).arg(dir.join("copy")));
    }
    mount.check();
}

#[test]
fn a_clone_that_a_limit_refuses_leaves_nothing() {
    requires!(fuse);
    for options in ["policy=inline,writeback=off", "policy=denova,cache=none", "policy=icid+deext,writeback=off"] {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        let source = mount.join("source");
        shell(
            mount.path(),
            "mkdir -p source/sub; for n in {1..20}; do head -c 49152 /dev/urandom > source/sub/$n; done",
        );
        let target = limited(&mount, "work", "limit=1966080,inodes=60");
        nvfold(&["clone"], &[&source, &target.join("first")]).success();
        let expected = Used { bytes: 983_040, inodes: 23 };
        assert_eq!(used(&target), expected, "{options}");
        nvfold(&["clone"], &[&source, &target.join("second")]).success();
        nvfold(&["remove"], &[&target.join("second")]).success();
        wait_until("the clone is freed", || used(&target) == expected);
        for limits in ["limit=1966079", "limit=none,inodes=43"] {
            set(&target, limits);
            let refused = nvfold(&["clone"], &[&source, &target.join("second")]);
            assert!(refused.code() == 1 && refused.stderr.contains("nvfold set"), "{options}: {}", refused.report());
            assert!(!target.join("second").exists());
            wait_until("nothing is left of it", || used(&target) == expected);
        }
        // A clone of a limited tree is not limited itself.
        nvfold(&["clone"], &[&target, &mount.join("free")]).success();
        assert!(nvfold_json(&["get", "--json"], &[&mount.join("free")]).get("top").is_none());
        mount.check();
    }
}

#[test]
fn a_tree_whose_time_has_come_is_removed_and_logged() {
    requires!(fuse);
    for options in ["policy=inline", "policy=denova,cache=none,transport=device"] {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        let jobs = mount.join("jobs");
        fs::create_dir(&jobs).expect("make a directory");
        let (dir, stays) = (jobs.join("one"), limited(&mount, "jobs/stays", "limit=1M,expire=1w"));
        shell(&jobs, "mkdir -p one/a/b; for n in {1..50}; do echo $n > one/a/b/$n; done; ln one/a/b/1 kept");
        set(&dir, "expire=1h");
        let mut open = File::open(dir.join("a/b/7")).expect("open");
        assert_eq!(fs::read_dir(&jobs).expect("list").count(), 3);
        set(&dir, "expire=1s");
        wait_until("the tree is removed", || !dir.exists());
        wait_until("it is logged", || mount.log().contains(&format!("{}: removed", dir.display())));
        assert!(mount.log().contains("because its time had come, with 53 inodes and"), "{}", mount.log());
        wait_until("the kernel knows", || fs::read_dir(&jobs).expect("list").count() == 2);
        assert!(stays.is_dir() && !mount.log().contains("stays"));
        let mut text = String::new();
        open.read_to_string(&mut text).expect("what is open lives on");
        assert_eq!(text, "7\n");
        assert_eq!(fs::read_to_string(jobs.join("kept")).expect("read"), "1\n");
        fs::create_dir(&dir).expect("the name is free");
        assert!(nvfold_json(&["get", "--json"], &[&dir]).get("top").is_none());
        drop(open);
        // One whose time comes while nothing is mounted is removed by the next mount.
        limited(&mount, "jobs/late", "expire=1s");
        mount.kill();
        thread::sleep(Duration::from_millis(1100));
        mount.mount();
        wait_until("the tree is removed", || !jobs.join("late").exists());
        assert_eq!(mount.log().matches("late: removed").count(), 1, "{}", mount.log());
        mount.check();
    }
}

#[test]
fn only_root_and_the_user_who_mounted_set_limits_and_everybody_sees_them() {
    requires!(root, fuse, tool("setpriv"));
    // With the second one the kernel does not say who asks.
    for options in ["policy=inline", "policy=inline,idmap"] {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        let dir = limited(&mount, "work", "limit=1M,expire=1w");
        chown(&dir, Some(USER), Some(USER)).expect("chown");
        let as_user = |words: &[&str], path: &Path| {
            let nvfold = command();
            let mut setpriv = Command::new("setpriv");
            setpriv.args([&format!("--reuid={USER}"), "--clear-groups", "--"]).arg(nvfold.get_program());
            run::run(setpriv.args(words).arg(path))
        };
        for limits in ["limit=2M", "limit=none", "inodes=5", "expire=none"] {
            let refused = as_user(&["set", limits], &dir);
            assert!(refused.code() == 1 && refused.stderr.contains("only root"), "{}", refused.report());
        }
        fs::create_dir_all(dir.join("own")).expect("make a directory");
        chown(dir.join("own"), Some(USER), Some(USER)).expect("chown");
        assert_eq!(as_user(&["set", "limit=2M"], &dir.join("own")).code(), 1, "a tree of its own is no way out");
        let shown = as_user(&["get"], &dir.join("own")).success().stdout;
        assert!(shown.contains("0 B of 1 MiB") && shown.contains("2, no limit"), "{shown}");
        assert!(!shown.contains("alone"), "what others store is not told: {shown}");
        assert!(nvfold(&["get"], &[&dir]).success().stdout.contains("stored alone"));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).expect("chmod");
        chown(&dir, Some(0), Some(0)).expect("chown");
        assert_eq!(as_user(&["get"], &dir).code(), 1, "he may not read it");
        // The attribute that holds the limits is none that somebody could read, set or copy.
        assert_eq!(rustix::fs::listxattr(&dir, &mut [0u8; 0][..]), Ok(0));
        mount.check();
    }
}

#[test]
fn an_overlay_whose_upper_layer_is_limited_gets_edquot_and_breaks_nothing() {
    requires!(root, fuse, overlay, tool("unshare"));
    let mut mount = Mount::with_options(64, "policy=inline,writeback=off");
    if !mount.is_real() {
        return;
    }
    let top = limited(&mount, "top", "limit=1M,inodes=30");
    fs::create_dir(mount.scratch().join("low")).expect("make a directory");
    fs::write(mount.scratch().join("low/big"), noise(2 * MIB, "limits")).expect("write");
    fs::write(mount.scratch().join("low/small"), "small").expect("write");
    let script = format!(
        r#"
        top={top}; mkdir all $top/up $top/work
        mount -t overlay -o lowerdir=$PWD/low,upperdir=$top/up,workdir=$top/work overlay all
        echo more >> all/small && [ "$(cat all/small)" = "$(printf 'small%s' more)" ]
        refused() {{ if ("$@") 2>refusal; then echo "$* succeeded"; exit 1; fi; grep -q 'quota' refusal; }}
        append() {{ echo more >> "$1"; }}
        make() {{ for n in {{1..40}}; do echo x > "$1$n" || exit; done; }}
        refused append all/big
        cmp low/big all/big && [ ! -e $top/up/big ]
        rm all/small && [ -c $top/up/small ]
        refused make all/new
        rm all/new* && echo x > all/again
        umount all
        "#,
        top = top.display()
    );
    run::ok(&mut in_own_namespace(mount.scratch(), &script));
    mount.check();
}

#[test]
fn limits_that_were_set_on_an_unmounted_device_hold_on_its_mount() {
    requires!(fuse);
    let mut mount = Mount::with_options(64, "policy=inline,writeback=off");
    if !mount.is_real() {
        return;
    }
    fs::create_dir_all(mount.join("job/below")).expect("make directories");
    fs::write(mount.join("job/below/file"), noise(MIB, "limits")).expect("write");
    mount.unmount();
    let device = mount.device().to_owned();
    let on_device = |words: &[&str], path: &str| nvfold(words, &[&device, Path::new(path)]);
    on_device(&["set", "limit=1M,inodes=4", "--device"], "/job").success();
    let told = on_device(&["get", "--json", "--device"], "/job/below").success().stdout;
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!((&told["top"], &told["used_bytes"], &told["used_inodes"]), (&"/job".into(), &MIB.into(), &3.into()));
    assert_eq!(told["stored_alone_bytes"], MIB);
    assert_eq!(on_device(&["set", "limit=1M", "--device"], "/job/below/file").code(), 1);
    assert_eq!(on_device(&["set", "limit=1M", "--device"], "/none").code(), 1);
    mount.mount();
    assert_eq!(errno(fs::write(mount.join("job/more"), b"x")), EDQUOT);
    assert_eq!(fs::metadata(mount.join("job/more")).expect("the inode was within the limit").size(), 0);
    mount.check();
}
