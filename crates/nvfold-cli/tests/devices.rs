//! mkfs, info, df, stats, dedup-stats, fsck: on devices that are good, and on everything that is not.

use crate::common::{Scratch, noise};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};

const BLOCK: u64 = 4096;

fn overwrite(scratch: &Scratch, name: &str, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(scratch.path(name)).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn info_describes_a_formatted_device() {
    let scratch = Scratch::new();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let made = scratch.nvfold(&["mkfs", "dev", "--size", "64M", "--label", "tea", "--uuid", uuid, "--json"]).ok();
    assert_eq!(made.json()["superblock"]["device_bytes"], 64 << 20);
    assert!(made.number("capacity_bytes") < 64 << 20);
    let info = scratch.nvfold(&["info", "dev", "--json"]).ok().json();
    assert_eq!(info["command"], "info");
    assert_eq!(info["superblock"]["uuid"], uuid);
    assert_eq!(info["superblock"]["label"], "tea");
    assert_eq!(info["superblock"]["clean"], true);
    assert_eq!(info["mount_point"], serde_json::Value::Null);
    let text = scratch.nvfold(&["info", "dev"]).ok().stdout;
    assert!(text.contains(uuid) && text.contains("tea") && text.contains("clean"), "{text}");
}

#[test]
fn a_fresh_device_takes_no_memory_for_its_tables() {
    let scratch = Scratch::new();
    scratch.device("dev", "8G");
    let df = scratch.nvfold(&["df", "dev", "--json"]).ok().json();
    let host = df["file_systems"][0]["host_bytes"].as_u64().unwrap();
    assert!(host <= 8 << 20, "{host} bytes for an empty 8 GiB device");
}

#[test]
fn the_persistence_level_of_a_file_on_tmpfs_is_memory() {
    let scratch = Scratch::new();
    scratch.device("dev", "16M");
    let level = scratch.nvfold(&["info", "dev", "--json"]).ok().json()["persistence"].clone();
    let in_memory = scratch.path("dev").starts_with("/dev/shm");
    assert_eq!(level, if in_memory { "memory" } else { "file" });
}

/// Damage in content without a fingerprint is no finding, so fsck says how much it did not compare.
#[test]
fn fsck_reports_how_many_bytes_have_no_fingerprint_to_compare() {
    const MARK: &[u8] = b"sixteen bytes of content that are damaged";
    let content = [MARK, &noise(3 * BLOCK as usize, 7)].concat();
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    fs::create_dir(scratch.path("tree")).unwrap();
    fs::write(scratch.path("tree/file"), &content[..3 * BLOCK as usize + 1]).unwrap();
    scratch.nvfold(&["import", "dev", "tree", "-o", "policy=off,pack=off"]).ok();
    let bytes = fs::read(scratch.path("dev")).unwrap();
    let at = bytes.windows(MARK.len()).position(|window| window == MARK).unwrap();
    overwrite(&scratch, "dev", at as u64, b"other");
    let found = scratch.nvfold(&["fsck", "-n", "dev", "--json"]).ok().json();
    assert_eq!(found["uncompared_bytes"], 4 * BLOCK, "{found}");
    let text = scratch.nvfold(&["fsck", "-n", "dev"]).ok().stdout;
    let told = "not compared: 16 KiB of file data (nothing to compare it with is stored); damage there";
    assert!(text.contains(told), "{text}");
    let text = scratch.nvfold(&["fsck", "-n", "dev", "--metadata-only"]).ok().stdout;
    assert!(text.contains("16 KiB of file data (--metadata-only)"), "{text}");
}

#[test]
fn every_report_has_versioned_json_and_text() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    for command in ["info", "df", "du", "stats", "dedup-stats", "fsck"] {
        let json = scratch.nvfold(&[command, "dev", "--json"]).ok().json();
        assert_eq!(json["command"], command);
        assert!(!scratch.nvfold(&[command, "dev"]).ok().stdout.trim().is_empty(), "{command}");
    }
}

