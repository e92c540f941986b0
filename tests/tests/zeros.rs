//! Zeros that programs write on a mount: they are holes, and take no space.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nvfold::Policy;
use nvfold_tests::mount::{Mount, nvfold_json};
use nvfold_tests::{requires, run};

/// The device has so many MiB, and the file of zeros is 30 times as large.
const DEVICE_MIB: u64 = 64;
/// Bytes by which metadata may grow: a segment of inodes, and a few pages of logs.
const METADATA_BYTES: u64 = (2 << 20) + (64 << 10);

fn space(mount: &Mount, name: &str) -> u64 {
    nvfold_json(&["stats", "--json"], &[mount.path()])["space"][name].as_u64().expect("a number of bytes")
}

/// Writes zeros with dd, in requests of its own, and checks what they take and read as.
fn write_zeros(mount: &Mount, mib: u64, block: &str) {
    let before = space(mount, "metadata_bytes");
    let script = format!(
        "head -c {mib}M /dev/zero | dd of=f bs={block} iflag=fullblock status=none; sync -f f; \
         cmp -n $((({mib} << 20))) f /dev/zero; test $(stat -c %s f) = $((({mib} << 20)))"
    );
    run::shell(mount.path(), &script);
    assert_eq!((space(mount, "stored_bytes"), space(mount, "logical_bytes")), (0, 0), "{block}");
    let metadata = space(mount, "metadata_bytes").saturating_sub(before);
    assert!(metadata <= METADATA_BYTES, "{block}: {metadata} bytes of metadata");
    assert_eq!(fs::metadata(mount.join("f")).expect("it was written").blocks(), 0, "{block}");
}

#[test]
fn a_file_of_zeros_is_larger_than_its_device() {
    requires!(fuse);
    let mut mount = Mount::with_options(DEVICE_MIB, "");
    write_zeros(&mount, 2000, "1M");
    mount.remount();
    run::shell(mount.path(), "cmp -n 2097152000 f /dev/zero; rm f");
    mount.check();
}

#[test]
fn zeros_take_no_space_under_any_policy_that_shares() {
    requires!(fuse);
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Off) {
        for writeback in ["on", "off"] {
            let mut mount = Mount::with_options(DEVICE_MIB, &format!("policy={},writeback={writeback}", policy.name()));
            write_zeros(&mount, 100, "64k");
            write_zeros(&mount, 4, "512");
            // Over data, in the middle of a file, through a mapping of the kernel's cache as well.
            run::shell(
                mount.path(),
                "head -c 3M /dev/urandom > g; head -c 3M g > expected; sync -f g; \
                 dd if=/dev/zero of=g bs=100k seek=3 count=10 conv=notrunc status=none; \
                 sync -f g; cmp -n 307200 g expected; cmp -n 1024000 -i 307200:0 g /dev/zero; \
                 cmp -i 1331200 g expected; cp --sparse=never g h; cmp g h; rm expected",
            );
            let holes = fs::metadata(mount.join("g")).expect("written").blocks() * 512;
            assert!(holes <= (3 << 20) - 1_000_000, "{policy:?}, writeback={writeback}: {holes} bytes");
            mount.check();
        }
    }
}

#[test]
fn policy_off_stores_zeros() {
    requires!(fuse);
    let mut mount = Mount::with_options(DEVICE_MIB, "policy=off");
    run::shell(mount.path(), "head -c 8M /dev/zero > f; sync -f f");
    assert_eq!(space(&mount, "stored_bytes"), 8 << 20);
    mount.check();
}
