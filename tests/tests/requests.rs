//! Number of requests of an operation, by kind. Each request is a round trip between a program and the serving
//! process, so one more costs time. The file also tests the mount options for requests: `cache`, `spin`.
//!
//! Where the kernel chooses a number, and it differs from version to version, the test states a maximum.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use nvfold_tests::mount::{self, Mount, nvfold, nvfold_json};
use nvfold_tests::probe::compiled;
use nvfold_tests::scratch::Scratch;
use nvfold_tests::{requires, run};

type Kinds = BTreeMap<String, u64>;

fn requests(mount: &Mount) -> Kinds {
    let stats = nvfold_json(&["stats", "--json"], &[mount.path()]);
    serde_json::from_value(stats["requests_by_kind"].clone()).expect("counts by kind")
}

/// Returns the requests of an operation, without those of the command that reads the counters.
fn during(mount: &Mount, operation: impl FnOnce()) -> Kinds {
    requests(mount);
    let (first, second) = (requests(mount), requests(mount));
    operation();
    let third = requests(mount);
    let of = |kinds: &Kinds, kind: &str| kinds.get(kind).copied().unwrap_or(0);
    let cost = |kind: &str| of(&third, kind) - of(&second, kind) - (of(&second, kind) - of(&first, kind));
    third.keys().map(|kind| (kind.clone(), cost(kind))).filter(|(_, count)| *count > 0).collect()
}

#[track_caller]
fn assert_at_most(what: &str, kinds: &Kinds, most: &[(&str, u64)]) {
    // The kernel sends `forget` at any time, and no program waits for it.
    println!("{what}: {kinds:?}");
    for (kind, count) in kinds.iter().filter(|(kind, _)| *kind != "forget") {
        let allowed = most.iter().find(|(name, _)| name == kind).map_or(0, |(_, most)| *most);
        assert!(*count <= allowed, "{what}: {count} times {kind}, at most {allowed} were expected: {kinds:?}");
    }
}

#[test]
fn ordinary_operations_stay_within_their_number_of_requests() {
    requires!(root, fuse);
    let mut mount = Mount::with_options(64, "policy=inline");
    if !mount.is_real() {
        return;
    }
    let file = |name: &str| mount.join("dir").join(name);
    fs::create_dir(mount.join("dir")).expect("mkdir");
    // The first file lets the kernel learn what it need not ask again.
    fs::write(file("first"), b"first").expect("write");
    let _ = fs::read(file("first")).expect("read");

    // A `setattr` is the kernel's choice: it sends the time of change at close if its clock has ticked since the file
    // was made, and the clock ticks every few milliseconds.
    let created = during(&mount, || fs::write(file("new"), [7; 4096]).expect("write"));
    assert_at_most(
        "create, write 4 KiB, close",
        &created,
        &[("getattr", 1), ("lookup", 1), ("mknod", 1), ("getxattr", 1), ("write", 1), ("setattr", 1)],
    );
    assert_eq!(created.get("mknod"), Some(&1), "it was counted: {created:?}");
    let seen = during(&mount, || assert!(fs::metadata(file("new")).is_ok()));
    assert_at_most("stat of a file that was just made", &seen, &[("getattr", 2)]);
    let seen = during(&mount, || assert!(fs::metadata(file("new")).is_ok()));
    assert_at_most("stat of a file that is known", &seen, &[]);
    let read = during(&mount, || drop(fs::read(file("new")).expect("read")));
    assert_at_most("read what was just written", &read, &[]);
    let renamed = during(&mount, || fs::rename(file("new"), file("newer")).expect("rename"));
    assert_at_most("rename", &renamed, &[("getattr", 2), ("lookup", 1), ("rename", 1), ("setattr", 1)]);
    let copied = during(&mount, || drop(run::ok(Command::new("cp").arg(file("newer")).arg(file("copy")))));
    assert_at_most(
        "cp of a small file",
        &copied,
        &[("getattr", 2), ("lookup", 2), ("mknod", 1), ("getxattr", 1), ("copy_file_range", 1), ("setattr", 1)],
    );
    let removed = during(&mount, || fs::remove_file(file("copy")).expect("unlink"));
    assert_at_most("unlink", &removed, &[("getattr", 2), ("unlink", 1), ("setattr", 1)]);
    for number in 0..100 {
        fs::write(file(&format!("{number}")), b"x").expect("write");
    }
    let removed = during(&mount, || drop(run::ok(Command::new("rm").arg("-r").arg(mount.join("dir")))));
    let unlinks = removed["unlink"];
    assert_eq!(unlinks, 102);
    assert_at_most(
        "rm -r of 102 files",
        &removed,
        &[
            ("unlink", unlinks),
            // The kernel sends the time of change that the file has after its name is removed.
            ("setattr", unlinks),
            ("getattr", 2 * unlinks + 4),
            ("rmdir", 1),
            ("lookup", 4),
            ("opendir", 2),
            ("readdir", 3),
            ("readdirplus", 3),
            ("releasedir", 2),
            ("statfs", 1),
        ],
    );
    mount.check();
}

