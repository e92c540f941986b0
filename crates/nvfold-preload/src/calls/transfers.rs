//! Reading, writing and copying.

use super::serve::{host, next, on_number};
use crate::answer::{answer, os_failure};
use crate::mounted;
use crate::numbers::{self, File};
use nvfold_c::caller::{CIovecs, InBytes, OutBytes};
use nvfold_c::failure::{Failure, Outcome};
use nvfold_c::files::{Target, offset};
use nvfold_c::transfers::{self, Source};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// Bytes that sendfile moves per step.
const AT_A_TIME: usize = 1 << 20;

unsafe extern "C" {
    /// Ends a program compiled with checks that asks for more than its buffer holds.
    fn __chk_fail() -> !;
}

/// Ends a program that asks for more than its buffer holds.
pub(super) fn check_room(needed: usize, room: usize) {
    if needed > room {
        // SAFETY: it ends the program.
        unsafe { __chk_fail() };
    }
}

type Read = unsafe extern "C" fn(c_int, *mut c_void, usize) -> isize;
type ReadAt = unsafe extern "C" fn(c_int, *mut c_void, usize, libc::off_t) -> isize;
type ReadChecked = unsafe extern "C" fn(c_int, *mut c_void, usize, usize) -> isize;
type ReadAtChecked = unsafe extern "C" fn(c_int, *mut c_void, usize, libc::off_t, usize) -> isize;
type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type WriteAt = unsafe extern "C" fn(c_int, *const c_void, usize, libc::off_t) -> isize;
type VectorAt = unsafe extern "C" fn(c_int, *const libc::iovec, c_int, libc::off_t) -> isize;
type VectorWith = unsafe extern "C" fn(c_int, *const libc::iovec, c_int, libc::off_t, c_int) -> isize;

/// read(2); `next` is the function of the called name, here and below.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_read(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    next: Read,
) -> isize {
    on_number(
        "read",
        fd,
        || mounted::reading(fd, buffer, None, || host!(=> next(fd, buffer, length))),
        |file| {
            // SAFETY: the buffer is an argument of the program's call, so it lives during the call.
            let mut buffer = unsafe { OutBytes::of(buffer) };
            transfers::read(&file.open, Source::Position, &mut buffer, length)
        },
    )
}

/// pread(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_pread(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    at: libc::off_t,
    next: ReadAt,
) -> isize {
    on_number(
        "pread",
        fd,
        || mounted::reading(fd, buffer, Some(at), || host!(=> next(fd, buffer, length, at))),
        |file| {
            // SAFETY: the buffer is an argument of the program's call, so it lives during the call.
            let mut buffer = unsafe { OutBytes::of(buffer) };
            transfers::read(&file.open, Source::Offset(offset(at)?), &mut buffer, length)
        },
    )
}

/// Replaces `read` of programs compiled with checks.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_read_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    room: usize,
    next: ReadChecked,
) -> isize {
    check_room(length, room);
    match numbers::is_ours(fd) {
        // SAFETY: the arguments are the program's, under the contract of the libc function.
        true => unsafe { read(fd, buffer, length) },
        false => mounted::reading(fd, buffer, None, || host!(=> next(fd, buffer, length, room))),
    }
}

/// Replaces `pread` of programs compiled with checks.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_pread_chk(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    at: libc::off_t,
    room: usize,
    next: ReadAtChecked,
) -> isize {
    check_room(length, room);
    match numbers::is_ours(fd) {
        // SAFETY: the arguments are the program's, under the contract of the libc function.
        true => unsafe { read_at(fd, buffer, length, at) },
        false => mounted::reading(fd, buffer, Some(at), || host!(=> next(fd, buffer, length, at, room))),
    }
}

/// Reads from any descriptor.
///
/// # Safety
///
/// `buffer` has room for `length` bytes, here and in `read_at`; in `write` and `write_at` it has that many.
pub(crate) unsafe fn read(fd: c_int, buffer: *mut c_void, length: usize) -> isize {
    // SAFETY: the caller's contract.
    unsafe { nvfold_preload_read(fd, buffer, length, next!("read")) }
}

