//! Everything that nvfold says, in one place, so that it is read as a whole: each error, and what each command prints.
//!
//! `snapshots/all__messages__*.snap` has the text. A message says what was being done, to what, why it failed, and what
//! to do. What differs between machines and runs (numbers of results, times, paths) is masked.

use crate::common::{Run, Scratch, can_mount, wait_until};
use nvfold::{Error, host};
use pmem::PmemError;
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

fn missing() -> io::Error {
    io::Error::from_raw_os_error(2)
}

/// One of each variant of the errors of a device.
fn device_errors() -> Vec<PmemError> {
    let device = || "/dev/shm/pool".to_owned();
    vec![
        PmemError::Io { doing: "open", device: device(), source: missing() },
        PmemError::Replay { device: device(), source: io::Error::from_raw_os_error(28) },
        PmemError::Busy { device: device(), owner: "process 4711 (nvfold)".into() },
        PmemError::NotADevice { device: device(), what: "a directory" },
        PmemError::Size { device: device(), bytes: 5000, why: "is not a multiple of 4096" },
        PmemError::ReadOnlyFile { device: device(), source: io::Error::from_raw_os_error(13) },
        PmemError::Lost { device: device() },
        PmemError::DescriptorClosed { device: device() },
        PmemError::ForeignOwner { device: device(), uid: 1001 },
        PmemError::OpenToOthers { device: device(), mode: 0o644 },
        PmemError::BadMemory { doing: "read", device: device(), offset: 0x4000, length: 512 },
        PmemError::MemoryNeedsSize,
        PmemError::NoRoomBehind { device: "/srv/pool".into(), bytes: 1 << 40, most: 1 << 36 },
    ]
}

/// One of each variant of the errors of the file system.
fn file_system_errors() -> Vec<Error> {
    let what = || "inode 7: its log is damaged (log entry checksum)".to_owned();
    vec![
        Error::NotFound { what: "notes.txt".into() },
        Error::Exists { what: "notes.txt".into() },
        Error::Denied { what: "tree/secret".into(), why: "no permission to read it, so nothing was cloned", errno: 13 },
        Error::Posix { doing: "rmdir", why: "the directory is not empty", errno: 39 },
        Error::NoSpace { doing: "write", blocks_needed: 256, blocks_free: 191 },
        Error::OverLimit { doing: "write", top: 7, what: "bytes of content", most: 8 << 20, needed: 4096, left: 100 },
        Error::ReadOnly { doing: "write" },
        Error::Corrupt { what: what(), at: 0x4000 },
        Error::BadMemory { what: "inode 7".into(), at: 0x4000, length: 512 },
        Error::NotReconciled { why: device_errors().remove(5).to_string() },
        Error::Refused {
            what: "inode 7: a change of its log was refused, because it could not be read back (extent length)".into(),
        },
        Error::Panicked { what: "ending a stream, at inode 7 (attempt to subtract with overflow)".into() },
        Error::NoSuperblock { why: "its checksum is wrong" },
        Error::Truncated { bytes: 32 << 20, whole_bytes: 64 << 20 },
        Error::RepairInterrupted,
        Error::PmIndexDamaged { at: 0x4000 },
        Error::NotNvfold { why: "no copy of a superblock begins with nvfold's magic".into() },
        Error::Newer { what: "format version 4".into() },
        Error::Older { what: "format version 2".into() },
        Error::NotBuilt { function: "sha1" },
        Error::OtherByteOrder,
        Error::Format { why: "a pm index needs a larger device".into() },
        Error::Resize { why: "70000001 bytes are not a multiple of 4096".into() },
        Error::Undo { why: "it is of another device".into() },
        Error::Device(device_errors().remove(0)),
    ]
}

/// One of each variant of the errors of trees.
fn tree_errors() -> Vec<host::TreeError> {
    let full = || file_system_errors().remove(4);
    vec![
        host::TreeError::Host { doing: "import", path: "/srv/tree".into(), source: missing() },
        host::TreeError::FileSystem { doing: "export", path: "/tree".into(), source: file_system_errors().remove(0) },
        host::TreeError::ParentInPath { path: "/tree/../x".into() },
        host::TreeError::IsDirectory { path: "/srv".into() },
        host::TreeError::Stopped { doing: "import", done: Box::default() },
        host::TreeError::Full { doing: "import", path: "/srv/tree/file".into(), source: full(), done: Box::default() },
    ]
}

