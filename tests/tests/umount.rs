//! Unmounting: when it returns, the device is free and holds everything; and it returns whatever the server does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nvfold_tests::mount::{self, Mount, NO_UTAB, command, in_own_namespace, mkfs, nvfold};
use nvfold_tests::requires;
use nvfold_tests::requires::tool;
use nvfold_tests::run;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Signal, kill_process, test_kill_process};

const DEVICE_MIB: u64 = 64;

/// umount(8) runs our helper for an absolute path only because the mount is in its table. The test covers /sbin and the
/// table in a separate mount namespace.
#[test]
fn umount_by_absolute_path_waits_for_the_server() {
    requires!(root, fuse, tool("umount"), tool("unshare"));
    let dir = tempfile::tempdir().expect("make a temporary directory");
    let script = r#"
        set -x
        sbin=$(readlink -f /sbin)
        mount -t tmpfs none "$sbin"
        for name in mount.fuse umount.fuse; do ln -s "$NVFOLD" "$sbin/$name.nvfold"; done
        trap 'mountpoint -q mnt && umount -l mnt; true' EXIT
        mkdir mnt
        "$NVFOLD" mkfs device --size 64M >mkfs.log
        echo 'SRC=x TARGET=/other ROOT=/ OPTS=user=a' >utab
        for round in $(seq 20); do
            mount -t fuse.nvfold "$PWD/device" "$PWD/mnt" -o _netdev
            grep -qxF "SRC=$PWD/device TARGET=$PWD/mnt ROOT=/ OPTS=uhelper=fuse.nvfold,_netdev" utab
            pid=$("$NVFOLD" info --json mnt | sed -n 's/.*"pid": \([0-9]*\).*/\1/p')
            head -c 3M "$NVFOLD" >mnt/file
            umount "$PWD/mnt"
            ! kill -0 $pid 2>/dev/null
            test "$(stat -c %s device)" = $((64 << 20))
            "$NVFOLD" fsck device >fsck.log
        done
        test "$(cat utab)" = 'SRC=x TARGET=/other ROOT=/ OPTS=user=a'
    "#;
    run::ok(in_own_namespace(dir.path(), script).env("LIBMOUNT_UTAB", dir.path().join("utab")));
}

/// A mount point that is left when the test is over, whatever happened.
struct Left<'d>(&'d Path);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, UnmountFlags::DETACH);
    }
}

/// Without the helper, unmounting returns before the server has ended.
#[test]
fn a_device_can_be_opened_right_after_its_mount_is_gone() {
    requires!(root, fuse);
    let dir = tempfile::tempdir().expect("make a temporary directory");
    let (device, mnt) = (dir.path().join("device"), dir.path().join("mnt"));
    fs::create_dir(&mnt).expect("make the mount point");
    mkfs(&device, DEVICE_MIB << 20);
    let _left = Left(&mnt);
    for round in 0..10 {
        nvfold(&["mount"], &[&device, &mnt]).success();
        fs::write(mnt.join("file"), vec![round; 3 << 20]).expect("write");
        // A child that another test is starting has copies of our open files for a moment.
        let unmount = || rustix::mount::unmount(&mnt, UnmountFlags::empty());
        while unmount().inspect_err(|errno| assert_eq!(*errno, Errno::BUSY)).is_err() {
            thread::sleep(Duration::from_millis(10));
        }
        nvfold(&["fsck"], &[&device]).success();
    }
}

#[test]
fn a_clean_unmount_leaves_no_journal_after_the_end_of_the_device() {
    requires!(root, fuse);
    let mut mount = Mount::on_disk(DEVICE_MIB, "inline");
    fs::write(mount.join("file"), vec![7; 3 << 20]).expect("write");
    nvfold(&["sync"], &[mount.path()]).success();
    let bytes = |mount: &Mount| fs::metadata(mount.device()).expect("the device is there").len();
    assert!(bytes(&mount) > DEVICE_MIB << 20, "no sync has made a journal: the test tests nothing");
    mount.unmount();
    assert_eq!(bytes(&mount), DEVICE_MIB << 20);
}

/// sync(1) cannot do this: see `nvfold help sync`.
#[test]
fn data_synced_by_nvfold_sync_survives_a_killed_server() {
    requires!(root, fuse);
    for policy in ["off", "inline", "nv-dedup", "denova", "deext", "icid", "icid+inline", "icid+deext", "auto"] {
        let mut mount = Mount::on_disk(DEVICE_MIB, policy);
        fs::write(mount.join("file"), vec![7; 3 << 20]).expect("write");
        nvfold(&["sync"], &[mount.path()]).success();
        mount.kill();
        mount.mount();
        assert!(fs::read(mount.join("file")).expect("read") == vec![7; 3 << 20], "{policy}");
        mount.check();
    }
}

