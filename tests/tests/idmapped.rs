//! An idmapped mount of a mount (`-o idmap`) shows other owners, and lets their users do what they may do on tmpfs.
//!
//! `programs/idmapped.c` maps a directory, makes and changes files in it as root, as users that are mapped and as one that
//! is not, and prints the results and the owners on both sides. Every line must be the same on both. The kernel then does
//! not tell who sent a request, so everything that depends on the user is refused to users, and works for root.

use nvfold_tests::mount::{Mount, command, in_own_namespace, nvfold};
use nvfold_tests::requires;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{probe, run, show};
use rustix::io::Errno;
use std::path::Path;
use std::process::Command;

/// Returns whether the kernel has idmapped mounts of FUSE (Linux 6.12).
fn kernel_maps() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

fn on(program: &Path, dir: &Path) -> String {
    let target = Scratch::new();
    run::ok(Command::new(program).arg(dir).arg(target.path())).stdout
}

fn on_tmpfs(program: &Path) -> String {
    let scratch = Scratch::new();
    let script =
        format!("mkdir tmpfs mapped && mount -t tmpfs none tmpfs && {} tmpfs mapped > printed", program.display());
    run::ok(&mut in_own_namespace(scratch.path(), &script));
    std::fs::read_to_string(scratch.join("printed")).expect("the output on tmpfs")
}

#[test]
fn an_idmapped_mount_gives_the_results_that_tmpfs_gives() {
    requires!(root, fuse, tool("unshare"), tool("cc"));
    let scratch = Scratch::new();
    let program = probe::compiled("idmapped", scratch.path());
    assert_eq!(on(&program, Mount::fresh(64, "inline").path()), "cannot be mapped: EINVAL\n", "without the option");
    if !kernel_maps() {
        eprintln!("skipped: FUSE has no idmapped mounts before Linux 6.12");
        return;
    }
    let expected = on_tmpfs(&program);
    let mut mount = Mount::with_options(64, "policy=inline,idmap");
    let found = on(&program, mount.path());
    for (expected, found) in expected.lines().zip(found.lines()) {
        assert_eq!(expected, found, "left: tmpfs, right: nvfold");
    }
    assert_eq!(expected.lines().count(), found.lines().count());
    show(&format!("an idmapped mount: {} lines are the same on tmpfs", found.lines().count()));
    mount.check();
}

#[test]
fn without_caller_ids_in_requests_only_root_gets_user_dependent_answers() {
    requires!(root, fuse, tool("setpriv"));
    if !kernel_maps() {
        eprintln!("skipped: FUSE has no idmapped mounts before Linux 6.12");
        return;
    }
    let mut mount = Mount::with_options(64, "policy=icid,idmap,share=all");
    let dir = mount.path().to_owned();
    let file = mount.join("file");
    std::fs::write(&file, vec![7; 65536]).expect("write");
    std::os::unix::fs::chown(&file, Some(1001), Some(1001)).expect("chown");
    // Root's commands work.
    nvfold(&["dedup"], &[&file]).success();
    nvfold(&["undedup"], &[&file]).success();
    assert!(nvfold(&["stats"], &[&dir]).success().stdout.contains("chunk"), "root sees the figures");
    // The owner's and root's plain requests, of which nobody knows from whom they come, do not.
    for name in ["user.nvfold.dedup-range.0.65536", "user.nvfold.extents.0", "user.nvfold.token", "user.nvfold.drain"] {
        let refused = rustix::fs::getxattr(&file, name, &mut [0u8; 4096][..]).expect_err(name);
        assert!([Errno::PERM, Errno::NODATA].contains(&refused), "{name}: {refused}");
    }
    // Other users cannot use root's names.
    let mut asks = Command::new("setpriv");
    asks.args(["--reuid=1001", "--regid=1001", "--clear-groups"]).arg(command().get_program());
    let told = run::run(asks.arg("dedup").arg(&file));
    assert_ne!(told.code(), 0, "{}", told.report());
    mount.check();
}