/// Reads from any descriptor at an offset.
///
/// # Safety
///
/// That of `read`.
pub(super) unsafe fn read_at(fd: c_int, buffer: *mut c_void, length: usize, at: libc::off_t) -> isize {
    // SAFETY: the caller's contract.
    unsafe { nvfold_preload_pread(fd, buffer, length, at, next!("pread")) }
}

/// Writes to any descriptor.
///
/// # Safety
///
/// That of `read`.
pub(crate) unsafe fn write(fd: c_int, buffer: *const c_void, length: usize) -> isize {
    // SAFETY: the caller's contract.
    unsafe { nvfold_preload_write(fd, buffer, length, next!("write")) }
}

/// Writes to any descriptor at an offset.
///
/// # Safety
///
/// That of `read`.
pub(super) unsafe fn write_at(fd: c_int, buffer: *const c_void, length: usize, at: libc::off_t) -> isize {
    // SAFETY: the caller's contract.
    unsafe { nvfold_preload_pwrite(fd, buffer, length, at, next!("pwrite")) }
}

/// write(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_write(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    next: Write,
) -> isize {
    on_number(
        "write",
        fd,
        || {
            mounted::writing(fd, buffer, length, None);
            host!(=> next(fd, buffer, length))
        },
        |file| {
            // SAFETY: the buffer is an argument of the program's call, so it lives during the call.
            let buffer = unsafe { InBytes::of(buffer) };
            transfers::write(&file.open, Target::Position, &buffer, length)
        },
    )
}

/// pwrite(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_pwrite(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    at: libc::off_t,
    next: WriteAt,
) -> isize {
    on_number(
        "pwrite",
        fd,
        || {
            mounted::writing(fd, buffer, length, Some(at));
            host!(=> next(fd, buffer, length, at))
        },
        |file| {
            // SAFETY: the buffer is an argument of the program's call, so it lives during the call.
            let buffer = unsafe { InBytes::of(buffer) };
            transfers::write(&file.open, target(file, Some(at), 0)?, &buffer, length)
        },
    )
}

/// Returns the source of a read; `None` stands for the position.
fn source(at: Option<libc::off_t>) -> Outcome<Source> {
    at.map_or(Ok(Source::Position), |at| Ok(Source::Offset(offset(at)?)))
}

/// Returns the target of a write with flags of pwritev2; `None` stands for the position. As in Linux, a write with an
/// offset goes to the end too if the file is open with O_APPEND.
fn target(file: &File, at: Option<libc::off_t>, flags: c_int) -> Outcome<Target> {
    let appends = match (flags & libc::RWF_APPEND != 0, flags & RWF_NOAPPEND != 0) {
        (true, true) => return Err(Failure::invalid("RWF_APPEND and RWF_NOAPPEND exclude each other")),
        (true, false) => true,
        (false, true) => false,
        (false, false) => file.open.appends(),
    };
    Ok(match at.map(offset).transpose()? {
        None => Target::PositionAppending(appends),
        Some(_) if appends => Target::End,
        Some(at) => Target::Offset(at),
    })
}

const RWF_NOAPPEND: c_int = 0x20;
/// Flags of preadv2 and pwritev2 that change nothing, or only when the call returns.
const WITHOUT_EFFECT: c_int = libc::RWF_HIPRI | libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_NOWAIT;

/// EOPNOTSUPP for flags that are none of these.
fn check_flags(flags: c_int, known: c_int) -> Outcome<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Failure::new(libc::EOPNOTSUPP, format!("there are no flags {unknown:#x} here"))),
    }
}

/// # Safety
///
/// `vector` is an argument of the program, with `count` buffers.
unsafe fn read_vector(
    file: &File,
    vector: *const libc::iovec,
    count: c_int,
    at: Option<libc::off_t>,
) -> Outcome<isize> {
    // SAFETY: the caller's contract.
    let buffers = unsafe { CIovecs::of(vector) };
    transfers::read_vector(&file.open, source(at)?, &buffers, count)
}

/// # Safety
///
/// `vector` is an argument of the program, with `count` buffers.
unsafe fn write_vector(
    file: &File,
    vector: *const libc::iovec,
    count: c_int,
    at: Option<libc::off_t>,
    flags: c_int,
) -> Outcome<isize> {
    // SAFETY: the caller's contract.
    let buffers = unsafe { CIovecs::of(vector) };
    transfers::write_vector(&file.open, target(file, at, flags)?, &buffers, count)
}