#[test]
fn mkfs_formats_a_device_with_content_only_with_force() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let before = fs::read(scratch.path("dev")).unwrap();
    scratch.nvfold(&["mkfs", "dev"]).fails(1, "holds an nvfold file system");
    scratch.nvfold(&["mkfs", "dev", "--size", "32M"]).fails(1, "holds an nvfold file system");
    assert!(fs::read(scratch.path("dev")).unwrap() == before, "a refused format changed the device");
    scratch.nvfold(&["mkfs", "dev", "--force"]).ok();

    fs::write(scratch.path("ext"), vec![0; 32 << 20]).unwrap();
    overwrite(&scratch, "ext", 0x438, &[0x53, 0xef]);
    scratch.nvfold(&["mkfs", "ext"]).fails(1, "ext4");
    scratch.nvfold(&["mkfs", "ext", "--size", "64M"]).fails(1, "ext4");
    assert_eq!(fs::metadata(scratch.path("ext")).unwrap().len(), 32 << 20);
    scratch.nvfold(&["mkfs", "ext", "--force"]).ok();
}

#[test]
fn mkfs_refuses_impossible_sizes_and_creates_no_file() {
    let scratch = Scratch::new();
    for size in ["4096", "1M", "67108865", "8E", "16383P", "9223372036854775807", "18446744073709551615"] {
        scratch.nvfold(&["mkfs", "dev", "--size", size]).code_is(1);
        assert!(!scratch.path("dev").exists(), "--size {size} left a file");
    }
    for size in ["16E", "0x10", "-1", "many"] {
        scratch.nvfold(&["mkfs", "dev", "--size", size]).code_is(2);
    }
    scratch.nvfold(&["mkfs", "dev"]).fails(2, "needs a size");
    scratch.nvfold(&["mkfs", "mem:", "--size", "1G"]).fails(2, "made when it is mounted");
    let label = "x".repeat(33);
    scratch.nvfold(&["mkfs", "dev", "--size", "64M", "--label", &label]).fails(2, "longer than 32 bytes");
    assert!(!scratch.path("dev").exists());
}

#[test]
fn a_file_that_is_no_device_is_reported_as_such() {
    let scratch = Scratch::new();
    fs::create_dir(scratch.path("dir")).unwrap();
    fs::write(scratch.path("odd"), vec![1; 5000]).unwrap();
    fs::write(scratch.path("empty"), b"").unwrap();
    fs::write(scratch.path("noise"), vec![0x5a; 16 << 20]).unwrap();
    for (command, failed) in [("info", 1), ("stats", 1), ("fsck", 8)] {
        scratch.nvfold(&[command, "none"]).fails(failed, "No such file");
        scratch.nvfold(&[command, "odd"]).fails(failed, "not a multiple of 4096");
        scratch.nvfold(&[command, "empty"]).fails(failed, "0 bytes");
        scratch.nvfold(&[command, "noise"]).fails(failed, "not an nvfold device");
        scratch.nvfold(&[command, "/dev/null"]).fails(failed, "character device");
        scratch.nvfold(&[command, "dir"]).code_is(failed);
    }
    scratch.nvfold(&["import", "noise", "dir"]).fails(1, "not an nvfold device");
    scratch.nvfold(&["export", "noise", "out"]).fails(1, "not an nvfold device");
    assert!(!scratch.path("out").exists());
}

#[test]
fn info_and_fsck_recognise_a_truncated_device() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    OpenOptions::new().write(true).open(scratch.path("dev")).unwrap().set_len(32 << 20).unwrap();
    for (command, failed) in [("info", 1), ("df", 1), ("fsck", 4)] {
        scratch.nvfold(&[command, "dev"]).fails(failed, "truncated to 33554432 bytes");
    }
}

#[test]
fn one_intact_superblock_of_three_suffices() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    overwrite(&scratch, "dev", 100, b"damage");
    scratch.nvfold(&["info", "dev"]).ok();
    let found = scratch.nvfold(&["fsck", "-n", "dev", "--json"]).code_is(4).json();
    assert_eq!(found["consistent"], false);
    assert_eq!(found["findings"][0]["repaired"], false);
    scratch.nvfold(&["fsck", "-y", "dev"]).code_is(1);
    scratch.nvfold(&["fsck", "dev"]).code_is(0);
    overwrite(&scratch, "dev", 100, b"damage");
    overwrite(&scratch, "dev", BLOCK + 100, b"damage");
    scratch.nvfold(&["info", "dev"]).ok();
    scratch.nvfold(&["fsck", "-y", "dev"]).code_is(1);
    scratch.nvfold(&["fsck", "dev"]).code_is(0);
    for at in [0, BLOCK, (64 << 20) - BLOCK] {
        overwrite(&scratch, "dev", at + 100, b"damage");
    }
    scratch.nvfold(&["info", "dev"]).fails(1, "superblock");
    scratch.nvfold(&["fsck", "-y", "dev"]).fails(4, "superblock");
    scratch.nvfold(&["mkfs", "dev"]).fails(1, "--force");
}

