//! From the outcome of a call to its C result: errno, and calls that come when there is no device.
#![forbid(unsafe_code)]

use crate::process;
use nvfold_c::failure::{self, Answer, Failure, Outcome};
use std::cell::Cell;
use std::io;

thread_local! {
    /// Whether a call of ours runs in this thread. The call may call us again, for example through the program's
    /// allocator.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a call of ours runs in this thread, which may hold locks.
pub(crate) fn is_inside() -> bool {
    IS_INSIDE.get()
}

/// Runs a part of a call that may take locks of the file system.
pub(crate) fn inside<T>(body: impl FnOnce() -> T) -> T {
    let was_inside = IS_INSIDE.replace(true);
    let answer = body();
    IS_INSIDE.set(was_inside);
    answer
}

/// Runs the body of a call. A call that succeeds keeps errno, because programs use it to tell the end of `readdir`
/// from an error.
pub(crate) fn answer<T: Answer>(function: &'static str, body: impl FnOnce() -> Outcome<T>) -> T {
    answer_or(function, T::FAILED, body)
}

/// As `answer`, for calls that report a failure with another value.
pub(crate) fn answer_or<T>(function: &'static str, failed: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let before = errno();
    if process::is_not_owner() {
        process::say_stranger();
        failure::set_errno(libc::EIO);
        return failed;
    }
    let answer = inside(|| failure::answer(function, None, || body().map(Some)));
    match answer {
        Some(answer) => {
            failure::set_errno(before);
            answer
        }
        None => failed,
    }
}

pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Runs what must not change the errno that the program sees.
pub(crate) fn keeping_errno<T>(body: impl FnOnce() -> T) -> T {
    let before = errno();
    let answer = body();
    failure::set_errno(before);
    answer
}

/// Returns what the kernel would of a call of libc's kind, and leaves errno alone: above -4096 and below 0, an error
/// number.
pub(crate) fn as_the_kernel(call: impl FnOnce() -> isize) -> isize {
    keeping_errno(|| match call() {
        -1 => -(errno() as isize),
        answer => answer,
    })
}

/// Turns a result of libc below 0 into a failure with its errno.
pub(crate) fn checked(doing: &'static str, answer: i32) -> Outcome<i32> {
    if answer >= 0 { Ok(answer) } else { Err(os_failure(doing)) }
}

/// Returns a failure with the present errno.
pub(crate) fn os_failure(doing: &str) -> Failure {
    let error = io::Error::last_os_error();
    Failure::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{doing}: {error}"))
}
