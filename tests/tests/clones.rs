//! `nvfold clone` on a mount: the copy is the tree of one instant, with all that was written before, and a user gets no
//! more by it than he may read.

use nvfold_tests::mount::{Mount, command, in_own_namespace, nvfold, nvfold_json};
use nvfold_tests::probe::{self, Writer};
use nvfold_tests::run::{self, Outcome, shell};
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, show, tree};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const USER: u32 = 1001;
const GROUP: u32 = 2001;
/// Each way to cache pages, each transport, and policies that share later.
const OPTIONS: [&str; 3] =
    ["policy=inline", "policy=denova,cache=full,transport=device", "policy=icid,cache=none,spin=off"];

fn clone(source: &Path, target: &Path) -> Outcome {
    nvfold(&["clone"], &[source, target])
}

/// Runs a program as [`USER`], in these supplementary groups.
fn as_user(groups: &str, program: &Command) -> Outcome {
    let mut setpriv = Command::new("setpriv");
    setpriv.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
    setpriv.arg(if groups.is_empty() { "--clear-groups".to_owned() } else { format!("--groups={groups}") });
    run::run(setpriv.arg("--").arg(program.get_program()).args(program.get_args()))
}

fn clone_as_user(groups: &str, source: &Path, target: &Path) -> Outcome {
    as_user(groups, command().arg("clone").args([source, target]))
}

/// Checks that a clone was refused for this reason, and that nothing is left of it.
#[track_caller]
fn assert_refused(outcome: &Outcome, target: &Path, why: &str) {
    assert_eq!(outcome.code(), 1, "{}", outcome.report());
    assert!(outcome.stderr.contains(why), "{why:?} is expected: {}", outcome.report());
    assert!(!target.exists(), "{}", target.display());
}

#[test]
fn a_clone_has_all_that_was_written_before_it_and_its_name_is_seen_at_once() {
    requires!(fuse, tool("cc"));
    let scratch = Scratch::new();
    let program = probe::compiled("clones", scratch.path());
    for options in OPTIONS {
        let mut mount = Mount::with_options(256, options);
        let source = mount.join("work");
        fs::create_dir_all(source.join("below")).expect("mkdir");
        let names = ["first", "below/second"];
        let mut writer = Writer::start(Command::new(&program).arg("write").args(names.map(|name| source.join(name))));
        for round in 0..10 {
            let target = mount.join(format!("copy{round}"));
            // The kernel knows now that there is no such name, and what the directory lists.
            assert!(!target.exists());
            let before = fs::read_dir(mount.path()).expect("list").count();
            let report = nvfold_json(&["clone", "--json"], &[&source, &target]);
            assert_eq!((&report["version"], &report["entries"]), (&1.into(), &3.into()), "{options}");
            assert!(target.is_dir(), "{options}: the new name is not seen");
            assert_eq!(fs::read_dir(mount.path()).expect("list").count(), before + 1, "{options}");
            for name in names {
                let copy = fs::read(target.join(name)).expect("read");
                let is_there = copy.ends_with(format!("round {round}\n").as_bytes());
                assert!(is_there && copy.len() > round * 100_000, "{options}, round {round}: {name}");
            }
            writer.write_again();
        }
        writer.end();
        mount.check();
    }
}

#[test]
fn a_clone_has_what_was_stored_to_a_mapping_before_it() {
    requires!(fuse, tool("cc"));
    let scratch = Scratch::new();
    let program = probe::compiled("clones", scratch.path());
    for options in OPTIONS {
        let mut mount = Mount::with_options(64, options);
        let source = mount.join("work");
        fs::create_dir(&source).expect("mkdir");
        fs::write(source.join("mapped"), vec![b'-'; 8192]).expect("write");
        let mut writer = Writer::start(Command::new(&program).arg("map").arg(source.join("mapped")));
        for round in 0..5 {
            let target = mount.join(format!("copy{round}"));
            clone(&source, &target).success();
            let copy = fs::read(target.join("mapped")).expect("read");
            assert!(copy[5000..].starts_with(format!("round {round}\n").as_bytes()), "{options}, round {round}");
            writer.write_again();
        }
        writer.end();
        mount.check();
    }
}

