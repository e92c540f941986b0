//! `mount -o remount,ro|rw`: the errors that a program gets on a read-only mount, that the device does not change
//! then, and that mount(8) and umount(8) find their helpers.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nvfold_tests::mount::{self, Mount};
use nvfold_tests::requires::tool;
use nvfold_tests::{requires, run};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

const EEXIST: i32 = 17;
const EROFS: i32 = 30;

/// Runs mount(8) without its helper. A child that another test is starting may still have a file open for writing for
/// a moment, so it tries again.
#[track_caller]
fn remount(dir: &Path, how: &str) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let options = format!("remount,{how}");
        let outcome = run::run(Command::new(tool("mount")).args(["-i", "-o", &options]).arg(dir));
        if !outcome.stderr.contains("busy") || Instant::now() > end {
            assert_eq!(outcome.success().stdout, "");
            return;
        }
        thread::sleep(Duration::from_millis(50));
    }
}

#[track_caller]
fn assert_errno<T: std::fmt::Debug>(result: std::io::Result<T>, errno: i32, what: &str) {
    assert_eq!(result.expect_err(what).raw_os_error(), Some(errno), "{what}");
}

fn make_node(path: &Path, kind: FileType, device: (u32, u32)) -> std::io::Result<()> {
    Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(0o666), makedev(device.0, device.1))?)
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    requires!(root, fuse, tool("mount"));
    for options in ["writeback=on", "writeback=off"] {
        let mut mount = Mount::with_options(64, options);
        let file = mount.join("file");
        fs::write(&file, "before").unwrap();
        remount(mount.path(), "ro");
        assert_errno(fs::write(&file, "no"), EROFS, "write");
        assert_errno(fs::remove_file(&file), EROFS, "unlink");
        assert_errno(fs::set_permissions(&file, fs::metadata(&file).unwrap().permissions()), EROFS, "chmod");
        assert_eq!(fs::read(&file).unwrap(), b"before");
        remount(mount.path(), "rw");
        fs::write(&file, "after").unwrap();
        remount(mount.path(), "ro");
        mount.kill();
        mount.mount();
        assert_eq!(fs::read(&file).unwrap(), b"after", "what was written before it became read-only is durable");
        mount.check();
    }
}

#[test]
fn a_mount_with_a_file_open_for_writing_refuses_to_become_read_only() {
    requires!(root, fuse, tool("mount"));
    let mount = Mount::fresh(64, "inline");
    let mut file = File::create(mount.join("file")).unwrap();
    let refused = run::run(Command::new(tool("mount")).args(["-i", "-o", "remount,ro"]).arg(mount.path()));
    assert!(!refused.status.success() && refused.stderr.contains("busy"), "{}", refused.report());
    let refused = mount::nvfold(&["mount", "-o", "remount,ro"], &[mount.device(), mount.path()]);
    assert!(refused.code() == 1 && refused.stderr.contains("open for writing"), "{}", refused.report());
    file.write_all(b"goes on").unwrap();
}

/// An existing name is EEXIST, also where nothing can be created.
#[test]
fn creating_an_existing_name_on_a_read_only_mount_gives_eexist() {
    requires!(root, fuse, tool("mount"));
    let mount = Mount::fresh(64, "inline");
    let exists = |name: &str| mount.join(name);
    fs::create_dir(exists("dir")).unwrap();
    make_node(&exists("node"), FileType::CharacterDevice, (1, 3)).unwrap();
    symlink("target", exists("symlink")).unwrap();
    fs::write(exists("file"), "").unwrap();
    remount(mount.path(), "ro");
    for (suffix, errno) in [("", EEXIST), (" that is not there", EROFS)] {
        let path = |name: &str| mount.join(format!("{name}{suffix}"));
        assert_errno(fs::create_dir(path("dir")), errno, "mkdir");
        assert_errno(make_node(&path("node"), FileType::CharacterDevice, (1, 3)), errno, "mknod");
        assert_errno(symlink("target", path("symlink")), errno, "symlink");
        assert_errno(fs::hard_link(exists("file"), path("file")), errno, "link");
        assert_errno(OpenOptions::new().write(true).create_new(true).open(path("file")), errno, "open with O_EXCL");
    }
}

/// The target of a device node, a fifo, a symlink or a mount on a file is not on the read-only file system.
#[test]
fn device_nodes_and_link_targets_on_a_read_only_mount_are_writable() {
    requires!(root, fuse, tool("mount"), tool("unshare"));
    let mount = Mount::with_options(64, "dev");
    let (null, zero, fifo, link) = (mount.join("null"), mount.join("zero"), mount.join("fifo"), mount.join("link"));
    make_node(&null, FileType::CharacterDevice, (1, 3)).unwrap();
    make_node(&zero, FileType::CharacterDevice, (1, 5)).unwrap();
    make_node(&fifo, FileType::Fifo, (0, 0)).unwrap();
    let target = mount.scratch().join("target");
    fs::write(&target, "").unwrap();
    symlink(&target, &link).unwrap();
    fs::write(mount.join("covered"), "").unwrap();
    remount(mount.path(), "ro");
    assert_errno(fs::write(mount.join("new"), ""), EROFS, "create");
    fs::write(&null, [7; 512]).unwrap();
    OpenOptions::new().append(true).open(&null).unwrap().write_all(b"more").unwrap();
    let mut zeros = [7; 512];
    OpenOptions::new().read(true).write(true).open(&zero).unwrap().read_exact(&mut zeros).unwrap();
    assert_eq!(zeros, [0; 512]);
    // A fifo opened both ways has a reader.
    let mut both = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    both.write_all(b"tea").unwrap();
    let mut through = [0; 3];
    both.read_exact(&mut through).unwrap();
    assert_eq!(&through, b"tea");
    fs::write(&link, "through the link").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"through the link");
    let script = "mount --bind ../target covered; echo through the mount >covered; echo more >>covered";
    run::ok(&mut mount::in_own_namespace(mount.path(), script));
    assert_eq!(fs::read(&target).unwrap(), b"through the mount\nmore\n");
}

