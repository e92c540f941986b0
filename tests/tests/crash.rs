//! The process is killed under load, twenty times (200 in `make soak`): nothing acknowledged is lost.
//!
//! **The mount.** Workers write, fsync and only then record what they did. After each kill the device is mounted
//! again and every record must hold; the one operation under way must have happened completely or not at all. All
//! rounds use the same device, and the policy changes from one to the next.
//!
//! **An embedding program.** A child runs random operations of every kind, in several threads, each in its own
//! directory, and acknowledges each operation through a pipe. After the kill each directory must equal the model
//! after the acknowledged operations, or after these and the next one.
//!
//! **Its dedup daemon.** The same child runs under policy denova, with a daemon that falls behind, ten times (fifty
//! in `make soak`), on either index. The queue must be found again after the kill. Once it is shared no content is
//! stored twice: as much is saved as if everything had been shared at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nvfold::check::{CheckOptions, check};
use nvfold::{
    Daemon, DeNovaOptions, DedupMode, FileSystem, IndexKind, InodeNumber, MountOptions, Policy, ReorderOptions,
    WeakFunction, errno,
};
use nvfold_tests::block::{self, Label};
use nvfold_tests::device::{self, Device};
use nvfold_tests::model::library::Library;
use nvfold_tests::model::oracle::Oracle;
use nvfold_tests::model::{Answer, Op, Subject, op};
use nvfold_tests::mount::Mount;
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires;
use nvfold_tests::shared::Named;

const KILLS: u64 = 20;
const KILLS_MAX: u64 = 200;

/// Returns how often a process is killed.
fn kills() -> u64 {
    (KILLS * soak_factor()).min(KILLS_MAX)
}

#[test]
fn no_acknowledged_write_is_lost_when_the_mount_is_killed() {
    requires!(root, fuse);
    let seed = Seed::new("killing the mount");
    let mut random = seed.generator();
    kill_under_load(Mount::fresh(512, "inline"), kills(), &mut random);
}

/// The kernel drops data that it can no longer write to the server, and reports that only to programs that ask for a
/// sync.
#[test]
fn an_fsync_after_the_mount_has_died_fails() {
    requires!(root, fuse);
    let mut mount = Mount::fresh(64, "inline");
    if !mount.is_real() {
        return;
    }
    let (path, dir) = (mount.join("file"), File::open(mount.path()).expect("the root"));
    let file = File::create(&path).expect("a file");
    file.write_all_at(&record(1), 0).expect("written");
    file.sync_all().expect("synced");
    dir.sync_all().expect("synced");
    mount.kill();
    // The page cache may take it.
    let _ = file.write_all_at(&record(2), 0);
    assert!(file.sync_all().is_err() && dir.sync_all().is_err(), "nobody has it");
    drop((file, dir));
    mount.mount();
    assert!(std::fs::read(&path).expect("the file") == record(1));
}

/// Level `file`: unsynced data is lost, and nothing else.
#[test]
fn no_synced_write_is_lost_when_the_mount_of_a_device_on_a_disk_is_killed() {
    requires!(root, fuse);
    let seed = Seed::new("killing the mount of a device on a disk");
    kill_under_load(Mount::on_disk(512, "inline"), kills().div_ceil(4), &mut seed.generator());
}

fn kill_under_load(mut mount: Mount, kills: u64, random: &mut fastrand::Rng) {
    if !mount.is_real() {
        return; // NVFOLD_TEST_DIR is set, so there is no process to kill.
    }
    let mut workers = Worker::all();
    for round in 0..kills {
        let load = Duration::from_millis(random.u64(20..900));
        let seeds: Vec<u64> = workers.iter().map(|_| random.u64(..)).collect();
        let root = mount.path().to_owned();
        thread::scope(|scope| {
            for (worker, seed) in workers.iter_mut().zip(seeds) {
                let root = &root;
                scope.spawn(move || worker.work_until_the_end(root, &mut fastrand::Rng::with_seed(seed)));
            }
            thread::sleep(load);
            mount.kill();
        });
        let before = mount.fsck();
        assert!([0, 1].contains(&before.code()), "round {round}, fsck before recovery: {}", before.report());
        mount.set_options(&format!("policy={}", ["off", "denova", "inline"][round as usize % 3]));
        mount.mount();
        for worker in &mut workers {
            worker.verify(&root).unwrap_or_else(|why| panic!("round {round}: {why}"));
        }
        if round % 4 == 3 {
            mount.remount();
        }
    }
    mount.check();
    println!("acknowledged: {:?}", workers.iter().map(Worker::acknowledged).collect::<Vec<_>>());
    assert!(workers.iter().all(|worker| worker.acknowledged() > 0), "some worker got nothing done");
}

