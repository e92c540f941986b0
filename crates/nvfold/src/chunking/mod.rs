//! Where to cut data into the pieces that are compared.
//!
//! All chunkers are pure functions of the bytes, and are listed in one table, [`Chunker`]. There are two kinds:
//!
//! - **fixed**: cuts at multiples of a fixed length. Costs nothing, and finds equal data only at equal positions
//!   modulo that length.
//! - **content-defined**: cuts where the last bytes meet a condition. Inserting a byte moves one cut and leaves the
//!   others in place, so equal data is found at any offset, at the cost of reading the bytes.
//!
//! ```text
//!   bytes      aaaaaaaaaaaabbbbbbbbbcccccccccccccddddddd
//!   fixed      |        |        |        |        |   |     equal lengths, last one short
//!   content    |           |        |            |     |     lengths in min..=max, about `average`
//! ```
//!
//! [`Compressibility`] finds by samples which kind pays off for a stream (DeEXT III-A), at a fraction of the cost
//! of a chunker. docs/results/chunkers.md shows what each chunker costs and saves on real data; [`Chunker::default`]
//! follows from it.
//!
//! | file | contents |
//! |---|---|
//! | `chunker` | the table: numbers, names, lengths |
//! | `cutter` | [`Cutter`]: cuts a stream that comes in parts, with any chunker |
//! | `gear`, `gear_table` | the method that policies use; `gear` also has FastCDC |
//! | `rabin`, `ae` | others, with the feature `papers`; SeqCDC's vector code is in `pmem::simd` |
//! | `lengths` | [`PieceLengths`] |
//! | `compressible` | the compressibility check |
//! | `zeros` | runs of zeros, which are not stored |
//! | `vectors` | tests against the cuts of another program |
//!
//! [`fixed`] and [`content_defined`] cut a whole slice, for estimates, which also try lengths that a device does not
//! use. All chunkers cover the data exactly: pieces are non-empty, ascending and adjacent.

#[cfg(feature = "papers")]
mod ae;
mod chunker;
mod compressible;
mod cutter;
mod gear;
mod gear_table;
mod lengths;
#[cfg(feature = "papers")]
mod rabin;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod vectors;
mod zeros;

pub use chunker::Chunker;
pub use compressible::{Compressibility, Verdict};
pub use cutter::{Cutter, pieces};
pub use lengths::PieceLengths;
pub use zeros::is_zero;
pub(crate) use zeros::{ZeroRanges, may_have_zero_block, trailing_zeros, zero_blocks, zero_runs};

/// The length of a piece of [`fixed`] in bytes: one block of the device.
pub(crate) const FIXED_BYTES: usize = 4096;

/// A piece of data: its offset and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPiece<'a> {
    /// Offset of the first byte from the start of the data.
    pub offset: usize,
    /// The bytes; never empty.
    pub bytes: &'a [u8],
}

/// Cuts `data` every [`FIXED_BYTES`]; the last piece may be shorter.
pub(crate) fn fixed(data: &[u8]) -> impl Iterator<Item = DataPiece<'_>> {
    let starts = (0..data.len()).step_by(FIXED_BYTES);
    starts.zip(data.chunks(FIXED_BYTES)).map(|(offset, bytes)| DataPiece { offset, bytes })
}

/// Cuts `data` by its content, with the `fastcdc` crate.
///
/// Every piece except the last is final: it does not depend on the bytes that follow `data`. So a file larger than
/// memory can be cut exactly through a bounded buffer: hold back the last piece until the bytes after it, or the end
/// of the file, are known.
#[cfg(feature = "papers")]
pub fn content_defined(data: &[u8], lengths: PieceLengths) -> impl Iterator<Item = DataPiece<'_>> {
    fastcdc::v2020::FastCDC::new(data, lengths.min(), lengths.average(), lengths.max())
        .map(|cut| DataPiece { offset: cut.offset, bytes: &data[cut.offset..cut.offset + cut.length] })
}
