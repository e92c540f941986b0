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
use crate::dedup::{NewChunk, Piece};
use crate::error::{Error, Result, errno};
use crate::fingerprint::Fingerprint;
use crate::inode::Inode;
use crate::inode::extents::{Dropped, Extent};
use crate::media::log_entry::dedupe;
use crate::media::{BLOCK_BYTES, BlockNumber, ChunkRef, Location, PackedNumber};
use crate::space::{BlockRun, Purpose, Runs, add_run};
use crate::words::Times;
use pmem::Flight;
use smallvec::SmallVec;

/// The blocks and references of one operation: see the module.
pub(crate) struct Claims<'a> {
    store: &'a Store,
    how: Storing<'a>,
    taken: ClaimedParts<'a>,
    /// The dedup transaction, and everything that was flushed for it.
    tx: Transaction<'a>,
    /// True once the change was committed: what was taken belongs to the file.
    is_published: bool,
}

/// How an operation stores data.
struct Storing<'a> {
    /// Decides about new data.
    policy: Placer<'a>,
    /// How new packed chunks are stored.
    compression: Compression,
    /// True if the stored data is updated data, which goes to separate pools (DeEXT III-C).
    is_update: bool,
    /// True if something was stored without a fingerprint.
    lacks_fingerprints: bool,
    /// The dedupe-flag of the log entries that publish the data.
    dedupe: u8,
    /// What the change does to mtime and ctime.
    times: Times,
}

/// What an operation has taken, and gives back if it does not publish it.
struct ClaimedParts<'a> {
    /// New blocks.
    fresh: Runs,
    /// Blocks of the file that receive content where it has none: reserved blocks, and the block of an end that grows.
    reserved: SmallVec<[BlockNumber; 1]>,
    /// The number of bytes that the file maps of the block whose end grows in place; 0 if there is none.
    grown_bytes: u64,
    shared: SmallVec<[BlockNumber; 1]>,
    held: SmallVec<[Hold; 1]>,
    /// Packed chunks, one for each reference that was taken.
    shared_packed: SmallVec<[PackedNumber; 0]>,
    /// A packed chunk that was extended in place.
    grown: Option<Grown>,
    /// Keeps packed chunks from moving while their bytes are being written.
    pin: Option<Pin<'a>>,
    /// New blocks and packed chunks.
    entered: SmallVec<[NewChunk; 1]>,
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
pub(super) type Concurrent = SmallVec<[(ChunkRef, Fingerprint); 0]>;

impl<'a> Claims<'a> {
    /// Begins an operation that stores no data.
    pub(crate) fn new(store: &'a Store) -> Claims<'a> {
        Claims::with_policy(store, Placer::of_no_file(store.policies.of(None)))
    }

    #[inline]
    pub(crate) fn with_policy(store: &'a Store, policy: Placer<'a>) -> Claims<'a> {
        Claims::all(store, policy, Compression::Off, Times::Stamped, store.chunks.begin())
    }

