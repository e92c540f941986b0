//! Every system call with every kind of wrong input has the result that it has on ext4, or is listed with the reason.
//!
//! `programs/errnos.c` makes the calls on both, as root and as an ordinary user, and prints each with its result and what
//! it left behind. The lines that differ must be those of `errnos.differences`, neither more nor fewer. The calls that
//! change the content of files are then made under each other policy, and with other ways to cache: what they print is
//! what they print under the first one.

use nvfold_tests::mount::{Mount, in_own_namespace};
use nvfold_tests::requires;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{probe, run, show};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The calls of each group are the same for root and the user, so both ids of a line are written as `U`.
const USER: &str = "1001";

/// Options of the mounts on which the calls that change content are made.
const OTHERS: [&str; 6] = [
    "policy=off,writeback=off",
    "policy=nv-dedup,transport=device",
    "policy=denova",
    "policy=icid",
    "policy=deext",
    "policy=auto,cache=none",
];

fn on_ext4(program: &Path) -> String {
    let scratch = Scratch::on_disk();
    let script = format!(
        "truncate -s 64M disk
        mkfs.ext4 -q -b 4096 disk
        mkdir ext4
        mount -o loop,noatime disk ext4
        rmdir ext4/lost+found
        {} ext4 all > printed
        umount ext4",
        program.display()
    );
    run::ok(&mut in_own_namespace(scratch.path(), &script));
    std::fs::read_to_string(scratch.join("printed")).expect("the output on ext4")
}

fn on_nvfold(program: &Path, options: &str, what: &str) -> String {
    let mut mount = Mount::with_options(256, options);
    let printed = run::ok(Command::new(program).arg(mount.path()).arg(what)).stdout;
    mount.check();
    printed
}

/// Splits a line into what was done and its result.
fn call_and_result(line: &str) -> (&str, &str) {
    line.split_once(" -> ").or_else(|| line.split_once(":   ")).unwrap_or_else(|| panic!("no result in {line}"))
}

/// Returns the differences as the list has them: `group U: call -> on ext4 | on nvfold`.
fn differences(ext4: &str, nvfold: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut group_call = "";
    for (expected, line) in ext4.lines().zip(nvfold.lines()) {
        let ((call, expected), (of, result)) = (call_and_result(expected), call_and_result(line));
        assert_eq!(call, of, "the calls are the same everywhere");
        // What is under a name is a line of its own, after the call.
        let is_call = line.contains(" -> ");
        group_call = if is_call { call } else { group_call };
        if expected != result {
            let call = if is_call { call.to_owned() } else { format!("{group_call}, then") };
            found.insert(without_ids(&format!("{call} -> {expected} | {result}")));
        }
    }
    assert_eq!(ext4.lines().count(), nvfold.lines().count());
    found
}

fn without_ids(line: &str) -> String {
    let (group, rest) = line.split_once(' ').expect("a group");
    let (_, rest) = rest.split_once(": ").expect("a user");
    format!("{group}: {}", rest.replace(&format!(" {USER}:{USER}"), " U:U").replace(" 0:0", " U:U"))
}

/// Returns the lines of the list that are no comments.
fn listed() -> BTreeSet<String> {
    let lines = include_str!("../errnos.differences").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// Returns the lines of groups whose calls change the content of files.
fn of_groups<'l>(printed: &'l str, groups: &BTreeSet<&str>) -> Vec<&'l str> {
    printed.lines().filter(|line| groups.contains(line.split(' ').next().unwrap_or_default())).collect()
}

#[test]
fn calls_with_wrong_input_have_the_results_of_ext4_or_are_listed() {
    requires!(root, fuse, tool("unshare"), tool("mkfs.ext4"), tool("cc"));
    let scratch = Scratch::new();
    let program = probe::compiled("errnos", scratch.path());
    let ext4 = on_ext4(&program);
    let nvfold = on_nvfold(&program, "policy=inline", "all");
    let (found, listed) = (differences(&ext4, &nvfold), listed());
    let text = |lines: Vec<&String>| lines.into_iter().fold(String::new(), |text, line| format!("{text}\n{line}"));
    assert!(
        found == listed,
        "\nnot in tests/errnos.differences:{}\nlisted there, and no longer so:{}",
        text(found.difference(&listed).collect()),
        text(listed.difference(&found).collect())
    );
    for options in OTHERS {
        let other = on_nvfold(&program, options, "content");
        let groups = other.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        for (expected, line) in of_groups(&nvfold, &groups).into_iter().zip(other.lines()) {
            assert!(expected == line || is_known(options, expected, line), "with {options}: {line}, not {expected}");
        }
    }
    show(&format!("{} lines compared with ext4, {} differences, all listed", ext4.lines().count(), found.len()));
}

/// Without the writeback cache a change of owner to nobody is not refused (`tests/tests/users.rs`).
fn is_known(options: &str, expected: &str, found: &str) -> bool {
    let is_of_nothing = expected.contains("chown nothing") && expected.ends_with("EPERM");
    let has_no_writeback = options.contains("cache=none") || options.contains("writeback=off");
    has_no_writeback && is_of_nothing && expected.replace("EPERM", "0") == *found
}
