//! The evaluation of ICID: unmodified programs under `nvfold run`, with the library that it preloads.

use crate::common::Scratch;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// libnvfold_preload.so: `NVFOLD_PRELOAD`, or made in this folder of what cargo has just built.
fn library(folder: &Path) -> PathBuf {
    if let Some(path) = std::env::var_os("NVFOLD_PRELOAD") {
        return path.into();
    }
    let beside = std::env::current_exe().expect("this test is a file").parent().expect("in a folder").to_owned();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/preload-library.sh");
    assert!(Command::new(script).arg(beside).arg(folder).status().expect("run the script").success());
    folder.join("libnvfold_preload.so")
}

/// What this test needs and is not here. Under CI that is a failure.
fn is_anything_missing() -> bool {
    let has =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    let missing = if !Path::new("/dev/fuse").exists() {
        "/dev/fuse"
    } else if !["c++", "sed"].into_iter().all(has) {
        "c++ or sed"
    } else if !Path::new("/usr/include/leveldb/db.h").exists() {
        "libleveldb-dev"
    } else {
        return false;
    };
    assert!(std::env::var_os("CI").is_none(), "{missing} is missing; run scripts/test-deps.sh");
    eprintln!("skipped: {missing} is missing; run scripts/test-deps.sh");
    true
}

#[test]
fn the_icid_paper_benchmark_runs_and_verifies_its_files() {
    if is_anything_missing() {
        return;
    }
    let scratch = Scratch::new();
    let (library, lab) = (library(&scratch.path("preload")), env!("CARGO_BIN_EXE_nvfold-lab"));
    let preload = format!("NVFOLD_PRELOAD={}", library.display());
    let paper =
        ["--json", "paper", "icid", "--smoke", "--figure", "9,10,12,13,table-6,14,table-5,mount", "--out", "out"];
    let report = scratch.run("env", &[&[&preload[..], lab], &paper[..]].concat()).ok().json();
    let figures = report["figures"].as_array().expect("figures");
    let ids: Vec<&str> = figures.iter().filter_map(|figure| figure["id"].as_str()).collect();
    let of_values = ["figure-9", "figure-10", "figure-12", "figure-13", "table-6"];
    assert_eq!(ids, [&of_values[..], &["figure-14", "table-5", "mount"]].concat());
    let share = |name: &str| {
        let series = figures[0]["charts"][0]["series"].as_array().expect("series");
        let found = series.iter().find(|series| series["name"] == name).unwrap_or_else(|| panic!("{name}"));
        found["y"].as_array().and_then(|shares| shares.last()?.as_f64()).expect("a share with values of 4 KiB")
    };
    assert!(share("ICID, of the tables") > share("ICID"), "logs are copied from no file");
    assert!(share("ICID, of the tables") > 10.0, "compactions copy from tables");
    let memory = figures[6]["charts"][0]["series"][0]["y"][0].as_f64().expect("memory of the rec-tree");
    assert!((5.0..5.8).contains(&memory), "{memory} MB");
    let shared = &figures[7]["charts"][0];
    assert_eq!(shared["series"][0]["name"], "icid, cold");
    let percent = shared["series"][0]["y"][0].as_f64().expect("what dd copied and shares");
    assert!(percent > 90.0, "{percent} %");
    let out = scratch.path("out");
    let page = fs::read_to_string(out.join("README.md")).expect("a page");
    assert!(page.contains("native/figure-14.svg") && out.join("native/figure-14.svg").exists(), "{page}");
}
