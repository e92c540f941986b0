//! Files on a mount (`nvfold run --mount`): the kernel serves them as usual, and the server learns where bytes come
//! from.
//!
//! The problem: a program copies bytes from file to file in its own memory, where the server of a mount cannot see
//! it. The idea: every call goes to libc unchanged. The rec-tree records the bytes that a read or a mapping returned.
//! Before a write its memory is looked up there, and the server gets a hint about the bytes that came from files of
//! the mount (`nvfold_causality::hint`), by an ioctl on the descriptor that is written to. A hint can only save
//! space, because the server compares the bytes. One call has another result than without us: a clone by ioctl works
//! (`clones`).
//!
//! ```text
//! read, mmap   libc, then: which file? token known? record memory <- (file, offset)
//! memcpy       recorded by `copies`
//! write        sources of this memory? no: libc. yes: which file, which offset? ioctl(fd, hint), then libc
//! FICLONE      libc, which says EOPNOTSUPP, then: copy_file_range (`clones`)
//! ```
//!
//! **Which file** it is comes from the kernel each time, by a statx that asks no server: device and inode. Nothing is
//! remembered about descriptor numbers, so nothing can be stale: programs close, reuse, inherit and pass them freely.
//!
//! **What a program must not see.** errno is kept. Nothing here waits for a lock, allocates, or opens a file; work
//! that would need that is dropped. So the code can run in signal handlers, and a child of fork continues with its
//! copy of the tree. A lock that another thread held at the fork stays held in the child, and what it protects is no
//! longer followed there.

mod clones;
mod files;
mod hints;

pub(crate) use clones::clone_range;

use crate::answer::keeping_errno;
use nvfold_c::causality;
use nvfold_causality::TreeOptions;
use std::cell::Cell;
use std::ffi::{CStr, CString, OsStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Fewer bytes are not worth a record or a hint.
const BYTES_MIN: usize = 64;
/// Maximum bytes recorded for a mapping.
const MAPPED_BYTES_MAX: usize = 16 << 20;
/// Buffers of a vector that are processed together.
const VECTOR_PART: usize = 32;

static IS_ACTIVE: AtomicBool = AtomicBool::new(false);
/// Device number of the mount.
static DEVICE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this module is at work in this thread: a signal handler that interrupts it is not followed.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A regular file of the mount, as the kernel knows it.
#[derive(Clone, Copy, Debug)]
struct Facts {
    ino: u64,
    size: u64,
}

/// Follows the files of the file system mounted at `dir`, if there is one.
pub(crate) fn begin(dir: &OsStr) {
    let Ok(dir) = CString::new(dir.as_bytes()) else { return };
    let Some(found) = status(libc::AT_FDCWD, &dir, 0) else { return };
    if found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 == 0 {
        return;
    }
    files::prepare();
    causality::reserve(TreeOptions::default());
    DEVICE.store(device_of(&found), Ordering::Relaxed);
    IS_ACTIVE.store(true, Ordering::Release);
}

/// Returns whether files of a mount are followed.
#[inline]
pub(crate) fn is_active() -> bool {
    IS_ACTIVE.load(Ordering::Relaxed)
}

/// Returns the kernel's data on a file, without asking the server.
fn status(fd: c_int, path: &CStr, flags: c_int) -> Option<libc::statx> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    // SAFETY: a C string, and memory for the answer.
    let asked = unsafe { libc::statx(fd, path.as_ptr(), flags, libc::STATX_BASIC_STATS, found.as_mut_ptr()) };
    // SAFETY: statx has filled it, and all zeros would be a valid value too.
    (asked == 0).then(|| unsafe { found.assume_init() })
}

fn device_of(found: &libc::statx) -> u64 {
    u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor)
}

/// Returns the file of a descriptor, if it is a regular file of the mount.
fn look(fd: c_int) -> Option<Facts> {
    if fd < 0 {
        return None;
    }
    let found = status(fd, c"", libc::AT_EMPTY_PATH)?;
    let is_regular = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    let is_ours = is_regular && device_of(&found) == DEVICE.load(Ordering::Relaxed);
    is_ours.then_some(Facts { ino: found.stx_ino, size: found.stx_size })
}

/// Returns the position of a descriptor.
fn position(fd: c_int) -> Option<u64> {
    // SAFETY: this lseek moves nothing.
    u64::try_from(unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }).ok()
}

/// Does work that the program must not notice: errno is kept, and a panic is caught.
fn hidden_from_program(work: impl FnOnce()) {
    if IS_INSIDE.replace(true) {
        return;
    }
    let _ = keeping_errno(|| catch_unwind(AssertUnwindSafe(work)));
    IS_INSIDE.set(false);
}

