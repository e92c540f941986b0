//! Snapshots on real mounts: made beside writers, as they were whoever tries to change them, hidden, listed, compared,
//! restored and deleted.

use nvfold_tests::mount::{Mount, binary, nvfold, nvfold_json};
use nvfold_tests::random::Seed;
use nvfold_tests::run::{self, Outcome};
use nvfold_tests::{probe, requires};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const STRANGER: u32 = 4321;
/// Records that a writer writes over and over, in order.
const RECORDS: u64 = 1024;
const RECORD_BYTES: usize = 512;

fn noise(bytes: usize, name: &'static str) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Seed::new(name).generator().fill(&mut noise);
    noise
}

/// Makes a tree `work`.
fn plant(mount: &Mount) -> PathBuf {
    let work = mount.join("work");
    fs::create_dir_all(work.join("deep/er")).expect("make directories");
    fs::write(work.join("file"), noise(100_000, "file")).expect("write");
    fs::write(work.join("deep/er/small"), "small").expect("write");
    fs::hard_link(work.join("file"), work.join("deep/link")).expect("link");
    symlink("file", work.join("symlink")).expect("make a symbolic link");
    rustix::fs::setxattr(work.join("file"), "user.kept", b"value", rustix::fs::XattrFlags::empty()).expect("set");
    work
}

#[track_caller]
fn create(mount: &Mount, name: &str, dir: &Path) {
    nvfold(&["snapshot", "create", name], &[dir]).success();
    assert!(snapshot(mount, name).is_dir());
}

fn snapshot(mount: &Mount, name: &str) -> PathBuf {
    mount.join(".nvfold/snapshots").join(name)
}

/// Runs `nvfold snapshot ACTION ARGUMENTS`.
#[track_caller]
fn asked(action: &str, arguments: &[&OsStr]) -> Outcome {
    run::run(Command::new(binary()).args(["snapshot", action]).args(arguments))
}

#[track_caller]
fn refused(action: &str, arguments: &[&OsStr], why: &str) {
    let outcome = asked(action, arguments);
    assert!(outcome.code() != 0 && outcome.stderr.contains(why), "expected: {why}\n{}", outcome.report());
}

/// The lines that `nvfold snapshot diff` prints. The exit code is that of diff(1).
#[track_caller]
fn diff(one: &OsStr, other: &OsStr) -> Vec<String> {
    let outcome = asked("diff", &[one, other]);
    let lines: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
    assert_eq!(outcome.code(), i32::from(!lines.is_empty()), "{}", outcome.report());
    lines
}

#[test]
fn root_gets_erofs_for_every_change_of_a_snapshot() {
    requires!(root, fuse, tool("cc"));
    for policy in nvfold_tests::mount::POLICIES {
        let mut mount = Mount::fresh(64, policy);
        if !mount.is_real() {
            return;
        }
        let work = plant(&mount);
        fs::create_dir(work.join("empty")).expect("make a directory");
        create(&mount, "kept", &work);
        // A mount of a device with snapshots has the kernel ask before it opens a file.
        mount.remount();
        let program = probe::compiled("read_only", mount.scratch());
        let top = snapshot(&mount, "kept");
        let told = run::ok(Command::new(&program).arg(&top).arg(mount.path())).stdout;
        let wrong: Vec<&str> = told.lines().filter(|line| !line.ends_with(" EROFS")).collect();
        assert!(wrong.is_empty() && told.lines().count() > 30, "policy {policy}: {wrong:#?}\n{told}");
        refused("create", &["part".as_ref(), top.join("deep").as_os_str()], "a part of a snapshot");
        nvfold(&["remove"], &[&top]).success_not();
        nvfold(&["remove"], &[&top.join("deep")]).success_not();
        assert_eq!(diff(OsStr::new("snapshot:kept"), work.as_os_str()), [""; 0]);
        mount.check();
    }
}

trait Fails {
    fn success_not(self);
}

impl Fails for Outcome {
    #[track_caller]
    fn success_not(self) {
        assert_ne!(self.code(), 0, "{}", self.report());
    }
}

