//! Devices that fail under their mapping: truncated, on a full host, in bad memory. The process survives and learns of it.

use pmem::{DeviceSpec, OpenOptions, PmemError, Region};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

const PAGE: u64 = 4096;
const BYTES: u64 = 64 * PAGE;

fn open(path: &Path) -> Region {
    Region::open(&DeviceSpec::Path(path.into()), &OpenOptions::default()).unwrap()
}

/// A device whose every page is filled with a number of its own, and its path.
fn device(dir: &Path) -> (Region, PathBuf) {
    let path = dir.join("device");
    let region = Region::create(&DeviceSpec::Path(path.clone()), BYTES, &OpenOptions::default()).unwrap();
    for page in 0..BYTES / PAGE {
        let _ = region.fence(region.stream(page * PAGE, &[page as u8 + 1; PAGE as usize]));
    }
    region.sync().unwrap();
    (region, path)
}

fn truncate(path: &Path, bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

fn page(region: &Region, page: u64) -> Vec<u8> {
    let mut bytes = vec![0xEE; PAGE as usize];
    region.read_into(page * PAGE, &mut bytes);
    bytes
}

#[test]
fn a_truncated_device_is_lost_and_the_process_survives() {
    let dir = tempfile::tempdir().unwrap();
    let (region, path) = device(dir.path());
    truncate(&path, 10 * PAGE);
    assert!(!region.is_lost(), "nothing was touched yet");
    assert_eq!(page(&region, 9), [10; PAGE as usize]);
    region.check().unwrap();
    assert_eq!(page(&region, 10), [0; PAGE as usize]);
    assert!(matches!(region.check(), Err(PmemError::Lost { .. })));
    assert!(region.is_lost());
    assert!(!region.sound_or_forget(40 * PAGE, 16), "zeros behind the end are nobody's data");
    assert_eq!(region.check().unwrap_err().errno(), 5, "told always");
    // All kinds of access behind the end, and those before it, still end.
    let _ = region.fence(region.stream(20 * PAGE, &[1; 4 * PAGE as usize]));
    let _ = region.store_u64(30 * PAGE, 1);
    let _ = region.compare_exchange_u128(31 * PAGE, 0, 1);
    assert_eq!(region.load_u128(40 * PAGE), 0);
    assert!(region.equal(50 * PAGE, &[0; 100]));
    assert_eq!(page(&region, 0), [1; PAGE as usize]);
    drop(region);
    assert_eq!(path.metadata().unwrap().len(), 10 * PAGE, "the file is what it was made");
    truncate(&path, BYTES);
    let again = open(&path);
    assert_eq!((page(&again, 9), page(&again, 20)), (vec![10; PAGE as usize], vec![0; PAGE as usize]));
    again.check().unwrap();
}

#[test]
fn a_store_past_a_truncated_end_is_reported_too() {
    let dir = tempfile::tempdir().unwrap();
    for store in [
        |region: &Region| drop(region.store_u64(10 * PAGE, 1)),
        |region: &Region| drop(region.store_u128(10 * PAGE, 1)),
        |region: &Region| drop(region.write(10 * PAGE + 3, &[1u8; 100])),
        |region: &Region| drop(region.stream(9 * PAGE, &[1; 2 * PAGE as usize])),
        |region: &Region| drop(region.compare_exchange_u64(10 * PAGE, 0, 1)),
    ] {
        let (region, path) = device(dir.path());
        truncate(&path, 10 * PAGE);
        store(&region);
        assert!(matches!(region.check(), Err(PmemError::Lost { .. })));
    }
}

#[test]
fn a_probe_detects_a_truncation_before_any_access() {
    let dir = tempfile::tempdir().unwrap();
    let (region, path) = device(dir.path());
    assert!(region.probe());
    truncate(&path, BYTES - PAGE);
    assert!(!region.probe());
    assert!(region.is_lost() && region.check().is_err());
}

#[test]
fn a_lost_device_does_not_affect_another_one() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (lost, path) = device(one.path());
    let (whole, _) = device(two.path());
    truncate(&path, 0);
    assert_eq!(page(&lost, 3), [0; PAGE as usize]);
    assert!(lost.is_lost());
    let _ = whole.fence(whole.stream(3 * PAGE, &[7; 100]));
    assert_eq!(page(&whole, 3)[..101], [[7; 100].as_slice(), &[4]].concat());
    whole.check().unwrap();
    drop(lost);
    // The next mapping may take the record of the one that went.
    let (fresh, _) = device(one.path());
    assert_eq!(page(&fresh, 3), [4; PAGE as usize]);
    fresh.check().unwrap();
}