/// How many variants an enum of errors has, by its source.
fn variants(source: &str) -> usize {
    source.lines().filter(|line| line.trim_start().starts_with("#[error(")).count()
}

#[test]
fn every_error_message_is_a_sentence_with_object_and_reason() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = String::new();
    let mut part = |title: &str, source: &str, errors: Vec<String>| {
        let source = fs::read_to_string(crates.join(source)).unwrap();
        assert_eq!(errors.len(), variants(&source), "{title}: give an example of every variant");
        writeln!(text, "# {title}\n").unwrap();
        errors.iter().for_each(|error| writeln!(text, "{error}").unwrap());
        writeln!(text).unwrap();
    };
    let told = |errors: Vec<PmemError>| errors.iter().map(ToString::to_string).collect();
    part("The device", "pmem/src/device.rs", told(device_errors()));
    let told = file_system_errors().iter().map(ToString::to_string).collect();
    part("The file system", "nvfold/src/error.rs", told);
    part("Trees", "nvfold/src/host/error.rs", tree_errors().iter().map(ToString::to_string).collect());
    insta::assert_snapshot!("errors", text);
}

/// The output of commands as a transcript.
struct Transcript<'s> {
    scratch: &'s Scratch,
    text: String,
}

impl Transcript<'_> {
    fn heading(&mut self, title: &str) {
        writeln!(self.text, "# {title}\n").unwrap();
    }

    /// Runs a command and writes down what it said.
    fn run(&mut self, arguments: &[&str]) -> Run {
        let run = self.scratch.nvfold(arguments);
        let root = self.scratch.path("").to_string_lossy().trim_end_matches('/').to_owned();
        let plain = |text: &str| text.replace(&root, "/scratch");
        writeln!(self.text, "$ nvfold {}", arguments.join(" ")).unwrap();
        plain(&run.stdout).lines().for_each(|line| writeln!(self.text, "{}", masked(line)).unwrap());
        plain(&run.stderr).lines().for_each(|line| writeln!(self.text, "! {line}").unwrap());
        match run.code {
            Some(0) => writeln!(self.text),
            code => writeln!(self.text, "[exit {}]\n", code.unwrap_or(-1)),
        }
        .unwrap();
        run
    }
}

