//! Limits that follow from the memory of this process.

use pmem::{MemoryLimit, PersistenceLevel};

/// Background requests at once: without a limit, and at least.
const BACKGROUND_MOST: u16 = 64;
const BACKGROUND_LEAST: u16 = 8;
/// The buffers of a thread, for a request and a reply, and the share of the kept memory that those of background requests
/// may take.
const BUFFERS_BYTES: u64 = 2 * nvfold_fuse::DATA_BYTES_MAX as u64;
const BUFFERS_SHARE: u64 = 4;

/// Returns how many background requests (read-ahead, writeback) the kernel may send at once. Each may keep a thread busy,
/// all of them when writers find no space. So under a limit their buffers must fit the part of it that is kept.
pub(crate) fn background_requests(level: PersistenceLevel) -> u16 {
    let limit = MemoryLimit::of_this_process().filter(|_| level == PersistenceLevel::Memory);
    limit.map_or(BACKGROUND_MOST, |limit| background_of(limit.kept_bytes))
}

fn background_of(kept_bytes: u64) -> u16 {
    let fitting = kept_bytes / BUFFERS_SHARE / BUFFERS_BYTES;
    fitting.clamp(BACKGROUND_LEAST.into(), BACKGROUND_MOST.into()) as u16
}

/// Returns the memory that this process may use.
pub(crate) fn memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // The unit is 1 byte on all 64-bit machines.
    let machine = system.totalram as u64 * u64::from(system.mem_unit);
    MemoryLimit::of_this_process().map_or(machine, |limit| machine.min(limit.limit_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_background_requests_follows_the_kept_memory() {
        let of_mib = [32, 75, 128, 512].map(|mib: u64| background_of(mib << 20));
        assert_eq!(of_mib, [8, 9, 16, 64]);
    }
}
