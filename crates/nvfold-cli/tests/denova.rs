//! Policy denova and the index on the device at the command line: what is written is shared later, by the daemon of a
//! mount or when it is asked for; conversion of the index; what is told of all that.

use crate::common::{Mount, Scratch, can_mount, noise, wait_until};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

/// Written so that the file system has it.
fn write(path: impl AsRef<Path>, data: &[u8]) {
    fs::write(&path, data).unwrap();
    File::open(path).unwrap().sync_all().unwrap();
}

/// Writes files `0`, `1`, ... with the same bytes, 1 MiB each.
fn write_copies(mount: &Mount, copies: u64) {
    let data = noise(MIB as usize, 7);
    (0..copies).for_each(|copy| write(mount.path(&copy.to_string()), &data));
}

fn stats(scratch: &Scratch) -> Value {
    scratch.nvfold(&["stats", "mnt", "--json"]).ok().json()
}

fn denova(scratch: &Scratch) -> Value {
    stats(scratch)["denova"].clone()
}

fn saved_bytes(scratch: &Scratch) -> u64 {
    stats(scratch)["space"]["saved_bytes"].as_u64().unwrap()
}

#[test]
fn the_daemon_shares_written_data_and_the_statistics_show_it() {
    if !can_mount() {
        return;
    }
    for index in ["dram", "pm"] {
        let scratch = Scratch::new();
        let mount = scratch.mount("mem:", &format!("size=64M,policy=denova,index={index}"));
        assert_eq!(scratch.nvfold(&["info", "mnt", "--json"]).ok().json()["policy"], "denova");
        let before = denova(&scratch);
        assert_eq!((&before["mode"], &before["paused"]), (&"immediate".into(), &false.into()));
        write_copies(&mount, 4);
        wait_until("the daemon has shared the copies", || saved_bytes(&scratch) == 3 * MIB);
        wait_until("the queue is empty", || denova(&scratch)["queue_entries"] == 0);
        let after = denova(&scratch);
        assert_eq!(after["shared_bytes"], 3 * MIB, "{after}");
        assert_eq!(after["looked_at_bytes"], 4 * MIB, "{after}");
        for figure in ["dequeued", "busy_ns"] {
            assert!(after[figure].as_u64().unwrap() > 0, "{figure}: {after}");
        }
        let lingered = after["lingered"].as_array().unwrap();
        let entries: u64 = lingered.iter().map(|class| class["entries"].as_u64().unwrap()).sum();
        assert_eq!(after["dequeued"], entries, "every entry waited for some time: {after}");
        for copy in 0..4 {
            assert!(fs::read(mount.path(&copy.to_string())).unwrap() == noise(MIB as usize, 7));
        }
        let text = scratch.nvfold(&["stats", "mnt"]).ok().stdout;
        for row in ["mode", "queue, lag", "daemon, shared", "queue wait, 99th percentile", "index"] {
            assert!(text.contains(row), "`{row}` is not in {text}");
        }
        let top = scratch.nvfold(&["top", "mnt", "--once", "--interval", "0.1", "--json"]).ok().json();
        assert_eq!(top["mounts"][0]["queue"]["shared_bytes"], 3 * MIB, "{top}");
        assert_eq!(top["mounts"][0]["index"]["kind"], index, "{top}");
        mount.unmount();
    }
}