/// Threads of the embedding program, each with its own directory.
const THREADS: u8 = 3;
const CHILD: &str = "tests::crash::child_that_embeds_a_device_until_it_is_killed";
const CHILD_WITH_DAEMON: &str = "tests::crash::child_that_embeds_a_device_and_its_daemon_until_it_is_killed";

/// The operations that a child runs.
type Operations = fn(u64) -> Box<dyn Iterator<Item = Op>>;

/// Returns an endless sequence of operations for a thread.
fn operations(seed: u64) -> Box<dyn Iterator<Item = Op>> {
    let mut random = fastrand::Rng::with_seed(seed);
    Box::new(std::iter::repeat_with(move || op::generate(&mut random, 64, 0)).flatten())
}

/// Keeps the operations after which only the queue keeps equal blocks apart.
fn operations_that_queue(seed: u64) -> Box<dyn Iterator<Item = Op>> {
    Box::new(operations(seed).filter(|op| {
        use Op::{Clone, Dedup, Drain, DrainStep, SetMode, SetPolicy, Undedup};
        let others =
            matches!(op, Clone { .. } | Dedup { .. } | Undedup { .. } | SetPolicy { .. } | SetMode { .. } | Drain);
        !others && *op != DrainStep
    }))
}

/// Returns the directory of a thread.
fn directory_of(fs: &FileSystem, thread: u8) -> InodeNumber {
    fs.lookup(InodeNumber::ROOT, &[b'0' + thread]).expect("made before the first round").ino
}

/// Returns the acknowledgement of an operation that has returned: the thread's number, or a letter if it found no
/// space.
fn acknowledgement(thread: u8, answer: &Answer) -> u8 {
    if *answer == Answer::Errno(errno::ENOSPC) { b'A' + thread } else { b'0' + thread }
}

/// Not a test: the program that is killed. It mounts the device (and thereby recovers it after the previous kill),
/// works, and acknowledges each operation.
#[test]
#[ignore = "started by another test as its child"]
fn child_that_embeds_a_device_until_it_is_killed() {
    let Some((path, seed)) = orders() else { return };
    let policy = if seed.is_multiple_of(2) { Policy::Off } else { Policy::Inline };
    let region = device::region_of(&path).expect("map");
    let fs = FileSystem::mount(region, MountOptions { policy, ..device::options() }).expect("mount");
    work_until_the_end(&fs, seed, operations);
}

/// Not a test: the same under policy denova, with a dedup daemon that mostly cannot keep up.
#[test]
#[ignore = "started by another test as its child"]
fn child_that_embeds_a_device_and_its_daemon_until_it_is_killed() {
    let Some((path, seed)) = orders() else { return };
    let region = device::region_of(&path).expect("map");
    let mode = match seed % 3 {
        0 => DedupMode::Immediate,
        // Only a few entries are shared before the kill: the queue is not empty then, on any machine.
        rest => DedupMode::Delayed { interval_ms: 500 * rest, entries: 2 },
    };
    let denova =
        DeNovaOptions { mode, reorder: ReorderOptions { references: 1, reads: 2 }, ..DeNovaOptions::default() };
    let stopwatch = Instant::now();
    let options = MountOptions {
        policy: Policy::DeNova,
        denova,
        stopwatch: Some(Arc::new(move || stopwatch.elapsed().as_nanos() as u64)),
        ..device::options()
    };
    let fs = FileSystem::mount(region, options).expect("mount");
    let mut daemon = Daemon::new(fs.clone());
    thread::scope(|scope| {
        scope.spawn(move || {
            loop {
                thread::sleep(daemon.turn().expect("a turn of the daemon"));
            }
        });
        work_until_the_end(&fs, seed, operations_that_queue);
        // The parent is gone, and the daemon never ends.
        std::process::exit(0);
    });
}

