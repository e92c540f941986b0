//! Programs that copy on a mount and do not know nvfold. With a policy that follows origins, bytes that they read or
//! wrote lately are recognised in their later writes, at any offset, and shared.

use std::fs;
use std::path::Path;

use nvfold_tests::mount::{Mount, nvfold_json};
use nvfold_tests::random::Seed;
use nvfold_tests::{requires, run};

const FILE_BYTES: usize = 3_000_001;

/// Returns a mount with files `a` and `b` of random bytes, and a text.
fn mount(options: &str) -> Mount {
    let mount = Mount::with_options(128, options);
    let mut random = Seed::new("copies").generator();
    for name in ["a", "b"] {
        let mut bytes = vec![0; FILE_BYTES];
        random.fill(&mut bytes);
        fs::write(mount.join(name), bytes).expect("write");
    }
    let lines: String = (0..60_000).map(|line| format!("line {line}: {:016x}\n", random.u64(..))).collect();
    fs::write(mount.join("text"), lines).expect("write");
    sync(mount.path());
    mount
}

fn sync(dir: &Path) {
    run::shell(dir, "sync -f .");
}

/// Returns by how many bytes a script makes the stored data grow, and the bytes of the files that it has written.
#[track_caller]
fn stored_by(mount: &Mount, script: &str, written: &[&str]) -> (u64, u64) {
    let stored = || {
        let stats = nvfold_json(&["stats", "--json"], &[mount.path()]);
        stats["space"]["stored_bytes"].as_u64().expect("what is stored")
    };
    let before = stored();
    run::shell(mount.path(), script);
    sync(mount.path());
    let written = written.iter().map(|name| fs::metadata(mount.join(name)).expect("written").len()).sum();
    (stored().saturating_sub(before), written)
}

#[test]
fn copies_by_plain_programs_on_a_mount_are_shared() {
    requires!(fuse, tool("tar"));
    for writeback in ["on", "off"] {
        let mut mount = mount(&format!("policy=icid,writeback={writeback}"));
        // Some programs ask for a clone where they can; only the stored bytes count.
        let cases: [(&str, &str, &[&str], u64); 5] = [
            ("dd", "dd if=a of=copy bs=10007 status=none", &["copy"], 3),
            ("cat", "cat text a b > all", &["all"], 3),
            ("sed", "sed -i s/line.30000:/changed/ text", &["text"], 10),
            ("tar", "tar cf archive.tar a b text", &["archive.tar"], 3),
            ("head and tail", "(head -c 1000001 a; echo in between; tail -c +1000002 a) > inserted", &["inserted"], 3),
        ];
        for (name, script, written, percent_most) in cases {
            let (stored, bytes) = stored_by(&mount, script, written);
            assert!(stored * 100 <= bytes * percent_most, "{name}, writeback={writeback}: {stored} of {bytes} bytes");
        }
        let compare = "tail -c 6000002 all | cmp - <(cat a b); cmp a copy; tar xOf archive.tar b | cmp - b; \
            (head -c 1000001 a; echo in between; tail -c +1000002 a) | cmp - inserted; grep -q changed text";
        run::shell(mount.path(), compare);
        mount.remount();
        run::shell(mount.path(), compare);
        mount.check();
    }
}

#[test]
fn new_data_is_stored_and_other_policies_follow_no_copies() {
    requires!(fuse);
    for (policy, script) in [("icid", "head -c 5000000 /dev/urandom > new"), ("off", "tail -c +2 a > new")] {
        let mount = mount(&format!("policy={policy}"));
        let (stored, bytes) = stored_by(&mount, script, &["new"]);
        assert!(stored >= bytes, "{policy}: {stored} of {bytes} bytes");
        let stats = nvfold_json(&["stats", "--json"], &[mount.path()]);
        assert!(policy == "icid" || stats["origins"]["writes"] == 0, "{policy}");
    }
}
