//! Cutting a stream that comes in parts.
//!
//! A writer brings a file in requests of any length, and what a cut ends must be known when its last byte comes. So a
//! [`Cutter`] is fed the bytes of the current piece as they come, keeps of them only what its hash needs, and says with
//! which byte the piece ends. Two rules hold for every chunker:
//!
//! - a cut depends on the bytes of its piece and on nothing behind it;
//! - cuts are the same however the data is split into calls.
//!
//! ```text
//!   fed        |----- 4096 -----|----- 4096 -----|- 700 -|
//!   next_cut         None            Some(3100)      then the rest of the same bytes, as the next piece
//!   pieces     |---------- 7196 ------------|--------------- ...
//! ```
//!
//! Gear, FastCDC, SeqCDC and AE are published with a cut *before* the byte that decides it, which is seen only with the
//! first byte of the next piece. Here that byte is the last one of its piece; nothing else differs, and
//! [`Cutter::published_cut`] gives the published cuts, which the tests compare with those of other programs.

use super::Piece;
use super::ae::Ae;
use super::chunker::Chunker;
use super::gear::{Gear, fastcdc_masks};
use super::lengths::PieceLengths;
use super::rabin::{Rabin, WINDOW_BYTES};
use pmem::simd::{SlopeRule, Slopes};

/// Five bytes rise, as published. SeqCDC then jumps over some of the data where bytes fall, to be faster; here nothing is
/// jumped over. With vectors a jump gains nothing and keeps the memory from reading ahead; and two cutters that come to
/// the same bytes from different sides, as behind an insertion, jump over different ones and seldom meet again.
const SLOPES: SlopeRule = SlopeRule::new(5, u32::MAX, 0);
/// Mean length of the pieces of [`Cutter::default`].
const DEFAULT_MEAN_BYTES: usize = 8 << 10;
/// Bytes until the first 255 of random data, where AE's extremum is: 256 values.
const AE_EXTREMUM_BYTES: usize = 256;

/// Cuts a stream. A copy goes on from where the original was.
#[derive(Clone, Debug)]
pub struct Cutter {
    chunker: Chunker,
    lengths: PieceLengths,
    /// Bytes of the current piece.
    length: u32,
    state: State,
}

/// Streams are many, so what each keeps is small.
const _: () = assert!(size_of::<Cutter>() <= 128);

impl Default for Cutter {
    /// What content is cut with unless something else is asked for: the default chunker, with pieces of 8 KiB on average.
    /// They save two points more than the paper's 16 KiB, the entries of twice as many pieces counted
    /// (docs/results/chunkers.md).
    fn default() -> Self {
        let chunker = Chunker::default();
        Cutter::with_lengths(chunker, chunker.lengths_of_mean(DEFAULT_MEAN_BYTES).expect("a mean that there is"))
    }
}

/// What is known of the current piece.
#[derive(Clone, Copy, Debug)]
enum State {
    Fixed,
    Rabin(Rabin),
    Ae(Ae),
    Gear(Gear),
    FastCdc(Gear),
    SeqCdc(Slopes),
}

/// Where a piece ends: bytes of what was fed, up to the one that decided it.
enum End {
    /// The content says so.
    Content(usize),
    /// It is as long as a piece may be.
    Limit(usize),
}

impl Cutter {
    /// Makes a cutter at the start of a piece, with the paper's mean length of 16 KiB.
    pub fn new(chunker: Chunker) -> Cutter {
        Cutter::with_lengths(chunker, chunker.lengths())
    }

    /// With other lengths; [`Chunker`] says what they mean to it. A fixed chunker takes `max`.
    pub fn with_lengths(chunker: Chunker, lengths: PieceLengths) -> Cutter {
        Cutter { chunker, lengths, length: 0, state: State::new(chunker) }
    }

    /// Lengths of its pieces.
    pub fn lengths(&self) -> PieceLengths {
        self.lengths
    }

    /// Which chunker cuts.
    pub fn chunker(&self) -> Chunker {
        self.chunker
    }

