//! Other libraries in LD_PRELOAD, before and after this one: a program prints the same, and each library gets the calls
//! that it would get without this one.

use crate::lab::{Lab, PREFIX, lab, ok};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Names that leave the program, names with floats or with arguments on the stack, which the library of the test does not
/// pass on, and names that the library calls for itself as well.
const NOT_COUNTED: [&str; 3] = ["> ", " variadic=", " own"];

/// Runs a program of `tests/c` with these libraries, in a folder of the host or on a new device; returns what it
/// printed, and the calls that were counted.
fn run(lab: &Lab, program: &Path, libraries: &[&Path], dir: &str) -> (String, BTreeSet<String>) {
    let _ = fs::remove_file(lab.path("device"));
    let _ = fs::remove_dir_all(lab.path("host"));
    fs::create_dir(lab.path("host")).unwrap();
    let libraries: Vec<_> = libraries.iter().map(|path| path.to_str().expect("a name of ours")).collect();
    let mut command = match libraries.contains(&lab.library.to_str().expect("a name of ours")) {
        true => lab.preloaded(program),
        false => {
            let mut command = Command::new("env");
            command.arg(format!("LD_PRELOAD={}", libraries.join(":"))).arg(program).stdin(Stdio::null());
            command
        }
    };
    let counts = lab.path("counts");
    let output = ok(command.arg(dir).env("LIBRARY", libraries.join(":")).env("COUNTS", &counts));
    let counts = fs::read_to_string(counts).unwrap_or_default();
    (String::from_utf8(output.stdout).unwrap(), counts.lines().map(str::to_owned).collect())
}

/// Compiles the library that counts all names of interposed.txt.
fn counting(lab: &Lab) -> std::path::PathBuf {
    let list = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("interposed.txt")).unwrap();
    let is_counted = |line: &&str| !line.starts_with('#') && !NOT_COUNTED.iter().any(|part| line.contains(part));
    let names = list.lines().filter(|line| !line.is_empty()).filter(is_counted);
    let wraps = names.map(|line| format!("WRAP({})\n", line.split(' ').next().expect("a name"))).collect::<String>();
    fs::write(lab.path("names.h"), wraps).unwrap();
    lab.compile_library("counting.c")
}

#[test]
fn other_preloaded_libraries_see_each_call_under_its_original_name() {
    let Some(lab) = lab() else { return };
    let counting = counting(&lab);
    let host = lab.path("host");
    let host = host.to_str().expect("a name of ours");
    for source in ["calls.c", "stdio.c", "linux.c"] {
        let program = lab.compile(source);
        let (expected, calls) = run(&lab, &program, &[&counting], host);
        assert!(calls.len() > 15, "{source}: {calls:?}");
        for order in [[&counting, lab.library], [lab.library, &counting]] {
            let (printed, counted) = run(&lab, &program, &order, host);
            assert_eq!(printed, expected, "{source} on the host: {order:?}");
            let differ: Vec<_> = counted.symmetric_difference(&calls).collect();
            assert!(differ.is_empty(), "{source} on the host: {order:?}: {differ:?}");
        }
        let (printed, counted) = run(&lab, &program, &[&counting, lab.library], PREFIX);
        assert_eq!(printed, expected, "{source} on the device");
        let differ: Vec<_> = counted.symmetric_difference(&calls).collect();
        assert!(differ.is_empty(), "{source} on the device: {differ:?}");
        let (printed, _) = run(&lab, &program, &[lab.library, &counting], PREFIX);
        assert_eq!(printed, expected, "{source} on the device");
    }
}

#[test]
fn a_preloaded_library_with_mutually_calling_functions_does_not_recurse_forever() {
    let Some(lab) = lab() else { return };
    let crossing = lab.compile_library("crossing.c");
    let host = lab.path("host");
    let host = host.to_str().expect("a name of ours");
    for source in ["calls.c", "stdio.c"] {
        let program = lab.compile(source);
        let (expected, _) = run(&lab, &program, &[&crossing], host);
        for order in [[&crossing, lab.library], [lab.library, &crossing]] {
            for dir in [host, PREFIX] {
                assert_eq!(run(&lab, &program, &order, dir).0, expected, "{source} in {dir}: {order:?}");
            }
        }
    }
}
