//! The result of a quick look into an index: which entries are worth prefetching. It takes no reference and
//! guarantees nothing.

use crate::media::ChunkRef;

/// What the index held for a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// There was no chunk with this fingerprint.
    Nothing,
    /// This chunk was the first one.
    Chunk(ChunkRef),
    /// Only a search can tell.
    Unclear,
}
