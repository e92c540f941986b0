//! Mapping files: memory with a copy of the file's content. See nvfold-c's `mapping`.

use super::serve::host;
use crate::answer::{answer, answer_or, errno, is_inside};
use crate::{mounted, numbers, process};
use nvfold_c::transfers;
use std::ffi::{c_int, c_void};

/// mmap(2). MAP_SHARED with PROT_WRITE: ENODEV; MAP_FIXED: EOPNOTSUPP; PROT_EXEC: EACCES.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_mmap(
    address: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    at: libc::off_t,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS != 0 || !numbers::is_ours(fd) {
        let mapping = host!(libc::mmap(address, length, prot, flags, fd, at));
        let is_read = flags & libc::MAP_ANONYMOUS == 0 && prot & (libc::PROT_READ | libc::PROT_EXEC) == libc::PROT_READ;
        if is_read && mounted::is_active() && mapping != libc::MAP_FAILED {
            mounted::mapped(fd, mapping, length, at);
        }
        return mapping;
    }
    answer_or("mmap", libc::MAP_FAILED, || {
        let file = numbers::get(fd)?;
        transfers::map(&file.open, length, prot, flags & !libc::MAP_POPULATE, at)
    })
}

/// munmap(2)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvfold_preload_munmap(address: *mut c_void, length: usize) -> c_int {
    // A child of fork has the memory too, but takes no locks. Nor does a call from within one of ours.
    if is_inside() || process::is_not_owner() || !transfers::has_mappings() {
        return host!(libc::munmap(address, length));
    }
    let before = errno();
    match answer("munmap", || transfers::unmap(address, length).map(|()| 0)) {
        0 => 0,
        _ => {
            nvfold_c::failure::set_errno(before);
            host!(libc::munmap(address, length))
        }
    }
}
