//! C and C++ programs: the examples, with what they print, and programs that check by themselves (`tests/c`).

use crate::library::{Library, crate_dir, has, library, run};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

/// Compiles a program strictly, against the headers and the library as a user would.
fn compile(library: &Library, source: &Path, into: &Path) -> PathBuf {
    let is_cpp = source.extension().is_some_and(|ending| ending == "cpp");
    let (compiler, standard) = if is_cpp { ("c++", "-std=c++17") } else { ("cc", "-std=c99") };
    let program = into.join(source.file_stem().expect("a source has a name"));
    let mut command = Command::new(compiler);
    command.arg(standard).args(STRICT).arg("-pthread").arg("-I").arg(&library.include_dir).arg(source);
    command.arg("-o").arg(&program).arg("-L").arg(&library.lib_dir).arg("-lnvfold");
    run(command.arg(format!("-Wl,-rpath,{}", library.lib_dir.display())));
    program
}

struct Lab {
    dir: tempfile::TempDir,
    library: &'static Library,
}

/// A folder for a test, and the library; `None` when there is no compiler.
fn lab() -> Option<Lab> {
    let library = library().filter(|_| has("cc") && has("c++"))?;
    Some(Lab { dir: tempfile::tempdir().unwrap(), library })
}

impl Lab {
    fn device(&self) -> String {
        self.dir.path().join("device").to_str().expect("a name of ours").to_owned()
    }

    fn example(&self, name: &str) -> PathBuf {
        compile(self.library, &crate_dir().join("examples").join(name), self.dir.path())
    }

    /// Runs a program of `tests/c`, which must succeed.
    fn check(&self, name: &str, arguments: &[&str]) -> String {
        let program = compile(self.library, &crate_dir().join("tests/c").join(name), self.dir.path());
        out(run(Command::new(program).args(arguments).current_dir(self.dir.path())))
    }
}

fn out(output: Output) -> String {
    String::from_utf8(output.stdout).expect("programs print text")
}

/// What an example prints, on memory and on a new device in a file.
fn prints(name: &str, options: &str, expected: &str) {
    let Some(lab) = lab() else { return };
    let program = lab.example(name);
    let print = |device: &str, options: &str| out(run(Command::new(&program).arg(device).arg(options)));
    assert_eq!(print("mem:", options), expected, "mem:");
    assert_eq!(print(&lab.device(), &format!("{options},create")), expected, "a file");
}

#[test]
fn valgrind_reports_no_error_in_the_c_library() {
    let Some(lab) = lab().filter(|_| has("valgrind")) else { return };
    let program = compile(lab.library, &crate_dir().join("tests/c/posix.c"), lab.dir.path());
    let mut command = Command::new("valgrind");
    let output = run(command.args(["-q", "--error-exitcode=9"]).arg(program).current_dir(lab.dir.path()));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn the_program_of_figure_5_shares_the_appended_bytes() {
    let Some(lab) = lab() else { return };
    let program = lab.example("append.c");
    // Files to append, and that they are right afterwards.
    lab.check("append_files.c", &["make", &lab.device()]);
    let append = || {
        let mut command = Command::new(&program);
        out(run(command.args(["/A", "/B"]).env("ICID_DEVICE", lab.device())))
    };
    assert_eq!(append(), "appended 100000 bytes, 100000 of them shared; stored bytes grew by 0\n");
    assert_eq!(append(), "appended 100000 bytes, 100000 of them shared; stored bytes grew by 0\n");
    lab.check("append_files.c", &["check", &lab.device()]);
    let without = Command::new(&program).args(["/A", "/B"]).env_remove("ICID_DEVICE").output().unwrap();
    assert!(String::from_utf8_lossy(&without.stderr).contains("ICID_DEVICE"), "{without:?}");
}

#[test]
fn the_program_of_figure_3_stores_only_the_changed_blocks() {
    prints("figure3.c", "size=64M", "shared 8192 bytes, stored 8192\nthe second file is right\n");
}

#[test]
fn the_program_of_figure_4_shares_unchanged_bytes_and_stores_changed_ones() {
    let expected = "as it was: shared 20000, stored 0\n\
                    copied on: shared 20000, stored 0\n\
                    in a vector: shared 20000, stored 0\n\
                    changed in memory: shared 11808, stored 8192\n\
                    from the mapping: shared 8192, stored 0\n\
                    closed: shared 0, stored 8192\n";
    prints("figure4.c", "size=64M", expected);
}

#[test]
fn the_tour_example_prints_the_expected_output() {
    let expected = format!(
        "nvfold {}\n\
         data ends at 4096, goes on at 1048576\n\
         Dear reader,\n\
         cloned reader\n\
         1048585 bytes, mode 100644, 2 links\n\
         /latest -> docs/letter\n\
         policy of /docs: off\n\
         /docs/letter\n\
         /docs/clone\n\
         /docs/again\n\
         mapped: Dear\n\
         error: nvfold_open: /none/file: none: no such file or directory\n",
        env!("CARGO_PKG_VERSION")
    );
    prints("tour.c", "size=64M", &expected);
}

#[test]
fn concurrent_appends_are_atomic() {
    prints("threads.c", "size=64M", "8 threads, 500 lines each, all whole\n");
}

#[test]
fn a_merge_in_cpp_shares_the_records_of_both_files() {
    let expected = "merged 131072 bytes: 131072 shared, stored bytes grew by 0\nthe merged file is right\n";
    prints("merge.cpp", "size=64M,policy=icid,origin_min=64", expected);
}

#[test]
fn bad_arguments_give_a_defined_errno() {
    let Some(lab) = lab() else { return };
    lab.check("bad_input.c", &[]);
}

#[test]
fn handles_of_two_devices_and_closed_handles_are_not_confused() {
    let Some(lab) = lab() else { return };
    lab.check("handles.c", &[&lab.device()]);
}

#[test]
fn wrong_origins_from_a_c_program_never_change_file_content() {
    let Some(lab) = lab() else { return };
    lab.check("origins.c", &[]);
}

#[test]
fn a_write_to_a_full_device_fails_completely() {
    let Some(lab) = lab() else { return };
    lab.check("full.c", &[]);
}

#[test]
fn data_survives_exit_without_close_and_a_forked_child_has_no_device() {
    let Some(lab) = lab() else { return };
    lab.check("process.c", &["write", &lab.device()]);
    lab.check("process.c", &["read", &lab.device()]);
    lab.check("process.c", &["fork", &lab.device()]);
    lab.check("process.c", &["read", &lab.device()]);
}

#[test]
fn calls_that_race_with_a_close_always_return() {
    let Some(lab) = lab() else { return };
    lab.check("closing.c", &[&lab.device()]);
}

#[test]
fn the_c_calls_behave_as_posix_requires() {
    let Some(lab) = lab() else { return };
    lab.check("posix.c", &[]);
}

/// Devices of the levels `memory` (a file there, and `mem:`) and `file`, with what the options say.
fn devices(lab: &Lab) -> Option<[String; 3]> {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "/dev/shm is missing");
        eprintln!("skipped: there is no /dev/shm");
        return None;
    }
    let in_memory = shm.join(lab.dir.path().file_name().expect("a folder of ours")).with_extension("device");
    Some([in_memory.to_str().expect("a name of ours").into(), "mem:".into(), lab.device()])
}

