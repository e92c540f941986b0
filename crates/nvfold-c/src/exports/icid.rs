//! The calls of the paper under their names: `icid.h`.

use super::DeviceHandle;
use crate::caller::{CText, InBytes, OutBytes};
use crate::device::{self, Device};
use crate::failure::{Failure, Outcome, call};
use crate::files::{self, Target};
use crate::options::Options;
use crate::table;
use crate::transfers::{self, Source};
use nvfold::InodeNumber;
use parking_lot::Mutex;
use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Handle of the device of this process.
static DEVICE: Mutex<Option<usize>> = Mutex::new(None);

/// Opens the device that the calls of this header are about, as nvfold_device_open; `options` may be NULL. Returns 0 or -1;
/// EBUSY when one is open already.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_init(device: CText<'_>, options: CText<'_>) -> c_int {
    call("ICID_init", || {
        let mut opened = DEVICE.lock();
        if opened.as_ref().is_some_and(|handle| device::of(*handle).is_ok()) {
            return Err(Failure::new(libc::EBUSY, "a device is open; call ICID_exit first"));
        }
        let options = if options.is_null() { &[] } else { options.bytes()? };
        *opened = Some(open_device(device.bytes()?, options)?);
        Ok(0)
    })
}

/// Closes the device, as nvfold_device_close. Returns 0 or -1; EBADF when none is open.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_exit() -> c_int {
    call("ICID_exit", || {
        let handle = DEVICE.lock().take().ok_or_else(|| Failure::new(libc::EBADF, "no device is open"))?;
        super::devices::close(handle).map(|()| 0)
    })
}

/// The handle of the device, for the calls of nvfold.h that take one; NULL: ENODEV.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_device() -> DeviceHandle {
    call("ICID_device", || Ok(DeviceHandle::of(the_device()?.handle)))
}

/// Opens a device with the policy that follows origins, unless the options say otherwise: of two the later one counts.
fn open_device(path: &[u8], options: &[u8]) -> Outcome<usize> {
    let options = [transfers::DEFAULT_OPTIONS, b",", options].concat();
    super::devices::open(path, &Options::parse(&options)?)
}

/// The device of this process: the open one, or that of the environment.
fn the_device() -> Outcome<Arc<Device>> {
    let mut opened = DEVICE.lock();
    if let Some(device) = opened.as_ref().and_then(|handle| device::of(*handle).ok()) {
        return Ok(device);
    }
    let path = std::env::var_os("ICID_DEVICE").filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| {
        Failure::new(libc::ENODEV, "neither ICID_init nor the environment variable ICID_DEVICE has said which device")
    })?;
    let options = std::env::var_os("ICID_OPTIONS").unwrap_or_default();
    let handle = open_device(path.as_bytes(), options.as_bytes())?;
    *opened = Some(handle);
    device::of(handle)
}

// icid.h declares it `int ICID_open(const char *, int, ...)`, as the paper has it, in its head. A function that takes a
// variable number of arguments cannot be written in stable Rust, and need not be: on x86-64 and AArch64 (lib.rs refuses
// others) the first three of them travel in the registers of a function with three. `mode` is what that register held when
// the caller gave none, so it is looked at with O_CREAT alone.
/// cbindgen:ignore
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_open(path: CText<'_>, oflag: c_int, mode: libc::mode_t) -> c_int {
    call("ICID_open", || {
        let path = path.bytes()?;
        let mode = if oflag & libc::O_CREAT != 0 { mode } else { 0 };
        let open = files::open(&the_device()?, InodeNumber::ROOT, path, oflag, mode);
        table::insert(Arc::new(open.map_err(|failure| failure.at(path))?))
    })
}

/// Closes a descriptor, as nvfold_close. What is known of copies from the file is forgotten with its last descriptor.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_close(fd: c_int) -> c_int {
    call("ICID_close", || super::descriptors::close(fd).map(|()| 0))
}

/// Copies memory, as nvfold_memcpy.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_memcpy(mut dest: OutBytes<'_>, src: InBytes<'_>, len: usize) -> *mut c_void {
    call("ICID_memcpy", || transfers::copy(&mut dest, &src, len).map(|()| dest.pointer()))
}

/// Compares memory, as nvfold_memcmp. (In the paper it returns void *; memcmp returns an int, of which the sign counts.)
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_memcmp(s1: InBytes<'_>, s2: InBytes<'_>, len: usize) -> c_int {
    super::memory::compare("ICID_memcmp", &s1, &s2, len)
}

/// Memory with what the file holds, as nvfold_mmap: a snapshot. What is copied from it, or written as it is, is known to come
/// from the file.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_mmap(
    addr: OutBytes<'_>,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    super::descriptors::map("ICID_mmap", &addr, (len, prot, flags), fd, offset)
}

/// Gives back memory of ICID_mmap, as nvfold_munmap.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_munmap(addr: OutBytes<'_>, len: usize) -> c_int {
    call("ICID_munmap", || transfers::unmap(addr.pointer(), len).map(|()| 0))
}

/// Reads, as nvfold_read, and notes where the bytes came from.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_read(fd: c_int, mut buf: OutBytes<'_>, len: usize) -> libc::ssize_t {
    call("ICID_read", || transfers::read(&*table::get(fd)?, Source::Position, &mut buf, len))
}

/// Writes, as nvfold_write. Of bytes that are known to come from a file it is the file's that are named, where they are the
/// same still; the others are stored.
#[unsafe(no_mangle)]
pub(super) extern "C" fn ICID_write(fd: c_int, buf: InBytes<'_>, len: usize) -> libc::ssize_t {
    call("ICID_write", || transfers::write(&*table::get(fd)?, Target::Position, &buf, len))
}
