//! policy, dedup, undedup: on a device and through a mount, as different users, cut off in the middle.

use crate::common::{Run, Scratch, can_mount, noise, process_lives, wait_until};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const POLICY: &str = "user.nvfold.dedup";
/// A user who is not root.
const NOBODY: u32 = 65534;

/// Directories and files, as a program's sources lie: many small ones, a few large ones, a hard link, a symlink.
fn make_tree(root: &Path) {
    for directory in 0..6 {
        let dir = root.join(format!("dir {directory}/objects"));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..20 {
            let path = dir.join(format!("{file}"));
            fs::write(&path, noise(5000 + file as usize * 700, directory * 100 + file)).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
        }
    }
    fs::write(root.join("large"), noise(3 << 20, 9999)).unwrap();
    fs::hard_link(root.join("large"), root.join("linked")).unwrap();
    std::os::unix::fs::symlink("large", root.join("link")).unwrap();
}

fn set_policy(path: &Path, value: &[u8]) -> rustix::io::Result<()> {
    rustix::fs::setxattr(path, POLICY, value, rustix::fs::XattrFlags::empty())
}

fn own_policy(path: &Path) -> Option<String> {
    let mut value = [0; 100];
    let length = rustix::fs::getxattr(path, POLICY, &mut value[..]).ok()?;
    Some(String::from_utf8_lossy(&value[..length]).into_owned())
}

fn stored(run: &Run, when: &str) -> u64 {
    run.number(&format!("stored_bytes_{when}"))
}

#[test]
fn dedup_and_undedup_of_a_device_keep_the_content_of_its_trees() {
    let scratch = Scratch::new();
    make_tree(&scratch.path("tree"));
    scratch.device("dev", "64M");
    for copy in ["/one", "/two"] {
        scratch.nvfold(&["import", "dev", "tree", "--to", copy, "--policy", "off"]).ok();
    }
    let verify = || {
        for copy in ["/one", "/two"] {
            scratch.nvfold(&["verify", "dev", "tree", "--at", copy]).ok();
        }
        scratch.nvfold(&["fsck", "dev"]).ok();
    };
    let shared = scratch.nvfold(&["dedup", "dev", "--json"]).ok();
    assert_eq!(stored(&shared, "before"), 2 * stored(&shared, "after"));
    assert_eq!((shared.number("changed_bytes"), shared.number("files")), (stored(&shared, "after"), 2 * 121));
    verify();
    let again = scratch.nvfold(&["dedup", "dev", "--json", "--at", "/one", "--at", "/one/large", "--at", "/two"]).ok();
    assert_eq!((again.number("changed_bytes"), again.number("files")), (0, 2 * 121), "a file counts once");

    let one = scratch.nvfold(&["undedup", "dev", "--at", "/one", "--dry-run", "--json"]).ok().json();
    assert_eq!(one["needed"]["copied_bytes"], stored(&shared, "after"));
    assert_eq!(one["changed_bytes"], 0);
    let undone = scratch.nvfold(&["undedup", "dev", "--json"]).ok();
    assert_eq!(stored(&undone, "after"), stored(&shared, "before"));
    assert_eq!(undone.json()["needed"]["data_bytes"], stored(&shared, "after"));
    assert_eq!(undone.number("changed_bytes"), stored(&shared, "after"));
    verify();
    assert_eq!(scratch.nvfold(&["undedup", "dev", "--json"]).ok().number("changed_bytes"), 0);
}

/// Weights, archives and the like do not compress, so by default they are cut every 16 KiB.
#[test]
fn shifted_incompressible_data_is_shared_with_cut_content() {
    let scratch = Scratch::new();
    let data = noise(4 << 20, 8);
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/one"), &data).unwrap();
    fs::write(scratch.path("tree/two"), [b"a line in front\n", &data[..]].concat()).unwrap();
    let stored = |cut: &str| {
        let device = format!("dev-{cut}");
        scratch.device(&device, "64M");
        scratch.nvfold(&["import", &device, "tree", "-o", &format!("policy=deext,cut={cut}")]).ok();
        scratch.nvfold(&["verify", &device, "tree"]).ok();
        scratch.nvfold(&["fsck", &device]).ok();
        scratch.nvfold(&["stats", &device, "--json"]).ok().json()["space"]["stored_bytes"].as_u64().unwrap()
    };
    for (cut, copies) in [("content", 1), ("auto", 2), ("fixed", 2)] {
        let (stored, expected) = (stored(cut), copies * (4 << 20));
        assert!((expected..expected + (1 << 18)).contains(&stored), "cut={cut}: {stored}");
    }
}

