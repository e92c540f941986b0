//! A program that closes our descriptor and opens a file of its own, which gets the number: that file is never touched,
//! and the device is lost.

use pmem::{DeviceSpec, OpenOptions, PersistenceLevel, PmemError, Region};
use rustix::fs::FlockOperation;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// More than the device and its journal have, so that its length gives nothing away.
const OWN_BYTES: u64 = 2 << 30;

/// A call of the library, each with a device of its own. It returns what the call answered.
type Call = fn(&Region) -> Result<(), PmemError>;

const CALLS: [(&str, Call); 15] = [
    ("nothing", |_| Ok(())),
    ("sync", |region| region.sync()),
    ("store and sync", |region| {
        let _ = region.fence(region.write(3 * PAGE, &[8u8; 5000]).flush());
        region.sync()
    }),
    ("cut the journal off", |region| region.cut_journal_off()),
    ("admit", |region| region.admit()),
    ("punch", |region| region.punch(0, BYTES)),
    ("punch and sync", |region| region.punch(0, BYTES).and_then(|()| region.sync())),
    ("reserve", |region| region.reserve(0, BYTES)),
    ("settle holes", |region| region.settle_holes()),
    ("populate", |region| {
        region.populate(0, BYTES);
        Ok(())
    }),
    ("look for holes", |region| {
        assert!(!region.is_hole(0, PAGE), "one page was stored to");
        assert_eq!(region.next_allocated(0, BYTES), 0, "whoever cannot tell says that there is something");
        assert!(!region.allocated_ranges(0, BYTES).is_empty());
        Ok(())
    }),
    ("count", |region| {
        let _ = (region.allocated_bytes(), region.host_free_bytes());
        Ok(())
    }),
    ("scan", |region| {
        let mut bytes = [0; 2 * PAGE as usize];
        region.scan_into(0, &mut bytes);
        assert_eq!(bytes[..PAGE as usize], [7; PAGE as usize], "the device's bytes, not those of the own file");
        Ok(())
    }),
    ("probe", |region| {
        assert!(!region.probe());
        Ok(())
    }),
    ("store when it is known", |region| {
        region.probe();
        let _ = region.fence(region.write(0, &[9u8; 2000]).flush());
        let _ = region.store_u64(0, 9);
        let _ = region.compare_exchange_u64(8, u64::from_ne_bytes([7; 8]), 9);
        let _ = region.fence(region.stream(PAGE, &[9; 4096]));
        region.punch(0, PAGE)
    }),
];

/// The devices: level, whether it is in memory, and whether it is only read.
const DEVICES: [(PersistenceLevel, bool, bool); 5] = [
    (PersistenceLevel::Memory, false, false),
    (PersistenceLevel::Memory, true, false),
    (PersistenceLevel::Memory, false, true),
    (PersistenceLevel::File, false, false),
    (PersistenceLevel::File, true, false),
];

fn open_numbers() -> BTreeSet<RawFd> {
    let list = fs::read_dir("/proc/self/fd").unwrap();
    let numbers: Vec<RawFd> = list.map(|entry| entry.unwrap().file_name().to_string_lossy().parse().unwrap()).collect();
    let is_open = |number: &RawFd| Path::new(&format!("/proc/self/fd/{number}")).read_link().is_ok();
    numbers.into_iter().filter(is_open).collect()
}

/// Opens a device; returns it with the numbers of its descriptors.
fn open_device(dir: &Path, (level, in_memory, is_read): (PersistenceLevel, bool, bool)) -> (Region, Vec<RawFd>) {
    let path = dir.join("device");
    let _ = fs::remove_file(&path);
    let spec = if in_memory { DeviceSpec::Memory } else { DeviceSpec::Path(path.clone()) };
    let options = OpenOptions { as_file: level == PersistenceLevel::File, ..OpenOptions::default() };
    if is_read {
        let region = Region::create(&spec, BYTES, &options).unwrap();
        let _ = region.fence(region.write(0, &[7u8; PAGE as usize]).flush());
    }
    let before = open_numbers();
    let region = match is_read {
        true => Region::open(&spec, &OpenOptions { read_only: true, ..options }).unwrap(),
        false => Region::create(&spec, BYTES, &options).unwrap(),
    };
    let numbers: Vec<RawFd> = open_numbers().difference(&before).copied().collect();
    if !is_read {
        let _ = region.fence(region.write(0, &[7u8; PAGE as usize]).flush());
        region.sync().unwrap();
    }
    assert!(!numbers.is_empty() && numbers.iter().all(|number| *number >= 50), "high numbers: {numbers:?}");
    (region, numbers)
}

