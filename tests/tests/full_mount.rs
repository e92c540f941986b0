//! A full device under the mount: every writer gets an error, and no file is longer than its stored data.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nvfold::{POLICY_ATTRIBUTE, Policy};

use nvfold_tests::mount::Mount;
use nvfold_tests::requires::tool;
use nvfold_tests::{requires, run};
use rustix::fs::{FallocateFlags, XattrFlags};

const DEVICE_MIB: u64 = 64;
const BLOCK: usize = 4096;
/// More blocks than the kernel accepts before it notices that the device is full.
const MOST_BLOCKS: u64 = 2 << 20;

/// Returns a unique block that contains its number.
fn block(number: u64) -> [u8; BLOCK] {
    let mut block = [0x5a; BLOCK];
    block[..8].copy_from_slice(&(number + 1).to_le_bytes());
    block
}

/// Writes blocks one after another until a write fails; returns how many succeeded.
fn write_until_full(file: &mut File, first: u64) -> u64 {
    for number in first..first + MOST_BLOCKS {
        if let Err(error) = file.write_all(&block(number)) {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            return number - first;
        }
    }
    panic!("{MOST_BLOCKS} blocks were taken on a device of {DEVICE_MIB} MiB");
}

/// Checks that each block of a file is its own or a hole; returns how many are its own.
fn own_blocks(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let (mut own, mut read) = (0, [0; BLOCK]);
    for number in 0..file.metadata().unwrap().len().div_ceil(BLOCK as u64) {
        let length = file.read_at(&mut read, number * BLOCK as u64).unwrap();
        if read[..length] == block(number)[..length] {
            own += 1;
        } else {
            assert!(read[..length].iter().all(|byte| *byte == 0), "block {number} is another one's");
        }
    }
    own
}

/// Returns the end of the stored data of a file, as the serving process reports it.
fn stored_end(path: &Path) -> u64 {
    let mut end = 0;
    loop {
        let mut answer = vec![0; 64 << 10];
        let length = rustix::fs::getxattr(path, format!("user.nvfold.extents.{end}"), &mut answer[..]).unwrap();
        let text = String::from_utf8(answer[..length].to_vec()).unwrap();
        let Some(last) = text.lines().last() else { return end };
        let mut numbers = last.split(' ').map(|number| number.parse::<u64>().unwrap());
        end = numbers.next().unwrap() + numbers.next().unwrap();
    }
}

