//! `nvfold reclaim`, of a device and of a mount, and what a mount does by itself.

use crate::common::*;
use std::fs::{File, read, remove_file, write};
use std::io::Write;

const FILES: u64 = 120;

/// Files of 64 KiB, without equal parts, in a directory.
fn write_files(dir: &std::path::Path) {
    (0..FILES).for_each(|at| write(dir.join(at.to_string()), noise(64 << 10, at + 1)).unwrap());
}

fn is_kept(at: &u64) -> bool {
    at.is_multiple_of(8)
}

#[test]
fn reclaim_frees_dead_bytes_and_keeps_all_files() {
    let scratch = Scratch::new();
    scratch.device("dev", "96M");
    std::fs::create_dir(scratch.path("in")).unwrap();
    write_files(&scratch.path("in"));
    scratch.nvfold(&["import", "dev", "in", "-o", "policy=deext"]).ok();
    let nothing = scratch.nvfold(&["reclaim", "dev", "--json"]).ok();
    assert_eq!(nothing.number("segments"), 0);
    if !can_mount() {
        return;
    }
    let mount = scratch.mount("dev", "policy=deext");
    (0..FILES).filter(|at| !is_kept(at)).for_each(|at| remove_file(mount.path(&format!("in/{at}"))).unwrap());
    // What a crash or an unmount closes can be emptied; so can what the mount has not yet come to.
    let told = scratch.nvfold(&["reclaim", "mnt", "--json", "--progress", "always"]).ok();
    assert!(told.stderr.contains("dead"), "{told:#?}");
    wait_until("the mount has emptied what it can", || {
        let stats = scratch.nvfold(&["stats", "mnt", "--json"]).ok().json();
        let space = &stats["space"];
        space["reclaimed_segments"].as_u64().unwrap() >= 2 && space["packed_dead_bytes"].as_u64().unwrap() < 3 << 20
    });
    (0..FILES).filter(is_kept).for_each(|at| {
        assert!(read(mount.path(&format!("in/{at}"))).unwrap() == noise(64 << 10, at + 1), "file {at}");
    });
    let words = scratch.nvfold(&["stats", "mnt"]).ok().stdout;
    assert!(words.contains("dead bytes of packed chunks") && words.contains("segments,"), "{words}");
    mount.unmount();
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn reclaim_explains_why_a_target_cannot_be_reclaimed() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("dir")).unwrap();
    scratch.nvfold(&["reclaim", "dir"]).fails(1, "no nvfold is mounted there");
    scratch.nvfold(&["reclaim", "missing"]).fails(1, "missing");
    write(scratch.path("foreign"), [7; 1 << 20]).unwrap();
    scratch.nvfold(&["reclaim", "foreign"]).fails(1, "foreign");
    scratch.device("dev", "32M");
    assert!(scratch.nvfold(&["reclaim", "dev"]).ok().stdout.contains("0 in"));
}

/// The kernel tells a sync of an earlier write that failed. That write is not reclaim's business.
#[test]
fn reclaim_works_after_a_failed_write() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=32M,policy=deext,writeback=on");
    let mut file = File::create(mount.path("file")).unwrap();
    // The kernel accepts some of it, and finds out later that there is no space.
    let failed = (0..64).map(|at| file.write_all(&noise(1 << 20, at))).filter(Result::is_err).count();
    println!("{failed} of 64 writes failed at once");
    drop(file);
    remove_file(mount.path("file")).unwrap();
    scratch.nvfold(&["reclaim", "mnt"]).ok();
    mount.unmount();
}
