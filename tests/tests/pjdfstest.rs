//! POSIX conformance: every test of `pjdfstest` runs on the mount, and none may fail.
//!
//! A test is skipped only if `pjdfstest.skips` lists it with the limit of the kernel that forbids it. The tests of
//! read-only mounts need `mount -o remount,ro`, which is refused while a file is open for writing. Other tests of the
//! suite leave files open, so these tests run in a separate process.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvfold_tests::mount::{self, Mount};
use nvfold_tests::requires::tool;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, run};

#[test]
fn every_test_of_pjdfstest_passes_over_the_mount() {
    requires!(root, fuse, tool("pjdfstest"));
    let listed = skips();
    for policy in mount::POLICIES {
        let mut mount = Mount::fresh(256, policy);
        let all = pjdfstest(&mount, false, &[]);
        let read_only = if mount.is_real() { pjdfstest(&mount, true, &["erofs"]) } else { Verdicts::new() };
        let verdicts = merged(all, read_only);
        println!("policy {policy}: {} tests", verdicts.len());
        assert!(verdicts.len() > 350, "pjdfstest has some 400 tests, {} ran", verdicts.len());
        for (test, verdict) in &verdicts {
            let skipped_with_reason = verdict == "skipped" && listed.contains_key(test);
            let stand_in = !mount.is_real() && test.contains("erofs");
            assert!(verdict == "ok" || skipped_with_reason || stand_in, "policy {policy}: {test}: {verdict}");
        }
        mount.check();
    }
}

#[test]
fn every_skip_of_pjdfstest_has_a_test_and_a_reason() {
    for (test, reason) in skips() {
        assert!(test.contains("::") && reason.len() > 20, "{test}: {reason}");
    }
}

/// Maps the name of a test to `ok`, `skipped` or `FAILED`.
type Verdicts = BTreeMap<String, String>;

/// Returns the lines of `pjdfstest.skips`: test name to reason.
fn skips() -> BTreeMap<String, String> {
    std::fs::read_to_string(file("pjdfstest.skips"))
        .expect("read pjdfstest.skips")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (test, reason) = line.split_once(": ").unwrap_or_else(|| panic!("no reason: {line}"));
            (test.to_owned(), reason.to_owned())
        })
        .collect()
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn pjdfstest(mount: &Mount, allow_remount: bool, patterns: &[&str]) -> Verdicts {
    let aside = Scratch::on_disk();
    let config = std::fs::read_to_string(file("pjdfstest.toml")).expect("read pjdfstest.toml");
    let config = config.replace("allow_remount = false", &format!("allow_remount = {allow_remount}"));
    let config_path = aside.join("pjdfstest.toml");
    std::fs::write(&config_path, config).expect("write the configuration");
    let suite = run::run(
        Command::new(tool("pjdfstest"))
            .arg("--configuration-file")
            .arg(config_path)
            .arg("--secondary-fs")
            .arg(tempfs(&aside))
            .arg("--path")
            .arg(suite_dir(mount))
            .args(patterns)
            .env("PATH", path_with_plain_mount(&aside))
            .env("NO_COLOR", "1")
            .env_remove("RUST_BACKTRACE"),
    );
    let verdicts = parse(&suite.stdout);
    let failed: Vec<_> = verdicts.iter().filter(|(_, verdict)| *verdict == "FAILED").collect();
    assert!(suite.status.success() && failed.is_empty(), "{failed:?}\n{}", suite.report());
    verdicts
}

/// Merges two runs: a test counts as skipped only if both skipped it.
fn merged(mut all: Verdicts, more: Verdicts) -> Verdicts {
    for (test, verdict) in more {
        if verdict != "skipped" {
            all.insert(test, verdict);
        }
    }
    all
}

/// Parses lines of the form `name   verdict`, with explanations below some.
fn parse(output: &str) -> Verdicts {
    let lines = output.lines().filter(|line| !line.starts_with(char::is_whitespace));
    lines
        .filter_map(|line| line.rsplit_once(char::is_whitespace))
        .filter(|(_, verdict)| ["ok", "skipped", "FAILED"].contains(verdict))
        .map(|(test, verdict)| (test.trim().to_owned(), verdict.to_owned()))
        .collect()
}

/// Makes another file system than the mount, for EXDEV.
fn tempfs(aside: &Scratch) -> PathBuf {
    let dir = aside.join("other");
    std::fs::create_dir(&dir).expect("make a directory");
    dir
}

/// Returns a directory for the suite. The suite computes a path of exactly PATH_MAX bytes from its base directory,
/// and fails by itself if the length of the base is 9 modulo 127; the returned directory avoids that.
fn suite_dir(mount: &Mount) -> PathBuf {
    let dir = mount.join("suite");
    let dir = if dir.as_os_str().len() % 127 == 9 { mount.join("suite2") } else { dir };
    std::fs::create_dir_all(&dir).expect("make the suite's directory");
    dir
}

/// Returns a PATH with a `mount` that adds `-i`. Without it `mount -o remount` of a FUSE mount calls a helper program
/// that cannot remount; `-i` asks the kernel. The suite runs `mount` from PATH.
fn path_with_plain_mount(aside: &Scratch) -> String {
    let bin = aside.join("bin");
    std::fs::create_dir(&bin).expect("make a directory");
    let script = bin.join("mount");
    let text = format!("#!/bin/sh\nexec {} -i \"$@\"\n", tool("mount").display());
    std::fs::write(&script, text).expect("write the script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default())
}
