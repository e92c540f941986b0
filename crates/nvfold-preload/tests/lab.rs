//! A device, the library, and programs that run with and without it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

pub(crate) const PREFIX: &str = "/nvfold";
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-O1", "-pthread"];

/// A folder for a test, with room for a device.
pub(crate) struct Lab {
    pub dir: tempfile::TempDir,
    pub library: &'static Path,
}

fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Whether a tool is there.
pub(crate) fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
}

/// Whether a tool is there. Without it a test says why it skips; with CI=true it fails.
pub(crate) fn has(tool: &str) -> bool {
    let is_there = is_installed(tool);
    if !is_there {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "{tool} is missing; run scripts/test-deps.sh");
        eprintln!("skipped: there is no {tool}; run scripts/test-deps.sh");
    }
    is_there
}

/// Output of a command that must succeed.
#[track_caller]
pub(crate) fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{}", report(command, &output));
    output
}

pub(crate) fn report(command: &Command, output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{command:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// libnvfold_preload.so, made once a test run of what cargo has just built; `None` when there is no compiler.
pub(crate) fn library() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    MADE.get_or_init(|| {
        if !has("cc") {
            return None;
        }
        let beside = std::env::current_exe().expect("this test is a file").parent().expect("in a folder").to_owned();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
        ok(Command::new(crate_dir().join("../../scripts/preload-library.sh")).arg(beside).arg(&folder));
        Some(folder.join("libnvfold_preload.so"))
    })
    .as_deref()
}

pub(crate) fn lab() -> Option<Lab> {
    let library = library()?;
    // Memory, where there is: a device in a plain file is written to the disk at each sync.
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    Some(Lab { dir: dir.unwrap(), library })
}

impl Lab {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles a program of `tests/c`.
    pub(crate) fn compile(&self, source: &str) -> PathBuf {
        let is_cpp = source.ends_with(".cpp");
        let (compiler, standard) = if is_cpp { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
        let program = self.path(source.split('.').next().expect("a source has a name"));
        let mut command = Command::new(compiler);
        command.arg(standard).args(STRICT).arg(crate_dir().join("tests/c").join(source));
        ok(command.arg("-o").arg(&program));
        program
    }

    /// Compiles a library of `tests/c` that is preloaded too. Its functions are no builtins of the compiler; what it
    /// includes of this test lies in the folder.
    pub(crate) fn compile_library(&self, source: &str) -> PathBuf {
        let library = self.path(&source.replace(".c", ".so"));
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-fno-builtin", "-fPIC", "-shared"]).args(STRICT).arg("-I").arg(self.dir.path());
        ok(command.arg(crate_dir().join("tests/c").join(source)).arg("-o").arg(&library));
        library
    }

    /// A program as `nvfold run` starts it: a shell does the same here, so that these tests need no command.
    pub(crate) fn preloaded(&self, program: impl AsRef<Path>) -> Command {
        self.preloaded_with(program, "create,size=128M")
    }

    pub(crate) fn preloaded_with(&self, program: impl AsRef<Path>, options: &str) -> Command {
        const RUN: &str = "export NVFOLD_RUN_PID=$$ LD_PRELOAD=\"$LIBRARY\"; unset LIBRARY; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", RUN, "sh"]).arg(program.as_ref());
        command.env("LIBRARY", self.library).env("NVFOLD_RUN_PREFIX", PREFIX);
        command.env("NVFOLD_RUN_DEVICE", self.path("device")).env("NVFOLD_RUN_OPTIONS", options);
        command.stdin(Stdio::null());
        command
    }

    /// All files of the device as a tar archive without times, in the order of their names.
    pub(crate) fn archive(&self) -> Vec<u8> {
        let mut command = self.preloaded("tar");
        ok(command.args(ARCHIVE).args(["-C", PREFIX, "."])).stdout
    }

    /// The same of a folder of the host.
    pub(crate) fn archive_of(&self, folder: &Path) -> Vec<u8> {
        ok(Command::new("tar").args(ARCHIVE).arg("-C").arg(folder).arg(".")).stdout
    }
}

/// Modes and content; times and the directory's own differ.
const ARCHIVE: [&str; 6] = ["--sort=name", "--mtime=@0", "--numeric-owner", "--format=gnu", "-c", "-f-"];

/// Fails when the device and a folder of the host differ, with what `diff` says of them.
#[track_caller]
pub(crate) fn assert_same_files(lab: &Lab, host: &Path, what: &str) {
    let (ours, expected) = (lab.archive(), lab.archive_of(host));
    if ours == expected {
        return;
    }
    let unpack = |bytes: &[u8], name: &str| {
        let (archive, folder) = (lab.path(&format!("{name}.tar")), lab.path(name));
        fs::write(&archive, bytes).unwrap();
        fs::create_dir(&folder).unwrap();
        ok(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&folder));
        let list = ok(Command::new("tar").arg("-tvf").arg(&archive));
        (folder, String::from_utf8_lossy(&list.stdout).into_owned())
    };
    let ((ours, our_list), (expected, expected_list)) = (unpack(&ours, "ours"), unpack(&expected, "expected"));
    let differs = Command::new("diff").arg("-r").arg(ours).arg(expected).output().unwrap();
    let lines = our_list.lines().zip(expected_list.lines()).filter(|(ours, expected)| ours != expected);
    let lines: Vec<_> = lines.take(10).collect();
    panic!("{what}: the device and the host differ:\n{}{lines:#?}", String::from_utf8_lossy(&differs.stdout));
}
