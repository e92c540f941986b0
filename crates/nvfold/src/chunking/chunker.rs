//! The table of chunkers.

use super::lengths::PieceLengths;

const KIB: u32 = 1 << 10;
/// The length of the longest packed chunk.
const LONGEST: u32 = 64 * KIB;
/// The mean number of random bytes until five in a row rise.
#[cfg(feature = "papers")]
const SEQ_WAIT_BYTES: u32 = 880;

/// A method of cutting. Its number is stored on the media as the class of a chunk, and never changes. Policies use gear
/// and the fixed ones; the others serve the comparison, and are in builds with the feature `papers` alone.
///
/// Each method has its own lengths for a mean piece length on random data ([`Chunker::lengths_of_mean`]):
///
/// | chunker | a cut is | lengths |
/// |---|---|---|
/// | fixed | at multiples of a fixed length | the length in its name |
/// | rabin, gear | where bits of a hash are 0, not before `min` | `average` is the mean, `min` three quarters of it |
/// | ae | one window after an extremum | `average` is the mean: the window, and 256 bytes until there is a 255 |
/// | fastcdc | as for gear, but seldom before `average`, often after it | as in the paper; the mean exceeds `average` |
/// | seqcdc | after five rising bytes | `average` is the mean, `min` 880 bytes less: the mean wait for these bytes |
///
/// The default, gear, follows from docs/results/chunkers.md: only rabin saves more, and it takes several times as
/// long. A large `min` makes gear fast, because the bytes before it are not read, and does not reduce the savings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Chunker {
    /// Cuts every 4 KiB: the blocks of the device.
    Fixed4K = 0,
    /// Cuts every 8 KiB.
    Fixed8K = 1,
    /// Cuts every 16 KiB: DeEXT's FSC.
    Fixed16K = 2,
    /// Rabin's fingerprint of 48 bytes (LBFS, SOSP 2001).
    #[cfg(feature = "papers")]
    Rabin = 3,
    /// Asymmetric extremum (INFOCOM 2015).
    #[cfg(feature = "papers")]
    Ae = 4,
    /// Gear hash.
    #[default]
    Gear = 5,
    /// Gear hash with normalised lengths (FastCDC, 2020).
    #[cfg(feature = "papers")]
    FastCdc = 6,
    /// Rising bytes, found with vectors (SeqCDC, Middleware 2024; VectorCDC, FAST 2025).
    #[cfg(feature = "papers")]
    SeqCdc = 7,
}

impl Chunker {
    /// The chunkers of this build, by number.
    #[cfg(not(feature = "papers"))]
    pub const ALL: [Chunker; 4] = [Chunker::Fixed4K, Chunker::Fixed8K, Chunker::Fixed16K, Chunker::Gear];
    /// The chunkers of this build, by number.
    #[cfg(feature = "papers")]
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
            Chunker::Gear => "gear",
            #[cfg(feature = "papers")]
            Chunker::Rabin => "rabin",
            #[cfg(feature = "papers")]
            Chunker::Ae => "ae",
            #[cfg(feature = "papers")]
            Chunker::FastCdc => "fastcdc",
            #[cfg(feature = "papers")]
            Chunker::SeqCdc => "seqcdc",
        }
    }

    /// Returns the chunker with this name.
    pub fn from_name(name: &str) -> Option<Chunker> {
        Chunker::ALL.into_iter().find(|chunker| chunker.name() == name)
    }

    /// Returns the chunker with this number on the media, if this build has it.
    pub fn from_number(number: u8) -> Option<Chunker> {
        Chunker::ALL.into_iter().find(|chunker| *chunker as u8 == number)
    }

    /// Returns whether cuts follow the content, so that data is found again after it moved.
    pub const fn is_content_defined(self) -> bool {
        !matches!(self, Chunker::Fixed4K | Chunker::Fixed8K | Chunker::Fixed16K)
    }

    /// Returns its lengths for pieces of 16 KiB on average: DeEXT's statistical mean (IV-A).
    pub const fn lengths(self) -> PieceLengths {
        self.lengths_for(16 * KIB)
    }

    /// Returns its lengths for this mean piece length; `None` except for 2, 4, 8 and 16 KiB, whose longest pieces fit
    /// into a packed chunk. Fixed chunkers ignore the mean and return their fixed length.
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
            Chunker::Gear => PieceLengths::of(mean / 4 * 3, mean, LONGEST),
            #[cfg(feature = "papers")]
            Chunker::Rabin => PieceLengths::of(mean / 4 * 3, mean, LONGEST),
            #[cfg(feature = "papers")]
            Chunker::Ae => PieceLengths::of(1, mean, LONGEST),
            // For a mean of 16 KiB this is 11.5 KiB. The masks are those of the nearest power of two, and `average`
            // sets how long the stricter one applies.
            #[cfg(feature = "papers")]
            Chunker::FastCdc => PieceLengths::of(mean / 8, mean / 32 * 23, LONGEST),
            #[cfg(feature = "papers")]
            Chunker::SeqCdc => PieceLengths::of(mean - SEQ_WAIT_BYTES, mean, LONGEST),
        }
    }
}
