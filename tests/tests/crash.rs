//! The serving process is killed under load, twenty times: nothing acknowledged is lost.
//!
//! Workers write, fsync and only then note what they did; after each kill the device is mounted
//! again and every note must hold, the one operation under way having happened wholly or not at
//! all. The device is the same through all rounds and the policy changes from one to the next.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nvfold_tests::block::{self, Label};
use nvfold_tests::mount::Mount;
use nvfold_tests::random::{Seed, soak_factor};
use nvfold_tests::requires;

const KILLS: u64 = 20;

#[test]
fn no_acknowledged_write_is_lost_when_the_mount_is_killed() {
    requires!(root, fuse);
    let seed = Seed::new("killing the mount");
    let mut random = seed.generator();
    let mut mount = Mount::fresh(512, "inline");
    if !mount.is_real() {
        return; // NVFOLD_TEST_DIR: there is nothing to kill.
    }
    let mut workers = Worker::all();
    for round in 0..KILLS * soak_factor() {
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
        mount.set_options(&format!("policy={}", if round % 2 == 0 { "off" } else { "inline" }));
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

/// One thread's job and what it knows to be durable.
enum Worker {
    /// Appends records to a file, fsync after each.
    Appender { path: PathBuf, durable_records: u64 },
    /// Overwrites self-proving blocks in place, fsync after each.
    Overwriter { path: PathBuf, durable: BTreeMap<u64, u64>, under_way: Option<(u64, u64)>, versions: u64 },
    /// Replaces small files by rename after fsync.
    Replacer { dir: PathBuf, durable: BTreeMap<u64, u64>, under_way: Option<(u64, u64)>, versions: u64 },
    /// Creates, links, truncates and removes without end and checks nothing: the load.
    Churner { dir: PathBuf, rounds: u64 },
}

const RECORD_BYTES: u64 = 3001;
const BLOCKS: u64 = 64;
const SLOTS: u64 = 8;

impl Worker {
    fn all() -> Vec<Worker> {
        let mut workers = Vec::new();
        for index in 0..2 {
            workers.push(Worker::Appender { path: format!("log{index}").into(), durable_records: 0 });
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
                let gone = [errno::ENOTCONN, errno::ECONNABORTED, errno::EIO];
                let number = error.raw_os_error().unwrap_or(0);
                assert!(gone.contains(&number), "under load: {error}");
                return;
            }
        }
    }

    fn work_once(&mut self, root: &Path, random: &mut fastrand::Rng) -> io::Result<()> {
        match self {
            Worker::Appender { path, durable_records } => {
                let file = open(root, path)?;
                file.write_all_at(&record(*durable_records), *durable_records * RECORD_BYTES)?;
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

    /// Checks that everything noted is there; takes up what the operation under way left.
    fn verify(&mut self, root: &Path) -> Result<(), String> {
        let failed = |error: io::Error| format!("verifying: {error}");
        match self {
            Worker::Appender { path, durable_records } if *durable_records > 0 => {
                let bytes = std::fs::read(root.join(&path)).map_err(failed)?;
                let want: Vec<u8> = (0..*durable_records).flat_map(record).collect();
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

/// The version seen must be the acknowledged one or the one under way.
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

/// What the operation under way left is what counts from now on.
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

fn record(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; RECORD_BYTES as usize];
    fastrand::Rng::with_seed(number).fill(&mut bytes);
    // No zeros, so that a lost byte is seen.
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

/// Content of a small file: its version, then bytes that follow from it, of a length that varies.
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

/// What system calls answer when the serving process is gone.
mod errno {
    pub const EIO: i32 = 5;
    pub const ECONNABORTED: i32 = 103;
    pub const ENOTCONN: i32 = 107;
}
