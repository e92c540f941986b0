//! Requests through io_uring: one command hands over an answer and takes the next request.
//!
//! The kernel has a queue for each processor, and puts a request into the queue of the processor that sends it. An
//! entry of a queue holds one request. Each thread here has a ring with one entry, and runs on the processor of its
//! queue:
//!
//! ```text
//! register -> available --(a request comes)--> taken -> answered -> committed -+- a request waits: taken
//!                 ^                                                            |
//!                 +------------------------------------------------------------+
//! ```
//!
//! Each queue starts with two threads, which is enough for ordinary use; [`workers`](crate::workers) starts another
//! one when both are busy. Threads stay until the session ends.
//!
//! The kernel hands a waiting request to an entry only when some entry commits (Linux 6.18). A new entry that
//! registers while requests wait gets none of them until another thread commits. If all other threads wait for the
//! kernel, and the kernel waits for answers to those requests, that is a deadlock.
//!
//! So the new entry is given something to commit. A thread asks the kernel for zero bytes of a file
//! (NOTIFY_RETRIEVE), and the kernel answers with a request to this very queue. Both the thread that is about to wait
//! for the kernel and the thread that registers an entry during such a wait do this. Whichever is second finds both
//! the new entry and the file of the waiting thread. The kernel accepts NOTIFY_RETRIEVE for regular files only; every
//! such wait is about a regular file.

use crate::operation::{self, Operation, argument_bytes};
use crate::protocol::{NOTIFY_RETRIEVE, NotifyRetrieveOut, OutHeader, opcode};
use crate::reply::out_header;
use crate::sys::{self, RingEntry};
use crate::workers::{End, Workers};
use crate::{Errno, Server, answer};
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use zerocopy::IntoBytes;

const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const THREADS_A_QUEUE: usize = 2;
/// Room for the reply to a write, in bytes.
const SHORT_REPLY: usize = 64;

/// The numbers of our own NOTIFY_RETRIEVE requests: even, and far from the numbers that the kernel uses.
static NUDGES: AtomicU64 = AtomicU64::new(1 << 62);

/// Returns Ok if the kernel offers FUSE over io_uring and this process may create rings. The error says why not.
pub fn is_available() -> Result<(), String> {
    match std::fs::read_to_string(ENABLED) {
        Ok(text) if text.trim() == "Y" => sys::ring().map(drop).map_err(|error| format!("io_uring: {error}")),
        Ok(_) => Err(format!("{ENABLED} says N")),
        Err(_) => Err("the kernel has no FUSE over io_uring (Linux 6.14)".into()),
    }
}

/// A queue of the kernel and the threads that serve it.
struct Queue {
    server: Arc<dyn Server>,
    connection: Arc<OwnedFd>,
    number: u16,
    workers: Arc<Workers>,
    /// The files of requests whose threads wait for the kernel.
    waited_for: Mutex<Vec<u64>>,
}

/// Starts the threads of all queues; returns once the kernel has their entries.
pub(crate) fn start(server: &Arc<dyn Server>, connection: &Arc<OwnedFd>) -> io::Result<Vec<Arc<Workers>>> {
    let (is_ready, ready) = mpsc::channel();
    let mut all = Vec::new();
    for number in 0..possible_processors()? {
        let workers = Workers::new(&format!("fuse-ring-{number}"), usize::MAX);
        let queue = Arc::new(Queue {
            server: server.clone(),
            connection: connection.clone(),
            number,
            workers: workers.clone(),
            waited_for: Mutex::default(),
        });
        for _ in 0..THREADS_A_QUEUE {
            queue.start_first(is_ready.clone())?;
        }
        all.push(workers);
    }
    drop(is_ready);
    ready.into_iter().collect::<io::Result<()>>()?;
    Ok(all)
}

impl Queue {
    /// Starts a thread, which reports through `is_ready` whether it could register its entry.
    fn start_first(self: &Arc<Self>, is_ready: mpsc::Sender<io::Result<()>>) -> io::Result<()> {
        let queue = self.clone();
        self.workers.start(move || {
            let (registered, entry) = match queue.register() {
                Ok(entry) => (Ok(()), Some(entry)),
                Err(error) => (Err(error), None),
            };
            let _ = is_ready.send(registered);
            // `start` waits until all senders are dropped.
            drop(is_ready);
            entry.map_or(Ok(End::OfSession), |mut entry| queue.serve(&mut entry))
        })
    }

