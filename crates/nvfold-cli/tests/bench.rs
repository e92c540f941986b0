//! `nvfold bench`: that every benchmark runs, verifies what it wrote and reports what it says it does. Figures are
//! not looked at: these sizes give none.

use crate::common::{Scratch, can_mount, wait_until};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn report(scratch: &Scratch, arguments: &[&str]) -> Value {
    let all = [&["bench", "--json"], arguments, &["--smoke", "--embedded-only"]].concat();
    scratch.nvfold(&all).ok().json()
}

/// What is mounted beside nvfold on loop devices.
const ON_LOOP: [&str; 3] = ["mounted ext4", "mounted xfs", "mounted btrfs"];

/// A report of what is mounted too; nothing of it is left behind.
fn report_with_mounts(scratch: &Scratch, arguments: &[&str]) -> Value {
    let dir = scratch.path("mounts");
    std::fs::create_dir(&dir).unwrap();
    let all = [&["bench", "--json"], arguments, &["--smoke", "--dir", "mounts"]].concat();
    let report = scratch.nvfold(&all).ok().json();
    assert_nothing_left(&dir);
    std::fs::remove_dir(dir).unwrap();
    let left_out = report["left_out"].as_array().unwrap();
    // The makers of these may be missing, but not where nothing may be skipped.
    let may_miss = |why: &Value| std::env::var_os("CI").is_none() && why.as_str().unwrap().contains("mkfs.");
    assert!(left_out.iter().all(may_miss), "{left_out:#?}");
    report
}

fn assert_nothing_left(dir: &Path) {
    let files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(files.is_empty(), "left behind: {files:?}");
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts: Vec<_> = table.lines().filter(|line| line.contains(dir.to_str().unwrap())).collect();
    assert!(mounts.is_empty(), "still mounted: {mounts:#?}");
}

/// Whether a row of ON_LOOP was left out.
fn is_left_out(report: &Value, name: &str) -> bool {
    report["left_out"].as_array().unwrap().iter().any(|why| why.as_str().unwrap().starts_with(name))
}

fn assert_figures_are_plausible(report: &Value) {
    for row in report["rows"].as_array().unwrap() {
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("no {field} in {row}"));
        assert!(0.0 < number("seconds_min") && number("seconds_min") <= number("seconds_median"), "{row}");
        assert!(number("seconds_median") <= number("seconds_max"), "{row}");
        assert!(number("operations_per_second") > 0.0 && number("ratio") > 0.0, "{row}");
    }
}

fn names(report: &Value) -> Vec<&str> {
    report["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn the_write_and_read_benchmarks_compare_with_the_raw_limit_of_the_same_run() {
    let scratch = Scratch::new();
    for report in ["write", "read"].map(|what| report(&scratch, &[what])) {
        assert_eq!(report["version"], 1);
        let names = names(&report);
        for expected in ["raw limit", "embedded off", "embedded inline 0 %", "embedded inline 75 %", "tmpfs"] {
            // 4 KiB and 128 KiB, one thread and two.
            assert_eq!(names.iter().filter(|name| **name == expected).count(), 4, "{expected} in {names:?}");
        }
        for row in report["rows"].as_array().unwrap() {
            assert!(row["seconds_min"].as_f64() <= row["seconds_median"].as_f64(), "{row}");
            assert!(row["operations_per_second"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(row["ratio"] == 1.0, row["name"] == "raw limit", "{row}");
        }
    }
}

#[test]
fn the_meta_benchmark_measures_each_operation_on_names() {
    let report = report(&Scratch::new(), &["meta"]);
    let units: Vec<&str> = report["rows"].as_array().unwrap().iter().map(|row| row["unit"].as_str().unwrap()).collect();
    for expected in ["create 4 KiB", "stat", "readdir", "rename", "unlink"] {
        assert_eq!(units.iter().filter(|unit| **unit == expected).count(), 2, "{expected} in {units:?}");
    }
}

#[test]
fn the_write_and_read_benchmarks_measure_mounts() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let written = report_with_mounts(&scratch, &["write", "--summary", "summary"]);
    let read = report_with_mounts(&scratch, &["read"]);
    for report in [&written, &read] {
        assert_figures_are_plausible(report);
        let names = names(report);
        // 4 KiB and 128 KiB, one thread and two.
        let count = |name: String| names.iter().filter(|known| **known == name).count();
        for name in ["mounted nvfold off", "mounted nvfold inline", "mounted FUSE ceiling"] {
            assert_eq!(count(format!("{name}, fsync at the end")), 4, "{name} in {names:?}");
            assert_eq!(count(format!("{name}, O_DIRECT")), 4, "{name} in {names:?}");
        }
        for name in ON_LOOP.into_iter().filter(|name| !is_left_out(report, name)) {
            assert_eq!(count(format!("{name}, fsync at the end")), 4, "{name} in {names:?}");
        }
    }
    let summary = std::fs::read_to_string(scratch.path("summary")).unwrap();
    assert!(summary.contains("| raw limit | 1.00 | 1.00 | 1.00 | 1.00 |"), "{summary}");
    assert!(summary.contains("| mounted FUSE ceiling, O_DIRECT | 1.00 | 1.00 | 1.00 | 1.00 |"), "{summary}");
}

#[test]
fn the_meta_benchmark_measures_mounts() {
    if !can_mount() {
        return;
    }
    let report = report_with_mounts(&Scratch::new(), &["meta"]);
    assert_figures_are_plausible(&report);
    let names = names(&report);
    let ours = ["mounted nvfold off", "mounted nvfold inline"];
    for name in ours.into_iter().chain(ON_LOOP.into_iter().filter(|name| !is_left_out(&report, name))) {
        // One for each operation.
        assert_eq!(names.iter().filter(|known| **known == name).count(), 5, "{name} in {names:?}");
    }
}

#[test]
fn the_tree_benchmark_measures_mounts_with_different_options() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let report = scratch.nvfold(&["bench", "tree", "--smoke", "--json"]).ok().json();
    let places: Vec<_> = report["rows"].as_array().unwrap().iter().map(|row| row["place"].as_str().unwrap()).collect();
    assert_eq!(places, ["tmpfs", "mounted nvfold spin=off,cache=full", "mounted nvfold", "mounted nvfold cache=none"]);
    let ratios = report["rows"].as_array().unwrap().iter().flat_map(|row| row["ratio"].as_array().unwrap().clone());
    assert!(ratios.map(|ratio| ratio.as_f64().unwrap()).all(|ratio| ratio > 0.0 && ratio.is_finite()));
    assert_eq!(report["tree_files"], 20);
}

#[test]
fn the_clone_benchmark_proves_its_copies_and_counts_what_they_hold() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let report = report_with_mounts(&scratch, &["clone"]);
    let rows = report["rows"].as_array().unwrap();
    let of = |copier: &str| rows.iter().filter(move |row| row["copier"] == copier).collect::<Vec<_>>();
    let all = ["embedded off", "embedded inline", "nvfold, nvfold clone", "tmpfs, cp -a", "overlayfs, mount"];
    let on_loop = ["xfs, cp -a --reflink=always", "btrfs, subvolume snapshot"];
    let is_there = |copier: &&str| !is_left_out(&report, copier.split(',').next().unwrap());
    for copier in all.into_iter().chain(on_loop.into_iter().filter(is_there)) {
        let rows = of(copier);
        // Two trees.
        assert_eq!(rows.len(), 2, "{copier}");
        let number = |row: &Value, field: &str| row[field].as_f64().unwrap();
        assert!(rows.iter().all(|row| number(row, "seconds_median") > 0.0 && number(row, "ratio") > 0.0), "{rows:#?}");
        assert_eq!(rows[0]["writer_meanwhile"].is_null(), copier.starts_with("overlayfs"), "{copier}");
    }
    // Copies of data hold it, and clones do not.
    assert!(of("tmpfs, cp -a").iter().all(|row| row["next_bytes_per_entry"].as_f64() > row["file_bytes"].as_f64()));
    for copier in ["embedded off", "embedded inline", "nvfold, nvfold clone"] {
        assert!(of(copier).iter().all(|row| row["next_bytes_per_entry"].as_f64().unwrap() < 1024.0), "{copier}");
    }
    let slopes = report["slopes"].as_array().unwrap();
    assert!(slopes.iter().all(|slope| slope["copier"] != "tmpfs, cp -a" || slope["next_bytes_per_block"] == 4096.0));
}

