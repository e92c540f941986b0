//! Wall clock time in nanoseconds since 1970, from the vDSO.

use rustix::time::{ClockId, clock_gettime};

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
