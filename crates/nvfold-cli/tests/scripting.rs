//! What scripts and small terminals get: errors as JSON, names as bytes, exit codes, silence, few columns, no colours.

use crate::common::{Run, Scratch, can_mount, noise};
use crate::top::Terminal;
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

/// Returns the error that a command printed as JSON, whose exit code it must have.
#[track_caller]
fn error(run: &Run) -> Value {
    let line = run.stderr.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no JSON: {run:#?}"));
    let report: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {run:#?}"));
    assert_eq!(report["version"], 1, "{run:#?}");
    assert_eq!(report["error"]["exit_code"].as_i64(), run.code.map(i64::from), "{run:#?}");
    let mut error = report["error"].clone();
    error["command"] = report["command"].clone();
    error
}

#[test]
fn errors_are_json_with_the_name_of_the_system_error_and_the_exit_code() {
    let scratch = Scratch::new();
    scratch.device("pool", "64M");
    fs::write(scratch.path("foreign"), vec![7; 1 << 20]).unwrap();
    // The command line, its exit code, the name of the error, and a part of the reason.
    let cases: [(&[&str], i32, Option<&str>, &str); 9] = [
        (&["info", "nothing"], 1, Some("ENOENT"), "No such file"),
        (&["df", "nothing"], 1, Some("ENOENT"), "No such file"),
        (&["info", "foreign"], 1, Some("EINVAL"), "not"),
        (&["metrics", "pool"], 1, None, "no nvfold is mounted there"),
        (&["info"], 2, None, "required arguments"),
        (&["info", "pool", "--loud"], 2, None, "unexpected argument"),
        (&["mount", "pool", "mnt", "-o", "bogus"], 2, None, "there is no such option"),
        (&["fsck", "foreign"], 8, Some("EINVAL"), "not"),
        (&["fsck", "--loud"], 16, None, "unexpected argument"),
    ];
    for (words, code, errno, why) in cases {
        let run = scratch.nvfold(&[words, &["--json"]].concat()).code_is(code);
        let error = error(&run);
        assert_eq!((error["command"].as_str(), error["errno"].as_str()), (Some(words[0]), errno), "{run:#?}");
        assert!(error["why"].as_str().unwrap().contains(why), "{run:#?}");
        // Without --json, the same as text.
        let text = scratch.nvfold(words).code_is(code);
        assert!(text.stderr.contains(why) && !text.stderr.contains("exit_code"), "{text:#?}");
    }
    // The process in the background says it as it was asked to.
    let refused = scratch.nvfold(&["mount", "foreign", "nowhere", "--json"]).code_is(1);
    assert_eq!(error(&refused)["errno"], "ENOENT");
}

#[test]
fn every_exit_code_of_the_page_is_one_that_commands_have() {
    let page = include_str!("../../../docs/operating/exit-codes.md");
    for words in ["128 + N", "fsck(8)", "`nvfold snapshot diff`", "126", "127"] {
        assert!(page.contains(words), "{words}");
    }
    let scratch = Scratch::new();
    scratch.device("pool", "64M");
    let code = |words: &[&str]| scratch.nvfold(words).code.unwrap();
    assert_eq!((code(&["info", "pool"]), code(&["info", "nothing"]), code(&["info"])), (0, 1, 2));
    assert_eq!((code(&["fsck", "pool"]), code(&["fsck", "nothing"]), code(&["fsck"])), (0, 8, 16));
    assert_eq!(code(&["snapshot", "diff", "nothing", "pool"]), 2);
    // Those of `nvfold run`: `run.rs`.
}

#[test]
fn names_that_are_not_utf_8_are_given_as_bytes_too() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M");
    let name = OsStr::from_bytes(b"a\xffb");
    fs::create_dir(mount.dir.join(name)).unwrap();
    let hex_ends = |value: &Value| value.as_str().is_some_and(|hex| hex.ends_with("61ff62"));
    let path = mount.dir.join(name);
    let nvfold = |words: &[&str], names: &[&std::path::Path]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_nvfold"));
        let output = command.args(words).args(names).arg("--json").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let set = nvfold(&["set", "inodes=10"], &[&path]);
    assert!(hex_ends(&set["directory_hex"]) && hex_ends(&set["top_hex"]), "{set}");
    let copy = mount.dir.join("copy");
    let cloned = nvfold(&["clone"], &[&path, &copy]);
    assert!(hex_ends(&cloned["source_hex"]) && cloned.get("target_hex").is_none(), "{cloned}");
    assert!(nvfold(&["remove"], &[&copy]).get("removed_hex").is_none());
    assert!(hex_ends(&nvfold(&["remove"], &[&path])["removed_hex"][0]));
    mount.unmount();
}

#[test]
fn quiet_commands_print_only_reports() {
    let scratch = Scratch::new();
    let says = |words: &[&str]| {
        let run = scratch.nvfold(words).ok();
        assert_eq!(run.stderr, "", "{words:?}");
        run.stdout
    };
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/file"), noise(100_000, 1)).unwrap();
    assert_eq!(says(&["mkfs", "pool", "--size", "64M", "--quiet"]), "");
    assert_eq!(says(&["-q", "import", "pool", "tree"]), "");
    assert_eq!(says(&["export", "-q", "pool", "out"]), "");
    assert!(says(&["-q", "df", "pool"]).contains("pool"), "a report was asked for");
    assert!(says(&["mkfs", "second", "--size", "64M", "-q", "--json"]).contains("\"command\""), "so was this");
    if !can_mount() {
        return;
    }
    fs::create_dir(scratch.path("mnt")).unwrap();
    assert_eq!(says(&["mount", "-q", "pool", "mnt"]), "");
    assert_eq!(says(&["clone", "-q", "mnt/tree", "mnt/copy"]), "");
    assert_eq!(says(&["umount", "-q", "mnt"]), "");
}

#[test]
fn reports_fit_terminals_of_few_columns() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M");
    fs::write(mount.path("file"), noise(100_000, 1)).unwrap();
    for columns in [40, 60] {
        for words in
            [&["df", "mnt"][..], &["du", "mnt"], &["stats", "mnt"], &["info", "mnt"], &["top", "mnt", "--once"]]
        {
            // Rows enough for all of it: what is longer than the screen would be lost.
            let (_, screen) = Terminal::start(&scratch, columns, 250, words).end();
            let wide = scratch.nvfold(words).ok().stdout;
            assert!(screen.lines().all(|line| line.chars().count() <= usize::from(columns)), "{words:?}:\n{screen}");
            // Whole words: no name is broken by the edge of the screen.
            let names = wide.lines().next().unwrap().split_whitespace().filter(|name| name.len() < 16);
            names.for_each(|name| assert!(screen.contains(name), "{words:?}: no {name} in\n{screen}"));
        }
    }
    mount.unmount();
}

#[test]
fn no_color_is_heeded() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M");
    for (variable, is_coloured) in [(None, true), (Some("1"), false)] {
        let mut terminal = Terminal::start_with(&scratch, 100, 30, &["top", "mnt", "--interval", "0.2"], variable);
        terminal.wait_for("figures are shown", |screen| screen.contains("throughput"));
        assert_eq!(terminal.has_colour(), is_coloured, "NO_COLOR={variable:?}");
        terminal.press("q");
        assert!(terminal.end().0.success());
    }
    mount.unmount();
}
