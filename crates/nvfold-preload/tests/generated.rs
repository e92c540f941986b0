//! Generated programs: scripts of random calls print the same on a tmpfs and below the prefix, and leave the same files.
//!
//! The problem: paths meet one another in more ways than anybody lists: links to links, `..` after them, slashes at the
//! end, directories that were moved away, paths that leave the device and come back. The idea: one C program
//! (`tests/c/script.c`) runs scripts, so that hundreds of programs cost one compile and two processes. The names are few,
//! so that most calls meet what others have left. A script that differs is shrunk to the shortest that still does.
//!
//! ```text
//! /outer/top /outer/out/...   files of the host, on both sides
//! /outer/nvfold               a tmpfs, mounted there; or the device
//! ```
//!
//! What differs for a reason is not generated:
//!
//! | not generated | reason |
//! |---|---|
//! | permissions of other users | the program owns the whole device; both sides run as root |
//! | plain paths of the host through links to below the prefix | the kernel follows them (docs/run.md) |
//! | `nftw` from above the prefix | libc reads the host's directories by calls that no interposition sees |
//! | `..` of a directory that was removed | it has no parent on a device |
//! | O_PATH, O_TMPFILE, pipes | they need the kernel (docs/run.md) |
//! | O_CREAT with O_DIRECTORY | kernels differ |
//! | positions in directories | each file system has its own |

