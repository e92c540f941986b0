//! Chunk-based deduplication of a program's writes: the competitors of ICID's section 5.
//!
//! As in the paper's framework, each write is cut, each chunk is hashed (XXH3, "for high throughput"), and each
//! fingerprint is looked up in one table in memory. **The competitors cut and hash only**: nothing is compared, nothing is
//! written, and nothing is made durable. So their time is a lower bound of the cost, and not that of the same work.
//!
//! ```text
//! per call     | call ||  call  || call |      each write is cut on its own, as in the paper, which intercepts write
//! per stream   | ........................ |    consecutive writes to a file are one stream, which is fairer
//! ```
//!
//! The work is timed in groups of [`GROUP_BYTES`], because reading the clock costs more than a small write.

use super::writes::{self, Write};
use crate::{Doing, Result};
use nvfold::internals::chunking::Cutter;
use nvfold::{Chunker, PieceLengths};
use pmem::clock::cost_ns;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use twox_hash::XxHash3_64;

/// Bytes that are cut and timed together.
const GROUP_BYTES: usize = 256 << 10;
/// Bytes per chunk in a system's index: NV-Dedup's entry of a cache line.
pub(super) const ENTRY_BYTES: u64 = 64;
/// Bytes per chunk in a file's metadata.
const POINTER_BYTES: u64 = 8;

/// The unit that is cut on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    /// Each write.
    Call,
    /// Consecutive writes to a file.
    Stream,
}

/// A way of chunking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    /// The chunker.
    pub chunker: Chunker,
    /// Mean bytes of a chunk.
    pub mean_bytes: usize,
    /// The unit that is cut.
    pub per: Per,
}

impl Scheme {
    /// Returns the four chunkers of the paper, with chunks of `mean_bytes` bytes on average.
    pub(super) fn papers(mean_bytes: usize, per: Per) -> [Scheme; 4] {
        [Chunker::Fixed4K, Chunker::Rabin, Chunker::Ae, Chunker::FastCdc].map(|chunker| Scheme {
            chunker,
            mean_bytes,
            per,
        })
    }

    /// Iterates over the same four with chunks of 4 KiB, first for calls and then for streams.
    pub(super) fn calls_and_streams() -> impl Iterator<Item = Scheme> {
        [Per::Call, Per::Stream].into_iter().flat_map(|per| Scheme::papers(4096, per))
    }

    /// Returns the paper's name for it.
    pub(super) fn name(&self) -> String {
        let name = match self.chunker {
            Chunker::Fixed4K | Chunker::Fixed8K | Chunker::Fixed16K => "FSC",
            Chunker::Rabin => "RABIN",
            Chunker::Ae => "AE",
            Chunker::FastCdc => "FastCDC",
            other => other.name(),
        };
        let per = if self.per == Per::Call { "" } else { ", streams" };
        format!("{name}{per}")
    }

    fn cutter(&self) -> Cutter {
        let lengths = match self.chunker.is_content_defined() {
            true => self.chunker.lengths_of_mean(self.mean_bytes),
            false => PieceLengths::new(self.mean_bytes, self.mean_bytes, self.mean_bytes),
        };
        Cutter::with_lengths(self.chunker, lengths.expect("means of 2, 4, 8 and 16 KiB"))
    }
}

/// Processor time of the steps, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    /// Finding the cut points.
    pub cutting: f64,
    /// Fingerprints.
    pub hashing: f64,
    /// Looking them up, and adding new ones.
    pub indexing: f64,
}

impl Steps {
    /// Returns the sum of the steps.
    pub(super) fn sum(&self) -> f64 {
        self.cutting + self.hashing + self.indexing
    }
}

/// The result of a scheme for the writes so far.
pub(super) struct Chunked {
    /// The scheme.
    pub scheme: Scheme,
    /// Bytes written.
    pub bytes: u64,
    /// Bytes in known chunks.
    pub found_bytes: u64,
    /// Chunks.
    pub chunks: u64,
    /// Time.
    pub steps: Steps,
    cutter: Cutter,
    known: HashSet<u64>,
    /// Concatenated writes that have not been cut yet, and the end of each.
    group: Vec<u8>,
    ends: Vec<usize>,
    /// Uncut ends of streams that may continue, by file.
    streams: HashMap<u64, Stream>,
}

#[derive(Default)]
struct Stream {
    next: u64,
    bytes: Vec<u8>,
}

/// Makes schemes that know the files of `before`, which were stored before the program began.
pub(super) fn knowing(before: &[PathBuf], schemes: impl IntoIterator<Item = Scheme>) -> Result<Vec<Chunked>> {
    let mut all: Vec<Chunked> = schemes.into_iter().map(Chunked::new).collect();
    for path in before {
        let content = fs::read(path).doing(format!("read {}", path.display()))?;
        all.iter_mut().for_each(|chunked| chunked.knows(&content));
    }
    Ok(all)
}

/// Gives the writes of a record, which may be a pipe, to schemes.
pub(super) fn cut_record(record: &Path, all: &mut [Chunked]) -> Result<()> {
    writes::each(record, |write| all.iter_mut().for_each(|chunked| chunked.write(&write)))?;
    all.iter_mut().for_each(Chunked::end);
    Ok(())
}

impl Chunked {
    /// Makes an empty result, without known chunks.
    pub(super) fn new(scheme: Scheme) -> Chunked {
        Chunked {
            scheme,
            bytes: 0,
            found_bytes: 0,
            chunks: 0,
            steps: Steps::default(),
            cutter: scheme.cutter(),
            known: HashSet::new(),
            group: Vec::new(),
            ends: Vec::new(),
            streams: HashMap::new(),
        }
    }

