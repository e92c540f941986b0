//! Between the outcome of a call and what C is told: errno, and calls that come when there is no device.
#![forbid(unsafe_code)]

use crate::process;
use nvfold_c::failure::{self, Answer, Failure, Outcome};
use std::cell::Cell;
use std::io;

thread_local! {
    /// A call of ours is under way in this thread. What it calls may call us: memory of the program's own allocator.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether a call of ours is under way in this thread, which may hold locks.
pub fn is_inside() -> bool {
    IS_INSIDE.get()
}

/// Runs what a call does. errno stays as it was when the call succeeds, since programs ask `readdir` so whether it ended.
pub fn answer<T: Answer>(function: &'static str, body: impl FnOnce() -> Outcome<T>) -> T {
    answer_or(function, T::FAILED, body)
}

/// As `answer`, for calls whose failure has another value.
pub fn answer_or<T>(function: &'static str, failed: T, body: impl FnOnce() -> Outcome<T>) -> T {
    let before = errno();
    if process::is_stranger() {
        process::say_stranger();
        failure::set_errno(libc::EIO);
        return failed;
    }
    let was_inside = IS_INSIDE.replace(true);
    let answer = failure::answer(function, None, || body().map(Some));
    IS_INSIDE.set(was_inside);
    match answer {
        Some(answer) => {
            failure::set_errno(before);
            answer
        }
        None => failed,
    }
}

pub fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A call of libc's that answered below 0 becomes a failure with its errno.
pub fn checked(doing: &'static str, answer: i32) -> Outcome<i32> {
    if answer >= 0 { Ok(answer) } else { Err(os_failure(doing)) }
}

/// What errno says.
pub fn os_failure(doing: &str) -> Failure {
    let error = io::Error::last_os_error();
    Failure::new(error.raw_os_error().unwrap_or(libc::EIO), format!("{doing}: {error}"))
}
