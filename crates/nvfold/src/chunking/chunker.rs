//! The chunkers there are, in one table.

use super::lengths::PieceLengths;

const KIB: u32 = 1 << 10;
/// A packed chunk is no longer than this.
const LONGEST: u32 = 64 * KIB;
/// Random bytes until five rose in a row, on average.
const SEQ_WAIT_BYTES: u32 = 880;

/// Which method cuts. The number is made for the media, as the class of a chunk: it never changes.
///
/// Each has its own lengths for a mean of its pieces, on random data ([`Chunker::lengths_of_mean`]):
///
/// | chunker | a cut is | lengths |
/// |---|---|---|
/// | fixed | every so many bytes | the one that it is named after |
/// | rabin, gear | where bits of a hash are 0, `min` bytes or more behind the last | `average` is the mean, `min` three quarters of it |
/// | ae | a window behind an extremum | `average` is the mean: the window, and 256 bytes until there is a 255 |
/// | fastcdc | as gear, seldom before `average` and often behind it | as in the paper; the mean is greater than `average` |
/// | seqcdc | after five bytes that rise | `average` is the mean, `min` 880 bytes less, which is how long one waits for these |
///
/// The default, gear, follows from docs/results/chunkers.md: it saves most but for rabin, which takes several times as
/// long. A great `min` is what makes it fast, since no byte before it is looked at, and takes nothing from what is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Chunker {
    /// Every 4 KiB: the blocks of the device.
    Fixed4K = 0,
    /// Every 8 KiB.
    Fixed8K = 1,
    /// Every 16 KiB: DeEXT's FSC.
    Fixed16K = 2,
    /// Rabin's fingerprint of 48 bytes (LBFS, SOSP 2001).
    Rabin = 3,
    /// Asymmetric extremum (INFOCOM 2015).
    Ae = 4,
    /// Gear hash.
    #[default]
    Gear = 5,
    /// Gear hash with normalised lengths (FastCDC, 2020).
    FastCdc = 6,
    /// Rising bytes, found with vectors (SeqCDC, Middleware 2024; VectorCDC, FAST 2025).
    SeqCdc = 7,
}

impl Chunker {
    /// All of them, by number.
    pub const ALL: [Chunker; 8] = [
        Chunker::Fixed4K,
        Chunker::Fixed8K,
        Chunker::Fixed16K,
        Chunker::Rabin,
        Chunker::Ae,
        Chunker::Gear,
        Chunker::FastCdc,
        Chunker::SeqCdc,
    ];

    /// Returns its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Chunker::Fixed4K => "fixed-4k",
            Chunker::Fixed8K => "fixed-8k",
            Chunker::Fixed16K => "fixed-16k",
            Chunker::Rabin => "rabin",
            Chunker::Ae => "ae",
            Chunker::Gear => "gear",
            Chunker::FastCdc => "fastcdc",
            Chunker::SeqCdc => "seqcdc",
        }
    }

    /// The one with this name.
    pub fn from_name(name: &str) -> Option<Chunker> {
        Chunker::ALL.into_iter().find(|chunker| chunker.name() == name)
    }

    /// The one with this number on the media.
    pub fn from_number(number: u8) -> Option<Chunker> {
        Chunker::ALL.get(usize::from(number)).copied()
    }

    /// Whether cuts follow the content, so that data is found again where it has moved.
    pub const fn is_content_defined(self) -> bool {
        !matches!(self, Chunker::Fixed4K | Chunker::Fixed8K | Chunker::Fixed16K)
    }

    /// Its lengths for pieces of 16 KiB on average: DeEXT's statistical mean (IV-A).
    pub const fn lengths(self) -> PieceLengths {
        self.lengths_for(16 * KIB)
    }

    /// Its lengths for pieces of so many bytes on average; `None` but for 2, 4, 8 and 16 KiB, which a packed chunk leaves
    /// room for. Fixed ones have their own length.
    pub const fn lengths_of_mean(self, mean_bytes: usize) -> Option<PieceLengths> {
        match mean_bytes {
            2048 | 4096 | 8192 | 16384 => Some(self.lengths_for(mean_bytes as u32)),
            _ => None,
        }
    }

    const fn lengths_for(self, mean: u32) -> PieceLengths {
        match self {
            Chunker::Fixed4K => PieceLengths::of(4 * KIB, 4 * KIB, 4 * KIB),
            Chunker::Fixed8K => PieceLengths::of(8 * KIB, 8 * KIB, 8 * KIB),
            Chunker::Fixed16K => PieceLengths::of(16 * KIB, 16 * KIB, 16 * KIB),
            Chunker::Rabin | Chunker::Gear => PieceLengths::of(mean / 4 * 3, mean, LONGEST),
            Chunker::Ae => PieceLengths::of(1, mean, LONGEST),
            // Of 16 KiB 11.5: the masks are of the nearest power of two, and pieces are the longer the nearer it is.
            Chunker::FastCdc => PieceLengths::of(mean / 8, mean / 32 * 23, LONGEST),
            Chunker::SeqCdc => PieceLengths::of(mean - SEQ_WAIT_BYTES, mean, LONGEST),
        }
    }
}
