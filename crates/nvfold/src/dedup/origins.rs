//! The shortest run of bytes that is shared with the bytes that it was copied from (ICID 4.5).
//!
//! The problem: sharing a run costs a compare, a reference and an extent, however short the run is. The paper shares a
//! record of 64 bytes. On a device that is as fast as DRAM, that takes longer than writing some kilobytes, and the short
//! run keeps a whole block in use.
//!
//! The idea: a run is shared if writing it would take as long as sharing one does, by the device's own costs. From half
//! a block on every run is shared, because then the space that is saved is worth more than the time.

use super::PolicyDevice;
use super::nv_dedup::costs;
use crate::media::BLOCK_BYTES;
use crate::words::Stopwatch;
use std::ops::RangeInclusive;
use std::sync::OnceLock;

/// The least value, bytes: a record of the paper. It is also the value where nothing can be measured.
pub(crate) const ORIGIN_BYTES_LEAST: u64 = 64;
/// The values of [`crate::MountOptions::origin_bytes_min`], bytes.
pub const ORIGIN_BYTES_MIN_RANGE: RangeInclusive<u64> = ORIGIN_BYTES_LEAST..=1 << 20;
/// The largest value that is chosen, bytes.
const CHOSEN_MOST: u64 = BLOCK_BYTES / 2;

/// The shortest run that is shared: as the mount's options say, or by what the device costs.
pub(crate) struct OriginBytesMin {
    given: Option<u64>,
    stopwatch: Option<Stopwatch>,
    chosen: OnceLock<u64>,
}

impl OriginBytesMin {
    /// `given`: see [`crate::MountOptions::origin_bytes_min`].
    pub(crate) fn new(given: Option<u64>, stopwatch: Option<Stopwatch>) -> OriginBytesMin {
        OriginBytesMin { given, stopwatch, chosen: OnceLock::new() }
    }

    /// True if it was given, and is not chosen so that sharing pays.
    pub(crate) fn is_given(&self) -> bool {
        self.given.is_some()
    }

    /// Returns it, in bytes. The first call measures, if that is needed: some tenths of a millisecond. The caller holds
    /// no lock.
    pub(crate) fn bytes(&self, ground: &PolicyDevice<'_>) -> u64 {
        match (self.given, &self.stopwatch) {
            (Some(given), _) => given.clamp(*ORIGIN_BYTES_MIN_RANGE.start(), *ORIGIN_BYTES_MIN_RANGE.end()),
            (None, None) => ORIGIN_BYTES_LEAST,
            (None, Some(stopwatch)) => *self.chosen.get_or_init(|| {
                let share_ns = costs::measure(ground, stopwatch, true).map(|costs| costs.compare_ns);
                let write_ns = costs::measure_run(ground, stopwatch);
                share_ns.zip(write_ns).map_or(ORIGIN_BYTES_LEAST, |(share, write)| choose(share, write))
            }),
        }
    }
}

/// Chooses it, in bytes, by the time to share a block and the time to write one among others, in nanoseconds.
fn choose(share_ns: u64, block_write_ns: u64) -> u64 {
    let equal_bytes = share_ns.saturating_mul(BLOCK_BYTES) / block_write_ns.max(1);
    // The next power of two, so that a small error of measuring changes nothing.
    equal_bytes.clamp(ORIGIN_BYTES_LEAST, CHOSEN_MOST).next_power_of_two()
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn shorter_runs_are_shared_where_writing_is_slow() {
        assert_eq!(choose(250, 110), 2048, "memory");
        assert_eq!(choose(900, 9_700), 512, "NVDIMM");
        assert_eq!(choose(900, 200_000), 64, "a disk");
        assert_eq!((choose(0, 0), choose(u64::MAX, 1)), (64, 2048));
    }
}