#[test]
fn with_cache_none_each_read_is_a_request() {
    requires!(root, fuse, tool("cc"));
    let mut mount = Mount::with_options(64, "cache=none");
    if !mount.is_real() {
        return;
    }
    let path = mount.join("file");
    fs::write(&path, vec![7; 1 << 20]).expect("write");
    let read = during(&mount, || {
        assert_eq!(fs::read(&path).expect("read"), vec![7; 1 << 20]);
        assert_eq!(fs::read(&path).expect("read"), vec![7; 1 << 20]);
    });
    assert!(read["read"] >= 2 && read["open"] == 2, "{read:?}");
    // Mapped bytes are the same as read and written bytes.
    let program = nvfold_tests::probe::compiled("mapped", mount.scratch());
    let mapped = run::run(Command::new(&program).arg(mount.join("mapped")));
    assert_eq!(mapped.code(), 0, "{}", mapped.report());
    // Programs run from the mount.
    let script = mount.join("true");
    fs::copy("/bin/true", &script).expect("copy");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    run::ok(&mut Command::new(&script));
    mount.remount();
    assert_eq!(fs::read(&path).expect("read"), vec![7; 1 << 20]);
    mount.check();
}

#[test]
fn cache_full_and_cache_auto_read_the_same_bytes() {
    requires!(root, fuse);
    let mut bytes = vec![0; 100 << 20];
    for (number, block) in bytes.chunks_mut(4096).enumerate() {
        block.fill(number as u8);
    }
    for options in ["cache=full", "cache=auto", "transport=device,spin=off", "transport=device,spin=1000,threads=8"] {
        let mut mount = Mount::with_options(256, options);
        fs::write(mount.join("file"), &bytes).expect("write");
        for _ in 0..2 {
            assert!(fs::read(mount.join("file")).expect("read") == bytes, "{options}");
        }
        mount.check();
    }
}

#[test]
fn an_unused_mount_takes_no_processor_time() {
    requires!(root, fuse);
    takes_no_processor_time("transport=device,spin=1000,threads=4,policy=off");
    takes_no_processor_time("transport=auto,policy=off");
}

fn takes_no_processor_time(options: &str) {
    let mut mount = Mount::with_options(64, options);
    if !mount.is_real() {
        return;
    }
    // In quick succession, so that threads spin and park.
    let file = File::create(mount.join("file")).expect("create");
    for at in 0..2000 {
        fs::metadata(mount.join(format!("none{at}"))).expect_err("there is none");
    }
    drop(file);
    let pid = nvfold_json(&["stats", "--json"], &[mount.path()])["pid"].as_u64().expect("pid");
    let ticks_in_two_seconds = || {
        let before = processor_ticks(pid);
        std::thread::sleep(Duration::from_secs(2));
        processor_ticks(pid) - before
    };
    // A thread that spins all the time would take two hundred. Other tests change the mount table meanwhile, which wakes
    // a thread, so one quiet pause among several is enough.
    let mut pauses = Vec::new();
    while pauses.len() < 20 && pauses.last().is_none_or(|ticks| *ticks > 10) {
        pauses.push(ticks_in_two_seconds());
    }
    assert!(pauses.last() <= Some(&10), "{options}: hundredths of a second of processor time, in 2 s each: {pauses:?}");
    mount.check();
}

/// Returns the processor time of a process in hundredths of a second.
fn processor_ticks(pid: u64) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("read stat");
    // Behind the name, which may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("ticks")).sum()
}

/// Returns how often the threads of a process have waited for something.
fn wake_ups(pid: u64) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
    let statuses = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let waits = |status: String| {
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).expect("a count");
        count.trim().parse::<u64>().expect("a number")
    };
    statuses.map(waits).sum()
}

/// Short requests are answered while a long one is under way: of many long requests, one must see several.
#[test]
fn a_long_request_does_not_block_others() {
    requires!(root, fuse);
    keeps_no_other_waiting("transport=device,spin=1000,threads=2,policy=off");
    keeps_no_other_waiting("transport=auto,policy=off");
}