/// Returns the device and the seed that a child gets, or `None` if it is run like a test.
fn orders() -> Option<(PathBuf, u64)> {
    let variable = |name: &str| std::env::var(name).ok();
    let (path, seed) = (variable("NVFOLD_TEST_DEVICE")?, variable("NVFOLD_TEST_SEED")?);
    println!("\nworking");
    Some((path.into(), seed.parse().expect("a number")))
}

/// Works and acknowledges each operation until the parent is gone.
fn work_until_the_end(fs: &FileSystem, seed: u64, operations: Operations) {
    thread::scope(|scope| {
        scope.spawn(|| fs.reconcile().expect("reconcile beside the load"));
        for thread in 0..THREADS {
            let mut library = Library::below(fs.clone(), directory_of(fs, thread));
            scope.spawn(move || {
                for op in operations(seed + u64::from(thread)) {
                    let acknowledgement = acknowledgement(thread, &library.apply(&op));
                    // The parent is gone and would not kill this process.
                    if rustix::io::write(rustix::stdio::stdout(), &[acknowledgement]).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Runs a child and kills it after a while. Returns for each thread whether its acknowledged operations found space.
fn run_and_kill(child: &str, device: &Path, seed: u64, after: Duration) -> Vec<Vec<bool>> {
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args([child, "--exact", "--ignored", "--nocapture"])
        .env("NVFOLD_TEST_DEVICE", device)
        .env("NVFOLD_TEST_SEED", seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the child");
    let mut pipe = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    while line != "working\n" {
        line.clear();
        assert_ne!(pipe.read_line(&mut line).expect("the pipe"), 0, "the child ended before it began");
    }
    let acknowledged = thread::spawn(move || {
        let mut acknowledged = vec![Vec::new(); THREADS as usize];
        for byte in pipe.bytes().map_while(Result::ok) {
            let (thread, found_space) = if byte < b'A' { (byte - b'0', true) } else { (byte - b'A', false) };
            acknowledged[usize::from(thread)].push(found_space);
        }
        acknowledged
    });
    thread::sleep(after);
    let early = child.try_wait().expect("wait for the child");
    assert_eq!(early, None, "the child ended by itself");
    child.kill().expect("kill the child");
    child.wait().expect("wait for the child");
    acknowledged.join().expect("the reader of the pipe")
}

/// Compares everything that the model knows; returns the first difference.
fn difference(model: &mut Oracle, library: &mut Library) -> Option<String> {
    model.questions().into_iter().find_map(|question| {
        let (answer, expected) = (library.apply(&question), model.apply(&question));
        let agrees = answer.agrees_with(&expected);
        (!agrees).then(|| format!("{question:?} says {answer:?}, expected {expected:?}"))
    })
}

/// Returns whether the operation that was under way has happened, by the models without and with it.
///
/// # Errors
/// What differs from either.
fn under_way_happened(model: &mut Oracle, with: &mut Oracle, library: &mut Library) -> Result<bool, String> {
    let Some(without_it) = difference(model, library) else { return Ok(false) };
    let Some(with_it) = difference(with, library) else { return Ok(true) };
    Err(format!("\n  if it did not happen: {without_it}\n  if it did: {with_it}"))
}

/// The history of the threads of all children.
struct Histories {
    models: Vec<Oracle>,
    operations: Operations,
    acknowledged: usize,
    without_space: usize,
    under_way_happened: usize,
}

impl Histories {
    /// Makes the directories of the threads on a device.
    fn begin(fs: FileSystem, operations: Operations) -> Histories {
        for thread in 0..THREADS {
            fs.mkdir(InodeNumber::ROOT, &[b'0' + thread], &device::directory()).expect("mkdir");
        }
        fs.unmount().expect("unmount");
        let models = vec![Oracle::new(); THREADS as usize];
        Histories { models, operations, acknowledged: 0, without_space: 0, under_way_happened: 0 }
    }

    /// Checks each directory after a kill: it must equal the model after the acknowledged operations, or after these
    /// and the next.
    fn verify(&mut self, fs: &FileSystem, seed: u64, results: Vec<Vec<bool>>, round: u64) {
        for (thread, results) in (0..THREADS).zip(results) {
            let model = &mut self.models[usize::from(thread)];
            let mut ops = (self.operations)(seed + u64::from(thread));
            for found_space in &results {
                let op = ops.next().expect("without end");
                if *found_space {
                    model.apply(&op);
                }
            }
            let under_way = ops.next().expect("without end");
            let mut with = model.clone();
            with.apply(&under_way);
            // The process is gone, and with it the files that it held open.
            [&mut *model, &mut with].into_iter().for_each(|model| drop(model.apply(&Op::Crash)));
            let mut library = Library::below(fs.clone(), directory_of(fs, thread));
            let mut compare = || under_way_happened(model, &mut with, &mut library);
            let happened = compare().or_else(|before| {
                // The links and the limits of trees that were removed count until the trees are freed.
                assert!(free_removed_trees(fs), "round {round}, thread {thread}, and no removal was left: {before}");
                compare()
            });
            let happened = happened.unwrap_or_else(|why| {
                panic!(
                    "round {round}, thread {thread} after {} operations and perhaps {under_way:?}: {why}",
                    results.len()
                )
            });
            if happened {
                *model = with;
                self.under_way_happened += 1;
            }
            self.acknowledged += results.len();
            self.without_space += results.iter().filter(|found_space| !**found_space).count();
        }
    }

    /// Checks that each directory still has the content found after the kill.
    fn hold(&mut self, fs: &FileSystem, round: u64) {
        for (thread, model) in (0..THREADS).zip(&mut self.models) {
            let mut library = Library::below(fs.clone(), directory_of(fs, thread));
            assert_eq!(difference(model, &mut library), None, "round {round}, thread {thread}, after the drain");
        }
    }

    fn end(&self, kills: u64) {
        println!(
            "{kills} kills, {} operations acknowledged ({} found no space), {} more had happened",
            self.acknowledged, self.without_space, self.under_way_happened
        );
        assert!(self.acknowledged > 2 * self.without_space, "a full device tells little");
    }
}

/// Ends recovery, and frees what removals of trees have left. Returns true if they had left anything.
fn free_removed_trees(fs: &FileSystem) -> bool {
    fs.reconcile().expect("reconcile");
    let steps = std::iter::repeat_with(|| fs.remove_step().expect("free a removed tree"));
    steps.take_while(|done| !done).count() > 0
}

#[track_caller]
fn assert_reconciled(fs: &FileSystem, round: u64) {
    free_removed_trees(fs);
    let report = check(fs.region(), &CheckOptions::default()).expect("fsck");
    assert_eq!((&report.findings[..], report.recoverable), (&[][..], 0), "round {round}, after recovery");
}

#[test]
fn no_acknowledged_operation_is_lost_when_an_embedding_program_is_killed() {
    let seed = Seed::new("killing an embedding program");
    let mut random = seed.generator();
    let device = Device::fresh(512);
    let mut histories = Histories::begin(device.mount(Policy::Off), operations);
    for round in 0..kills() {
        let seed = random.u64(..u64::MAX / 2);
        let results = run_and_kill(CHILD, device.path(), seed, Duration::from_millis(random.u64(1..120)));
        assert_eq!(device::check(device.path(), false).expect("fsck"), [""; 0], "round {round}, before recovery");
        let fs = device.mount(if round % 2 == 0 { Policy::Inline } else { Policy::Off });
        histories.verify(&fs, seed, results, round);
        assert_reconciled(&fs, round);
        // The next round begins on a device that was unmounted, or that crashed once more.
        if round % 3 == 0 {
            fs.unmount().expect("unmount");
        }
    }
    device.check();
    histories.end(kills());
}

#[test]
fn entries_queued_when_an_embedding_program_is_killed_are_shared_later() {
    let kills = (5 * soak_factor()).min(25);
    for index in IndexKind::ALL {
        let seed = Seed::new("killing an embedding program and its daemon");
        let mut random = seed.generator();
        let device = Device::indexed(512, index, WeakFunction::Xxh3);
        let mut histories = Histories::begin(device.mount(Policy::DeNova), operations_that_queue);
        let (mut queued, mut shared) = (0, 0);
        for round in 0..kills {
            let seed = random.u64(..u64::MAX / 2);
            let after = Duration::from_millis(random.u64(1..250));
            let results = run_and_kill(CHILD_WITH_DAEMON, device.path(), seed, after);
            assert_eq!(device::check(device.path(), false).expect("fsck"), [""; 0], "round {round}, before recovery");
            let fs = device.mount(Policy::DeNova);
            histories.verify(&fs, seed, results, round);
            assert_reconciled(&fs, round);
            let before = Named::of(&fs).expect("read");
            let stats = fs.stats().denova.expect("under denova");
            queued += stats.queue_entries;
            // Some rounds begin with a part of the queue.
            if round % 3 == 1 {
                for _ in 0..stats.queue_entries / 2 {
                    fs.drain_step().expect("drain");
                }
                continue;
            }
            while !fs.drain_step().expect("drain") {}
            let after = Named::of(&fs).expect("read");
            assert_eq!(after.stored_twice(&fs), 0, "round {round}: inline would have saved more");
            shared += after.saved() - before.saved();
            histories.hold(&fs, round);
            assert_reconciled(&fs, round);
            if round % 3 == 0 {
                fs.unmount().expect("unmount");
            }
        }
        device.check();
        println!("{index:?}: {queued} entries were queued after the kills, {shared} blocks were shared then");
        histories.end(kills);
        assert!(queued > 0 && shared > 0, "nothing was queued");
    }
}

/// The job of one thread, and its record of what is durable.
enum Worker {
    /// Appends records to a log, fsync after each. It removes a full log and begins the next, so that a fast machine
    /// does not fill the device.
    Appender { log: String, durable_records: u64 },
    /// Overwrites self-verifying blocks in place, fsync after each.
    Overwriter { path: PathBuf, durable: BTreeMap<u64, u64>, under_way: Option<(u64, u64)>, versions: u64 },
    /// Replaces small files by rename after fsync, and syncs the directory: without that, level `file` loses the
    /// rename.
    Replacer { dir: PathBuf, durable: BTreeMap<u64, u64>, under_way: Option<(u64, u64)>, versions: u64 },
    /// Creates, links, truncates and removes files all the time, only as load; it checks nothing.
    Churner { dir: PathBuf, rounds: u64 },
}

const RECORD_BYTES: u64 = 3001;
const RECORDS_IN_LOG: u64 = 10_000;
const BLOCKS: u64 = 64;
const SLOTS: u64 = 8;

impl Worker {
    fn all() -> Vec<Worker> {
        let mut workers = Vec::new();
        for index in 0..2 {
            workers.push(Worker::Appender { log: format!("log{index}"), durable_records: 0 });
            workers.push(Worker::Overwriter {
                path: format!("blocks{index}").into(),
                durable: BTreeMap::new(),
                under_way: None,
                versions: 0,
            });
            workers.push(Worker::Replacer {
                dir: format!("slots{index}").into(),
                durable: BTreeMap::new(),
                under_way: None,
                versions: 0,
            });
            workers.push(Worker::Churner { dir: format!("churn{index}").into(), rounds: 0 });
        }
        workers
    }

    fn acknowledged(&self) -> u64 {
        match self {
            Worker::Appender { durable_records, .. } => *durable_records,
            Worker::Overwriter { versions, .. } | Worker::Replacer { versions, .. } => *versions,
            Worker::Churner { rounds, .. } => *rounds,
        }
    }

    /// Works until the mount is gone.
    fn work_until_the_end(&mut self, root: &Path, random: &mut fastrand::Rng) {
        loop {
            if let Err(error) = self.work_once(root, random) {
                let gone = [gone::ENOTCONN, gone::ECONNABORTED, gone::ECANCELED, errno::EIO];
                let number = error.raw_os_error().unwrap_or(0);
                assert!(gone.contains(&number), "under load: {error}");
                return;
            }
        }
    }

    fn work_once(&mut self, root: &Path, random: &mut fastrand::Rng) -> io::Result<()> {
        match self {
            Worker::Appender { log, durable_records } => {
                let (number, in_log) = (*durable_records / RECORDS_IN_LOG, *durable_records % RECORDS_IN_LOG);
                if in_log == 0 && number > 0 {
                    remove_if_there(&log_path(root, log, number - 1))?;
                }
                let file = open(root, &log_path(root, log, number))?;
                file.write_all_at(&record(*durable_records), in_log * RECORD_BYTES)?;
                file.sync_all()?;
                *durable_records += 1;
            }
            Worker::Overwriter { path, durable, under_way, versions } => {
                let file = open(root, path)?;
                let offset = random.u64(0..BLOCKS) * block::BYTES as u64;
                *under_way = Some((offset, *versions + 1));
                file.write_all_at(&block::make(Label { file: 0, offset, version: *versions + 1 }), offset)?;
                file.sync_data()?;
                *versions += 1;
                durable.insert(offset, *versions);
                *under_way = None;
            }
            Worker::Replacer { dir, durable, under_way, versions } => {
                let dir = root.join(dir);
                match std::fs::create_dir(&dir) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(error);
                    }
                    _ => {}
                }
                let slot = random.u64(0..SLOTS);
                let new = dir.join("new");
                let file = File::create(&new)?;
                file.write_all_at(&content(*versions + 1), 0)?;
                file.sync_all()?;
                *under_way = Some((slot, *versions + 1));
                std::fs::rename(&new, dir.join(slot.to_string()))?;
                File::open(&dir)?.sync_all()?;
                *versions += 1;
                durable.insert(slot, *versions);
                *under_way = None;
            }
            Worker::Churner { dir, rounds } => {
                churn(&root.join(dir), random)?;
                *rounds += 1;
            }
        }
        Ok(())
    }

    /// Checks that everything recorded is there, and adopts the result of the operation under way.
    fn verify(&mut self, root: &Path) -> Result<(), String> {
        let failed = |error: io::Error| format!("verifying: {error}");
        match self {
            Worker::Appender { log, durable_records } if *durable_records % RECORDS_IN_LOG > 0 => {
                let path = log_path(root, log, *durable_records / RECORDS_IN_LOG);
                let bytes = std::fs::read(&path).map_err(failed)?;
                let first = *durable_records - *durable_records % RECORDS_IN_LOG;
                let want: Vec<u8> = (first..*durable_records).flat_map(record).collect();
                if bytes.len() < want.len() || bytes[..want.len()] != want {
                    return Err(format!(
                        "{}: {} bytes hold not all of the {durable_records} records acknowledged",
                        path.display(),
                        bytes.len()
                    ));
                }
                let tail = &bytes[want.len()..];
                let next = record(*durable_records);
                let from_next = |(at, &byte): (usize, &u8)| byte == 0 || next.get(at) == Some(&byte);
                if !tail.iter().enumerate().all(from_next) {
                    return Err(format!("{}: foreign bytes past the end", path.display()));
                }
            }
            Worker::Overwriter { path, durable, under_way, .. } => {
                let file = match File::open(root.join(&path)) {
                    Err(_) if durable.is_empty() => return Ok(()),
                    file => file.map_err(failed)?,
                };
                for index in 0..BLOCKS {
                    let offset = index * block::BYTES as u64;
                    let mut bytes = vec![0; block::BYTES];
                    let count = file.read_at(&mut bytes, offset).map_err(failed)?;
                    let seen = block::verify(&bytes, 0, offset).map_err(|why| format!("{count} bytes: {why}"))?;
                    check_version(&path.display(), offset, seen.version, durable, *under_way)?;
                }
                settle(durable, under_way, |offset| {
                    let mut bytes = vec![0; block::BYTES];
                    file.read_at(&mut bytes, offset).map_err(failed)?;
                    Ok(block::verify(&bytes, 0, offset)?.version)
                })?;
            }
            Worker::Replacer { dir, durable, under_way, .. } => {
                let dir = root.join(dir);
                let version = |slot: u64| -> Result<u64, String> {
                    let Ok(bytes) = std::fs::read(dir.join(slot.to_string())) else {
                        return Ok(0);
                    };
                    let version = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
                    if bytes == content(version) {
                        Ok(version)
                    } else {
                        Err(format!("slot {slot} of {}: {} bytes, not whole", dir.display(), bytes.len()))
                    }
                };
                for slot in 0..SLOTS {
                    check_version(&dir.display(), slot, version(slot)?, durable, *under_way)?;
                }
                settle(durable, under_way, version)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Checks that the version is the acknowledged one or the one under way.
fn check_version(
    of: &dyn std::fmt::Display,
    at: u64,
    seen: u64,
    durable: &BTreeMap<u64, u64>,
    under_way: Option<(u64, u64)>,
) -> Result<(), String> {
    let acknowledged = durable.get(&at).copied().unwrap_or(0);
    if seen == acknowledged || under_way == Some((at, seen)) {
        return Ok(());
    }
    Err(format!("{of}: {at} holds version {seen}; acknowledged {acknowledged}, under way {under_way:?}"))
}

/// Adopts the result of the operation under way as the durable one.
fn settle(
    durable: &mut BTreeMap<u64, u64>,
    under_way: &mut Option<(u64, u64)>,
    version: impl Fn(u64) -> Result<u64, String>,
) -> Result<(), String> {
    if let Some((at, _)) = under_way.take() {
        durable.insert(at, version(at)?);
    }
    Ok(())
}

fn open(root: &Path, path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(root.join(path))
}

fn log_path(root: &Path, log: &str, number: u64) -> PathBuf {
    root.join(format!("{log}.{number}"))
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn record(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_BYTES as usize];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    // Without zeros, so that a lost byte is noticed.
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

/// Returns the content of a small file: its version, then bytes computed from it, of a varying length.
fn content(version: u64) -> Vec<u8> {
    let mut bytes = vec![0; (version % 5 * 4000 + 8) as usize];
    fastrand::Rng::with_seed(version / 2).fill(&mut bytes[8..]);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn churn(dir: &Path, random: &mut fastrand::Rng) -> io::Result<()> {
    let ignore_exists = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    };
    ignore_exists(std::fs::create_dir(dir))?;
    let name = |random: &mut fastrand::Rng| dir.join(random.u8(0..20).to_string());
    let path = name(random);
    match random.u8(0..5) {
        0 => ignore_absent(std::fs::remove_file(&path)),
        1 => ignore_absent(std::fs::rename(&path, name(random))),
        2 => ignore_exists(ignore_absent(std::fs::hard_link(&path, name(random)))),
        _ => {
            let file = open(dir, &path)?;
            let mut bytes = vec![0; random.usize(0..60_000)];
            nvfold_tests::random::fill(random, &mut bytes);
            file.write_all_at(&bytes, random.u64(0..100_000))?;
            file.set_len(random.u64(0..100_000))
        }
    }
}

fn ignore_absent(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Error numbers of system calls after the serving process is gone.
mod gone {
    pub(super) const ECONNABORTED: i32 = 103;
    /// A request that was given to a ring.
    pub(super) const ECANCELED: i32 = 125;
    pub(super) const ENOTCONN: i32 = 107;
}
