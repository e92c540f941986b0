//! Background work of a policy: the interface through which a policy asks `fs` for it.
//!
//! The problem: a policy that defers work has to return to files, entries and inodes, which it must not know.
//!
//! The idea: `fs` gives the policy opaque [`Token`]s and file numbers, and takes them back through [`Host`]. The
//! policy's [`step`](super::Dedup::step) chooses what to do next. `fs` then reads the entry or file, lets the policy
//! propose ([`Finder`]), locks the file, checks that nothing has changed, and publishes.

use super::stream::Stream;
use super::streams::Seam;
use crate::chunk::Chunks;
use crate::chunk::reference::Hold;
use crate::chunk::transaction::Transaction;
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef};
use crate::words::FileId;
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Identifies a log entry; only `fs` can read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) words: [u64; 3],
    pub(crate) tail: u32,
}

/// How data that was stored without a fingerprint is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfingerprinted {
    /// It is left as it is.
    Stays,
    /// The policy is told its file, and the chunks get their fingerprints in the background.
    Filed,
    /// Its log entry is flagged dedupe_needed, and the policy is told the entry (DeNOVA IV-D).
    Queued,
}

/// The calls that a policy makes to `fs` for its background work.
pub trait Host {
    /// Returns the first file in use whose number is at least `from`.
    fn next_file(&self, from: u64) -> Option<FileId>;

    /// Gives a bounded number of a file's blocks, from offset `from` on, the weak fingerprints that they lack. Skips
    /// files whose policy does not share its data with others, and blocks that cannot be read. Nothing is left to do
    /// if the file is gone.
    ///
    /// # Errors
    /// Errors of the whole device.
    fn fill(&self, file: FileId, from: u64) -> Result<Filled>;

    /// Ends a stream of a file: its tail will not grow any more. Nothing is left to do if the file is gone.
    ///
    /// # Errors
    /// ENOSPC and errors of the whole device.
    fn end_stream(&self, file: FileId, stream: Stream) -> Result<()>;

    /// Cuts the pieces around a seam of a file again. Nothing is left to do if the file is gone.
    ///
    /// # Errors
    /// ENOSPC and errors of the whole device.
    fn cut_seam(&self, seam: Seam) -> Result<()>;

    /// Shares a batch of the blocks to which a log entry still refers, from a file offset on, as `finder` proposes.
    /// Nothing is left to do for an entry that is gone or cannot be read.
    ///
    /// # Errors
    /// ENOSPC and errors of the whole device.
    fn share(&self, work: ShareRequest<'_>, finder: &dyn Finder) -> Result<Shared>;
}

/// The arguments of [`Host::share`].
pub struct ShareRequest<'w> {
    /// The log entry.
    pub entry: Token,
    /// File offset at which to continue; 0 means the beginning of the entry.
    pub from: u64,
    /// True if the batch is not tried again: blocks that other writers change meanwhile are skipped.
    pub is_last_try: bool,
    /// Scratch memory.
    pub bytes: &'w mut Vec<u8>,
}

/// The result of [`Host::fill`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Filled {
    /// Number of chunks that got a fingerprint.
    pub chunks: u64,
    /// File offset at which to continue; `None` at the end of the file.
    pub next: Option<u64>,
}

/// The result of [`Host::share`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared {
    /// Number of blocks looked at.
    pub blocks: u64,
    /// Number of bytes that are shared now.
    pub shared_bytes: u64,
    /// The part of the entry that is left to do.
    pub left: Left,
}

/// The part of a log entry that is left to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Left {
    /// Nothing: the entry is complete or gone.
    #[default]
    Nothing,
    /// The blocks from this file offset on.
    From(u64),
    /// The same batch again, because another writer interfered.
    Again,
}

/// Finds blocks that equal stored blocks, for a policy.
pub trait Finder {
    /// Returns the fingerprint of a block, weak and strong as the policy needs them.
    fn fingerprint(&self, block: &[u8]) -> Fingerprint;

    /// Proposes a [`Fate`] for each block of the batch that has a fingerprint. No lock is held: the batch works on
    /// copies.
    fn find(&self, batch: &mut Batch<'_>, chunks: &Chunks);
}

/// What is to happen to a stored block.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays as it is: nothing is known about it, or it is done.
    Stays,
    /// No other block has this content. It can be found from now on.
    Unique,
    /// It equals the unique block at this position of the batch.
    Duplicate(usize),
    /// It equals the block that is held.
    Equal(Hold),
}

/// A stored block to which a file refers.
#[derive(Debug)]
pub struct Stored {
    /// File offset.
    pub offset: u64,
    /// Number of the block.
    pub block: BlockNumber,
    /// The fingerprint; empty until it is computed.
    pub fingerprint: Fingerprint,
    /// Blocks with the same weak fingerprint and different bytes, and this block itself.
    pub known: SmallVec<[ChunkRef; 2]>,
    /// What is to happen to it.
    pub fate: Fate,
}

impl Stored {
    /// Creates one whose fate is [`Fate::Stays`].
    pub fn new(offset: u64, block: BlockNumber) -> Stored {
        let known = SmallVec::from_slice(&[block.into()]);
        Stored { offset, block, fingerprint: Fingerprint::default(), known, fate: Fate::Stays }
    }
}

/// Stored blocks that are looked at together.
pub struct Batch<'a> {
    /// The blocks.
    pub pieces: Vec<Stored>,
    /// Copies of their bytes, one after another.
    pub bytes: &'a mut Vec<u8>,
    /// The transaction, with everything that was flushed meanwhile.
    pub tx: Transaction<'a>,
    /// Holds that are not needed. They are given back when the search is over.
    pub given_back: Vec<Hold>,
}

impl Batch<'_> {
    /// Returns the copied bytes of the block at position `at`.
    pub fn bytes_of(&self, at: usize) -> &[u8] {
        &self.bytes[at * BLOCK..(at + 1) * BLOCK]
    }
}
