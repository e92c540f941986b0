//! Every command that takes a device, on devices that no nvfold would write.
//!
//! The problem: a fuzzer drives the library, and its bounds are those of one process with a known stack. A user meets a
//! made image by a command: in its threads, with its walk over the tree and its report.
//!
//! The idea: run each command on the image, each that writes on a new copy. Whatever is on the image, the command ends by
//! itself with an exit code that its documentation has, without a panic, and within a memory limit that grows with the
//! size of the image. The limit is set before the command starts and is kept by the kernel (`RLIMIT_DATA`), so it does
//! not depend on load; an allocation past it ends the command by a signal. A time limit only detects a hang.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvfold::BLOCK_BYTES;

use crate::mount::{NO_UTAB, binary};
use crate::requires::Need;
use crate::run;
use crate::scratch::Scratch;
use crate::slate::Content;

/// Memory that any command may take for itself: stacks of threads, their heaps, buffers for the data of files.
const OWN_BYTES: u64 = 256 << 20;
/// How often its own size an image may be in the memory of a command, in structures that are easier to search.
const TIMES_IMAGE: u64 = 4;

/// A command to be tried.
struct Verb {
    /// Arguments; `DEVICE` stands for the image, `OUT` for the tree that `export` makes of it, `TREE` for a small one.
    words: &'static [&'static str],
    /// True if it may write to the device.
    writes: bool,
    codes: &'static [i32],
}

const PLAIN: &[i32] = &[0, 1];
/// Those of fsck(8) that fit a check: consistent, corrected, errors left, the check failed.
const CHECK: &[i32] = &[0, 1, 4, 8];

const fn reads(words: &'static [&'static str]) -> Verb {
    Verb { words, writes: false, codes: PLAIN }
}

const fn writes(words: &'static [&'static str]) -> Verb {
    Verb { words, writes: true, codes: PLAIN }
}

/// All commands that take an unmounted device. `mount` is tried by [`Trial::mounted`].
const VERBS: &[Verb] = &[
    reads(&["info", "DEVICE"]),
    reads(&["df", "DEVICE"]),
    reads(&["du", "DEVICE", "--depth", "2", "--extents"]),
    reads(&["stats", "DEVICE"]),
    reads(&["dedup-stats", "DEVICE"]),
    reads(&["top", "DEVICE", "--once"]),
    reads(&["policy", "DEVICE"]),
    reads(&["undedup", "DEVICE", "--dry-run"]),
    reads(&["verify", "DEVICE", "TREE", "--at", "/", "--threads", "2"]),
    reads(&["export", "DEVICE", "OUT", "--threads", "2"]),
    reads(&["estimate", "OUT"]),
    Verb { words: &["fsck", "DEVICE"], writes: false, codes: CHECK },
    Verb { words: &["fsck", "DEVICE", "--repair"], writes: true, codes: CHECK },
    writes(&["import", "DEVICE", "TREE", "--to", "/imported", "--threads", "2"]),
    writes(&["import", "DEVICE", "OUT", "--to", "/again", "--threads", "2"]),
    writes(&["dedup", "DEVICE"]),
    writes(&["dedup", "DEVICE", "--drain"]),
    writes(&["undedup", "DEVICE"]),
    writes(&["policy", "DEVICE", "off", "--recursive"]),
    writes(&["reclaim", "DEVICE"]),
    writes(&["remove", "DEVICE", "--at", "/imported", "--at", "/again"]),
    writes(&["tune", "DEVICE", "--index", "pm"]),
    writes(&["tune", "DEVICE", "--index", "dram"]),
    // 125: the device cannot be opened.
    Verb { words: &["run", "--device", "DEVICE", "--", "ls", "-l", "/nvfold"], writes: true, codes: &[0, 1, 2, 125] },
];

/// What the commands took, at worst.
#[derive(Clone, Debug, Default)]
pub struct Worst {
    /// Commands that were run.
    pub runs: u64,
    /// The longest, and which.
    pub time: (Duration, String),
    /// The most resident memory, the mapped device included, as a part of the image's size, and which.
    pub memory: (f64, String),
}

impl Worst {
    /// Adds what others took.
    pub fn add(&mut self, other: Worst) {
        self.runs += other.runs;
        if other.time.0 > self.time.0 {
            self.time = other.time;
        }
        if other.memory.0 > self.memory.0 {
            self.memory = other.memory;
        }
    }

    /// Returns the figures as a sentence.
    pub fn told(&self) -> String {
        let Worst { runs, time, memory } = self;
        let (seconds, times) = (time.0.as_secs_f64(), memory.0);
        format!(
            "{runs} runs; the longest took {seconds:.1} s: {}; the largest {times:.1} times the image: {}",
            time.1, memory.1
        )
    }
}

/// An image that commands are tried on.
pub struct Trial<'i> {
    name: &'i str,
    content: &'i Content,
    scratch: Scratch,
    /// True if the device file holds the image, unchanged.
    is_fresh: bool,
    worst: Worst,
}

