//! Cutting a stream that comes in parts.
//!
//! The problem: a writer sends a file in requests of any length, and a cut must be known when the last byte of its
//! piece arrives.
//!
//! The idea: a [`Cutter`] is fed the bytes of the current piece as they come, keeps only what its hash needs, and
//! says with which byte the piece ends. Two rules hold for every chunker:
//!
//! - a cut depends on the bytes of its piece and on no byte after it;
//! - cuts are the same however the data is split into calls.
//!
//! ```text
//!   fed        |----- 4096 -----|----- 4096 -----|- 700 -|
//!   next_cut         None            Some(3100)      then the rest of the same bytes, as the next piece
//!   pieces     |---------- 7196 ------------|--------------- ...
//! ```
//!
//! Gear, FastCDC, SeqCDC and AE are published with a cut *before* the byte that decides it, so the cut is only known
//! after the first byte of the next piece. Here that byte is the last one of its piece. There is no other difference:
//! [`Cutter::published_cut`] gives the published cuts, which the tests compare with those of other programs.

use super::DataPiece;
use super::chunker::Chunker;
use super::gear::Gear;
use super::lengths::PieceLengths;
#[cfg(feature = "papers")]
use super::{
    ae::Ae,
    gear::fastcdc_masks,
    rabin::{Rabin, WINDOW_BYTES},
};
#[cfg(feature = "papers")]
use pmem::simd::{SlopeRule, Slopes};

/// Five rising bytes, as published. SeqCDC also jumps over data in which bytes fall, to save time; here it does not.
/// With vector code a jump gains nothing, and it defeats the prefetching of memory. Jumps also delay
/// resynchronisation: after an insertion, two cutters jump over different data and seldom meet again.
#[cfg(feature = "papers")]
const SLOPES: SlopeRule = SlopeRule::new(5, u32::MAX, 0);
/// The mean length of the pieces of [`Cutter::default`].
const DEFAULT_MEAN_BYTES: usize = 8 << 10;
/// The mean number of random bytes before the first 255, which is AE's extremum: there are 256 values.
#[cfg(feature = "papers")]
const AE_EXTREMUM_BYTES: usize = 256;

/// Cuts a stream. A clone continues from the same position.
#[derive(Clone, Debug)]
pub struct Cutter {
    chunker: Chunker,
    lengths: PieceLengths,
    /// The length of the current piece so far, in bytes.
    length: u32,
    state: CutterState,
}

/// A mount has many streams, so a cutter must be small.
const _: () = assert!(size_of::<Cutter>() <= 128);

impl Default for Cutter {
    /// Creates the cutter that is used unless another one is requested: the default chunker, with pieces of 8 KiB on
    /// average. They save two percentage points more than the paper's 16 KiB, including the cost of twice as many
    /// entries (docs/results/chunkers.md).
    fn default() -> Self {
        let chunker = Chunker::default();
        Cutter::with_lengths(chunker, chunker.lengths_of_mean(DEFAULT_MEAN_BYTES).expect("a mean that there is"))
    }
}

/// CutterState of the method within the current piece.
#[derive(Clone, Copy, Debug)]
enum CutterState {
    Fixed,
    Gear(Gear),
    #[cfg(feature = "papers")]
    Rabin(Rabin),
    #[cfg(feature = "papers")]
    Ae(Ae),
    #[cfg(feature = "papers")]
    FastCdc(Gear),
    #[cfg(feature = "papers")]
    SeqCdc(Slopes),
}

/// The end of a piece: a number of the bytes that were fed, including the one that decided it.
enum End {
    /// The content ends the piece.
    Content(usize),
    /// The piece has the maximum length.
    Limit(usize),
}

impl Cutter {
    /// Creates a cutter at the start of a piece, with the paper's mean length of 16 KiB.
    pub fn new(chunker: Chunker) -> Cutter {
        Cutter::with_lengths(chunker, chunker.lengths())
    }

    /// Creates a cutter with other lengths; [`Chunker`] says how each method uses them. A fixed chunker uses only
    /// `max`.
    pub fn with_lengths(chunker: Chunker, lengths: PieceLengths) -> Cutter {
        Cutter { chunker, lengths, length: 0, state: CutterState::new(chunker) }
    }

    /// Returns the lengths of its pieces.
    pub fn lengths(&self) -> PieceLengths {
        self.lengths
    }

    /// Returns its chunker.
    pub fn chunker(&self) -> Chunker {
        self.chunker
    }

    /// Returns the length of the current piece so far, in bytes.
    pub fn piece_length(&self) -> usize {
        self.length as usize
    }