fn read(path: &Path, bytes: u64) -> Vec<u8> {
    let mut read = Vec::new();
    File::open(path).unwrap().take(bytes).read_to_end(&mut read).unwrap();
    read
}

/// A file of the program under a number that was ours, locked by it.
struct Own {
    path: PathBuf,
    content: Vec<u8>,
    number: RawFd,
}

impl Own {
    fn under(number: RawFd, dir: &Path) -> Own {
        let path = dir.join(format!("own-{number}"));
        let content: Vec<u8> = (0..300_000).map(|at: u32| (at % 251) as u8 + 1).collect();
        fs::write(&path, &content).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        file.set_len(OWN_BYTES).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        // SAFETY: what a program may do with any number; the test is that the library does not rely on it.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        Own { path, content, number }
    }

    fn under_all(numbers: &[RawFd], dir: &Path) -> Vec<Own> {
        numbers.iter().map(|number| Own::under(*number, dir)).collect()
    }

    /// Checks that it is as it was made: bytes, length, lock, and open under its number.
    fn check(self, what: &str) {
        let file = File::open(&self.path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), OWN_BYTES, "{what}");
        let bytes = read(&self.path, 2 * BYTES);
        let (own, behind) = bytes.split_at(self.content.len());
        assert!(own == self.content && behind.iter().all(|byte| *byte == 0), "{what}: the own file was changed");
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(locked, Err(rustix::io::Errno::WOULDBLOCK), "{what}: the program's lock is there");
        // SAFETY: the number is this test's.
        assert_eq!(unsafe { libc::close(self.number) }, 0, "{what}: the program's descriptor is still open");
    }
}

/// Not a test: the process of the next one, in which nobody else opens files.
#[test]
#[ignore = "started by another test as its child"]
fn child_that_replaces_descriptors() {
    let Some(dir) = std::env::var_os("PMEM_TEST_DIR").map(PathBuf::from) else { return };
    for device in DEVICES {
        for (name, call) in CALLS {
            let what = format!("{device:?}, {name}");
            let is_read = device.2;
            let changes = ["store", "punch", "reserve", "populate"].iter().any(|word| name.starts_with(word));
            if is_read && changes {
                continue;
            }
            let (region, numbers) = open_device(&dir, device);
            let on_media = (!device.1).then(|| read(&dir.join("device"), BYTES));
            let own = Own::under_all(&numbers, &dir);
            let answer = call(&region);
            let refused = |error: &PmemError| matches!(error, PmemError::DescriptorClosed { .. }) && error.errno() == 5;
            assert!(answer.as_ref().err().is_none_or(refused), "{what}: {answer:?}");
            assert!(!region.probe() && region.is_lost(), "{what}");
            assert!(region.check().as_ref().is_err_and(refused), "{what}");
            assert!(region.sync().as_ref().is_err_and(refused), "{what}");
            if region.level() == PersistenceLevel::Memory && name != "store and sync" {
                assert!(region.equal(0, &[7; PAGE as usize]), "{what}: nothing is stored after the loss");
            }
            drop(region);
            own.into_iter().for_each(|own| own.check(&what));
            if name != "store and sync" || device.0 == PersistenceLevel::File {
                let now = on_media.as_ref().map(|_| read(&dir.join("device"), BYTES));
                assert!(now == on_media, "{what}: the file of the device is as it was");
            }
        }
    }
    println!("all calls were tried");
}

