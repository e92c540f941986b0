//! What every byte of a device is for: the figures add up on a mount, on the unmounted device, and in fsck.

use crate::common::{Scratch, can_mount, noise};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

const POLICIES: [&str; 9] =
    ["off", "inline", "nv-dedup", "denova", "deext", "icid", "icid+inline", "icid+deext", "auto"];

fn sum(figures: &Value, names: &[&str]) -> u64 {
    names.iter().map(|name| figures[name].as_u64().unwrap_or_else(|| panic!("no {name} in {figures}"))).sum()
}

/// Checks the usage of a report of `stats` or `fsck`, and returns it.
fn usage(report: &Value) -> Value {
    let usage = report["usage"].clone();
    let stored = sum(&usage, &["stored_bytes", "saved_bytes", "compressed_away_bytes"]);
    assert_eq!(stored, sum(&usage, &["logical_bytes", "dead_bytes", "padding_bytes"]), "{usage}");
    assert!(sum(&usage, &["saved_bytes"]) <= sum(&usage, &["logical_bytes"]), "{usage}");
    usage
}

/// Checks that the figures of a report of `stats` are the whole device.
fn assert_is_whole(report: &Value) {
    let parts = ["free_bytes", "stored_bytes", "packed_rest_bytes", "metadata_bytes", "reserved_bytes"];
    let space = &report["space"];
    assert_eq!(sum(space, &parts), sum(space, &["device_bytes"]), "{space}");
}

/// Text, noise, copies of them at other offsets, and files of which only a part is left.
fn write_files(dir: &Path) {
    let (noise, text) = (noise(600_000, 3), "a line of text, and another one\n".repeat(12_000).into_bytes());
    fs::write(dir.join("noise"), &noise).unwrap();
    fs::write(dir.join("text"), &text).unwrap();
    fs::copy(dir.join("noise"), dir.join("copy")).unwrap();
    fs::write(dir.join("moved"), [b"a line in front\n", &text[..]].concat()).unwrap();
    fs::write(dir.join("parts"), [&noise[100..9000], &text[5..7000], &noise[50_000..50_010]].concat()).unwrap();
    File::options().write(true).open(dir.join("copy")).unwrap().write_all_at(&[7; 5000], 70_001).unwrap();
    File::options().write(true).open(dir.join("noise")).unwrap().set_len(123_456).unwrap();
    fs::remove_file(dir.join("text")).unwrap();
    fs::read_dir(dir).unwrap().for_each(|entry| File::open(entry.unwrap().path()).unwrap().sync_all().unwrap());
}

#[test]
fn the_space_figures_add_up_for_every_policy() {
    if !can_mount() {
        return;
    }
    for policy in POLICIES {
        let scratch = Scratch::new();
        scratch.device("dev", "64M");
        let mount = scratch.mount("dev", &format!("policy={policy},compress=lz4"));
        write_files(&mount.dir);
        let mounted = scratch.nvfold(&["stats", "mnt", "--json"]).ok().json();
        usage(&mounted);
        assert_is_whole(&mounted);
        mount.unmount();
        let unmounted = scratch.nvfold(&["stats", "dev", "--json"]).ok().json();
        assert_is_whole(&unmounted);
        let checked = scratch.nvfold(&["fsck", "dev", "--json"]).ok().json();
        assert_eq!(usage(&unmounted), usage(&checked), "{policy}");
    }
}

#[test]
fn an_empty_device_of_a_tebibyte_has_reserved_space_and_hardly_any_metadata() {
    let scratch = Scratch::new();
    scratch.device("dev", "1T");
    let report = scratch.nvfold(&["stats", "dev", "--json"]).ok().json();
    assert_is_whole(&report);
    assert!(sum(&report["space"], &["metadata_bytes"]) <= 4 << 20, "{}", report["space"]);
    assert!(sum(&report["space"], &["reserved_bytes"]) > 1 << 34, "{}", report["space"]);
    assert_eq!(sum(&usage(&report), &["stored_bytes", "logical_bytes"]), 0);
}

/// What other users write moves these figures to the byte, so only root and the user who mounted it may see them.
#[test]
fn only_root_and_the_mounting_user_see_figures_and_block_addresses() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,allow_other,policy=inline");
    let file = mount.path("file");
    fs::write(&file, noise(100_000, 1)).unwrap();
    std::os::unix::fs::chown(&file, Some(65534), Some(65534)).unwrap();
    let nvfold = scratch.command_for_all();
    for path in ["", "nvfold"] {
        fs::set_permissions(scratch.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let (nvfold, dir, file) = (nvfold.to_str().unwrap(), mount.dir.to_str().unwrap(), file.to_str().unwrap());
    let as_nobody = |words: &[&str]| {
        scratch.run("setpriv", &[&["--reuid=65534", "--regid=65534", "--clear-groups"], words].concat())
    };
    for command in ["df", "stats", "dedup-stats"] {
        as_nobody(&[nvfold, command, dir]).fails(1, "only root and the user who mounted it may see its figures");
        scratch.nvfold(&[command, dir]).ok();
    }
    as_nobody(&[nvfold, "top", dir, "--once"]).fails(1, "only root and the user who mounted it may see its figures");
    let report = as_nobody(&[nvfold, "info", dir, "--json"]).ok().json();
    for figure in ["space", "usage", "index", "origins", "requests", "process", "traffic", "wear"] {
        assert!(report[figure].is_null(), "{figure}: {report}");
    }
    assert_eq!((&report["policy"], &report["requests_by_kind"]), (&"inline".into(), &serde_json::json!({})));
    // With how many files it shares its bytes, and where they lie: not even its owner.
    as_nobody(&[nvfold, "du", dir, "--extents"]).fails(1, "not permitted");
    scratch.nvfold(&["du", dir, "--extents"]).ok();
    for allowed in [&["sync", dir][..], &["dedup", file]] {
        as_nobody(&[&[nvfold], allowed].concat()).ok();
    }
    mount.unmount();
}
