//! `nvfold backup`: a copy of a device is whole, whatever happens while it is made.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nvfold_tests::mount::{self, Mount, NO_UTAB, binary, command, in_own_namespace, mkfs, nvfold, nvfold_json};
use nvfold_tests::random::soak_factor;
use nvfold_tests::requires;
use nvfold_tests::requires::tool;
use nvfold_tests::run;
use nvfold_tests::scratch::Scratch;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

/// Every policy, each with another way to get requests and to cache pages.
const MOUNTS: [&str; 9] = [
    "policy=off,transport=device,spin=off,cache=full",
    "policy=inline",
    "policy=nv-dedup,transport=device",
    "policy=denova,mode=immediate",
    "policy=deext,compress=lz4",
    "policy=icid,cache=none",
    "policy=icid+inline",
    "policy=icid+deext,transport=device",
    "policy=auto",
];
const DEVICE_MIB: u64 = 192;
/// A user who has mounted nothing.
const USER: &str = "65534";

/// A directory where a copy is mounted while this lives.
struct Mounted<'d>(&'d Path);

impl Mounted<'_> {
    #[track_caller]
    fn new<'d>(device: &Path, dir: &'d Path, options: &[&str]) -> Mounted<'d> {
        nvfold(&[&["mount"], options].concat(), &[device, dir]).success();
        Mounted(dir)
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !nvfold(&["umount"], &[self.0]).status.success() {
            let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// Ends the load on a mount, whatever happens to the test.
struct Ending<'e>(&'e AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn number_in(path: &Path) -> u64 {
    let mut bytes = [0; 8];
    fs::File::open(path).and_then(|file| file.read_exact_at(&mut bytes, 0)).expect("read a number");
    u64::from_le_bytes(bytes)
}

/// Writes the same number to two files, one durably after the other, again and again.
fn write_pairs(dir: &Path, done: &AtomicU64, ends: &AtomicBool) {
    let [one, two] = ["one", "two"].map(|name| fs::File::create(dir.join(name)).expect("make a file"));
    for number in 1.. {
        for file in [&one, &two] {
            file.write_all_at(&u64::to_le_bytes(number).repeat(64), 0).expect("write");
            file.sync_all().expect("sync");
        }
        done.store(number, Ordering::SeqCst);
        if ends.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Makes, clones, overwrites and removes trees.
fn change_trees(dir: &Path, ends: &AtomicBool) {
    let (tree, copy) = (dir.join("tree"), dir.join("copy"));
    for round in 0u8.. {
        fs::create_dir(&tree).expect("make a directory");
        for file in 0..20 {
            fs::write(tree.join(file.to_string()), vec![round; 50_000 + file * 777]).expect("write");
        }
        nvfold(&["clone"], &[&tree, &copy]).success();
        fs::write(copy.join("3"), [round; 10]).expect("write");
        fs::remove_dir_all(&tree).expect("remove");
        nvfold(&["remove"], &[&copy]).success();
        if ends.load(Ordering::SeqCst) {
            return;
        }
    }
}

/// Appends rows to an SQLite database in WAL mode.
fn write_rows(database: &Path, done: &AtomicU64, ends: &AtomicBool) {
    let sql = |sql: &str| run::ok(Command::new(tool("sqlite3")).arg("-bail").arg(database).arg(sql));
    sql("PRAGMA journal_mode=WAL; CREATE TABLE entry(number INTEGER PRIMARY KEY, text)");
    for number in 1.. {
        sql(&format!("PRAGMA synchronous=FULL; INSERT INTO entry VALUES ({number}, hex(randomblob(3000)))"));
        done.store(number, Ordering::SeqCst);
        if ends.load(Ordering::SeqCst) {
            return;
        }
    }
}

#[test]
fn a_copy_of_a_mount_in_use_is_whole_and_clean() {
    requires!(root, fuse, tool("sqlite3"));
    for (at, options) in MOUNTS.iter().enumerate() {
        let mount = Mount::with_options(DEVICE_MIB, options);
        let (pairs, rows, ends) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        fs::write(mount.join("constant"), vec![7; 20 << 20]).expect("write");
        thread::scope(|scope| {
            scope.spawn(|| write_pairs(mount.path(), &pairs, &ends));
            scope.spawn(|| change_trees(mount.path(), &ends));
            scope.spawn(|| write_rows(&mount.join("database"), &rows, &ends));
            let _ending = Ending(&ends);
            let rounds = if at == 1 { 10 } else { 2 };
            for round in 0..rounds * soak_factor() {
                check_one_copy(&mount, &pairs, &rows, &format!("{options}, copy {round}"));
            }
        });
    }
}

/// Makes one copy of a mount in use, and checks that it has all that was acknowledged before, in order.
fn check_one_copy(mount: &Mount, pairs: &AtomicU64, rows: &AtomicU64, what: &str) {
    let (copy, dir) = (mount.scratch().join("copy.img"), mount.scratch().join("copy"));
    let _ = fs::create_dir(&dir);
    let acknowledged = [pairs, rows].map(|count| count.load(Ordering::SeqCst));
    let report = nvfold_json(&["--json", "backup", "--force"], &[mount.path(), &copy]);
    assert_eq!(report["clean"], true, "{what}: {report}");
    let fsck = nvfold(&["fsck"], &[&copy]);
    assert_eq!(fsck.code(), 0, "{what}: {}", fsck.report());
    let _mounted = Mounted::new(&copy, &dir, &[]);
    if acknowledged[0] > 0 {
        let [one, two] = ["one", "two"].map(|name| number_in(&dir.join(name)));
        assert!(two >= acknowledged[0] && (two..=two + 1).contains(&one), "{what}: {acknowledged:?}, {one}, {two}");
    }
    if acknowledged[1] > 0 {
        let sql = |sql: &str| run::ok(Command::new(tool("sqlite3")).arg(dir.join("database")).arg(sql)).stdout;
        assert_eq!(sql("PRAGMA integrity_check").trim(), "ok", "{what}");
        let count: u64 = sql("SELECT count(*) FROM entry").trim().parse().expect("a number");
        assert!(count >= acknowledged[1], "{what}: {count} rows of {}", acknowledged[1]);
    }
    assert!(fs::read(dir.join("constant")).expect("read") == vec![7; 20 << 20], "{what}");
}

/// All but the names: a device at rest is copied byte by byte, and holes stay holes.
#[test]
fn a_copy_of_an_unmounted_device_has_its_bytes_and_its_holes() {
    requires!(root, fuse);
    for scratch in [Scratch::new(), Scratch::on_disk()] {
        let (device, dir, copy) = (scratch.join("device"), scratch.join("mnt"), scratch.join("copy"));
        mkfs(&device, DEVICE_MIB << 20);
        fs::create_dir(&dir).expect("make the mount point");
        {
            let _mounted = Mounted::new(&device, &dir, &[]);
            fs::copy(mount::binary(), dir.join("file")).expect("copy a file");
        }
        let outcome = nvfold(&["backup"], &[&device, &copy]).success();
        assert!(outcome.stdout.contains("the copy is clean"), "{}", outcome.report());
        run::ok(Command::new("cmp").args([&device, &copy]));
        let [of_device, of_copy] = [&device, &copy].map(|path| path.metadata().expect("look at it"));
        assert!(of_copy.blocks() <= of_device.blocks() && of_copy.mode() & 0o777 == 0o600);
        let second = nvfold(&["backup"], &[&device, &copy]);
        assert!(second.code() == 1 && second.stderr.contains("--force"), "{}", second.report());
        nvfold(&["backup", "--force"], &[&device, &copy]).success();
    }
}

/// A crash leaves work to the next mount, of the copy too.
#[test]
fn a_copy_of_a_device_after_a_crash_recovers_as_the_device_does() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    fs::write(mount.join("file"), "tea").expect("write");
    nvfold(&["sync"], &[mount.path()]).success();
    mount.kill();
    let (copy, dir) = (mount.scratch().join("copy.img"), mount.scratch().join("copy"));
    fs::create_dir(&dir).expect("make a directory");
    let dead = nvfold(&["backup"], &[mount.device(), &copy]);
    assert!(dead.code() == 1 && dead.stderr.contains("the process that serves it has ended"), "{}", dead.report());
    nvfold(&["umount"], &[mount.path()]).success();
    let outcome = nvfold(&["backup"], &[mount.device(), &copy]).success();
    assert!(outcome.stdout.contains("its next mount recovers it"), "{}", outcome.report());
    let _mounted = Mounted::new(&copy, &dir, &[]);
    assert_eq!(fs::read(dir.join("file")).expect("read"), b"tea");
    mount.mount();
    mount.check();
}

#[test]
fn memory_mounts_and_read_only_mounts_are_copied_too() {
    requires!(root, fuse);
    let scratch = Scratch::new();
    let [first, second, third] = ["first", "second", "third"].map(|name| scratch.join(name));
    [&first, &second, &third].into_iter().for_each(|dir| fs::create_dir(dir).expect("make a directory"));
    let (one, two) = (scratch.join("one.img"), scratch.join("two.img"));
    {
        let _memory = Mounted::new(Path::new("mem:"), &first, &["-o", "size=64M"]);
        fs::write(first.join("file"), vec![5; 1 << 20]).expect("write");
        let outcome = nvfold(&["backup"], &[&first, &one]).success();
        assert!(outcome.stdout.contains("writers waited") && outcome.stdout.contains("the copy is clean"));
    }
    let _one = Mounted::new(&one, &second, &["-o", "ro"]);
    nvfold(&["backup"], &[&one, &two]).success();
    let _two = Mounted::new(&two, &third, &[]);
    assert!(fs::read(third.join("file")).expect("read") == vec![5; 1 << 20]);
    run::ok(Command::new("cmp").args([&second.join("file"), &third.join("file")]));
}

#[test]
fn harmful_and_useless_backups_are_refused() {
    requires!(root, fuse, tool("setpriv"));
    let mount = Mount::fresh(64, "inline");
    let scratch = mount.scratch();
    let refused = |paths: &[&Path], why: &str| {
        for force in [&["backup"][..], &["backup", "--force"]] {
            let outcome = nvfold(force, paths);
            assert!(outcome.code() > 0 && outcome.stderr.contains(why), "{}", outcome.report());
        }
    };
    let copy = scratch.join("copy");
    refused(&[mount.path(), &mount.join("copy")], "which is to be copied");
    refused(&[mount.device(), mount.device()], "it is the device that is to be copied");
    refused(&[mount.device(), scratch], "it is a directory");
    refused(&[mount.device(), &scratch.join("none/copy")], "No such file or directory");
    refused(&[&scratch.join("none"), &copy], "o such file or directory");
    refused(&[scratch, &copy], "neither a device nor a directory where nvfold is mounted");
    let foreign = scratch.join("foreign");
    fs::write(&foreign, vec![1; 1 << 20]).expect("write");
    refused(&[&foreign, &copy], "nvfold");
    let other = Mount::fresh(64, "off");
    refused(&[mount.path(), other.device()], "");
    let in_use = nvfold(&["backup", "--force"], &[mount.path(), other.device()]);
    assert!(in_use.stderr.contains("in use"), "{}", in_use.report());
    fs::set_permissions(scratch, fs::Permissions::from_mode(0o777)).expect("open the directory to all");
    let mut setpriv = Command::new("setpriv");
    setpriv.args(["--reuid", USER, "--regid", USER, "--clear-groups", "--"]).arg(command().get_program());
    let user = run::run(setpriv.arg("backup").arg(mount.path()).arg(&copy));
    assert!(user.code() == 1 && user.stderr.contains("only root and the user who mounted it"), "{}", user.report());
    assert!(!copy.exists() && !partial(&copy).exists(), "nothing is left");
    let link = scratch.join("link");
    std::os::unix::fs::symlink(&foreign, &link).expect("make a link");
    refused(&[mount.path(), &link], "exists");
    std::os::unix::fs::symlink(&foreign, partial(&copy)).expect("make a link");
    refused(&[mount.path(), &copy], "");
    assert!(fs::read(&foreign).expect("read") == vec![1; 1 << 20]);
}

fn partial(copy: &Path) -> PathBuf {
    PathBuf::from(format!("{}.partial", copy.display()))
}

/// Starts a backup, and stops its process when it has written some of the copy, and at most half of the 60 MiB that there
/// are. It may be further before it is stopped: then again.
fn stopped_midway(mount: &Mount, copy: &Path) -> Child {
    let written = || partial(copy).metadata().map_or(0, |metadata| metadata.blocks() * 512);
    loop {
        // A shell that starts the tests in the background ignores SIGINT, which its children inherit.
        let mut backup = Command::new("env");
        backup.env("LIBMOUNT_UTAB", NO_UTAB).arg("--default-signal=INT,TERM,HUP").arg(binary());
        backup.args(["backup", "--force"]).args([mount.path(), copy]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = backup.spawn().expect("start a backup");
        while written() <= 4096 && child.try_wait().expect("wait").is_none() {
            thread::yield_now();
        }
        let pid = Pid::from_child(&child);
        let _ = kill_process(pid, Signal::STOP);
        // A process stops some time after the signal.
        let until = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let state = waitid(WaitId::Pid(pid), until).expect("wait").expect("it stops or ends");
        if state.stopped() && (4097..30 << 20).contains(&written()) {
            return child;
        }
        let _ = (child.kill(), child.wait(), fs::remove_file(copy), fs::remove_file(partial(copy)));
    }
}

#[test]
fn a_backup_that_is_killed_or_interrupted_leaves_no_copy_and_a_whole_mount() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(DEVICE_MIB, "off");
    let mut bytes = vec![0; 60 << 20];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    fs::write(mount.join("file"), &bytes).expect("write");
    let copy = mount.scratch().join("copy.img");
    for signal in [Signal::KILL, Signal::INT, Signal::TERM] {
        let mut child = stopped_midway(&mount, &copy);
        fs::write(mount.join("other"), &bytes[..1 << 20]).expect("write beside a stopped backup");
        for sent in [signal, Signal::CONT] {
            let _ = kill_process(Pid::from_child(&child), sent);
        }
        let status = run::wait_at_most(&mut child, run::limit()).expect("it ends");
        assert!(!status.success() && !copy.exists(), "{signal:?}: {status}");
        assert_eq!(partial(&copy).exists(), signal == Signal::KILL, "{signal:?}");
        // The server sees that the command has gone, and the command that its file is nobody's.
        let again = nvfold(&["backup"], &[mount.path(), &copy]).success();
        assert_eq!(again.stderr.contains("left by a backup"), signal == Signal::KILL, "{}", again.report());
        assert_eq!(nvfold(&["fsck"], &[&copy]).code(), 0);
        fs::remove_file(&copy).expect("remove the copy");
    }
    let mut child = stopped_midway(&mount, &copy);
    mount.kill();
    kill_process(Pid::from_child(&child), Signal::CONT).expect("let it go on");
    let status = run::wait_at_most(&mut child, run::limit()).expect("it ends");
    assert!(status.code() == Some(1) && !copy.exists() && !partial(&copy).exists(), "{status}");
    mount.mount();
    assert!(fs::read(mount.join("file")).expect("read") == bytes);
    mount.check();
}

#[test]
fn a_second_backup_of_a_mount_waits_for_no_one() {
    requires!(root, fuse);
    let mount = Mount::fresh(DEVICE_MIB, "off");
    let mut bytes = vec![0; 60 << 20];
    fastrand::Rng::with_seed(2).fill(&mut bytes);
    fs::write(mount.join("file"), &bytes).expect("write");
    let (copy, other) = (mount.scratch().join("copy.img"), mount.scratch().join("other.img"));
    let mut child = stopped_midway(&mount, &copy);
    let second = nvfold(&["backup"], &[mount.path(), &other]);
    assert!(second.code() == 1 && second.stderr.contains("another backup"), "{}", second.report());
    let same = nvfold(&["backup"], &[mount.device(), &copy]);
    assert!(same.code() == 1 && same.stderr.contains("another backup is writing it"), "{}", same.report());
    assert!(!other.exists() && !partial(&other).exists());
    kill_process(Pid::from_child(&child), Signal::CONT).expect("let it go on");
    assert!(run::wait_at_most(&mut child, run::limit()).expect("it ends").success());
    assert_eq!(nvfold(&["fsck"], &[&copy]).code(), 0);
}

/// A target that is too small is refused before anything is copied, and one that becomes full leaves nothing.
#[test]
fn a_full_target_leaves_no_copy() {
    requires!(root, fuse, tool("unshare"));
    let mount = Mount::fresh(64, "off");
    let mut bytes = vec![0; 20 << 20];
    fastrand::Rng::with_seed(3).fill(&mut bytes);
    fs::write(mount.join("file"), &bytes).expect("write");
    let script = r#"
        mkdir small
        mount -t tmpfs -o size=24M none small
        ! "$NVFOLD" backup mnt small/copy 2>message
        grep -q 'may take .*, and its file system has .* left' message
        test -z "$(ls small)"
        trap '' XFSZ
        ! (ulimit -f 1024; "$NVFOLD" backup mnt copy 2>message)
        grep -q 'cannot write the copy' message
        test ! -e copy -a ! -e copy.partial
        umount small
    "#;
    run::ok(&mut in_own_namespace(mount.scratch(), script));
}

/// Whoever waits for a backup waits for a moment. The bound is one that only a hang can cross.
#[test]
fn writers_go_on_while_a_backup_is_stopped() {
    requires!(root, fuse);
    let mount = Mount::fresh(DEVICE_MIB, "inline");
    let mut bytes = vec![0; 60 << 20];
    fastrand::Rng::with_seed(4).fill(&mut bytes);
    fs::write(mount.join("file"), &bytes).expect("write");
    let copy = mount.scratch().join("copy.img");
    let mut child = stopped_midway(&mount, &copy);
    let began = Instant::now();
    for round in 0..200 {
        fs::write(mount.join(format!("other-{round}")), [1; 5000]).expect("write");
        fs::remove_file(mount.join(format!("other-{round}"))).expect("remove");
    }
    assert!(began.elapsed() < Duration::from_secs(600));
    kill_process(Pid::from_child(&child), Signal::CONT).expect("let it go on");
    assert!(run::wait_at_most(&mut child, run::limit()).expect("it ends").success());
    let dir = mount.scratch().join("copy");
    fs::create_dir(&dir).expect("make a directory");
    let _mounted = Mounted::new(&copy, &dir, &[]);
    assert!(fs::read(dir.join("file")).expect("read") == bytes && !dir.join("other-0").exists());
}

/// What stores overwrite is kept until the command takes it. One that is stopped takes nothing, so it costs its backup, and
/// the writers a wait of bounded length.
#[test]
fn a_backup_whose_command_stays_stopped_is_given_up() {
    requires!(root, fuse);
    let mount = Mount::with_options(DEVICE_MIB, "policy=off,cache=none");
    let mut bytes = vec![0; 130 << 20];
    fastrand::Rng::with_seed(5).fill(&mut bytes);
    fs::write(mount.join("file"), &bytes).expect("write");
    let copy = mount.scratch().join("copy.img");
    let mut child = stopped_midway(&mount, &copy);
    fs::remove_file(mount.join("file")).expect("remove");
    let file = fs::File::create(mount.join("other")).expect("make a file");
    for (at, part) in (0..).step_by(1 << 20).zip(bytes.chunks(1 << 20)) {
        file.write_all_at(part, at).expect("write past a stopped backup");
    }
    kill_process(Pid::from_child(&child), Signal::CONT).expect("let it go on");
    let status = run::wait_at_most(&mut child, run::limit()).expect("it ends");
    assert!(status.code() == Some(1) && !copy.exists() && !partial(&copy).exists(), "{status}");
    nvfold(&["backup"], &[mount.path(), &copy]).success();
    assert_eq!(nvfold(&["fsck"], &[&copy]).code(), 0);
}

/// Where the host can share blocks between files, a copy of an unmounted device takes none.
#[test]
fn a_copy_on_a_host_with_reflinks_takes_no_space() {
    requires!(root, fuse, tool("mkfs.xfs"), tool("unshare"));
    let scratch = Scratch::on_disk();
    let script = r#"
        truncate -s 512M disk
        mkfs.xfs -q -m reflink=1 disk
        mkdir xfs mnt
        mount -o loop disk xfs
        trap 'umount xfs' EXIT
        "$NVFOLD" mkfs xfs/device --size 64M >log
        "$NVFOLD" mount xfs/device mnt >log
        head -c 8M "$NVFOLD" >mnt/file
        "$NVFOLD" umount mnt >log
        "$NVFOLD" backup --json xfs/device xfs/copy >report
        grep -q '"copied_bytes": 0,' report
        grep -q '"clean": true' report
        cmp xfs/device xfs/copy
        test "$(stat -c %a xfs/copy)" = 600
    "#;
    run::ok(&mut in_own_namespace(scratch.path(), script));
}