/// readv(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_readv(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "readv",
        fd,
        // SAFETY: the vector is the program's, and is read after libc has read it.
        || unsafe { mounted::reading_vector(fd, (vector, count), None, || host!(libc::readv(fd, vector, count))) },
        |file| unsafe { read_vector(file, vector, count, None) },
    )
}

/// preadv(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_preadv(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    at: libc::off_t,
    next: VectorAt,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "preadv",
        fd,
        // SAFETY: the vector is the program's, and is read after libc has read it.
        || unsafe { mounted::reading_vector(fd, (vector, count), Some(at), || host!(=> next(fd, vector, count, at))) },
        |file| unsafe { read_vector(file, vector, count, Some(at)) },
    )
}

/// preadv2(2): none of its flags changes the bytes that are read.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_preadv2(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    at: libc::off_t,
    flags: c_int,
    next: VectorWith,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "preadv2",
        fd,
        // SAFETY: the vector is the program's, and is read after libc has read it.
        || unsafe {
            let at_or_position = (at != -1).then_some(at);
            let read = || host!(=> next(fd, vector, count, at, flags));
            mounted::reading_vector(fd, (vector, count), at_or_position, read)
        },
        |file| {
            check_flags(flags, WITHOUT_EFFECT)?;
            // SAFETY: the vector is the program's.
            unsafe { read_vector(file, vector, count, (at != -1).then_some(at)) }
        },
    )
}

/// writev(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_writev(fd: c_int, vector: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "writev",
        fd,
        || {
            mounted::writing_vector(fd, vector, count, None);
            host!(libc::writev(fd, vector, count))
        },
        |file| unsafe { write_vector(file, vector, count, None, 0) },
    )
}

/// pwritev(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_pwritev(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    at: libc::off_t,
    next: VectorAt,
) -> isize {
    // SAFETY: the arguments are the program's, under the contract of the libc function.
    on_number(
        "pwritev",
        fd,
        || {
            mounted::writing_vector(fd, vector, count, Some(at));
            host!(=> next(fd, vector, count, at))
        },
        |file| unsafe { write_vector(file, vector, count, Some(at), 0) },
    )
}

/// pwritev2(2)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_pwritev2(
    fd: c_int,
    vector: *const libc::iovec,
    count: c_int,
    at: libc::off_t,
    flags: c_int,
    next: VectorWith,
) -> isize {
    on_number(
        "pwritev2",
        fd,
        || {
            if flags & libc::RWF_APPEND == 0 {
                mounted::writing_vector(fd, vector, count, (at != -1).then_some(at));
            }
            host!(=> next(fd, vector, count, at, flags))
        },
        |file| {
            check_flags(flags, WITHOUT_EFFECT | libc::RWF_APPEND | RWF_NOAPPEND)?;
            // SAFETY: the arguments are the program's, under the contract of the libc function.
            let written = unsafe { write_vector(file, vector, count, (at != -1).then_some(at), flags) }?;
            if flags & (libc::RWF_SYNC | libc::RWF_DSYNC) != 0 {
                file.open.sync()?;
            }
            Ok(written)
        },
    )
}

/// sendfile(2): from or to a file of ours. The bytes pass through memory, so a copy within the device is shared.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_sendfile(
    to: c_int,
    from: c_int,
    at: *mut libc::off_t,
    count: usize,
) -> isize {
    if !numbers::is_ours(to) && !numbers::is_ours(from) {
        return host!(libc::sendfile(to, from, at, count));
    }
    answer("sendfile", || {
        if appends(to) {
            return Err(Failure::invalid("the target is open with O_APPEND"));
        }
        // SAFETY: NULL, or an offset of the program's, as sendfile requires.
        let mut offset = unsafe { at.as_ref() }.copied();
        let mut buffer = nvfold_c::caller::room(count.min(AT_A_TIME))?;
        buffer.resize(count.min(AT_A_TIME), 0);
        let mut sent = 0;
        while sent < count {
            let part = &mut buffer[..(count - sent).min(AT_A_TIME)];
            let read = receive(from, part, offset)?;
            let written = if read > 0 { send(to, &part[..read])? } else { 0 };
            sent += written;
            match &mut offset {
                Some(offset) => *offset += written as libc::off_t,
                None if written < read => {
                    let unread = (read - written) as libc::off_t;
                    super::descriptors::nvfold_preload_lseek(from, -unread, libc::SEEK_CUR);
                }
                None => {}
            }
            if read == 0 || written < read {
                break;
            }
        }
        if let Some(offset) = offset {
            // SAFETY: it is not NULL, as there was an offset.
            unsafe { at.write(offset) };
        }
        Ok(sent as isize)
    })
}

