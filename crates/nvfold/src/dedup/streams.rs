//! The open streams, and the seams between pieces.
//!
//! The problem: no call announces the last write of a file, the number of files is unbounded, and data
//! that comes out of order is cut where the request happens to end.
//!
//! The idea: keep at most 64 streams in LRU order; a background step ends a stream that was idle for a second. Where
//! a request does not continue a stream, list the **seams** before and after it; a step cuts them again. Losing an
//! entry of the list costs only savings.

use super::stream::{DeExtOptions, Stream};
use crate::words::FileId;
use crate::words::Stopwatch;
use nvfold_sync::Mutex;
use nvfold_sync::atomic::{AtomicUsize, Ordering};
use std::collections::VecDeque;

/// The largest number of streams that are kept.
const STREAMS_MAX: usize = 64;
/// A stream that was not written to for this many nanoseconds is over.
const IDLE_NS: u64 = 1_000_000_000;
/// The largest number of seams that are listed.
const SEAMS_MAX: usize = 65_536;

/// A file offset where two parts of a file meet that were cut independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seam {
    /// The file.
    pub file: FileId,
    /// File offset of the first byte of the second part.
    pub offset: u64,
}

struct HeldStream {
    file: FileId,
    stream: Stream,
    written_ns: u64,
}

/// Holds the open streams of a mount.
pub struct Streams {
    /// In the order of their last write, the oldest first.
    held: Mutex<VecDeque<HeldStream>>,
    /// The number of streams, which is read without the lock and may be slightly out of date.
    count: AtomicUsize,
    seams: Mutex<VecDeque<Seam>>,
    options: DeExtOptions,
    stopwatch: Option<Stopwatch>,
}

impl Streams {
    /// Creates an empty set. Without a stopwatch, the next step ends every stream.
    pub fn new(options: DeExtOptions, stopwatch: Option<Stopwatch>) -> Streams {
        let (held, count, seams) = (Mutex::default(), AtomicUsize::new(0), Mutex::default());
        Streams { held, count, seams, options, stopwatch }
    }

    /// Creates a stream that begins at this file offset. It is not in the set until it is kept.
    pub fn begin(&self, offset: u64) -> Stream {
        Stream::new(offset, self.options)
    }

    /// Returns the DRAM of the open streams and of the seams, in bytes.
    pub fn dram_bytes(&self) -> u64 {
        let tails: u64 =
            self.held.lock().iter().map(|held| size_of::<HeldStream>() as u64 + held.stream.tail_bytes()).sum();
        tails + (self.seams.lock().capacity() * size_of::<Seam>()) as u64
    }

    /// True if no stream is open, as of a moment ago.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Takes the stream of a file out of the set: the writer then owns it.
    pub fn take(&self, file: FileId) -> Option<Stream> {
        let mut held = self.held.lock();
        let at = held.iter().position(|held| held.file == file)?;
        let taken = held.remove(at);
        self.count.store(held.len(), Ordering::Relaxed);
        taken.map(|held| held.stream)
    }

    /// Keeps the stream of a file. Returns the streams that must end for it: another one of the same file, and the
    /// oldest one if there are too many.
    pub fn keep(&self, file: FileId, stream: Stream) -> Vec<(FileId, Stream)> {
        let mut held = self.held.lock();
        let mut over = Vec::new();
        if let Some(at) = held.iter().position(|held| held.file == file) {
            over.extend(held.remove(at));
        }
        held.push_back(HeldStream { file, stream, written_ns: self.now() });
        if held.len() > STREAMS_MAX {
            over.extend(held.pop_front());
        }
        self.count.store(held.len(), Ordering::Relaxed);
        over.into_iter().map(|held| (held.file, held.stream)).collect()
    }

    /// Takes a stream that was not written to for a while.
    pub fn take_idle(&self) -> Option<(FileId, Stream)> {
        let now = self.now();
        let mut held = self.held.lock();
        let is_idle = |held: &HeldStream| self.stopwatch.is_none() || now.saturating_sub(held.written_ns) >= IDLE_NS;
        let taken = held.front().is_some_and(is_idle).then(|| held.pop_front()).flatten();
        self.count.store(held.len(), Ordering::Relaxed);
        taken.map(|held| (held.file, held.stream))
    }

    /// Takes any stream, for an unmount.
    pub fn take_any(&self) -> Option<(FileId, Stream)> {
        let mut held = self.held.lock();
        let taken = held.pop_front();
        self.count.store(held.len(), Ordering::Relaxed);
        taken.map(|held| (held.file, held.stream))
    }

    /// Adds a seam to the list, unless the list is full.
    pub fn add_seam(&self, seam: Seam) {
        let mut seams = self.seams.lock();
        if seams.len() < SEAMS_MAX && seams.back() != Some(&seam) {
            seams.push_back(seam);
        }
    }

    /// Returns the next seam to cut again.
    pub fn take_seam(&self) -> Option<Seam> {
        self.seams.lock().pop_front()
    }

    fn now(&self) -> u64 {
        self.stopwatch.as_ref().map_or(0, |now| now())
    }
}