use crate::lab::{Lab, lab};
use crate::random::{Seed, soak_factor};
use libc::{
    AT_EMPTY_PATH, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW, O_APPEND, O_CLOEXEC, O_CREAT, O_DIRECTORY,
    O_EXCL, O_NOFOLLOW, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Scripts of `make test`, and calls of each.
const SCRIPTS: u64 = 300;
const CALLS: usize = 40;
/// Scripts that one process runs.
const AT_A_TIME: usize = 100;
/// Scripts that are shrunk and printed; more of them rarely say more.
const SHOWN: usize = 5;

/// What every script begins with.
const SETUP: [&str; 26] = [
    "mkdir d 0755",
    "mkdir d/e 0711",
    "mkdir a 0700",
    "mkdir @/out 0755",
    "mkdir @/out/n 0755",
    "creat #0 f 0644",
    "write #0 11",
    "creat #0 d/g 0600",
    "write #0 22",
    "creat #0 d/e/f 0640",
    "write #0 33",
    "creat #0 @/top 0604",
    "write #0 44",
    "creat #0 @/out/h 0600",
    "write #0 55",
    "close #0",
    "symlink f lf",
    "symlink d ld",
    "symlink d/e le",
    "symlink none ln",
    "symlink ll ll",
    "symlink ../out lp",
    "symlink @/nvfold/d/e la",
    "symlink @/out lo",
    "symlink lp/../nvfold/d lb",
    "symlink d/ ls",
];
/// More of it, each in half of the scripts.
const MAYBE: [&str; 12] = [
    "symlink f/ lg",
    "symlink le/.. lc",
    "symlink ../nvfold/d/e @/out/up",
    "symlink @/nvfold/f @/out/abs",
    "symlink @/nvfold/lx @/out/back",
    "symlink @/out/back lx",
    "symlink .. lu",
    "symlink / lr",
    "link f b",
    "link d/g d/e/x",
    "open #1 d 0 0",
    "open #2 @/out 0 0",
];

/// What was reported, or is documented: one script.
const KNOWN: [&str; 41] = [
    "mkdir d 0755",
    "mkdir d/e 0755",
    "creat #0 d/f 0644",
    "creat #1 f 0600",
    "symlink d/e l",
    "realpath l/../f",
    "canonicalize_file_name l/../f",
    "stat l/../f",
    "stat l/../../f",
    "rmdir l/",
    "unlink l/",
    "remove l/",
    "rename l/ x",
    "rename d/ y/",
    "lstat l/",
    "symlink y/e m",
    "lstat m/",
    "readlink m/",
    "mkdir x/ 0755",
    "unlink f/",
    "open #2 z/ 65 0644",
    "link f w/",
    "symlink f w/",
    "chdir x",
    "rename @/nvfold/x @/nvfold/moved",
    "getcwd 4096",
    "getcwd_new",
    "get_current_dir_name",
    "rmdir @/nvfold/moved",
    "chdir @/nvfold/y",
    "open #3 ../.. 0 0",
    "fstatat #3 nvfold/f 0",
    "mkdir @/out 0755",
    "open #3 @/out 0 0",
    "openat #2 #3 ../nvfold/f 0 0",
    "creat #2 ../../top 0600",
    "symlink ../../top t",
    "stat t",
    "realpath t",
    "rename t ../../t",
    "rename @/top t",
];

const NAMES: [&str; 8] = ["a", "b", "d", "e", "f", "g", "x", "d/e"];
const LINKS: [&str; 14] = ["lf", "ld", "le", "ln", "ll", "lp", "la", "lo", "lb", "ls", "lg", "lc", "lx", "lu"];
const HOST_NAMES: [&str; 4] = ["h", "i", "n", "n/k"];
/// Beginnings of paths that leave the prefix, or come from outside, or both.
const DETOURS: [&str; 14] = [
    "@/nvfold/../nvfold/",
    "@/out/../nvfold/",
    "@/out/n/../../nvfold/",
    "@//nvfold/./",
    "../nvfold/",
    "nvfold/",
    "@/nvfold/../out/up/",
    "@/nvfold/lo/up/",
    "@/nvfold/lp/up/../",
    "@/out/up/../../nvfold/",
    "@/nvfold/../out/abs",
    "@/nvfold/lo/back",
    "@/nvfold/lo/../",
    "@/nvfold/d/../../out/",
];

struct Random(fastrand::Rng);

impl Random {
    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.0.usize(..of.len())]
    }

    fn in_100(&mut self, percent: u32) -> bool {
        self.0.u32(..100) < percent
    }

    fn number(&mut self, of: &[i32]) -> i32 {
        of[self.0.usize(..of.len())]
    }

    fn name(&mut self) -> &'static str {
        match self.0.u32(..100) {
            0..50 => self.one(&NAMES),
            50..80 => self.one(&LINKS),
            80..95 => "..",
            _ => ".",
        }
    }

    fn names(&mut self, count: usize) -> String {
        let mut path = String::new();
        for at in 0..count {
            if at > 0 {
                path.push_str(if self.in_100(8) { "//" } else { "/" });
            }
            path.push_str(self.name());
        }
        path
    }

    fn path(&mut self) -> String {
        let count = 1 + self.0.usize(..4).min(self.0.usize(..4));
        let mut path = match self.0.u32(..100) {
            0..2 => return "%e".to_owned(),
            2..3 => return format!("{}/%n", self.name()),
            3..4 => return "d/%p".to_owned(),
            4..62 => self.names(count),
            62..80 => format!("@/nvfold/{}", self.names(count - 1)),
            80..93 => format!("{}{}", self.one(&DETOURS), self.names(count - 1)),
            93..98 => format!("@/out/{}", self.one(&HOST_NAMES)),
            _ => self.one(&["@/top", "@/out", "@/none", "@/nvfold"]).to_owned(),
        };
        match self.0.u32(..100) {
            0..12 => path.push('/'),
            12..15 => path.push_str("/."),
            15..18 => path.push_str("/.."),
            _ => {}
        }
        path
    }

    /// A place for a descriptor.
    fn place(&mut self) -> String {
        format!("#{}", self.0.u32(..6))
    }

    /// The directory of a call with `at`.
    fn at(&mut self) -> String {
        if self.in_100(60) { self.place() } else { ".".to_owned() }
    }

    fn mode(&mut self) -> &'static str {
        self.one(&["0644", "0600", "0755", "01777", "0"])
    }

    fn length(&mut self) -> i32 {
        self.number(&[0, 1, 7, 100, 4096, 4097])
    }

    fn flags(&mut self) -> (String, i32) {
        let access = self.number(&[O_RDONLY, O_RDONLY, O_WRONLY, O_RDWR]);
        let mut flags = access;
        for (percent, flag) in [(40, O_CREAT), (10, O_EXCL), (15, O_NOFOLLOW), (10, O_DIRECTORY), (10, O_CLOEXEC)] {
            let fits = match flag {
                O_EXCL => flags & O_CREAT != 0,
                O_DIRECTORY => flags & O_CREAT == 0,
                _ => true,
            };
            flags |= if fits && self.in_100(percent) { flag } else { 0 };
        }
        if self.in_100(15) {
            flags |= O_TRUNC;
        }
        (self.place(), flags | if self.in_100(15) { O_APPEND } else { 0 })
    }

    fn link(&mut self) -> String {
        if self.in_100(30) {
            // Only links of the device lead below the prefix by their text.
            let name = self.one(&["a", "b", "x"]);
            let target = self.names(2);
            return format!("symlink @/nvfold/{target} @/nvfold/{name}");
        }
        let target =
            if self.in_100(20) { self.one(&["@/out/h", "@/out", "@/none", "/"]).to_owned() } else { self.names(2) };
        format!("symlink {target} {}", self.path())
    }

    fn stat_flags(&mut self) -> i32 {
        self.number(&[0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW])
    }

    fn call(&mut self) -> String {
        let (path, other) = (self.path(), self.path());
        match self.0.u32(..70) {
            0..5 => {
                let (place, flags) = self.flags();
                format!("open {place} {path} {flags} {}", self.mode())
            }
            5..8 => {
                let (place, flags) = self.flags();
                format!("openat {place} {} {path} {flags} {}", self.at(), self.mode())
            }
            8 => format!("creat {} {path} {}", self.place(), self.mode()),
            9 => format!("close {}", self.place()),
            10 => format!("{} {} {}", self.one(&["dup", "dup2"]), self.place(), self.place()),
            11 => format!("{} {}", self.one(&["getfl", "getfd", "fsync", "fstat", "fdopendir"]), self.place()),
            12 => {
                format!("lseek {} {} {}", self.place(), self.number(&[0, 5, 100, -1, -5]), self.number(&[0, 1, 2]))
            }
            13 => format!("read {} {}", self.place(), self.length()),
            14 => format!("pread {} {} {}", self.place(), self.length(), self.number(&[0, 3, 50])),
            15 => format!("write {} {}", self.place(), self.length()),
            16 => format!("pwrite {} {} {}", self.place(), self.length(), self.number(&[0, 3, 5000, -1])),
            17 => format!("ftruncate {} {}", self.place(), self.number(&[0, 5, 5000, -1])),
            18..21 => format!("mkdir {path} {}", self.mode()),
            21 => format!("mkdirat {} {path} {}", self.at(), self.mode()),
            22 => format!("mknod {path} {}", self.mode()),
            23..25 => format!("rmdir {path}"),
            25..27 => format!("unlink {path}"),
            27 => format!("unlinkat {} {path} {}", self.at(), self.number(&[0, AT_REMOVEDIR, 1])),
            28 => format!("remove {path}"),
            29..33 => format!("rename {path} {other}"),
            33 => format!("renameat {} {path} {} {other}", self.at(), self.at()),
            34..36 => format!("renameat2 {path} {other} {}", self.number(&[0, 1, 2, 3])),
            36..38 => format!("link {path} {other}"),
            38 => {
                let flags = self.number(&[0, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH, 1]);
                format!("linkat {} {path} {} {other} {flags}", self.at(), self.at())
            }
            39..42 => self.link(),
            42 => format!("readlink {path}"),
            43 => format!("readlinkat {} {path}", self.at()),
            44..46 => format!("{} {path}", self.one(&["stat", "lstat"])),
            46 => format!("fstatat {} {path} {}", self.at(), self.stat_flags()),
            47 => format!("statx {} {path} {}", self.at(), self.stat_flags()),
            48 => format!("access {path} {}", self.number(&[0, 1, 2, 4, 7])),
            49 => {
                let flags = self.number(&[0, AT_SYMLINK_NOFOLLOW, AT_EMPTY_PATH]);
                format!("faccessat {} {path} {} {flags}", self.at(), self.number(&[0, 1]))
            }
            50 => format!("truncate {path} {}", self.number(&[0, 9, 5000, -1])),
            51 => format!("chmod {path} {}", self.mode()),
            52 => format!("fchmodat {} {path} {}", self.at(), self.mode()),
            53 => format!("fchmod {} {}", self.place(), self.mode()),
            54 => format!("utimensat {} {path} {} {}", self.at(), self.number(&[1, 77]), self.stat_flags()),
            55..58 => format!("chdir {path}"),
            58 => format!("fchdir {}", self.place()),
            59 => format!("getcwd {}", self.number(&[4096, 4096, 0, 5])),
            60 => self.one(&["getcwd_new", "get_current_dir_name"]).to_owned(),
            // These know no longest path.
            61..63 => format!("realpath {}", path.replace("%p", "%n")),
            63 => format!("canonicalize_file_name {}", path.replace("%p", "%n")),
            64 => format!("{} {path}", self.one(&["opendir", "scandir"])),
            65 => match self.0.u32(..3) {
                0 => {
                    format!("nftw @/nvfold/{} {}", self.one(&["", "d", "f", "ld", "none", "ll"]), self.number(&[1, 9]))
                }
                1 => format!("glob @/nvfold/{} 2", self.one(&["*", "d/*", "*/f", "l*", "ld/../*", "?/e/*"])),
                _ => format!("glob {} 0", self.one(&["*", "l?", "?"])),
            },
            66 => format!("{} {path}/tXXXXXX", self.one(&["mkstemp", "mkdtemp"])),
            67 => {
                format!("fopen ${} {path} {}", self.0.u32(..3), self.one(&["r", "w", "a", "r+", "w+", "a+", "wx", "q"]))
            }
            68 => match self.0.u32(..3) {
                0 => format!("append {path}"),
                1 => format!("freopen ${} {path} {}", self.0.u32(..3), self.one(&["r", "w", "r+", "a", "a+"])),
                _ => format!("fclose ${}", self.0.u32(..3)),
            },
            _ => {
                let stream = self.0.u32(..3);
                match self.0.u32(..5) {
                    0 => format!("fread ${stream} {}", self.length()),
                    1 => format!("fwrite ${stream} {}", self.length()),
                    2 => format!("fseek ${stream} {} {}", self.number(&[0, 5, -3]), self.number(&[0, 1, 2])),
                    3 => format!("ftell ${stream}"),
                    _ => format!("fflush ${stream}"),
                }
            }
        }
    }

    fn script(&mut self) -> Vec<String> {
        let mut lines: Vec<String> = SETUP.iter().map(|line| (*line).to_owned()).collect();
        for line in MAYBE {
            if self.in_100(50) {
                lines.push(line.to_owned());
            }
        }
        lines.extend((0..CALLS).map(|_| self.call()));
        lines
    }
}

