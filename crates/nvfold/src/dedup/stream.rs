//! A file that is written in several requests: where to cut, and which bytes wait for the end of their piece.
//!
//! The problem: the chunker works on a stream, but data arrives in requests. A piece rarely ends where a request
//! ends, and written data must be durable at once.
//!
//! The idea: the last bytes of a request, after its last cut, are the **tail**. It is published like the rest, and
//! also kept in DRAM, so that the next request can continue it. A tail is first stored as a complete piece with a
//! fingerprint, because most files are written at once and nothing follows. When more data does follow, the tail
//! **grows** in place, without a fingerprint, until its piece ends.
//!
//! ```text
//! request 1   |---- piece ----|-- piece --|- tail |                  found by its fingerprint
//! request 2                               |- tail + |-- piece --|--  tail grows
//! ```
//!
//! A run of zeros, which becomes a hole, ends a piece, and the stream begins again after it.
//!
//! Fixed pieces end at file offsets that are multiples of 16 KiB, so that copies agree however they are written.

use crate::chunking::{Chunker, Compressibility, Cutter, Verdict};
use crate::media::PackedNumber;
use crate::space::packed::Pool;
use std::borrow::Cow;

/// The first bytes of a piece, from which the check decides how it is cut. Only the last piece may be shorter.
const SAMPLE_BYTES: usize = 4 << 10;
/// Distance between samples of the check in bytes. Samples are dense because all of them lie in one piece.
const SAMPLE_STEP: usize = 16;
/// DeEXT's fixed-size chunking (IV-A).
const FIXED: Chunker = Chunker::Fixed16K;
const FIXED_BYTES: u64 = FIXED.lengths().max() as u64;

/// How policy `deext` cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeExtOptions {
    /// What decides how a piece is cut.
    pub classes: Classes,
    /// The mean length of content-defined pieces; the paper's exists to be measured against ours.
    pub mean: Mean,
}

/// What decides how a piece is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Classes {
    /// The compressible check: dual chunking (III-A).
    #[default]
    Dual,
    /// No check: all data is cut every 16 KiB.
    FixedOnly,
    /// No check: all data is cut by its content. Finds data that does not compress (archives, model weights) where an
    /// inserted byte has moved it; cutting it takes longer, and its pieces are shorter.
    ContentOnly,
}

impl Classes {
    /// All values.
    pub const ALL: [Classes; 3] = [Classes::Dual, Classes::FixedOnly, Classes::ContentOnly];

    /// Returns its name on the command line: the value of `cut=`.
    pub const fn name(self) -> &'static str {
        match self {
            Classes::Dual => "auto",
            Classes::FixedOnly => "fixed",
            Classes::ContentOnly => "content",
        }
    }

    /// Returns the value with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Classes> {
        Classes::ALL.into_iter().find(|classes| classes.name() == name)
    }
}

/// Mean length of content-defined pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mean {
    /// The length that measured best: [`Cutter::default`].
    #[default]
    Ours,
    /// The paper's 16 KiB (IV-A).
    Paper,
}

impl DeExtOptions {
    fn cutter(self) -> Cutter {
        match self.mean {
            Mean::Ours => Cutter::default(),
            Mean::Paper => Cutter::new(Chunker::default()),
        }
    }

    /// Returns how a piece with these first bytes is cut.
    fn verdict(self, before: &[u8], next: &[u8]) -> Verdict {
        match self.classes {
            Classes::Dual => check(before, next),
            Classes::FixedOnly => Verdict::Incompressible,
            Classes::ContentOnly => Verdict::Compressible,
        }
    }
}

/// A piece of a request, complete or only its first bytes.
#[derive(Debug)]
pub struct CutPiece<'d> {
    /// File offset of its first byte.
    pub start: u64,
    /// All of its bytes so far, including those of the tail that it continues.
    pub bytes: Cow<'d, [u8]>,
    /// The chunker that cut it.
    pub chunker: Chunker,
    /// True if the piece ends here.
    pub is_whole: bool,
}