    /// Bytes of the current piece so far.
    pub fn piece_length(&self) -> usize {
        self.length as usize
    }

    /// Feeds the next bytes of the current piece. `Some(n)`: the piece ends with the n-th of them, 1 <= n, and the rest
    /// was not looked at; the next call begins the next piece. `None`: all belong to the piece, which goes on.
    #[inline]
    pub fn next_cut(&mut self, data: &[u8]) -> Option<usize> {
        let (End::Content(count) | End::Limit(count)) = self.next_end(data)?;
        self.restart();
        Some(count)
    }

    /// Forgets the current piece: the next byte is the first of one.
    pub fn restart(&mut self) {
        (self.length, self.state) = (0, State::new(self.chunker));
    }

    /// Length of the first piece of `data` as it is published, where all of the data is at hand.
    pub fn published_cut(mut self, data: &[u8]) -> usize {
        self.restart();
        let undecided = usize::from(!matches!(self.state, State::Fixed | State::Rabin(_)));
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

impl State {
    fn new(chunker: Chunker) -> State {
        match chunker {
            Chunker::Fixed4K | Chunker::Fixed8K | Chunker::Fixed16K => State::Fixed,
            Chunker::Rabin => State::Rabin(Rabin::new()),
            Chunker::Ae => State::Ae(Ae::default()),
            Chunker::Gear => State::Gear(Gear::default()),
            Chunker::FastCdc => State::FastCdc(Gear::default()),
            Chunker::SeqCdc => State::SeqCdc(Slopes::after(0)),
        }
    }

    /// Goes on with `data`, which begins `start` bytes into the piece: `Some(n)` if its content ends it with the n-th.
    fn find(&mut self, lengths: PieceLengths, start: usize, data: &[u8]) -> Option<usize> {
        // Bytes of `data` that lie before this position of the piece.
        let before = |position: usize| position.saturating_sub(start).min(data.len());
        let too_short = before(lengths.min());
        match self {
            State::Fixed => None,
            State::Rabin(rabin) => {
                // What leaves the window before the least length needs no look.
                let unseen = before(lengths.min().saturating_sub(WINDOW_BYTES));
                let unjudged = before(lengths.min() - 1) - unseen;
                let found = rabin.find(hash_bits(lengths), unjudged, &data[unseen..]);
                found.map(|count| unseen + count)
            }
            State::Ae(ae) => ae.find(lengths.average() - AE_EXTREMUM_BYTES, start, data),
            State::Gear(gear) => {
                let highest = hash_bits(lengths).reverse_bits();
                gear.find(highest, &data[too_short..]).map(|count| too_short + count)
            }
            State::FastCdc(gear) => {
                let center = before(lengths.average()) - too_short;
                let found = gear.find_normalized(fastcdc_masks(lengths.average()), center, &data[too_short..]);
                found.map(|count| too_short + count)
            }
            State::SeqCdc(slopes) => {
                if let Some(last) = too_short.checked_sub(1) {
                    *slopes = Slopes::after(data[last]);
                }
                slopes.find_rise(SLOPES, &data[too_short..]).map(|count| too_short + count)
            }
        }
    }
}

/// As many of the lowest bits as are 0 once in `average - min` bytes.
fn hash_bits(lengths: PieceLengths) -> u64 {
    let wait = (lengths.average() - lengths.min()).max(1);
    wait.next_power_of_two() as u64 - 1
}

/// Cuts `data`; the last piece may end because the data does.
pub fn pieces(chunker: Chunker, data: &[u8]) -> impl Iterator<Item = Piece<'_>> {
    let (mut cutter, mut offset) = (Cutter::new(chunker), 0);
    std::iter::from_fn(move || {
        let rest = &data[offset..];
        let length = cutter.next_cut(rest).unwrap_or(rest.len());
        let piece = Piece { offset, bytes: &rest[..length] };
        offset += length;
        (length > 0).then_some(piece)
    })
}
