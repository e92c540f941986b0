//! import, verify, export, du: trees with everything in them go in, are equal, and come out again.

use crate::common::{Scratch, noise};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// A tree with one of everything.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/empty")).unwrap();
    fs::write(root.join("small"), b"tea").unwrap();
    fs::write(root.join("nothing"), b"").unwrap();
    fs::write(root.join("large"), noise((3 << 20) + 17, 1)).unwrap();
    fs::write(root.join("sub/copy"), noise((3 << 20) + 17, 1)).unwrap();
    fs::hard_link(root.join("large"), root.join("sub/linked")).unwrap();
    symlink("../small", root.join("sub/link")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"not utf-8 \xff\xfe")), b"x").unwrap();
    fs::write(root.join("x".repeat(255)), b"a long name").unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(&noise(10_000, 2), 5 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    fs::set_permissions(root.join("small"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(root.join("sub"), fs::Permissions::from_mode(0o1770)).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, root.join("fifo"), rustix::fs::Mode::from_raw_mode(0o640)).unwrap();
    if is_root() {
        let (kind, mode) = (rustix::fs::FileType::CharacterDevice, rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, root.join("null"), kind, mode, rustix::fs::makedev(1, 3)).unwrap();
        std::os::unix::fs::chown(root.join("small"), Some(123), Some(456)).unwrap();
        fs::set_permissions(root.join("small"), fs::Permissions::from_mode(0o4751)).unwrap();
    }
    let old = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    for name in ["small", "sub/copy", "sub"] {
        File::open(root.join(name)).unwrap().set_modified(old).unwrap();
    }
}

#[test]
fn a_tree_is_equal_after_import_verify_and_export() {
    let scratch = Scratch::new();
    make_tree(&scratch.path("tree"));
    scratch.device("dev", "64M");
    // One thread: equal blocks that two threads write at the same instant may both be stored.
    let report = scratch.nvfold(&["import", "dev", "tree", "--threads", "1", "--json"]).ok();
    assert_eq!(report.number("hard_links"), 1);
    assert_eq!(report.number("symlinks"), 2);
    assert_eq!(report.number("problem_count"), 0);
    assert!(report.number("saved_bytes_added") >= 3 << 20, "the copy of `large` was stored: {report:#?}");
    scratch.nvfold(&["verify", "dev", "tree"]).ok();
    scratch.nvfold(&["fsck", "dev"]).ok();

    scratch.nvfold(&["export", "dev", "out", "--from", "/tree"]).ok();
    scratch.device("again", "64M");
    scratch.nvfold(&["import", "again", "out", "--to", "/deep/down"]).ok();
    scratch.nvfold(&["verify", "again", "tree", "--at", "/deep/down"]).ok();
    let (original, exported) = (fs::metadata(scratch.path("tree/large")), fs::metadata(scratch.path("out/large")));
    assert_eq!(exported.unwrap().nlink(), original.unwrap().nlink());
    let sparse = fs::metadata(scratch.path("out/sparse")).unwrap();
    assert_eq!(sparse.len(), 20 << 20);
    assert!(sparse.blocks() * 512 < 1 << 20, "holes were written out");
}

#[test]
fn verify_reports_every_kind_of_difference() {
    let scratch = Scratch::new();
    make_tree(&scratch.path("tree"));
    scratch.device("dev", "64M");
    scratch.nvfold(&["import", "dev", "tree"]).ok();
    let tree = scratch.path("tree");
    let differs = |what: &str| {
        let run = scratch.nvfold(&["verify", "dev", "tree"]).code_is(1);
        assert!(run.stderr.contains(what), "`{what}` is not in {run:#?}");
    };
    let large = File::options().write(true).open(tree.join("large")).unwrap();
    let time = large.metadata().unwrap().modified().unwrap();
    large.write_all_at(b"!", 2 << 20).unwrap();
    large.set_modified(time).unwrap();
    differs("content differs at byte 2097152");
    fs::write(tree.join("small"), b"coffee").unwrap();
    differs("has 6 bytes in the tree and 3 on the device");
    fs::set_permissions(tree.join("nothing"), fs::Permissions::from_mode(0o600)).unwrap();
    differs("mode is 600 in the tree");
    fs::write(tree.join("new"), b"").unwrap();
    differs("new: is not on the device");
    fs::remove_file(tree.join("dangling")).unwrap();
    differs("dangling: is on the device and not in the tree");
    fs::remove_file(tree.join("sub/link")).unwrap();
    symlink("elsewhere", tree.join("sub/link")).unwrap();
    differs("points elsewhere");
    fs::remove_file(tree.join("fifo")).unwrap();
    fs::write(tree.join("fifo"), b"").unwrap();
    differs("is Some(Regular) in the tree and Fifo on the device");
}

#[test]
fn importing_a_second_copy_takes_almost_no_space_unless_the_policy_is_off() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/data"), noise(8 << 20, 3)).unwrap();
    scratch.device("dev", "64M");
    scratch.nvfold(&["import", "dev", "tree", "--to", "/a"]).ok();
    let second = scratch.nvfold(&["import", "dev", "tree", "--to", "/b", "--json"]).ok();
    assert_eq!(second.number("stored_bytes_added"), 0);
    assert_eq!(second.number("logical_bytes_added"), 8 << 20);
    let third = scratch.nvfold(&["import", "dev", "tree", "--to", "/c", "--policy", "off", "--json"]).ok();
    assert_eq!(third.number("stored_bytes_added"), 8 << 20);
    let stats = scratch.nvfold(&["dedup-stats", "dev", "--json"]).ok();
    assert_eq!(stats.number("saved_bytes"), 8 << 20);
    let du = scratch.nvfold(&["du", "dev", "--json"]).ok().json();
    let of = |path: &str| {
        let rows = du["directories"].as_array().unwrap();
        rows.iter().find(|row| row["path"] == path).unwrap()["logical_bytes"].as_u64().unwrap()
    };
    assert_eq!((of("/a"), of("/b"), of("/")), (8 << 20, 8 << 20, 24 << 20));
}

