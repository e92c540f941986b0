//! `nvfold run`: what it refuses, and how it becomes a program. Programs on a device: crates/nvfold-preload/tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

/// Any library will do for what happens before the program starts.
const SOME_LIBRARY: &str = env!("CARGO_BIN_EXE_nvfold");

/// `nvfold run ARGUMENTS`, with something in place of the library.
fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfold"));
    command.arg("run").args(arguments).env("NVFOLD_PRELOAD", SOME_LIBRARY).output().unwrap()
}

/// Exit code and message for a program.
fn refused(program: &Path) -> (Option<i32>, String) {
    let output = run(&["--device", "/nowhere", "--", program.to_str().expect("a name of ours")]);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn executable(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn nvfold_run_refuses_programs_that_it_cannot_serve_and_explains_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let set_id = path("setuid");
    fs::copy("/bin/true", &set_id).unwrap();
    fs::set_permissions(&set_id, fs::Permissions::from_mode(0o4755)).unwrap();
    let (code, said) = refused(&set_id);
    assert!(code == Some(126) && said.contains("setuid") && said.contains("the loader ignores"), "{code:?} {said}");

    // An ELF file without PT_INTERP is what a static program is.
    let mut elf = vec![0; 120];
    elf[..5].copy_from_slice(b"\x7fELF\x02");
    (elf[18], elf[32], elf[54], elf[56]) = (62, 64, 56, 1);
    executable(&path("static"), &elf);
    let (code, said) = refused(&path("static"));
    assert!(code == Some(126) && said.contains("statically linked"), "{code:?} {said}");
    elf[18] = 40;
    executable(&path("arm"), &elf);
    let (code, said) = refused(&path("arm"));
    assert!(code == Some(126) && said.contains("x86-64"), "{code:?} {said}");

    // A script is its interpreter.
    executable(&path("script"), format!("#! {} -x\n", path("static").display()).as_bytes());
    let (code, said) = refused(&path("script"));
    assert!(code == Some(126) && said.contains("statically linked") && said.contains("static:"), "{code:?} {said}");
    executable(&path("circle"), format!("#!{}\n", path("circle").display()).as_bytes());
    assert_eq!(refused(&path("circle")).0, Some(126));
    assert_eq!(refused(folder.path()).0, Some(126));
    let (code, said) = refused(&path("none"));
    assert!(code == Some(127) && said.contains("no such program"), "{code:?} {said}");
    assert_eq!(run(&["--device", "/nowhere", "--", "no-such-program-anywhere"]).status.code(), Some(127));
}

/// Compiles a program of C; false when there is no compiler.
fn compiled(arguments: &[&str], source: &str, folder: &Path) -> bool {
    let file = folder.join("source.c");
    fs::write(&file, source).unwrap();
    match Command::new("cc").arg(&file).args(arguments).current_dir(folder).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(_) => {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "cc is missing; run scripts/test-deps.sh");
            eprintln!("skipped: there is no cc; run scripts/test-deps.sh");
            false
        }
    }
}

#[test]
fn go_programs_and_io_uring_users_are_recognised_by_their_executable() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let library = ["-shared", "-fPIC", "-Wl,-soname,liburing.so.2", "-o", "liburing.so.2"];
    if !compiled(&library, "int io_uring_setup_of_a_test(void) { return 0; }", folder.path()) {
        return;
    }
    let source = "int io_uring_setup_of_a_test(void); int main(void) { return io_uring_setup_of_a_test(); }";
    compiled(&["-o", "uring", "-L.", "-l:liburing.so.2"], source, folder.path());
    let (code, said) = refused(&path("uring"));
    assert!(code == Some(126) && said.contains("io_uring"), "{code:?} {said}");
    // What Go's linker leaves in each of its programs.
    let note = "__asm__(\".pushsection .note.go.buildid, \\\"a\\\", @note\\n.long 4, 4, 4\\n.asciz \\\"Go\\\"\\n\
                .byte 0\\n.long 1\\n.popsection\"); int main(void) { return 0; }";
    compiled(&["-o", "go"], note, folder.path());
    let (code, said) = refused(&path("go"));
    assert!(code == Some(126) && said.contains("Go program"), "{code:?} {said}");
    compiled(&["-static", "-o", "static"], "int main(void) { return 0; }", folder.path());
    let (code, said) = refused(&path("static"));
    assert!(code == Some(126) && said.contains("statically linked"), "{code:?} {said}");
}

#[test]
fn nvfold_run_refuses_wrong_arguments_with_exit_code_2() {
    for prefix in ["/", "relative", "/a/../b", "/end/"] {
        let output = run(&["--device", "/nowhere", "--prefix", prefix, "--", "true"]);
        assert_eq!(output.status.code(), Some(2), "{prefix}");
    }
    assert_eq!(run(&["--device", "/nowhere"]).status.code(), Some(2));
    assert_eq!(run(&["--", "true"]).status.code(), Some(2), "neither a device nor a mount");
    for with in [["--device", "d"], ["--prefix", "/p"], ["-o", "ro"]] {
        assert_eq!(run(&["--mount", "/", with[0], with[1], "--", "true"]).status.code(), Some(2), "{with:?}");
    }
    let output = run(&["--mount", "/", "--", "true"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no nvfold is mounted there"), "{output:?}");
    assert_eq!(run(&["--device", "/nowhere", "-o", "size=1G,format", "--", "true"]).status.code(), Some(2));
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfold"));
    let output =
        command.args(["run", "--device", "d", "true"]).env("NVFOLD_PRELOAD", "/no/library.so").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint: `make install`"), "{output:?}");
}

#[test]
fn nvfold_run_replaces_itself_by_the_program() {
    // A library that does nothing: the loader says so of what is none, and goes on.
    let print = "echo $NVFOLD_RUN_DEVICE $NVFOLD_RUN_PREFIX $NVFOLD_RUN_OPTIONS $$ $NVFOLD_RUN_PID $LD_PRELOAD; exit 7";
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvfold"));
    command.args([
        "run",
        "--device",
        "/dev/pool",
        "--prefix",
        "/data",
        "-o",
        "ro",
        "-o",
        "policy=off",
        "--",
        "sh",
        "-c",
        print,
    ]);
    let output = command.env("NVFOLD_PRELOAD", SOME_LIBRARY).env("LD_PRELOAD", "other.so").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!((words[0], words[1], words[2]), ("/dev/pool", "/data", "ro,policy=off"));
    assert_eq!(words[3], words[4], "its number is the program's");
    let preloaded: Vec<&str> = words[5].split(':').collect();
    assert!(preloaded.len() == 2 && preloaded[1] == "other.so", "{preloaded:?}");
    assert_eq!(output.status.code(), Some(7));
    let killed = run(&["--device", "/nowhere", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.signal(), Some(15));
}
