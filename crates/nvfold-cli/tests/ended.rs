//! A command that a signal ends ends, by that signal, and leaves nothing behind: no mount, no process, no folder, and a
//! device that is sound.
//!
//! Each command is given work, and stopped (SIGSTOP) as soon as it is seen at it: it has a certain file open, or something
//! is mounted. Then the signal is sent, and the command goes on. So it always comes in the midst of the work, and nothing
//! depends on how long that takes.

use crate::common::{Scratch, can_mount, noise, process_lives, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];
const FILES: usize = 48;
/// How often a command may be done with its work before a signal comes.
const TRIES_MAX: u32 = 100;

/// A command that runs, and all processes that it starts.
struct Started {
    child: Child,
    /// In the environment of each of its processes.
    mark: String,
}

impl Started {
    fn new(scratch: &Scratch, arguments: &[&str]) -> Started {
        let mark = format!("NVFOLD_TEST_MARK={}", scratch.path(&arguments.join("_")).display());
        let (name, value) = mark.split_once('=').unwrap();
        // The tests may run where signals are ignored, as under nohup.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT,TERM,HUP").arg(env!("CARGO_BIN_EXE_nvfold"));
        command.args(arguments).current_dir(scratch.path(".")).env(name, value).env("LIBMOUNT_UTAB", "/dev/null/utab");
        let stderr = fs::File::create(scratch.path("stderr")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Started { child, mark }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn send(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Stops it when it is seen at work. False if it had ended before.
    fn is_caught(&mut self, is_at_work: &dyn Fn(u32) -> bool) -> bool {
        while !is_at_work(self.pid()) {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
        }
        self.send(Signal::STOP);
        let mut state = None;
        wait_until("it is stopped or ended", || {
            state = state_of(self.pid());
            matches!(state, Some('T' | 'Z'))
        });
        state == Some('T')
    }

    /// Waits for the end of the command.
    fn end_alone(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the command ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits for the end of the command, and of all that it has started.
    fn end(mut self) -> ExitStatus {
        let status = self.end_alone();
        wait_until("all that it started ends", || marked(&self.mark).is_empty());
        status
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The living processes with a mark in their environment.
fn marked(mark: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_mark = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == mark.as_bytes())
    };
    pids.filter(|pid| process_lives(*pid)).filter(has_mark).collect()
}

fn has_argument(pid: u32, argument: &str) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    arguments.split(|byte| *byte == 0).any(|one| one == argument.as_bytes())
}

/// Whether a process has a handler for a signal.
fn catches(pid: u32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 1)
}

/// Whether a process has a file open whose path begins so.
fn has_open(pid: u32, path: &Path) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).any(|file| file.starts_with(path))
}

fn is_mounted_below(dir: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|mounted| Path::new(mounted).starts_with(dir)))
}

/// Runs a command until it is caught at work, and ends it by signals. One that is done with its work when the signal comes
/// succeeds; it is tried again, and must be ended at last. `NEW` in an argument becomes a new name each time.
fn end_at_work(
    scratch: &Scratch,
    arguments: &[&str],
    signals: &[Signal],
    is_at_work: &dyn Fn(u32) -> bool,
) -> ExitStatus {
    static TRIES: AtomicU32 = AtomicU32::new(0);
    for _ in 0..TRIES_MAX {
        let new = TRIES.fetch_add(1, Ordering::Relaxed).to_string();
        let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("NEW", &new)).collect();
        let mut started = Started::new(scratch, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        if started.is_caught(is_at_work) {
            signals.iter().for_each(|signal| started.send(*signal));
            started.send(Signal::CONT);
        }
        let status = started.end();
        if !status.success() {
            let said = fs::read_to_string(scratch.path("stderr")).unwrap();
            assert!(status.signal().is_some(), "{arguments:?}: {status}: {said}");
            return status;
        }
    }
    panic!("{arguments:?} is never ended");
}

/// A folder with a tree and a device that holds it.
fn prepared() -> Scratch {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::create_dir(scratch.path("out")).unwrap();
    for file in 0..FILES {
        fs::write(scratch.path("tree").join(format!("{file}")), noise(512 << 10, file as u64 / 2)).unwrap();
    }
    // Room for all that is tried again, and for undoing its sharing.
    scratch.device("device", "1G");
    scratch.nvfold(&["import", "device", "tree", "--policy", "off"]).ok();
    scratch
}

#[test]
fn every_long_command_ends_by_the_signal_and_leaves_a_consistent_device() {
    let scratch = prepared();
    let (tree, device) = (scratch.path("tree"), scratch.path("device"));
    let commands: [(&[&str], PathBuf); 9] = [
        (&["import", "device", "tree", "--to", "/NEW"], tree.clone()),
        (&["export", "device", "out/NEW"], scratch.path("out")),
        (&["verify", "device", "tree"], tree.clone()),
        (&["estimate", "tree"], tree.clone()),
        (&["fsck", "device"], device.clone()),
        (&["dedup", "device"], device.clone()),
        (&["undedup", "device"], device.clone()),
        (&["reclaim", "device"], device.clone()),
        (&["tune", "device", "--index", "pm"], device.clone()),
    ];
    for (turn, (arguments, opens)) in commands.into_iter().enumerate() {
        // Each signal for the first one, and one for each of the others.
        let signals = if turn == 0 { &SIGNALS[..] } else { &SIGNALS[turn % 3..][..1] };
        for signal in signals {
            let status = end_at_work(&scratch, arguments, &[*signal], &|pid| has_open(pid, &opens));
            assert_eq!(status.signal(), Some(signal.as_raw()), "{arguments:?}: {status}");
        }
    }
    scratch.nvfold(&["fsck", "device"]).ok();
}

