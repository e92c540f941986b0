//! Compression at the command line: as a mount option, per directory, of what is stored, estimated and told.

use crate::common::{Scratch, can_mount, noise};
use std::fs;

const COMPRESS: &str = "user.nvfold.compress";

fn text(lines: u64) -> Vec<u8> {
    (0..lines).flat_map(|line| format!("line {} of a text, and {line}\n", line * line % 7919).into_bytes()).collect()
}

#[test]
fn stored_data_can_be_compressed_reported_and_restored() {
    let scratch = Scratch::new();
    fs::create_dir_all(scratch.path("tree/sub")).unwrap();
    fs::write(scratch.path("tree/sub/text"), text(60_000)).unwrap();
    fs::write(scratch.path("tree/copy"), text(60_000)).unwrap();
    fs::write(scratch.path("tree/noise"), noise(300_000, 7)).unwrap();
    let estimate = scratch.nvfold(&["estimate", "tree", "--compress", "--json"]).ok().stdout;
    let estimate: serde_json::Value = serde_json::from_str(&estimate).unwrap();
    let row = |policy: &str| {
        let rows = estimate["total"]["policies"].as_array().unwrap();
        rows.iter().find(|row| row["policy"] == policy).unwrap()["stored_bytes"].as_u64().unwrap()
    };
    assert!(row("deext, compressed") < row("deext") * 3 / 4, "{estimate}");

    scratch.device("dev", "128M");
    scratch.nvfold(&["import", "dev", "tree", "-o", "policy=deext"]).ok();
    let space = || scratch.nvfold(&["stats", "dev", "--json"]).ok().json()["space"].clone();
    let raw = space()["stored_bytes"].as_u64().unwrap();
    assert_eq!(space()["compressed_away_bytes"], 0);
    let done = scratch.nvfold(&["dedup", "dev", "--compress", "--json"]).ok();
    assert!(done.number("stored_bytes_after") < raw * 3 / 4);
    let after = space();
    let figure = |name: &str| after[name].as_u64().unwrap();
    let told = figure("stored_bytes") + figure("saved_bytes") + figure("compressed_away_bytes");
    assert_eq!(told, figure("logical_bytes"), "{after}");
    let again = scratch.nvfold(&["dedup", "dev", "--compress=zstd", "--json"]).ok();
    assert_eq!(again.number("changed_bytes"), 0);
    scratch.nvfold(&["verify", "dev", "tree"]).ok();
    scratch.nvfold(&["fsck", "dev"]).ok();

    let du = scratch.nvfold(&["du", "dev", "--extents", "--json"]).ok().json();
    let all = du["directories"].as_array().unwrap().last().unwrap().clone();
    assert!(all["shared_bytes"].as_u64().unwrap() > 0 && all["compressed_away_bytes"].as_u64().unwrap() > 0, "{du}");
    scratch.nvfold(&["undedup", "dev"]).ok();
    assert_eq!(space()["compressed_away_bytes"], 0);
    scratch.nvfold(&["verify", "dev", "tree"]).ok();
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn a_mount_compresses_by_its_option_and_the_attributes_of_directories() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "128M");
    let mount = scratch.mount("dev", "policy=deext,compress=lz4");
    let info = scratch.nvfold(&["info", "mnt", "--json"]).ok().json();
    assert_eq!(info["compress"], "lz4");
    let dir = mount.path("dir");
    fs::create_dir(&dir).unwrap();
    rustix::fs::setxattr(&dir, COMPRESS, b"off", rustix::fs::XattrFlags::empty()).unwrap();
    let wrong = rustix::fs::setxattr(&dir, COMPRESS, b"gzip", rustix::fs::XattrFlags::empty());
    assert_eq!(wrong, Err(rustix::io::Errno::INVAL));
    let told = |path: &str| {
        let report = scratch.nvfold(&["policy", path, "--json"]).ok().json();
        ["policy", "from", "compression", "compression_from"].map(|field| report[field].as_str().unwrap().to_owned())
    };
    assert_eq!(told("mnt"), ["deext", "mount", "lz4", "mount"]);
    assert_eq!(told("mnt/dir"), ["deext", "mount", "off", "own"]);
    let text_of = |path: &str| scratch.nvfold(&["policy", path]).ok().stdout;
    assert!(text_of("mnt/dir").ends_with("policy deext (from the mount), compression off (its own)\n"));
    let stored = || scratch.nvfold(&["dedup-stats", "mnt", "--json"]).ok().number("stored_bytes");
    let data = text(60_000);
    fs::write(dir.join("as it is"), &data).unwrap();
    fs::File::open(dir.join("as it is")).unwrap().sync_all().unwrap();
    assert_eq!(stored(), data.len() as u64);
    scratch.nvfold(&["dedup", "mnt/dir", "--compress=zstd:9"]).ok();
    let compressed = stored();
    assert!(compressed < data.len() as u64 * 3 / 4, "{compressed}");
    fs::write(mount.path("other"), [b"another beginning".as_slice(), &data].concat()).unwrap();
    fs::File::open(mount.path("other")).unwrap().sync_all().unwrap();
    assert!(stored() - compressed < 100_000, "what is there is shared");
    assert_eq!(fs::read(dir.join("as it is")).unwrap(), data);
    let du = scratch.nvfold(&["du", "mnt", "--extents", "--json"]).ok().json();
    assert!(du["directories"][0]["compressed_away_bytes"].as_u64().unwrap() > 0, "{du}");
    mount.unmount();
    let report = scratch.nvfold(&["policy", "dev", "--at", "/dir/as it is", "--json"]).ok().json();
    assert_eq!((&report["compression"], &report["compression_attribute"]), (&"off".into(), &"off".into()), "inherited");
    let of_mount = scratch.nvfold(&["policy", "dev", "--at", "/other"]).ok().stdout;
    assert!(of_mount.contains("compression is chosen when the device is mounted"), "{of_mount}");
    scratch.nvfold(&["fsck", "dev"]).ok();
}
