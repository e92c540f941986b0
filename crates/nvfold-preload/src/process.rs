//! Are we the process that has the device?
//!
//! One process has it: the one that `nvfold run` became. There are three kinds of others, and each must be told in its own way:
//!
//! | process | how it is told | its files below the prefix |
//! |---|---|---|
//! | child of fork | nvfold-c's handler sets a flag | EIO, and one message |
//! | child of vfork (posix_spawn, Python's subprocess), until it calls exec | it shares our memory: only getpid tells | its closes and dups are the kernel's alone |
//! | a program that a child executes | the environment names another process | EIO, and one message |
//!
//! A message goes to stderr only while descriptor 2 is what it was when the program started: a program that has closed it and
//! opened a file there would find it in the file.

use nvfold_c::failure;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// The process that has the device; 0: there is none.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// A prefix was asked for, but the device is another process's.
static REFUSES: AtomicBool = AtomicBool::new(false);
/// What stderr was: device and inode.
static STDERR: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
static HAS_SAID: AtomicBool = AtomicBool::new(false);

/// This process is about to open the device.
pub fn own() {
    // SAFETY: getpid has no conditions.
    OWNER.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// The device is another process's: this one's, if that is known.
pub fn refuse(owner: Option<u32>) {
    OWNER.store(owner.map_or(0, |owner| owner as i32), Ordering::Relaxed);
    REFUSES.store(true, Ordering::Relaxed);
}

/// Whether the device is another process's: then locks of ours may be held for ever, and none may be taken.
pub fn is_stranger() -> bool {
    REFUSES.load(Ordering::Relaxed) || failure::is_forked()
}

/// The same, of a child of vfork too: to be asked before tables change. It costs a call of the kernel.
pub fn is_owner() -> bool {
    // SAFETY: getpid has no conditions.
    !is_stranger() && OWNER.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

fn stderr_identity() -> Option<[u64; 2]> {
    let mut stat = nvfold_c::caller::empty_stat();
    // SAFETY: `stat` is ours, and of the type that fstat fills.
    (unsafe { libc::fstat(2, &raw mut stat) } == 0).then_some([stat.st_dev, stat.st_ino])
}

/// Remembers what stderr is.
pub fn remember_stderr() {
    if let Some(identity) = stderr_identity() {
        STDERR.iter().zip(identity).for_each(|(kept, part)| kept.store(part, Ordering::Relaxed));
    }
}

/// A line on stderr, if that is still what it was.
pub fn say(message: &str) {
    let kept: [u64; 2] = std::array::from_fn(|part| STDERR[part].load(Ordering::Relaxed));
    if kept == [0, 0] || stderr_identity() != Some(kept) {
        return;
    }
    let line = format!("nvfold run: {message}\n");
    // SAFETY: `line` is ours; that stderr takes less or nothing is nobody's loss.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Says once a process that its files below the prefix are another's.
pub fn say_stranger() {
    if !HAS_SAID.swap(true, Ordering::Relaxed) {
        let owner = OWNER.load(Ordering::Relaxed);
        say(&format!(
            "process {}: files below the prefix belong to process {owner}, which `nvfold run` started; \
             here every use of them fails with EIO",
            std::process::id()
        ));
    }
}
