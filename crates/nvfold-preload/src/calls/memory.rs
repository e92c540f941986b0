//! Mapping files. A private mapping is memory with a copy of the file's content (nvfold-c's `mapping`); a shared one is
//! of pages that are written back (`mappings`).

use super::serve::host;
use crate::answer::{answer, answer_or, errno, is_inside};
use crate::{mappings, mounted, numbers, process};
use nvfold_c::transfers;
use std::ffi::{c_int, c_void};

/// mmap(2). Of a snapshot PROT_EXEC: EACCES; MAP_FIXED: EOPNOTSUPP.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mmap(
    address: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    at: libc::off_t,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS != 0 || !numbers::is_ours(fd) {
        let map = || host!(libc::mmap(address, length, prot, flags, fd, at));
        let mapping = match flags & libc::MAP_FIXED != 0 && may_be_shared() {
            true => mappings::replacing(address.addr(), length, libc::MAP_FAILED, map),
            false => map(),
        };
        let is_read = flags & libc::MAP_ANONYMOUS == 0 && prot & (libc::PROT_READ | libc::PROT_EXEC) == libc::PROT_READ;
        if is_read && mounted::is_active() && mapping != libc::MAP_FAILED {
            mounted::mapped(fd, mapping, length, at);
        }
        return mapping;
    }
    answer_or("mmap", libc::MAP_FAILED, || {
        let file = numbers::get(fd)?;
        if mappings::shares(&file.open, prot, flags) {
            return mappings::map(&file.open, (address, length), (prot, flags), at);
        }
        transfers::map(&file.open, length, prot, flags & !libc::MAP_POPULATE, at)
    })
}

/// Returns whether a call about memory may be about a shared mapping of ours. Not from within one of our calls, which may
/// hold locks, nor in a child, which takes none.
fn may_be_shared() -> bool {
    mappings::is_used() && !is_inside() && process::is_owner()
}

/// munmap(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_munmap(address: *mut c_void, length: usize) -> c_int {
    let unmap = || host!(libc::munmap(address, length));
    if may_be_shared() && mappings::has(address.addr(), length) {
        return answer("munmap", || {
            crate::answer::checked("munmap", mappings::replacing(address.addr(), length, -1, unmap))
        });
    }
    if is_inside() || process::is_not_owner() || !transfers::has_mappings() {
        return unmap();
    }
    let before = errno();
    match answer("munmap", || transfers::unmap(address, length).map(|()| 0)) {
        0 => 0,
        _ => {
            nvfold_c::failure::set_errno(before);
            unmap()
        }
    }
}

/// mremap(2): its last argument is in the same register whether the program passed one or not.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mremap(
    address: *mut c_void,
    old_length: usize,
    length: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let remap = || host!(libc::mremap(address, old_length, length, flags, to));
    if !may_be_shared() {
        return remap();
    }
    if mappings::has(address.addr(), old_length) {
        let (old, new) = ((address.addr(), old_length), (length, flags, to.addr()));
        return answer_or("mremap", libc::MAP_FAILED, || mappings::remap(old, new, remap));
    }
    let fixed = if flags & libc::MREMAP_FIXED != 0 { length } else { 0 };
    mappings::replacing(to.addr(), fixed, libc::MAP_FAILED, remap)
}

/// mprotect(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_mprotect(address: *mut c_void, length: usize, prot: c_int) -> c_int {
    let protect = || host!(libc::mprotect(address, length, prot));
    if !may_be_shared() || !mappings::has(address.addr(), length) {
        return protect();
    }
    answer("mprotect", || mappings::protect(address.addr(), length, prot, protect))
}

/// msync(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_msync(address: *mut c_void, length: usize, flags: c_int) -> c_int {
    let synced = host!(libc::msync(address, length, flags));
    if synced != 0 || !may_be_shared() || !mappings::has(address.addr(), length) {
        return synced;
    }
    answer("msync", || mappings::sync(address.addr(), length, flags))
}