/// A writer writes a number to one file, syncs it, and then writes it to another one, all the time.
#[test]
fn clones_of_a_tree_that_is_being_written_are_of_one_instant_each() {
    requires!(fuse);
    let mut mount = Mount::with_options(256, "policy=inline");
    let source = mount.join("work");
    fs::create_dir(&source).expect("mkdir");
    let [first, second] = ["first", "second"].map(|name| {
        fs::write(source.join(name), 0u64.to_le_bytes()).expect("write");
        File::options().write(true).open(source.join(name)).expect("open")
    });
    let is_over = AtomicBool::new(false);
    let written = thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut number = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                for file in [&first, &second] {
                    file.write_all_at(&number.to_le_bytes(), 0).expect("write");
                    file.sync_data().expect("sync");
                }
            }
            number
        });
        let mut last = 0;
        for round in 0..20 {
            let target = mount.join(format!("copy{round}"));
            clone(&source, &target).success();
            let of =
                |name| u64::from_le_bytes(fs::read(target.join(name)).expect("read").try_into().expect("a number"));
            let (first, second) = (of("first"), of("second"));
            assert!(second <= first && first <= second + 1, "round {round}: {first}, then {second}");
            assert!(last <= second, "round {round}: {second} after {last}");
            last = second;
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().expect("the writer")
    });
    show(&format!("20 clones beside a writer of {written} pairs, each of one instant"));
    drop((first, second));
    mount.check();
}

/// Links, holes, special files, times, attributes and ACLs.
const EVERYTHING: &str = r#"
    mkdir -p work/sub/deep
    echo one > work/file && ln work/file work/sub/link && ln -s ../file work/sub/symlink
    truncate -s 10M work/holes && printf x | dd of=work/holes bs=1 seek=5M conv=notrunc status=none
    mkfifo work/fifo && mknod work/null c 1 3
    setfattr -n user.colour -v blue work/file && setfattr -n trusted.secret -v 1 work/sub
    setfacl -m u:1001:rw work/file && setfacl -d -m g:2001:rx work/sub
    chown 7:8 work/file && chown 1001:2001 work/sub/deep && chmod 4751 work/file && chmod 2770 work/sub
    touch -d '1999-12-31 23:59:59.987654321' work/holes work/sub/deep
    perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Type => SOCK_STREAM, Local => "work/socket", Listen => 1)'
"#;

#[test]
fn a_clone_of_root_keeps_everything_that_cp_keeps() {
    requires!(root, fuse, tool("setfattr"), tool("setfacl"), tool("perl"));
    let mut mount = Mount::with_options(64, "policy=inline");
    shell(mount.path(), EVERYTHING);
    let (source, target) = (mount.join("work"), mount.join("copy"));
    clone(&source, &target).success();
    let (expected, found) = (tree::read(&source), tree::read(&target));
    assert_eq!(expected.len(), 9);
    tree::assert_same(&found, &expected);
    let blocks = |dir: &Path| fs::metadata(dir.join("holes")).expect("stat").blocks();
    assert_eq!(blocks(&target), blocks(&source), "holes");
    assert_eq!(fs::metadata(target.join("file")).expect("stat").nlink(), 2);
    mount.check();
}

