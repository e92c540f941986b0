//! What a quick look into an index tells, without a reference and without a promise: what is worth fetching.

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