impl Trial<'_> {
    /// Prepares the trial of an image; `name` is for messages.
    pub fn new<'i>(name: &'i str, content: &'i Content) -> Trial<'i> {
        let scratch = Scratch::new();
        let tree = scratch.join("tree");
        std::fs::create_dir(&tree).expect("make the tree to import");
        std::fs::write(tree.join("file"), [3; 10_000]).expect("write a file to import");
        Trial { name, content, scratch, is_fresh: false, worst: Worst::default() }
    }

    /// Runs all commands; returns what they took.
    ///
    /// # Errors
    /// What a command did that it must not do.
    pub fn run(mut self) -> Result<Worst, String> {
        let tried = VERBS.iter().try_for_each(|verb| self.verb(verb)).and_then(|()| self.mounted());
        self.remove();
        tried.map(|()| self.worst)
    }

    fn device(&self) -> PathBuf {
        self.scratch.join("device")
    }

    fn verb(&mut self, verb: &Verb) -> Result<(), String> {
        if !self.is_fresh {
            write(self.content, &self.device());
        }
        self.is_fresh = !verb.writes;
        let path = |name: &str| self.scratch.join(name).display().to_string();
        let words = verb.words.iter().map(|word| match *word {
            "DEVICE" => path("device"),
            "OUT" => path("out"),
            "TREE" => path("tree"),
            word => word.to_owned(),
        });
        let mut command = limited(self.content.len_bytes());
        command.arg(binary()).args(words);
        let outcome = self.bounded(verb.words, &mut command);
        let is_known = outcome.status.code().is_some_and(|code| verb.codes.contains(&code));
        self.judge(is_known, &outcome)
    }

    fn judge(&self, is_known: bool, outcome: &run::Outcome) -> Result<(), String> {
        let told = |sign: &str| outcome.stderr.contains(sign);
        if is_known && !told("panicked") && !told("a mistake in nvfold") {
            return Ok(());
        }
        Err(format!("{}: {}", self.name, cut(outcome.report())))
    }

    /// Runs a command, and records what it took.
    fn bounded(&mut self, words: &[&str], command: &mut Command) -> run::Outcome {
        let started = Instant::now();
        let (outcome, bytes) = watched(command);
        let what = format!("`{}` of \"{}\"", words.join(" "), self.name);
        let times = bytes as f64 / self.content.len_bytes() as f64;
        self.worst.add(Worst { runs: 1, time: (started.elapsed(), what.clone()), memory: (times, what) });
        outcome
    }

    /// Mounts the image read-only, looks for all files and reads the first ones, and unmounts it.
    fn mounted(&mut self) -> Result<(), String> {
        if [Need::Root, Need::Fuse].into_iter().any(|need| need.missing().is_some()) {
            return Ok(());
        }
        const SCRIPT: &str = r#"
            mkdir mnt
            "$NVFOLD" mount -o ro device mnt || exit 3
            find mnt >/dev/null 2>found || true
            find mnt -maxdepth 20 -type f -size -1000k 2>/dev/null | head -n 100 | xargs -r -d '\n' cat >/dev/null 2>&1 || true
            ! grep -q 'not connected' found || exit 4
            "$NVFOLD" umount mnt
        "#;
        if !self.is_fresh {
            write(self.content, &self.device());
        }
        let mut command = limited(self.content.len_bytes());
        command.args(["unshare", "--mount", "--propagation", "private", "bash", "-euo", "pipefail", "-c", SCRIPT]);
        command.env("NVFOLD", binary()).current_dir(self.scratch.path());
        let outcome = self.bounded(&["mount", "-o", "ro"], &mut command);
        // 3: it was refused.
        self.judge(matches!(outcome.status.code(), Some(0 | 3)), &outcome)
    }

    /// Removes what the commands left: a tree that was exported may be too deep for a recursive removal.
    fn remove(&self) {
        let _ = Command::new("rm").arg("-rf").arg(self.scratch.join("out")).status();
    }
}

/// Writes the image to a file, with holes where it has zeros.
fn write(content: &Content, path: &Path) {
    let file = File::create(path).expect("create the device file");
    file.set_len(content.len_bytes()).expect("set its length");
    for at in content.block_addresses() {
        file.write_all_at(&content.read(at, BLOCK_BYTES), at).expect("write a block");
    }
}

/// Returns a command that runs the program named by its next arguments with as much memory as an image of this size may
/// cost.
fn limited(image_bytes: u64) -> Command {
    let kib = (OWN_BYTES + TIMES_IMAGE * image_bytes) >> 10;
    let mut command = Command::new("bash");
    command.args(["-c", &format!(r#"ulimit -d {kib}; exec "$0" "$@""#)]).env("LIBMOUNT_UTAB", NO_UTAB);
    command
}

/// Runs a program to its end, and returns its largest resident memory in bytes.
fn watched(command: &mut Command) -> (run::Outcome, u64) {
    let mut most = 0;
    let outcome = run::run_watching(command.stdin(Stdio::null()), |child| most = most.max(resident_bytes(child)));
    (outcome, most)
}

/// Returns the most memory that a program had resident so far; 0 if it has ended.
fn resident_bytes(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().map_or(0, |kib| kib << 10)
}

/// Cuts a report that names thousands of files.
fn cut(mut report: String) -> String {
    if report.len() > 6000 {
        let end = report.floor_char_boundary(6000);
        report.truncate(end);
        report.push_str(" ...");
    }
    report
}