#[test]
fn a_first_snapshot_is_as_it_was_also_for_files_that_the_kernel_opens_without_asking() {
    requires!(root, fuse);
    let mut mount = Mount::with_options(64, "policy=inline,writeback=on");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    let content = fs::read(work.join("file")).expect("read");
    create(&mount, "first", &work);
    let path = snapshot(&mount, "first").join("file");
    if let Ok(mut file) = OpenOptions::new().write(true).open(&path) {
        let written = file.write_all(b"changed").and_then(|()| file.sync_all());
        assert!(written.is_err(), "what cannot be stored is an error at the latest when it is synced");
    }
    mount.remount();
    assert_eq!(fs::read(path).expect("read"), content);
    mount.check();
}

#[test]
fn listings_of_the_root_leave_snapshots_out_and_the_name_is_kept_for_them() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let refuse = |made: std::io::Result<()>| {
        assert_eq!(made.expect_err("the name is kept").raw_os_error(), Some(nvfold::errno::EPERM));
    };
    refuse(fs::create_dir(mount.join(".nvfold")));
    let work = plant(&mount);
    let cloned = nvfold(&["clone"], &[&work, &mount.join(".nvfold")]);
    assert!(cloned.code() != 0 && cloned.stderr.contains("is kept for snapshots"), "{}", cloned.report());
    create(&mount, "whole", mount.path());
    for at in 0..2 {
        let names: Vec<_> = fs::read_dir(mount.path()).expect("list").map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["work"]);
        assert_eq!(run::shell(mount.path(), "find . -name snapshots -o -name whole").stdout, "", "{at}");
        assert_eq!(fs::read(snapshot(&mount, "whole").join("work/deep/er/small")).expect("read"), b"small");
        mount.remount();
    }
    refuse(fs::rename(mount.join(".nvfold"), mount.join("moved")));
    refuse(fs::remove_dir(mount.join(".nvfold")));
    let stays = fs::rename(mount.join(".nvfold/snapshots"), mount.join("moved")).unwrap_err();
    assert_eq!(stays.raw_os_error(), Some(nvfold::errno::EROFS));
    for holder in [".nvfold", ".nvfold/snapshots"] {
        nvfold(&["remove"], &[&mount.join(holder)]).success_not();
        nvfold(&["clone"], &[&work, &mount.join(holder).join("new")]).success_not();
        refused("restore", &["whole".as_ref(), mount.join(holder).join("new").as_os_str()], "");
    }
    refused("restore", &["whole".as_ref(), mount.join(".nvfold").as_os_str()], "is kept for snapshots");
    run::ok(Command::new("bash").args(["-c", "rm -rf ./*"]).current_dir(mount.path()));
    assert!(!work.exists());
    assert_eq!(fs::read(snapshot(&mount, "whole").join("work/deep/er/small")).expect("read"), b"small");
    mount.check();
    // A part of the device that is named may be in a snapshot.
    let out = mount.scratch().join("out");
    nvfold(&["export"], &[mount.device(), &out]).success();
    assert_eq!(fs::read_dir(&out).expect("list").count(), 0);
}

