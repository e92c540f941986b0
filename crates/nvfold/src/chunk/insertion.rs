//! What enters an index: a chunk, and the condition for it.

use crate::media::ChunkRef;

/// A chunk that is to enter the index. Its entry is durable.
#[derive(Clone, Copy)]
pub struct Insertion<'k> {
    /// Its weak fingerprint.
    pub weak: u32,
    /// The chunk.
    pub chunk: ChunkRef,
    /// The chunk is refused if the index has another one with its fingerprint that is not among these. `None`: it is
    /// never refused.
    pub known: Option<&'k [ChunkRef]>,
}

impl Insertion<'_> {
    /// Makes one that is never refused.
    pub fn always(weak: u32, chunk: impl Into<ChunkRef>) -> Insertion<'static> {
        Insertion { weak, chunk: chunk.into(), known: None }
    }
}
