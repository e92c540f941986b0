//! Claims: the blocks and references that an operation has taken before it commits.
//!
//! The problem: an operation allocates blocks and takes references before it knows whether it succeeds. Anything that
//! an error path forgets to release is leaked until the next crash.
//!
//! The idea: everything goes into [`Claims`]. Only they turn a reference into a block that an extent may map. If they
//! are dropped before [`Claims::published`], they release everything.

use super::Store;
use super::placer::Placer;
use crate::chunk::Unshareable;
use crate::chunk::epochs::Pin;
use crate::chunk::packed::NewPacked;
use crate::chunk::recount::Recount;
use crate::chunk::reference::{Hold, Reference};
use crate::chunk::transaction::Transaction;
use crate::compression::Compression;
use crate::error::{Error, Result, errno};
use crate::fingerprint::Fingerprint;
use crate::inode::Inode;
use crate::inode::extents::{Dropped, Extent};
use crate::media::log_entry::dedupe;
use crate::media::{BlockNumber, ChunkRef, Location, PackedNumber};
use crate::space::{BlockRun, Runs};
use crate::words::Times;
use pmem::Flight;
use smallvec::SmallVec;

/// The blocks and references of one operation: see the module.
pub(crate) struct Claims<'a> {
    core: &'a Store,
    /// Decides about new data.
    pub(crate) policy: Placer<'a>,
    /// Blocks of the file that receive content where it has none: reserved blocks, and the block of an end that grows.
    pub(crate) reserved: SmallVec<[BlockNumber; 1]>,
    /// The number of bytes that the file maps of the block whose end grows in place; 0 if there is none.
    pub(crate) grown_bytes: u64,
    /// New blocks.
    pub(crate) fresh: Runs,
    shared: SmallVec<[BlockNumber; 1]>,
    held: SmallVec<[Hold; 1]>,
    /// Packed chunks, one for each reference that was taken.
    shared_packed: SmallVec<[PackedNumber; 0]>,
    /// A packed chunk that was extended in place.
    grown: Option<Grown>,
    /// Keeps packed chunks from moving while their bytes are being written.
    pin: Option<Pin<'a>>,
    /// Blocks and packed chunks with new entries: chunk, count, fingerprint.
    entered: SmallVec<[(ChunkRef, u32, Fingerprint); 1]>,
    /// The dedup transaction, and everything that was flushed for it.
    pub(crate) tx: Transaction<'a>,
    /// True if something was stored without a fingerprint.
    pub(crate) lacks_fingerprints: bool,
    /// True if the stored data is updated data, which goes to separate pools (DeEXT III-C).
    pub(crate) is_update: bool,
    /// How new packed chunks are stored.
    pub(crate) compression: Compression,
    /// The dedupe-flag of the log entries that publish the data.
    pub(crate) dedupe: u8,
    /// What the change does to mtime and ctime.
    pub(crate) times: Times,
    /// True once the change was committed: what was claimed belongs to the file.
    is_published: bool,
}

/// A packed chunk at `address` that was extended from `length` to `longer` bytes.
#[derive(Clone, Copy)]
pub(crate) struct Grown {
    pub(crate) chunk: PackedNumber,
    pub(crate) address: u64,
    pub(crate) length: u64,
    pub(crate) longer: u64,
}

impl Grown {
    /// Returns the extent of the new bytes.
    pub(crate) fn new_extent(&self) -> Extent {
        let location = Location::Packed(self.chunk, 0).plus(self.length);
        Extent { length: self.longer - self.length, location, unwritten: false }
    }
}

/// New chunks, with their fingerprints, that may be concurrent duplicates: another writer may have published an equal
/// one.
pub(crate) type Concurrent = SmallVec<[(ChunkRef, Fingerprint); 0]>;

impl<'a> Claims<'a> {
    /// Begins an operation that stores no data.
    pub(crate) fn new(core: &'a Store) -> Claims<'a> {
        Claims::with_policy(core, Placer::of_no_file(core.policies.of(None)))
    }

    #[inline]
    pub(crate) fn with_policy(core: &'a Store, policy: Placer<'a>) -> Claims<'a> {
        Claims::all(core, policy, core.chunks.begin())
    }