/// The program and the two directories that it runs in.
struct Both {
    lab: Lab,
    program: PathBuf,
}

/// What a side printed for each script, and how it ended.
type Printed = (Vec<String>, Output);

impl Both {
    fn new(lab: Lab) -> Both {
        let program = lab.compile("script.c");
        Both { lab, program }
    }

    /// A root directory with a place for the device.
    fn root(&self, name: &str) -> PathBuf {
        let root = self.lab.path(name);
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("outer/nvfold")).unwrap();
        fs::create_dir(root.join("proc")).unwrap();
        root
    }

    fn write(&self, scripts: &[Vec<String>]) -> PathBuf {
        let path = self.lab.path("scripts");
        let text: String =
            scripts.iter().enumerate().map(|(at, lines)| format!("== {at}\n{}\n", lines.join("\n"))).collect();
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs the scripts on a tmpfs, and on a new device.
    fn run(&self, scripts: &[Vec<String>]) -> (Printed, Printed) {
        let text = self.write(scripts);
        let (host, ours) = (self.root("host"), self.root("ours"));
        let mut on_tmpfs = Command::new(&self.program);
        on_tmpfs.arg(&host).arg(&text).arg("mount").stdin(Stdio::null());
        let _ = fs::remove_file(self.lab.path("device"));
        let mut on_device = self.lab.preloaded(&self.program);
        on_device.arg(&ours).arg(&text).env("NVFOLD_RUN_PREFIX", "/outer/nvfold");
        (printed(&mut on_tmpfs), printed(&mut on_device))
    }

    /// Whether a script prints different lines by itself.
    fn differs(&self, lines: &[String]) -> bool {
        let (expected, ours) = self.run(&[lines.to_vec()]);
        expected.0 != ours.0
    }

    /// Leaves lines out as long as the script still differs.
    fn shrunk(&self, lines: &[String]) -> Vec<String> {
        let mut lines = lines.to_vec();
        let mut piece = lines.len() / 2;
        while piece > 0 {
            let mut at = 0;
            while at < lines.len() {
                let mut fewer = lines.clone();
                fewer.drain(at..(at + piece).min(lines.len()));
                if self.differs(&fewer) { lines = fewer } else { at += piece }
            }
            piece /= 2;
        }
        lines
    }

    /// What differs in a script: its lines with their first answers that are not the same.
    fn report(&self, lines: &[String]) -> String {
        let lines = self.shrunk(lines);
        let ((expected, _), (ours, ended)) = self.run(std::slice::from_ref(&lines));
        let (expected, ours) = (expected.concat(), ours.concat());
        let differing = expected.lines().zip(ours.lines().chain(std::iter::repeat("nothing more")));
        let answers: Vec<String> = differing
            .filter(|(one, other)| one != other)
            .take(3)
            .map(|(one, other)| format!("  tmpfs:  {one}\n  device: {other}"))
            .collect();
        let stderr = String::from_utf8_lossy(&ended.stderr);
        format!("{}\n{}\n{}{}", lines.join("\n"), answers.join("\n"), ended.status, stderr)
    }
}