#[test]
fn many_threads_may_access_a_truncated_device_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..20 {
        let (region, path) = device(dir.path());
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let region = &region;
                scope.spawn(move || {
                    while region.check().is_ok() {
                        for at in 0..BYTES / PAGE {
                            let _ = region.load_u64(at * PAGE);
                            let _ = region.write((at * PAGE) + 512 + thread * 8, &thread).flush();
                        }
                    }
                });
            }
            truncate(&path, 3 * PAGE);
        });
        assert!(region.is_lost());
    }
}

#[test]
fn bad_lines_read_as_zeros_are_reported_once_and_spare_the_rest_of_the_page() {
    let dir = tempfile::tempdir().unwrap();
    let (region, _) = device(dir.path());
    region.poison(5 * PAGE + 1024 + 64, 64);
    region.check().unwrap();
    assert_eq!(page(&region, 4), [5; PAGE as usize]);
    region.check().unwrap();
    let mut expected = vec![6; PAGE as usize];
    expected[1024..1536].fill(0);
    assert_eq!(page(&region, 5), expected, "the sector of the line is lost, no more");
    let error = region.check().unwrap_err();
    assert!(
        matches!(&error, PmemError::BadMemory { offset, length: 512, .. } if *offset == 5 * PAGE + 1024),
        "{error}"
    );
    region.check().expect("told once");
    assert_eq!(region.bad_ranges(), vec![5 * PAGE + 1024..5 * PAGE + 1536]);
    // Reads beside it are well; every kind of read of it is told.
    assert_eq!(region.load_u64(5 * PAGE), u64::from_ne_bytes([6; 8]));
    region.check().unwrap();
    let reads: [(&str, &dyn Fn() -> bool); 5] = [
        ("load_u64", &|| region.load_u64(5 * PAGE + 1024) == 0),
        ("load_u128", &|| region.load_u128(5 * PAGE + 1520) == 0),
        ("read", &|| region.read::<[u8; 32]>(5 * PAGE + 1000)[24..] == [0; 8]),
        ("equal", &|| region.equal(5 * PAGE + 1024, &[0; 8])),
        ("common_prefix", &|| region.common_prefix(5 * PAGE + 1024, &[0; 8]) == 8),
    ];
    for (name, reads_zeros) in reads {
        assert!(reads_zeros(), "{name}");
        region.check().expect_err(name);
    }
    region.scrub(5 * PAGE, PAGE).unwrap_err();
    region.scrub(5 * PAGE, 1024).unwrap();
    assert!(!region.is_lost());
}

#[test]
fn a_store_to_a_page_with_bad_memory_loses_the_device_and_can_be_avoided() {
    let dir = tempfile::tempdir().unwrap();
    let (region, _) = device(dir.path());
    region.poison(5 * PAGE, 1);
    region.check_writable(5 * PAGE, PAGE).expect("nobody knows yet");
    region.scrub(0, BYTES).unwrap_err();
    region.check_writable(4 * PAGE, PAGE).unwrap();
    region.check_writable(5 * PAGE, 0).unwrap();
    let error = region.check_writable(4 * PAGE + 8, PAGE).unwrap_err();
    assert!(matches!(error, PmemError::BadMemory { offset, .. } if offset == 5 * PAGE));
    let _ = region.store_u64(6 * PAGE, 1);
    region.check().unwrap();
    let _ = region.store_u64(5 * PAGE + 2048, 1);
    assert!(matches!(region.check(), Err(PmemError::Lost { .. })));
}

#[test]
fn a_bad_read_is_reported_only_to_the_thread_that_made_it() {
    let dir = tempfile::tempdir().unwrap();
    let (region, _) = device(dir.path());
    region.poison(0, 1);
    let _ = region.load_u64(0);
    std::thread::scope(|scope| scope.spawn(|| region.check().unwrap()).join().unwrap());
    region.check().unwrap_err();
}