/// A superblock as a newer version would write it.
fn with_newer_feature(scratch: &Scratch, name: &str) {
    use nvfold::Superblock;
    use nvfold::internals::media::superblock::COPIES;
    use pmem::{DeviceSpec, OpenOptions, Region};
    let spec = DeviceSpec::Path(scratch.path(name));
    let region = Region::open(&spec, &OpenOptions::default()).unwrap();
    let (superblock, _) = nvfold::read_superblock(&region).unwrap();
    for copy in COPIES {
        let newer = Superblock { incompatible: 1 << 40, ..superblock }.sealed();
        let written = region.write(copy, &newer).flush();
        let _ = region.fence(written);
    }
}

#[test]
fn a_device_with_an_unknown_feature_is_refused_with_its_flag() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    with_newer_feature(&scratch, "dev");
    for (command, failed) in [("info", 1), ("df", 1), ("fsck", 8)] {
        scratch.nvfold(&[command, "dev"]).fails(failed, "feature flags 0x10000000000");
    }
    scratch.nvfold(&["mkfs", "dev"]).fails(1, "--force");
}

/// The probe that showed it: 4 KiB of random bytes in the segment table.
#[test]
fn files_stay_readable_with_a_damaged_segment_table_and_its_repair_can_be_undone() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    fs::create_dir(scratch.path("tree")).unwrap();
    for number in 0..20u8 {
        fs::write(scratch.path("tree").join(format!("file {number}")), vec![number; 5000]).unwrap();
    }
    scratch.nvfold(&["import", "dev", "tree"]).ok();
    let noise: Vec<u8> = (1..=BLOCK as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    overwrite(&scratch, "dev", 7 * BLOCK, &noise);
    let damaged = fs::read(scratch.path("dev")).unwrap();
    scratch.nvfold(&["export", "dev", "out", "--from", "/tree"]).ok();
    assert_eq!(fs::read(scratch.path("out").join("file 7")).unwrap(), [7; 5000]);
    assert!(fs::read(scratch.path("dev")).unwrap() == damaged, "export writes nothing");
    let found = scratch.nvfold(&["fsck", "dev", "--json"]).code_is(4).json();
    assert_eq!(found["given_up"].as_array().unwrap().len(), 0);
    let repaired = scratch.nvfold(&["fsck", "-y", "dev", "--json"]).code_is(1).json();
    assert!(repaired["inodes"].as_u64().unwrap() >= 22);
    let undo = repaired["undo"].as_str().unwrap().to_owned();
    assert!(undo.ends_with("dev.undo"), "{undo}");
    let mode = fs::metadata(scratch.path(&undo)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds what files held");
    scratch.nvfold(&["fsck", "dev"]).code_is(0);

    // An undo file that is not this one's, or not whole, changes nothing.
    let after = fs::read(scratch.path("dev")).unwrap();
    let kept = fs::read(scratch.path(&undo)).unwrap();
    scratch.device("other", "64M");
    scratch.nvfold(&["fsck", "--restore", &undo, "other"]).fails(8, "another device");
    let mut flipped = kept.clone();
    flipped[200] ^= 1;
    for (bytes, why) in [
        (&kept[..kept.len() - 1], "truncated"),
        (&kept[..40], "shorter than its head"),
        (&flipped[..], "damaged"),
        (&[0; 100][..], "not an undo file"),
    ] {
        fs::write(scratch.path("bad"), bytes).unwrap();
        scratch.nvfold(&["fsck", "--restore", "bad", "dev"]).fails(8, why);
        assert!(fs::read(scratch.path("dev")).unwrap() == after, "{why}");
    }
    scratch.nvfold(&["fsck", "--restore", &undo, "dev"]).code_is(0);
    assert!(fs::read(scratch.path("dev")).unwrap() == damaged, "bit by bit");

    // A second repair keeps its copy in a file of its own, and what was kept before cannot come back after it.
    let again = scratch.nvfold(&["fsck", "-y", "dev", "--json"]).code_is(1).json();
    assert!(again["undo"].as_str().unwrap().ends_with("dev.undo.1"));
    scratch.nvfold(&["import", "dev", "tree/file 1"]).ok();
    scratch.nvfold(&["fsck", "--restore", &undo, "dev"]).fails(8, "mounted");
    scratch.nvfold(&["fsck", "dev"]).code_is(0);
}

#[test]
fn fsck_accepts_the_flags_that_fsck_8_passes() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let link = scratch.path("fsck.nvfold");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nvfold"), &link).unwrap();
    for flags in [&["-a"][..], &["-p"], &["-n", "-f"], &["-y"], &["-a", "-f"]] {
        scratch.run(&link, &[flags, &["dev"]].concat()).code_is(0);
    }
    assert!(scratch.run(&link, &["-a", "dev"]).stdout.contains("not checked"));
    assert!(scratch.run(&link, &["-a", "-f", "dev"]).stdout.contains("consistent"));
    scratch.run(&link, &["--no-such-option", "dev"]).code_is(16);
    scratch.run(&link, &["none"]).code_is(8);
    let mkfs = scratch.path("mkfs.nvfold");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_nvfold"), &mkfs).unwrap();
    scratch.run(&mkfs, &["other", "--size", "64M"]).ok();
}

