//! What the tests of the command share: a scratch directory, the command in it, mounts that always go away.
#![allow(dead_code)] // Each test file uses a part.

use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// No command of these tests takes nearly as long; one that hangs fails.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Random-looking bytes, the same for the same seed.
pub(crate) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next_byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next_byte()).collect()
}

/// A scratch directory, in memory where there is /dev/shm.
pub(crate) struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        Scratch { dir: tempfile::Builder::new().prefix("nvfold-cli-").tempdir_in(parent).unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command with the scratch directory as its working directory.
    pub(crate) fn nvfold(&self, arguments: &[&str]) -> Run {
        self.run(env!("CARGO_BIN_EXE_nvfold"), arguments)
    }

    pub(crate) fn run(&self, program: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Run {
        let output = Command::new(program.as_ref())
            .args(arguments)
            .current_dir(self.dir.path())
            // A table of umount(8) that cannot be: a mount changes none of the host's.
            .env("LIBMOUNT_UTAB", "/dev/null/utab")
            .timeout(TIMEOUT)
            .output()
            .unwrap_or_else(|error| panic!("{:?} {arguments:?}: {error}", program.as_ref()));
        Run {
            call: arguments.join(" "),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// A copy of the command that every user can run. By cp: if this process wrote it, the child of another test might
    /// hold it open for writing just when it is to be run.
    pub(crate) fn command_for_all(&self) -> PathBuf {
        let copy = self.path("nvfold");
        self.run("cp", &[env!("CARGO_BIN_EXE_nvfold"), copy.to_str().unwrap()]).ok();
        copy
    }

    /// A formatted device.
    pub(crate) fn device(&self, name: &str, size: &str) {
        self.nvfold(&["mkfs", name, "--size", size]).ok();
    }

    /// Mounts a device at `mnt`; unmounted when the result is dropped.
    pub(crate) fn mount(&self, device: &str, options: &str) -> Mount<'_> {
        let dir = self.path("mnt");
        std::fs::create_dir_all(&dir).unwrap();
        let run = self.nvfold(&["mount", device, "mnt", "-o", options, "--json"]).ok();
        let pid = run.json()["pid"].as_u64().unwrap() as u32;
        Mount { scratch: self, dir, pid }
    }
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Run {
    pub call: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub(crate) fn ok(self) -> Run {
        self.code_is(0)
    }

    pub(crate) fn code_is(self, code: i32) -> Run {
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Fails with `code` and says `why` on stderr, as `nvfold COMMAND: what: why`.
    pub(crate) fn fails(self, code: i32, why: &str) -> Run {
        let run = self.code_is(code);
        assert!(run.stderr.starts_with("nvfold"), "{run:#?}");
        assert!(run.stderr.contains(why), "`{why}` is not in {run:#?}");
        run
    }

    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"));
        let is_second = ["df", "stats", "dedup-stats", "top"].iter().any(|command| value["command"] == *command);
        assert_eq!(value["version"], 1 + u8::from(is_second), "{self:#?}");
        value
    }

    /// One number of a JSON report.
    pub(crate) fn number(&self, field: &str) -> u64 {
        self.json()[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {self:#?}"))
    }
}

/// A mount.
pub(crate) struct Mount<'s> {
    scratch: &'s Scratch,
    pub dir: PathBuf,
    pub pid: u32,
}

impl Mount<'_> {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Unmounts in order.
    pub(crate) fn unmount(self) {
        // Between fork and exec, the child of another test has copies of our open files.
        wait_until("the mount is not busy", || {
            let run = self.scratch.nvfold(&["umount", "mnt"]);
            let is_busy = run.stderr.contains("busy");
            if !is_busy {
                run.ok();
            }
            !is_busy
        });
        assert!(!process_lives(self.pid), "umount returned before the process was gone");
    }

    pub(crate) fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(&format!(" {} ", self.dir.display()))
    }

    /// Waits until the serving process is gone.
    pub(crate) fn wait_for_end(&self) {
        wait_until("the serving process ends", || !process_lives(self.pid));
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = Command::new("umount").arg("-l").arg(&self.dir).timeout(TIMEOUT).output();
        }
    }
}

pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that is no more than a zombie does not live. Its first thread may be one while others still end, and hold what the
/// process had open.
pub(crate) fn process_lives(pid: u32) -> bool {
    let lives = |thread: std::fs::DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = status.rsplit(") ").next().and_then(|rest| rest.chars().next());
        state.is_some_and(|state| state != 'Z' && state != 'X')
    };
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.flatten().any(lives))
}

/// Whether this machine can mount. Says why not; under CI that is a failure.
pub(crate) fn can_mount() -> bool {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0);
    let missing = match (Path::new("/dev/fuse").exists(), is_root) {
        (false, _) => "/dev/fuse is missing",
        (_, false) => "root is needed",
        _ => return true,
    };
    assert!(std::env::var_os("CI").is_none(), "cannot mount: {missing}");
    eprintln!("skipped: {missing}");
    false
}