#[test]
fn a_clone_of_a_user_is_his_own_without_the_rights_of_others() {
    requires!(root, fuse, tool("setpriv"));
    let mut mount = Mount::with_options(64, "policy=inline");
    let home = mount.join("home");
    fs::create_dir(&home).expect("mkdir");
    std::os::unix::fs::chown(&home, Some(USER), Some(USER)).expect("chown");
    shell(mount.path(), "mkdir work && echo x > work/tool && chmod 6755 work/tool && mkfifo -m 600 work/fifo");
    let target = home.join("copy");
    clone_as_user("", &mount.join("work"), &target).success();
    for name in ["", "tool", "fifo"] {
        let stat = fs::symlink_metadata(target.join(name)).expect("stat");
        assert_eq!((stat.uid(), stat.gid()), (USER, USER), "{name}");
    }
    assert_eq!(fs::metadata(target.join("tool")).expect("stat").mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(mount.join("work/tool")).expect("stat").mode() & 0o7777, 0o6755);
    // Where a directory gives its group to new files, it gives it to the copy.
    std::os::unix::fs::chown(&home, Some(USER), Some(GROUP)).expect("chown");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o2755)).expect("chmod");
    clone_as_user("", &mount.join("work"), &home.join("of-group")).success();
    assert_eq!(fs::metadata(home.join("of-group/tool")).expect("stat").gid(), GROUP);
    mount.check();
}

#[test]
fn a_clone_of_a_user_has_nothing_that_he_may_not_read() {
    requires!(root, fuse, tool("setpriv"), tool("setfacl"));
    let mut mount = Mount::with_options(64, "policy=inline");
    let (home, source) = (mount.join("home"), mount.join("work"));
    shell(mount.path(), "mkdir -m 777 home && mkdir -p work/a/b && echo x > work/a/b/file && echo y > work/open");
    let file = source.join("a/b/file");
    let target = home.join("copy");
    // What makes the file unreadable or readable, the supplementary groups, and the path in the error.
    let cases: [(&str, &str, Option<&str>); 13] = [
        ("chmod 600 a/b/file", "", Some("a/b/file")),
        ("chmod 640 a/b/file && chgrp 2001 a/b/file", "", Some("a/b/file")),
        ("true", "7,2001", None),
        ("chmod 604 a/b/file", "7,2001", Some("a/b/file")),
        ("true", "7", None),
        ("chmod 600 a/b/file && setfacl -m u:1001:r a/b/file", "", None),
        ("setfacl -m m::- a/b/file", "", Some("a/b/file")),
        ("setfacl -b a/b/file && chmod 600 a/b/file && setfacl -m g:2002:r a/b/file", "2002", None),
        ("true", "2003", Some("a/b/file")),
        ("setfacl -b a/b/file && chmod 644 a/b/file && chmod 744 a/b", "", Some("a/b")),
        ("chmod 711 a/b", "", Some("a/b")),
        ("chmod 755 a/b && chmod 700 a", "", Some("a")),
        ("chmod 755 a && mknod null c 1 3 && chmod 666 null", "", Some("null")),
    ];
    for (change, groups, refused) in cases {
        shell(&source, change);
        let outcome = clone_as_user(groups, &source, &target);
        match refused {
            Some(path) => assert_refused(&outcome, &target, &format!("{}: ", source.join(path).display())),
            None => {
                outcome.success();
                assert_eq!(fs::read(target.join("a/b/file")).expect("read"), fs::read(&file).expect("read"));
                fs::remove_dir_all(&target).expect("rm");
            }
        }
    }
    fs::remove_file(source.join("null")).expect("rm");
    // The tree itself, and the directory of the copy.
    shell(mount.path(), "chmod 711 work");
    assert_refused(&clone_as_user("", &source, &target), &target, "ermission denied");
    shell(mount.path(), "chmod 755 work && chmod 755 home");
    assert_refused(&clone_as_user("", &source, &target), &target, "ermission denied");
    shell(mount.path(), "chmod 777 home");
    clone_as_user("", &source, &target).success();
    mount.check();
}