/// Returns the size of a file after its last writer closed it, which must be the end of its stored data. A child that
/// another test is starting may still have the file open for a moment, so the size is read again if it differs.
fn size_after_close(path: &Path) -> u64 {
    let size = || fs::metadata(path).unwrap().len();
    for _ in 0..500 {
        if size() == stored_end(path) {
            return size();
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{} keeps a size of {}, and {} are stored", path.display(), size(), stored_end(path));
}

/// Fills a mount with one file; returns its size, which must equal that of its stored data, and how many writes
/// succeeded.
fn fill(mount: &Mount, path: &Path) -> (u64, u64) {
    let mut file = File::create(path).unwrap();
    let taken = write_until_full(&mut file, 0);
    // Writes the kernel's cached data. With writeback this fails, and close(2) reports no other error.
    let _ = file.sync_all();
    drop(file);
    let space_bytes = DEVICE_MIB << 20;
    let size = size_after_close(path);
    assert!(size > space_bytes / 2, "{size} bytes are stored of {taken} blocks\n{}", mount.log());
    (size, taken)
}

#[test]
fn a_writer_to_a_full_mount_gets_enospc_and_the_size_matches_the_stored_data() {
    requires!(fuse);
    for options in ["writeback=off", "writeback=on", "writeback=on,policy=denova", "writeback=auto,policy=off"] {
        let mut mount = Mount::with_options(DEVICE_MIB, options);
        let path = mount.join("big");
        let (size, taken) = fill(&mount, &path);
        let own = own_blocks(&path);
        if options == "writeback=off" {
            assert_eq!((size, own), (taken * BLOCK as u64, taken), "all that a write said was taken, and no more");
        }
        mount.remount();
        assert_eq!((fs::metadata(&path).unwrap().len(), own_blocks(&path)), (size, own), "{options}");
        fs::remove_file(&path).unwrap();
        fs::write(mount.join("after"), vec![7; 1 << 20]).unwrap();
        mount.check();
    }
}

#[test]
fn a_writer_that_got_enospc_continues_once_there_is_space() {
    requires!(fuse);
    for options in ["writeback=off", "writeback=on"] {
        let mut mount = Mount::with_options(DEVICE_MIB, options);
        let other: Vec<u8> = (0..4096).flat_map(|number| block(u64::MAX / 2 + number)).collect();
        fs::write(mount.join("other"), &other).unwrap();
        let path = mount.join("big");
        let mut file = File::create(&path).unwrap();
        let taken = write_until_full(&mut file, 0);
        let _ = file.sync_all();
        fs::remove_file(mount.join("other")).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        for number in 0..1024 {
            file.write_all(&block(number)).unwrap_or_else(|error| panic!("{options}, block {number}: {error}"));
        }
        file.sync_all().unwrap();
        drop(file);
        assert!(own_blocks(&path) >= 1024.min(taken));
        mount.check();
    }
}

#[test]
fn a_full_mount_keeps_sizes_and_holes_that_programs_set() {
    requires!(fuse);
    const SIZE: u64 = 1 << 40;
    let mut mount = Mount::with_options(DEVICE_MIB, "writeback=on");
    let path = mount.join("sparse");
    let mut file = File::create(&path).unwrap();
    file.set_len(SIZE).unwrap();
    file.write_all_at(b"the last bytes", SIZE - 14).unwrap();
    file.sync_all().unwrap();
    // Another process has the file open and sees the stored data.
    let reader = File::open(&path).unwrap();
    write_until_full(&mut file, 0);
    let _ = file.sync_all();
    drop(file);
    let mut last = [0; 14];
    reader.read_exact_at(&mut last, SIZE - 14).unwrap();
    assert_eq!(&last, b"the last bytes");
    drop(reader);
    assert_eq!(fs::metadata(&path).unwrap().size(), SIZE);
    mount.remount();
    assert_eq!(fs::metadata(&path).unwrap().size(), SIZE);
}

#[test]
fn a_failed_append_on_a_full_mount_keeps_the_file_size() {
    requires!(fuse);
    let mut mount = Mount::with_options(DEVICE_MIB, "writeback=on");
    fs::write(mount.join("log"), block(0)).unwrap();
    fs::create_dir(mount.join("dir")).unwrap();
    let (_, _) = fill(&mount, &mount.join("big"));
    // Its directory changes while the file is open, and so does its name.
    let mut log = File::options().append(true).open(mount.join("log")).unwrap();
    let _ = fs::rename(mount.join("log"), mount.join("dir/log.1"));
    let path = if mount.join("log").exists() { mount.join("log") } else { mount.join("dir/log.1") };
    let before = fs::metadata(&path).unwrap().len();
    write_until_full(&mut log, 1);
    let _ = log.sync_all();
    drop(log);
    let size = size_after_close(&path);
    // No upper bound: space may come back after a page found none, so there may be holes between what is stored.
    assert!(size >= before, "{size} after {before}");
    mount.remount();
    assert_eq!(fs::metadata(&path).unwrap().len(), size);
}

/// As on any file system of Linux: the kernel remembers the loss for the file, and what each open file was told.
#[test]
fn the_loss_of_accepted_writes_is_reported_once_to_every_open_file() {
    requires!(fuse);
    let mut mount = Mount::with_options(DEVICE_MIB, "writeback=on,policy=off");
    let told = |file: &File| file.sync_all().err().map(|error| error.kind());
    let lost = Some(ErrorKind::StorageFull);
    let other = File::create(mount.join("other")).unwrap();
    let path = mount.join("big");
    let mut writer = File::create(&path).unwrap();
    let before = File::open(&path).unwrap();
    write_until_full(&mut writer, 0);
    assert_eq!([&writer, &before].map(told), [lost; 2]);
    let after = File::open(&path).unwrap();
    assert_eq!([&writer, &before, &after, &other].map(told), [None; 4]);
    drop((writer, before, after));

    let path = mount.join("second");
    let mut writer = File::create(&path).unwrap();
    write_until_full(&mut writer, 0);
    // The kernel writes back, and tells no open file of the result.
    let _ = rustix::fs::syncfs(&other);
    let after = File::open(&path).unwrap();
    assert_eq!([&after, &writer].map(told), [lost; 2], "nobody was told before");
    assert_eq!([&after, &writer, &other].map(told), [None; 3]);
    drop((writer, after, other));
    mount.check();
}

/// The words of SQLite for an ENOSPC that it got from write(2).
const FULL: &str = "database or disk is full";
/// Its words for any error of fsync(2), which is where a writeback cache has to report.
const UNSYNCED: &str = "disk I/O error";

/// Puts a blob that does not fit into a database; returns what SQLite says.
fn put_too_much(database: &Path, journal: &str) -> String {
    let sqlite = |sql: String| run::run(Command::new(tool("sqlite3")).arg("-bail").arg(database).arg(sql));
    let begin = format!("PRAGMA journal_mode={journal}; PRAGMA synchronous=FULL;");
    let made =
        sqlite(format!("{begin} CREATE TABLE filled (bytes BLOB); INSERT INTO filled VALUES (randomblob(10000));"));
    assert_eq!(made.success().stdout.trim(), journal);
    let put = sqlite(format!("{begin} INSERT INTO filled SELECT randomblob(3000000);"));
    assert!(!put.status.success(), "{}", put.report());
    let kept = sqlite("PRAGMA integrity_check; SELECT sum(length(bytes)) FROM filled;".into()).success();
    assert_eq!(kept.stdout.trim(), "ok\n10000", "the transaction is rolled back");
    put.stderr.trim().to_owned()
}

#[test]
fn sqlite_reports_a_full_mount_and_keeps_its_database() {
    requires!(root, fuse, tool("sqlite3"));
    for (options, words) in
        [("writeback=on", [FULL, UNSYNCED]), ("writeback=off", [FULL; 2]), ("cache=none", [FULL; 2])]
    {
        let mut mount = Mount::with_options(16, options);
        let filler = File::create(mount.join("filler")).unwrap();
        let left = |path: &Path| rustix::fs::statvfs(path).unwrap().f_bavail * BLOCK as u64;
        let bytes = left(mount.path()) - (2 << 20);
        rustix::fs::fallocate(&filler, FallocateFlags::empty(), 0, bytes).unwrap();
        for (number, policy) in Policy::ALL.into_iter().enumerate() {
            let dir = mount.join(policy.name());
            fs::create_dir(&dir).unwrap();
            rustix::fs::setxattr(&dir, POLICY_ATTRIBUTE, policy.name().as_bytes(), XattrFlags::empty()).unwrap();
            let journal = ["delete", "wal", "truncate", "persist"][number % 4];
            let said = put_too_much(&dir.join("database"), journal);
            assert!(words.iter().any(|words| said.contains(words)), "{options}, {policy:?}, {journal}: {said}");
            fs::remove_dir_all(&dir).unwrap();
        }
        drop(filler);
        mount.check();
    }
}
