//! `nvfold bench`: that every benchmark runs, verifies what it wrote and reports what it says it does. Figures are
//! not looked at: these sizes give none.

mod common;

use common::Scratch;
use serde_json::Value;

fn report(scratch: &Scratch, arguments: &[&str]) -> Value {
    let all = [&["bench", "--json"], arguments, &["--smoke", "--embedded-only"]].concat();
    scratch.nvfold(&all).ok().json()
}

fn names(report: &Value) -> Vec<&str> {
    report["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
}

#[test]
fn write_and_read_compare_with_the_raw_limit_of_the_same_run() {
    let scratch = Scratch::new();
    let written = report(&scratch, &["write", "--plot", "write.svg"]);
    for report in [written, report(&scratch, &["read"])] {
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
    let drawn = std::fs::read_to_string(scratch.path("write.svg")).unwrap();
    assert!(
        drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>") && drawn.contains("embedded inline 75 %")
    );
}

#[test]
fn meta_measures_each_operation_on_names() {
    let report = report(&Scratch::new(), &["meta"]);
    let units: Vec<&str> = report["rows"].as_array().unwrap().iter().map(|row| row["unit"].as_str().unwrap()).collect();
    for expected in ["create 4 KiB", "stat", "readdir", "rename", "unlink"] {
        assert_eq!(units.iter().filter(|unit| **unit == expected).count(), 2, "{expected} in {units:?}");
    }
}

#[test]
fn recovery_kills_a_process_and_mounts_what_it_left() {
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