impl CutPiece<'_> {
    /// Returns the pool in which it is stored (DeEXT III-C).
    pub fn pool(&self) -> Pool {
        if self.chunker.is_content_defined() { Pool::ContentDefined } else { Pool::Fixed }
    }

    /// Returns the class that its chunk entry records (III-B).
    pub fn class(&self) -> u8 {
        self.chunker as u8 + 1
    }
}

/// Returns the pool in which new chunks of a class are stored.
pub(crate) fn pool_of(class: u8) -> Pool {
    if class == FIXED as u8 + 1 { Pool::Fixed } else { Pool::ContentDefined }
}

/// The published end of a stream, which waits for the rest of its piece.
#[derive(Clone, Debug)]
pub struct Tail {
    /// File offset of its first byte.
    pub start: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The chunk that holds them, starting at its first byte.
    pub chunk: PackedNumber,
    /// True if the chunk has no fingerprint and can be extended in place.
    pub is_growing: bool,
    /// The file's count of dropped chunks when the tail was published. If the count is higher now, the tail may be
    /// gone.
    pub drops: u64,
}

/// The state that is needed to cut the next bytes of a file.
pub struct Stream {
    options: DeExtOptions,
    content: Cutter,
    /// File offset of the first byte of the current piece.
    start: u64,
    /// File offset of the next byte.
    end: u64,
    /// How the piece is cut; `None` before its first 4 KiB have come.
    verdict: Option<Verdict>,
    /// The tail; `None` at the start of a piece.
    pub tail: Option<Tail>,
}

impl Stream {
    /// Creates a stream that begins at this file offset.
    pub fn new(offset: u64, options: DeExtOptions) -> Stream {
        let content = options.cutter();
        debug_assert!(content.lengths().min() >= SAMPLE_BYTES, "no piece ends before it is known how it is cut");
        Stream { options, content, start: offset, end: offset, verdict: None, tail: None }
    }

    /// Returns a stream that begins anew at this file offset.
    pub fn begun_at(&self, offset: u64) -> Stream {
        Stream::new(offset, self.options)
    }

    /// Returns the file offset of the next byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of bytes of the tail that are kept in DRAM.
    pub fn tail_bytes(&self) -> u64 {
        self.tail.as_ref().map_or(0, |tail| tail.bytes.capacity() as u64)
    }

    /// Cuts the next bytes. The first piece includes the bytes of `tail`; the caller publishes a new tail if the last
    /// piece is not whole.
    pub fn cut<'d>(&mut self, data: &'d [u8], tail: Option<&Tail>) -> Vec<CutPiece<'d>> {
        let mut pieces = Vec::new();
        let mut before = tail.map_or(&[][..], |tail| &tail.bytes);
        let mut at = 0;
        while at < data.len() {
            let cut = self.next_cut(before, &data[at..]);
            let end = cut.map_or(data.len(), |bytes| at + bytes);
            let bytes = match before {
                [] => Cow::Borrowed(&data[at..end]),
                before => Cow::Owned([before, &data[at..end]].concat()),
            };
            pieces.push(CutPiece { start: self.start, bytes, chunker: self.chunker(), is_whole: cut.is_some() });
            self.end += (end - at) as u64;
            if cut.is_some() {
                (self.start, self.verdict) = (self.end, None);
            }
            (before, at) = (&[], end);
        }
        pieces
    }

    fn chunker(&self) -> Chunker {
        match self.verdict {
            Some(Verdict::Incompressible) => FIXED,
            Some(Verdict::Compressible) | None => self.content.chunker(),
        }
    }

    /// Returns how many of the next bytes complete the piece that began with `before`.
    fn next_cut(&mut self, before: &[u8], next: &[u8]) -> Option<usize> {
        let verdict = match self.verdict {
            Some(verdict) => verdict,
            None if before.len() + next.len() < SAMPLE_BYTES => return None,
            None => {
                let verdict = self.options.verdict(before, next);
                self.verdict = Some(verdict);
                if verdict == Verdict::Compressible {
                    let cut = self.content.next_cut(before);
                    debug_assert!(cut.is_none(), "no piece is shorter than the sample");
                }
                verdict
            }
        };
        if verdict == Verdict::Compressible {
            return self.content.next_cut(next);
        }
        let left = ((self.start + SAMPLE_BYTES as u64).next_multiple_of(FIXED_BYTES) - self.end) as usize;
        (next.len() >= left).then_some(left)
    }
}