    /// Feeds the next bytes of the current piece. `Some(n)`: the piece ends with the n-th of them, 1 <= n, and the
    /// rest was not read; the next call begins the next piece. `None`: all of them belong to the piece, which
    /// continues.
    #[inline]
    pub fn next_cut(&mut self, data: &[u8]) -> Option<usize> {
        let (End::Content(count) | End::Limit(count)) = self.next_end(data)?;
        self.restart();
        Some(count)
    }

    /// Discards the current piece: the next byte begins a new one.
    pub fn restart(&mut self) {
        (self.length, self.state) = (0, CutterState::new(self.chunker));
    }

    /// Returns the length of the first piece of `data` by the published method, where `data` is complete.
    #[cfg(feature = "papers")]
    pub fn published_cut(mut self, data: &[u8]) -> usize {
        self.restart();
        let undecided = usize::from(!matches!(self.state, CutterState::Fixed | CutterState::Rabin(_)));
        match self.next_end(data) {
            Some(End::Content(count)) => count - undecided,
            Some(End::Limit(count)) => count,
            None => data.len(),
        }
    }

    fn next_end(&mut self, data: &[u8]) -> Option<End> {
        let left = self.lengths.max() - self.length as usize;
        let data = &data[..data.len().min(left)];
        let found = self.state.find(self.lengths, self.length as usize, data);
        self.length += data.len() as u32;
        match found {
            Some(count) => Some(End::Content(count)),
            None if data.len() == left => Some(End::Limit(left)),
            None => None,
        }
    }
}

impl CutterState {
    fn new(chunker: Chunker) -> CutterState {
        match chunker {
            Chunker::Fixed4K | Chunker::Fixed8K | Chunker::Fixed16K => CutterState::Fixed,
            Chunker::Gear => CutterState::Gear(Gear::default()),
            #[cfg(feature = "papers")]
            Chunker::Rabin => CutterState::Rabin(Rabin::new()),
            #[cfg(feature = "papers")]
            Chunker::Ae => CutterState::Ae(Ae::default()),
            #[cfg(feature = "papers")]
            Chunker::FastCdc => CutterState::FastCdc(Gear::default()),
            #[cfg(feature = "papers")]
            Chunker::SeqCdc => CutterState::SeqCdc(Slopes::after(0)),
        }
    }

    /// Continues with `data`, which begins `start` bytes into the piece. Returns `Some(n)` if its content ends the
    /// piece with the n-th byte.
    fn find(&mut self, lengths: PieceLengths, start: usize, data: &[u8]) -> Option<usize> {
        // The number of bytes of `data` before this position of the piece.
        let before = |position: usize| position.saturating_sub(start).min(data.len());
        let too_short = before(lengths.min());
        match self {
            CutterState::Fixed => None,
            #[cfg(feature = "papers")]
            CutterState::Rabin(rabin) => {
                // Bytes that leave the window before the minimum length need not be read.
                let unseen = before(lengths.min().saturating_sub(WINDOW_BYTES));
                let unjudged = before(lengths.min() - 1) - unseen;
                let found = rabin.find(hash_bits(lengths), unjudged, &data[unseen..]);
                found.map(|count| unseen + count)
            }
            #[cfg(feature = "papers")]
            CutterState::Ae(ae) => ae.find(lengths.average() - AE_EXTREMUM_BYTES, start, data),
            CutterState::Gear(gear) => {
                let highest = hash_bits(lengths).reverse_bits();
                gear.find(highest, &data[too_short..]).map(|count| too_short + count)
            }
            #[cfg(feature = "papers")]
            CutterState::FastCdc(gear) => {
                let center = before(lengths.average()) - too_short;
                let found = gear.find_normalized(fastcdc_masks(lengths.average()), center, &data[too_short..]);
                found.map(|count| too_short + count)
            }
            #[cfg(feature = "papers")]
            CutterState::SeqCdc(slopes) => {
                if let Some(last) = too_short.checked_sub(1) {
                    *slopes = Slopes::after(data[last]);
                }
                slopes.find_rise(SLOPES, &data[too_short..]).map(|count| too_short + count)
            }
        }
    }
}

/// Returns a mask of as many of the lowest bits as are all 0 once in `average - min` bytes.
fn hash_bits(lengths: PieceLengths) -> u64 {
    let wait = (lengths.average() - lengths.min()).max(1);
    wait.next_power_of_two() as u64 - 1
}

/// Cuts `data` into pieces; the end of the data ends the last one.
pub fn pieces(chunker: Chunker, data: &[u8]) -> impl Iterator<Item = DataPiece<'_>> {
    let (mut cutter, mut offset) = (Cutter::new(chunker), 0);
    std::iter::from_fn(move || {
        let rest = &data[offset..];
        let length = cutter.next_cut(rest).unwrap_or(rest.len());
        let piece = DataPiece { offset, bytes: &rest[..length] };
        offset += length;
        (length > 0).then_some(piece)
    })
}
