//! Mounts a FUSE file system and answers its requests, read from /dev/fuse or received by io_uring.
//!
//! The problem: a request is a round trip between two threads, and most of its time goes into waking and migrating
//! them. Since Linux 6.14 the kernel can pass requests by io_uring on the processor that sends the request, which
//! halves that time. No FUSE library for Rust supports it, and the existing ones keep their decoders private.
//!
//! The idea: a request is a value ([`Operation`]), its answer is written into the buffer from which it is sent
//! ([`Reply`]), and a [`Server`] is a function from one to the other. The server does not see the transport:
//!
//! ```text
//!               device: read(2) .. write(2), one of several threads (listeners: which one spins)
//! kernel  <-->                                                          operation -> Server::answer -> reply
//!               ring:   one command gives the answer and takes the next request; a queue for each processor
//! ```
//!
//! A server may block, because another thread always waits for requests ([`workers`]). If it waits for something that
//! the kernel does only after it has got answers to other requests, it says so ([`Caller::while_waiting`]).
//!
//! Before the first request stand [`mount`] and the handshake ([`handshake`]); beside the requests the server sends
//! notices ([`Notifier`]). A program can ask the server something that no system call means ([`ask()`]).
#![deny(unsafe_code)]

mod ask;
mod device;
pub mod handshake;
mod listeners;
pub mod mount;
mod notices;
pub mod operation;
pub mod place;
pub mod protocol;
pub mod reply;
mod ring;
mod sys;
mod workers;

pub use ask::{ASK, ASK_BYTES, ask};
pub use notices::Notifier;
pub use operation::{Caller, Change, Operation, Time, UNKNOWN_ID};
pub use reply::{Entry, Errno, Reply};
pub use ring::is_available as is_ring_available;

use protocol::InHeader;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// The largest data part of one request or reply, in bytes: the kernel's own limit of 256 pages.
pub const DATA_BYTES_MAX: usize = 1 << 20;

/// How long [`Session::wait`] waits for the threads of a ring after the session has ended.
const RINGS_END_WITHIN: Duration = Duration::from_secs(1);

/// How long a thread spins for the next request before it sleeps, if the mount sets no other time
/// (docs/benchmarks.md).
pub const SPIN: Duration = Duration::from_micros(50);

/// Answers requests.
pub trait Server: Send + Sync + 'static {
    /// Does an operation and puts its result into `reply`. Several threads call it at once; it may block.
    ///
    /// # Errors
    /// The errno for the calling process. The content of `reply` is then not sent.
    fn answer(&self, who: &Caller<'_>, operation: Operation<'_>, reply: &mut Reply<'_>) -> Result<(), Errno>;
}

/// The transport of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Requests are read from /dev/fuse with read(2).
    Device {
        /// The number of threads at the start.
        threads: usize,
        /// How long a thread spins for the next request before it sleeps; `None`: it sleeps at once.
        spin: Option<Duration>,
    },
    /// Requests come by io_uring. The handshake must have agreed on it ([`OVER_IO_URING`](protocol::feature::OVER_IO_URING)).
    Ring,
}

/// A FUSE session that is being served.
pub struct Session {
    workers: Vec<Arc<workers::Workers>>,
}

impl Session {
    /// Starts to serve `connection`, whose handshake is done. The threads run until the session ends.
    ///
    /// # Errors
    /// A thread cannot be started, or the kernel refuses the rings. The connection is then unusable.
    pub fn start(server: Arc<dyn Server>, connection: OwnedFd, transport: Transport) -> io::Result<Session> {
        let connection = Arc::new(connection);
        let workers = match transport {
            Transport::Device { threads, spin } => vec![device::start(&server, &connection, threads, spin)?],
            Transport::Ring => {
                let rings = ring::start(&server, &connection)?;
                // The kernel sends FORGET, and the request that ends the session, through the device only.
                let mut workers = vec![device::start(&server, &connection, 1, None)?];
                workers.extend(rings);
                workers
            }
        };
        Ok(Session { workers })
    }

    /// Returns true once the session has ended, or a serving thread has failed.
    pub fn has_ended(&self) -> bool {
        self.workers[0].have_ended()
    }

    /// Waits until the session has ended, at most for this time; returns whether it has.
    pub fn ends_within(&self, time: Duration) -> bool {
        self.workers[0].end_within(time)
    }

    /// Waits until the file system is unmounted.
    ///
    /// # Errors
    /// The error with which a serving thread failed.
    pub fn wait(self) -> io::Result<()> {
        let (device, rings) = self.workers.split_first().expect("there is one");
        let ended = device.wait(None);
        // The kernel ends the commands on the rings too. A ring thread that does not end must not keep the device
        // open.
        rings.iter().for_each(|ring| drop(ring.wait(Some(RINGS_END_WITHIN))));
        ended
    }
}

/// Answers one request and returns the number of bytes of its reply in `room`. EIO if the request could not be
/// decoded (`operation` is `None`).
fn answer(
    server: &dyn Server,
    queue: &dyn operation::Queue,
    header: &InHeader,
    operation: Option<Operation<'_>>,
    room: &mut [u8],
) -> Result<usize, Errno> {
    let who = Caller { uid: header.uid, gid: header.gid, pid: header.pid, queue };
    let mut reply = Reply::new(room);
    match operation.ok_or(Errno::EIO)? {
        Operation::Unknown => return Err(Errno::ENOSYS),
        Operation::Destroy | Operation::NotifyReply => {}
        operation => server.answer(&who, operation, &mut reply)?,
    }
    Ok(reply.length())
}
