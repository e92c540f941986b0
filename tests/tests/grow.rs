//! `nvfold resize` under every policy, with mounts and between them: a full file system that grows takes more, keeps its
//! files, and tells its size; and every command of docs/operating/grow.md.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use nvfold_tests::mount::{Mount, binary, command};
use nvfold_tests::requires::tool;
use nvfold_tests::run::{self, Outcome};
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, show};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const ENOSPC: i32 = 28;
const POLICIES: [&str; 9] =
    ["off", "inline", "nv-dedup", "denova", "deext", "icid", "icid+inline", "icid+deext", "auto"];

fn nvfold(arguments: &[&str], path: &Path) -> Outcome {
    run::run(command().args(arguments).arg(path))
}

fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {}", outcome.report()))
}

fn resize(device: &Path, size: &str) -> Outcome {
    run::run(command().arg("resize").arg("--json").arg(device).arg(size))
}

fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..bytes).map(|_| random.u8(..)).collect()
}

/// Writes files of a MiB until there is no room; returns how many there are.
fn fill(dir: &Path, from: u64) -> u64 {
    let mut number = from;
    loop {
        let path = dir.join(format!("{number}"));
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&noise(number, MIB))?;
            file.sync_all()
        });
        match written {
            Ok(()) => number += 1,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
                fs::remove_file(&path).unwrap();
                return number;
            }
        }
    }
}

fn compare(dir: &Path, files: u64) {
    for number in 0..files {
        assert!(fs::read(dir.join(format!("{number}"))).unwrap() == noise(number, MIB), "file {number}");
    }
}

#[test]
fn a_full_file_system_grows_between_mounts_under_every_policy() {
    requires!(root, fuse);
    for policy in POLICIES {
        let mut mount = Mount::with_options(24, &format!("policy={policy}"));
        let before = fill(mount.path(), 0);
        assert!(before > 10, "{policy}: {before}");
        let blocks = rustix::fs::statvfs(mount.path()).unwrap().f_blocks;
        mount.unmount();
        let device = mount.device().to_owned();
        let grown = json(&resize(&device, "64M").success());
        assert_eq!((&grown["before_bytes"], &grown["after_bytes"]), (&(24 * MIB).into(), &(64 * MIB).into()));
        assert_eq!(grown["growths_left"], 31);
        mount.check();
        mount.mount();
        compare(mount.path(), before);
        let after = fill(mount.path(), before);
        assert!(after >= before + 30, "{policy}: {before}, then {after}");
        assert!(rustix::fs::statvfs(mount.path()).unwrap().f_blocks > blocks + 8000);
        mount.remount();
        compare(mount.path(), after);
        mount.kill();
        mount.mount();
        compare(mount.path(), after);
        mount.unmount();
        json(&resize(&device, "100M").success());
        mount.check();
        mount.mount();
        compare(mount.path(), after);
        assert!(fill(mount.path(), after) >= after + 25);
        mount.remount();
    }
}

/// A writer fills the file system, waits for space, and goes on; a file stays open; then the server is killed.
#[test]
fn a_full_file_system_grows_while_it_is_mounted_under_every_policy() {
    requires!(root, fuse);
    for policy in POLICIES {
        let mut mount = Mount::with_options(24, &format!("policy={policy}"));
        let open = OpenOptions::new().read(true).write(true).create_new(true).open(mount.join("open")).unwrap();
        open.write_all_at(&noise(1000, 5000), 0).unwrap();
        open.sync_all().unwrap();
        open.lock().unwrap();
        let dir = mount.path().to_owned();
        let blocks = || rustix::fs::statvfs(mount.path()).unwrap().f_blocks;
        let (at_first, is_full) = (blocks(), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let before = fill(&dir, 0);
                is_full.wait();
                // Until there is space again.
                (before, (before..before + 30).for_each(|number| write_when_there_is_space(&dir, number)))
            });
            is_full.wait();
            let grown = json(&resize(mount.path(), "40M").success());
            assert_eq!((&grown["before_bytes"], &grown["after_bytes"]), (&(24 * MIB).into(), &(40 * MIB).into()));
            assert!(blocks() > at_first + 3500, "{policy}");
            let grown = json(&resize(mount.device(), "80M").success());
            assert_eq!((&grown["before_bytes"], &grown["growths_left"]), (&(40 * MIB).into(), &30.into()));
            assert_eq!(grown["mount_point"], dir.to_str().unwrap());
            let (before, ()) = writer.join().unwrap();
            compare(&dir, before + 30);
        });
        assert!(blocks() > at_first + 13_000, "{policy}");
        let mut bytes = vec![0; 5000];
        open.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == noise(1000, 5000), "{policy}");
        drop(open);
        let files = fs::read_dir(mount.path()).unwrap().count() as u64 - 1;
        mount.kill();
        mount.mount();
        compare(mount.path(), files);
        assert!(fs::read(mount.join("open")).unwrap() == noise(1000, 5000), "{policy}");
        assert!(blocks_of(&mount) > at_first + 13_000, "{policy}");
        mount.unmount();
        mount.check();
        mount.mount();
    }
}