fn appends(fd: c_int) -> bool {
    if numbers::is_ours(fd) {
        return numbers::get(fd).is_ok_and(|file| file.open.appends());
    }
    // SAFETY: F_GETFL changes nothing, for any number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_APPEND != 0
}

fn receive(from: c_int, into: &mut [u8], at: Option<libc::off_t>) -> Outcome<usize> {
    let (pointer, length) = (into.as_mut_ptr().cast(), into.len());
    // SAFETY: the memory is ours, and as long as stated.
    let read = unsafe {
        match at {
            Some(at) => read_at(from, pointer, length, at),
            None => self::read(from, pointer, length),
        }
    };
    usize::try_from(read).map_err(|_| os_failure("read"))
}

fn send(to: c_int, bytes: &[u8]) -> Outcome<usize> {
    // SAFETY: the memory is ours, and as long as stated.
    let written = unsafe { write(to, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).map_err(|_| os_failure("write"))
}

/// copy_file_range(2): an instant copy within the device; EXDEV otherwise.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_copy_file_range(
    from: c_int,
    from_at: *mut libc::off64_t,
    to: c_int,
    to_at: *mut libc::off64_t,
    length: usize,
    flags: c_uint,
) -> isize {
    if !numbers::is_ours(to) && !numbers::is_ours(from) {
        return host!(libc::copy_file_range(from, from_at, to, to_at, length, flags));
    }
    answer("copy_file_range", || {
        if !numbers::is_ours(to) || !numbers::is_ours(from) {
            return Err(Failure::new(libc::EXDEV, "one of the files is on the device, and the other is not"));
        }
        let (source, target) = (numbers::get(from)?, numbers::get(to)?);
        source.open.check_reads()?;
        target.open.check_writes()?;
        target.open.check_not_appends()?;
        // SAFETY: NULL, or offsets of the program's, as copy_file_range requires.
        let (source_at, target_at) = unsafe { (start_of(&source, from_at)?, start_of(&target, to_at)?) };
        let length = length.min(isize::MAX as usize) as u64;
        let cloned = target.open.clone_range(&source.open, source_at, target_at, length)?;
        // SAFETY: as above.
        unsafe {
            move_on(&source, from_at, source_at + cloned)?;
            move_on(&target, to_at, target_at + cloned)?;
        }
        Ok(cloned as isize)
    })
}

/// # Safety
///
/// `at` is NULL or can be read.
unsafe fn start_of(file: &Arc<File>, at: *const libc::off64_t) -> Outcome<u64> {
    // SAFETY: the caller's contract.
    match unsafe { at.as_ref() } {
        Some(at) => offset(*at),
        None => offset(file.open.seek(0, libc::SEEK_CUR)?),
    }
}

/// # Safety
///
/// `at` is NULL or can be written.
unsafe fn move_on(file: &Arc<File>, at: *mut libc::off64_t, to: u64) -> Outcome<()> {
    // SAFETY: the caller's contract.
    match unsafe { at.as_mut() } {
        Some(at) => *at = to as libc::off64_t,
        None => drop(file.open.seek(to as libc::off_t, libc::SEEK_SET)?),
    }
    Ok(())
}

/// splice(2): returns EINVAL for files of ours, as many file systems of the kernel do; programs then read and write
/// instead.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_splice(
    from: c_int,
    from_at: *mut libc::loff_t,
    to: c_int,
    to_at: *mut libc::loff_t,
    length: usize,
    flags: c_uint,
) -> isize {
    if !numbers::is_ours(to) && !numbers::is_ours(from) {
        return host!(libc::splice(from, from_at, to, to_at, length, flags));
    }
    answer("splice", || Err(Failure::invalid("files of the device cannot be spliced")))
}
