//! The unsafe code of this crate: memory shared with the kernel, and system calls that no crate wraps.
#![allow(unsafe_code)]

use crate::DATA_BYTES_MAX;
use crate::protocol::{InHeader, OutHeader, RING_COMMIT_AND_FETCH, RING_REGISTER, RingCommand, RingEntryInOut};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::fs::{Mode, OFlags};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Offsets of `addr` and `len` in a submission (struct io_uring_sqe).
const SQE_ADDRESS: usize = 16;
const SQE_LENGTH: usize = 24;

/// The headers that the kernel puts before the payload (struct fuse_uring_req_header).
#[repr(C)]
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout)]
struct Headers {
    in_out: [u8; 128],
    argument: [u8; 128],
    entry: RingEntryInOut,
}

/// Memory that the kernel reads and writes while it holds an entry.
struct Shared {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    headers: Box<Headers>,
    payload: Box<[u8]>,
    /// The addresses of `headers` and `payload`, as the kernel wants them.
    places: Box<[libc::iovec; 2]>,
}

/// A ring with one entry: the kernel puts a request into it and takes the answer out of it.
///
/// Only the thread that made it may use it.
pub(crate) struct RingEntry {
    shared: ManuallyDrop<Shared>,
    connection: RawFd,
    queue: u16,
    /// True if a request has come that `wait` has not returned yet.
    has_request: bool,
    /// True if the kernel does not hold the entry: it is not registered, or the kernel has returned it for good.
    is_over: bool,
}

impl Drop for RingEntry {
    /// Leaks the memory if the kernel may still write to it. The process is about to end then.
    fn drop(&mut self) {
        if self.is_over {
            // SAFETY: this is the only drop of `shared`, and it is not used afterwards. The kernel has ended the last
            // command (`is_over`), so it no longer writes to this memory.
            unsafe { ManuallyDrop::drop(&mut self.shared) };
        }
    }
}

/// Makes a ring of the kind that FUSE needs.
///
/// # Errors
/// io_uring is missing or refused to this process (ENOSYS, EPERM), or there is no memory for the ring (ENOMEM).
pub(crate) fn ring() -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    // The kernel does its part of the work in this thread when the thread waits, instead of interrupting it.
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry>::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    builder.build(2)
}

