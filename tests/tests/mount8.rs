//! mount(8) and umount(8) with the type `nvfold`, by the helpers in /sbin: options, who may unmount, what is released.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nvfold_tests::mount::in_own_namespace;
use nvfold_tests::requires;
use nvfold_tests::run;
use nvfold_tests::scratch::Scratch;

/// Covers /sbin, so that nothing outside of the namespace is changed.
const HELPERS: &str = r#"
    sbin=$(readlink -f /sbin)
    mount -t tmpfs none "$sbin"
    for name in mount umount mount.fuse umount.fuse; do ln -s "$NVFOLD" "$sbin/$name.nvfold"; done
    trap 'for dir in mnt fast; do mountpoint -q $dir && umount -l $dir; done; true' EXIT
    mkdir mnt fast
    options() { findmnt -no OPTIONS "$PWD/mnt"; }
    "$NVFOLD" mkfs device --size 64M >mkfs.log
"#;

fn run_with_helpers(scratch: &Scratch, script: &str) -> run::Outcome {
    let mut command = in_own_namespace(scratch.path(), &format!("{HELPERS}\n{script}"));
    run::ok(command.env("LIBMOUNT_UTAB", scratch.join("utab")))
}

#[test]
fn mount_8_mounts_the_type_nvfold_with_its_options() {
    requires!(root, fuse, tool("mount"), tool("unshare"));
    let scratch = Scratch::new();
    let script = r#"
        mount -t nvfold device mnt -o ro
        case $(options) in ro,*) ;; *) options; exit 1 ;; esac
        test "$(findmnt -no FSTYPE,SOURCE "$PWD/mnt" | tr -s ' ')" = "fuse.nvfold $PWD/device"
        umount mnt
        mount -t nvfold device mnt -o user,noatime,policy=off
        case $(options) in rw,nosuid,nodev,noexec*) ;; *) options; exit 1 ;; esac
        echo tea >mnt/file
        mount -o remount,ro mnt
        ! touch mnt/new 2>/dev/null
        mount -o remount,rw mnt
        touch mnt/new
        umount mnt
        mount -t nvfold mem: fast -o size=1G
        test "$(df --output=size -BM fast | tail -1 | tr -dc 0-9)" -gt 900
        umount fast
        ! mount -t nvfold mem: fast 2>message
        grep -q 'a memory device needs a size' message
        ! mount -t nvfold none mnt 2>message
        grep -q 'No such file or directory' message
        ! mount -t nvfold device mnt -o unheard-of 2>message
        grep -q 'there is no such option' message
        ! mountpoint -q mnt
    "#;
    run_with_helpers(&scratch, script);
}

/// What comes after umount(8) may use the device: nobody has it, and it is clean.
#[test]
fn umount_8_returns_when_the_device_is_released() {
    requires!(root, fuse, tool("mount"), tool("unshare"));
    let scratch = Scratch::new();
    let script = r#"
        for round in $(seq 10); do
            mount -t nvfold "$PWD/device" "$PWD/mnt"
            head -c 3M "$NVFOLD" >mnt/file
            umount "$PWD/mnt"
            "$NVFOLD" info device | grep -q 'state *clean'
            "$NVFOLD" fsck device >fsck.log
        done
    "#;
    run_with_helpers(&scratch, script);
}

#[test]
fn umount_by_another_user_explains_the_permission() {
    requires!(root, fuse, tool("mount"), tool("unshare"), tool("setpriv"));
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("let others in");
    let script = r#"
        user() { setpriv --reuid 65534 --regid 65534 --clear-groups -- "$@"; }
        mount -t nvfold "$PWD/device" "$PWD/mnt"
        for call in "umount" "umount --lazy"; do
            code=0
            user "$NVFOLD" $call "$PWD/mnt" 2>message || code=$?
            test $code = 1
            grep -qF "unmount $PWD/mnt: root mounted it, so only root may unmount it" message
        done
        ! user umount "$PWD/mnt" 2>message
        grep -q 'root mounted it, so only root may unmount it\|must be superuser' message
        mountpoint -q mnt
        umount "$PWD/mnt"
    "#;
    run_with_helpers(&scratch, script);
}