#[test]
fn a_paused_daemon_lets_the_queue_grow_until_it_is_drained_or_resumed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,policy=denova");
    let paused = scratch.nvfold(&["dedup", "--pause", "mnt", "--json"]).ok().json();
    assert_eq!(paused["denova"]["paused"], true);
    write_copies(&mount, 4);
    let queued = denova(&scratch);
    assert_eq!(queued["queue_bytes"], 4 * MIB, "{queued}");
    assert!(queued["queue_entries"].as_u64().unwrap() > 0 && queued["queue_dram_bytes"].as_u64().unwrap() > 0);
    assert_eq!(saved_bytes(&scratch), 0);
    let told = scratch.nvfold(&["dedup-stats", "mnt", "--json"]).ok().json();
    assert_eq!(told["queue_bytes"], 4 * MIB);
    assert!(denova(&scratch)["lag_ns"].as_u64().unwrap() > 0);

    // Drained although it is paused, by any path on the mount.
    let drained = scratch.nvfold(&["dedup", "--drain", "mnt/0", "--json", "--progress", "always"]).ok();
    assert!(drained.stderr.contains("0 entries left"), "{drained:#?}");
    assert_eq!(drained.number("queue_bytes_before"), 4 * MIB);
    assert_eq!(drained.number("saved_bytes_after"), 3 * MIB);
    assert_eq!(drained.number("stored_bytes_before") - drained.number("stored_bytes_after"), 3 * MIB);
    assert_eq!((&denova(&scratch)["queue_entries"], &denova(&scratch)["paused"]), (&0.into(), &true.into()));
    let again = scratch.nvfold(&["dedup", "--drain", "mnt", "--json"]).ok();
    assert_eq!(again.number("queue_entries_before"), 0);

    write(mount.path("more"), &noise(MIB as usize, 7));
    assert_eq!(denova(&scratch)["queue_bytes"], MIB);
    let told = scratch.nvfold(&["dedup", "--resume", "mnt"]).ok().stdout;
    assert!(told.contains("mode immediate;"), "{told}");
    wait_until("the daemon has shared it", || saved_bytes(&scratch) == 4 * MIB);
    mount.unmount();
}

#[test]
fn the_mode_of_the_daemon_can_change_while_it_works() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    // A daemon that wakes up once a day.
    let mount = scratch.mount("mem:", "size=64M,policy=denova,mode=delayed:86400000:1");
    write(mount.path("one"), &noise(MIB as usize, 1));
    write(mount.path("two"), &noise(MIB as usize, 1));
    assert_eq!((&denova(&scratch)["mode"], saved_bytes(&scratch)), (&"delayed:86400000:1".into(), 0));

    let told = scratch.nvfold(&["dedup", "mnt", "--mode", "delayed:10:1000", "--json"]).ok().json();
    assert_eq!(told["denova"]["mode"], "delayed:10:1000");
    wait_until("the daemon comes round", || saved_bytes(&scratch) == MIB);

    scratch.nvfold(&["dedup", "mnt", "--mode", "inline"]).ok();
    write(mount.path("three"), &noise(MIB as usize, 1));
    assert_eq!(saved_bytes(&scratch), 2 * MIB, "shared as it was written");
    assert_eq!(denova(&scratch)["queue_entries"], 0);

    scratch.nvfold(&["dedup", "mnt", "--mode", "immediate"]).ok();
    write(mount.path("four"), &noise(MIB as usize, 1));
    wait_until("the daemon has shared it", || saved_bytes(&scratch) == 3 * MIB);
    mount.unmount();
}

#[test]
fn entries_queued_at_an_unmount_are_shared_by_the_next_mount_or_by_dedup_drain() {
    if !can_mount() {
        return;
    }
    for index in ["dram", "pm"] {
        let scratch = Scratch::new();
        scratch.nvfold(&["mkfs", "dev", "--size", "64M", "--index", index]).ok();
        let mount = scratch.mount("dev", "policy=denova");
        scratch.nvfold(&["dedup", "--pause", "mnt"]).ok();
        write_copies(&mount, 4);
        mount.unmount();
        scratch.nvfold(&["fsck", "dev"]).ok();
        assert_eq!(scratch.nvfold(&["dedup-stats", "dev", "--json"]).ok().json()["queue_bytes"], 4 * MIB);
        let drained = scratch.nvfold(&["dedup", "--drain", "dev", "--json"]).ok();
        assert_eq!(drained.number("queue_bytes_before"), 4 * MIB);
        assert_eq!(drained.number("saved_bytes_after"), 3 * MIB, "{index}");
        scratch.nvfold(&["fsck", "dev"]).ok();

        let mount = scratch.mount("dev", "policy=denova");
        scratch.nvfold(&["dedup", "--pause", "mnt"]).ok();
        write(mount.path("more"), &noise(MIB as usize, 7));
        mount.unmount();
        let mount = scratch.mount("dev", "policy=denova");
        wait_until("the next mount goes on", || saved_bytes(&scratch) == 4 * MIB);
        mount.unmount();
        scratch.nvfold(&["fsck", "dev"]).ok();
    }
}