    /// Begins a write to a file.
    #[inline]
    pub(crate) fn of_write(core: &'a Store, inode: &Inode, policy: Placer<'a>, times: Times) -> Claims<'a> {
        let mut claims = Claims::with_compression(core, policy, core.compression_for(inode));
        claims.times = times;
        claims
    }

    /// Begins an operation that stores data of a file, compressed as `compression` says.
    #[inline]
    pub(crate) fn with_compression(core: &'a Store, policy: Placer<'a>, compression: Compression) -> Claims<'a> {
        let mut claims = Claims::with_policy(core, policy);
        claims.compression = compression;
        claims
    }

    /// Begins the claims of an operation that has already begun its transaction.
    pub(crate) fn with_transaction(core: &'a Store, tx: Transaction<'a>) -> Claims<'a> {
        Claims::all(core, Placer::of_no_file(core.policies.of(None)), tx)
    }

    #[inline]
    fn all(core: &'a Store, policy: Placer<'a>, tx: Transaction<'a>) -> Claims<'a> {
        Claims {
            core,
            policy,
            reserved: SmallVec::new(),
            grown_bytes: 0,
            fresh: Runs::new(),
            shared: SmallVec::new(),
            held: SmallVec::new(),
            shared_packed: SmallVec::new(),
            grown: None,
            pin: None,
            entered: SmallVec::new(),
            tx,
            lacks_fingerprints: false,
            is_update: false,
            compression: Compression::Off,
            dedupe: dedupe::NONE,
            times: Times::Stamped,
            is_published: false,
        }
    }

    /// Takes over a reference, and returns the block that one extent may map for it.
    #[inline]
    pub(crate) fn keep(&mut self, reference: Reference) -> BlockNumber {
        let block = reference.take().block().expect("who shares whole blocks is given blocks");
        self.shared.push(block);
        block
    }

    /// Takes over a reference on a packed chunk, and returns the chunk that one extent may map for it.
    pub(crate) fn keep_packed(&mut self, reference: Reference) -> PackedNumber {
        let chunk = reference.take().packed().expect("who shares packed chunks is given packed chunks");
        self.shared_packed.push(chunk);
        chunk
    }

    /// Takes over a reference that is held by update count, and returns the block that one extent may map for it.
    pub(crate) fn keep_held(&mut self, hold: Hold) -> BlockNumber {
        let block = hold.block();
        self.held.push(hold);
        block
    }

    /// Takes one more reference on a block that a locked inode maps.
    pub(crate) fn share(&mut self, block: BlockNumber) -> Result<()> {
        let reference = self.one_more(block.into())?;
        self.keep(reference);
        Ok(())
    }

    fn one_more(&mut self, chunk: ChunkRef) -> Result<Reference> {
        self.require_entry(chunk)?;
        self.tx.share(chunk).map_err(|refused| unshareable(self.core, chunk, refused))
    }

    fn require_entry(&self, chunk: ChunkRef) -> Result<()> {
        // If the entry does not exist, the extent that references it is damaged.
        if self.core.chunks.entries.exists(chunk) { Ok(()) } else { Err(self.core.lost_chunk(chunk)) }
    }

    /// Takes one more reference on a packed chunk that a locked inode maps.
    pub(crate) fn share_packed(&mut self, chunk: PackedNumber) -> Result<()> {
        let reference = self.one_more(chunk.into())?;
        self.keep_packed(reference);
        Ok(())
    }

    /// Takes one more reference on every chunk that an extent of a locked inode maps.
    pub(crate) fn share_extent(&mut self, extent: &Extent) -> Result<()> {
        match extent.packed() {
            Some(chunk) => self.share_packed(chunk),
            None => extent.blocks().blocks().try_for_each(|block| self.share(block)),
        }
    }

    /// Takes `times` more references on a chunk that a locked inode maps.
    pub(crate) fn share_times(&mut self, chunk: ChunkRef, times: u32) -> Result<()> {
        self.require_entry(chunk)?;
        let references = self.tx.share_times(chunk, times).map_err(|refused| unshareable(self.core, chunk, refused))?;
        for reference in references {
            match chunk {
                ChunkRef::Block(_) => _ = self.keep(reference),
                ChunkRef::Packed(_) => _ = self.keep_packed(reference),
            }
        }
        Ok(())
    }

    /// Records a new block. Its chunk entry is written unless the index finds the block without one; then only a
    /// strong fingerprint or a second reference requires an entry on the media.
    pub(crate) fn enter(&mut self, block: BlockNumber, count: u32, fingerprint: &Fingerprint) {
        if Claims::needs_entry(self.core, self.policy, count, fingerprint) {
            self.tx.add(block, count, fingerprint);
        }
        self.entered.push((block.into(), count, *fingerprint));
    }

    /// True if a block with this fingerprint and so many references needs a chunk entry.
    pub(crate) fn needs_entry(core: &Store, policy: Placer<'_>, count: u32, fingerprint: &Fingerprint) -> bool {
        count > 1 || fingerprint.strong.is_some() || !policy.goes_by_index() || !core.chunks.finds_private()
    }

    /// Records a new block with the content of one that is stored already, and with its fingerprint. The caller enters
    /// it in the index after the commit: equal blocks are not merged.
    pub(crate) fn enter_copy(&mut self, block: BlockNumber, count: u32, fingerprint: &Fingerprint) {
        if count > 1 || fingerprint.strong.is_some() || !self.core.chunks.finds_private() {
            self.tx.add(block, count, fingerprint);
        }
        self.entered.push((block.into(), count, Fingerprint::default()));
    }

    /// Keeps packed chunks from moving until the claims are published or dropped. Called before chunks are placed or
    /// extended.
    pub(crate) fn pin(&mut self) {
        self.pin.get_or_insert_with(|| self.core.chunks.epochs.pin());
    }

    /// Writes the entry of a new packed chunk.
    pub(crate) fn enter_packed(&mut self, new: &NewPacked, count: u32, fingerprint: &Fingerprint) {
        self.tx.add_packed(new, count, fingerprint);
        self.entered.push((new.number.into(), count, *fingerprint));
    }

    /// Writes the new length of a packed chunk to its entry. The caller writes the new bytes.
    pub(crate) fn grow(&mut self, grown: Grown) {
        self.grown = Some(grown);
        self.tx.flight.add(self.core.chunks.set_length(grown.chunk, grown.address, grown.longer));
    }

    /// True if nothing new is stored.
    pub(crate) fn stores_nothing(&self) -> bool {
        self.fresh.is_empty() && self.entered.is_empty()
    }

    /// Turns held update counts into reference counts, once the log durably references the blocks.
    pub(crate) fn count_holds(&mut self, flight: &mut Flight) {
        for hold in self.held.drain(..) {
            self.core.chunks.count_hold(hold, flight);
        }
    }

    /// Ends the claims after the commit: other writers may now find the new chunks, and `old` loses its references.
    /// Returns the new chunks that may be concurrent duplicates.
    pub(crate) fn published(&mut self, ino: u64, old: &Dropped) -> Concurrent {
        debug_assert!(self.held.is_empty(), "what was held is counted before");
        debug_assert!(!self.is_published, "claims serve one change");
        let core = self.core;
        if core.is_walked(ino) {
            core.chunks.with_recount(|recount| self.recount(recount, old));
        }
        let policy = self.policy;
        let known = self.tx.given_back();
        let mut concurrent = Concurrent::new();
        for (chunk, _, fingerprint) in &self.entered {
            if !policy.published(*chunk, fingerprint, known, &core.chunks) {
                concurrent.push((*chunk, *fingerprint));
            }
        }
        let fresh: u64 = self.fresh.iter().map(|run| run.count).sum();
        self.reserved.sort_unstable();
        core.release(old, &self.reserved, fresh);
        self.pin = None;
        self.is_published = true;
        concurrent
    }

    /// Updates a running recount: the extents of a walked inode gained what was claimed and lost `old`.
    fn recount(&self, recount: &Recount, old: &Dropped) {
        let fresh = self.fresh.iter().flat_map(|run| run.blocks());
        fresh.chain(self.shared.iter().copied()).for_each(|block| recount.count(block, false));
        for block in &self.reserved {
            recount.count(*block, false);
            recount.written(*block);
        }
        self.shared_packed.iter().for_each(|chunk| recount.count(*chunk, false));
        for (chunk, count, _) in &self.entered {
            // For a block, `fresh` has already counted the first reference.
            let first = u32::from(chunk.block().is_some());
            (first..*count).for_each(|_| recount.count(*chunk, false));
        }
        recount.uncount_all(old.chunks());
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let has_given_back = !self.tx.given_back().is_empty();
        if self.is_published && !has_given_back || self.core.panics.abandons() {
            return;
        }
        if has_given_back {
            self.core.release(&self.tx.given_back().iter().copied().collect(), &[], 0);
        }
        if !self.held.is_empty() {
            self.core.give_back(self.held.drain(..));
        }
        if self.is_published {
            return;
        }
        let has_chunks = !self.shared.is_empty() || !self.shared_packed.is_empty() || !self.entered.is_empty();
        if !has_chunks && self.fresh.is_empty() && self.reserved.is_empty() && self.grown.is_none() {
            return;
        }
        // A shared chunk may have lost all its other references meanwhile.
        let mut dropped = Dropped {
            blocks: runs_of(&self.shared),
            packed: std::mem::take(&mut self.shared_packed).into_iter().collect(),
        };
        let mut flight = Flight::new();
        for (chunk, count, _) in &self.entered {
            for _ in 0..*count {
                match chunk {
                    ChunkRef::Block(block) => _ = self.core.chunks.release(*block, &mut flight),
                    ChunkRef::Packed(packed) => dropped.packed.push(*packed),
                }
            }
        }
        // No store may still be in flight when the blocks get another user.
        let _ = self.core.region.fence((flight, std::mem::take(&mut self.tx.flight)));
        self.core.release(&dropped, &[], 0);
        if let Some(Grown { chunk, address, length, longer }) = self.grown.take() {
            let _ = self.core.region.fence(self.core.chunks.set_length(chunk, address, length));
            self.core.space.shrink_packed(address, longer, length);
        }
        self.fresh.iter().for_each(|run| self.core.free(*run));
    }
}

pub(crate) fn runs_of(blocks: &[BlockNumber]) -> Runs {
    blocks.iter().map(|start| BlockRun { start: *start, count: 1 }).collect()
}

/// Converts the reason why a chunk got no more references to an error: EMLINK, or EIO for damage and bad memory.
fn unshareable(core: &Store, chunk: ChunkRef, refused: Unshareable) -> Error {
    match refused {
        Unshareable::Saturated => Error::Posix {
            doing: "share a chunk",
            why: "it has as many references as can be counted",
            errno: errno::EMLINK,
        },
        Unshareable::Lost => core.lost_chunk(chunk),
        Unshareable::Bad(error) => Error::Device(error),
    }
}