    /// Begins a write to a file.
    #[inline]
    pub(crate) fn of_write(store: &'a Store, inode: &Inode, policy: Placer<'a>, times: Times) -> Claims<'a> {
        Claims::all(store, policy, store.compression_for(inode), times, store.chunks.begin())
    }

    /// Begins an operation that stores data of a file, compressed as `compression` says.
    #[inline]
    pub(crate) fn with_compression(store: &'a Store, policy: Placer<'a>, compression: Compression) -> Claims<'a> {
        Claims::all(store, policy, compression, Times::Stamped, store.chunks.begin())
    }

    /// Begins the claims of an operation that has already begun its transaction.
    pub(crate) fn with_transaction(store: &'a Store, tx: Transaction<'a>) -> Claims<'a> {
        let policy = Placer::of_no_file(store.policies.of(None));
        Claims::all(store, policy, Compression::Off, Times::Stamped, tx)
    }

    #[inline(always)]
    fn all(
        store: &'a Store,
        policy: Placer<'a>,
        compression: Compression,
        times: Times,
        mut tx: Transaction<'a>,
    ) -> Claims<'a> {
        tx.domain = policy.domain();
        Claims {
            store,
            how: Storing {
                policy,
                compression,
                is_update: false,
                lacks_fingerprints: false,
                dedupe: dedupe::NONE,
                times,
            },
            taken: ClaimedParts {
                fresh: Runs::new(),
                reserved: SmallVec::new(),
                grown_bytes: 0,
                shared: SmallVec::new(),
                held: SmallVec::new(),
                shared_packed: SmallVec::new(),
                grown: None,
                pin: None,
                entered: SmallVec::new(),
            },
            tx,
            is_published: false,
        }
    }

    #[inline]
    pub(crate) fn policy(&self) -> Placer<'a> {
        self.how.policy
    }

    pub(crate) fn compression(&self) -> Compression {
        self.how.compression
    }

    #[inline]
    pub(crate) fn times(&self) -> Times {
        self.how.times
    }

    #[inline]
    pub(crate) fn dedupe(&self) -> u8 {
        self.how.dedupe
    }

    pub(crate) fn set_dedupe(&mut self, flag: u8) {
        self.how.dedupe = flag;
    }

    pub(crate) fn is_update(&self) -> bool {
        self.how.is_update
    }

    pub(crate) fn set_update(&mut self, is_update: bool) {
        self.how.is_update = is_update;
    }

    /// Notes that something is stored without a fingerprint.
    #[inline]
    pub(crate) fn stored_without_fingerprint(&mut self) {
        self.how.lacks_fingerprints = true;
    }

    /// Notes that something is stored with this fingerprint, or without.
    #[inline]
    pub(super) fn stored_with(&mut self, fingerprint: &Fingerprint) {
        self.how.lacks_fingerprints |= fingerprint.weak.is_none();
    }

    /// True if something was stored without a fingerprint.
    #[inline]
    pub(crate) fn lacks_fingerprints(&self) -> bool {
        self.how.lacks_fingerprints
    }

    /// Lets the policy decide about pieces.
    #[inline]
    pub(crate) fn place(&mut self, pieces: &mut [Piece<'_>]) {
        self.how.policy.place(pieces, &mut self.tx);
    }

    /// Returns the dedup transaction.
    #[inline]
    pub(crate) fn transaction(&mut self) -> &mut Transaction<'a> {
        &mut self.tx
    }

    /// Returns what is on its way to the media with this operation.
    #[inline]
    pub(crate) fn flight(&mut self) -> &mut Flight {
        &mut self.tx.flight
    }

    /// Writes bytes that the commit needs to the media, past the caches.
    #[inline]
    #[track_caller]
    pub(crate) fn stream(&mut self, address: u64, bytes: &[u8]) {
        self.tx.flight.add(self.store.region.stream(address, bytes));
    }

    /// Takes `count` new blocks for data, and returns them.
    ///
    /// # Errors
    /// ENOSPC.
    #[inline]
    pub(crate) fn allocate(&mut self, doing: &'static str, count: u64) -> Result<&[BlockRun]> {
        let first = self.taken.fresh.len();
        self.store.space.allocate(doing, count, Purpose::Data, &mut self.taken.fresh)?;
        Ok(&self.taken.fresh[first..])
    }

    /// Takes one new block for data.
    ///
    /// # Errors
    /// ENOSPC.
    #[inline]
    pub(crate) fn allocate_one(&mut self, doing: &'static str) -> Result<BlockNumber> {
        self.allocate(doing, 1).map(|runs| runs[0].start)
    }

    /// Stores whole blocks of data in new ones, and passes each run of them to `each`, with its offset in the data.
    ///
    /// # Errors
    /// ENOSPC.
    #[inline]
    #[track_caller]
    pub(crate) fn store_new(
        &mut self,
        doing: &'static str,
        data: &[u8],
        mut each: impl FnMut(u64, BlockRun),
    ) -> Result<()> {
        let (store, first) = (self.store, self.taken.fresh.len());
        self.allocate(doing, data.len() as u64 / BLOCK_BYTES)?;
        let mut at = 0;
        for run in &self.taken.fresh[first..] {
            let end = at + run.count * BLOCK_BYTES;
            self.tx.flight.add(store.region.stream(run.start.address(), &data[at as usize..end as usize]));
            each(at, *run);
            at = end;
        }
        Ok(())
    }

    /// Returns the new blocks so far.
    pub(crate) fn fresh(&self) -> &[BlockRun] {
        &self.taken.fresh
    }

    /// Takes a block that the file has reserved, for content.
    #[inline]
    pub(super) fn take_reserved(&mut self, block: BlockNumber) {
        self.taken.reserved.push(block);
    }

    /// Takes the block of an end that grows in place, of which the file maps `mapped_bytes` so far.
    pub(super) fn take_end(&mut self, block: BlockNumber, mapped_bytes: u64) {
        self.take_reserved(block);
        self.taken.grown_bytes = mapped_bytes;
    }

    /// Returns the blocks of the file that receive content.
    #[inline]
    pub(crate) fn reserved(&self) -> &[BlockNumber] {
        &self.taken.reserved
    }

    /// Returns how many bytes the file maps of the block whose end grows in place; 0 if there is none.
    #[inline]
    pub(crate) fn grown_bytes(&self) -> u64 {
        self.taken.grown_bytes
    }

    /// Takes over a reference, and returns the block that one extent may map for it.
    #[inline]
    pub(crate) fn keep(&mut self, reference: Reference) -> BlockNumber {
        let block = reference.take().block().expect("who shares whole blocks is given blocks");
        self.taken.shared.push(block);
        block
    }

    /// Takes over a reference on a packed chunk, and returns the chunk that one extent may map for it.
    pub(crate) fn keep_packed(&mut self, reference: Reference) -> PackedNumber {
        let chunk = reference.take().packed().expect("who shares packed chunks is given packed chunks");
        self.taken.shared_packed.push(chunk);
        chunk
    }

    /// Takes over a reference that is held by update count, and returns the block that one extent may map for it.
    pub(crate) fn keep_held(&mut self, hold: Hold) -> BlockNumber {
        let block = hold.block();
        self.taken.held.push(hold);
        block
    }

    /// Takes one more reference on a block that a locked inode maps.
    pub(crate) fn share(&mut self, block: BlockNumber) -> Result<()> {
        let reference = self.one_more(block.into())?;
        self.keep(reference);
        Ok(())
    }

    fn one_more(&mut self, chunk: ChunkRef) -> Result<Reference> {
        self.store.one_more(chunk, &mut self.tx)
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
        self.store.require_entry(chunk)?;
        let references =
            self.tx.share_times(chunk, times).map_err(|refused| unshareable(self.store, chunk, refused))?;
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
        if Claims::needs_entry(self.store, self.how.policy, count, fingerprint) {
            self.tx.add(block, count, fingerprint);
        }
        self.taken.entered.push(NewChunk { chunk: block.into(), count, fingerprint: *fingerprint });
    }

    /// True if a block with this fingerprint and so many references needs a chunk entry.
    #[inline]
    pub(super) fn needs_entry(store: &Store, policy: Placer<'_>, count: u32, fingerprint: &Fingerprint) -> bool {
        count > 1 || fingerprint.strong.is_some() || !policy.goes_by_index() || !store.chunks.finds_private()
    }

    /// Records a new block with the content of one that is stored already, and with its fingerprint. The caller enters
    /// it in the index after the commit: equal blocks are not merged.
    pub(crate) fn enter_copy(&mut self, block: BlockNumber, count: u32, fingerprint: &Fingerprint) {
        if count > 1 || fingerprint.strong.is_some() || !self.store.chunks.finds_private() {
            self.tx.add(block, count, fingerprint);
        }
        let fingerprint = Fingerprint::default();
        self.taken.entered.push(NewChunk { chunk: block.into(), count, fingerprint });
    }

    /// Keeps packed chunks from moving until the claims are published or dropped. Called before chunks are placed or
    /// extended.
    pub(crate) fn pin(&mut self) {
        self.taken.pin.get_or_insert_with(|| self.store.chunks.epochs.pin());
    }

    /// Writes the entry of a new packed chunk.
    pub(super) fn enter_packed(&mut self, new: &NewPacked, count: u32, fingerprint: &Fingerprint) {
        self.tx.add_packed(new, count, fingerprint);
        self.taken.entered.push(NewChunk { chunk: new.number.into(), count, fingerprint: *fingerprint });
    }

    /// Writes the new length of a packed chunk to its entry. The caller writes the new bytes.
    pub(crate) fn grow(&mut self, grown: Grown) {
        self.taken.grown = Some(grown);
        self.tx.flight.add(self.store.chunks.set_length(grown.chunk, grown.address, grown.longer));
    }

    /// True if nothing new is stored.
    #[inline]
    pub(super) fn stores_nothing(&self) -> bool {
        self.taken.fresh.is_empty() && self.taken.entered.is_empty()
    }

    /// Turns held update counts into reference counts, once the log durably references the blocks.
    pub(super) fn count_holds(&mut self, flight: &mut Flight) {
        for hold in self.taken.held.drain(..) {
            self.store.chunks.count_hold(hold, flight);
        }
    }

    /// Ends the claims after the commit: other writers may now find the new chunks, and `old` loses its references.
    /// Returns the new chunks that may be concurrent duplicates.
    pub(crate) fn published(&mut self, ino: u64, old: &Dropped) -> Concurrent {
        debug_assert!(self.taken.held.is_empty(), "what was held is counted before");
        debug_assert!(!self.is_published, "claims serve one change");
        let store = self.store;
        if store.is_walked(ino) {
            store.chunks.with_recount(|recount| self.recount(recount, old));
        }
        let new = &self.taken.entered;
        let refused = match new.is_empty() {
            true => Vec::new(),
            false => self.how.policy.published(new, self.tx.given_back(), &store.chunks),
        };
        let concurrent = new.iter().filter(|new| refused.contains(&new.chunk));
        let concurrent = concurrent.map(|new| (new.chunk, new.fingerprint)).collect();
        let fresh: u64 = self.taken.fresh.iter().map(|run| run.count).sum();
        self.taken.reserved.sort_unstable();
        store.release(old, &self.taken.reserved, fresh);
        self.taken.pin = None;
        self.is_published = true;
        concurrent
    }

    /// Updates a running recount: the extents of a walked inode gained what was claimed and lost `old`.
    fn recount(&self, recount: &Recount, old: &Dropped) {
        let fresh = self.taken.fresh.iter().flat_map(|run| run.blocks());
        fresh.chain(self.taken.shared.iter().copied()).for_each(|block| recount.count(block, false));
        for block in &self.taken.reserved {
            recount.count(*block, false);
            recount.written(*block);
        }
        self.taken.shared_packed.iter().for_each(|chunk| recount.count(*chunk, false));
        for NewChunk { chunk, count, .. } in &self.taken.entered {
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
        if self.is_published && !has_given_back || self.store.panics.abandons() {
            return;
        }
        if has_given_back {
            self.store.release(&self.tx.given_back().iter().copied().collect(), &[], 0);
        }
        if !self.taken.held.is_empty() {
            self.store.give_back(self.taken.held.drain(..));
        }
        if self.is_published {
            return;
        }
        let has_chunks =
            !self.taken.shared.is_empty() || !self.taken.shared_packed.is_empty() || !self.taken.entered.is_empty();
        if !has_chunks && self.taken.fresh.is_empty() && self.taken.reserved.is_empty() && self.taken.grown.is_none() {
            return;
        }
        // A shared chunk may have lost all its other references meanwhile.
        let mut dropped = Dropped {
            blocks: runs_of(&self.taken.shared),
            packed: std::mem::take(&mut self.taken.shared_packed).into_iter().collect(),
        };
        let mut flight = Flight::new();
        for NewChunk { chunk, count, .. } in &self.taken.entered {
            for _ in 0..*count {
                match chunk {
                    ChunkRef::Block(block) => _ = self.store.chunks.release(*block, &mut flight),
                    ChunkRef::Packed(packed) => dropped.packed.push(*packed),
                }
            }
        }
        // No store may still be in flight when the blocks get another user.
        let _ = self.store.region.fence((flight, std::mem::take(&mut self.tx.flight)));
        self.store.release(&dropped, &[], 0);
        if let Some(Grown { chunk, address, length, longer }) = self.taken.grown.take() {
            let _ = self.store.region.fence(self.store.chunks.set_length(chunk, address, length));
            self.store.space.shrink_packed(address, longer, length);
        }
        self.taken.fresh.iter().for_each(|run| self.store.free(*run));
    }
}