/// A mount whose server is stopped until this is dropped.
struct Stopped(Mount);

impl Stopped {
    fn new() -> Stopped {
        let mount = Mount::on_disk(DEVICE_MIB, "inline");
        fs::write(mount.join("file"), vec![7; 3 << 20]).expect("write");
        kill_process(mount.process(), Signal::STOP).expect("stop the server");
        Stopped(mount)
    }

    /// Runs a program, which must end: a hang is found by the time limit of `run`.
    fn run(&self, command: &mut Command) -> run::Outcome {
        run::run(command.env("LIBMOUNT_UTAB", NO_UTAB))
    }

    fn goes_on(self) -> Mount {
        kill_process(self.0.process(), Signal::CONT).expect("let the server go on");
        self.0
    }
}

fn wait_for_end_and_check(mut mount: Mount) {
    let status = mount.wait_until_ended();
    assert!(status.success(), "{status}");
    mount.check();
}

#[test]
fn a_lazy_unmount_does_not_wait_for_a_stopped_server() {
    requires!(root, fuse, tool("umount"));
    let stopped = Stopped::new();
    stopped.run(command().args(["umount", "--lazy"]).arg(stopped.0.path())).success();
    assert!(!stopped.0.is_in_tree());
    wait_for_end_and_check(stopped.goes_on());
    // As the helper of umount(8).
    let stopped = Stopped::new();
    stopped
        .run(command().args(["umount", "--quiet"]).arg(stopped.0.path()).args(["-l", "-t", "fuse.nvfold"]))
        .success();
    wait_for_end_and_check(stopped.goes_on());
}

#[test]
fn unmounts_and_queries_do_not_wait_forever_for_a_stopped_server() {
    requires!(root, fuse);
    let stopped = Stopped::new();
    let dir = stopped.0.path().to_owned();
    let says_so = |outcome: run::Outcome| {
        assert_eq!(outcome.code(), 1, "{}", outcome.report());
        assert!(outcome.stderr.contains("is stopped"), "{}", outcome.report());
    };
    for question in ["df", "info", "stats", "dedup-stats", "reclaim"] {
        says_so(stopped.run(command().arg(question).arg(&dir)));
    }
    says_so(stopped.run(command().args(["tune", "--method", "auto"]).arg(&dir)));
    for target in [dir.join("file"), dir.join("no file")] {
        says_so(stopped.run(command().arg("df").arg(&target)));
        says_so(stopped.run(command().arg("umount").arg(&target)));
    }
    // All mounts, of which others may answer.
    let all = stopped.run(command().arg("df"));
    assert!(all.code() == 0 && all.stderr.contains("is stopped"), "{}", all.report());
    let unmount = || stopped.run(command().args(["umount", "--timeout", "3"]).arg(&dir));
    let mut unmounted = unmount();
    // A child that another test is starting has copies of our open files for a moment.
    while unmounted.stderr.contains("busy") {
        thread::sleep(Duration::from_millis(10));
        unmounted = unmount();
    }
    says_so(unmounted);
    wait_for_end_and_check(stopped.goes_on());
}

#[test]
fn unmounting_as_another_user_fails_with_permission_denied() {
    requires!(root, fuse, tool("setpriv"));
    let mount = Mount::fresh(DEVICE_MIB, "inline");
    let everyone = fs::Permissions::from_mode(0o755);
    let program = mount.scratch().join("nvfold");
    run::ok(Command::new("cp").arg(mount::binary()).arg(&program));
    for path in [mount.scratch(), &program] {
        fs::set_permissions(path, everyone.clone()).expect("let everyone in");
    }
    let mut umount = Command::new(tool("setpriv"));
    umount
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&program)
        .arg("umount")
        .arg(mount.path());
    let refused = run::run(umount.current_dir("/"));
    assert_eq!(refused.code(), 1, "{}", refused.report());
    assert!(refused.stderr.contains("root mounted it, so only root may unmount it"), "{}", refused.report());
    let as_json = run::run(umount.arg("--json"));
    assert!(as_json.stderr.contains(r#""errno":"EPERM""#), "{}", as_json.report());
    assert!(mount.is_in_tree());
    assert!(test_kill_process(mount.process()).is_ok());
}
