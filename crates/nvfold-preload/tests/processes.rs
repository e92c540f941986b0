//! Processes: how a program ends, what its children see, what it does to its descriptors, and crashes.

use crate::lab::{Lab, PREFIX, is_installed, lab, ok, report};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What `cat` says of a file of the device.
fn content(lab: &Lab, name: &str) -> Option<String> {
    let output = lab.preloaded("cat").arg(format!("{PREFIX}/{name}")).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[test]
fn stdio_buffers_are_flushed_at_exit_and_written_data_survives_any_end() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("exits.c");
    for (way, code, ends_in_order) in [
        ("return", Some(6), true),
        ("exit", Some(5), true),
        ("_exit", Some(3), false),
        ("quick_exit", Some(4), false),
        ("abort", None, false),
    ] {
        let output = lab.preloaded(&program).args([way, PREFIX]).output().unwrap();
        assert_eq!(output.status.code(), code, "{way}: {output:?}");
        if code.is_none() {
            assert_eq!(output.status.signal(), Some(6), "{way}");
        }
        assert_eq!(content(&lab, "written").as_deref(), Some("written"), "{way}");
        let expected = if ends_in_order { "in the buffer" } else { "" };
        assert_eq!(content(&lab, "left").as_deref(), Some(expected), "{way}");
        if ends_in_order {
            assert_eq!(content(&lab, "atexit").as_deref(), Some("by atexit"), "{way}");
            assert_eq!(content(&lab, "destructor").as_deref(), Some("by a destructor"), "{way}");
        }
        ok(lab
            .preloaded("rm")
            .arg("-f")
            .args(["written", "left", "atexit", "destructor"].map(|name| format!("{PREFIX}/{name}"))));
    }
}

#[test]
fn stores_to_shared_mappings_survive_any_end_of_the_program() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("mappings_end.c");
    for way in ["return", "_exit", "exec", "killed"] {
        let status = lab.preloaded(&program).args(["store", way, PREFIX]).status().unwrap();
        assert_eq!((status.success(), status.signal()), (way != "killed", (way == "killed").then_some(9)), "{way}");
        let content = content(&lab, way).unwrap();
        assert_eq!((content.len(), &content[..1], &content[8191..]), (8192, "s", "t"), "{way}");
    }
}

#[test]
fn stores_to_a_shared_mapping_without_space_are_reported_and_kept_in_memory() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("mappings_end.c");
    ok(lab.preloaded_with(&program, "create,size=16M").args(["full", PREFIX]));
    assert_eq!(ok(lab.preloaded("wc").args(["-c", "/nvfold/mapped"])).stdout, b"1048576 /nvfold/mapped\n");
}

#[test]
fn children_start_in_an_existing_directory() {
    let Some(lab) = lab() else { return };
    // The shell of the test has the prefix as its working directory, and pwd is a program.
    let script = "cd /nvfold && /bin/pwd && ls -A && touch made; cd /nvfold/..";
    let mut command = lab.preloaded("sh");
    let output = ok(command.args(["-c", script]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/proc/tty/ldisc\n", "{said}");
    assert_eq!(said.lines().count(), 1, "touch alone complains: {said}");
}

#[test]
fn descriptors_below_the_prefix_come_from_the_kernel_and_close_in_any_way() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("closes.c");
    ok(lab.preloaded(&program).arg(PREFIX));
    assert_eq!(content(&lab, "out").as_deref(), Some("out"));
    assert_eq!(content(&lab, "err").as_deref(), Some("err"));
}

#[test]
fn unsupported_calls_fail_with_a_defined_errno() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("refusals.c");
    ok(lab.preloaded(&program).arg(PREFIX).arg(lab.dir.path()));
}

#[test]
fn a_forked_child_has_no_device_and_prints_one_warning() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("children.c");
    let mut command = lab.preloaded(&program);
    let output = command.arg(PREFIX).output().unwrap();
    assert!(output.status.success(), "{}", report(&command, &output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let messages: Vec<&str> = said.lines().filter(|line| line.starts_with("nvfold run: process")).collect();
    assert!(messages.iter().all(|line| line.contains("fails with EIO")), "{said}");
    let mut speakers: Vec<&str> = messages.iter().filter_map(|line| line.split_whitespace().nth(3)).collect();
    // Three by fork, echo, cat, system's cat and popen's cat, in both programs. (touch finds no directory, and has nothing to say.)
    let count = speakers.len();
    speakers.sort_unstable();
    speakers.dedup();
    assert_eq!(speakers.len(), count, "each says it once: {said}");
    assert_eq!(count, 14, "{said}");
    assert_eq!(content(&lab, "f").as_deref(), Some("content"));
}

#[test]
fn two_thousand_threads_use_a_device_at_once() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("threads.c");
    ok(lab.preloaded(&program).arg(PREFIX));
}

