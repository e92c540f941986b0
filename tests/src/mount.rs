//! The real `nvfold` binary mounting the test's own device; killed on drop.
//!
//! A [`Mount`] owns its scratch directory, its device and the process that serves it. Whatever happens to the test (a
//! panic, an early return, a file system that hangs), dropping the mount detaches it, kills the process and removes
//! the files. A watchdog kills the process if the test takes longer than any test should, so that a hang becomes a
//! failure with ENOTCONN.
//!
//! With `NVFOLD_TEST_DIR` set there is no mount: [`Mount::path`] is a fresh directory below it, and
//! unmounting and checking do nothing.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal};

use crate::run::{self, Outcome};
use crate::scratch::Scratch;

/// The policies every suite runs under. Policy denova writes as policy off does.
pub const POLICIES: [&str; 3] = ["inline", "nv-dedup", "denova"];

/// Returns the options of a mount with a policy. Each policy uses another transport and another way to cache pages,
/// so that the suites cover all of them: io_uring where it works, /dev/fuse with polling and with sleeping, with all
/// pages in the kernel's cache, with some, with none.
fn options_of(policy: &str) -> String {
    let way = match policy {
        "off" => ",transport=device,spin=off,cache=full",
        "nv-dedup" => ",transport=device",
        "denova" => ",cache=none",
        _ => "",
    };
    format!("policy={policy}{way}")
}

/// Time limit for mounting and unmounting while other tests use all processors.
const TURN_LIMIT: Duration = Duration::from_secs(120);

/// Returns the age at which a mount's process counts as hung: longer than any program that runs on it.
fn life_limit() -> Duration {
    run::limit() + TURN_LIMIT
}

/// A formatted device and, most of the time, a process that serves it.
pub struct Mount {
    scratch: Scratch,
    device: PathBuf,
    dir: PathBuf,
    options: String,
    daemon: Option<Daemon>,
    dead: bool,
    bare: Option<tempfile::TempDir>,
    /// Holds the device if it is not in memory.
    _disk: Option<tempfile::TempDir>,
}

/// The serving process and the thread that kills it if it lives too long.
struct Daemon {
    child: Child,
    over: mpsc::Sender<()>,
    watchdog: Option<thread::JoinHandle<()>>,
}

impl Mount {
    /// Formats a device of `mib` MiB in memory and mounts it with a policy.
    pub fn fresh(mib: u64, policy: &str) -> Mount {
        Mount::with_options(mib, &options_of(policy))
    }

    /// Formats a device of `mib` MiB in memory and mounts it with these `-o` options.
    pub fn with_options(mib: u64, options: &str) -> Mount {
        Mount::on(None, mib, options)
    }

    /// As `fresh`, with the device in a temporary directory, which is on a disk unless TMPDIR says otherwise.
    pub fn on_disk(mib: u64, policy: &str) -> Mount {
        let disk = tempfile::tempdir().expect("make a temporary directory");
        Mount::on(Some(disk), mib, &options_of(policy))
    }

    fn on(disk: Option<tempfile::TempDir>, mib: u64, options: &str) -> Mount {
        let scratch = Scratch::new();
        let device = disk.as_ref().map_or(scratch.path(), tempfile::TempDir::path).join("device");
        let dir = scratch.join("mnt");
        std::fs::create_dir(&dir).expect("make the mount point");
        let options = options.to_owned();
        let mut mount = Mount { scratch, device, dir, options, daemon: None, dead: false, bare: None, _disk: disk };
        if let Some(parent) = test_dir() {
            let bare = tempfile::tempdir_in(parent).expect("make a directory in NVFOLD_TEST_DIR");
            mount.dir = bare.path().to_owned();
            mount.bare = Some(bare);
            return mount;
        }
        mkfs(&mount.device, mib << 20);
        mount.mount();
        mount
    }

    /// Returns the root of the mounted tree.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns a path in the mounted tree.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the path of the device file.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Returns the scratch directory, in memory and outside the mount.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns false if the suite runs on a plain directory instead (`NVFOLD_TEST_DIR`).
    pub fn is_real(&self) -> bool {
        self.bare.is_none()
    }

    /// Sets the `-o` options of the next mount.
    pub fn set_options(&mut self, options: &str) {
        self.options = options.to_owned();
    }