/// A line of a result with each number as `N`, units of size as `B`, and a table's blanks as two.
fn masked(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let in_word = out.ends_with(|c: char| c.is_ascii_alphanumeric());
        let length = if first.is_ascii_digit() && !in_word {
            out.push('N');
            let digits = rest.find(|c: char| !c.is_ascii_hexdigit() && c != '.' && c != 'x').unwrap_or(rest.len());
            rest[..digits].trim_end_matches('.').len()
        } else {
            out.push(first);
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    for unit in ["KiB", "MiB", "GiB"] {
        out = out.replace(&format!("N {unit}"), "N B");
    }
    while out.contains("   ") {
        out = out.replace("   ", "  ");
    }
    out.trim_end().to_owned()
}

#[test]
fn every_command_on_a_device_reports_its_result_or_the_reason_of_its_failure() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::create_dir(scratch.path("dir")).unwrap();
    fs::write(scratch.path("tree/one"), vec![7; 8192]).unwrap();
    fs::write(scratch.path("tree/two\nlines"), vec![7; 8192]).unwrap();
    std::os::unix::fs::symlink("one", scratch.path("tree/link")).unwrap();
    let mut told = Transcript { scratch: &scratch, text: String::new() };

    told.heading("What works");
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    told.run(&["mkfs", "dev", "--size", "64M", "--uuid", uuid, "--label", "tea"]);
    for call in [
        &["import", "dev", "tree"][..],
        &["verify", "dev", "tree"],
        &["info", "dev"],
        &["df", "dev"],
        &["du", "dev"],
        &["stats", "dev"],
        &["dedup-stats", "dev"],
        &["policy", "dev"],
        &["policy", "dev", "off", "--at", "/tree"],
        &["undedup", "dev", "--dry-run"],
        &["undedup", "dev"],
        &["policy", "dev", "default", "--at", "/tree"],
        &["dedup", "dev"],
        &["dedup", "--drain", "dev"],
        &["reclaim", "dev"],
        &["tune", "dev", "--index", "pm"],
        &["clone", "--device", "dev", "/tree", "/copy"],
        &["set", "--device", "dev", "limit=1M,inodes=10", "/copy"],
        &["get", "--device", "dev", "/copy"],
        &["get", "--device", "dev", "/"],
        &["estimate", "tree"],
        &["export", "dev", "out"],
        &["import", "dev", "tree", "--to", "/second"],
        &["remove", "dev", "--at", "/second"],
        &["resize", "dev", "160M"],
        &["fsck", "dev"],
        &["fsck", "-p", "dev"],
    ] {
        told.run(call);
    }

    told.heading("What does not");
    fs::write(scratch.path("noise"), vec![0x5a; 16 << 20]).unwrap();
    fs::write(scratch.path("odd"), vec![1; 5000]).unwrap();
    fs::File::create(scratch.path("zeros")).unwrap().set_len(16 << 20).unwrap();
    fs::write(scratch.path("empty"), b"").unwrap();
    fs::write(scratch.path("tree/one"), vec![8; 100]).unwrap();
    let label = "x".repeat(33);
    for call in [
        &["mkfs", "dev"][..],
        &["mkfs", "noise"],
        &["mkfs", "new"],
        &["mkfs", "new", "--size", "0"],
        &["mkfs", "new", "--size", "-1"],
        &["mkfs", "new", "--size", "10X"],
        &["mkfs", "new", "--size", "1M"],
        &["mkfs", "new", "--size", "16777217"],
        &["mkfs", "new", "--size", "17P"],
        &["mkfs", "new", "--size", "64M", "--label", &label],
        &["mkfs", "new", "--size", "64M", "--weak", "md5"],
        &["mkfs", "mem:", "--size", "64M"],
        &["mkfs", "none/new", "--size", "64M"],
        &["mount", "mem:", "dir"],
        &["mount", "mem:", "dir", "-o", "size=0"],
        &["mount", "mem:", "dir", "-o", "size=-1"],
        &["mount", "mem:", "dir", "-o", "bogus"],
        &["mount", "mem:", "dir", "-o", "policy=all"],
        &["mount", "mem:", "dir", "-o", "threads"],
        &["mount", "dev", "dir", "-o", "size=8G"],
        &["mount", "dev", "none"],
        &["mount", "dev", "odd"],
        &["mount", "none", "dir"],
        &["mount", "zeros", "dir", "-o", "noallow_other"],
        &["mount", "mem:", "dir", "-o", "size=1M"],
        &["mount", "mem:", "dir", "-o", "size=64M,cache=some"],
        &["mount", "mem:", "dir", "-o", "size=64M,max_write=3"],
        &["mount", "mem:", "dir", "-o", "size=64M,verify=strong,strong=bytes"],
        &["umount", "dir"],
        &["umount", "none"],
        &["sync", "none"],
        &["info", "none"],
        &["info", "dir"],
        &["info", "noise"],
        &["info", "mem:"],
        &["fsck", "mem:"],
        &["fsck", "none"],
        &["fsck", "zeros"],
        &["fsck", "--restore", "noise", "dev"],
        &["info", "odd"],
        &["info", "empty"],
        &["info", "/dev/null"],
        &["df", "dev", "none"],
        &["du", "dev", "--at", "/none"],
        &["du", "dev", "--at", "/tree/one"],
        &["stats", "none"],
        &["top", "dev"],
        &["policy", "dev", "fast"],
        &["policy", "dev", "--at", "/none"],
        &["policy", "dev", "--at", "/tree/link/x"],
        &["dedup", "dir"],
        &["dedup", "dev", "--at", "/none"],
        &["dedup", "dev", "-o", "bogus"],
        &["dedup", "dev", "-o", "weak=md4"],
        &["undedup", "dev", "--at", "/none"],
        &["dedup", "--pause", "dev"],
        &["dedup", "dev", "noise"],
        &["reclaim", "dir"],
        &["remove", "dir"],
        &["remove", "dev"],
        &["remove", "dev", "--at", "/none"],
        &["clone", "dir", "copy"],
        &["clone", "none", "copy"],
        &["clone", "dev", "copy"],
        &["clone", "dir", "dir/.."],
        &["clone", "--device", "dev", "/tree", "/copy"],
        &["clone", "--device", "dev", "/tree", "/tree/copy"],
        &["clone", "--device", "dev", "/none", "/other"],
        &["clone", "--device", "dev", "/tree/one", "/other"],
        &["set", "limit=1M", "dir"],
        &["set", "limit=1M", "none"],
        &["set", "size=1M", "dir"],
        &["set", "expire=2", "dir"],
        &["set", "--device", "dev", "limit=1M", "/tree/one"],
        &["get", "dir"],
        &["get", "--device", "dev", "/none"],
        &["resize", "dev", "32M"],
        &["resize", "dev", "161M"],
        &["resize", "dev", "1000000001"],
        &["resize", "dev", "20T"],
        &["resize", "mem:", "1G"],
        &["resize", "none", "1G"],
        &["tune", "dev"],
        &["tune", "dev", "--method", "auto"],
        &["tune", "dev", "--index", "dram", "--weak", "md5"],
        &["import", "none", "tree"],
        &["import", "zeros", "tree"],
        &["import", "dev", "none"],
        &["import", "dev", "tree", "--threads", "0"],
        &["import", "dev", "tree", "--to", "/../x"],
        &["export", "dev", "out"],
        &["export", "dev", "new", "--from", "/none"],
        &["export", "dev", "none/new"],
        &["verify", "dev", "tree"],
        &["verify", "dev", "none"],
        &["estimate", "none"],
        &["estimate", "none", "missing"],
        &["run", "--device", "dev", "--", "none"],
        &["run", "--device", "dev", "--prefix", "x", "--", "ls"],
        &["run", "--mount", "dir", "--", "ls"],
        &["man", "none"],
        &["frobnicate"],
        &["info"],
    ] {
        // Times of change are no sentences of ours.
        if call == ["verify", "dev", "tree"] {
            let same = fs::File::options().write(true).open(scratch.path("tree/one")).unwrap();
            same.set_modified(fs::metadata(scratch.path("out/tree/one")).unwrap().modified().unwrap()).unwrap();
        }
        told.run(call);
    }

    told.heading("Damage");
    damage(&scratch, "dev", &[100]);
    for call in [&["fsck", "dev"][..], &["fsck", "-y", "dev"], &["fsck", "dev"]] {
        told.run(call);
    }
    // Something that is not nvfold in place of one copy.
    overwrite(&scratch, "dev", 0, &[0; 16]);
    told.run(&["fsck", "dev"]);
    // The last copy of the superblock is in the last block, and the device has been made longer.
    let last = fs::metadata(scratch.path("dev")).unwrap().len() - 4096;
    damage(&scratch, "dev", &[100, 4196, last + 100]);
    for call in [&["info", "dev"][..], &["fsck", "dev"], &["mount", "dev", "dir"]] {
        told.run(call);
    }
    // What a wiped start and end look like, and a device that was cut.
    for at in [0, 4096, last] {
        overwrite(&scratch, "dev", at, &[0; 4096]);
    }
    for call in [&["info", "dev"][..], &["fsck", "dev"], &["export", "dev", "copy"]] {
        told.run(call);
    }
    told.run(&["mkfs", "short", "--size", "64M", "--uuid", uuid]);
    fs::File::options().write(true).open(scratch.path("short")).unwrap().set_len(32 << 20).unwrap();
    for call in [&["info", "short"][..], &["fsck", "short"]] {
        told.run(call);
    }
    insta::assert_snapshot!("commands", told.text);
}

