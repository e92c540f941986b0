//! Answers the requests of FUSE: by reading /dev/fuse, or by io_uring.
//!
//! The problem: a request is a round trip between two threads, and most of it is waking and moving them. The kernel can
//! hand requests over on io_uring since Linux 6.14, on the processor that the request comes from, which halves that. No
//! FUSE library for Rust does, and theirs decode in private.
//!
//! The idea: a request is a value ([`Operation`]), its answer is written into the place from where it is sent ([`Reply`]),
//! and a [`Server`] is a function between the two. How requests come is not its business:
//!
//! ```text
//!               device: read(2) .. write(2), a thread of several (turns: who looks, who sleeps)
//! kernel  <-->                                                          operation -> Server::answer -> reply
//!               ring:   one command gives the answer and takes the next request; a queue for each processor
//! ```
//!
//! A server may block: there is always another thread that waits for requests ([`workers`]). Where it waits until the kernel
//! has got answers to other requests, it says so ([`Caller::while_waiting`]).
//!
//! The mount itself, the handshake (INIT) and notices are not here.
#![deny(unsafe_code)]

mod device;
pub mod operation;
pub mod place;
pub mod protocol;
pub mod reply;
mod ring;
mod sys;
mod turns;
mod workers;

pub use operation::{Caller, Change, Operation, Time};
pub use reply::{Entry, Errno, Reply};
pub use ring::is_available as is_ring_available;

use protocol::InHeader;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of data of one request or reply: the kernel's own limit of 256 pages.
pub const DATA_BYTES_MAX: usize = 1 << 20;

/// How long the session waits for the threads of a ring after it has ended.
const RINGS_END_WITHIN: Duration = Duration::from_secs(1);

/// How long a thread looks for the next request before it sleeps, unless told otherwise (docs/benchmarks.md).
pub const SPIN: Duration = Duration::from_micros(50);

/// What answers requests.
pub trait Server: Send + Sync + 'static {
    /// Does an operation and puts what is to be told of it into `reply`. It may block. Called by several threads.
    ///
    /// # Errors
    /// The errno that the process gets. What is in `reply` is not sent then.
    fn answer(&self, who: &Caller<'_>, operation: Operation<'_>, reply: &mut Reply<'_>) -> Result<(), Errno>;
}

/// How requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By read(2) from /dev/fuse.
    Device {
        /// Threads at the start.
        threads: usize,
        /// How long to look for the next request before sleeping; `None`: not at all.
        spin: Option<Duration>,
    },
    /// By io_uring. The handshake must have said so (FUSE_OVER_IO_URING).
    Ring,
}

/// A session that is served.
pub struct Session {
    workers: Vec<Arc<workers::Workers>>,
}

impl Session {
    /// Serves the connection that is open at `connection`, whose handshake is done, until it ends.
    ///
    /// # Errors
    /// That a thread cannot be started, or that the kernel refuses the rings: the connection is of no use then.
    pub fn start(server: Arc<dyn Server>, connection: OwnedFd, transport: Transport) -> io::Result<Session> {
        let connection = Arc::new(connection);
        let workers = match transport {
            Transport::Device { threads, spin } => vec![device::start(&server, &connection, threads, spin)?],
            Transport::Ring => {
                let rings = ring::start(&server, &connection)?;
                // What the kernel does not send by rings: what it forgets, and that the session ends.
                let mut workers = vec![device::start(&server, &connection, 1, None)?];
                workers.extend(rings);
                workers
            }
        };
        Ok(Session { workers })
    }

    /// Waits until the file system is unmounted.
    ///
    /// # Errors
    /// What a thread met that could not go on.
    pub fn wait(self) -> io::Result<()> {
        let (device, rings) = self.workers.split_first().expect("there is one");
        let ended = device.wait(None);
        // They are told too. One that is not must not keep the device.
        rings.iter().for_each(|ring| drop(ring.wait(Some(RINGS_END_WITHIN))));
        ended
    }
}

/// Answers one request, if it could be taken apart; the bytes of its reply that lie in `room`.
fn answer(
    server: &dyn Server,
    queue: Option<&dyn operation::Queue>,
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
