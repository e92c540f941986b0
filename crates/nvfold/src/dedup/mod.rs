//! Share or store? The one question the write path asks of each piece of data.
//!
//! A policy proposes, `fs` publishes. A policy sees bytes and blocks, never inodes, logs or names. It takes
//! [references](crate::chunk::reference) through the chunk table; `fs` publishes the extents that use them, or gives
//! the references back. For background work a policy calls `fs` through a [`Host`](work::Host), with tokens that only
//! `fs` can read.
//!
//! | file | what |
//! |---|---|
//! | [`policy`] | which policies there are, by number and name |
//! | `batch` | the pieces of one request, and how policies that use the index place them |
//! | [`stream`], [`streams`] | files written in several requests: where to cut, and the tails that wait for more |
//! | [`work`] | background work |
//! | `origins` | the shortest run that is shared with what it was copied from |
//! | `filler` | adds the fingerprints that stored blocks lack |
//! | `serial` | how the statistics are serialized (feature `serde`) |
//! | [`auto`] | chooses the policy that suits a directory's data now |
//! | `off`, `inline`, [`nv_dedup`], [`denova`], [`deext`] | one complete policy each: options, queue, costs, schedule |
//!
//! A new policy is one file or folder, and one line each in [`policy::Policy`] and [`Policies::new`]. A program can
//! also bring its own policy ([`crate::MountOptions::custom_policy`]).

pub(crate) mod auto;
mod batch;
pub(crate) mod deext;
pub(crate) mod denova;
mod filler;
mod inline;
pub(crate) mod nv_dedup;
mod off;
mod origins;
pub(crate) mod policy;
#[cfg(feature = "serde")]
pub(crate) mod serial;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod work;

pub use batch::{Looks, NewChunk, Piece, Place, Places};
pub(crate) use denova::DeNova;
pub use nv_dedup::NvDedup;
pub(crate) use origins::ORIGIN_BYTES_LEAST;
pub use origins::ORIGIN_BYTES_MIN_RANGE;

use crate::chunk::transaction::Transaction;
use crate::chunk::{Chunks, Released};
use crate::compression::Compression;
use crate::error::Result;
use crate::fingerprint::{Fingerprint, Keys};
use crate::media::ChunkRef;
use crate::media::saved_state::{FILLED_ALL, FILLED_OWN};
use crate::space::Space;
use crate::words::FileId;
use crate::words::Stopwatch;
use auto::{Auto, Concrete};
use deext::DeExt;
use denova::queue::Node;
use filler::Filler;
use inline::Inline;
use off::Off;
use origins::OriginBytesMin;
use pmem::Region;
use policy::{Policy, PolicyStats};
use std::sync::Arc;
use streams::Streams;
use work::{Host, Token, Unfingerprinted};

/// The parts of a mounted device that policies use.
#[derive(Clone, Copy)]
pub struct PolicyDevice<'g> {
    /// The device.
    pub(crate) region: &'g Region,
    /// Its blocks.
    pub(crate) space: &'g Space,
    /// Its chunk table and index.
    pub(crate) chunks: &'g Chunks,
}

/// A dedup system; the methods are in the order in which a write calls them.
///
/// A program can bring its own ([`crate::MountOptions::custom_policy`]). It may keep fingerprints wherever it likes;
/// references are counted in the chunk table for every policy.
pub trait Dedup: Send + Sync {
    /// Returns the fingerprint of a piece, computed before the inode is locked. If it is empty, the piece is not
    /// entered in the chunk table.
    fn fingerprint(&self, piece: &[u8]) -> Fingerprint;

    /// Prefetches the lines of a block that [`Dedup::fingerprint`] reads.
    fn prefetch(&self, block: &[u8]) {
        pmem::prefetch_lines(block.as_ptr() as usize, block.len());
    }

    /// True if the policy never shares and never fingerprints, so that a write need not be examined block by block.
    fn stores_everything(&self) -> bool {
        false
    }