impl Store {
    fn require_entry(&self, chunk: ChunkRef) -> Result<()> {
        // If the entry does not exist, the extent that references it is damaged.
        if self.chunks.entries.exists(chunk) { Ok(()) } else { Err(self.lost_chunk(chunk)) }
    }

    fn one_more(&self, chunk: ChunkRef, tx: &mut Transaction<'_>) -> Result<Reference> {
        self.require_entry(chunk)?;
        tx.share(chunk).map_err(|refused| unshareable(self, chunk, refused))
    }

    /// Takes one more reference on every chunk that an extent of a locked inode maps, and adds each to `taken`: the
    /// caller releases them, or makes an extent that uses them.
    ///
    /// # Errors
    /// EMLINK, EIO for damage and bad memory; `taken` has the references taken before.
    pub(crate) fn refer(&self, extent: &Extent, tx: &mut Transaction<'_>, taken: &mut Dropped) -> Result<()> {
        if let Some(chunk) = extent.packed() {
            taken.packed.extend(self.one_more(chunk.into(), tx)?.take().packed());
        }
        for block in extent.blocks().blocks() {
            let _counted = self.one_more(block.into(), tx)?.take();
            add_run(&mut taken.blocks, BlockRun { start: block, count: 1 });
        }
        Ok(())
    }
}

pub(crate) fn runs_of(blocks: &[BlockNumber]) -> Runs {
    blocks.iter().map(|start| BlockRun { start: *start, count: 1 }).collect()
}

/// Converts the reason why a chunk got no more references to an error: EMLINK, or EIO for damage and bad memory.
fn unshareable(store: &Store, chunk: ChunkRef, refused: Unshareable) -> Error {
    match refused {
        Unshareable::Saturated => Error::Posix {
            doing: "share a chunk",
            why: "it has as many references as can be counted",
            errno: errno::EMLINK,
        },
        Unshareable::Lost => store.lost_chunk(chunk),
        Unshareable::Bad(error) => Error::Device(error),
    }
}
