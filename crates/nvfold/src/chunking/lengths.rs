//! The minimum, average and maximum length of pieces.

/// Lengths of pieces, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceLengths {
    min: u32,
    average: u32,
    max: u32,
}

impl PieceLengths {
    /// Returns lengths of about `average` bytes on random data, at least `min` except for the last piece, and at most
    /// `max`.
    ///
    /// `None` unless all three are powers of two in the range that the rolling hash of FastCDC is tuned for: 64 <=
    /// min <= average <= max, 256 <= average <= 4 MiB and 1 KiB <= max <= 16 MiB.
    pub const fn new(min: usize, average: usize, max: usize) -> Option<PieceLengths> {
        let powers = min.is_power_of_two() && average.is_power_of_two() && max.is_power_of_two();
        let ordered = 64 <= min && min <= average && average <= max;
        let tuned = 256 <= average && average <= 4 << 20 && 1024 <= max && max <= 16 << 20;
        if powers && ordered && tuned && min <= 1 << 20 {
            Some(PieceLengths::of(min as u32, average as u32, max as u32))
        } else {
            None
        }
    }

    /// Returns any lengths in order; the caller knows which ones its chunker can use.
    pub(super) const fn of(min: u32, average: u32, max: u32) -> PieceLengths {
        assert!(0 < min && min <= average && average <= max);
        PieceLengths { min, average, max }
    }

    /// Returns the shortest length of a piece other than the last, in bytes.
    pub const fn min(self) -> usize {
        self.min as usize
    }

    /// Returns the length parameter in bytes. [`Chunker`](super::Chunker) says how the mean length depends on it.
    pub const fn average(self) -> usize {
        self.average as usize
    }

    /// Returns the longest length of a piece, in bytes.
    pub const fn max(self) -> usize {
        self.max as usize
    }
}

impl Default for PieceLengths {
    /// Returns 2 KiB, 8 KiB, 64 KiB: the setting of the FastCDC paper.
    fn default() -> Self {
        PieceLengths::of(2 << 10, 8 << 10, 64 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_piece_lengths_are_refused() {
        assert_eq!(PieceLengths::new(2 << 10, 8 << 10, 64 << 10), Some(PieceLengths::default()));
        for (min, average, max) in
            [(0, 8192, 65536), (8192, 4096, 65536), (2048, 8192, 4096), (2048, 6000, 65536), (64, 128, 1024)]
        {
            assert_eq!(PieceLengths::new(min, average, max), None, "{min} {average} {max}");
        }
        assert!(PieceLengths::new(64, 256, 1024).is_some());
        assert!(PieceLengths::new(1 << 20, 4 << 20, 16 << 20).is_some());
    }
}
