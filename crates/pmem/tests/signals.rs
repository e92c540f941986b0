//! Threads of the library receive no signal of the program.

use pmem::{DeviceSpec, OpenOptions, Region, with_signals_blocked};
use std::fs;

/// Returns what the kernel says of a thread of this process.
fn status(thread: &str) -> String {
    fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap_or_default()
}

/// Returns the signals that a thread blocks, one bit each, from its status.
fn blocked(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a thread that lives");
    u64::from_str_radix(line.trim(), 16).unwrap()
}

fn blocks(mask: u64, signal: libc::c_int) -> bool {
    mask >> (signal - 1) & 1 != 0
}

fn check(mask: u64) {
    let of_programs = [libc::SIGUSR1, libc::SIGALRM, libc::SIGTERM, libc::SIGINT, libc::SIGCHLD, libc::SIGRTMAX()];
    assert!(of_programs.iter().all(|signal| blocks(mask, *signal)), "{mask:x}");
    assert!(!blocks(mask, libc::SIGBUS) && !blocks(mask, libc::SIGSEGV), "its own faults are its own: {mask:x}");
}

fn own_mask() -> u64 {
    blocked(&status(&rustix::thread::gettid().as_raw_nonzero().to_string()))
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no signals")]
fn a_library_thread_blocks_all_signals_but_faults_and_the_starter_keeps_its_mask() {
    let before = own_mask();
    let mask = with_signals_blocked(|| std::thread::spawn(own_mask)).join().unwrap();
    check(mask);
    assert_eq!(own_mask(), before);
    let panicked = std::panic::catch_unwind(|| with_signals_blocked(|| std::panic::resume_unwind(Box::new(0))));
    assert!(panicked.is_err());
    assert_eq!(own_mask(), before, "after a panic, too");
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no signals")]
fn the_thread_that_syncs_blocks_all_signals() {
    let options = OpenOptions { as_file: true, ..OpenOptions::default() };
    let region = Region::create(&DeviceSpec::Memory, 1 << 20, &options).unwrap();
    let _ = region.fence(region.write(0, &[1u8; 64]).flush());
    let threads = || fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().file_name());
    let is_sync = |status: &String| status.starts_with("Name:\tnvfold-sync\n");
    // The thread gives itself its name when it begins to run.
    let found = loop {
        let found = threads().map(|thread| status(&thread.to_string_lossy())).find(is_sync);
        match found {
            Some(status) => break status,
            None => std::thread::yield_now(),
        }
    };
    check(blocked(&found));
}