fn overwrite(scratch: &Scratch, name: &str, at: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::File::options().write(true).open(scratch.path(name)).unwrap().write_all_at(bytes, at).unwrap();
}

/// Bytes that nvfold did not write, at each of these offsets.
fn damage(scratch: &Scratch, name: &str, offsets: &[u64]) {
    offsets.iter().for_each(|at| overwrite(scratch, name, *at, b"damage"));
}

#[test]
fn every_command_on_a_mount_reports_its_result_or_the_reason_of_its_failure() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    scratch.nvfold(&["mkfs", "dev", "--size", "64M", "--uuid", uuid]).ok();
    fs::create_dir(scratch.path("mnt")).unwrap();
    let mut told = Transcript { scratch: &scratch, text: String::new() };
    told.run(&["mount", "dev", "mnt", "-o", "policy=denova,mode=delayed:60000:1"]);
    // It looks for missing fingerprints at first.
    wait_until("all fingerprints are there", || {
        scratch.nvfold(&["info", "mnt", "--json"]).ok().json()["recovery"]["fill_percent"].is_null()
    });
    fs::write(scratch.path("mnt/one"), vec![7; 8192]).unwrap();
    fs::create_dir(scratch.path("mnt/tree")).unwrap();
    fs::write(scratch.path("mnt/tree/two"), vec![8; 8192]).unwrap();
    let held = fs::File::open(scratch.path("mnt/one")).unwrap();
    for call in [
        &["mount", "dev", "mnt"][..],
        &["mount", "dev", "."],
        &["info", "mnt"],
        &["policy", "mnt/one"],
        &["clone", "mnt/tree", "mnt/copy"],
        &["clone", "mnt/tree", "mnt/copy"],
        &["clone", "mnt/tree", "mnt/tree/copy"],
        &["clone", "mnt/tree", "copy"],
        &["clone", "mnt/one", "mnt/two"],
        &["set", "limit=10K,inodes=3", "mnt/tree"],
        &["clone", "mnt/copy", "mnt/tree/copy"],
        &["get", "mnt/tree"],
        &["set", "limit=1M", "mnt/one"],
        // A daemon that is paused leaves the queue to the drain, which counts it.
        &["dedup", "--pause", "mnt"],
        &["dedup", "--drain", "mnt"],
        &["dedup", "--resume", "mnt"],
        &["dedup", "--mode", "immediate", "mnt"],
        &["dedup", "mnt/one", "dev"],
        &["dedup", "mnt", "--at", "/one"],
        &["tune", "mnt", "--method", "auto"],
        &["tune", "dev", "--index", "pm"],
        &["resize", "dev", "20M"],
        &["resize", "mnt", "1000000001"],
        &["fsck", "dev"],
        &["mkfs", "dev", "--force"],
        &["mkfs", "dev"],
        &["info", "mnt/one"],
        &["backup", "mnt", "mnt/copy-of-it"],
        &["backup", "dev", "dev", "--force"],
        &["umount", "mnt"],
    ] {
        told.run(call);
    }
    drop(held);
    if told.run(&["umount", "mnt"]).code != Some(0) {
        scratch.nvfold(&["umount", "--lazy", "mnt"]);
    }
    let pid = |line: &str| match line.split_once("in use by process ") {
        Some((before, after)) => format!("{before}in use by process {}", masked(after)),
        None => line.to_owned(),
    };
    let text: Vec<String> = told.text.lines().map(pid).collect();
    insta::assert_snapshot!("mounted", text.join("\n"));
}