    /// True if the policy would store a block as it is, without looking for an equal one, although it looks at others.
    /// Called before the inode is locked.
    fn stores_unseen(&self, _block: &[u8]) -> bool {
        false
    }

    /// Called instead of [`Dedup::fingerprint`] and [`Dedup::place`] for a block that was stored because of
    /// [`Dedup::stores_unseen`].
    fn stored_unseen(&self) {}

    /// True if blocks of zeros are stored like all other data. Otherwise the file gets a hole in their place, and the
    /// policy never sees them: a hole costs less than a block that is shared.
    fn keeps_zeros(&self) -> bool {
        false
    }

    /// Called with the whole blocks of a request before the inode is locked, if the policy stores everything. The
    /// policy places none of them.
    fn observe_blocks(&self, _blocks: &[u8]) {}

    /// Returns which of the whole blocks of a request the policy looks at; `blocks` has them one after another.
    /// Called before the inode is locked, if the policy does not store everything. The other blocks get no
    /// [`Dedup::fingerprint`] and are not placed.
    fn looks_for(&self, _blocks: &[u8]) -> Looks {
        Looks::All
    }

    /// True if the policy finds blocks through the device's index alone. With a dram index, an unshared block then
    /// needs no chunk entry: the index refers to it. After a crash the background filler computes its fingerprint
    /// again.
    fn goes_by_index(&self) -> bool {
        false
    }

    /// Returns the streams of a policy that cuts them into packed chunks. Its pieces may have any length up to 64
    /// KiB, and it shares packed chunks. Other policies are offered whole blocks and share blocks.
    fn streams(&self) -> Option<&Streams> {
        None
    }

    /// Decides about the pieces of one request together, under the lock of the inode that is written. Each piece
    /// stays [`Place::Store`], or becomes [`Place::Shared`] if an equal block is stored. A piece that `fs` has found
    /// equal to another one of the request ([`Place::Duplicate`]) is decided already and is only counted.
    ///
    /// Candidates whose bytes differ are given back to the transaction. Whatever the policy learns about a piece it
    /// adds to the piece's fingerprint.
    fn place(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>);

    /// Makes the chunks that a request has stored available to others, now that they can be reached. Returns those for
    /// which another writer indexed a candidate after `place` looked, if `known` does not contain it. `fs` then looks
    /// again, and offers such a chunk only if the candidate differs.
    fn published(&self, new: &[NewChunk], known: &[ChunkRef], chunks: &Chunks) -> Vec<ChunkRef>;

    /// Called when one reference to the chunk was dropped; `left` says whether it is still referenced or free. A free
    /// chunk is not reused before this returns.
    fn released(&self, _chunk: ChunkRef, _left: Released) {}

    /// Called after a request of `bytes` bytes, without any lock: the place for work that is due every so many pieces.
    /// Blocks of zeros that became holes do not count.
    fn request_done(&self, _bytes: u64, _ground: &PolicyDevice<'_>) {}

    /// Says how data that was stored without a fingerprint is handled.
    fn unfingerprinted(&self) -> Unfingerprinted {
        Unfingerprinted::Stays
    }

    /// Records that a file has data without fingerprints; for [`Unfingerprinted::Filed`].
    fn record_unfingerprinted_file(&self, _file: FileId) {}

    /// Records that a log entry refers to data without fingerprints; for [`Unfingerprinted::Queued`]. `time` is when
    /// the entry was published, by the clock of the file system.
    fn record_unfingerprinted_entry(&self, _entry: Token, _blocks: u32, _time: i64) {}

    /// Does a bounded part of the background work. Returns true when nothing is left to do now.
    ///
    /// # Errors
    /// ENOSPC, EROFS and errors of the device. Work that failed is tried again.
    fn step(&self, _host: &dyn Host) -> Result<bool> {
        Ok(true)
    }

    /// True if the steps that are left may free space.
    fn may_free_space(&self) -> bool {
        false
    }
}

/// Options from which the policies of a mount are created.
pub(crate) struct PolicyOptions<'o> {
    /// The policy for new data.
    pub policy: Policy,
    /// The keys by which blocks are found.
    pub keys: Keys,
    /// Options of that policy.
    pub nv_dedup: &'o nv_dedup::options::NvDedupOptions,
    /// Options of that policy.
    pub denova: &'o denova::options::DeNovaOptions,
    /// Options of that policy.
    pub deext: stream::DeExtOptions,
    /// Options of that policy.
    pub auto: auto::options::AutoOptions,
    /// See [`crate::MountOptions::origin_bytes_min`].
    pub origin_bytes_min: Option<u64>,
    /// How packed chunks of the mount are compressed.
    pub compression: Compression,
    /// See [`crate::MountOptions::stopwatch`].
    pub stopwatch: Option<Stopwatch>,
    /// See [`crate::MountOptions::custom_policy`].
    pub custom_policy: Option<Arc<dyn Dedup>>,
}

