//! mount and umount: the life of a mount from start to end, and what the kernel and the library leave to the front end.

use crate::common::{Scratch, can_mount, process_lives, wait_until};
use nvfold_mount::Connection;
use rustix::io::FdFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};

#[test]
fn a_mount_keeps_written_data_and_releases_the_device_on_unmount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    fs::write(mount.path("file"), b"tea").unwrap();
    let info = scratch.nvfold(&["info", "mnt", "--json"]).ok().json();
    assert_eq!(info["pid"], mount.pid);
    assert_eq!(info["superblock"]["clean"], false);
    // By the device's name too, and it says where it is mounted.
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["pid"], mount.pid);
    for command in ["df", "stats", "dedup-stats", "du"] {
        scratch.nvfold(&[command, "mnt", "--json"]).ok().json();
    }
    mount.unmount();
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["superblock"]["clean"], true);
    scratch.nvfold(&["fsck", "dev"]).ok();
    let mount = scratch.mount("dev", "ro");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"tea");
    assert_eq!(fs::write(mount.path("new"), b"").unwrap_err().raw_os_error(), Some(30), "EROFS");
    mount.unmount();
}

#[test]
fn a_memory_device_can_be_mounted_and_is_gone_after_the_unmount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=256M,policy=inline");
    let data = vec![7; 8 << 20];
    fs::write(mount.path("one"), &data).unwrap();
    fs::write(mount.path("two"), &data).unwrap();
    rustix::fs::syncfs(File::open(&mount.dir).unwrap()).unwrap();
    let stats = scratch.nvfold(&["dedup-stats", "mnt", "--json"]).ok();
    assert_eq!((stats.number("logical_bytes"), stats.number("stored_bytes")), (16 << 20, 4096));
    mount.unmount();
    scratch.nvfold(&["mount", "mem:", "mnt"]).fails(2, "needs a size");
}

#[test]
fn a_mount_that_cannot_succeed_is_refused_before_it_has_effects() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    scratch.device("other", "64M");
    fs::write(scratch.path("noise"), vec![0x5a; 16 << 20]).unwrap();
    fs::set_permissions(scratch.path("noise"), fs::Permissions::from_mode(0o600)).unwrap();
    let mount = scratch.mount("dev", "rw");
    fs::create_dir(scratch.path("mnt2")).unwrap();
    scratch.nvfold(&["mount", "dev", "mnt2"]).fails(1, &format!("in use by process {}", mount.pid));
    scratch.nvfold(&["mount", "other", "mnt"]).fails(1, "is mounted there already");
    scratch.nvfold(&["fsck", "dev"]).fails(8, "in use");
    scratch.nvfold(&["mkfs", "dev", "--force"]).fails(1, "in use");
    scratch.nvfold(&["mount", "noise", "mnt2"]).fails(1, "not an nvfold device");
    scratch.nvfold(&["mount", "none", "mnt2"]).fails(1, "No such file");
    scratch.nvfold(&["mount", "other", "nodir"]).fails(1, "nodir");
    scratch.nvfold(&["mount", "other", "noise"]).fails(1, "not a directory");
    scratch.nvfold(&["mount", "other", "mnt2", "-o", "bogus"]).fails(2, "no such option");
    scratch.nvfold(&["mount", "other", "mnt2", "-o", "size=1G"]).fails(2, "only a memory device");
    scratch.nvfold(&["umount", "mnt2"]).fails(1, "no nvfold is mounted");
    mount.unmount();
}

#[test]
fn a_busy_mount_is_not_unmounted_but_can_be_detached() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    let mut file = File::create(mount.path("open")).unwrap();
    scratch.nvfold(&["umount", "mnt"]).fails(1, "busy");
    scratch.nvfold(&["umount", "--lazy", "mnt"]).ok();
    file.write_all(b"written after it was detached").unwrap();
    assert!(process_lives(mount.pid));
    drop(file);
    mount.wait_for_end();
    scratch.nvfold(&["fsck", "dev"]).ok();
    let mount = scratch.mount("dev", "ro");
    assert_eq!(fs::read(mount.path("open")).unwrap(), b"written after it was detached");
    mount.unmount();
}

