//! One user of a mount cannot stop another one, nor the server.
//!
//! `programs/neighbour.c` is the user who floods the server, holds locks in the kernel, and sends what no program would
//! send. Another user works beside him and compares what he reads. No time is asserted, except that nothing hangs; the
//! longest wait is printed.

use nvfold_tests::mount::{Mount, nvfold};
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires;
use nvfold_tests::run::{self, Outcome};
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{probe, show};
use rustix::process::{Pid, Signal};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const ATTACKER: u32 = 1001;
const VICTIM: u32 = 1002;
/// The policies that the server knows.
const POLICIES: [&str; 9] =
    ["off", "inline", "nv-dedup", "denova", "deext", "icid", "icid+inline", "icid+deext", "auto"];
/// As many processes as flood the server: more than it has threads.
const PROCESSES: &str = "300";
const ROUNDS: &str = "20";
/// The most threads of an idle server: those that stay to answer requests, and those for other work.
const IDLE_THREADS: usize = 48;

/// A mount with a directory for each user.
struct Shared {
    mount: Mount,
    program: PathBuf,
    _scratch: Scratch,
}

impl Shared {
    fn new(mount: Mount) -> Shared {
        let scratch = Scratch::new();
        let program = probe::compiled("neighbour", scratch.path());
        for (name, uid, mode) in [("attacker", ATTACKER, 0o700), ("victim", VICTIM, 0o700), ("open", VICTIM, 0o755)] {
            let dir = mount.join(name);
            fs::create_dir(&dir).expect("mkdir");
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).expect("chmod");
            chown(&dir, Some(uid), Some(uid)).expect("chown");
        }
        Shared { mount, program, _scratch: scratch }
    }

    /// Returns a command by which a user does something in his directory.
    fn by(&self, uid: u32, words: &[&str]) -> Command {
        let dir = self.mount.join(if uid == ATTACKER { "attacker" } else { "victim" });
        let mut command = Command::new(&self.program);
        command.arg(uid.to_string()).arg(dir).args(words);
        command
    }

    /// Lets the victim work; returns his longest wait in milliseconds.
    #[track_caller]
    fn victim_works(&self, seed: &str) -> u64 {
        let Outcome { stdout, .. } = run::ok(&mut self.by(VICTIM, &["work", seed, ROUNDS]));
        stdout.trim().parse().expect("a time")
    }

    fn process(&self) -> Pid {
        self.mount.process()
    }
}

/// A process that is killed at the end of a test.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Running {
        Running(command.stdout(Stdio::piped()).spawn().expect("start"))
    }

    /// Waits for its first line.
    fn wait_for_line(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.take().expect("piped")).read_line(&mut line).expect("read");
        assert!(!line.is_empty(), "it has ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until something holds.
#[track_caller]
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + run::limit();
    while !holds() {
        assert!(Instant::now() < end, "{what} is waited for in vain");
        thread::sleep(Duration::from_millis(5));
    }
}

fn threads(of: Pid) -> Vec<PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{}/task", of.as_raw_nonzero())).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).collect()
}

/// Returns true if a thread waits in the kernel for the lock of a directory, to drop a name in it.
fn is_stuck(process: Pid) -> bool {
    let waits_in = |task: &PathBuf| fs::read_to_string(task.join("wchan")).unwrap_or_default();
    threads(process).iter().any(|task| waits_in(task) == "fuse_reverse_inval_entry")
}

/// Makes the thread that drops names wait for the lock of a directory of the attacker. The directory stays locked until
/// the result is dropped.
fn stick(shared: &Shared) -> Running {
    fs::create_dir(shared.mount.join("attacker/locked")).expect("mkdir");
    chown(shared.mount.join("attacker/locked"), Some(ATTACKER), Some(ATTACKER)).expect("chown");
    run::ok(&mut shared.by(ATTACKER, &["seek", "locked/full"]));
    let holder = Running::start(shared.by(ATTACKER, &["hold", "locked"]));
    let waits_in = || fs::read_to_string(format!("/proc/{}/wchan", holder.0.id())).unwrap_or_default();
    until("the holder", || waits_in() == "handle_userfault");
    run::ok(&mut shared.by(ATTACKER, &["fill", "locked/full"]));
    until("the thread that drops names", || is_stuck(shared.process()));
    holder
}

