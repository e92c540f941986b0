//! Where to cut data into the pieces that are compared?
//!
//! Two answers, both pure functions of the bytes:
//!
//! - [`fixed`]: every 4 KiB. Costs nothing, matches the blocks of the device, and finds equal data only at
//!   equal positions modulo 4 KiB.
//! - [`content_defined`]: where a rolling hash of the last bytes says so (FastCDC, 2020 version with
//!   normalised chunking). Inserting a byte moves one cut and leaves the others where they were, so equal
//!   data is found at any offset, at the cost of looking at every byte.
//!
//! ```text
//!   bytes      aaaaaaaaaaaabbbbbbbbbcccccccccccccddddddd
//!   fixed      |        |        |        |        |   |     equal lengths, last one short
//!   content    |           |        |            |     |     lengths in min..=max, about `average`
//! ```
//!
//! Both cover the data exactly: pieces are non-empty, in order, and touch.

/// Bytes in a piece of [`fixed`]: one block of the device.
pub const FIXED_BYTES: usize = 4096;

/// A piece of the data that was cut: where it starts, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Offset of the first byte from the start of the data.
    pub offset: usize,
    /// The bytes; never empty.
    pub bytes: &'a [u8],
}

/// Lengths of the pieces of [`content_defined`], in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceLengths {
    min: usize,
    average: usize,
    max: usize,
}

impl PieceLengths {
    /// Pieces of `average` bytes on average (reached on random data), none shorter than `min` but the last,
    /// none longer than `max`.
    ///
    /// `None` unless all three are powers of two with 64 <= min <= average <= max, 256 <= average <= 4 MiB
    /// and 1 KiB <= max <= 16 MiB: the range the rolling hash is tuned for.
    pub const fn new(min: usize, average: usize, max: usize) -> Option<PieceLengths> {
        let powers = min.is_power_of_two() && average.is_power_of_two() && max.is_power_of_two();
        let ordered = 64 <= min && min <= average && average <= max;
        let tuned = 256 <= average && average <= 4 << 20 && 1024 <= max && max <= 16 << 20;
        if powers && ordered && tuned && min <= 1 << 20 { Some(PieceLengths { min, average, max }) } else { None }
    }

    /// Shortest piece but the last.
    pub const fn min(self) -> usize {
        self.min
    }

    /// Length aimed at.
    pub const fn average(self) -> usize {
        self.average
    }

    /// Longest piece.
    pub const fn max(self) -> usize {
        self.max
    }
}

impl Default for PieceLengths {
    /// 2 KiB, 8 KiB, 64 KiB: the setting of the FastCDC paper.
    fn default() -> Self {
        PieceLengths { min: 2 << 10, average: 8 << 10, max: 64 << 10 }
    }
}

/// Cuts `data` every [`FIXED_BYTES`]; the last piece may be shorter.
pub fn fixed(data: &[u8]) -> impl Iterator<Item = Piece<'_>> {
    let starts = (0..data.len()).step_by(FIXED_BYTES);
    starts.zip(data.chunks(FIXED_BYTES)).map(|(offset, bytes)| Piece { offset, bytes })
}

/// Cuts `data` where its content says so.
///
/// Every piece but the last is final: it would be the same whatever bytes follow `data`. So a file larger
/// than memory is cut exactly through a bounded buffer: keep the last piece back until the bytes that follow
/// it, or the end of the file, are known.
pub fn content_defined(data: &[u8], lengths: PieceLengths) -> impl Iterator<Item = Piece<'_>> {
    fastcdc::v2020::FastCDC::new(data, lengths.min, lengths.average, lengths.max)
        .map(|cut| Piece { offset: cut.offset, bytes: &data[cut.offset..cut.offset + cut.length] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random-looking bytes, the same for the same seed.
    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next_byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        };
        (0..len).map(|_| next_byte()).collect()
    }

    fn assert_covers<'a>(data: &[u8], pieces: impl Iterator<Item = Piece<'a>>) {
        let mut end = 0;
        for piece in pieces {
            assert_eq!(piece.offset, end, "pieces touch");
            assert!(!piece.bytes.is_empty());
            end += piece.bytes.len();
            assert_eq!(piece.bytes, &data[piece.offset..end]);
        }
        assert_eq!(end, data.len(), "pieces reach the end");
    }

    #[test]
    fn both_ways_cover_the_data_exactly() {
        for len in [0, 1, 63, 64, 4095, 4096, 4097, 8192, 100_001, 1 << 20] {
            let data = noise(len, len as u64);
            assert_covers(&data, fixed(&data));
            assert_covers(&data, content_defined(&data, PieceLengths::default()));
        }
    }

    #[test]
    fn fixed_pieces_are_blocks_but_the_last() {
        let data = noise(3 * FIXED_BYTES + 5, 7);
        let lengths: Vec<usize> = fixed(&data).map(|piece| piece.bytes.len()).collect();
        assert_eq!(lengths, [4096, 4096, 4096, 5]);
    }

    #[test]
    fn content_defined_lengths_keep_their_limits_and_average() {
        let lengths = PieceLengths::default();
        let data = noise(16 << 20, 3);
        let cut: Vec<usize> = content_defined(&data, lengths).map(|piece| piece.bytes.len()).collect();
        let (last, others) = cut.split_last().unwrap();
        assert!(*last <= lengths.max());
        assert!(others.iter().all(|len| (lengths.min()..=lengths.max()).contains(len)));
        let average = data.len() / cut.len();
        assert!((lengths.average() * 3 / 4..lengths.average() * 3 / 2).contains(&average), "{average}");
    }

    #[test]
    fn an_inserted_byte_changes_few_pieces_where_fixed_changes_all_that_follow() {
        let before = noise(1 << 20, 11);
        let mut after = before.clone();
        after.insert(1000, 0x42);
        let survivors = |old: Vec<&[u8]>, new: Vec<&[u8]>| old.iter().filter(|piece| new.contains(piece)).count();

        let cut = |data| content_defined(data, PieceLengths::default()).map(|piece| piece.bytes).collect::<Vec<_>>();
        let total = cut(&before).len();
        assert!(survivors(cut(&before), cut(&after)) + 5 >= total);

        let cut = |data| fixed(data).map(|piece| piece.bytes).collect::<Vec<_>>();
        assert_eq!(survivors(cut(&before), cut(&after)), 0);
    }

    #[test]
    fn every_piece_but_the_last_is_final() {
        let lengths = PieceLengths::new(256, 1024, 8192).unwrap();
        let mut data = noise(200_000, 5);
        data[60_000..120_000].fill(0); // runs without a cut point end at `max`
        let whole: Vec<Piece> = content_defined(&data, lengths).collect();
        for end in (0..data.len()).step_by(977) {
            let part: Vec<Piece> = content_defined(&data[..end], lengths).collect();
            let finals = part.len().saturating_sub(1);
            assert_eq!(part[..finals], whole[..finals], "buffer of {end} bytes");
        }
    }

    #[test]
    fn lengths_the_hash_is_not_tuned_for_are_refused() {
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
