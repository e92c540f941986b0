//! Devices: opening and closing them, and what is said of one as a whole.

use super::{DeviceHandle, OutStats};
use crate::caller::{self, CText, OutStatvfs};
use crate::device::{self, Device};
use crate::failure::{self, Outcome, call};
use crate::options::Options;
use crate::status::{self, MODE_BITS};
use crate::{listing, table, transfers};
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once};

/// What a device holds, in bytes. Later versions may have more fields behind these.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Stats {
    /// Size of the device.
    pub device_bytes: u64,
    /// What all files hold: what would be stored without sharing and compression.
    pub logical_bytes: u64,
    /// What data takes on the device, in whole blocks and packed pieces.
    pub stored_bytes: u64,
    /// Saved by sharing, less what is stored and in no file any more: logical - stored - compressed away.
    pub saved_bytes: u64,
    /// Saved by compression.
    pub compressed_away_bytes: u64,
    /// Tables, logs, directories and attributes in use.
    pub metadata_bytes: u64,
    /// Free.
    pub free_bytes: u64,
    /// Shared since the device was opened because it was known where the bytes had been copied from (policies icid,
    /// icid+inline and icid+deext; see nvfold_memcpy).
    pub shared_by_origin_bytes: u64,
    /// Set aside for tables, and not in use.
    pub reserved_bytes: u64,
}

fn close_all_of(device: &Arc<Device>) {
    table::remove_all_of(device);
    listing::close_all_of(device);
    transfers::leave(device.handle);
}

extern "C" fn close_all_at_exit() {
    // A child of fork has nothing to close.
    if !failure::is_forked() {
        device::close_all_at_exit(close_all_of);
    }
}

/// Opens a device: a file, a DAX file, a device-dax node, or "mem:" for memory that lives as long as the handle.
///
/// `options`: NULL, or a list such as "size=1G,create,policy=inline":
///
///   create         make and format the device when there is none, or an empty file; needs size=
///   format         format it whatever it holds: everything on it is lost
///   size=SIZE      size of a new device in bytes, or with K, M, G, T (powers of 1024); mem: needs it
///   ro             change nothing; the device is not recovered either
///   policy=NAME    which dedup system places new data, as with `nvfold mount -o policy=`
///   origins=on     follow where bytes are copied from, for files and directories with a policy of their own that shares
///                  them; auto, unless given: when the policy of the device does
///   label=, index=, pack=, compress=, mode=, profile=, discard, nodiscard, threads=
///                  as with `nvfold mkfs` and `nvfold mount`
///
/// After a crash the device is recovered. A thread works beside the program until the device is closed: it does what a
/// mount does in the background. Files that are made belong to the effective user and group of the process, and the umask
/// that it has now applies to them (see nvfold_umask).
///
/// Returns the handle, or NULL: EBUSY when another process (or this one) has it open; EINVAL for wrong options and for what
/// holds no nvfold; ENOENT, EACCES, EROFS, EIO.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_device_open(path: CText<'_>, options: CText<'_>) -> DeviceHandle {
    call("nvfold_device_open", || {
        let path = path.bytes()?;
        let options = if options.is_null() { Options::default() } else { Options::parse(options.bytes()?)? };
        open(path, &options).map(DeviceHandle::of)
    })
}

/// Opens a device; returns its handle.
pub(super) fn open(path: &[u8], options: &Options) -> Outcome<usize> {
    static PREPARED: Once = Once::new();
    PREPARED.call_once(|| {
        failure::watch_for_forks();
        failure::at_exit(close_all_at_exit);
    });
    device::open(path, options).map_err(|failure| failure.at(path))
}

/// Closes a device cleanly: everything acknowledged is on it, and the next one to open it has nothing to
/// recover. Calls of other threads that are under way end first. Descriptors and directories that are open on it are
/// closed; mappings stay, until they are unmapped.
///
/// A device that is open when the process ends by exit() or by returning from main is closed then.
///
/// Returns 0, or -1: EBADF; EIO and others when the device failed, which is as after a crash then. The handle is gone in any
/// case.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_device_close(device: DeviceHandle) -> c_int {
    call("nvfold_device_close", || close(device.0.addr()).map(|()| 0))
}

/// Closes the device of a handle.
pub(super) fn close(handle: usize) -> Outcome<()> {
    device::close(handle, close_all_of)
}

/// Makes everything acknowledged durable, on the whole device, all or nothing. It costs something on devices in plain files
/// alone; there it happens by itself too, a second after the changes stop, and every 5 s.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_sync(device: DeviceHandle) -> c_int {
    call("nvfold_sync", || device.device()?.run(|fs| Ok(fs.sync()?)).map(|()| 0))
}

/// Physical space: copying data that is there hardly changes it.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_statvfs(device: DeviceHandle, mut space: OutStatvfs<'_>) -> c_int {
    call("nvfold_statvfs", || {
        let device = device.device()?;
        let mut found = caller::empty_statvfs();
        device.run(|fs| {
            status::fill_space(&mut found, &fs.statfs(), fs.is_read_only(), device.handle);
            Ok(())
        })?;
        space.put(found).map(|()| 0)
    })
}

/// What the device holds and what sharing saves. `size` is sizeof(struct nvfold_stats), by which later versions know how much
/// of it the program has.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_stats(device: DeviceHandle, mut stats: OutStats<'_>, size: usize) -> c_int {
    call("nvfold_stats", || {
        let device = device.device()?;
        stats.check()?;
        let of = device.run(|fs| Ok(fs.stats()))?;
        let found = Stats {
            device_bytes: of.device_bytes,
            logical_bytes: of.logical_bytes,
            stored_bytes: of.stored_bytes,
            saved_bytes: of.saved_bytes,
            compressed_away_bytes: of.compressed_away_bytes,
            metadata_bytes: of.metadata_bytes,
            free_bytes: of.free_bytes,
            shared_by_origin_bytes: of.origins.shared_bytes,
            reserved_bytes: of.reserved_bytes,
        };
        stats.put_prefix(found, size).map(|()| 0)
    })
}

/// Sets the permission bits that files made on this device from now on do not get; returns those of before, or (mode_t)-1.
/// The umask of the process counted when the device was opened, and does not count any more.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_umask(device: DeviceHandle, mask: libc::mode_t) -> libc::mode_t {
    failure::answer("nvfold_umask", libc::mode_t::MAX, || {
        Ok(device.device()?.umask.swap(mask & MODE_BITS, Ordering::Relaxed))
    })
}

/// A sentence about the last call of this thread that failed: what was being done, to what, why it failed, and often what to
/// do. It is valid until the next call of this thread fails. Never NULL; empty when none has failed. errno is as the call
/// left it.
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_last_error() -> *const c_char {
    failure::last_message()
}

/// The version of the library, for example "0.1.0".
#[unsafe(no_mangle)]
pub(super) extern "C" fn nvfold_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