#[test]
fn a_directory_locked_by_one_user_does_not_stop_others() {
    requires!(root, fuse, tool("cc"));
    let mut shared = Shared::new(Mount::with_options(64, "policy=off"));
    let holder = stick(&shared);
    // What needs the kernel's pages to be written back, or dropped, and what only sends notices.
    free_some_space(&shared);
    shared.victim_works("1");
    assert!(is_stuck(shared.process()), "it was stuck all the time");
    drop(holder);
    until("the end of the wait", || !is_stuck(shared.process()));
    run::ok(&mut shared.by(VICTIM, &["verify", "1", ROUNDS]));
    shared.mount.check();
}

/// Truncates the file that fills the device, by root: its directory is locked, but its name is known.
fn free_some_space(shared: &Shared) {
    let full = fs::File::options().write(true).open(shared.mount.join("attacker/locked/full")).expect("open");
    full.set_len(0).expect("truncate");
}

/// The process cannot end while one of its threads waits for the lock. But the device is clean and free at once.
#[test]
fn a_directory_locked_by_a_user_does_not_stop_the_unmount() {
    requires!(root, fuse, tool("cc"));
    let mut shared = Shared::new(Mount::with_options(64, "policy=off"));
    let holder = stick(&shared);
    rustix::process::kill_process(shared.process(), Signal::TERM).expect("kill");
    until("the device to be free", || nvfold(&["fsck"], &[shared.mount.device()]).status.code() == Some(0));
    assert!(!shared.mount.is_in_tree());
    drop(holder);
    let status = shared.mount.wait_until_ended();
    assert!(status.success(), "{status}");
}

#[test]
fn a_flood_of_requests_by_one_user_does_not_stop_another() {
    requires!(root, fuse, tool("cc"));
    let mut longest = String::new();
    for kind in ["sync", "seek", "dedup", "attributes", "data"] {
        let mount = match kind {
            "sync" => Mount::on_disk(512, "off"),
            _ => Mount::with_options(1024, "policy=inline,transport=device"),
        };
        let mut shared = Shared::new(mount);
        let alone = shared.victim_works("1");
        let mut flood = Running::start(shared.by(ATTACKER, &["flood", kind, PROCESSES]));
        flood.wait_for_line();
        let beside = shared.victim_works("2");
        let busy = threads(shared.process()).len();
        drop(flood);
        until("threads to end", || threads(shared.process()).len() <= IDLE_THREADS);
        run::ok(&mut shared.by(VICTIM, &["verify", "2", ROUNDS]));
        longest += &format!("\n  {kind}: alone {alone} ms, beside the flood {beside} ms, {busy} threads");
        shared.mount.check();
    }
    show(&format!("the longest round of a user beside {PROCESSES} processes of another one:{longest}"));
}

/// Random calls, hints and requests, with arguments that are mutated, while another user works.
#[test]
fn random_requests_of_a_user_neither_end_the_server_nor_change_foreign_data() {
    requires!(root, fuse, tool("cc"));
    let seed = Seed::new("what a user sends");
    let steps = (2_000 * soak_factor()).to_string();
    let mut shown = String::new();
    for policy in POLICIES {
        let mut shared = Shared::new(Mount::with_options(256, &format!("policy={policy}")));
        fs::write(shared.mount.join("open/secret"), vec![7; 50_000]).expect("write");
        shared.victim_works("1");
        let value = seed.value().to_string();
        let attacker = shared.by(ATTACKER, &["bother", &value, &steps]);
        let attacker = thread::spawn(move || run::ok(&mut { attacker }).stdout);
        let mut longest = 0;
        while !attacker.is_finished() {
            longest = longest.max(shared.victim_works("2"));
        }
        longest = longest.max(shared.victim_works("2"));
        let printed = attacker.join().expect("the attacker");
        let numbers: Vec<u64> = printed.split_whitespace().map(|number| number.parse().expect("a number")).collect();
        let [sent, effects, hints] = numbers[..] else { panic!("{printed}") };
        assert!(effects * 4 > sent && (hints > 0 || !policy.contains("icid")), "{policy}: {printed}");
        for _ in 0..2 {
            run::ok(&mut shared.by(VICTIM, &["verify", "2", ROUNDS]));
            assert!(is_secret_whole(shared.mount.path()));
            shared.mount.remount();
        }
        shown += &format!(
            "\n  {policy}: {sent} calls, {effects} had an effect, {hints} hints taken, longest round of the other {longest} ms"
        );
    }
    show(&format!("random calls, hints and requests of a user, seed {}, crashes 0:{shown}", seed.value()));
}

fn is_secret_whole(root: &Path) -> bool {
    fs::read(root.join("open/secret")).expect("read") == vec![7; 50_000]
}