#[test]
fn a_caller_who_asks_the_server_itself_gets_no_more_than_the_command() {
    requires!(root, fuse, tool("setpriv"), tool("cc"));
    let scratch = Scratch::new();
    let program = probe::compiled("clones", scratch.path());
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let mut mount = Mount::with_options(64, "policy=inline");
    shell(
        mount.path(),
        "mkdir -m 777 home && mkdir -p open closed/below && echo x > closed/below/file && chmod 700 closed",
    );
    let [home, open, closed, below] = ["home", "open", "closed", "closed/below"].map(|name| mount.join(name));
    let ino = |path: &Path| fs::metadata(path).expect("stat").ino().to_string();
    let ask = |permit: &str, ino: &str, source: &Path, dir: &Path, name: &str| {
        let mut asks = Command::new(&program);
        let outcome = as_user("", asks.args(["ask", permit, ino]).args([source, dir]).arg(name));
        outcome.success().stdout.trim().to_owned()
    };
    assert_eq!(ask("made", "0", &open, &home, "copy"), "cloned", "what the command does");
    assert_eq!(ask("made", "0", &open, &home, "copy"), "EEXIST");
    // A directory that he could read, below one that he may not search: he gets no token, and can make none.
    assert_eq!(ask("made", "0", &below, &home, "stolen"), "no token: EACCES");
    assert_eq!(ask("made", &ino(&below), &open, &home, "stolen"), "ESTALE");
    // He may not make names there, and files that the kernel let nobody make there prove nothing.
    assert_eq!(ask("made", "0", &open, &closed, "copy"), "no permit: EACCES");
    assert_eq!(ask("made", "0", &open, &open, "copy"), "no permit: EACCES");
    for permit in ["unlinked", "linked", "directory", "source"] {
        assert_eq!(ask(permit, "0", &open, &home, "other"), "EPERM", "{permit}");
    }
    for name in ["a/b", "..", ".", ""] {
        assert_ne!(ask("made", "0", &open, &home, name), "cloned", "{name:?}");
    }
    let names = || fs::read_dir(&home).expect("list").map(|entry| entry.expect("list").file_name()).collect::<Vec<_>>();
    assert_eq!(names(), ["copy"]);
    mount.check();
}

#[test]
fn a_refused_clone_names_the_reason() {
    requires!(root, fuse, tool("unshare"));
    let mut mount = Mount::with_options(64, "policy=inline");
    shell(mount.path(), "mkdir -p work/sub view && echo x > file && echo y > work/file");
    let (source, target) = (mount.join("work"), mount.join("copy"));
    let elsewhere = Scratch::new();
    assert_refused(&clone(&source, &source.join("sub/copy")), &source.join("sub/copy"), "into itself");
    assert_refused(&clone(&source, &source.join("copy")), &source.join("copy"), "into itself");
    assert_refused(&clone(&source, &elsewhere.join("copy")), &elsewhere.join("copy"), "on another file system");
    assert_refused(
        &clone(elsewhere.path(), &elsewhere.join("copy")),
        &elsewhere.join("copy"),
        "not on a mount of nvfold",
    );
    assert_refused(&clone(&mount.join("none"), &target), &target, "No such file");
    assert_refused(&clone(&mount.join("file"), &target), &target, "not a directory");
    assert_refused(&clone(&source, &mount.join("none/copy")), &target, "No such file");
    assert_refused(&clone(&source, &mount.join("file/copy")), &target, "Not a directory");
    assert_refused(&clone(&source, &mount.join("n".repeat(256))), &target, "longer than 255 bytes");
    let exists = clone(&source, &mount.join("file"));
    assert!(exists.code() == 1 && exists.stderr.contains("it exists already"), "{}", exists.report());
    assert_eq!(clone(&source, &mount.join("..")).code(), 2);
    // Where the kernel lets nobody make names: a bind mount that is read-only, and the whole mount when it is.
    let nvfold = fs::canonicalize(command().get_program()).expect("it is there");
    let script =
        format!("mount --bind . view && mount -o remount,bind,ro view && {} clone work view/copy", nvfold.display());
    let outcome = run::run(&mut in_own_namespace(mount.path(), &script));
    assert_refused(&outcome, &target, "Read-only file system");
    // The longest name.
    let longest = mount.join("n".repeat(255));
    clone(&source, &longest).success();
    assert!(longest.join("file").exists());
    mount.unmount();
    mount.set_options("policy=inline,ro");
    mount.mount();
    assert_refused(&clone(&source, &target), &target, "Read-only file system");
    mount.check();
}