#[test]
fn undedup_without_space_reports_the_missing_amount_and_changes_nothing() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/one"), noise(8 << 20, 1)).unwrap();
    fs::copy(scratch.path("tree/one"), scratch.path("tree/two")).unwrap();
    scratch.device("dev", "16M");
    scratch.nvfold(&["import", "dev", "tree", "--threads", "1"]).ok();
    let before = scratch.nvfold(&["df", "dev", "--json"]).ok().json();
    let run = scratch.nvfold(&["undedup", "dev"]).fails(1, "are missing");
    assert!(run.stderr.contains("the copies take 8."), "{run:#?}");
    assert_eq!(scratch.nvfold(&["df", "dev", "--json"]).ok().json(), before);
    scratch.nvfold(&["fsck", "dev"]).ok();
    scratch.nvfold(&["verify", "dev", "tree"]).ok();
}

#[test]
fn a_policy_is_set_shown_inherited_and_kept() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "policy=inline");
    let policy = |arguments: &[&str]| scratch.nvfold(&[&["policy"], arguments, &["--json"]].concat()).ok().json();
    let told = |path: &str| {
        let report = policy(&[path]);
        (report["policy"].as_str().unwrap().to_owned(), report["from"].as_str().unwrap().to_owned())
    };
    let is = |policy: &str, from: &str| (policy.to_owned(), from.to_owned());
    assert_eq!(told("mnt"), is("inline", "mount"));
    fs::create_dir_all(mount.path("off/sub")).unwrap();
    assert_eq!(set_policy(&mount.path("off"), b"of").unwrap_err(), rustix::io::Errno::INVAL);
    assert_eq!(own_policy(&mount.path("off")), None);
    policy(&["mnt/off", "off"]);
    assert_eq!(own_policy(&mount.path("off")).as_deref(), Some("off"));
    assert_eq!(told("mnt/off/sub"), is("inline", "mount"), "what was there before");
    assert_eq!(policy(&["mnt/off", "off", "--recursive"])["set"], 2);
    // Programs copy trees into it.
    make_tree(&scratch.path("tree"));
    scratch.run("cp", &["-r", "tree", "mnt/off/sub/one"]).ok();
    scratch.run("cp", &["-r", "tree", "mnt/off/sub/two"]).ok();
    assert_eq!(told("mnt/off/sub/two/dir 3/objects/7"), is("off", "own"));
    fs::rename(mount.path("off/sub/two/large"), mount.path("moved")).unwrap();
    assert_eq!(told("mnt/moved"), is("off", "own"), "it moves with the file");
    rustix::fs::syncfs(File::open(&mount.dir).unwrap()).unwrap();
    let stats = scratch.nvfold(&["dedup-stats", "mnt", "--json"]).ok();
    assert_eq!(stats.number("logical_bytes"), stats.number("stored_bytes"), "nothing is shared under `off`");
    assert_eq!(set_policy(&mount.path("off/sub/one"), b"nv-dedup"), Ok(()));
    rustix::fs::removexattr(mount.path("moved"), POLICY).unwrap();
    assert_eq!(told("mnt/moved"), is("inline", "mount"));
    mount.unmount();
    scratch.nvfold(&["fsck", "dev"]).ok();

    let mount = scratch.mount("dev", "policy=off");
    assert_eq!(told("mnt/off/sub/one"), is("nv-dedup", "own"));
    assert_eq!(told("mnt/moved"), is("off", "mount"));
    let set = policy(&["mnt/off", "default", "--recursive"])["set"].as_u64().unwrap();
    assert_eq!(set, 2 + 2 * (1 + 12 + 120 + 2) - 1, "all but `moved`, which `two` has no more");
    assert_eq!(own_policy(&mount.path("off/sub/one/large")), None);
    mount.unmount();
    // On a device that is not mounted.
    assert_eq!(policy(&["dev", "inline", "--at", "/moved"])["from"], "own");
    assert_eq!(policy(&["dev", "--at", "/off"])["policy"], serde_json::Value::Null);
    scratch.nvfold(&["policy", "dev", "sometimes"]).fails_usage("must be one of off, inline");
    scratch.nvfold(&["policy", "tree"]).fails(1, "no nvfold is mounted there");
    scratch.nvfold(&["fsck", "dev"]).ok();
}