#[test]
fn a_program_that_is_killed_while_it_writes_loses_nothing_that_was_acknowledged() {
    let Some(lab) = lab() else { return };
    let program = lab.compile("killed.c");
    let soak: usize = std::env::var("NVFOLD_SOAK").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    let mut lines_to_read = 37;
    for round in 0..10 * soak {
        if round % 10 == 0 {
            ok(lab.preloaded("rm").args(["-f", "/nvfold/log"]));
        }
        let mut child = lab.preloaded(&program).args(["write", PREFIX]).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged: u64 = 0;
        for _ in 0..lines_to_read {
            acknowledged = lines.next().expect("it writes until it is killed").unwrap().parse().unwrap();
        }
        lines_to_read = lines_to_read * 29 % 101 + 5;
        child.kill().unwrap();
        child.wait().unwrap();
        // What it said before it died, and nobody had read.
        for line in lines.map_while(Result::ok) {
            acknowledged = line.parse().unwrap_or(acknowledged);
        }
        let output = ok(lab.preloaded(&program).args(["check", PREFIX]));
        let found: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert!(found == acknowledged || found == acknowledged + 1, "{found} blocks, {acknowledged} acknowledged");
    }
}

#[test]
fn a_program_does_not_start_if_its_device_cannot_be_opened() {
    let Some(lab) = lab() else { return };
    let mut command = lab.preloaded_with("echo", "policy=all");
    let output = command.arg("started").output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(125), 0), "{}", report(&command, &output));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("nvfold run: option policy=all: "), "{output:?}");
    // Another process has it, as soon as it has answered.
    let mut owner = lab.preloaded("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = owner.stdin.take().unwrap();
    input.write_all(b"are you there?\n").unwrap();
    let mut answer = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert_eq!(answer, "are you there?\n");
    let output = lab.preloaded("true").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains(&owner.id().to_string()), "{said}");
    drop(input);
    assert!(owner.wait().unwrap().success());
    ok(&mut lab.preloaded("true"));
}

/// The command itself: the one that cargo built, or NVFOLD_BIN.
fn nvfold() -> Option<PathBuf> {
    let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("nvfold"));
    let path = std::env::var_os("NVFOLD_BIN").map(PathBuf::from).or_else(built).filter(|path| path.is_file());
    if path.is_none() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "the nvfold command is not built; run `make test`");
        eprintln!("skipped: the nvfold command is not built; run `make test`");
    }
    path
}

#[test]
fn the_command_runs_programs_on_a_device() {
    let (Some(lab), Some(nvfold)) = (lab(), nvfold()) else { return };
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&nvfold);
        command.args(["run", "--device", "pool"]).args(arguments).env("NVFOLD_PRELOAD", lab.library);
        command.current_dir(lab.dir.path());
        command
    };
    ok(&mut run(&["-o", "create,size=64M", "--", "cp", "/etc/passwd", "/nvfold/copy"]));
    let there = ok(&mut run(&["--", "cat", "/nvfold/copy"]));
    assert_eq!(there.stdout, fs::read("/etc/passwd").unwrap());
    // Elsewhere, and by a program that is executed in place of another one.
    let there = ok(&mut run(&["--prefix", "/some/where", "--", "env", "nice", "cat", "/some/where/copy"]));
    assert_eq!(there.stdout, fs::read("/etc/passwd").unwrap());
    // Others see it as any device.
    let info = ok(Command::new(&nvfold).arg("fsck").arg(lab.path("pool")));
    assert!(info.status.success());
}

#[test]
fn programs_with_address_sanitizer_run_and_their_errors_are_found() {
    let (Some(lab), Some(nvfold)) = (lab(), nvfold()) else { return };
    // The runtime as a library, and as a part of the program; clang's is the latter.
    for (compiler, flags) in [("cc", "-fsanitize=address"), ("cc", "-static-libasan"), ("clang", "-fsanitize=address")]
    {
        if compiler == "clang" && !is_installed(compiler) {
            continue;
        }
        let program = lab.path("sanitized");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/sanitized.c");
        let mut command = Command::new(compiler);
        ok(command.args(["-g", "-O1", "-fsanitize=address", flags]).arg(source).arg("-o").arg(&program));
        let run = |arguments: &[&str]| {
            let mut command = Command::new(&nvfold);
            command.args(["run", "--device", "mem:", "-o", "size=64M", "--"]).arg(&program).arg(PREFIX);
            command.args(arguments).env("NVFOLD_PRELOAD", lab.library).env("ASAN_OPTIONS", "exitcode=42");
            command.output().unwrap()
        };
        let output = run(&[]);
        assert_eq!(output.status.code(), Some(0), "{compiler} {flags}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "8890 bytes, 0\n", "{compiler} {flags}");
        let output = run(&["wrong"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(42), "{compiler} {flags}: {said}");
        assert!(said.contains("heap-buffer-overflow"), "{compiler} {flags}: {said}");
    }
}

#[test]
fn programs_without_the_environment_variables_are_not_affected() {
    let Some(lab) = lab() else { return };
    let output = ok(Command::new("ls").arg("/").env("LD_PRELOAD", lab.library));
    assert_eq!(output.stdout, ok(Command::new("ls").arg("/")).stdout);
}