    /// Mounts the device with the options it had.
    #[track_caller]
    pub fn mount(&mut self) {
        if !self.is_real() {
            return;
        }
        assert!(self.daemon.is_none(), "mounted already");
        self.clear_dead_mount();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.scratch.join("daemon.log"))
            .expect("open the log of the serving process");
        let child = serving_command()
            .args(["mount", "--foreground", "-o", &self.options])
            .arg(&self.device)
            .arg(&self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("share the log"))
            .stderr(log)
            .spawn()
            .expect("start nvfold mount");
        self.daemon = Some(Daemon::guard(child));
        self.wait_until_mounted();
    }

    #[track_caller]
    fn wait_until_mounted(&mut self) {
        let end = Instant::now() + TURN_LIMIT;
        while !is_mount_point(&self.dir) {
            let ended = self.daemon.as_mut().and_then(Daemon::ended);
            assert!(
                ended.is_none() && Instant::now() < end,
                "nvfold mount {ended:?} without mounting:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn clear_dead_mount(&mut self) {
        if std::mem::take(&mut self.dead) {
            detach(&self.dir);
        }
    }

    /// Unmounts cleanly and waits for the serving process, which must succeed.
    #[track_caller]
    pub fn unmount(&mut self) {
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        let umount = self.umount();
        if !umount.status.success() {
            self.daemon = Some(daemon);
            panic!("{}", umount.report());
        }
        let status = run::wait_at_most(&mut daemon.child, TURN_LIMIT);
        assert!(
            status.is_some_and(|status| status.success()),
            "the serving process ended with {status:?} (None: it hung):\n{}",
            self.log()
        );
    }

    /// Runs `nvfold umount`. A child that another test is starting has copies of our open files until it executes its
    /// program, so EBUSY is tried again.
    fn umount(&self) -> Outcome {
        let end = Instant::now() + TURN_LIMIT;
        loop {
            let outcome = run::run(command().arg("umount").arg(&self.dir));
            if !outcome.stderr.contains("busy") || Instant::now() > end {
                return outcome;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Unmounts cleanly, checks the device, mounts it again.
    #[track_caller]
    pub fn remount(&mut self) {
        self.unmount();
        self.check();
        self.mount();
    }

    /// Returns the number of the serving process.
    #[track_caller]
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.daemon.as_ref().expect("mounted").child)
    }

    /// Kills the serving process as a crash would. The dead mount stays in the tree until [`Mount::mount`], so that a
    /// program that still uses it gets ENOTCONN and not the directory below.
    #[track_caller]
    pub fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.child.kill().expect("kill the serving process");
            daemon.child.wait().expect("wait for the serving process");
            self.dead = true;
        }
    }

    /// Waits until the serving process ends by itself; returns its exit status.
    #[track_caller]
    pub fn wait_until_ended(&mut self) -> std::process::ExitStatus {
        let mut daemon = self.daemon.take().expect("mounted");
        self.dead = true;
        let status = run::wait_at_most(&mut daemon.child, TURN_LIMIT);
        status.unwrap_or_else(|| panic!("the serving process did not end:\n{}", self.log()))
    }

    /// Returns whether something is mounted at the place of this mount.
    pub fn is_in_tree(&self) -> bool {
        is_mount_point(&self.dir)
    }

    /// Runs `nvfold fsck` on the unmounted device; returns its exit code and output.
    #[track_caller]
    pub fn fsck(&self) -> Outcome {
        assert!(self.daemon.is_none(), "fsck wants an unmounted device");
        nvfold(&["fsck"], &[&self.device])
    }

    /// Unmounts if mounted; panics unless fsck finds the device clean.
    #[track_caller]
    pub fn check(&mut self) {
        self.unmount();
        if self.is_real() {
            let outcome = self.fsck();
            assert_eq!(outcome.code(), 0, "{}", outcome.report());
        }
    }

    /// Returns what the serving process wrote to its standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("daemon.log")).unwrap_or_default()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.daemon.is_some() || self.dead {
            detach(&self.dir);
        }
        if let Some(mut daemon) = self.daemon.take() {
            let _ = daemon.child.kill();
            let _ = daemon.child.wait();
        }
        if thread::panicking() && self.is_real() {
            eprintln!("log of the serving process:\n{}", self.log());
        }
    }
}