/// A mistake on the command line.
trait FailsUsage {
    fn fails_usage(self, why: &str);
}

impl FailsUsage for Run {
    fn fails_usage(self, why: &str) {
        let run = self.code_is(2);
        assert!(run.stderr.contains(why), "{run:#?}");
    }
}

#[test]
fn the_owner_of_a_file_may_share_it_and_others_may_not() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "policy=off,allow_other");
    fs::set_permissions(scratch.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&mount.dir, fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["mine", "mine too", "root's"] {
        fs::write(mount.path(name), noise(1 << 20, 1)).unwrap();
        // Without permission to write, as git keeps its objects.
        fs::set_permissions(mount.path(name), fs::Permissions::from_mode(0o444)).unwrap();
    }
    for name in ["mine", "mine too"] {
        std::os::unix::fs::chown(mount.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let binary = scratch.path("nvfold");
    // Not by this process: a child of another test would hold the file open for writing until it executes something.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_nvfold")).arg(&binary).status().unwrap();
    assert!(copied.success());
    let as_nobody = |command: &str, paths: &[&str]| {
        let output = Command::new(&binary)
            .args([command, "--json"])
            .args(paths)
            .current_dir(scratch.path(""))
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .unwrap();
        Run {
            call: command.into(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    };
    let own = as_nobody("dedup", &["mnt/mine", "mnt/mine too"]).ok();
    assert_eq!(own.number("changed_bytes"), 1 << 20);
    let all = as_nobody("dedup", &["mnt"]).code_is(1);
    assert_eq!((all.number("problem_count"), all.number("files")), (1, 2));
    assert!(all.stderr.contains("root's: Operation not permitted"), "{all:#?}");
    assert_eq!(as_nobody("undedup", &["mnt/mine"]).ok().number("changed_bytes"), 1 << 20);
    assert_eq!(as_nobody("undedup", &["mnt/root's"]).code_is(1).number("files"), 0);
    // Root may; what another user owns stays apart.
    let root = scratch.nvfold(&["dedup", "mnt", "--json"]).ok();
    assert_eq!((stored(&root, "after"), root.number("problem_count")), (2 << 20, 0));
    for name in ["mine", "mine too", "root's"] {
        assert_eq!(fs::read(mount.path(name)).unwrap(), noise(1 << 20, 1));
    }
    mount.unmount();
    // Where all share with all, the answer would tell what others store.
    let mount = scratch.mount("dev", "policy=off,allow_other,share=all");
    as_nobody("dedup", &["mnt/mine"]).fails(1, "Operation not permitted");
    mount.unmount();
    let mount = scratch.mount("dev", "ro");
    for command in ["dedup", "undedup"] {
        let run = scratch.nvfold(&[command, "mnt"]).code_is(1);
        assert!(run.stderr.contains("Read-only file system"), "{run:#?}");
    }
    scratch.nvfold(&["policy", "mnt", "off"]).fails(1, "Read-only");
    mount.unmount();
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn an_interrupted_dedup_continues_where_it_stopped() {
    if !can_mount() {
        return;
    }
    const FILES: u64 = 12;
    let scratch = Scratch::new();
    scratch.device("dev", "128M");
    let mount = scratch.mount("dev", "policy=off");
    let content = |number: u64| noise(2 << 20, number % 3);
    for number in 0..FILES {
        fs::write(mount.path(&number.to_string()), content(number)).unwrap();
    }
    mount.unmount();
    let mut cut_off = 0;
    for (command, delay_ms) in [("dedup", 3), ("undedup", 4), ("dedup", 9), ("undedup", 10)].repeat(3) {
        let mount = scratch.mount("dev", "policy=off");
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvfold"))
            .args([command, "mnt", "--json"])
            .current_dir(scratch.path(""))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        scratch.run("kill", &["-KILL", &mount.pid.to_string()]).ok();
        wait_until("the serving process is killed", || !process_lives(mount.pid));
        cut_off += u32::from(!child.wait().unwrap().success());
        drop(mount);
        // Traces of the crash are left to the mount; nothing else is wrong.
        // Some of its threads may hold the device for a moment longer.
        let fsck = || scratch.nvfold(&["fsck", "-n", "dev"]);
        wait_until("the device is released", || !fsck().stderr.contains("in use"));
        fsck().ok();
        let mount = scratch.mount("dev", "policy=off");
        for number in 0..FILES {
            assert!(fs::read(mount.path(&number.to_string())).unwrap() == content(number), "{command}: file {number}");
        }
        let done = scratch.nvfold(&[command, "mnt", "--json"]).ok();
        let copies = if command == "dedup" { 3 } else { FILES };
        assert_eq!(stored(&done, "after"), copies * (2 << 20), "{command} came to its end");
        mount.unmount();
        scratch.nvfold(&["fsck", "dev"]).ok();
    }
    assert!(cut_off > 0, "nothing was cut off");
}

#[test]
fn dedup_copes_with_growing_files_and_names_with_blanks() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,policy=off");
    fs::create_dir(mount.path("a b")).unwrap();
    let data = noise(1 << 20, 4);
    for name in ["one", "two"] {
        fs::write(mount.path(&format!("a b/{name}")), &data).unwrap();
    }
    let sparse = File::create(mount.path("a b/sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    drop(sparse);
    let metadata = fs::metadata(mount.path("a b/two")).unwrap();
    let run = scratch.nvfold(&["dedup", "mnt/a b/one", "mnt/a b/two", "--json"]).ok();
    assert_eq!(run.number("changed_bytes"), 1 << 20);
    let now = fs::metadata(mount.path("a b/two")).unwrap();
    assert_eq!((now.mtime_nsec(), now.ctime_nsec()), (metadata.mtime_nsec(), metadata.ctime_nsec()));
    scratch.nvfold(&["undedup", "mnt", "--dry-run", "--json"]).ok();
    assert_eq!(scratch.nvfold(&["undedup", "mnt", "--json"]).ok().number("changed_bytes"), 1 << 20);
    assert_eq!(fs::read(mount.path("a b/one")).unwrap(), data);
    mount.unmount();
}

#[test]
fn dedup_skips_and_counts_files_that_are_removed_meanwhile() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "256M");
    let mount = scratch.mount("dev", "policy=off");
    let small = |file: u64| mount.path(&format!("small {file}"));
    // The names of a directory are read at once, then file after file is worked on. The moment in between is looked for
    // by bisection: whoever is too early removes all files before their names are read.
    let mut skipped = 0;
    let (mut too_early, mut too_late) = (Duration::ZERO, Duration::from_secs(2));
    for attempt in 0..200 {
        fs::write(mount.path("large"), noise(16 << 20, attempt)).unwrap();
        for file in 0..200 {
            fs::write(small(file), noise(5000, file)).unwrap();
        }
        let dedup = Command::new(env!("CARGO_BIN_EXE_nvfold"))
            .args(["dedup", "--json"])
            .arg(&mount.dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let delay = (too_early + too_late) / 2;
        std::thread::sleep(delay);
        (0..200).for_each(|file| fs::remove_file(small(file)).unwrap());
        let output = dedup.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["problem_count"], 0, "{report}");
        skipped += report["vanished"].as_u64().unwrap();
        if skipped > 0 {
            break;
        }
        // The machine is not as fast each time, so the range grows a little at its other end.
        match report["files"].as_u64().unwrap() {
            0..=1 => (too_early, too_late) = (delay, too_late + too_late / 8),
            _ => (too_early, too_late) = (too_early - too_early / 8, delay),
        }
    }
    assert!(skipped > 0, "no file was removed at the right moment");
    mount.unmount();
}