/// Records that `length` bytes of memory came from a descriptor: from this offset on, or, for `None`, from the bytes
/// before its position, with the last `unread` bytes left out.
fn note(
    fd: c_int,
    ranges: impl Iterator<Item = (usize, usize)>,
    length: usize,
    at: Option<libc::off_t>,
    unread: usize,
) {
    let Some(facts) = look(fd) else { return };
    let start = match at {
        Some(at) => u64::try_from(at).ok(),
        None => position(fd).and_then(|position| position.checked_sub(unread.saturating_add(length) as u64)),
    };
    let Some(start) = start else { return };
    let Some(file) = files::token_for(fd, facts.ino, start == 0) else { return };
    let mut done = 0;
    for (address, room) in ranges {
        let part = room.min(length - done);
        causality::try_note_foreign_read(address, part, file, start + done as u64);
        done += part;
        if done == length {
            break;
        }
    }
}

/// Lets libc read, and records the bytes that came.
#[inline]
pub(crate) fn reading(fd: c_int, buffer: *mut c_void, at: Option<libc::off_t>, read: impl FnOnce() -> isize) -> isize {
    let came = read();
    if came >= BYTES_MIN as isize && is_active() {
        let length = came as usize;
        hidden_from_program(|| note(fd, std::iter::once((buffer.addr(), length)), length, at, 0));
    }
    came
}

/// As `reading`, into several buffers.
///
/// # Safety
///
/// If `read` succeeds, the vector has that many buffers.
#[inline]
pub(crate) unsafe fn reading_vector(
    fd: c_int,
    (vector, count): (*const libc::iovec, c_int),
    at: Option<libc::off_t>,
    read: impl FnOnce() -> isize,
) -> isize {
    let came = read();
    if came >= BYTES_MIN as isize && is_active() {
        // SAFETY: the kernel has just read the vector, so it is mapped.
        let buffers = (0..count as usize).map(|n| unsafe { vector.add(n).read_unaligned() });
        hidden_from_program(|| {
            note(fd, buffers.map(|buffer| (buffer.iov_base.addr(), buffer.iov_len)), came as usize, at, 0)
        });
    }
    came
}

/// Records bytes that a stream gave the program, while its buffer holds `unread` bytes of the descriptor that are not
/// read yet.
pub(crate) fn stream_read(fd: c_int, buffer: *const c_void, length: usize, unread: usize) {
    if length >= BYTES_MIN {
        hidden_from_program(|| note(fd, std::iter::once((buffer.addr(), length)), length, None, unread));
    }
}

/// Records that memory is a mapping of a file.
pub(crate) fn mapped(fd: c_int, address: *mut c_void, length: usize, at: libc::off_t) {
    let length = length.min(MAPPED_BYTES_MAX);
    hidden_from_program(|| note(fd, std::iter::once((address.addr(), length)), length, Some(at), 0));
}

/// Returns whether a write of `length` bytes may have known sources.
#[inline]
fn may_have_sources(length: usize) -> bool {
    length >= BYTES_MIN && is_active() && causality::has_sources()
}

/// Called before libc writes: sends hints about where the bytes come from.
#[inline]
pub(crate) fn writing(fd: c_int, buffer: *const c_void, length: usize, at: Option<libc::off_t>) {
    if may_have_sources(length) {
        hidden_from_program(|| hints::leave(fd, at, |draft| draft.look_up(buffer.addr(), length)));
    }
}

/// Called before a stream writes the content of its buffer, and then these bytes of the program, at its descriptor's
/// position.
pub(crate) fn stream_writing(fd: c_int, (buffered, held): (usize, usize), (buffer, length): (usize, usize)) {
    if may_have_sources(held.saturating_add(length)) {
        hidden_from_program(|| {
            hints::leave(fd, None, |draft| {
                draft.look_up(buffered, held);
                draft.look_up(buffer, length);
            });
        });
    }
}

/// As `writing`, for several buffers. The kernel copies the vector, and reports an address that is not mapped.
#[inline]
pub(crate) fn writing_vector(fd: c_int, vector: *const libc::iovec, count: c_int, at: Option<libc::off_t>) {
    if may_have_sources(BYTES_MIN) && (1..=libc::UIO_MAXIOV).contains(&count) {
        hidden_from_program(|| hints::leave(fd, at, |draft| look_up_sources(draft, vector, count as usize)));
    }
}

fn look_up_sources(draft: &mut hints::Draft<'_>, vector: *const libc::iovec, count: usize) {
    for first in (0..count).step_by(VECTOR_PART) {
        let mut buffers = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; VECTOR_PART];
        let buffers = &mut buffers[..(count - first).min(VECTOR_PART)];
        let bytes = size_of_val(buffers);
        let into = libc::iovec { iov_base: buffers.as_mut_ptr().cast(), iov_len: bytes };
        let from = libc::iovec { iov_base: vector.wrapping_add(first).cast_mut().cast(), iov_len: bytes };
        // SAFETY: the kernel writes to `buffers`, as many bytes as they have, and fails for addresses that are not
        // mapped.
        let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const into, 1, &raw const from, 1, 0) };
        if copied != bytes as isize {
            return;
        }
        buffers.iter().for_each(|buffer| draft.look_up(buffer.iov_base.addr(), buffer.iov_len));
    }
}