#[test]
fn a_program_that_closes_all_descriptors_keeps_its_own_files_intact() {
    let Some(lab) = lab() else { return };
    let Some(devices) = devices(&lab) else { return };
    let folder = lab.dir.path().to_str().expect("a name of ours");
    for device in &devices {
        for policy in ["off", "inline", "nv-dedup", "denova", "icid", "deext", "auto"] {
            let options = format!("size=128M,create,format,policy={policy}");
            lab.check("closefrom.c", &[device, &options, folder, "work"]);
        }
        // Only the close finds out, and says so.
        lab.check("closefrom.c", &[device, "size=128M,create,format", folder, "close"]);
    }
    let _ = std::fs::remove_file(&devices[0]);
}

#[test]
fn threads_of_the_library_receive_no_signal_of_the_program() {
    let Some(lab) = lab() else { return };
    let Some(devices) = devices(&lab) else { return };
    // The program's thread, that of the background, and at level `file` one that syncs.
    for (device, threads) in devices.iter().zip(["2", "2", "3"]) {
        lab.check("signals.c", &[device, "size=64M,create,policy=denova", threads]);
    }
    let _ = std::fs::remove_file(&devices[0]);
}

/// The attribute that panics is there in builds with debug assertions alone.
#[test]
#[cfg(debug_assertions)]
fn a_panic_gives_eio_and_disables_only_its_device() {
    let Some(lab) = lab() else { return };
    lab.check("panic.c", &[&lab.device()]);
}

#[test]
fn each_header_compiles_alone_in_c99_and_cpp17() {
    let Some(lab) = lab() else { return };
    for header in ["nvfold.h", "icid.h"] {
        for (name, text) in [("alone.c", "int main(void) { return 0; }"), ("alone.cpp", "int main() {}")] {
            let source = lab.dir.path().join(name);
            std::fs::write(&source, format!("#include <{header}>\n{text}\n")).unwrap();
            compile(lab.library, &source, lab.dir.path());
        }
    }
}

#[test]
fn the_static_library_can_be_linked_too() {
    let Some(lab) = lab() else { return };
    let program = lab.dir.path().join("tour");
    let mut command = Command::new("cc");
    command.arg("-std=c99").args(STRICT).arg("-I").arg(&lab.library.include_dir);
    command.arg(crate_dir().join("examples/tour.c")).arg("-o").arg(&program).arg(&lab.library.archive);
    run(command.args(["-lgcc_s", "-lpthread", "-ldl", "-lrt", "-lm"]));
    assert!(out(run(&mut Command::new(program))).starts_with("nvfold "));
}

#[test]
fn pkg_config_finds_the_installed_c_library() {
    let Some(lab) = lab() else { return };
    if !has("pkg-config") {
        return;
    }
    let prefix = lab.dir.path().join("usr");
    let script = crate_dir().join("../../scripts/c-install.sh");
    run(Command::new(script).arg(&lab.library.archive).arg(&prefix));
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "nvfold"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = out(run(&mut command));
    let program = lab.dir.path().join("tour");
    let mut command = Command::new("cc");
    command.arg("-std=c99").arg(crate_dir().join("examples/tour.c")).arg("-o").arg(&program);
    run(command.args(flags.split_whitespace()));
    let printed = run(Command::new(program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(out(printed).starts_with("nvfold "));
}

#[test]
fn the_example_of_the_readme_compiles() {
    let Some(lab) = lab() else { return };
    let page = std::fs::read_to_string(crate_dir().join("../../README.md")).unwrap();
    let example = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("README.md has one");
    let source = lab.dir.path().join("readme.c");
    std::fs::write(&source, format!("{example}\nint main(void) {{ return append(0) == 0; }}\n")).unwrap();
    compile(lab.library, &source, lab.dir.path());
}
