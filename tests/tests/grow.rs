//! `nvfold resize` under every policy, with mounts: a full file system that grows takes more, keeps its files, and tells
//! its size; and every command of docs/operating/grow.md.

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

#[test]
fn a_mounted_device_a_shorter_size_and_a_full_host_are_refused() {
    requires!(root, fuse, tool("mount"), tool("umount"));
    let mut mount = Mount::with_options(24, "policy=inline");
    fs::write(mount.join("file"), noise(1, MIB)).unwrap();
    for target in [mount.device(), mount.path()] {
        let refused = resize(target, "64M");
        let told = &refused.stderr;
        assert!(refused.code() == 1 && told.contains("it is mounted on"), "{}", refused.report());
        assert!(
            told.contains("nvfold umount") && told.contains(&format!("resize {}", mount.device().display())),
            "{told}"
        );
    }
    assert_eq!(fs::metadata(mount.device()).unwrap().len(), 24 * MIB);
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
