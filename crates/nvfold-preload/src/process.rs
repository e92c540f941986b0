//! Whether this process owns the device.
//!
//! The problem: only one process owns the device, the one that `nvfold run` became. There are three kinds of other
//! processes, and each is recognised in its own way:
//!
//! | process | how it is recognised | its files below the prefix |
//! |---|---|---|
//! | child of fork | nvfold-c's handler sets a flag | EIO, and one message |
//! | child of vfork (posix_spawn, Python's subprocess), until it calls exec | it shares our memory, so only getpid differs | its closes and dups affect only the kernel's descriptors |
//! | a program that a child executes | the environment names another process | EIO, and one message |
//!
//! A message goes to stderr only while descriptor 2 is the file that it was when the program started. A program that
//! has closed it and opened another file there would find the message in that file.

use nvfold_c::failure;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// The process that owns the device; 0: none.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// A prefix was asked for, but another process owns the device.
static REFUSES: AtomicBool = AtomicBool::new(false);
/// Device and inode of stderr at the start.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static HAS_SAID: AtomicBool = AtomicBool::new(false);

/// Records that this process owns the device, before it opens it.
pub(crate) fn own() {
    // SAFETY: getpid has no conditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Records that another process owns the device, and which one if that is known.
pub(crate) fn refuse(owner: Option<u32>) {
    OWNER.store(owner.map_or(0, |owner| owner as i32), Ordering::Relaxed);
    REFUSES.store(true, Ordering::Relaxed);
}

/// Returns whether another process owns the device. Then our locks may be held for ever, and none may be taken.
pub(crate) fn is_not_owner() -> bool {
    REFUSES.load(Ordering::Relaxed) || failure::is_forked()
}

/// Returns whether this process owns the device; also right in a child of vfork. Ask before changing tables. It costs
/// a system call.
pub(crate) fn is_owner() -> bool {
    // SAFETY: getpid has no conditions.
    !is_not_owner() && OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

fn stderr_identity() -> Option<[u64; 2]> {
    let mut stat = nvfold_c::caller::empty_stat();
    // SAFETY: `stat` is ours, and of the type that fstat fills.
    (unsafe { libc::fstat(2, &raw mut stat) } == 0).then_some([stat.st_dev, stat.st_ino])
}

/// Remembers which file stderr is.
pub(crate) fn remember_stderr() {
    if let Some(identity) = stderr_identity() {
        STDERR.iter().zip(identity).for_each(|(kept, part)| kept.store(part, Ordering::Relaxed));
    }
}

/// Prints a line on stderr, if that is still the same file.
pub(crate) fn say(message: &str) {
    let kept: [u64; 2] = std::array::from_fn(|part| STDERR[part].load(Ordering::Relaxed));
    if kept == [0, 0] || stderr_identity() != Some(kept) {
        return;
    }
    let line = format!("nvfold run: {message}\n");
    // SAFETY: `line` is ours; a short or failed write to stderr is ignored.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Prints once per process that its files below the prefix belong to another process.
pub(crate) fn say_stranger() {
    if !HAS_SAID.swap(true, Ordering::Relaxed) {
        let owner = OWNER.load(Ordering::Relaxed);
        say(&format!(
            "process {}: files below the prefix belong to process {owner}, which `nvfold run` started; \
             here every use of them fails with EIO. `nvfold run --mount` serves any number of processes",
            std::process::id()
        ));
    }
}
