//! A `mem:` device of 1 GiB in a control group that may use 300 MiB: writers get ENOSPC, nothing is killed, and all that
//! was accepted is readable.
//!
//! The group is a real one, of version 1 or 2, and the whole test runs in it as a child: server and writers share the
//! limit. Without the right to make a group the test is skipped; `pmem` tests the files of both versions by fixtures, and
//! `host_disk` all policies on a model of a limit.

use nvfold::errno;
use nvfold_tests::mount::{command, nvfold, nvfold_json};
use nvfold_tests::random;
use nvfold_tests::requires::tool;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, run};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LIMIT_MIB: u64 = 300;
const DEVICE_MIB: u64 = 1024;
const FILE_MIB: u64 = 6;
const FIRST_FILES: u64 = 3;
/// Of the 37 MiB of page cache that the mount allows.
const LEAST_CACHE_MIB: u64 = 8;
/// Files that are removed in the end. They are more than what is written then: they share pieces, and the server may have
/// grown meanwhile.
const REMOVED_FILES: usize = 8;
/// With it in the environment, a child runs in a limited group.
const IN_GROUP: &str = "NVFOLD_TEST_CGROUP";

/// A control group with a limit; removed on drop.
struct Group(PathBuf);

impl Group {
    /// Makes a group below that of this process or below the root. `None` if that is not possible here.
    fn new(name: &str) -> Option<Group> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let of = |controller: &str| {
            let path = own.lines().find_map(|line| line.split_once(controller).map(|(_, path)| path.to_owned()));
            path.unwrap_or_default()
        };
        let parents = [
            ("/sys/fs/cgroup/memory", of(":memory:"), "memory.limit_in_bytes"),
            ("/sys/fs/cgroup/memory", String::new(), "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", of("0::"), "memory.max"),
            ("/sys/fs/cgroup", String::new(), "memory.max"),
        ];
        parents.iter().find_map(|(mount, path, limit)| {
            let dir = Path::new(mount).join(path.trim_start_matches('/')).join(name);
            fs::create_dir(&dir).ok()?;
            let group = Group(dir);
            // In version 2 there is no such file if the group above does not pass the controller on.
            let limits = group.0.join(limit);
            (limits.exists() && fs::write(limits, (LIMIT_MIB << 20).to_string()).is_ok()).then_some(group)
        })
    }

    /// Returns how many processes the kernel has killed in it.
    fn killed(&self) -> u64 {
        let files = ["memory.oom_control", "memory.events"].map(|file| fs::read_to_string(self.0.join(file)));
        let lines = files.iter().flatten().flat_map(|text| text.lines());
        let counts = lines.filter_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok());
        counts.sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Busy until the kernel has put the last process away.
        let tries = (0..100).map(|_| fs::remove_dir(&self.0));
        tries.take_while(Result::is_err).for_each(|_| thread::sleep(Duration::from_millis(20)));
    }
}

