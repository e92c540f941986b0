//! Threads: one walks, several work, and the caller's thread reports the progress.

use super::Watch;
use super::tally::Tally;
use parking_lot::Mutex;
use pmem::with_signals_blocked;
use std::num::NonZero;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Bytes read and written at a time: the buffer of each worker.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Capacity of the queue between the thread that walks and the workers, in files.
const QUEUE_FILES: usize = 256;
/// Interval between calls of the caller's progress callback.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// Runs `walk`, which hands out jobs, and `threads` workers (0 for one per processor) that do the jobs; meanwhile
/// reports progress to the caller.
pub(super) fn run<J: Send>(
    tally: &Tally,
    threads: usize,
    watch: &mut Watch<'_>,
    walk: impl FnOnce(&mut dyn FnMut(J)) + Send,
    work: impl Fn(J, &mut [u8]) + Sync,
) {
    tally.tell(watch);
    let (sender, receiver) = mpsc::sync_channel::<J>(QUEUE_FILES);
    let receiver = Mutex::new(receiver);
    let (done, all_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        for _ in 0..worker_count(threads) {
            let (receiver, work, done) = (&receiver, &work, done.clone());
            let worker = move || {
                do_jobs(tally, receiver, work);
                drop(done);
            };
            with_signals_blocked(|| scope.spawn(worker));
        }
        drop(done);
        let walker = move || {
            walk(&mut |job| {
                // `send` only fails when all workers have ended, and they outlive the sender.
                let _ = sender.send(job);
            });
        };
        with_signals_blocked(|| scope.spawn(walker));
        while all_done.recv_timeout(TELL_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            tally.tell(watch);
        }
    });
}

fn worker_count(threads: usize) -> usize {
    match threads {
        0 => thread::available_parallelism().map_or(1, NonZero::get),
        threads => threads,
    }
}

fn do_jobs<J>(tally: &Tally, receiver: &Mutex<mpsc::Receiver<J>>, work: &impl Fn(J, &mut [u8])) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let job = receiver.lock().recv();
        let Ok(job) = job else { return };
        // After a stop the queue is drained without work, so that the walker is never blocked.
        if !tally.is_stopped() {
            work(job, &mut buffer);
        }
    }
}
