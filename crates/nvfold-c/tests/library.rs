//! Makes libnvfold.so of what cargo built beside this test, and finds the tools for that.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The shared library and the headers, where a compiler finds them.
pub(crate) struct Library {
    pub lib_dir: PathBuf,
    pub archive: PathBuf,
    pub include_dir: PathBuf,
}

pub(crate) fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether a tool is there. Without it a test says why it skips; with CI=true it fails.
pub(crate) fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{tool} is missing; run scripts/test-deps.sh");
        eprintln!("skipped: there is no {tool}; run scripts/test-deps.sh");
    }
    is_there
}

/// Runs a command, which must succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

/// The library, made once a test run; `None` when there is no compiler.
pub(crate) fn library() -> Option<&'static Library> {
    static MADE: OnceLock<Option<Library>> = OnceLock::new();
    MADE.get_or_init(|| {
        if !has("cc") {
            return None;
        }
        let beside = std::env::current_exe().expect("this test is a file").parent().expect("in a folder").to_owned();
        // Its name has a hash, one for each set of features and the like; cargo has just made the one for this test, or has
        // found that none is older than the sources.
        let made = |path: &PathBuf| path.metadata().and_then(|metadata| metadata.modified()).ok();
        let is_archive = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libnvfold_c-") && name.ends_with(".a")
        };
        let entries = std::fs::read_dir(&beside).expect("the folder of this test can be read");
        let archives = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_archive);
        let archive = archives.max_by_key(made).expect("cargo builds the library for this test");
        let lib_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libnvfold");
        let script = crate_dir().join("../../scripts/c-library.sh");
        run(Command::new(script).arg(&archive).arg(&lib_dir));
        Some(Library { lib_dir, archive, include_dir: crate_dir().join("include") })
    })
    .as_ref()
}
