//! Clocks: the time of day, what a thread's work costs, and the time as an emulated device has it.
//!
//! A wall clock on a shared machine cannot tell differences of a few percent. What work costs is told by [`cost_ns`]:
//! the processor time of the thread, and what devices charged it. Neither depends on who else uses the machine, as far
//! as caches and clock rates are the same.

use crate::thread;
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// What the calling thread's work has cost so far, nanoseconds: its processor time, without what it spent waiting for
/// emulated devices, and what those charged it (of large copies without what the host took for them, which is processor
/// time already). Differences count. A system call: some 300 ns.
pub fn cost_ns() -> f64 {
    (thread_cpu_ns() - thread::spun_ns()) as f64 + thread::left_ps() as f64 / 1000.0
}

/// Nanoseconds since `epoch` as the calling thread's devices have it: what it owes has passed too. Differences within
/// one thread tell what an operation takes, whether the device is waited for or only counted.
pub fn device_ns(epoch: Instant) -> u64 {
    (epoch.elapsed().as_nanos() as i64).saturating_add(thread::unpaid_ps() / 1000).max(0) as u64
}

/// Nanoseconds of processor time that the calling thread has taken; waiting for an emulated device is part of it.
pub fn thread_cpu_ns() -> i64 {
    now_ns(ClockId::ThreadCPUTime)
}

/// Time of the last timer tick (a few milliseconds old at most), as kernel file systems use it: 5 ns a call.
pub fn coarse_now_ns() -> i64 {
    now_ns(ClockId::RealtimeCoarse)
}

/// Returns the exact time in nanoseconds since 1970.
pub fn precise_now_ns() -> i64 {
    now_ns(ClockId::Realtime)
}

fn now_ns(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}