/// Decides how a piece is cut (III-A), from its first bytes alone: the same piece is cut in the same way wherever it
/// is and however it arrives.
fn check(before: &[u8], next: &[u8]) -> Verdict {
    let sample: Cow<'_, [u8]> = match before {
        [] => Cow::Borrowed(&next[..SAMPLE_BYTES]),
        before => Cow::Owned(before.iter().chain(next).take(SAMPLE_BYTES).copied().collect()),
    };
    let mut check = Compressibility::default();
    sample.chunks_exact(SAMPLE_STEP).for_each(|part| _ = check.check(&part[..8]));
    check.verdict()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns text whose words repeat at random distances.
    fn text(bytes: usize) -> Vec<u8> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let words: Vec<Vec<u8>> = (0..400).map(|_| (0..6).map(|_| b'a' + (next() % 26) as u8).collect()).collect();
        let mut text = Vec::new();
        while text.len() < bytes {
            text.extend_from_slice(&words[next() as usize % words.len()]);
            text.push(b' ');
        }
        text.truncate(bytes);
        text
    }

    fn ends(data: &[u8], step: usize) -> Vec<u64> {
        ends_with(DeExtOptions::default(), data, step)
    }

    fn ends_with(options: DeExtOptions, data: &[u8], step: usize) -> Vec<u64> {
        let mut stream = Stream::new(0, options);
        let (mut ends, mut start, mut tail): (Vec<u64>, u64, Option<Tail>) = (Vec::new(), 0, None);
        for part in data.chunks(step) {
            for piece in stream.cut(part, tail.take().as_ref()) {
                match piece.is_whole {
                    true => {
                        start += piece.bytes.len() as u64;
                        ends.push(start);
                    }
                    false => {
                        let chunk = PackedNumber(0);
                        let bytes = piece.bytes.into_owned();
                        tail = Some(Tail { start, bytes, chunk, is_growing: false, drops: 0 });
                    }
                }
            }
        }
        let left = tail.map_or(0, |tail| tail.bytes.len() as u64);
        assert_eq!(start + left, data.len() as u64, "every byte is in a piece or in the tail");
        ends
    }

    #[test]
    fn pieces_do_not_depend_on_the_sizes_of_requests() {
        let data = text(600_000);
        let whole = ends(&data, data.len());
        assert!(whole.len() > 10);
        for step in [512, 4096, 5000, 128 << 10] {
            assert_eq!(ends(&data, step), whole, "in requests of {step} bytes");
        }
    }

    fn encoded(bytes: usize) -> Vec<u8> {
        let mut state = 7u64;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        std::iter::repeat_with(next).take(bytes).collect()
    }

    #[test]
    fn all_data_is_cut_in_one_class_if_requested() {
        let fixed = DeExtOptions { classes: Classes::FixedOnly, ..DeExtOptions::default() };
        let content = DeExtOptions { classes: Classes::ContentOnly, mean: Mean::Paper };
        let (text, encoded) = (text(600_000), encoded(600_000));
        let expected: Vec<u64> = (1..=36).map(|at| at * FIXED_BYTES).collect();
        assert_eq!(ends_with(fixed, &text, 600_000), expected);
        for data in [&text, &encoded] {
            let ends = ends_with(content, data, 1000);
            assert!((25..50).contains(&ends.len()), "16 KiB on average: {ends:?}");
            assert!(ends.iter().any(|end| end % FIXED_BYTES != 0));
        }
    }

    #[test]
    fn incompressible_data_is_cut_at_multiples_of_16_kib() {
        let data = encoded(100_000);
        let expected: Vec<u64> = (1..=6).map(|at| at * FIXED_BYTES).collect();
        assert_eq!(ends(&data, data.len()), expected);
        assert_eq!(ends(&data, 1000), expected);
    }
}
