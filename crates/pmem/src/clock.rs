//! Clocks: the time of day, the processor time of a thread, and what a thread owes to emulated devices.
//!
//! What an operation costs is the processor time that its thread took and the growth of its debt: `thread_cpu_ns` and
//! `owed_ns` before and behind it. A time that a person would have waited is that of any other clock and the debt.

use crate::thread;
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Nanoseconds that emulated devices have charged the calling thread and that it has not waited for: below a microsecond
/// where it waits, all of it where time is only counted (`OpenOptions::counts_only`). Its growth is what counts.
pub fn owed_ns() -> f64 {
    thread::unpaid_ps() as f64 / 1000.0
}

/// Nanoseconds since `epoch` as the calling thread's devices have it: what it owes has passed too. Differences within
/// one thread tell what an operation takes, whether the device is waited for or only counted.
pub fn device_ns(epoch: Instant) -> u64 {
    (epoch.elapsed().as_nanos() as i64).saturating_add(thread::unpaid_ps() / 1000).max(0) as u64
}

/// Nanoseconds of processor time that the calling thread has taken. A system call: some 300 ns.
pub fn thread_cpu_ns() -> i64 {
    now_ns(ClockId::ThreadCPUTime)
}

/// Time of the last timer tick (a few milliseconds old at most), as kernel file systems use it: 5 ns a call.
pub fn coarse_now_ns() -> i64 {
    now_ns(ClockId::RealtimeCoarse)
}

/// Exact time.
pub fn precise_now_ns() -> i64 {
    now_ns(ClockId::Realtime)
}

fn now_ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