#[test]
fn import_drains_its_queue_before_it_reports_savings() {
    let scratch = Scratch::new();
    for name in ["one", "two", "three"] {
        fs::write(scratch.path(name), noise(MIB as usize, 3)).unwrap();
    }
    for mode in ["immediate", "inline", "delayed:1000:1"] {
        for index in ["dram", "pm"] {
            let device = format!("{mode}-{index}");
            scratch.nvfold(&["mkfs", &device, "--size", "64M", "--index", index, "--force"]).ok();
            let arguments = ["import", &device, "one", "two", "three", "--policy", "denova", "-o"];
            let run = scratch.nvfold(&[&arguments[..], &[&format!("mode={mode}"), "--json"]].concat()).ok();
            assert_eq!(run.number("saved_bytes_added"), 2 * MIB, "{mode} {index}");
            let was_queued = run.json()["sharing_seconds"].as_f64().unwrap() > 0.0;
            assert_eq!(was_queued, mode != "inline", "{mode}");
            scratch.nvfold(&["verify", &device, "one", "--at", "/one"]).ok();
            scratch.nvfold(&["fsck", &device]).ok();
        }
    }
}

#[test]
fn an_index_is_converted_both_ways_and_everything_is_still_shared() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.nvfold(&["mkfs", "dev", "--size", "64M"]).ok();
    fs::create_dir(scratch.path("tree")).unwrap();
    for (name, seed) in [("one", 1), ("two", 1), ("three", 2)] {
        fs::write(scratch.path("tree").join(name), noise(MIB as usize, seed)).unwrap();
    }
    scratch.nvfold(&["import", "dev", "tree"]).ok();
    let mut weak = "xxh3";
    for (to, function) in [("pm", None), ("dram", None), ("pm", Some("sha1")), ("pm", Some("xxh3")), ("dram", None)] {
        let mut arguments = vec!["tune", "dev", "--index", to, "--json"];
        arguments.extend(function.iter().flat_map(|function| ["--weak", function]));
        weak = function.unwrap_or(weak);
        let converted = scratch.nvfold(&arguments).ok().json();
        assert_eq!(converted["after"]["kind"], to, "{converted}");
        let media_bytes = converted["after"]["media_bytes"].as_u64().unwrap();
        if to == "pm" {
            assert_eq!(converted["after"]["weak"], weak, "{converted}");
            assert!((1..=64 * MIB / 20).contains(&media_bytes), "{converted}");
        } else {
            assert_eq!((&converted["after"]["weak"], media_bytes), (&Value::Null, 0), "{converted}");
        }
        scratch.nvfold(&["verify", "dev", "tree", "--at", "/tree"]).ok();
        scratch.nvfold(&["fsck", "dev"]).ok();
        assert_eq!(scratch.nvfold(&["dedup-stats", "dev", "--json"]).ok().number("saved_bytes"), MIB);
        let facts = scratch.nvfold(&["info", "dev", "--json"]).ok().json();
        assert_eq!(facts["superblock"]["index"], to);
    }
    // What was there is found by what comes.
    for (to, policy) in [("pm", "inline"), ("dram", "denova"), ("pm", "denova"), ("dram", "inline")] {
        scratch.nvfold(&["tune", "dev", "--index", to]).ok();
        let arguments = ["import", "dev", "tree", "--policy", policy, "--to"];
        let run = scratch.nvfold(&[&arguments[..], &[&format!("/{to}-{policy}"), "--json"]].concat()).ok();
        assert_eq!(run.number("saved_bytes_added"), 3 * MIB, "{to} {policy}");
    }
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn an_index_of_a_mounted_or_full_device_does_not_change() {
    let scratch = Scratch::new();
    scratch.nvfold(&["mkfs", "dev", "--size", "64M"]).ok();
    scratch.nvfold(&["tune", "dev", "--index", "both"]).code_is(2);
    scratch.nvfold(&["tune", "dev"]).code_is(2);
    scratch.nvfold(&["tune", "dev", "--weak", "sha1"]).code_is(2);
    scratch.nvfold(&["tune", "dev", "--index", "pm", "--method", "ws"]).code_is(2);
    scratch.nvfold(&["tune", "dev", "--index", "dram", "--weak", "sha1"]).fails(2, "only a pm index");
    scratch.nvfold(&["tune", "none", "--index", "pm"]).fails(1, "No such file");
    scratch.nvfold(&["mkfs", "other", "--size", "64M", "--weak", "sha1"]).fails(2, "only a pm index");
    scratch.nvfold(&["mkfs", "other", "--size", "64M", "--index", "ram"]).code_is(2);
    if can_mount() {
        let mount = scratch.mount("dev", "policy=inline");
        for target in ["dev", "mnt"] {
            let run = scratch.nvfold(&["tune", target, "--index", "pm"]).fails(1, "it is mounted on");
            assert!(run.stderr.contains("nvfold umount"), "{run:#?}");
        }
        mount.unmount();
    }
    // A file for every byte there is.
    fs::write(scratch.path("large"), noise(64 << 20, 1)).unwrap();
    scratch.nvfold(&["import", "dev", "large"]).code_is(1);
    let run = scratch.nvfold(&["tune", "dev", "--index", "pm"]).fails(1, "dev");
    assert!(run.stderr.contains("a pm index takes 256 KiB in whole segments"), "{run:#?}");
    assert_eq!(scratch.nvfold(&["info", "dev", "--json"]).ok().json()["superblock"]["index"], "dram");
    scratch.nvfold(&["fsck", "dev"]).ok();
}