#[test]
fn the_error_for_a_device_in_use_contains_the_owner_process() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let spec = pmem::DeviceSpec::Path(scratch.path("dev"));
    let held = pmem::Region::open(&spec, &pmem::OpenOptions::default()).unwrap();
    let owner = format!("process {}", std::process::id());
    scratch.nvfold(&["info", "dev"]).fails(1, &owner);
    scratch.nvfold(&["fsck", "dev"]).fails(8, &owner);
    scratch.nvfold(&["import", "dev", "/etc/hostname"]).fails(1, &owner);
    scratch.nvfold(&["mkfs", "dev", "--force"]).fails(1, &owner);
    drop(held);
    scratch.nvfold(&["info", "dev"]).ok();
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let scratch = Scratch::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(scratch.nvfold(&["completions", shell]).ok().stdout.contains("dedup-stats"), "{shell}");
    }
    assert!(scratch.nvfold(&["man"]).ok().stdout.contains(".TH NVFOLD"));
    assert!(scratch.nvfold(&["man", "mkfs"]).ok().stdout.contains("nvfold\\-mkfs"));
    scratch.nvfold(&["man", "nonsense"]).fails(2, "nonsense");
    fs::create_dir(scratch.path("pages")).unwrap();
    scratch.nvfold(&["man", "--into", "pages"]).ok();
    let page = fs::read_to_string(scratch.path("pages/man1/nvfold-import.1")).unwrap();
    assert!(page.contains("Example: nvfold import /dev/shm/pool /usr/share"), "{page}");
}

#[test]
fn wrong_usage_exits_with_2_and_help_with_0() {
    let scratch = Scratch::new();
    let first_steps = scratch.nvfold(&[]).code_is(2).stderr;
    for command in ["estimate", "mount", "mkfs", "df", "umount"] {
        assert!(first_steps.contains(&format!("\n  nvfold {command} ")), "{first_steps}");
    }
    scratch.nvfold(&["frobnicate"]).code_is(2);
    scratch.nvfold(&["mkfs"]).code_is(2);
    scratch.nvfold(&["--help"]).code_is(0);
    scratch.nvfold(&["import", "--help"]).code_is(0);
    scratch.nvfold(&["--version"]).code_is(0);
}

#[test]
fn mkfs_formats_a_nonempty_file_only_with_force() {
    use std::os::unix::fs::FileExt;
    let scratch = Scratch::new();
    let path = scratch.path("data");
    // Random bytes, one byte far inside, and one behind a hole.
    let far_inside = [vec![0; 40 << 20], vec![1], vec![0; 4095]].concat();
    for (content, at) in [(crate::common::noise(32 << 20, 1), "byte 0"), (far_inside, "byte 41943040")] {
        std::fs::write(&path, &content).unwrap();
        for size in [&[][..], &["--size", "64M"]] {
            scratch.nvfold(&[&["mkfs", "data"], size].concat()).fails(1, at);
        }
        assert!(std::fs::read(&path).unwrap() == content, "it was changed");
        scratch.nvfold(&["mkfs", "data", "--force"]).ok();
    }
    let sparse = std::fs::File::create(&path).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.write_all_at(b"x", (1 << 39) + 5).unwrap();
    scratch.nvfold(&["mkfs", "data", "--size", "64M"]).fails(1, "byte 549755813893");
    for zeros in [0, 64 << 20] {
        std::fs::write(&path, vec![0; zeros]).unwrap();
        scratch.nvfold(&["mkfs", "data", "--size", "64M"]).ok();
    }
}
