//! The file of a device: who may own it, and who else may read or write it.

use crate::common::{Scratch, can_mount};
use std::fs;
use std::os::unix::fs::PermissionsExt;

const NOBODY: u32 = 65534;
const OTHER: u32 = 4711;

/// What a command says of a device.
#[derive(Clone, Copy)]
enum Says {
    /// It is used, without a word.
    Nothing,
    /// It is used, and a warning says this.
    Warns(&'static str),
    /// It is refused, because of this.
    Refuses(&'static str),
}
use Says::{Nothing, Refuses, Warns};

const FOREIGN: &str = "belongs to user 4711, who can read and change everything";
const OPEN: &str = "others than its owner can read or change everything";

/// Makes the file of a device with an owner and a mode.
fn set(scratch: &Scratch, (owner, mode): (u32, u32)) {
    fs::set_permissions(scratch.path("dev"), fs::Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(scratch.path("dev"), Some(owner), None).unwrap();
}

fn check(run: crate::common::Run, says: Says, what: &str) {
    match says {
        Nothing => assert!(run.code == Some(0) && run.stderr.is_empty(), "{what}: {run:#?}"),
        Warns(why) => {
            assert!(run.code == Some(0), "{what}: {run:#?}");
            assert!(run.stderr.starts_with("nvfold: warning: ") && run.stderr.contains(why), "{what}: {run:#?}");
        }
        Refuses(why) => {
            let run = run.fails(1, why);
            assert!(run.stderr.contains("hint: --force"), "{what}: {run:#?}");
        }
    }
}

#[test]
fn mkfs_refuses_a_file_of_another_user_and_warns_if_others_can_read_it() {
    if !can_mount() {
        return; // chown needs root
    }
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path("."), fs::Permissions::from_mode(0o777)).unwrap();
    let copy = scratch.command_for_all();
    // Who runs it, owner, mode, --force.
    let cases = [
        (0, 0, 0o600, false, Nothing),
        (0, 0, 0o644, false, Warns(OPEN)),
        (0, 0, 0o660, false, Warns(OPEN)),
        (0, OTHER, 0o600, false, Refuses(FOREIGN)),
        (0, OTHER, 0o666, false, Refuses(FOREIGN)),
        (0, OTHER, 0o600, true, Warns(FOREIGN)),
        (NOBODY, NOBODY, 0o600, false, Nothing),
        (NOBODY, NOBODY, 0o640, false, Warns(OPEN)),
        (NOBODY, 0, 0o666, false, Warns(OPEN)),
        (NOBODY, OTHER, 0o666, false, Refuses(FOREIGN)),
        (NOBODY, OTHER, 0o666, true, Warns(FOREIGN)),
    ];
    for (by, owner, mode, force, says) in cases {
        let what = format!("by {by}, of {owner}, mode {mode:o}, force {force}");
        let _ = fs::remove_file(scratch.path("dev"));
        fs::File::create(scratch.path("dev")).unwrap().set_len(64 << 20).unwrap();
        set(&scratch, (owner, mode));
        let (user, group) = (format!("--reuid={by}"), format!("--regid={by}"));
        let mut arguments = vec![&*user, &*group, "--clear-groups", copy.to_str().unwrap(), "mkfs", "dev"];
        arguments.extend(force.then_some("--force"));
        check(scratch.run("setpriv", &arguments), says, &what);
        let is_made = nvfold_is_on(&scratch);
        assert_eq!(is_made, !matches!(says, Refuses(_)), "{what}");
        let kept = fs::metadata(scratch.path("dev")).unwrap().permissions().mode() & 0o777;
        assert_eq!(kept, mode, "{what}: the mode is the user's");
    }
    scratch.nvfold(&["mkfs", "new", "--size", "64M"]).ok();
    assert_eq!(fs::metadata(scratch.path("new")).unwrap().permissions().mode() & 0o777, 0o600);
}

fn nvfold_is_on(scratch: &Scratch) -> bool {
    scratch.nvfold(&["info", "dev"]).code == Some(0)
}

#[test]
fn a_mount_for_all_users_refuses_a_device_file_that_others_may_access() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("mnt")).unwrap();
    scratch.device("dev", "64M");
    // Owner, mode, options, --force. Root's mounts are for others unless it says so.
    let cases = [
        (0, 0o600, "rw", false, Nothing),
        (0, 0o400, "ro", false, Nothing),
        (0, 0o644, "rw", false, Refuses(OPEN)),
        (0, 0o620, "rw", false, Refuses(OPEN)),
        (0, 0o604, "ro", false, Refuses(OPEN)),
        (0, 0o644, "allow_other", false, Refuses(OPEN)),
        (0, 0o644, "allow_other", true, Warns(OPEN)),
        (0, 0o666, "noallow_other", false, Nothing),
        (OTHER, 0o600, "rw", false, Refuses(FOREIGN)),
        (OTHER, 0o600, "ro", false, Refuses(FOREIGN)),
        (OTHER, 0o600, "noallow_other", false, Refuses(FOREIGN)),
        (OTHER, 0o666, "rw", true, Warns(FOREIGN)),
    ];
    for (owner, mode, options, force, says) in cases {
        let what = format!("of {owner}, mode {mode:o}, -o {options}, force {force}");
        set(&scratch, (owner, mode));
        let mut arguments = vec!["mount", "dev", "mnt", "-o", options];
        arguments.extend(force.then_some("--force"));
        let run = scratch.nvfold(&arguments);
        if run.code == Some(0) {
            scratch.nvfold(&["umount", "mnt"]).ok();
        }
        check(run, says, &what);
    }
    set(&scratch, (0, 0o600));
    std::os::unix::fs::symlink("dev", scratch.path("link")).unwrap();
    std::os::unix::fs::lchown(scratch.path("link"), Some(OTHER), None).unwrap();
    check(scratch.nvfold(&["mount", "link", "mnt"]), Refuses(FOREIGN), "a link that another user made");
}
