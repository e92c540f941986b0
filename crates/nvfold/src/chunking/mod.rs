//! Where to cut data into the pieces that are compared?
//!
//! All answers are pure functions of the bytes, and stand in one table, [`Chunker`]. Two kinds:
//!
//! - **fixed**: every so many bytes. Costs nothing, and finds equal data only at equal positions modulo that length.
//! - **content-defined**: where the last bytes say so. Inserting a byte moves one cut and leaves the others where they
//!   were, so equal data is found at any offset, at the cost of looking at the bytes.
//!
//! ```text
//!   bytes      aaaaaaaaaaaabbbbbbbbbcccccccccccccddddddd
//!   fixed      |        |        |        |        |   |     equal lengths, last one short
//!   content    |           |        |            |     |     lengths in min..=max, about `average`
//! ```
//!
//! [`Compressibility`] tells from samples which kind a stream is worth (DeEXT III-A), at a fraction of what a chunker
//! costs. What each chunker costs and saves on real data: docs/results/chunkers.md; [`Chunker::default`] follows from it.
//!
//! | file | what |
//! |---|---|
//! | `chunker` | the table: numbers, names, lengths |
//! | `cutter` | [`Cutter`]: cuts a stream that comes in parts, with any chunker |
//! | `rabin`, `ae`, `gear` | the methods; gear has FastCDC too, and SeqCDC's vectors are in `pmem::simd` |
//! | `lengths` | [`PieceLengths`] |
//! | `compressible` | the check |
//! | `vectors` | our cuts beside those of another program |
//!
//! [`fixed`] and [`content_defined`] cut a whole slice for estimates, which look further than a device does.
//! All cover the data exactly: pieces are non-empty, in order, and touch.

mod ae;
mod chunker;
mod compressible;
mod cutter;
mod gear;
mod lengths;
mod rabin;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod vectors;

pub use chunker::Chunker;
pub use compressible::{Compressibility, Verdict};
pub use cutter::{Cutter, pieces};
pub use lengths::PieceLengths;

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
    fastcdc::v2020::FastCDC::new(data, lengths.min(), lengths.average(), lengths.max())
        .map(|cut| Piece { offset: cut.offset, bytes: &data[cut.offset..cut.offset + cut.length] })
}
