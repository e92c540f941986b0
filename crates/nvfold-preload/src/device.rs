//! The device to which paths below the prefix lead.

use crate::process;
use nvfold::Victims;
use nvfold_c::device::Device;
use nvfold_c::failure::Failure;
use nvfold_c::shared;
use parking_lot::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// At exit, dead chunks in packed segments are taken back if they are a larger part of what is stored.
const MUCH_DEAD_PART: u64 = 32;

static PREFIX: OnceLock<Vec<u8>> = OnceLock::new();
static LAST_NAME: OnceLock<Vec<u8>> = OnceLock::new();
static HAS_PREFIX: AtomicBool = AtomicBool::new(false);
static DEVICE: RwLock<Option<Arc<Device>>> = RwLock::new(None);

/// Returns whether any path can be ours.
#[inline]
pub(crate) fn has_prefix() -> bool {
    HAS_PREFIX.load(Ordering::Acquire)
}

/// Returns the prefix: absolute, plain, without a `/` at its end.
pub(crate) fn prefix() -> &'static [u8] {
    PREFIX.get().map_or(b"", Vec::as_slice)
}

/// Returns the device; `None` in a process that does not own it, and after it was closed.
pub(crate) fn device() -> Option<Arc<Device>> {
    if process::is_not_owner() { None } else { DEVICE.read().clone() }
}

/// Returns the last name of the prefix, which every path of the host that leads below it has among its names.
pub(crate) fn last_name() -> &'static [u8] {
    LAST_NAME.get().map_or(b"", Vec::as_slice)
}

pub(crate) fn no_device() -> Failure {
    Failure::new(libc::EIO, "the device has been closed")
}

/// Sets the prefix, before the device is open.
pub(crate) fn name_prefix(prefix: &[u8]) {
    let _ = PREFIX.set(prefix.to_vec());
    let _ = LAST_NAME.set(prefix.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec());
}

/// Starts to look at paths.
pub(crate) fn begin() {
    HAS_PREFIX.store(true, Ordering::Release);
}

/// Sets the device when it is opened, and `None` when it is closed.
pub(crate) fn set(device: Option<Arc<Device>>) {
    *DEVICE.write() = device;
}

/// Makes acknowledged data durable, in the process that owns the device.
pub(crate) fn sync() {
    if !has_prefix() || !process::is_owner() {
        return;
    }
    if let Some(device) = device() {
        // The program exits or executes whatever happens; no return value could report the error.
        let _ = shared::write_back_all();
        let _ = device.run(|fs| Ok(fs.sync()?));
    }
}

/// Takes back what sharing parts of blocks has left, and gives free memory back to the host. What fails costs space, and
/// the next mount tries again.
pub(crate) fn tidy_up() {
    if let Some(device) = device() {
        let _ = device.run(|fs| {
            while !fs.reclaim_step(Victims::Worthwhile)? {}
            let stats = fs.figures();
            if stats.reclaim.dead_bytes > stats.stored_bytes / MUCH_DEAD_PART {
                while !fs.reclaim_step(Victims::All)? {}
            }
            Ok(fs.trim()?)
        });
    }
}

/// Prints how much the program has written, and how much of it is shared.
pub(crate) fn say_stats() {
    let Some(device) = device() else { return };
    let Ok(stats) = device.run(|fs| Ok(fs.stats())) else { return };
    let (written, shared) = (device.written_bytes.load(Ordering::Relaxed), stats.origins.shared_bytes);
    let percent = 100.0 * shared as f64 / written.max(1) as f64;
    process::say(&format!(
        "{written} bytes written, {shared} of them shared with what they were copied from ({percent:.2} %)"
    ));
    let (logical, stored) = (stats.logical_bytes, stats.stored_bytes);
    process::say(&format!("the device has files of {logical} bytes, and stores {stored} bytes for them"));
}
