//! Asynchronous I/O (aio(7)) on files of ours.
//!
//! The problem: libc serves these requests in threads of its own, by calls that no interposition sees. The idea: a
//! request on a file of ours is done at once, in the call that makes it, and its outcome is put where libc puts it. So
//! `aio_error`, `aio_return`, `aio_suspend` and `aio_cancel` of libc answer as for any request that has ended, and need
//! no replacement. The program is notified as it asked to be.
//!
//! `lio_listio` with requests of both kinds: ours are done at once, libc gets the list without them.

use super::descriptors::nvfold_preload_fsync as fsync;
use super::transfers::{read_at, write_at};
use crate::answer::{as_the_kernel, keeping_errno};
use crate::numbers;
use nvfold_c::failure::set_errno;
use std::ffi::{c_int, c_void};
use std::ptr;

/// glibc's `struct sigevent`.
#[repr(C)]
pub(super) struct Notification {
    value: *mut c_void,
    signal: c_int,
    kind: c_int,
    function: Option<extern "C" fn(*mut c_void)>,
    attributes: *mut libc::pthread_attr_t,
    reserved: [c_int; 8],
}

/// glibc's `struct aiocb`, with the members in which libc keeps the outcome.
#[repr(C)]
pub(super) struct Request {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    buffer: *mut c_void,
    length: usize,
    notification: Notification,
    next_by_priority: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    answer: isize,
    offset: libc::off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::aiocb>());
const _: () = assert!(std::mem::offset_of!(Request, offset) == std::mem::offset_of!(libc::aiocb, aio_offset));
const _: () = assert!(size_of::<Notification>() == size_of::<libc::sigevent>());

/// Largest amount by which a request may lower its priority.
const PRIORITY_DELTA_MAX: c_int = 20;

/// Puts the outcome of an operation into the request: what it returned, and errno if that is -1.
fn finish(request: &mut Request, operation: impl FnOnce(&Request) -> isize) {
    (request.answer, request.error) = match as_the_kernel(|| operation(request)) {
        answer if answer < 0 => (-1, -answer as c_int),
        answer => (answer, 0),
    };
}

/// A request whose priority is out of range is not made. EINVAL.
fn checked(request: &mut Request, serve: impl FnOnce(&mut Request)) -> c_int {
    if !(0..=PRIORITY_DELTA_MAX).contains(&request.priority) {
        (request.error, request.answer) = (libc::EINVAL, -1);
        set_errno(libc::EINVAL);
        return -1;
    }
    serve(request);
    notify(&request.notification);
    0
}

fn read(request: &mut Request) {
    // SAFETY: the program's buffer, as long as the request says.
    finish(request, |of| unsafe { read_at(of.fd, of.buffer, of.length, of.offset) });
}

fn write(request: &mut Request) {
    // SAFETY: as in `read`.
    finish(request, |of| unsafe { write_at(of.fd, of.buffer, of.length, of.offset) });
}

/// What a thread calls for the program.
struct Call {
    function: extern "C" fn(*mut c_void),
    value: *mut c_void,
}

extern "C" fn call(call: *mut c_void) -> *mut c_void {
    // SAFETY: `notify` made it with Box, for this thread.
    let Call { function, value } = *unsafe { Box::from_raw(call.cast::<Call>()) };
    function(value);
    ptr::null_mut()
}

/// Tells the program that a request has ended, as it asked to be told.
fn notify(how: &Notification) {
    match how.kind {
        libc::SIGEV_SIGNAL => send_signal(how),
        libc::SIGEV_THREAD => start_thread(how),
        _ => {}
    }
}

fn start_thread(how: &Notification) {
    let Some(function) = how.function else { return };
    let told = Box::into_raw(Box::new(Call { function, value: how.value }));
    // SAFETY: the attributes are the program's, or ours; the thread owns `told` if there is one.
    unsafe {
        let mut detached = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut detached);
        libc::pthread_attr_setdetachstate(&raw mut detached, libc::PTHREAD_CREATE_DETACHED);
        let attributes = if how.attributes.is_null() { &raw const detached } else { how.attributes };
        let mut thread = std::mem::zeroed();
        if libc::pthread_create(&raw mut thread, attributes, call, told.cast()) != 0 {
            drop(Box::from_raw(told));
        }
        libc::pthread_attr_destroy(&raw mut detached);
    }
}

fn send_signal(how: &Notification) {
    let mut information = [0_u64; 16];
    // SAFETY: 128 bytes, which the kernel reads; the fields of a queued signal lie where the kernel has them.
    unsafe {
        let bytes = information.as_mut_ptr().cast::<u8>();
        bytes.cast::<c_int>().write(how.signal);
        bytes.add(8).cast::<c_int>().write(libc::SI_ASYNCIO);
        bytes.add(16).cast::<c_int>().write(libc::getpid());
        bytes.add(20).cast::<libc::uid_t>().write(libc::getuid());
        bytes.add(24).cast::<*mut c_void>().write(how.value);
        keeping_errno(|| libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), how.signal, bytes));
    }
}

/// aio_read(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_aio_read(request: *mut Request) -> c_int {
    // SAFETY: the request is the program's, and not NULL: it was asked for its descriptor.
    checked(unsafe { &mut *request }, read)
}

/// aio_write(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_aio_write(request: *mut Request) -> c_int {
    // SAFETY: as above.
    checked(unsafe { &mut *request }, write)
}

/// aio_fsync(3)
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_aio_fsync(operation: c_int, request: *mut Request) -> c_int {
    if operation != libc::O_SYNC && operation != libc::O_DSYNC {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: as above.
    let request = unsafe { &mut *request };
    finish(request, |of| fsync(of.fd) as isize);
    notify(&request.notification);
    0
}

type List = unsafe extern "C" fn(c_int, *const *mut Request, c_int, *mut Notification) -> c_int;

/// lio_listio(3): a request of a list notifies nobody.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn nvfold_preload_lio_listio(
    mode: c_int,
    list: *const *mut Request,
    count: c_int,
    notification: *mut Notification,
    next: List,
) -> c_int {
    let is_known = mode == libc::LIO_WAIT || mode == libc::LIO_NOWAIT;
    let length = usize::try_from(count).unwrap_or(0);
    let mut of_libc = Vec::with_capacity(length);
    let mut has_failed = false;
    for at in 0..length {
        // SAFETY: the program's list, with `count` requests or NULLs.
        let (pointer, request) = unsafe { (*list.add(at), (*list.add(at)).as_mut()) };
        let Some(request) = request.filter(|request| is_known && numbers::is_ours(request.fd)) else {
            of_libc.push(pointer);
            continue;
        };
        // libc leaves NULL out.
        of_libc.push(ptr::null_mut());
        match request.operation {
            libc::LIO_READ => read(request),
            libc::LIO_WRITE => write(request),
            libc::LIO_NOP => continue,
            _ => (request.error, request.answer) = (libc::EINVAL, -1),
        }
        has_failed |= request.error != 0;
    }
    // SAFETY: a list of ours, of requests that are the program's.
    let answer = unsafe { next(mode, of_libc.as_ptr(), count, notification) };
    if answer == 0 && has_failed && mode == libc::LIO_WAIT {
        set_errno(libc::EIO);
        return -1;
    }
    answer
}
