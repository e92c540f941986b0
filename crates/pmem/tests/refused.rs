//! Programs that must not compile. The compiler runs on each of them with the library that cargo has built for this
//! test, and its errors must be those that lie beside the program. `NVFOLD_WRITE_REFUSALS=1` writes these anew, when the
//! compiler's words change.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Compiles each program in a folder of the present crate, which uses `library`.
pub(crate) fn all_are_refused(library: &str, folder: &str) {
    let archive = archive_of(library);
    let mut programs: Vec<PathBuf> =
        files(Path::new(folder)).filter(|path| path.extension() == Some("rs".as_ref())).collect();
    programs.sort();
    assert!(!programs.is_empty(), "no program in {folder}");
    for program in programs {
        let errors = errors_of(&program, library, &archive);
        let expected = program.with_extension("stderr");
        if env::var_os("NVFOLD_WRITE_REFUSALS").is_some() {
            fs::write(&expected, &errors).expect("write the errors");
        }
        assert!(!errors.is_empty(), "{} compiles", program.display());
        let expected = fs::read_to_string(&expected).unwrap_or_default();
        assert_eq!(errors, expected, "the errors of {}", program.display());
    }
}

/// Returns the errors of a program, a line each.
fn errors_of(program: &Path, library: &str, archive: &Path) -> String {
    let mut dependencies = std::ffi::OsString::from("dependency=");
    dependencies.push(archive.parent().expect("it is in a folder"));
    let out = tempfile::tempdir().expect("a folder");
    let compiled = Command::new(env::var_os("RUSTC").unwrap_or("rustc".into()))
        .args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "--error-format=short", "--extern"])
        .arg(format!("{library}={}", archive.display()))
        .arg("-L")
        .arg(dependencies)
        .arg("--out-dir")
        .arg(out.path())
        .arg(program)
        .output()
        .expect("the compiler that has built this test");
    let said = String::from_utf8_lossy(&compiled.stderr);
    let errors: Vec<&str> = said.lines().filter(|line| line.contains(": error")).collect();
    assert!(compiled.status.success() == errors.is_empty(), "{}: {said}", program.display());
    errors.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the newest archive of a library beside this test.
fn archive_of(library: &str) -> PathBuf {
    let beside = env::current_exe().expect("this test is a file").parent().expect("in a folder").to_owned();
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("lib{library}-")) && name.ends_with(".rlib")
    };
    let age = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
    files(&beside).filter(is_it).max_by_key(age).expect("cargo builds the library for this test")
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path())
}