/// Holds the policies of a mount.
pub(crate) struct Policies {
    /// The default policy, for files without their own.
    pub policy: Policy,
    /// Policy `nv-dedup`, with the costs and ratios that it has measured.
    pub nv_dedup: NvDedup,
    /// Policy `denova`, with its queue. Its daemon works whatever the policy of the mount is.
    pub denova: Arc<DeNova>,
    deext: Arc<DeExt>,
    inline: Arc<Inline>,
    off: Off,
    /// Stores what policy `icid` could not share.
    only_origins: Off,
    /// The shortest run that is shared with what it was copied from.
    pub(crate) origin_bytes_min: OriginBytesMin,
    auto: Auto,
    custom_policy: Option<Arc<dyn Dedup>>,
    /// Adds the fingerprints that stored blocks lack.
    pub(crate) filler: Arc<Filler>,
}

impl Policies {
    /// Creates all policies of a mount, with the one that new data uses.
    pub(crate) fn new(options: PolicyOptions<'_>) -> Policies {
        let PolicyOptions {
            policy,
            keys,
            nv_dedup,
            denova,
            deext,
            auto,
            origin_bytes_min,
            compression,
            stopwatch,
            custom_policy,
        } = options;
        let origin_bytes_min = OriginBytesMin::new(origin_bytes_min, stopwatch.clone());
        let for_streams = stopwatch.clone();
        let denova = Arc::new(DeNova::new(keys, nv_dedup, denova, stopwatch.clone()));
        let deext = DeExt::new(nv_dedup.weak, nv_dedup.strong, nv_dedup.verify, deext, for_streams);
        let deext = Arc::new(deext);
        let (given, for_auto) = (nv_dedup.costs, stopwatch.clone());
        let nv_dedup = NvDedup::with_keys(keys, nv_dedup, stopwatch);
        let filler = nv_dedup.filler.clone();
        filler.sweep();
        let inline = Arc::new(Inline::new(keys, filler.clone()));
        let concrete = Concrete { inline: inline.clone(), denova: denova.clone(), deext: deext.clone() };
        Policies {
            policy,
            nv_dedup,
            denova,
            deext,
            inline,
            auto: Auto::new(auto, given, for_auto, concrete, compression),
            off: Off { keeps_zeros: true },
            only_origins: Off { keeps_zeros: false },
            origin_bytes_min,
            custom_policy,
            filler,
        }
    }

    /// Returns the policy for new data that belongs to no file: `own`, or else that of the mount.
    pub(crate) fn of(&self, own: Option<Policy>) -> &dyn Dedup {
        self.of_file(own, 0)
    }

    /// Returns the policy that places new data of a file: its own, or else that of the mount. `directory` is the
    /// inode number of the directory that the file belongs to, or 0.
    #[inline]
    pub(crate) fn of_file(&self, own: Option<Policy>, directory: u64) -> &dyn Dedup {
        match (own, &self.custom_policy) {
            (None, Some(custom_policy)) => &**custom_policy,
            (own, _) => self.get(own.unwrap_or(self.policy), directory),
        }
    }