#[test]
fn an_option_cannot_change_the_weak_function_of_a_pm_index() {
    let scratch = Scratch::new();
    scratch.nvfold(&["mkfs", "dev", "--size", "64M", "--index", "pm", "--weak", "sha1"]).ok();
    fs::create_dir(scratch.path("mnt")).unwrap();
    fs::write(scratch.path("file"), noise(8192, 1)).unwrap();
    let why = "the pm index of this device uses sha1";
    let run = scratch.nvfold(&["import", "dev", "file", "-o", "weak=xxh3"]).fails(2, why);
    assert!(run.stderr.contains("nvfold tune dev --index pm --weak xxh3"), "{run:#?}");
    scratch.nvfold(&["dedup", "--drain", "dev", "-o", "weak=md5"]).fails(2, why);
    scratch.nvfold(&["import", "dev", "file", "-o", "weak=sha1"]).ok();
    scratch.nvfold(&["import", "dev", "file", "--to", "again"]).ok();
    if can_mount() {
        scratch.nvfold(&["mount", "dev", "mnt", "-o", "weak=crc32"]).fails(2, why);
        let run = scratch.nvfold(&["mount", "dev", "mnt", "-o", "index=pm"]).fails(2, "only a memory device");
        assert!(run.stderr.contains("nvfold tune"), "{run:#?}");
        let mount = scratch.mount("dev", "policy=nv-dedup");
        assert_eq!(stats(&scratch)["index"]["weak"], "sha1");
        mount.unmount();
        let mount = scratch.mount("mem:", "size=64M,index=pm,weak=blake3");
        let index = stats(&scratch)["index"].clone();
        assert_eq!((&index["kind"], &index["weak"]), (&"pm".into(), &"blake3".into()));
        mount.unmount();
    }
}

#[test]
fn mount_and_import_refuse_wrong_policy_options() {
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    fs::create_dir(scratch.path("mnt")).unwrap();
    fs::write(scratch.path("file"), noise(8192, 1)).unwrap();
    for (options, why) in [
        ("mode=later", "must be one of inline, immediate, delayed:MS:ENTRIES"),
        ("mode=delayed:5", "must be one of inline, immediate, delayed:MS:ENTRIES"),
        ("cpu=0", "must be a percentage from 1 to 100"),
        ("guard=101", "must be a percentage from 0 to 100"),
        ("reorder=0:2", "must be REFERENCES:READS"),
        ("mode", "it needs a value: mode=delayed:750:20000"),
    ] {
        scratch.nvfold(&["mount", "dev", "mnt", "-o", options]).fails(2, why);
        scratch.nvfold(&["import", "dev", "file", "--policy", "denova", "-o", options]).fails(2, why);
    }
    for wrong in [&["--pause", "--resume", "mnt"][..], &["--mode", "later", "mnt"], &["--drain", "--pause", "mnt"]] {
        scratch.nvfold(&[&["dedup"], wrong].concat()).code_is(2);
    }
    scratch.nvfold(&["dedup", "--drain", "dev", "mnt"]).fails(2, "give one path");
    scratch.nvfold(&["dedup", "--drain", "dev", "--at", "/x"]).fails(2, "give one path");
    scratch.nvfold(&["dedup", "--drain", "mnt"]).fails(1, "no nvfold is mounted there");
    let run = scratch.nvfold(&["dedup", "--pause", "dev"]).fails(1, "no nvfold is mounted there");
    assert!(run.stderr.contains("no daemon"), "{run:#?}");
}

