//! How a call fails: errno, a sentence that says more, and panics, which never cross into C.
//!
//! A panic is a mistake of ours, and what it interrupted may be half changed in DRAM. It becomes EIO with a message, and the
//! device it happened on takes no call any more: see `Device::run`.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Result of what a call does.
pub type Outcome<T> = Result<T, Failure>;

/// Why a call failed.
#[derive(Debug)]
pub struct Failure {
    /// For errno.
    pub errno: c_int,
    /// What was being done, to what, and why it failed.
    pub message: String,
}

impl Failure {
    pub fn new(errno: c_int, message: impl Into<String>) -> Failure {
        Failure { errno, message: message.into() }
    }

    /// Makes the error EINVAL.
    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(libc::EINVAL, message)
    }

    /// EIO: a panic was caught.
    pub fn panicked(payload: &(dyn Any + Send)) -> Failure {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        Failure::new(libc::EIO, format!("internal error: {text}; please report it"))
    }

    /// Says to what it happened.
    pub fn at(self, path: &[u8]) -> Failure {
        Failure { message: format!("{}: {}", String::from_utf8_lossy(path), self.message), ..self }
    }
}

impl From<nvfold::Error> for Failure {
    fn from(error: nvfold::Error) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

impl From<pmem::PmemError> for Failure {
    fn from(error: pmem::PmemError) -> Failure {
        Failure::new(error.errno(), error.to_string())
    }
}

/// What C gets, and what says that a call failed.
pub trait Answer {
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: c_int = -1;
}

// `ssize_t` and `off_t` alike.
impl Answer for i64 {
    const FAILED: i64 = -1;
}

impl Answer for isize {
    const FAILED: isize = -1;
}

impl Answer for *mut c_void {
    const FAILED: *mut c_void = ptr::null_mut();
}

thread_local! {
    /// The sentence about the last call of this thread that failed.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Set in a child of fork. Only the thread that forked lives on there: locks may be held for ever, and the device is the
/// parent's.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Makes a child of fork know that it is one. Called when the first device is opened.
pub fn watch_for_forks() {
    extern "C" fn in_child() {
        mark_as_forked_child();
    }
    // SAFETY: `in_child` stays loaded as long as this library, and does what is allowed between fork and exec: it stores a
    // word. (glibc forgets the handlers of a library that is unloaded.)
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// Marks this process as a child of fork.
pub fn mark_as_forked_child() {
    IS_FORKED.store(true, Ordering::Relaxed);
}

/// Whether this is a child of fork.
pub fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Runs `close_all` when the process ends by exit, or by returning from main.
pub fn at_exit(close_all: extern "C" fn()) {
    // SAFETY: a function of this library, which is called once at most, at exit or when the library is unloaded. If there is
    // no room for it nothing happens at exit, and the next one to open the device recovers it.
    unsafe { libc::atexit(close_all) };
}

/// Runs what a call does, and tells C what came of it: the answer, or `FAILED` with errno and the sentence.
pub fn call<T: Answer>(function: &'static str, body: impl FnOnce() -> Outcome<T>) -> T {
    answer(function, T::FAILED, body)
}

/// As `call`, for those whose failure has another value.
pub fn answer<T>(function: &'static str, failed: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let outcome = if is_forked() {
        let why = "this process was forked from one that had a device open, which is the parent's; call exec first";
        Err(Failure::new(libc::EIO, why))
    } else {
        // What a panic interrupted is given up: `Device::run` sees to that.
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| Err(Failure::panicked(&*payload)))
    };
    outcome.unwrap_or_else(|failure| {
        report(function, &failure);
        failed
    })
}

/// Sets errno and the thread's sentence.
fn report(function: &'static str, failure: &Failure) {
    let message = format!("{function}: {}", failure.message).replace('\0', "?");
    // In a thread that is ending the sentence may be gone already; errno is not.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(message).unwrap_or_default());
    set_errno(failure.errno);
}

pub fn set_errno(errno: c_int) {
    // SAFETY: glibc and musl give each thread an errno of its own, valid as long as the thread; nobody else writes it.
    unsafe { *libc::__errno_location() = errno };
}

/// The sentence about the last call of this thread that failed: valid until the next one fails.
pub fn last_message() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(NONE.as_ptr())
}