/// Memory that the kernel itself calls bad: poisoned through userfaultfd, as a virtual machine does that was moved
/// here from a host with bad memory. The access raises SIGBUS with BUS_MCEERR_AR.
#[test]
fn memory_poisoned_by_the_kernel_is_handled_like_a_bad_line() {
    let region = Region::create(&DeviceSpec::Memory, BYTES, &OpenOptions::default()).unwrap();
    let _ = region.fence(region.stream(7 * PAGE, &[1; 3 * PAGE as usize]));
    let Some(_held) = uffd::poison(region.address(8 * PAGE), PAGE) else {
        assert!(!std::env::var("CI").is_ok_and(|ci| ci == "true"), "nothing may be skipped with CI=true");
        eprintln!("skipped: this test needs userfaultfd with UFFDIO_POISON (Linux 6.6, as root)");
        return;
    };
    let read = page(&region, 8);
    // The page is bad for the mapping alone; the host still reads the file behind it.
    assert_eq!(read, [1; PAGE as usize]);
    region.check().unwrap();
    assert!(matches!(region.check_writable(8 * PAGE, 8), Err(PmemError::BadMemory { .. })), "the page is frozen");
    assert_eq!(page(&region, 9), [1; PAGE as usize]);
    region.check_writable(9 * PAGE, 8).unwrap();
    let _ = region.store_u64(8 * PAGE, 2);
    assert!(region.is_lost());
}

/// The few words of userfaultfd(2) that the test needs.
mod uffd {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const POISON: libc::c_ulong = 0xc020_aa08;
    const FEATURE_POISON: u64 = 1 << 14;
    const MODE_MISSING: u64 = 1;

    /// Poisons a page; `None` where the kernel cannot. The page must not be mapped.
    pub(super) fn poison(page: usize, bytes: u64) -> Option<OwnedFd> {
        // SAFETY: a system call without pointers.
        let opened = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) };
        // SAFETY: a descriptor that was just made and belongs to nobody.
        let fd = unsafe { OwnedFd::from_raw_fd(i32::try_from(opened).ok().filter(|fd| *fd >= 0)?) };
        // SAFETY: the page is mapped by the caller; giving it back costs no content, for the file holds it.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(page), bytes as usize, libc::MADV_DONTNEED) };
        let mut api = [0xaa, FEATURE_POISON, 0];
        let mut register = [page as u64, bytes, MODE_MISSING, 0];
        let mut poison = [page as u64, bytes, 0, 0];
        for (request, words) in [(API, &mut api[..]), (REGISTER, &mut register[..]), (POISON, &mut poison[..])] {
            // SAFETY: each request takes a struct of as many words as it is given.
            if unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } != 0 {
                eprintln!("userfaultfd: {}", std::io::Error::last_os_error());
                return None;
            }
        }
        Some(fd)
    }
}

/// Set in the environment of a child: what the ignored tests below do ends their process, so without it they do nothing.
const CHILD: &str = "PMEM_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Runs one of the ignored tests below in a process of its own.
fn run_child(test: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([&format!("faults::{test}"), "--exact", "--ignored"]).env(CHILD, "1");
    child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap()
}

#[test]
fn a_bus_error_outside_devices_ends_the_process() {
    assert_eq!(run_child("child_with_a_bus_error_of_its_own").signal(), Some(libc::SIGBUS));
    assert_eq!(run_child("child_that_is_sent_a_bus_error").signal(), Some(libc::SIGBUS));
    assert_eq!(run_child("child_with_a_handler_of_its_own").code(), Some(42));
}

#[test]
#[ignore = "started by another test as its child"]
fn child_with_a_bus_error_of_its_own() {
    if !is_child() {
        return;
    }
    let _region = Region::create(&DeviceSpec::Memory, BYTES, &OpenOptions::default()).unwrap();
    touch_behind_the_end_of_a_file();
}

#[test]
#[ignore = "started by another test as its child"]
fn child_that_is_sent_a_bus_error() {
    if !is_child() {
        return;
    }
    // Rust's own handler takes the first one for an access and waits for the next.
    // SAFETY: the default action.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let _region = Region::create(&DeviceSpec::Memory, BYTES, &OpenOptions::default()).unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::BUS).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(10));
}

#[test]
#[ignore = "started by another test as its child"]
fn child_with_a_handler_of_its_own() {
    extern "C" fn end(_signal: i32) {
        // SAFETY: ends the process and nothing else.
        unsafe { libc::_exit(42) };
    }
    if !is_child() {
        return;
    }
    let end: extern "C" fn(i32) = end;
    // SAFETY: the handler does only what a signal handler may.
    unsafe { libc::signal(libc::SIGBUS, end as libc::sighandler_t) };
    let _region = Region::create(&DeviceSpec::Memory, BYTES, &OpenOptions::default()).unwrap();
    touch_behind_the_end_of_a_file();
}

fn touch_behind_the_end_of_a_file() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE).unwrap();
    let (protection, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: a new mapping at a place of the kernel's choice.
    let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE as usize, protection, flags, &file, 0) }.unwrap();
    file.set_len(0).unwrap();
    // SAFETY: mapped; that the read raises SIGBUS is what is tested.
    let _ = unsafe { at.cast::<u8>().read_volatile() };
}
