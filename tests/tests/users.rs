//! Several users of a mount may do what they may do on ext4, and get the same results.
//!
//! `programs/users.c` makes the same random calls on both: root and three users, directories that are sticky or give
//! their group to new files, ACLs, all name spaces of attributes, renames with all flags, links, changes of owner and
//! mode, and changes of nothing. It prints the result of each call, and what root then sees of its paths. Every line
//! must be the same.
//!
//! One difference is known ([`is_known`]). Two things are not compared, because they are not a matter of permissions: sizes of
//! directories, and times that a call sets to the present one.

use nvfold_tests::mount::{Mount, in_own_namespace};
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{probe, run, show};
use std::path::Path;
use std::process::Command;

const STEPS: u64 = 3_000;
const SEEDS: u64 = 4;
/// Each way to cache pages, and each transport.
const OPTIONS: [&str; 3] =
    ["policy=inline", "policy=deext,cache=full,transport=device", "policy=off,cache=none,spin=off"];

/// Returns what the calls print on ext4.
fn on_ext4(program: &Path, seed: u64) -> String {
    let scratch = Scratch::on_disk();
    let script = format!(
        "truncate -s 64M disk
        mkfs.ext4 -q disk
        mkdir ext4
        mount -o loop,noatime disk ext4
        rmdir ext4/lost+found
        {} ext4 {seed} {STEPS} > printed
        umount ext4",
        program.display()
    );
    run::ok(&mut in_own_namespace(scratch.path(), &script));
    std::fs::read_to_string(scratch.join("printed")).expect("the output on ext4")
}

/// Returns what they print on a new mount, whose device is then checked.
fn on_nvfold(program: &Path, options: &str, seed: u64) -> String {
    let mut mount = Mount::with_options(64, options);
    let printed = run::ok(Command::new(program).arg(mount.path()).args([seed.to_string(), STEPS.to_string()])).stdout;
    mount.check();
    printed
}

/// Without the writeback cache, the kernel announces a change of content in the same way as it asks for a change of owner
/// to nobody. So that is not refused if it would change the mode; it does nothing.
fn is_known(options: &str, expected: &str, found: &str) -> bool {
    let refused = ["of nothing = EPERM", ", fchown EPERM", " -1 -1 = EPERM"];
    let is_of_nothing = refused.iter().any(|end| expected.ends_with(end));
    options.contains("cache=none") && is_of_nothing && expected.replace("EPERM", "0") == *found
}

/// Panics at the first line that differs, with the call that it belongs to. Returns the number of known differences.
fn assert_same(options: &str, seed: u64, ext4: &str, nvfold: &str) -> u64 {
    let (mut call, mut known) = ("", 0);
    for (expected, found) in ext4.lines().zip(nvfold.lines()) {
        if !expected.starts_with(' ') {
            call = expected;
        }
        if is_known(options, expected, found) {
            known += 1;
            continue;
        }
        assert_eq!(expected, found, "\nleft: ext4, right: nvfold with {options}, seed {seed}, after\n{call}");
    }
    assert_eq!(ext4.lines().count(), nvfold.lines().count());
    known
}

#[test]
fn random_calls_of_several_users_have_the_results_of_ext4() {
    requires!(root, fuse, tool("unshare"), tool("mkfs.ext4"), tool("cc"));
    let scratch = Scratch::new();
    let program = probe::compiled("users", scratch.path());
    let first = Seed::new("calls of several users");
    let (mut refused, mut known) = (0, 0);
    let seeds = SEEDS * soak_factor();
    for seed in (0..seeds).map(|nth| first.value().wrapping_add(nth)) {
        let ext4 = on_ext4(&program, seed);
        refused += ext4.lines().filter(|line| line.contains("= EPERM") || line.contains("= EACCES")).count();
        let compare = |options: &&str| assert_same(options, seed, &ext4, &on_nvfold(&program, options, seed));
        known += OPTIONS.iter().map(compare).sum::<u64>();
    }
    assert!(refused as u64 > seeds * STEPS / 20, "only {refused} calls were refused");
    show(&format!(
        "calls of four users on ext4 and on {} mounts: {seeds} seeds from {} on, {STEPS} calls each, {refused} refused, \
         differences 0, and {known} that are known",
        OPTIONS.len(),
        first.value(),
    ));
}