    /// Starts one more thread while requests may be waiting. If it gets no entry, the other threads go on without it.
    fn start_another(self: &Arc<Self>) -> io::Result<()> {
        let queue = self.clone();
        self.workers.start(move || {
            let Ok(mut entry) = queue.register() else { return Ok(End::OfSession) };
            if let Some(file) = queue.waited_for.lock().last() {
                queue.nudge(*file);
            }
            queue.serve(&mut entry)
        })
    }

    fn register(&self) -> io::Result<RingEntry> {
        // An online processor sends requests, and a thread that runs elsewhere would nudge the wrong queue.
        self.pin().or_else(|error| if is_online(self.number) { Err(error) } else { Ok(()) })?;
        let mut entry = RingEntry::new(self.connection.as_fd(), self.number)?;
        entry.register()?;
        Ok(entry)
    }

    /// Moves this thread to the processor of the queue.
    fn pin(&self) -> io::Result<()> {
        let mut processor = CpuSet::new();
        processor.set(usize::from(self.number));
        Ok(sched_setaffinity(None, &processor)?)
    }

    /// Answers requests until the session ends.
    fn serve(self: &Arc<Self>, entry: &mut RingEntry) -> io::Result<End> {
        let mut rest = Vec::new();
        while entry.wait()? {
            let unique = entry.request().0.unique;
            let (header, length) = out_header(unique, self.answer(entry, &mut rest));
            entry.commit(&header, length)?;
        }
        Ok(End::OfSession)
    }

    fn answer(self: &Arc<Self>, entry: &mut RingEntry, rest: &mut Vec<u8>) -> Result<usize, Errno> {
        let (header, argument, payload_bytes) = entry.request();
        if header.opcode == opcode::NOTIFY_REPLY {
            return Ok(0);
        }
        if self.workers.took() {
            // If it fails, requests are still answered, unless all threads wait for one another.
            let _ = self.start_another();
        }
        let argument = &argument[..argument_bytes(header.opcode)];
        let payload = entry.payload();
        let answered = if header.opcode == opcode::WRITE {
            let mut reply = [0; SHORT_REPLY];
            let operation = Operation::decode(&header, argument, &payload[..payload_bytes]);
            let answered = answer(&*self.server, self, &header, operation, &mut reply);
            payload[..SHORT_REPLY].copy_from_slice(&reply);
            answered
        } else {
            // The payload holds names, and the reply overwrites them.
            rest.clear();
            rest.extend_from_slice(&payload[..payload_bytes]);
            answer(&*self.server, self, &header, Operation::decode(&header, argument, rest), payload)
        };
        // A thread gives its answer by asking for the next request, so it stays.
        let _ = self.workers.waits();
        answered
    }

    /// Makes the kernel send a request to the queue of the processor that this thread runs on, which is this queue.
    fn nudge(&self, nodeid: u64) {
        // The processor may have come online since the entry was registered.
        let _ = self.pin();
        let asked =
            NotifyRetrieveOut { unique: NUDGES.fetch_add(2, Ordering::Relaxed), nodeid, offset: 0, size: 0, unused: 0 };
        let length = size_of::<OutHeader>() + size_of::<NotifyRetrieveOut>();
        let header = OutHeader { len: length as u32, error: NOTIFY_RETRIEVE, unique: 0 };
        // Fails when the session ends.
        let _ = rustix::io::write(&self.connection, &[header.as_bytes(), asked.as_bytes()].concat());
    }
}

impl operation::Queue for Arc<Queue> {
    fn before_wait(&self, file: u64) {
        self.waited_for.lock().push(file);
        if self.workers.waits_for_kernel() {
            let _ = self.start_another();
        }
        self.nudge(file);
    }

    fn after_wait(&self, file: u64) {
        let mut waited_for = self.waited_for.lock();
        let at = waited_for.iter().position(|other| *other == file).expect("it was put there");
        waited_for.swap_remove(at);
        drop(waited_for);
        self.workers.goes_on();
    }
}

/// Returns the number of queues that the kernel wants: one for each processor that may come online.
fn possible_processors() -> io::Result<u16> {
    let text = std::fs::read_to_string(POSSIBLE)?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|number| number.parse::<u16>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::Error::other(format!("{POSSIBLE} says `{}`", text.trim())))
}

/// Returns true if a processor is online.
fn is_online(number: u16) -> bool {
    let dir = format!("/sys/devices/system/cpu/cpu{number}");
    // A processor that cannot be taken offline has no such file.
    let says_no = std::fs::read_to_string(format!("{dir}/online")).is_ok_and(|online| online.trim() == "0");
    std::path::Path::new(&dir).exists() && !says_no
}