/// How many lines of a script the other side did not print.
fn lines_missing(expected: &str, ours: &str) -> usize {
    let ours: std::collections::HashSet<&str> = ours.lines().collect();
    expected.lines().filter(|line| !ours.contains(line)).count()
}

fn printed(command: &mut Command) -> Printed {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text.split("== ").skip(1).map(str::to_owned).collect(), output)
}

/// Whether this process may have a mount of its own, as `script.c` makes it.
fn may_mount(program: &Path, both: &Both) -> bool {
    let mut command = Command::new(program);
    let empty = both.write(&[]);
    let output = command.arg(both.root("host")).arg(empty).arg("mount").output().unwrap();
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no tmpfs can be mounted: {why}");
        eprintln!("skipped: no tmpfs can be mounted (root may): {why}");
    }
    output.status.success()
}

#[test]
fn generated_programs_print_the_same_on_a_tmpfs_and_below_the_prefix() {
    let Some(lab) = lab() else { return };
    let both = Both::new(lab);
    if !may_mount(&both.program, &both) {
        return;
    }
    let soak = soak_factor();
    let seed = Seed::new("generated programs");
    let mut random = Random(seed.generator());
    let (mut lines, mut missing, mut differing) = (0, 0, Vec::new());
    for batch in 0..(SCRIPTS * soak).div_ceil(AT_A_TIME as u64) {
        let known = (batch == 0).then(|| KNOWN.map(str::to_owned).to_vec());
        let scripts: Vec<Vec<String>> = known.into_iter().chain((0..AT_A_TIME).map(|_| random.script())).collect();
        let ((expected, ended), (ours, _)) = both.run(&scripts);
        assert!(ended.status.success() && expected.len() == scripts.len(), "on the tmpfs: {ended:?}");
        lines += expected.iter().map(|text| text.lines().count()).sum::<usize>();
        let ours = ours.iter().map(String::as_str).chain(std::iter::repeat(""));
        for ((script, expected), ours) in scripts.into_iter().zip(&expected).zip(ours) {
            if expected != ours {
                missing += lines_missing(expected, ours);
                differing.push(script);
            }
        }
    }
    println!("{} scripts, {lines} lines, {} scripts differ, in {missing} lines", SCRIPTS * soak, differing.len());
    let reports: Vec<String> = differing.iter().take(SHOWN).map(|script| both.report(script)).collect();
    assert!(differing.is_empty(), "{} scripts differ\n\n{}", differing.len(), reports.join("\n\n"));
}