    /// Returns the name of the policy for new data of a file. For `auto` that is the policy that it chose for the
    /// directory.
    pub(crate) fn chosen(&self, own: Option<Policy>, directory: u64) -> Policy {
        match own.unwrap_or(self.policy) {
            Policy::Auto => self.auto.policy_of(directory),
            policy => policy,
        }
    }

    /// True if new data of a file is stored as it is, and no policy looks at it.
    #[inline]
    pub(crate) fn store_unseen(&self, own: Option<Policy>) -> bool {
        match (own, &self.custom_policy) {
            (None, Some(_)) => false,
            (own, _) => own.unwrap_or(self.policy) == Policy::Off,
        }
    }

    /// True if new data of a file is shared with the data that it was copied from.
    pub(crate) fn follow_origins(&self, own: Option<Policy>) -> bool {
        match (own, &self.custom_policy) {
            (None, Some(_)) => false,
            (own, _) => own.unwrap_or(self.policy).follows_origins(),
        }
    }

    fn get(&self, policy: Policy, directory: u64) -> &dyn Dedup {
        match policy.without_origins() {
            _ if policy == Policy::Icid => &self.only_origins,
            Policy::Inline => &*self.inline,
            Policy::NvDedup => &self.nv_dedup,
            Policy::DeNova => &*self.denova,
            Policy::DeExt => &*self.deext,
            Policy::Auto => self.auto.of(directory),
            _ => &self.off,
        }
    }

    /// Returns the policy that stores blocks where a packing policy finds no room.
    pub(crate) fn of_blocks(&self) -> &dyn Dedup {
        &*self.inline
    }

    /// True if any stream is open.
    pub(crate) fn has_streams(&self) -> bool {
        !self.deext.streams.is_empty()
    }

    /// Returns the DRAM of the open streams, in bytes.
    pub(crate) fn streams_dram_bytes(&self) -> u64 {
        self.deext.streams.dram_bytes()
    }