/// A program runs from a mount that became read-only; also one that ran before and whose pages are cached.
#[test]
fn a_program_on_the_mount_runs_before_and_after_a_read_only_remount() {
    requires!(root, fuse, tool("mount"), tool("ls"));
    for options in ["writeback=on", "writeback=off"] {
        let mut mount = Mount::with_options(64, options);
        let program = mount.join("ls on the mount");
        run::ok(Command::new("cp").arg(tool("ls")).arg(&program));
        let runs = || run::ok(Command::new(&program).arg(&program)).stdout;
        let before = runs();
        remount(mount.path(), "ro");
        assert_eq!(runs(), before);
        mount.unmount();
        mount.set_options("ro");
        mount.mount();
        assert_eq!(runs(), before, "with no page of it in memory");
    }
}

/// The serving process learns of the remount: nothing changes on the device, not even the queue is shared.
#[test]
fn a_mount_that_became_read_only_no_longer_writes_its_device() {
    requires!(root, fuse, tool("mount"));
    let mount = Mount::with_options(64, "policy=denova,mode=delayed:1000:100000");
    for copy in 0..8 {
        fs::write(mount.join(format!("copy {copy}")), vec![7; 1 << 20]).unwrap();
    }
    remount(mount.path(), "ro");
    let refused = |path: &Path| mount::nvfold(&["dedup"], &[path]).stderr.contains("Read-only file system");
    let end = Instant::now() + Duration::from_secs(60);
    while !refused(mount.path()) {
        assert!(Instant::now() < end, "the serving process has not noticed that it is read-only");
        thread::sleep(Duration::from_millis(20));
    }
    let before = fs::read(mount.device()).unwrap();
    // Longer than the delay of the policy and than the time between two rounds of housekeeping.
    thread::sleep(Duration::from_millis(2500));
    assert_eq!(fs::read(mount.join("copy 3")).unwrap(), vec![7; 1 << 20]);
    assert!(fs::read(mount.device()).unwrap() == before, "the device has changed");
    remount(mount.path(), "rw");
    while refused(mount.path()) {
        assert!(Instant::now() < end, "the serving process has not noticed that it is writable");
        thread::sleep(Duration::from_millis(20));
    }
    mount::nvfold(&["dedup", "--drain"], &[mount.path()]).success();
    let stats = mount::nvfold_json(&["stats", "--json"], &[mount.path()]);
    // The first `nvfold dedup`, before the mount became read-only, and the daemon may each have processed one block
    // at the same time without finding the other's.
    assert!(stats["space"]["stored_bytes"].as_u64().is_some_and(|stored| stored <= 2 * 4096), "{stats}");
}

#[test]
fn a_failed_remount_to_writable_explains_what_to_do() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    mount.unmount();
    mount.set_options("ro");
    mount.mount();
    let refused = mount::nvfold(&["mount", "-o", "remount,rw"], &[mount.device(), mount.path()]);
    assert!(refused.code() == 1 && refused.stderr.contains("mount it again, with -o rw"), "{}", refused.report());
    let other = mount::nvfold(&["mount", "-o", "remount,ro"], &[mount.device(), mount.scratch()]);
    assert!(other.code() == 1 && other.stderr.contains("no nvfold is mounted there"), "{}", other.report());
    mount::nvfold(&["mount", "-o", "remount,ro"], &[mount.device(), mount.path()]).success();
}

/// The test covers /sbin in a separate mount namespace, so that nothing outside is changed.
#[test]
fn mount_8_and_umount_8_find_their_helpers_which_print_nothing() {
    requires!(root, fuse, tool("mount"), tool("unshare"));
    let mut mount = Mount::fresh(64, "inline");
    mount.unmount();
    let script = r#"
        sbin=$(readlink -f /sbin)
        mount -t tmpfs none "$sbin"
        for name in mount.fuse umount.fuse; do ln -s "$NVFOLD" "$sbin/$name.nvfold"; done
        trap 'mountpoint -q mnt && umount -l mnt; true' EXIT
        options() { grep " $PWD/mnt " /proc/self/mountinfo | cut -d' ' -f6; }
        mount -t fuse.nvfold device mnt -o nosuid,policy=off
        echo tea >mnt/file
        mount -o remount,ro mnt
        ! touch mnt/new 2>/dev/null
        case $(options) in ro,nosuid*) ;; *) options; exit 1 ;; esac
        mount -o remount,rw,noexec mnt
        touch mnt/new
        case $(options) in rw,nosuid,noexec*) ;; *) options; exit 1 ;; esac
        umount mnt
        "$sbin/mount.fuse.nvfold" device mnt -o rw
        test "$(cat mnt/file)" = tea
        "$sbin/umount.fuse.nvfold" mnt
    "#;
    let mut command = mount::in_own_namespace(mount.scratch(), script);
    let outcome = run::ok(command.env("LIBMOUNT_UTAB", mount.scratch().join("utab")));
    assert_eq!((outcome.stdout.as_str(), outcome.stderr.as_str()), ("", ""), "a helper says nothing when it succeeds");
    mount.check();
}