impl Daemon {
    /// Starts the watchdog of a serving process.
    fn guard(child: Child) -> Daemon {
        let (over, done) = mpsc::channel::<()>();
        let pid = Pid::from_child(&child);
        let watchdog = thread::spawn(move || {
            // The child is reaped only after `over` is dropped, so its pid cannot have been reused here.
            if done.recv_timeout(life_limit()) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("a mount lived longer than {:?}: killing its process as hung", life_limit());
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        });
        Daemon { child, over, watchdog: Some(watchdog) }
    }

    fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().expect("wait for the serving process")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.over.send(());
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
    }
}

/// Returns the directory that replaces a mount, if `NVFOLD_TEST_DIR` names one.
pub fn test_dir() -> Option<PathBuf> {
    std::env::var_os("NVFOLD_TEST_DIR").map(PathBuf::from)
}

/// Returns the path of the `nvfold` binary: `NVFOLD_BIN`, or built once from this workspace.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("NVFOLD_BIN") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = run::ok(
        Command::new(env!("CARGO")).args(["build", "-p", "nvfold-cli", "--message-format=json"]).current_dir(root),
    );
    built
        .stdout
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .unwrap_or_else(|| panic!("cargo built no executable: {}", built.report()))
}

/// A table of umount(8) that cannot be: with it in the environment (LIBMOUNT_UTAB), a test changes none of the host's.
pub const NO_UTAB: &str = "/dev/null/utab";

/// Returns a bash that runs a script in a directory and in a mount namespace of its own. Mounts elsewhere are detached from
/// that namespace first: a copy of another test's mount keeps its server running after that test has unmounted it. One may be
/// gone by then: the kernel detaches it everywhere when the other test removes its mount point.
pub fn in_own_namespace(dir: &Path, script: &str) -> Command {
    const DETACH_OTHERS: &str = r#"
        { findmnt -rno TARGET -t fuse.nvfold || true; } | while read -r mounted; do
            case "$mounted" in "$PWD" | "$PWD"/*) continue ;; esac
            "$NVFOLD" umount --lazy "$mounted" || [ -z "$(findmnt -rno TARGET "$mounted" || true)" ]
        done >/dev/null
    "#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "bash", "-euo", "pipefail", "-c"]);
    unshare.arg(format!("{DETACH_OTHERS}\n{script}")).current_dir(dir);
    unshare.env("LIBMOUNT_UTAB", NO_UTAB).env("NVFOLD", std::fs::canonicalize(binary()).expect("the binary is there"));
    unshare
}

/// Returns an `nvfold` command.
pub fn command() -> Command {
    let mut command = Command::new(binary());
    command.env("LIBMOUNT_UTAB", NO_UTAB);
    command
}

/// Runs `nvfold WORDS PATHS`.
#[track_caller]
pub fn nvfold(words: &[&str], paths: &[&Path]) -> Outcome {
    run::run(command().args(words).args(paths))
}

/// Runs `nvfold WORDS PATHS` and parses its output as JSON.
#[track_caller]
pub fn nvfold_json(words: &[&str], paths: &[&Path]) -> serde_json::Value {
    let outcome = nvfold(words, paths).success();
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("not JSON: {error}\n{}", outcome.report()))
}

/// Makes a device file of `bytes` with `nvfold mkfs`.
#[track_caller]
pub fn mkfs(device: &Path, bytes: u64) {
    nvfold(&["mkfs", "--size", &bytes.to_string()], &[device]).success();
}

/// Returns an `nvfold` command that the kernel kills if the test itself is killed (its guards do not run then).
fn serving_command() -> Command {
    match crate::requires::find_tool("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(binary()).env("LIBMOUNT_UTAB", NO_UTAB);
            command
        }
        None => command(),
    }
}

fn is_mount_point(dir: &Path) -> bool {
    let device_of = |path: &Path| path.symlink_metadata().map(|meta| meta.dev()).ok();
    let parent = dir.parent().unwrap_or(dir);
    device_of(dir).is_some_and(|device| Some(device) != device_of(parent))
}

/// Takes a mount out of the tree even if its process is gone or hangs.
fn detach(dir: &Path) {
    let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
}