#[test]
fn on_an_idmapped_mount_root_keeps_owners_and_users_get_what_they_may_read() {
    requires!(root, fuse, tool("setpriv"));
    let mut mount = Mount::with_options(64, "policy=inline");
    mount.unmount();
    mount.set_options("policy=inline,idmap");
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) < (Some(6), Some(12)) {
        eprintln!("skipped: FUSE has no idmapped mounts before Linux 6.12");
        return;
    }
    mount.mount();
    shell(
        mount.path(),
        "mkdir -m 777 home && mkdir work && echo x > work/file && chown 1001 work/file && chmod 600 work/file",
    );
    let (source, home) = (mount.join("work"), mount.join("home"));
    clone(&source, &mount.join("of-root")).success();
    assert_eq!(fs::metadata(mount.join("of-root/file")).expect("stat").uid(), USER);
    clone_as_user("", &source, &home.join("his")).success();
    assert_eq!(fs::metadata(home.join("his")).expect("stat").uid(), USER);
    // Nobody knows his groups here, so a file counts as readable only if any group and all others may read it.
    for (mode, is_allowed) in [("644", true), ("640", false), ("604", false)] {
        shell(&source, &format!("chown 0:2001 file && chmod {mode} file"));
        let target = home.join(mode);
        let outcome = clone_as_user("2001", &source, &target);
        match is_allowed {
            true => drop(outcome.success()),
            false => assert_refused(&outcome, &target, "work/file"),
        }
    }
    mount.check();
}

/// Makes a tree of this many directories, with 250 files in each.
fn large_tree(mount: &Mount, directories: usize) -> PathBuf {
    let seed = mount.join("seed");
    fs::create_dir(&seed).expect("mkdir");
    (0..250).for_each(|file| fs::write(seed.join(file.to_string()), [7; 100]).expect("write"));
    let large = mount.join("large");
    fs::create_dir(&large).expect("mkdir");
    (0..directories).for_each(|copy| drop(clone(&seed, &large.join(copy.to_string())).success()));
    large
}

/// Returns the number of names below a directory.
fn count(dir: &Path) -> usize {
    let names = fs::read_dir(dir).expect("list").map(|entry| entry.expect("list"));
    names.map(|entry| 1 + if entry.file_type().expect("a kind").is_dir() { count(&entry.path()) } else { 0 }).sum()
}

/// Begins a clone, and sends a signal once the server works on it.
fn interrupted(source: &Path, target: &Path, signal: Signal) -> Outcome {
    let mut is_sent = false;
    run::run_watching(command().arg("clone").args([source, target]), |child| {
        // The file without a name that the command has open is the last that it needs before it asks.
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
        let has_permit = |path: PathBuf| path.to_string_lossy().ends_with(" (deleted)");
        if !is_sent && open.filter_map(|file| fs::read_link(file.path()).ok()).any(has_permit) {
            let _ = kill_process(Pid::from_child(child), signal);
            is_sent = true;
        }
    })
}

/// Whether the signal comes in time is left to chance; what the core leaves of a cancelled clone is tested there.
#[test]
fn a_clone_that_a_signal_ends_is_there_whole_or_not_at_all() {
    requires!(fuse);
    let mut mount = Mount::with_options(512, "policy=inline");
    let large = large_tree(&mount, 20);
    let entries = count(&large);
    for (attempt, signal) in [Signal::INT, Signal::KILL, Signal::INT, Signal::KILL].into_iter().enumerate() {
        let target = mount.join(format!("copy{attempt}"));
        let outcome = interrupted(&large, &target, signal);
        match target.exists() {
            true => assert_eq!(count(&target), entries, "attempt {attempt}: {}", outcome.report()),
            false => assert!(outcome.status.signal().is_some(), "{}", outcome.report()),
        }
    }
    mount.check();
}