#[test]
fn a_snapshot_during_writes_has_all_that_was_written_before() {
    requires!(root, fuse);
    let mut mount = Mount::with_options(128, "policy=inline,writeback=on");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let names = ["one", "other"];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let files = names.map(|name| File::create(work.join(name)).expect("create"));
            for record in 0_u64.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                for file in &files {
                    let place = record % RECORDS * RECORD_BYTES as u64;
                    file.write_all_at(&[record.to_le_bytes(); RECORD_BYTES / 8].concat(), place).expect("write");
                }
                written.store(record + 1, Ordering::Release);
            }
        });
        while written.load(Ordering::Acquire) < RECORDS {
            std::thread::yield_now();
        }
        for name in ["a", "b", "c"] {
            let before = written.load(Ordering::Acquire);
            create(&mount, name, &work);
            for file in names {
                let content = fs::read(snapshot(&mount, name).join(file)).expect("read");
                assert_eq!(content.len(), RECORDS as usize * RECORD_BYTES);
                for (place, record) in (0..).zip(content.chunks(RECORD_BYTES)) {
                    let number = u64::from_le_bytes(record[..8].try_into().unwrap());
                    assert_eq!(record, [number.to_le_bytes(); RECORD_BYTES / 8].concat(), "{name}: a part of a record");
                    let is_its_place = number % RECORDS == place;
                    assert!(is_its_place && number + RECORDS >= before, "{name}: {number} at {place} of {before}");
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    mount.check();
}

#[test]
fn snapshots_are_listed_with_what_they_hold() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    assert_eq!(nvfold_json(&["snapshot", "list", "--json"], &[mount.path()])["snapshots"].as_array().unwrap().len(), 0);
    create(&mount, "one", &work);
    fs::remove_file(work.join("file")).expect("remove");
    fs::remove_file(work.join("deep/link")).expect("remove");
    create(&mount, "two", &work);
    let look = |target: &Path| {
        let listed = nvfold_json(&["snapshot", "list", "--json"], &[target]);
        let row = |at: usize, field: &str| listed["snapshots"][at][field].clone();
        assert_eq!((row(0, "name"), row(1, "name")), ("one".into(), "two".into()), "{listed}");
        assert!(row(0, "created_ns").as_i64().unwrap() < row(1, "created_ns").as_i64().unwrap());
        assert_eq!((row(0, "entries"), row(1, "entries")), (6.into(), 4.into()), "{listed}");
        assert!(row(0, "alone_bytes").as_u64().unwrap() >= 98_304, "{listed}");
        assert!(row(1, "alone_bytes").as_u64().unwrap() < 8192, "{listed}");
    };
    look(&work);
    mount.unmount();
    look(mount.device());
    nvfold(&["snapshot", "delete", "one"], &[mount.device()]).success();
    refused("delete", &["one".as_ref(), mount.device().as_os_str()], "there is no such snapshot");
    mount.mount();
    assert!(!snapshot(&mount, "one").exists() && snapshot(&mount, "two").exists());
    mount.check();
}

#[test]
fn a_diff_names_each_path_that_differs_in_both_directions() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    let odd = OsStr::from_bytes(b"odd\xff\nname");
    fs::write(work.join(odd), "odd").expect("write");
    fs::write(work.join("becomes"), "a directory").expect("write");
    fs::write(work.join("moved"), noise(9000, "moved")).expect("write");
    create(&mount, "then", &work);
    let then = OsStr::new("snapshot:then");
    assert_eq!(diff(then, work.as_os_str()), [""; 0]);

    // A whole block, written to the cache of the kernel alone, without a request.
    mount.remount();
    let file = OpenOptions::new().write(true).open(work.join("file")).expect("open");
    file.write_all_at(&noise(4096, "other block"), 8 * 4096).expect("write");
    assert_eq!(diff(then, work.as_os_str()), ["M file", "M deep/link"]);
    drop(file);
    fs::set_permissions(work.join("deep/er/small"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::remove_file(work.join("becomes")).expect("remove");
    fs::create_dir(work.join("becomes")).expect("make a directory");
    fs::write(work.join("becomes/new below"), "").expect("write");
    fs::rename(work.join("moved"), work.join("to here")).expect("rename");
    fs::remove_file(work.join(odd)).expect("remove");
    fs::remove_file(work.join("symlink")).expect("remove");
    symlink("elsewhere", work.join("symlink")).expect("make a symbolic link");
    let changes = [
        "T becomes",
        "M file",
        "- moved",
        "- odd\u{fffd}\\nname",
        "M symlink",
        "+ to here",
        "M deep/link",
        "a deep/er/small",
    ];
    assert_eq!(diff(then, work.as_os_str()), changes);
    assert_eq!(diff(OsStr::new("snapshot:then/deep"), work.join("deep").as_os_str()), ["M link", "a er/small"]);
    let turned = changes.map(|line| match line.split_at(1) {
        ("+", path) => format!("-{path}"),
        ("-", path) => format!("+{path}"),
        _ => line.to_owned(),
    });
    assert_eq!(diff(work.as_os_str(), then), turned);
    let json = asked("diff", &["--json".as_ref(), then, work.as_os_str()]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!((json.code(), report["differences"].as_array().unwrap().len()), (1, changes.len()));
    assert_eq!(report["differences"][3]["path_hex"], "6f6464ff0a6e616d65");
    // Equal content that is not shared is read.
    let content = fs::read(snapshot(&mount, "then").join("file")).expect("read");
    fs::write(work.join("file"), content).expect("write");
    let lines = diff(then, work.as_os_str());
    assert!(lines.contains(&"a file".to_owned()) && lines.contains(&"a deep/link".to_owned()), "{lines:?}");
    assert_eq!(asked("diff", &[then, mount.scratch().as_os_str()]).code(), 2);
    mount.check();
}

#[test]
fn files_that_a_user_may_not_read_are_named_and_not_compared() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    fs::write(work.join("secret"), noise(9000, "secret")).expect("write");
    fs::set_permissions(work.join("secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
    create(&mount, "then", &work);
    fs::write(work.join("secret"), noise(9000, "other secret")).expect("write");
    fs::set_permissions(mount.scratch(), fs::Permissions::from_mode(0o711)).expect("let the user in");
    let nvfold = mount.scratch().join("nvfold");
    run::ok(Command::new("cp").arg(binary()).arg(&nvfold));
    let as_stranger = |arguments: &[&OsStr]| {
        let mut command = Command::new(&nvfold);
        run::run(command.arg("snapshot").args(arguments).uid(STRANGER).gid(STRANGER).current_dir(mount.path()))
    };
    let compared = as_stranger(&["diff".as_ref(), "snapshot:then".as_ref(), "work".as_ref()]);
    assert_eq!((compared.code(), &compared.stdout[..]), (2, ""), "{}", compared.report());
    assert!(compared.stderr.contains("secret") && compared.stderr.contains("denied"), "{}", compared.report());
    let read = run::run(Command::new("cat").arg(snapshot(&mount, "then").join("secret")).uid(STRANGER).gid(STRANGER));
    assert!(read.code() != 0 && read.stdout.is_empty(), "{}", read.report());

    let why = "only root and the owner of the root directory";
    for arguments in [["create", "mine", "work"], ["delete", "then", "work"]] {
        let refused = as_stranger(&arguments.map(OsStr::new));
        assert!(refused.code() != 0 && refused.stderr.contains(why), "{}", refused.report());
    }
    // With names in the root he may do neither.
    fs::set_permissions(mount.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    let refused = as_stranger(&["create", "mine", "work"].map(OsStr::new));
    assert!(refused.code() != 0 && refused.stderr.contains(why), "{}", refused.report());
    let refused = as_stranger(&["restore", "then", "copy"].map(OsStr::new));
    assert!(refused.code() != 0 && refused.stderr.contains("secret"), "{}", refused.report());
    let listed = as_stranger(&["list".as_ref()]);
    assert!(listed.code() == 0 && listed.stdout.contains("then"), "{}", listed.report());

    // The owner of the root directory may, and what is restored by him is his.
    chown(mount.path(), Some(STRANGER), Some(STRANGER)).expect("chown");
    assert_eq!(as_stranger(&["create", "mine", "work"].map(OsStr::new)).code(), 0);
    assert_eq!(fs::metadata(snapshot(&mount, "mine").join("secret")).expect("look").uid(), 0);
    assert_eq!(as_stranger(&["create", "readable", "work/deep"].map(OsStr::new)).code(), 0);
    assert_eq!(as_stranger(&["restore", "readable", "copy"].map(OsStr::new)).code(), 0);
    assert_eq!(fs::metadata(mount.join("copy/er/small")).expect("look").uid(), STRANGER);
    let replaced = as_stranger(&["restore", "readable", "work"].map(OsStr::new));
    assert!(replaced.code() != 0 && replaced.stderr.contains("no permission to remove"), "{}", replaced.report());
    assert_eq!(as_stranger(&["delete", "mine", "work"].map(OsStr::new)).code(), 0);
    mount.check();
}

#[test]
fn a_directory_is_restored_in_place_while_a_file_of_it_is_open() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    let then = fs::read(work.join("file")).expect("read");
    create(&mount, "then", &work);
    fs::write(work.join("file"), "now").expect("write");
    fs::write(work.join("new"), "new").expect("write");
    fs::remove_file(work.join("deep/er/small")).expect("remove");
    let mut open = File::options().read(true).write(true).open(work.join("file")).expect("open");
    let directory = File::open(&work).expect("open the directory");
    nvfold(&["snapshot", "restore", "then"], &[&work]).success();
    assert_eq!(fs::read(work.join("file")).expect("read"), then);
    assert_eq!(fs::read(work.join("deep/er/small")).expect("read"), b"small");
    assert!(!work.join("new").exists());
    assert_ne!(fs::metadata(&work).unwrap().ino(), directory.metadata().unwrap().ino());
    assert_eq!(diff(OsStr::new("snapshot:then"), work.as_os_str()), [""; 0]);
    // It can be changed, and so can the old file.
    fs::write(work.join("deep/er/small"), "changed").expect("write");
    open.write_all(b"still here").and_then(|()| open.sync_all()).expect("write to the old file");
    let mut old = Vec::new();
    std::io::Seek::rewind(&mut open).expect("rewind");
    open.read_to_end(&mut old).expect("read the old file");
    assert_eq!(old, b"still here");
    drop((open, directory));

    nvfold(&["snapshot", "restore", "then"], &[&mount.join("beside")]).success();
    assert_eq!(fs::read(mount.join("beside/file")).expect("read"), then);
    refused("restore", &["then".as_ref(), work.join("file").as_os_str()], "it is no directory");
    refused("restore", &["none".as_ref(), work.as_os_str()], "there is no such snapshot");
    refused("restore", &["../snapshots".as_ref(), work.as_os_str()], "there is no such snapshot");
    mount.check();
}

#[test]
fn the_space_of_a_deleted_snapshot_comes_back() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    let stored = |mount: &mut Mount| {
        mount.unmount();
        let stats = nvfold_json(&["stats", "--json"], &[mount.device()]);
        mount.mount();
        stats["space"]["stored_bytes"].as_u64().expect("a number")
    };
    let before = stored(&mut mount);
    fs::write(work.join("large"), noise(8 << 20, "large")).expect("write");
    create(&mount, "large", &work);
    fs::remove_file(work.join("large")).expect("remove");
    assert!(stored(&mut mount) >= before + (8 << 20));
    let statistics = nvfold_json(&["stats", "--json"], &[mount.path()]);
    assert_eq!(statistics["snapshots"]["count"], 1, "{statistics}");
    let only = statistics["snapshots"]["only_bytes"].as_u64().expect("a number");
    assert!((8 << 20..9 << 20).contains(&only), "{only}");
    let rows = nvfold_json(&["df", "--snapshots", "--json"], &[mount.path()]);
    assert_eq!(rows["file_systems"][0]["snapshots"], statistics["snapshots"], "{rows}");
    let mut open = File::open(snapshot(&mount, "large").join("large")).expect("open");
    nvfold(&["snapshot", "delete", "large"], &[mount.path()]).success();
    assert!(!snapshot(&mount, "large").exists());
    let mut content = Vec::new();
    open.read_to_end(&mut content).expect("read the open file");
    assert!(content == noise(8 << 20, "large"), "it lives until it is closed");
    drop(open);
    // The name is free at once.
    create(&mount, "large", &work);
    nvfold(&["snapshot", "delete", "large"], &[mount.path()]).success();
    assert_eq!(stored(&mut mount), before);
    mount.check();
}

#[test]
fn impossible_names_of_snapshots_are_refused_with_the_reason() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let work = plant(&mount);
    create(&mount, "taken", &work);
    refused("create", &["taken".as_ref(), work.as_os_str()], "there is a snapshot of this name already");
    for name in ["a/b", "", ".", ".."] {
        refused("create", &[name.as_ref(), work.as_os_str()], "");
    }
    create(&mount, &"n".repeat(255), &work);
    refused("create", &["n".repeat(256).as_ref(), work.as_os_str()], "");
    refused("create", &["file".as_ref(), work.join("file").as_os_str()], "it is not a directory");
    refused("create", &["elsewhere".as_ref(), mount.scratch().as_os_str()], "it is not on a mount of nvfold");
    refused("create", &["again".as_ref(), snapshot(&mount, "taken").as_os_str()], "a part of a snapshot");
    assert_eq!(fs::read_dir(mount.join(".nvfold/snapshots")).expect("list").count(), 2);
    mount.check();
}