#[test]
fn sigterm_unmounts_and_leaves_the_device_clean() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    fs::write(mount.path("file"), b"tea").unwrap();
    scratch.run("kill", &["-TERM", &mount.pid.to_string()]).ok();
    mount.wait_for_end();
    assert!(!mount.is_mounted());
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["superblock"]["clean"], true);
}

#[test]
fn sigterm_under_load_ends_the_mount_and_leaves_the_device_clean() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    let load = "while :; do echo x >> log || exit 0; sync log || exit 0; done";
    let mut writer =
        Command::new("sh").args(["-c", load]).current_dir(&mount.dir).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the load has begun", || fs::metadata(mount.path("log")).is_ok_and(|log| log.len() > 10));
    scratch.run("kill", &["-TERM", &mount.pid.to_string()]).ok();
    mount.wait_for_end();
    let _ = writer.kill();
    writer.wait().unwrap();
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["superblock"]["clean"], true);
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn a_killed_mount_is_recovered_with_all_synced_data() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    let mut file = File::create(mount.path("file")).unwrap();
    file.write_all(b"acknowledged").unwrap();
    file.sync_all().unwrap();
    scratch.run("kill", &["-KILL", &mount.pid.to_string()]).ok();
    drop(file);
    scratch.run("umount", &["-l", "mnt"]).ok();
    mount.wait_for_end();
    let info = scratch.nvfold(&["info", "dev", "--json"]).ok().json();
    assert_eq!(info["superblock"]["clean"], false);
    scratch.nvfold(&["df", "dev"]).fails(1, "not unmounted cleanly");
    let mount = scratch.mount("dev", "rw");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"acknowledged");
    mount.unmount();
    scratch.nvfold(&["fsck", "dev"]).ok();
}

/// mount(8) looks for its helpers in /sbin: a namespace of our own has one there, and nobody else sees it.
#[test]
fn mount_8_and_umount_8_accept_the_file_system_type() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    for dir in ["mnt", "helpers"] {
        fs::create_dir(scratch.path(dir)).unwrap();
    }
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nvfold"), scratch.path("helpers/mount.fuse.nvfold")).unwrap();
    let script = format!(
        "set -e; sbin=$(readlink -f /sbin); mount -t overlay overlay -o lowerdir=$PWD/helpers:$sbin $sbin
         mount -t fuse.nvfold $PWD/dev $PWD/mnt -o noatime,policy=off
         findmnt -n -o FSTYPE $PWD/mnt; echo tea > mnt/file; {} info mnt; umount mnt",
        env!("CARGO_BIN_EXE_nvfold")
    );
    let run = scratch.run("unshare", &["--mount", "--propagation", "private", "sh", "-c", &script]);
    if run.stderr.contains("overlay") {
        assert!(std::env::var_os("CI").is_none(), "{run:#?}");
        return eprintln!("skipped: no overlay mounts here: {}", run.stderr);
    }
    let run = run.ok();
    assert!(run.stdout.contains("fuse.nvfold") && run.stdout.contains("off"), "{run:#?}");
    wait_until("the device is released", || scratch.nvfold(&["info", "dev"]).code == Some(0));
    let mount = scratch.mount("dev", "ro");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"tea\n");
    mount.unmount();
}