#[test]
fn a_device_larger_than_the_memory_limit_gives_enospc_and_no_process_is_killed() {
    requires!(root, fuse, tool("sh"));
    for policy in ["off", "auto"] {
        let Some(group) = Group::new(&format!("nvfold-test-{}-{policy}", std::process::id())) else {
            eprintln!("skipped: this test needs a memory controller (cgroup v1 or v2) with groups that it can make");
            return;
        };
        let mut child = Command::new(tool("sh"));
        child.args(["-c", r#"echo $$ >"$GROUP/cgroup.procs" && exec "$TESTS" "$CHILD" --exact --ignored --nocapture"#]);
        child.env("GROUP", &group.0).env(IN_GROUP, policy);
        // Looking up the names of a backtrace takes more memory than the group has.
        child.env("TESTS", std::env::current_exe().expect("own path")).env("RUST_BACKTRACE", "0");
        let outcome = run::run(child.env("CHILD", "tests::cgroup::child_fills_a_device"));
        println!("{}", outcome.stdout);
        assert_eq!(group.killed(), 0, "{policy}: the kernel killed\n{}", outcome.report());
        assert!(outcome.status.success() && outcome.stdout.contains("1 passed"), "{}", outcome.report());
    }
}

/// A `mem:` device that is mounted; detached on drop.
struct InMemory {
    dir: PathBuf,
    _scratch: Scratch,
}

impl InMemory {
    fn mount(policy: &str) -> (InMemory, String) {
        let scratch = Scratch::new();
        let dir = scratch.join("mnt");
        fs::create_dir(&dir).expect("make the mount point");
        let options = format!("size={DEVICE_MIB}M,policy={policy}");
        let mounted = run::run(command().args(["mount", "mem:"]).arg(&dir).args(["-o", &options])).success();
        (InMemory { dir, _scratch: scratch }, mounted.stderr)
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = run::run(command().args(["umount", "--lazy"]).arg(&self.dir));
    }
}

fn bytes(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; (FILE_MIB << 20) as usize];
    random::fill(&mut fastrand::Rng::with_seed(seed), &mut bytes);
    bytes
}

fn write(path: &Path, seed: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    bytes(seed).chunks(1 << 20).try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(errno::ENOSPC)
}

/// Writes one file after the other until there is no space, and removes the last one. Returns how many were accepted.
fn fill(dir: &Path, first: u64) -> u64 {
    for seed in first.. {
        let path = dir.join(seed.to_string());
        if let Err(error) = write(&path, seed) {
            assert!(is_full(&error), "{error}");
            let _ = fs::remove_file(path);
            return seed - first;
        }
    }
    unreachable!("a device is full at some time")
}

/// Writes without ever asking whether it arrived, until a write fails, again and again.
fn flood(path: &Path, is_over: &AtomicBool) {
    let goes_on = || !is_over.load(Ordering::Relaxed);
    let content = bytes(99);
    while goes_on() {
        let Ok(mut file) = File::create(path) else { continue };
        while goes_on() && content.chunks(1 << 20).all(|part| file.write_all(part).is_ok()) {}
    }
}

fn verify(dir: &Path, seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        let read = fs::read(dir.join(seed.to_string())).expect("read");
        assert!(read == bytes(seed), "file {seed}");
    }
}

#[test]
#[ignore = "started by another test as its child"]
fn child_fills_a_device() {
    let policy = std::env::var(IN_GROUP).expect("started in a limited group");
    let (mount, said) = InMemory::mount(&policy);
    assert!(said.contains("does not fit the memory limit of 300 MiB"), "{said}");
    let score = limit_of(&mount.dir)["oom_score_adj"].as_i64().expect("a number");
    assert_eq!(said.contains("CAP_SYS_RESOURCE"), score > -999, "{score}: {said}");
    let space = rustix::fs::statvfs(&mount.dir).expect("statvfs");
    assert!(space.f_bavail * space.f_frsize < LIMIT_MIB << 20, "df promises more than there is");
    // Before the others begin, so that something is accepted whoever is faster then.
    (0..FIRST_FILES).for_each(|seed| write(&mount.dir.join(seed.to_string()), seed).expect("there is space"));
    let is_over = AtomicBool::new(false);
    let accepted = thread::scope(|scope| {
        scope.spawn(|| flood(&mount.dir.join("flood"), &is_over));
        let dir = &mount.dir;
        let writers = [FIRST_FILES, 1 << 20].map(|first| scope.spawn(move || fill(dir, first)));
        let accepted = writers.map(|writer| writer.join());
        is_over.store(true, Ordering::Relaxed);
        accepted.map(|files| files.expect("it writes"))
    });
    let _ = fs::remove_file(mount.dir.join("flood"));
    let [one, two] = accepted;
    let one = FIRST_FILES + one;
    println!("policy {policy}: {one} and {two} files of {FILE_MIB} MiB");
    verify(&mount.dir, (0..one).chain((1 << 20)..(1 << 20) + two));
    // It goes on after that: how much there is depends on what the server still holds.
    let more = fill(&mount.dir, 2 << 20);
    println!("{more} more; {} MiB in all", (one + two + more) * FILE_MIB);
    fs::remove_file(mount.dir.join("0")).expect("remove when memory is full");
    verify(&mount.dir, (1..one).chain((1 << 20)..(1 << 20) + two).chain((2 << 20)..(2 << 20) + more));
    let limit = limit_of(&mount.dir);
    assert_eq!((limit["limit_bytes"].as_u64(), limit["killed"].as_u64()), (Some(LIMIT_MIB << 20), Some(0)), "{limit}");
    // All that was read is in the page cache, which the kernel gives up; the device is mapped, and no page cache.
    assert!(limit["cache_bytes"].as_u64() >= Some(LEAST_CACHE_MIB << 20), "{limit}");
    let left = (1..one).chain((1 << 20)..(1 << 20) + two).chain((2 << 20)..(2 << 20) + more);
    what_a_removal_frees_is_used_again(&mount.dir, left);
    nvfold(&["umount"], &[&mount.dir]).success();
}