impl RingEntry {
    /// Makes an entry for the queue of a processor. `connection` must stay open as long as the entry lives.
    pub(crate) fn new(connection: BorrowedFd<'_>, queue: u16) -> io::Result<RingEntry> {
        let mut headers = Headers::new_box_zeroed().map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut payload = <[u8]>::new_box_zeroed_with_elems(DATA_BYTES_MAX).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let places = [
            libc::iovec { iov_base: (&raw mut *headers).cast(), iov_len: size_of::<Headers>() },
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() },
        ];
        let shared = ManuallyDrop::new(Shared { ring: ring()?, headers, payload, places: Box::new(places) });
        Ok(RingEntry { shared, connection: connection.as_raw_fd(), queue, has_request: false, is_over: true })
    }

    /// Gives the entry to the kernel. Fails with the kernel's errno if it refuses the entry.
    pub(crate) fn register(&mut self) -> io::Result<()> {
        self.is_over = false;
        self.push(RING_REGISTER, 0)?;
        self.shared.ring.submit()?;
        // A refusal completes at once; a registered entry completes when a request comes.
        match self.completion() {
            Some(error) if error < 0 => {
                self.is_over = true;
                Err(io::Error::from_raw_os_error(-error))
            }
            completion => {
                self.has_request = completion.is_some();
                Ok(())
            }
        }
    }

    /// Queues the answer in the entry; the next [`wait`](Self::wait) hands it over.
    pub(crate) fn commit(&mut self, header: &OutHeader, payload_bytes: usize) -> io::Result<()> {
        let commit_id = self.shared.headers.entry.commit_id;
        self.shared.headers.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        self.shared.headers.entry.payload_bytes = payload_bytes as u32;
        self.push(RING_COMMIT_AND_FETCH, commit_id)
    }

    /// Waits for a request; returns false when the session has ended.
    pub(crate) fn wait(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.has_request) {
            return Ok(true);
        }
        loop {
            match self.shared.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                Err(error) => return Err(error),
            }
            match self.completion() {
                None => {}
                Some(0) => return Ok(true),
                Some(error) => {
                    let is_end = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].contains(&-error);
                    self.is_over = is_end;
                    return if is_end { Ok(false) } else { Err(io::Error::from_raw_os_error(-error)) };
                }
            }
        }
    }

    /// Returns the header of the request, its argument, and the number of payload bytes that belong to it.
    pub(crate) fn request(&self) -> (InHeader, [u8; 128], usize) {
        let header = InHeader::read_from_prefix(&self.shared.headers.in_out).expect("it is longer").0;
        (
            header,
            self.shared.headers.argument,
            (self.shared.headers.entry.payload_bytes as usize).min(self.shared.payload.len()),
        )
    }

    /// Returns the payload buffer, which holds the request's data and then the answer's.
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        &mut self.shared.payload
    }

    fn completion(&mut self) -> Option<i32> {
        self.shared.ring.completion().next().map(|completion| completion.result())
    }

    fn push(&mut self, command: u32, commit_id: u64) -> io::Result<()> {
        let mut words = [0; 80];
        let parameters = RingCommand { commit_id, queue: self.queue, ..RingCommand::default() };
        words[..size_of::<RingCommand>()].copy_from_slice(parameters.as_bytes());
        let mut submission = opcode::UringCmd80::new(types::Fd(self.connection), command).cmd(words).build();
        let bytes = (&raw mut submission).cast::<u8>();
        // SAFETY: a submission has 128 bytes (struct io_uring_sqe with IORING_SETUP_SQE128), aligned to 8; both
        // fields are plain numbers within it.
        unsafe {
            bytes.add(SQE_ADDRESS).cast::<u64>().write(self.shared.places.as_ptr() as u64);
            bytes.add(SQE_LENGTH).cast::<u32>().write(self.shared.places.len() as u32);
        }
        // SAFETY: the submission points to memory that this entry owns. The memory is not freed before the kernel has
        // ended the command (`Drop`), and this process does not access it between this call and the completion.
        unsafe { self.shared.ring.submission().push(&submission) }.map_err(io::Error::other)
    }
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128);

/// Opens another file descriptor of the same connection (FUSE_DEV_IOC_CLONE).
pub(crate) fn clone_connection(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    const CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
    let open = |path: &str| rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    // A process in a sandbox may not see the device, but can open the file behind a descriptor once more.
    let clone = open("/dev/fuse").or_else(|_| open(&format!("/proc/self/fd/{}", connection.as_raw_fd())))?;
    let number = connection.as_raw_fd() as u32;
    // SAFETY: this ioctl reads one u32, the file descriptor's number, and keeps no pointer.
    match unsafe { libc::ioctl(clone.as_raw_fd(), CLONE, &raw const number) } {
        0 => Ok(clone),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes another descriptor of what a descriptor with this number is open on. The program that started this one has said
/// that there is one.
pub(crate) fn duplicate(number: i32) -> io::Result<OwnedFd> {
    // SAFETY: this call takes any number, and fails if no file is open under it.
    match unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) } {
        // SAFETY: the descriptor is new, so nothing else owns it.
        new @ 0.. => Ok(unsafe { OwnedFd::from_raw_fd(new) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a thread, and those that it starts later, run under SCHED_IDLE.
pub(crate) fn run_when_idle(thread: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameters only during the call.
    match unsafe { libc::sched_setscheduler(thread, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Passes a message to the server of a FUSE file system, and its answer back, by an ioctl on a file. The caller has checked
/// that it is a regular file or a directory of such a file system, not a device node, and `number` says how long the
/// message is.
pub(crate) fn ask_fuse(file: BorrowedFd<'_>, number: u32, message: &mut [u8]) -> io::Result<()> {
    assert_eq!((number >> 16 & 0x3fff) as usize, message.len());
    // SAFETY: for files and directories the kernel's FUSE reads and writes at the argument exactly as many bytes as the
    // number says, or fails, and it keeps no pointer; the message has so many bytes. For a file of any other kind the
    // number means nothing to the kernel, unless a driver has chosen the same: the caller rules that out.
    match unsafe { libc::ioctl(file.as_raw_fd(), number as libc::Ioctl, message.as_mut_ptr()) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