#[test]
fn import_reports_an_existing_name_and_continues() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/a"), b"1").unwrap();
    scratch.device("dev", "64M");
    scratch.nvfold(&["import", "dev", "tree"]).ok();
    fs::write(scratch.path("tree/b"), b"2").unwrap();
    let run = scratch.nvfold(&["import", "dev", "tree", "--json"]).fails(1, "exists");
    assert_eq!((run.number("problem_count"), run.number("files")), (1, 1));
    scratch.nvfold(&["verify", "dev", "tree"]).code_is(0);
}

#[test]
fn import_skips_sockets_with_a_note() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(scratch.path("tree/socket")).unwrap();
    scratch.device("dev", "64M");
    let run = scratch.nvfold(&["import", "dev", "tree"]).ok();
    assert!(run.stderr.contains("a socket"), "{run:#?}");
    scratch.nvfold(&["verify", "dev", "tree"]).ok();
}

#[test]
fn an_import_to_a_full_device_ends_and_leaves_it_consistent() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    for number in 0..40 {
        fs::write(scratch.path(&format!("tree/{number:02}")), noise(1 << 20, 100 + number)).unwrap();
    }
    scratch.device("dev", "24M");
    scratch.nvfold(&["import", "dev", "tree"]).fails(1, "no space left");
    scratch.nvfold(&["fsck", "dev"]).ok();
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["superblock"]["clean"], true);
}

#[test]
fn errors_for_wrong_sources_and_targets_contain_their_path() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    scratch.nvfold(&["import", "dev", "nowhere"]).fails(1, "nowhere");
    fs::write(scratch.path("file"), b"x").unwrap();
    scratch.nvfold(&["import", "dev", "file", "--to", "/a/../b"]).fails(2, "..");
    scratch.nvfold(&["import", "dev", "file", "--threads", "0"]).code_is(2);
    scratch.nvfold(&["export", "dev", "out", "--from", "/nothing"]).fails(1, "/nothing");
    scratch.nvfold(&["verify", "dev", "file", "--at", "/nothing"]).fails(1, "/nothing");
    scratch.nvfold(&["import", "mem:", "file"]).fails(2, "while it is mounted");
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn import_skips_the_device_file_itself() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("tree")).unwrap();
    scratch.device("tree/dev", "64M");
    let run = scratch.nvfold(&["import", "tree/dev", "tree"]).ok();
    assert!(run.stderr.contains("the device itself"), "{run:#?}");
}

#[test]
fn progress_is_printed_on_request_and_by_default_not_to_a_pipe() {
    let scratch = Scratch::new();
    fs::write(scratch.path("file"), noise(1 << 20, 9)).unwrap();
    scratch.device("dev", "64M");
    let loud = scratch.nvfold(&["import", "dev", "file", "--to", "/1", "--progress", "always"]).ok();
    assert!(loud.stderr.contains("import: 1 MiB of 1 MiB (100 %)"), "{loud:#?}");
    let quiet = scratch.nvfold(&["import", "dev", "file", "--to", "/2"]).ok();
    assert_eq!(quiet.stderr, "");
}
