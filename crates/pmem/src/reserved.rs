//! Address space behind a mapping, so that a device can be made longer while threads use it.
//!
//! The problem: a mapping cannot be moved while threads access it, and what follows it in the address space belongs to
//! others.
//!
//! The idea: before a device is mapped, address space is reserved that nothing else takes: pages without access, which
//! need no memory. The device is mapped at its beginning, and each longer part behind it.
//!
//! ```text
//! base (2 MiB aligned)                      base + bytes
//! | mapped: the device | no access: reserved |
//! ```
//!
//! **How much.** [`FACTOR`] times the device, [`BYTES_MIN`] at least. Whoever keeps tables for a device keeps them for all
//! that is reserved, so it is at most [`MEMORY_FACTOR`] times the memory of the machine. Where the address space of the
//! process is limited, it is a quarter of the limit at most.
//! If the host refuses, less is reserved, or nothing.

use crate::{DEVICE_BYTES_MAX, host};
use rustix::fd::BorrowedFd;
use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Resource, getrlimit};
use std::ops::Range;

/// How a device is mapped.
pub(crate) type How = (ProtFlags, MapFlags);

/// The largest pages that a device is mapped with.
const ALIGNMENT: u64 = 2 << 20;
const FACTOR: u64 = 16;
const BYTES_MIN: u64 = 64 << 30;
const MEMORY_FACTOR: u64 = 64;
const LIMIT_PART: u64 = 4;

/// Reserved address space; see the module. Dropping it unmaps what is in it.
pub(crate) struct Reserved {
    /// What the host gave.
    start: *mut u8,
    length: usize,
    /// The first aligned address in it.
    base: *mut u8,
    /// From `base` on.
    bytes: u64,
}

impl Reserved {
    /// Reserves address space for a device and what it may become. `None` if there is none for more than it is.
    pub(crate) fn behind(device_bytes: u64) -> Option<Reserved> {
        let mut bytes = wanted(device_bytes);
        while !cfg!(miri) && bytes > device_bytes {
            if let Some(reserved) = Reserved::of(bytes) {
                return Some(reserved);
            }
            bytes = bytes / 2 / ALIGNMENT * ALIGNMENT;
        }
        None
    }

    fn of(bytes: u64) -> Option<Reserved> {
        let length = usize::try_from(bytes + ALIGNMENT).ok()?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing of ours.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), flags) }.ok()?;
        let start = start.cast::<u8>();
        let base = start.wrapping_add(start.align_offset(ALIGNMENT as usize));
        Some(Reserved { start, length, base, bytes })
    }

    /// Returns how long the device can become.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps a range of a file at its place. What was mapped there before is not in use.
    pub(crate) fn map(&self, range: Range<u64>, how: &How, file: BorrowedFd<'_>) -> Result<*mut u8> {
        assert!(range.end <= self.bytes, "a range in the reserved address space");
        let (at, length) = (self.base.wrapping_add(range.start as usize), (range.end - range.start) as usize);
        let (protection, flags) = *how;
        // SAFETY: the range lies in address space that is reserved for this device alone, and the caller says that nobody
        // uses it.
        unsafe { host::mmap(at.cast(), length, protection, flags | MapFlags::FIXED, file, range.start) }
            .map(<*mut _>::cast)
    }

    /// Takes a range out of the device. A thread that has begun an access to it completes it in memory of nobody.
    pub(crate) fn take_out(&self, range: Range<u64>) {
        assert!(range.end <= self.bytes, "a range in the reserved address space");
        let (at, length) = (self.base.wrapping_add(range.start as usize), (range.end - range.start) as usize);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: replaces pages of the device by others that can be accessed in the same way. If it fails, the range
        // stays mapped, and is not used.
        let _ = unsafe { mmap_anonymous(at.cast(), length, ProtFlags::READ | ProtFlags::WRITE, flags) };
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: what the host gave, with the device that is mapped in it. The `Mapping` that owns this is being
        // dropped, so no access can follow.
        let _ = unsafe { host::munmap(self.start.cast(), self.length) };
    }
}

/// Returns how many bytes are to be reserved for a device, itself included.
fn wanted(device_bytes: u64) -> u64 {
    let system = rustix::system::sysinfo();
    let memory = system.totalram as u64 * u64::from(system.mem_unit);
    wanted_of(device_bytes, memory, getrlimit(Resource::As).current)
}

fn wanted_of(device_bytes: u64, memory_bytes: u64, limit_bytes: Option<u64>) -> u64 {
    let most = MEMORY_FACTOR.saturating_mul(memory_bytes);
    let wanted = (FACTOR * device_bytes).max(BYTES_MIN).min(most).min(DEVICE_BYTES_MAX);
    let limited = limit_bytes.map_or(wanted, |limit| wanted.min(limit / LIMIT_PART));
    (limited / ALIGNMENT * ALIGNMENT).max(device_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserved_address_space_follows_from_the_device_the_memory_and_the_limit() {
        const GIB: u64 = 1 << 30;
        assert_eq!(wanted_of(GIB, 16 * GIB, None), 64 * GIB);
        assert_eq!(wanted_of(8 * GIB, 16 * GIB, None), 128 * GIB);
        assert_eq!(wanted_of(1024 * GIB, 16 * GIB, None), 1024 * GIB, "the tables would take too much memory");
        assert_eq!(wanted_of(GIB, GIB / 2, None), 32 * GIB, "less on a small machine");
        assert_eq!(wanted_of(DEVICE_BYTES_MAX, 16 * GIB, None), DEVICE_BYTES_MAX);
        assert_eq!(wanted_of(GIB, 16 * GIB, Some(16 * GIB)), 4 * GIB);
        assert_eq!(wanted_of(GIB, 16 * GIB, Some(2 * GIB)), GIB, "nothing behind it");
    }
}
