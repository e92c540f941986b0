//! The open streams, and the seams between pieces.
//!
//! The problem: no call says that a file will not be written any more, there may be any number of files, and data that
//! comes out of order is cut where the request happens to end.
//!
//! The idea: at most 64 streams are kept, in LRU order; a background step ends a stream that was idle for a second. Where
//! a request does not continue a stream, the **seams** before and after it are listed, and a step cuts them again. If an
//! entry of the list is lost, that costs only savings.

use super::stream::{DeExtOptions, Stream};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::words::Stopwatch;
use std::collections::VecDeque;

/// Streams that are kept.
const STREAMS_MAX: usize = 64;
/// A stream that nobody has written to for so long is over.
const IDLE_NS: u64 = 1_000_000_000;
/// Seams that are remembered.
const SEAMS_MAX: usize = 65_536;

/// A place where two parts of a file meet that were cut each by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seam {
    /// The file, by a number that only `fs` understands.
    pub file: u64,
    /// First byte of the second part.
    pub offset: u64,
}

struct Held {
    file: u64,
    stream: Stream,
    written_ns: u64,
}

/// The streams of a mount.
pub struct Streams {
    /// The one written last is the last.
    held: Mutex<VecDeque<Held>>,
    /// How many, as of a moment ago: looked at without the lock.
    count: AtomicUsize,
    seams: Mutex<VecDeque<Seam>>,
    options: DeExtOptions,
    stopwatch: Option<Stopwatch>,
}

impl Streams {
    /// Makes an empty one. Without a stopwatch a stream is over with the next step.
    pub fn new(options: DeExtOptions, stopwatch: Option<Stopwatch>) -> Streams {
        let (held, count, seams) = (Mutex::default(), AtomicUsize::new(0), Mutex::default());
        Streams { held, count, seams, options, stopwatch }
    }

    /// A stream that begins at this offset of its file; nobody knows of it until it is kept.
    pub fn begin(&self, offset: u64) -> Stream {
        Stream::new(offset, self.options)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Takes the stream of a file: the writer then has it alone.
    pub fn take(&self, file: u64) -> Option<Stream> {
        let mut held = self.held.lock();
        let at = held.iter().position(|held| held.file == file)?;
        let taken = held.remove(at);
        self.count.store(held.len(), Ordering::Relaxed);
        taken.map(|held| held.stream)
    }

    /// Keeps the stream of a file; what has to end for it: another one of the file, and the oldest if there are too many.
    pub fn keep(&self, file: u64, stream: Stream) -> Vec<(u64, Stream)> {
        let mut held = self.held.lock();
        let mut over = Vec::new();
        if let Some(at) = held.iter().position(|held| held.file == file) {
            over.extend(held.remove(at));
        }
        held.push_back(Held { file, stream, written_ns: self.now() });
        if held.len() > STREAMS_MAX {
            over.extend(held.pop_front());
        }
        self.count.store(held.len(), Ordering::Relaxed);
        over.into_iter().map(|held| (held.file, held.stream)).collect()
    }

    /// Takes a stream that nobody has written to for a while.
    pub fn take_idle(&self) -> Option<(u64, Stream)> {
        let now = self.now();
        let mut held = self.held.lock();
        let is_idle = |held: &Held| self.stopwatch.is_none() || now.saturating_sub(held.written_ns) >= IDLE_NS;
        let taken = held.front().is_some_and(is_idle).then(|| held.pop_front()).flatten();
        self.count.store(held.len(), Ordering::Relaxed);
        taken.map(|held| (held.file, held.stream))
    }

    /// Takes any stream, for an unmount.
    pub fn take_any(&self) -> Option<(u64, Stream)> {
        let mut held = self.held.lock();
        let taken = held.pop_front();
        self.count.store(held.len(), Ordering::Relaxed);
        taken.map(|held| (held.file, held.stream))
    }

    /// Lists a seam.
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
