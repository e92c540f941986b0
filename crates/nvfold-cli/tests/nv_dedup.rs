//! Policy nv-dedup at the command line: its options, what `stats` shows of the model, and `tune`.

use crate::common::{Scratch, can_mount, wait_until};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

fn model(scratch: &Scratch) -> Value {
    scratch.nvfold(&["stats", "mnt", "--json"]).ok().json()["nv_dedup"].clone()
}

/// Blocks in which no two are equal, from the `first` on.
fn blocks(first: u64, count: u64) -> Vec<u8> {
    let words = (first * 512..(first + count) * 512).map(|word| (word + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    words.flat_map(u64::to_le_bytes).collect()
}

fn write(path: impl AsRef<std::path::Path>, data: &[u8]) {
    fs::write(&path, data).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn stats_shows_the_cost_model_and_its_inputs() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=256M,policy=nv-dedup,period=64,weak=crc32,strong=sha1");
    assert_eq!(scratch.nvfold(&["info", "mnt", "--json"]).ok().json()["policy"], "nv-dedup");
    let before = model(&scratch);
    assert_eq!((&before["choice"], &before["measured"]), (&Value::from("auto"), &Value::from(true)));
    for cost in ["c", "w", "s", "lambda", "v"] {
        assert!(before["costs_ns"][cost].as_u64().unwrap() > 0, "{before}");
    }
    write(mount.path("one"), &blocks(0, 256));
    write(mount.path("two"), &blocks(0, 256));
    let after = model(&scratch);
    assert!(after["periods"].as_u64().unwrap() > 0, "{after}");
    assert!(after["ratio"].is_number(), "{after}");
    let pieces = after["pieces"].as_object().unwrap();
    assert_eq!(pieces.keys().collect::<Vec<_>>(), ["non", "str", "wb", "ws"]);
    assert_eq!(pieces.values().map(|pieces| pieces.as_u64().unwrap()).sum::<u64>(), 512);
    let text = scratch.nvfold(&["stats", "mnt"]).ok().stdout;
    for row in ["chosen by auto", "cost of a write, c", "(measured)", "wb pays from", "pieces by method"] {
        assert!(text.contains(row), "`{row}` is not in {text}");
    }
    mount.unmount();
    let mount = scratch.mount("mem:", "size=64M,policy=inline");
    assert_eq!(model(&scratch), Value::Null);
    assert!(!scratch.nvfold(&["stats", "mnt"]).ok().stdout.contains("chosen by"));
    mount.unmount();
}

#[test]
fn tune_switches_the_method_of_a_running_mount_and_earlier_data_is_still_found() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=256M,policy=nv-dedup,method=non");
    assert_eq!(model(&scratch)["method"], "non");
    write(mount.path("one"), &blocks(0, 256));
    let stored = || scratch.nvfold(&["dedup-stats", "mnt", "--json"]).ok().number("stored_bytes");
    write(mount.path("two"), &blocks(0, 256));
    assert_eq!(stored(), 512 * 4096, "nothing is looked for");

    let tuned = scratch.nvfold(&["tune", "mnt", "--method", "ws", "--json"]).ok().json();
    assert_eq!((&tuned["choice"], &tuned["nv_dedup"]["method"]), (&Value::from("ws"), &Value::from("ws")));
    assert_eq!(model(&scratch)["choice"], "ws");
    // The filler is at work by itself.
    let filled = || scratch.nvfold(&["stats", "mnt", "--json"]).ok().json()["space"]["chunks_filled"].as_u64();
    wait_until("missing fingerprints are filled in", || filled() == Some(512));
    write(mount.path("three"), &blocks(0, 256));
    assert_eq!(stored(), 512 * 4096, "all of it was found");
    for choice in ["auto", "paper", "non", "str", "wb"] {
        scratch.nvfold(&["tune", "mnt", "--method", choice]).ok();
        assert_eq!(model(&scratch)["choice"], choice);
    }
    mount.unmount();
}

#[test]
fn tune_explains_why_it_refuses() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.nvfold(&["tune", "mnt", "--method", "fast"]).code_is(2);
    scratch.nvfold(&["tune", "mnt"]).code_is(2);
    scratch.nvfold(&["tune", ".", "--method", "ws"]).fails(1, "no nvfold is mounted");
    let mount = scratch.mount("mem:", "size=64M,policy=nv-dedup,allow_other");
    let attribute =
        |value: &[u8]| rustix::fs::setxattr(&mount.dir, "user.nvfold.method", value, rustix::fs::XattrFlags::empty());
    assert_eq!(attribute(b"fast"), Err(rustix::io::Errno::INVAL));
    assert_eq!(attribute(b"\xff"), Err(rustix::io::Errno::INVAL));
    assert_eq!(rustix::fs::removexattr(&mount.dir, "user.nvfold.method"), Err(rustix::io::Errno::PERM));
    attribute(b"wb").unwrap();
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(&mount.dir, "user.nvfold.method", &mut value).unwrap();
    assert_eq!(&value[..length], b"wb");
    assert!(!scratch.nvfold(&["stats", "mnt"]).ok().stdout.is_empty());

    // Another user may write there, and yet not change how data is stored.
    fs::set_permissions(&mount.dir, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(mount.dir.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let nvfold = scratch.command_for_all();
    let mut as_nobody = Command::new(&nvfold);
    as_nobody.args(["tune", mount.dir.to_str().unwrap(), "--method", "non"]);
    std::os::unix::process::CommandExt::uid(&mut as_nobody, 65534);
    let output = as_nobody.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("only root and whoever mounted it can"), "{said}");
    assert_eq!(model(&scratch)["choice"], "wb");
    mount.unmount();
}

#[test]
fn mount_and_import_refuse_wrong_policy_options() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    fs::create_dir(scratch.path("mnt")).unwrap();
    fs::write(scratch.path("file"), blocks(0, 4)).unwrap();
    for (options, why) in [
        ("weak=md4", "must be one of xxh3, crc32, fletcher32, md5, sha1, sha256, blake3"),
        ("strong=crc32", "must be one of md5, sha1, sha256, blake3, md5-salted, bytes"),
        ("period=0", "must be a number of chunks"),
        ("method=best", "must be one of auto, paper, non, ws, str, wb"),
        ("verify=no", "must be one of bytes, strong"),
        ("generators=2", "must be one of per-core, global"),
        ("strong=bytes,verify=strong", "verify=strong needs a strong fingerprint"),
        ("weak", "it needs a value: weak=xxh3"),
    ] {
        scratch.nvfold(&["mount", "dev", "mnt", "-o", options]).fails(2, why);
        scratch.nvfold(&["import", "dev", "file", "--policy", "nv-dedup", "-o", options]).fails(2, why);
    }
    scratch.nvfold(&["mount", "dev", "mnt", "-o", "policy=nvdedup"]).fails(2, "must be one of off, inline");
    scratch.nvfold(&["import", "dev", "file", "-o", "ro"]).fails(2, "unknown option ro");
}

#[test]
fn import_shares_with_every_fingerprint_function() {
    let scratch = Scratch::new();
    fs::write(scratch.path("one"), blocks(0, 32)).unwrap();
    fs::write(scratch.path("two"), blocks(0, 32)).unwrap();
    for weak in ["xxh3", "crc32", "fletcher32", "md5", "sha1", "sha256", "blake3"] {
        for strong in ["md5", "sha1", "sha256", "blake3", "bytes"] {
            let (device, options) = (format!("{weak}-{strong}"), format!("weak={weak},strong={strong},method=ws"));
            scratch.device(&device, "16M");
            let arguments = ["import", &device, "one", "two", "--policy", "nv-dedup", "-o", &options, "--threads", "1"];
            let run = scratch.nvfold(&[&arguments[..], &["--json"]].concat()).ok();
            assert_eq!(run.number("stored_bytes_added"), 32 * 4096, "{options}");
            scratch.nvfold(&["fsck", &device]).ok();
        }
    }
}
