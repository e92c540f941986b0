//! What programs have written, and have neither closed nor synced, so that the kernel may have it alone: commands that
//! look at what is stored have it stored first.

use std::fs;
use std::path::Path;
use std::process::Command;

use nvfold_tests::mount::{Mount, nvfold, nvfold_json};
use nvfold_tests::probe::{self, Writer};
use nvfold_tests::requires;
use nvfold_tests::scratch::Scratch;

const DEVICE_MIB: u64 = 64;
/// Pages that a program writes with a hole after each, so that the kernel needs a request for each of them. Whoever does
/// not wait for them finds some missing.
const PAGES: u64 = 2000;
const PAGE_BYTES: u64 = 4096;
const STRIDE: usize = 2 * PAGE_BYTES as usize;

fn write_pages(program: &Path, file: &Path, pages: u64) -> Writer {
    Writer::start(Command::new(program).arg("scatter").arg(file).arg(pages.to_string()))
}

#[test]
fn data_of_open_files_survives_a_killed_server_after_nvfold_sync() {
    requires!(root, fuse, tool("cc"));
    let programs = Scratch::new();
    let program = probe::compiled("clones", programs.path());
    for options in ["policy=inline,writeback=on", "policy=denova,cache=full,transport=device", "on a disk"] {
        let mut mount = match options {
            "on a disk" => Mount::on_disk(DEVICE_MIB, "inline"),
            options => Mount::with_options(DEVICE_MIB, options),
        };
        fs::write(mount.join("mapped"), vec![b'-'; 8192]).expect("write");
        let written = write_pages(&program, &mount.join("written"), PAGES);
        let renamed = write_pages(&program, &mount.join("first name"), PAGES);
        fs::rename(mount.join("first name"), mount.join("renamed")).expect("rename");
        let mapped = Writer::start(Command::new(&program).arg("map").arg(mount.join("mapped")));
        nvfold(&["sync"], &[mount.path()]).success();
        mount.kill();
        [written, renamed, mapped].into_iter().for_each(Writer::end);
        mount.mount();
        for name in ["written", "renamed"] {
            let content = fs::read(mount.join(name)).expect("read");
            for number in 0..PAGES {
                let page = content.get(number as usize * STRIDE..).unwrap_or_default();
                let is_there = page.starts_with(format!("page {number}\n").as_bytes());
                assert!(is_there, "{options}: page {number} of {name} is lost");
            }
        }
        assert!(fs::read(mount.join("mapped")).expect("read")[5000..].starts_with(b"round 0\n"), "{options}");
        mount.check();
    }
}

#[test]
fn nvfold_sync_fails_if_data_of_an_open_file_could_not_be_stored() {
    requires!(root, fuse, tool("cc"));
    let programs = Scratch::new();
    let program = probe::compiled("clones", programs.path());
    let mut mount = Mount::with_options(DEVICE_MIB, "policy=off,writeback=on");
    if !mount.is_real() {
        return;
    }
    fs::write(mount.join("file"), "").expect("make the file");
    fill(&mount.join("space"));
    // One page: the kernel may write it back at any time, and refuses the next write then.
    let writer = write_pages(&program, &mount.join("file"), 1);
    let outcome = nvfold(&["sync"], &[mount.path()]);
    assert_eq!(outcome.code(), 1, "{}", outcome.report());
    assert!(outcome.stderr.contains("No space left"), "{}", outcome.report());
    writer.end();
    nvfold(&["sync"], &[mount.path()]).success();
    mount.check();
}

/// Reserves all space that is left for a file.
fn fill(file: &Path) {
    let file = fs::File::create(file).expect("create");
    let (mut end, mut step) = (0, DEVICE_MIB << 20);
    while step >= PAGE_BYTES {
        match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), end, step) {
            Ok(()) => end += step,
            Err(_) => step /= 2,
        }
    }
}

#[test]
fn nvfold_dedup_shares_what_is_in_open_files() {
    requires!(root, fuse, tool("cc"));
    let programs = Scratch::new();
    let program = probe::compiled("clones", programs.path());
    let mut mount = Mount::with_options(DEVICE_MIB, "policy=off,writeback=on");
    if !mount.is_real() {
        return;
    }
    let writers = ["one", "other"].map(|name| write_pages(&program, &mount.join(name), PAGES));
    let report = nvfold_json(&["dedup", "--json"], &[&mount.join("one"), &mount.join("other")]);
    assert_eq!(report["looked_at_bytes"], 2 * PAGES * PAGE_BYTES, "{report}");
    assert_eq!(report["changed_bytes"], PAGES * PAGE_BYTES, "{report}");
    writers.into_iter().for_each(Writer::end);
    mount.check();
}
