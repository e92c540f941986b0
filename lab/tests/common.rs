//! What the tests of the laboratory share: a scratch directory, and the command in it.

use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No experiment takes nearly as long with small sizes; one that hangs fails.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A scratch directory, in memory where there is /dev/shm.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        Scratch(tempfile::Builder::new().prefix("nvfold-lab-").tempdir_in(parent).unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `nvfold-lab` with the scratch directory as its working directory.
    pub(crate) fn lab(&self, arguments: &[&str]) -> Run {
        self.run(env!("CARGO_BIN_EXE_nvfold-lab"), arguments)
    }

    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Run {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(self.0.path())
            // A table of umount(8) that cannot be: a mount changes none of the host's.
            .env("LIBMOUNT_UTAB", "/dev/null/utab")
            .timeout(TIMEOUT)
            .output()
            .unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}"));
        Run {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// What the command did.
#[derive(Debug)]
pub(crate) struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub(crate) fn ok(self) -> Run {
        self.code_is(0)
    }

    /// Fails with `code` and says `why` on stderr.
    pub(crate) fn fails(self, code: i32, why: &str) -> Run {
        let run = self.code_is(code);
        assert!(run.stderr.starts_with("nvfold-lab: ") && run.stderr.contains(why), "`{why}` is not in {run:#?}");
        run
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    fn code_is(self, code: i32) -> Run {
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }
}