fn blocks_of(mount: &Mount) -> u64 {
    rustix::fs::statvfs(mount.path()).unwrap().f_blocks
}

fn write_when_there_is_space(dir: &Path, number: u64) {
    let path = dir.join(format!("{number}"));
    let write = || {
        let mut file = File::create(&path)?;
        file.write_all(&noise(number, MIB))?;
        file.sync_all()
    };
    while let Err(error) = write() {
        assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
        let _ = fs::remove_file(&path);
    }
}

#[test]
fn a_device_in_memory_and_one_on_a_disk_grow_while_they_are_mounted() {
    requires!(root, fuse);
    let memory = Scratch::new();
    let (dir, disk) = (memory.join("mnt"), Scratch::on_disk());
    fs::create_dir(&dir).unwrap();
    let device = disk.join("device");
    run::run(command().args(["mkfs", "--size", "24M"]).arg(&device)).success();
    for (source, options) in [(Path::new("mem:"), "size=24M,policy=inline"), (&device, "policy=inline")] {
        run::run(command().arg("mount").arg(source).arg(&dir).args(["-o", options])).success();
        let result = std::panic::catch_unwind(|| {
            let before = fill(&dir, 0);
            let told = run::run(command().arg("resize").arg(&dir).arg("64M")).success().stdout;
            assert!(told.contains("has 64 MiB now, before 24 MiB"), "{told}");
            let quiet = run::run(command().args(["--quiet", "resize"]).arg(&dir).arg("72M")).success();
            assert!(quiet.stdout.is_empty(), "{}", quiet.report());
            let again = run::run(command().arg("resize").arg(&dir).arg("72M")).success().stdout;
            assert!(again.contains("has 72 MiB already"), "{again}");
            let after = fill(&dir, before);
            assert!(after >= before + 35, "{before}, then {after}");
            compare(&dir, after);
        });
        run::run(command().arg("umount").arg(&dir)).success();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
    nvfold(&["fsck"], &device).success();
    assert_eq!(fs::metadata(&device).unwrap().len(), 72 * MIB, "the journal is cut off");
}

#[test]
fn a_size_that_a_mounted_file_system_cannot_have_is_refused() {
    requires!(root, fuse);
    let mut mount = Mount::with_options(24, "policy=inline");
    fs::write(mount.join("file"), noise(1, MIB)).unwrap();
    let refused = |target: &Path, size: &str, why: &str| {
        let refused = resize(target, size);
        assert!(refused.code() == 1 && refused.stderr.contains(why), "{}", refused.report());
        assert_eq!(fs::metadata(mount.device()).unwrap().len(), 24 * MIB);
    };
    refused(mount.path(), "16M", "cannot make a file system shorter");
    refused(mount.device(), "25M", "too few more");
    refused(mount.path(), "12T", "unmount it");
    refused(mount.path(), "4T", "that this process has room for");
    mount.unmount();
    mount.set_options("policy=inline,ro");
    mount.mount();
    let told = resize(mount.path(), "64M");
    assert!(told.code() == 1 && told.stderr.contains("read-only"), "{}", told.report());
}

#[test]
fn only_root_and_the_user_who_mounted_make_it_longer() {
    requires!(root, fuse, tool("setpriv"));
    // With the second one the kernel does not say who asks.
    for options in ["policy=inline", "policy=inline,idmap"] {
        let mut mount = Mount::with_options(24, options);
        let nvfold = command();
        let mut user = Command::new("setpriv");
        user.args(["--reuid=4321", "--clear-groups", "--"]).arg(nvfold.get_program()).arg("resize");
        let refused = run::run(user.arg(mount.path()).arg("64M"));
        assert!(refused.code() == 1 && refused.stderr.contains("only root"), "{}", refused.report());
        assert_eq!(fs::metadata(mount.device()).unwrap().len(), 24 * MIB);
        resize(mount.path(), "64M").success();
        mount.unmount();
        mount.check();
        mount.mount();
    }
}

#[test]
fn a_shorter_size_and_a_full_host_are_refused() {
    requires!(root, fuse, tool("mount"), tool("umount"));
    let mut mount = Mount::with_options(24, "policy=inline");
    fs::write(mount.join("file"), noise(1, MIB)).unwrap();
    mount.unmount();
    let refused = resize(mount.device(), "16M");
    assert!(refused.stderr.contains("cannot make a file system shorter"), "{}", refused.report());
    assert!(refused.stderr.contains("nvfold export"), "{}", refused.report());

    // A host file system without room for a block.
    let scratch = Scratch::new();
    let host = scratch.join("host");
    fs::create_dir(&host).unwrap();
    run::ok(Command::new(tool("mount")).args(["-t", "tmpfs", "-o", "size=12M", "tmpfs"]).arg(&host));
    let device = host.join("device");
    let result = std::panic::catch_unwind(|| {
        run::run(command().args(["mkfs", "--size", "24M"]).arg(&device)).success();
        let rest = File::create(host.join("rest")).unwrap();
        while rest.write_all_at(&[1; 4096], rest.metadata().unwrap().len()).is_ok() {}
        let refused = resize(&device, "64M");
        assert_eq!(refused.code(), 1, "{}", refused.report());
        show(&refused.stderr);
        assert_eq!(fs::metadata(&device).unwrap().len(), 24 * MIB);
        drop(rest);
        fs::remove_file(host.join("rest")).unwrap();
        let info = json(&nvfold(&["info", "--json"], &device).success());
        assert_eq!(info["superblock"]["device_bytes"], 24 * MIB);
        nvfold(&["fsck"], &device).success();
        resize(&device, "64M").success();
        nvfold(&["fsck"], &device).success();
        // The same while it is mounted.
        let dir = scratch.join("mnt");
        fs::create_dir(&dir).unwrap();
        run::run(command().arg("mount").arg(&device).arg(&dir)).success();
        let result = std::panic::catch_unwind(|| {
            fs::write(dir.join("file"), noise(2, MIB)).unwrap();
            let rest = File::create(host.join("rest")).unwrap();
            while rest.write_all_at(&[1; 4096], rest.metadata().unwrap().len()).is_ok() {}
            let refused = resize(&dir, "96M");
            assert_eq!(refused.code(), 1, "{}", refused.report());
            show(&refused.stderr);
            assert_eq!(fs::metadata(&device).unwrap().len(), 64 * MIB);
            drop(rest);
            fs::remove_file(host.join("rest")).unwrap();
            resize(&dir, "96M").success();
            assert!(fs::read(dir.join("file")).unwrap() == noise(2, MIB));
        });
        run::run(command().arg("umount").arg(&dir)).success();
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        nvfold(&["fsck"], &device).success();
    });
    run::ok(Command::new(tool("umount")).arg(&host));
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    mount.mount();
    assert!(fs::read(mount.join("file")).unwrap() == noise(1, MIB));
}

#[test]
fn a_longer_file_is_reported_and_taken() {
    let scratch = Scratch::new();
    let device = scratch.join("device");
    run::run(command().args(["mkfs", "--size", "24M"]).arg(&device)).success();
    OpenOptions::new().write(true).open(&device).unwrap().set_len(64 * MIB).unwrap();
    let info = nvfold(&["info"], &device).success();
    assert!(info.stdout.contains("40 MiB of the device lie after the file system"), "{}", info.stdout);
    assert_eq!(json(&nvfold(&["info", "--json"], &device).success())["unused_bytes"], 40 * MIB);
    let refused = resize(&device, "48M");
    assert!(refused.stderr.contains("leave the size out"), "{}", refused.report());
    let grown = json(&run::run(command().args(["resize", "--json"]).arg(&device)).success());
    assert_eq!(grown["after_bytes"], 64 * MIB);
    assert_eq!(json(&nvfold(&["info", "--json"], &device).success())["unused_bytes"], 0);
    nvfold(&["fsck"], &device).success();
    // Level `file`, with its journal behind the end.
    let disk = Scratch::on_disk();
    let device = disk.join("device");
    run::run(command().args(["mkfs", "--size", "24M"]).arg(&device)).success();
    json(&resize(&device, "64M").success());
    nvfold(&["fsck"], &device).success();
    assert_eq!(fs::metadata(&device).unwrap().len(), 64 * MIB, "the journal is cut off");
}

/// Runs the blocks of the page one after the other, as a reader would, in a directory with a mounted `pool`.
#[test]
fn every_command_of_the_page_on_growing_works() {
    requires!(root, fuse);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/operating/grow.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks: Vec<&str> = page.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 4, "{blocks:?}");
    let scratch = Scratch::new();
    let bin = scratch.join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(binary(), bin.join("nvfold")).unwrap();
    let begin = "nvfold mkfs pool --size 64M --index pm\nmkdir mnt\nnvfold mount pool mnt\necho tea > mnt/file\n";
    let end = "test \"$(cat mnt/file)\" = tea\ntest \"$(cat files/file)\" = tea\nnvfold umount mnt\n\
               nvfold fsck pool\nnvfold fsck smaller\n";
    let page = blocks.concat();
    let script = format!(
        "set -eu\nexport PATH=\"$PWD/bin:$PATH\"\ntrap 'nvfold umount mnt 2>/dev/null || true' EXIT\n\
         {begin}{page}nvfold mount pool mnt\n{end}"
    );
    let outcome = run::shell(scratch.path(), &script);
    let sizes = fs::metadata(scratch.join("pool")).map(|file| file.len());
    assert_eq!(sizes.ok(), Some(256 * MIB), "{}", outcome.report());
    outcome.success();
}