fn keeps_no_other_waiting(options: &str) {
    let mut mount = Mount::with_options(512, options);
    let path = mount.join("big");
    let mut big = File::create(&path).expect("create");
    big.write_all(&vec![1; 64 << 20]).expect("write");
    big.sync_all().expect("sync");
    let (answered, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let end = Instant::now() + run::limit();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) && Instant::now() < end {
                let number = answered.load(Ordering::Acquire);
                fs::metadata(mount.join(format!("none{number}"))).expect_err("there is none");
                answered.fetch_add(1, Ordering::Release);
            }
        });
        let mut most = 0;
        while most < 10 {
            assert!(Instant::now() < end, "at most {most} short requests were answered during a long one");
            let mut bytes = vec![0; 8 << 20];
            File::open(&path).expect("open").read_exact_at(&mut bytes, 0).expect("read");
            big.write_all_at(&bytes, 8 << 20).expect("write");
            let before = answered.load(Ordering::Acquire);
            big.sync_all().expect("sync");
            most = most.max(answered.load(Ordering::Acquire) - before);
        }
        is_over.store(true, Ordering::Release);
    });
    drop(big);
    mount.check();
}

#[test]
fn a_mount_killed_while_it_spins_can_be_mounted_again() {
    requires!(root, fuse);
    let mut mount = Mount::with_options(64, "transport=device,spin=1000,threads=4");
    if !mount.is_real() {
        return;
    }
    for round in 0..4 {
        if round == 2 {
            // Again, with threads that wait on their rings.
            mount.unmount();
            mount.set_options("transport=auto");
            mount.mount();
        }
        let kept = mount.join(format!("kept{round}"));
        let mut file = File::create(&kept).expect("create");
        file.write_all(b"kept").expect("write");
        file.sync_all().expect("sync");
        drop(file);
        std::thread::scope(|scope| {
            let dir = mount.path().to_owned();
            let busy = scope.spawn(move || look_until_it_fails(&dir));
            std::thread::sleep(Duration::from_millis(50));
            mount.kill();
            busy.join().expect("the client ended");
        });
        mount.mount();
        let mut text = String::new();
        File::open(&kept).expect("open").read_to_string(&mut text).expect("read");
        assert_eq!(text, "kept");
    }
    mount.check();
}

fn look_until_it_fails(dir: &Path) {
    for at in 0.. {
        match fs::metadata(dir.join(format!("none{at}"))) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => return drop(other.expect_err("the mount is gone")),
        }
    }
}

fn transport_of(mount: &Mount) -> String {
    nvfold_json(&["stats", "--json"], &[mount.path()])["transport"].as_str().expect("a word").to_owned()
}

#[test]
fn requests_use_the_chosen_transport() {
    requires!(root, fuse, ring);
    for (options, expected) in [("transport=auto", "ring"), ("transport=ring", "ring"), ("transport=device", "device")]
    {
        let mut mount = Mount::with_options(64, options);
        if !mount.is_real() {
            return;
        }
        assert_eq!(transport_of(&mount), expected, "{options}");
        mount.check();
    }
}

/// For example under the filters of a container.
#[test]
fn without_io_uring_requests_come_by_dev_fuse() {
    requires!(root, fuse, ring, tool("cc"));
    let scratch = Scratch::new();
    let device = scratch.join("device");
    let dir = scratch.join("mnt");
    fs::create_dir(&dir).expect("make the mount point");
    mount::mkfs(&device, 64 << 20);
    let refusing = |options: &str| {
        let mut command = Command::new(compiled("without_io_uring", scratch.path()));
        command.arg(mount::binary()).args(["mount", "-o", options]).arg(&device).arg(&dir).stdin(Stdio::null());
        command.env("LIBMOUNT_UTAB", mount::NO_UTAB);
        command
    };
    let refused = run::run(&mut refusing("transport=ring"));
    assert_eq!(refused.code(), 1, "{}", refused.report());
    assert!(refused.stderr.contains("io_uring") && refused.stderr.contains("transport=auto"), "{}", refused.report());
    run::ok(&mut refusing("transport=auto"));
    let stats = nvfold_json(&["stats", "--json"], &[&dir]);
    fs::write(dir.join("file"), b"written").expect("write");
    nvfold(&["umount"], &[&dir]).success();
    assert_eq!(stats["transport"], "device");
}

