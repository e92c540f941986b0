//! What a mount tells its operator: each event once for each change of a state, with what to do, on standard error and in
//! the journal with fields.

use nvfold_tests::mount::{Mount, command, in_own_namespace, nvfold};
use nvfold_tests::random::Seed;
use nvfold_tests::requires;
use nvfold_tests::run;
use nvfold_tests::scratch::Scratch;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Every policy, each in turn with another way to cache pages and another transport.
const OPTIONS: [&str; 9] = [
    "policy=off,writeback=off",
    "policy=inline,cache=none",
    "policy=nv-dedup,writeback=off,transport=device",
    "policy=denova,cache=none,transport=device",
    "policy=deext,writeback=off",
    "policy=icid,cache=none",
    "policy=icid+inline,writeback=off,transport=device",
    "policy=icid+deext,cache=none",
    "policy=auto",
];
const MIB: usize = 1 << 20;

fn wait_until(what: &str, log: impl Fn() -> String, is_so: impl Fn(&str) -> bool) {
    let end = Instant::now() + Duration::from_secs(120);
    while !is_so(&log()) {
        assert!(Instant::now() < end, "waited for: {what}\n{}", log());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until the log of a mount has a text.
fn wait_for(mount: &Mount, text: &str) {
    wait_until(text, || mount.log(), |log| log.contains(text));
}

fn times(mount: &Mount, text: &str) -> usize {
    mount.log().matches(text).count()
}

/// Writes noise to a file until it fails; returns the error of the write, or of what makes it durable.
fn fill(path: &Path) -> std::io::Error {
    let mut noise = vec![0; MIB];
    let mut random = Seed::new("fill").generator();
    let mut file = File::options().create(true).append(true).open(path).expect("make a file");
    loop {
        random.fill(&mut noise);
        if let Err(error) = file.write_all(&noise).and_then(|()| file.sync_all()) {
            return error;
        }
    }
}

#[test]
fn a_full_device_is_reported_once_until_space_was_freed_with_every_policy() {
    requires!(fuse);
    for options in OPTIONS {
        let mut mount = Mount::with_options(32, options);
        if !mount.is_real() {
            return;
        }
        let (full, again) = ("a request found no space (ENOSPC)", "there is space again");
        let file = mount.join("file");
        assert_eq!(fill(&file).raw_os_error(), Some(nvfold::errno::ENOSPC), "{options}");
        wait_for(&mount, full);
        wait_for(&mount, "nearly full: ");
        assert!(mount.log().contains("delete files or snapshots"), "{options}: it says what to do");
        for _ in 0..3 {
            fill(&file);
        }
        fs::remove_file(&file).expect("remove");
        wait_for(&mount, again);
        wait_for(&mount, "not nearly full any more");
        // Work in the background may free something meanwhile; but no report comes twice without the other.
        let before = times(&mount, full);
        assert!(before == times(&mount, again) && before < 4, "{options}: {}", mount.log());
        fill(&file);
        wait_until("it is reported again", || mount.log(), |log| log.matches(full).count() > before);
        fs::remove_file(&file).expect("remove");
        mount.check();
    }
}

#[test]
fn a_tree_at_its_limit_is_reported_once_and_not_as_a_full_device() {
    requires!(fuse);
    // The second one finds the limit only when the kernel writes back, and gets ENOSPC then.
    for options in ["policy=inline,writeback=off", "policy=auto"] {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        let tree = mount.join("tree");
        fs::create_dir(&tree).expect("make a directory");
        nvfold(&["set", "limit=2M"], &[&tree]).success();
        let reached = format!("{}: has reached its limit (EDQUOT)", tree.display());
        fill(&tree.join("file"));
        wait_for(&mount, &reached);
        fill(&tree.join("file"));
        fs::remove_file(tree.join("file")).expect("remove");
        wait_for(&mount, "has room again");
        let log = mount.log();
        assert_eq!(log.matches(&reached).count(), 1, "{log}");
        assert!(log.contains("nvfold set") && !log.contains("ENOSPC"), "{log}");
        mount.check();
    }
}

#[test]
fn remounts_crashes_and_ends_are_reported() {
    requires!(root, fuse);
    let mut mount = Mount::with_options(64, "policy=inline,log=info");
    if !mount.is_real() {
        return;
    }
    wait_for(&mount, "is mounted on");
    assert!(!mount.log().contains("recovered"), "a new device: {}", mount.log());
    fs::write(mount.join("file"), "kept").expect("write");
    let remount = |options: &str| {
        run::ok(command().args(["mount", "-o", options]).args([mount.device(), mount.path()]));
    };
    remount("remount,ro");
    wait_for(&mount, "is read-only now");
    remount("remount,rw");
    wait_for(&mount, "is writable again");
    mount.kill();
    mount.mount();
    wait_for(&mount, "recovered after a crash: mounted in");
    mount.unmount();
    wait_for(&mount, "unmounted from");
    mount.mount();
    mount.check();
    assert_eq!((times(&mount, "recovered after"), times(&mount, "is read-only now")), (1, 1), "{}", mount.log());
}

#[test]
fn the_log_option_chooses_levels_and_mistakes_are_refused() {
    requires!(fuse);
    let mut mount = Mount::with_options(64, "policy=inline,cache=none,log=warn+request=trace");
    if !mount.is_real() {
        return;
    }
    fs::write(mount.join("file"), "written").expect("write");
    fs::create_dir_all(mount.join("full/below")).expect("make directories");
    fs::remove_dir(mount.join("full")).expect_err("it is not empty");
    wait_for(&mount, "TRACE request: request operation=write inode=");
    wait_for(&mount, "DEBUG request: request failed operation=rmdir");
    mount.unmount();
    assert!(!mount.log().contains("unmounted from"), "that is no warning: {}", mount.log());
    let mount_with = |option: &str, variable: &str| {
        let mut mounting = command();
        mounting.args(["mount", "-o", option]).args([mount.device(), mount.path()]);
        run::run(mounting.env("NVFOLD_LOG", variable))
    };
    let refused = mount_with("log=loud", "");
    assert!(refused.code() == 2 && refused.stderr.contains("off, error"), "{}", refused.report());
    let refused = mount_with("ro", "nothing=info");
    assert!(refused.code() == 2 && refused.stderr.contains("NVFOLD_LOG"), "{}", refused.report());
    mount.check();
}

/// A journal that writes each record to a file: one line a field, an empty line after each record.
const JOURNAL: &str = r#"
import socket, struct, sys
journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
journal.bind("/run/systemd/journal/socket")
print("ready", flush=True)
while True:
    record = journal.recv(1 << 20)
    with open(sys.argv[1], "ab") as out:
        while record:
            line, _, rest = record.partition(b"\n")
            if b"=" in line:
                out.write(line + b"\n")
            else:
                length = struct.unpack("<Q", rest[:8])[0]
                out.write(line + b"=" + rest[8:8 + length].replace(b"\n", b" ") + b"\n")
                rest = rest[8 + length + 1:]
            record = rest
        out.write(b"\n")
"#;

#[test]
fn the_journal_gets_fields_under_systemd() {
    requires!(root, fuse, tool("unshare"), tool("python3"), tool("findmnt"));
    let scratch = Scratch::new();
    fs::write(scratch.join("journal.py"), JOURNAL).expect("write");
    let script = r#"
        mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/journal
        python3 journal.py records >ready &
        journal=$!
        trap 'kill $journal' EXIT
        until grep -q ready ready; do sleep 0.05; done
        "$NVFOLD" mkfs -q pool --size 64M && mkdir dir && touch errors
        # As systemd starts a service: standard error is the stream that the variable names.
        JOURNAL_STREAM=$(stat -c %d:%i errors) "$NVFOLD" mount -q pool dir -o policy=inline 2>errors
        mkdir dir/tree && "$NVFOLD" set -q limit=1M dir/tree
        ! seq 1 1000000 >dir/tree/file 2>/dev/null
        ! sync -d dir/tree/file 2>/dev/null
        until grep -q EVENT=limit_reached records; do sleep 0.05; done
        "$NVFOLD" umount -q dir
        until grep -q EVENT=unmounted records; do sleep 0.05; done
        [ ! -s errors ]
    "#;
    run::ok(&mut in_own_namespace(scratch.path(), script));
    let records = fs::read_to_string(scratch.join("records")).expect("records");
    let record = |event: &str| -> Vec<&str> {
        let wanted = format!("NVFOLD_EVENT={event}");
        let mut all = records.split("\n\n").filter(|record| record.lines().any(|line| line == wanted));
        let lines = all.next().unwrap_or_else(|| panic!("no {event} in\n{records}")).lines().collect();
        assert!(all.next().is_none(), "{event} twice in\n{records}");
        lines
    };
    let device = format!("NVFOLD_DEVICE={}", scratch.join("pool").display());
    let dir = format!("NVFOLD_MOUNTPOINT={}", scratch.join("dir").display());
    for (event, priority) in [("mounted", 5), ("limit_reached", 4), ("unmounted", 5)] {
        let lines = record(event);
        for wanted in [&device, &dir, &format!("PRIORITY={priority}"), &"SYSLOG_IDENTIFIER=nvfold".to_owned()] {
            assert!(lines.contains(&wanted.as_str()), "{event}: no {wanted} in {lines:#?}");
        }
    }
    let reached = record("limit_reached");
    let path = format!("NVFOLD_PATH={}", scratch.join("dir/tree").display());
    assert!(reached.contains(&path.as_str()), "{reached:#?}");
    for begins in ["NVFOLD_INODE=", "NVFOLD_ADVICE=delete files", "MESSAGE="] {
        assert!(reached.iter().any(|line| line.starts_with(begins)), "{begins}: {reached:#?}");
    }
}