#[test]
fn df_reports_readable_devices_even_if_others_fail() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let told = scratch.nvfold(&["df", "dev", "none"]).fails(1, "No such file");
    assert!(told.stdout.contains("dev") && !told.stdout.contains("none"), "{told:#?}");
    let told = scratch.nvfold(&["df", "none", "dev", "--json"]).code_is(1);
    assert!(told.stderr.contains("\"errno\":\"ENOENT\""), "{told:#?}");
    let told = told.json();
    assert_eq!(told["file_systems"].as_array().unwrap().len(), 1);
}

#[test]
fn names_are_escaped_in_text_and_complete_in_json() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let odd = OsStr::from_bytes(b"odd\n\x1b[2J\xff");
    fs::create_dir_all(scratch.path("tree").join(odd)).unwrap();
    scratch.nvfold(&["import", "dev", "tree"]).ok();
    let text = scratch.nvfold(&["du", "dev", "--depth", "2"]).ok().stdout;
    assert!(text.contains("odd\\n\\u{1b}[2J"), "{text}");
    let rows = scratch.nvfold(&["du", "dev", "--depth", "2", "--json"]).ok().json();
    let path: PathBuf = Path::new("/tree").join(odd);
    let hex: String = path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(rows["directories"][0]["path_hex"], hex);
    assert_eq!(rows["directories"][1]["path_hex"], serde_json::Value::Null);
    fs::remove_dir(scratch.path("tree").join(odd)).unwrap();
    fs::write(scratch.path("tree").join(odd), b"").unwrap();
    let told = scratch.nvfold(&["verify", "dev", "tree"]).code_is(1);
    assert!(told.stderr.contains("odd\\n\\u{1b}[2J") && told.stderr.lines().count() >= 1, "{told:#?}");
}