/// Removes some files, of whose space a write then gets as much as it needs, at once and whatever the page cache holds.
fn what_a_removal_frees_is_used_again(dir: &Path, files: impl Iterator<Item = u64>) {
    let removed = files.take(REMOVED_FILES);
    removed.for_each(|seed| fs::remove_file(dir.join(seed.to_string())).expect("remove"));
    let disk = Scratch::on_disk();
    fill_the_page_cache(&disk);
    write(&dir.join("new"), 7).unwrap_or_else(|error| panic!("{error}: {}", limit_of(dir)));
}

/// Reads a file that is larger than the limit, so that the group is full; the kernel drops its pages when others are
/// needed.
fn fill_the_page_cache(disk: &Scratch) {
    let file = disk.device("to read", (2 * LIMIT_MIB) << 20);
    let mut buffer = vec![0; 1 << 20];
    let mut file = File::open(file).expect("open");
    while file.read(&mut buffer).expect("read") > 0 {}
}

fn limit_of(dir: &Path) -> serde_json::Value {
    nvfold_json(&["info", "--json"], &[dir])["memory_limit"].clone()
}

/// The server of a device in memory is the last to be killed, if this process may decide that.
#[test]
fn the_server_of_a_memory_device_is_killed_last_if_permitted() {
    requires!(root, fuse, tool("sh"));
    const CAP_SYS_RESOURCE: u32 = 24;
    let own = |path: &str, name: &str| {
        let text = fs::read_to_string(path).expect("read of this process");
        text.lines().find_map(|line| line.strip_prefix(name)).expect("it is there").trim().to_owned()
    };
    let rights = u64::from_str_radix(&own("/proc/self/status", "CapEff:"), 16).expect("a number");
    let lowest = if rights >> CAP_SYS_RESOURCE & 1 == 1 { -999 } else { 0 };
    let score = own("/proc/self/oom_score_adj", "").parse::<i32>().expect("a number");
    if score < 0 {
        eprintln!("skipped: this test needs an oom_score_adj of at least 0");
        return;
    }
    let disk = Scratch::on_disk();
    let on_disk = disk.join("device");
    nvfold_tests::mount::mkfs(&on_disk, 32 << 20);
    for (device, expected) in [(Path::new("mem:"), lowest), (&on_disk, 500)] {
        let scratch = Scratch::new();
        let dir = scratch.join("mnt");
        fs::create_dir(&dir).expect("make the mount point");
        let script = r#"echo 500 >/proc/$$/oom_score_adj && exec "$NVFOLD" mount "$1" "$2" $3"#;
        let mut mount = Command::new(tool("sh"));
        mount.args(["-c", script, "sh"]).arg(device).arg(&dir);
        let size = if device == "mem:" { "-osize=32M" } else { "-osync" };
        run::run(mount.arg(size).env("NVFOLD", nvfold_tests::mount::binary())).success();
        let server = nvfold_json(&["info", "--json"], &[&dir])["pid"].as_u64().expect("its number");
        let score = own(&format!("/proc/{server}/oom_score_adj"), "").parse::<i32>().expect("a number");
        nvfold(&["umount"], &[&dir]).success();
        assert_eq!(score, expected, "{}", device.display());
    }
}
