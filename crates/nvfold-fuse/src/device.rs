//! Requests through /dev/fuse: one read takes a request, one write answers it.
//!
//! Each thread has its own file descriptor (FUSE_DEV_IOC_CLONE), so the kernel keeps the requests of the threads
//! apart.

use crate::listeners::Listeners;
use crate::operation::{self, Operation, argument_bytes};
use crate::protocol::{InHeader, OutHeader};
use crate::reply::out_header;
use crate::workers::{End, Workers};
use crate::{DATA_BYTES_MAX, Server, answer, sys};
use rustix::io::Errno as Os;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Room for the header, the argument and the names of a request, before its data.
const BEFORE_DATA: usize = 4096;
/// At least so many threads stay while there is nothing to do, so that a burst of requests starts none.
const THREADS_KEPT: usize = 16;
const HEADER: usize = size_of::<OutHeader>();

/// State that the threads share.
struct Device {
    server: Arc<dyn Server>,
    connection: Arc<OwnedFd>,
    listeners: Arc<Listeners>,
    workers: Arc<Workers>,
}

/// Starts the threads.
pub(crate) fn start(
    server: &Arc<dyn Server>,
    connection: &Arc<OwnedFd>,
    threads: usize,
    spin: Option<Duration>,
) -> io::Result<Arc<Workers>> {
    let workers = Workers::new("fuse-device", threads.max(THREADS_KEPT));
    let device = Arc::new(Device {
        server: server.clone(),
        connection: connection.clone(),
        listeners: Listeners::new(spin, connection.clone()),
        workers: workers.clone(),
    });
    for _ in 0..threads {
        device.start_one()?;
    }
    Ok(workers)
}

impl Device {
    fn start_one(self: &Arc<Self>) -> io::Result<()> {
        let device = self.clone();
        self.workers.start(move || device.serve())
    }

    /// Answers requests until the session ends, or enough other threads wait for requests.
    fn serve(self: &Arc<Self>) -> io::Result<End> {
        // If fusermount3 opened /dev/fuse and this process may not, all threads read from the same file.
        let own = sys::clone_connection(self.connection.as_fd());
        let connection = own.or_else(|_| self.connection.try_clone())?;
        let mut listener = self.listeners.register();
        // A vector of words, so that the structures in it are aligned.
        let mut request = vec![0u64; (BEFORE_DATA + DATA_BYTES_MAX) / size_of::<u64>()];
        let mut room = vec![0; HEADER + DATA_BYTES_MAX];
        while let Some(bytes) = receive(&connection, request.as_mut_bytes())? {
            let bytes = &request.as_bytes()[..bytes];
            let whole = InHeader::read_from_prefix(bytes).ok();
            let split =
                whole.and_then(|(header, rest)| Some((header, rest.split_at_checked(argument_bytes(header.opcode))?)));
            let Some((header, (argument, rest))) = split else {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the kernel sent a request that ends too early",
                ));
            };
            let operation = Operation::decode(&header, argument, rest);
            if self.workers.took() {
                // If it fails, requests are still answered, unless all threads wait for one another.
                let _ = self.start_one();
            }
            let answering = listener.begin(operation.is_some_and(|operation| operation.takes_long()));
            let answered = answer(&*self.server, self, &header, operation, &mut room[HEADER..]);
            if !matches!(operation, Some(Operation::Forget { .. } | Operation::BatchForget { .. })) {
                let (header, length) = out_header(header.unique, answered);
                room[..HEADER].copy_from_slice(header.as_bytes());
                // ENOENT: the request was aborted, so there is no receiver. Any other failure shows up in the next
                // read.
                let _ = rustix::io::write(&connection, &room[..HEADER + length]);
            }
            if !self.workers.waits() {
                answering.leave();
                return Ok(End::Surplus);
            }
            drop(answering);
        }
        Ok(End::OfSession)
    }
}

impl operation::Queue for Arc<Device> {
    fn before_wait(&self, _file: u64) {
        if self.workers.waits_for_kernel() {
            let _ = self.start_one();
        }
    }

    fn after_wait(&self, _file: u64) {
        self.workers.goes_on();
    }
}

/// Reads the next request and returns its length in bytes; `None` when the session has ended.
fn receive(connection: &OwnedFd, request: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(connection, &mut *request) {
            Ok(bytes) => return Ok(Some(bytes)),
            // The request was aborted, a signal came, or another thread took the request.
            Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
            Err(Os::NODEV) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
