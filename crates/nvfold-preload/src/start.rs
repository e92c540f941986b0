//! Startup and shutdown: the settings of `nvfold run`, opening the device, and closing it cleanly.
//!
//! `nvfold run` becomes the program and passes its settings to this library in the environment. The constructor runs
//! before the program's `main`. The process that may open the device is identified by its process number, which stays
//! the same when the program executes another one in its place and differs for every child.
//!
//! ```text
//! NVFOLD_RUN_DEVICE NVFOLD_RUN_PREFIX NVFOLD_RUN_OPTIONS NVFOLD_RUN_PID NVFOLD_RUN_STATS NVFOLD_RUN_EVALUATION
//! constructor   no such environment: no path is ours. Another process: refuse. Else: open the device, or exit with 125
//! exec          acknowledged data is made durable; the next program opens the device again, recovering it
//! exit          after everything that the program and its libraries do: streams are flushed, the device is closed
//! _exit, kill   acknowledged data is made durable (_exit), and the next process to open the device recovers it
//!
//! NVFOLD_RUN_MOUNT
//! constructor   the files of that mount are followed, in this process and in all that inherit the environment
//! ```

use crate::calls::children;
use crate::{device, evaluation, mappings, mounted, numbers, process, raw, working};
use nvfold_c::device as devices;
use nvfold_c::failure::{self, Outcome};
use nvfold_c::options::Options;
use nvfold_c::{causality, transfers};
use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code if the device cannot be opened.
const NO_DEVICE: c_int = 125;

/// Whether to print at exit what was written and shared.
static WANTS_STATS: AtomicBool = AtomicBool::new(false);

/// The constructor of the library.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvfold_preload_start() {
    unsafe extern "C" {
        // scripts/preload-library.sh makes it: the dynamic linker looks up the functions that copy memory, so that it
        // does not do so in the middle of a copy.
        fn nvfold_preload_find_early();
    }
    // SAFETY: it has no conditions.
    unsafe { nvfold_preload_find_early() };
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(dir) = variable("NVFOLD_RUN_MOUNT") {
        mounted::begin(&dir);
        return;
    }
    let (Some(path), Some(prefix)) = (variable("NVFOLD_RUN_DEVICE"), variable("NVFOLD_RUN_PREFIX")) else { return };
    process::remember_stderr();
    let owner = variable("NVFOLD_RUN_PID").and_then(|pid| pid.to_str()?.parse::<u32>().ok());
    device::name_prefix(prefix.as_bytes());
    if owner != Some(std::process::id()) {
        process::refuse(owner);
        if numbers::mark_inherited() {
            process::say_stranger();
        }
        device::begin();
        return;
    }
    let options = variable("NVFOLD_RUN_OPTIONS").unwrap_or_default();
    process::own();
    WANTS_STATS.store(variable("NVFOLD_RUN_STATS").is_some(), Ordering::Relaxed);
    if let Err(failure) = open(path.as_bytes(), options.as_bytes()) {
        process::say(&failure.message);
        // SAFETY: nothing of ours is open.
        unsafe { libc::_exit(NO_DEVICE) };
    }
    device::begin();
    if !raw::begin() {
        process::say(
            "system calls that are made past libc cannot be caught here (that takes Linux 5.11, and no valgrind): those of \
             this program do not find the prefix. `nvfold run --mount` serves them as well",
        );
    }
}

fn open(path: &[u8], options: &[u8]) -> Outcome<()> {
    let mut options = Options::parse(&[transfers::DEFAULT_OPTIONS, b",", options].concat())?;
    causality::reserve(evaluation::tree_options());
    causality::keep_closed();
    failure::watch_for_forks();
    let handle = numbers::prepare(|least| {
        options.descriptor_min = least;
        devices::open(path, &options).map_err(|failure| failure.at(path))
    })?;
    device::set(Some(devices::of(handle)?));
    evaluation::begin();
    unsafe extern "C" {
        fn __cxa_atexit(function: extern "C" fn(*mut c_void), argument: *mut c_void, of: *mut c_void) -> c_int;
    }
    // SAFETY: `at_exit` is a function of this library, which is never unloaded. It is registered for no library
    // (NULL), so it runs only at exit. It is the first to be registered, so it runs after all others: those of the
    // program and of its libraries, their destructors too.
    unsafe { __cxa_atexit(at_exit, ptr::null_mut(), ptr::null_mut()) };
    // SAFETY: `in_child` stays loaded, and closes descriptors, which is allowed after fork.
    unsafe { libc::pthread_atfork(None, None, Some(children::in_child)) };
    Ok(())
}

extern "C" fn at_exit(_: *mut c_void) {
    if !process::is_owner() {
        return;
    }
    // SAFETY: NULL stands for all streams. Their data for our files goes to the device while it is open.
    unsafe { libc::fflush(ptr::null_mut()) };
    if let Some(device) = device::device() {
        mappings::leave(device.handle);
    }
    // An evaluation looks at what the program itself has left.
    if !evaluation::is_on() {
        device::tidy_up();
    }
    if WANTS_STATS.load(Ordering::Relaxed) {
        device::say_stats();
    }
    evaluation::end();
    working::leave();
    numbers::clear();
    device::set(None);
    devices::close_all_at_exit(|device| transfers::leave(device.handle));
}

/// Stands for a function that libc does not have: ENOSYS.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn nvfold_preload_missing() -> isize {
    failure::set_errno(libc::ENOSYS);
    -1
}