#[test]
#[cfg_attr(miri, ignore = "it starts a process")]
fn a_file_of_the_program_that_reuses_our_descriptor_number_is_never_changed() {
    assert!(in_child("child_that_replaces_descriptors").contains("all calls were tried"));
}

/// Runs one of the tests that are processes of others, in a directory of its own; returns what it said.
fn in_child(name: &str) -> String {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let ended = Command::new(std::env::current_exe().unwrap())
        .args([&format!("descriptor::{name}"), "--exact", "--ignored", "--nocapture"])
        .env("PMEM_TEST_DIR", dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{}: {said}\n{}", ended.status, String::from_utf8_lossy(&ended.stderr));
    said
}

/// Not a test: the process of the next one.
#[test]
#[ignore = "started by another test as its child"]
fn child_whose_device_is_cut_under_its_mapping() {
    let Some(dir) = std::env::var_os("PMEM_TEST_DIR").map(PathBuf::from) else { return };
    let (region, numbers) = open_device(&dir, (PersistenceLevel::Memory, false, false));
    let own = Own::under_all(&numbers, &dir);
    File::options().write(true).open(dir.join("device")).unwrap().set_len(PAGE).unwrap();
    // The handler of SIGBUS reads what it can of a page that fails: not from the own file.
    assert_eq!(region.to_vec(8 * PAGE, PAGE), [0; PAGE as usize]);
    assert!(matches!(region.check(), Err(PmemError::DescriptorClosed { .. })));
    drop(region);
    own.into_iter().for_each(|own| own.check("a page that fails"));
    println!("it went on");
}

#[test]
#[cfg_attr(miri, ignore = "it starts a process")]
fn the_handler_of_failing_memory_reads_no_file_of_the_program() {
    assert!(in_child("child_whose_device_is_cut_under_its_mapping").contains("it went on"));
}

/// Not a test: the process of the next one.
#[test]
#[ignore = "started by another test as its child"]
fn child_that_forks() {
    let Some(dir) = std::env::var_os("PMEM_TEST_DIR").map(PathBuf::from) else { return };
    let (region, _) = open_device(&dir, (PersistenceLevel::Memory, false, false));
    // SAFETY: the child only drops a value, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(region);
        // SAFETY: ends the child without anything of this test.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the status is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    let other = File::open(dir.join("device")).unwrap();
    let locked = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(locked, Err(rustix::io::Errno::WOULDBLOCK));
    println!("it is still locked");
}

#[test]
#[cfg_attr(miri, ignore = "it starts a process")]
fn a_forked_child_that_drops_a_device_leaves_the_lock_of_its_parent() {
    assert!(in_child("child_that_forks").contains("it is still locked"));
}

/// Returns the flags of the mapping at an address: `VmFlags` of /proc/self/smaps.
fn flags_at(address: usize) -> Vec<String> {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_here = false;
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let range = range.map(|(start, end)| (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16)));
        if let Some((Ok(start), Ok(end))) = range {
            is_here = (start..end).contains(&address);
        } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
            return flags.split_whitespace().map(str::to_owned).collect();
        }
    }
    panic!("nothing is mapped at {address:#x}");
}

#[test]
#[cfg_attr(miri, ignore = "it maps files")]
fn core_dumps_contain_no_device_content() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for level in [PersistenceLevel::Memory, PersistenceLevel::File] {
        for in_memory in [false, true] {
            let path = dir.path().join("device");
            let spec = if in_memory { DeviceSpec::Memory } else { DeviceSpec::Path(path) };
            let options = OpenOptions { as_file: level == PersistenceLevel::File, ..OpenOptions::default() };
            let region = Region::create(&spec, BYTES, &options).unwrap();
            assert_eq!(region.level(), level);
            assert!(flags_at(region.address(0)).contains(&"dd".to_owned()), "{spec}, {level}");
            region.poison(PAGE, 64);
            let _ = region.to_vec(PAGE, 64);
            assert!(flags_at(region.address(PAGE)).contains(&"dd".to_owned()), "{spec}, {level}: a page put in place");
        }
    }
}
