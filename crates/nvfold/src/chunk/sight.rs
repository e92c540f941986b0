//! The answer of a quick look into an index: which entries are worth prefetching. It takes no reference and promises nothing.

use crate::media::ChunkRef;

/// What was there for a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// There was no chunk with it.
    Nothing,
    /// This one was the first.
    Chunk(ChunkRef),
    /// Whether there is one takes a search.
    Unclear,
}