    /// Shares ends of files with equal packed chunks, under policies that share blocks. The bytes are compared.
    pub(crate) fn place_ends(&self, pieces: &mut [Piece<'_>], tx: &mut Transaction<'_>) {
        let is_equal = |piece: &mut Piece<'_>, chunk, tx: &mut Transaction<'_>| tx.chunks().equal(chunk, piece.bytes);
        let collisions = &self.inline.tally.collisions;
        let search = batch::Search { collisions, fits: batch::is_packed, reads_bytes: true };
        batch::share_all(pieces, tx, &search, is_equal);
    }

    /// Returns the open streams.
    pub(crate) fn streams(&self) -> Option<&Streams> {
        self.deext.streams()
    }

    /// Returns policy `deext`, for its background work.
    pub(crate) fn deext(&self) -> &dyn Dedup {
        &*self.deext
    }

    /// Queues a log entry that is flagged dedupe_needed, even if its file has another policy by now.
    pub(crate) fn queue(&self, entry: Token, blocks: u32, time: i64) {
        self.denova.record_unfingerprinted_entry(entry, blocks, time);
    }

    /// Returns the entries that are queued or in process, the oldest first. For an unmount, when no thread adds or
    /// takes entries any longer.
    pub(crate) fn queued(&self) -> Vec<Token> {
        self.denova.nodes().into_iter().map(|node| node.entry).collect()
    }

    /// Queues entries that an earlier mount left.
    pub(crate) fn restore(&self, entries: impl IntoIterator<Item = (Token, u32)>) {
        self.denova.restore(entries.into_iter().map(|(entry, blocks)| Node::new(entry, blocks)));
    }

    /// True if a policy must be notified of releases. Only a custom policy keeps a table of its own.
    pub(crate) fn needs_release_notices(&self) -> bool {
        self.custom_policy.is_some()
    }

    /// Tells a custom policy that one reference to the chunk was dropped.
    pub(crate) fn released(&self, chunk: ChunkRef, left: Released) {
        if let Some(custom_policy) = &self.custom_policy {
            custom_policy.released(chunk, left);
        }
    }

    /// Measures costs at mount, if the mount's policy depends on them.
    pub(crate) fn mounted(&self, ground: &PolicyDevice<'_>) {
        if self.policy == Policy::NvDedup {
            self.nv_dedup.measure(ground);
        }
        if self.is_default(Policy::Auto) {
            self.auto.measure(ground);
        }
    }

    /// Returns the policy that a program has brought, for its background work.
    pub(crate) fn custom_policy(&self) -> Option<&dyn Dedup> {
        self.custom_policy.as_deref()
    }

    /// Returns the policy whose background work frees space.
    pub(crate) fn space_freeing_policy(&self) -> &dyn Dedup {
        &*self.denova
    }

    /// Returns which files are known to lack no fingerprints, for the saved state of an unmount. None while files
    /// wait to be filled; only files with their own policy where the mount's policy wants no fingerprints, because
    /// its blocks have none.
    pub(crate) fn filled(&self) -> u64 {
        match self.filler.is_done() {
            false => 0,
            // Blocks that `denova` stored to share later are not on the list of blocks without fingerprints.
            true if self.is_default(Policy::Auto) && self.denova.has_worked() => 0,
            true if self.wants_fingerprints() => FILLED_ALL,
            true => FILLED_OWN,
        }
    }

    /// Skips the filler's pass over all files at mount, if the last unmount recorded that no fingerprint is missing.
    pub(crate) fn adopt_filled(&self, filled: u64) {
        if filled == FILLED_ALL || filled == FILLED_OWN && !self.wants_fingerprints() {
            self.filler.skip_sweep();
        }
    }

    /// True if data that the mount's policy stores must get fingerprints, at once or in the background.
    fn wants_fingerprints(&self) -> bool {
        self.of(None).unfingerprinted() == Unfingerprinted::Filed
    }

    /// Returns the policy that fills in the fingerprints that the mount's policy looks for, or `off` if it looks for
    /// none.
    pub(crate) fn filling_policy(&self) -> &dyn Dedup {
        match self.is_default(Policy::NvDedup) {
            true => &self.nv_dedup,
            // No look-up would use the fingerprints.
            false if self.is_default(Policy::Auto) && !self.auto.looks_for_fingerprints() => &self.off,
            false => &*self.inline,
        }
    }

    /// True if this is the policy of new data whose file has no policy.
    pub(crate) fn is_default(&self, policy: Policy) -> bool {
        self.policy == policy && self.custom_policy.is_none()
    }

    /// Returns the statistics of `auto`, if any data uses it.
    pub(crate) fn auto_stats(&self) -> Option<auto::options::AutoStats> {
        self.auto.stats(self.is_default(Policy::Auto))
    }

    /// Records that a daemon works on the queue of `denova`.
    pub(crate) fn daemon_works(&self) {
        self.auto.daemon_works();
    }

    /// Returns the statistics of `nv-dedup`, if new data uses it.
    pub(crate) fn nv_dedup_stats(&self) -> Option<nv_dedup::options::NvDedupStats> {
        let sampling = &self.nv_dedup.sampling;
        (self.is_default(Policy::NvDedup) || sampling.totals().0 > 0).then(|| sampling.stats())
    }

    /// Returns the counters of each policy that shares.
    pub(crate) fn stats(&self) -> Vec<PolicyStats> {
        vec![
            self.inline.tally.stats(Policy::Inline),
            self.nv_dedup.policy_stats(),
            self.denova.tally.stats(Policy::DeNova),
            self.deext.tally.stats(Policy::DeExt),
        ]
    }
}