#[test]
fn only_root_and_the_mounting_user_may_control_the_queue() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let mount = scratch.mount("mem:", "size=64M,policy=denova,allow_other");
    fs::set_permissions(&mount.dir, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(mount.dir.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let nvfold = scratch.command_for_all();
    for arguments in [&["--pause"][..], &["--resume"], &["--mode", "inline"], &["--drain"]] {
        let mut as_nobody = Command::new(&nvfold);
        as_nobody.arg("dedup").args(arguments).arg(&mount.dir);
        std::os::unix::process::CommandExt::uid(&mut as_nobody, 65534);
        let output = as_nobody.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("only root and whoever mounted it can"), "{arguments:?}: {said}");
    }
    let now = denova(&scratch);
    assert_eq!((&now["mode"], &now["paused"]), (&"immediate".into(), &false.into()));
    // Asking how large the answer would be drains nothing, and wrong values change nothing.
    let get = |name: &str, value: &mut [u8]| rustix::fs::getxattr(&mount.dir, name, value);
    assert_eq!(get("user.nvfold.drain", &mut []), Err(rustix::io::Errno::INVAL));
    let set = |name: &str, value: &[u8]| rustix::fs::setxattr(&mount.dir, name, value, rustix::fs::XattrFlags::empty());
    for (name, wrong) in
        [("user.nvfold.mode", &b"later"[..]), ("user.nvfold.paused", b"maybe"), ("user.nvfold.mode", b"\xff")]
    {
        assert_eq!(set(name, wrong), Err(rustix::io::Errno::INVAL));
        assert_eq!(rustix::fs::removexattr(&mount.dir, name), Err(rustix::io::Errno::PERM));
    }
    let mut value = [0; 32];
    let length = get("user.nvfold.mode", &mut value).unwrap();
    assert_eq!(&value[..length], b"immediate");
    mount.unmount();
}

#[test]
fn a_read_only_mount_shares_nothing() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "64M");
    let mount = scratch.mount("dev", "policy=denova");
    scratch.nvfold(&["dedup", "--pause", "mnt"]).ok();
    write_copies(&mount, 2);
    mount.unmount();
    let mount = scratch.mount("dev", "policy=denova,ro");
    scratch.nvfold(&["dedup", "--drain", "mnt"]).fails(1, "it is mounted read-only");
    assert_eq!(denova(&scratch)["queue_bytes"], 2 * MIB);
    mount.unmount();
    assert_eq!(scratch.nvfold(&["dedup", "--drain", "dev", "--json"]).ok().number("saved_bytes_after"), MIB);
}

#[test]
fn an_unmount_does_not_wait_for_a_long_queue() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.device("dev", "128M");
    // A processor's hundredth: what is queued now would take it long.
    let mount = scratch.mount("dev", "policy=denova,cpu=1,weak=sha256,guard=0");
    write(mount.path("one"), &noise(32 << 20, 1));
    write(mount.path("two"), &noise(32 << 20, 1));
    mount.unmount();
    scratch.nvfold(&["fsck", "dev"]).ok();
    let drained = scratch.nvfold(&["dedup", "--drain", "dev", "-o", "weak=sha256", "--json"]).ok();
    assert!(drained.number("queue_bytes_before") > 0, "it was at work on {drained:#?} when it was unmounted");
    assert_eq!(drained.number("saved_bytes_after"), 32 << 20);
    scratch.nvfold(&["fsck", "dev"]).ok();
}