    /// Adds content that was stored before the program began, cut as one stream per file.
    pub(super) fn knows(&mut self, content: &[u8]) {
        let mut at = 0;
        self.cutter.restart();
        while at < content.len() {
            let length = self.cutter.next_cut(&content[at..]).unwrap_or(content.len() - at);
            self.known.insert(XxHash3_64::oneshot(&content[at..at + length]));
            at += length;
        }
    }

    /// Adds a write of the program.
    pub(super) fn write(&mut self, write: &Write) {
        self.bytes += write.bytes.len() as u64;
        match self.scheme.per {
            Per::Call => {
                self.group.extend_from_slice(&write.bytes);
                self.ends.push(self.group.len());
                if self.group.len() >= GROUP_BYTES {
                    self.cut_group();
                }
            }
            Per::Stream => {
                let mut stream = self.streams.remove(&write.file).unwrap_or_default();
                if stream.next != write.offset {
                    self.cut(&stream.bytes, &[stream.bytes.len()], true);
                    stream.bytes.clear();
                }
                stream.next = write.offset + write.bytes.len() as u64;
                stream.bytes.extend_from_slice(&write.bytes);
                if stream.bytes.len() >= GROUP_BYTES {
                    let cut = self.cut(&stream.bytes, &[stream.bytes.len()], false);
                    stream.bytes.drain(..cut);
                }
                self.streams.insert(write.file, stream);
            }
        }
    }

    /// Marks the end of the program: cuts everything that is left.
    pub(super) fn end(&mut self) {
        self.cut_group();
        for (_, stream) in std::mem::take(&mut self.streams) {
            self.cut(&stream.bytes, &[stream.bytes.len()], true);
        }
    }

    /// Returns the share of the bytes in known chunks, percent.
    pub(super) fn percent(&self) -> f64 {
        100.0 * self.found_bytes as f64 / self.bytes.max(1) as f64
    }

    /// Returns the bytes of metadata for finding chunks.
    pub(super) fn metadata_bytes(&self) -> u64 {
        self.index_bytes() + self.chunks * POINTER_BYTES
    }

    /// Returns the bytes of the table of fingerprints.
    pub(super) fn index_bytes(&self) -> u64 {
        self.known.len() as u64 * ENTRY_BYTES
    }

    fn cut_group(&mut self) {
        let (group, ends) = (std::mem::take(&mut self.group), std::mem::take(&mut self.ends));
        self.cut(&group, &ends, true);
    }

    /// Cuts each part of `data` that ends at one of `ends` by itself, and looks the chunks up; returns how many bytes
    /// were cut. The last chunk stays uncut if its data may continue.
    fn cut(&mut self, data: &[u8], ends: &[usize], is_whole: bool) -> usize {
        let start = cost_ns();
        let (mut at, mut chunks) = (0, Vec::with_capacity(data.len() / 1024 + ends.len()));
        for &end in ends {
            self.cutter.restart();
            while at < end {
                let length = match self.cutter.next_cut(&data[at..end]) {
                    Some(length) => length,
                    None if is_whole => end - at,
                    None => break,
                };
                chunks.push(&data[at..at + length]);
                at += length;
            }
        }
        let cut = cost_ns();
        let fingerprints: Vec<u64> = chunks.iter().map(|chunk| XxHash3_64::oneshot(chunk)).collect();
        let hashed = cost_ns();
        for (chunk, fingerprint) in chunks.iter().zip(fingerprints) {
            if !self.known.insert(fingerprint) {
                self.found_bytes += chunk.len() as u64;
            }
        }
        let looked_up = cost_ns();
        self.chunks += chunks.len() as u64;
        self.steps.cutting += cut - start;
        self.steps.hashing += hashed - cut;
        self.steps.indexing += looked_up - hashed;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvfold_bench::data::Random;

    fn chunked(per: Per, chunker: Chunker, writes: &[(u64, u64, &[u8])]) -> Chunked {
        let mut chunked = Chunked::new(Scheme { chunker, mean_bytes: 4096, per });
        for (file, offset, bytes) in writes {
            chunked.write(&Write { file: *file, offset: *offset, bytes: bytes.to_vec() });
        }
        chunked.end();
        chunked
    }

    fn random(bytes: usize) -> Vec<u8> {
        let mut random = Random(5);
        (0..bytes / 8).flat_map(|_| random.next_u64().to_le_bytes()).collect()
    }

    #[test]
    fn chunking_by_call_misses_copies_that_chunking_by_stream_finds() {
        let data = random(600_000);
        let mut writes: Vec<(u64, u64, &[u8])> = vec![(1, 0, &data)];
        let mut at = 0;
        for part in data.chunks(1_000) {
            writes.push((2, at, part));
            at += part.len() as u64;
        }
        for chunker in [Chunker::Fixed4K, Chunker::Rabin, Chunker::FastCdc] {
            assert_eq!(chunked(Per::Call, chunker, &writes).found_bytes, 0, "{chunker:?}");
            let streams = chunked(Per::Stream, chunker, &writes);
            assert!(streams.percent() > 49.0, "{chunker:?}: {}", streams.percent());
            assert_eq!(streams.bytes, 1_200_000);
        }
    }

    #[test]
    fn a_write_after_a_gap_begins_a_new_stream_and_earlier_data_is_found() {
        let data = random(64 << 10);
        let mut known = Chunked::new(Scheme { chunker: Chunker::Fixed4K, mean_bytes: 4096, per: Per::Stream });
        known.knows(&data);
        known.write(&Write { file: 1, offset: 0, bytes: data[..6000].to_vec() });
        known.write(&Write { file: 1, offset: 9000, bytes: data[4096..8192].to_vec() });
        known.end();
        assert_eq!(known.found_bytes, 4096 + 4096);
    }
}