#[test]
fn a_second_signal_ends_a_command_at_once() {
    let scratch = prepared();
    let tree = scratch.path("tree");
    // Both are taken when it goes on, the first one in the midst of the work.
    let signals = [Signal::HUP, Signal::TERM];
    let status =
        end_at_work(&scratch, &["import", "device", "tree", "--to", "/NEW"], &signals, &|pid| has_open(pid, &tree));
    assert!(signals.iter().any(|signal| status.signal() == Some(signal.as_raw())), "{status}");
    scratch.nvfold(&["fsck", "device"]).ok();
}

#[test]
fn a_foreground_mount_unmounts_on_each_ending_signal() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("mnt")).unwrap();
    scratch.device("device", "64M");
    let dir = scratch.path("mnt");
    for signal in SIGNALS {
        let started = Started::new(&scratch, &["mount", "-f", "device", "mnt"]);
        wait_until("it is mounted", || is_mounted_below(&dir) && dir.metadata().is_ok());
        fs::write(dir.join("file"), b"text").unwrap();
        started.send(signal);
        assert!(started.end().success(), "{signal:?}");
        assert!(!is_mounted_below(&dir), "{signal:?}");
        let info = scratch.nvfold(&["info", "device"]).ok();
        assert!(!info.stdout.contains("in use") && !info.stdout.contains("crash"), "{info:#?}");
    }
}

#[test]
fn a_mount_command_interrupted_at_its_start_unmounts_again() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("mnt")).unwrap();
    for signal in SIGNALS {
        let mut started = Started::new(&scratch, &["mount", "mem:", "mnt", "-o", "size=64M"]);
        let mut server = None;
        wait_until("there is a server", || {
            // Not the copy of the command that is about to become the server: the command waits for that, whatever comes.
            server = marked(&started.mark).into_iter().find(|pid| has_argument(*pid, "--background-child"));
            server.is_some()
        });
        let server = server.unwrap();
        send(server, Signal::STOP);
        wait_until("the server is stopped", || state_of(server) == Some('T'));
        started.send(signal);
        wait_until("the command ends", || !process_lives(started.pid()));
        send(server, Signal::CONT);
        if started.end_alone().success() {
            // The server had reported already.
            scratch.nvfold(&["umount", "mnt"]).ok();
        }
        wait_until("the server ends", || !process_lives(server));
        assert!(!is_mounted_below(&scratch.path("mnt")), "{signal:?}");
    }
}

#[test]
fn repeating_reports_end_by_the_signal() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M");
    for (arguments, signal) in [
        (&["top", "mnt", "--json", "--interval", "0.1"][..], Signal::HUP),
        (&["top", "mnt", "--json", "--interval", "3600"], Signal::TERM),
    ] {
        let started = Started::new(&scratch, arguments);
        wait_until("it looks", || catches(started.pid(), signal));
        started.send(signal);
        assert_eq!(started.end().signal(), Some(signal.as_raw()), "{arguments:?}");
    }
    mount.unmount();
}

fn bench_in(scratch: &Scratch, signal: Signal) -> ExitStatus {
    let dir = scratch.path("mounts");
    let mut started =
        Started::new(scratch, &["bench", "write", "--mebibytes", "4", "--repeats", "1000", "--dir", "mounts"]);
    wait_until("the benchmark opens a file on its mount", || {
        let runs = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let mut mounts = runs.map(|run| run.join("nvfold-off.mount/direct/lane0"));
        mounts.any(|file| file.exists()) || started.child.try_wait().unwrap().is_some()
    });
    started.send(signal);
    started.end()
}

#[test]
fn an_interrupted_benchmark_removes_its_mounts_and_folders() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.path("mounts");
    fs::create_dir(&dir).unwrap();
    for signal in [Signal::HUP, Signal::TERM] {
        assert_eq!(bench_in(&scratch, signal).signal(), Some(signal.as_raw()));
        assert!(!is_mounted_below(&dir), "{signal:?}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "{signal:?}");
    }
    // Killed, it can take down nothing itself: its servers end with it, and the next run removes the rest.
    assert_eq!(bench_in(&scratch, Signal::KILL).signal(), Some(Signal::KILL.as_raw()));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!table.lines().any(|line| line.contains("fuse.nvfold") && line.contains(dir.to_str().unwrap())), "{table}");
    scratch.nvfold(&["bench", "write", "--smoke", "--embedded-only", "--dir", "mounts"]).ok();
    assert!(!is_mounted_below(&dir));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}