#[test]
fn a_clone_benchmark_for_which_there_is_no_room_is_refused() {
    let scratch = Scratch::new();
    let arguments = ["bench", "clone", "--entries", "4000000", "--file-bytes", "1048576", "--dir", "."];
    scratch.nvfold(&arguments).fails(1, "measure less at once");
}

#[test]
fn a_benchmark_fails_if_its_mount_disappears() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let dir = scratch.path("mounts");
    std::fs::create_dir(&dir).unwrap();
    let run = std::thread::scope(|scope| {
        let bench = scope.spawn(|| {
            // Far more passes than it gets to make.
            scratch.nvfold(&["bench", "write", "--mebibytes", "4", "--repeats", "1000", "--dir", "mounts"])
        });
        let mut mount = None;
        wait_until("the benchmark opens a file on its mount", || {
            let runs = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
            mount = runs.map(|run| run.join("nvfold-off.mount")).find(|mount| mount.join("direct/lane0").exists());
            mount.is_some() || bench.is_finished()
        });
        // Files that are open on it stay, and writing to them goes on.
        if let Some(mount) = mount {
            assert!(Command::new("umount").arg("-l").arg(mount).status().unwrap().success());
        }
        bench.join().unwrap()
    });
    let run = run.fails(1, "that is no longer mounted, not on fuse.nvfold");
    assert!(run.stdout.is_empty(), "no row of it is printed: {run:#?}");
    assert_nothing_left(&dir);
}

#[test]
fn benchmark_rows_of_tmpfs_are_measured_on_tmpfs() {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if rustix::fs::statfs(on_disk.path()).unwrap().f_type as u32 == TMPFS_MAGIC {
        eprintln!("skipped: the target folder is on tmpfs itself");
        return;
    }
    let dir = on_disk.path().to_str().unwrap();
    for what in ["write", "read", "meta"] {
        let run = Scratch::new().nvfold(&["bench", what, "--smoke", "--embedded-only", "--dir", dir]);
        run.fails(1, "not on tmpfs");
        assert_nothing_left(on_disk.path());
    }
}

#[test]
fn the_recovery_benchmark_kills_a_process_and_mounts_its_device() {
    let scratch = Scratch::new();
    let dir = scratch.path("");
    let arguments = ["bench", "--json", "recovery", "--smoke", "--dir", dir.to_str().unwrap()];
    let report = scratch.nvfold(&arguments).ok().json();
    assert_eq!(report["version"], 1);
    let rows = report["rows"].as_array().unwrap();
    // Large files and small ones.
    assert_eq!(rows.iter().map(|row| row["files"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 512]);
    for row in rows {
        // Half of 2048 blocks are stored; entries are looked at by the segment.
        assert!(row["entries_scanned"].as_u64().unwrap() >= 1024, "{row}");
        for seconds in ["clean_first_byte_seconds", "crash_first_byte_seconds", "reconciled_seconds"] {
            assert!(row[seconds].as_f64().unwrap() > 0.0, "{row}");
        }
    }
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "nothing is left behind");
}
