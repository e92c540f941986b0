//! Clocks: the time of day, the cost of a thread's work, and time as an emulated device counts it.
//!
//! The problem: a wall clock on a shared machine cannot resolve differences of a few percent. The idea: [`cost_ns`]
//! measures the cost of work as the processor time of the thread plus the time that emulated devices charged it.
//! Neither depends on other load on the machine, except through caches and clock rates.

use crate::thread;
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// Returns what the calling thread's work has cost so far, in nanoseconds; use differences. The cost is the thread's
/// processor time without its waits for emulated devices, plus what those devices charged. For large copies the
/// charge excludes the time that the host took, because that is processor time already. A system call: some 300 ns.
pub fn cost_ns() -> f64 {
    (thread_cpu_ns() - thread::spun_ns()) as f64 + thread::left_ps() as f64 / 1000.0
}

/// Returns nanoseconds since `epoch` on the clock of the calling thread's devices: time that the thread still owes
/// them counts as passed. A difference within one thread is the duration of an operation, whether the thread waits
/// for the device or only counts its time.
pub fn device_ns(epoch: Instant) -> u64 {
    (epoch.elapsed().as_nanos() as i64).saturating_add(thread::unpaid_ps() / 1000).max(0) as u64
}

/// Returns the nanoseconds of processor time that the calling thread has used, including its waits for emulated
/// devices.
pub fn thread_cpu_ns() -> i64 {
    now_ns(ClockId::ThreadCPUTime)
}

/// Returns the time of the last timer tick in nanoseconds since 1970, at most a few milliseconds old, as kernel file
/// systems use it. A call takes 5 ns.
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