#[test]
fn a_nameless_file_lives_while_it_is_open_and_frees_its_space() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "policy=off");
    let stored = || scratch.nvfold(&["dedup-stats", "mnt", "--json"]).ok().number("stored_bytes");
    let mut file = OpenOptions::new().create_new(true).read(true).write(true).open(mount.path("gone")).unwrap();
    file.write_all(&vec![1; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(mount.path("gone")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"still there", 1 << 20).unwrap();
    file.sync_all().unwrap();
    let mut content = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut content).unwrap();
    assert!(content.ends_with(b"still there") && content.len() == (1 << 20) + 11);
    assert!(stored() >= 1 << 20);
    // Replaced by a rename while it is open.
    fs::write(mount.path("old"), b"old").unwrap();
    fs::write(mount.path("new"), b"new").unwrap();
    let mut replaced = File::open(mount.path("old")).unwrap();
    fs::rename(mount.path("new"), mount.path("old")).unwrap();
    let mut text = String::new();
    replaced.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), fs::read_to_string(mount.path("old")).unwrap().as_str()), ("old", "new"));
    drop((file, replaced));
    wait_until("the space of the nameless file is free", || stored() < 1 << 20);
    mount.unmount();
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn holes_and_block_counts_are_correct_while_pages_are_dirty() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(mount.path("sparse")).unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    file.write_all_at(&[2; 10_000], 1 << 20).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(0));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(12_288));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(500_000)), Ok(1 << 20));
    wait_until("the kernel knows the blocks", || file.metadata().unwrap().blocks() >= 48);
    drop(file);
    mount.unmount();
}

#[test]
fn copy_file_range_shares_bytes_of_any_alignment() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "policy=off");
    let data: Vec<u8> = (0..4 << 20).map(|at: u32| (at / 7) as u8).collect();
    fs::write(mount.path("source"), &data).unwrap();
    let (source, target) = (File::open(mount.path("source")).unwrap(), File::create(mount.path("target")).unwrap());
    let stored = || scratch.nvfold(&["dedup-stats", "mnt", "--json"]).ok().number("stored_bytes");
    let before = stored();
    let (mut from, mut to) = (1001, 77);
    let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), 3 << 20).unwrap();
    assert_eq!(copied, 3 << 20);
    assert_eq!(stored(), before, "bytes were copied");
    drop((source, target));
    let target = fs::read(mount.path("target")).unwrap();
    assert!(target[..77] == [0; 77] && target[77..] == data[1001..1001 + (3 << 20)]);
    mount.unmount();
}

#[test]
fn set_id_bits_are_cleared_when_the_owner_of_a_file_changes() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "allow_other");
    let path = mount.path("program");
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let set = || fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    fs::write(&path, b"x").unwrap();
    set();
    assert_eq!(mode(), 0o6777);
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).unwrap();
    assert_eq!(mode(), 0o777, "after chown");
    set();
    std::os::unix::fs::chown(&path, None, None).unwrap();
    assert_eq!(mode(), 0o777, "after a chown to nobody else");
    set();
    fs::set_permissions(&mount.dir, fs::Permissions::from_mode(0o777)).unwrap();
    let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "echo y > mnt/program"];
    let open = fs::metadata(scratch.path(".")).unwrap().permissions();
    fs::set_permissions(scratch.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    scratch.run("setpriv", &as_nobody).ok();
    fs::set_permissions(scratch.path("."), open).unwrap();
    assert_eq!(mode(), 0o777, "after a write by another user");
    mount.unmount();
}

#[test]
fn default_acls_are_inherited_and_follow_the_mode() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    if Command::new("setfacl").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "setfacl (package acl) is missing");
        return eprintln!("skipped: setfacl (package acl) is missing");
    }
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    let sh = |script: &str| scratch.run("sh", &["-c", script]).ok().stdout;
    sh("mkdir mnt/d && setfacl -d -m u:1000:rwx,g::rx,o::- mnt/d && umask 077 && touch mnt/d/file && mkdir mnt/d/sub");
    let acl = sh("getfacl -cnp mnt/d/file");
    assert!(acl.contains("user:1000:rwx") && acl.contains("mask::rw-") && acl.contains("other::---"), "{acl}");
    assert!(sh("getfacl -cnp mnt/d/sub").contains("default:user:1000:rwx"));
    sh("chmod 600 mnt/d/file");
    assert!(sh("getfacl -cnp mnt/d/file").contains("mask::---"));
    sh("setfacl -b mnt/d/file");
    assert!(!sh("getfacl -cnp mnt/d/file").contains("mask"));
    sh("umask 027; touch mnt/plain");
    assert_eq!(fs::metadata(mount.path("plain")).unwrap().mode() & 0o777, 0o640, "the umask without a default ACL");
    mount.unmount();
}

