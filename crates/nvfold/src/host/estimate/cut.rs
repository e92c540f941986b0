//! The pieces that a policy makes of data, and the space that each takes.
//!
//! ```text
//!   off, inline           |  4 KiB  |  4 KiB  |  4 KiB  | tail |   a tail of at most 3,072 bytes is packed (pack=auto)
//!   deext, compressible   |    piece    | piece |     piece    |   cut by content; every piece is packed
//!   deext, encoded        |     16 KiB     |     16 KiB    | |     cut every 16 KiB; every piece is packed
//! ```
//!
//! A block takes its 4 KiB, and a chunk entry once it has a fingerprint. A packed piece takes its length, a chunk
//! entry, and a header in its segment.

use crate::chunking::{Chunker, Compressibility, Cutter, PieceLengths, Verdict};
use crate::media::BLOCK_BYTES;
use crate::media::chunk_entry::ChunkEntry;

/// A last partial block of at most this many bytes is packed under every policy.
pub(super) const PACKED_TAIL_MAX: u64 = 3072;

/// Bytes of a chunk entry, which every block with a fingerprint has.
pub(super) const ENTRY_BYTES: u64 = size_of::<ChunkEntry>() as u64;

/// Bytes of metadata for each packed piece: its chunk entry and its header.
pub(super) const PACKED_METADATA_BYTES: u64 = ENTRY_BYTES + 16;

/// Number of bytes of a stream that are sampled before a piece is cut.
const SAMPLE_BYTES: usize = 16 << 10;

/// Encoded data is cut at multiples of this file offset.
const FIXED_BYTES: usize = Chunker::Fixed16K.lengths().max();

/// Returns true if the last partial block of a file is packed.
pub(super) fn is_packed_tail(bytes: u64) -> bool {
    bytes <= PACKED_TAIL_MAX
}

/// Returns the bytes that policy `inline` needs for a block or the tail of a file.
pub(super) fn inline_bytes(piece_bytes: usize) -> u64 {
    match piece_bytes as u64 {
        tail if is_packed_tail(tail) => packed_bytes(piece_bytes),
        _ => BLOCK_BYTES + ENTRY_BYTES,
    }
}

/// Returns the bytes that a packed piece needs.
pub(super) fn packed_bytes(piece_bytes: usize) -> u64 {
    piece_bytes as u64 + PACKED_METADATA_BYTES
}

/// Cuts a stream as policy `deext` does: by content, or every 16 KiB where the data is encoded.
pub(super) struct DeextStream {
    check: Compressibility,
    verdict: Verdict,
    cutter: Cutter,
    /// File offset of the current piece.
    offset: u64,
    /// Bytes of the current piece that were fed to the cutter; `None` before the piece was checked.
    fed: Option<usize>,
}

impl DeextStream {
    /// Returns a stream that begins at this offset of its file.
    pub(super) fn new(lengths: PieceLengths, offset: u64) -> DeextStream {
        let cutter = Cutter::with_lengths(Chunker::default(), lengths);
        DeextStream { check: Compressibility::default(), verdict: Verdict::default(), cutter, offset, fed: None }
    }

    /// Cuts `uncut`, which begins where the last call stopped; `is_all` says that no more data follows. Calls `each`
    /// with every piece and its verdict, and returns the total length of the pieces in bytes. The cuts do not depend
    /// on how the data is split into calls.
    pub(super) fn cut(&mut self, uncut: &[u8], is_all: bool, each: &mut dyn FnMut(&[u8], Verdict)) -> usize {
        let mut start = 0;
        while let Some(length) = self.next_cut(&uncut[start..], is_all) {
            each(&uncut[start..start + length], self.verdict);
            start += length;
            self.offset += length as u64;
            self.fed = None;
        }
        start
    }

    /// Returns the length of the next piece; `None` if more data is needed, or nothing is left.
    fn next_cut(&mut self, data: &[u8], is_all: bool) -> Option<usize> {
        if data.is_empty() || self.fed.is_none() && data.len() < SAMPLE_BYTES && !is_all {
            return None;
        }
        let fed = *self.fed.get_or_insert_with(|| {
            self.verdict = self.check.check(&data[..data.len().min(SAMPLE_BYTES)]);
            self.cutter.restart();
            0
        });
        let cut = match self.verdict {
            Verdict::Compressible => self.cutter.next_cut(&data[fed..]).map(|bytes| fed + bytes),
            Verdict::Incompressible => {
                let left = FIXED_BYTES - (self.offset % FIXED_BYTES as u64) as usize;
                (data.len() >= left).then_some(left)
            }
        };
        self.fed = Some(data.len());
        cut.or(is_all.then_some(data.len()))
    }
}
