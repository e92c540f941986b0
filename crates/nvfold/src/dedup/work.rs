//! Background work of a policy: the interface through which a policy asks `fs` for it.
//!
//! The problem: a policy that defers work has to return to files, entries and inodes, which it must not know.
//!
//! The idea: `fs` gives the policy opaque [`Token`]s and file numbers, and takes them back through [`Host`]. The policy's
//! [`step`](super::Dedup::step) chooses what to do next. `fs` then reads what the token names, lets the policy propose
//! ([`Finder`]), locks the file, checks that nothing has changed, and publishes.

use super::stream::Stream;
use crate::chunk::Chunks;
use crate::chunk::reference::Hold;
use crate::chunk::transaction::Transaction;
use crate::error::Result;
use crate::fingerprint::Fingerprint;
use crate::media::{BLOCK_BYTES, BlockNumber};
use smallvec::SmallVec;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Names a log entry; only `fs` looks inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token {
    pub(crate) words: [u64; 3],
    pub(crate) tail: u32,
}

/// What becomes of data that was stored without a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfingerprinted {
    /// Nothing.
    Stays,
    /// Its file is told to the policy, and its chunks get their fingerprints in the background.
    Filed,
    /// Its log entry is flagged dedupe_needed, and told to the policy.
    Queued,
}

/// What a policy may ask of `fs` for its work in the background.
pub trait Host {
    /// The first file in use whose number is not below `from`.
    fn next_file(&self, from: u64) -> Option<u64>;

    /// Gives blocks of a file from an offset on, a bounded number of them, the weak fingerprints that they lack. Files
    /// whose own policy keeps its data to itself are left out, and so is what cannot be read.
    ///
    /// # Errors
    /// Those of the whole device.
    fn fill(&self, file: u64, from: u64) -> Result<Filled>;

    /// A stream of a file is over: nobody goes on with its tail.
    ///
    /// # Errors
    /// ENOSPC, those of the whole device.
    fn end_stream(&self, file: u64, stream: Stream) -> Result<()>;

    /// Cuts the pieces around a seam of a file anew.
    ///
    /// # Errors
    /// ENOSPC, those of the whole device.
    fn cut_seam(&self, file: u64, seam: u64) -> Result<()>;

    /// Shares a batch of the blocks that an entry still names from a file offset on, as `finder` proposes. `is_last_try`:
    /// the batch is not to be looked at again, whatever other writers do. `bytes` is memory to work in. Of an entry that is
    /// gone or cannot be read nothing is left.
    ///
    /// # Errors
    /// ENOSPC, those of the whole device.
    fn share(&self, work: Share<'_>, finder: &dyn Finder) -> Result<Shared>;
}

/// See [`Host::share`].
pub struct Share<'w> {
    /// The entry.
    pub entry: Token,
    /// File offset to go on at; 0: from its beginning.
    pub from: u64,
    /// Leave what other writers change.
    pub is_last_try: bool,
    /// Memory to work in.
    pub bytes: &'w mut Vec<u8>,
}

/// What [`Host::fill`] did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filled {
    /// Chunks that got a fingerprint.
    pub chunks: u64,
    /// Where to go on.
    pub next: Option<u64>,
}

/// What [`Host::share`] did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared {
    /// Blocks looked at.
    pub blocks: u64,
    /// Bytes that are shared now.
    pub shared_bytes: u64,
    /// What is left of the entry.
    pub left: Left,
}

/// What is left to do of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Left {
    /// Nothing: it is complete, or gone.
    #[default]
    Nothing,
    /// Blocks from this file offset on.
    From(u64),
    /// The same batch again: another writer was in between.
    Again,
}

/// How a policy finds what is equal to stored blocks.
pub trait Finder {
    /// All that is to be known of a block's bytes.
    fn fingerprint(&self, block: &[u8]) -> Fingerprint;

    /// Proposes a [`Fate`] for each block of the batch that has a fingerprint. No lock is held; the batch has copies.
    fn find(&self, batch: &mut Batch<'_>, chunks: &Chunks);
}

/// What becomes of a stored block.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays: nothing is known of it, or all is done.
    Stays,
    /// Nobody else has it. It can be found from now on.
    Unique,
    /// As a unique one of this batch, by its place.
    Twin(usize),
    /// This one is equal.
    Equal(Hold),
}

/// A stored block that a file names.
#[derive(Debug)]
pub struct Stored {
    /// File offset.
    pub offset: u64,
    /// Where it lies.
    pub block: BlockNumber,
    /// What is known of it.
    pub fingerprint: Fingerprint,
    /// Blocks with the same weak fingerprint that differ, and its own.
    pub known: SmallVec<[BlockNumber; 2]>,
    /// What becomes of it.
    pub fate: Fate,
}

impl Stored {
    /// One that stays so far.
    pub fn new(offset: u64, block: BlockNumber) -> Stored {
        let known = SmallVec::from_slice(&[block]);
        Stored { offset, block, fingerprint: Fingerprint::default(), known, fate: Fate::Stays }
    }
}

/// Some stored blocks that are looked at together.
pub struct Batch<'a> {
    /// The blocks.
    pub pieces: Vec<Stored>,
    /// Copies of their bytes, one behind the other.
    pub bytes: &'a mut Vec<u8>,
    /// With everything that was flushed meanwhile.
    pub tx: Transaction<'a>,
    /// Holds that are not needed: they are given back when the search is over.
    pub given_back: Vec<Hold>,
}

impl Batch<'_> {
    /// Returns the copy of a block.
    pub fn bytes_of(&self, at: usize) -> &[u8] {
        &self.bytes[at * BLOCK..(at + 1) * BLOCK]
    }
}