#[test]
fn mounting_without_access_to_dev_fuse_explains_the_permission() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let command = scratch.command_for_all();
    for (path, mode) in [("", 0o755), ("nvfold", 0o755)] {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(scratch.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(scratch.path("theirs")).unwrap();
    std::os::unix::fs::chown(scratch.path("theirs"), Some(65534), Some(65534)).unwrap();
    // A mount namespace whose /dev/fuse is root's alone.
    let script = format!(
        "cp -a /dev/fuse {0}/fuse && chmod 600 {0}/fuse && mount --bind {0}/fuse /dev/fuse && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups {1} mount mem: {0}/theirs -o size=64M",
        scratch.path("").display(),
        command.display()
    );
    let run = scratch.run("unshare", &["--mount", "sh", "-c", &script]);
    if run.stderr.contains("unshare") || run.stderr.contains("setpriv") || run.stderr.contains("bind") {
        return eprintln!("skipped: no mount namespace here: {}", run.stderr);
    }
    assert_eq!(run.code, Some(1), "{run:#?}");
    assert!(run.stderr.contains("this user may not open /dev/fuse"), "{run:#?}");
    assert!(!run.stderr.contains("fusermount3 must be installed"), "{run:#?}");
}

/// One missing path among several is a problem, as with du(1): the others are reported, and the exit code is 1.
#[test]
fn a_missing_path_is_a_problem_among_others_and_an_error_alone() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/one"), vec![7; 8192]).unwrap();
    scratch.nvfold(&["import", "dev", "tree"]).ok();
    for (alone, beside) in [
        (&["estimate", "none"][..], &["estimate", "none", "tree"][..]),
        (&["dedup", "dev", "--at", "/none"], &["dedup", "dev", "--at", "/none", "--at", "/tree"]),
        (&["df", "none"], &["df", "none", "dev"]),
    ] {
        let failed = scratch.nvfold(alone).code_is(1);
        assert!(failed.stdout.is_empty() && failed.stderr.to_lowercase().contains("no such file"), "{failed:#?}");
        let partly = scratch.nvfold(beside).code_is(1);
        assert!(!partly.stdout.is_empty() && partly.stderr.to_lowercase().contains("no such file"), "{partly:#?}");
    }
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn research_options_work_and_have_their_own_help_page() {
    let scratch = Scratch::new();
    let help = scratch.nvfold(&["mount", "--help"]).ok().stdout;
    assert!(help.contains("size=SIZE") && !help.contains("generators="), "{help}");
    let research = scratch.nvfold(&["mount", "--help-research"]).ok().stdout;
    assert!(research.contains("generators=") && !research.contains("size=SIZE"), "{research}");
    let none = scratch.nvfold(&["umount", "--help-research"]).ok().stdout;
    assert!(none.contains("no options for experiments"), "{none}");
    scratch.nvfold(&["mkfs", "dev", "--size", "64M", "--profile", "pcm", "--index", "pm", "--weak", "md5"]).ok();
    let page = scratch.nvfold(&["man", "mount"]).ok().stdout;
    assert!(page.contains("generators") && page.contains("profile"), "{page}");
}