#[test]
fn a_listing_ends_even_if_each_listed_name_is_renamed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    for number in 0..2000 {
        File::create(mount.path(&number.to_string())).unwrap();
    }
    let mut found = 0;
    for entry in fs::read_dir(&mount.dir).unwrap() {
        let path = entry.unwrap().path();
        fs::rename(&path, path.with_extension("renamed")).unwrap();
        found += 1;
        assert!(found <= 4000, "the listing does not end");
    }
    assert!(found >= 2000);
    assert_eq!(fs::read_dir(&mount.dir).unwrap().count(), 2000);
    mount.unmount();
}

#[test]
fn reserved_attributes_are_refused_and_virtual_ones_are_not_listed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "rw");
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    let set = |name: &str| rustix::fs::setxattr(&path, name, b"value", rustix::fs::XattrFlags::empty());
    for name in ["user.a", "trusted.b", "security.c"] {
        set(name).unwrap();
    }
    assert_eq!(set("system.d"), Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(set("user.nvfold.stats"), Err(rustix::io::Errno::PERM));
    let mut names = [0; 1000];
    let length = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    let mut names: Vec<_> = std::str::from_utf8(&names[..length]).unwrap().split_terminator('\0').collect();
    names.sort_unstable();
    assert_eq!(names, ["security.c", "trusted.b", "user.a"]);
    mount.unmount();
}

/// Mounts here, and starts a server for it that cannot mount itself. The device is that of `dev`.
fn served_elsewhere(scratch: &Scratch) -> Child {
    fs::create_dir_all(scratch.path("mnt")).unwrap();
    let connection = Connection::new(scratch.path("mnt"), &nvfold_mount::Options::default(), false).unwrap();
    rustix::io::fcntl_setfd(connection.as_fd(), FdFlags::empty()).unwrap();
    let descriptor = format!("/dev/fd/{}", connection.as_fd().as_raw_fd());
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfold"));
    command.args(["mount", "--foreground"]).arg(scratch.path("dev")).arg(descriptor);
    command.stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn a_mount_that_another_process_made_is_served_until_that_unmounts_it() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mut server = served_elsewhere(&scratch);
    // Waits until it is served.
    fs::write(scratch.path("mnt/file"), b"tea").unwrap();
    assert_eq!(scratch.nvfold(&["stats", "mnt", "--json"]).ok().json()["pid"], server.id());
    scratch.nvfold(&["umount", "mnt"]).ok();
    assert!(server.wait().unwrap().success());
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["superblock"]["clean"], true);
}

#[test]
fn a_server_that_cannot_unmount_leaves_the_device_clean_when_a_signal_ends_it() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mut server = served_elsewhere(&scratch);
    fs::write(scratch.path("mnt/file"), b"in the cache of the kernel until then").unwrap();
    let process = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    rustix::mount::unmount(scratch.path("mnt"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["superblock"]["clean"], true);
    let mount = scratch.mount("dev", "ro");
    assert_eq!(fs::read(mount.path("file")).unwrap(), b"in the cache of the kernel until then");
    mount.unmount();
}

#[test]
fn a_descriptor_that_is_no_mount_is_refused() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    scratch.nvfold(&["mount", "dev", "/dev/fd/1"]).fails(2, "is not open on /dev/fuse");
    scratch.nvfold(&["mount", "dev", "/dev/fd/999"]).fails(2, "is not open");
}