/// SEEK_DATA waits until the kernel has written pages back, which takes requests too.
#[test]
fn requests_that_wait_for_the_kernel_do_not_exhaust_the_threads() {
    requires!(root, fuse);
    for options in ["transport=device,threads=2", "transport=auto"] {
        for _ in 0..5 {
            let mut mount = Mount::with_options(64, options);
            let (is_done, done) = mpsc::channel();
            std::thread::scope(|scope| {
                let dir = mount.path().to_owned();
                scope.spawn(move || {
                    seek_in_dirty_files(&dir, 48, 5);
                    is_done.send(()).expect("somebody waits");
                });
                if done.recv_timeout(Duration::from_secs(60)).is_err() {
                    // The clients get ENOTCONN, and the test fails.
                    mount.kill();
                }
            });
            mount.check();
        }
    }
}

/// Lets one thread per file write and seek for data, all at once, `rounds` times.
fn seek_in_dirty_files(dir: &Path, files: usize, rounds: u64) {
    let all_have_written = Barrier::new(files);
    std::thread::scope(|scope| {
        for number in 0..files {
            let (path, all_have_written) = (dir.join(format!("{number}")), &all_have_written);
            scope.spawn(move || {
                let file = File::create(path).expect("create");
                for round in 0..rounds {
                    let offset = (round + 1) << 16;
                    file.write_all_at(&[7; 8192], offset).expect("write");
                    all_have_written.wait();
                    let found = rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Data(0)).expect("seek");
                    assert_eq!(found, 1 << 16);
                }
            });
        }
    });
}

/// A process whose mount has ended must not unmount what is mounted there by then.
#[test]
fn a_mount_survives_the_end_of_an_earlier_server_of_its_directory() {
    requires!(root, fuse);
    let scratch = Scratch::new();
    let (device, other, dir) = (scratch.join("device"), scratch.join("other"), scratch.join("mnt"));
    fs::create_dir(&dir).expect("make the mount point");
    mount::mkfs(&device, 64 << 20);
    mount::mkfs(&other, 64 << 20);
    nvfold(&["mount"], &[&device, &dir]).success();
    for round in 0..20 {
        let (now, next) = if round % 2 == 0 { (&device, &other) } else { (&other, &device) };
        let pid = nvfold_json(&["stats", "--json"], &[&dir])["pid"].as_u64().expect("pid");
        // Not by `nvfold umount`, which waits for the process.
        rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).expect("unmount");
        nvfold(&["mount"], &[next, &dir]).success();
        let began = Instant::now();
        while Path::new(&format!("/proc/{pid}")).exists() && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stats = nvfold_json(&["stats", "--json"], &[&dir]);
        assert_eq!(stats["device"], next.to_str().expect("UTF-8"), "after {}", now.display());
    }
    nvfold(&["umount"], &[&dir]).success();
}

/// Every wake-up of a thread takes processor time, so a mount that nobody uses must have few.
#[test]
fn an_idle_mount_wakes_up_rarely() {
    requires!(root, fuse);
    let mut mount = Mount::with_options(64, "policy=denova");
    fs::write(mount.join("file"), vec![7; 1 << 20]).expect("write");
    nvfold(&["dedup", "--drain"], &[mount.path()]).success();
    let pid = nvfold_json(&["stats", "--json"], &[mount.path()])["pid"].as_u64().expect("pid");
    let wake_ups_in_a_second = || {
        let before = wake_ups(pid);
        std::thread::sleep(Duration::from_secs(1));
        wake_ups(pid).saturating_sub(before)
    };
    // The pauses of a daemon with nothing to do double until they last a second. Other tests change the mount table
    // meanwhile, and each change wakes a thread, so one quiet second among several is enough.
    let mut seconds = Vec::new();
    while seconds.len() < 20 && seconds.last().is_none_or(|count| *count > 20) {
        seconds.push(wake_ups_in_a_second());
    }
    println!("wake-ups in each second: {seconds:?}");
    assert!(seconds.last() <= Some(&20), "the threads of an idle mount wake up too often: {seconds:?}");
    mount.check();
}

/// Runs in `make soak`: each mount has its own threads, files and rings.
#[test]
#[ignore = "takes minutes"]
fn a_thousand_mounts_work_at_the_same_time() {
    requires!(root, fuse);
    let mut mounts: Vec<Mount> = (0..1000).map(|_| Mount::with_options(16, "policy=off")).collect();
    for (number, mount) in mounts.iter().enumerate() {
        fs::write(mount.join("file"), format!("{number}")).expect("write");
    }
    for (number, mount) in mounts.iter_mut().enumerate() {
        assert_eq!(fs::read_to_string(mount.join("file")).expect("read"), format!("{number}"));
        mount.check();
    }
}
